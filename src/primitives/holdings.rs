//! What a lease tells of its holdings, and how work runs under them. A lease has one holding, that of a multi-lock has
//! several: one is a slice of one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, LostCause};
use crate::primitives::held::Held;
use crate::primitives::scope;

/// The holdings of a lease. They are held together: the lease is over when the first of them is.
pub(crate) trait Holdings: Clone {
    /// All of them, in the order in which they were acquired.
    fn all(&self) -> &[Arc<Held>];

    /// Returns the token that is cancelled when the first of them is over.
    fn end_token(&self) -> CancellationToken;
}

/// Returns why the first that is not held was lost.
fn loss(all: &impl Holdings) -> Option<Error> {
    let lost = all.all().iter().find(|held| !held.is_held());
    lost.map(|held| held.lost())
}

/// Waits until one of them is over.
pub(crate) fn lost<H: Holdings>(all: &H) -> impl Future<Output = LostCause> + use<H> {
    let (token, all) = (all.end_token(), all.clone());
    async move {
        token.cancelled().await;
        let cause = all.all().iter().find_map(|held| held.over());
        cause.unwrap_or(LostCause::Released)
    }
}

/// Runs `work` in the scope of all of them.
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

/// Runs `work` in the scope of all of them, and drops it when one of them is lost.
///
/// # Errors
/// [`Error::Lost`] if one of them was over before or just after the last step of the work.
pub(crate) async fn run<F: Future>(all: &impl Holdings, work: F) -> Result<F::Output, Error> {
    let mut work = pin!(work);
    let token = all.end_token();
    let mut lost = pin!(token.cancelled());
    poll_fn(|cx| {
        // Only to be woken. The deadlines decide, before each step: a process that slept past one must not take another.
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
