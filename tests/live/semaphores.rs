//! Semaphores on a real server.

use tenure::Locks;

use crate::help::{Eyes, Other, commands, held, locks, ms, patient, soon};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    (one, other, server)
}

fn is_empty(server: RedisServer) {
    let mut eyes = Eyes::on(&server);
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}

crate::laws_of_semaphores!(nodes, is_empty);

/// A permit takes one round trip to acquire and one to release, like a mutex, and at most twice its commands in
/// scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_cost_what_a_mutex_costs() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let cycles: [&dyn crate::help::Cycle; 3] = [
        &async |n| held(&locks, n).await.release().await.unwrap(),
        &async |n| {
            let guard = soon(locks.semaphore(n, 3).acquire()).await.unwrap();
            guard.release().await.unwrap();
        },
        &async |n| {
            let guard = soon(locks.semaphore(n, 3).acquire_many(3)).await.unwrap();
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
    assert_eq!(trips, [2, 2, 2], "a mutex, a permit, three permits");
    let [mutex, one, three] = commands(&mut eyes, cycles).await;
    println!("commands: a mutex {mutex}, a permit {one}, three permits {three}");
    assert!(one <= 2 * mutex, "{one}, a mutex {mutex}");
    assert!(three <= 2 * mutex, "{three}, a mutex {mutex}");
}

/// A caller that comes while permits are free does not wait for the answers to earlier callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_for_many_callers_are_requested_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let locks = patient(&format!("redis://{}/", proxy.addr())).await;
    held(&locks, "warm").await.release().await.unwrap();
    proxy.set(Direction::Both, Flow::Delay(ms(100)));
    let before = proxy.counts().reads[0];
    let tasks: Vec<_> = (0..16)
        .map(|_| tokio::spawn(locks.semaphore("calls", 16).acquire()))
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(soon(task).await.unwrap().unwrap());
    }
    let writes = proxy.counts().reads[0] - before;
    println!("sixteen permits in {writes} writes");
    assert!(writes < 8, "one after the other would be 16: {writes}");
    proxy.heal();
    drop(guards);
    soon(locks.idle()).await;
}

/// The permits of a dead process become free without a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_killed_process_are_free_when_its_leases_end() {
    let server = RedisServer::start();
    let lease = ms(1_000);
    let locks = locks(&server.url(), lease).await;
    let mut other = Other::plays("holds permits", &server.url(), "calls", lease);
    other.hears("holds");
    let calls = locks.semaphore("calls", 3);
    let keeper = patient(&server.url()).await;
    let own = soon(keeper.semaphore("calls", 3).acquire()).await.unwrap();
    assert!(soon(calls.try_acquire()).await.unwrap().is_none());
    let waiting = tokio::spawn(calls.acquire_many(2));
    other.kill();
    let permits = Eyes::on(&server).takes_over(lease, 2, waiting).await.unwrap();
    assert!(own.is_held());
    soon(own.release()).await.unwrap();
    soon(permits.release()).await.unwrap();
    Eyes::on(&server).until_empty().await;
}

/// Without memory, held leases stay held, also shared ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_held_leases_are_renewed() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(1_000)).await;
    let writer = soon(locks.mutex("written").lock()).await.unwrap();
    let reader = soon(locks.rw_lock("read").read()).await.unwrap();
    let permit = soon(locks.semaphore("calls", 3).acquire_many(2)).await.unwrap();
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    // A renewal has no event, so the test waits for the length of some leases.
    tokio::time::sleep(ms(3_500)).await;
    assert!(writer.is_held() && reader.is_held() && permit.is_held());
    for guard in [writer, reader, permit] {
        soon(guard.release()).await.unwrap();
    }
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}
