//! Faulty subscribers: whatever a program's log does, leases are kept, losses are reported and locks are granted.
//!
//! Each test runs in its own process, as a subscriber is set for a whole process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use tenure::error::LostCause;
use tenure::{Guard, Locks, MemoryStore};
use tokio::sync::watch;

use crate::help::{ms, poll_once, soon};
use crate::support::alone::alone;
use crate::support::events::{Each, Told};

/// A machine seldom stalls for a third of this lease.
const LEASE: std::time::Duration = ms(4_500);

/// Longer than the rest of a lease after its first renewal.
const BEYOND: std::time::Duration = ms(7_500);

/// How a subscriber fails. It fails only in the background: callers are responsible for their own threads.
#[derive(Clone, Copy)]
enum Ill {
    Panics,
    Blocks,
}

/// The number of events that the event thread has handled so far.
type Heard = watch::Receiver<usize>;

impl Ill {
    fn subscriber(self) -> (impl tracing::Subscriber + Send + Sync, Heard) {
        let (caller, (count, heard)) = (thread::current().id(), watch::channel(0));
        let subscriber = Each(move |told: &Told| {
            if thread::current().id() == caller {
                return;
            }
            if thread::current().name() == Some("tenure-events") {
                count.send_modify(|count| *count += 1);
            }
            match self {
                Ill::Panics => panic!("a subscriber could not write `{}`", told.event),
                Ill::Blocks => loop {
                    thread::park();
                },
            }
        });
        (subscriber, heard)
    }
}

/// Where the subscriber is set.
#[derive(Clone, Copy)]
enum Set {
    /// For the whole process.
    Everywhere,
    /// On the thread that builds the locks, while it builds them.
    AtBuild,
}

/// Returns the locks of a process with such a subscriber. Their keys are on `store`.
fn locks(ill: Ill, set: Set, store: &MemoryStore) -> (Locks, Heard) {
    let (subscriber, heard) = ill.subscriber();
    let build = || Locks::builder().lease(LEASE).memory_shared(store).unwrap();
    let locks = match set {
        Set::Everywhere => {
            tracing::subscriber::set_global_default(subscriber).unwrap();
            build()
        }
        Set::AtBuild => tracing::subscriber::with_default(subscriber, build),
    };
    (locks, heard)
}

/// Only one thread calls, so every other thread is in the background.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

async fn held(locks: &Locks, key: String) -> Guard {
    soon(locks.mutex(key).lock()).await.unwrap()
}

/// Leases are held for longer than they last without renewals, and events were emitted meanwhile.
async fn keeps_its_leases(ill: Ill, set: Set) {
    let (locks, mut heard) = locks(ill, set, &MemoryStore::new());
    let mut guards = Vec::new();
    for n in 0..10 {
        guards.push(held(&locks, n.to_string()).await);
    }
    tokio::time::sleep(BEYOND).await;
    let kept = guards.iter().filter(|guard| guard.is_held()).count();
    assert_eq!(
        kept,
        10,
        "leases were lost after {} events",
        *heard.borrow_and_update()
    );
    // A panic ends nothing: later events are emitted, too.
    let least = match ill {
        Ill::Panics => 10,
        Ill::Blocks => 1,
    };
    assert!(*heard.borrow() >= least, "{} events were told", *heard.borrow());
}

/// A lease that the store removed is lost, and its holder is told.
async fn tells_a_loss(ill: Ill) {
    let store = MemoryStore::new();
    let (locks, mut heard) = locks(ill, Set::Everywhere, &store);
    let guard = held(&locks, "a".into()).await;
    soon(heard.wait_for(|count| *count > 0)).await.unwrap();
    // Past the first renewal, which does not come if the background is blocked.
    tokio::time::sleep(LEASE / 2).await;
    store.with_ledger(|ledger, _| ledger.clear());
    let lost = tokio::time::timeout(ms(20_000), guard.lost()).await;
    assert_eq!(
        lost.ok(),
        Some(LostCause::Gone),
        "the holder was not told of the loss"
    );
}

/// A key whose guard was dropped is locked again.
async fn gives_what_was_dropped(ill: Ill) {
    let (locks, mut heard) = locks(ill, Set::Everywhere, &MemoryStore::new());
    let guard = held(&locks, "a".into()).await;
    soon(heard.wait_for(|count| *count > 0)).await.unwrap();
    // Past the first renewal, which does not come if the background is blocked.
    tokio::time::sleep(LEASE / 2).await;
    drop(guard);
    let again = tokio::time::timeout(ms(20_000), locks.mutex("a").lock()).await;
    assert!(again.is_ok(), "a free lock was not granted");
    again.unwrap().unwrap().release().await.unwrap();
}

/// Leases are renewed beside a subscriber that panics each time.
#[test]
fn leases_outlive_a_subscriber_that_panics() {
    alone("subscribers::leases_outlive_a_subscriber_that_panics", || {
        block_on(keeps_its_leases(Ill::Panics, Set::Everywhere));
    });
}

/// Leases are renewed beside a subscriber that never returns.
#[test]
fn leases_outlive_a_subscriber_that_blocks() {
    alone("subscribers::leases_outlive_a_subscriber_that_blocks", || {
        block_on(keeps_its_leases(Ill::Blocks, Set::Everywhere));
    });
}

/// A subscriber that was set when the locks were built gets background events, and may panic.
#[test]
fn leases_outlive_a_scoped_subscriber_that_panics() {
    alone(
        "subscribers::leases_outlive_a_scoped_subscriber_that_panics",
        || block_on(keeps_its_leases(Ill::Panics, Set::AtBuild)),
    );
}

/// A subscriber that was set when the locks were built gets background events, and may block for ever.
#[test]
fn leases_outlive_a_scoped_subscriber_that_blocks() {
    alone(
        "subscribers::leases_outlive_a_scoped_subscriber_that_blocks",
        || block_on(keeps_its_leases(Ill::Blocks, Set::AtBuild)),
    );
}

/// `lost` fires beside a subscriber that panics.
#[test]
fn a_loss_is_told_beside_a_subscriber_that_panics() {
    alone(
        "subscribers::a_loss_is_told_beside_a_subscriber_that_panics",
        || block_on(tells_a_loss(Ill::Panics)),
    );
}

/// `lost` fires beside a subscriber that never returns.
#[test]
fn a_loss_is_told_beside_a_subscriber_that_blocks() {
    alone(
        "subscribers::a_loss_is_told_beside_a_subscriber_that_blocks",
        || block_on(tells_a_loss(Ill::Blocks)),
    );
}

/// A dropped lock is free beside a subscriber that panics.
#[test]
fn a_dropped_lock_is_free_beside_a_subscriber_that_panics() {
    alone(
        "subscribers::a_dropped_lock_is_free_beside_a_subscriber_that_panics",
        || block_on(gives_what_was_dropped(Ill::Panics)),
    );
}

/// A dropped lock is free beside a subscriber that never returns.
#[test]
fn a_dropped_lock_is_free_beside_a_subscriber_that_blocks() {
    alone(
        "subscribers::a_dropped_lock_is_free_beside_a_subscriber_that_blocks",
        || block_on(gives_what_was_dropped(Ill::Blocks)),
    );
}

/// Renewals share a batch. A panic during one of them does not affect the others.
#[test]
fn one_panic_costs_no_other_lease_its_renewal() {
    alone("subscribers::one_panic_costs_no_other_lease_its_renewal", || {
        let (panicked, renewed) = (AtomicBool::new(false), AtomicUsize::new(0));
        let once = move |told: &Told| {
            // The panic comes in the middle of the renewals.
            if told.event == "renewed"
                && renewed.fetch_add(1, Ordering::SeqCst) > 50
                && !panicked.swap(true, Ordering::SeqCst)
            {
                panic!("a subscriber could not write");
            }
        };
        tracing::subscriber::set_global_default(Each(once)).unwrap();
        block_on(async {
            let locks = Locks::builder().lease(LEASE).memory().unwrap();
            let mut guards = Vec::new();
            for n in 0..200 {
                guards.push(held(&locks, n.to_string()).await);
            }
            tokio::time::sleep(BEYOND).await;
            let kept = guards.iter().filter(|guard| guard.is_held()).count();
            assert_eq!(kept, 200, "some were renewed no more");
        });
    });
}

/// A subscriber may read the state of the locks in any event: no event is emitted under a mutex.
#[test]
fn a_subscriber_may_look_at_the_locks() {
    static LOCKS: OnceLock<Locks> = OnceLock::new();
    alone("subscribers::a_subscriber_may_look_at_the_locks", || {
        let looks = Each(|_: &Told| {
            LOCKS.get().map(|locks| (locks.key_count(), locks.waiter_count()));
        });
        tracing::subscriber::set_global_default(looks).unwrap();
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            block_on(async {
                let locks = LOCKS.get_or_init(|| Locks::builder().lease(LEASE).memory().unwrap());
                // Events: granted, denied, handed on, released.
                let guard = held(locks, "a".into()).await;
                assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
                let mut waiting = Box::pin(locks.mutex("a").lock());
                assert!(poll_once(&mut waiting).await.is_none());
                guard.release().await.unwrap();
                let guard = soon(waiting).await.unwrap();
                done.send("use").unwrap();
                // Event: lost.
                locks.shutdown().await;
                assert!(!guard.is_held());
                done.send("shutdown").unwrap();
            });
        });
        for what in ["use", "shutdown"] {
            let is_done = is_done.recv_timeout(ms(20_000));
            assert_eq!(is_done, Ok(what), "{what} waits for itself");
        }
    });
}

/// The process's subscriber is looked up for each event: one that was set later gets events, and may panic.
#[test]
fn a_subscriber_that_is_set_after_the_build_gets_background_events() {
    alone(
        "subscribers::a_subscriber_that_is_set_after_the_build_gets_background_events",
        || {
            block_on(async {
                let locks = Locks::builder().lease(LEASE).memory().unwrap();
                let guard = held(&locks, "a".into()).await;
                let (subscriber, mut heard) = Ill::Panics.subscriber();
                let subscriber: Arc<dyn tracing::Subscriber + Send + Sync> = Arc::new(subscriber);
                tracing::subscriber::set_global_default(subscriber).unwrap();
                soon(heard.wait_for(|count| *count > 0)).await.unwrap();
                tokio::time::sleep(BEYOND).await;
                assert!(guard.is_held(), "its renewals ended");
            });
        },
    );
}
