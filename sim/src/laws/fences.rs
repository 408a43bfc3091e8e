//! Laws of fences: they grow, and later holders exclude earlier writes.

use tenure::protocol::message::{Fence, Mode};

use crate::violation::Wrong;
use crate::world::World;
use crate::world::write::Writer;

impl World {
    pub(crate) fn watch_fence(&mut self, slot: usize, key: usize, mode: Mode, fence: Fence) {
        let exempt = self.is_exempt(fence);
        let before = match mode {
            Mode::Read | Mode::Permits(_) => self.watch.written[key],
            _ => self.watch.highest_fences[key],
        };
        if let (Some(before), false) = (before, exempt)
            && fence <= before
        {
            self.wrong(Wrong::Fence, Some(key), || {
                format!("node {slot} got fence {fence} after {before}")
            });
        }
        if exempt {
            return;
        }
        // The order of readers among themselves has no meaning.
        self.watch.highest_fences[key] = self.watch.highest_fences[key].max(Some(fence));
        if mode == Mode::Exclusive {
            self.watch.written[key] = Some(fence);
        }
    }

    /// Checks that no write is executed after a later holder was granted its key.
    pub(crate) fn watch_write(&mut self, write: Writer, mode: Mode) {
        // Readers share the key.
        if mode != Mode::Exclusive || self.is_exempt(write.fence) {
            return;
        }
        if let Some(later) = self
            .watch
            .highest_fence(write.key)
            .filter(|later| *later > write.fence)
        {
            self.wrong(Wrong::WriteOrder, Some(write.key), || {
                format!(
                    "what was written under {} is done after {later} was granted",
                    write.fence
                )
            });
        }
    }
}
