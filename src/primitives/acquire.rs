//! The way from wanting to holding: one future for everything that can be acquired.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;

use crate::driver::handle::Handle;
use crate::driver::node::Node;
use crate::driver::waiter::Waiter;
use crate::error::{Error, LostCause, OptionsError};
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::denial;
use crate::primitives::guard::Guard;
use crate::primitives::held::Held;
use crate::primitives::scope;
use crate::protocol::message::{Fence, Holder, Kind, LeaseTimes, Mode, Name, Permits};
use crate::protocol::step::{AcquireError, Input, LockOptions, Ticket};
use crate::protocol::time::Instant;

/// Resolves to a guard. Dropping it gives up the place in the line, or the lease if it was granted meanwhile.
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub(crate) struct Acquire {
    handle: Handle,
    name: Name,
    options: LockOptions,
    /// `None` before it entered.
    entry: Option<Entry>,
}

/// A caller that entered: its ticket, where it hears of what is decided, and since when.
type Entered = (Ticket, Arc<Waiter>, Instant);

#[derive(Debug)]
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
    check_permits(key, wanted.mode)?;
    if wanted.max_hold.is_some_and(|most| most.is_zero()) {
        return Err(Error::Options(OptionsError(format!(
            "a `max_hold` of zero would end each hold of `{key}` when it begins: give it more, or none"
        ))));
    }
    handle.not_forked(key)?;
    // A caller that does not wait is told that the key is busy, and of permits a task may have several.
    if wanted.wait
        && !wanted.mode.is_of_permits()
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
        node_is_full: name.kind != Kind::Job && node.waiting() >= options.waiters_per_node,
        ..wanted
    })
}

impl Acquire {
    pub(crate) fn new(handle: Handle, name: Name, options: LockOptions) -> Self {
        Acquire {
            handle,
            name,
            options,
            entry: None,
        }
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
            let entered = node.enter(&self.name, options.term, |ticket| Input::Lock(ticket, options));
            self.entry = Some(Entry::new(entered));
        }
        Ok(())
    }

    /// A writer's way to a reader: what is held is given back, and no other caller writes in between.
    pub(crate) fn downgrade(held: &Held) -> Self {
        let options = LockOptions {
            mode: Mode::Read,
            fixed: held.is_fixed(),
            // The lengths are those of what is held.
            ..LockOptions::new(LeaseTimes::default())
        };
        let input = |ticket| Input::Downgrade(held.ticket, ticket);
        Acquire::entered(&held.handle, &held.name, options, input)
    }

    /// A holder's way to a lease that is handed out: what is held is given up, and no other caller has it in between.
    pub(crate) fn transfer(held: &Held, term: LeaseTimes) -> Self {
        let options = LockOptions {
            mode: held.mode,
            fixed: true,
            // The lease is kept for others: this process does not hold it for that long.
            ..LockOptions::new(LeaseTimes::default())
        };
        let input = |ticket| Input::Transfer(held.ticket, ticket, term);
        Acquire::entered(&held.handle, &held.name, options, input)
    }

    /// A caller's way to the lease of the owner that a transfer names.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn adopt(
        handle: &Handle,
        name: &Name,
        options: LockOptions,
        from: Holder,
    ) -> Result<Self, Error> {
        let options = check(handle, name, options)?;
        let input = |ticket| Input::Adopt(ticket, options, from);
        Ok(Acquire::entered(handle, name, options, input))
    }

    fn entered(
        handle: &Handle,
        name: &Name,
        options: LockOptions,
        input: impl FnOnce(Ticket) -> Input,
    ) -> Self {
        let mut acquire = Acquire::new(handle.clone(), name.clone(), options);
        acquire.entry = Some(Entry::new(handle.node().enter(name, options.term, input)));
        acquire
    }

    /// Enters for all of these at one moment: every one is granted, or none. `None` where a caller of this process is in the
    /// way, or the keys are not of one kind and server: nothing entered.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn together(
        handle: &Handle,
        wanted: &[(Name, LockOptions)],
    ) -> Result<Option<Vec<Acquire>>, Error> {
        if wanted.windows(2).any(|two| two[0].0.kind != two[1].0.kind) {
            return Ok(None);
        }
        let checked = wanted.iter().map(|(name, options)| {
            let options = check(handle, name, *options)?;
            Ok((name.clone(), options))
        });
        let checked: Vec<_> = checked.collect::<Result<_, Error>>()?;
        let Some(entered) = handle.node().join_together(&checked) else {
            return Ok(None);
        };
        let all = wanted.iter().zip(entered).map(|((name, options), entered)| {
            let mut acquire = Acquire::new(handle.clone(), name.clone(), *options);
            acquire.entry = Some(Entry::new(entered));
            acquire
        });
        Ok(Some(all.collect()))
    }

    /// Where it waits.
    pub(crate) fn node(&self) -> &Arc<Node> {
        self.handle.node()
    }

    /// What is acquired.
    pub(crate) fn key(&self) -> &Key {
        &self.name.key
    }

    /// What to tell a caller who gives up now: that somebody has it is said only if it is known.
    pub(crate) fn gave_up(&self, waited: Duration) -> Error {
        let key = self.key().clone();
        let Some(entry) = &self.entry else {
            return Error::Busy { key, waited };
        };
        denial::gave_up(&self.handle, &self.name, entry.since, waited)
    }

    fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// How long the caller has waited, by the clock that its lease is judged by. Zero if it was answered at once.
    fn waited(&self) -> Duration {
        let since = self
            .entry
            .as_ref()
            .filter(|entry| entry.waits)
            .map(|entry| entry.since);
        since.map_or(Duration::ZERO, |since| {
            self.handle.node().clock.now().since(since)
        })
    }

    /// Told on the caller's own thread, in its span.
    fn decided(&self, decision: Result<Fence, AcquireError>) -> Result<Guard, AcquireError> {
        let entry = self.entry.as_ref().expect("it entered");
        let answer = match decision {
            Ok(fence) => self.take_up(entry).map(|()| self.guard(entry, fence)),
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

    fn guard(&self, entry: &Entry, fence: Fence) -> Guard {
        // First the guard: a subscriber that panics does not keep the lock.
        let held = Held::new(
            self.handle.clone(),
            (self.name.clone(), self.options.mode, self.options.fixed),
            entry.ticket,
            entry.waiter.clone(),
            fence,
        );
        let guard = Guard::new(held);
        observe::granted(self.label(), &self.name, fence);
        guard
    }

    /// Returns a guard of what is held as before, after [`AcquireError::Kept`].
    pub(crate) fn resume(&self, before: &Held, fence: Fence) -> Guard {
        let entry = self
            .entry
            .as_ref()
            .expect("an answer tells that the lease is kept");
        Guard::new(before.resumed(entry.ticket, entry.waiter.clone(), fence))
    }

    /// Counts a caller that could not enter, or that a fork must not serve.
    #[cold]
    pub(crate) fn note_refusal(&self, error: &Error) {
        observe::answered(&self.name, || Duration::ZERO, Err(Some(error)));
    }

    #[cold]
    fn note_denial(&self, why: &AcquireError) {
        match why {
            AcquireError::Busy if self.options.goes_on => return,
            AcquireError::Kept(_, source) => {
                return observe::denied_by_store(self.label(), &self.name, source);
            }
            AcquireError::Store(source) | AcquireError::Unanswered(source) => {
                observe::denied_by_store(self.label(), &self.name, source)
            }
            AcquireError::Tick(_) => {}
            AcquireError::Busy
            | AcquireError::QueueFull { .. }
            | AcquireError::NodeFull
            | AcquireError::Closed
            | AcquireError::Lost(_) => observe::denied(self.label(), &self.name, why),
        }
        let error = (!matches!(why, AcquireError::Tick(_))).then(|| self.error(why.clone()));
        observe::answered(&self.name, || self.waited(), Err(error.as_ref()));
    }

    /// The error that a caller is told.
    pub(crate) fn error(&self, why: AcquireError) -> Error {
        denial::error(&self.handle, &self.name, why, (self.options.limit, self.waited()))
    }
}

/// # Errors
/// Permits that the semaphore does not have.
pub(crate) fn check_permits(key: &Key, mode: Mode) -> Result<(), Error> {
    let Mode::Permits(Permits { weight, capacity }) = mode else {
        return Ok(());
    };
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

impl Future for Acquire {
    type Output = Result<Guard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let entry = this.entry.as_mut().filter(|entry| !entry.is_answered);
        let entry = entry.expect("polled before it entered, or after it was ready");
        // Its parent began it: what it waits at may be locked for ever.
        if entry.waits && this.handle.node().is_forked() {
            ready!(coop::poll_proceed(cx)).made_progress();
            let forked = AcquireError::Lost(LostCause::Forked);
            this.note_refusal(&this.error(forked.clone()));
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
        this.handle.node().answered();
        Poll::Ready(this.decided(decision))
    }
}

impl Drop for Acquire {
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
