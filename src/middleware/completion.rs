//! A handler that runs to its end, even if its client leaves.

use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;

use tracing::Instrument;
use tracing::instrument::WithSubscriber;

use crate::error::LostCause;
use crate::middleware::kept_leases::KeptLeases;
use crate::middleware::layer::LayerSettings;
use crate::middleware::request_guard::{Finished, RequestGuard};

/// Runs the handler with all leases of its request in a task, in the span and with the subscriber of the caller. Dropping the
/// future does not stop the task.
///
/// Resolves to the answer, with the guard if the body needs it, or to `None` if the outcome is unknown: the lease was lost and the
/// response is replaced, or the runtime ended. The handler may still run.
///
/// # Panics
/// The future panics if the handler panicked.
pub(super) fn run_to_completion<F, R, E>(
    handler: F,
    mut guard: Option<RequestGuard>,
    mut kept: KeptLeases,
    settings: &LayerSettings,
) -> impl Future<Output = Option<Finished<R, E>>> + Send + use<F, R, E>
where
    F: Future<Output = Result<R, E>> + Send + 'static,
    R: Send + 'static,
    E: Send + 'static,
{
    let (replaces, holds) = (settings.replaces_on_loss(), settings.hold_until_body_end);
    let held = guard.as_ref().map(RequestGuard::held);
    // A shutdown waits for the handler as long as the handler has its lease.
    let mut tracked = guard.as_ref().map(|guard| guard.tasks().token());
    let work = async move {
        let answer = {
            // The handler is dropped before the lock is released, also after a panic.
            let mut handler = pin!(handler);
            poll_fn(|cx| {
                kept.poll_over(cx);
                if tracked.is_some() && guard.as_mut().is_some_and(|guard| guard.poll_over(cx).is_ready()) {
                    tracked = None;
                }
                let _outer = kept.enter();
                let _scope = guard.as_ref().map(RequestGuard::enter);
                handler.as_mut().poll(cx)
            })
            .await
        };
        let is_held = guard.as_ref().is_none_or(RequestGuard::is_held);
        let guard = guard.filter(|guard| holds || guard.releases_before_answer);
        let guard = match guard {
            Some(guard) if !holds => {
                guard.release().await;
                None
            }
            guard => guard,
        };
        drop(kept);
        (is_held || !replaces).then_some((answer, guard))
    };
    let span = tracing::Span::current();
    let task = tokio::spawn(work.instrument(span).with_current_subscriber());
    // If its response is replaced, the client does not wait for a handler that lost its lease. A lease that was
    // released, as at the end of the handler, is not lost.
    let lost = async move {
        match held {
            Some(held) if replaces && held.lost().await != LostCause::Released => {}
            _ => pending().await,
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
