//! Latches in the store: how a latch is set and counted down, and how waiters learn that it is at zero.
//!
//! A latch is set once per name and life. Each life has a **generation**, a number of the store's clock. A count-down
//! counts once in a generation, by the id of its call. It never counts in a generation that was set after the call:
//! see [`CallTime`].
//!
//! # The way of one latch
//!
//! A latch has no owner.
//!
//! 1. Each operation is a call (`primitives/latch.rs` `ask`).
//! 2. The ledger executes the call (`protocol/ledger/latch.rs` `ask_latch`, `set_count`, `count_down`). On Redis:
//!    `store/redis/lua/latch.lua`.
//! 3. A count-down has an id and counts once. If the latch was set again after the call, the count-down has no effect on the new
//!    generation (`protocol/ledger/latch.rs` `refuse_count_down`).
//! 4. The session adds the time of the call, in server time (`protocol/session/mod.rs` `set_call_times`, `protocol/session/server_clock.rs` `at`).
//!    A repeated request says that an earlier one may have been executed (`protocol/message/call.rs` `repeated`).
//! 5. A caller that waits *watches* the key. All callers of the process that ask the same share one call
//!    (`protocol/call/watch.rs` `watch_or_new`). The code that watches a key does not know what a latch is.
//! 6. While the store has no news, the call is repeated after a third of a lease (`protocol/call/watch.rs` `note_no_news`). The callers
//!    wait through an outage of the store (`protocol/call/calls.rs` `failed`).
//! 7. The store remembers for one lease that the node watches the key. When there is news, it pushes to the node
//!    (`protocol/ledger/watchers.rs` `watch`, `tell_watchers`).
//! 8. The push only makes the node repeat the call at once (`driver/inbox.rs` `key_input`). Nothing depends on the push.

use std::collections::HashMap;
use std::sync::Arc;

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::LatchRecord;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{Call, CallAnswer, CallReply, CallTime, LatchReport, Request, Version};

/// The id of a call.
type CallId = Arc<[u8]>;

impl Transaction<'_> {
    /// Answers a call about a latch.
    pub(crate) fn ask_latch(&mut self, request: &Request, call: Call) -> CallReply {
        let now = self.now();
        self.state.latch.take_if(|latch| now > latch.expires);
        let id = request
            .data
            .as_ref()
            .map_or_else(|| CallId::from([]), |id| id.0.clone());
        CallReply::Answer(CallAnswer::Latch(match call {
            Call::SetCount { count, life_ms } => self.set_count(id, count, life_ms),
            Call::CountDown { called } => self.count_down(id, called),
            Call::Zero { of } => match self.check_zero(of) {
                Ok(report) => report,
                Err(generation) => {
                    self.watch(request);
                    return CallReply::Watching(generation);
                }
            },
            _ => self
                .state
                .latch
                .as_ref()
                .map_or(LatchReport::Unset, |latch| LatchReport::Left(latch.left)),
        }))
    }

    /// Sets the latch if it is not set. A latch at zero stays at zero until its life ends, so a restarted worker does
    /// not set it again.
    fn set_count(&mut self, id: CallId, count: u32, life_ms: u64) -> LatchReport {
        let sets_again = self.plant.is(Flaw::LatchSetAgain);
        if let Some(latch) = self.state.latch.as_ref().filter(|l| l.left > 0 || !sets_again) {
            if latch.setter == id {
                self.branches.note(Branch::LatchSetBefore);
                return LatchReport::Set;
            }
            if latch.left == 0 {
                self.branches.note(Branch::LatchSetOnce);
            }
            return LatchReport::Left(latch.left);
        }
        let generation = Version(self.next_number().0);
        self.state.latch = Some(Box::new(LatchRecord {
            generation,
            setter: id,
            left: count,
            counted: HashMap::new(),
            expires: self.now() + life_ms,
        }));
        LatchReport::Set
    }

    /// Counts the latch down, unless this call was counted before or is refused.
    fn count_down(&mut self, id: CallId, called: CallTime) -> LatchReport {
        let counts_again = self.plant.is(Flaw::CountedAgain);
        let Some(latch) = &self.state.latch else {
            return LatchReport::Unset;
        };
        if let Some(left) = latch.counted.get(&id).filter(|_| !counts_again) {
            self.branches.note(Branch::LatchCountedBefore);
            return LatchReport::Left(*left);
        }
        let (generation, Some(left)) = (latch.generation, latch.left.checked_sub(1)) else {
            return LatchReport::Left(0);
        };
        if let Some(refused) = self.refuse_count_down(generation, called) {
            return refused;
        }
        if let Some(latch) = &mut self.state.latch {
            latch.left = left;
            latch.counted.insert(id, left);
        }
        if left == 0 {
            self.tell_watchers();
        }
        LatchReport::Left(left)
    }

    /// Returns why a count-down does nothing in the present generation, or `None` if it counts.
    fn refuse_count_down(&mut self, generation: Version, called: CallTime) -> Option<LatchReport> {
        let (report, branch) = match called.of {
            _ if self.plant.is(Flaw::CountedLate) => return None,
            Some(of) if of == generation => return None,
            None if generation.0 <= called.since => return None,
            None if !called.repeats => (LatchReport::SetMeanwhile(generation), Branch::LatchSetMeanwhile),
            // A generation ahead of the clock was set before the clock was set back, so the two do not compare.
            None if generation.0 <= called.until || generation.0 > self.now_us => {
                (LatchReport::Uncertain, Branch::LatchUncertain)
            }
            _ => (LatchReport::Over, Branch::LatchOver),
        };
        self.branches.note(branch);
        Some(report)
    }

    /// Returns the report if the latch is at zero or unset, or else the generation to watch. `of` names a generation;
    /// `None` means the present one.
    fn check_zero(&mut self, of: Option<Version>) -> Result<LatchReport, Version> {
        let Some(latch) = &self.state.latch else {
            return Ok(LatchReport::Unset);
        };
        if of.is_some_and(|of| of != latch.generation) {
            self.branches.note(Branch::LatchLost);
            return Ok(LatchReport::Unset);
        }
        match latch.left {
            0 => Ok(LatchReport::Left(0)),
            _ => Err(latch.generation),
        }
    }
}
