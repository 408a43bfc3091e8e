//! A number that is counted down to zero, across every process that uses the store.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::options::LONGEST_LEASE;
use crate::primitives::call::CallFuture;
use crate::primitives::mutex::Mutex;
use crate::primitives::within::within;
use crate::protocol::message::{Call, CallTime, LatchReport, Payload};
use crate::protocol::step::CallAnswer;

/// The most that a latch can be set to.
const MOST: u32 = 10_000;
/// How long a latch lives at least. Below it, whoever waits would hardly look once.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// How long it lives unless it is told otherwise.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// Who waits for it goes on when as many calls as it was set to have counted down: "open the books when all parts are
/// imported". Made by [`Locks::latch`](crate::Locks::latch); cheap to make and to clone.
///
/// One caller sets it, others count down, and any number of tasks in any process wait. It is set once: at zero it stays, so
/// that a late waiter still finds that, until its [life](Self::life) is over. Then nothing is left of it, and it may be set anew.
///
/// Each call counts once. When its answer is lost it is sent again under the same id, and counts only in the life in which it was
/// called for, never in a later one. What a program starts twice, as a worker that was killed is, counts once by
/// [`count_down_once`](Self::count_down_once), and does not set the latch again.
///
/// Nothing is held: there is no guard and no fence. A process that dies before it counted down is missed by whoever waits: give
/// each a lock or a lease of its own if that must be noticed, or wait with a [timeout](Self::wait_timeout).
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
    /// The line of its calls. A latch has no owner.
    line: Mutex,
    life: Duration,
}

impl Latch {
    pub(crate) fn new(line: Mutex) -> Self {
        Latch { line, life: LIFE }
    }

    /// How long it lives when it is set by this handle, 1 s to 30 days, instead of a day. Then nothing is left of it, whether it
    /// came to zero or not, and whoever still waits gets [`Error::Unset`].
    pub fn life(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// What it is called.
    pub fn key(&self) -> &Key {
        self.line.key()
    }

    /// Sets it to `count`, 1 to 10,000, if it is not set. A latch is set once per name and [life](Self::life): while it is set,
    /// at zero too, nothing is done, and the answer is `false`. So a worker that is started again does not set it again. A trip
    /// to the store.
    ///
    /// # Errors
    /// [`Error::Options`] for a count or a [life](Self::life) out of bounds. [`Error::Key`] and [`Error::Store`] as of a lock. [`Error::Closed`] as of a lock; when
    /// [`shutdown`](crate::Locks::shutdown) is called meanwhile it may have been set.
    ///
    /// # Cancel safety
    /// Nothing is held. Whether it was set is not known when the future is dropped; [`count`](Self::count) tells.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        if !(1..=MOST).contains(&count) {
            return Err(self.refuse(format_args!("is set to 1 to {MOST}, not to {count}")));
        }
        if !(SHORTEST_LIFE..=LONGEST_LEASE).contains(&self.life) {
            return Err(self.refuse(format_args!("lives for 1 s to 30 days, not {:?}", self.life)));
        }
        let life_ms = self.life.as_millis() as u64;
        let id = Payload(random_id().into());
        let set = Call::SetCount { count, life_ms };
        Ok(self.ask(set, Some(id))?.await? == LatchReport::Set)
    }

    /// Counts down by one, and answers how many are left; at zero it changes nothing and answers zero. A trip to the store, also
    /// in a process that never heard of the latch; two when it was set within about the last trip.
    ///
    /// However often a lost answer is asked for, it counts once, and only in the life in which it was called for. When that is
    /// over, and the latch was set anew meanwhile, the answer is zero.
    ///
    /// # Errors
    /// [`Error::Unset`] when it is not set. [`Error::Uncertain`] when an answer was lost, and the latch was set at about the time
    /// of the call: it may have been counted. [`Error::Store`] when the store did not answer: it may have been counted.
    /// [`Error::Closed`] as of a lock; when [`shutdown`](crate::Locks::shutdown) is called meanwhile it may have been counted.
    /// [`Error::Key`] as of a lock. Whoever has to call again after such an error counts by
    /// [`count_down_once`](Self::count_down_once), in a latch that has a name of its own for each round.
    ///
    /// # Cancel safety
    /// When the future is dropped it may have been counted, or may still be; never twice.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_as(random_id()).await
    }

    /// As [`count_down`](Self::count_down), and counts once under that id, 1 byte or more and as long as a key, however often and
    /// by whichever process it is called in the life of the latch: for workers that may be started twice. Answers what was left
    /// when it was counted.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down). [`Error::Options`] for an id that is empty or too long.
    ///
    /// A call after an error is another call, and counts in the life in which it is made: when the first one was counted and the
    /// latch was set anew since, both count, each in a life of its own. So give each round a name of its own,
    /// `import:2026-11-23`: then it may be called again with the same id until it is answered.
    ///
    /// # Cancel safety
    /// As [`count_down`](Self::count_down).
    pub async fn count_down_once(&self, id: impl AsRef<[u8]>) -> Result<u32, Error> {
        let (id, limit) = (id.as_ref(), self.line.handle.options().max_key);
        if id.is_empty() || id.len() > limit {
            let length = id.len();
            return Err(self.refuse(format_args!(
                "counts down once by an id of 1 to {limit} bytes, not {length}"
            )));
        }
        // None of those that are random.
        self.count_down_as([b"o", id].concat()).await
    }

    async fn count_down_as(&self, id: Vec<u8>) -> Result<u32, Error> {
        let id = Payload(id.into());
        let count = |called| self.ask(Call::CountDown { called }, Some(id.clone()));
        let mut report = count(CallTime::default())?.await?;
        // It was set at about the time of the call, and the store has named it and done nothing: that latch is meant.
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
            // It is over, or nothing is left to count.
            _ => Ok(0),
        }
    }

    /// Asks the store how many count-downs are left. Others may have counted down by the time that the answer arrives.
    ///
    /// # Errors
    /// [`Error::Unset`] when it is not set. [`Error::Key`], [`Error::Store`] and [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn count(&self) -> Result<u32, Error> {
        let report = self.ask(Call::Count, None)?.await?;
        self.left(report)
    }

    /// Waits until it is at zero. Who waits when it comes to zero is told by a push, and looks by itself each third of a lease
    /// ([`Builder::lease`](crate::Builder::lease)), should that be lost. All tasks of a process that wait share one such look.
    ///
    /// # Errors
    /// [`Error::Unset`] when it is not set, or its life ends. [`Error::Store`] when the store is away for longer than a lease, or
    /// when it cannot be reached in the beginning. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`] and
    /// [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held. The store keeps for at most a lease that this process waits.
    pub async fn wait(&self) -> Result<(), Error> {
        let report = self.waits()?.await?;
        self.left(report).map(|_| ())
    }

    /// As [`wait`](Self::wait), but no longer than `wait`: `false` when it is over and the latch is not known to be at zero.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). [`Error::Store`] also when the store did not answer within the wait.
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
        match within([self.line.handle.node()], wait, &mut waits).await {
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
        let line = &self.line;
        line.ask(call, |call| call.data = data, CallAnswer::try_as_latch)
    }

    fn unset(&self) -> Error {
        let key = self.key().clone();
        Error::Unset { key }
    }

    fn refuse(&self, why: fmt::Arguments<'_>) -> Error {
        Error::Options(OptionsError(format!("latch `{}` {why}", self.key())))
    }
}

/// One that nobody else has.
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
