//! One holding of a lease, shared by its guards and by the views of it.

#[cfg(feature = "tower")]
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::driver::events::Counted;
use crate::driver::handle::Handle;
use crate::driver::node::Node;
use crate::driver::notes::NotePlace;
use crate::driver::waiter::{Waiter, cancelled};
use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::observe::Began;
use crate::observe::pending::Gauge;
use crate::primitives::call::CallFuture;
#[cfg(feature = "tower")]
use crate::primitives::offer::Offer;
use crate::protocol::claim::held_lease::Holding;
use crate::protocol::message::{CallAnswer, Fence, Mode, Name, RunEnding};
use crate::protocol::step::{Input, Ticket};

/// The [request](crate::inspect::Inspection::steal) of an operator for a lease.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// # use std::time::Duration;
/// let guard = locks.mutex("account:42").lock().await?;
/// tokio::select! {
///     notice = guard.asked() => if let Some(notice) = notice {
///         println!("{} wants {} within {:?}: {}", notice.by, notice.key, notice.grace, notice.why);
///     },
///     () = tokio::time::sleep(Duration::from_millis(5)) => {} // the work
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StealNotice {
    /// The key that the operator wants.
    pub key: Key,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
    /// How long the holder has until the lease is revoked.
    pub grace: Duration,
}

/// One holding of a lease by a caller.
pub(crate) struct Held {
    pub(crate) handle: Handle,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    /// The lease is renewed by its caller only, so its end is expected.
    pub(crate) fixed: bool,
    pub(crate) ticket: Ticket,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) fence: Fence,
    pub(crate) began: Began,
    /// Counts as held until the holding ends.
    pub(crate) counted: Counted,
    /// How many guards there are. The last one gives the lease back.
    guards: AtomicUsize,
    /// The place of its note; `None` inside if the holding was over at the first note.
    note: OnceLock<Option<NotePlace>>,
    /// How the run of its tick ended. Set when the run ends, and sent to the store when the last guard ends.
    finished: OnceLock<RunEnding>,
    /// The guard of the layer that acquired this lease alone.
    #[cfg(feature = "tower")]
    pub(crate) offer: Offer,
    /// The holdings that a layer acquired together with this one.
    #[cfg(feature = "tower")]
    group: OnceLock<Weak<HeldGroup>>,
}

/// The holdings of a multi-lock, shared by its guards and by the views of them.
pub(crate) struct HeldGroup {
    pub(crate) all: Box<[Arc<Held>]>,
    /// Cancelled when one of the leases ends. Made when it is first needed.
    pub(crate) end: OnceLock<CancellationToken>,
    /// The guard of the layer that acquired the leases.
    #[cfg(feature = "tower")]
    pub(crate) offer: Offer,
}

impl HeldGroup {
    pub(crate) fn new(all: Box<[Arc<Held>]>) -> Arc<Self> {
        Arc::new(HeldGroup {
            all,
            end: OnceLock::new(),
            #[cfg(feature = "tower")]
            offer: Offer::default(),
        })
    }
}

impl Held {
    /// Creates a holding with one guard.
    pub(crate) fn new(
        handle: Handle,
        (name, mode, fixed): (Name, Mode, bool),
        ticket: Ticket,
        waiter: Arc<Waiter>,
        fence: Fence,
    ) -> Self {
        Held {
            began: Began::at(|| handle.node().clock.now().as_nanos()),
            counted: handle.node().events.counted(Gauge::of_held(&name)),
            handle,
            name,
            mode,
            fixed,
            ticket,
            waiter,
            fence,
            guards: AtomicUsize::new(1),
            note: OnceLock::new(),
            finished: OnceLock::new(),
            #[cfg(feature = "tower")]
            offer: Offer::default(),
            #[cfg(feature = "tower")]
            group: OnceLock::new(),
        }
    }

    /// Returns the holdings that a layer acquired together with this one, while the layer or a task has their guard.
    #[cfg(feature = "tower")]
    pub(crate) fn group(&self) -> Option<Arc<HeldGroup>> {
        self.group.get()?.upgrade()
    }

    /// Notes that a layer acquired this holding as one of `group`.
    #[cfg(feature = "tower")]
    pub(crate) fn join(&self, group: &Arc<HeldGroup>) {
        self.group.get_or_init(|| Arc::downgrade(group));
    }

    /// Returns what the key machine knows of the holding; `None` after a step has ended it, and in a forked child.
    pub(crate) fn holding(&self) -> Option<Holding> {
        self.handle.node().holding(&self.name, self.ticket)
    }

    /// Renews the lease now. If the lease is over, the error says why it was lost.
    pub(crate) async fn renew(&self) -> Result<(), Error> {
        self.not_forked()?;
        let read = |answer: CallAnswer| answer.try_as_owned().map(drop);
        let renewed = CallFuture::renewal(&self.handle, &self.name, self.ticket, read).await;
        match renewed {
            Err(Error::Lost { .. }) if !self.is_held() => Err(self.lost()),
            renewed => renewed,
        }
    }

    /// Returns how long the lease lasts without a renewal; zero when it is over.
    pub(crate) fn remaining(&self) -> Duration {
        let remaining = self.holding().and_then(|holding| holding.remaining);
        remaining.unwrap_or_default()
    }

    /// Returns whether the lease is held at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.handle.node().is_held(&self.name, self.ticket, &self.waiter)
    }

    /// Returns whether `node` holds the lease.
    pub(crate) fn is_of(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(self.handle.node(), node)
    }

    /// Returns whether `node` holds the lease, and `name` is its name.
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

    /// Returns whether operators may be shown notes of this node.
    pub(crate) fn tells_notes(&self) -> bool {
        self.handle.options().presence
    }

    /// Keeps a text about the work of the holder, which operators are shown.
    pub(crate) fn note(&self, text: &str) {
        if !self.tells_notes() || self.waiter.is_over() || self.is_forked() {
            return;
        }
        let place = || {
            let node = self.handle.node();
            let (claim, since) = node.held_since(&self.name, self.ticket)?;
            let key = (since, claim, self.fence);
            Some(NotePlace::new(&node.presence.notes, &self.waiter, key))
        };
        if let Some(place) = self.note.get_or_init(place) {
            place.write(text);
        }
    }

    /// Notes how the run of the tick ended. The first call counts.
    #[cfg(feature = "scheduler")]
    pub(crate) fn finish(&self, ending: RunEnding) {
        self.finished.get_or_init(|| ending);
    }

    /// Returns the input that ends the holding, with the end of its tick if there is one. `is_awaited`: the caller waits for the
    /// answer.
    pub(crate) fn end(&self, is_awaited: bool) -> Input {
        match self.finished.get() {
            Some(ending) => Input::Finish(self.ticket, ending.clone()),
            None if is_awaited => Input::Release(self.ticket),
            None => Input::Cancel(self.ticket),
        }
    }

    /// Returns why the lease was lost, if that happened before it was given back.
    pub(crate) fn lost_before(&self) -> Option<LostCause> {
        self.waiter.over().filter(|cause| *cause != LostCause::Released)
    }

    /// Returns the error of a lease that the store says is over. The key machine learns that with the next renewal only.
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

    /// Refuses a call in a forked child: its parent holds the lease.
    ///
    /// # Errors
    /// [`Error::Closed`] in a fork.
    #[inline]
    pub(crate) fn not_forked(&self) -> Result<(), Error> {
        self.handle.not_forked(&self.name.key)
    }

    /// Returns whether this process is a fork of the process that holds the lease.
    pub(crate) fn is_forked(&self) -> bool {
        self.handle.node().is_forked()
    }

    /// Returns a token that is cancelled when the lease is over. In a forked child it is cancelled from the beginning.
    pub(crate) fn end_token(&self) -> CancellationToken {
        if self.is_forked() {
            return cancelled();
        }
        self.waiter.token()
    }

    /// Returns a token that is cancelled when the lease is not renewed any more, or is over.
    pub(crate) fn overdue_token(&self) -> CancellationToken {
        if self.is_forked() {
            return cancelled();
        }
        self.waiter.overdue_token()
    }

    /// Waits until an operator asks for the lease. `None`: the lease ended without that.
    pub(crate) async fn asked(&self) -> Option<StealNotice> {
        if self.is_forked() {
            return None;
        }
        self.waiter.asked_token().cancelled_owned().await;
        let (asking, until) = self.waiter.asked().filter(|_| !self.waiter.is_over())?;
        Some(StealNotice {
            key: self.name.key.clone(),
            by: asking.by.clone(),
            why: asking.why.clone(),
            grace: until.since(self.handle.node().clock.now()),
        })
    }

    /// Returns why the lease is over, if that is known.
    pub(crate) fn over(&self) -> Option<LostCause> {
        if self.is_forked() {
            return Some(LostCause::Forked);
        }
        self.waiter.over()
    }

    /// Returns the error that says why the lease is over.
    pub(crate) fn lost(&self) -> Error {
        if let Err(forked) = self.not_forked() {
            return forked;
        }
        // A lease that is being given back counts as released before the store has answered.
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
