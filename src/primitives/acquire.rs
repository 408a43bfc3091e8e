//! The future of everything that can be acquired, from the request to the guard.
//!
//! Dropping the future gives up the place in the queue, or the lease if it was granted meanwhile.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;

use crate::driver::events::Counted;
use crate::driver::handle::Handle;
use crate::driver::node::EnteredCaller;
use crate::driver::waiter::Waiter;
use crate::error::{Error, LostCause, OptionsError};
use crate::key::Key;
use crate::observe::pending::Gauge;
use crate::observe::{self, Label, WaitSpan};
use crate::primitives::denial;
use crate::primitives::guard::Guard;
use crate::primitives::held::Held;
use crate::primitives::proclaimed;
use crate::primitives::scope;
use crate::primitives::within::within;
use crate::protocol::message::{ClaimId, Fence, Kind, LeaseTimes, Mode, Name, Payload, Permits};
use crate::protocol::step::{AcquireError, Input, LockOptions, Ticket, WhyDenied};
use crate::protocol::time::Instant;

/// The future of [`Mutex::lock`](crate::Mutex::lock), and of what else is acquired. It returns the [`Guard`].
///
/// The caller enters the queue with the first poll. Every wait can be cancelled at any point by dropping the future: *Cancel
/// safety* of each method says what happens then.
///
/// No future returns a guard of a lease that is known to be lost. If the lock is granted, and the future is polled too late to
/// take it up, the future returns [`Error::Lost`] with the cause [`Unfetched`](LostCause::Unfetched).
///
/// If a task acquires locks in a loop, and each lock is ready at once, other tasks still run, as with tokio's own `Mutex`.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # use std::time::Duration;
/// # let locks = tenure::Locks::memory();
/// let account = locks.mutex("account:42");
/// let guard = account.lock().await?;
/// tokio::select! {
///     second = account.lock() => drop(second?),
///     () = tokio::time::sleep(Duration::from_millis(10)) => println!("cancelled"),
/// }
/// assert_eq!(locks.waiter_count(), 0);
/// # guard.release().await }
/// ```
#[must_use = "futures do nothing until they are awaited"]
pub struct Acquire {
    handle: Handle,
    name: Name,
    options: LockOptions,
    /// What is proclaimed when a candidate of an election wins.
    value: Option<Payload>,
    /// `None` before the caller entered.
    entry: Option<WaitingCaller>,
}

/// A caller that entered its key.
struct WaitingCaller {
    ticket: Ticket,
    waiter: Arc<Waiter>,
    since: Instant,
    /// The caller was not answered in the poll in which it entered.
    waits: bool,
    /// Counts as waiting until it is answered or gives up.
    counted: Option<Counted>,
    /// Shows the wait, for as long.
    span: WaitSpan,
    /// The caller was answered, and has no place in the queue any more.
    is_answered: bool,
}

impl WaitingCaller {
    fn new((ticket, waiter, since): EnteredCaller) -> Self {
        WaitingCaller {
            ticket,
            waiter,
            since,
            waits: false,
            counted: None,
            span: WaitSpan::default(),
            is_answered: false,
        }
    }
}

/// Checks the options of a caller before a request is sent.
///
/// # Errors
/// Bad input, a forked process, or a wait for a lease that the caller itself holds.
pub(crate) fn check(handle: &Handle, name: &Name, wanted: LockOptions) -> Result<LockOptions, Error> {
    let (options, node, key) = (handle.options(), handle.node(), &name.key);
    denial::check_key(handle, key)?;
    let wants_permits = matches!(wanted.mode, Mode::Permits(_));
    // The memory store would serve it, and Redis would not.
    debug_assert_eq!(
        wants_permits,
        name.kind == Kind::Semaphore,
        "permits are of semaphores"
    );
    if let Mode::Permits(permits) = wanted.mode {
        check_permits(key, permits)?;
    }
    if wanted.max_hold.is_some_and(|most| most.is_zero()) {
        return Err(Error::Options(OptionsError(format!(
            "a `max_hold` of zero would end each hold of `{key}` when it begins: give it more, or none"
        ))));
    }
    options.check_keep(wanted.keep).map_err(Error::Options)?;
    handle.not_forked(key)?;
    // A caller that does not wait is told that the key is busy. A task may hold several permits.
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
        // Only the store knows what becomes of a tick.
        node_is_full: name.kind != Kind::Job && node.waiting() >= options.max_waiters_per_node,
        ..wanted
    })
}

impl Acquire {
    pub(crate) fn new(handle: &Handle, name: &Name, options: LockOptions) -> Self {
        Acquire {
            handle: handle.clone(),
            name: name.clone(),
            options,
            value: None,
            entry: None,
        }
    }

    /// Sets the value that is proclaimed in the step in which the candidate wins.
    pub(crate) fn set_value(&mut self, value: Payload) {
        self.value = Some(value);
    }

    /// Returns the future of a caller that entered.
    fn entered(handle: &Handle, name: &Name, options: LockOptions, entered: EnteredCaller) -> Self {
        let mut lock = Acquire::new(handle, name, options);
        lock.entry = Some(WaitingCaller::new(entered));
        lock
    }

    /// Enters the caller, if it has not entered. From now on it has a place in the queue.
    ///
    /// # Errors
    /// As [`check`].
    #[inline]
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        if self.entry.is_none() {
            let options = check(&self.handle, &self.name, self.options)?;
            if let Some(value) = &self.value {
                proclaimed::check(&self.name.key, value)?;
            }
            let node = self.handle.node();
            let value = self.value.take();
            let entered = node.enter(&self.name, options.term, |ticket| match value {
                Some(value) => Input::Campaign(ticket, options, value),
                None => Input::Lock(ticket, options),
            });
            self.entry = Some(WaitingCaller::new(entered));
        }
        Ok(())
    }

    /// Returns the future of what a holding becomes in one step. No other caller has the lease in between.
    pub(crate) fn pass(held: &Held, mode: Mode, is_fixed: bool, input: impl FnOnce(Ticket) -> Input) -> Self {
        let options = LockOptions {
            mode,
            fixed: is_fixed,
            // The key machine takes the lengths from the present holding, or from the input.
            ..LockOptions::new(LeaseTimes::default())
        };
        let entered = held.handle.node().enter(&held.name, options.term, input);
        Acquire::entered(&held.handle, &held.name, options, entered)
    }

    /// Returns the future of a lease that the caller takes over from the owner that a transfer names.
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
        Ok(Acquire::entered(handle, name, options, entered))
    }

    /// Enters callers for all of these keys at one moment: all are granted, or none. Returns `None`, and enters no caller, if a
    /// caller of this process blocks a key, or if the keys are of several servers.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn together(
        handle: &Handle,
        wanted: impl Iterator<Item = (Name, LockOptions)>,
    ) -> Result<Option<Vec<Acquire>>, Error> {
        let checked = wanted.map(|(name, options)| {
            let options = check(handle, &name, options)?;
            Ok((name, options))
        });
        let checked: Vec<_> = checked.collect::<Result<_, Error>>()?;
        let entered = handle.node().join_together(&checked);
        let lock =
            |((name, options), entered): (&(Name, _), _)| Acquire::entered(handle, name, *options, entered);
        Ok(entered.map(|entered| checked.iter().zip(entered).map(lock).collect()))
    }

    /// Waits for the guard, but no longer than `wait`. With zero it tries once.
    pub(crate) async fn within(mut self, wait: Duration) -> Result<Guard, Error> {
        // One try takes a round trip, which is longer than no time.
        if wait.is_zero() && self.entry.is_none() {
            self.options.wait = false;
            return self.await;
        }
        let node = self.handle.node().clone();
        if self.entry.is_none() {
            self.options.until = Some(node.clock.now() + wait);
        }
        let answer = within([&node], wait, &mut self).await;
        answer.unwrap_or_else(|| Err(self.gave_up(wait)))
    }

    /// Returns whether the key is known to be taken since the caller entered.
    pub(crate) fn is_known_taken(&self) -> bool {
        let is_taken = |since| self.handle.node().why_waiting(&self.name, since).is_ok();
        self.entry.as_ref().is_some_and(|entry| is_taken(entry.since))
    }

    /// Returns the error of a caller that gives up now. It says that the key is held only if that is known.
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
    /// The denial, which [`error`](Self::error) turns into the error of the caller.
    pub(crate) async fn answer(&mut self) -> Result<Guard, WhyDenied> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// Returns how long the caller has waited, by the clock of its lease. Zero if it was answered at once.
    fn waited(&self) -> Duration {
        let clock = &self.handle.node().clock;
        let waiting = self.entry.as_ref().filter(|entry| entry.waits);
        waiting.map_or(Duration::ZERO, |entry| clock.now().since(entry.since))
    }

    /// Polls the answer of a caller that entered.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, WhyDenied>> {
        let entry = self.entry.as_mut().filter(|entry| !entry.is_answered);
        let entry = entry.expect("polled before it entered, or after it was ready");
        // The parent process began this future. The mutex of its waiter may be locked for ever here.
        if entry.waits && self.handle.node().is_forked() {
            ready!(coop::poll_proceed(cx)).made_progress();
            let forked = AcquireError::Lost(LostCause::Forked);
            self.note_refusal(&self.error(forked.clone().into()));
            return Poll::Ready(Err(forked.into()));
        }
        // Checked after the caller entered, as in tokio's own semaphore: a caller without budget keeps its place.
        let budget = coop::poll_proceed(cx);
        entry.waits |= budget.is_pending();
        let budget = ready!(budget);
        let polled = entry.waiter.poll_decision(cx);
        entry.waits |= polled.is_pending();
        if polled.is_pending() && entry.counted.is_none() {
            let events = &self.handle.node().events;
            entry.counted = Some(events.counted(Gauge::of_waiting(&self.name)));
            entry.span.begin(&self.name);
        }
        let decision = ready!(polled);
        budget.made_progress();
        entry.is_answered = true;
        entry.counted = None;
        let mut span = std::mem::take(&mut entry.span);
        self.handle.node().answered();
        let answer = self.decided(decision);
        span.end(|| self.outcome(&answer));
        Poll::Ready(answer)
    }

    /// Turns a decision into a guard or a denial. Runs on the caller's own thread, so that its events are in the caller's span.
    fn decided(&self, decision: Result<Fence, WhyDenied>) -> Result<Guard, WhyDenied> {
        let entry = self.entry.as_ref().expect("it entered");
        let answer = match decision {
            Ok(fence) => self.take_up(entry).map(|()| {
                // The guard is made first, so that a subscriber that panics does not keep the lock.
                let guard = self.guard(entry, (self.options.mode, self.options.fixed), fence);
                observe::granted(self.label(), &self.name, fence);
                guard
            }),
            Err(WhyDenied::StillHeld(fence, source)) => {
                let taken = self.take_up(entry);
                taken.and(Err(WhyDenied::StillHeld(fence, source)))
            }
            Err(why) => Err(why),
        };
        match &answer {
            Ok(_) => observe::answered(&self.name, || self.waited(), Ok(())),
            Err(why) => self.note_denial(why),
        }
        answer
    }

    /// Takes up a grant. Little is done after this, so that the caller gets a guard that is held.
    fn take_up(&self, entry: &WaitingCaller) -> Result<(), WhyDenied> {
        let node = self.handle.node();
        // A caller that is answered in the poll in which it entered needs no second reading of the clock.
        let now = if entry.waits {
            node.clock.now()
        } else {
            entry.since
        };
        let taken = node.take_up(&self.name, entry.ticket, &entry.waiter, now);
        taken.map_err(|cause| AcquireError::Lost(cause).into())
    }

    /// Makes the first guard of a holding.
    fn guard(&self, entry: &WaitingCaller, (mode, fixed): (Mode, bool), fence: Fence) -> Guard {
        Guard::new(Held::new(
            self.handle.clone(),
            (self.name.clone(), mode, fixed),
            entry.ticket,
            entry.waiter.clone(),
            fence,
        ))
    }

    /// Returns a guard of what is held as before, after [`WhyDenied::StillHeld`].
    pub(crate) fn resume(&self, before: &Held, fence: Fence) -> Guard {
        let entry = self
            .entry
            .as_ref()
            .expect("an answer tells that the lease is kept");
        self.guard(entry, (before.mode, before.fixed), fence)
    }

    /// Counts a caller that could not enter, or whose process is a fork.
    #[cold]
    pub(crate) fn note_refusal(&self, error: &Error) {
        observe::answered(&self.name, || Duration::ZERO, Err(Some(error)));
    }

    #[cold]
    fn note_denial(&self, why: &WhyDenied) {
        let (label, name) = (self.label(), &self.name);
        match why {
            WhyDenied::Error(AcquireError::Busy) if self.options.has_fallback => return,
            WhyDenied::StillHeld(_, error) => {
                return observe::denied(label, name, &AcquireError::Store(error.clone()));
            }
            WhyDenied::Tick(_) => return observe::answered(name, || self.waited(), Err(None)),
            WhyDenied::Error(error) => observe::denied(label, name, error),
        }
        let error = self.error(why.clone());
        observe::answered(name, || self.waited(), Err(Some(&error)));
    }

    /// Returns the outcome of a wait, in the word of the metrics.
    #[cold]
    fn outcome(&self, answer: &Result<Guard, WhyDenied>) -> &'static str {
        match answer {
            Ok(_) => observe::outcome(Ok(())),
            Err(WhyDenied::Tick(_)) => observe::outcome(Err(None)),
            Err(why) => observe::outcome(Err(Some(&self.error(why.clone())))),
        }
    }

    /// Returns the error of a caller that was denied.
    pub(crate) fn error(&self, why: WhyDenied) -> Error {
        let why = match why {
            WhyDenied::Error(why) => why,
            // The callers of ticks and passes read these before.
            WhyDenied::Tick(_) => AcquireError::Busy,
            WhyDenied::StillHeld(_, source) => AcquireError::Store(source),
        };
        denial::error(&self.handle, &self.name, why, (self.options.limit, self.waited()))
    }
}

/// Checks how many permits a caller wants.
///
/// # Errors
/// No permits, or more than the semaphore has.
pub(crate) fn check_permits(key: &Key, permits: Permits) -> Result<(), Error> {
    let Permits { weight, capacity } = permits;
    if (1..=capacity).contains(&weight) {
        return Ok(());
    }
    Err(Error::Options(OptionsError(if capacity == 0 {
        format!("semaphore `{key}` has no permits, so no caller can acquire one: give it 1 or more")
    } else {
        format!(
            "cannot acquire {weight} permits of semaphore `{key}`, which has {capacity}: ask for 1 to {capacity}"
        )
    })))
}

impl Future for Acquire {
    type Output = Result<Guard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.enter() {
            // Without budget the next poll refuses the caller, as nothing has changed.
            ready!(coop::poll_proceed(cx)).made_progress();
            self.note_refusal(&error);
            return Poll::Ready(Err(error));
        }
        let polled = self.poll_answer(cx);
        polled.map_err(|why| self.error(why))
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("key", &self.name.key)
            .finish_non_exhaustive()
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let node = self.handle.node();
        if let Some(entry) = self.entry.as_ref().filter(|entry| !entry.is_answered)
            && !node.is_forked()
        {
            // Counted first, so that the caller is not counted as waiting when the node is idle.
            node.answered();
            node.cancel(&self.name, entry.ticket);
            observe::gave_up(&self.name, || self.waited());
        }
        if let Some(entry) = &mut self.entry {
            entry.span.end(|| "gave_up");
        }
    }
}
