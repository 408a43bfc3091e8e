//! Leases in memory that an operator takes.

use std::time::Duration;

use tenure::{Locks, MemoryStore};
use tracing::Level;

use crate::support::events::Watch;
use crate::support::inspect::{show, until_told};
use crate::support::steal;

fn nodes() -> (Locks, Locks) {
    let store = MemoryStore::new();
    let node = |name: &str| {
        let builder = Locks::builder().node_name(name).seed(7);
        builder.memory_shared(&store).unwrap()
    };
    (node("one"), node("other"))
}

#[tokio::test]
async fn a_holder_that_is_asked_gives_the_lease_to_another_node() {
    let (one, other) = nodes();
    steal::a_holder_that_is_asked_gives_the_lease_to_another_node(&one, &other).await;
}

#[tokio::test]
async fn a_holder_that_does_not_give_back_loses_the_lease_first() {
    let (one, other) = nodes();
    steal::a_holder_that_does_not_give_back_loses_the_lease_first(&one, &other).await;
}

#[tokio::test]
async fn one_of_several_holders_is_chosen_by_its_number() {
    let (one, other) = nodes();
    steal::one_of_several_holders_is_chosen_by_its_number(&one, &other).await;
}

#[tokio::test]
async fn a_reader_is_revoked_and_the_others_read_on() {
    let (one, other) = nodes();
    steal::a_reader_is_revoked_and_the_others_read_on(&one, &other).await;
}

#[tokio::test]
async fn a_lease_is_handed_over_at_once() {
    let (one, other) = nodes();
    steal::a_lease_is_handed_over_at_once(&one, &other).await;
}

#[tokio::test]
async fn observers_learn_that_a_leader_was_revoked() {
    let (one, other) = nodes();
    steal::observers_learn_that_a_leader_was_revoked(&one, &other).await;
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused() {
    let (one, other) = nodes();
    steal::what_cannot_be_taken_is_refused(&one, &other).await;
}

#[tokio::test]
async fn a_lease_that_was_given_away_is_left_at_once() {
    let (one, other) = nodes();
    steal::a_lease_that_was_given_away_is_left_at_once(&one, &other).await;
}

#[tokio::test]
async fn a_revoked_writer_that_becomes_a_reader_leaves() {
    let (one, other) = nodes();
    steal::a_revoked_writer_that_becomes_a_reader_leaves(&one, &other).await;
}

#[tokio::test]
async fn one_of_many_holders_is_taken() {
    let (one, other) = nodes();
    steal::one_of_many_holders_is_taken(&one, &other).await;
}

#[tokio::test]
async fn both_sides_tell_of_a_steal() {
    let (one, other) = nodes();
    for (what, of_the_holder) in [
        ("asked", &["asked"][..]),
        ("revoked", &["revoked", "lost"]),
        ("handed_over", &["revoked", "lost"]),
    ] {
        let key = format!("told of {what}");
        let watch = Watch::of(&*key);
        let guard = one.mutex(&*key).lock().await.unwrap();
        until_told(&other, &key).await;
        let steal = other.inspect().steal(&show(&other, &key).await[0]);
        let steal = match what {
            "asked" => steal.grace(Duration::from_secs(600)),
            "revoked" => steal.grace(Duration::ZERO),
            _ => steal.now(),
        };
        let stealing = tokio::spawn(steal.by("the operator").why("the reason").into_future());
        for event in of_the_holder {
            let told = watch.until(event).await;
            assert_eq!(told.level, Level::WARN, "{told:?}");
        }
        if what == "asked" {
            let asked = guard.asked().await.unwrap();
            assert_eq!((&*asked.by, &*asked.why), ("the operator", "the reason"));
            assert!(guard.is_held());
        }
        drop(guard);
        stealing.await.unwrap().unwrap();
        let told = watch.until("stolen").await;
        for word in [&*format!("what={what}"), "by=the operator", "why=the reason"] {
            assert!(told.text.contains(word), "{told:?}");
        }
        let counts = ["asked", "revoked", "lost", "stolen"].map(|event| watch.count(event));
        let wanted = if what == "asked" {
            [1, 0, 0, 1]
        } else {
            [0, 1, 1, 1]
        };
        assert_eq!(counts, wanted, "{what}");
    }
}
