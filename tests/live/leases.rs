//! Callers of fixed leases wait each for itself; however many they are, they stand in nobody else's way.

use tenure::error::LostCause;
use tenure::{Error, Locks};
use tokio::task::JoinSet;

use crate::help::{Eyes, addr, held, held_at_last, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Thousands who wait for one key behind a slow wire cost no other key its lease, neither while they come and wait nor
/// when they all go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_key_costs_no_other_its_lease() {
    const CROWD: usize = 3_000;
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let (locks, other) = (
        Locks::redis(&url(proxy.addr())).await.unwrap(),
        Locks::redis(&server.url()).await.unwrap(),
    );
    let owner = held(&other, "crowded").await;
    proxy.set(Direction::Both, Flow::Delay(ms(12)));
    let mut guards = Vec::new();
    for n in 0..20 {
        let mutex = locks.mutex(n.to_string()).lease(ms(3_000));
        guards.push(held_at_last(mutex).await);
    }
    let came = now();
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(locks.mutex("crowded").fixed(ms(2_000)).lock());
    }
    until("they wait", || locks.waiting() == CROWD).await;
    let mut lost_after = Vec::new();
    let mut gone = false;
    while now() - came < ms(9_000) && lost_after.len() < guards.len() {
        tokio::time::sleep(ms(20)).await;
        if !gone && now() - came > ms(6_000) {
            crowd.abort_all();
            gone = true;
        }
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        lost_after.resize(lost, now() - came);
    }
    assert!(
        lost_after.is_empty(),
        "{} of {} leases on other keys were lost, {lost_after:?} after {CROWD} came to wait for one key",
        lost_after.len(),
        guards.len()
    );
    proxy.heal();
    drop((guards, owner));
    until("nothing is left", || eyes.left_behind().is_empty()).await;
}

/// The term of a fixed lease begins again in the store, too, and as often as its caller asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_extends_a_fixed_lease_in_the_store() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let guard = soon(locks.mutex("a").fixed(ms(60_000)).lock()).await.unwrap();
    let owner = eyes.owner("a");
    for _ in 0..2 {
        until("a second of the lease has passed", || {
            guard.remaining() < ms(59_000)
        })
        .await;
        let before = eyes.pttl("a");
        // A busy machine may take a second for one renewal.
        soon(async {
            loop {
                guard.renew().await.unwrap();
                if eyes.pttl("a") > before {
                    break;
                }
            }
        })
        .await;
        assert_eq!(eyes.owner("a"), owner);
    }
    soon(guard.release()).await.unwrap();
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_without_an_answer_extends_no_fixed_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let locks = locks(&url(proxy.addr()), ms(10_000)).await;
    let guard = soon(locks.mutex("a").fixed(ms(8_000)).lock()).await.unwrap();
    proxy.set(Direction::Both, Flow::Hold);
    let before = guard.remaining();
    let renewed = soon(guard.renew()).await;
    let is_late = !guard.is_held();
    assert!(
        matches!(renewed, Err(Error::Store { .. })) || is_late && renewed.is_err(),
        "{renewed:?}"
    );
    assert!(proxy.counts().held[0] > 0, "nothing was held");
    assert!(guard.remaining() <= before);
    assert_eq!(soon(guard.lost()).await, LostCause::Ended);
    let late = soon(guard.renew()).await;
    assert!(
        matches!(
            late,
            Err(Error::Lost {
                cause: LostCause::Ended,
                ..
            })
        ),
        "{late:?}"
    );
    proxy.heal();
    drop(guard);
    eyes.until_empty().await;
}
