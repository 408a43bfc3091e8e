//! A wait for an answer with a time limit.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::coop;
use tokio::time::timeout;

use crate::driver::node::Node;

/// How long before the end of a wait the store is asked for a sign of life. Longer than a server may be quiet before it counts as
/// silent.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// Returns the answer of `future`, or `None` when `wait` is over. Asks the servers of `nodes` for a sign of life shortly before
/// the end, so that a caller that gives up is told whether a holder or the store kept it.
///
/// An answer that is there at once needs no timer, so a runtime without timers is enough. If the task has no budget left, the
/// first poll only lets other tasks run, and the second poll decides.
pub(crate) async fn within<F: Future + Unpin>(
    nodes: impl IntoIterator<Item = &Arc<Node>>,
    wait: Duration,
    mut future: F,
) -> Option<F::Output> {
    let mut has_yielded = false;
    let first = poll_fn(|cx| {
        let polled = Pin::new(&mut future).poll(cx);
        let has_no_budget = polled.is_pending() && !coop::has_budget_remaining();
        if has_no_budget && !std::mem::replace(&mut has_yielded, true) {
            return Poll::Pending;
        }
        Poll::Ready(polled)
    });
    if let Poll::Ready(answer) = first.await {
        return Some(answer);
    }
    let last = LAST_LOOK.min(wait / 2);
    if let Ok(answer) = timeout(wait - last, &mut future).await {
        return Some(answer);
    }
    nodes.into_iter().for_each(Node::request_signs_of_life);
    timeout(last, future).await.ok()
}
