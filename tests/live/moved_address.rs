//! One address that leads to another server from some moment on: a name, or a virtual address. Here a proxy moves.
//!
//! The leases last for an hour, so no timer of a waiter or a holder is due within a test.

use std::time::Duration;

use tenure::{Guard, Locks, Recovery};

use crate::deployment::{info, tell};
use crate::help::{Eyes, addr, held, ms, soon, until, url};
use crate::recovery::is_recovering;
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::Proxy;

const LEASE: Duration = Duration::from_secs(3_600);

/// A master with a replica, and the address of the master.
struct Pair {
    first: RedisServer,
    second: RedisServer,
    proxy: Proxy,
}

impl Pair {
    async fn start() -> Pair {
        let first = RedisServer::with_args(&["--repl-diskless-sync-delay", "0"]);
        let port = first.port().to_string();
        let second = RedisServer::with_args(&["--replicaof", "127.0.0.1", &port]);
        until("the replica follows", || {
            info(&second, "master_link_status") == "up"
        })
        .await;
        let proxy = Proxy::start(addr(&first));
        Pair { first, second, proxy }
    }

    /// Records the events that name the address.
    fn watch(&self) -> Watch {
        Watch::of(format!("server={}", self.proxy.addr()))
    }
}

async fn node(proxy: &Proxy) -> Locks {
    let lag = Duration::ZERO;
    let builder = crate::help::builder().lease(LEASE).request_timeout(ms(10_000));
    let builder = builder.recovery(Recovery::Always { longest: LEASE, lag });
    builder.connect(&url(proxy.addr())).await.unwrap()
}

/// Ends the recovery of the server, when the test knows that all leases were asserted.
fn end_recovery(server: &RedisServer) {
    let ended: u8 = Eyes::on(server).text("DEL tenure1:recovering");
    assert_eq!(ended, 1, "the server recovers");
}

/// Hands a lock from node to node at this server, ten times.
async fn hand_over_ten_times(nodes: &[Locks; 2], server: &RedisServer) {
    let mut eyes = Eyes::on(server);
    let mut guard = held(&nodes[0], "turn").await;
    for turn in 1..=10 {
        let waiting = tokio::spawn(nodes[turn % 2].mutex("turn").lock());
        until("the next node waits", || eyes.queue("turn") == 1).await;
        let fence = guard.fence();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.fence() > fence);
    }
    soon(guard.release()).await.unwrap();
}

/// Renews until the server at the address does so.
async fn renew_at_last(guard: &Guard) {
    soon(async { while guard.renew().await.is_err() {} }).await;
    assert!(guard.is_held());
}

/// Asks for a free lock until the node is told that the server recovers. Then it is not granted what the guard holds.
async fn is_told_of_recovery(locks: &Locks, guard: &Guard) {
    let told = async {
        loop {
            // The former master refuses writes, or its connection broke.
            let error = locks.mutex("free").try_lock().await.map(drop).unwrap_err();
            if error.to_string().contains("grants none") {
                return error;
            }
        }
    };
    is_recovering(&soon(told).await);
    let tried = soon(locks.mutex(guard.key().clone()).try_lock()).await;
    assert!(
        matches!(tried, Err(_) | Ok(None)) && guard.is_held(),
        "there are two holders"
    );
}

async fn is_refused(locks: &Locks, guard: &Guard) {
    let tried = soon(locks.mutex(guard.key().clone()).try_lock()).await.unwrap();
    assert!(tried.is_none() && guard.is_held(), "there are two holders");
}

fn causes(watch: &Watch) -> Vec<String> {
    let told = watch
        .told()
        .into_iter()
        .filter(|told| told.event == "server_recovering");
    let causes = told.filter_map(|told| Some(told.text.split_once("why=")?.1.split(' ').next()?.to_owned()));
    causes.collect()
}

/// The former master lives on as a replica and closes no connection, so subscriptions there are healthy and useless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_follows_an_address_to_the_promoted_server() {
    let pair = Pair::start().await;
    let nodes = [node(&pair.proxy).await, node(&pair.proxy).await];
    end_recovery(&pair.first);
    hand_over_ten_times(&nodes, &pair.first).await;
    let guard = held(&nodes[0], "kept").await;
    let mut eyes = Eyes::on(&pair.second);
    until("the replica has the lease", || eyes.owner("kept").is_some()).await;

    let watch = pair.watch();
    tell(&pair.second, &["REPLICAOF", "NO", "ONE"]);
    tell(
        &pair.first,
        &["REPLICAOF", "127.0.0.1", &pair.second.port().to_string()],
    );
    pair.proxy.redirect(addr(&pair.second));
    is_told_of_recovery(&nodes[1], &guard).await;
    is_told_of_recovery(&node(&pair.proxy).await, &guard).await;
    renew_at_last(&guard).await;
    // The other nodes still expect the recovery of the first server, which the test ended.
    assert_eq!(causes(&watch), ["run"]);
    end_recovery(&pair.second);
    is_refused(&nodes[1], &guard).await;
    hand_over_ten_times(&nodes, &pair.second).await;
    is_refused(&node(&pair.proxy).await, &guard).await;
    soon(guard.release()).await.unwrap();
}

/// The first server is cut off and never demoted, so it is in the run that it recorded. The holder does not find it yet. A node
/// that was at the other server is the evidence of the grants there, and it holds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_returns_brings_no_second_holder() {
    let mut pair = Pair::start().await;
    let to_holder = Proxy::start(addr(&pair.first));
    let nodes = [node(&to_holder).await, node(&pair.proxy).await];
    end_recovery(&pair.first);
    hand_over_ten_times(&nodes, &pair.first).await;

    pair.first.freeze();
    tell(&pair.second, &["REPLICAOF", "NO", "ONE"]);
    for (proxy, node) in [&to_holder, &pair.proxy].into_iter().zip(&nodes) {
        proxy.redirect(addr(&pair.second));
        proxy.reset();
        soon(async { while node.ping().await.is_err() {} }).await;
    }
    end_recovery(&pair.second);
    let guard = held(&nodes[0], "a").await;
    drop(held(&nodes[1], "b").await);

    to_holder.refuse(true);
    pair.second.kill();
    pair.first.thaw();
    pair.proxy.redirect(addr(&pair.first));
    soon(async { while nodes[1].ping().await.is_err() {} }).await;
    let watch = pair.watch();
    is_told_of_recovery(&node(&pair.proxy).await, &guard).await;
    assert_eq!(causes(&watch), ["number"]);
    is_told_of_recovery(&nodes[1], &guard).await;
    to_holder.redirect(addr(&pair.first));
    to_holder.heal();
    renew_at_last(&guard).await;
    end_recovery(&pair.first);
    is_refused(&nodes[1], &guard).await;
    let fence = guard.fence();
    soon(guard.release()).await.unwrap();
    assert!(held(&nodes[1], "a").await.fence() > fence);
    hand_over_ten_times(&nodes, &pair.first).await;
}
