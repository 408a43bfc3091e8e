//! Renewals, `max_hold` and `long_hold`, on a clock that the test owns: no lease is lost because the machine is slow.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::testing::Simulation;
use tenure::{Builder, Locks};
use tracing::Level;

use crate::help::{ms, poll_once};
use crate::support::events::Watch;

fn simulation() -> Simulation {
    Simulation::at("2026-10-22T12:00:00Z")
}

/// Returns the locks of a replica.
async fn locks(sim: &Simulation, options: impl FnOnce(Builder) -> Builder) -> Locks {
    let replica = sim.replica("a").options(options);
    let replica = replica.start(|_, _| async { Ok::<_, std::convert::Infallible>(()) });
    replica.await.locks().clone()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_it_is_held() {
    let sim = simulation();
    let locks = locks(&sim, |options| options.lease(ms(3_000))).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    sim.run_for(ms(4_500)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A fair lease is renewed like any other, and a waiter leaves the queue when its future is dropped.
#[tokio::test(start_paused = true)]
async fn a_fair_lease_is_renewed_and_a_fair_waiter_may_leave() {
    let sim = simulation();
    let locks = locks(&sim, |options| options.lease(ms(3_000))).await;
    let fair = || locks.mutex("k").fair();
    let guard = fair().lock().await.unwrap();
    assert!(fair().try_lock().await.unwrap().is_none());
    let mut leaver = Box::pin(fair().lock());
    assert!(poll_once(&mut leaver).await.is_none());
    let mut next = Box::pin(fair().lock());
    assert!(poll_once(&mut next).await.is_none());
    drop(leaver);
    sim.run_for(ms(4_500)).await;
    assert!(guard.is_held(), "renewed beyond its first lease");
    guard.release().await.unwrap();
    drop(next.await.unwrap());
    locks.idle().await;
}

/// Work that hangs does not keep a lock for ever: it is told, then loses the lease, and another caller gets it.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_for_no_longer_than_max_hold() {
    let (sim, watch) = (simulation(), Watch::of("key=hangs"));
    let (locks, other) = (
        locks(&sim, |options| options).await,
        locks(&sim, |options| options).await,
    );
    let mutex = locks.mutex("hangs").lease(ms(600)).max_hold(ms(700));
    let began = sim.now();
    let guard = mutex.lock().await.unwrap();
    let next = tokio::spawn(async move { other.mutex("hangs").lock().await.unwrap().release().await });
    guard.lease().overdue().await;
    assert!(guard.is_held());
    let overdue_after = sim.now().duration_since(began).unwrap();
    assert!(
        overdue_after >= ms(700) && overdue_after < ms(750),
        "{overdue_after:?}"
    );
    assert_eq!(guard.lost().await, LostCause::Overdue);
    let lost_after = sim.now().duration_since(began).unwrap();
    assert!(lost_after <= ms(700 + 600), "{lost_after:?}");
    next.await.unwrap().unwrap();
    assert_eq!(watch.until("overdue").await.level, Level::WARN);
    assert_eq!(watch.until("lost").await.level, Level::WARN);
    drop(guard);

    // A holder that ends in time is not told, and its `overdue` future completes.
    let guard = mutex.lock().await.unwrap();
    let overdue = guard.lease().overdue();
    guard.release().await.unwrap();
    overdue.await;
    assert_eq!(watch.count("overdue"), 1);
}

/// A guard reports what its lease reports, and a guard of several locks reports the first of them.
#[tokio::test(start_paused = true)]
async fn a_guard_reports_that_it_is_overdue() {
    let sim = simulation();
    let locks = locks(&sim, |options| options).await;
    let mutex = locks.mutex("a").lease(ms(1_500)).max_hold(ms(600));
    let guard = mutex.lock().await.unwrap();
    assert!(poll_once(&mut Box::pin(guard.overdue())).await.is_none());
    guard.overdue().await;
    // The loss comes after the limit, and not with the release.
    assert_eq!(guard.lost().await, LostCause::Overdue);
    drop(guard);
    let multi = locks.multi(["a", "b"]).lease(ms(1_500)).max_hold(ms(600));
    let guard = multi.lock().await.unwrap();
    assert!(poll_once(&mut Box::pin(guard.overdue())).await.is_none());
    guard.overdue().await;
    assert_eq!(guard.lost().await, LostCause::Overdue);
}

/// A leader with a `max_hold` is overdue, then lost, and the next candidate leads. `lead` drops the work and campaigns again.
#[tokio::test(start_paused = true)]
async fn a_leader_leads_for_no_longer_than_max_hold() {
    let sim = simulation();
    let (locks, other) = (
        locks(&sim, |options| options).await,
        locks(&sim, |options| options).await,
    );
    let election = locks.election("relay").lease(ms(1_000)).max_hold(ms(500));
    let first = election.campaign().await.unwrap();
    let candidate = other.election("relay");
    let next = tokio::spawn(async move { candidate.campaign().await });
    first.overdue().await;
    assert_eq!(first.lost().await, LostCause::Overdue);
    let next = next.await.unwrap().unwrap();
    assert!(next.fence() > first.fence() && !election.is_leader());
    next.release().await.unwrap();

    let mut terms = 0;
    let done = election.lead(|lease| {
        terms += 1;
        let is_first = terms == 1;
        async move {
            if is_first {
                lease.lost().await;
                std::future::pending::<()>().await;
            }
            lease.is_held()
        }
    });
    assert!(done.await.unwrap());
    assert_eq!(terms, 2);
}

#[tokio::test(start_paused = true)]
async fn a_long_hold_is_reported_once() {
    let (sim, watch) = (simulation(), Watch::of("key=lingers"));
    let locks = locks(&sim, |options| options.lease(ms(400)).long_hold(ms(300))).await;
    let guard = locks.mutex("lingers").lock().await.unwrap();
    sim.run_for(Duration::from_secs(10)).await;
    assert!(guard.is_held());
    assert_eq!(watch.until("held_long").await.level, Level::WARN);
    assert_eq!(watch.count("held_long"), 1);
}

/// A leader leads for as long as it lives. Its renewals go on beyond `long_hold`.
#[tokio::test(start_paused = true)]
async fn a_leader_that_leads_for_long_is_no_warning() {
    let (sim, watch) = (simulation(), Watch::of("key=leads for long"));
    let locks = locks(&sim, |options| options.lease(ms(2_000)).long_hold(ms(300))).await;
    let _leadership = locks.election("leads for long").campaign().await.unwrap();
    sim.run_for(Duration::from_secs(10)).await;
    assert!(watch.count("renewed") >= 10, "{:#?}", watch.told());
    assert_eq!(watch.count("held_long"), 0, "{:#?}", watch.told());
}
