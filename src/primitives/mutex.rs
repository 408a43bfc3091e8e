//! An exclusive lock on one key, across every process that uses the store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::error::{ClosedCause, Error};
use crate::key::Key;
use crate::observe;
use crate::primitives::guard::{Guard, Lease};
use crate::protocol::message::{Fence, NO_TICK, Name, TickTime};
use crate::protocol::step::{AcquireError, AcquireOptions, Ticket};
use crate::protocol::time::Instant;
use crate::runtime::handle::Handle;
use crate::runtime::helper::Helper;
use crate::runtime::node::Side;
use crate::runtime::slot::Slot;

/// A lock on one key. Made by [`Locks::mutex`](crate::Locks::mutex); cheap to make and to clone.
///
/// Waiting is in order: within a process callers wait in one line, and processes wait in the store's queue. A lease
/// that is handed on within the process goes to other processes after a burst, so nobody starves.
///
/// There is no reentrancy: a task that locks what it holds waits for itself.
#[derive(Debug, Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    handle: Handle,
    name: Name,
    lease: Duration,
    fixed: bool,
    limit: usize,
    mark: TickTime,
}

impl Mutex {
    pub(crate) fn new(handle: Handle, key: Key) -> Self {
        let (lease, limit) = (handle.options().lease, handle.options().waiters_per_key);
        Mutex {
            handle,
            name: Name::lock(key),
            lease,
            fixed: false,
            limit,
            mark: NO_TICK,
        }
    }

    /// Pursues a tick of the job called `key`.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) fn tick(handle: Handle, key: Key, lease: Duration, mark: TickTime) -> Enter {
        let mutex = Mutex {
            name: Name::job(key.clone()),
            mark,
            ..Mutex::new(handle, key).lease(lease)
        };
        Enter {
            mutex,
            wait: true,
            state: State::New,
        }
    }

    /// Leases of this length instead of the default. They are renewed while the guard lives. Shorter: others get in
    /// sooner after this process died, and renewals are more frequent. Longer: a longer outage of the store is
    /// survived.
    ///
    /// Callers of one process share a lease, one after the other. One that wants a longer lease than its process has
    /// waits for the next; one that wants a shorter lease may be given what its process has.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.fixed = false;
        self
    }

    /// Leases of exactly this length, never renewed: "ten seconds, then let go". The guard is
    /// [lost](Guard::lost) at the end.
    pub fn fixed(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.fixed = true;
        self
    }

    /// Refuse with [`Error::QueueFull`] when so many callers of this process already wait for the key. The smaller
    /// of this and the limit of the [`Locks`](crate::Locks) counts.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.limit = limit.min(self.handle.options().waiters_per_key);
        self
    }

    /// What it locks.
    pub fn key(&self) -> &Key {
        &self.name.key
    }

    /// Waits for its turn, then holds the lock until the guard is released or dropped.
    ///
    /// # Errors
    /// [`Error::Store`] when the store cannot be reached or refuses; a caller that waits already rides out an outage
    /// of up to a lease. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`], [`Error::Options`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the line, or the lock if it was granted meanwhile. The
    /// claim is withdrawn in the background.
    pub fn lock(&self) -> Lock {
        self.enter(true)
    }

    /// Takes the lock if it is free and nobody waits for it; `None` if not. Answers without a round trip when this
    /// very process holds it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); that somebody else has it is no error.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        match self.enter(false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for its turn, but no longer than `wait`. The wait is patience; it has nothing to do with how long the
    /// lock is held.
    ///
    /// # Errors
    /// [`Error::Busy`] when the wait was over first; else as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        if wait.is_zero() {
            return self.enter(false).await;
        }
        match tokio::time::timeout(wait, self.enter(true)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Busy {
                key: self.name.key.clone(),
                waited: wait,
            }),
        }
    }

    /// Runs `work` under the lock and releases it. The work's future is dropped when the lease is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let fence = locks.mutex("account:42").with(|lease| async move { lease.fence() }).await?;
    /// # assert!(fence.get() > 0); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] when exclusivity did not hold to the end, even if the work was done; else as
    /// [`lock`](Self::lock) and [`Guard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        let guard = self.lock().await?;
        let done = guard.run(work(guard.lease())).await?;
        guard.release().await?;
        Ok(done)
    }

    fn enter(&self, wait: bool) -> Lock {
        Lock(Enter {
            mutex: self.clone(),
            wait,
            state: State::New,
        })
    }

    /// How long a caller has waited, by the clock that its lease is judged by.
    fn waited(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::ZERO, |since| {
            self.handle.node().clock.now().since(since)
        })
    }

    fn check(&self) -> Result<AcquireOptions, Error> {
        let options = self.handle.options();
        let key = &self.name.key;
        let length = key.as_bytes().len();
        if length == 0 || length > options.max_key {
            return Err(Error::Key {
                key: key.clone(),
                length,
                limit: options.max_key,
            });
        }
        if self.handle.node().is_forked() {
            return Err(Error::Closed {
                key: key.clone(),
                why: ClosedCause::Forked,
            });
        }
        let term = options.term(self.lease)?;
        Ok(AcquireOptions {
            term,
            wait: false,
            fixed: self.fixed,
            limit: self.limit,
            node_is_full: self.handle.node().waiting() >= options.waiters_per_node,
            mark: self.mark,
        })
    }
}

/// The future of [`Mutex::lock`].
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub struct Lock(Enter);

impl Future for Lock {
    type Output = Result<Guard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|refusal| match refusal {
            Refusal::Error(error) => error,
            Refusal::Over | Refusal::Early(_) => unreachable!("only ticks have a time"),
        })
    }
}

/// Why there is no guard.
#[derive(Debug)]
pub(crate) enum Refusal {
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

/// A caller's way from wanting to holding.
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub(crate) struct Enter {
    mutex: Mutex,
    wait: bool,
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
    slot: Arc<Slot>,
    helper: Helper,
    since: Instant,
    /// It was not answered at once.
    waits: bool,
}

impl Future for Enter {
    type Output = Result<Guard, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.state, State::New) {
            let want = match this.mutex.check() {
                Ok(want) => AcquireOptions {
                    wait: this.wait,
                    ..want
                },
                Err(error) => {
                    this.state = State::Done;
                    observe::answered(&this.mutex.name, || Duration::ZERO, Err(Some(&error)));
                    return Poll::Ready(Err(Refusal::Error(error)));
                }
            };
            let node = this.mutex.handle.node();
            if this.wait {
                node.keeper.want_inbox();
            }
            let (ticket, slot, since) = node.enter(&this.mutex.name, want);
            let helper = Helper::new(node, node.courier(&this.mutex.name, Side::Callers), slot.clone());
            this.state = State::Waiting(Waiting {
                ticket,
                slot,
                helper,
                since,
                waits: false,
            });
        }
        let State::Waiting(waiting) = &mut this.state else {
            panic!("polled after it was ready");
        };
        let decision = ready!(waiting.poll(cx));
        let (ticket, slot, since) = (waiting.ticket, waiting.slot.clone(), waiting.since());
        this.state = State::Done;
        let waited = || this.mutex.waited(since);
        this.mutex.handle.node().answered();
        let answer = match decision {
            Ok(fence) => {
                this.mutex.handle.node().fetched(&this.mutex.name, ticket);
                Ok(this.guard(ticket, slot, fence))
            }
            Err(AcquireError::Over) => Err(Refusal::Over),
            Err(AcquireError::Early(left)) => Err(Refusal::Early(left)),
            Err(denial) => Err(Refusal::Error(this.error(denial, waited()))),
        };
        let told = match &answer {
            Ok(_) => Ok(()),
            Err(Refusal::Error(error)) => Err(Some(error)),
            Err(Refusal::Over | Refusal::Early(_)) => Err(None),
        };
        observe::answered(&this.mutex.name, waited, told);
        Poll::Ready(answer)
    }
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Fence, AcquireError>> {
        let polled = self.helper.poll(cx, Slot::poll_decision);
        self.waits |= polled.is_pending();
        polled
    }

    /// Since when it waits, if it was not answered at once.
    fn since(&self) -> Option<Instant> {
        self.waits.then_some(self.since)
    }
}

impl Enter {
    fn guard(&self, ticket: Ticket, slot: Arc<Slot>, fence: Fence) -> Guard {
        Guard::new(
            self.mutex.handle.clone(),
            self.mutex.name.clone(),
            ticket,
            slot,
            fence,
        )
    }

    fn error(&self, denial: AcquireError, waited: Duration) -> Error {
        let key = self.mutex.name.key.clone();
        match denial {
            AcquireError::Busy | AcquireError::Over | AcquireError::Early(_) => Error::Busy { key, waited },
            AcquireError::QueueFull { waiting } => Error::QueueFull {
                key,
                waiting,
                limit: self.mutex.limit,
            },
            AcquireError::NodeFull => Error::NodeFull {
                key,
                waiting: self.mutex.handle.node().waiting(),
                limit: self.mutex.handle.options().waiters_per_node,
            },
            AcquireError::Store(source) => Error::Store { key, source },
            AcquireError::Closed => Error::Closed {
                key,
                why: ClosedCause::Shutdown,
            },
        }
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        if let State::Waiting(waiting) = &mut self.state {
            let node = self.mutex.handle.node();
            observe::gave_up(&self.mutex.name, || self.mutex.waited(waiting.since()));
            // First, so that nobody waits any more when the node is idle.
            node.answered();
            node.cancel(&self.mutex.name, waiting.ticket);
        }
    }
}
