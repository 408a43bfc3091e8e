//! Laws of ticks.

use std::collections::BTreeMap;

use tenure::protocol::ledger::{JobRecord, RecordOwner};
use tenure::protocol::message::{
    Call, CallAnswer, ClaimNumber, ClaimReply, Fence, JobReport, Kind, Reply, Request, TickRefusal, TickTime,
    Verb, WhenBehind,
};
use tenure::protocol::step::{AcquireError, LockOptions, Ticket, WhyDenied};

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerState};
use crate::world::tick_memory::is_over;

impl World {
    /// Checks that a denied tick is over or skipped, as the node gives it up for good.
    pub(crate) fn watch_denial(&mut self, slot: usize, key: usize, options: LockOptions, denial: &WhyDenied) {
        let mark = options.mark;
        let job = self.job(key);
        // A reset or another trigger may have come after the store's answer.
        let triggered = mark.filter(|mark| mark.is_triggered());
        let was_over = self.memory.ticks.was_over_before_reset(key, mark)
            || triggered.is_some_and(|tick| self.memory.ticks.over_triggers.contains(&(key, tick)));
        let is_over = is_over(&job, mark) || was_over;
        let is_right = match denial {
            WhyDenied::Tick(TickRefusal::Over) => is_over,
            // Grants from before a reset are unknown.
            WhyDenied::Tick(TickRefusal::Skipped) => {
                let tick = self.memory.ticks.ticks.get(&(key, mark));
                let was_begun = tick.is_some_and(|tick| tick.winner.is_some());
                is_over && (!was_begun || self.memory.ticks.reset)
            }
            WhyDenied::Error(AcquireError::Busy) => {
                self.cover(Case::DeniedSkipped);
                triggered.is_some() || (mark <= job.skipped || was_over) && options.turn == WhenBehind::Skip
            }
            _ => true,
        };
        if !is_right && !self.memory.forgot {
            self.report(Violation::TickGivenUp, Some(key), || {
                format!("node {slot} was told {denial:?} of {mark:?}, the job is {job:?}")
            });
        }
    }

    /// Checks that a tick reported as finished belongs to the claim that finished it.
    pub(crate) fn watch_finish(&mut self, slot: usize, ticket: Ticket, finished: bool) {
        let Caller {
            key, options, claim, ..
        } = self.nodes[slot].callers[ticket.0 as usize - 1];
        if options.mark.is_none() || !finished {
            return;
        }
        self.cover(Case::TickRun);
        self.note_tick_over(slot, key, options.mark);
        let forgot = self.memory.forgot;
        let Some(tick) = self.memory.ticks.ticks.get_mut(&(key, options.mark)) else {
            return;
        };
        // The tick may have been finished before the store forgot or reset it. Nothing is promised about such
        // a tick.
        if (forgot || self.memory.ticks.reset) && claim.is_some_and(|claim| !tick.winners.contains(&claim)) {
            return;
        }
        tick.ended = true;
        let winner = tick.winner;
        if winner.is_some() && winner != claim {
            self.report(Violation::TickRunAgain, Some(key), || {
                format!(
                    "ticket {} of node {slot} was told that {claim:?} finished {:?}, which {winner:?} won",
                    ticket.0, options.mark
                )
            });
        }
    }

    /// Checks how a request changed its job. `busy`: the key had a record before or after the request.
    pub(crate) fn watch_tick(&mut self, key: usize, request: &Request, reply: &Reply, busy: bool) {
        if request.name.kind != Kind::Job || matches!(request.verb, Verb::Yield { .. }) {
            return;
        }
        // Ticks that were granted or ended may be lost. The laws begin anew with what the master knows.
        if self.is_after_loss() {
            let master = match self.is_cluster() {
                true => &self.server,
                false => self.server_at(self.master),
            };
            let known = master.ledger.job(&request.name).cloned().unwrap_or_default();
            self.forget_ticks();
            self.memory.ticks.restored(key, &known);
            let is_mended = matches!(reply.answer(), Some(CallAnswer::Report(report)) if report.lost);
            if is_mended {
                self.memory.ticks.mended.insert(key, self.memory.highest);
            }
            return;
        }
        let Some(job) = self.server.ledger.job(&request.name).cloned() else {
            return;
        };
        self.watch_save(key, request, &job);
        self.watch_history(key, (request, reply), &job);
        // A reset that finds no mark ahead of the clock changes none. It may hand the key over, as each request may.
        if let (Verb::Call(Call::Reset), Some(CallAnswer::Report(report))) = (request.verb, reply.answer())
            && report.ahead_ms > 0
        {
            return self.watch_reset(key, report);
        }
        if let (
            Verb::Call(Call::Open {
                over, fingerprint, ..
            }),
            Some(CallAnswer::Report(report)),
        ) = (request.verb, reply.answer())
        {
            self.watch_loss(key, over, report);
            self.watch_first_seen(key, fingerprint, report);
        }
        if let (Verb::Call(Call::Ending { number }), Some(CallAnswer::Report(report))) =
            (request.verb, reply.answer())
        {
            self.watch_ending(key, number, report);
        }
        let queues = self.profile.rules.queues;
        if matches!(reply, Reply::Claim(ClaimReply::Busy(_))) && !queues && request.mark == job.mark {
            self.cover(Case::StandbyBusy);
        }
        let skipped = self.memory.ticks.skipped.insert(key, job.skipped).unwrap_or(None);
        let before = |mark: TickTime| TickTime(mark.0 - 1);
        let may_skip = match request.when_behind {
            WhenBehind::Queue => request.mark.map(before),
            _ => request.mark,
        };
        let owner = self.server.ledger.record(&request.name, self.server_us());
        let owner = owner.map(|record| &record.owner);
        let latest = job.runs.back().filter(|run| run.tick.is_triggered());
        let number = match owner {
            Some(RecordOwner::Claim(_, number) | RecordOwner::Revoked(_, number)) => Some(*number),
            _ => None,
        };
        let is_beside_trigger = latest.is_some_and(|run| Some(run.number) == number);
        let may_skip = match request.when_behind {
            WhenBehind::Skip if is_beside_trigger => request.mark.map(before),
            _ => may_skip,
        };
        if is_beside_trigger && job.skipped != skipped && job.skipped == request.mark {
            self.report(Violation::TickSkippedForTrigger, Some(key), || {
                format!(
                    "{:?} is skipped beside a triggered run, the job is {job:?}",
                    job.skipped
                )
            });
        }
        if job.skipped != skipped && !(busy && may_skip == job.skipped && request.mark > job.mark) {
            self.report(Violation::TickOrder, Some(key), || {
                format!("{:?} is skipped, the job is {job:?}", job.skipped)
            });
        }
        self.watch_grant(key, request, &job, queues);
        let tick = self.memory.ticks.ticks.entry((key, job.mark)).or_default();
        if job.done && !std::mem::replace(&mut tick.ended, job.done) {
            // The same step may grant the job to a triggered tick.
            let is_winner = tick.winner == Some(request.claim_id);
            let is_right = matches!(request.verb, Verb::Finish { .. }) && is_winner;
            if !is_right {
                self.report(Violation::TickOrder, Some(key), || {
                    format!(
                        "{:?} of {} ended {:?} of {:?}",
                        request.verb, request.claim_id, job.mark, job.winner
                    )
                });
            }
        }
    }

    /// Notes that a claim of a tick heard that its server recovers.
    pub(crate) fn note_recovery_heard(&mut self, slot: usize, claim: ClaimNumber) {
        let claim = (self.nodes[slot].id, claim);
        if self.memory.ticks.waiting.contains(&claim) {
            self.memory.ticks.held_back.insert(claim);
        }
    }

    /// Checks that a node gives up a claim of a tick whose server recovers. Its runner claims the newest tick later.
    pub(crate) fn watch_tick_claim(&mut self, request: &Request) {
        if request.mark.is_none() {
            return;
        }
        let claim = (request.claim_id.node, request.claim_id.claim);
        if !matches!(request.verb, Verb::Claim { .. } | Verb::Renew { number: None }) {
            self.memory.ticks.waiting.remove(&claim);
            return;
        }
        self.memory.ticks.waiting.insert(claim);
        if self.memory.ticks.held_back.contains(&claim) {
            let key = self.key_index(&request.name);
            self.report(Violation::TickKeptInRecovery, Some(key), || {
                format!("{} asks again with {:?}", request.claim_id, request.verb)
            });
        }
    }

    /// Checks that the store first saw an expression at a question for it, and that this time stays while no question
    /// names another expression.
    fn watch_first_seen(&mut self, key: usize, fingerprint: u64, report: &JobReport) {
        if fingerprint == 0 {
            return;
        }
        let (now, since) = (report.now_ms, report.since_ms);
        let asked = self.memory.ticks.asked.entry((key, fingerprint)).or_default();
        // Earlier questions are unknown after the store forgot.
        let was_asked = asked.is_empty() || since == now || asked.contains(&since);
        asked.extend([since, now]);
        let before = self.memory.ticks.expression.insert(key, (fingerprint, since));
        // A time in the future came from a wrong clock.
        let before = before.filter(|(of, before)| *of == fingerprint && *before <= now);
        if !was_asked || before.is_some_and(|(_, before)| before != since) {
            self.report(Violation::FirstSeenMoved, Some(key), || {
                format!("{fingerprint} was first seen at {since}, it is {now}, and before it was {before:?}")
            });
        }
    }

    /// Checks that a granted tick had not ended, and that its attempt count grew by one.
    pub(crate) fn watch_grant(&mut self, key: usize, request: &Request, job: &JobRecord, queues: bool) {
        let (mark, attempt) = (job.mark, job.attempt);
        let us = self.server_us();
        // The latest grant may be of a triggered tick, and its tick may be cancelled.
        let latest = job.runs.back();
        if job.winner.is_none() || latest.is_some_and(|run| Some(run.tick) != mark) {
            return;
        }
        let is_winners = self.server.ledger.record(&request.name, us).is_some_and(
            |record| matches!(record.owner, RecordOwner::Claim(owner, _) if Some(owner) == job.winner),
        );
        let tick = self.memory.ticks.ticks.entry((key, mark)).or_default();
        if tick.winner == job.winner && tick.attempt == attempt {
            return;
        }
        let (ended, counted) = (tick.ended, tick.attempt);
        let is_new = counted == 0;
        tick.attempt = attempt;
        let before = std::mem::replace(&mut tick.winner, job.winner);
        tick.winners.extend(job.winner);
        if !is_winners {
            self.report(Violation::TickOrder, Some(key), || {
                format!("{mark:?} was won by {:?}, which has no record", job.winner)
            });
        }
        let latest = self.memory.ticks.latest.insert(key, mark).unwrap_or(None);
        if before.is_some_and(|before| job.winner.is_some_and(|winner| winner.node == before.node)) {
            self.cover(Case::TickTakenOverBySameNode);
        }
        if attempt == 1 && mark > Some(TickTime(us / 1000)) {
            self.report(Violation::TickEarly, Some(key), || {
                format!("{mark:?} is granted before its time")
            });
        }
        if attempt > 1 && !queues {
            self.cover(Case::TickTakenOverUnqueued);
        }
        let passed = is_new
            && matches!(request.when_behind, WhenBehind::After(_))
            && latest.is_some()
            && latest < mark;
        let is_passed_over = |latest: Option<TickTime>| {
            let before = self.memory.ticks.ticks.get(&(key, latest));
            let after = latest.max(job.skipped);
            !before.is_some_and(|tick| tick.ended)
                || after.map(WhenBehind::After) != Some(request.when_behind)
        };
        // A standby of a tick from before a reset is granted it anew.
        let is_anew = self.memory.ticks.was_over_before_reset(key, mark);
        if passed && is_passed_over(latest) && !self.memory.forgot && !is_anew {
            self.report(Violation::TickPassedOver, Some(key), || {
                format!("{mark:?} is granted, and {latest:?} had not ended")
            });
        }
        if ended {
            self.report(Violation::TickRunAgain, Some(key), || {
                format!("{mark:?} had ended well and is granted again")
            });
        }
        if attempt != counted + 1 || mark < latest {
            self.report(Violation::TickOrder, Some(key), || {
                format!("{mark:?} attempt {attempt} after {latest:?} attempt {counted}")
            });
        }
    }

    /// Checks that in a calm a fired tick that is due is run: at once, or when the lease of its last run
    /// ended and the timer of a standby fires. When the tick is over, its standbys hear of it by that timer.
    pub(crate) fn watch_idle_ticks(&mut self, key: usize, calm: bool) {
        let (job, us) = (self.job(key), self.server_us());
        // For each pursued tick: whether it is run.
        let mut pursued: BTreeMap<Option<TickTime>, bool> = BTreeMap::new();
        let mut over = Vec::new();
        for (slot, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let of_key = node.pursuits.iter().filter(|(of, _)| *of == key);
            for (_, mark) in of_key {
                pursued.entry(*mark).or_default();
            }
            for &at in &node.live {
                let Caller {
                    key: of,
                    options,
                    call,
                    state,
                    ..
                } = node.callers[at];
                let runs = matches!(state, CallerState::Holding | CallerState::Releasing { .. });
                if of == key && runs {
                    pursued.insert(options.mark, true);
                } else if of == key
                    && state == CallerState::Waiting
                    && call.is_none()
                    && is_over(&job, options.mark)
                {
                    over.push((slot, node.life, at));
                }
            }
        }
        // Where ticks wait for others, only the first must run, and only when none is running.
        let waits = self.ticks_wait();
        if waits && pursued.values().any(|runs| *runs) {
            pursued.clear();
        }
        if waits {
            pursued.retain(|mark, _| !is_over(&job, *mark));
        }
        // A tick waits for a triggered run, and a triggered tick is none that fired.
        let is_triggered = |mark: &Option<TickTime>| mark.is_some_and(TickTime::is_triggered);
        let runs_trigger = pursued.iter().any(|(mark, runs)| *runs && is_triggered(mark));
        if job.paused.is_some() || runs_trigger {
            pursued.clear();
        }
        let max_idle = if waits { 1 } else { usize::MAX };
        let idle: Vec<Option<TickTime>> = pursued
            .into_iter()
            .take(max_idle)
            .filter_map(|(mark, runs)| (!runs && mark <= Some(TickTime(us / 1000))).then_some(mark))
            .collect();
        let ticks = &mut self.memory.ticks;
        ticks
            .idle
            .retain(|(of, mark), _| *of != key || idle.contains(mark));
        ticks.untold.retain(|caller, _| over.contains(caller));
        let (now, fault_until) = (self.now, self.memory.fault_until);
        let late = |since: u64, bound: u64| calm && now - since.max(fault_until) > bound;
        let (timer, takeover) = self.bounds_of_ticks();
        for mark in idle {
            let since = *self.memory.ticks.idle.entry((key, mark)).or_insert(now);
            if late(since, takeover) {
                let (idle, state) = ((now - since) / MS, self.describe_key(key));
                self.report(Violation::TickNotRun, Some(key), || {
                    format!("{mark:?} has not been run for {idle} ms, the job is {job:?}: {state}")
                });
            }
        }
        for caller in over {
            let since = *self.memory.ticks.untold.entry(caller).or_insert(now);
            if late(since, timer) {
                let (slot, _, at) = caller;
                let mark = self.nodes[slot].callers[at].options.mark;
                self.report(Violation::StandbyNotTold, Some(key), || {
                    format!("ticket {} of node {slot} still stands by for {mark:?}", at + 1)
                });
            }
        }
    }

    /// Checks a new run: no other run goes on, and the tick is due and not over.
    pub(crate) fn watch_run(&mut self, slot: usize, caller: usize, fence: Fence) {
        let Caller { key, options, .. } = self.nodes[slot].callers[caller];
        let now = self.now;
        self.memory.ticks.early_releases.retain(|(_, until)| *until > now);
        if self.memory.ticks.early_releases.iter().any(|(of, _)| *of == key) {
            self.report(Violation::TwoRuns, Some(key), || {
                format!("node {slot} runs {:?} beside another", options.mark)
            });
        }
        // The grant may be that of a server whose clock was ahead, before the slot moved or a replica was promoted. The
        // number of a grant is not before its time.
        let latest = TickTime(self.server_us().max(fence.number().0) / 1000);
        let is_triggered = options.mark.is_some_and(TickTime::is_triggered);
        if options.mark > Some(latest) && !is_triggered && !self.memory.stepped_back {
            self.report(Violation::TickEarly, Some(key), || {
                format!("{:?} began too early", options.mark)
            });
        }
        let tick = self.memory.ticks.ticks.get(&(key, options.mark));
        let mended = self.memory.ticks.mended.get(&key);
        // The server that granted it may have lacked the end, which its successor knows.
        let cancelled = self.memory.ticks.cancelled.get(&(key, options.mark));
        let is_older = cancelled.is_some_and(|latest| fence.number() <= *latest)
            || mended.is_some_and(|mended| fence.number() <= *mended)
            || fence.number() <= self.memory.lossy_up_to;
        if tick.is_some_and(|tick| tick.ended) && !self.is_exempt_grant(fence.number()) && !is_older {
            self.report(Violation::TickRunAgain, Some(key), || {
                format!(
                    "{:?} had ended well and is run again by node {slot}",
                    options.mark
                )
            });
        }
        if self.memory.ticks.killed == Some((key, options.mark)) {
            self.memory.ticks.killed = None;
            self.cover(Case::WinnerReplaced);
        }
    }
}
