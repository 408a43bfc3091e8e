//! The server's wall clock, which may step.

use crate::help::{Eyes, Other, locks, ms, now, until};
use crate::server::RedisServer;
use crate::wall_clock::WallClock;

/// A server whose clock steps back would keep records for as much longer. The next renewal mends that: when the holder
/// dies, its lock is free after a lease, the margin and a timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_is_mended_by_the_next_renewal() {
    let clock = WallClock::new();
    let server = RedisServer::preloading(&clock.library());
    let mut eyes = Eyes::on(&server);
    let lease = ms(2_000);
    let time = |eyes: &mut Eyes| eyes.text::<(u64, u64)>("TIME").0;
    let mut other = Other::plays("holds", &server.url(), "a", lease);
    other.hears("holds");
    let before = time(&mut eyes);
    clock.step(-20);
    until("the clock steps", || time(&mut eyes) + 10 < before).await;
    let asked = eyes.calls()["evalsha"];
    until("three renewals", || eyes.calls()["evalsha"] >= asked + 3).await;
    let left = eyes.pttl("a");
    let locks = locks(&server.url(), lease).await;
    let waiter = tokio::spawn(locks.mutex("a").lock());
    until("it waits", || eyes.queue("a") == 1).await;
    other.kill();
    let killed = now();
    let bound = ms(8_000);
    let free = tokio::time::timeout(bound, waiter).await;
    assert!(
        free.is_ok(),
        "not free {:?} after its holder died, with a lease of {lease:?}: the record had {left} ms left then, and has {} now",
        now() - killed,
        eyes.pttl("a")
    );
    free.unwrap().unwrap().unwrap().release().await.unwrap();
}
