//! A partner answers three calls at a time and refuses the fourth. Two replicas send it forty reports; large reports count as
//! two calls. Without a semaphore the partner refuses many. With one it refuses none, whichever replica calls. Permits of a
//! holder that dies become free when its lease expires.
//!
//! In this process's memory, in one or two seconds:
//!
//!     cargo run --example partner
//!
//! With the permits on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example partner

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Locks, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

const REPORTS: u32 = 40;
const LIMIT: u32 = 3;

/// The partner: counts calls, and uses no locks.
#[derive(Debug, Default)]
struct Partner {
    calls: AtomicU32,
    most: AtomicU32,
    refused: AtomicU32,
}

impl Partner {
    async fn send(&self, weight: u32) {
        let now = self.calls.fetch_add(weight, Ordering::SeqCst) + weight;
        self.most.fetch_max(now, Ordering::SeqCst);
        if now > LIMIT {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.calls.fetch_sub(weight, Ordering::SeqCst);
    }
}

/// Returns how many calls a report counts as: two if it is large.
fn weight(report: u32) -> u32 {
    1 + u32::from(report.is_multiple_of(5))
}

/// Sends all reports, from both replicas in turn. Returns how many the partner refused, and the most calls it had at once.
async fn send_all(permits: Option<[Semaphore; 2]>) -> Result<(u32, u32), Trouble> {
    let partner = Arc::new(Partner::default());
    let mut reports = JoinSet::new();
    for report in 0..REPORTS {
        let (partner, weight) = (partner.clone(), weight(report));
        let permits = permits.as_ref().map(|of| of[report as usize % 2].clone());
        reports.spawn(async move {
            let Some(permits) = permits else {
                partner.send(weight).await;
                return Ok::<_, Trouble>(());
            };
            let guard = permits.acquire_many(weight).await?;
            partner.send(weight).await;
            guard.release().await?;
            Ok(())
        });
    }
    while let Some(sent) = reports.join_next().await {
        sent??;
    }
    Ok((
        partner.refused.load(Ordering::SeqCst),
        partner.most.load(Ordering::SeqCst),
    ))
}

/// A replica acquires every permit and hangs. Its lease is fixed, so it expires like the lease of a dead process.
/// Returns how long the other replica waited.
async fn outlive(replicas: &[Locks; 2]) -> Result<Duration, Trouble> {
    let lease = Duration::from_millis(500);
    let dead = replicas[0].semaphore("partner", LIMIT).fixed(lease);
    let all = dead.acquire_many(LIMIT).await?;
    let since = Instant::now();
    let one = replicas[1].semaphore("partner", LIMIT).acquire().await?;
    let waited = since.elapsed();
    assert!(
        !all.is_held(),
        "the holder must see the loss before others get its permits"
    );
    one.release().await?;
    Ok(waited)
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("partner", "the permits").await?;
    let place = replicas.place();
    println!(
        "{REPORTS} reports by two replicas to a partner that answers {LIMIT} calls at a time, permits {place}.\n"
    );

    let (refused, most) = send_all(None).await?;
    println!("without a semaphore\n    {refused} refused, up to {most} calls at once\n");
    assert_ne!(refused, 0, "no calls overlapped without a semaphore");

    let permits = [0, 1].map(|n: usize| replicas.locks[n].semaphore("partner", LIMIT));
    let (refused, most) = send_all(Some(permits)).await?;
    println!("with a semaphore of {LIMIT}\n    {refused} refused, up to {most} calls at once\n");
    assert_eq!(refused, 0, "the partner had too many calls");

    let waited = outlive(&replicas.locks).await?;
    println!(
        "a replica that holds all permits and never gives them back\n    the other one waited for {waited:.0?}"
    );
    replicas.shutdown().await;
    Ok(())
}
