//! Waiters: where a caller sleeps until the key machine or the calls of a key decide on its ticket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::driver::events;
use crate::error::LostCause;
use crate::protocol::message::{Asking, CallAnswer, Fence};
use crate::protocol::step::{AcquireError, Outcome, WhyDenied};
use crate::protocol::time::Instant;

/// Locks a mutex whose holders leave no broken state behind when they panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mailbox of a ticket.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    state: Mutex<WaiterState>,
    /// The lease is held at least until this time, in nanoseconds, unless the holding is over.
    held_until: AtomicU64,
    /// Set when the holding has ended, or is being released.
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct WaiterState {
    /// The decision on the claim of the caller, until the caller takes it.
    decision: Option<Result<Fence, WhyDenied>>,
    /// The outcome of the release, until the caller takes it.
    outcome: Option<Outcome>,
    /// Why the holding ended; `None` before its end.
    over: Option<LostCause>,
    /// Of the task that waits for the decision or the outcome.
    waker: Option<Waker>,
    /// Of the task that waits for the end.
    #[cfg(feature = "tower")]
    over_waker: Option<Waker>,
    token: Option<CancellationToken>,
    /// The tokens of groups of holdings. Each is cancelled when one of its holdings ends.
    group_tokens: Vec<CancellationToken>,
    /// Set when the lease is not renewed again.
    is_overdue: bool,
    overdue: Option<CancellationToken>,
    /// The request of an operator for the lease, and when its grace ends.
    asked: Option<(Arc<Asking>, Instant)>,
    asked_token: Option<CancellationToken>,
}

/// The result of a call.
pub(crate) type CallResult = Result<CallAnswer, AcquireError>;

/// What must be woken when nothing is locked.
#[derive(Debug)]
pub(crate) enum Wake {
    Caller(Waker),
    Watchers(CancellationToken),
    Call(oneshot::Sender<CallResult>, CallResult),
}

impl Wake {
    /// Runs foreign code, whose panic is caught. A waker that blocks, blocks its thread.
    pub(crate) fn wake(self) {
        match self {
            Wake::Caller(waker) => events::wake(waker),
            Wake::Watchers(token) => events::cancel(token),
            Wake::Call(caller, result) => events::answer(caller, result),
        }
    }
}

impl Waiter {
    /// Returns whether the lease is held for sure. If not, only the key machine knows: the deadline may have moved.
    pub(crate) fn is_held_at(&self, now: Instant) -> bool {
        now.as_nanos() < self.held_until.load(Ordering::Acquire) && !self.is_over()
    }

    /// Returns whether the holding has ended or is being released. Never becomes false again.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Notes the deadline that the key machine reports. The deadline only moves later.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        self.held_until.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
    }

    /// Marks the holding as over: from now on, no caller sees the lease as held.
    pub(crate) fn mark_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn decide(&self, decision: Result<Fence, WhyDenied>, wakes: &mut Vec<Wake>) {
        let mut state = lock(&self.state);
        state.decision = Some(decision);
        if let Some(waker) = state.waker.take() {
            wakes.push(Wake::Caller(waker));
        }
    }

    /// Ends the holding, and notes the outcome of its release. The first cause of the end stays.
    pub(crate) fn settle(&self, outcome: Outcome, wakes: &mut Vec<Wake>) {
        self.mark_over();
        let mut state = lock(&self.state);
        state.over.get_or_insert(LostCause::Released);
        state.outcome = Some(outcome);
        state.wake_all(wakes);
    }

    /// Notes that the lease is not renewed again.
    pub(crate) fn mark_overdue(&self, wakes: &mut Vec<Wake>) {
        let mut state = lock(&self.state);
        state.is_overdue = true;
        if let Some(token) = state.overdue.take() {
            wakes.push(Wake::Watchers(token));
        }
    }

    /// Notes that an operator asks for the lease. The latest request counts.
    pub(crate) fn mark_asked(&self, asking: &Arc<Asking>, until: Instant, wakes: &mut Vec<Wake>) {
        let mut state = lock(&self.state);
        state.asked = Some((asking.clone(), until));
        wakes.extend(state.asked_token.take().map(Wake::Watchers));
    }

    /// Returns the request of an operator for the lease, and when its grace ends.
    pub(crate) fn asked(&self) -> Option<(Arc<Asking>, Instant)> {
        lock(&self.state).asked.clone()
    }

    /// Returns a token that is cancelled when an operator asks for the lease, or when the holding ends.
    pub(crate) fn asked_token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        if state.over.is_some() || state.asked.is_some() {
            return cancelled();
        }
        state.asked_token.get_or_insert_default().clone()
    }

    /// Ends the holding. The first cause stays.
    pub(crate) fn end(&self, cause: LostCause, wakes: &mut Vec<Wake>) {
        self.mark_over();
        let mut state = lock(&self.state);
        state.over.get_or_insert(cause);
        state.wake_all(wakes);
    }

    pub(crate) fn over(&self) -> Option<LostCause> {
        // The flag is set before the cause, and is cheap to read.
        if self.is_over() {
            lock(&self.state).over
        } else {
            None
        }
    }

    /// Returns a token that is cancelled when the holding ends.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        if state.over.is_some() {
            return cancelled();
        }
        state.token.get_or_insert_default().clone()
    }

    /// Cancels this token, too, when the holding ends.
    pub(crate) fn add_group_token(&self, token: &CancellationToken) {
        let mut state = lock(&self.state);
        if state.over.is_none() {
            state.group_tokens.push(token.clone());
            return;
        }
        drop(state);
        events::cancel(token.clone());
    }

    /// Returns a token that is cancelled when the lease is not renewed again, or when the holding ends.
    pub(crate) fn overdue_token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        if state.over.is_some() || state.is_overdue {
            return cancelled();
        }
        state.overdue.get_or_insert_default().clone()
    }

    pub(crate) fn poll_decision(&self, cx: &Context<'_>) -> Poll<Result<Fence, WhyDenied>> {
        wait(
            &self.state,
            cx,
            |state| &mut state.waker,
            |state| state.decision.take(),
        )
    }

    /// Is ready when the holding has ended. Serves one caller, and so costs no token; other callers use
    /// [`token`](Self::token).
    #[cfg(feature = "tower")]
    pub(crate) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        wait(
            &self.state,
            cx,
            |state| &mut state.over_waker,
            |state| state.over.map(drop),
        )
    }

    pub(crate) fn poll_outcome(&self, cx: &Context<'_>) -> Poll<Outcome> {
        wait(
            &self.state,
            cx,
            |state| &mut state.waker,
            |state| state.outcome.take(),
        )
    }
}

/// Is ready with the value that `take` finds. Until then, the caller is woken by the waker at `slot`.
fn wait<T>(
    state: &Mutex<WaiterState>,
    cx: &Context<'_>,
    slot: fn(&mut WaiterState) -> &mut Option<Waker>,
    take: impl FnOnce(&mut WaiterState) -> Option<T>,
) -> Poll<T> {
    let mut state = lock(state);
    if let Some(found) = take(&mut state) {
        return Poll::Ready(found);
    }
    match slot(&mut state) {
        Some(waker) => waker.clone_from(cx.waker()),
        none => *none = Some(cx.waker().clone()),
    }
    Poll::Pending
}

/// Returns a token that is already cancelled.
pub(crate) fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

impl WaiterState {
    /// Wakes every task that waits for the end of the holding.
    fn wake_all(&mut self, wakes: &mut Vec<Wake>) {
        let tokens = [self.token.take(), self.overdue.take(), self.asked_token.take()];
        let tokens = tokens.into_iter().flatten();
        wakes.extend(tokens.chain(self.group_tokens.drain(..)).map(Wake::Watchers));
        wakes.extend(self.waker.take().map(Wake::Caller));
        #[cfg(feature = "tower")]
        wakes.extend(self.over_waker.take().map(Wake::Caller));
    }
}
