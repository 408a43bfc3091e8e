//! Failovers of a master of a cluster with many waiting keys: every waiter is granted, and the servers are not flooded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::{Error, Guard, Locks};
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::clusters::node;
use crate::deployment::{eventually, info, query, tell};
use crate::help::{ms, soon, until};
use crate::support::events::Watch;

const KEYS: usize = 64;
/// Waiters wait through an outage of up to a lease. The node timeout is 2 s.
const LEASE: Duration = ms(15_000);
/// What servers answer instead of executing a script.
const REDIRECTIONS: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];

/// Locks that one node holds and another node waits for.
struct Contended {
    guards: Vec<Guard>,
    waiters: Vec<JoinHandle<Result<Guard, Error>>>,
}

impl Contended {
    /// Acquires locks on one master.
    async fn on(cluster: &Cluster, master: usize, holder: &Locks, waiting: &Locks) -> Contended {
        // Another master refers to this one.
        let is_there = |key: &String| {
            let record = format!("lock:{key}");
            query::<Option<String>>(cluster.server(master), &["GET", &record]).is_ok()
        };
        let keys = (0..).map(|n| format!("account:{n}")).filter(is_there);
        let keys: Vec<String> = keys.take(KEYS).collect();
        let mut guards = Vec::new();
        for key in &keys {
            guards.push(soon(holder.mutex(&**key).lock()).await.unwrap());
        }
        let waiters = keys.iter().map(|key| tokio::spawn(waiting.mutex(&**key).lock()));
        let waiters = waiters.collect();
        until("all wait in the store", || {
            let queues: Vec<String> = query(cluster.server(master), &["KEYS", "tenure1:q:*"]).unwrap();
            queues.len() == KEYS
        })
        .await;
        Contended { guards, waiters }
    }

    /// Releases all, of which nothing was lost, and waits until every waiter is granted.
    async fn hand_over(self, was_killed: bool) {
        for guard in self.guards {
            assert!(guard.is_held());
            release(guard, was_killed).await;
        }
        for waiter in self.waiters {
            let guard = soon(waiter).await.unwrap().unwrap();
            assert!(guard.is_held());
            release(guard, was_killed).await;
        }
    }
}

/// Releases a lock. A node may have sent nothing since a master was killed. Then a release is the first request that fails;
/// its caller is told, and the node repeats it.
async fn release(guard: Guard, was_killed: bool) {
    let released = soon(guard.release()).await;
    let is_repeated = was_killed && matches!(released, Err(Error::Store { .. }));
    assert!(released.is_ok() || is_repeated, "{released:?}");
}

/// What the servers counted since the last reset.
#[derive(Debug, Default)]
struct Counts {
    readings: u64,
    redirections: BTreeMap<String, u64>,
}

impl Counts {
    fn of(cluster: &Cluster) -> Counts {
        let mut counts = Counts::default();
        for at in (0..cluster.size()).filter(|at| cluster.is_live(*at)) {
            let field = |section: &str, name: &str| -> u64 {
                let text: String = query(cluster.server(at), &["INFO", section]).unwrap();
                let mut lines = text
                    .lines()
                    .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                let count = lines
                    .next()
                    .and_then(|line| line.split('=').nth(1)?.split(',').next());
                count.map_or(0, |count| count.parse().unwrap())
            };
            counts.readings += field("commandstats", "cmdstat_cluster|slots");
            for code in REDIRECTIONS {
                let count = field("errorstats", &format!("errorstat_{code}"));
                *counts.redirections.entry(code.to_owned()).or_default() += count;
            }
        }
        counts
    }

    fn reset(cluster: &Cluster) {
        cluster.tell_all(&["CONFIG", "RESETSTAT"]);
    }

    /// Checks the counts of two nodes, each of which had a request for each key.
    fn check(&self, cluster: &Cluster, took: Duration) {
        println!("in {took:?}: {self:?}");
        let redirections: u64 = self.redirections.values().sum();
        assert!(redirections <= 2 * 2 * KEYS as u64, "{self:?}");
        // Each node reads the map at once, and then once a second at most. A reading asks all URLs and masters, if some of
        // them are dead.
        let most = 2 * 4 * (took.as_secs() + 2);
        assert!(self.readings <= most, "{self:?}, at most {most}");
        // Redis 6.2 does not count the readings, as it counts no subcommands.
        let version = info(cluster.server(cluster.masters()[0]), "redis_version");
        // A hand-over within a second of the last reading needs none.
        let is_quick = took < ms(2_000);
        assert!(
            self.readings > 0 || is_quick || version.starts_with("6."),
            "{self:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_of_a_killed_or_replaced_master_is_granted() {
    let mut cluster = Cluster::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
    let (one, other) = (node(&cluster, LEASE).await, node(&cluster, LEASE).await);
    // A master is killed, and its replica has all that it had written.
    let contended = Contended::on(&cluster, 0, &one, &other).await;
    cluster.wait_for_replicas(0);
    Counts::reset(&cluster);
    let began = Instant::now();
    cluster.kill(0);
    assert_eq!(cluster.promoted(0), 3);
    let promoted = began.elapsed();
    contended.hand_over(true).await;
    let took = began.elapsed();
    println!("killed: promoted after {promoted:?}, all granted after {took:?}");
    Counts::of(&cluster).check(&cluster, took);
    // A master is replaced by its replica, and sends clients to it from then on. No lease is lost.
    let contended = Contended::on(&cluster, 1, &one, &other).await;
    cluster.wait_for_replicas(1);
    Counts::reset(&cluster);
    let began = Instant::now();
    tell(cluster.server(4), &["CLUSTER", "FAILOVER"]);
    eventually("the replica is the master", || {
        (info(cluster.server(4), "role") == "master").then_some(())
    });
    contended.hand_over(false).await;
    let took = began.elapsed();
    println!("replaced: all granted after {took:?}");
    Counts::of(&cluster).check(&cluster, took);
    soon(one.shutdown()).await;
    soon(other.shutdown()).await;
}

/// The killed master never answers again, and its replica serves its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outage_of_a_killed_master_ends_when_the_map_names_it_no_longer() {
    let mut cluster = Cluster::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
    let watch = Watch::of(format!(":{}", cluster.server(0).port()));
    let locks = node(&cluster, LEASE).await;
    let contended = Contended::on(&cluster, 0, &locks, &node(&cluster, LEASE).await).await;
    cluster.wait_for_replicas(0);
    cluster.kill(0);
    watch.until("store_failing").await;
    assert_eq!(cluster.promoted(0), 3);
    contended.hand_over(true).await;
    let told = watch.until("store_recovered").await;
    assert!(told.text.contains("has_left=true"), "{told:?}");
}
