//! Faults of Sentinels: they learn late of promotions, are cut off, and answer processes that know nothing yet.

use crate::time::MS;
use crate::world::World;
use crate::world::caller::CallerState;
use crate::world::event::Event;
use crate::world::node::Node;
use crate::world::sentinels::{SENTINELS, View};

impl World {
    /// One Sentinel knows of the promotion, and the others learn of it by hello. Returns whether the former master is staged to
    /// return soon; then nothing is scheduled here.
    pub(crate) fn tell_sentinels(&mut self, new: usize, old: usize) -> bool {
        let Some(sentinels) = &mut self.sentinels else {
            return false;
        };
        sentinels.retired = None;
        sentinels.is_staged = sentinels.rng.u8(0..4) == 0;
        let others = sentinels.promote(new, old);
        if sentinels.is_staged {
            return true;
        }
        let learns = others.map(|sentinel| {
            let hellos = [50, 2_000, 10_000][sentinels.rng.usize(0..3)];
            (sentinel, sentinels.rng.u64(0..hellos * MS))
        });
        for (sentinel, after) in learns {
            self.after(after, Event::SentinelLearns { sentinel });
        }
        // Links are confirmed again when a majority knows.
        let majority = learns.iter().map(|(_, after)| self.now + after).min();
        self.extend_fault(majority.unwrap_or_default());
        false
    }

    /// Stages the return of a former master that is stopped: a process asks the Sentinels just before they learn of the
    /// promotion, and connects to the former master. That one goes on soon after its successor has recovered.
    pub(crate) fn stage_return(&mut self) {
        let recovery = self.profile.recovery().as_nanos() as u64;
        let Some(sentinels) = &mut self.sentinels else {
            return;
        };
        let learn = sentinels.rng.u64(50 * MS..400 * MS);
        let early = sentinels.rng.u64(0..60 * MS).min(learn);
        let returns = learn + recovery + sentinels.rng.u64(20 * MS..500 * MS);
        for sentinel in 0..SENTINELS {
            self.after(learn, Event::SentinelLearns { sentinel });
        }
        self.after(learn - early, Event::ProcessReplaced);
        self.memory.next_failover = self.now + returns;
        self.after(returns, Event::FailOver);
    }

    /// A Sentinel learns of the latest promotion.
    pub(crate) fn sentinel_learns(&mut self, sentinel: usize) {
        if let Some(sentinels) = &mut self.sentinels {
            let (address, epoch) = (self.master, sentinels.epoch);
            sentinels.views[sentinel] = View { address, epoch };
        }
    }

    /// Some nodes reach one Sentinel only for a while.
    pub(crate) fn cut_nodes_off_sentinels(&mut self) {
        let Some(sentinels) = &mut self.sentinels else {
            return;
        };
        let mut latest = self.now;
        for node in &mut self.nodes {
            let only = sentinels.rng.usize(0..SENTINELS);
            let until = self.now + sentinels.rng.u64(0..4_000 * MS);
            node.sentinels.only = sentinels.rng.bool().then_some((only, until));
            latest = latest.max(until);
        }
        self.extend_fault(latest);
    }

    /// Returns the one node that leaves the former master soon after a promotion, and when: one that holds a lease. The other
    /// nodes stay there to its end.
    pub(crate) fn early_node(&mut self) -> Option<(usize, u64)> {
        let sentinels = self.sentinels.as_mut()?;
        let (is_early, learns) = (sentinels.rng.u8(0..3) == 0, sentinels.rng.u64(0..50 * MS));
        let holds = |node: &Node| {
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            live.any(|caller| caller.state == CallerState::Holding)
        };
        let slot = self.nodes.iter().position(holds).filter(|_| is_early)?;
        self.nodes[slot].sentinels.only = None;
        Some((slot, learns))
    }

    /// A process takes the place of another one. It knows no grant, and sometimes it reaches one Sentinel only.
    pub(crate) fn replace_process(&mut self) {
        let Some(sentinels) = &mut self.sentinels else {
            return;
        };
        let slot = sentinels.rng.usize(0..self.nodes.len());
        // Mostly the one that knows the least.
        let stale = (0..SENTINELS)
            .min_by_key(|at| sentinels.views[*at].epoch)
            .unwrap_or_default();
        let any = sentinels.rng.usize(0..2 * SENTINELS);
        let only = (if any < SENTINELS { any } else { stale }, self.now + 2_000 * MS);
        let only = (sentinels.rng.u8(0..3) == 0 && !sentinels.is_staged).then_some(only);
        if self.draining || self.now >= self.profile.fault_period.1 {
            return;
        }
        if self.nodes[slot].alive {
            self.crash_process(slot);
        }
        self.restart_process(slot);
        self.nodes[slot].sentinels.only = only;
        self.extend_fault(only.map_or(self.now, |(_, until)| until));
    }
}
