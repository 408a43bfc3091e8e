//! A second `Locks` in the process of a worker is built and shut down repeatedly. It must not disturb the first.
//!
//! The threads of the first run its steps, too. It uses the same keys, and one of its own.

use std::time::Duration;

use tenure::Error;
use tokio::time::{sleep, timeout};

use crate::torture::journal::now;
use crate::torture::orders::{Locked, Orders, build, name};
use crate::torture::worker::{Held, Worker};

/// Longer than a shutdown takes while the server answers.
const PATIENCE: Duration = Duration::from_secs(10);

impl Worker {
    pub async fn builds_and_shuts_down(&self, rng: &mut fastrand::Rng) {
        while !*self.stop.borrow() && self.orders.locked != Locked::None {
            self.quiet.pass().await;
            self.neighbour(&self.orders, rng).await;
        }
    }

    async fn neighbour(&self, orders: &Orders, rng: &mut fastrand::Rng) {
        let locks = build(orders).await;
        let mut own = Vec::new();
        for n in 0..rng.u64(1..4) {
            let key = format!("neighbour:{}:{n}", locks.node_id());
            let waits = self.quiet.waits("lock");
            let guard = timeout(PATIENCE, locks.mutex(key).lock()).await;
            drop(waits);
            own.extend(
                guard
                    .ok()
                    .and_then(Result::ok)
                    .map(|guard| (guard, self.quiet.holds("lock"))),
            );
        }
        let key = rng.usize(..orders.keys);
        let waits = tokio::spawn({
            let mutex = locks.mutex(name(rng.usize(..orders.keys)));
            let quiet = self.quiet.clone();
            async move {
                let _waits = quiet.waits("lock");
                mutex.lock().await.map(drop)
            }
        });
        let patience = Duration::from_millis(rng.u64(5..400));
        let lock = locks.rw_lock(name(key));
        let waits_too = self.quiet.waits("lock");
        let got = timeout(patience, lock.write()).await;
        drop(waits_too);
        match got {
            Ok(Ok(guard)) => {
                let held = Held::Real(guard);
                let (id, _) = self.work_under(&held, key, false, None, rng).await;
                if rng.bool() {
                    self.end(id, held, rng).await;
                } else {
                    // The shutdown ends the lease.
                    self.ending(id, "shutdown");
                    self.shut_down(&locks).await;
                    self.tell_loss(id, &held).await;
                }
            }
            Ok(Err(error)) => self.failed(key, &error),
            Err(_) => {}
        }
        self.shut_down(&locks).await;
        if let Err(error) = waits.await.expect("a waiter does not panic")
            && !matches!(error, Error::Closed { .. } | Error::Store { .. })
        {
            self.failed(key, &error);
        }
        drop(own);
        self.journal.write(now(), format_args!("event neighbour"));
        sleep(Duration::from_millis(rng.u64(0..200))).await;
    }

    async fn shut_down(&self, locks: &tenure::Locks) {
        // In an outage the shutdown waits until its leases have expired.
        if timeout(6 * PATIENCE, locks.shutdown()).await.is_err() {
            self.journal
                .write(now(), format_args!("broken a shutdown that hangs"));
        }
    }
}
