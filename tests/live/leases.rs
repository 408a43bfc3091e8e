//! Callers of fixed leases each wait for themselves, and delay no other caller, however many they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::error::LostCause;
use tenure::{Error, Guard};
use tokio::task::JoinSet;

use crate::help::{Eyes, HOUR, addr, held, locks, ms, patient, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Renews all leases while the wire holds, and lets the wire go on. Returns how many callers stand in the queue of the crowd
/// when the leases are renewed.
async fn renewed(guards: &[Arc<Guard>], proxy: &Proxy, eyes: &mut Eyes) -> usize {
    let (mut renewals, called) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for guard in guards {
        let (guard, called) = (guard.clone(), called.clone());
        renewals.spawn(async move {
            called.fetch_add(1, Ordering::SeqCst);
            guard.renew().await.unwrap();
        });
    }
    until("they are called", || {
        called.load(Ordering::SeqCst) == guards.len()
    })
    .await;
    proxy.set(Direction::Both, Flow::Delay(ms(12)));
    soon(renewals.join_all()).await;
    eyes.queue("crowded")
}

/// Thousands of callers wait for one key behind a slow wire. The renewals of other keys go before their requests, when
/// they come and when they all go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_key_delays_no_renewal_of_another() {
    const CROWD: usize = 3_000;
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let (locks, other) = (patient(&url(proxy.addr())).await, patient(&server.url()).await);
    let owner = held(&other, "crowded").await;
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(Arc::new(held(&locks, &n.to_string()).await));
    }
    proxy.set(Direction::Both, Flow::Hold);
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(locks.mutex("crowded").fixed(12 * HOUR).lock());
    }
    until("they come", || locks.waiter_count() == CROWD).await;
    let came = renewed(&guards, &proxy, &mut eyes).await;
    until("they wait", || eyes.queue("crowded") == CROWD).await;
    proxy.set(Direction::Both, Flow::Hold);
    crowd.abort_all();
    until("they go", || locks.waiter_count() == 0).await;
    let stay = renewed(&guards, &proxy, &mut eyes).await;
    println!("{came} came before the renewals, and {} went", CROWD - stay);
    assert!(came < CROWD / 2 && stay > CROWD / 2);
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
