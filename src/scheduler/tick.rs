//! The argument of a job: which tick it runs, and the lease that permits it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use crate::driver::jobs::RunEnd;
use crate::error::{Error, LostCause, OptionsError};
use crate::key::Key;
use crate::primitives::guard::Lease;
use crate::primitives::tick::ask_about_run;
use crate::protocol::message::{Call, ClaimId, Fence, JobReport, Payload, TickTime, WantedRun};
use crate::scheduler::jobs::ActEntry;
use crate::scheduler::schedule::time;

/// The maximum size of a checkpoint, in bytes.
pub const LONGEST_CHECKPOINT: usize = 64 * 1024;

/// One run of one tick of a job. It is cheap to clone.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn batches(after: u64) -> Vec<u64> { (after + 1..=3).collect() }
/// use tenure::{Error, Locks, Tick};
///
/// async fn reconcile(tick: Tick) -> Result<(), Error> {
///     // What an earlier run of this tick has left, if it was cut short.
///     let cursor = tick.resume().await?;
///     let after = cursor.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
///     for batch in batches(after).await {
///         tick.check()?;
///         // … write the batch, with `tick.fence()`, and then:
///         tick.checkpoint(&batch.to_be_bytes()).await?;
///     }
///     Ok(())
/// }
///
/// let job = Locks::memory().cron("reconcile", "0 0 0 * * *").run(reconcile)?;
/// # let _ = job; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tick {
    pub(super) lease: Lease,
    /// The length of the lease.
    pub(super) term: Duration,
    pub(super) mark: TickTime,
    pub(super) attempt: u32,
    pub(super) is_catch_up: bool,
    /// The run that an operator wants, if the tick was triggered.
    pub(super) trigger: Option<Arc<WantedRun>>,
    /// How often the work failed before, within this run.
    pub(super) retry: u32,
    /// The number of checkpoints that all tries of the run have made.
    pub(super) saves: Arc<AtomicU64>,
    /// Tells this try, and the tasks that it spawned, that the run must end.
    pub(super) end: RunEnd,
}

impl Tick {
    /// Returns the job's name.
    pub fn job(&self) -> &Key {
        self.lease.key()
    }

    /// Returns the nominal fire time, by the job's own expression. It is the same on every node, however late the job
    /// fired. Use it in place of "now" for all data of the run. Of a [triggered](Self::triggered) run it is the second of the
    /// trigger, or the time for which the operator triggered it.
    pub fn nominal(&self) -> SystemTime {
        time(self.mark)
    }

    /// Returns the nominal fire time in seconds since the Unix epoch.
    pub fn nominal_unix(&self) -> u64 {
        self.mark.nominal_ms() / 1000
    }

    /// Returns the nominal fire time as a type of chrono.
    #[cfg(feature = "chrono")]
    pub fn nominal_chrono(&self) -> chrono::DateTime<chrono::Utc> {
        self.nominal().into()
    }

    /// Returns the nominal fire time as a type of jiff.
    #[cfg(feature = "jiff")]
    pub fn nominal_jiff(&self) -> jiff::Timestamp {
        let ms = i64::try_from(self.mark.nominal_ms()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX)
    }

    /// Returns the fence, which is larger than that of every earlier run of this job. Send it with each write, so
    /// that the resource can refuse smaller fences.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// Returns the number of this attempt: 1, or more if an earlier winner of this tick died or was cancelled before
    /// its end. A job must tolerate that it runs again from the beginning.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns how often the job failed before within this run, if it has
    /// [retries](crate::scheduler::LeasedJob::retry). The first try returns 0.
    pub fn retry(&self) -> u32 {
        self.retry
    }

    /// Returns whether this tick could not begin when it was due, because the store was unavailable or no node had
    /// the job.
    pub fn is_catch_up(&self) -> bool {
        self.is_catch_up
    }

    /// Returns who triggered the run, why and when, if an operator did.
    pub fn triggered(&self) -> Option<ActEntry> {
        self.trigger.as_ref().map(|wanted| ActEntry::new(&wanted.act))
    }

    /// Checks that this run is still the only one, as far as this process knows without a query. The lease must not
    /// have ended, and the run must not have been told to end. The check costs nanoseconds; call it before each step.
    /// A job may return the error: after a drain its tick is handed over nevertheless, and has not failed.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended, or the run was told to end ([`LostCause::Shutdown`]: the node drains,
    /// or the timeout is over).
    pub fn check(&self) -> Result<(), Error> {
        if !self.is_held() {
            return Err(self.lease.held.lost());
        }
        if self.end.token().is_cancelled() {
            return Err(Error::Lost {
                key: self.job().clone(),
                cause: self.lease.held.over().unwrap_or(LostCause::Shutdown),
            });
        }
        Ok(())
    }

    /// Asks the store whether this run still owns the tick.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check), and [`Error::Store`] if the store does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn verify(&self) -> Result<(), Error> {
        self.ask(|of| Call::Verify { of }, None).await.map(drop)
    }

    /// Saves `cursor` for the next run of this tick, if this run is cut short. The latest checkpoint replaces the one
    /// before. In one step, the store checks that this run still owns the tick, and saves the cursor. If several
    /// calls are in flight, the cursor of the latest call is kept.
    ///
    /// The store deletes the cursor when the tick is over, also if the last try failed, panicked or timed out. A
    /// [retry](crate::scheduler::LeasedJob::retry) and the next [attempt](Self::attempt) can still
    /// [`resume`](Self::resume) it.
    ///
    /// A checkpoint takes one round trip, on the connection that renews all leases. The store keeps one cursor for each
    /// job. So save a position, not the data.
    ///
    /// # Errors
    /// [`Error::Options`] for more than [`LONGEST_CHECKPOINT`] bytes, which is 64 KiB; nothing was sent.
    /// [`Error::Lost`] if the run no longer owns the tick; nothing was saved. [`Error::Store`] if the store does not answer; the cursor may be saved.
    ///
    /// # Cancel safety
    /// If the future is dropped, the cursor may be saved or not.
    pub async fn checkpoint(&self, cursor: &[u8]) -> Result<(), Error> {
        if cursor.len() > LONGEST_CHECKPOINT {
            return Err(Error::Options(OptionsError(format!(
                "a checkpoint of `{}` has {LONGEST_CHECKPOINT} bytes at most, not {}: keep a cursor in it, and what is \
                 large elsewhere",
                self.job(),
                cursor.len()
            ))));
        }
        let seq = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        let cursor = Payload(cursor.into());
        let saved = self.ask(|of| Call::Save { of, seq }, Some(cursor));
        saved.await.map(drop)
    }

    /// Returns the latest [`checkpoint`](Self::checkpoint) of this tick, from an earlier attempt on any node, or from
    /// this one. Returns `None` if the tick runs from its beginning. Takes one round trip.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn resume(&self) -> Result<Option<Vec<u8>>, Error> {
        let report = self.ask(|of| Call::Recall { of }, None).await?;
        Ok(report.saved.map(|saved| saved.0.to_vec()))
    }

    /// Returns the nominal time of the latest tick of this job that succeeded on any node: the job returned without
    /// an error. Returns `None` if the store knows none.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn last_success(&self) -> Result<Option<SystemTime>, Error> {
        let report = self.ask(|of| Call::Verify { of }, None).await?;
        Ok(report.well.map(time))
    }

    async fn ask(
        &self,
        call: impl FnOnce(ClaimId) -> Call,
        data: Option<Payload>,
    ) -> Result<JobReport, Error> {
        self.check()?;
        ask_about_run(&self.lease, self.term, call, (self.mark, data)).await
    }

    /// Returns whether this run still holds its lease.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Waits until the run must end. The reasons are: the lease is lost; the node drains, and the drain's timeout has
    /// ended ([`LostCause::Shutdown`]); or the job has ended, also by its own timeout ([`LostCause::Released`]).
    /// After a loss or a drain, the job's future is dropped at its next `await`. So this method is for tasks that the
    /// job has spawned. They are notified even while the job blocks its own task.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        let (end, lease, token) = (self.end.clone(), self.lease.clone(), self.end_token());
        async move {
            token.cancelled().await;
            match lease.held.over() {
                // A drain releases the lease only after the job's future is gone, so here the lease is released later
                // or not yet.
                None | Some(LostCause::Released) if end.is_drained() => LostCause::Shutdown,
                over => over.unwrap_or(LostCause::Released),
            }
        }
    }

    /// Returns a token that is cancelled when the run must end. Each call returns a new token: cancelling it affects
    /// no other token.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Returns the token that is cancelled when the run must end.
    fn end_token(&self) -> CancellationToken {
        if self.lease.held.is_forked() {
            return self.lease.held.end_token();
        }
        self.end.token().clone()
    }

    /// Returns the lease of the run. A task that continues after the job may take its own guard ([`Lease::again`]).
    /// The tick is then over when that guard ends.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("job", self.job())
            .field("nominal_unix", &self.nominal_unix())
            .field("attempt", &self.attempt)
            .field("fence", &self.fence().get())
            .finish()
    }
}
