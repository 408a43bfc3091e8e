//! The way from wanting to holding: one future for everything that can be acquired.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;

use crate::driver::handle::Handle;
use crate::driver::outage::Failed;
use crate::driver::waiter::Waiter;
use crate::error::{ClosedCause, Error, LostCause, OptionsError, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::guard::Guard;
use crate::primitives::held::Held;
use crate::primitives::scope;
use crate::protocol::message::{Fence, Holder, Kind, LeaseTimes, Mode, Name, Permits, TickTime, Turn};
use crate::protocol::step::{AcquireError, AcquireOptions, Ticket};
use crate::protocol::time::Instant;

/// What is to be acquired, and how.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    pub(crate) fixed: bool,
    /// With a place of its own in the store's queue.
    pub(crate) fair: bool,
    /// With others of the same caller, or not at all.
    pub(crate) together: bool,
    /// That somebody has it is no last word: the caller goes on in another way.
    pub(crate) goes_on: bool,
    /// Wait for its turn.
    pub(crate) wait: bool,
    /// It was just lost: not at once.
    pub(crate) rests: bool,
    /// Refuse when so many of this process wait for it.
    pub(crate) limit: usize,
    /// Renew it no longer.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) tick: Option<TickTime>,
    pub(crate) turn: Turn,
}

impl Wanted {
    /// A lease that is renewed, that nobody waits for; without a limit to those who do.
    pub(crate) fn new(name: Name, lease: Duration) -> Wanted {
        Wanted {
            name,
            mode: Mode::Exclusive,
            lease,
            fixed: false,
            fair: false,
            together: false,
            goes_on: false,
            wait: false,
            rests: false,
            limit: usize::MAX,
            max_hold: None,
            tick: None,
            turn: Turn::Skip,
        }
    }
}

/// Resolves to a guard. Dropping it gives up the place in the line, or the lease if it was granted meanwhile.
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub(crate) struct Acquire {
    handle: Handle,
    wanted: Wanted,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Waiting(Waiting),
    Done,
}

/// A caller's ticket, where it hears of what is decided, and when it entered.
type Entered = (Ticket, Arc<Waiter>, Instant);

impl State {
    fn waiting((ticket, waiter, since): Entered) -> Self {
        State::Waiting(Waiting {
            ticket,
            waiter,
            since,
            waits: false,
        })
    }
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    waiter: Arc<Waiter>,
    since: Instant,
    /// It was not answered at once.
    waits: bool,
}

/// Why there is no guard.
#[derive(Debug)]
pub(crate) enum Unacquired {
    Error(Error),
    /// The tick was run, or a later one was begun.
    Over,
    /// The tick was never begun, and never is.
    Skipped,
    /// The tick comes only after this, by the store's clock.
    #[cfg_attr(
        not(feature = "scheduler"),
        allow(dead_code, reason = "only ticks have a time")
    )]
    Early(Duration),
    /// An earlier tick is to be run first: the latest one, as it has not ended, or one that comes after that.
    #[cfg_attr(
        not(feature = "scheduler"),
        allow(dead_code, reason = "only ticks come after others")
    )]
    Behind {
        latest: TickTime,
        is_open: bool,
    },
    /// What was to be passed on was not, and is held as before.
    Kept(Kept),
}

/// What goes on as it was held before, and why.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) ticket: Ticket,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) fence: Fence,
    pub(crate) source: StoreError,
}

impl Unacquired {
    /// For what has no time: nothing of it is over or early.
    pub(crate) fn into_error(self, key: &Key) -> Error {
        match self {
            Unacquired::Error(error) => error,
            Unacquired::Over
            | Unacquired::Skipped
            | Unacquired::Early(_)
            | Unacquired::Behind { .. }
            | Unacquired::Kept(_) => Error::Busy {
                key: key.clone(),
                waited: Duration::ZERO,
            },
        }
    }
}

impl Acquire {
    pub(crate) fn new(handle: Handle, wanted: Wanted) -> Self {
        Acquire {
            handle,
            wanted,
            state: State::New,
        }
    }

    /// A writer's way to a reader: what is held is given back, and nobody writes in between.
    pub(crate) fn downgrade(held: &Held) -> Self {
        let entered = held.handle.node().downgrade(&held.name, held.ticket);
        // The lease is that of what is held.
        let wanted = Wanted {
            mode: Mode::Read,
            fixed: held.is_fixed(),
            wait: true,
            ..Wanted::new(held.name.clone(), Duration::ZERO)
        };
        Acquire::entered(held.handle.clone(), wanted, entered)
    }

    /// A holder's way to a lease that is to be handed out: what is held is given up, and nobody has it in between.
    pub(crate) fn transfer(held: &Held, term: LeaseTimes) -> Self {
        let entered = held.handle.node().transfer(&held.name, held.ticket, term);
        let wanted = Wanted {
            mode: held.mode,
            fixed: true,
            wait: true,
            ..Wanted::new(held.name.clone(), Duration::ZERO)
        };
        Acquire::entered(held.handle.clone(), wanted, entered)
    }

    /// A caller's way to the lease of that owner, of whom it was told.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn adopt(handle: &Handle, wanted: Wanted, from: Holder) -> Result<Self, Error> {
        let mut acquire = Acquire::new(handle.clone(), wanted);
        let options = acquire.check()?;
        let entered = handle.node().adopt(&acquire.wanted.name, options, from);
        acquire.state = State::waiting(entered);
        Ok(acquire)
    }

    fn entered(handle: Handle, wanted: Wanted, entered: Entered) -> Self {
        Acquire {
            handle,
            wanted,
            state: State::waiting(entered),
        }
    }

    /// Enters for all of these at one moment: every one is granted, or none. `None` where somebody of this process is in the
    /// way, or they are not of one kind and server: nobody entered.
    ///
    /// # Errors
    /// Bad input.
    pub(crate) fn together(handle: &Handle, wanted: Vec<Wanted>) -> Result<Option<Vec<Acquire>>, Error> {
        let mut all: Vec<_> = wanted
            .into_iter()
            .map(|wanted| Acquire::new(handle.clone(), wanted))
            .collect();
        if all
            .windows(2)
            .any(|two| two[0].wanted.name.kind != two[1].wanted.name.kind)
        {
            return Ok(None);
        }
        let enter = |acquire: &Acquire| Ok((acquire.wanted.name.clone(), acquire.check()?));
        let wanted: Result<Vec<_>, Error> = all.iter().map(enter).collect();
        let Some(entered) = handle.node().join_together(&wanted?) else {
            return Ok(None);
        };
        for (acquire, entered) in all.iter_mut().zip(entered) {
            acquire.state = State::waiting(entered);
        }
        Ok(Some(all))
    }

    /// What is acquired.
    pub(crate) fn key(&self) -> &Key {
        &self.wanted.name.key
    }

    /// What to tell a caller who gives up now: that somebody has it is said only if it is known.
    pub(crate) fn gave_up(&self, waited: Duration) -> Error {
        let key = self.key().clone();
        let State::Waiting(waiting) = &self.state else {
            return Error::Busy { key, waited };
        };
        gave_up(&self.handle, &self.wanted.name, waiting.since, waited)
    }

    /// Bad input is told before anything is asked.
    pub(crate) fn check(&self) -> Result<AcquireOptions, Error> {
        let (options, node) = (self.handle.options(), self.handle.node());
        let key = self.key();
        check_key(&self.handle, key)?;
        check_permits(key, self.wanted.mode)?;
        if self.wanted.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(Error::Options(OptionsError(format!(
                "a `max_hold` of zero would end each hold of `{key}` when it begins: give it more, or none"
            ))));
        }
        self.handle.not_forked(key)?;
        // Whoever tries is told that it is busy, and of permits a task may have several.
        if self.wanted.wait
            && !self.wanted.mode.is_of_permits()
            && let Some(held) = scope::find(node, &self.wanted.name)
        {
            return Err(Error::WouldDeadlock {
                key: key.clone(),
                is_upgrade: held.mode == Mode::Read && self.wanted.mode == Mode::Exclusive,
            });
        }
        Ok(AcquireOptions {
            term: options.term(self.wanted.lease)?,
            mode: self.wanted.mode,
            wait: self.wanted.wait,
            fixed: self.wanted.fixed,
            solo: self.wanted.fair,
            together: self.wanted.together,
            rests: self.wanted.rests,
            limit: self.wanted.limit,
            max_hold: self.wanted.max_hold,
            // The store alone knows what becomes of a tick.
            node_is_full: self.wanted.name.kind != Kind::Job && node.waiting() >= options.waiters_per_node,
            mark: self.wanted.tick,
            turn: self.wanted.turn,
        })
    }

    fn enter(&mut self) -> Result<(), Error> {
        let options = self.check()?;
        let entered = self.handle.node().join_line(&self.wanted.name, options);
        self.state = State::waiting(entered);
        Ok(())
    }

    /// It could not enter, or wait on. Without budget it is refused by its next poll, as nothing has changed.
    #[cold]
    fn refuse(&mut self, cx: &mut Context<'_>, error: Error) -> Poll<Result<Guard, Unacquired>> {
        ready!(coop::poll_proceed(cx)).made_progress();
        self.state = State::Done;
        observe::answered(&self.wanted.name, || Duration::ZERO, Err(Some(&error)));
        Poll::Ready(Err(Unacquired::Error(error)))
    }

    fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// How long a caller has waited, by the clock that its lease is judged by.
    fn waited(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::ZERO, |since| {
            self.handle.node().clock.now().since(since)
        })
    }

    /// Told on the caller's own thread, in its span.
    fn decided(&self, waiting: Waiting, decision: Result<Fence, AcquireError>) -> Result<Guard, Unacquired> {
        let name = &self.wanted.name;
        let since = waiting.waits.then_some(waiting.since);
        let answer = match decision {
            Ok(fence) => match self.take_up(&waiting, since) {
                Ok(()) => Ok(self.guard(waiting, fence)),
                Err(lost) => Err(self.denied(lost, since)),
            },
            Err(AcquireError::Over) => Err(Unacquired::Over),
            Err(AcquireError::Skipped) => Err(Unacquired::Skipped),
            Err(AcquireError::Early(left)) => Err(Unacquired::Early(left)),
            Err(AcquireError::Behind { latest, is_open }) => Err(Unacquired::Behind { latest, is_open }),
            Err(AcquireError::Kept(fence, source)) => match self.take_up(&waiting, since) {
                Ok(()) => {
                    observe::denied_by_store(self.label(), name, &source);
                    let (ticket, waiter) = (waiting.ticket, waiting.waiter);
                    return Err(Unacquired::Kept(Kept {
                        ticket,
                        waiter,
                        fence,
                        source,
                    }));
                }
                Err(lost) => Err(self.denied(lost, since)),
            },
            Err(AcquireError::Store(source)) => {
                observe::denied_by_store(self.label(), name, &source);
                let key = name.key.clone();
                Err(Unacquired::Error(Error::Store { key, source }))
            }
            Err(AcquireError::Busy) if self.wanted.goes_on => {
                return Err(Unacquired::Error(
                    self.error(AcquireError::Busy, self.waited(since)),
                ));
            }
            Err(why) => Err(self.denied(why, since)),
        };
        let told = match &answer {
            Ok(_) => Ok(()),
            Err(Unacquired::Error(error)) => Err(Some(error)),
            Err(_) => Err(None),
        };
        observe::answered(name, || self.waited(since), told);
        answer
    }

    /// Takes up what was granted. Little is done after this, so that the guard is held when its caller gets it.
    fn take_up(&self, waiting: &Waiting, since: Option<Instant>) -> Result<(), AcquireError> {
        let node = self.handle.node();
        // Answered in the poll in which it entered: that moment is as good as now, and it costs no look at the clock.
        let now = since.map_or(waiting.since, |_| node.clock.now());
        let taken = node.take_up(&self.wanted.name, waiting.ticket, &waiting.waiter, now);
        taken.map_err(AcquireError::Lost)
    }

    fn guard(&self, waiting: Waiting, fence: Fence) -> Guard {
        let name = &self.wanted.name;
        // First the guard: a subscriber that panics does not keep the lock.
        let held = Held::new(
            self.handle.clone(),
            (name.clone(), self.wanted.mode, self.wanted.fixed),
            waiting.ticket,
            waiting.waiter,
            fence,
        );
        let guard = Guard::new(held);
        observe::granted(self.label(), name, fence);
        guard
    }

    fn denied(&self, why: AcquireError, since: Option<Instant>) -> Unacquired {
        observe::denied(self.label(), &self.wanted.name, &why);
        Unacquired::Error(self.error(why, self.waited(since)))
    }

    fn error(&self, why: AcquireError, waited: Duration) -> Error {
        error(&self.handle, &self.wanted.name, why, (self.wanted.limit, waited))
    }
}

/// The error of a caller that was denied after it `waited`, where at most `limit` callers may wait.
pub(crate) fn error(
    handle: &Handle,
    name: &Name,
    why: AcquireError,
    (limit, waited): (usize, Duration),
) -> Error {
    let key = name.key.clone();
    match why {
        AcquireError::QueueFull { waiting } => Error::QueueFull { key, waiting, limit },
        AcquireError::NodeFull => Error::NodeFull {
            key,
            waiting: handle.node().waiting(),
            limit: handle.options().waiters_per_node,
        },
        AcquireError::Store(source) => Error::Store { key, source },
        AcquireError::Lost(cause) if cause != LostCause::Shutdown => Error::Lost { key, cause },
        AcquireError::Lost(_) | AcquireError::Closed => Error::Closed {
            key,
            why: ClosedCause::Shutdown,
        },
        AcquireError::Busy
        | AcquireError::Over
        | AcquireError::Skipped
        | AcquireError::Early(_)
        | AcquireError::Behind { .. }
        | AcquireError::Kept(..) => Error::Busy { key, waited },
    }
}

/// The error of a caller that entered at `since` and gives up now: that a holder has the key is said only if it is known.
pub(crate) fn gave_up(handle: &Handle, name: &Name, since: Instant, waited: Duration) -> Error {
    let (node, key) = (handle.node(), name.key.clone());
    let source = match node.why_waiting(name, since) {
        Ok(()) => return Error::Busy { key, waited },
        Err(Some(source)) => {
            node.failed(node.servers.of(name), Failed::Caller, &source);
            source
        }
        // The wait was short: no request is late, so the server is not said to fail.
        Err(None) => {
            let text = format_args!("no answer within the wait of {waited:?}");
            StoreError::new(StoreErrorKind::TimedOut, text)
        }
    };
    Error::Store { key, source }
}

/// # Errors
/// A key that is empty or too long.
pub(crate) fn check_key(handle: &Handle, key: &Key) -> Result<(), Error> {
    let (length, limit) = (key.as_bytes().len(), handle.options().max_key);
    if (1..=limit).contains(&length) {
        return Ok(());
    }
    let key = key.clone();
    Err(Error::Key { key, length, limit })
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
    type Output = Result<Guard, Unacquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.state, State::New) {
            if let Err(error) = this.enter() {
                return this.refuse(cx, error);
            }
        } else if let Err(forked) = this.handle.not_forked(this.key()) {
            // Its parent began it: what it waits at may be locked for ever.
            return this.refuse(cx, forked);
        }
        // After it entered, as in tokio's own semaphore: a caller without budget keeps its place.
        let budget = coop::poll_proceed(cx);
        let State::Waiting(waiting) = &mut this.state else {
            panic!("polled after it was ready");
        };
        waiting.waits |= budget.is_pending();
        let budget = ready!(budget);
        let polled = waiting.waiter.poll_decision(cx);
        waiting.waits |= polled.is_pending();
        let decision = ready!(polled);
        budget.made_progress();
        let State::Waiting(waiting) = std::mem::replace(&mut this.state, State::Done) else {
            panic!("checked above");
        };
        this.handle.node().answered();
        Poll::Ready(this.decided(waiting, decision))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let node = self.handle.node();
        if let State::Waiting(waiting) = &self.state
            && !node.is_forked()
        {
            let since = waiting.waits.then_some(waiting.since);
            // First, so that nobody waits any more when the node is idle.
            node.answered();
            node.cancel(&self.wanted.name, waiting.ticket);
            observe::gave_up(&self.wanted.name, || self.waited(since));
        }
    }
}
