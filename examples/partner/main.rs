//! A partner answers three calls at a time and refuses the fourth. Two replicas send it forty reports; large reports count as
//! two calls. Without a semaphore the partner refuses many. With one it refuses none, whichever replica calls. Permits of a
//! holder that dies become free when its lease expires.
//!
//!     cargo run --example partner                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example partner    # the permits on a Redis
//!
//! `stage.rs` has the replicas, the reports and the partner.

mod stage;

use std::error::Error;

use stage::{Partner, Report};
use tenure::{Locks, Semaphore};

type BoxError = Box<dyn Error + Send + Sync>;

/// How many calls the partner answers at a time.
const LIMIT: u32 = 3;

/// Returns the permits to call the partner. All replicas together have `LIMIT` of them.
fn permits(locks: &Locks) -> Semaphore {
    locks.semaphore("partner", LIMIT)
}

/// Sends a report under as many permits as it counts for: two if it is large.
async fn send(permits: &Semaphore, partner: &Partner, report: Report) -> Result<(), tenure::Error> {
    let weight = if report.is_large() { 2 } else { 1 };
    let guard = permits.acquire_many(weight).await?;
    // If the lease is lost, the call is cancelled: another replica may have its permits.
    guard.run(partner.call(weight)).await?;
    guard.release().await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
