//! Leases that move from one process to another, on the memory store.

use tenure::protocol::message::LeaseTimes;
use tenure::protocol::step::{Input, Rules};
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
