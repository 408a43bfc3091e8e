//! The errors, sorted by what a caller does about each.
//!
//! | the caller | errors |
//! |---|---|
//! | tries later, or sheds load | [`Busy`](Error::Busy), [`QueueFull`](Error::QueueFull), [`NodeFull`](Error::NodeFull): [`is_busy`](Error::is_busy) |
//! | tries later, when the store is back | [`Store`](Error::Store) and [`Connect`](Error::Connect), unless the [trouble](StoreError::trouble) is permanent |
//! | stops | [`Lost`](Error::Lost): [`is_lost`](Error::is_lost); [`Closed`](Error::Closed) |
//! | looks at the data first: something may have been done | [`Gone`](Error::Gone), [`Uncertain`](Error::Uncertain), [`Unanswered`](Error::Unanswered), [`Failed`](Error::Failed), [`Reply`](Error::Reply) |
//! | takes the guard out of the error | [`StillHeld`](Error::StillHeld), whose source is [`InUse`](Error::InUse) or another error |
//! | corrects the program or the configuration | [`Key`](Error::Key), [`Options`](Error::Options), [`WouldDeadlock`](Error::WouldDeadlock), [`Unset`](Error::Unset), [`Unsupported`](Error::Unsupported); [`Store`](Error::Store) with a permanent trouble |
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
//! # use std::time::Duration;
//! use tenure::{Error, Locks};
//!
//! /// The status with which a service answers.
//! fn status(error: &Error) -> u16 {
//!     match error {
//!         error if error.is_busy() => 429,
//!         Error::Store { source, .. } if !source.trouble().is_permanent() => 503,
//!         _ => 500,
//!     }
//! }
//!
//! let account = Locks::memory().mutex("account:42");
//! let guard = account.lock().await?;
//! let error = account.lock_timeout(Duration::from_millis(10)).await.unwrap_err();
//! assert_eq!(status(&error), 429);
//! # guard.release().await }
//! ```
//!
//! # Busy
//!
//! `lock_timeout` and the like return [`Error::Busy`] in two cases. A caller of this process holds the key when the wait ends. Or
//! the store said that the key is held, and the store was not silent at the end of the wait. Otherwise they return
//! [`Error::Store`]. A server that needs more than 200 ms for an answer counts as silent.
//!
//! # Full
//!
//! If too many callers wait, a call returns [`Error::QueueFull`] (for one key) or [`Error::NodeFull`] (for the process) at once.
//! [`Mutex::max_waiters`](crate::Mutex::max_waiters) and the [`Builder`](crate::Builder::max_waiters_per_key) set the limits.
//!
//! # Unavailable
//!
//! A caller that already waits when an outage begins continues to wait during the outage, for at most one lease. The caller also
//! does this if another caller of its own process holds the key. Other callers get [`Error::Store`]. [`StoreErrorKind`] says
//! whether the request was executed, and [`Trouble`] what ends the outage.
//!
//! # Repeated calls
//!
//! A call whose answer was lost is sent again, and takes effect once. Three kinds of calls are sent only once: a write
//! [under a lease](crate::Lease::atomically), a step of a [steal](crate::inspect::Steal), and `jobs().forget`. If the repeat of a
//! call is refused, the error is [`TimedOut`](StoreErrorKind::TimedOut) or [`Interrupted`](StoreErrorKind::Interrupted), because
//! the first attempt may have been executed.
//!
//! # A guard that is still held
//!
//! [`downgrade`](crate::Guard::downgrade) and [`into_transfer`](crate::Guard::into_transfer) consume the guard, and a refusal
//! gives it back: [`TransferError::Refused`](crate::TransferError::Refused). The operator `?` moves it into
//! [`Error::StillHeld`]. So `?` does not release the lock, and the caller can continue under it:
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
//! # use std::time::Duration;
//! # let locks = tenure::Locks::memory();
//! use tenure::{Error, Guard, Transfer};
//!
//! async fn hand_over(guard: Guard) -> Result<Transfer, Error> {
//!     Ok(guard.into_transfer(Duration::from_secs(60)).await?)
//! }
//!
//! let first = locks.mutex("order:7").lock().await?;
//! let other = first.clone(); // keeps the lease in this process
//! let error = hand_over(first).await.unwrap_err();
//! let guard = error.into_guard().expect("it is still held");
//! assert!(guard.is_held());
//! # drop(other); guard.release().await }
//! ```
//!
//! # Loss
//!
//! A lease is lost if it ends before its guard does; [`LostCause`] says why. The holder must stop its work, because another
//! holder may have the lock now. Writes that are sent after a loss are not protected, unless the resource checks their
//! [fence](crate::Lease::fence) or they are written [under the lease](crate::Lease::atomically). [`Lease`](crate::Lease) has the
//! ways to notice a loss early, and to end the work then.

mod store_error;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::key::Key;

pub use crate::error::store_error::{StoreError, StoreErrorKind, StoreRefusal, Trouble};

/// The error of a lock that was not acquired, not kept or not given back, or of a call that failed. The
/// [module](crate::error) sorts the variants by what to do.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # use std::time::Duration;
/// # let locks = tenure::Locks::memory();
/// use tenure::Error;
///
/// match locks.mutex("account:42").lock_timeout(Duration::from_secs(2)).await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.is_busy() => println!("try later: {error}"),
///     Err(Error::Closed { .. }) => println!("this process ends"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait ended before the caller's turn. Try later.
    #[error("`{key}` is held by another caller, gave up after {waited:?}: try again later or wait longer")]
    #[non_exhaustive]
    Busy {
        /// What was wanted.
        key: Key,
        /// How long the call waited.
        waited: Duration,
    },
    /// The lease ended while it was held, and another caller may hold it since then. See [loss](crate::error#loss).
    #[error("the lease on `{key}` was lost ({cause}): stop, another caller may hold it now")]
    #[non_exhaustive]
    Lost {
        /// What was held.
        key: Key,
        /// Why it ended.
        cause: LostCause,
    },
    /// The caller runs in the [scope](crate::Lease::scope) of a guard of the same key, and would wait for itself. A fault
    /// of the program: pass the guard on, or make [another guard](crate::Lease::again) of the same lease.
    #[error("`{key}` is held by the code that waits for it: {}", deadlock(*is_upgrade))]
    #[non_exhaustive]
    WouldDeadlock {
        /// What was wanted.
        key: Key,
        /// The guard is a reader's, and the caller wants to write. No reader can become a writer: two readers that tried would
        /// wait for each other. Release the guard, write, and read the data again; or write from the beginning, and
        /// [`downgrade`](crate::Guard::downgrade).
        is_upgrade: bool,
    },
    /// Too many callers wait already. Shed load.
    #[error("{waiting} callers already wait for `{key}`, the limit is {limit}: shed load or raise the limit")]
    #[non_exhaustive]
    QueueFull {
        /// What was wanted.
        key: Key,
        /// How many wait.
        waiting: usize,
        /// The limit that was met.
        limit: usize,
    },
    /// Too many callers of this process wait already, for any keys, and this caller would have to wait, too. Shed load.
    #[error(
        "`{key}` is taken and {waiting} callers of this process wait already, the limit is {limit}: shed load or raise the limit"
    )]
    #[non_exhaustive]
    NodeFull {
        /// What was wanted.
        key: Key,
        /// How many wait.
        waiting: usize,
        /// The limit that was met.
        limit: usize,
    },
    /// The latch is not set: it was never set, or its life is over. Set it first.
    #[error("latch `{key}` is not set, or its life is over: set its count first")]
    #[non_exhaustive]
    Unset {
        /// Which latch.
        key: Key,
    },
    /// It is unknown whether the call counted: its answer was lost, and the latch was set at about the time of the call. Another
    /// call counts in the present life of the latch, which may be a later one. Read how many count-downs are left
    /// ([`count`](crate::Latch::count)), or give each round a name of its own: then
    /// [`count_down_once`](crate::Latch::count_down_once) may be called again with the same id.
    #[error(
        "it is unknown whether a count-down of latch `{key}` counted: its answer was lost, and the latch was set at about that time"
    )]
    #[non_exhaustive]
    Uncertain {
        /// Which latch.
        key: Key,
    },
    /// The store did not execute the request, or the outcome is unknown. [`StoreError::kind`] says which, and
    /// [`StoreError::trouble`] whether to try later or to correct something.
    #[error("the store could not serve `{key}`: {source}")]
    #[non_exhaustive]
    Store {
        /// What was asked for.
        key: Key,
        /// What the store said.
        source: StoreError,
    },
    /// A write [under a lease](crate::Lease::atomically) was sent, and no answer came. It may have been executed, or may be executed
    /// while that lease is current. Read the data before you repeat the write.
    #[error(
        "no answer to a write under `{key}` ({source}): it may have been executed, read the data before you repeat it"
    )]
    #[non_exhaustive]
    Unanswered {
        /// What was held.
        key: Key,
        /// What happened to the answer.
        source: StoreError,
    },
    /// A write [under a lease](crate::Lease::atomically) failed, in the server's words. What it wrote before the failure stays. A
    /// fault of the commands or the script, or of the data.
    #[error("a write under `{key}` failed, and what it wrote before that stays: {message}")]
    #[non_exhaustive]
    Failed {
        /// What was held.
        key: Key,
        /// What the server said.
        message: String,
    },
    /// A write [under a lease](crate::Lease::atomically) was executed, and its reply is not of the type that the caller asked for. A
    /// fault of the program.
    #[error("a write under `{key}` was executed, and its reply cannot be read: {why}")]
    #[non_exhaustive]
    Reply {
        /// What was held.
        key: Key,
        /// Why not.
        why: String,
    },
    /// Nothing can be [written under the lease](crate::Lease::atomically): the store keeps leases and no other data, or the leases of
    /// a [`MultiGuard`](crate::MultiGuard) and the keys of the write are not all in one place. A fault of the configuration.
    #[error("nothing can be written under the lease on `{key}`: {why}")]
    #[non_exhaustive]
    Unsupported {
        /// What is held.
        key: Key,
        /// Why not.
        why: String,
    },
    /// The store cannot be used: there are no [`Locks`](crate::Locks), or a [`ping`](crate::Locks::ping) had no answer. The text
    /// names the server, without its password.
    #[error("cannot use {store}: {source}")]
    #[non_exhaustive]
    Connect {
        /// Which store.
        store: String,
        /// What it said.
        source: StoreError,
    },
    /// The key cannot be the name of a lock. A fault of the program.
    #[error("a lock's key has 1 to {limit} bytes, this one has {length}: `{key}`")]
    #[non_exhaustive]
    Key {
        /// The key.
        key: Key,
        /// Its length in bytes.
        length: usize,
        /// The longest that is allowed.
        limit: usize,
    },
    /// An option has an invalid value. A fault of the program.
    #[error("{0}")]
    Options(#[from] OptionsError),
    /// The lease of a [`Transfer`](crate::Transfer) is gone: it ended, another process adopted it, or it was given back. This does
    /// not say that the work was done: the message may have waited for too long, or the process that adopted the lease may have
    /// died. Acquire the lock of the key, and look at the state of the data that it protects.
    #[error(
        "the lease on `{key}` that was handed on is gone: it ended, was given back, or was adopted before"
    )]
    #[non_exhaustive]
    Gone {
        /// What was locked.
        key: Key,
    },
    /// The lease cannot be [given up to others](crate::Guard::into_transfer) for now, because other callers of this process read by
    /// it, too. Comes in [`Error::StillHeld`].
    #[error(
        "cannot transfer the lease on `{key}`: other callers of this process read by it: try again later, or use a fixed lease"
    )]
    #[non_exhaustive]
    InUse {
        /// What is held.
        key: Key,
    },
    /// The lease could not be [given up to others](crate::Guard::into_transfer), or a writer could not
    /// [become a reader](crate::Guard::downgrade), and [the guard is still held](crate::error#a-guard-that-is-still-held).
    /// [`into_guard`](Error::into_guard) takes the guard out. The last clone of this error releases it when it is dropped.
    #[error("nothing was changed, and the guard is still held by this error: {source}")]
    #[non_exhaustive]
    StillHeld {
        /// Why nothing was changed.
        source: Box<Error>,
        /// The guard.
        guard: KeptGuard,
    },
    /// `shutdown` was called, or the process was forked: this handle acquires no more locks. If `shutdown` was called while a call
    /// was in flight, the call may have been executed: a count-down, a proclamation, or the release of a transfer.
    #[error("cannot go on with `{key}`: {why}")]
    #[non_exhaustive]
    Closed {
        /// What was wanted.
        key: Key,
        /// What ended the handle.
        why: ClosedCause,
    },
}

fn deadlock(is_upgrade: bool) -> &'static str {
    if is_upgrade {
        "a reader cannot become a writer, as two readers that tried would wait for each other; release it first, or write from \
         the beginning and `downgrade`"
    } else {
        "make another guard by `Lease::again`, or release the guard first"
    }
}

impl Error {
    /// Returns whether another caller holds the lock or too many callers wait: the same call may succeed later.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. } | Error::QueueFull { .. } | Error::NodeFull { .. }
        )
    }

    /// Returns whether a lease was held and is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// Returns whether the store could not be reached, or did not answer in time.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Error::Store { source, .. } | Error::Connect { source, .. } => {
                !matches!(source.kind(), StoreErrorKind::Refused(_))
            }
            Error::StillHeld { source, .. } => source.is_unreachable(),
            _ => false,
        }
    }
}

/// A guard that is still held, in an [`Error::StillHeld`] and its clones. [`Error::into_guard`] takes it out.
#[derive(Clone)]
pub struct KeptGuard(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl KeptGuard {
    pub(crate) fn new(guard: impl Any + Send) -> Self {
        KeptGuard(Arc::new(Mutex::new(Some(Box::new(guard)))))
    }

    pub(crate) fn take<G: Any>(self) -> Option<G> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = kept.take()?.downcast().ok()?;
        Some(*guard)
    }
}

impl fmt::Debug for KeptGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptGuard")
    }
}

/// The reason why a handle is closed.
///
/// ```
/// # #[tokio::main] async fn main() {
/// # let locks = tenure::Locks::memory();
/// use tenure::{Error, error::ClosedCause};
///
/// locks.shutdown().await;
/// match locks.mutex("account:42").lock().await {
///     Err(Error::Closed { why: ClosedCause::Forked, .. }) => println!("build `Locks` in the child"),
///     Err(Error::Closed { why, .. }) => assert_eq!(why, ClosedCause::Shutdown),
///     _ => unreachable!("these locks are shut down"),
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum ClosedCause {
    /// `shutdown` was called.
    #[strum(to_string = "this `Locks` was shut down")]
    Shutdown,
    /// The process was forked; a child must build its own `Locks`.
    #[strum(to_string = "the process was forked, build a `Locks` of its own in the child")]
    Forked,
}

/// The reason why a lease is over.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # use std::time::Duration;
/// # let locks = tenure::Locks::memory();
/// use tenure::error::LostCause;
///
/// let guard = locks.mutex("account:42").fixed(Duration::from_millis(400)).lock().await?;
/// match guard.lost().await {
///     LostCause::Ended => println!("the fixed lease came to its end"),
///     LostCause::Deadline => println!("the store was unavailable, or this process stood still"),
///     cause => println!("lost: {cause}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
#[non_exhaustive]
pub enum LostCause {
    /// Its deadline passed without a renewal: the store was unavailable, or this process was stopped.
    #[strum(to_string = "its deadline passed: the store was unavailable, or this process was stopped")]
    Deadline,
    /// The store answered that this process does not have the lease: it was deleted, overwritten or forgotten, or revoked, if a
    /// refused write or transfer shows that first.
    #[strum(to_string = "the store no longer has it for this process")]
    Gone,
    /// A lease of fixed length came to its end.
    #[strum(to_string = "its fixed length came to an end")]
    Ended,
    /// Its holder held it for longer than [`max_hold`](crate::Mutex::max_hold), so it was not renewed any more.
    #[strum(to_string = "it was held for longer than its `max_hold`")]
    Overdue,
    /// An operator [revoked](crate::inspect::Inspection::steal) it. It excludes others until its guard is dropped or until its
    /// deadline, unless the operator handed it over at once.
    #[strum(to_string = "an operator revoked it")]
    Revoked,
    /// This process gave it up in `shutdown`, or in `drain` for the run of a job.
    #[strum(to_string = "this process gave it up in shutdown")]
    Shutdown,
    /// It was granted and not taken up in time: the future that waited for it was not polled before the lease ended, or for a
    /// whole lease. There was never a guard.
    #[strum(to_string = "it was not taken up in time: the future that waited for it was not polled")]
    Unfetched,
    /// It was released before.
    #[strum(to_string = "it was released")]
    Released,
    /// This process is a fork of the process that holds it.
    #[strum(to_string = "it is held by the process that this one was forked from")]
    Forked,
}

impl LostCause {
    /// Returns the cause that the caller is told. A grant that was not taken up had no guard to lose.
    pub(crate) fn seen_by(self, is_taken_up: bool) -> LostCause {
        if is_taken_up || self == LostCause::Shutdown {
            self
        } else {
            LostCause::Unfetched
        }
    }
}

/// An option with an invalid value. The text names the option, its value and the bounds.
///
/// ```
/// # use std::time::Duration;
/// let error = tenure::Locks::builder().lease(Duration::from_millis(20)).memory().unwrap_err();
/// assert!(error.to_string().starts_with("a lease lasts 400ms to 30 days, not 20ms"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub(crate) String);
