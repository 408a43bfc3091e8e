//! The quorum between a key machine and the sessions of N independent masters.
//!
//! Each request of a key machine goes to all masters, and their answers become one answer. This is Redlock (Redis docs,
//! "Distributed Locks with Redis") with fences, and with renewals that bring a master back in that was away. The key
//! machine knows nothing of it.
//!
//! * A **vote** of a master for a claim lasts for the lease, counted from the sending of the latest request that the master
//!   granted. The lease of the claim counts from the q-th youngest vote, q being a majority of N. Two claims cannot have q
//!   votes each, because one of the q masters would have both records at once.
//! * The **fence** is a number that q masters with the claim's record have reached at one moment, as in the ABD register
//!   (Attiya, Bar-Noy, Dolev, 1995). A later claim has one of these masters among its q, and gets a higher number there.
//!   The claim proposes a number above all that this process knows. If q masters give the same number, that is the fence.
//!   Else the largest of q numbers is, and a second trip raises the others to it.
//! * A claim that fails, or that is left, is left at each master that may have its record. A request without an answer may
//!   still be executed, so the leave is repeated when the master would refuse that request as late.
//!
//! # The way of a request on a quorum
//!
//! 1. A connection to a master compares the list of masters and the longest lease that are kept there, and which server it leads to
//!    (`store/redis/masters.rs` `compare`). A master that keeps none gets them when all masters that can be asked agree, and these
//!    are a majority (`store/redis/masters.rs` `agree_within`, `store/redis/link.rs` `join`). A master that refuses them ends all connections (`store/redis/masters.rs` `refused`).
//! 2. The key machine sends a request as always. The quorum of its shard sends it to each of the N masters (`protocol/context.rs` `send`,
//!    `protocol/quorum/mod.rs` `send`). Each master has a session of its own, and nothing waits there.
//! 3. A claim proposes a number (`protocol/quorum/mod.rs` `proposal`). A master grants a free key under it, or under its next number
//!    (`protocol/ledger/quorum.rs` `propose`, `store/redis/lua/vote.lua`).
//! 4. Each answer returns with the index of its master in its tag (`protocol/key/shard.rs` `handle`). When a majority granted one number, the key
//!    machine gets its one answer; else the numbers are raised first (`protocol/quorum/pursuit.rs` `decide_claim`, `raise`). A claim whose
//!    key is busy waits at most 50 ms for the other masters: its votes would keep all rivals from a majority.
//! 5. A renewal writes the record again where it is gone and the key is free (`protocol/ledger/quorum.rs` `restore`). The lease counts from the
//!    last vote that makes a majority (`protocol/quorum/pursuit.rs` `counts_from`).
//! 6. A claim is left at each master that may have its record; where a request has no answer, once more when it would be late
//!    (`protocol/quorum/mod.rs` `leave`, `leave_late`, `wake`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::context::RequestSink;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{
    ClaimId, ClaimNumber, ClaimReply, GrantNumber, LeaveReply, Name, Reply, Verb,
};
pub(crate) use crate::protocol::quorum::pursuit::QuorumOutput;
use crate::protocol::quorum::pursuit::{Pursuit, Round, Step, Vote, VoteAnswer};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::step::{AnswerTimes, Input, Outgoing, Tag};
use crate::protocol::time::Instant;

mod pursuit;

/// The shortest pause before a leave is repeated.
const LEAVE_PAUSE: Duration = Duration::from_millis(250);

/// The requests of a shard's keys to the masters of a quorum, and the votes of the masters.
#[derive(Debug)]
pub(crate) struct Quorum {
    masters: usize,
    pursuits: BTreeMap<ClaimNumber, Pursuit>,
    /// When a claim must be left again at a master, or is given up as busy.
    dues: BTreeSet<(Instant, ClaimNumber)>,
    /// The latest reading of each master's clock.
    clocks: Vec<Option<ServerClock>>,
    /// The highest number that this shard has seen.
    highest: GrantNumber,
    plant: Plant,
    out: QuorumOutput,
}

impl RequestSink for Quorum {
    fn send(&mut self, now: Instant, outgoing: Outgoing) {
        self.send(now, outgoing);
    }
}

impl Quorum {
    pub(crate) fn new(masters: usize, plant: Plant) -> Self {
        Quorum {
            masters,
            pursuits: BTreeMap::new(),
            dues: BTreeSet::new(),
            clocks: vec![None; masters],
            highest: GrantNumber::default(),
            plant,
            out: QuorumOutput::default(),
        }
    }

    /// Takes the requests to the masters that are not sent yet.
    pub(crate) fn take_sends(&mut self) -> impl Iterator<Item = Outgoing> {
        self.out.sends.drain(..)
    }

    /// Takes the next input for a key machine.
    pub(crate) fn take_input(&mut self) -> Option<(Name, Input)> {
        self.out.inputs.pop_front()
    }

    /// Returns whether nothing is left to be done.
    pub(crate) fn is_empty(&self) -> bool {
        self.pursuits.is_empty()
    }

    /// Returns whether the claim is not over here.
    pub(crate) fn knows(&self, claim_id: ClaimId) -> bool {
        let pursuit = self.pursuits.get(&claim_id.claim);
        pursuit.is_some_and(|of| of.request.request.claim_id == claim_id)
    }

    /// Returns when [`wake`](Self::wake) has something to do next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.dues.first().map(|(due, _)| *due)
    }

    /// Notes a reading of a master's clock.
    pub(crate) fn note_clock(&mut self, master: usize, reading: ServerClock) {
        let clock = &mut self.clocks[master];
        *clock = Some(clock.map_or(reading, |clock| clock.younger(reading)));
    }

    /// The number of votes that a lease needs.
    fn majority(&self) -> usize {
        let q = self.masters / 2 + 1;
        if self.plant.is(Flaw::MinorityEnough) {
            q - 1
        } else {
            q
        }
    }

    /// Returns a number above each number that this process has seen, and not below the latest of the masters' clocks.
    /// Zero if no clock was read.
    fn proposal(&self, now: Instant) -> GrantNumber {
        let clocks = self.clocks.iter().flatten();
        let latest = clocks.map(|clock| clock.guess(now)).max();
        latest.map_or(GrantNumber::default(), |time| {
            GrantNumber(time.max(self.highest.0 + 1))
        })
    }

    /// Sends a request of a key machine to the masters.
    pub(crate) fn send(&mut self, now: Instant, outgoing: Outgoing) {
        let (number, tag, masters) = (outgoing.tag.claim, outgoing.tag, self.masters);
        let step = match outgoing.request.verb {
            Verb::Claim { .. } => Step::Claim,
            Verb::Leave | Verb::Finish { .. } => Step::Leave,
            Verb::Pass { .. } => {
                // Refused before the key machine sees it.
                let error = StoreError::refused(StoreRefusal::Unsupported);
                return self.out.fail(&Pursuit::new(masters, outgoing), tag, now, error);
            }
            _ => Step::Renew,
        };
        let proposal = self.proposal(now);
        let pursuit = self.pursuits.entry(number);
        let pursuit = pursuit.or_insert_with(|| Pursuit::new(masters, outgoing.clone()));
        // The key machine wants one answer to each request. It has given the earlier one up.
        if let Some(earlier) = pursuit.round.take() {
            let text = "the request was given up for a later one";
            self.out.fail(
                pursuit,
                earlier.tag,
                now,
                StoreError::new(StoreErrorKind::TimedOut, text),
            );
        }
        let first = pursuit.seq + 1;
        pursuit.request = outgoing;
        pursuit.round = Some(Round { tag, step, first });
        // A leave that is repeated does not take longer.
        pursuit.ends.take_if(|_| step != Step::Leave);
        pursuit.busy_at = None;
        for vote in &mut pursuit.masters {
            vote.answer = None;
        }
        match step {
            Step::Claim => pursuit.ask_all(step, Verb::Propose { number: proposal }, &mut self.out),
            Step::Leave => {
                pursuit.is_left = true;
                for at in 0..masters {
                    self.leave(now, number, at);
                }
            }
            Step::Renew | Step::Raise => {
                if let Some(number) = pursuit.number {
                    pursuit.ask_all(step, Verb::Restore { number }, &mut self.out);
                }
            }
        }
        self.decide(now, number);
    }

    /// Handles a master's answer.
    pub(crate) fn answered(&mut self, now: Instant, tag: Tag, times: AnswerTimes, reply: Reply) {
        let master = usize::from(tag.master);
        let AnswerTimes { sent, time } = times;
        if time > 0 {
            self.note_clock(master, ServerClock::read(time, sent, now));
        }
        if let Some(number) = reply.number() {
            self.highest = self.highest.max(number);
        }
        let Some(pursuit) = self.pursuits.get_mut(&tag.claim) else {
            return;
        };
        let Some(step) = pursuit.take(master, tag.seq) else {
            return;
        };
        let (vote, is_left) = (&mut pursuit.masters[master], pursuit.is_left);
        (vote.heard, vote.has_answered) = (Some(now), true);
        let answer = match reply {
            Reply::Claim(ClaimReply::Granted(grant)) => {
                vote.sent = vote.sent.max(Some(sent));
                vote.number = vote.number.max(grant.number);
                VoteAnswer::Granted
            }
            Reply::Claim(ClaimReply::Busy(left)) => {
                vote.sent = None;
                VoteAnswer::Busy(left)
            }
            Reply::Leave(reply) => {
                (vote.sent, vote.number) = (None, GrantNumber::default());
                // A second leave finds nothing where the first one found the record.
                let was_there = matches!(vote.answer, Some(VoteAnswer::Left(true)));
                VoteAnswer::Left(was_there || reply == LeaveReply::Left)
            }
            // The record may be lost. The vote counts on: the master grants nothing before the lease that it gave has
            // ended.
            Reply::Claim(ClaimReply::Recovering(left)) => {
                VoteAnswer::NoVote(StoreError::recovering(Duration::from_millis(left)))
            }
            Reply::Refused(refusal) => VoteAnswer::NoVote(StoreError::refused(refusal)),
            _ => {
                let late = "the request reached the master too late";
                VoteAnswer::NoVote(StoreError::new(StoreErrorKind::TimedOut, late))
            }
        };
        let is_over = is_left && step != Step::Leave;
        let is_granted = matches!(answer, VoteAnswer::Granted);
        if is_over && is_granted {
            // It may have been executed after the leave.
            pursuit.ask(master, Step::Leave, Verb::Leave, &mut self.out);
        } else if step == Step::Leave && matches!(answer, VoteAnswer::NoVote(_)) {
            pursuit.note_answer(master, tag.seq, step, answer);
            self.leave_again(now + LEAVE_PAUSE, tag.claim, master);
        } else if !is_over {
            pursuit.note_answer(master, tag.seq, step, answer);
            if step == Step::Leave {
                self.leave_late(now, tag.claim, master);
            }
        }
        self.decide(now, tag.claim);
    }

    /// Handles a request to a master that has no answer.
    pub(crate) fn failed(&mut self, now: Instant, tag: Tag, failure: FailedRequest) {
        let master = usize::from(tag.master);
        let Some(pursuit) = self.pursuits.get_mut(&tag.claim) else {
            return;
        };
        let Some(step) = pursuit.take(master, tag.seq) else {
            return;
        };
        let (vote, is_left) = (&mut pursuit.masters[master], pursuit.is_left);
        vote.heard = vote.heard.max(failure.heard);
        let late_after = failure.late_after;
        let may_be_executed = failure.may_be_executed() && step != Step::Leave;
        if may_be_executed {
            vote.executable_until = vote.executable_until.max(Some(late_after));
        }
        if !is_left || step == Step::Leave {
            let answer = VoteAnswer::Failed(failure);
            pursuit.note_answer(master, tag.seq, step, answer);
        }
        if step == Step::Leave {
            self.leave_again(late_after.max(now + LEAVE_PAUSE), tag.claim, master);
        } else if is_left && may_be_executed {
            self.leave_late(now, tag.claim, master);
        }
        self.decide(now, tag.claim);
    }

    /// Leaves claims again whose last requests are late now: all claims of the key that is due first. Returns its name.
    pub(crate) fn wake(&mut self, now: Instant) -> Option<Name> {
        let due: Vec<_> = self
            .dues
            .iter()
            .take_while(|(due, _)| *due <= now)
            .copied()
            .collect();
        let mut woken = None;
        for (due, number) in due {
            let Some(pursuit) = self.pursuits.get_mut(&number) else {
                self.dues.remove(&(due, number));
                continue;
            };
            let name = &pursuit.request.request.name;
            if *woken.get_or_insert_with(|| name.clone()) != *name {
                continue;
            }
            self.dues.remove(&(due, number));
            if pursuit.ends.is_some_and(|ends| ends <= now) {
                pursuit.end(now, &mut self.out);
                // A request that waits for a connection may still be executed, and its grant is left then.
                self.forget(number);
                continue;
            }
            for at in 0..pursuit.masters.len() {
                if pursuit.masters[at].leave_at.take_if(|at| *at <= now).is_some() {
                    pursuit.ask(at, Step::Leave, Verb::Leave, &mut self.out);
                }
            }
            self.decide(now, number);
        }
        woken
    }

    /// Leaves a claim at a master that may have its record.
    fn leave(&mut self, now: Instant, number: ClaimNumber, master: usize) {
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let vote = &mut pursuit.masters[master];
        if vote.is_pending(Step::Leave) {
            return;
        }
        if vote.sent.is_some() {
            pursuit.ask(master, Step::Leave, Verb::Leave, &mut self.out);
        } else if !self.plant.is(Flaw::LeftWhereGrantedOnly) {
            self.leave_late(now, number, master);
        }
    }

    /// Leaves a claim again when no request without an answer can be executed any more. The answer of a request in flight
    /// comes first.
    fn leave_late(&mut self, now: Instant, number: ClaimNumber, master: usize) {
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let vote = &mut pursuit.masters[master];
        if let Some(until) = vote.executable_until.take()
            && until > now
            && !self.plant.is(Flaw::LeftWhereGrantedOnly)
        {
            vote.leave_at = Some(until);
            self.dues.insert((until, number));
        }
    }

    /// Repeats a leave that failed, once. The record ends by itself at the latest.
    fn leave_again(&mut self, at: Instant, number: ClaimNumber, master: usize) {
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let vote = &mut pursuit.masters[master];
        if !std::mem::replace(&mut vote.has_repeated, true) {
            let at = vote.executable_until.take().map_or(at, |until| until.max(at));
            vote.leave_at = Some(at);
            self.dues.insert((at, number));
        }
    }

    /// Answers the key machine if the masters' answers decide the round, and forgets a claim that is left everywhere.
    fn decide(&mut self, now: Instant, number: ClaimNumber) {
        let (q, plant) = (self.majority(), self.plant);
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let Some(Round { step, .. }) = pursuit.round else {
            return self.forget(number);
        };
        let is_over = match step {
            Step::Claim | Step::Raise => {
                let is_over = pursuit.decide_claim(now, q, plant, &mut self.out);
                let busy_at = pursuit.busy_at.filter(|at| now < *at);
                self.dues.extend(busy_at.map(|at| (at, number)));
                is_over
            }
            Step::Renew => pursuit.decide_renewal(now, q, plant, &mut self.out),
            Step::Leave => {
                pursuit.decide_leave(now, q, &mut self.out);
                if pursuit.round.is_none() && pursuit.ends.is_some() {
                    self.dues.extend(pursuit.ends.map(|ends| (ends, number)));
                }
                false
            }
        };
        if is_over {
            pursuit.is_left = true;
            for at in 0..self.masters {
                self.leave(now, number, at);
            }
        }
        self.forget(number);
    }

    /// Forgets a claim that is left everywhere.
    fn forget(&mut self, number: ClaimNumber) {
        let is_over = |of: &Pursuit| {
            // A key machine whose leave failed repeats it.
            let is_idle = of.is_left && of.round.is_none() && of.ends.is_none();
            is_idle && of.masters.iter().all(Vote::is_idle)
        };
        if self.pursuits.get(&number).is_some_and(is_over) {
            self.pursuits.remove(&number);
        }
    }
}
