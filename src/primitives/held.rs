//! What is held: shared by its guards and by whoever only looks at it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::driver::handle::Handle;
use crate::driver::node::Node;
use crate::driver::waiter::{Waiter, cancelled};
use crate::error::{Error, LostCause};
use crate::observe::Began;
use crate::protocol::key::claim::Holding;
use crate::protocol::message::{Fence, Mode, Name};
use crate::protocol::step::{Input, Ticket};

/// One holding of a lease by a caller.
pub(crate) struct Held {
    pub(crate) handle: Handle,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    /// It is never renewed: that it ends is no trouble.
    pub(crate) fixed: bool,
    pub(crate) ticket: Ticket,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) fence: Fence,
    pub(crate) began: Began,
    /// It is given back with the last of its guards.
    guards: AtomicUsize,
    /// Its tick was run to its end, and whether that went well: told to the store with the last of its guards.
    finished: OnceLock<bool>,
}

impl Held {
    /// With one guard.
    pub(crate) fn new(
        handle: Handle,
        (name, mode, fixed): (Name, Mode, bool),
        ticket: Ticket,
        waiter: Arc<Waiter>,
        fence: Fence,
    ) -> Self {
        Held {
            began: Began::at(|| handle.node().clock.now().as_nanos()),
            handle,
            name,
            mode,
            fixed,
            ticket,
            waiter,
            fence,
            guards: AtomicUsize::new(1),
            finished: OnceLock::new(),
        }
    }

    /// Returns what the key machine knows of it, until a step ends it.
    pub(crate) fn holding(&self) -> Option<Holding> {
        self.handle.node().holding(&self.name, self.ticket)
    }

    /// Returns how long it is still held without a renewal; zero when it is over.
    pub(crate) fn remaining(&self) -> Duration {
        let remaining = self.holding().and_then(|holding| holding.remaining);
        remaining.unwrap_or_default()
    }

    /// It is held at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.handle.node().is_held(&self.name, self.ticket, &self.waiter)
    }

    pub(crate) fn is_of(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(self.handle.node(), node)
    }

    pub(crate) fn is_on(&self, node: &Arc<Node>, name: &Name) -> bool {
        self.name == *name && self.is_of(node)
    }

    /// Counts one guard more. Returns false, and counts nothing, if the last guard is gone.
    pub(crate) fn add_guard(&self) -> bool {
        let more = |guards| (guards > 0).then_some(guards + 1);
        let joined = self
            .guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        joined.is_ok()
    }

    /// Removes the guard if it is the only one, and returns whether it was.
    pub(crate) fn remove_only_guard(&self) -> bool {
        let removed = self
            .guards
            .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire);
        removed.is_ok()
    }

    /// Removes one guard, and returns whether it was the last one.
    pub(crate) fn remove_guard(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Its tick was run to its end. What is said first counts.
    #[cfg(feature = "scheduler")]
    pub(crate) fn finish(&self, well: bool) {
        self.finished.get_or_init(|| well);
    }

    /// Returns what ends it: its tick is told with it, and the caller waits for the answer or does not.
    pub(crate) fn end(&self, is_awaited: bool) -> Input {
        match self.finished.get() {
            Some(well) => Input::Finish(self.ticket, *well),
            None if is_awaited => Input::Release(self.ticket),
            None => Input::Cancel(self.ticket),
        }
    }

    /// Why it was lost, if it was before it was given back.
    pub(crate) fn lost_before(&self) -> Option<LostCause> {
        self.waiter.over().filter(|cause| *cause != LostCause::Released)
    }

    /// The store says that it is over, which is known here only with the next renewal.
    #[cfg(any(feature = "redis", feature = "scheduler"))]
    pub(crate) fn gone(&self) -> Error {
        match self.lost() {
            Error::Lost { key, .. } if self.is_held() => Error::Lost {
                key,
                cause: LostCause::Gone,
            },
            lost => lost,
        }
    }

    /// Refuses a call in a forked child, whose parent holds it.
    ///
    /// # Errors
    /// [`Error::Closed`] in a fork.
    #[inline]
    pub(crate) fn not_forked(&self) -> Result<(), Error> {
        self.handle.not_forked(&self.name.key)
    }

    /// This process is a fork of the one that holds it.
    pub(crate) fn is_forked(&self) -> bool {
        self.handle.node().is_forked()
    }

    /// Cancelled when it is held no more: in a forked child from the beginning.
    pub(crate) fn end_token(&self) -> CancellationToken {
        if self.is_forked() {
            return cancelled();
        }
        self.waiter.token()
    }

    /// Cancelled when it is renewed no more, or held no more.
    pub(crate) fn overdue_token(&self) -> CancellationToken {
        if self.is_forked() {
            return cancelled();
        }
        self.waiter.overdue_token()
    }

    /// Why it is held no more, if that is known.
    pub(crate) fn over(&self) -> Option<LostCause> {
        if self.is_forked() {
            return Some(LostCause::Forked);
        }
        self.waiter.over()
    }

    /// Why it is held no more.
    pub(crate) fn lost(&self) -> Error {
        if let Err(forked) = self.not_forked() {
            return forked;
        }
        // What is being given back is told as that before the store has answered.
        let is_given_back = self.guards.load(Ordering::Acquire) == 0;
        let cause = match (is_given_back, self.fixed) {
            (true, _) => LostCause::Released,
            (false, true) => LostCause::Ended,
            (false, false) => LostCause::Deadline,
        };
        Error::Lost {
            key: self.name.key.clone(),
            cause: self.waiter.over().unwrap_or(cause),
        }
    }
}
