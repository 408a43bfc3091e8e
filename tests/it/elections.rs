//! Elections, on the memory store.

use tenure::protocol::ledger::{Ledger, Record, RecordOwner};
use tenure::protocol::message::{
    ClaimId, ClaimNumber, ClaimReply, LeaseTimes, LeaveReply, Mode, Name, NodeId, Payload, QueueOwner,
    Request, Verb,
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

/// An operator revokes the lease of a leader, whose claim then waits under the same number. No node does that. The leave hands the
/// key to its own claim, and withdraws the value of that claim, as the script does. The leave of an owner does not.
#[test]
fn the_leave_of_a_revoked_claim_withdraws_its_value() {
    let name = Name::election(Key::from("a"));
    let claim_id = ClaimId {
        node: NodeId::numbered(1),
        claim: ClaimNumber(1),
        nonce: 1,
    };
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
            may_keep: false,
            data,
            mark: None,
            verb,
        };
        crate::help::ask(ledger, US, request)
    };
    let claim = Verb::Claim { wait: true };
    let value = || Some(Payload(b"value"[..].into()));
    for is_revoked in [true, false] {
        let mut ledger = Ledger::new();
        let Some(number) = ask(&mut ledger, claim, None).number() else {
            panic!("free")
        };
        // A claim that is told to wait although it leads: its record is away meanwhile.
        let record = ledger.record(&name, US).cloned();
        let foreign = Record {
            owner: RecordOwner::Foreign,
            expires: None,
            may_keep: false,
        };
        ledger.overwrite(&name, Some(foreign));
        assert_eq!(
            ask(&mut ledger, claim, value()),
            ClaimReply::Queued(None, QueueOwner::Foreign).into()
        );
        let record = record.map(|record| Record {
            owner: match is_revoked {
                true => RecordOwner::Revoked(claim_id, number),
                false => record.owner.clone(),
            },
            ..record
        });
        ledger.overwrite(&name, record);
        assert_eq!(ask(&mut ledger, Verb::Leave, None), LeaveReply::Left.into());
        assert!(ledger.record(&name, US).is_some(), "it owns the key again");
        assert_eq!(ledger.proclaimed(&name, US).is_none(), is_revoked);
    }
}
