//! Cron jobs: each node fires on its own skewed wall clock and pursues its ticks as the scheduler does.

use std::collections::{BTreeMap, HashMap};

use crate::Wrong;
use crate::callers::{Act, Caller, Fetches, State};
use crate::coverage::Seen;
use crate::world::{Event, MS, World};
use tenure::protocol::ledger::{CheckpointRecord, JobRecord, RecordOwner};
use tenure::protocol::message::{
    Call, ClaimId, Fence, GrantNumber, Kind, Reply, Request, TickTime, Verb, WhenBehind,
};
use tenure::protocol::step::{AcquireError, Input, LockOptions, TickRefusal, Ticket};

/// So long before the last tick jobs that skip are changed into such as pass over none, where they are.
const CHANGED: u64 = 1_500 * MS;

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
    pub(crate) next_kill: u64,
    /// What is kept of each job's runs.
    pub(crate) kept: HashMap<usize, Option<CheckpointRecord>>,
    /// Each tick of which some run was told that what it left is kept.
    /// And when.
    pub(crate) saved: HashMap<(usize, Option<TickTime>), u64>,
    /// When each run asked first what was left of its tick.
    pub(crate) recalls: HashMap<ClaimId, u64>,
    /// The tick that was begun and that nobody is after, since when.
    pub(crate) abandoned: Option<(Option<TickTime>, u64)>,
    /// Marks were brought back.
    reset: bool,
    /// The last number that was granted before the server was told that a tick is over which it had forgotten. Whoever was
    /// granted that tick meanwhile runs it.
    pub(crate) mended: HashMap<usize, GrantNumber>,
}

/// One tick, as it was granted. Claims are compared, not nodes: one node may win a tick twice.
#[derive(Debug, Default)]
struct Tick {
    attempt: u32,
    /// Its latest winner.
    winner: Option<ClaimId>,
    /// And all before, as far as the store remembers.
    winners: Vec<ClaimId>,
    /// The store knows that it ended well, or a node was told so that ran it.
    ended: bool,
}

impl Ticks {
    /// This is what the server knows from now on.
    pub(crate) fn restored(&mut self, key: usize, job: &JobRecord) {
        let tick = Tick {
            attempt: job.attempt,
            winner: job.winner,
            winners: job.winner.into_iter().collect(),
            ended: job.done,
        };
        self.ticks.insert((key, job.mark), tick);
        self.latest.insert(key, job.mark);
        self.skipped.insert(key, job.skipped);
        self.kept.insert(key, job.saved.clone());
        self.saved.retain(|(of, _), _| *of != key);
    }

    /// The job's mark was brought back.
    pub(crate) fn reset(&mut self, key: usize, job: &JobRecord) {
        self.reset = true;
        self.ticks.retain(|(of, mark), _| *of != key || *mark < job.mark);
        self.saved.retain(|(of, mark), _| *of != key || *mark < job.mark);
        let over = Tick {
            attempt: job.attempt,
            winner: job.winner,
            winners: Vec::new(),
            ended: true,
        };
        self.ticks.insert((key, job.mark), over);
        self.latest.insert(key, job.mark);
        self.skipped.insert(key, job.skipped);
    }
}

/// The store will never grant it, or not again.
pub(crate) fn is_over(job: &JobRecord, mark: Option<TickTime>) -> bool {
    mark < job.mark || mark == job.mark && job.done || mark > job.mark && mark <= job.skipped
}

impl World {
    // What schedulers do.

    /// A node's clock comes to a tick: now and then late, twice, or not at all.
    pub(crate) fn tick(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        if self.profile.quiet_from.is_some_and(|from| self.now > from) {
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

    pub(crate) fn fire(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].pursuits.push((key, mark));
        self.chase(slot, key, mark, true);
    }

    /// Claims a tick, for the first time or again: whatever came meanwhile, if `patient`.
    pub(crate) fn chase(&mut self, slot: usize, key: usize, mark: Option<TickTime>, patient: bool) {
        let node = &self.nodes[slot];
        let turn = self.turn(slot, key, mark);
        let runs_all = matches!(turn, WhenBehind::After(_));
        let missed = !patient && node.newest > mark && !runs_all;
        if missed {
            self.saw(Seen::TickMissed);
        }
        if self.draining || self.nodes[slot].retired || missed {
            return self.pursuit_ends(slot, key, mark);
        }
        let want = LockOptions {
            mark,
            turn,
            limit: 64,
            ..LockOptions::new(self.profile.terms[0])
        };
        let (ticket, _) = self.new_caller(slot, key, want, Fetches::Later);
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// The scheduler is through with a tick: it was run here or elsewhere, or will not be.
    pub(crate) fn pursuit_ends(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].after.remove(&(key, mark));
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
        let period = self.profile.period;
        let most = if self.chance(80) { period / 3 } else { 3 * period };
        let most = if self.draining { 5 } else { most };
        let span = self.rng.u64(0..most * MS);
        let life = self.nodes[slot].life;
        self.works(slot, caller, span);
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
            AcquireError::Tick(TickRefusal::Early(left)) => (left.as_nanos() as u64, true),
            AcquireError::Store(_) => (self.rng.u64(50 * MS..300 * MS), false),
            AcquireError::Tick(TickRefusal::EarlierTickDue { latest, is_open }) => {
                // Whoever is to be run first is pursued first, and this one asks again.
                let period = self.profile.period;
                let first = (key, Some(TickTime(latest.0 + if *is_open { 0 } else { period })));
                if first.1 >= want.mark {
                    // There is none between them.
                    self.nodes[slot].after.insert((key, want.mark), *latest);
                } else if !self.nodes[slot].pursuits.contains(&first) {
                    self.fire(slot, key, first.1);
                }
                (self.rng.u64(20 * MS..100 * MS), true)
            }
            AcquireError::Busy if matches!(want.turn, WhenBehind::After(_)) => {
                (self.rng.u64(50 * MS..300 * MS), true)
            }
            _ => {
                if matches!(
                    denial,
                    AcquireError::Tick(TickRefusal::Over | TickRefusal::Skipped)
                ) {
                    self.note_over(slot, key, want.mark);
                }
                self.watch_denial(slot, key, want, denial);
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

    /// A node was told that a tick is over.
    fn note_over(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        let Some(mark) = mark else { return };
        let latest = self.nodes[slot].over.entry(key).or_insert(mark);
        *latest = mark.max(*latest);
    }

    /// Whether a tick waits for those before it in this world.
    fn ticks_wait(&self) -> bool {
        matches!(self.setup.seed / 3 % 4, 1 | 2)
    }

    /// How the jobs of this world overlap: the same on all nodes. In some they skip, and from a moment on pass over none.
    fn turn(&self, slot: usize, key: usize, mark: Option<TickTime>) -> WhenBehind {
        let (period, node) = (self.profile.period, &self.nodes[slot]);
        let is_before = |quiet: u64| self.now + CHANGED < quiet;
        let skips =
            (self.setup.seed / 12).is_multiple_of(2) && self.profile.quiet_from.is_some_and(is_before);
        match self.setup.seed / 3 % 4 {
            1 => WhenBehind::Queue,
            2 if skips => WhenBehind::Skip,
            // One that comes after none that can have been, until it is known which was.
            2 => {
                let before = || TickTime(mark.map_or(0, |mark| mark.0.saturating_sub(period)));
                WhenBehind::After(node.after.get(&(key, mark)).copied().unwrap_or_else(before))
            }
            _ => WhenBehind::Skip,
        }
    }

    // What must never happen to ticks.

    /// Whoever is told that a tick is over, or skipped, gives it up for ever: so it must be.
    fn watch_denial(&mut self, slot: usize, key: usize, want: LockOptions, denial: &AcquireError) {
        let mark = want.mark;
        let job = self.job(key);
        let right = match denial {
            AcquireError::Tick(TickRefusal::Over) => is_over(&job, mark),
            // Of what was granted before a reset nobody knows any more.
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

    /// The node that ran it was told that its tick ended well: no other claim has it, nor will.
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
        // Won and finished before the store forgot it or it was brought back, and told only now: of that tick nothing is
        // promised.
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

    /// At the server: what a request did to what is known of its job. `busy`: a record was there, before or after.
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
        let may_skip = match request.when_behind {
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

    /// Each grant of a tick is of one that had not ended, and one attempt more.
    fn watch_grant(&mut self, key: usize, request: &Request, job: &JobRecord, queues: bool) {
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
        let passed = is_new
            && matches!(request.when_behind, WhenBehind::After(_))
            && latest.is_some()
            && latest < mark;
        let is_passed_over = |latest: Option<TickTime>| {
            let before = self.watch.ticks.ticks.get(&(key, latest));
            let after = latest.max(job.skipped);
            !before.is_some_and(|tick| tick.ended)
                || after.map(WhenBehind::After) != Some(request.when_behind)
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
        // Where ticks wait for others, only the first of them is to be run, and that when nobody runs any.
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

    /// How long a standby's timer may take, and how long a takeover, both with the ways there and back, and the time for which
    /// each of two batches gathers.
    pub(crate) fn bounds_of_ticks(&self) -> (u64, u64) {
        let term = self.profile.terms[0];
        let timer = (term.lease_ms / 3 + term.lease_ms / 50) * MS + 6 * self.profile.delay.1 + 100 * MS;
        (timer, timer + (term.hold_ms() + term.lease_ms / 50) * MS)
    }

    /// Even in a calm a process may be killed while it runs a tick. Not another before all of that is over.
    pub(crate) fn kill_a_winner(&mut self) {
        if self.now < self.watch.ticks.next_kill || self.jobs().is_empty() {
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

    pub(crate) fn job(&self, key: usize) -> JobRecord {
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

    /// What is known of jobs now, as a backup has it.
    pub(crate) fn copy_jobs(&mut self) {
        self.server.copy = self.jobs().map(|key| (key, self.job(key))).collect();
    }

    /// The server comes back with an older copy.
    pub(crate) fn restore_jobs(&mut self) {
        let known = self.server.copy.clone();
        for (key, job) in known.into_iter().filter(|(_, job)| job.mark.is_some()) {
            self.saw(Seen::ServerWentBack);
            self.watch.ticks.restored(key, &job);
            self.server.ledger.set_job(&self.keys[key], job);
        }
    }
}
