//! Targeted kills during calm periods, when no other fault happens.

use crate::coverage::Case;
use crate::world::World;
use crate::world::caller::CallerState;

impl World {
    /// Kills a leader. The next one is killed only after the consequences of this kill have ended.
    pub(crate) fn kill_leader(&mut self) {
        if self.now < self.memory.elections.next_kill || !self.chance(3) {
            return;
        }
        let leads = |slot: &usize| {
            let node = &self.nodes[*slot];
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            node.alive && live.any(|of| self.elections.contains(&of.key) && of.state == CallerState::Holding)
        };
        let Some(slot) = (0..self.nodes.len()).find(leads) else {
            return;
        };
        self.note(Some(slot), None, || "killed while it leads".into());
        self.cover(Case::LeaderKilled);
        let notice = self.kill(slot);
        let longest = self.profile.longest().as_nanos() as u64;
        self.memory.elections.next_kill = self.now + notice + 2 * longest;
    }

    /// Kills a process that runs a tick while another stands by. The next is killed only after the
    /// consequences of this kill have ended.
    pub(crate) fn kill_tick_runner(&mut self) {
        if self.now < self.memory.ticks.next_kill || self.jobs().is_empty() {
            return;
        }
        let callers = |node: usize| {
            let node = &self.nodes[node];
            let live = node.live.iter().filter(|_| node.alive && !node.closing);
            live.map(|caller| &node.callers[*caller])
                .filter(|caller| caller.options.mark.is_some())
        };
        let of_all =
            || (0..self.nodes.len()).flat_map(|slot| callers(slot).map(move |caller| (slot, caller)));
        let found = of_all().find(|(slot, winner)| {
            winner.state == CallerState::Holding
                && of_all().any(|(other, standby)| {
                    let same = (standby.key, standby.options.mark) == (winner.key, winner.options.mark);
                    other != *slot && same && standby.state == CallerState::Waiting
                })
        });
        let Some((slot, winner)) = found else { return };
        let tick = (winner.key, winner.options.mark);
        if !self.chance(10) {
            return;
        }
        self.note(Some(slot), Some(tick.0), || "killed while it runs a tick".into());
        self.cover(Case::WinnerKilled);
        let notice = self.kill(slot);
        let (_, takeover) = self.bounds_of_ticks();
        self.memory.ticks.killed = Some(tick);
        self.memory.ticks.next_kill = self.now + notice + 2 * takeover;
    }

    /// Kills all pursuers of the last tick, one after the other, while the tick is run. No later tick
    /// replaces it.
    pub(crate) fn kill_pursuers(&mut self) {
        let is_quiet = self.profile.quiet_from.is_some_and(|from| self.now > from);
        if !is_quiet || self.now < self.memory.ticks.next_kill || self.jobs().is_empty() {
            return;
        }
        let key = self.locks;
        let mark = self.job(key).mark;
        let is_run = self.nodes.iter().any(|node| {
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            node.alive
                && live.any(|caller| caller.options.mark == mark && caller.state == CallerState::Holding)
        });
        if mark.is_none() || !is_run || !self.chance(30) {
            return;
        }
        self.cover(Case::PursuersKilled);
        let mut longest = 0;
        for slot in 0..self.nodes.len() {
            let node = &self.nodes[slot];
            if node.alive && !node.closing && node.pursuits.contains(&(key, mark)) {
                self.note(Some(slot), Some(key), || {
                    "killed with all pursuers of a tick".into()
                });
                longest = longest.max(self.kill(slot));
            }
        }
        let (_, takeover) = self.bounds_of_ticks();
        self.memory.ticks.next_kill = self.now + longest + 2 * takeover;
    }
}
