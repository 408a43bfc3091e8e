//! The error of a store: its kind, its refusals, and what it means for other callers.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The error of a store: a refusal, or no answer.
///
/// ```
/// use std::time::Duration;
/// use tenure::error::StoreError;
///
/// /// Returns when a worker tries again, or `None` if it must be corrected first.
/// fn pause(error: &StoreError) -> Option<Duration> {
///     match error.trouble() {
///         trouble if trouble.is_permanent() => None,
///         // The rest of a recovery, if it is known.
///         _ => Some(error.retry_after().unwrap_or(Duration::from_secs(1))),
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// How long the recovery of the server still lasts, if the server recovers and said so.
    retry_after: Option<Duration>,
    /// The caller gave up before the answer was late.
    #[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "only the layer asks"))]
    is_premature: bool,
}

/// Why a store did not serve a request.
///
/// ```
/// use tenure::error::{StoreError, StoreErrorKind};
///
/// /// Returns whether the request had certainly no effect.
/// fn is_harmless(error: &StoreError) -> bool {
///     match error.kind() {
///         StoreErrorKind::Unreachable | StoreErrorKind::Refused(_) => true,
///         StoreErrorKind::TimedOut | StoreErrorKind::Interrupted => false,
///         _ => false, // kinds of later versions
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection. Nothing was executed.
    Unreachable,
    /// No answer in time: the request may have been executed.
    TimedOut,
    /// The connection ended before the answer came, or the server failed during the request: it may have been executed.
    Interrupted,
    /// The store refused the request.
    Refused(StoreRefusal),
}

/// Why a store refused a request. Nothing was executed.
///
/// ```
/// use tenure::error::{StoreErrorKind, StoreRefusal};
///
/// fn advice(kind: &StoreErrorKind) -> String {
///     match kind {
///         StoreErrorKind::Refused(StoreRefusal::NoPermission) => "look at `ACL LOG`".to_owned(),
///         StoreErrorKind::Refused(refusal) => refusal.to_string(), // says what to do
///         _ => "look at the server and the network".to_owned(),
///     }
/// }
/// # assert!(advice(&StoreErrorKind::Refused(StoreRefusal::OutOfMemory)).contains("maxmemory"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// The key holds a value that is not the lock, job, latch, election or semaphore that the request is about.
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
    #[strum(to_string = "the server cannot persist and refuses writes (MISCONF): repair its disk")]
    Misconfigured,
    /// `NOREPLICAS`: too few replicas.
    #[strum(to_string = "too few replicas (NOREPLICAS): repair replication")]
    NoReplicas,
    /// `NOAUTH`: a password is needed.
    #[strum(to_string = "a password is needed (NOAUTH): put user and password into the URL")]
    NoAuth,
    /// `WRONGPASS`: the user or password is wrong.
    #[strum(
        to_string = "wrong user or password (WRONGPASS): correct the URL, or add the user to this server"
    )]
    WrongPassword,
    /// `NOPERM`: the user may not do this.
    #[strum(
        to_string = "the user lacks a right (NOPERM), which `ACL LOG` of the server names: see the rights in docs/redis.md (`tenure::guide::redis`), and those that guarded writes need"
    )]
    NoPermission,
    /// The server may have lost grants. It grants nothing until every earlier lease has ended.
    #[strum(
        to_string = "the server may have lost leases, and grants none until the earlier ones have ended: try again later"
    )]
    Recovering,
    /// The server answers, and cannot serve the request for now, in its own words: `CLUSTERDOWN`, `MASTERDOWN`, `TRYAGAIN`, a slot
    /// that moves, or too many clients.
    #[strum(to_string = "{0}")]
    Unready(String),
    /// The server is too old, or cannot do what the request needs.
    #[strum(to_string = "the server cannot do this: Redis 6.2 or newer is needed")]
    Unsupported,
    /// Anything else, in the server's words.
    #[strum(to_string = "{0}")]
    Other(String),
}

/// What a [`StoreError`] means for the callers of the same store: which of them are affected, and what ends it.
///
/// ```
/// use tenure::error::{StoreError, Trouble};
///
/// fn text(error: &StoreError) -> &'static str {
///     match error.trouble() {
///         Trouble::Unanswered | Trouble::Passing | Trouble::Recovering => "try again later",
///         Trouble::Key => "this key cannot be a lock",
///         _ => "call an operator",
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// The store did not answer, or did not accept the login (`NOAUTH`, `WRONGPASS`). Try again later.
    Unanswered,
    /// The store answers, and refuses for now: `LOADING`, `BUSY`, `READONLY`, `OOM`, `MISCONF`, `NOREPLICAS`, `CLUSTERDOWN`,
    /// `MASTERDOWN`, `TRYAGAIN`, or too many clients. Try again later.
    Passing,
    /// The server may have lost leases, and grants none until the earlier ones have ended: at
    /// [`retry_after`](StoreError::retry_after), if that is known.
    Recovering,
    /// The key holds another value (`WRONGTYPE`). Other keys are served. Remove the value, or use another key or prefix.
    Key,
    /// The store refuses every request of this kind: a right is missing (`NOPERM`), the store cannot do it, or it refuses in words
    /// that this crate does not know. Correct the configuration.
    Service,
}

impl Trouble {
    /// Returns whether the same request would be refused again until an operator or a developer corrects something.
    pub fn is_permanent(self) -> bool {
        match self {
            Trouble::Unanswered | Trouble::Passing | Trouble::Recovering => false,
            Trouble::Key | Trouble::Service => true,
        }
    }
}

impl StoreError {
    /// Creates an error of `kind` with a short message.
    #[doc(hidden)]
    pub fn new(kind: StoreErrorKind, message: impl fmt::Display) -> Self {
        StoreError {
            kind,
            message: message.to_string().into(),
            source: None,
            retry_after: None,
            is_premature: false,
        }
    }

    /// Creates the error of a caller that gave up before the answer was late. It says nothing about the server.
    pub(crate) fn premature(message: impl fmt::Display) -> Self {
        StoreError {
            is_premature: true,
            ..StoreError::new(StoreErrorKind::TimedOut, message)
        }
    }

    /// Adds the error of the client library.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "memory has nothing below it")
    )]
    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Creates the error of a refusal.
    #[doc(hidden)]
    pub fn refused(refusal: StoreRefusal) -> Self {
        let message = refusal.to_string();
        StoreError::new(StoreErrorKind::Refused(refusal), message)
    }

    /// Creates the error of a store that does not serve this, and says what to use instead.
    pub(crate) fn unsupported(why: impl fmt::Display) -> Self {
        StoreError::new(StoreErrorKind::Refused(StoreRefusal::Unsupported), why)
    }

    /// Returns whether the store does not serve this, or does not serve this process.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.kind == StoreErrorKind::Refused(StoreRefusal::Unsupported)
    }

    /// Creates the error of a server that recovers for so long.
    pub(crate) fn recovering(left: Duration) -> Self {
        StoreError {
            retry_after: Some(left),
            ..StoreError::refused(StoreRefusal::Recovering)
        }
    }

    /// Adds to the message what it is about.
    pub(crate) fn within(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    /// Returns this error for a request that may have been executed. Then it is no refusal, whatever the server said.
    pub(crate) fn of_unknown_outcome(mut self) -> Self {
        if matches!(self.kind, StoreErrorKind::Refused(_)) {
            (self.kind, self.retry_after) = (StoreErrorKind::Interrupted, None);
        }
        self
    }

    /// Returns the text without the kind of the error.
    #[cfg_attr(
        not(any(feature = "redis", feature = "scheduler")),
        allow(dead_code, reason = "only writes and jobs show it alone")
    )]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> &StoreErrorKind {
        &self.kind
    }

    /// Returns what the error means for other callers, and what ends it. Everything that asks whether an error passes asks this.
    pub fn trouble(&self) -> Trouble {
        use StoreRefusal::{
            Busy, Loading, Misconfigured, NoAuth, NoPermission, NoReplicas, Other, OutOfMemory, ReadOnly,
            Recovering, Unready, Unsupported, WrongPassword, WrongType,
        };
        let StoreErrorKind::Refused(refusal) = &self.kind else {
            return Trouble::Unanswered;
        };
        match refusal {
            NoAuth | WrongPassword => Trouble::Unanswered,
            Busy | Loading | Misconfigured | NoReplicas | OutOfMemory | ReadOnly | Unready(_) => {
                Trouble::Passing
            }
            Recovering => Trouble::Recovering,
            WrongType => Trouble::Key,
            NoPermission | Unsupported | Other(_) => Trouble::Service,
        }
    }

    /// Returns how long the server still recovers, and grants nothing. `None` for other errors, and if that is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns whether the caller gave up before the answer was late.
    #[cfg(feature = "tower")]
    pub(crate) fn is_premature(&self) -> bool {
        self.is_premature
    }

    /// Returns whether the server recovers, and grants nothing until earlier leases have ended.
    pub(crate) fn is_recovering(&self) -> bool {
        self.trouble() == Trouble::Recovering
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
