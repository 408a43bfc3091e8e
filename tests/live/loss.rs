//! Holders learn a loss before the server can expire the lease, whatever the fault.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Guard, Locks};
use tokio::task::yield_now;

use crate::help::{Eyes, Other, addr, held, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};
use crate::support::slow_callers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_not_taken_up_in_time_is_no_guard() {
    let (one, other, _server) = crate::rw_locks::nodes().await;
    slow_callers::a_grant_that_is_not_taken_up_in_time_is_no_guard(&one, &other, ms(1_000)).await;
    slow_callers::a_lease_that_is_adopted_too_late_is_no_guard(&one, &other, ms(1_000)).await;
}

/// Returns locks whose records outlast their leases by far: the holder has time between the two ends.
async fn lasting(url: &str, lease: Duration) -> Locks {
    let builder = crate::help::builder().lease(lease).margin(ms(3_000));
    builder.connect(url).await.unwrap()
}

/// Waits until a guard without renewals is lost, and returns when the guard was told.
async fn told(guard: &Guard) -> Duration {
    assert_eq!(soon(guard.lost()).await, LostCause::Deadline);
    assert!(!guard.is_held());
    now()
}

fn evalshas(eyes: &mut Eyes) -> u64 {
    eyes.calls().get("evalsha").copied().unwrap_or(0)
}

/// A socket stays open without traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_behind_a_silent_socket_is_told_before_the_record_expires() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let locks = lasting(&url(proxy.addr()), ms(4_000)).await;
    let guard = held(&locks, "hole").await;
    let watch = Watch::of("key=hole ");
    proxy.set(Direction::Both, Flow::Hold);
    let ends = eyes.ends("hole");
    let told = told(&guard).await;
    assert!(told < ends, "told {:?} late", told - ends);
    assert!(
        eyes.pttl("hole") > 0,
        "the record was gone before the holder was told"
    );
    assert!(proxy.counts().held[0] > 0, "nothing was held");
    assert!(watch.count("renew_failed") > 0);
    assert_eq!(watch.count("lost"), 1);
    // A loss is final: the held bytes arrive late and revive no lease.
    proxy.heal();
    eyes.until_empty().await;
    assert!(!guard.is_held());
    assert!(guard.release().await.unwrap_err().is_lost());
    held(&locks, "hole").await.release().await.unwrap();
    soon(locks.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Only the answers are lost: the server renews, but the holder gets no answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_without_an_answer_do_not_count() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let locks = lasting(&url(proxy.addr()), ms(4_000)).await;
    let watch = Watch::of("key=unanswered ");
    let guard = held(&locks, "unanswered").await;
    // The driver's connection is open now, so that the next renewal reaches the server.
    watch.until("renewed").await;
    let asked = evalshas(&mut eyes);
    proxy.set(Direction::Replies, Flow::Hold);
    let before = watch.count("renewed");
    told(&guard).await;
    // The last renewal that was answered came before the hole.
    assert_eq!(watch.count("renewed"), before);
    assert!(evalshas(&mut eyes) > asked, "the server renewed nothing");
    assert!(proxy.counts().held[1] > 0, "nothing was held");
    assert!(eyes.pttl("unanswered") > 0);
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
    proxy.heal();
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_of_a_stopped_server_is_told_before_the_record_expires() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = lasting(&server.url(), ms(3_000)).await;
    let guard = held(&locks, "a").await;
    let ends = eyes.ends("a");
    server.freeze();
    let told = told(&guard).await;
    server.thaw();
    assert!(told < ends, "told {:?} late", told - ends);
    drop(guard);
    soon(locks.idle()).await;
    eyes.until_empty().await;
}

/// A short stop costs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_less_than_the_lease_is_survived() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let locks = locks(&url(proxy.addr()), ms(6_000)).await;
    let guard = held(&locks, "outage").await;
    let watch = Watch::of("key=outage ");
    // Until a renewal has failed.
    proxy.set(Direction::Both, Flow::Hold);
    watch.until("renew_failed").await;
    assert!(guard.is_held());
    proxy.heal();
    watch.until("renewed").await;
    assert!(guard.is_held());
    assert_eq!(watch.count("lost"), 0);
    soon(guard.release()).await.unwrap();
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_key_is_lost_at_the_next_renewal() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(4_000)).await;
    let guard = held(&locks, "a").await;
    let lost = guard.lost_token();
    let _: i64 = eyes.text("DEL lock:a");
    // Not the deadline, which would have come before.
    assert_eq!(soon(guard.lost()).await, LostCause::Gone);
    assert!(lost.is_cancelled());
    assert!(!guard.is_held());
    let error = soon(guard.release()).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Gone,
                ..
            }
        ),
        "{error}"
    );
    // A renewal never takes the lease back.
    assert_eq!(eyes.owner("a"), None);
    soon(locks.idle()).await;
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_owner_is_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(4_000)).await;
    let guard = held(&locks, "a").await;
    let _: String = eyes.text("SET lock:a foreign");
    assert_eq!(soon(guard.lost()).await, LostCause::Gone);
    assert!(!guard.is_held());
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
    soon(locks.idle()).await;
    assert_eq!(eyes.owner("a").as_deref(), Some("foreign"));
    assert_eq!(eyes.pttl("a"), -1);
    // The guard is released before the loss is noticed: the release is not a success, and does not remove the other owner.
    // The lease is long: a release that is repeated after a timeout could not tell whether it was done before.
    let guard = soon(locks.mutex("b").lease(ms(30_000)).lock()).await.unwrap();
    let _: String = eyes.text("SET lock:b foreign");
    let error = soon(guard.release()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(eyes.owner("b").as_deref(), Some("foreign"));
}

/// A process is stopped past its lease, and continues when another process has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_process_is_told_before_anything_else() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(3_000);
    let mut other = Other::plays("watches its guard", &server.url(), "a", lease);
    let fence: u64 = other.hears("holds").parse().unwrap();
    other.signal("-STOP");
    let stopped = now();
    let locks = locks(&server.url(), ms(30_000)).await;
    let guard = held(&locks, "a").await;
    let granted = now();
    assert!(guard.fence().get() > fence);
    other.signal("-CONT");
    let lost = other.hears("lost");
    let (last, cause) = lost.split_once(' ').unwrap();
    let last: u64 = last.parse().unwrap();
    // A signal arrives late. A lease without renewals ends meanwhile.
    assert!(
        u128::from(last) < (stopped + lease).as_nanos(),
        "the process reported a held lease after its stop"
    );
    assert_eq!(cause, "Deadline");
    // Its leave, which it sent after the stop, does not affect the other holder.
    other.nod();
    assert_eq!(other.hears("released"), "true");
    assert!(granted > stopped);
    assert!(guard.is_held());
    let owner = eyes.owner("a").unwrap();
    assert!(owner.starts_with(&locks.node_id().to_string()), "{owner}");
    guard.release().await.unwrap();
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_process_takes_no_further_step_of_its_work() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(3_000);
    let mut other = Other::plays("works step by step", &server.url(), "a", lease);
    other.hears("holds");
    other.signal("-STOP");
    let stopped = now();
    until("the record expires, and the lease", || {
        eyes.owner("a").is_none() && now() - stopped > lease + ms(100)
    })
    .await;
    other.signal("-CONT");
    let lost = other.hears("lost");
    let (late, is_lost) = lost.split_once(' ').unwrap();
    assert!(late.parse::<u32>().unwrap() <= 1, "the process took {late} steps");
    assert_eq!(is_lost, "true");
}

/// The holder's process dies. The next caller gets the lock when the record ends, by its first or second look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_delays_the_next_by_a_lease_and_a_look() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(3_000);
    let mut other = Other::plays("holds", &server.url(), "a", lease);
    other.hears("holds");
    let locks = locks(&server.url(), lease).await;
    let waiter = tokio::spawn(locks.mutex("a").lock());
    until("the caller waits", || eyes.queue("a") == 1).await;
    other.kill();
    let guard = eyes.takes_over(lease, 2, waiter).await.unwrap();
    guard.release().await.unwrap();
    yield_now().await;
    eyes.until_empty().await;
}
