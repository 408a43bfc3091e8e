//! Subscribers that misbehave, on a real server. Each in a process of its own, as a subscriber is for all of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;

use tenure::Locks;
use tenure::testing::Clock;
use tokio::sync::watch;

use crate::help::{addr, held, locks, ms, soon, url};
use crate::server::RedisServer;
use crate::support::alone::alone;
use crate::support::events::{Each, Told};
use crate::support::proxy::{Direction, Flow, Proxy};

/// Claims travel together. A panic that the answer to one of them meets is no matter of the others: at most the task that
/// tells panics, and nobody waits for ever.
#[test]
fn one_panic_costs_no_other_caller_its_answer() {
    alone("subscribers::one_panic_costs_no_other_caller_its_answer", || {
        let (panicked, granted) = (AtomicBool::new(false), AtomicUsize::new(0));
        let once = move |told: &Told| {
            // In the middle of them.
            if told.event == "granted"
                && granted.fetch_add(1, Ordering::SeqCst) > 60
                && !panicked.swap(true, Ordering::SeqCst)
            {
                panic!("a subscriber could not write");
            }
        };
        tracing::subscriber::set_global_default(Each(once)).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = RedisServer::start();
            let proxy = Proxy::start(addr(&server));
            let locks = locks(&url(proxy.addr()), ms(60_000)).await;
            held(&locks, "warm").await.release().await.unwrap();
            // Until all have asked, so that many share a batch.
            proxy.set(Direction::Replies, Flow::Hold);
            let tasks: Vec<_> = (0..200)
                .map(|n| tokio::spawn(locks.mutex(n.to_string()).lock()))
                .collect();
            let all_wait = async {
                while locks.waiter_count() < 200 {
                    tokio::task::yield_now().await;
                }
            };
            soon(all_wait).await;
            proxy.heal();
            let (mut guards, mut hang, mut panics) = (Vec::new(), 0, 0);
            // Together: those that hang are waited for once.
            let end = tokio::time::Instant::now() + ms(15_000);
            for task in tasks {
                match tokio::time::timeout_at(end, task).await {
                    Ok(Ok(guard)) => guards.push(guard.unwrap()),
                    Ok(Err(_)) => panics += 1,
                    Err(_) => hang += 1,
                }
            }
            assert_eq!(hang, 0, "of 200 tasks hang, after {panics} panicked");
            assert!(panics <= 1, "{panics} tasks panicked");
            drop(guards);
            soon(locks.idle()).await;
        });
    });
}

/// A subscriber may ask the locks about themselves, also when it is told what was found as the inbox opened again: that a
/// lease had ended meanwhile.
#[test]
fn a_subscriber_may_look_at_the_locks_as_the_inbox_opens() {
    static LOCKS: OnceLock<Locks> = OnceLock::new();
    alone(
        "subscribers::a_subscriber_may_look_at_the_locks_as_the_inbox_opens",
        || {
            // How often the inbox was lost, and how often it was opened.
            let (tell, inbox) = watch::channel((0, 0));
            let looks = Each(move |told: &Told| {
                LOCKS.get().map(|locks| (locks.key_count(), locks.waiter_count()));
                tell.send_modify(|(lost, opened)| match &*told.event {
                    "inbox_lost" => *lost += 1,
                    "inbox_open" => *opened += 1,
                    _ => {}
                });
            });
            tracing::subscriber::set_global_default(looks).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = RedisServer::start();
                let proxy = Proxy::start(addr(&server));
                let clock = Clock::new();
                let locks = crate::help::builder().lease(ms(600_000)).clock(clock.clone());
                let locks = locks.connect(&url(proxy.addr())).await.unwrap();
                assert!(LOCKS.set(locks.clone()).is_ok());
                let guard = held(&locks, "a").await;
                // Nothing is done in the background any more, whatever was under way.
                clock.jump(ms(60_000));
                tokio::time::sleep(ms(200)).await;
                proxy.refuse(true);
                proxy.reset();
                let mut inbox = inbox;
                soon(inbox.wait_for(|(lost, _)| *lost > 0)).await.unwrap();
                // The lease ends unseen: who is asleep does not notice that the clock jumped.
                clock.jump(ms(600_000));
                let (_, before) = *inbox.borrow();
                proxy.refuse(false);
                let opened = inbox.wait_for(|(_, opened)| *opened > before);
                soon(opened).await.unwrap();
                // What follows is done in no time, and then the locks can be asked again.
                tokio::time::sleep(ms(500)).await;
                let (done, is_done) = mpsc::channel();
                thread::spawn(move || done.send(guard.is_held()));
                let seen = tokio::task::spawn_blocking(move || is_done.recv_timeout(ms(20_000)));
                assert_eq!(
                    seen.await.unwrap(),
                    Ok(false),
                    "the inbox's opening waits for itself"
                );
            });
        },
    );
}
