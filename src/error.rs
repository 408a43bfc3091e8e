//! What can go wrong, sorted by what a caller does about it.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::key::Key;

/// Why a lock was not taken, not kept or not given back.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait was over before it was our turn. Try later.
    #[error("`{key}` is held by somebody else, gave up after {waited:?}: try again later or wait longer")]
    #[non_exhaustive]
    Busy {
        /// What was wanted.
        key: Key,
        /// How long the call waited.
        waited: Duration,
    },
    /// The lease ended while it was held: from some moment on somebody else may have had it. Stop, and treat what
    /// was done since as unprotected unless it was fenced.
    #[error("the lease on `{key}` was lost ({cause}): stop, somebody else may hold it now")]
    #[non_exhaustive]
    Lost {
        /// What was held.
        key: Key,
        /// How we know.
        cause: LostCause,
    },
    /// The caller runs in the [scope](crate::Guard::scope) of a guard of the same key, and would wait for itself. A fault
    /// of the program: pass the guard on, or take [another one](crate::Guard::again) of the same lease.
    #[error("`{key}` is held by the very code that waits for it: {}", deadlock(*is_upgrade))]
    #[non_exhaustive]
    WouldDeadlock {
        /// What was wanted.
        key: Key,
        /// The guard reads, and a writer was wanted. No reader can become a writer: two that tried would wait for each other.
        /// Release it and write, and look again at what was read; or write from the beginning, and
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
    /// Too many callers of this process wait already, whatever for, and this one would have to wait, too. Shed load.
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
    /// The latch is not set: it never was, or its life is over. Set it first.
    #[error("latch `{key}` is not set, or its life is over: set its count first")]
    #[non_exhaustive]
    Unset {
        /// Which latch.
        key: Key,
    },
    /// Whether the call counted is not known: its answer was lost, and the latch was set at about the time of the call. A further
    /// call would count in the present life of the latch, which may be a later one. Look how many are left
    /// ([`count`](crate::Latch::count)), or give each round a name of its own: then
    /// [`count_down_once`](crate::Latch::count_down_once) may be called again with the same id.
    #[error(
        "whether a count-down of latch `{key}` counted is not known: its answer was lost, and the latch was set at about that time"
    )]
    #[non_exhaustive]
    Uncertain {
        /// Which latch.
        key: Key,
    },
    /// The store did not do it, or the outcome is not known. [`StoreError::kind`] says which, and whether to page an operator or
    /// to mend the set-up.
    #[error("the store could not serve `{key}`: {source}")]
    #[non_exhaustive]
    Store {
        /// What was asked for.
        key: Key,
        /// What the store said.
        source: StoreError,
    },
    /// What was to be written [under a lease](crate::Lease::atomically) was sent, and no answer came. It may have been done, or
    /// may be done while that lease is current. Look at what it writes before it is done again.
    #[error(
        "no answer to a write under `{key}` ({source}): it may have been done, look before you repeat it"
    )]
    #[non_exhaustive]
    Unanswered {
        /// What was held.
        key: Key,
        /// What happened to the answer.
        source: StoreError,
    },
    /// What was to be written [under a lease](crate::Lease::atomically) failed, in the server's words. What it had written
    /// before that stands. A fault of the commands or the script, or of what they met.
    #[error("a write under `{key}` failed, and what it wrote before that stands: {said}")]
    #[non_exhaustive]
    Failed {
        /// What was held.
        key: Key,
        /// What the server said.
        said: String,
    },
    /// What was to be written [under a lease](crate::Lease::atomically) was done, and its reply is not of the type that was
    /// asked for. A fault of the program.
    #[error("a write under `{key}` was done, and its reply cannot be read: {why}")]
    #[non_exhaustive]
    Reply {
        /// What was held.
        key: Key,
        /// Why not.
        why: String,
    },
    /// Nothing can be [written under the lease](crate::Lease::atomically): the store keeps leases and no data of yours, or the
    /// leases of a [`MultiGuard`](crate::MultiGuard) are not of one server. A fault of the set-up.
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
    /// An option has a value that makes no sense. A fault of the program.
    #[error("{0}")]
    Options(#[from] OptionsError),
    /// The lease that was given up to whoever is told of it ([`Transfer`](crate::Transfer)) is not to be had: its time is over,
    /// somebody adopted it, or gave it back. This does not say that the work was done: the message may have waited for too
    /// long, or whoever adopted it may have died. Take the lock of the key, and look at the state of what it protects.
    #[error(
        "the lease on `{key}` that was handed on is gone: it ended, was given back, or somebody adopted it before"
    )]
    #[non_exhaustive]
    Gone {
        /// What was locked.
        key: Key,
    },
    /// The lease could not be [given up to others](crate::Guard::into_transfer), or a writer could not
    /// [become a reader](crate::Guard::downgrade), and the guard is still held. It is in this error, so that `?` releases nothing:
    /// [`into_guard`](Error::into_guard) takes it out. It is released when the last clone of this error is dropped.
    #[error("nothing was changed, and the guard is still held by this error: {source}")]
    #[non_exhaustive]
    StillHeld {
        /// Why nothing was changed.
        source: Box<Error>,
        /// The guard.
        guard: KeptGuard,
    },
    /// `shutdown` was called, or the process was forked: this handle takes no more locks. Where `shutdown` was called while the
    /// call was under way, what it asked for may have been done: a count-down, a proclamation, the release of a transfer.
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
        "a reader cannot become a writer, as two that tried would wait for each other; release it first, or write from \
         the beginning and `downgrade`"
    } else {
        "take `Guard::again` of what is held, or release it first"
    }
}

impl Error {
    /// Somebody else holds it, or too many wait: the same call may succeed later.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. } | Error::QueueFull { .. } | Error::NodeFull { .. }
        )
    }

    /// It was held and is no longer.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// The store could not be reached, or did not answer in time.
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

/// What ended a handle.
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

/// How we know that a lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
#[non_exhaustive]
pub enum LostCause {
    /// Its deadline passed without a renewal: the store was out of reach or this process stood still.
    #[strum(to_string = "its deadline passed: the store was out of reach, or this process stood still")]
    Deadline,
    /// The store says that it is no longer ours: it was deleted, overwritten, or forgotten.
    #[strum(to_string = "the store says it is no longer ours")]
    Gone,
    /// A lease of fixed length came to its end.
    #[strum(to_string = "its fixed length came to an end")]
    Ended,
    /// Its holder held it for longer than [`max_hold`](crate::Mutex::max_hold), so it was renewed no more.
    #[strum(to_string = "it was held for longer than its `max_hold`")]
    Overdue,
    /// This process gave it up in `shutdown`; or, as a job's run is told, in `drain`.
    #[strum(to_string = "this process gave it up in shutdown")]
    Shutdown,
    /// It was granted and not taken up in time: the future that waits for it was not polled before the lease ended, or for a
    /// whole lease. There was never a guard.
    #[strum(to_string = "it was not taken up in time: the future that waits for it was not polled")]
    Unfetched,
    /// It was released before.
    #[strum(to_string = "it was released")]
    Released,
    /// This process is a fork of the one that holds it.
    #[strum(to_string = "it is held by the process that this one was forked from")]
    Forked,
}

impl LostCause {
    /// Returns the cause as the caller is told: a grant that was not taken up had no guard to lose.
    pub(crate) fn seen_by(self, is_taken_up: bool) -> LostCause {
        if is_taken_up || self == LostCause::Shutdown {
            self
        } else {
            LostCause::Unfetched
        }
    }
}

/// An option with a value that makes no sense. The text names the option, its value and the bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub(crate) String);

/// What a store said instead of an answer.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Why a store did not do it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection. Nothing was executed.
    Unreachable,
    /// No answer in time: it may or may not have been executed.
    TimedOut,
    /// The connection ended before the answer came, or the server failed in the middle of it: it may or may not have been
    /// executed.
    Interrupted,
    /// The store answered that it would not.
    Refused(StoreRefusal),
}

/// Why a store refused a request. Nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// The key holds something that is not a lock, a job, a latch, an election or a semaphore, as the case may be.
    #[strum(
        to_string = "the key holds a value that is not a lock, a job, a latch, an election or a semaphore: use another key or prefix"
    )]
    WrongType,
    /// `OOM`: the server is at its memory limit.
    #[strum(to_string = "out of memory (OOM): raise maxmemory or free some")]
    OutOfMemory,
    /// `READONLY`: a replica, or a master that was demoted.
    #[strum(to_string = "the server is read-only (READONLY): connect to the master")]
    ReadOnly,
    /// `LOADING`: the server is reading its data.
    #[strum(to_string = "the server is loading its data (LOADING): try again when it is done")]
    Loading,
    /// `BUSY`: a script blocks the server.
    #[strum(to_string = "a script blocks the server (BUSY): SCRIPT KILL may help")]
    Busy,
    /// `MISCONF`: the server cannot persist and refuses writes.
    #[strum(to_string = "the server cannot persist and refuses writes (MISCONF): mend its disk")]
    Misconfigured,
    /// `NOREPLICAS`: too few replicas.
    #[strum(to_string = "too few replicas (NOREPLICAS): mend replication")]
    NoReplicas,
    /// `NOAUTH`: a password is needed.
    #[strum(to_string = "a password is needed (NOAUTH): put user and password into the URL")]
    NoAuth,
    /// `WRONGPASS`: the user or password is wrong.
    #[strum(to_string = "wrong user or password (WRONGPASS): mend the URL")]
    WrongPassword,
    /// `NOPERM`: the user may not do this.
    #[strum(
        to_string = "the user lacks a right (NOPERM), which `ACL LOG` of the server names: see the ACL in the README, and what writes of your own need"
    )]
    NoPermission,
    /// The server is too old or cannot do what is asked.
    #[strum(to_string = "the server cannot do this: Redis 6.2 or newer is needed")]
    Unsupported,
    /// Anything else, in the server's words.
    #[strum(to_string = "{0}")]
    Other(String),
}

impl StoreRefusal {
    /// Whether the same request may be accepted a little later without anybody mending anything.
    pub fn is_passing(&self) -> bool {
        use StoreRefusal::{Busy, Loading, Misconfigured, NoReplicas, OutOfMemory, ReadOnly};
        matches!(
            self,
            Busy | Loading | Misconfigured | NoReplicas | OutOfMemory | ReadOnly
        )
    }
}

impl StoreError {
    /// An error of `kind`, in a few words.
    #[doc(hidden)]
    pub fn new(kind: StoreErrorKind, message: impl fmt::Display) -> Self {
        StoreError {
            kind,
            message: message.to_string().into(),
            source: None,
        }
    }

    /// The same, with what lies below.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "memory has nothing below it")
    )]
    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The store refused.
    #[doc(hidden)]
    pub fn refused(refusal: StoreRefusal) -> Self {
        let message = refusal.to_string();
        StoreError::new(StoreErrorKind::Refused(refusal), message)
    }

    /// The same of a request that may have been executed: it is no refusal, whatever the server said.
    pub(crate) fn of_unknown_outcome(mut self) -> Self {
        if matches!(self.kind, StoreErrorKind::Refused(_)) {
            self.kind = StoreErrorKind::Interrupted;
        }
        self
    }

    /// Why, in a form to match on.
    pub fn kind(&self) -> &StoreErrorKind {
        &self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StoreErrorKind::Unreachable => write!(f, "unreachable: {}", self.message),
            StoreErrorKind::TimedOut => write!(f, "timed out: {}", self.message),
            StoreErrorKind::Interrupted => write!(f, "interrupted: {}", self.message),
            StoreErrorKind::Refused(_) => write!(f, "refused: {}", self.message),
        }
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
