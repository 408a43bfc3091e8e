//! One request to a store, and the rules by which it is answered.
//!
//! Every verb first **settles** the key: a free lock with a live waiter is granted to it, with a push; then the caller is
//! treated. Without that, an expiry with everybody queued would grant nobody.
//!
//! An entry is **dead** when its node was not heard of for a whole lease. Nobody grants to it and no heartbeat revives
//! it. It goes out when a search for the next owner walks over it, when its own node asks, and when somebody joins the
//! queue; until then it may stand there, behind a living one.

use std::collections::HashSet;

use crate::error::StoreRefusal;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{
    Grant, GrantNumber, Holder, LeaseTimes, Mode, Name, NodeId, Reply, Request, TickTime, Turn, Verb,
};
use crate::protocol::record::{Entry, Job, LeftFree, Record, RecordOwner, State, is_past};

/// What rare branches were taken; the simulator adds them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[doc(hidden)]
pub enum Branch {
    /// A claim or yield came after its not-after.
    LateRefused,
    /// A waiter was passed over because it was not heard of.
    StalePassedOver,
    /// A waiter was passed over because nobody listens for it.
    DeafPassedOver,
    /// An entry was removed, one lease after its last heartbeat.
    DeadRemoved,
    /// A free key with a queue was given to a waiter other than the caller.
    SettledForAnother,
    /// A yield came for a number that no longer owns.
    YieldRepeated,
    /// A waiter was told that the owner does not know the queue.
    QueuedBehindForeign,
    /// A leave handed the lock over.
    HandedOver,
    /// A lock was left free for who only looks now and then.
    LeftFree,
    /// A claim or a waiter came while a lock was left free.
    MetLeftFree,
    /// Somebody joined those who share a key.
    Joined,
    /// Somebody waits who could share a key, as another was there before.
    JoinRefused,
    /// A writer went on as a reader.
    Downgraded,
    /// Permits were granted while somebody held some as of another number.
    UnlikeCapacity,
    /// An owner asked again and got the same number.
    AskedAgain,
    /// A tick was asked for that is over.
    TickOver,
    /// Somebody was told that a tick was never begun, and never is.
    SkippedTold,
    /// A tick was asked for before its time.
    TickEarly,
    /// A tick came while an earlier one was running.
    TickSkipped,
    /// A tick was granted once more, as its winner did not finish it.
    TickTakenOver,
    /// A tick was finished by a winner whose record had ended.
    TickFinishedLate,
    /// A tick was to be finished by a claim that is not its latest winner.
    TickFinishedByAnother,
    /// The claim of a tick came after its not-after.
    TickLate,
    /// A tick was granted while an earlier one had not ended well, which is now never run again.
    TickOvertaken,
    /// Somebody stood by for a tick that was over.
    StandbyDropped,
    /// Who stood by for a tick that was brought back went out of the queue: its time comes again.
    StandbyEarly,
    /// Somebody who had stood by for a tick was told that it is over.
    StandbyTold,
    /// Somebody who asked was told of a tick that was begun and had not ended well.
    OpenTold,
    /// Nobody is told of such a tick, as it is too old.
    OpenTooOld,
    /// Somebody was told that another fingerprint is kept.
    OtherFingerprint,
    /// A mark that lay ahead of the store's clock was brought back.
    MarkReset,
    /// A free key was not granted as another of the claims that go together could not be.
    LeftApart,
    /// A tick waits until an earlier one has ended.
    TickQueued,
    /// A tick was refused, as an earlier one is to be run first.
    TickBehind,
    /// A tick was asked for after one that was skipped, where none is passed over.
    TickAfterSkipped,
    /// What a run left was kept.
    Saved,
    /// What a run left came behind something later of the same run.
    SavedBefore,
    /// Who asked about its run owns the job no more.
    NotOwner,
    /// Whoever runs a tick again was told what an earlier run of it had left.
    Resumed,
    /// A tick that the asker knew to be over was open.
    LossMended,
}

/// Who has a free key, or a share of it, after a search for its next owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// The first live waiter, alone.
    Granted,
    /// Nobody alone, and no live waiter is left.
    Nobody,
    /// Those who share it, if anybody; a live waiter is left, for whom it is not free.
    Waits,
    /// There is one, but the key is left free for others.
    LeftFree,
}

/// What one request sees and leaves behind.
pub(crate) struct Transaction<'a, P: Plant> {
    pub(crate) name: &'a Name,
    pub(crate) state: &'a mut State,
    pub(crate) job: Option<&'a mut Job>,
    pub(crate) mark: Option<TickTime>,
    pub(crate) last: &'a mut GrantNumber,
    /// The highest number that the sender ever saw. It counts when a number is given.
    pub(crate) seen: GrantNumber,
    pub(crate) listening: Option<&'a HashSet<NodeId>>,
    /// How long a lock that was handed on and on is left free, in ms; 0 for never.
    pub(crate) poll_gap: u64,
    /// Another of the claims that go together cannot be granted.
    pub(crate) is_apart: bool,
    pub(crate) plant: P,
    pub(crate) now_us: u64,
    pub(crate) date_ms: u64,
    pub(crate) pushes: &'a mut Vec<Grant>,
    pub(crate) branches: &'a mut Vec<Branch>,
}

impl<P: Plant> Transaction<'_, P> {
    pub(crate) fn now(&self) -> u64 {
        self.now_us / 1000
    }

    pub(crate) fn planted(&self, flaw: Flaw) -> bool {
        self.plant.planted(flaw)
    }

    #[inline]
    pub(crate) fn treat(&mut self, request: &Request, not_after: u64) -> Reply {
        if self.is_late(request, not_after) {
            self.branches.push(if self.job.is_some() {
                Branch::TickLate
            } else {
                Branch::LateRefused
            });
            return Reply::Late;
        }
        if self.is_of_wrong_type() {
            return Reply::Refused(StoreRefusal::WrongType);
        }
        let Request {
            holder,
            term,
            mode,
            verb,
            ..
        } = *request;
        let (mark, dies) = (self.mark, self.now() + term.lease_ms);
        let entry = Entry {
            holder,
            term,
            mode,
            mark,
            dies,
        };
        match verb {
            Verb::Claim { wait } => self.claim(entry, wait, request.turn),
            Verb::Renew => self.renew(entry),
            Verb::Leave => self.leave(holder),
            Verb::Finish { well } => self.finish(holder, well),
            Verb::Yield { to } => self.yield_(holder, Entry { holder: to, ..entry }),
            Verb::Downgrade { to } => self.downgrade(holder, to, term),
            Verb::Ask(question) => self.answer(question, request.data.as_ref()),
        }
    }

    /// Whether a claim would be granted now. Whoever waits for a free key gets it before.
    pub(crate) fn is_to_be_had(&mut self, request: &Request, not_after: u64) -> bool {
        if self.is_late(request, not_after) {
            return true;
        }
        if self.is_of_wrong_type() {
            return false;
        }
        if self.owned_by(request.holder).is_some() {
            return true;
        }
        let search = self.settle(request.holder);
        self.owned_by(request.holder).is_some() || self.comes_next(request.mode, search)
    }

    fn is_late(&self, request: &Request, not_after: u64) -> bool {
        request.verb.creates() && self.now_us > not_after && !self.planted(Flaw::LateClaimExecuted)
    }

    /// Whether the record is none of a lock's. One that has ended is removed, and so are shares.
    fn is_of_wrong_type(&mut self) -> bool {
        let now = self.now();
        // What has ended must not come back: what it had was given to others.
        if !self.planted(Flaw::EndedPermitRenewed) {
            self.state.shares.retain(|share| now <= share.expires);
        }
        let record = &mut self.state.record;
        record.take_if(|record| is_past(record.expires, now));
        record
            .as_ref()
            .is_some_and(|record| record.owner == RecordOwner::WrongType)
    }

    fn claim(&mut self, claim: Entry, wait: bool, turn: Turn) -> Reply {
        let unlike = self.unlike(claim.mode);
        let owned = self.owned_by(claim.holder);
        let search = match owned {
            Some(_) => Search::Nobody,
            None => self.settle(claim.holder),
        };
        if let Some(number) = owned.or_else(|| self.owned_by(claim.holder)) {
            self.extend(claim.holder, claim.term);
            let unlike = unlike.filter(|_| owned.is_none());
            return self.granted_beside(number, unlike);
        }
        if let Some(refused) = self.judge().or_else(|| self.behind(turn)) {
            return refused;
        }
        if self.is_next_to_nobody(&claim, search) {
            if self.is_apart {
                self.branches.push(Branch::LeftApart);
                return Reply::Apart;
            }
            let open = self.job.as_deref().and_then(|job| job.overtaken_by(self.mark));
            let number = self.grant(&claim);
            return match open {
                Some(tick) => Reply::Overtook(number, tick),
                None => self.granted_beside(number, unlike),
            };
        }
        let left = self.left();
        let skips = turn == Turn::Skip || turn == Turn::Queue && self.planted(Flaw::QueuedTickSkipped);
        if let Some(job) = &mut self.job
            && self.mark > job.mark
            && !skips
        {
            // What comes after a tick that has ended waits for no run: somebody else's record is in the way.
            if turn != Turn::Queue || !wait {
                return Reply::Busy(left);
            }
            let before = self.mark.map_or(0, |mark| mark.0.saturating_sub(1));
            if before > job.skipped.map_or(0, |skipped| skipped.0) {
                job.skipped = Some(TickTime(before));
            }
            self.branches.push(Branch::TickQueued);
        } else if let Some(job) = &mut self.job
            && self.mark > job.mark
        {
            // A slow job overlaps nobody, and what it made wait is not run late by somebody else either.
            job.skipped = self.mark;
            self.branches.push(Branch::TickSkipped);
            return Reply::Busy(left);
        }
        if !wait || self.planted(Flaw::NoStandby) && self.job.is_some() {
            return Reply::Busy(left);
        }
        self.enqueue(claim);
        self.queued()
    }

    /// Whether the tick can be run at all, by the store's clock and the job's mark.
    fn judge(&mut self) -> Option<Reply> {
        let now = self.date_ms;
        let job = self.job.as_deref()?;
        if self.planted(Flaw::NoMark) {
            return None;
        }
        if !job.is_open(self.mark) {
            Some(self.over(Branch::TickOver))
        } else if let Some(TickTime(due)) = self.mark
            && due > now
            && !self.planted(Flaw::EarlyTickGranted)
        {
            self.branches.push(Branch::TickEarly);
            Some(Reply::Early(due - now))
        } else {
            None
        }
    }

    /// What somebody is told whose tick is over.
    fn over(&mut self, branch: Branch) -> Reply {
        let is_past = || self.job.as_deref().is_some_and(|job| self.mark < job.mark);
        let is_mistaken = self.planted(Flaw::RunTickCalledSkipped) && is_past();
        if is_mistaken || self.job.as_deref().is_some_and(|job| job.is_skipped(self.mark)) {
            self.branches.push(Branch::SkippedTold);
            return Reply::Skipped;
        }
        self.branches.push(branch);
        Reply::Over
    }

    /// Which tick is to be run before this one, where none is passed over.
    fn behind(&mut self, turn: Turn) -> Option<Reply> {
        let Turn::After(after) = turn else { return None };
        let job = self.job.as_deref()?;
        let latest = if self.planted(Flaw::SkippedTickAwaited) {
            job.mark
        } else {
            job.latest()
        }?;
        let is_next = latest == after && job.done || self.planted(Flaw::EarlierTickPassedOver);
        if self.mark == job.mark || is_next {
            if is_next && job.mark < Some(latest) {
                self.branches.push(Branch::TickAfterSkipped);
            }
            return None;
        }
        let is_open = !job.done;
        self.branches.push(Branch::TickBehind);
        Some(Reply::Behind { latest, is_open })
    }

    /// The owner's answer.
    fn granted(&self, number: GrantNumber) -> Reply {
        match &self.job {
            Some(job) => Reply::Won(number, job.attempt),
            None => Reply::Granted(number),
        }
    }

    /// The same, beside somebody who has permits as of another number.
    fn granted_beside(&mut self, number: GrantNumber, unlike: Option<u32>) -> Reply {
        let Some(capacity) = unlike else {
            return self.granted(number);
        };
        self.branches.push(Branch::UnlikeCapacity);
        Reply::Unlike(number, capacity)
    }

    fn finish(&mut self, holder: Holder, well: bool) -> Reply {
        let is_owner = self.owned_by(holder).is_some();
        let by_node = self.planted(Flaw::JobByNode);
        let keeps = self.planted(Flaw::CheckpointOutlivesTick);
        let mut finished = false;
        if let Some(job) = &mut self.job {
            let is_winner = |winner: Holder| winner == holder || (by_node && winner.node == holder.node);
            if job.mark == self.mark && job.winner.is_some_and(is_winner) {
                job.done = true;
                if well {
                    job.well = job.mark;
                }
                if !keeps {
                    job.saved = None;
                }
                finished = true;
            } else {
                self.branches.push(Branch::TickFinishedByAnother);
            }
        }
        if finished && !is_owner {
            self.branches.push(Branch::TickFinishedLate);
        }
        match self.leave(holder) {
            Reply::NotThere if finished => Reply::Done,
            reply => reply,
        }
    }

    fn renew(&mut self, claim: Entry) -> Reply {
        let holder = claim.holder;
        if let Some(number) = self.owned_by(holder) {
            self.branches.push(Branch::AskedAgain);
            self.share_alone(&claim);
            self.extend(holder, claim.term);
            return self.granted(number);
        }
        let waits = self.touch(holder);
        self.settle(holder);
        if let Some(number) = self.owned_by(holder) {
            self.branches.push(Branch::AskedAgain);
            self.granted(number)
        } else if waits {
            self.queued()
        } else if self.job.as_ref().is_some_and(|job| !job.is_open(self.mark)) {
            self.over(Branch::StandbyTold)
        } else {
            Reply::Gone
        }
    }

    fn leave(&mut self, holder: Holder) -> Reply {
        if self.owned_by(holder).is_some()
            || (self.planted(Flaw::LeaveByAnyone) && self.state.record.is_some())
        {
            self.state.record = None;
            self.state.shares.retain(|share| share.holder != holder);
            self.move_on(None, true);
            return Reply::Done;
        }
        if self.planted(Flaw::PermitReleasedTwice) && !self.state.shares.is_empty() {
            self.state.shares.remove(0);
        }
        // A waiter that came to leave must not be granted what it declines: it goes first, then the key is settled.
        let waited = self.withdraw(holder);
        if self.state.record.is_none() && !self.planted(Flaw::NeverSettled) {
            self.move_on(None, false);
        }
        if waited { Reply::Done } else { Reply::NotThere }
    }

    /// The owner's turn is over, and it goes on as `next` when it is its turn again.
    fn yield_(&mut self, holder: Holder, next: Entry) -> Reply {
        if self.owned_by(holder).is_none() {
            self.settle(holder);
        }
        if self.owned_by(holder).is_none() {
            self.branches.push(Branch::YieldRepeated);
            return Reply::Gone;
        }
        self.state.record = None;
        self.state.shares.retain(|share| share.holder != holder);
        let search = self.hand_over(None, true);
        // Who goes on waits, too.
        let is_kept = self.is_free() && search == Search::Nobody && self.is_left_free(true);
        if !is_kept && self.is_next_to_nobody(&next, search) {
            let number = self.grant(&next);
            return self.granted(number);
        }
        self.enqueue(next);
        self.queued()
    }

    /// A free key goes to the first live waiter, whoever asks, and a shared one to those who can share it.
    fn settle(&mut self, caller: Holder) -> Search {
        if self.state.record.is_none() && !self.planted(Flaw::NeverSettled) {
            self.move_on(Some(caller), false)
        } else {
            Search::Nobody
        }
    }

    /// As [`hand_over`](Self::hand_over). With nobody to go to the key is free, and everybody had a chance.
    fn move_on(&mut self, caller: Option<Holder>, gives: bool) -> Search {
        let search = self.hand_over(caller, gives);
        if search == Search::Nobody && self.is_free() && self.poll_gap > 0 {
            self.state.left_free = None;
        }
        search
    }

    /// Whether the key is left free now, instead of going to who waits. `gives`: its owner gives it away.
    fn is_left_free(&mut self, gives: bool) -> bool {
        if self.poll_gap == 0 {
            return false;
        }
        let (mut now, known) = (self.now(), self.state.left_free);
        if let Some(left) = known
            && self.planted(Flaw::LeftFreeForEver)
        {
            now = now.min(left.until(self.poll_gap).saturating_sub(1));
        }
        let gives_up = gives && !self.planted(Flaw::NeverLeftFree);
        let (is_free, known) = LeftFree::look(known, now, self.poll_gap, gives_up);
        self.state.left_free = known;
        if is_free {
            self.branches.push(if gives {
                Branch::LeftFree
            } else {
                Branch::MetLeftFree
            });
        }
        is_free
    }

    /// A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
    /// over.
    fn touch(&mut self, holder: Holder) -> bool {
        let now = self.now();
        let Some(at) = self.state.queue.iter().position(|entry| entry.holder == holder) else {
            return false;
        };
        if self.drop_dead_or_over(at) {
            return false;
        }
        self.state.queue[at].hear(now);
        true
    }

    /// Stands at the end, unless it stands there already. The dead make room, so a queue is never longer than all who
    /// lived when somebody last joined it.
    fn enqueue(&mut self, entry: Entry) {
        let now = self.now();
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| now <= entry.dies);
        if self.state.queue.len() < before {
            self.branches.push(Branch::DeadRemoved);
        }
        if !self.state.queue.iter().any(|other| other.holder == entry.holder) {
            self.state.queue.push_back(entry);
        }
    }

    fn withdraw(&mut self, holder: Holder) -> bool {
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| entry.holder != holder);
        self.state.queue.len() < before
    }

    /// Removes an entry that is dead, or waits for a tick that is over or was brought back: a finished one must not be handed
    /// to its standby, nor one whose time comes again.
    fn drop_dead_or_over(&mut self, at: usize) -> bool {
        let entry = &self.state.queue[at];
        let is_told = !self.planted(Flaw::FinishedTickHandedOver) && !self.planted(Flaw::StandbyNeverTold);
        let branch = if self.now() > entry.dies {
            Branch::DeadRemoved
        } else if is_told && self.job.as_ref().is_some_and(|job| !job.is_open(entry.mark)) {
            Branch::StandbyDropped
        } else if self
            .job
            .as_ref()
            .is_some_and(|job| job.is_brought_back(entry.mark, self.date_ms))
            && !self.planted(Flaw::TickBroughtBackGranted)
        {
            Branch::StandbyEarly
        } else {
            return false;
        };
        self.branches.push(branch);
        self.state.queue.remove(at);
        true
    }

    /// Whether a free key goes to this living entry. If not, it keeps its place.
    fn is_next(&mut self, at: usize, caller: Option<Holder>) -> bool {
        let entry = &self.state.queue[at];
        let is_kept_waiting = self.job.as_ref().is_some_and(|job| {
            self.planted(Flaw::StandbyNeverGranted) && job.mark == entry.mark
                || self.planted(Flaw::StandbyNeverTold) && !job.is_open(entry.mark)
        });
        if is_kept_waiting {
            return false;
        }
        if caller == Some(entry.holder) {
            return true;
        }
        if !entry.is_fresh(self.now()) && !self.planted(Flaw::DeadHeadGranted) {
            self.branches.push(Branch::StalePassedOver);
            return false;
        }
        let is_heard = self
            .listening
            .is_none_or(|listening| listening.contains(&entry.holder.node));
        if !is_heard {
            self.branches.push(Branch::DeafPassedOver);
        }
        is_heard
    }

    /// Gives a free key to the first live waiter, or to all who can share it up to the first who cannot. The caller learns of
    /// it by the answer, everybody else by a push. The dead that it walks over go out. What PUBLISH would count decides
    /// nothing: the choice is made before, and is final. `gives`: its owner gives it away.
    pub(crate) fn hand_over(&mut self, caller: Option<Holder>, gives: bool) -> Search {
        let mut at = 0;
        while at < self.state.queue.len() {
            if self.drop_dead_or_over(at) {
                continue;
            }
            if !self.is_next(at, caller) {
                at += 1;
                continue;
            }
            if !self.is_free_for(self.state.queue[at].mode) {
                if self.planted(Flaw::ReaderJoinsPastWriter) {
                    at += 1;
                    continue;
                }
                return Search::Waits;
            }
            if self.is_free() && self.is_left_free(gives) {
                return Search::LeftFree;
            }
            let entry = self.state.queue.remove(at).expect("it is within the queue");
            self.grant_waiter(&entry, caller);
            if entry.mode == Mode::Exclusive {
                return Search::Granted;
            }
        }
        Search::Nobody
    }

    fn grant_waiter(&mut self, entry: &Entry, caller: Option<Holder>) {
        let number = self.grant(entry);
        self.branches.push(Branch::HandedOver);
        if caller == Some(entry.holder) {
            return;
        }
        if caller.is_some() {
            self.branches.push(Branch::SettledForAnother);
        }
        self.pushes.push(Grant {
            name: self.name.clone(),
            holder: entry.holder,
            number,
            lease_ms: entry.term.lease_ms,
            attempt: self.job.as_ref().map_or(0, |job| job.attempt),
        });
    }

    pub(crate) fn grant(&mut self, claim: &Entry) -> GrantNumber {
        let (holder, mark) = (claim.holder, claim.mark);
        if let Some(job) = &mut self.job {
            let again = job.mark == mark && job.attempt > 0;
            if again {
                self.branches.push(Branch::TickTakenOver);
            } else if job.attempt > 0 && !job.done {
                self.branches.push(Branch::TickOvertaken);
            }
            if !again && !self.plant.planted(Flaw::CheckpointOutlivesTick) {
                job.saved = None;
            }
            if !again {
                job.passed = job.mark.zip(mark);
            }
            job.attempt = if again { job.attempt + 1 } else { 1 };
            (job.mark, job.done, job.winner) = (mark, false, Some(holder));
        }
        let keep = self.planted(Flaw::NumberKeptOnHandOff) && *self.last > GrantNumber::default();
        if !keep {
            let next = (*self.last).max(self.seen).0 + 1;
            *self.last = GrantNumber(next.max(self.now_us));
        }
        match claim.mode {
            Mode::Exclusive => {
                self.state.record = Some(Record {
                    owner: RecordOwner::Claim(holder, *self.last),
                    expires: None,
                });
            }
            Mode::Read | Mode::Permits(_) => self.share(holder, claim.mode, *self.last),
        }
        self.extend(holder, claim.term);
        *self.last
    }

    /// To the full lease, whatever is left of it: a claim has one length for life, and a server's clock that went back
    /// would otherwise leave more than that.
    pub(crate) fn extend(&mut self, holder: Holder, term: LeaseTimes) {
        let until = self.now() + term.hold_ms();
        if let Some(record) = &mut self.state.record {
            record.expires = Some(until);
        }
        if let Some(share) = self.share_of(holder) {
            share.expires = until;
        }
    }

    pub(crate) fn owned_by(&self, holder: Holder) -> Option<GrantNumber> {
        match self.state.record {
            Some(Record {
                owner: RecordOwner::Claim(owner, number),
                ..
            }) if owner == holder => Some(number),
            Some(Record {
                owner: RecordOwner::Claim(owner, number),
                ..
            }) if self.planted(Flaw::JobByNode) && self.job.is_some() => {
                (owner.node == holder.node).then_some(number)
            }
            _ => {
                let mut shares = self.state.shares.iter();
                shares
                    .find(|share| share.holder == holder)
                    .map(|share| share.number)
            }
        }
    }

    /// The waiter's answer. It says when the owner will not tell it of its release, so that it looks for itself.
    fn queued(&mut self) -> Reply {
        let left = self.left();
        let record = self.state.record.as_ref();
        // Who leaves a key free tells nobody either.
        if self.poll_gap > 0 || record.is_some_and(|record| record.owner == RecordOwner::Foreign) {
            self.branches.push(Branch::QueuedBehindForeign);
            Reply::QueuedBehindForeign(left)
        } else {
            Reply::Queued(left)
        }
    }

    fn left(&self) -> Option<u64> {
        let shared = self.state.shares.iter().map(|share| share.expires).max();
        let ends = match &self.state.record {
            Some(record) => record.expires,
            None => shared,
        };
        ends.map(|at| at.saturating_sub(self.now()))
    }
}
