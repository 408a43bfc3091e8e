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
            self.neighbour(&self.orders, rng).await;
        }
    }

    async fn neighbour(&self, orders: &Orders, rng: &mut fastrand::Rng) {
        let locks = build(orders).await;
        let mut own = Vec::new();
        for n in 0..rng.u64(1..4) {
            let key = format!("neighbour:{}:{n}", locks.node_id());
            own.extend(
                timeout(PATIENCE, locks.mutex(key).lock())
                    .await
                    .ok()
                    .and_then(Result::ok),
            );
        }
        let key = rng.usize(..orders.keys);
        let waits = tokio::spawn({
            let mutex = locks.mutex(name(rng.usize(..orders.keys)));
            async move { mutex.lock().await.map(drop) }
        });
        let patience = Duration::from_millis(rng.u64(5..400));
        let lock = locks.rw_lock(name(key));
        match timeout(patience, lock.write()).await {
            Ok(Ok(guard)) => {
                let held = Held::Real(guard);
                let (id, _) = self.work_under(&held, key, false, None, rng).await;
                if rng.bool() {
                    self.end(id, held, rng).await;
                } else {
                    // The shutdown ends the lease.
                    self.journal.write(now(), format_args!("ending {id} shutdown"));
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
