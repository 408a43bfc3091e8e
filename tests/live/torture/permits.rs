//! Permits in the torture: there are more tasks than permits. Each task holds one, two or three permits of a semaphore.

use std::time::Duration;

use tenure::Semaphore;
use tokio::time::{sleep, timeout};

use crate::torture::journal::now;
use crate::torture::orders::Locked;
use crate::torture::worker::{AcquireWay, Held, Worker, late};

impl Worker {
    /// Acquires permits of the semaphore repeatedly. Its key comes after the last lock.
    pub async fn wants_permits(&self, rng: &mut fastrand::Rng) {
        let semaphore = self.semaphore();
        let mut stop = self.stop.clone();
        while !*self.stop.borrow() {
            self.quiet.pass().await;
            let (how, many) = (AcquireWay::any(rng), [1, 1, 1, 2, 3][rng.usize(..5)]);
            let got = tokio::select! {
                got = self.acquire_permits(&semaphore, how, many, rng) => got,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let key = self.orders.permits_key();
            match got {
                Ok(Some(held)) => self.hold_permits(held, many, rng).await,
                Ok(None) => self
                    .journal
                    .write(now(), format_args!("miss {key} {how:?} Permits")),
                Err(error) => {
                    self.failed(key, &error);
                    sleep(Duration::from_millis(rng.u64(5..25))).await;
                }
            }
            sleep(Duration::from_micros(rng.u64(0..3000))).await;
        }
    }

    async fn acquire_permits(
        &self,
        semaphore: &Semaphore,
        how: AcquireWay,
        many: u32,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<Held>, tenure::Error> {
        if self.orders.locked != Locked::All {
            sleep(Duration::from_millis(rng.u64(0..4))).await;
            return Ok(Some(self.pretended()));
        }
        let _waits = self.quiet.waits("semaphore");
        let lease = self.orders.lease;
        let real = |guard| Some(Held::Real(guard));
        match how {
            AcquireWay::Lock => semaphore.acquire_many(many).await.map(real),
            AcquireWay::Shorter => semaphore
                .clone()
                .lease(lease / 2)
                .acquire_many(many)
                .await
                .map(real),
            AcquireWay::Fixed => semaphore
                .clone()
                .fixed(lease * 2 / 3)
                .acquire_many(many)
                .await
                .map(real),
            AcquireWay::Try => Ok(semaphore.try_acquire_many(many).await?.and_then(real)),
            AcquireWay::Timeout => {
                let wait = Duration::from_millis(rng.u64(1..300));
                match semaphore.acquire_many_timeout(many, wait).await {
                    Err(tenure::Error::Busy { .. }) => Ok(None),
                    other => other.map(real),
                }
            }
            AcquireWay::Late => {
                match late(semaphore.clone().lease(lease / 2).acquire_many(many), lease, rng).await {
                    Err(tenure::Error::Lost { .. }) => Ok(None),
                    other => other.map(real),
                }
            }
            AcquireWay::Cancelled => {
                let patience = Duration::from_micros(1 << rng.u32(4..16));
                match timeout(patience, semaphore.acquire_many(many)).await {
                    Err(_) => Ok(None),
                    Ok(other) => other.map(real),
                }
            }
        }
    }

    async fn hold_permits(&self, held: Held, many: u32, rng: &mut fastrand::Rng) {
        let id = self.granted(
            self.orders.permits_key(),
            held.fence(),
            format_args!("permits:{many}"),
        );
        let span = Duration::from_micros(match rng.u32(..10) {
            0..2 => rng.u64(..self.orders.lease.as_micros() as u64 * 3 / 2),
            2..5 => rng.u64(..2_000),
            _ => rng.u64(2_000..20_000),
        });
        self.stay(now(), span, || self.check(id, &held)).await;
        self.tell_loss(id, &held).await;
        self.end(id, held, rng).await;
    }
}
