//! Laws of ticks.

use std::collections::BTreeMap;

use tenure::protocol::ledger::{Job, RecordOwner};
use tenure::protocol::message::{Call, Fence, Kind, Reply, Request, TickTime, Verb, WhenBehind};
use tenure::protocol::step::{AcquireError, LockOptions, TickRefusal, Ticket};

use crate::coverage::Seen;
use crate::time::MS;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::caller::{Caller, State};
use crate::world::tick_memory::is_over;

impl World {
    /// Checks that a denied tick is over or skipped, as the node gives it up for good.
    pub(crate) fn watch_denial(&mut self, slot: usize, key: usize, want: LockOptions, denial: &AcquireError) {
        let mark = want.mark;
        let job = self.job(key);
        let right = match denial {
            AcquireError::Tick(TickRefusal::Over) => is_over(&job, mark),
            // Grants from before a reset are unknown.
            AcquireError::Tick(TickRefusal::Skipped) => {
                let tick = self.watch.ticks.ticks.get(&(key, mark));
                let was_begun = tick.is_some_and(|tick| tick.winner.is_some());
                is_over(&job, mark) && (!was_begun || self.watch.ticks.reset)
            }
            AcquireError::Busy => {
                self.saw(Seen::DeniedSkipped);
                mark <= job.skipped && want.turn == WhenBehind::Skip
            }
            _ => true,
        };
        if !right && !self.watch.forgot {
            self.wrong(Wrong::TickDropped, Some(key), || {
                format!("node {slot} was told {denial:?} of {mark:?}, and it is known that {job:?}")
            });
        }
    }

    /// Checks that a tick reported as finished belongs to the claim that finished it.
    pub(crate) fn tick_kept(&mut self, slot: usize, ticket: Ticket, finished: bool) {
        let Caller { key, want, claim, .. } = self.nodes[slot].callers[ticket.0 as usize - 1];
        if want.mark.is_none() || !finished {
            return;
        }
        self.saw(Seen::TickRun);
        self.note_over(slot, key, want.mark);
        let forgot = self.watch.forgot;
        let Some(tick) = self.watch.ticks.ticks.get_mut(&(key, want.mark)) else {
            return;
        };
        // The tick may have been finished before the store forgot or reset it. Nothing is promised about such
        // a tick.
        if (forgot || self.watch.ticks.reset) && claim.is_some_and(|claim| !tick.winners.contains(&claim)) {
            return;
        }
        tick.ended = true;
        let winner = tick.winner;
        if winner.is_some() && winner != claim {
            self.wrong(Wrong::TickAgain, Some(key), || {
                format!(
                    "ticket {} of node {slot} was told kept of {:?} by {claim:?}, which {winner:?} got",
                    ticket.0, want.mark
                )
            });
        }
    }

    /// Checks how a request changed its job. `busy`: the key had a record before or after the request.
    pub(crate) fn watch_tick(&mut self, key: usize, request: &Request, reply: &Reply, busy: bool) {
        if request.name.kind != Kind::Job || matches!(request.verb, Verb::Yield { .. }) {
            return;
        }
        let Some(job) = self.server.ledger.job(&request.name).cloned() else {
            return;
        };
        self.watch_save(key, request, &job);
        if let (Verb::Call(Call::Reset), Reply::Report(report)) = (request.verb, reply) {
            return self.watch_reset(key, report);
        }
        if let (Verb::Call(Call::Open { over, .. }), Reply::Report(report)) = (request.verb, reply) {
            self.watch_loss(key, over, report);
        }
        let queues = self.profile.rules.queues;
        if matches!(reply, Reply::Busy(_)) && !queues && request.mark == job.mark {
            self.saw(Seen::StandbyBusy);
        }
        let skipped = self.watch.ticks.skipped.insert(key, job.skipped).unwrap_or(None);
        let before = |mark: TickTime| TickTime(mark.0 - 1);
        let may_skip = match request.turn {
            WhenBehind::Queue => request.mark.map(before),
            _ => request.mark,
        };
        if job.skipped != skipped && !(busy && may_skip == job.skipped && request.mark > job.mark) {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("{:?} is skipped, and it is known that {job:?}", job.skipped)
            });
        }
        self.watch_grant(key, request, &job, queues);
        let tick = self.watch.ticks.ticks.entry((key, job.mark)).or_default();
        if job.done && !std::mem::replace(&mut tick.ended, job.done) {
            let right = matches!(request.verb, Verb::Finish { .. }) && job.winner == Some(request.claim_id);
            if !right {
                self.wrong(Wrong::TickOrder, Some(key), || {
                    format!(
                        "{:?} of {} ended {:?} of {:?}",
                        request.verb, request.claim_id, job.mark, job.winner
                    )
                });
            }
        }
    }

    /// Checks that a granted tick had not ended, and that its attempt count grew by one.
    pub(crate) fn watch_grant(&mut self, key: usize, request: &Request, job: &Job, queues: bool) {
        let (mark, attempt) = (job.mark, job.attempt);
        let us = self.server_us();
        let is_winners = self.server.ledger.record(&request.name, us).is_some_and(
            |record| matches!(record.owner, RecordOwner::Claim(owner, _) if Some(owner) == job.winner),
        );
        let tick = self.watch.ticks.ticks.entry((key, mark)).or_default();
        if tick.winner == job.winner && tick.attempt == attempt {
            return;
        }
        let (ended, counted) = (tick.ended, tick.attempt);
        let is_new = counted == 0;
        tick.attempt = attempt;
        let before = std::mem::replace(&mut tick.winner, job.winner);
        tick.winners.extend(job.winner);
        if !is_winners {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("{mark:?} was won by {:?}, which has no record", job.winner)
            });
        }
        let latest = self.watch.ticks.latest.insert(key, mark).unwrap_or(None);
        if before.is_some_and(|before| job.winner.is_some_and(|winner| winner.node == before.node)) {
            self.saw(Seen::TickTakenOverAtHome);
        }
        if attempt == 1 && mark > Some(TickTime(us / 1000)) {
            self.wrong(Wrong::TickEarly, Some(key), || {
                format!("{mark:?} is granted before its time")
            });
        }
        if attempt > 1 && !queues {
            self.saw(Seen::TickTakenOverUnqueued);
        }
        let passed =
            is_new && matches!(request.turn, WhenBehind::After(_)) && latest.is_some() && latest < mark;
        let is_passed_over = |latest: Option<TickTime>| {
            let before = self.watch.ticks.ticks.get(&(key, latest));
            let after = latest.max(job.skipped);
            !before.is_some_and(|tick| tick.ended) || after.map(WhenBehind::After) != Some(request.turn)
        };
        if passed && is_passed_over(latest) && !self.watch.forgot {
            self.wrong(Wrong::TickPassedOver, Some(key), || {
                format!("{mark:?} is granted, and {latest:?} had not ended")
            });
        }
        if ended {
            self.wrong(Wrong::TickAgain, Some(key), || {
                format!("{mark:?} had ended well and is granted again")
            });
        }
        if attempt != counted + 1 || mark < latest {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("{mark:?} attempt {attempt} after {latest:?} attempt {counted}")
            });
        }
    }

    /// Checks that in a calm a fired tick that is due is run: at once, or when the lease of its last run
    /// ended and the timer of a standby fires. When the tick is over, its standbys hear of it by that timer.
    pub(crate) fn watch_pursuits(&mut self, key: usize, calm: bool) {
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
                    want,
                    asks,
                    state,
                    ..
                } = node.callers[at];
                let runs = matches!(state, State::Holding | State::Releasing { .. });
                if of == key && runs {
                    pursued.insert(want.mark, true);
                } else if of == key && state == State::Waiting && asks.is_none() && is_over(&job, want.mark) {
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
        let most = if waits { 1 } else { usize::MAX };
        let idle: Vec<Option<TickTime>> = pursued
            .into_iter()
            .take(most)
            .filter_map(|(mark, runs)| (!runs && mark <= Some(TickTime(us / 1000))).then_some(mark))
            .collect();
        let ticks = &mut self.watch.ticks;
        ticks
            .idle
            .retain(|(of, mark), _| *of != key || idle.contains(mark));
        ticks.untold.retain(|caller, _| over.contains(caller));
        let (now, unrest) = (self.now, self.watch.unrest);
        let late = |since: u64, bound: u64| calm && now - since.max(unrest) > bound;
        let (timer, takeover) = self.bounds_of_ticks();
        for mark in idle {
            let since = *self.watch.ticks.idle.entry((key, mark)).or_insert(now);
            if late(since, takeover) {
                let (idle, state) = ((now - since) / MS, self.describe(key));
                self.wrong(Wrong::TickAsleep, Some(key), || {
                    format!("nobody runs {mark:?} for {idle} ms, and it is known that {job:?}: {state}")
                });
            }
        }
        for caller in over {
            let since = *self.watch.ticks.untold.entry(caller).or_insert(now);
            if late(since, timer) {
                let (slot, _, at) = caller;
                let mark = self.nodes[slot].callers[at].want.mark;
                self.wrong(Wrong::TickUntold, Some(key), || {
                    format!("ticket {} of node {slot} still stands by for {mark:?}", at + 1)
                });
            }
        }
    }

    /// Checks a new run: no other run goes on, and the tick is due and not over.
    pub(crate) fn watch_run(&mut self, slot: usize, caller: usize, fence: Fence) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let now = self.now;
        self.watch.ticks.strays.retain(|(_, until)| *until > now);
        if self.watch.ticks.strays.iter().any(|(of, _)| *of == key) {
            self.wrong(Wrong::TwoRuns, Some(key), || {
                format!("node {slot} runs {:?} beside another", want.mark)
            });
        }
        if want.mark > Some(TickTime(self.server_us() / 1000)) && !self.watch.stepped_back {
            self.wrong(Wrong::TickEarly, Some(key), || {
                format!("{:?} began too early", want.mark)
            });
        }
        let tick = self.watch.ticks.ticks.get(&(key, want.mark));
        let mended = self.watch.ticks.mended.get(&key);
        let is_older = mended.is_some_and(|mended| fence.number() <= *mended);
        if tick.is_some_and(|tick| tick.ended) && !self.is_tainted(fence.number()) && !is_older {
            self.wrong(Wrong::TickAgain, Some(key), || {
                format!("{:?} had ended well and is run again by node {slot}", want.mark)
            });
        }
        if self.watch.ticks.killed == Some((key, want.mark)) {
            self.watch.ticks.killed = None;
            self.saw(Seen::WinnerReplaced);
        }
    }
}
