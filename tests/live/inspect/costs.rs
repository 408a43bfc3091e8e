//! What presence costs beside locks, hand-overs, readers, permits and ticks: one SET every 20 s, and no other command.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::Locks;

use crate::help::{Eyes, held, ms, soon, until};
use crate::server::RedisServer;

/// How often each operation is done.
const TIMES: u64 = 1_000;
/// The number of ticks. A node gathers the requests of its jobs for 20 ms, and a tick has two.
#[cfg(feature = "scheduler")]
const TICKS: u32 = 100;
/// How often a node tells of itself.
const INTERVAL: Duration = Duration::from_secs(20);
/// What a client calls to connect, to hear that a server is alive, and to look at it. Their number depends on the time.
const OUTSIDE: &str = "auth client hello info keys ping role time";

/// A server, and two nodes that have waited already.
struct Pair {
    eyes: Eyes,
    one: Locks,
    other: Locks,
    began: Instant,
    _server: RedisServer,
}

impl Pair {
    async fn start(presence: bool) -> Pair {
        let began = Instant::now();
        let server = RedisServer::start();
        // A lease is renewed, and a waiter asks again, after a third of this time. Both depend on the time that a test takes.
        let lease = ms(600_000);
        let builder = || crate::help::builder().presence(presence).lease(lease);
        let node = async || {
            let builder = builder().request_timeout(ms(10_000));
            soon(builder.connect(&server.url())).await.unwrap()
        };
        Pair {
            eyes: Eyes::on(&server),
            one: node().await,
            other: node().await,
            began,
            _server: server,
        }
    }

    /// Passes a lock from node to node: each waits until the store knows that it waits.
    async fn hand_over(&mut self, times: u64) {
        let mut guard = held(&self.one, "a").await;
        for n in 0..times {
            let next = if n % 2 == 0 { &self.other } else { &self.one };
            let asked = self.eyes.calls()["evalsha"] + 1;
            let waiting = tokio::spawn(next.mutex("a").lock());
            while self.eyes.calls()["evalsha"] < asked {
                tokio::task::yield_now().await;
            }
            soon(guard.release()).await.unwrap();
            guard = soon(waiting).await.unwrap().unwrap();
        }
        soon(guard.release()).await.unwrap();
    }

    /// Waits until both nodes told of themselves, if they do so. Returns the calls of each command, of scripts those since `before`,
    /// and how often both may have told of themselves at most.
    async fn calls(mut self, presence: bool, before: &BTreeMap<String, u64>) -> (BTreeMap<String, u64>, u64) {
        let mut told = || self.eyes.text::<Vec<String>>("KEYS tenure1:i:*");
        if presence {
            until("both told of themselves", || told().len() == 2).await;
        } else {
            assert!(told().is_empty());
        }
        let mut calls = self.eyes.calls();
        calls.retain(|name, _| {
            let command = name.split('|').next().unwrap_or(name);
            !OUTSIDE.split(' ').any(|outside| outside == command)
        });
        for name in ["evalsha", "mget"] {
            *calls.get_mut(name).unwrap() -= before[name];
        }
        if presence {
            for node in [&self.one, &self.other] {
                let left: i64 = self.eyes.text(&format!("PTTL tenure1:i:{}", node.node_id()));
                assert!((1..=60_000).contains(&left), "{left}");
            }
        }
        let rounds = self.began.elapsed().div_duration_f64(INTERVAL) as u64 + 1;
        (calls, 2 * rounds)
    }
}

/// Does an operation again and again without presence, and then with it. The difference is what both nodes told.
async fn costs_one_set(operation: &str, times: u64, work: impl AsyncFn(&mut Pair)) {
    let run = async |presence| {
        let mut pair = Pair::start(presence).await;
        for node in [&pair.one, &pair.other] {
            soon(held(node, "warm").await.release()).await.unwrap();
        }
        // A node reads the clock of the server when it connects, and again if that takes more than 100 ms.
        let before = pair.eyes.calls();
        work(&mut pair).await;
        pair.calls(presence, &before).await
    };
    let (without, _) = run(false).await;
    let (mut with, most) = run(true).await;
    assert!(without["evalsha"] >= 2 * times, "{operation}: {without:?}");
    println!("{operation}: without presence {without:?}");
    println!("{operation}: with presence    {with:?}");
    let sets = without.get("set").copied().unwrap_or_default();
    let told = with["set"] - sets;
    assert!((2..=most).contains(&told), "{operation}: {told} SET for 2 nodes");
    with.insert("set".into(), sets);
    assert_eq!(with, without, "{operation}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_costs_one_set_beside_locks() {
    costs_one_set("lock and release", TIMES, async |pair| {
        for n in 0..TIMES {
            let guard = held(&pair.one, n.to_string()).await;
            soon(guard.release()).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_costs_one_set_beside_hand_overs() {
    costs_one_set("hand-over", TIMES, async |pair| pair.hand_over(TIMES).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_costs_one_set_beside_readers() {
    costs_one_set("read and release", TIMES, async |pair| {
        for _ in 0..TIMES {
            let reader = soon(pair.one.rw_lock("a").read()).await.unwrap();
            soon(reader.release()).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_costs_one_set_beside_permits() {
    costs_one_set("acquire and release", TIMES, async |pair| {
        for _ in 0..TIMES {
            let permit = soon(pair.one.semaphore("a", 3).acquire()).await.unwrap();
            soon(permit.release()).await.unwrap();
        }
    })
    .await;
}

#[cfg(feature = "scheduler")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_costs_one_set_beside_ticks() {
    use std::time::UNIX_EPOCH;

    use tenure::testing::fire_tick;

    const HOUR: Duration = Duration::from_secs(3_600);

    costs_one_set("tick", TICKS.into(), async |pair| {
        let asked = pair.eyes.calls()["evalsha"] + 1;
        // No tick of its own is due, and the job asks once in a lease.
        let month = Duration::from_secs(30 * 24 * 3_600);
        let job = pair.one.cron("a", "0 0 0 1 1 *").lease(month);
        let _job = job.run(async |_| {}).unwrap();
        until("the job asks", || pair.eyes.calls()["evalsha"] >= asked).await;
        let now = UNIX_EPOCH.elapsed().unwrap();
        let first = now.div_duration_f64(HOUR) as u32 - TICKS;
        for n in 0..TICKS {
            let tick = UNIX_EPOCH + HOUR * (first + n);
            assert_eq!(soon(fire_tick(&pair.one, "a", tick)).await, "done");
        }
    })
    .await;
}
