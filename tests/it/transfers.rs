//! Leases that move from one process to another, on the memory store.

use tenure::protocol::message::{ClaimReply, GrantNumber, LeaseTimes, LeaveReply};
use tenure::protocol::step::{Effect, Input, Outcome, Rules};
use tenure::{Error, Locks, MemoryStore};

use crate::failures::Why;
use crate::help::{ms, soon, two};
use crate::machine::Machine;

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    (one, other, store)
}

fn is_empty(store: MemoryStore) {
    assert!(store.is_empty(), "{store:?}");
}

crate::laws_of_transfers!(nodes, is_empty);

#[tokio::test]
async fn a_transfer_of_another_prefix_is_refused() {
    let locks = Locks::memory();
    let others = Locks::builder().prefix("other:").memory().unwrap();
    let guard = soon(others.mutex("order").lock()).await.unwrap();
    let transfer = guard.into_transfer(ms(60_000)).await.unwrap();
    let refused = [
        locks.adopt(&transfer).await.map(drop),
        locks.extend_transfer(&transfer, ms(60_000)).await,
        locks.release_transfer(&transfer).await,
    ];
    for answer in refused {
        let Err(Error::Options(why)) = answer else {
            panic!("{answer:?}")
        };
        let why = why.to_string();
        assert!(why.contains("`other:`") && why.contains("`lock:`"), "{why}");
    }
    others.release_transfer(&transfer).await.unwrap();
}

/// A holder that gives a lease up without an answer waits until the lease ends, however long the transfer is to last.
#[test]
fn giving_up_a_lease_waits_no_longer_than_the_lease_lasts() {
    let mut machine = Machine::new(Rules::default());
    let (claim_id, to) = (machine.claim_id(1_000), machine.shard.issue());
    let began = machine.now;
    let day = LeaseTimes {
        lease_ms: 86_400_000,
        margin_ms: 250,
    };
    machine.tell(Input::Transfer(claim_id, to, day));
    let heard = Some(machine.now);
    while machine.denial(to).is_none() {
        let sends = machine.sends();
        machine.later(ms(300));
        machine.fail(Why::Unknown, heard);
        // The request is repeated at once, or after a pause.
        if machine.denial(to).is_none() && machine.sends() == sends {
            machine.passes();
        }
        assert!(machine.now < began + ms(5_000), "it still waits");
    }
}

/// The lease of a transfer is lost before it is handed out. The holder is told that its holding has ended, so that nothing of it
/// stays in the process.
#[test]
fn a_transfer_that_is_lost_before_it_is_handed_out_ends() {
    for is_forgotten in [false, true] {
        let mut machine = Machine::new(Rules::default());
        let (holder, to) = (machine.claim_id(1_000), machine.shard.issue());
        let term = LeaseTimes {
            lease_ms: 400,
            margin_ms: 250,
        };
        machine.tell(Input::Transfer(holder, to, term));
        machine.answer(ClaimReply::granted(GrantNumber(8)));
        assert!(machine.take_up(to));
        machine.later(ms(500));
        if is_forgotten {
            machine.wake();
            machine.answer(LeaveReply::NotThere);
            assert!(machine.shard.is_empty());
        }
        machine.effects.clear();
        machine.tell(Input::HandedOut(to));
        let released =
            |effect: &Effect| matches!(effect, Effect::Released(of, Outcome::Lost(_)) if *of == to);
        assert!(machine.effects.iter().any(released), "{:?}", machine.effects);
    }
}
