//! A handler that runs to its end, whether or not its client stays.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::Instrument;
use tracing::instrument::WithSubscriber;

use crate::error::LostCause;
use crate::middleware::layer::Settings;
use crate::middleware::watched::Watched;
use crate::primitives::guard::Guard;

/// How long an answer waits at most until the store knows that the lock is free.
const RELEASE_WAIT: Duration = Duration::from_millis(250);

/// The task of a handler. Dropping this leaves it alone.
pub(super) struct Completion<R, E> {
    task: JoinHandle<Option<Result<R, E>>>,
    /// A client does not wait for a handler that lost its lease, where its answer would be replaced.
    lost: Option<Pin<Box<dyn Future<Output = LostCause> + Send + Sync>>>,
}

impl<R: Send + 'static, E: Send + 'static> Completion<R, E> {
    /// Runs the handler with its lock in a task, as part of the span and the trace that it began in.
    pub(super) fn spawn<F>(handler: F, mut guard: Watched, settings: &Settings) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        let (replaces, releases_first) = (settings.replaces(), settings.releases_first());
        let lost = replaces.then(|| Box::pin(guard.lost()) as _);
        // What a shutdown waits for: the handler, as long as it has its lease.
        let mut tracked = Some(guard.tasks().token());
        let work = async move {
            let answer = {
                // Gone before the lock is, also when it panics.
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
            if releases_first {
                release(guard.into_guard()).await;
            } else {
                drop(guard);
            }
            (is_held || !replaces).then_some(answer)
        };
        let work = work
            .instrument(tracing::Span::current())
            .with_current_subscriber();
        Completion {
            task: tokio::spawn(work),
            lost,
        }
    }

    /// `None` when nobody knows what becomes of it: the lease was lost, or the runtime ended. It may go on.
    ///
    /// # Panics
    /// As the handler did.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<R, E>>> {
        let polled = Pin::new(&mut self.task).poll(cx);
        if polled.is_pending()
            && let Some(Poll::Ready(cause)) = self.lost.as_mut().map(|lost| lost.as_mut().poll(cx))
        {
            // That it was given back, as at the end of the handler, is no loss.
            if cause != LostCause::Released {
                return Poll::Ready(None);
            }
            self.lost = None;
        }
        polled.map(|done| match done {
            Ok(answer) => answer,
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            Err(_) => None,
        })
    }
}

/// Gives the lock back. A lease that was lost meanwhile has been told of, by the event and the [`Lease`](crate::Lease);
/// a store that does not answer is told in the background.
pub(super) async fn release(guard: Guard) {
    let _ = tokio::time::timeout(RELEASE_WAIT, guard.release()).await;
}
