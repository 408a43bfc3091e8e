//! The laws that every store must show, on a real cluster.
//!
//! The laws of a wait of zero run without the slow wire that they have on one server: a proxy cannot be between a node and a
//! cluster, whose servers announce their own addresses.

use tenure::{Builder, Locks};

use crate::cancellation::{self, Contents};
use crate::cluster::Cluster;
use crate::help::ms;
use crate::server::RedisServer;
use crate::stage::{Rest, Servers, Stage, Suite, run_laws};

const MASTERS: usize = 3;

impl Servers for Cluster {
    fn servers(&self) -> Vec<&RedisServer> {
        (0..MASTERS).map(|at| self.server(at)).collect()
    }

    async fn node(&self, builder: Builder) -> Locks {
        let urls = self.urls();
        let like = redis::Client::open(&*urls[0]).unwrap();
        builder.cluster(&urls[..1], like).await.unwrap()
    }

    fn stays(&self, key: &[u8]) -> bool {
        key.starts_with(b"tenure1:clock:{") || key.starts_with(b"tenure1:l:{")
    }
}

impl Contents for &Stage<'_> {
    fn left_behind(&mut self) -> Vec<String> {
        self.left()
    }

    fn queue(&mut self, key: &str) -> usize {
        self.queued(key)
    }
}

fn suites() -> Vec<Suite> {
    let mut mutexes = Suite::new("mutexes", ms(10_000), Rest::Nothing);
    crate::laws_of_mutexes!(list mutexes);
    let mut rw_locks = Suite::new("read-write and several locks", ms(10_000), Rest::Nothing);
    crate::laws_of_read_write_locks!(list rw_locks);
    let mut semaphores = Suite::new("semaphores", ms(10_000), Rest::Nothing);
    crate::laws_of_semaphores!(list semaphores);
    let mut latches = Suite::new("latches", ms(1_500), Rest::Latches);
    crate::laws_of_latches!(list latches);
    let mut elections = Suite::new("elections", ms(5_000), Rest::Watchers);
    crate::laws_of_elections!(list elections);
    let mut transfers = Suite::new("transfers", ms(10_000), Rest::Nothing);
    crate::laws_of_transfers!(list transfers);
    let mut two_locks = Suite::new("two locks", ms(10_000), Rest::Nothing);
    crate::laws_of_two_locks!(list two_locks);
    let mut zero_waits = Suite::new("waits of zero", ms(20_000), Rest::Latches);
    crate::laws_of_zero_waits!(list zero_waits);
    let mut cancellation = Suite::new("cancellation", ms(60_000), Rest::Nothing);
    cancellation.add("dropped_futures", |on| {
        on.run(cancellation::dropped_futures_leave_nothing(
            &on.one, &on.other, &mut &*on,
        ));
    });
    cancellation.add("dropped_futures_of_readers_or_several", |on| {
        on.run(cancellation::dropped_futures_of_readers_or_several_leave_nothing(
            &on.one, &on.other, &mut &*on,
        ));
    });
    cancellation.add("dropped_futures_of_transfers", |on| {
        on.run(cancellation::dropped_futures_of_transfers_leave_nothing(
            &on.one, &on.other, &mut &*on,
        ));
    });
    cancellation.add("aborted_tasks", |on| {
        on.run(cancellation::aborted_tasks_leave_nothing(
            &on.one, &on.other, &mut &*on,
        ));
    });
    // The longest laws come first.
    vec![
        cancellation,
        elections,
        transfers,
        latches,
        mutexes,
        rw_locks,
        semaphores,
        two_locks,
        zero_waits,
    ]
}

#[test]
fn the_laws_of_every_store_hold_on_a_cluster() {
    run_laws(&Cluster::start(MASTERS, 0), &suites());
}
