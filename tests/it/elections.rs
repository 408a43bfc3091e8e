//! Elections, on the memory store.

use tenure::protocol::ledger::{Ledger, Record, RecordOwner};
use tenure::protocol::message::{
    Batch, ClaimId, ClaimNumber, GrantNumber, LeaseTimes, Mode, Name, NodeId, Payload, Reply, Request, Rule,
    Verb,
};
use tenure::{Key, Locks, MemoryStore};

use crate::help::ms;

/// The server's clock, in µs.
const US: u64 = 1_800_000_000_000_000;

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let make = |name| {
        let builder = Locks::builder().lease(ms(2_000)).node_name(name);
        builder.memory_shared(&store).unwrap()
    };
    (make("one"), make("other"), store)
}

/// The store forgets ended elections once there are many.
async fn is_empty(store: MemoryStore) {
    drop(store);
}

crate::laws_of_elections!(nodes, is_empty);

/// A foreign client deletes the record of a leader and writes it again, while the claim waits in the queue. The leave then hands
/// the key to its own claim. It withdraws the claim's value, as the script does.
#[test]
fn a_leave_withdraws_the_value_of_its_claim() {
    let name = Name::election(Key::from("a"));
    let claim_id = ClaimId {
        node: NodeId::numbered(1),
        claim: ClaimNumber(1),
        nonce: 1,
    };
    let mut ledger = Ledger::new();
    let ask = |ledger: &mut Ledger, verb, data| {
        let request = Request {
            name: name.clone(),
            claim_id,
            term: LeaseTimes {
                lease_ms: 1_000,
                margin_ms: 250,
            },
            mode: Mode::Exclusive,
            when_behind: Default::default(),
            data,
            mark: None,
            verb,
        };
        let batch = Batch {
            highest: GrantNumber(0),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            is_unconfirmed: false,
            recovery_ms: 1_000,
            rule: Rule::Each,
            requests: vec![request],
        };
        ledger.apply(US, &batch, &mut Vec::new()).replies.remove(0)
    };
    let claim = Verb::Claim { wait: true };
    assert!(matches!(ask(&mut ledger, claim, None), Reply::Granted(_)));
    let record = ledger.record(&name, US).cloned();
    let foreign = Record {
        owner: RecordOwner::Foreign,
        expires: None,
    };
    ledger.overwrite(&name, Some(foreign));
    let value = Payload(b"value"[..].into());
    assert_eq!(
        ask(&mut ledger, claim, Some(value)),
        Reply::QueuedBehindForeign(None)
    );
    ledger.overwrite(&name, record);
    assert_eq!(ask(&mut ledger, Verb::Leave, None), Reply::Done);
    assert!(ledger.record(&name, US).is_some(), "it owns the key again");
    assert_eq!(ledger.proclaimed(&name, US), None);
}
