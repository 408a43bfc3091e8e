//! What is told through `tracing`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::observe::EVENTS;
use tenure::{Clock, Locks, MemoryStore};

use tracing::Level;

use crate::help::ms;
use crate::support::events::Watch;

const OBSERVE: &str = include_str!("../../src/observe.rs");
const OF_JOBS: &str = include_str!("../../src/observe/jobs.rs");
const OF_REQUESTS: &str = include_str!("../../src/observe/requests.rs");
const OF_THE_BACKGROUND: &str = include_str!("../../src/observe/background.rs");
const SOURCES: [&str; 4] = [OBSERVE, OF_JOBS, OF_REQUESTS, OF_THE_BACKGROUND];

/// The rows of the table at the top, by event.
fn rows() -> BTreeMap<&'static str, &'static str> {
    let (events, _metrics) = OBSERVE.split_once("//! # Metrics").unwrap();
    let rows = events.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.filter_map(|row| row.split_once("` | ")).collect()
}

/// The names in the table at the top, in the list, and in the code are the same.
#[test]
fn every_event_is_documented_listed_and_emitted() {
    let listed: BTreeSet<&str> = EVENTS.iter().copied().collect();
    assert_eq!(listed.len(), EVENTS.len(), "listed twice");
    let documented: BTreeSet<&str> = rows().into_keys().collect();
    assert_eq!(documented, listed);
    let of_file = |file: &'static str| file.split("event = \"").skip(1);
    let emitted: BTreeSet<&str> = SOURCES
        .into_iter()
        .flat_map(of_file)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(emitted, listed);
}

/// The row of an event names each level that the code has for it, the usual one first.
#[test]
fn every_event_is_as_loud_as_its_row_says() {
    let mut levels: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in SOURCES {
        let events: Vec<&str> = source.split("event = \"").collect();
        for pair in events.windows(2) {
            // `warn!(target: …`, `node_event!(WARN: …`, or `event_at!(level: …`, whose level depends on what happened.
            let (before, words) = pair[0].rsplit_once("!(").unwrap();
            let call = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
            let level = match call.unwrap() {
                "key_event" | "node_event" => words.trim_end_matches([' ', ':']).rsplit(' ').next().unwrap(),
                "event_at" => continue,
                level => level,
            };
            let (event, _) = pair[1].split_once('"').unwrap();
            levels.entry(event).or_default().insert(level.to_lowercase());
        }
    }
    assert!(levels.len() > 40, "{levels:?}");
    let rows = rows();
    for (event, levels) in levels {
        let row = rows[event].to_lowercase();
        let words: Vec<&str> = row.split(|c: char| !c.is_alphanumeric()).collect();
        let is_usual = levels.contains(words[0]);
        let are_named = levels.iter().all(|level| words.contains(&level.as_str()));
        assert!(is_usual && are_named, "{event} has {levels:?}: {row}");
    }
}

/// And nobody emits past that file.
#[test]
fn events_are_emitted_in_one_place() {
    let mut rooms = vec![std::path::PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src"
    ))];
    while let Some(room) = rooms.pop() {
        for entry in std::fs::read_dir(room).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                rooms.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found = code.filter(|line| {
                [
                    "tracing::warn!",
                    "tracing::error!",
                    "tracing::info!",
                    "tracing::debug!",
                    "tracing::trace!",
                ]
                .iter()
                .any(|call| line.contains(call))
            });
            assert_eq!(
                found.collect::<Vec<_>>(),
                Vec::<&str>::new(),
                "{}",
                path.display()
            );
        }
    }
}

/// A process that stood still says so first, and its losses name no other cause.
#[tokio::test]
async fn a_pause_of_the_process_is_told_once_before_what_it_cost() {
    let clock = Clock::new();
    let builder = Locks::builder().lease(ms(6_000)).node_name("paused");
    let locks = builder.clock(clock.clone()).memory().unwrap();
    let watch = Watch::of("node_name=paused ");
    let guards = [
        locks.mutex("paused 1").lock().await.unwrap(),
        locks.mutex("paused 2").lock().await.unwrap(),
    ];
    // Its driver sleeps.
    tokio::time::sleep(ms(100)).await;
    clock.jump(ms(20_000));
    let _ = guards.map(|guard| assert!(!guard.is_held()));
    watch.until("lost").await;
    while watch.count("lost") < 2 {
        tokio::time::sleep(ms(5)).await;
    }
    // Long enough for the driver to wake, which would tell it again.
    tokio::time::sleep(ms(1_000)).await;
    let told = watch.told();
    let loud: Vec<_> = told.iter().filter(|told| told.level <= Level::WARN).collect();
    let events: Vec<&str> = loud.iter().map(|told| told.event.as_str()).collect();
    assert_eq!(events, ["process_paused", "lost", "lost"], "{told:#?}");
    let (_, paused) = loud[0].text.split_once("paused_ms=").unwrap();
    let paused: u64 = paused.trim().parse().unwrap();
    assert!((17_500..40_000).contains(&paused), "{paused}");
    assert!(
        loud[1].text.contains("while this process stood still"),
        "{loud:#?}"
    );
    assert!(
        loud.iter().all(|told| !told.text.contains("renewal")),
        "{loud:#?}"
    );
}

/// The life of a key, as it is told.
#[tokio::test]
async fn the_life_of_a_key_is_told() {
    let store = MemoryStore::new();
    let clock = Clock::new();
    let one = Locks::builder()
        .lease(ms(6_000))
        .burst(64, Duration::from_secs(600))
        .clock(clock.clone())
        .memory_shared(&store)
        .unwrap();
    let other = Locks::builder().lease(ms(6_000)).memory_shared(&store).unwrap();
    let watch = Watch::of("key=told ");
    let guard = one.mutex("told").lock().await.unwrap();
    watch.until("granted").await;
    assert!(one.mutex("told").try_lock().await.unwrap().is_none());
    watch.until("denied").await;
    let renewed = watch.until("renewed").await;
    // When a third of the lease was over, and so of the old one: the new one has all of its time left.
    let (_, slack) = renewed.text.split_once("slack_ms=").unwrap();
    let slack: u64 = slack.split(' ').next().unwrap().parse().unwrap();
    assert!(slack <= 4_000, "{slack}");
    let waiting = tokio::spawn(one.mutex("told").lock());
    while one.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    watch.until("handed_on").await;
    watch.until("released").await;
    let guard = waiting.await.unwrap().unwrap();
    clock.jump(ms(6_001));
    assert!(!guard.is_held());
    watch.until("lost").await;
    assert!(guard.release().await.is_err());
    for told in watch.told() {
        assert_eq!(told.target, "tenure");
        assert!(EVENTS.contains(&told.event.as_str()), "{told:?}");
        for node in [&one, &other] {
            assert!(
                !told.text.contains(&node.node().to_string()),
                "a holder's name in {told:?}"
            );
        }
    }
}
