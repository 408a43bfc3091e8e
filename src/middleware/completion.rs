//! A handler that runs to its end, even if its client leaves.

use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use tracing::Instrument;
use tracing::instrument::WithSubscriber;

use crate::error::LostCause;
use crate::middleware::layer::LayerSettings;
use crate::middleware::request_guard::RequestGuard;
use crate::primitives::guard::Guard;

/// How long a response waits at most until the store knows that the lock is free.
const MAX_RELEASE_WAIT: Duration = Duration::from_millis(250);

/// Runs the handler with its lock in a task, in the span and with the subscriber of the caller. Dropping the future
/// does not stop the task.
///
/// Resolves to `None` if the outcome is unknown: the lease was lost and the response is replaced, or the runtime
/// ended. The handler may still run.
///
/// # Panics
/// The future panics if the handler panicked.
pub(super) fn run_to_completion<F, R, E>(
    handler: F,
    mut guard: RequestGuard,
    settings: &LayerSettings,
) -> impl Future<Output = Option<Result<R, E>>> + Send + use<F, R, E>
where
    F: Future<Output = Result<R, E>> + Send + 'static,
    R: Send + 'static,
    E: Send + 'static,
{
    let (replaces, releases_before_answer) = (settings.replaces_on_loss(), settings.releases_before_answer());
    let lease = guard.lease();
    // A shutdown waits for the handler as long as the handler has its lease.
    let mut tracked = Some(guard.tasks().token());
    let work = async move {
        let answer = {
            // The handler is dropped before the lock is released, also after a panic.
            let mut handler = pin!(handler);
            poll_fn(|cx| {
                if tracked.is_some() && guard.poll_lost(cx).is_ready() {
                    tracked = None;
                }
                let _scope = guard.enter();
                handler.as_mut().poll(cx)
            })
            .await
        };
        let is_held = guard.is_held();
        if releases_before_answer {
            release(guard.into_guard()).await;
        } else {
            drop(guard);
        }
        (is_held || !replaces).then_some(answer)
    };
    let span = tracing::Span::current();
    let task = tokio::spawn(work.instrument(span).with_current_subscriber());
    // If its response is replaced, the client does not wait for a handler that lost its lease. A lease that was
    // released, as at the end of the handler, is not lost.
    let lost = async move {
        if !replaces || lease.lost().await == LostCause::Released {
            pending().await
        }
    };
    async move {
        tokio::select! {
            biased;
            done = task => match done {
                Ok(answer) => answer,
                Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
                Err(_) => None,
            },
            () = lost => None,
        }
    }
}

/// Releases the lock, and waits for at most [`MAX_RELEASE_WAIT`]. A lost lease was already reported, by an event and
/// by the [`Lease`](crate::Lease). If the store does not answer, the background reports it.
pub(super) async fn release(guard: Guard) {
    let _ = tokio::time::timeout(MAX_RELEASE_WAIT, guard.release()).await;
}
