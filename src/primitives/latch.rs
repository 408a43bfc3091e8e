//! Latches: a number that is counted down to zero, across all processes that use the store.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::options::LONGEST_LEASE;
use crate::primitives::call::CallFuture;
use crate::primitives::target::Target;
use crate::primitives::within::within;
use crate::protocol::message::{Call, CallAnswer, CallTime, LatchReport, Payload};

/// The largest count that a latch can be set to.
const MAX_COUNT: u32 = 10_000;
/// The shortest life of a latch. With a shorter life, a waiter looks hardly once.
const MIN_LIFE: Duration = Duration::from_secs(1);
/// The default life of a latch.
const DEFAULT_LIFE: Duration = Duration::from_secs(24 * 3600);

/// A count-down latch: its waiters go on when as many calls have counted down as it was set to. For example: "open the books
/// when all parts are imported". Made by [`Locks::latch`](crate::Locks::latch); cheap to make and to clone.
///
/// One caller sets the latch, other callers count down, and any number of tasks in any process wait. The latch stays at zero
/// until its [life](Self::life) is over, so a late waiter still finds it there. Then the store forgets the latch, and a caller
/// may set it again. Give each round a name of its own, such as `import:2026-11-23`.
///
/// Each call counts once. If its answer is lost, the call is sent again under the same id. It counts only in the life in which it
/// was made, and never in a later one. A worker that may be started twice counts by
/// [`count_down_once`](Self::count_down_once), and does not set the latch again.
///
/// A latch has no holder, no guard and no fence. If a process dies before it counts down, the waiters wait on. Give each
/// process a lock if its death must be noticed, or wait with a [timeout](Self::wait_timeout).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let parts = locks.latch("import:2026-11-23");
/// assert!(parts.try_set_count(2).await?);
/// for part in ["customers", "orders"] {
///     let parts = parts.clone();
///     tokio::spawn(async move { parts.count_down_once(part).await });
/// }
/// parts.wait().await?;
/// assert_eq!(parts.count().await?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a latch does nothing until it is set, counted down or waited for"]
pub struct Latch {
    /// The handle, the name and the options of the latch's calls. A latch has no owner.
    target: Target,
    life: Duration,
}

impl Latch {
    pub(crate) fn new(target: Target) -> Self {
        Latch {
            target,
            life: DEFAULT_LIFE,
        }
    }

    /// Sets the life of the latch that this handle sets: 1 s to 30 days, 24 hours by default. After it the store forgets the
    /// latch, whether it came to zero or not, and tasks that still wait get [`Error::Unset`].
    pub fn life(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Returns the key of the latch.
    pub fn key(&self) -> &Key {
        self.target.key()
    }

    /// Sets the latch to `count`, 1 to 10,000, if it is not set, and returns whether it did.
    ///
    /// A latch is set once per name and [life](Self::life). While it is set, also at zero, this call changes nothing and returns
    /// `false`. So a worker that is started again does not set it again. If all nights share one name, the call of the second
    /// night returns `false`, and the workers of both nights count in one latch. Takes one round trip.
    ///
    /// # Errors
    /// [`Error::Options`] for a count or a [life](Self::life) out of bounds. [`Error::Key`], [`Error::Store`] and
    /// [`Error::Closed`] as of a lock. If [`shutdown`](crate::Locks::shutdown) is called meanwhile, the latch may have been set.
    ///
    /// # Cancel safety
    /// Nothing is held. If the future is dropped, the latch may have been set; [`count`](Self::count) says whether it is.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(self.refuse(format_args!("is set to 1 to {MAX_COUNT}, not to {count}")));
        }
        if !(MIN_LIFE..=LONGEST_LEASE).contains(&self.life) {
            return Err(self.refuse(format_args!("lives for 1 s to 30 days, not {:?}", self.life)));
        }
        let life_ms = self.life.as_millis() as u64;
        let id = Payload(random_id().into());
        let set = Call::SetCount { count, life_ms };
        Ok(self.ask(set, Some(id))?.await? == LatchReport::Set)
    }

    /// Counts down by one, and returns how many count-downs are left. At zero it changes nothing and returns zero.
    ///
    /// Takes one round trip, also in a process that never used the latch. Takes two if the latch was set within about the last
    /// round trip.
    ///
    /// The call counts once, however often it is repeated after a lost answer, and only in the life in which it was made. If that
    /// life is over, and the latch was set again meanwhile, it returns zero. If the server's clock is stepped between the call and a
    /// repeat, the call may count in a later life.
    ///
    /// # Errors
    /// [`Error::Unset`] if the latch is not set. [`Error::Uncertain`] if an answer was lost and the latch was set at about the time
    /// of the call. [`Error::Store`] if the store did not answer. [`Error::Closed`] as of a lock, and if
    /// [`shutdown`](crate::Locks::shutdown) is called meanwhile. After the last three errors the call may have counted.
    /// [`Error::Key`] as of a lock. A caller that must repeat the call after such an error uses
    /// [`count_down_once`](Self::count_down_once), and a latch with another name for each round.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call may have counted or may still count, but never twice.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_as(random_id()).await
    }

    /// Counts down as [`count_down`](Self::count_down), once per `id` in the life of the latch, and returns what was left then. The
    /// calls may come from any process: this is for workers that may be started twice. An id has 1 byte or more, and is at most as
    /// long as a key.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down). [`Error::Options`] for an id that is empty or too long.
    ///
    /// A call after an error is a new call, and counts in the life in which it is made. If the first call was counted, and the latch
    /// was set again since, both count, each in another life. If each round has a name of its own, the call may be repeated with
    /// the same id until it is answered.
    ///
    /// # Cancel safety
    /// As [`count_down`](Self::count_down).
    pub async fn count_down_once(&self, id: impl AsRef<[u8]>) -> Result<u32, Error> {
        let (id, limit) = (id.as_ref(), self.target.handle.options().max_key);
        if id.is_empty() || id.len() > limit {
            let length = id.len();
            return Err(self.refuse(format_args!(
                "counts down once by an id of 1 to {limit} bytes, not {length}"
            )));
        }
        // The first letter keeps ids of callers apart from random ids.
        self.count_down_as([b"o", id].concat()).await
    }

    async fn count_down_as(&self, id: Vec<u8>) -> Result<u32, Error> {
        let id = Payload(id.into());
        let count = |called| self.ask(Call::CountDown { called }, Some(id.clone()));
        let mut report = count(CallTime::default())?.await?;
        // The latch was set at about the time of the call. The store did nothing, and named the latch, which the call means.
        if let LatchReport::SetMeanwhile(generation) = report {
            let of = Some(generation);
            let called = CallTime::default();
            report = count(CallTime { of, ..called })?.await?;
        }
        match report {
            LatchReport::Left(left) => Ok(left),
            LatchReport::Uncertain => {
                let key = self.key().clone();
                Err(Error::Uncertain { key })
            }
            LatchReport::Unset => Err(self.unset()),
            // The life of the latch is over, or no count-down is left.
            _ => Ok(0),
        }
    }

    /// Returns how many count-downs are left, as the store knows. Other callers may count down while the answer travels. Takes
    /// one round trip.
    ///
    /// # Errors
    /// [`Error::Unset`] if the latch is not set. [`Error::Key`], [`Error::Store`] and [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn count(&self) -> Result<u32, Error> {
        let report = self.ask(Call::Count, None)?.await?;
        self.left(report)
    }

    /// Waits until the latch is at zero. The store pushes this news to the waiting processes. If a push is lost, a process finds the
    /// zero by its own request, which it sends each third of a lease ([`Builder::lease`](crate::Builder::lease)). All waiting tasks
    /// of a process share one request.
    ///
    /// # Errors
    /// [`Error::Unset`] if the latch is not set, or its life ends. [`Error::Store`] if the store is unavailable for longer than one
    /// lease, or when the wait begins. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`] and [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held. The store forgets within one lease that this process waited.
    pub async fn wait(&self) -> Result<(), Error> {
        let report = self.waits()?.await?;
        self.left(report).map(|_| ())
    }

    /// Waits as [`wait`](Self::wait), but no longer than `wait`. Returns `false` if the wait ends first.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). [`Error::Store`] also if the store did not answer within the wait.
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers, unless the answer is there at once.
    pub async fn wait_timeout(&self, wait: Duration) -> Result<bool, Error> {
        if wait.is_zero() {
            return Ok(self.count().await? == 0);
        }
        let mut waits = self.waits()?;
        match within([self.target.handle.node()], wait, &mut waits).await {
            Some(answer) => self.left(answer?).map(|_| true),
            None => match waits.gave_up(wait) {
                Error::Busy { .. } => Ok(false),
                error => Err(error),
            },
        }
    }

    fn waits(&self) -> Result<CallFuture<LatchReport>, Error> {
        self.ask(Call::Zero { of: None }, None)
    }

    fn left(&self, report: LatchReport) -> Result<u32, Error> {
        match report {
            LatchReport::Left(left) => Ok(left),
            _ => Err(self.unset()),
        }
    }

    fn ask(&self, call: Call, data: Option<Payload>) -> Result<CallFuture<LatchReport>, Error> {
        let target = &self.target;
        target.ask(call, |call| call.data = data, CallAnswer::try_as_latch)
    }

    fn unset(&self) -> Error {
        let key = self.key().clone();
        Error::Unset { key }
    }

    fn refuse(&self, why: fmt::Arguments<'_>) -> Error {
        Error::Options(OptionsError(format!("latch `{}` {why}", self.key())))
    }
}

/// Returns an id that no other call has.
fn random_id() -> Vec<u8> {
    format!("r{}", Uuid::new_v4().as_simple()).into_bytes()
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("key", self.key())
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}
