//! Where a caller sleeps until the key machine or the calls of a key say something to its ticket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::driver::events;
use crate::error::LostCause;
use crate::protocol::message::Fence;
use crate::protocol::step::{AcquireError, CallAnswer, Outcome};
use crate::protocol::time::Instant;

/// Locks a mutex whose holders do not leave broken state behind when they panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One ticket's mailbox.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    /// Held until then at least, in nanoseconds, unless it is over.
    held_until: AtomicU64,
    /// The holding has ended, or is being given back.
    is_over: AtomicBool,
}

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
    /// That of several holdings, which is cancelled when one of them is over.
    of_several: Option<CancellationToken>,
    /// It is renewed no more, or over.
    is_overdue: bool,
    overdue: Option<CancellationToken>,
}

/// What the caller of a call is told.
pub(crate) type Told = Result<CallAnswer, AcquireError>;

/// What is to be woken when nothing is locked any more.
#[derive(Debug)]
pub(crate) enum Wake {
    Caller(Waker),
    Watchers(CancellationToken),
    Call(oneshot::Sender<Told>, Told),
}

impl Wake {
    /// Runs foreign code, which may panic. A waker that blocks is beyond help.
    pub(crate) fn wake(self) {
        match self {
            Wake::Caller(waker) => events::wake(waker),
            Wake::Watchers(token) => events::cancel(token),
            Wake::Call(caller, told) => events::tell(caller, told),
        }
    }
}

impl Waiter {
    /// Held for sure. Else only the key machine knows: the deadline may have moved.
    pub(crate) fn is_held_at(&self, now: Instant) -> bool {
        now.as_nanos() < self.held_until.load(Ordering::Acquire) && !self.is_over()
    }

    /// It is being given back, or over. Never undone.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The deadline, as the key machine said. It only moves later.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        self.held_until.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
    }

    /// From here on nobody is told that it is held.
    pub(crate) fn give_back(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn decide(&self, decision: Result<Fence, AcquireError>, wakes: &mut Vec<Wake>) {
        let mut state = lock(&self.state);
        state.decision = Some(decision);
        if let Some(waker) = state.waker.take() {
            wakes.push(Wake::Caller(waker));
        }
    }

    /// Ends the holding, of which the first cause stays, and says what became of its release.
    pub(crate) fn settle(&self, outcome: Outcome, wakes: &mut Vec<Wake>) {
        self.give_back();
        let mut state = lock(&self.state);
        state.over.get_or_insert(LostCause::Released);
        state.outcome = Some(outcome);
        state.wake_all(wakes);
    }

    /// It is renewed no more.
    pub(crate) fn overdue(&self, wakes: &mut Vec<Wake>) {
        let mut state = lock(&self.state);
        state.is_overdue = true;
        if let Some(token) = state.overdue.take() {
            wakes.push(Wake::Watchers(token));
        }
    }

    /// The holding is over. The first cause stays.
    pub(crate) fn end(&self, cause: LostCause, wakes: &mut Vec<Wake>) {
        self.give_back();
        let mut state = lock(&self.state);
        state.over.get_or_insert(cause);
        state.wake_all(wakes);
    }

    pub(crate) fn over(&self) -> Option<LostCause> {
        // Noted before its cause is. To look is cheap.
        if self.is_over() {
            lock(&self.state).over
        } else {
            None
        }
    }

    /// Cancelled when the holding is over.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        if state.over.is_some() {
            return cancelled();
        }
        state.token.get_or_insert_default().clone()
    }

    /// Has this one cancelled, too, when the holding is over.
    pub(crate) fn tell_of_several(&self, token: &CancellationToken) {
        let mut state = lock(&self.state);
        if state.over.is_none() {
            state.of_several = Some(token.clone());
            return;
        }
        drop(state);
        events::cancel(token.clone());
    }

    /// Cancelled when it is renewed no more, or over.
    pub(crate) fn overdue_token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        if state.over.is_some() || state.is_overdue {
            return cancelled();
        }
        state.overdue.get_or_insert_default().clone()
    }

    pub(crate) fn poll_decision(&self, cx: &Context<'_>) -> Poll<Result<Fence, AcquireError>> {
        self.wait(cx, |state| state.decision.take())
    }

    /// Ready when the holding is over. There is one caller, so it costs no token; others have [`token`](Self::token).
    #[cfg(feature = "tower")]
    pub(crate) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        self.wait(cx, |state| state.over.map(drop))
    }

    pub(crate) fn poll_outcome(&self, cx: &Context<'_>) -> Poll<Outcome> {
        self.wait(cx, |state| state.outcome.take())
    }

    /// Ready with what `take` finds. Until then the caller is woken when something is said to its ticket.
    fn wait<T>(&self, cx: &Context<'_>, take: impl FnOnce(&mut State) -> Option<T>) -> Poll<T> {
        let mut state = lock(&self.state);
        if let Some(found) = take(&mut state) {
            return Poll::Ready(found);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// A token that is cancelled from the beginning.
pub(crate) fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

impl State {
    /// Everybody who is to hear that it is over.
    fn wake_all(&mut self, wakes: &mut Vec<Wake>) {
        for token in [&mut self.token, &mut self.of_several, &mut self.overdue] {
            if let Some(token) = token.take() {
                wakes.push(Wake::Watchers(token));
            }
        }
        if let Some(waker) = self.waker.take() {
            wakes.push(Wake::Caller(waker));
        }
    }
}
