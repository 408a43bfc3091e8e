//! Latches, on the memory store.

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{
    Batch, Called, Checkpoint, ClaimNumber, GrantNumber, Holder, LatchReport, LeaseTimes, Mode, Name, NodeId,
    Question, Reply, Request, Rule, Turn, Verb,
};
use tenure::{Error, Key, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two, until};

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let make = || Locks::builder().lease(ms(1_500)).memory_shared(&store).unwrap();
    (make(), make(), store)
}

crate::laws_of_latches!(nodes);

/// As many may wait as for a lock, of one latch and of all.
#[tokio::test]
async fn too_many_who_wait_are_refused() {
    let locks = Locks::builder()
        .waiters_per_key(2)
        .waiters_per_node(3)
        .memory()
        .unwrap();
    for name in ["a", "b"] {
        assert!(locks.latch(name).try_set_count(1).await.unwrap());
    }
    let (a, b) = (locks.latch("a"), locks.latch("b"));
    let mut waiting = [a.wait(), a.wait(), b.wait()].map(Box::pin);
    for waiting in &mut waiting {
        assert!(poll_once(waiting).await.is_none());
    }
    let (of_key, of_node) = (soon(a.wait()).await, soon(b.wait()).await);
    assert!(matches!(of_key, Err(Error::QueueFull { .. })), "{of_key:?}");
    assert!(matches!(of_node, Err(Error::NodeFull { .. })), "{of_node:?}");
    // Who does not wait is not refused.
    assert_eq!(a.count_down().await.unwrap(), 0);
    let [one, other, _] = waiting;
    soon(one).await.unwrap();
    soon(other).await.unwrap();
}

#[tokio::test]
async fn a_node_that_shuts_down_tells_who_waits() {
    let (one, other) = two(&MemoryStore::new());
    assert!(one.latch("a").try_set_count(1).await.unwrap());
    let waiting = tokio::spawn({
        let latch = other.latch("a");
        async move { latch.wait().await }
    });
    until("it waits", || other.waiting() == 1).await;
    soon(other.shutdown()).await;
    let closed = soon(waiting).await.unwrap();
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    let closed = soon(other.latch("a").count_down()).await;
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    assert_eq!(one.latch("a").count().await.unwrap(), 1);
}

/// It may have been set by the first request, have come to zero, and have been set again by another.
#[test]
fn who_may_have_set_it_is_not_told_that_it_did_not() {
    let (mut ledger, name) = (Ledger::new(), Name::latch(Key::from("a")));
    let mut ask = |now_us: u64, question: Question, id: &[u8]| {
        let request = Request {
            name: name.clone(),
            holder: Holder {
                node: NodeId::numbered(1),
                claim: ClaimNumber(1),
                nonce: 1,
            },
            term: LeaseTimes {
                lease_ms: 1_000,
                margin_ms: 250,
            },
            mode: Mode::Exclusive,
            mark: None,
            turn: Turn::Skip,
            verb: Verb::Ask(question),
            data: Some(Checkpoint(id.into())),
        };
        let batch = Batch {
            highest: GrantNumber(0),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            rule: Rule::Each,
            requests: vec![request],
        };
        ledger.apply(now_us, &batch, &mut Vec::new()).replies.remove(0)
    };
    let called = |repeats| Called {
        since: 10,
        until: 1_000_000,
        repeats,
        of: None,
    };
    let set = |repeats| Question::SetCount {
        count: 1,
        life_ms: 60_000,
        called: called(repeats),
    };
    assert_eq!(ask(100, set(false), b"mine"), Reply::Latch(LatchReport::Set));
    let down = Question::CountDown {
        called: Called {
            since: 1_000,
            ..called(false)
        },
    };
    assert_eq!(ask(2_000, down, b"down"), Reply::Latch(LatchReport::Left(0)));
    let theirs = Question::SetCount {
        count: 3,
        life_ms: 60_000,
        called: Called {
            since: 3_000,
            ..called(false)
        },
    };
    assert_eq!(ask(4_000, theirs, b"theirs"), Reply::Latch(LatchReport::Set));
    assert_eq!(
        ask(5_000, set(true), b"mine"),
        Reply::Latch(LatchReport::Uncertain)
    );
    // Who asks for the first time knows.
    assert_eq!(
        ask(6_000, set(false), b"other"),
        Reply::Latch(LatchReport::Left(3))
    );
}
