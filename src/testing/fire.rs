//! One run of one tick of a job, without a scheduler.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::driver::waiter::lock;
use crate::key::Key;
use crate::locks::Locks;
use crate::protocol::message::TickTime;

/// Fires a job for one tick, as if its scheduler had done so, and waits until the tick is over here. Says how it ended, in
/// the [words](crate::scheduler#outcomes) of the event `tick`.
///
/// The time is taken as it is, in whole milliseconds, whether or not the job's schedule has such a tick. If it lies ahead of
/// the store's clock, it is waited for.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::{Duration, SystemTime};
/// use tenure::{Locks, testing::fire_tick};
///
/// let locks = Locks::memory();
/// let job = locks.cron("reconcile", "0 0 0 * * *").run(|tick| async move {
///     if tick.nominal_unix() % 86_400 == 0 { Ok(()) } else { Err("no midnight") }
/// })?;
/// let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_627_200);
/// assert_eq!(fire_tick(&locks, "reconcile", midnight).await, "done");
/// assert_eq!(fire_tick(&locks, "reconcile", midnight).await, "elsewhere"); // it is over
/// assert_eq!(fire_tick(&locks, "reconcile", midnight + Duration::from_secs(1)).await, "failed");
/// # drop(job); Ok(()) }
/// ```
///
/// # Panics
/// When these locks have no job of that name, or no more.
pub async fn fire_tick(locks: &Locks, job: &str, nominal: SystemTime) -> &'static str {
    let since = nominal.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mark = TickTime(since.as_millis() as u64);
    let found = lock(&locks.handle().jobs().fired.0).get(&Key::from(job)).cloned();
    match found.and_then(|job| job.upgrade()) {
        Some(job) => job.fire(mark).await,
        None => panic!("these locks have no job called `{job}`"),
    }
}
