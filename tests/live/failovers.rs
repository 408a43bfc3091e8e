//! What happens to leases when a replica is promoted in place of the master.

use crate::deployment::{Deployment, info, tell};
use crate::help::Eyes;

/// The deployment does what the other tests need: this test has no locks.
#[test]
fn a_replica_is_promoted_and_what_was_written_without_replication_is_lost() {
    let mut deployment = Deployment::start();
    let first = deployment.master();
    let reads = |deployment: &Deployment, at: usize| {
        let mut eyes = Eyes::on(&deployment.servers[at]);
        ["kept", "lost"].map(|key| eyes.text::<Option<String>>(&format!("GET {key}")).is_some())
    };
    tell(&deployment.servers[first], &["SET", "kept", "1"]);
    // A replica has all that its master wrote.
    deployment.wait_for_replicas();
    deployment.cut_replication();
    tell(&deployment.servers[first], &["SET", "lost", "1"]);
    assert_eq!(reads(&deployment, first), [true, true]);
    assert_eq!(deployment.kill_master(), first);
    deployment.heal_replication();
    let second = deployment.promoted(first);
    assert_ne!(first, second);
    assert_eq!(reads(&deployment, second), [true, false]);

    deployment.rejoin(first);
    assert_eq!(info(&deployment.servers[first], "role"), "slave");
    assert_eq!(reads(&deployment, first), [true, false]);
    assert_eq!(deployment.fail_over(), second);
    let third = deployment.promoted(second);
    assert_eq!(reads(&deployment, third), [true, false]);
}
