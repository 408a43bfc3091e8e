//! Laws of exclusion: leases that exclude each other are never held at one instant.

use std::collections::HashSet;
use std::time::Duration;

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{Fence, Mode};

use crate::coverage::Case;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerState, PERMITS};
use crate::world::records::weight;

/// Returns whether both modes may be held at one instant.
pub(crate) fn may_share(one: Mode, other: Mode) -> bool {
    matches!(
        (one, other),
        (Mode::Read, Mode::Read) | (Mode::Permits(_), Mode::Permits(_))
    )
}

impl World {
    /// Checks that each guard that answers *held* is alone and matches the server's record. The guards of a
    /// stopped process count: they are asked as of now, by its own clock.
    pub(crate) fn check_key(&mut self, key: usize) {
        self.with_key(key, |world| {
            world.check_key_at_hand(key);
            world.check_kept(key);
        });
    }

    fn check_key_at_hand(&mut self, key: usize) {
        let us = self.server_us();
        let longest = self.profile.longest();
        let is_lost = self.is_after_loss();
        let record = self.server.ledger.record(&self.keys[key], us);
        let votes = self.is_quorum().then(|| self.votes(key));
        let mut first: Option<(usize, Fence, Mode)> = None;
        let mut several = false;
        let mut in_use = 0;
        let mut sharers = HashSet::new();
        let mut found = None;
        for (slot, node) in self.nodes.iter_mut().enumerate() {
            if !node.alive {
                continue;
            }
            let local = node.clock.local(self.now);
            // A node has more than one holder only if a foreign client deleted the record of the first.
            let mut holds = Vec::new();
            for (ticket, holding) in node.shard.holders(local, &self.keys[key]) {
                let (claim, fence) = (holding.claim, holding.fence);
                let caller = ticket.0 as usize - 1;
                holds.push(caller);
                let asked = &node.callers[caller];
                if asked.was_lost {
                    found = Some((
                        Violation::LostLeaseRevived,
                        format!("ticket {} of node {slot} holds again", ticket.0),
                    ));
                } else if asked.state != CallerState::Holding {
                    let text = format!(
                        "ticket {} of node {slot} is in state {:?} and holds",
                        ticket.0, asked.state
                    );
                    found = Some((Violation::WrongAnswer, text));
                }
                // The node may hold a longer lease than the caller asked for. A renewal may be in flight at
                // the end of its time, and may have been queued before that.
                let longest = asked.options.max_hold.map(|most| most + 2 * longest);
                let fixed = asked
                    .options
                    .fixed
                    .then(|| Duration::from_millis(asked.options.term.lease_ms));
                let longest = fixed.or(longest);
                if let (Some(longest), Some(since)) = (longest, asked.since)
                    && local > since + longest
                {
                    found = Some((
                        Violation::HeldTooLong,
                        format!("ticket {} of node {slot} is held since {since:?}", ticket.0),
                    ));
                }
                if self.memory.exempt_grants.contains(&fence.number()) {
                    continue;
                }
                let mode = asked.options.mode;
                let earlier = first.replace((slot, fence, mode));
                several |= earlier.is_some_and(|(_, before, _)| before.number() == fence.number());
                if let Some((other, before, earlier)) = earlier
                    && !may_share(mode, earlier)
                {
                    let text = format!(
                        "node {other} holds it by grant {} and node {slot} by grant {}",
                        before.number(),
                        fence.number()
                    );
                    found = Some((Violation::TwoHolders, text));
                    break;
                }
                in_use += weight(mode);
                sharers.insert(slot);
                if in_use > PERMITS {
                    let text = format!("{in_use} of {PERMITS} permits are held, the latest by node {slot}");
                    found = Some((Violation::TooManyPermits, text));
                    break;
                }
                let backed = record.is_some_and(|record| match record.owner {
                    // A revoked lease excludes others as long as its holder may believe that it holds it.
                    RecordOwner::Claim(claim_id, number) | RecordOwner::Revoked(claim_id, number) => {
                        claim_id == claim && number == fence.number()
                    }
                    _ => false,
                });
                let mut shares = self.server.ledger.shares(&self.keys[key], us);
                let backed = backed
                    || mode != Mode::Exclusive
                        && shares.any(|share| share.claim_id == claim && share.number == fence.number());
                let backed = votes.as_ref().map_or(backed, |votes| votes.are_enough(claim));
                if !backed && !is_lost && found.is_none() && self.setup.only != Some(Violation::TwoHolders) {
                    let text = format!(
                        "node {slot} holds by grant {}, the record is {record:?}",
                        fence.number()
                    );
                    found = Some((Violation::RecordOfAnother, text));
                }
            }
            for caller in &node.live {
                let asked = &mut node.callers[*caller];
                if asked.key == key && asked.state == CallerState::Holding && !holds.contains(caller) {
                    asked.was_lost = true;
                }
            }
        }
        if several {
            self.cover(Case::ReadersOfANode);
        }
        if in_use > 0 && sharers.len() > 1 {
            self.cover(Case::SharesOfNodes);
        }
        if let Some((violation, text)) = found {
            self.report(violation, Some(key), || text);
        }
    }

    /// Checks the guards of all keys.
    pub(crate) fn check_all(&mut self) {
        for key in 0..self.keys.len() {
            self.check_key(key);
        }
    }

    /// Checks that a lease of a caller's own was never shared with a caller before or after it.
    pub(crate) fn watch_solo(&mut self, slot: usize, caller: usize, fence: Fence) {
        if fence.is_first() {
            return;
        }
        let (before, rest) = self.nodes[slot].callers.split_at(caller);
        let (of, others) = (&rest[0], before.iter().chain(&rest[1..]));
        let mut sharers = others.filter(|other| other.claim.is_some() && other.claim == of.claim);
        let is_own = |of: &Caller| of.options.fixed || of.options.solo;
        if is_own(of) || sharers.any(is_own) {
            let key = of.key;
            self.report(Violation::SoloLeaseShared, Some(key), || {
                format!(
                    "ticket {} of node {slot} got the own lease of another caller",
                    caller + 1
                )
            });
        }
    }
}
