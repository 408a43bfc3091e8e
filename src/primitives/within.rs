//! Waits for an answer, but no longer than a caller wants to.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::coop;
use tokio::time::timeout;

/// Returns the answer of `future`, or `None` when `wait` is over.
///
/// An answer that is there at once needs no timer, so a runtime without timers does. Where the task has no budget left, the
/// second look decides: the first one only let other tasks run.
pub(crate) async fn within<F: Future + Unpin>(wait: Duration, mut future: F) -> Option<F::Output> {
    let mut has_yielded = false;
    let first = poll_fn(|cx| {
        let polled = Pin::new(&mut future).poll(cx);
        let has_no_budget = polled.is_pending() && !coop::has_budget_remaining();
        if has_no_budget && !std::mem::replace(&mut has_yielded, true) {
            return Poll::Pending;
        }
        Poll::Ready(polled)
    });
    match first.await {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => timeout(wait, future).await.ok(),
    }
}
