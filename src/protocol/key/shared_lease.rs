//! Readers of one process behind one claim of their node.
//!
//! A claim that reads lets callers in until the burst is over, as an exclusive one is handed on; whoever comes later has a
//! claim of their own node's again, behind whoever waits in the store. The line is in order, so nobody is let in past a
//! writer of this process.

use crate::error::LostCause;
use crate::protocol::flaw::Plant;
use crate::protocol::key::claim::{HeldLease, Holders, LocalHolder, Phase};
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{ClaimNumber, Fence, Mode};
use crate::protocol::step::{Effect, KeyEvent, Outcome, Ticket};

impl<P: Plant> KeyState<P> {
    /// Lets readers in that are first in the line, by the claim that is open to them.
    pub(crate) fn let_readers_in(&mut self, cx: &mut StepContext<'_>) {
        while self.line.mode() == Some(Mode::Read)
            && let Some(number) = self.open_claim
        {
            if self.let_reader_in(cx, number).is_none() {
                return;
            }
        }
    }

    /// The first of the line. `None` when it is not let in by this claim.
    fn let_reader_in(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Option<()> {
        let next = *self.line.front()?;
        let rules = cx.shard.rules;
        let claim = self.claims.get_mut(number)?;
        let lease = claim.lease();
        let Phase::Held(HeldLease {
            number: grant,
            deadline,
            holders: Holders::Readers(count),
            index,
            since,
            ..
        }) = &mut claim.phase
        else {
            return None;
        };
        let in_burst = *index < u64::from(rules.burst) && cx.now.since(*since) < rules.burst_time;
        // With less than a third left the renewals are failing, as for whoever is handed an exclusive one.
        if !in_burst || deadline.since(cx.now) < lease / 3 {
            self.open_claim = None;
            return None;
        }
        if next.lease() > lease {
            return None;
        }
        *index += 1;
        *count += 1;
        let (index, fence) = (*index, Fence::new(*grant, *index));
        self.line.pop();
        let local = LocalHolder::new(cx.now, next.ticket, next.options, lease);
        self.readers.add(local, number, index);
        self.taken_at = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        Some(())
    }

    /// A claim that reads was granted, and the first of the line reads by it: so may others. Whoever would not wait and
    /// cannot read now hears of it.
    pub(crate) fn open_to_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        self.open_claim = Some(number);
        self.let_readers_in(cx);
        if self.line.has_impatient() {
            self.deny_impatient(cx, true);
            self.let_readers_in(cx);
        }
    }

    /// A claim of this mode was granted to one caller: the callers that would not wait and cannot hold beside it are told.
    pub(crate) fn deny_beside(&mut self, cx: &mut StepContext<'_>, mode: Mode) {
        match mode {
            Mode::Exclusive => self.deny_impatient(cx, false),
            Mode::Read => self.deny_impatient(cx, true),
            Mode::Permits(_) => {}
        }
    }

    /// A claim of this mode was not granted: the callers that would not wait are told. A writer that has to wait says nothing of
    /// whether readers have to.
    pub(crate) fn deny_behind(&mut self, cx: &mut StepContext<'_>, mode: Mode) {
        if self.line.has_impatient() {
            self.deny_impatient(cx, mode == Mode::Exclusive);
        }
    }

    /// Denies the callers that would not wait. `spares_readers`: except readers that no writer waits before.
    fn deny_impatient(&mut self, cx: &mut StepContext<'_>, spares_readers: bool) {
        let mut is_spared = spares_readers;
        self.line.retain(
            |caller| {
                let is_writer = caller.options.mode == Mode::Exclusive;
                is_spared &= !(is_writer && caller.options.wait);
                caller.options.wait || is_spared && !is_writer
            },
            |caller| cx.deny(caller.ticket, caller.options.busy()),
        );
    }

    /// A reader is done. The last of a claim gives it back.
    pub(crate) fn leave_share(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, release: Option<Ticket>) {
        let Some(reader) = self.readers.remove(ticket) else {
            return;
        };
        if let Phase::Held(HeldLease {
            holders: Holders::Readers(count),
            writes,
            ..
        }) = &mut self.claims[reader.claim].phase
        {
            *count -= 1;
            // What this one wrote may still be done, and would pass for that of who is let in after it.
            let may_be_written = *writes > 0;
            if *count > 0 {
                if may_be_written {
                    self.close_to_readers(reader.claim);
                }
                let told = release.map(|ticket| Effect::Released(ticket, Outcome::Kept));
                return cx.effects.extend(told);
            }
        }
        self.close_to_readers(reader.claim);
        self.leave(cx, reader.claim, release);
    }

    /// Nobody else is let in by this claim.
    pub(crate) fn close_to_readers(&mut self, number: ClaimNumber) {
        self.open_claim = self.open_claim.filter(|open| *open != number);
    }

    /// All readers of a claim have lost it.
    pub(crate) fn lose_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, cause: LostCause) {
        self.close_to_readers(number);
        let readers = self.readers.of(number);
        let readers: Vec<_> = readers
            .map(|(ticket, reader)| (ticket, reader.is_taken_up()))
            .collect();
        for (ticket, is_taken_up) in readers {
            self.readers.remove(ticket);
            cx.effects.push(Effect::Lost(ticket, cause.seen_by(is_taken_up)));
        }
    }

    /// Who was let in to read and did not take it up for a whole lease.
    pub(crate) fn give_back_unfetched(&mut self, cx: &mut StepContext<'_>) {
        while let Some(ticket) = self.readers.overdue(cx.now) {
            cx.effects.push(Effect::Lost(ticket, LostCause::Unfetched));
            self.leave_share(cx, ticket, None);
        }
    }

    /// Readers that have held for longer than is usual are told of, once.
    pub(crate) fn note_long_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let long = cx.shard.rules.long_hold;
        for reader in self.readers.of_mut(number) {
            let held = cx.now.since(reader.local.hold.since);
            if held >= long && !reader.local.hold.is_reported {
                reader.local.hold.is_reported = true;
                cx.effects.push(Effect::Event(KeyEvent::HeldLong { held }));
            }
        }
    }
}
