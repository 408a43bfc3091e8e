//! Where a caller sleeps until the key machine says something to its ticket.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_util::sync::CancellationToken;

use crate::driver::events;
use crate::error::LostCause;
use crate::protocol::message::Fence;
use crate::protocol::step::{AcquireError, Outcome};

/// Locks a mutex whose holders do not leave broken state behind when they panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One ticket's mailbox.
#[derive(Debug, Default)]
pub(crate) struct Waiter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether it was granted.
    decision: Option<Result<Fence, AcquireError>>,
    /// What became of its release.
    outcome: Option<Outcome>,
    /// The holding has ended, and why.
    over: Option<LostCause>,
    waker: Option<Waker>,
    token: Option<CancellationToken>,
}

/// What is to be woken when nothing is locked any more.
#[derive(Debug)]
pub(crate) enum Wake {
    Caller(Waker),
    Watchers(CancellationToken),
}

impl Wake {
    /// Runs foreign code, which may panic. A waker that blocks is beyond help.
    pub(crate) fn wake(self) {
        match self {
            Wake::Caller(waker) => events::wake(waker),
            Wake::Watchers(token) => events::cancel(token),
        }
    }
}

impl Waiter {
    pub(crate) fn decide(&self, decision: Result<Fence, AcquireError>) -> Option<Wake> {
        let mut state = lock(&self.0);
        state.decision = Some(decision);
        state.waker.take().map(Wake::Caller)
    }

    /// Ends the holding, of which the first cause stays, and says what became of its release.
    pub(crate) fn settle(&self, outcome: Outcome) -> [Option<Wake>; 2] {
        let mut state = lock(&self.0);
        state.over.get_or_insert(LostCause::Released);
        state.outcome = Some(outcome);
        [
            state.token.take().map(Wake::Watchers),
            state.waker.take().map(Wake::Caller),
        ]
    }

    /// The holding is over. The first cause stays.
    pub(crate) fn end(&self, cause: LostCause) -> Option<Wake> {
        let mut state = lock(&self.0);
        state.over.get_or_insert(cause);
        state.token.take().map(Wake::Watchers)
    }

    pub(crate) fn over(&self) -> Option<LostCause> {
        lock(&self.0).over
    }

    /// Cancelled when the holding is over.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.0);
        if state.over.is_some() {
            let token = CancellationToken::new();
            token.cancel();
            return token;
        }
        state.token.get_or_insert_default().clone()
    }

    pub(crate) fn poll_decision(&self, cx: &Context<'_>) -> Poll<Result<Fence, AcquireError>> {
        let mut state = lock(&self.0);
        match state.decision.take() {
            Some(decision) => Poll::Ready(decision),
            None => state.wait(cx),
        }
    }

    pub(crate) fn poll_outcome(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.0);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => state.wait(cx),
        }
    }
}

impl State {
    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
