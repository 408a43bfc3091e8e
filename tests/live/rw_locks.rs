//! Read-write locks, on a real server.

use tenure::Locks;

use crate::help::{Eyes, PATIENCE, commands, held, locks, ms, soon};
use crate::server::RedisServer;

pub async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    (one, other, server)
}

pub fn is_empty(server: RedisServer) {
    let mut eyes = Eyes::on(&server);
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}

fn queued(server: &RedisServer, key: &str) -> usize {
    Eyes::on(server).queue(key)
}

crate::laws_of_read_write_locks!(nodes, is_empty, queued);

/// A trip to read or write and one to release, as a mutex; one to downgrade; and at most 2.2 times the server's time of a mutex.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_costs_what_a_mutex_costs() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let cycles: [&dyn crate::help::Cycle; 4] = [
        &async |n| held(&locks, n).await.release().await.unwrap(),
        &async |n| {
            let guard = soon(locks.rw_lock(n).write()).await.unwrap();
            guard.release().await.unwrap();
        },
        &async |n| {
            let guard = soon(locks.rw_lock(n).read()).await.unwrap();
            guard.release().await.unwrap();
        },
        &async |n| {
            let guard = soon(locks.rw_lock(n).write()).await.unwrap();
            let guard = soon(guard.downgrade()).await.unwrap();
            guard.release().await.unwrap();
        },
    ];
    cycles[0].run(0).await;
    let mut trips = Vec::new();
    for cycle in cycles {
        let before = eyes.calls()["evalsha"];
        cycle.run(0).await;
        trips.push(eyes.calls()["evalsha"] - before);
    }
    assert_eq!(
        trips,
        [2, 2, 2, 3],
        "a mutex, a writer, a reader, and one after the other"
    );
    // A reader that joins readers of its own process sends nothing. The burst is long, as the machine may be busy.
    let burst = crate::help::builder().lease(ms(60_000)).burst(256, PATIENCE);
    let locks = burst.connect(&server.url()).await.unwrap();
    let first = soon(locks.rw_lock("shared").read()).await.unwrap();
    let before = eyes.calls()["evalsha"];
    let second = soon(locks.rw_lock("shared").read()).await.unwrap();
    second.release().await.unwrap();
    assert_eq!(eyes.calls()["evalsha"], before);
    first.release().await.unwrap();
    let [mutex, write, read, downgrade] = commands(&mut eyes, cycles).await;
    println!("commands: a mutex {mutex}, a writer {write}, a reader {read}, with a downgrade {downgrade}");
    assert!(write <= mutex, "{write}, a mutex {mutex}");
    assert!(read <= 2 * mutex, "{read}, a mutex {mutex}");
}
