//! What a job is given: which tick it runs, and what proves that it may.

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
use crate::protocol::message::{Call, ClaimId, Fence, JobReport, Payload, TickTime};
use crate::scheduler::schedule::time;

/// The largest checkpoint, in bytes.
pub const LONGEST_CHECKPOINT: usize = 64 * 1024;

/// One run of one tick of a job. Cheap to clone.
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
/// let closure = Locks::memory().job("reconcile", reconcile)?;
/// # let _ = closure; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tick {
    pub(super) lease: Lease,
    /// How long its lease lasts.
    pub(super) term: Duration,
    pub(super) mark: TickTime,
    pub(super) attempt: u32,
    pub(super) is_catch_up: bool,
    /// How often its work failed before, within this run.
    pub(super) retry: u32,
    /// Counts what all tries of the run leave for the next run.
    pub(super) saves: Arc<AtomicU64>,
    /// How this try, and what works for it, is told of its end.
    pub(super) end: RunEnd,
}

impl Tick {
    /// The job's name.
    pub fn job(&self) -> &Key {
        self.lease.key()
    }

    /// The nominal fire time, by the job's own cron expression: the same on every node, however late it fired. Use it
    /// instead of "now" for everything that the run is about.
    pub fn nominal(&self) -> SystemTime {
        time(self.mark)
    }

    /// The nominal fire time in seconds since the Unix epoch.
    pub fn nominal_unix(&self) -> u64 {
        self.mark.0 / 1000
    }

    /// The nominal fire time as chrono has it.
    #[cfg(feature = "chrono")]
    pub fn nominal_chrono(&self) -> chrono::DateTime<chrono::Utc> {
        self.nominal().into()
    }

    /// The nominal fire time as jiff has it.
    #[cfg(feature = "jiff")]
    pub fn nominal_jiff(&self) -> jiff::Timestamp {
        let ms = i64::try_from(self.mark.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX)
    }

    /// Larger than that of every run of this job before it. Send it with each write and let the resource refuse
    /// smaller ones.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// 1, or more when an earlier winner of this tick died or was cancelled before its end. A job must be able to be
    /// run again from the beginning.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How often the job failed before within this run, where it is [retried](crate::scheduler::LeasedJob::retry): 0 the first
    /// time.
    pub fn retry(&self) -> u32 {
        self.retry
    }

    /// It makes up for a tick that could not be begun when it was due, because the store was away or no node had the job.
    pub fn is_catch_up(&self) -> bool {
        self.is_catch_up
    }

    /// The run still is the only one, as far as this process can know without asking: its lease has not ended and nobody told
    /// it to end. It costs nanoseconds; call it before each step. A job may return the error: when the node drains its tick is
    /// handed over all the same, and has not failed.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease is over, or the run was told to end ([`LostCause::Shutdown`]: the node drains or the
    /// timeout is over).
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

    /// The same, as the store sees it: it is asked whether this run owns the tick.
    ///
    /// # Errors
    /// As [`check`](Self::check), and [`Error::Store`] when the store does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn verify(&self) -> Result<(), Error> {
        self.ask(|of| Call::Verify { of }, None).await.map(drop)
    }

    /// Leaves `cursor` for whoever runs this tick again, should this run be cut short: the latest takes the place of the one
    /// before. The store keeps it if, in the same step, this run still owns the tick, and drops it when the tick is over. Of
    /// several that are under way at once the one that was called last is kept.
    ///
    /// # Errors
    /// [`Error::Options`] for more than [`LONGEST_CHECKPOINT`] bytes; [`Error::Lost`] when the run owns the tick no more, and
    /// nothing was kept; [`Error::Store`] when the store does not answer, and it may be kept all the same.
    ///
    /// # Cancel safety
    /// When the future is dropped it may be kept or not.
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

    /// The latest [`checkpoint`](Self::checkpoint) of this tick: of an earlier attempt, on whatever node, or of this one.
    /// `None` for a tick that is run from its beginning.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn resume(&self) -> Result<Option<Vec<u8>>, Error> {
        let report = self.ask(|of| Call::Recall { of }, None).await?;
        Ok(report.saved.map(|saved| saved.0.to_vec()))
    }

    /// The nominal time of the latest tick of this job that went well, on whatever node: the job returned, and no error. `None`
    /// when the store knows of none.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
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

    /// The run still is the only one.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Waits until the run is to end: its lease is lost, the node drains and the timeout is over
    /// ([`LostCause::Shutdown`]), or the job is done ([`LostCause::Released`]). In the first two cases the job's future
    /// is dropped at its next await, so this is for what the job has spawned elsewhere: that is told even while the job
    /// blocks its own task.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        let (end, lease, token) = (self.end.clone(), self.lease.clone(), self.end_token());
        async move {
            token.cancelled().await;
            match lease.held.over() {
                // A drain gives the lease back when the job's future is gone, so that comes after it or not yet.
                None | Some(LostCause::Released) if end.is_drained() => LostCause::Shutdown,
                over => over.unwrap_or(LostCause::Released),
            }
        }
    }

    /// The same as a token: cancelled when the run is to end. Each call makes one of its own, so that whoever cancels theirs
    /// tells nobody else.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Cancelled when the run is to end.
    fn end_token(&self) -> CancellationToken {
        if self.lease.held.is_forked() {
            return self.lease.held.end_token();
        }
        self.end.token().clone()
    }

    /// The lease behind it. What goes on when the job has returned may take a guard of its own
    /// ([`Lease::again`]): then the tick is over when that ends.
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
