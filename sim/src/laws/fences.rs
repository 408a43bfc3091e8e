//! Laws of fences: they grow, and later holders exclude earlier writes.

use tenure::protocol::message::{Fence, Mode};

use crate::violation::Violation;
use crate::world::World;
use crate::world::write::WriteLease;

impl World {
    /// Checks that a fence exceeds the earlier ones of its key.
    pub(crate) fn watch_fence(&mut self, slot: usize, key: usize, mode: Mode, fence: Fence) {
        let exempt = self.is_exempt_fence(fence);
        let before = match mode {
            Mode::Read | Mode::Permits(_) => self.memory.written[key],
            _ => self.memory.highest_fences[key],
        };
        // A lease that was passed on or yielded at the successor of a master may have a larger fence than a later lease of the
        // former master.
        let is_of_former =
            self.profile.failover_lag.is_some() && self.is_after_loss() && self.may_be_lost(fence.number());
        if let (Some(before), false) = (before, exempt || is_of_former)
            && fence <= before
        {
            self.report(Violation::FenceOrder, Some(key), || {
                format!("node {slot} got fence {fence} after {before}")
            });
        }
        if exempt {
            return;
        }
        // The order of readers among themselves has no meaning.
        self.memory.highest_fences[key] = self.memory.highest_fences[key].max(Some(fence));
        if mode == Mode::Exclusive {
            self.memory.written[key] = Some(fence);
        }
    }

    /// Checks that no write is executed after a later holder was granted its key.
    pub(crate) fn watch_write(&mut self, write: WriteLease, mode: Mode) {
        // Readers share the key.
        if mode != Mode::Exclusive || self.is_exempt_fence(write.fence) {
            return;
        }
        if let Some(later) = self
            .memory
            .highest_fence(write.key)
            .filter(|later| *later > write.fence)
        {
            self.report(Violation::WriteOrder, Some(write.key), || {
                format!(
                    "a write under {} is executed after {later} was granted",
                    write.fence
                )
            });
        }
    }
}
