//! The way from wanting to holding: one future for everything that can be acquired.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::driver::outage::Failed;
use crate::driver::waiter::Waiter;
use crate::error::{ClosedCause, Error, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::guard::Guard;
use crate::protocol::message::{Fence, Name, TickTime};
use crate::protocol::step::{AcquireError, AcquireOptions, Ticket};
use crate::protocol::time::Instant;

/// What is to be acquired, and how.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) lease: Duration,
    pub(crate) fixed: bool,
    /// Wait for its turn.
    pub(crate) wait: bool,
    /// Refuse when so many of this process wait for it.
    pub(crate) limit: usize,
    pub(crate) tick: Option<TickTime>,
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
    /// The tick was run, or skipped.
    Over,
    /// The tick comes only after this, by the store's clock.
    #[cfg_attr(
        not(feature = "scheduler"),
        allow(dead_code, reason = "only ticks have a time")
    )]
    Early(Duration),
}

impl Unacquired {
    /// For what has no time: nothing of it is over or early.
    pub(crate) fn into_error(self, key: &Key) -> Error {
        match self {
            Unacquired::Error(error) => error,
            Unacquired::Over | Unacquired::Early(_) => Error::Busy {
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
        match self.handle.node().why_waiting(&self.wanted.name, waiting.since) {
            Ok(()) => Error::Busy { key, waited },
            Err(source) => {
                let source = source.unwrap_or_else(|| {
                    StoreError::new(
                        StoreErrorKind::TimedOut,
                        format_args!("no answer within the wait of {waited:?}"),
                    )
                });
                let node = self.handle.node();
                node.failed(&node.servers.of(&self.wanted.name), Failed::Caller, &source);
                Error::Store { key, source }
            }
        }
    }

    /// Bad input is told before anything is asked.
    fn check(&self) -> Result<AcquireOptions, Error> {
        let (options, node) = (self.handle.options(), self.handle.node());
        let key = self.key();
        let length = key.as_bytes().len();
        if length == 0 || length > options.max_key {
            return Err(Error::Key {
                key: key.clone(),
                length,
                limit: options.max_key,
            });
        }
        if node.is_forked() {
            return Err(Error::Closed {
                key: key.clone(),
                why: ClosedCause::Forked,
            });
        }
        Ok(AcquireOptions {
            term: options.term(self.wanted.lease)?,
            wait: self.wanted.wait,
            fixed: self.wanted.fixed,
            limit: self.wanted.limit,
            // The store alone knows what becomes of a tick.
            node_is_full: self.wanted.tick.is_none() && node.waiting() >= options.waiters_per_node,
            mark: self.wanted.tick,
        })
    }

    fn enter(&mut self) -> Result<(), Error> {
        let options = self.check()?;
        let (ticket, waiter, since) = self.handle.node().enter(&self.wanted.name, options);
        self.state = State::Waiting(Waiting {
            ticket,
            waiter,
            since,
            waits: false,
        });
        Ok(())
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
            Ok(fence) => {
                self.handle.node().fetched(name, waiting.ticket);
                let handle = self.handle.clone();
                // First the guard: a subscriber that panics does not keep the lock.
                let guard = Guard::new(handle, name.clone(), waiting.ticket, waiting.waiter, fence);
                observe::granted(self.label(), name, fence);
                Ok(guard)
            }
            Err(AcquireError::Over) => Err(Unacquired::Over),
            Err(AcquireError::Early(left)) => Err(Unacquired::Early(left)),
            Err(AcquireError::Store(source)) => {
                observe::denied_by_store(self.label(), name, &source);
                let key = name.key.clone();
                Err(Unacquired::Error(Error::Store { key, source }))
            }
            Err(why) => {
                observe::denied(self.label(), name, &why);
                Err(Unacquired::Error(self.error(why, self.waited(since))))
            }
        };
        let told = match &answer {
            Ok(_) => Ok(()),
            Err(Unacquired::Error(error)) => Err(Some(error)),
            Err(Unacquired::Over | Unacquired::Early(_)) => Err(None),
        };
        observe::answered(name, || self.waited(since), told);
        answer
    }

    fn error(&self, why: AcquireError, waited: Duration) -> Error {
        let key = self.key().clone();
        match why {
            AcquireError::QueueFull { waiting } => Error::QueueFull {
                key,
                waiting,
                limit: self.wanted.limit,
            },
            AcquireError::NodeFull => Error::NodeFull {
                key,
                waiting: self.handle.node().waiting(),
                limit: self.handle.options().waiters_per_node,
            },
            AcquireError::Store(source) => Error::Store { key, source },
            AcquireError::Closed => Error::Closed {
                key,
                why: ClosedCause::Shutdown,
            },
            AcquireError::Busy | AcquireError::Over | AcquireError::Early(_) => Error::Busy { key, waited },
        }
    }
}

impl Future for Acquire {
    type Output = Result<Guard, Unacquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.state, State::New)
            && let Err(error) = this.enter()
        {
            this.state = State::Done;
            observe::answered(&this.wanted.name, || Duration::ZERO, Err(Some(&error)));
            return Poll::Ready(Err(Unacquired::Error(error)));
        }
        let State::Waiting(waiting) = &mut this.state else {
            panic!("polled after it was ready");
        };
        let polled = waiting.waiter.poll_decision(cx);
        waiting.waits |= polled.is_pending();
        let decision = ready!(polled);
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
