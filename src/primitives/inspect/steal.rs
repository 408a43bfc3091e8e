//! A steal: the holder is asked for its lease first, and then the lease is revoked.
//!
//! # The way of one steal
//!
//! 1. An operator's program takes a lease that it looked at (`primitives/inspect/steal.rs` `run`). The lease is named by
//!    the number of its grant, so another lease of the key is never taken.
//! 2. *Ask.* The store pushes the request to the holder's node, each second of the grace (`primitives/inspect/steal.rs`
//!    `is_given_back`, `protocol/ledger/steal.rs` `steal`, on Redis `store/redis/lua/revoke.lua`). The guard learns of it
//!    (`protocol/key/pushes.rs` `asked`, `driver/waiter.rs` `mark_asked`), and its next release goes to the store
//!    (`protocol/key/holding.rs` `give_back`). Only nodes that tell of themselves get these pushes.
//! 3. *Revoke.* The record gets a `!` before its value and keeps its end; a share loses its number
//!    (`protocol/ledger/record.rs` `revoke`, `protocol/ledger/steal.rs` `revoke_share`). From then on no renewal, pass,
//!    assertion or write of that claim counts, because none finds its value. Other clients see a foreign record.
//! 4. The node learns of it by a push, or by its next renewal (`protocol/ledger/transaction.rs` `renew`,
//!    `protocol/key/pushes.rs` `pushed_revoked`, `revoked`), or by a refused write (`protocol/key/holding.rs`
//!    `write_ended`). The guard is lost at once. The claim is left when its last guard is dropped, or at its old deadline
//!    (`protocol/key/pushes.rs` `lose_until_dropped`, `drop_lost`). A node that does not hold the claim, because of a
//!    transfer, leaves it at once (`protocol/key/pushes.rs` `leave_unknown`).
//! 5. Only that leave ends the record early (`protocol/ledger/steal.rs` `is_revoked`, `protocol/ledger/transaction.rs`
//!    `leave`). So the next holder comes after the old one was told, or after its lease has ended.
//! 6. A hand-over at once is a revoke and the leave of the claim, sent by the operator's program (`protocol/steal.rs`
//!    `leave`). The old holder may still believe that it holds the lease. Refused while a server recovers, because the
//!    server then grants nothing.
//! 7. Each act is an entry of the audit list (`store/redis/inspector/steal.rs` `note`, `audit`).

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use crate::error::{Error, StoreError};
use crate::key::Key;
use crate::observe;
use crate::options::LONGEST_LEASE;
use crate::primitives::inspect::inspection::{Entry, HolderEntry, Inspection, State};
use crate::protocol::message::{Asking, ClaimNumber, GrantNumber, Name};
use crate::protocol::steal::{AuditEntry, StealAct, StealReply, StealRequest, StealTarget};

/// How often the holder is asked within the grace: a push may be lost.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);
/// The first pause between two looks at the key, after a revoke. It doubles.
const MIN_LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks at the key.
const MAX_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks at the key within the grace.
pub(crate) const GRACE_LOOK_PAUSE: Duration = Duration::from_millis(100);

impl Inspection {
    /// Takes the lease on an entry from its holder: asks for it, waits for the [grace](Steal::grace), and revokes it then.
    ///
    /// A revoked lease is over: its claim is not renewed, not passed on, and nothing is [written](crate::Lease::atomically) under it.
    /// Its node learns of that by a push at once, otherwise by its next renewal or write. The record excludes others until the
    /// guard is dropped, or until the guard's deadline, or until the record ends. So the next holder comes only after the old one
    /// was told, or after its lease has ended. A revoked tick of a job is run again, as after a crash.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("account:42").lock().await?;
    /// let inspection = locks.inspect();
    /// let entry = inspection.show("account:42").await?.entries.remove(0);
    /// let steal = inspection.steal(&entry).grace(Duration::from_secs(5)).why("deploy");
    /// let work = async {
    ///     let asked = guard.asked().await.expect("the guard is held");
    ///     println!("{} asks for the lease: {}", asked.by, asked.why);
    ///     guard.release().await
    /// };
    /// let (stolen, released) = tokio::join!(steal.into_future(), work);
    /// released?;
    /// assert_eq!(stolen?.end, tenure::inspect::StealEnd::GivenBack);
    /// # Ok(()) }
    /// ```
    pub fn steal(&self, entry: &Entry) -> Steal {
        Steal {
            inspection: self.clone(),
            entry: entry.clone(),
            number: None,
            grace: Duration::from_secs(10),
            why: String::new(),
            by: String::new(),
            now: false,
        }
    }

    /// Returns the audit list: the acts of [`steal`](Self::steal) and about jobs, the latest first, at most 1,000. Reads 25 in each round trip.
    ///
    /// # Errors
    /// [`Error::Connect`] if the store is unavailable or refuses; [`Error::Closed`] in a forked child.
    pub async fn audit(&self) -> Result<Vec<AuditEntry>, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let acts = self.inspector.audit().await;
        acts.map_err(|source| self.inspector.unavailable(source))
    }
}

/// A steal of one lease. [`Inspection::steal`] creates it, and `.await` executes it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// # use std::time::Duration;
/// use tenure::error::LostCause;
///
/// let guard = locks.mutex("account:42").lock().await?;
/// let inspection = locks.inspect();
/// let entry = inspection.show("account:42").await?.entries.remove(0);
/// let steal = inspection.steal(&entry).grace(Duration::ZERO).by("mia").why("INC-7");
/// let holder = async move { guard.lost().await }; // and drops the guard
/// let (stolen, cause) = tokio::join!(steal.run(|step| println!("{step:?}")), holder);
/// assert_eq!(cause, LostCause::Revoked);
/// # stolen?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a steal does nothing unless it is awaited"]
pub struct Steal {
    inspection: Inspection,
    entry: Entry,
    number: Option<u64>,
    grace: Duration,
    why: String,
    by: String,
    now: bool,
}

/// What happened to a lease that was stolen.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// # let guard = locks.mutex("account:42").lock().await?;
/// # let inspection = locks.inspect();
/// # let entry = inspection.show("account:42").await?.entries.remove(0);
/// let stolen = inspection.steal(&entry).now().await?;
/// match &stolen.entry {
///     Some(entry) => println!("{} is {}", entry.key, entry.state.word()),
///     None if stolen.unread.is_none() => println!("the key is free"),
///     None => println!("the lease was taken, and the key could not be read"),
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stolen {
    /// How it ended.
    pub end: StealEnd,
    /// What the store keeps of the key now. `None`: the key is free, or [could not be read](Self::unread).
    pub entry: Option<Entry>,
    /// Why the key could not be read any more. Do not repeat the steal then: the next holder may have the lease.
    pub unread: Option<Error>,
    /// Why an act is missing from the [audit list](Inspection::audit). `None`: each act is in it.
    pub unwritten: Option<StoreError>,
}

/// How a lease ended that was stolen.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// # let guard = locks.mutex("account:42").lock().await?;
/// # let inspection = locks.inspect();
/// # let entry = inspection.show("account:42").await?.entries.remove(0);
/// use tenure::inspect::StealEnd;
///
/// match inspection.steal(&entry).now().await?.end {
///     StealEnd::GivenBack => println!("the holder released it"),
///     StealEnd::Revoked => println!("it was revoked, and is over"),
///     StealEnd::HandedOver => println!("the old holder may not know it yet"),
///     end => println!("{end:?}"),
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StealEnd {
    /// The holder released it within the grace, or it ended.
    GivenBack,
    /// It was revoked, and then its holder left it or it ended.
    Revoked,
    /// It was handed over at once.
    HandedOver,
}

/// A step of a steal, as it happens.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// # let guard = locks.mutex("account:42").lock().await?;
/// # let inspection = locks.inspect();
/// # let entry = inspection.show("account:42").await?.entries.remove(0);
/// use tenure::inspect::StealStep;
///
/// let report = |step| match step {
///     StealStep::Asked(grace) => println!("the holder has {grace:?} to release it"),
///     StealStep::NotAsked => println!("the holder cannot be asked"),
///     StealStep::Revoked(left) => println!("revoked; it ends within {left:?}"),
///     step => println!("{step:?}"),
/// };
/// inspection.steal(&entry).now().run(report).await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StealStep {
    /// The holder was asked, and has this grace. Reported once.
    Asked(Duration),
    /// The holder cannot be asked: it is a foreign client, or its node told nothing of itself
    /// ([`presence`](crate::Builder::presence)), or does not listen: no caller of it has waited for a lease yet.
    NotAsked,
    /// The lease is revoked. It ends after this time at the latest; `None` if it has ended already.
    Revoked(Option<Duration>),
}

/// Why a lease was not taken.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// use tenure::inspect::StealError;
///
/// let guard = locks.mutex("account:42").lock().await?;
/// let inspection = locks.inspect();
/// let entry = inspection.show("account:42").await?.entries.remove(0);
/// guard.release().await?; // meanwhile the holder is done
/// match inspection.steal(&entry).await {
///     Err(StealError::Changed { key, .. }) => println!("look at {key} again"),
///     Err(StealError::SeveralHolders { holders, .. }) => println!("choose one of {holders} by its number"),
///     stolen => { stolen?; }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StealError {
    /// The holder is another one by now, or there is none. Look again.
    #[error("the lease on `{key}` changed since it was looked at: look again")]
    #[non_exhaustive]
    Changed {
        /// The key.
        key: Key,
    },
    /// Several holders share the key. Choose one by its [number](Steal::number).
    #[error("`{key}` has {holders} holders: choose one by the number of its grant")]
    #[non_exhaustive]
    SeveralHolders {
        /// The key.
        key: Key,
        /// How many there are.
        holders: u64,
    },
    /// The record has no end, so a revoked lease would exclude others for ever. Only [`now`](Steal::now) ends it.
    #[error(
        "the record of `{key}` has no expiry, so a revoke would block the key for ever: hand it over at once instead (`now`, `--now`)"
    )]
    #[non_exhaustive]
    Endless {
        /// The key.
        key: Key,
    },
    /// The server recovers, so nothing is [handed over](Steal::now). Try later, or revoke.
    #[error(
        "`{key}` cannot be handed over while the server recovers ({left:?} left): try later, or revoke the lease"
    )]
    #[non_exhaustive]
    Recovering {
        /// The key.
        key: Key,
        /// How long.
        left: Duration,
    },
    /// The revoke is undone: the server lost it, as after a failover. The holder may go on. Look again.
    #[error("the server lost the revoke of `{key}`, and its holder may go on: look again")]
    #[non_exhaustive]
    Undone {
        /// The key.
        key: Key,
    },
    /// Nothing can be taken: the entry is a latch, has no holder, or is no lease.
    #[error("`{key}` has no lease that can be taken: {why}")]
    #[non_exhaustive]
    NoLease {
        /// The key.
        key: Key,
        /// Why not.
        why: &'static str,
    },
    /// The store is unavailable or refuses. A quorum refuses every steal.
    #[error(transparent)]
    Store(#[from] Error),
}

impl AuditEntry {
    /// Returns when it was done, by the server's clock.
    pub fn time(&self) -> SystemTime {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.time_ms));
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns the nominal time of the tick that was triggered or cancelled. `None` for other acts.
    pub fn tick(&self) -> Option<SystemTime> {
        let is_of_tick = matches!(&*self.what, "triggered" | "cancelled");
        let ms = self.number.parse().ok().filter(|_| is_of_tick)?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
    }
}

impl Steal {
    /// Chooses one of the holders that the entry lists, by the [number](HolderEntry::number) of its grant. Needed if the key has
    /// several holders. Without a number [`now`](Self::now) also takes a share that was revoked before: the one that ends first.
    pub fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// Sets how long the holder has to release the lease itself: 10 s if this is not called, and at most 30 days. Zero revokes at
    /// once. A holder that cannot be asked has this time, too.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace.min(LONGEST_LEASE);
        self
    }

    /// Sets the reason, which the holder is told. At least its first 80 bytes are kept.
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Sets the name of the operator, which the holder is told. At least its first 80 bytes are kept.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = by.into();
        self
    }

    /// Hands the lease over at once and ignores the grace. Also ends a record without expiry. Refused while the server recovers
    /// ([`Recovering`](StealError::Recovering)). The holder may still believe that it holds the lease: use it only if its node is
    /// dead. Only the [fence](crate::Fence) protects from a holder that lives.
    pub fn now(mut self) -> Self {
        self.now = true;
        self
    }

    /// Executes the steal, and tells `report` of each step.
    ///
    /// Returns when the lease has passed on or has ended, as the store shows it. Each act is one round trip, and its entry in the
    /// audit list is another; a hand-over is two. The key is read every 100 ms within the grace, and later at most every 500 ms.
    ///
    /// # Errors
    /// See [`StealError`]. What was done before an error stays. After a revoke, a repeated steal waits for the end only.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    /// Dropping the future takes no further step. What was done stays: a revoked lease stays revoked.
    pub async fn run(self, mut report: impl FnMut(StealStep)) -> Result<Stolen, StealError> {
        let mut run = self.begin()?;
        if self.now {
            let reply = run.act(StealAct::HandOver, true).await?;
            run.check(&reply)?;
            return Ok(run.stolen(StealEnd::HandedOver).await);
        }
        // A revoke of the same lease is not repeated, except to be told that it has no end.
        let is_revoked = run.is_revoked_in(&self.entry) == Some(true) && run.left(&self.entry).is_some();
        if !is_revoked && !self.grace.is_zero() && run.is_given_back(&mut report).await? {
            return Ok(run.stolen(StealEnd::GivenBack).await);
        }
        // The steal that revoked it may have been cut off before it could write that down.
        if !is_revoked || !run.is_written().await {
            match run.act(StealAct::Revoke, true).await? {
                StealReply::Changed if is_revoked => {}
                // It was given back since the last look, or another operator revoked it.
                StealReply::Changed if run.asked_at.is_some() => {
                    if run.is_over().await? {
                        return Ok(run.stolen(StealEnd::GivenBack).await);
                    }
                }
                reply => run.check(&reply)?,
            }
        }
        run.wait_for_end(&mut report).await?;
        Ok(run.stolen(StealEnd::Revoked).await)
    }

    /// Checks which lease is meant.
    fn begin(&self) -> Result<StealRun<'_>, StealError> {
        let entry = &self.entry;
        let refused = |why| {
            let key = entry.key.clone();
            Err(StealError::NoLease { key, why })
        };
        let (target, holder) = match (entry.state, &entry.foreign) {
            (State::Set, _) => return refused("a latch has no holder"),
            (State::Foreign | State::Revoked, Some(digest)) => (StealTarget::Foreign(digest.clone()), None),
            (State::Foreign, None) => return refused("it is no value of a lock"),
            (State::WaitedFor, _) => return refused("nothing holds it"),
            (State::Held | State::Revoked, _) => {
                let chosen = match self.number {
                    Some(number) => self.numbered(number),
                    None => self.only_holder(),
                };
                let holder = match (chosen, self.number) {
                    (Some(holder), _) => holder,
                    (None, Some(_)) => return refused("no holder that is listed has this number"),
                    (None, None) => {
                        return Err(StealError::SeveralHolders {
                            key: entry.key.clone(),
                            holders: entry.holder_count,
                        });
                    }
                };
                let target = match holder.number {
                    Some(number) => StealTarget::Grant(GrantNumber(number), holder.mode),
                    None => StealTarget::RevokedShare(holder.node.id, ClaimNumber(holder.claim), holder.mode),
                };
                (target, Some(holder))
            }
        };
        // A node that tells operators nothing is not told by them either.
        let is_local = self.inspection.inspector.is_local();
        let tells = holder.is_some_and(|holder| is_local || holder.node.presence.is_some());
        Ok(StealRun {
            steal: self,
            inspection: self.inspection.clone(),
            target,
            holder,
            tells,
            asked_at: None,
            unwritten: None,
        })
    }

    fn numbered(&self, number: u64) -> Option<&HolderEntry> {
        let mut holders = self.entry.holders.iter();
        holders.find(|holder| holder.number == Some(number))
    }

    /// Returns the holder that is meant without a number: the only one. A hand-over may also be the second half of a revoke.
    fn only_holder(&self) -> Option<&HolderEntry> {
        match &*self.entry.holders {
            [holder] if self.entry.holder_count == 1 => Some(holder),
            holders if self.now => holders.iter().find(|holder| holder.number.is_none()),
            _ => None,
        }
    }
}

impl IntoFuture for Steal {
    type Output = Result<Stolen, StealError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run(|_| {}))
    }
}

/// A steal under way.
struct StealRun<'a> {
    steal: &'a Steal,
    inspection: Inspection,
    target: StealTarget,
    /// The holder as it was seen first. `None`: a foreign client.
    holder: Option<&'a HolderEntry>,
    /// The holder's node gets pushes.
    tells: bool,
    /// When the holder was last asked for it.
    asked_at: Option<Instant>,
    unwritten: Option<StoreError>,
}

impl StealRun<'_> {
    /// Asks the holder for the lease again and again, if it can be asked, and waits for the grace. Returns whether the lease is
    /// over by then.
    async fn is_given_back(&mut self, report: &mut impl FnMut(StealStep)) -> Result<bool, StealError> {
        let until = Instant::now() + self.steal.grace;
        loop {
            let now = Instant::now();
            let is_due = self.asked_at.is_none_or(|at| self.tells && now >= at + ASK_EVERY);
            if is_due && now < until {
                let is_first = self.asked_at.is_none();
                let grace_ms = (until - now).as_millis() as u64;
                let act = StealAct::Ask(Arc::new(self.asking(grace_ms)));
                let asked = self.act(act, is_first && self.tells).await;
                // A holder that cannot be asked is asked once, too: the store then tells whether the lease can be revoked.
                if is_first {
                    self.check(&asked?)?;
                    report(self.first_step());
                }
                self.asked_at = Some(now);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            sleep(left.min(GRACE_LOOK_PAUSE)).await;
            // The revoke tells whether the store is still unavailable then.
            if self.is_over().await.unwrap_or(false) {
                return Ok(true);
            }
        }
    }

    fn first_step(&self) -> StealStep {
        let listens = self.holder.is_some_and(|holder| holder.node.listens);
        match self.tells && listens {
            true => StealStep::Asked(self.steal.grace),
            false => StealStep::NotAsked,
        }
    }

    fn asking(&self, grace_ms: u64) -> Asking {
        Asking {
            grace_ms,
            by: self.steal.by.clone(),
            why: self.steal.why.clone(),
        }
    }

    /// Takes a step, and writes it down if `is_noted`.
    async fn act(&mut self, act: StealAct, is_noted: bool) -> Result<StealReply, StealError> {
        let entry = &self.steal.entry;
        self.inspection.handle.not_forked(&entry.key)?;
        let request = StealRequest {
            name: Name::new(entry.kind, entry.key.clone()),
            target: self.target.clone(),
            act,
            tells: self.tells,
        };
        let done = self.inspection.inspector.steal(request.clone()).await;
        let (reply, time_us) = done.map_err(|source| self.inspection.inspector.unavailable(source))?;
        if let (StealReply::Done(_), true) = (&reply, is_noted) {
            let record = request.audit(time_us / 1000, &self.asking(0));
            // First the list: a subscriber of events may block.
            let written = self.inspection.inspector.note(record.clone()).await;
            self.unwritten = written.err().or(self.unwritten.take());
            let node = self.inspection.handle.node();
            observe::stolen(
                node.events.label(),
                &request.name,
                &record.what,
                &record.number,
                &record.by,
                &record.why,
            );
        }
        Ok(reply)
    }

    /// Returns whether the audit list has the act that revoked the lease.
    async fn is_written(&self) -> bool {
        let (entry, number) = (&self.steal.entry, self.target.number());
        // A share that is revoked has no number any more.
        let is_share = matches!(self.target, StealTarget::RevokedShare(..));
        let revoked = |of: &AuditEntry| {
            let is_of_key = of.key == entry.key && of.kind == Some(entry.kind);
            of.what != StealAct::ASKED && is_of_key && (is_share || of.number == number)
        };
        let audit = self.inspection.inspector.audit().await;
        audit.is_ok_and(|audit| audit.iter().any(revoked))
    }

    fn check(&self, reply: &StealReply) -> Result<(), StealError> {
        let key = self.steal.entry.key.clone();
        match reply {
            StealReply::Done(_) => Ok(()),
            StealReply::Changed => Err(StealError::Changed { key }),
            StealReply::Endless => Err(StealError::Endless { key }),
            StealReply::Recovering(left) => Err(StealError::Recovering {
                key,
                left: Duration::from_millis(*left),
            }),
        }
    }

    /// Reads what the store keeps of the key. After an error the next look has connections of its own, which find a new master.
    async fn look(&mut self) -> Result<Option<Entry>, Error> {
        let entry = &self.steal.entry;
        let shown = self.inspection.show(entry.key.clone()).await;
        if shown.is_err() {
            self.inspection = Inspection::new(&self.inspection.handle);
        }
        let mut entries = shown?.entries.into_iter();
        Ok(entries.find(|found| found.kind == entry.kind))
    }

    /// Returns whether the lease is over. Of a key with many holders, those that are not listed may have it.
    async fn is_over(&mut self) -> Result<bool, Error> {
        let entry = self.look().await?;
        Ok(entry.is_none_or(|entry| self.is_revoked_in(&entry).is_none() && shows_all(&entry)))
    }

    /// Returns whether the lease of an entry is revoked. `None`: the entry does not have it.
    fn is_revoked_in(&self, entry: &Entry) -> Option<bool> {
        match &self.target {
            StealTarget::Foreign(digest) => {
                let is_it = entry.foreign.as_ref() == Some(digest);
                is_it.then_some(entry.state == State::Revoked)
            }
            _ => self.holder_in(entry).map(|holder| holder.is_revoked),
        }
    }

    /// Returns the holder of the lease, if the entry has it. A claim has one lease at most.
    fn holder_in<'a>(&self, entry: &'a Entry) -> Option<&'a HolderEntry> {
        let wanted = self.holder?;
        let mut holders = entry.holders.iter();
        holders.find(|holder| (holder.node.id, holder.claim) == (wanted.node.id, wanted.claim))
    }

    /// Returns how long the lease lasts without a sign of its holder.
    fn left(&self, entry: &Entry) -> Option<Duration> {
        self.holder_in(entry)
            .map_or(entry.remaining, |holder| holder.remaining)
    }

    /// Waits until the revoked lease has ended, at most for what is left of it.
    async fn wait_for_end(&mut self, report: &mut impl FnMut(StealStep)) -> Result<(), StealError> {
        let end_of = |left| Instant::now() + left + MAX_LOOK_PAUSE;
        let mut until = self.left(&self.steal.entry).map(end_of);
        let (mut pause, mut is_told) = (MIN_LOOK_PAUSE, false);
        loop {
            let mut is_late = until.is_none_or(|until| Instant::now() > until);
            let entry = match self.look().await {
                Err(_) if !is_late => {
                    sleep(MAX_LOOK_PAUSE).await;
                    continue;
                }
                looked => looked?,
            };
            if !is_told {
                let has_it = |entry: &&Entry| self.is_revoked_in(entry).is_some() || !shows_all(entry);
                let left = entry.as_ref().filter(has_it).and_then(|entry| self.left(entry));
                report(StealStep::Revoked(left));
                (until, is_told, is_late) = (left.map(end_of), true, false);
            }
            let shows_all = entry.as_ref().is_none_or(shows_all);
            match entry.and_then(|entry| self.is_revoked_in(&entry)) {
                None if shows_all || is_late => return Ok(()),
                None => {}
                Some(true) if !is_late => {}
                // The server lost the revoke, or the value of a foreign client began with the mark before.
                Some(_) => {
                    let key = self.steal.entry.key.clone();
                    return Err(StealError::Undone { key });
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_LOOK_PAUSE);
        }
    }

    async fn stolen(mut self, end: StealEnd) -> Stolen {
        let looked = self.look().await;
        Stolen {
            end,
            unread: looked.as_ref().err().cloned(),
            entry: looked.ok().flatten(),
            unwritten: self.unwritten,
        }
    }
}

/// Returns whether each holder is listed. Of a key with many, the first are.
fn shows_all(entry: &Entry) -> bool {
    entry.holder_count <= entry.holders.len() as u64
}
