//! What a job does when a run of it has ended on this node: the function that its program gave.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::key::Key;
use crate::protocol::message::{Fence, RunOutcome};

/// The end of a run, as the function of [`LeasedJob::on_end`](crate::scheduler::LeasedJob::on_end) gets it.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::{RunOutcome, EndedRun};
///
/// let job = locks
///     .cron("reconcile", "0 0 0 * * *")
///     .on_end(|end: EndedRun| async move {
///         if end.outcome != RunOutcome::Done {
///             eprintln!("{} of {:?}: {} ({})", end.job, end.tick, end.outcome.word(), end.text);
///         }
///     })
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// # drop(job); Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EndedRun {
    /// The name of the job.
    pub job: Key,
    /// The nominal time of the tick.
    pub tick: SystemTime,
    /// Whether an operator triggered the run.
    pub is_triggered: bool,
    /// The number of the attempt at the tick.
    pub attempt: u32,
    /// How the run ended.
    pub outcome: RunOutcome,
    /// The text of its error, or empty. At most 256 bytes of it are kept. Of a cancelled run it is empty.
    pub text: Arc<str>,
    /// How often the job was called again after a failure.
    pub retries: u32,
    /// How long the run took.
    pub took: Duration,
    /// The fence of the run.
    pub fence: Fence,
}

type Called = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A function that is called with the end of each run.
#[derive(Clone)]
pub(crate) struct OnEnd(Arc<dyn Fn(EndedRun) -> Called + Send + Sync>);

impl OnEnd {
    pub(crate) fn new<F: Future<Output = ()> + Send + 'static>(
        call: impl Fn(EndedRun) -> F + Send + Sync + 'static,
    ) -> OnEnd {
        OnEnd(Arc::new(move |end| Box::pin(call(end))))
    }

    pub(crate) fn call(&self, end: EndedRun) -> impl Future<Output = ()> + Send + 'static {
        let call = self.0.clone();
        // The call itself may panic, too.
        async move { call(end).await }
    }
}

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEnd")
    }
}
