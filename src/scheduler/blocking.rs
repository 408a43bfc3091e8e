//! Work that blocks its thread: on tokio's blocking pool, with a guard of its own.

use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::scheduler::policy::JobOutput;
use crate::scheduler::tick::Tick;

/// What a thread made, or `None` when it never began: the lease was lost by then, or its runtime is ending.
#[derive(Debug)]
pub(crate) struct Ran<T>(Option<T>);

impl<T: JobOutput> JobOutput for Ran<T> {
    fn failure(self) -> Option<String> {
        match self.0 {
            Some(made) => made.failure(),
            None => Some("its thread was never begun".to_owned()),
        }
    }
}

/// Resolves when the thread has ended. The thread keeps the lease until then, whatever becomes of this future.
pub(crate) async fn on_a_thread<F, T>(work: Arc<F>, tick: Tick) -> Ran<T>
where
    F: Fn(Tick) -> T + Send + Sync + 'static,
    T: Send + 'static,
{
    let Ok(guard) = tick.lease.again() else {
        return Ran(None);
    };
    let thread = spawn_blocking(move || {
        // Dropped before the thread's end is known, so that the run's own guard is the last one.
        let _guard = guard;
        work(tick)
    });
    match thread.await {
        Ok(made) => Ran(Some(made)),
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(_) => Ran(None),
    }
}
