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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{ClaimId, ClaimNumber, GrantNumber, Name, Reply, Unanswered, Verb};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::step::{Class, Input, Outgoing, Tag};
use crate::protocol::time::Instant;

/// The shortest pause before a leave is repeated.
const LEAVE_PAUSE: Duration = Duration::from_millis(250);

/// The requests of a shard's keys to the masters of a quorum, and the votes of the masters.
#[derive(Debug)]
pub(crate) struct Quorum<P> {
    masters: usize,
    pursuits: BTreeMap<ClaimNumber, Pursuit>,
    /// When a claim must be left again at a master.
    dues: BTreeSet<(Instant, ClaimNumber)>,
    /// The latest reading of each master's clock.
    clocks: Vec<Option<ServerClock>>,
    /// The highest number that this shard has seen.
    highest: GrantNumber,
    plant: P,
}

/// What the quorum has to say after an input.
#[derive(Debug, Default)]
pub(crate) struct QuorumOutput {
    /// Requests, each with the index of its master.
    pub(crate) sends: Vec<(usize, Outgoing)>,
    /// Inputs for the key machines.
    pub(crate) inputs: VecDeque<(Name, Input)>,
}

/// What is known of a claim at the masters.
#[derive(Debug)]
struct Pursuit {
    /// The latest request of the key machine, whose name, claim and lease all requests have.
    request: Outgoing,
    masters: Vec<Vote>,
    /// The number of the grant, once q masters have given one.
    number: Option<GrantNumber>,
    round: Option<Round>,
    /// From when the lease counts, as the key machine was told.
    told: Option<Instant>,
    /// The claim is over, and is left at each master.
    is_left: bool,
    /// When the claim is forgotten, although it was left at too few masters. Its records have ended then.
    ends: Option<Instant>,
    /// The number of requests so far.
    seq: u32,
}

/// A request of the key machine that has no answer yet.
#[derive(Debug, Clone, Copy)]
struct Round {
    tag: Tag,
    step: Step,
    /// The number of the first request of this round.
    first: u32,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Claim,
    /// Raises the numbers of the masters.
    Raise,
    Renew,
    Leave,
}

/// What a claim knows of one master.
#[derive(Debug, Default)]
struct Vote {
    /// When the latest request was sent that the master granted; `None` if it does not have the claim's record.
    sent: Option<Instant>,
    /// The master's next number is higher than this.
    number: GrantNumber,
    in_flight: Vec<(u32, Step)>,
    /// The answer in the present round.
    answer: Option<VoteAnswer>,
    /// A request without an answer may be executed until this time.
    executable_until: Option<Instant>,
    /// When the claim is left again.
    leave_at: Option<Instant>,
    /// The leave was repeated after a failure.
    has_repeated: bool,
    /// When the master last answered.
    heard: Option<Instant>,
}

/// A master's answer in a round.
#[derive(Debug)]
enum VoteAnswer {
    Granted,
    /// Another claim has the key. Its record ends in this many milliseconds, if it ends.
    Busy(Option<u64>),
    /// The claim was left; whether its record was there.
    Left(bool),
    /// The master gives no vote.
    NoVote(StoreError),
    /// It is not known to be executed.
    Failed(Unanswered, StoreError),
}

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) why: Unanswered,
    pub(crate) late_after: Instant,
    pub(crate) error: StoreError,
}

impl Vote {
    fn is_pending(&self, step: Step) -> bool {
        self.in_flight.iter().any(|(_, of)| *of == step)
    }

    /// Returns whether nothing is under way at the master.
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.leave_at.is_none()
    }

    /// Returns whether the master does not have the claim's record, and will not write it.
    fn is_settled(&self) -> bool {
        self.sent.is_none() && self.is_idle()
    }
}

impl<P: Plant> Quorum<P> {
    pub(crate) fn new(masters: usize, plant: P) -> Self {
        Quorum {
            masters,
            pursuits: BTreeMap::new(),
            dues: BTreeSet::new(),
            clocks: vec![None; masters],
            highest: GrantNumber::default(),
            plant,
        }
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
        if self.plant.planted(Flaw::MinorityEnough) {
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
    pub(crate) fn send(&mut self, now: Instant, outgoing: Outgoing, out: &mut QuorumOutput) {
        let (number, tag) = (outgoing.tag.claim, outgoing.tag);
        let masters = self.masters;
        if matches!(outgoing.request.verb, Verb::Pass { .. }) {
            let input = Input::Failed {
                tag,
                why: Unanswered::No,
                late_after: now,
                heard: Some(now),
                away: Some(now),
                error: unsupported(),
            };
            return out.inputs.push_back((outgoing.request.name, input));
        }
        let pursuit = self.pursuits.entry(number);
        let pursuit = pursuit.or_insert_with(|| Pursuit::new(masters, outgoing.clone()));
        let step = match outgoing.request.verb {
            Verb::Claim { .. } => Step::Claim,
            Verb::Leave | Verb::Finish { .. } => Step::Leave,
            _ => Step::Renew,
        };
        // The key machine wants one answer to each request. It has given the earlier one up.
        if let Some(earlier) = pursuit.round.take() {
            out.fail(pursuit, earlier.tag, now, Unanswered::No, given_up());
        }
        let first = pursuit.seq + 1;
        pursuit.request = outgoing;
        pursuit.round = Some(Round { tag, step, first });
        pursuit.ends = None;
        for vote in &mut pursuit.masters {
            vote.answer = None;
        }
        match step {
            Step::Claim => {
                let proposal = self.proposal(now);
                let pursuit = self.pursuits.get_mut(&number).expect("it was just made");
                for at in 0..masters {
                    pursuit.ask(at, step, Verb::Propose { number: proposal }, out);
                }
            }
            Step::Leave => {
                pursuit.is_left = true;
                for at in 0..masters {
                    self.leave(now, number, at, out);
                }
            }
            Step::Renew | Step::Raise => {
                let verb = Verb::Restore {
                    number: pursuit.number.unwrap_or_default(),
                };
                for at in 0..masters {
                    pursuit.ask(at, step, verb, out);
                }
            }
        }
        self.decide(now, number, out);
    }

    /// Handles a master's answer.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        (master, tag): (usize, Tag),
        (sent, time): (Instant, u64),
        reply: Reply,
        out: &mut QuorumOutput,
    ) {
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
        vote.heard = Some(now);
        let answer = match reply {
            Reply::Granted(number) => {
                vote.sent = vote.sent.max(Some(sent));
                vote.number = vote.number.max(number);
                VoteAnswer::Granted
            }
            Reply::Busy(left) => {
                vote.sent = None;
                VoteAnswer::Busy(left)
            }
            Reply::Done | Reply::NotThere | Reply::Gone => {
                (vote.sent, vote.number) = (None, GrantNumber::default());
                VoteAnswer::Left(reply == Reply::Done)
            }
            // The record may be lost. The vote counts on: the master grants nothing before the lease that it gave has
            // ended.
            Reply::Recovering(_) => VoteAnswer::NoVote(StoreError::recovering()),
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
            pursuit.ask(master, Step::Leave, Verb::Leave, out);
        } else if step == Step::Leave && matches!(answer, VoteAnswer::NoVote(_)) {
            pursuit.note_answer(master, tag.seq, answer);
            self.leave_again(now + LEAVE_PAUSE, tag.claim, master);
        } else if !is_over {
            pursuit.note_answer(master, tag.seq, answer);
            if step == Step::Leave {
                self.leave_late(now, tag.claim, master);
            }
        }
        self.decide(now, tag.claim, out);
    }

    /// Handles a request to a master that has no answer.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        (master, tag): (usize, Tag),
        heard: Option<Instant>,
        failed: Failed,
        out: &mut QuorumOutput,
    ) {
        let Some(pursuit) = self.pursuits.get_mut(&tag.claim) else {
            return;
        };
        let Some(step) = pursuit.take(master, tag.seq) else {
            return;
        };
        let (vote, is_left) = (&mut pursuit.masters[master], pursuit.is_left);
        vote.heard = vote.heard.max(heard);
        let may_be_executed = matches!(failed.why, Unanswered::Unknown | Unanswered::Bystander);
        if may_be_executed && step != Step::Leave {
            vote.executable_until = vote.executable_until.max(Some(failed.late_after));
        }
        if !is_left || step == Step::Leave {
            pursuit.note_answer(master, tag.seq, VoteAnswer::Failed(failed.why, failed.error));
        }
        if step == Step::Leave {
            self.leave_again(failed.late_after.max(now + LEAVE_PAUSE), tag.claim, master);
        } else if is_left && may_be_executed {
            self.leave_late(now, tag.claim, master);
        }
        self.decide(now, tag.claim, out);
    }

    /// Leaves claims again whose last requests are late now: all claims of the key that is due first. Returns its name.
    pub(crate) fn wake(&mut self, now: Instant, out: &mut QuorumOutput) -> Option<Name> {
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
                self.pursuits.remove(&number);
                continue;
            }
            for at in 0..pursuit.masters.len() {
                if pursuit.masters[at].leave_at.take_if(|at| *at <= now).is_some() {
                    pursuit.ask(at, Step::Leave, Verb::Leave, out);
                }
            }
            self.decide(now, number, out);
        }
        woken
    }

    /// Leaves a claim at a master that may have its record.
    fn leave(&mut self, now: Instant, number: ClaimNumber, master: usize, out: &mut QuorumOutput) {
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let vote = &mut pursuit.masters[master];
        if vote.is_pending(Step::Leave) {
            return;
        }
        if vote.sent.is_some() {
            pursuit.ask(master, Step::Leave, Verb::Leave, out);
        } else if !self.plant.planted(Flaw::LeftWhereGrantedOnly) {
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
            && !self.plant.planted(Flaw::LeftWhereGrantedOnly)
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
    fn decide(&mut self, now: Instant, number: ClaimNumber, out: &mut QuorumOutput) {
        let (q, plant) = (self.majority(), self.plant);
        let Some(pursuit) = self.pursuits.get_mut(&number) else {
            return;
        };
        let Some(Round { tag, step, .. }) = pursuit.round else {
            return self.forget(number);
        };
        let is_over = match step {
            Step::Claim | Step::Raise => pursuit.decide_claim(now, tag, q, plant, out),
            Step::Renew => pursuit.decide_renewal(now, tag, q, plant, out),
            Step::Leave => {
                pursuit.decide_leave(now, tag, q, out);
                if pursuit.round.is_none() && pursuit.ends.is_some() {
                    self.dues.extend(pursuit.ends.map(|ends| (ends, number)));
                }
                false
            }
        };
        if is_over {
            pursuit.is_left = true;
            for at in 0..self.masters {
                self.leave(now, number, at, out);
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

impl Pursuit {
    fn new(masters: usize, request: Outgoing) -> Self {
        Pursuit {
            request,
            masters: (0..masters).map(|_| Vote::default()).collect(),
            number: None,
            round: None,
            told: None,
            is_left: false,
            ends: None,
            seq: 0,
        }
    }

    fn ask(&mut self, master: usize, step: Step, verb: Verb, out: &mut QuorumOutput) {
        self.seq += 1;
        let mut outgoing = self.request.clone();
        outgoing.tag = Tag {
            claim: self.request.tag.claim,
            seq: self.seq,
        };
        outgoing.request.verb = verb;
        if step == Step::Leave {
            outgoing.class = Class::Leave;
        } else if step == Step::Raise {
            outgoing.class = Class::OwnerRenewal;
        }
        self.masters[master].in_flight.push((self.seq, step));
        out.sends.push((master, outgoing));
    }

    fn take(&mut self, master: usize, seq: u32) -> Option<Step> {
        let in_flight = &mut self.masters[master].in_flight;
        let at = in_flight.iter().position(|(of, _)| *of == seq)?;
        Some(in_flight.swap_remove(at).1)
    }

    /// Notes an answer of the present round. The answer to a request of an earlier round only changed the vote.
    fn note_answer(&mut self, master: usize, seq: u32, answer: VoteAnswer) {
        if self.round.is_some_and(|round| round.first <= seq) {
            self.masters[master].answer = Some(answer);
        }
    }

    /// Returns from when the lease counts: the q-th youngest vote.
    fn counts_from(&self, q: usize, plant: impl Plant) -> Option<Instant> {
        let mut sent: Vec<_> = self.masters.iter().filter_map(|vote| vote.sent).collect();
        sent.sort_unstable_by(|a, b| b.cmp(a));
        let place = if plant.planted(Flaw::YoungestVote) {
            0
        } else {
            q - 1
        };
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
    fn decide_claim(
        &mut self,
        now: Instant,
        tag: Tag,
        q: usize,
        plant: impl Plant,
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
                if common.is_none() && !plant.planted(Flaw::NoSecondTrip) {
                    self.raise(out);
                }
            }
        }
        let Some(number) = self.number else {
            let granted = self.count(|vote| vote.sent.is_some());
            if granted + self.count(|vote| vote.is_pending(Step::Claim)) >= q {
                return false;
            }
            let busy = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Busy(_))));
            if granted + busy >= q {
                let lefts = self.masters.iter().filter_map(|vote| match vote.answer {
                    Some(VoteAnswer::Busy(left)) => left,
                    _ => None,
                });
                let reply = Reply::Busy(lefts.max());
                self.answer(tag, now, reply, out);
            } else {
                self.fail(tag, now, out);
            }
            return true;
        };
        // A vote that another master gave before it was raised may be lower.
        let is_raised = |vote: &Vote| vote.sent.is_some() && vote.number >= number;
        if plant.planted(Flaw::NoSecondTrip) || self.count(is_raised) >= q {
            if let Some(sent) = self.counts_from(q, plant).filter(|_| !self.has_ended(now)) {
                self.told = Some(sent);
                self.answer(tag, sent, Reply::Granted(number), out);
                return false;
            }
        } else if self.count(|vote| is_raised(vote) || waits(vote)) >= q {
            return false;
        }
        self.fail(tag, now, out);
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
    fn decide_renewal(
        &mut self,
        now: Instant,
        tag: Tag,
        q: usize,
        plant: impl Plant,
        out: &mut QuorumOutput,
    ) -> bool {
        let granted = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Granted)));
        let waits = self.count(|vote| vote.answer.is_none());
        let others = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Busy(_))));
        // After its end the lease may have been another's. Records that are written again then are of no use.
        if others > self.masters.len() - q || self.has_ended(now) {
            self.answer(tag, now, Reply::Gone, out);
            return true;
        }
        if granted < q && granted + waits >= q {
            return false;
        }
        let number = self.number.unwrap_or_default();
        match self.counts_from(q, plant) {
            // Votes of several rounds may make a majority.
            Some(sent) if granted >= q || Some(sent) > self.told => {
                self.told = Some(sent);
                self.answer(tag, sent, Reply::Granted(number), out);
            }
            _ => self.fail(tag, now, out),
        }
        false
    }

    /// Decides a leave. It goes on at the other masters when q of them have no record.
    fn decide_leave(&mut self, now: Instant, tag: Tag, q: usize, out: &mut QuorumOutput) {
        let gone = self.count(|vote| matches!(vote.answer, Some(VoteAnswer::Left(false))));
        if self.count(Vote::is_settled) >= q {
            let reply = if gone > self.masters.len() - q {
                Reply::NotThere
            } else {
                Reply::Done
            };
            self.ends = None;
            self.answer(tag, now, reply, out);
        } else if self.count(|vote| vote.is_settled() || vote.answer.is_none()) < q {
            let lasts = Duration::from_millis(self.request.request.term.hold_ms());
            self.ends = Some(now + 2 * lasts);
            self.fail(tag, now, out);
        }
    }

    fn answer(&mut self, tag: Tag, sent: Instant, reply: Reply, out: &mut QuorumOutput) {
        self.round = None;
        let input = Input::Answered {
            tag,
            sent,
            time: 0,
            reply,
        };
        out.inputs.push_back((self.request.request.name.clone(), input));
    }

    /// Ends the round: too few masters have a vote.
    fn fail(&mut self, tag: Tag, now: Instant, out: &mut QuorumOutput) {
        self.round = None;
        let masters = self.masters.len();
        let failures = self.masters.iter().filter_map(|vote| match &vote.answer {
            Some(VoteAnswer::NoVote(error)) => Some((Unanswered::No, error)),
            Some(VoteAnswer::Failed(why, error)) => Some((*why, error)),
            _ => None,
        });
        let failures: Vec<_> = failures.collect();
        let down = failures
            .iter()
            .filter(|(why, _)| *why == Unanswered::Down)
            .count();
        let why = if 2 * down > masters {
            Unanswered::Down
        } else {
            Unanswered::No
        };
        let is_recovery =
            |error: &&StoreError| *error.kind() == StoreErrorKind::Refused(StoreRefusal::Recovering);
        let errors = || failures.iter().map(|(_, error)| *error);
        let error = errors()
            .find(|error| !is_recovery(error))
            .or_else(|| errors().next());
        let late = || StoreError::new(StoreErrorKind::TimedOut, "the answers came too late");
        let error = error.cloned().unwrap_or_else(late);
        let error = error.within(format_args!(
            "{} of {masters} masters have no vote",
            failures.len()
        ));
        // Some masters may have executed a leave, now or in an earlier round.
        let error = match self.is_left {
            true => StoreError::new(StoreErrorKind::Interrupted, error),
            false => error,
        };
        out.fail(self, tag, now, why, error);
    }
}

impl QuorumOutput {
    fn fail(&mut self, of: &Pursuit, tag: Tag, now: Instant, why: Unanswered, error: StoreError) {
        let mut heard: Vec<_> = of.masters.iter().map(|vote| vote.heard).collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let heard = heard[of.masters.len() / 2];
        let input = Input::Failed {
            tag,
            why,
            late_after: now,
            heard,
            away: heard.or(Some(of.request.called)),
            error,
        };
        self.inputs.push_back((of.request.request.name.clone(), input));
    }
}

/// The error of everything that a quorum does not serve. With two permits and three masters, for example, three claims could
/// each have a majority.
pub(crate) fn unsupported() -> StoreError {
    let why =
        "a quorum serves mutexes only: use one Redis for this, with `Recovery::Always` if it may lose writes";
    StoreError::new(StoreErrorKind::Refused(StoreRefusal::Unsupported), why)
}

fn given_up() -> StoreError {
    StoreError::new(
        StoreErrorKind::TimedOut,
        "the request was given up for a later one",
    )
}
