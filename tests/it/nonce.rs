//! The nonce of a claim makes a grant hard to forge: it cannot be computed from outside.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use std::time::{Duration, Instant};

use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::message::{ClaimId, Name};
use tenure::{Locks, MemoryStore};

/// Returns the node's first claim, as the store keeps it.
fn first_claim() -> ClaimId {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _guard = runtime.block_on(locks.mutex("a").lock()).unwrap();
    let record = store.with_ledger(|ledger, now| ledger.record(&Name::lock("a".into()), now).cloned());
    match record {
        Some(Record {
            owner: RecordOwner::Claim(claim_id, _),
            ..
        }) => claim_id,
        other => panic!("no claim: {other:?}"),
    }
}

/// An attacker that knows roughly when the locks were built, and on which thread, can try every nanosecond. That many
/// steps are cheap.
#[test]
fn no_moment_explains_a_nonce() {
    let build = || {
        let (before, thread) = (Instant::now(), thread::current().id());
        let claim_id = first_claim();
        (before, before.elapsed(), thread, claim_id)
    };
    // The thread has drawn no number yet.
    let (before, took, thread, claim_id) = thread::spawn(build).join().unwrap();
    for nanos in 0..took.as_nanos().min(50_000_000) as u64 {
        let mut hasher = DefaultHasher::new();
        (before + Duration::from_nanos(nanos)).hash(&mut hasher);
        thread.hash(&mut hasher);
        let mut seeds = fastrand::Rng::with_seed(hasher.finish()).fork();
        for _ in 0..16 {
            let nonce = fastrand::Rng::with_seed(seeds.u64(..)).u64(..);
            assert_ne!(nonce, claim_id.nonce, "found after {nanos} of {took:?}");
        }
    }
}

/// Other random numbers of the program, and their seeds, do not determine the nonce.
#[test]
fn no_seed_of_the_program_decides_a_nonce() {
    let mut seen = std::collections::HashSet::new();
    for _ in 0..64 {
        fastrand::seed(7);
        let nonce = first_claim().nonce;
        assert!(seen.insert(nonce), "{nonce:x} came again");
    }
}
