//! The work of a job, in a task or on a thread that it blocks.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tracing::Span;

use crate::scheduler::policy::JobOutput;
use crate::scheduler::tick::Tick;

/// The work of a job: a function or a closure that takes a [`Tick`] and returns a future of nothing or of a `Result`.
/// Every such `Fn` implements it. Do not implement it by hand.
///
/// ```
/// use tenure::Locks;
/// use tenure::scheduler::{JobError, Work};
/// use tokio_cron_scheduler::Job;
///
/// /// Makes a job with the settings of every job of this service.
/// fn nightly(locks: &Locks, name: &str, work: impl Work) -> Result<Job, JobError> {
///     locks.cron(name, "0 30 2 * * *").timezone("Europe/Berlin").attempts(3).run(work)
/// }
///
/// let job = nightly(&Locks::memory(), "reconcile", |tick| async move { println!("{}", tick.fence()) })?;
/// # drop(job); Ok::<(), JobError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a job does",
    label = "not the work of a job",
    note = "a job's work is a function or a closure `|tick: tenure::Tick|` that can be sent and shared, which returns a future that can be sent and comes to nothing or a `Result` with an error that can be displayed"
)]
pub trait Work: Fn(Tick) -> <Self as Work>::Run + Send + Sync + 'static {
    /// The future of one run.
    type Run: Future<Output: JobOutput + Send> + Send + 'static;
}

impl<F, R> Work for F
where
    F: Fn(Tick) -> R + Send + Sync + 'static,
    R: Future<Output: JobOutput + Send> + Send + 'static,
{
    type Run = R;
}

/// Returns a future that runs work on a thread that the work blocks. The future ends with the thread. The thread
/// keeps the lease until then, even if the future is dropped.
pub(crate) fn blocking<F, T>(work: F) -> impl Work
where
    F: Fn(Tick) -> T + Send + Sync + 'static,
    T: JobOutput + Send + 'static,
{
    let work = Arc::new(work);
    move |tick: Tick| {
        let work = work.clone();
        async move {
            // The lease was lost before, or the runtime is ending.
            let never_started = || Err("the thread of the job was never started".to_owned());
            let Ok(guard) = tick.lease.again() else {
                return never_started();
            };
            let running = tick.lease.held.handle.jobs().threads.token();
            // The thread works in the span of the tick, too.
            let span = Span::current();
            let thread = spawn_blocking(move || {
                // The thread counts until its guard is dropped.
                let _running = running;
                // This guard is dropped before the end of the thread is known. So the guard of the run is the last
                // one.
                let _guard = guard;
                let worked = span.in_scope(|| catch_unwind(AssertUnwindSafe(|| work(tick))));
                worked.unwrap_or_else(|panic| resume_unwind(panic))
            });
            match thread.await {
                Ok(output) => output.failure().map_or(Ok(()), Err),
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                Err(_) => never_started(),
            }
        }
    }
}
