//! The execution of one request in a store.
//!
//! Every verb first **settles** the key: a free key with a live waiter is granted to that waiter, with a push. Then
//! the verb is executed. Otherwise an expired lease would grant the key to no waiter while all of them are queued.
//!
//! A waiter is **dead** if its node sent no heartbeat for a whole lease. A dead waiter gets no grant, and a heartbeat
//! does not revive it. It is removed when a search for the next owner passes it, when its own node asks, and when
//! another waiter joins the queue. Until then it may stay in the queue behind a live one.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::StoreRefusal;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::{Branch, Branches};
use crate::protocol::ledger::record::{
    JobRecord, KeyRecord, QueueEntry, Record, RecordOwner, Search, is_past,
};
use crate::protocol::ledger::recovery_state::RecoveryState;
use crate::protocol::message::{
    Call, CallAnswer, ClaimId, ClaimReply, GrantNumber, GrantReply, Kind, LeaseTimes, LeaveReply, Mode, Name,
    NodeId, Push, QueueOwner, Reply, Request, TickRefusal, TickTime, Verb,
};

/// The state that one request reads and changes.
pub(crate) struct Transaction<'a> {
    pub(crate) name: &'a Name,
    pub(crate) state: &'a mut KeyRecord,
    /// The record of the job; `None` for every other kind.
    pub(crate) job: Option<&'a mut JobRecord>,
    /// The tick of the request.
    pub(crate) mark: Option<TickTime>,
    /// The last grant number of the store.
    pub(crate) last: &'a mut GrantNumber,
    pub(crate) recovery: &'a mut RecoveryState,
    /// The Sentinels have not confirmed the sender's link.
    pub(crate) is_unconfirmed: bool,
    /// How long a recovery lasts that this request begins, in ms.
    pub(crate) recovery_ms: u64,
    /// The request came after its batch's not-after.
    pub(crate) is_after_bound: bool,
    /// The highest grant number that the sender has seen. The next number is higher.
    pub(crate) seen: GrantNumber,
    /// The nodes with an open inbox; `None` if that is not known.
    pub(crate) listening: Option<&'a HashSet<NodeId>>,
    /// How long a lock that was handed over again and again is left free, in ms; 0: never.
    pub(crate) poll_gap: u64,
    /// Set if another claim of the group cannot be granted.
    pub(crate) is_group_refused: bool,
    pub(crate) plant: Plant,
    pub(crate) now_us: u64,
    /// The time that ticks are compared with, in milliseconds since the Unix epoch.
    pub(crate) date_ms: u64,
    pub(crate) pushes: &'a mut Vec<Push>,
    pub(crate) branches: &'a mut Branches,
}

impl Transaction<'_> {
    /// The server's clock, in milliseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now_us / 1000
    }

    /// Executes a request and returns its reply. Refuses a late request, and a key whose record is no lock's.
    #[inline]
    pub(crate) fn execute(&mut self, request: &Request, not_after: u64) -> Reply {
        self.is_after_bound = self.now_us > not_after;
        if self.is_late(request, not_after) {
            self.branches.note(if self.job.is_some() {
                Branch::TickLate
            } else {
                Branch::LateRefused
            });
            return Reply::Late;
        }
        if self.is_of_wrong_type() {
            return Reply::Refused(StoreRefusal::WrongType);
        }
        let led = self.current_leader();
        let reply = self.dispatch(request);
        if request.data.is_some() {
            self.keep_value(request, led);
        }
        if self.current_leader() != led {
            self.leader_changed();
        }
        reply
    }

    #[inline]
    fn dispatch(&mut self, request: &Request) -> Reply {
        let Request {
            claim_id,
            term,
            mode,
            verb,
            ..
        } = *request;
        let (mark, dies) = (self.mark, self.now() + term.lease_ms);
        let entry = QueueEntry {
            claim_id,
            term,
            mode,
            mark,
            dies,
        };
        match verb {
            Verb::Claim { wait } => self.claim(entry, wait, request).into(),
            Verb::Renew { number } => self.renew(entry, number),
            Verb::Assert { number } => self.assert_fixed(&entry, number),
            Verb::Propose { number } => self.propose(&entry, number).into(),
            Verb::Restore { number } => self.restore(&entry, number),
            Verb::Leave => self.leave(claim_id).into(),
            Verb::Finish { result } => self.finish(claim_id, result, request.data.as_ref()).into(),
            Verb::Yield { to } => self.yield_(claim_id, entry.under(to)).into(),
            Verb::Pass { to, adopts } => self.pass(claim_id, adopts, entry.under(to)).into(),
            Verb::Call(Call::Release { of, .. }) => {
                CallAnswer::Owned(self.leave(of) == LeaveReply::Left).into()
            }
            Verb::Call(Call::Extend { of }) => self.lengthen(of, mode, term).into(),
            Verb::Call(call) if self.name.kind == Kind::Latch => self.ask_latch(request, call).into(),
            Verb::Call(call) if self.name.kind == Kind::Election => self.ask_election(request, call).into(),
            Verb::Call(call) => self.answer_call(call, request).into(),
        }
    }

    /// Settles the key, then returns whether the claim would be granted. Waiters for a free key come first. A late
    /// claim also returns true: it is refused on its own.
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
        if self.held_back().is_some() {
            return false;
        }
        let mut search = self.settle(Some(request.claim_id));
        if search == Search::Waits && self.plant.is(Flaw::TogetherPastWriter) {
            search = Search::NoWaiter;
        }
        let mode = if self.plant.is(Flaw::TogetherAsWriter) {
            Mode::Exclusive
        } else {
            request.mode
        };
        self.owned_by(request.claim_id).is_some() || self.is_next(mode, search)
    }

    /// Returns whether the request may create state and comes after its batch's not-after.
    fn is_late(&self, request: &Request, not_after: u64) -> bool {
        request.verb.creates() && self.now_us > not_after && !self.plant.is(Flaw::LateClaimExecuted)
    }

    /// Returns whether the record is no lock's. Removes an expired record and expired shares first.
    pub(crate) fn is_of_wrong_type(&mut self) -> bool {
        let now = self.now();
        // An expired share must not be renewed: its permits may have been granted to others.
        if !self.plant.is(Flaw::EndedPermitRenewed) {
            self.state.shares.retain(|share| now <= share.expires);
        }
        let record = &mut self.state.record;
        record.take_if(|record| is_past(record.expires, now));
        // A latch has no record of this kind.
        let is_latch = self.name.kind == Kind::Latch;
        record
            .as_ref()
            .is_some_and(|record| is_latch || record.owner == RecordOwner::WrongType)
    }

    /// Grants the key, queues the claim, or refuses it.
    fn claim(&mut self, claim: QueueEntry, wait: bool, request: &Request) -> ClaimReply {
        let when_behind = request.when_behind;
        let recorded_capacity = self.recorded_capacity(claim.mode);
        let owned = self.owned_by(claim.claim_id);
        let search = match owned {
            Some(_) => Search::NoWaiter,
            None => self.settle(Some(claim.claim_id)),
        };
        if let Some(number) = owned.or_else(|| self.owned_by(claim.claim_id)) {
            self.extend(claim.claim_id, claim.term);
            let recorded_capacity = recorded_capacity.filter(|_| owned.is_none());
            return ClaimReply::Granted(self.granted_beside(number, recorded_capacity));
        }
        if let Some(refused) = self.refuse_tick() {
            return ClaimReply::Tick(refused);
        }
        if let Some(left) = self.held_back() {
            self.branches.note(Branch::ClaimHeldBack);
            // A tick is not queued, because what is known of earlier ticks may be lost.
            if wait && self.job.is_none() {
                self.enqueue(claim);
            }
            return ClaimReply::Recovering(left);
        }
        if let Some(refused) = self.refuse_behind_earlier(when_behind) {
            return ClaimReply::Tick(refused);
        }
        let is_behind_tick = self.is_behind_tick(claim.mark);
        if !is_behind_tick && self.may_join(&claim, search) {
            if self.is_group_refused {
                self.branches.note(Branch::GroupRefused);
                return ClaimReply::GroupRefused;
            }
            let open = self.job.as_deref().and_then(|job| job.overtaken_by(self.mark));
            let number = self.grant(&claim);
            if let Some(record) = &mut self.state.record {
                record.may_keep = request.may_keep;
            }
            let granted = self.granted_beside(number, recorded_capacity);
            return ClaimReply::Granted(GrantReply {
                overtook: open,
                ..granted
            });
        }
        if self.job.is_some()
            && let Some(busy) = self.refuse_beside_run(when_behind, wait)
        {
            return busy;
        }
        if !wait || self.plant.is(Flaw::NoStandby) && self.job.is_some() {
            self.recall();
            return ClaimReply::Busy(self.owner_left_ms());
        }
        self.enqueue(claim);
        self.queued()
    }

    /// Tells the owner that another claim wants the key, if it may keep its lease without a holder.
    fn recall(&mut self) {
        if let (Some(Record { may_keep: true, .. }), Some((owner, _))) =
            (&self.state.record, self.state.owner())
        {
            self.branches.note(Branch::Recalled);
            self.pushes.push(Push::Recalled(self.name.clone(), owner));
        }
    }

    /// Returns the reply to an owner.
    pub(crate) fn granted(&self, number: GrantNumber) -> ClaimReply {
        ClaimReply::Granted(self.grant_reply(number))
    }

    fn grant_reply(&self, number: GrantNumber) -> GrantReply {
        GrantReply {
            attempt: self.job.as_ref().map_or(0, |job| job.attempt_at(self.mark)),
            ..GrantReply::new(number)
        }
    }

    /// Returns the reply to an owner, after a check of the capacity that another holder recorded.
    fn granted_beside(&mut self, number: GrantNumber, recorded_capacity: Option<u32>) -> GrantReply {
        if recorded_capacity.is_some() {
            self.branches.note(Branch::CapacityDiffers);
        }
        GrantReply {
            other_capacity: recorded_capacity,
            ..self.grant_reply(number)
        }
    }

    /// Extends the owner's lease, or records a waiter's heartbeat. `number`: the sender's grant, if it is an owner.
    fn renew(&mut self, claim: QueueEntry, number: Option<GrantNumber>) -> Reply {
        let claim_id = claim.claim_id;
        if let Some(own) = self.owned_by(claim_id) {
            self.branches.note(Branch::AskedAgain);
            self.extend(claim_id, claim.term);
            // A sender that does not know its grant does not hold yet. Its lease may have ended before the loss.
            return match self.held_back() {
                Some(left) if number.is_none() => ClaimReply::Recovering(left).into(),
                _ => self.granted(own).into(),
            };
        }
        if self.is_revoked(claim_id) && !self.plant.is(Flaw::RevokedAsserted) {
            self.branches.note(Branch::RevokedTold);
            return ClaimReply::Revoked.into();
        }
        if let Some(asserted) = number.and_then(|number| self.assert_lease(&claim, number)) {
            return asserted;
        }
        let waits = self.note_heartbeat(claim_id);
        self.settle(Some(claim_id));
        if let Some(number) = self.owned_by(claim_id) {
            self.branches.note(Branch::AskedAgain);
            self.granted(number).into()
        } else if waits {
            self.queued().into()
        } else if self.is_over(self.mark) {
            ClaimReply::Tick(self.refuse_over_tick(Branch::StandbyTold)).into()
        } else if self.is_paused(self.mark) {
            ClaimReply::Tick(TickRefusal::Paused).into()
        } else {
            ClaimReply::Gone.into()
        }
    }

    /// Asserts a fixed lease. The term of `claim` is what is left of it, so a record that is there stays as it is.
    fn assert_fixed(&mut self, claim: &QueueEntry, number: GrantNumber) -> Reply {
        match self.owned_by(claim.claim_id) {
            Some(own) => {
                if self.plant.is(Flaw::AssertionShortens) {
                    self.extend(claim.claim_id, claim.term);
                }
                self.granted(own).into()
            }
            None if self.is_revoked(claim.claim_id) => ClaimReply::Revoked.into(),
            None => self
                .assert_lease(claim, number)
                .unwrap_or(ClaimReply::Gone.into()),
        }
    }

    /// Releases the claim's lease and hands the key over, or removes the claim from the queue.
    pub(crate) fn leave(&mut self, claim_id: ClaimId) -> LeaveReply {
        let owns = self.owned_by(claim_id).is_some();
        if !owns {
            // A revoked claim that waits again, which no node does, is handed the key without its value.
            self.state.candidate_values.retain(|(of, _)| *of != claim_id);
        }
        if owns
            || self.is_revoked(claim_id)
            || self.plant.is(Flaw::RevokedLeftByAnother) && self.is_owner_revoked()
            || (self.plant.is(Flaw::LeaveByAnyone) && self.state.record.is_some())
        {
            self.state.end(claim_id);
            self.hand_over_or_free(None, true);
            return LeaveReply::Left;
        }
        if self.plant.is(Flaw::PermitReleasedTwice) && !self.state.shares.is_empty() {
            self.state.shares.remove(0);
        }
        // A waiter that leaves must not be granted the key, so it is removed before the key is settled.
        let waited = self.remove_waiter(claim_id);
        self.settle(None);
        if waited {
            LeaveReply::Left
        } else {
            LeaveReply::NotThere
        }
    }

    /// Ends the owner's turn: hands the key over, and queues the owner again as `next`. If no claim waits, `next` is
    /// granted at once.
    fn yield_(&mut self, claim_id: ClaimId, next: QueueEntry) -> ClaimReply {
        // The leave that follows ends it.
        if self.is_revoked(claim_id) {
            self.branches.note(Branch::RevokedTold);
            return ClaimReply::Revoked;
        }
        if self.owned_by(claim_id).is_none() {
            self.settle(Some(claim_id));
        }
        if self.owned_by(claim_id).is_none() {
            self.branches.note(Branch::YieldRepeated);
            return ClaimReply::Gone;
        }
        let was_alone = self.state.record.is_some();
        self.state.end(claim_id);
        let search = self.hand_over(None, true);
        let is_kept = match self.held_back() {
            // A lost lease may exclude the next claim, unless this one excluded it.
            Some(_) => !was_alone && next.mode != Mode::Read,
            // If the key is left free, the yielding claim queues, too.
            None => self.is_free() && search == Search::NoWaiter && self.is_left_free(true),
        };
        if !is_kept && self.may_join(&next, search) {
            let number = self.grant(&next);
            return self.granted(number);
        }
        self.enqueue(next);
        self.queued()
    }

    /// Makes the claim the owner of the key, or one of its holders, and returns the new grant number.
    pub(crate) fn grant(&mut self, claim: &QueueEntry) -> GrantNumber {
        let (claim_id, mark) = (claim.claim_id, claim.mark);
        if let Some(job) = self.job.as_deref_mut() {
            let is_saved_by_another = job.saved.as_ref().is_some_and(|saved| Some(saved.tick) != mark);
            if is_saved_by_another && !self.plant.is(Flaw::CheckpointOutlivesTick) {
                job.saved = None;
            }
            job.winner = Some(claim_id);
            self.count_attempt(mark);
        }
        let keep = self.plant.is(Flaw::NumberKeptOnHandOff) && *self.last > GrantNumber::default();
        if !keep {
            self.next_number();
        }
        self.write_lease(claim, *self.last);
        self.note_run(claim);
        *self.last
    }

    /// Counts one more attempt at a tick.
    fn count_attempt(&mut self, mark: Option<TickTime>) {
        let Some(job) = self.job.as_deref_mut() else {
            return;
        };
        if let Some(wanted) = job.wanted.as_mut().filter(|wanted| Some(wanted.tick) == mark) {
            Arc::make_mut(wanted).attempt += 1;
            return self.branches.note(Branch::TriggerGranted);
        }
        let again = job.mark == mark && job.attempt > 0;
        if again {
            self.branches.note(Branch::TickTakenOver);
        } else if job.is_begun() {
            self.branches.note(Branch::TickOvertaken);
        }
        if !again {
            job.passed = mark.map(|mark| (job.mark.unwrap_or_default(), mark));
        }
        job.attempt = if again { job.attempt + 1 } else { 1 };
        (job.mark, job.done) = (mark, false);
    }

    /// Writes the record or the share of a claim, for its full lease.
    pub(crate) fn write_lease(&mut self, claim: &QueueEntry, number: GrantNumber) {
        match claim.mode {
            Mode::Exclusive => {
                self.state.record = Some(Record {
                    owner: RecordOwner::Claim(claim.claim_id, number),
                    expires: None,
                    may_keep: false,
                });
            }
            Mode::Read | Mode::Permits(_) => self.add_share(claim.claim_id, claim.mode, number),
        }
        self.extend(claim.claim_id, claim.term);
    }

    /// Returns a new grant number: higher than every earlier one, and at least the clock in µs.
    pub(crate) fn next_number(&mut self) -> GrantNumber {
        let next = (*self.last).max(self.seen).0 + 1;
        *self.last = GrantNumber(next.max(self.now_us));
        *self.last
    }

    /// Extends the claim's lease to its full length from now on, whatever is left of it. A claim has one length for
    /// life. After a server's clock was set back, the stored end would be too late.
    pub(crate) fn extend(&mut self, claim_id: ClaimId, term: LeaseTimes) {
        let until = self.now() + term.hold_ms();
        if let Some(record) = &mut self.state.record {
            record.expires = Some(until);
        }
        if let Some(share) = self.share_of(claim_id) {
            share.expires = until;
        }
    }

    /// Returns the number under which the claim owns or shares the key.
    pub(crate) fn owned_by(&self, claim_id: ClaimId) -> Option<GrantNumber> {
        let by_node = self.plant.is(Flaw::JobByNode) && self.job.is_some();
        match self.state.owner() {
            Some((owner, number)) if owner == claim_id || by_node && owner.node == claim_id.node => {
                Some(number)
            }
            _ => {
                let mut shares = self.state.shares.iter();
                let share = shares.find(|share| share.claim_id == claim_id && !share.is_revoked);
                let revoked = || {
                    self.revoked_number(claim_id)
                        .filter(|_| self.plant.is(Flaw::RevokedRenewed))
                };
                share.map(|share| share.number).or_else(revoked)
            }
        }
    }

    /// Returns the reply to a waiter. It tells the waiter if the owner will not announce its release, so that the
    /// waiter polls.
    pub(crate) fn queued(&mut self) -> ClaimReply {
        if let Some(left) = self.held_back() {
            return ClaimReply::Recovering(left);
        }
        self.recall();
        let left = self.owner_left_ms();
        let record = self.state.record.as_ref();
        // A lock that is left free for clients that poll is not announced either.
        if self.poll_gap > 0 || record.is_some_and(|record| record.owner.is_unannounced()) {
            self.branches.note(Branch::QueuedBehindForeign);
            return ClaimReply::Queued(left, QueueOwner::Foreign);
        }
        let owner = self.state.owner();
        ClaimReply::Queued(
            left,
            owner.map_or(QueueOwner::Shared, |(owner, _)| QueueOwner::Node(owner.node)),
        )
    }

    /// Returns how many milliseconds remain until the key's record or its last share ends, if it ends.
    pub(crate) fn owner_left_ms(&self) -> Option<u64> {
        let shared = self.state.shares.iter().map(|share| share.expires).max();
        let ends = match &self.state.record {
            Some(record) => record.expires,
            None => shared,
        };
        ends.map(|at| at.saturating_sub(self.now()))
    }
}
