//! Latches, on the memory store.

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{
    Call, CallAnswer, CallReply, CallTime, ClaimId, ClaimNumber, LatchReport, LeaseTimes, Mode, Name, NodeId,
    Payload, Reply, Request, Verb, Version, WhenBehind,
};
use tenure::{Error, Key, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two, until};

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let make = || Locks::builder().lease(ms(1_500)).memory_shared(&store).unwrap();
    (make(), make(), store)
}

crate::laws_of_latches!(nodes);

/// A latch and a node have the same limits of waiters as for locks.
#[tokio::test]
async fn waiters_over_the_limit_are_refused() {
    let locks = Locks::builder()
        .max_waiters_per_key(2)
        .max_waiters_per_node(3)
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
    // A call that does not wait is not refused.
    assert_eq!(a.count_down().await.unwrap(), 0);
    let [one, other, _] = waiting;
    soon(one).await.unwrap();
    soon(other).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_closes_the_waits_of_the_node() {
    let (one, other) = two(&MemoryStore::new());
    assert!(one.latch("a").try_set_count(1).await.unwrap());
    let waiting = tokio::spawn({
        let latch = other.latch("a");
        async move { latch.wait().await }
    });
    until("it waits", || other.waiter_count() == 1).await;
    soon(other.shutdown()).await;
    let closed = soon(waiting).await.unwrap();
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    let closed = soon(other.latch("a").count_down()).await;
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    assert_eq!(one.latch("a").count().await.unwrap(), 1);
}

/// A ledger with one latch, which is called like a store.
struct Store {
    ledger: Ledger,
    name: Name,
}

impl Store {
    fn ask(&mut self, now_us: u64, call: Call, id: &[u8]) -> Reply {
        let request = Request {
            name: self.name.clone(),
            claim_id: ClaimId {
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
            when_behind: WhenBehind::Skip,
            may_keep: false,
            verb: Verb::Call(call),
            data: Some(Payload(id.into())),
        };
        crate::help::ask(&mut self.ledger, now_us, request)
    }

    /// Returns a latch whose first life of 1 s came to zero and has ended, and whose second life begins at 5 s.
    fn in_the_second_life() -> Self {
        let (ledger, name) = (Ledger::new(), Name::latch(Key::from("a")));
        let mut store = Store { ledger, name };
        let set = Reply::from(CallAnswer::Latch(LatchReport::Set));
        assert_eq!(store.ask(1_000_000, set_count(1, 1_000), b"first"), set);
        let down = store.ask(1_500_000, count_down(1_200_000, false), b"down");
        assert_eq!(down, CallAnswer::Latch(LatchReport::Left(0)).into());
        assert_eq!(store.ask(5_000_000, set_count(3, 1_000), b"second"), set);
        store
    }
}

fn set_count(count: u32, life_ms: u64) -> Call {
    Call::SetCount { count, life_ms }
}

/// A count-down that was called at about that time.
fn count_down(at_us: u64, repeats: bool) -> Call {
    let called = CallTime {
        since: at_us,
        until: at_us + 100_000,
        repeats,
        of: None,
    };
    Call::CountDown { called }
}

#[test]
fn a_repeated_count_down_does_not_count_in_the_next_life() {
    let mut store = Store::in_the_second_life();
    let answer = store.ask(5_200_000, count_down(1_200_000, true), b"down");
    assert_eq!(answer, CallAnswer::Latch(LatchReport::Over).into());
    // The latch was set while the call was in flight, and its first request may have been executed before that.
    let answer = store.ask(5_200_000, count_down(4_950_000, true), b"near");
    assert_eq!(answer, CallAnswer::Latch(LatchReport::Uncertain).into());
    let answer = store.ask(5_200_000, Call::Count, b"");
    assert_eq!(answer, CallAnswer::Latch(LatchReport::Left(3)).into());
}

#[test]
fn a_waiter_of_an_earlier_life_is_told_that_it_is_over() {
    let mut store = Store::in_the_second_life();
    let of = Some(Version(1_000_000));
    let answer = store.ask(5_200_000, Call::Zero { of }, b"");
    assert_eq!(answer, CallAnswer::Latch(LatchReport::Unset).into());
    let answer = store.ask(5_200_000, Call::Zero { of: None }, b"");
    assert_eq!(answer, CallReply::Watching(Version(5_000_000)).into());
}
