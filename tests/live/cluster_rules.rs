//! What the tests on a cluster rely on: how Redis moves slots, and how it promotes replicas. No locks.

use crate::cluster::Cluster;
use crate::deployment::{query, tell};

#[test]
fn a_slot_moves_with_its_keys_and_their_expiry() {
    let mut cluster = Cluster::start(3, 1);
    let slot: u16 = query(cluster.server(0), &["CLUSTER", "KEYSLOT", "lock:a"]).unwrap();
    let from = cluster.master_of_slot(slot);
    tell(cluster.server(from), &["SET", "lock:a", "1", "PX", "60000"]);
    let to = (from + 1) % 3;
    cluster.move_slot(slot, to);
    assert_eq!(cluster.master_of_slot(slot), to);
    let left: i64 = query(cluster.server(to), &["PTTL", "lock:a"]).unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    cluster.settle();
    cluster.kill(to);
    let new = cluster.promoted(to);
    let left: i64 = query(cluster.server(new), &["PTTL", "lock:a"]).unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
}
