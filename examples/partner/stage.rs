//! Two replicas, forty reports and the partner, then a replica that dies, and what came of it.

#[path = "../replicas/mod.rs"]
mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Locks;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{BoxError, LIMIT, permits, send};
use replicas::Replicas;

const REPORTS: u32 = 40;

/// The partner: counts calls, and uses no locks.
#[derive(Debug, Default)]
pub(crate) struct Partner {
    current: AtomicU32,
    highest: AtomicU32,
    refused: AtomicU32,
}

impl Partner {
    /// Answers a report that counts as `weight` calls.
    pub(crate) async fn call(&self, weight: u32) {
        let current = self.current.fetch_add(weight, Ordering::SeqCst) + weight;
        self.highest.fetch_max(current, Ordering::SeqCst);
        if current > LIMIT {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        sleep(Duration::from_millis(10)).await;
        self.current.fetch_sub(weight, Ordering::SeqCst);
    }
}

/// A report, by its number.
#[derive(Clone, Copy)]
pub(crate) struct Report(u32);

impl Report {
    pub(crate) fn is_large(self) -> bool {
        self.0.is_multiple_of(5)
    }
}

/// Sends all reports, from both replicas in turn. Returns how many the partner refused, and the most calls it had at once.
async fn send_all(replicas: Option<&[Locks; 2]>) -> Result<(u32, u32), BoxError> {
    let partner = Arc::new(Partner::default());
    let mut reports = JoinSet::new();
    for n in 0..REPORTS {
        let (partner, report) = (partner.clone(), Report(n));
        let permits = replicas.map(|replicas| permits(&replicas[n as usize % 2]));
        reports.spawn(async move {
            match permits {
                None => partner.call(1 + u32::from(report.is_large())).await,
                Some(permits) => send(&permits, &partner, report).await?,
            }
            Ok::<_, tenure::Error>(())
        });
    }
    while let Some(sent) = reports.join_next().await {
        sent??;
    }
    Ok((
        partner.refused.load(Ordering::SeqCst),
        partner.highest.load(Ordering::SeqCst),
    ))
}

/// A replica acquires every permit and hangs. Its lease is fixed, so it expires like the lease of a dead process.
/// Returns how long the other replica waited.
async fn outlive(replicas: &[Locks; 2]) -> Result<Duration, BoxError> {
    let dead = permits(&replicas[0]).fixed(Duration::from_millis(500));
    let all = dead.acquire_many(LIMIT).await?;
    let since = Instant::now();
    let one = permits(&replicas[1]).acquire().await?;
    let waited = since.elapsed();
    assert!(
        !all.is_held(),
        "the holder must see the loss before others get its permits"
    );
    one.release().await?;
    Ok(waited)
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("partner", "the permits").await?;
    let place = replicas.store.place();
    println!(
        "{REPORTS} reports by two replicas to a partner that answers {LIMIT} calls at a time, permits {place}.\n"
    );

    let (refused, highest) = send_all(None).await?;
    println!("without a semaphore\n    {refused} refused, up to {highest} calls at once\n");
    assert_ne!(refused, 0, "no calls overlapped without a semaphore");

    let (refused, highest) = send_all(Some(&replicas.locks)).await?;
    println!("with a semaphore of {LIMIT}\n    {refused} refused, up to {highest} calls at once\n");
    assert_eq!(refused, 0, "the partner had too many calls");

    let waited = outlive(&replicas.locks).await?;
    println!(
        "a replica that holds all permits and never gives them back\n    the other one waited for {waited:.0?}"
    );
    replicas.shutdown().await;
    Ok(())
}
