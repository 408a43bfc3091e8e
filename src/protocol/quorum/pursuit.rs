//! One claim at the masters of a quorum: their votes, and what these mean for the claim.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{ClaimReply, Executed, Failure, GrantNumber, LeaveReply, Name, Reply, Verb};
use crate::protocol::step::{Class, Input, Outgoing, Tag};
use crate::protocol::time::Instant;

/// How long a claim waits for a majority after a majority has answered, if one of these answers was busy.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the quorum has to say after an input.
#[derive(Debug, Default)]
pub(crate) struct QuorumOutput {
    /// Requests to masters.
    pub(crate) sends: Vec<Outgoing>,
    /// Inputs for the key machines.
    pub(crate) inputs: VecDeque<(Name, Input)>,
}

/// What is known of a claim at the masters.
#[derive(Debug)]
pub(super) struct Pursuit {
    /// The latest request of the key machine, whose name, claim and lease all requests have.
    pub(super) request: Outgoing,
    pub(super) masters: Vec<Vote>,
    /// The number of the grant, once q masters have given one.
    pub(super) number: Option<GrantNumber>,
    pub(super) round: Option<Round>,
    /// From when the lease counts, as the key machine was told.
    told: Option<Instant>,
    /// When a claim is given up as busy although some masters have not answered.
    pub(super) busy_at: Option<Instant>,
    /// The claim is over, and is left at each master.
    pub(super) is_left: bool,
    /// When the claim is forgotten, although it was left at too few masters. Its records have ended then.
    pub(super) ends: Option<Instant>,
    /// The number of requests so far.
    pub(super) seq: u32,
}

/// A request of the key machine that has no answer yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) tag: Tag,
    pub(super) step: Step,
    /// The number of the first request of this round.
    pub(super) first: u32,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Claim,
    /// Raises the numbers of the masters.
    Raise,
    Renew,
    Leave,
}

/// What a claim knows of one master.
#[derive(Debug, Default)]
pub(super) struct Vote {
    /// When the latest request was sent that the master granted; `None` if it does not have the claim's record.
    pub(super) sent: Option<Instant>,
    /// The master's next number is higher than this.
    pub(super) number: GrantNumber,
    pub(super) in_flight: Vec<(u32, Step)>,
    /// The answer in the present round.
    pub(super) answer: Option<VoteAnswer>,
    /// A request without an answer may be executed until this time.
    pub(super) executable_until: Option<Instant>,
    /// When the claim is left again.
    pub(super) leave_at: Option<Instant>,
    /// The leave was repeated after a failure.
    pub(super) has_repeated: bool,
    /// When the master last answered.
    pub(super) heard: Option<Instant>,
    /// The master has answered a request of this claim.
    pub(super) has_answered: bool,
}

/// A master's answer in a round.
#[derive(Debug)]
pub(super) enum VoteAnswer {
    Granted,
    /// Another claim has the key. Its record ends in this many milliseconds, if it ends.
    Busy(Option<u64>),
    /// The claim was left; whether its record was there.
    Left(bool),
    /// The master gives no vote.
    NoVote(StoreError),
    /// It is not known to be executed.
    Failed(FailedRequest),
}

impl Vote {
    pub(super) fn is_pending(&self, step: Step) -> bool {
        self.in_flight.iter().any(|(_, of)| *of == step)
    }

    /// Returns whether nothing is under way at the master.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.leave_at.is_none()
    }

    /// Returns whether the master does not have the claim's record, and will not write it.
    pub(super) fn is_settled(&self) -> bool {
        self.sent.is_none() && self.is_idle()
    }
}

impl Pursuit {
    pub(super) fn new(masters: usize, request: Outgoing) -> Self {
        Pursuit {
            request,
            masters: (0..masters).map(|_| Vote::default()).collect(),
            number: None,
            round: None,
            told: None,
            busy_at: None,
            is_left: false,
            ends: None,
            seq: 0,
        }
    }

    pub(super) fn ask(&mut self, master: usize, step: Step, verb: Verb, out: &mut QuorumOutput) {
        self.seq += 1;
        let mut outgoing = self.request.clone();
        outgoing.tag = Tag {
            claim: self.request.tag.claim,
            seq: self.seq,
            master: master as u16,
        };
        outgoing.request.verb = verb;
        if step == Step::Leave {
            outgoing.class = Class::Leave;
        } else if step == Step::Raise {
            outgoing.class = Class::OwnerRenewal;
        }
        self.masters[master].in_flight.push((self.seq, step));
        out.sends.push(outgoing);
    }

    /// Sends a request to each master.
    pub(super) fn ask_all(&mut self, step: Step, verb: Verb, out: &mut QuorumOutput) {
        for master in 0..self.masters.len() {
            self.ask(master, step, verb, out);
        }
    }

    pub(super) fn take(&mut self, master: usize, seq: u32) -> Option<Step> {
        let in_flight = &mut self.masters[master].in_flight;
        let at = in_flight.iter().position(|(of, _)| *of == seq)?;
        Some(in_flight.swap_remove(at).1)
    }

    /// Notes an answer of the present round. The answer to a request of an earlier round only changed the vote, except that
    /// leaves wait for a leave that is under way.
    pub(super) fn note_answer(&mut self, master: usize, seq: u32, step: Step, answer: VoteAnswer) {
        let is_of = |round: Round| round.first <= seq || step == Step::Leave && round.step == step;
        if self.round.is_some_and(is_of) {
            self.masters[master].answer = Some(answer);
        }
    }

    /// Returns from when the lease counts: the q-th youngest vote.
    fn counts_from(&self, q: usize, plant: Plant) -> Option<Instant> {
        let mut sent: Vec<_> = self.masters.iter().filter_map(|vote| vote.sent).collect();
        sent.sort_unstable_by(|a, b| b.cmp(a));
        let place = if plant.is(Flaw::YoungestVote) { 0 } else { q - 1 };
        sent.get(q - 1).and(sent.get(place)).copied()
    }

    /// Returns whether the lease is over, as far as the key machine was told.
    fn has_ended(&self, now: Instant) -> bool {
        let lease = Duration::from_millis(self.request.request.term.lease_ms);
        self.told.is_some_and(|told| now >= told + lease)
    }

    fn count(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.masters.iter().filter(|vote| is(vote)).count()
    }

    /// Decides a claim. Returns whether it failed.
    pub(super) fn decide_claim(
        &mut self,
        now: Instant,
        q: usize,
        plant: Plant,
        out: &mut QuorumOutput,
    ) -> bool {
        let waits = |vote: &Vote| vote.is_pending(Step::Claim) || vote.is_pending(Step::Raise);
        if self.number.is_none() {
            let granted: Vec<_> = self.masters.iter().filter(|vote| vote.sent.is_some()).collect();
            if granted.len() >= q {
                let is_common =
                    |number: &GrantNumber| granted.iter().filter(|vote| vote.number == *number).count() >= q;
                let common = granted.iter().map(|vote| vote.number).find(is_common);
                self.number = common.or(granted.iter().map(|vote| vote.number).max());
                self.told = self.counts_from(q, plant);
                if common.is_none() && !plant.is(Flaw::NoSecondTrip) {
                    self.raise(out);
                }
            }
        }
        let Some(number) = self.number else {
            let granted = self.count(|vote| vote.sent.is_some());
            let pending = self.count(|vote| vote.is_pending(Step::Claim));
            let busy = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Busy(_))));
            // A master without a vote may be the first to answer. The others may still say that the key is busy.
            if granted + busy < q && granted + busy + pending >= q {
                return false;
            }
            // The answer of a mute or dead master may take as long as a request may. Until then this claim's votes keep all
            // rivals from a majority, and theirs this claim.
            if granted + pending >= q && now < *self.busy_at.get_or_insert(now + PATIENCE) {
                return false;
            }
            if granted + busy >= q {
                let lefts = self.masters.iter().filter_map(|vote| match vote.answer {
                    Some(VoteAnswer::Busy(left)) => left,
                    _ => None,
                });
                let reply = ClaimReply::Busy(lefts.max());
                self.answer(now, reply, out);
            } else {
                self.fail(now, out);
            }
            return true;
        };
        // A vote that another master gave before it was raised may be lower.
        let is_raised = |vote: &Vote| vote.sent.is_some() && vote.number >= number;
        if plant.is(Flaw::NoSecondTrip) || self.count(is_raised) >= q {
            if let Some(sent) = self.counts_from(q, plant).filter(|_| !self.has_ended(now)) {
                self.told = Some(sent);
                self.answer(sent, ClaimReply::granted(number), out);
                return false;
            }
        } else if self.count(|vote| is_raised(vote) || waits(vote)) >= q {
            return false;
        }
        self.fail(now, out);
        true
    }

    /// Raises the numbers of the masters that have the record.
    fn raise(&mut self, out: &mut QuorumOutput) {
        let (Some(number), Some(round)) = (self.number, &mut self.round) else {
            return;
        };
        round.step = Step::Raise;
        for at in 0..self.masters.len() {
            let vote = &self.masters[at];
            if vote.sent.is_some() && vote.number < number {
                self.ask(at, Step::Raise, Verb::Restore { number }, out);
            }
        }
    }

    /// Decides a renewal. Returns whether the lease is gone.
    pub(super) fn decide_renewal(
        &mut self,
        now: Instant,
        q: usize,
        plant: Plant,
        out: &mut QuorumOutput,
    ) -> bool {
        let granted = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Granted)));
        let waits = self.count(|vote| vote.answer.is_none());
        let others = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Busy(_))));
        // After its end the lease may have been another's. Records that are written again then are of no use.
        let is_held = others <= self.masters.len() - q && !self.has_ended(now);
        let Some(number) = self.number.filter(|_| is_held) else {
            self.answer(now, ClaimReply::Gone, out);
            return true;
        };
        if granted < q && granted + waits >= q {
            return false;
        }
        match self.counts_from(q, plant) {
            // Votes of several rounds may make a majority.
            Some(sent) if granted >= q || Some(sent) > self.told => {
                self.told = Some(sent);
                self.answer(sent, ClaimReply::granted(number), out);
            }
            _ => self.fail(now, out),
        }
        false
    }

    /// Decides a leave. It goes on at the other masters when q of them have said that they have no record. A master that was
    /// away from the beginning has said nothing, and others may not get its vote.
    pub(super) fn decide_leave(&mut self, now: Instant, q: usize, out: &mut QuorumOutput) {
        let gone = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Left(false))));
        let has_said = |vote: &Vote| vote.is_settled() && vote.has_answered;
        let has_failed =
            |vote: &Vote| matches!(vote.answer, Some(VoteAnswer::NoVote(_) | VoteAnswer::Failed(..)));
        let may_say = |vote: &Vote| has_said(vote) || !vote.is_idle() && !has_failed(vote);
        if self.count(has_said) >= q || self.masters.iter().all(Vote::is_settled) {
            let reply = if gone > self.masters.len() - q {
                LeaveReply::NotThere
            } else {
                LeaveReply::Left
            };
            self.ends = None;
            self.answer(now, reply, out);
        } else if self.count(may_say) < q {
            // No request writes or extends a record later than this.
            let latest = |vote: &Vote| vote.sent.max(vote.executable_until).max(vote.leave_at);
            let latest = self.masters.iter().filter_map(latest).max();
            let lasts = Duration::from_millis(self.request.request.term.hold_ms());
            self.ends
                .get_or_insert(latest.map_or(now, |latest| latest.max(now)) + lasts);
            self.fail(now, out);
        }
    }

    /// Ends a claim whose records have ended by themselves.
    pub(super) fn end(&mut self, now: Instant, out: &mut QuorumOutput) {
        self.ends = None;
        for vote in &mut self.masters {
            (vote.sent, vote.executable_until, vote.leave_at) = (None, None, None);
        }
        self.answer(now, LeaveReply::NotThere, out);
    }

    /// Ends the round, if there is one, with an answer to the key machine.
    fn answer(&mut self, sent: Instant, reply: impl Into<Reply>, out: &mut QuorumOutput) {
        let Some(Round { tag, .. }) = self.round.take() else {
            return;
        };
        let input = Input::Answered {
            tag,
            sent,
            time: 0,
            reply: reply.into(),
        };
        out.inputs.push_back((self.request.request.name.clone(), input));
    }

    /// Ends the round: too few masters have a vote.
    fn fail(&mut self, now: Instant, out: &mut QuorumOutput) {
        let Some(Round { tag, .. }) = self.round.take() else {
            return;
        };
        let masters = self.masters.len();
        let failures = self.masters.iter().filter_map(|vote| match &vote.answer {
            Some(VoteAnswer::NoVote(error) | VoteAnswer::Failed(FailedRequest { error, .. })) => Some(error),
            _ => None,
        });
        let failures: Vec<_> = failures.collect();
        let error = failures.iter().find(|error| !error.is_recovering());
        let late = || {
            StoreError::new(
                StoreErrorKind::TimedOut,
                "no majority of the masters answered in time",
            )
        };
        let error = error
            .or(failures.first())
            .map_or_else(late, |error| (*error).clone());
        let error = match failures.len() {
            0 => error,
            failed => error.within(format_args!("{failed} of {masters} masters have no vote")),
        };
        // Some masters may have executed a leave, now or in an earlier round.
        let error = match self.is_left {
            true => StoreError::new(StoreErrorKind::Interrupted, error),
            false => error,
        };
        out.fail(self, tag, now, error);
    }
}

impl QuorumOutput {
    /// Reports a request of the key machine that too few masters executed.
    pub(super) fn fail(&mut self, of: &Pursuit, tag: Tag, now: Instant, error: StoreError) {
        let is_down = |vote: &Vote| matches!(&vote.answer, Some(VoteAnswer::Failed(failed)) if failed.down);
        // A majority was heard since then.
        let mut heard: Vec<_> = of.masters.iter().map(|vote| vote.heard).collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let heard = heard[of.masters.len() / 2];
        let executed = Executed::No;
        let failed = FailedRequest {
            down: 2 * of.count(is_down) > of.masters.len(),
            heard,
            away: heard.or(Some(of.request.called)),
            ..FailedRequest::new(Failure { executed, error }, now)
        };
        let input = Input::Failed { tag, failed };
        self.inputs.push_back((of.request.request.name.clone(), input));
    }
}
