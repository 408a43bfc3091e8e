//! Cron jobs: each node fires on its own skewed wall clock and pursues its ticks as the scheduler does.

use std::collections::{BTreeMap, HashMap};

use crate::Wrong;
use crate::callers::{Act, Caller, Fetches, State};
use crate::coverage::Seen;
use crate::world::{Event, MS, World};
use tenure::protocol::ledger::{Job, RecordOwner};
use tenure::protocol::message::{Fence, Holder, Kind, Reply, Request, TickTime, Verb};
use tenure::protocol::step::{AcquireError, AcquireOptions, Input, Ticket};

/// What the watchers remember of jobs.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    ticks: HashMap<(usize, Option<TickTime>), Tick>,
    latest: HashMap<usize, Option<TickTime>>,
    skipped: HashMap<usize, Option<TickTime>>,
    /// Runs whose guard was given back while they went on, until when.
    strays: Vec<(usize, u64)>,
    /// Since when each tick is pursued by somebody and run by nobody.
    idle: HashMap<(usize, Option<TickTime>), u64>,
    /// Since when each caller (slot, life, place) has stood by for a tick that is over.
    untold: HashMap<(usize, u32, usize), u64>,
    /// The tick whose winner was killed in a calm, and when the next may be killed.
    killed: Option<(usize, Option<TickTime>)>,
    next_kill: u64,
}

/// One tick, as it was granted. Claims are compared, not nodes: one node may win a tick twice.
#[derive(Debug, Default)]
struct Tick {
    attempt: u32,
    /// Its latest winner.
    winner: Option<Holder>,
    /// And all before, as far as the store remembers.
    winners: Vec<Holder>,
    /// The store knows that it ended well, or a node was told so that ran it.
    ended: bool,
}

/// The store will never grant it, or not again.
fn is_over(job: &Job, mark: Option<TickTime>) -> bool {
    mark < job.mark || mark == job.mark && job.done || mark > job.mark && mark <= job.skipped
}

impl World {
    // What schedulers do.

    /// A node's clock comes to a tick: now and then late, twice, or not at all.
    pub(crate) fn tick(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        let period = self.profile.period;
        let pause = self.rng.u64(period / 2 * MS..period * 3 / 2 * MS);
        self.after(pause, Event::Tick { slot, key });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.retired || self.chance(5) {
            return;
        }
        if self.chance(3) {
            return self.retire(slot, key);
        }
        let wall =
            (crate::server::EPOCH_US / 1000 + self.now / MS).saturating_add_signed(self.nodes[slot].skew_ms);
        let due = wall / period * period;
        let mark = Some(TickTime(due));
        let newest = self.nodes[slot].newest;
        if newest < mark {
            self.nodes[slot].newest = mark;
            self.fire(slot, key, mark);
        } else if newest == mark && self.chance(30) {
            self.saw(Seen::TickFiredTwice);
            self.fire(slot, key, mark);
        } else if self.chance(10) {
            self.saw(Seen::TickFiredLate);
            let back = period * self.rng.u64(1..=2);
            self.fire(slot, key, Some(TickTime(due - back)));
        }
    }

    fn fire(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].pursuits.push((key, mark));
        self.chase(slot, key, mark, true);
    }

    /// Claims a tick, for the first time or again: whatever came meanwhile, if `patient`.
    pub(crate) fn chase(&mut self, slot: usize, key: usize, mark: Option<TickTime>, patient: bool) {
        let node = &self.nodes[slot];
        let missed = !patient && node.newest > mark;
        if missed {
            self.saw(Seen::TickMissed);
        }
        if self.draining || self.nodes[slot].retired || missed {
            return self.pursuit_ends(slot, key, mark);
        }
        let node = &mut self.nodes[slot];
        let want = AcquireOptions {
            term: self.profile.terms[0],
            wait: true,
            fixed: false,
            mark,
            limit: 64,
            node_is_full: false,
        };
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        node.callers.push(Caller {
            key,
            want,
            state: State::Waiting,
            fetches: Fetches::Later,
            dark: false,
            claim: None,
        });
        node.live.push(caller);
        node.asked += 1;
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// The scheduler is through with a tick: it was run here or elsewhere, or will not be.
    pub(crate) fn pursuit_ends(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        let pursuits = &mut self.nodes[slot].pursuits;
        if let Some(at) = pursuits.iter().position(|pursuit| *pursuit == (key, mark)) {
            pursuits.swap_remove(at);
        }
    }

    /// The scheduler of a node shuts down: it waits no more, and gives back what it runs, unfinished.
    fn retire(&mut self, slot: usize, key: usize) {
        self.nodes[slot].retired = true;
        self.saw(Seen::Retired);
        for caller in self.nodes[slot].live.clone() {
            let Caller {
                key: of, want, state, ..
            } = self.nodes[slot].callers[caller];
            let act = match state {
                _ if of != key => continue,
                State::Waiting => Act::GiveUp,
                State::Holding => Act::Release,
                _ => continue,
            };
            if state == State::Holding && self.setup.release_early {
                self.watch.ticks.strays.push((key, self.now + 200 * MS));
            }
            self.act(slot, caller, act);
            if state == State::Waiting {
                self.pursuit_ends(slot, key, want.mark);
            }
        }
    }

    /// A run begins.
    pub(crate) fn run_begins(&mut self, slot: usize, caller: usize, fence: Fence) {
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
        if tick.is_some_and(|tick| tick.ended) && !self.is_tainted(fence.number()) {
            self.wrong(Wrong::TickAgain, Some(key), || {
                format!("{:?} had ended well and is run again by node {slot}", want.mark)
            });
        }
        if self.watch.ticks.killed == Some((key, want.mark)) {
            self.watch.ticks.killed = None;
            self.saw(Seen::WinnerReplaced);
        }
        let period = self.profile.period;
        let most = if self.chance(80) { period / 3 } else { 3 * period };
        let most = if self.draining { 5 } else { most };
        let span = self.rng.u64(0..most * MS);
        let life = self.nodes[slot].life;
        let act = Act::Finish;
        self.after(
            span,
            Event::Caller {
                slot,
                life,
                caller,
                act,
            },
        );
    }

    /// A tick was refused: again later, or never.
    pub(crate) fn tick_denied(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let (pause, patient) = match denial {
            AcquireError::Early(left) => (left.as_nanos() as u64, true),
            AcquireError::Store(_) => (self.rng.u64(50 * MS..300 * MS), false),
            _ => {
                self.watch_denial(slot, key, want.mark, denial);
                return self.pursuit_ends(slot, key, want.mark);
            }
        };
        self.chase_after(slot, key, want.mark, pause, patient);
    }

    pub(crate) fn chase_after(
        &mut self,
        slot: usize,
        key: usize,
        mark: Option<TickTime>,
        pause: u64,
        patient: bool,
    ) {
        let life = self.nodes[slot].life;
        self.after(
            pause,
            Event::Chase {
                slot,
                life,
                key,
                mark,
                patient,
            },
        );
    }

    // What must never happen to ticks.

    /// Whoever is told that a tick is over, or skipped, gives it up for ever: so it must be.
    fn watch_denial(&mut self, slot: usize, key: usize, mark: Option<TickTime>, denial: &AcquireError) {
        let job = self.job(key);
        let right = match denial {
            AcquireError::Over => is_over(&job, mark),
            AcquireError::Busy => {
                self.saw(Seen::DeniedSkipped);
                mark <= job.skipped
            }
            _ => true,
        };
        if !right && !self.watch.forgot {
            self.wrong(Wrong::TickDropped, Some(key), || {
                format!("node {slot} was told {denial:?} of {mark:?}, and it is known that {job:?}")
            });
        }
    }

    /// The node that ran it was told that its tick ended well: no other claim has it, nor will.
    pub(crate) fn tick_kept(&mut self, slot: usize, ticket: Ticket, finished: bool) {
        let Caller { key, want, claim, .. } = self.nodes[slot].callers[ticket.0 as usize - 1];
        if want.mark.is_none() || !finished {
            return;
        }
        self.saw(Seen::TickRun);
        let forgot = self.watch.forgot;
        let Some(tick) = self.watch.ticks.ticks.get_mut(&(key, want.mark)) else {
            return;
        };
        // Won and finished before the store forgot it, and told only now: of that tick nothing is promised.
        if forgot && claim.is_some_and(|claim| !tick.winners.contains(&claim)) {
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

    /// At the server: what a request did to what is known of its job. `busy`: a record was there, before or after.
    pub(crate) fn watch_tick(&mut self, key: usize, request: &Request, reply: &Reply, busy: bool) {
        if request.name.kind != Kind::Job || matches!(request.verb, Verb::Yield { .. }) {
            return;
        }
        let Some(job) = self.server.ledger.job(&request.name).cloned() else {
            return;
        };
        let queues = self.profile.rules.queues;
        if matches!(reply, Reply::Busy(_)) && !queues && request.mark == job.mark {
            self.saw(Seen::StandbyBusy);
        }
        let skipped = self.watch.ticks.skipped.insert(key, job.skipped).unwrap_or(None);
        if job.skipped != skipped && !(busy && request.mark == job.skipped && job.skipped > job.mark) {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("{:?} is skipped, and it is known that {job:?}", job.skipped)
            });
        }
        self.watch_grant(key, request, &job, queues);
        let tick = self.watch.ticks.ticks.entry((key, job.mark)).or_default();
        if job.done && !std::mem::replace(&mut tick.ended, job.done) {
            let right = request.verb == Verb::Finish && job.winner == Some(request.holder);
            if !right {
                self.wrong(Wrong::TickOrder, Some(key), || {
                    format!(
                        "{:?} of {} ended {:?} of {:?}",
                        request.verb, request.holder, job.mark, job.winner
                    )
                });
            }
        }
    }

    /// Each grant of a tick is of one that had not ended, and one attempt more.
    fn watch_grant(&mut self, key: usize, request: &Request, job: &Job, queues: bool) {
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
        if attempt > 1 && !queues {
            self.saw(Seen::TickTakenOverUnqueued);
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

    /// In calm, a tick that some living node saw fire, and that its time has come for, is run: at once, or when the
    /// lease of whoever ran it has ended and the timer of a standby comes. When it is over, whoever stood by hears of
    /// it by that timer.
    pub(crate) fn watch_pursuits(&mut self, key: usize, calm: bool) {
        let (job, us) = (self.job(key), self.server_us());
        // Each tick that is pursued, and whether somebody runs it.
        let mut pursued: BTreeMap<Option<TickTime>, bool> = BTreeMap::new();
        let mut over = Vec::new();
        for (slot, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let of_key = node.pursuits.iter().filter(|(of, _)| *of == key);
            for (_, mark) in of_key {
                pursued.entry(*mark).or_default();
            }
            for &at in &node.live {
                let Caller {
                    key: of, want, state, ..
                } = node.callers[at];
                let runs = matches!(state, State::Holding | State::Releasing { .. });
                if of == key && runs {
                    pursued.insert(want.mark, true);
                } else if of == key && state == State::Waiting && is_over(&job, want.mark) {
                    over.push((slot, node.life, at));
                }
            }
        }
        let idle: Vec<Option<TickTime>> = pursued
            .into_iter()
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

    /// How long a standby's timer may take, and how long a takeover, both with the ways there and back.
    fn bounds_of_ticks(&self) -> (u64, u64) {
        let term = self.profile.terms[0];
        let timer = (term.lease_ms / 3 + term.lease_ms / 50) * MS + 6 * self.profile.delay.1 + 60 * MS;
        (timer, timer + (term.hold_ms() + term.lease_ms / 50) * MS)
    }

    /// Even in a calm a process may be killed while it runs a tick. Not another before all of that is over.
    pub(crate) fn kill_a_winner(&mut self) {
        if self.now < self.watch.ticks.next_kill || self.keys.len() == self.locks {
            return;
        }
        let callers = |node: usize| {
            let node = &self.nodes[node];
            let live = node.live.iter().filter(|_| node.alive && !node.closing);
            live.map(|caller| &node.callers[*caller])
                .filter(|caller| caller.want.mark.is_some())
        };
        let of_all =
            || (0..self.nodes.len()).flat_map(|slot| callers(slot).map(move |caller| (slot, caller)));
        let found = of_all().find(|(slot, winner)| {
            winner.state == State::Holding
                && of_all().any(|(other, standby)| {
                    let same = (standby.key, standby.want.mark) == (winner.key, winner.want.mark);
                    other != *slot && same && standby.state == State::Waiting
                })
        });
        let Some((slot, winner)) = found else { return };
        let tick = (winner.key, winner.want.mark);
        if !self.chance(10) {
            return;
        }
        self.note(Some(slot), Some(tick.0), || "killed while it runs a tick".into());
        self.saw(Seen::WinnerKilled);
        let notice = self.kill(slot);
        let (_, takeover) = self.bounds_of_ticks();
        self.watch.ticks.killed = Some(tick);
        self.watch.ticks.next_kill = self.now + notice + 2 * takeover;
    }

    fn job(&self, key: usize) -> Job {
        self.server
            .ledger
            .job(&self.keys[key])
            .cloned()
            .unwrap_or_default()
    }

    /// The server forgot its marks.
    pub(crate) fn ticks_forgotten(&mut self) {
        self.watch.ticks = Ticks::default();
    }
}
