//! The laws of what a quorum serves, on three real masters: mutexes, write locks, and locks on several keys.
//!
//! These laws are left out:
//!
//! * of read locks, semaphores, latches, elections and transfers: a quorum refuses them;
//! * of the first caller that is woken in a queue of the store: nothing waits in the masters, so a waiter is counted where it
//!   waits;
//! * `a_wait_of_zero_tries_once`: it also tries read locks, permits and elections. The laws of mutexes have waits of zero, too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Builder, Locks};

use crate::cancellation::{self, Contents};
use crate::help::{Eyes, ms, soon};
use crate::server::RedisServer;
use crate::stage::{Rest, Servers, Stage, Suite, run_laws};

/// The longest lease of all laws.
const LONGEST: Duration = ms(60_000);

struct Masters(Vec<RedisServer>);

impl Masters {
    fn clients(&self) -> Vec<redis::Client> {
        let urls = self.0.iter().map(RedisServer::url);
        urls.map(|url| redis::Client::open(url).unwrap()).collect()
    }
}

impl Servers for Masters {
    fn servers(&self) -> Vec<&RedisServer> {
        self.0.iter().collect()
    }

    async fn node(&self, builder: Builder) -> Locks {
        builder.quorum(self.clients(), LONGEST).await.unwrap()
    }

    fn stays(&self, key: &[u8]) -> bool {
        let of_server = ["run", "longest", "masters"].map(|name| format!("tenure1:{name}"));
        key.starts_with(b"tenure1:clock:{") || of_server.iter().any(|of| of.as_bytes() == key)
    }
}

/// The masters as the two nodes of a law see them. A waiter is in no queue of a master.
struct Seen<'a>(&'a Stage<'a>);

impl Contents for Seen<'_> {
    fn left_behind(&mut self) -> Vec<String> {
        self.0.left()
    }

    fn queue(&mut self, _: &str) -> usize {
        self.0.one.waiter_count() + self.0.other.waiter_count()
    }
}

/// Two nodes lock crossing sets of keys. Each caller gets all its keys, and is alone under each of them.
async fn crossing_sets_do_not_deadlock(one: &Locks, other: &Locks) {
    const KEYS: usize = 4;
    let inside: Arc<Mutex<HashSet<usize>>> = Arc::default();
    let tasks: Vec<_> = (0..6_u64)
        .map(|task| {
            let locks = if task % 2 == 0 { one } else { other }.clone();
            let inside = inside.clone();
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(task);
                for _ in 0..6 {
                    let mut keys: Vec<usize> = (0..KEYS).collect();
                    rng.shuffle(&mut keys);
                    keys.truncate(rng.usize(2..=3));
                    let guard = locks.multi(keys.clone()).lock().await.unwrap();
                    for key in &keys {
                        assert!(inside.lock().unwrap().insert(*key), "two hold {key}");
                    }
                    tokio::task::yield_now().await;
                    for key in &keys {
                        inside.lock().unwrap().remove(key);
                    }
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
}

fn suites() -> Vec<Suite> {
    let mut mutexes = Suite::new("mutexes", ms(10_000), Rest::Nothing);
    crate::laws_of_mutexes!(list mutexes);
    let mut several = Suite::new("several locks", ms(10_000), Rest::Nothing);
    several.add("crossing_sets_do_not_deadlock", |on| {
        on.run(crossing_sets_do_not_deadlock(&on.one, &on.other));
    });
    let mut two_locks = Suite::new("two locks", ms(10_000), Rest::Nothing);
    crate::laws_of_two_locks!(list two_locks);
    #[allow(unused_mut, reason = "its only law needs a feature")]
    let mut zero_waits = Suite::new("waits of zero", ms(20_000), Rest::Nothing);
    #[cfg(feature = "axum")]
    crate::laws_of_zero_waits!([list zero_waits]: a_layer_with_a_wait_of_zero_tries_once);
    let mut cancellation = Suite::new("cancellation", LONGEST, Rest::Nothing);
    cancellation.add("dropped_futures", |on| {
        on.run(cancellation::dropped_futures_leave_nothing(
            &on.one,
            &on.other,
            &mut Seen(on),
        ));
    });
    cancellation.add("dropped_futures_of_several", |on| {
        on.run(cancellation::dropped_futures_of_several_leave_nothing(
            &on.one,
            &on.other,
            &mut Seen(on),
        ));
    });
    cancellation.add("aborted_tasks", |on| {
        on.run(cancellation::aborted_tasks_leave_nothing(
            &on.one,
            &on.other,
            &mut Seen(on),
        ));
    });
    // The longest laws come first.
    vec![cancellation, several, mutexes, two_locks, zero_waits]
}

#[test]
fn the_laws_of_what_a_quorum_serves_hold_on_three_masters() {
    let masters = Masters((0..3).map(|_| RedisServer::start()).collect());
    // The first node notes the runs of the masters, which grant nothing until then.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    drop(runtime.block_on(masters.node(crate::help::builder())));
    for master in masters.servers() {
        Eyes::on(master).text::<u8>("DEL tenure1:recovering");
    }
    run_laws(&masters, &suites());
}
