//! The way from wanting to holding: one future for everything that can be acquired.
//!
//! Dropping the future gives up the place in the line, or the lease if it was granted meanwhile.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;

use crate::driver::handle::Handle;
use crate::driver::node::Entered;
use crate::driver::waiter::Waiter;
use crate::error::{Error, LostCause, OptionsError};
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::denial;
use crate::primitives::guard::Guard;
use crate::primitives::held::Held;
use crate::primitives::scope;
use crate::primitives::within::within;
use crate::protocol::message::{ClaimId, Fence, Kind, LeaseTimes, Mode, Name, Payload, Permits};
use crate::protocol::step::{AcquireError, Input, LockOptions, Ticket};
use crate::protocol::time::Instant;

/// The future of [`Mutex::lock`](crate::Mutex::lock).
#[must_use = "futures do nothing until they are awaited"]
pub struct LockFuture {
    handle: Handle,
    name: Name,
    options: LockOptions,
    /// What is proclaimed when a candidate of an election wins.
    value: Option<Payload>,
    /// `None` before it entered.
    entry: Option<Entry>,
}

struct Entry {
    ticket: Ticket,
    waiter: Arc<Waiter>,
    since: Instant,
    /// It was not answered at once.
    waits: bool,
    /// It was answered: the place in the line is no more.
    is_answered: bool,
}

impl Entry {
    fn new((ticket, waiter, since): Entered) -> Self {
        Entry {
            ticket,
            waiter,
            since,
            waits: false,
            is_answered: false,
        }
    }
}

/// Checks what a caller wants before anything is asked.
///
/// # Errors
/// Bad input, a fork, or a wait for what the caller itself holds.
pub(crate) fn check(handle: &Handle, name: &Name, wanted: LockOptions) -> Result<LockOptions, Error> {
    let (options, node, key) = (handle.options(), handle.node(), &name.key);
    denial::check_key(handle, key)?;
    if let Mode::Permits(permits) = wanted.mode {
        check_permits(key, permits)?;
    }
    if wanted.max_hold.is_some_and(|most| most.is_zero()) {
        return Err(Error::Options(OptionsError(format!(
            "a `max_hold` of zero would end each hold of `{key}` when it begins: give it more, or none"
        ))));
    }
    handle.not_forked(key)?;
    // A caller that does not wait is told that the key is busy, and of permits a task may have several.
    if wanted.wait
        && !matches!(wanted.mode, Mode::Permits(_))
        && let Some(held) = scope::find(node, name)
    {
        return Err(Error::WouldDeadlock {
            key: key.clone(),
            is_upgrade: held.mode == Mode::Read && wanted.mode == Mode::Exclusive,
        });
    }
    options.check_times(wanted.term)?;
    Ok(LockOptions {
        // The store alone knows what becomes of a tick.
        node_is_full: name.kind != Kind::Job && node.waiting() >= options.max_waiters_per_node,
        ..wanted
    })
}

impl LockFuture {
    pub(crate) fn new(handle: &Handle, name: &Name, options: LockOptions) -> Self {
        LockFuture {
            handle: handle.clone(),
            name: name.clone(),
            options,
            value: None,
            entry: None,
        }
    }

    /// Has this value proclaimed in the step in which the candidate wins.
    pub(crate) fn set_value(&mut self, value: Payload) {
        self.value = Some(value);
    }

    /// Returns the future of a caller that entered.
    fn entered(handle: &Handle, name: &Name, options: LockOptions, entered: Entered) -> Self {
        let mut lock = LockFuture::new(handle, name, options);
        lock.entry = Some(Entry::new(entered));
        lock
    }

    /// Enters a caller, if it has not entered: from now on it has its place.
    ///
    /// # Errors
    /// As [`check`].
    #[inline]
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        if self.entry.is_none() {
            let options = check(&self.handle, &self.name, self.options)?;
            let node = self.handle.node();
            let value = self.value.take();
            let entered = node.enter(&self.name, options.term, |ticket| match value {
                Some(value) => Input::Campaign(ticket, options, value),
                None => Input::Lock(ticket, options),
            });
            self.entry = Some(Entry::new(entered));
        }
        Ok(())
    }

    /// Returns what a holding becomes in one step: no other caller has the lease in between.
    pub(crate) fn pass(held: &Held, mode: Mode, is_fixed: bool, input: impl FnOnce(Ticket) -> Input) -> Self {
        let options = LockOptions {
            mode,
            fixed: is_fixed,
            // The lengths are those of what is held, or this process does not hold it for that long.
            ..LockOptions::new(LeaseTimes::default())
        };
        let entered = held.handle.node().enter(&held.name, options.term, input);
        LockFuture::entered(&held.handle, &held.name, options, entered)
    }

    /// A caller's way to the lease of the owner that a transfer names.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn adopt(
        handle: &Handle,
        name: &Name,
        options: LockOptions,
        from: ClaimId,
    ) -> Result<Self, Error> {
        let options = check(handle, name, options)?;
        let input = |ticket| Input::Adopt(ticket, options, from);
        let entered = handle.node().enter(name, options.term, input);
        Ok(LockFuture::entered(handle, name, options, entered))
    }

    /// Enters for all of these at one moment: every one is granted, or none. `None` where a caller of this process is in the
    /// way, or the keys are not of one server: nothing entered.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn together(
        handle: &Handle,
        wanted: impl Iterator<Item = (Name, LockOptions)>,
    ) -> Result<Option<Vec<LockFuture>>, Error> {
        let checked = wanted.map(|(name, options)| {
            let options = check(handle, &name, options)?;
            Ok((name, options))
        });
        let checked: Vec<_> = checked.collect::<Result<_, Error>>()?;
        let entered = handle.node().join_together(&checked);
        let lock = |((name, options), entered): (&(Name, _), _)| {
            LockFuture::entered(handle, name, *options, entered)
        };
        Ok(entered.map(|entered| checked.iter().zip(entered).map(lock).collect()))
    }

    /// Waits, but no longer than `wait`.
    pub(crate) async fn within(mut self, wait: Duration) -> Result<Guard, Error> {
        let node = self.handle.node().clone();
        let answer = within([&node], wait, &mut self).await;
        answer.unwrap_or_else(|| Err(self.gave_up(wait)))
    }

    /// What to tell a caller who gives up now: that somebody has it is said only if it is known.
    pub(crate) fn gave_up(&self, waited: Duration) -> Error {
        match &self.entry {
            Some(entry) => denial::gave_up(&self.handle, &self.name, entry.since, waited),
            None => Error::Busy {
                key: self.name.key.clone(),
                waited,
            },
        }
    }

    /// Waits for the answer of a caller that entered.
    ///
    /// # Errors
    /// The denial, which [`error`](Self::error) turns into what its caller is told.
    pub(crate) async fn answer(&mut self) -> Result<Guard, AcquireError> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// How long the caller has waited, by the clock that its lease is judged by. Zero if it was answered at once.
    fn waited(&self) -> Duration {
        let clock = &self.handle.node().clock;
        let waiting = self.entry.as_ref().filter(|entry| entry.waits);
        waiting.map_or(Duration::ZERO, |entry| clock.now().since(entry.since))
    }

    /// Polls the answer of a caller that entered.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, AcquireError>> {
        let entry = self.entry.as_mut().filter(|entry| !entry.is_answered);
        let entry = entry.expect("polled before it entered, or after it was ready");
        // Its parent began it: what it waits at may be locked for ever.
        if entry.waits && self.handle.node().is_forked() {
            ready!(coop::poll_proceed(cx)).made_progress();
            let forked = AcquireError::Lost(LostCause::Forked);
            self.note_refusal(&self.error(forked.clone()));
            return Poll::Ready(Err(forked));
        }
        // After it entered, as in tokio's own semaphore: a caller without budget keeps its place.
        let budget = coop::poll_proceed(cx);
        entry.waits |= budget.is_pending();
        let budget = ready!(budget);
        let polled = entry.waiter.poll_decision(cx);
        entry.waits |= polled.is_pending();
        let decision = ready!(polled);
        budget.made_progress();
        entry.is_answered = true;
        self.handle.node().answered();
        Poll::Ready(self.decided(decision))
    }

    /// Told on the caller's own thread, in its span.
    fn decided(&self, decision: Result<Fence, AcquireError>) -> Result<Guard, AcquireError> {
        let entry = self.entry.as_ref().expect("it entered");
        let answer = match decision {
            Ok(fence) => self.take_up(entry).map(|()| {
                // First the guard: a subscriber that panics does not keep the lock.
                let guard = self.guard(entry, (self.options.mode, self.options.fixed), fence);
                observe::granted(self.label(), &self.name, fence);
                guard
            }),
            Err(AcquireError::Kept(fence, source)) => {
                let taken = self.take_up(entry);
                taken.and(Err(AcquireError::Kept(fence, source)))
            }
            Err(why) => Err(why),
        };
        match &answer {
            Ok(_) => observe::answered(&self.name, || self.waited(), Ok(())),
            Err(why) => self.note_denial(why),
        }
        answer
    }

    /// Takes up what was granted. Little is done after this, so that the guard is held when its caller gets it.
    fn take_up(&self, entry: &Entry) -> Result<(), AcquireError> {
        let node = self.handle.node();
        // Answered in the poll in which it entered: that moment is as good as now, and it costs no look at the clock.
        let now = if entry.waits {
            node.clock.now()
        } else {
            entry.since
        };
        let taken = node.take_up(&self.name, entry.ticket, &entry.waiter, now);
        taken.map_err(AcquireError::Lost)
    }

    /// Makes the first guard of a holding.
    fn guard(&self, entry: &Entry, (mode, fixed): (Mode, bool), fence: Fence) -> Guard {
        Guard::new(Held::new(
            self.handle.clone(),
            (self.name.clone(), mode, fixed),
            entry.ticket,
            entry.waiter.clone(),
            fence,
        ))
    }

    /// Returns a guard of what is held as before, after [`AcquireError::Kept`].
    pub(crate) fn resume(&self, before: &Held, fence: Fence) -> Guard {
        let entry = self
            .entry
            .as_ref()
            .expect("an answer tells that the lease is kept");
        self.guard(entry, (before.mode, before.fixed), fence)
    }

    /// Counts a caller that could not enter, or that a fork must not serve.
    #[cold]
    pub(crate) fn note_refusal(&self, error: &Error) {
        observe::answered(&self.name, || Duration::ZERO, Err(Some(error)));
    }

    #[cold]
    fn note_denial(&self, why: &AcquireError) {
        let (label, name) = (self.label(), &self.name);
        match why {
            AcquireError::Busy if self.options.goes_on => return,
            AcquireError::Kept(_, source) => return observe::denied_by_store(label, name, source),
            AcquireError::Tick(_) => return observe::answered(name, || self.waited(), Err(None)),
            AcquireError::Store(source) | AcquireError::Unanswered(source) => {
                observe::denied_by_store(label, name, source);
            }
            AcquireError::Busy
            | AcquireError::QueueFull { .. }
            | AcquireError::NodeFull
            | AcquireError::Closed
            | AcquireError::Lost(_) => observe::denied(label, name, why),
        }
        let error = self.error(why.clone());
        observe::answered(name, || self.waited(), Err(Some(&error)));
    }

    /// The error that a caller is told.
    pub(crate) fn error(&self, why: AcquireError) -> Error {
        denial::error(&self.handle, &self.name, why, (self.options.limit, self.waited()))
    }
}

/// # Errors
/// Permits that the semaphore does not have.
pub(crate) fn check_permits(key: &Key, permits: Permits) -> Result<(), Error> {
    let Permits { weight, capacity } = permits;
    if (1..=capacity).contains(&weight) {
        return Ok(());
    }
    Err(Error::Options(OptionsError(if capacity == 0 {
        format!("semaphore `{key}` has no permits and would let nobody in: give it 1 or more")
    } else {
        format!(
            "cannot acquire {weight} permits of semaphore `{key}`, which has {capacity}: ask for 1 to {capacity}"
        )
    })))
}

impl Future for LockFuture {
    type Output = Result<Guard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.enter() {
            // Without budget it is refused by its next poll, as nothing has changed.
            ready!(coop::poll_proceed(cx)).made_progress();
            self.note_refusal(&error);
            return Poll::Ready(Err(error));
        }
        let polled = self.poll_answer(cx);
        polled.map_err(|why| self.error(why))
    }
}

impl fmt::Debug for LockFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture")
            .field("key", &self.name.key)
            .finish_non_exhaustive()
    }
}

impl Drop for LockFuture {
    fn drop(&mut self) {
        let node = self.handle.node();
        if let Some(entry) = self.entry.as_ref().filter(|entry| !entry.is_answered)
            && !node.is_forked()
        {
            // First, so that nobody waits any more when the node is idle.
            node.answered();
            node.cancel(&self.name, entry.ticket);
            observe::gave_up(&self.name, || self.waited());
        }
    }
}
