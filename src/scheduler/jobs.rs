//! What operators do about jobs.

use crate::driver::handle::Handle;
use crate::driver::waiter::lock;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::call::CallFuture;
use crate::primitives::tick::ask_about_job;
use crate::protocol::message::{Call, CallAnswer, Name};
use crate::protocol::write::Action;
use crate::scheduler::policy::DEFAULT_LEASE;

/// What operators do about jobs; made by [`Locks::jobs`](crate::Locks::jobs).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let is_removed = locks.jobs().forget("report-of-2025").await?; // no replica schedules it any more
/// assert!(!is_removed); // the store has no record of it
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Jobs(Handle);

impl Jobs {
    pub(super) fn new(handle: &Handle) -> Self {
        Jobs(handle.clone())
    }

    /// Removes the store's record of a job, and returns whether there was one. The record has the last granted tick and its
    /// result, and has no expiry.
    ///
    /// Call it when no replica schedules the job any more. A replica that still schedules the job makes a new record with the
    /// next tick. A replica that is late may then run a tick a second time, because the record of that tick is gone.
    ///
    /// # Errors
    /// [`Error::Busy`] if a node runs the job, or stands by for a tick of it; nothing was removed. [`Error::Store`] if the
    /// store cannot be reached. [`Error::Closed`] in a fork or after a shutdown.
    pub async fn forget(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = Name::job(name.into());
        self.0.not_forked(&name.key)?;
        let time = 4 * self.0.options().request_timeout;
        let forgotten = CallFuture::once(
            &self.0,
            &name,
            (time, Action::ForgetJob),
            CallAnswer::try_as_owned,
        )
        .await;
        match forgotten {
            Ok(_) => drop(lock(&self.0.jobs().over).remove(&name.key)),
            // A repeated call does no harm, so an unknown outcome needs no error of its own.
            Err(Error::Unanswered { key, source }) => return Err(Error::Store { key, source }),
            Err(_) => {}
        }
        forgotten
    }

    /// Repairs a job whose mark is ahead of the store's clock, because that clock was wrong once. From now on its
    /// ticks run again, and ticks up to now are over. Returns whether the mark was ahead. Until then, each node
    /// reports `mark_ahead` and runs nothing. If a tick ahead of the clock is running now, it runs once more when the
    /// clock reaches it.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn reset(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = name.into();
        let lease = self.0.options().at_most_longest(DEFAULT_LEASE);
        let report = ask_about_job(&self.0, &name, lease, Call::Reset).await?;
        lock(&self.0.jobs().over).remove(&name);
        Ok(report.ahead_ms > 0)
    }
}
