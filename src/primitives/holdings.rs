//! The holdings of a lease, and how work runs under them. The lease of a multi-lock has several holdings, every other lease has
//! one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, LostCause};
use crate::primitives::held::Held;
use crate::primitives::scope;

/// The holdings of a lease. The lease is over when the first of its holdings is over.
pub(crate) trait Holdings: Clone {
    /// Returns all holdings, in the order in which they were acquired.
    fn all(&self) -> &[Arc<Held>];

    /// Returns the token that is cancelled when the first holding is over.
    fn end_token(&self) -> CancellationToken;
}

/// Returns the error of the first holding that is not held, if there is one.
fn loss(all: &impl Holdings) -> Option<Error> {
    let lost = all.all().iter().find(|held| !held.is_held());
    lost.map(|held| held.lost())
}

/// Renews all holdings at the same time, so that their requests travel together.
///
/// # Errors
/// As [`Held::renew`], about the first one that was not renewed.
pub(crate) async fn renew(all: &impl Holdings) -> Result<(), Error> {
    let mut pending: Vec<_> = all
        .all()
        .iter()
        .map(|held| (Box::pin(held.renew()), None))
        .collect();
    poll_fn(|cx| {
        let mut is_ready = true;
        for (renewal, result) in pending.iter_mut().filter(|(_, result)| result.is_none()) {
            match renewal.as_mut().poll(cx) {
                Poll::Ready(renewed) => *result = Some(renewed),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, result)| result).collect()
}

/// Waits until the first holding is over.
pub(crate) fn lost<H: Holdings>(all: &H) -> impl Future<Output = LostCause> + use<H> {
    let (token, all) = (all.end_token(), all.clone());
    async move {
        token.cancelled().await;
        let cause = all.all().iter().find_map(|held| held.over());
        cause.unwrap_or(LostCause::Released)
    }
}

/// Runs `work` in the scope of all holdings.
pub(crate) fn scope<H: Holdings, F: Future>(all: &H, work: F) -> impl Future<Output = F::Output> + use<H, F> {
    let all = all.clone();
    async move {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _scope = scope::enter(all.all());
            work.as_mut().poll(cx)
        })
        .await
    }
}

/// Runs `work` in the scope of all holdings, and drops it if one of them is lost.
///
/// # Errors
/// [`Error::Lost`] if a holding was over before or just after the last step of the work.
pub(crate) async fn run<F: Future>(all: &impl Holdings, work: F) -> Result<F::Output, Error> {
    let mut work = pin!(work);
    let token = all.end_token();
    let mut lost = pin!(token.cancelled());
    poll_fn(|cx| {
        // The token only wakes. The deadlines decide, before each step: a process that slept past a deadline must not take a step.
        let _ = lost.as_mut().poll(cx);
        if let Some(error) = loss(all) {
            return Poll::Ready(Err(error));
        }
        let _scope = scope::enter(all.all());
        let done = work.as_mut().poll(cx);
        done.map(|done| loss(all).map_or(Ok(done), Err))
    })
    .await
}
