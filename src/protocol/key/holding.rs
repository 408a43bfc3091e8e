//! Holding a lease: from the grant to its end, with local hand-over, shared reading and guarded writes.
//!
//! Several callers of this process may share a read lease, by one claim of their node.
//!
//! A claim that reads lets callers in until its burst is over, in the same way as an exclusive one is handed on.
//! Later callers get another claim of their node, which queues in the store behind all waiters. Callers are let in in
//! the order of the line, so no reader passes a writer of this process.

use std::time::Duration;

use crate::error::LostCause;
use crate::protocol::claim::Claim;
use crate::protocol::claim::answers::{AfterLoss, Granted, Loss};
use crate::protocol::claim::held_lease::{HeldLease, Holders, LocalHolder};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{ClaimNumber, Mode, Name};
use crate::protocol::step::{Effect, KeyEvent, Outcome, Ticket};
use crate::protocol::time::Instant;
use crate::protocol::write::Precondition;

impl KeyState {
    /// Starts a grant: the caller of the claim holds the lease. The claim is left if it has no caller, and given away if
    /// the lease does not suit the caller.
    pub(crate) fn start(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, granted: Granted) {
        let mut claimant = self.claims.claimant(number);
        let claim = &mut self.claims[number];
        let (lease, mode) = (claim.lease(), claim.terms().mode);
        let next = match claimant {
            Claimant::LineHead | Claimant::LineFollower => self.line.front().copied(),
            Claimant::Solo(caller) => Some(caller),
            Claimant::Abandoned => None,
        };
        self.taken_at = Some(cx.now);
        // The hold time of a writer that became a reader continues. Its `max_hold` does not start again.
        let before = claim.held_as_writer().and_then(|held| Some(held.local()?.hold));
        let passed = claim.take_passed();
        self.end_passed(cx, passed);
        let claim = &mut self.claims[number];
        let Some(next) = next else {
            return self.leave(cx, number, None);
        };
        self.busy_claims = 0;
        if matches!(claimant, Claimant::LineHead | Claimant::LineFollower) {
            self.failed_claims = 0;
            claimant = Claimant::LineHead;
            self.claims_head_only = !claim.is_asked();
            // A number has one lease length and one mode for life, and the first caller wants a longer lease or
            // another mode.
            if next.lease() > lease || next.options.mode != mode {
                cx.event(KeyEvent::GrantUnsuitable);
                self.claims_head_only = true;
                self.claims.set_claimant(number, claimant);
                return self.give_way(cx, number, None);
            }
            self.line.pop();
        } else if before.is_some() && !claim.terms().is_fixed && next.options.max_hold.is_none() {
            // From now on the claim is like any other claim of the line.
            claimant = Claimant::LineHead;
        }
        let is_open = claimant == Claimant::LineHead && mode == Mode::Read;
        let mut local = LocalHolder::new(cx.now, next.ticket, &next.options, lease);
        local.hold = before.unwrap_or(local.hold);
        let holders = if is_open {
            self.readers.add(local, number, 0);
            Holders::Readers(1)
        } else {
            Holders::One(local)
        };
        let fence = claim.hold(cx.now, granted, holders);
        self.claims.set_claimant(number, claimant);
        self.last_held = number;
        cx.effects.push(Effect::Granted(next.ticket, fence));
        self.plan_renewal(cx, number);
        if is_open {
            self.open_to_readers(cx, number);
        } else if self.line.has_impatient() {
            self.deny_beside(cx, mode);
        }
    }

    /// Returns the time until which a grant that is taken up is held at least, or `None` if it is over.
    pub(crate) fn take_up(&mut self, now: Instant, ticket: Ticket) -> Option<Instant> {
        let (claim, held, _) = self.held_by(ticket)?;
        let (number, deadline) = (claim.number(), held.deadline());
        if now >= deadline {
            return None;
        }
        match held.local() {
            Some(_) => self.claims[number].take_up(),
            None => self.readers.take_up(ticket),
        }
        Some(deadline)
    }

    /// Ends the holding of one caller. The lease goes to the next caller of this process, or to other nodes, or is freed.
    pub(crate) fn give_back(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        release: Option<Ticket>,
    ) {
        let claimant = self.claims.claimant(number);
        let claim = &mut self.claims[number];
        let (lease, mode) = (claim.lease(), claim.terms().mode);
        let Some(held) = claim.held() else {
            return;
        };
        let is_shared = claimant == Claimant::LineHead || cx.shard.plant.is(Flaw::SoloHandedOn);
        let next = self.line.front().filter(|_| is_shared);
        let Some(next) = next.copied() else {
            return match claim.may_keep() {
                true => self.keep_or_leave(cx, number, release),
                false => self.leave(cx, number, release),
            };
        };
        let checks_mode = !cx.shard.plant.is(Flaw::PermitHandedToMany);
        let has_same_mode = next.options.mode == mode || matches!(mode, Mode::Permits(_)) && !checks_mode;
        let suits = next.lease() <= lease && has_same_mode;
        let may_be_written = held.may_be_written() && !cx.shard.plant.is(Flaw::HandedOnUnanswered);
        if !suits
            || may_be_written
            || held.is_asked_for()
            || !held.is_handed_on(cx.now, &cx.shard.rules, lease)
        {
            return self.give_way(cx, number, release);
        }
        self.line.pop();
        let local = LocalHolder::new(cx.now, next.ticket, &next.options, lease);
        let Some(fence) = claim.hand_on(local) else {
            return;
        };
        self.taken_at = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        if let Some(ticket) = release {
            cx.released(ticket, Outcome::Held);
        }
        // The previous holder may have been overdue, or the next one may have a `max_hold`.
        let claim = &self.claims[number];
        if claim.is_idle() && (!claim.has_next_request() || next.options.max_hold.is_some()) {
            self.plan_renewal(cx, number);
        }
    }

    /// Begins a write of a holder: counts the write, and returns what it is checked against and the length of the
    /// lease. Returns `None` if the lease is over. Until the write has [ended](Self::write_ended) the lease is not
    /// handed on in this process.
    pub(crate) fn begin_write(
        &mut self,
        name: &Name,
        ticket: Ticket,
        now: Instant,
        plant: Plant,
    ) -> Option<(Precondition, Duration)> {
        let (claim, held, _) = self
            .held_by(ticket)
            .filter(|(_, held, _)| now < held.deadline())?;
        let precondition = Precondition {
            name: name.clone(),
            claim_id: claim.id(),
            mode: claim.terms().mode,
            number: held.number(),
        };
        let lease = claim.lease();
        if !plant.is(Flaw::UncountedWrite) {
            self.holder_under(&precondition)?.begin_write();
        }
        Some((precondition, lease))
    }

    /// Handles a write under this lease that was answered, or will never be sent. If it was refused, the lease is over. Its
    /// record may still be there, if an operator revoked it.
    pub(crate) fn write_ended(&mut self, cx: &mut StepContext<'_>, lease: &Precondition, is_refused: bool) {
        match self.holder_under(lease) {
            Some(_) if is_refused => self.lose_until_dropped(cx, lease.claim_id.claim, LostCause::Gone),
            Some(claim) => claim.end_write(),
            None => {}
        }
    }

    /// Returns the claim that holds this lease under its grant.
    pub(crate) fn holder_under(&mut self, lease: &Precondition) -> Option<&mut Claim> {
        let claim = self.claims.get_mut(lease.claim_id.claim)?;
        (claim.id() == lease.claim_id && claim.holds_under(lease.number)).then_some(claim)
    }

    /// Ends local hand-over: yields the lease, or leaves it if it is for permits. With permits, the waiting callers
    /// already have a claim in the store's queue.
    pub(crate) fn give_way(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        release: Option<Ticket>,
    ) {
        match self.claims[number].terms().mode {
            Mode::Exclusive | Mode::Read => self.yield_(cx, number, release),
            Mode::Permits(_) => self.leave(cx, number, release),
        }
    }

    /// Ends a holding that its caller did not end. The holder is told first. The claim is then left, because a
    /// renewal whose answer was lost may have extended the record.
    pub(crate) fn lost(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, loss: &Loss) {
        if loss.after == AfterLoss::LeaveWhenDropped {
            return self.lose_until_dropped(cx, number, loss.cause);
        }
        self.report_lost(cx, number, loss.cause);
        if loss.after == AfterLoss::End {
            self.end_number(cx, number);
        } else {
            self.leave(cx, number, None);
        }
    }

    /// Tells the holder, or all readers, that the lease is lost.
    pub(crate) fn report_lost(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, cause: LostCause) {
        match self.claims[number].held().map(HeldLease::local) {
            Some(Some(local)) => {
                let cause = cause.seen_by(local.unfetched.is_none());
                cx.effects.push(Effect::Lost(local.ticket, cause));
            }
            Some(None) => self.lose_readers(cx, number, cause),
            None => {}
        }
    }

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
        let local = LocalHolder::new(cx.now, next.ticket, &next.options, lease);
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
            let released = release.map(|ticket| Effect::Released(ticket, Outcome::Held));
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
        let readers = self.readers.by_claim(number);
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
        for reader in self.readers.by_claim_mut(number) {
            let held = cx.now.since(reader.local.hold.since);
            if held >= long && !reader.local.hold.is_reported {
                reader.local.hold.is_reported = true;
                cx.effects.push(Effect::Event(KeyEvent::HeldLong { held }));
            }
        }
    }
}
