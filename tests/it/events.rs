//! The events emitted through `tracing`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::observe::EVENTS;
use tenure::testing::Clock;
use tenure::{Locks, MemoryStore};

use tracing::Level;

use crate::help::ms;
use crate::support::events::Watch;

const EVENTS_FILE: &str = include_str!("../../src/observe/events.rs");

/// A row of the table of events.
struct Row {
    docs: String,
    /// The levels, the usual one first.
    levels: Vec<&'static str>,
}

/// Returns the rows by event, and the code after the table.
fn rows() -> (BTreeMap<&'static str, Row>, &'static str) {
    let (_, table) = EVENTS_FILE.split_once("\nevents! {\n").unwrap();
    let (table, code) = table.split_once("\n}\n}\n").unwrap();
    let mut rows = BTreeMap::new();
    let mut docs = String::new();
    let mut levels = Vec::new();
    for line in table.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            docs = format!("{docs} {text}");
            continue;
        }
        // Until its name, a row has only levels and their conditions.
        let head = line.split(['"', '[']).next().unwrap();
        for word in head.split([' ', '(']) {
            if !docs.is_empty() && word.parse::<Level>().is_ok() {
                levels.push(word);
            }
        }
        let name = EVENTS.iter().find(|event| {
            let (before, _) = head.split_once(&format!("{event}(")).unwrap_or(("x", ""));
            before.is_empty() || before.ends_with(' ')
        });
        if let Some(event) = name
            && !docs.is_empty()
        {
            let row = Row {
                docs: std::mem::take(&mut docs),
                levels: std::mem::take(&mut levels),
            };
            assert!(rows.insert(*event, row).is_none(), "{event} has two rows");
        }
    }
    (rows, code)
}

/// Calls `look` with the code of each file under `src`, without its comments.
fn for_each_file(mut look: impl FnMut(&std::path::Path, &str)) {
    let mut folders = vec![std::path::PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src"
    ))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            look(&path, &code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The names in the table and in the list are the same, and each is emitted by its function.
#[test]
fn every_event_is_documented_listed_and_emitted() {
    let listed: BTreeSet<&str> = EVENTS.iter().copied().collect();
    assert_eq!(listed.len(), EVENTS.len(), "listed twice");
    let (rows, code) = rows();
    let documented: BTreeSet<&str> = rows.keys().copied().collect();
    assert_eq!(documented, listed);
    let mut emitted: BTreeSet<&str> = BTreeSet::new();
    for_each_file(|_, text| {
        let is_called = |event: &&str| {
            text.contains(&format!("observe::{event}(")) || code.contains(&format!(" {event}("))
        };
        emitted.extend(EVENTS.iter().copied().filter(is_called));
    });
    assert_eq!(emitted, listed);
}

/// The usual level of a row is first, and the words of the row say when each other level is used.
#[test]
fn every_event_has_the_level_of_its_row() {
    let (rows, _) = rows();
    assert!(rows.len() > 40);
    for (event, Row { docs, levels }) in rows {
        assert!(!levels.is_empty(), "{event} has no level");
        let words: Vec<&str> = docs.split(|c: char| !c.is_alphanumeric()).collect();
        for level in &levels[1..] {
            assert!(words.contains(level), "{event} has {levels:?}: {docs}");
        }
    }
}

/// No file but that of the table's macros emits an event.
#[test]
fn events_are_emitted_in_one_place() {
    let mut emitting = Vec::new();
    for_each_file(|path, text| {
        let mut calls = ["warn!(", "error!(", "info!(", "debug!(", "trace!(", "event!("].into_iter();
        if calls.any(|call| text.contains(call)) {
            emitting.push(path.to_owned());
        }
    });
    let names: Vec<_> = emitting.iter().filter_map(|path| path.file_name()).collect();
    assert_eq!(names, ["event.rs"], "{emitting:?}");
}

/// A process that was stopped reports that first, and its losses name no other cause.
#[tokio::test]
async fn a_pause_of_the_process_is_reported_once_before_its_losses() {
    let clock = Clock::new();
    let builder = Locks::builder().lease(ms(6_000)).node_name("paused");
    let locks = builder.clock(clock.clone()).memory().unwrap();
    let watch = Watch::of("node_name=paused ");
    let guards = [
        locks.mutex("paused 1").lock().await.unwrap(),
        locks.mutex("paused 2").lock().await.unwrap(),
    ];
    // The node's driver sleeps.
    tokio::time::sleep(ms(100)).await;
    clock.jump(ms(20_000));
    let _ = guards.map(|guard| assert!(!guard.is_held()));
    watch.until("lost").await;
    while watch.count("lost") < 2 {
        tokio::time::sleep(ms(5)).await;
    }
    // Long enough for the driver to wake, which must not repeat the event.
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

/// The events of one key, from its grant to its loss.
#[tokio::test]
async fn the_events_of_a_key_are_emitted_in_order() {
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
    // A third of the lease has passed. The slack is that of the old lease: the new one has all of its time left.
    let (_, slack) = renewed.text.split_once("slack_ms=").unwrap();
    let slack: u64 = slack.split(' ').next().unwrap().parse().unwrap();
    // Renewals are up to a 1,024th of their period early.
    assert!(slack <= 4_008, "{slack}");
    let waiting = tokio::spawn(one.mutex("told").lock());
    while one.waiter_count() == 0 {
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
                !told.text.contains(&node.node_id().to_string()),
                "a holder's name in {told:?}"
            );
        }
    }
}
