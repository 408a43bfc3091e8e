//! What is told through `tracing`.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::observe::EVENTS;
use tenure::{Clock, Locks, MemoryStore};

use crate::help::ms;
use crate::support::events::Watch;

const OBSERVE: &str = include_str!("../../src/observe.rs");
const OF_JOBS: &str = include_str!("../../src/observe/jobs.rs");

/// The names in the table at the top, in the list, and in the code are the same.
#[test]
fn every_event_is_documented_listed_and_emitted() {
    let listed: BTreeSet<&str> = EVENTS.iter().copied().collect();
    assert_eq!(listed.len(), EVENTS.len(), "listed twice");
    let (events, _metrics) = OBSERVE.split_once("//! # Metrics").unwrap();
    let documented: BTreeSet<&str> = events
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(documented, listed);
    let of_file = |file: &'static str| file.split("event = \"").skip(1);
    let emitted: BTreeSet<&str> = of_file(OBSERVE)
        .chain(of_file(OF_JOBS))
        .filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(emitted, listed);
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
