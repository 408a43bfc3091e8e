//! A stage for the laws that every store must show: laws with the same settings, the servers that they share, and what each
//! law leaves there.
//!
//! One test starts the servers and runs all laws, a few at a time. Each law has nodes with a prefix of their own, so its
//! names do not meet those of other laws.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure::{Builder, Locks};
use tokio::runtime::Runtime;

use crate::deployment::{eventually, query};
use crate::help::{PATIENCE, PRESENCE, ms};
use crate::server::RedisServer;

/// How many laws run at a time.
const AT_A_TIME: usize = 3;

/// The servers that all laws share.
pub trait Servers: Sync {
    /// Returns the servers that keep records.
    fn servers(&self) -> Vec<&RedisServer>;

    /// Builds a node.
    fn node(&self, builder: Builder) -> impl Future<Output = Locks>;

    /// Returns whether a key is not a law's, or stays after its law for good.
    fn stays(&self, key: &[u8]) -> bool;
}

/// Where a law runs: two nodes of its own on the servers of all laws.
pub struct Stage<'a> {
    pub one: Locks,
    pub other: Locks,
    runtime: Runtime,
    servers: Vec<&'a RedisServer>,
    prefix: String,
}

impl<'a> Stage<'a> {
    fn new(servers: &'a impl Servers, number: usize, suite: &Suite) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let prefix = format!("law {number}:");
        let node = async |name| {
            let builder = crate::help::builder()
                .prefix(&prefix)
                .node_name(name)
                .lease(suite.lease);
            servers.node(builder.request_timeout(ms(10_000))).await
        };
        let (one, other) = runtime.block_on(async { (node("one").await, node("other").await) });
        Stage {
            one,
            other,
            runtime,
            servers: servers.servers(),
            prefix,
        }
    }

    pub fn run(&self, law: impl Future<Output = ()>) {
        self.runtime.block_on(law);
    }

    pub fn queued(&self, key: &str) -> usize {
        let record = format!("{}{key}", self.prefix);
        let queues = keys(&self.servers, "tenure1:q:*").into_iter();
        let queues = queues.filter(|(_, queue)| queue.ends_with(record.as_bytes()));
        let count = |(at, queue): (usize, Vec<u8>)| -> usize {
            query(self.servers[at], &[b"ZCARD".to_vec(), queue]).unwrap()
        };
        queues.map(count).sum::<usize>() / 2
    }

    /// Returns the keys that the nodes of this law have left behind.
    pub fn left(&self) -> Vec<String> {
        let keys = keys(&self.servers, &format!("*{}*", self.prefix)).into_iter();
        keys.map(|(_, key)| key.escape_ascii().to_string()).collect()
    }
}

/// Returns the keys of all servers that match a pattern, each with the index of its server.
fn keys(servers: &[&RedisServer], pattern: &str) -> Vec<(usize, Vec<u8>)> {
    let of_server = |(at, server): (usize, &&RedisServer)| {
        let keys: Vec<Vec<u8>> = query(server, &["KEYS", pattern]).unwrap();
        keys.into_iter().map(move |key| (at, key))
    };
    servers.iter().enumerate().flat_map(of_server).collect()
}

/// What may be left when the nodes of a law are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// Watchers, which the store forgets within a lease.
    Watchers,
    /// Latches, which stay for their life.
    Latches,
}

/// Runs a law where it is told.
pub type Law = fn(&Stage<'_>);

/// Laws with the same settings.
pub struct Suite {
    name: &'static str,
    lease: Duration,
    rest: Rest,
    laws: Vec<(&'static str, Law)>,
}

impl Suite {
    pub fn new(name: &'static str, lease: Duration, rest: Rest) -> Self {
        let laws = Vec::new();
        Suite {
            name,
            lease,
            rest,
            laws,
        }
    }

    pub fn add(&mut self, name: &'static str, law: Law) {
        self.laws.push((name, law));
    }

    /// Runs a law, and checks what it leaves.
    fn check(&self, servers: &impl Servers, number: usize, law: Law) {
        let stage = Stage::new(servers, number, self);
        law(&stage);
        stage.run(async {
            crate::help::soon(stage.one.idle()).await;
            crate::help::soon(stage.other.idle()).await;
        });
        assert_eq!((stage.one.key_count(), stage.other.key_count()), (0, 0));
        match self.rest {
            Rest::Nothing => assert_eq!(stage.left(), Vec::<String>::new()),
            Rest::Watchers => eventually("nothing is left", || stage.left().is_empty().then_some(())),
            Rest::Latches => {}
        }
    }
}

/// Runs all laws, and checks that nothing is left when all are over.
pub fn run_laws(servers: &impl Servers, suites: &[Suite]) {
    let began = Instant::now();
    let laws = suites
        .iter()
        .flat_map(|suite| suite.laws.iter().map(move |law| (suite, law)));
    let laws: VecDeque<_> = laws.enumerate().collect();
    let count = laws.len();
    let (laws, broken) = (Mutex::new(laws), Mutex::new(Vec::new()));
    let next = || laws.lock().unwrap().pop_front();
    let run_some = || {
        while let Some((number, (suite, (name, law)))) = next() {
            let began = Instant::now();
            let checked = catch_unwind(AssertUnwindSafe(|| suite.check(servers, number, *law)));
            println!("{}: {name}: {:?}", suite.name, began.elapsed());
            if checked.is_err() {
                broken.lock().unwrap().push(format!("{}: {name}", suite.name));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(run_some);
        }
    });
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{broken:?}");
    println!("{count} laws in {:?}", began.elapsed());
    let left = || {
        let keys = keys(&servers.servers(), "*").into_iter();
        let keys = keys.filter(|(_, key)| !key.starts_with(PRESENCE) && !servers.stays(key));
        keys.map(|(_, key)| key.escape_ascii().to_string())
            .collect::<Vec<_>>()
    };
    let end = Instant::now() + PATIENCE;
    while !left().is_empty() {
        assert!(Instant::now() < end, "left behind: {:?}", left());
        std::thread::sleep(ms(20));
    }
}
