//! Locks beside a pool of the user's.

use std::time::Duration;

use tenure::Locks;
use tenure::locks::ConnectError;
use tokio::task::JoinSet;

use crate::help::{addr, ms, now, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

const TASKS: usize = 10;

/// How often so many tasks locked and released keys of their own in a moment.
async fn cycles(locks: &Locks) -> u64 {
    const WINDOW: Duration = ms(250);
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let mutex = locks.mutex(format!("{} {n}", locks.node()));
        tasks.spawn(async move {
            let (began, mut cycles) = (now(), 0);
            while now() - began < WINDOW {
                mutex.lock().await.unwrap().release().await.unwrap();
                cycles += 1;
            }
            cycles
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// A pool that was made from nothing but a URL leaves Nagle's algorithm on, which makes the second of two requests
/// wait for the answer to the first. Ours do not travel so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_from_a_url_costs_no_second_trip() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    proxy.set(Direction::Both, Flow::Delay(Duration::from_micros(250)));
    let url = url(proxy.addr());
    let manager = bb8_redis::RedisConnectionManager::new(url.as_str()).unwrap();
    let pool = bb8::Pool::builder().max_size(2).build(manager).await.unwrap();
    let client = redis::Client::open(url.as_str()).unwrap();
    let nodes = [
        Locks::pool(pool, client).await.unwrap(),
        Locks::redis(&url).await.unwrap(),
    ];
    // Each at its best, in turns: a moment in which the machine is busy says nothing. With the algorithm on, the best
    // is half of the other's.
    let mut best = [0; 2];
    for round in 0..64 {
        for at in [round % 2, 1 - round % 2] {
            best[at] = cycles(&nodes[at]).await.max(best[at]);
        }
        if round >= 8 && best[0] * 5 >= best[1] * 4 {
            return;
        }
    }
    panic!("{} cycles by a pool and {} by a URL", best[0], best[1]);
}

/// Nothing is checked out of it, and what the pool's users see is where the locks are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_and_its_client_lead_to_one_place() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(1).build(manager).await.unwrap();
    let _taken = pool.get().await.unwrap();
    let client = |url: String| redis::Client::open(url).unwrap();
    let locks = Locks::pool(pool.clone(), client(server.url())).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let elsewhere = [other.url(), format!("redis://127.0.0.1:{}/3", server.port())];
    for url in elsewhere {
        let error = Locks::pool(pool.clone(), client(url)).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("another server or database"), "{text}");
    }
    // Nobody is asked.
    let lazy = Locks::builder().lazy().pool(pool.clone(), client(other.url()));
    lazy.await.unwrap();
}
