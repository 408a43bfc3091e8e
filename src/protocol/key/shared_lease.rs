//! A read lease that several callers of this process share, by one claim of their node.
//!
//! A claim that reads lets callers in until its burst is over, in the same way as an exclusive one is handed on.
//! Later callers get another claim of their node, which queues in the store behind all waiters. Callers are let in in
//! the order of the line, so no reader passes a writer of this process.

use crate::error::LostCause;
use crate::protocol::claim::held_lease::{HeldLease, LocalHolder};
use crate::protocol::context::StepContext;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{ClaimNumber, Mode};
use crate::protocol::step::{Effect, KeyEvent, Outcome, Ticket};

impl KeyState {
    /// Lets in the readers at the head of the line, by the claim that is open to them.
    pub(crate) fn let_readers_in(&mut self, cx: &mut StepContext<'_>) {
        while self.line.mode() == Some(Mode::Read)
            && let Some(number) = self.open_claim
        {
            if self.let_reader_in(cx, number).is_none() {
                return;
            }
        }
    }

    /// Lets in the first caller of the line. Returns `None` if this claim does not let it in.
    fn let_reader_in(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Option<()> {
        let next = *self.line.front()?;
        let claim = self.claims.get_mut(number)?;
        let lease = claim.lease();
        let held = claim.held().filter(|held| held.local().is_none())?;
        if !held.is_handed_on(cx.now, &cx.shard.rules, lease) {
            self.open_claim = None;
            return None;
        }
        if next.lease() > lease {
            return None;
        }
        let (index, fence) = claim.let_reader_in()?;
        self.line.pop();
        let local = LocalHolder::new(cx.now, next.ticket, next.options.max_hold, lease);
        self.readers.add(local, number, index);
        self.taken_at = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        Some(())
    }

    /// Opens a granted claim to further readers, after the first of the line reads by it. Callers that do not wait
    /// and cannot read now are denied.
    pub(crate) fn open_to_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        self.open_claim = Some(number);
        self.let_readers_in(cx);
        if self.line.has_impatient() {
            self.deny_impatient(cx, true);
            self.let_readers_in(cx);
        }
    }

    /// Denies the callers that do not wait and cannot hold beside a claim of this mode, which was granted to one
    /// caller.
    pub(crate) fn deny_beside(&mut self, cx: &mut StepContext<'_>, mode: Mode) {
        match mode {
            Mode::Exclusive => self.deny_impatient(cx, false),
            Mode::Read => self.deny_impatient(cx, true),
            Mode::Permits(_) => {}
        }
    }

    /// Denies the callers that do not wait, after a claim of this mode was not granted. Readers are spared if a
    /// writer was not granted, because readers may still be let in.
    pub(crate) fn deny_behind(&mut self, cx: &mut StepContext<'_>, mode: Mode) {
        if self.line.has_impatient() {
            self.deny_impatient(cx, mode == Mode::Exclusive);
        }
    }

    /// Denies the callers that do not wait. `spares_readers`: except for readers in front of every waiting writer.
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

    /// Ends the holding of a reader. The last reader of a claim gives the lease back.
    pub(crate) fn leave_share(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, release: Option<Ticket>) {
        let Some(reader) = self.readers.remove(ticket) else {
            return;
        };
        let claim = &mut self.claims[reader.claim];
        if claim.let_reader_out().is_some_and(|left| left > 0) {
            // A write of this reader may be executed late. It would pass for a write of a reader that is let in
            // later.
            if claim.held().is_some_and(HeldLease::may_be_written) {
                self.close_to_readers(reader.claim);
            }
            let released = release.map(|ticket| Effect::Released(ticket, Outcome::Kept));
            return cx.effects.extend(released);
        }
        self.close_to_readers(reader.claim);
        self.leave(cx, reader.claim, release);
    }

    /// Lets no further reader in by this claim.
    pub(crate) fn close_to_readers(&mut self, number: ClaimNumber) {
        self.open_claim = self.open_claim.filter(|open| *open != number);
    }

    /// Reports the loss to all readers of a claim.
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

    /// Gives back the grants that readers did not take up for a whole lease.
    pub(crate) fn give_back_unfetched(&mut self, cx: &mut StepContext<'_>) {
        while let Some(ticket) = self.readers.overdue(cx.now) {
            cx.effects.push(Effect::Lost(ticket, LostCause::Unfetched));
            self.leave_share(cx, ticket, None);
        }
    }

    /// Reports readers that have held for longer than is usual, once each.
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
