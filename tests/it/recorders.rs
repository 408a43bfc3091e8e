//! Faulty recorders: whatever a program's metrics do in the background, leases are kept and locks are granted.
//!
//! Each test runs in its own process, as a recorder is set for a whole process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use metrics::{Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tenure::Locks;
use tenure::error::LostCause;

use crate::help::{block_on, ms, soon, until};
use crate::support::alone::alone;
use crate::support::meter::Meter;

/// A machine seldom stalls for a third of this lease.
const LEASE: std::time::Duration = ms(4_500);

/// Longer than the rest of a lease after its first renewal.
const BEYOND: std::time::Duration = ms(7_500);

/// How a recorder fails on the event thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Panics,
    Blocks,
}

/// A recorder that keeps the latest value of `tenure_held{kind=lock}`, and fails while it is ill.
#[derive(Clone)]
struct Faulty {
    how: Ill,
    is_ill: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    held: Arc<Mutex<f64>>,
}

impl Faulty {
    fn install(how: Ill) -> Faulty {
        let faulty = Faulty {
            how,
            is_ill: Arc::new(AtomicBool::new(true)),
            failures: Arc::default(),
            held: Arc::default(),
        };
        metrics::set_global_recorder(faulty.clone()).unwrap();
        faulty
    }

    fn fails(&self) {
        let is_background = thread::current().name() == Some("tenure-events");
        if !is_background || !self.is_ill.load(Ordering::SeqCst) {
            return;
        }
        self.failures.fetch_add(1, Ordering::SeqCst);
        match self.how {
            Ill::Panics => panic!("the metrics cannot be written"),
            Ill::Blocks => loop {
                thread::park();
            },
        }
    }
}

struct Held(Arc<Mutex<f64>>);

impl GaugeFn for Held {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}

    fn set(&self, value: f64) {
        *self.0.lock().unwrap() = value;
    }
}

impl Recorder for Faulty {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.fails();
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.fails();
        let is_held = key.name() == "tenure_held" && key.labels().any(|label| label.value() == "lock");
        match is_held {
            true => Gauge::from_arc(Arc::new(Held(self.held.clone()))),
            false => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.fails();
        Histogram::noop()
    }
}

/// Takes a lock that is renewed a few times while the recorder fails, and a lease that is lost.
async fn locks_and_leases(faulty: &Faulty) -> Locks {
    let locks = Locks::builder().lease(LEASE).memory().unwrap();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    until("the recorder fails", || {
        faulty.failures.load(Ordering::SeqCst) > 0
    })
    .await;
    let lost = soon(locks.mutex("b").fixed(ms(1_000)).lock()).await.unwrap();
    assert_eq!(soon(lost.lost()).await, LostCause::Ended);
    let waiter = tokio::spawn(locks.mutex("a").lock());
    until("it waits", || locks.waiter_count() == 1).await;
    tokio::time::sleep(BEYOND).await;
    assert!(guard.is_held(), "it is renewed");
    soon(guard.release()).await.unwrap();
    soon(soon(waiter).await.unwrap().unwrap().release())
        .await
        .unwrap();
    locks
}

#[test]
fn a_recorder_that_panics_costs_no_lease_and_gets_later_values() {
    alone(
        "recorders::a_recorder_that_panics_costs_no_lease_and_gets_later_values",
        || {
            std::panic::set_hook(Box::new(|_| {}));
            block_on(async {
                let faulty = Faulty::install(Ill::Panics);
                let locks = locks_and_leases(&faulty).await;
                faulty.is_ill.store(false, Ordering::SeqCst);
                let guard = soon(locks.mutex("a").lock()).await.unwrap();
                until("it gets the value", || *faulty.held.lock().unwrap() == 1.0).await;
                drop(guard);
                until("it gets the next value", || *faulty.held.lock().unwrap() == 0.0).await;
            });
        },
    );
}

#[test]
fn a_recorder_that_blocks_costs_no_lease() {
    alone("recorders::a_recorder_that_blocks_costs_no_lease", || {
        block_on(async {
            let faulty = Faulty::install(Ill::Blocks);
            drop(locks_and_leases(&faulty).await);
            assert_eq!(
                faulty.failures.load(Ordering::SeqCst),
                1,
                "only one thread is blocked"
            );
        });
    });
}

#[test]
fn a_recorder_that_comes_late_gets_each_series_with_its_next_change() {
    alone(
        "recorders::a_recorder_that_comes_late_gets_each_series_with_its_next_change",
        || {
            block_on(async {
                let locks = Locks::memory();
                let first = locks.mutex("a").lock().await.unwrap();
                tenure::testing::flush_events();
                let meter = Meter::global();
                assert_eq!(meter.gauge("tenure_held{kind=lock}"), None);
                let second = locks.mutex("b").lock().await.unwrap();
                assert_eq!(meter.gauge("tenure_held{kind=lock}"), Some(2.0));
                assert_eq!(meter.count("tenure_grants_total{kind=lock}"), 1);
                drop((first, second));
                assert_eq!(meter.gauge("tenure_held{kind=lock}"), Some(0.0));
            });
        },
    );
}
