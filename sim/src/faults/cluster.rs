//! Changes of a cluster: slots move, at once or in steps, and servers are cut off from each other.

use tenure::protocol::flaw::Flaw;
use tenure::protocol::message::GrantNumber;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::cluster::{HalfMove, LaggingCopy};
use crate::world::event::Event;

/// How long callers may notice a move, after it.
const SETTLE_AFTER_MOVE: u64 = 400 * MS;
/// How long callers may notice a move in steps, after it.
const SETTLE_AFTER_STEPS: u64 = 2_500 * MS;

impl World {
    /// Changes something in the cluster, and schedules the next change.
    pub(crate) fn change_cluster(&mut self) {
        if self.draining {
            return;
        }
        let is_faulty = self.in_fault_period();
        // Between the moves of a calm there must be a calm.
        let mean = if is_faulty {
            self.cluster.pause
        } else {
            self.cluster.pause.max(1_500 * MS)
        };
        let pause = self.cluster.rng.u64(0..2 * mean);
        self.after(pause, Event::ClusterChange);
        let hash = self.cluster.rng.usize(0..self.cluster.slots.len());
        let others = self.cluster.rng.usize(1..self.cluster.servers);
        let target = (self.cluster.slots[hash].server + others) % self.cluster.servers;
        match self.cluster.rng.u8(0..10) {
            0 if is_faulty && self.profile.members_fail => self.replace_later(target),
            0 | 1 if is_faulty => self.cut_bus(target),
            9 if is_faulty => self.replace_by_stranger(target),
            0..4 => self.begin_move(hash, target),
            _ => self.move_at_once(hash, target),
        }
    }

    /// Cuts a server off the bus. It delivers the pushes of no other server, and none of its own at other servers.
    fn cut_bus(&mut self, server: usize) {
        self.cover(Case::BusCut);
        let until = self.now + self.cluster.rng.u64(10 * MS..3_000 * MS);
        self.note(None, None, || format!("server {server} is cut off the bus"));
        self.server_at_mut(server).bus_cut = until;
        self.extend_fault(until);
    }

    /// A server dies, and one of another cluster starts at its address.
    fn replace_by_stranger(&mut self, server: usize) {
        if self.server_at(server).down {
            return;
        }
        self.cover(Case::StrangerCame);
        self.note(None, None, || {
            format!("another cluster takes the address of server {server}")
        });
        self.visit(server, |world| world.restart(false));
        self.server_at_mut(server).stranger = true;
    }

    /// A server is up again. A server of another cluster at its address ends.
    pub(crate) fn member_up(&mut self, server: usize) {
        let of = self.server_at_mut(server);
        of.down = false;
        if !std::mem::take(&mut of.stranger) {
            return;
        }
        let of_stranger = |conn: &usize| self.conns[*conn].stranger && self.conns[*conn].to == server;
        for conn in (0..self.conns.len()).filter(of_stranger).collect::<Vec<_>>() {
            self.conns[conn].server = false;
            let notice = self.rng.u64(0..20 * MS);
            self.after(notice, Event::ResetSeen { conn });
        }
    }

    /// Takes the copy that a replica of a server has, which replaces the server a little later. What the server does meanwhile
    /// is lost, and only owners that renew show that.
    fn replace_later(&mut self, server: usize) {
        if self.cluster.replica.is_some() || self.is_after_loss() {
            return;
        }
        let slots = self.cluster.slots.iter().enumerate();
        let copied = slots.filter(|(_, slot)| slot.server == server && slot.half.is_none());
        let ledgers = copied.map(|(hash, slot)| (hash, slot.ledger.clone())).collect();
        self.cluster.replica = Some(LaggingCopy { server, ledgers });
        self.note(None, None, || {
            format!("the replica of server {server} stops to follow")
        });
        let behind = [0, 50, 500][self.cluster.rng.usize(0..3)] * MS;
        let behind = self.cluster.rng.u64(0..=behind);
        self.extend_fault(self.now + behind);
        self.after(behind, Event::MemberReplaced);
    }

    /// A lagging copy replaces a server. Nothing is promised of the leases that the server had granted.
    pub(crate) fn replace_member(&mut self) {
        let Some(LaggingCopy { server, ledgers }) = self.cluster.replica.take() else {
            return;
        };
        if self.draining {
            return;
        }
        self.cover(Case::MemberReplaced);
        self.note(None, None, || format!("a replica replaces server {server}"));
        for (hash, copy) in ledgers {
            let slot = &mut self.cluster.slots[hash];
            if slot.server == server && slot.half.is_none() {
                slot.ledger = copy;
            }
        }
        self.memory.exempt_grants.extend(self.memory.granted.values());
        self.memory.exempt_up_to = self.memory.highest;
        self.visit(server, |world| world.restart(false));
        self.note_loss();
    }

    /// Moves a slot at once.
    fn move_at_once(&mut self, hash: usize, target: usize) {
        if self.cluster.slots[hash].half.is_some() {
            return;
        }
        self.cover(Case::SlotMoved);
        self.settle(hash, SETTLE_AFTER_MOVE);
        if self.in_fault_period() && self.cluster.rng.u8(0..4) == 0 {
            let until = self.now + self.cluster.rng.u64(0..300 * MS);
            self.cluster.slots[hash].unserved_until = until;
        }
        self.arrive_at(hash, target);
    }

    /// A slot is at another server from now on.
    fn arrive_at(&mut self, hash: usize, target: usize) {
        self.note(None, None, || format!("slot {hash} moves to server {target}"));
        let slot = &mut self.cluster.slots[hash];
        let from = std::mem::replace(&mut slot.server, target);
        self.cluster.epoch += 1;
        slot.left.insert(from);
        let has_returned = slot.left.contains(&target);
        if self.setup.plant().is(Flaw::ClockLeftBehind) {
            slot.ledger.set_last(GrantNumber::default());
        }
        if has_returned {
            self.cover(Case::SlotReturned);
        }
    }

    /// Notes that callers may notice a move.
    fn settle(&mut self, hash: usize, lasts: u64) {
        let until = self.now + lasts;
        let slot = &mut self.cluster.slots[hash];
        slot.settles_at = slot.settles_at.max(until);
        if self.in_fault_period() {
            self.extend_fault(self.now);
        }
    }

    /// Begins to move a slot in steps.
    fn begin_move(&mut self, hash: usize, target: usize) {
        // What is not about leases waits until the move ends, and the laws of a calm do not know of moves.
        let has_locks_only = self.keys.len() == self.locks;
        let may_move = self.in_fault_period() || self.profile.fault_period.1 == 0 && has_locks_only;
        if self.cluster.slots[hash].half.is_some() || !may_move {
            return;
        }
        self.cover(Case::SlotMovedInSteps);
        let longest = self.profile.longest().as_millis() as u64;
        let most = [50, longest / 3, 3 * longest][self.cluster.rng.usize(0..3)] * MS;
        let lasts = self.cluster.rng.u64(MS..=most);
        self.note(None, None, || {
            format!(
                "slot {hash} begins to move to server {target}, for {} ms",
                lasts / MS
            )
        });
        self.settle(hash, lasts + SETTLE_AFTER_STEPS);
        if self.in_fault_period() {
            self.extend_fault(self.now + lasts);
        }
        let moved = std::collections::BTreeSet::new();
        self.cluster.slots[hash].half = Some(HalfMove { target, moved });
        let keys = (0..self.keys.len()).filter(|key| self.hash_slot(*key) == Some(hash));
        for key in keys.collect::<Vec<_>>() {
            let after = self.cluster.rng.u64(0..lasts);
            self.after(after, Event::RecordMoves { key });
        }
        self.after(lasts, Event::MoveEnds { hash });
    }

    /// The record of a key moves to the target.
    pub(crate) fn record_moves(&mut self, key: usize) {
        if let Some(hash) = self.hash_slot(key)
            && let Some(half) = &mut self.cluster.slots[hash].half
        {
            half.moved.insert(key);
            self.note(None, Some(key), || "the record moves".into());
        }
    }

    /// Ends the move of a slot.
    pub(crate) fn end_move(&mut self, hash: usize) {
        if let Some(half) = self.cluster.slots[hash].half.take() {
            self.arrive_at(hash, half.target);
        }
    }

    /// Ends the moves of all slots.
    pub(crate) fn end_moves(&mut self) {
        for hash in 0..self.cluster.slots.len() {
            self.end_move(hash);
            self.cluster.slots[hash].unserved_until = 0;
        }
    }

    /// Moves the wall clock of a server of a cluster forwards, within its band.
    pub(crate) fn step_clock_of_member(&mut self) {
        let band = self.cluster.clock_band();
        let step = self.cluster.rng.i64(0..band);
        let offset = (self.server.offset + step).min(band);
        self.cover(Case::ClockSmall);
        let at = self.at;
        self.note(None, None, || {
            format!("the clock of server {at} is {offset} us ahead")
        });
        self.server.offset = offset;
        self.memory.stepped_at = self.now;
        self.extend_fault(self.now);
    }
}
