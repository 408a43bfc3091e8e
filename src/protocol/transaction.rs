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
    Grant, GrantNumber, Holder, LeaseTimes, Name, NodeId, Reply, Request, TickTime, Verb,
};
use crate::protocol::record::{Entry, Job, Record, RecordOwner, State, is_past};

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
    /// An owner asked again and got the same number.
    AskedAgain,
    /// A tick was asked for that is over.
    TickOver,
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
    /// Somebody who had stood by for a tick was told that it is over.
    StandbyTold,
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
    pub(crate) plant: P,
    pub(crate) now_us: u64,
    pub(crate) date_ms: u64,
    pub(crate) pushes: &'a mut Vec<Grant>,
    pub(crate) branches: &'a mut Vec<Branch>,
}

impl<P: Plant> Transaction<'_, P> {
    fn now(&self) -> u64 {
        self.now_us / 1000
    }

    fn planted(&self, flaw: Flaw) -> bool {
        self.plant.planted(flaw)
    }

    pub(crate) fn treat(&mut self, request: &Request, not_after: u64) -> Reply {
        if matches!(request.verb, Verb::Claim { .. } | Verb::Yield { .. })
            && self.now_us > not_after
            && !self.planted(Flaw::LateClaimExecuted)
        {
            self.branches.push(if self.job.is_some() {
                Branch::TickLate
            } else {
                Branch::LateRefused
            });
            return Reply::Late;
        }
        let now = self.now();
        if self
            .state
            .record
            .as_ref()
            .is_some_and(|record| is_past(record.expires, now))
        {
            self.state.record = None;
        }
        if self
            .state
            .record
            .as_ref()
            .is_some_and(|record| record.owner == RecordOwner::WrongType)
        {
            return Reply::Refused(StoreRefusal::WrongType);
        }
        let Request {
            holder, term, verb, ..
        } = *request;
        match verb {
            Verb::Claim { wait } => self.claim(holder, term, wait),
            Verb::Renew => self.renew(holder, term),
            Verb::Leave => self.leave(holder),
            Verb::Finish => self.finish(holder),
            Verb::Yield { to } => self.yield_(holder, to, term),
        }
    }

    fn claim(&mut self, holder: Holder, term: LeaseTimes, wait: bool) -> Reply {
        self.settle(holder);
        if let Some(number) = self.owned_by(holder) {
            self.extend(term);
            return self.granted(number);
        }
        if let Some(refused) = self.judge() {
            return refused;
        }
        if self.state.record.is_none() {
            let number = self.grant(holder, term, self.mark);
            return self.granted(number);
        }
        let left = self.left();
        if let Some(job) = &mut self.job
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
        self.enqueue(holder, term);
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
            self.branches.push(Branch::TickOver);
            Some(Reply::Over)
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

    /// The owner's answer.
    fn granted(&self, number: GrantNumber) -> Reply {
        match &self.job {
            Some(job) => Reply::Won(number, job.attempt),
            None => Reply::Granted(number),
        }
    }

    fn finish(&mut self, holder: Holder) -> Reply {
        let is_owner = self.owned_by(holder).is_some();
        let by_node = self.planted(Flaw::JobByNode);
        let mut finished = false;
        if let Some(job) = &mut self.job {
            let is_winner = |winner: Holder| winner == holder || (by_node && winner.node == holder.node);
            if job.mark == self.mark && job.winner.is_some_and(is_winner) {
                job.done = true;
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

    fn renew(&mut self, holder: Holder, term: LeaseTimes) -> Reply {
        if let Some(number) = self.owned_by(holder) {
            self.branches.push(Branch::AskedAgain);
            self.extend(term);
            return self.granted(number);
        }
        let waits = self.touch(holder, term);
        self.settle(holder);
        if let Some(number) = self.owned_by(holder) {
            self.branches.push(Branch::AskedAgain);
            self.granted(number)
        } else if waits {
            self.queued()
        } else if self.job.as_ref().is_some_and(|job| !job.is_open(self.mark)) {
            self.branches.push(Branch::StandbyTold);
            Reply::Over
        } else {
            Reply::Gone
        }
    }

    fn leave(&mut self, holder: Holder) -> Reply {
        if self.owned_by(holder).is_some()
            || (self.planted(Flaw::LeaveByAnyone) && self.state.record.is_some())
        {
            self.state.record = None;
            self.hand_over(None);
            return Reply::Done;
        }
        // A waiter that came to leave must not be granted what it declines: it goes first, then the key is settled.
        let waited = self.withdraw(holder);
        if self.state.record.is_none() && !self.planted(Flaw::NeverSettled) {
            self.hand_over(None);
        }
        if waited { Reply::Done } else { Reply::NotThere }
    }

    fn yield_(&mut self, holder: Holder, to: Holder, term: LeaseTimes) -> Reply {
        self.settle(holder);
        if self.owned_by(holder).is_none() {
            self.branches.push(Branch::YieldRepeated);
            return Reply::Gone;
        }
        self.state.record = None;
        if !self.hand_over(None) {
            let number = self.grant(to, term, self.mark);
            return self.granted(number);
        }
        self.enqueue(to, term);
        self.queued()
    }

    /// A free key goes to the first live waiter, whoever asks.
    fn settle(&mut self, caller: Holder) {
        if self.state.record.is_none() && !self.planted(Flaw::NeverSettled) {
            self.hand_over(Some(caller));
        }
    }

    /// A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
    /// over.
    fn touch(&mut self, holder: Holder, term: LeaseTimes) -> bool {
        let now = self.now();
        let Some(at) = self.state.queue.iter().position(|entry| entry.holder == holder) else {
            return false;
        };
        let mark = self.state.queue[at].mark;
        if self.drop_dead_or_over(at) {
            return false;
        }
        self.state.queue[at] = Entry::heard(holder, term, mark, now);
        true
    }

    /// Stands at the end, unless it stands there already. The dead make room, so a queue is never longer than all who
    /// lived when somebody last joined it.
    fn enqueue(&mut self, holder: Holder, term: LeaseTimes) {
        let now = self.now();
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| now <= entry.dies);
        if self.state.queue.len() < before {
            self.branches.push(Branch::DeadRemoved);
        }
        if !self.state.queue.iter().any(|entry| entry.holder == holder) {
            let entry = Entry::heard(holder, term, self.mark, now);
            self.state.queue.push_back(entry);
        }
    }

    fn withdraw(&mut self, holder: Holder) -> bool {
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| entry.holder != holder);
        self.state.queue.len() < before
    }

    /// Removes an entry that is dead, or waits for a tick that is over: a finished one must not be handed to its standby.
    fn drop_dead_or_over(&mut self, at: usize) -> bool {
        let entry = &self.state.queue[at];
        let is_told = !self.planted(Flaw::FinishedTickHandedOver) && !self.planted(Flaw::StandbyNeverTold);
        let branch = if self.now() > entry.dies {
            Branch::DeadRemoved
        } else if is_told && self.job.as_ref().is_some_and(|job| !job.is_open(entry.mark)) {
            Branch::StandbyDropped
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

    /// Gives a free key to the first live waiter. The caller learns of it by the answer, everybody else by a push. The
    /// dead that it walks over go out. What PUBLISH would count decides nothing: the choice is made before, and is final.
    fn hand_over(&mut self, caller: Option<Holder>) -> bool {
        let mut at = 0;
        while at < self.state.queue.len() {
            if self.drop_dead_or_over(at) {
                continue;
            }
            if self.is_next(at, caller) {
                break;
            }
            at += 1;
        }
        let Some(entry) = self.state.queue.remove(at) else {
            return false;
        };
        let number = self.grant(entry.holder, entry.term, entry.mark);
        self.branches.push(Branch::HandedOver);
        if caller != Some(entry.holder) {
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
        true
    }

    fn grant(&mut self, holder: Holder, term: LeaseTimes, mark: Option<TickTime>) -> GrantNumber {
        if let Some(job) = &mut self.job {
            let again = job.mark == mark && job.attempt > 0;
            if again {
                self.branches.push(Branch::TickTakenOver);
            } else if job.attempt > 0 && !job.done {
                self.branches.push(Branch::TickOvertaken);
            }
            job.attempt = if again { job.attempt + 1 } else { 1 };
            (job.mark, job.done, job.winner) = (mark, false, Some(holder));
        }
        let keep = self.planted(Flaw::NumberKeptOnHandOff) && *self.last > GrantNumber::default();
        if !keep {
            let next = (*self.last).max(self.seen).0 + 1;
            *self.last = GrantNumber(next.max(self.now_us));
        }
        self.state.record = Some(Record {
            owner: RecordOwner::Claim(holder, *self.last),
            expires: None,
        });
        self.extend(term);
        *self.last
    }

    /// To the full lease, whatever is left of it: a claim has one length for life, and a server's clock that went back
    /// would otherwise leave more than that.
    fn extend(&mut self, term: LeaseTimes) {
        let until = self.now() + term.hold_ms();
        if let Some(record) = &mut self.state.record {
            record.expires = Some(until);
        }
    }

    fn owned_by(&self, holder: Holder) -> Option<GrantNumber> {
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
            _ => None,
        }
    }

    /// The waiter's answer. It says when the owner will not tell it of its release, so that it looks for itself.
    fn queued(&mut self) -> Reply {
        let left = self.left();
        let record = self.state.record.as_ref();
        if record.is_some_and(|record| record.owner == RecordOwner::Foreign) {
            self.branches.push(Branch::QueuedBehindForeign);
            Reply::QueuedBehindForeign(left)
        } else {
            Reply::Queued(left)
        }
    }

    fn left(&self) -> Option<u64> {
        self.state
            .record
            .as_ref()?
            .expires
            .map(|at| at.saturating_sub(self.now()))
    }
}
