//! Laws of leases that are kept without a holder.

use std::time::Duration;

use tenure::protocol::ledger::{Record, RecordOwner};

use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Checks that a key is kept only while another claim would be noticed, and before its lease would be renewed.
    pub(crate) fn check_kept(&mut self, key: usize) {
        let us = self.server_us();
        let record = self.server.ledger.record(&self.keys[key], us).cloned();
        let is_lost = self.is_after_loss();
        let now = self.now;
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| node.alive);
        let kept = nodes.filter_map(|(slot, node)| Some((slot, node, node.shard.kept(&self.keys[key])?)));
        let found = kept.into_iter().find_map(|(slot, node, kept)| {
            let is_its =
                |record: &&Record| matches!(record.owner, RecordOwner::Claim(of, _) if of == kept.claim_id);
            let is_marked = record
                .as_ref()
                .filter(is_its)
                .is_none_or(|record| record.may_keep);
            let left = kept.deadline.since(node.clock.local(now));
            // A lease whose keep has ended is left by the next step, before anything else. A node that stood still, or whose
            // driver is late, has not taken it yet.
            let is_over = kept.until <= node.clock.local(now);
            let is_due = !is_over && left + Duration::from_millis(1) < kept.lease / 3 * 2;
            let why = if self.memory.recalled.contains(&kept.claim_id) {
                "it was recalled"
            } else if !kept.is_told {
                "no recall would arrive"
            } else if !is_marked && !is_lost {
                "its record has no mark"
            } else if is_due {
                "its renewal was due"
            } else {
                return None;
            };
            Some(format!(
                "node {slot} keeps {}, but {why}: {record:?}",
                kept.claim_id.claim
            ))
        });
        if let Some(text) = found {
            self.report(Violation::KeptTooLong, Some(key), || text);
        }
    }

    /// Returns whether a node keeps the lease of the record.
    pub(crate) fn is_kept(&self, key: usize) -> bool {
        let mut alive = self
            .nodes
            .iter()
            .filter(|node| node.alive && node.paused.is_none());
        alive.any(|node| node.shard.kept(&self.keys[key]).is_some())
    }
}
