//! The laws that every store must show, on a real cluster.
//!
//! One test starts one cluster and runs all laws, a few at a time. Each law has nodes with a prefix of their own, so its
//! names do not meet those of other laws. The laws of a wait of zero run without the slow wire that they have on one server:
//! a proxy cannot be between a node and a cluster, whose servers announce their own addresses.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure::Locks;
use tokio::runtime::Runtime;

use crate::cancellation::{self, Contents};
use crate::cluster::Cluster;
use crate::deployment::{eventually, query};
use crate::help::{PATIENCE, ms};

/// How many laws run at a time.
const AT_A_TIME: usize = 3;

/// Where a law runs: two nodes of its own on the cluster of all laws.
struct Stage<'a> {
    one: Locks,
    other: Locks,
    runtime: Runtime,
    cluster: &'a Cluster,
    prefix: String,
}

impl<'a> Stage<'a> {
    fn new(cluster: &'a Cluster, number: usize, suite: &Suite) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let prefix = format!("law {number}:");
        let urls = cluster.urls();
        let node = async |name| {
            let like = redis::Client::open(&*urls[0]).unwrap();
            let builder = Locks::builder()
                .prefix(&prefix)
                .node_name(name)
                .lease(suite.lease);
            let builder = builder.request_timeout(ms(10_000));
            builder.cluster(&urls[..1], like).await.unwrap()
        };
        let (one, other) = runtime.block_on(async { (node("one").await, node("other").await) });
        Stage {
            one,
            other,
            runtime,
            cluster,
            prefix,
        }
    }

    fn run(&self, law: impl Future<Output = ()>) {
        self.runtime.block_on(law);
    }

    fn queued(&self, key: &str) -> usize {
        let record = format!("{}{key}", self.prefix);
        let queues = keys(self.cluster, "tenure1:q:*").into_iter();
        let queues = queues.filter(|(_, queue)| queue.ends_with(record.as_bytes()));
        let count = |(at, queue): (usize, Vec<u8>)| -> usize {
            query(self.cluster.server(at), &[b"ZCARD".to_vec(), queue]).unwrap()
        };
        queues.map(count).sum::<usize>() / 2
    }

    /// Returns the keys that the nodes of this law have left behind.
    fn left(&self) -> Vec<String> {
        let keys = keys(self.cluster, &format!("*{}*", self.prefix)).into_iter();
        keys.map(|(_, key)| key.escape_ascii().to_string()).collect()
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

/// Returns the keys of all masters that match a pattern.
fn keys(cluster: &Cluster, pattern: &str) -> Vec<(usize, Vec<u8>)> {
    let of_server = |at: usize| {
        let keys: Vec<Vec<u8>> = query(cluster.server(at), &["KEYS", pattern]).unwrap();
        keys.into_iter().map(move |key| (at, key))
    };
    (0..3).flat_map(of_server).collect()
}

/// What may be left when the nodes of a law are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    /// Watchers, which the store forgets within a lease.
    Watchers,
    /// Latches, which stay for their life.
    Latches,
}

/// Runs a law where it is told.
type Law = fn(&Stage<'_>);

/// Laws with the same settings.
struct Suite {
    name: &'static str,
    lease: Duration,
    rest: Rest,
    laws: Vec<(&'static str, Law)>,
}

impl Suite {
    fn new(name: &'static str, lease: Duration, rest: Rest) -> Self {
        let laws = Vec::new();
        Suite {
            name,
            lease,
            rest,
            laws,
        }
    }

    fn add(&mut self, name: &'static str, law: Law) {
        self.laws.push((name, law));
    }

    /// Runs a law, and checks what it leaves.
    fn check(&self, cluster: &Cluster, number: usize, law: Law) {
        let stage = Stage::new(cluster, number, self);
        law(&stage);
        stage.run(async {
            crate::help::soon(stage.one.idle()).await;
            crate::help::soon(stage.other.idle()).await;
        });
        assert_eq!((stage.one.keys(), stage.other.keys()), (0, 0));
        match self.rest {
            Rest::Nothing => assert_eq!(stage.left(), Vec::<String>::new()),
            Rest::Watchers => eventually("nothing is left", || stage.left().is_empty().then_some(())),
            Rest::Latches => {}
        }
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
    let cluster = Cluster::start(3, 0);
    let began = Instant::now();
    let suites = suites();
    let laws = suites
        .iter()
        .flat_map(|suite| suite.laws.iter().map(move |law| (suite, law)));
    let laws: VecDeque<_> = laws.enumerate().collect();
    let count = laws.len();
    let (laws, broken) = (Mutex::new(laws), Mutex::new(Vec::new()));
    let next = || laws.lock().unwrap().pop_front();
    let run_laws = || {
        while let Some((number, (suite, (name, law)))) = next() {
            let began = Instant::now();
            let checked = catch_unwind(AssertUnwindSafe(|| suite.check(&cluster, number, *law)));
            println!("{}: {name}: {:?}", suite.name, began.elapsed());
            if checked.is_err() {
                broken.lock().unwrap().push(format!("{}: {name}", suite.name));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(run_laws);
        }
    });
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{broken:?}");
    println!("{count} laws in {:?}", began.elapsed());
    let left = || {
        let stays = |key: &[u8]| key.starts_with(b"tenure1:clock:{") || key.starts_with(b"tenure1:l:{");
        let keys = keys(&cluster, "*").into_iter().filter(|(_, key)| !stays(key));
        keys.map(|(_, key)| key.escape_ascii().to_string())
            .collect::<Vec<_>>()
    };
    let end = Instant::now() + PATIENCE;
    while !left().is_empty() {
        assert!(Instant::now() < end, "left behind: {:?}", left());
        std::thread::sleep(ms(20));
    }
}
