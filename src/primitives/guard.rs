//! What a caller holds, and what its helpers may see of it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::driver::handle::Handle;
use crate::driver::waiter::Waiter;
use crate::error::{ClosedCause, Error, LostCause};
use crate::key::Key;
use crate::observe::{self, Began};
use crate::protocol::message::{Fence, Name};
use crate::protocol::step::{Outcome, Ticket};

/// The lock is held while this lives and [`is_held`](Self::is_held).
///
/// Dropping it releases the lock in the background, also outside of a runtime, and also when the runtime has ended.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    lease: Lease,
    done: bool,
}

/// Sees a lock that somebody else holds: for the handler behind a layer, and for tasks that work under a guard. Cheap
/// to clone. It does not keep the lock.
#[derive(Clone)]
pub struct Lease {
    held: Arc<Held>,
}

struct Held {
    handle: Handle,
    name: Name,
    ticket: Ticket,
    waiter: Arc<Waiter>,
    fence: Fence,
    began: Began,
}

impl Lease {
    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.held.name.key
    }

    /// The fencing token of this holding. It is larger than that of every holding of the key before it. Send it with
    /// each write, and let the resource refuse smaller ones: no lock can stop a process between its check and its
    /// write.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Nobody else holds the lock at this moment, under the [guarantees](crate#guarantees). It compares the deadline
    /// with the clock, so a process that was stopped and woke up is told `false` before anything else.
    pub fn is_held(&self) -> bool {
        self.held
            .handle
            .node()
            .remaining(&self.held.name, self.held.ticket)
            .is_some()
    }

    /// How long it would still be held if no renewal came through; zero when it is held no more.
    pub fn remaining(&self) -> Duration {
        self.held
            .handle
            .node()
            .remaining(&self.held.name, self.held.ticket)
            .unwrap_or_default()
    }

    /// Waits until it is held no more: lost, or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        let (token, waiter) = (self.held.waiter.token(), self.held.waiter.clone());
        async move {
            token.cancelled().await;
            waiter.over().unwrap_or(LostCause::Released)
        }
    }

    /// The same as a token: cancelled when it is held no more. Each call makes one of its own, so that whoever cancels
    /// theirs tells nobody else.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// The one token that is cancelled when it is held no more.
    pub(crate) fn end_token(&self) -> CancellationToken {
        self.held.waiter.token()
    }

    /// Why it is held no more, if that is known.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) fn over(&self) -> Option<LostCause> {
        self.held.waiter.over()
    }

    /// Runs `work` as long as the lock is held; its future is dropped when the lease is lost.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease was lost before the work was done, or when the deadline had passed when it was:
    /// then its last steps were not protected.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let mut work = pin!(work);
        let token = self.held.waiter.token();
        let mut lost = pin!(token.cancelled());
        poll_fn(|cx| {
            // Asked before each step: whoever slept past the deadline must not take another.
            if lost.as_mut().poll(cx).is_ready() || !self.is_held() {
                return Poll::Ready(Err(self.error()));
            }
            match work.as_mut().poll(cx) {
                Poll::Ready(done) if self.is_held() => Poll::Ready(Ok(done)),
                Poll::Ready(_) => Poll::Ready(Err(self.error())),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn error(&self) -> Error {
        let cause = self.held.waiter.over().unwrap_or(LostCause::Deadline);
        Error::Lost {
            key: self.key().clone(),
            cause,
        }
    }
}

impl Guard {
    pub(crate) fn new(handle: Handle, name: Name, ticket: Ticket, waiter: Arc<Waiter>, fence: Fence) -> Self {
        Guard {
            lease: Lease {
                held: Arc::new(Held {
                    began: Began::at(|| handle.node().clock.now().as_nanos()),
                    handle,
                    name,
                    ticket,
                    waiter,
                    fence,
                }),
            },
            done: false,
        }
    }

    /// A view of it, for others. It outlives the guard, and says so.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// See [`Lease::fence`].
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// See [`Lease::is_held`].
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// See [`Lease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// See [`Lease::lost`].
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        self.lease.lost()
    }

    /// See [`Lease::lost_token`].
    pub fn lost_token(&self) -> CancellationToken {
        self.lease.lost_token()
    }

    /// See [`Lease::run`].
    ///
    /// # Errors
    /// [`Error::Lost`], as there.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.lease.run(work).await
    }

    /// Told after the store: a recorder that panics does not keep the lock.
    fn tell_end(&self, over: Option<LostCause>) {
        let held = &self.lease.held;
        let now = || held.handle.node().clock.now().as_nanos();
        observe::held(&held.name, held.began, now, || over);
    }

    /// Gives the lock back, and says whether exclusivity held to this call.
    ///
    /// # Errors
    /// [`Error::Lost`] when it did not. [`Error::Store`] when it did, but the store could not be told: the lock is
    /// released in the background as soon as it can, and ends by itself otherwise.
    ///
    /// # Cancel safety
    /// The lock counts as given back from the first poll; dropping the future only loses the answer.
    pub async fn release(self) -> Result<(), Error> {
        self.give_back(false).await
    }

    /// Gives a job back whose tick was run to its end.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) async fn finish(self) -> Result<(), Error> {
        self.give_back(true).await
    }

    /// The number of the attempt at its tick this is.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) fn attempt(&self) -> u32 {
        let held = &self.lease.held;
        held.handle.node().attempt(&held.name, held.ticket)
    }

    async fn give_back(mut self, finished: bool) -> Result<(), Error> {
        let held = self.lease.held.clone();
        let lost = held.waiter.over();
        let node = held.handle.node();
        if node.is_forked() {
            // The parent holds it, and its driver is not here.
            self.done = true;
            let why = ClosedCause::Forked;
            return Err(Error::Closed {
                key: held.name.key.clone(),
                why,
            });
        }
        self.done = true;
        node.release(&held.name, held.ticket, finished);
        self.tell_end(lost);
        let outcome = poll_fn(|cx| held.waiter.poll_outcome(cx)).await;
        let key = held.name.key.clone();
        match outcome {
            Outcome::Kept => {
                observe::released(node.events.label(), &held.name);
                Ok(())
            }
            Outcome::Lost(cause) => {
                // Found only now. Any other loss was told when it happened.
                if cause == LostCause::Gone {
                    node.events.lost(&held.name, cause);
                }
                let cause = lost.unwrap_or(cause);
                Err(Error::Lost { key, cause })
            }
            Outcome::Failed(source) => {
                observe::release_failed(node.events.label(), &held.name, &source);
                Err(Error::Store { key, source })
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.done && !self.lease.held.handle.node().is_forked() {
            let held = &self.lease.held;
            let over = held.waiter.over();
            held.handle.node().cancel(&held.name, held.ticket);
            self.tell_end(over);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("fence", &self.fence().get())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("fence", &self.fence().get())
            .field("remaining", &self.remaining())
            .finish()
    }
}
