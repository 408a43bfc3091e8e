//! The future of a call: every question or action that acquires no lease.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::driver::handle::Handle;
use crate::driver::waiter::CallResult;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe;
use crate::primitives::denial;
use crate::protocol::message::{Call, CallAnswer, LeaseTimes, Name};
use crate::protocol::step::{AcquireError, CallOptions, Input, Ticket};
use crate::protocol::time::Instant;
#[cfg(any(feature = "redis", feature = "scheduler"))]
use crate::protocol::write::Action;

/// A future that resolves to the answer of a call. Dropping it gives up the answer only: a call that was sent may be executed.
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub(crate) struct CallFuture<T> {
    handle: Handle,
    name: Name,
    ticket: Ticket,
    since: Instant,
    answer: oneshot::Receiver<CallResult>,
    is_answered: bool,
    read: fn(CallAnswer) -> Option<T>,
}

/// Checks a call before it is sent.
///
/// # Errors
/// Bad input, and a forked process.
pub(crate) fn check(
    handle: &Handle,
    name: &Name,
    term: LeaseTimes,
    call: Call,
) -> Result<CallOptions, Error> {
    let (options, node) = (handle.options(), handle.node());
    denial::check_key(handle, &name.key)?;
    handle.not_forked(&name.key)?;
    options.check_times(term)?;
    Ok(CallOptions {
        limit: options.max_waiters_per_key,
        node_is_full: node.waiting() >= options.max_waiters_per_node,
        ..CallOptions::new(term, call)
    })
}

impl<T> CallFuture<T> {
    /// Sends a call to the store, and returns the future of its answer. `read` takes the value out of the kind of answer that the call has.
    pub(crate) fn new(
        handle: &Handle,
        name: &Name,
        options: CallOptions,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        handle.node().note_entry(options.term);
        Self::enter(handle, name, |ticket| Input::Call(ticket, options), read)
    }

    /// Has an action sent once. Its deadline is a quarter of `lease`.
    #[cfg(any(feature = "redis", feature = "scheduler"))]
    pub(crate) fn once(
        handle: &Handle,
        name: &Name,
        (lease, action): (Duration, Action),
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        handle.node().note_caller();
        Self::enter(handle, name, |ticket| Input::Act(ticket, lease, action), read)
    }

    /// Renews the lease of `holder` now.
    pub(crate) fn renewal(
        handle: &Handle,
        name: &Name,
        holder: Ticket,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        handle.node().note_caller();
        Self::enter(handle, name, |caller| Input::Renew(holder, caller), read)
    }

    fn enter(
        handle: &Handle,
        name: &Name,
        input: impl FnOnce(Ticket) -> Input,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        let (ticket, answer, since) = handle.node().call(name, input);
        CallFuture {
            handle: handle.clone(),
            name: name.clone(),
            ticket,
            since,
            answer,
            is_answered: false,
            read,
        }
    }

    /// Returns the error of a caller that gives up now: [`Error::Busy`] only if the store said that there is no news.
    pub(crate) fn gave_up(&self, waited: Duration) -> Error {
        denial::gave_up(&self.handle, &self.name, self.since, waited)
    }

    fn read(&self, told: CallResult) -> Result<T, Error> {
        let (handle, name) = (&self.handle, &self.name);
        let label = handle.node().events.label();
        let why = match told.map(self.read) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {
                let text = "the store answered another question";
                AcquireError::Store(StoreError::new(StoreErrorKind::Interrupted, text))
            }
            Err(why) => why,
        };
        observe::denied(label, name, &why);
        let limit = handle.options().max_waiters_per_key;
        Err(denial::error(handle, name, why, (limit, Duration::ZERO)))
    }
}

impl<T> Future for CallFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A forked child cannot go on with a call of its parent.
        self.handle.not_forked(&self.name.key)?;
        let told = ready!(Pin::new(&mut self.answer).poll(cx));
        self.is_answered = true;
        self.handle.node().answered();
        Poll::Ready(self.read(told.unwrap_or(Err(AcquireError::Closed))))
    }
}

impl<T> Drop for CallFuture<T> {
    fn drop(&mut self) {
        let node = self.handle.node();
        if !self.is_answered && !node.is_forked() {
            // Counted first, so that no caller is counted as waiting when the node is idle.
            node.answered();
            node.cancel(&self.name, self.ticket);
        }
    }
}
