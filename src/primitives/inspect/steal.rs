//! A steal: the holder is asked for its lease first, and then the lease is revoked.

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
use crate::protocol::message::{Asking, GrantNumber, Name};
use crate::protocol::steal::{AuditEntry, StealAct, StealReply, StealRequest, StealTarget};

/// How often the holder is asked within the grace: a push may be lost.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The first pause between two looks at the key, after a revoke. It doubles.
const MIN_LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks at the key.
const MAX_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks at the key within the grace.
const GRACE_LOOK_PAUSE: Duration = Duration::from_millis(100);

impl Inspection {
    /// Takes the lease on an entry from its holder: asks for it, waits for the [grace](Steal::grace), and revokes it then.
    ///
    /// A revoked lease is lost to its holder at once: its claim is not renewed, not passed on, and nothing is
    /// [written](crate::Lease::atomically) under it. It excludes others until its guard is dropped, or until its old deadline, or
    /// until its record ends. So the next holder comes only after the old one was told, or after its lease has ended.
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

    /// Returns what operators did by [`steal`](Self::steal), the latest first: at most 1,000 acts.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn audit(&self) -> Result<Vec<AuditEntry>, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let acts = self.inspector.audit().await;
        acts.map_err(|source| self.unavailable(source))
    }
}

/// A lease that is to be taken from its holder. [`Inspection::steal`] makes it, and `.await` does it.
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
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stolen {
    /// How it ended.
    pub end: StealEnd,
    /// What the store keeps of the key now. `None`: the key is free.
    pub entry: Option<Entry>,
    /// The store refused to write the acts down: see [`Inspection::audit`].
    pub unwritten: Option<StoreError>,
}

/// How a lease ended that was stolen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StealEnd {
    /// The holder gave it back within the grace.
    GivenBack,
    /// It was revoked, and then its holder left it or it ended.
    Revoked,
    /// It was handed over at once.
    HandedOver,
}

/// A step of a steal, as it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StealStep {
    /// The holder was asked, and has this grace. Reported once.
    Asked(Duration),
    /// The holder cannot be asked: it is a foreign client, or its node told nothing of itself
    /// ([`presence`](crate::Builder::presence)).
    NotAsked,
    /// The lease was revoked. Without a sign of its holder it ends after this time.
    Revoked(Option<Duration>),
}

/// Why a lease was not taken.
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
        "the record of `{key}` has no end: revoking it would block the key for ever, hand it over at once instead"
    )]
    #[non_exhaustive]
    Endless {
        /// The key.
        key: Key,
    },
    /// The server recovers, so nothing is [handed over](Steal::now). Try later, or revoke.
    #[error("the server recovers for {left:?}, and grants nothing: try later, or revoke `{key}`")]
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
    /// The store is unavailable, refuses, or has no steal, as a quorum.
    #[error(transparent)]
    Store(#[from] Error),
}

impl AuditEntry {
    /// Returns when it was done, by the server's clock.
    pub fn time(&self) -> SystemTime {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.time_ms));
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Steal {
    /// Chooses the holder by the [number](HolderEntry::number) of its grant. Needed if the key has several holders.
    pub fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// Sets how long the holder has to give the lease back itself: 10 s if this is not called, and at most 30 days. Zero revokes at
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

    /// Hands the lease over at once, although its holder may still believe that it holds it. Meant for a node that is surely
    /// dead: only the [fence](crate::Fence) protects from a holder that lives.
    pub fn now(mut self) -> Self {
        self.now = true;
        self
    }

    /// Takes the lease, and tells `report` of each step.
    ///
    /// Returns when the lease has passed on or has ended, as the store shows it.
    ///
    /// # Errors
    /// See [`StealError`].
    ///
    /// # Cancel safety
    /// Dropping the future takes no further step. What was done stays: a revoked lease stays revoked.
    pub async fn run(self, mut report: impl FnMut(StealStep)) -> Result<Stolen, StealError> {
        let mut theft = self.begin()?;
        if self.now {
            let reply = theft.act(StealAct::HandOver, true).await?;
            theft.check(&reply)?;
            return theft.stolen(StealEnd::HandedOver).await;
        }
        if !self.grace.is_zero() && theft.is_given_back(&mut report).await? {
            return theft.stolen(StealEnd::GivenBack).await;
        }
        match theft.act(StealAct::Revoke, true).await? {
            // It was given back since the last look.
            StealReply::Changed if theft.asked_at.is_some() => {
                return theft.stolen(StealEnd::GivenBack).await;
            }
            reply => theft.check(&reply)?,
        }
        let entry = theft.look().await?;
        let left = entry.and_then(|entry| theft.left(&entry));
        report(StealStep::Revoked(left));
        theft.wait_for_end(left).await?;
        theft.stolen(StealEnd::Revoked).await
    }

    /// Checks which lease is meant.
    fn begin(&self) -> Result<Theft<'_>, StealError> {
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
            (State::Revoked, _) if entry.holders.iter().all(|holder| holder.number.is_none()) => {
                return refused("it is revoked already");
            }
            (State::Held | State::Revoked, _) => {
                let Some(number) = self.number.or_else(|| self.only_number()) else {
                    return Err(StealError::SeveralHolders {
                        key: entry.key.clone(),
                        holders: entry.held_by,
                    });
                };
                let Some(holder) = self.holder(number) else {
                    return refused("no holder that is shown has this number");
                };
                (StealTarget::Grant(GrantNumber(number), holder.mode), Some(holder))
            }
        };
        // Every node that tells of itself understands these pushes.
        let is_local = self.inspection.inspector.is_local();
        let tells = holder.is_some_and(|holder| is_local || holder.node.presence.is_some());
        Ok(Theft {
            steal: self,
            target,
            tells,
            asked_at: None,
            unwritten: None,
        })
    }

    fn only_number(&self) -> Option<u64> {
        match &*self.entry.holders {
            [holder] if self.entry.held_by == 1 => holder.number,
            _ => None,
        }
    }

    fn holder(&self, number: u64) -> Option<&HolderEntry> {
        let mut holders = self.entry.holders.iter();
        holders.find(|holder| holder.number == Some(number))
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
struct Theft<'a> {
    steal: &'a Steal,
    target: StealTarget,
    /// The holder's node gets pushes.
    tells: bool,
    /// When the holder was last asked for it.
    asked_at: Option<Instant>,
    unwritten: Option<StoreError>,
}

impl Theft<'_> {
    /// Waits until the grace is over, and asks the holder for the lease again and again, if it can be asked. Returns whether the
    /// lease is over by then.
    async fn is_given_back(&mut self, report: &mut impl FnMut(StealStep)) -> Result<bool, StealError> {
        if !self.tells {
            report(StealStep::NotAsked);
        }
        let until = Instant::now() + self.steal.grace;
        loop {
            let now = Instant::now();
            if self.tells && self.asked_at.is_none_or(|at| now >= at + ASK_EVERY) && now < until {
                let grace_ms = (until - now).as_millis() as u64;
                let act = StealAct::Ask(Arc::new(self.asking(grace_ms)));
                match self.act(act, self.asked_at.is_none()).await? {
                    StealReply::Changed if self.asked_at.is_some() => return Ok(true),
                    reply => self.check(&reply)?,
                }
                if self.asked_at.replace(now).is_none() {
                    report(StealStep::Asked(self.steal.grace));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            sleep(left.min(GRACE_LOOK_PAUSE)).await;
            let entry = self.look().await?;
            if entry.is_none_or(|entry| self.is_revoked_in(&entry).is_none() && shows_all(&entry)) {
                return Ok(true);
            }
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
        let inspection = &self.steal.inspection;
        let entry = &self.steal.entry;
        inspection.handle.not_forked(&entry.key)?;
        let request = StealRequest {
            name: Name::new(entry.kind, entry.key.clone()),
            target: self.target.clone(),
            act,
            tells: self.tells,
        };
        let unavailable = |source| inspection.unavailable(source);
        let done = inspection.inspector.steal(request.clone()).await;
        let (reply, time_us) = done.map_err(unavailable)?;
        if let (StealReply::Done(_), true) = (&reply, is_noted) {
            let record = request.audit(time_us / 1000, &self.asking(0));
            let node = inspection.handle.node();
            observe::stolen(
                node.events.label(),
                &request.name,
                &record.what,
                &record.number,
                &record.by,
                &record.why,
            );
            if let Err(error) = inspection.inspector.note(record).await {
                self.unwritten = Some(error);
            }
        }
        Ok(reply)
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

    /// Reads what the store keeps of the key.
    async fn look(&self) -> Result<Option<Entry>, StealError> {
        let entry = &self.steal.entry;
        let page = self.steal.inspection.show(entry.key.clone()).await?;
        let mut entries = page.entries.into_iter();
        Ok(entries.find(|found| found.kind == entry.kind))
    }

    /// Returns whether the lease of an entry is revoked. `None`: the entry does not have it.
    fn is_revoked_in(&self, entry: &Entry) -> Option<bool> {
        match &self.target {
            StealTarget::Foreign(digest) => {
                let is_it = entry.foreign.as_ref() == Some(digest);
                is_it.then_some(entry.state == State::Revoked)
            }
            StealTarget::Grant(..) => self.holder_in(entry).map(|holder| holder.is_revoked),
        }
    }

    /// Returns the holder of the lease, if the entry has it.
    fn holder_in<'a>(&self, entry: &'a Entry) -> Option<&'a HolderEntry> {
        let StealTarget::Grant(number, _) = self.target else {
            return None;
        };
        let claim = self
            .steal
            .holder(number.0)
            .map(|holder| (holder.node.id, holder.claim));
        let mut holders = entry.holders.iter();
        holders.find(|holder| {
            holder.number == Some(number.0)
                || holder.number.is_none() && Some((holder.node.id, holder.claim)) == claim
        })
    }

    /// Returns how long the lease lasts without a sign of its holder.
    fn left(&self, entry: &Entry) -> Option<Duration> {
        self.holder_in(entry).map_or(entry.left, |holder| holder.left)
    }

    /// Waits until the revoked lease has ended, at most for what was left of it.
    async fn wait_for_end(&self, left: Option<Duration>) -> Result<(), StealError> {
        let until = left.map(|left| Instant::now() + left + MAX_LOOK_PAUSE);
        let mut pause = MIN_LOOK_PAUSE;
        loop {
            let entry = self.look().await?;
            let is_over = until.is_some_and(|until| Instant::now() > until);
            let shows_all = entry.as_ref().is_none_or(shows_all);
            match entry.and_then(|entry| self.is_revoked_in(&entry)) {
                None if shows_all || is_over => return Ok(()),
                None => {}
                Some(true) if !is_over => {}
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

    async fn stolen(self, end: StealEnd) -> Result<Stolen, StealError> {
        let entry = self.look().await?;
        Ok(Stolen {
            end,
            entry,
            unwritten: self.unwritten,
        })
    }
}

/// Returns whether each holder is listed. Of a key with many, the first are.
fn shows_all(entry: &Entry) -> bool {
    entry.held_by <= entry.holders.len() as u64
}
