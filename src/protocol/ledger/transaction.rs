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
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{Entry, Job, Record, RecordOwner, Search, State, is_past};
use crate::protocol::message::{
    Call, ClaimId, GrantNumber, Kind, LeaseTimes, Mode, Name, NodeId, Push, Reply, Request, TickTime, Verb,
    WhenBehind,
};

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
    pub(crate) pushes: &'a mut Vec<Push>,
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
        let led = self.leads();
        let reply = self.act(request);
        if request.data.is_some() {
            self.keep_value(request, led);
        }
        if self.leads() != led {
            self.elected();
        }
        reply
    }

    #[inline]
    fn act(&mut self, request: &Request) -> Reply {
        let Request {
            claim_id,
            term,
            mode,
            verb,
            ..
        } = *request;
        let (mark, dies) = (self.mark, self.now() + term.lease_ms);
        let entry = Entry {
            claim_id,
            term,
            mode,
            mark,
            dies,
        };
        match verb {
            Verb::Claim { wait } => self.claim(entry, wait, request.turn),
            Verb::Renew => self.renew(entry),
            Verb::Leave => self.leave(claim_id),
            Verb::Finish { well } => self.finish(claim_id, well),
            Verb::Yield { to } => self.yield_(
                claim_id,
                Entry {
                    claim_id: to,
                    ..entry
                },
            ),
            Verb::Pass { to } => self.pass(
                claim_id,
                Entry {
                    claim_id: to,
                    ..entry
                },
            ),
            Verb::Call(Call::Release { of, .. }) => self.leave(of),
            Verb::Call(Call::Extend { of }) => self.lengthen(of, mode, term),
            Verb::Call(call) if self.name.kind == Kind::Latch => self.ask_latch(request, call),
            Verb::Call(call) if self.name.kind == Kind::Election => self.ask_election(request, call),
            Verb::Call(call) => self.answer(call, request.data.as_ref()),
        }
    }

    /// Whether a claim would be granted now, in its mode. Whoever waits for a free key gets it before, and so does whoever
    /// reads with those who have it.
    pub(crate) fn can_grant(&mut self, request: &Request, not_after: u64) -> bool {
        if self.is_late(request, not_after) {
            return true;
        }
        if self.is_of_wrong_type() {
            return false;
        }
        if self.owned_by(request.claim_id).is_some() {
            return true;
        }
        let mut search = self.settle(Some(request.claim_id));
        if search == Search::Waits && self.planted(Flaw::TogetherPastWriter) {
            search = Search::NoWaiter;
        }
        let mode = if self.planted(Flaw::TogetherAsWriter) {
            Mode::Exclusive
        } else {
            request.mode
        };
        self.owned_by(request.claim_id).is_some() || self.comes_next(mode, search)
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
        // Of a latch there is none.
        let is_latch = self.name.kind == Kind::Latch;
        record
            .as_ref()
            .is_some_and(|record| is_latch || record.owner == RecordOwner::WrongType)
    }

    fn claim(&mut self, claim: Entry, wait: bool, turn: WhenBehind) -> Reply {
        let recorded_capacity = self.recorded_capacity(claim.mode);
        let owned = self.owned_by(claim.claim_id);
        let search = match owned {
            Some(_) => Search::NoWaiter,
            None => self.settle(Some(claim.claim_id)),
        };
        if let Some(number) = owned.or_else(|| self.owned_by(claim.claim_id)) {
            self.extend(claim.claim_id, claim.term);
            let recorded_capacity = recorded_capacity.filter(|_| owned.is_none());
            return self.granted_beside(number, recorded_capacity);
        }
        if let Some(refused) = self.judge().or_else(|| self.behind(turn)) {
            return refused;
        }
        if self.may_join(&claim, search) {
            if self.is_apart {
                self.branches.push(Branch::LeftApart);
                return Reply::GroupRefused;
            }
            let open = self.job.as_deref().and_then(|job| job.overtaken_by(self.mark));
            let number = self.grant(&claim);
            return match open {
                Some(tick) => Reply::Overtook(number, tick),
                None => self.granted_beside(number, recorded_capacity),
            };
        }
        if self.job.is_some()
            && let Some(busy) = self.behind_run(turn, wait)
        {
            return busy;
        }
        if !wait || self.planted(Flaw::NoStandby) && self.job.is_some() {
            return Reply::Busy(self.left());
        }
        self.enqueue(claim);
        self.queued()
    }

    /// The owner's answer.
    pub(crate) fn granted(&self, number: GrantNumber) -> Reply {
        match &self.job {
            Some(job) => Reply::Won(number, job.attempt),
            None => Reply::Granted(number),
        }
    }

    /// The same, beside somebody who has permits as of another number.
    fn granted_beside(&mut self, number: GrantNumber, recorded_capacity: Option<u32>) -> Reply {
        let Some(capacity) = recorded_capacity else {
            return self.granted(number);
        };
        self.branches.push(Branch::UnlikeCapacity);
        Reply::CapacityDiffers(number, capacity)
    }

    fn renew(&mut self, claim: Entry) -> Reply {
        let claim_id = claim.claim_id;
        if let Some(number) = self.owned_by(claim_id) {
            self.branches.push(Branch::AskedAgain);
            self.share_alone(&claim);
            self.extend(claim_id, claim.term);
            return self.granted(number);
        }
        let waits = self.touch(claim_id);
        self.settle(Some(claim_id));
        if let Some(number) = self.owned_by(claim_id) {
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

    pub(crate) fn leave(&mut self, claim_id: ClaimId) -> Reply {
        if self.owned_by(claim_id).is_some()
            || (self.planted(Flaw::LeaveByAnyone) && self.state.record.is_some())
        {
            self.state.end(claim_id);
            self.move_on(None, true);
            return Reply::Done;
        }
        if self.planted(Flaw::PermitReleasedTwice) && !self.state.shares.is_empty() {
            self.state.shares.remove(0);
        }
        // A waiter that came to leave must not be granted what it declines: it goes first, then the key is settled.
        let waited = self.withdraw(claim_id);
        self.settle(None);
        if waited { Reply::Done } else { Reply::NotThere }
    }

    /// The owner's turn is over, and it goes on as `next` when it is its turn again.
    fn yield_(&mut self, claim_id: ClaimId, next: Entry) -> Reply {
        if self.owned_by(claim_id).is_none() {
            self.settle(Some(claim_id));
        }
        if self.owned_by(claim_id).is_none() {
            self.branches.push(Branch::YieldRepeated);
            return Reply::Gone;
        }
        self.state.end(claim_id);
        let search = self.hand_over(None, true);
        // Who goes on waits, too.
        let is_kept = self.is_free() && search == Search::NoWaiter && self.is_left_free(true);
        if !is_kept && self.may_join(&next, search) {
            let number = self.grant(&next);
            return self.granted(number);
        }
        self.enqueue(next);
        self.queued()
    }

    pub(crate) fn grant(&mut self, claim: &Entry) -> GrantNumber {
        let (claim_id, mark) = (claim.claim_id, claim.mark);
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
                job.passed = mark.map(|mark| (job.mark.unwrap_or_default(), mark));
            }
            job.attempt = if again { job.attempt + 1 } else { 1 };
            (job.mark, job.done, job.winner) = (mark, false, Some(claim_id));
        }
        let keep = self.planted(Flaw::NumberKeptOnHandOff) && *self.last > GrantNumber::default();
        if !keep {
            self.next_number();
        }
        match claim.mode {
            Mode::Exclusive => {
                self.state.record = Some(Record {
                    owner: RecordOwner::Claim(claim_id, *self.last),
                    expires: None,
                });
            }
            Mode::Read | Mode::Permits(_) => self.share(claim_id, claim.mode, *self.last),
        }
        self.extend(claim_id, claim.term);
        *self.last
    }

    /// A number that was never given, by the clock where that is later.
    pub(crate) fn next_number(&mut self) -> GrantNumber {
        let next = (*self.last).max(self.seen).0 + 1;
        *self.last = GrantNumber(next.max(self.now_us));
        *self.last
    }

    /// To the full lease, whatever is left of it: a claim has one length for life, and a server's clock that went back
    /// would otherwise leave more than that.
    pub(crate) fn extend(&mut self, claim_id: ClaimId, term: LeaseTimes) {
        let until = self.now() + term.hold_ms();
        if let Some(record) = &mut self.state.record {
            record.expires = Some(until);
        }
        if let Some(share) = self.share_of(claim_id) {
            share.expires = until;
        }
    }

    pub(crate) fn owned_by(&self, claim_id: ClaimId) -> Option<GrantNumber> {
        let by_node = self.planted(Flaw::JobByNode) && self.job.is_some();
        match self.state.owner() {
            Some((owner, number)) if owner == claim_id || by_node && owner.node == claim_id.node => {
                Some(number)
            }
            _ => {
                let mut shares = self.state.shares.iter();
                let share = shares.find(|share| share.claim_id == claim_id)?;
                Some(share.number)
            }
        }
    }

    /// The waiter's answer. It says when the owner will not tell it of its release, so that it looks for itself.
    pub(crate) fn queued(&mut self) -> Reply {
        let left = self.left();
        let record = self.state.record.as_ref();
        // Who leaves a key free tells nobody either.
        if self.poll_gap > 0 || record.is_some_and(|record| record.owner == RecordOwner::Foreign) {
            self.branches.push(Branch::QueuedBehindForeign);
            return Reply::QueuedBehindForeign(left);
        }
        match self.state.owner() {
            Some((owner, _)) => Reply::QueuedBehind(left, owner.node),
            None => Reply::Queued(left),
        }
    }

    pub(crate) fn left(&self) -> Option<u64> {
        let shared = self.state.shares.iter().map(|share| share.expires).max();
        let ends = match &self.state.record {
            Some(record) => record.expires,
            None => shared,
        };
        ends.map(|at| at.saturating_sub(self.now()))
    }
}
