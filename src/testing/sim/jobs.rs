//! Cron jobs: each node fires on its own skewed wall clock and pursues its ticks as the scheduler does.

use std::collections::HashMap;

use crate::claim::{Holder, Kind, Mark, NO_TICK, Reply, Request, Verb};
use crate::engine::{Denial, Input, Ticket, Want};
use crate::testing::sim::Wrong;
use crate::testing::sim::callers::{Act, Caller, State};
use crate::testing::sim::coverage::Seen;
use crate::testing::sim::world::{Event, MS, World};

/// What the watchers remember of jobs.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    /// Each tick's attempts, its latest winner, and whether it ended well.
    ticks: HashMap<(usize, Mark), (u32, Option<Holder>, bool)>,
    latest: HashMap<usize, Mark>,
    /// Runs whose guard was given back while they went on, until when.
    strays: Vec<(usize, u64)>,
}

impl World {
    /// A node's clock comes to a tick: now and then late, or not at all.
    pub(super) fn tick(&mut self, slot: usize, key: usize) {
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
        let wall = (crate::testing::sim::network::EPOCH_US / 1000 + self.now / MS)
            .saturating_add_signed(self.nodes[slot].skew_ms);
        let mark = wall / period * period;
        if self.nodes[slot].newest < mark {
            self.nodes[slot].newest = mark;
            self.chase(slot, key, mark);
        }
    }

    /// Claims a tick, for the first time or again.
    pub(super) fn chase(&mut self, slot: usize, key: usize, mark: Mark) {
        let node = &mut self.nodes[slot];
        if self.draining || node.retired || node.newest > mark {
            return;
        }
        let want = Want {
            term: self.profile.terms[0],
            wait: true,
            fixed: false,
            mark,
            limit: 64,
        };
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        node.callers.push(Caller {
            key,
            want,
            state: State::Waiting,
            dark: false,
        });
        node.live.push(caller);
        node.asked += 1;
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// The scheduler of a node shuts down: it waits no more, and gives back what it runs, unfinished.
    fn retire(&mut self, slot: usize, key: usize) {
        self.nodes[slot].retired = true;
        self.saw(Seen::Retired);
        for caller in self.nodes[slot].live.clone() {
            let Caller { key: of, state, .. } = self.nodes[slot].callers[caller];
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
        }
    }

    /// A run begins.
    pub(super) fn run_begins(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let now = self.now;
        self.watch.ticks.strays.retain(|(_, until)| *until > now);
        if self.watch.ticks.strays.iter().any(|(of, _)| *of == key) {
            self.wrong(Wrong::TwoRuns, Some(key), || {
                format!("node {slot} runs {} beside another", want.mark)
            });
        }
        if want.mark > self.server_us() / 1000 && !self.watch.stepped_back {
            self.wrong(Wrong::TickEarly, Some(key), || {
                format!("{} began too early", want.mark)
            });
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
    pub(super) fn tick_denied(&mut self, slot: usize, caller: usize, denial: &Denial) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let pause = match denial {
            Denial::Early(left) => left.as_nanos() as u64,
            Denial::Store(_) => self.rng.u64(50 * MS..300 * MS),
            _ => return,
        };
        self.chase_after(slot, key, want.mark, pause);
    }

    pub(super) fn chase_after(&mut self, slot: usize, key: usize, mark: Mark, pause: u64) {
        let life = self.nodes[slot].life;
        self.after(
            pause,
            Event::Chase {
                slot,
                life,
                key,
                mark,
            },
        );
    }

    /// The node that ran it was told that its tick ended well: nobody else has it, nor will.
    pub(super) fn tick_kept(&mut self, slot: usize, ticket: Ticket, finished: bool) {
        let Caller { key, want, .. } = self.nodes[slot].callers[ticket.0 as usize - 1];
        if want.mark == NO_TICK || !finished {
            return;
        }
        self.saw(Seen::TickRun);
        let id = self.nodes[slot].id;
        if let Some((_, winner, ended)) = self.watch.ticks.ticks.get_mut(&(key, want.mark)) {
            *ended = true;
            if winner.is_some_and(|winner| winner.node != id) {
                self.wrong(Wrong::TickAgain, Some(key), || {
                    format!("{} was told kept of {}, which another got", ticket.0, want.mark)
                });
            }
        }
    }

    /// At the server: a grant of a tick.
    pub(super) fn watch_tick(&mut self, key: usize, request: &Request, reply: &Reply) {
        if request.name.kind != Kind::Job || matches!(request.verb, Verb::Yield { .. }) {
            return;
        }
        let _ = reply;
        let Some(job) = self.server.ledger.job(&request.name).cloned() else {
            return;
        };
        let (mark, attempt) = (job.mark, job.attempt);
        let entry = self.watch.ticks.ticks.entry((key, mark)).or_default();
        if entry.1 == job.winner && entry.0 == attempt {
            return;
        }
        let (before, ended) = (entry.0, entry.2);
        (entry.0, entry.1) = (attempt, job.winner);
        let latest = self.watch.ticks.latest.insert(key, mark).unwrap_or(0);
        if ended {
            self.wrong(Wrong::TickAgain, Some(key), || {
                format!("{mark} had ended well and is granted again")
            });
        }
        if attempt != before + 1 || mark < latest {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("{mark} attempt {attempt} after {latest} attempt {before}")
            });
        }
    }

    /// The server forgot its marks.
    pub(super) fn ticks_forgotten(&mut self) {
        self.watch.ticks = Ticks::default();
    }
}
