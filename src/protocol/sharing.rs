//! Readers of one process behind one claim of their node, and a writer that becomes a reader.
//!
//! A claim that reads lets callers in until the burst is over, as an exclusive one is handed on; whoever comes later has a
//! claim of their own node's again, behind whoever waits in the store. The line is in order, so nobody is let in past a
//! writer of this process.

use crate::error::LostCause;
use crate::protocol::claim::{Claim, ClaimKind, Claimant, Held, Holders, Phase, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Plant;
use crate::protocol::key_state::KeyState;
use crate::protocol::line::Caller;
use crate::protocol::message::{ClaimNumber, Fence, Mode};
use crate::protocol::step::{AcquireError, AcquireOptions, Effect, KeyEvent, Outcome, Ticket};

impl<P: Plant> KeyState<P> {
    /// Lets readers in that are first in the line, by the claim that is open to them.
    pub(crate) fn let_readers_in(&mut self, cx: &mut StepContext<'_>) {
        while self.line.mode() == Some(Mode::Read)
            && let Some(number) = self.open
        {
            if self.let_reader_in(cx, number).is_none() {
                return;
            }
        }
    }

    /// The first of the line. `None` when it is not let in by this claim.
    fn let_reader_in(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Option<()> {
        let next = *self.line.front()?;
        let rules = cx.source.rules;
        let claim = self.claims.get_mut(number)?;
        let lease = claim.lease();
        let Phase::Held(Held {
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
            self.open = None;
            return None;
        }
        if next.lease() > lease {
            return None;
        }
        *index += 1;
        *count += 1;
        let (index, fence) = (*index, Fence::new(*grant, *index));
        self.line.pop();
        let unfetched = cx.now + lease;
        self.readers.add(next.ticket, (number, index), cx.now, unfetched);
        self.taken = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        Some(())
    }

    /// A claim that reads was granted, and the first of the line reads by it: so may others. Whoever would not wait and
    /// cannot read now hears of it.
    pub(crate) fn open_to_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        self.open = Some(number);
        self.let_readers_in(cx);
        if self.line.has_impatient() {
            self.deny_writers(cx);
            self.let_readers_in(cx);
        }
    }

    /// Somebody has the key whom readers may join: whoever would not wait and is no reader hears of it, and who is behind a
    /// writer that waits.
    pub(crate) fn deny_writers(&mut self, cx: &mut StepContext<'_>) {
        let mut writer_waits = false;
        self.line.retain(
            |caller| {
                let is_writer = caller.options.mode == Mode::Exclusive;
                writer_waits |= is_writer && caller.options.wait;
                caller.options.wait || !is_writer && !writer_waits
            },
            |caller| {
                let why = caller.options.busy();
                cx.effects.push(Effect::Denied(caller.ticket, why));
            },
        );
    }

    /// A claim of this mode was not granted: whoever would not wait hears of it. A writer that has to wait says nothing of
    /// whether readers have to.
    pub(crate) fn deny_behind(&mut self, cx: &mut StepContext<'_>, mode: Mode) {
        match mode {
            _ if !self.line.has_impatient() => {}
            Mode::Exclusive => self.deny_writers(cx),
            Mode::Read | Mode::Permits(_) => self.deny_the_impatient(cx),
        }
    }

    /// A reader is done. The last of a claim gives it back.
    pub(crate) fn part(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, release: Option<Ticket>) {
        let Some(reader) = self.readers.remove(ticket) else {
            return;
        };
        if let Phase::Held(Held {
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
        self.open = self.open.filter(|open| *open != number);
    }

    /// All readers of a claim have lost it.
    pub(crate) fn lose_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, cause: LostCause) {
        self.close_to_readers(number);
        let tickets: Vec<Ticket> = self.readers.of(number).map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            self.readers.remove(ticket);
            cx.effects.push(Effect::Lost(ticket, cause));
        }
    }

    /// Who was let in to read and did not take it up for a whole lease.
    pub(crate) fn give_back_unfetched(&mut self, cx: &mut StepContext<'_>) {
        while let Some(ticket) = self.readers.overdue(cx.now) {
            cx.effects.push(Effect::Lost(ticket, LostCause::Unfetched));
            self.part(cx, ticket, None);
        }
    }

    /// Readers that have held for longer than is usual are told of, once.
    pub(crate) fn note_long_readers(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let long = cx.source.rules.long_hold;
        for reader in self.readers.of_mut(number) {
            let held = cx.now.since(reader.since);
            if held >= long && !reader.is_told {
                reader.is_told = true;
                cx.effects.push(Effect::Event(KeyEvent::HeldLong { held }));
            }
        }
    }

    /// A writer becomes a reader: one request, which ends the number that it wrote by.
    pub(crate) fn downgrade(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, to: Ticket) {
        let number = self.claims.of(ticket).map(|claim| claim.holder.claim);
        let is_writer = |claim: &Claim| claim.mode == Mode::Exclusive && claim.held().is_some();
        let number = number.filter(|number| is_writer(&self.claims[*number]));
        let Some(old) = number.and_then(|number| self.claims.remove(number)) else {
            return cx.effects.extend(Self::passed_too_late(ticket, to));
        };
        let caller = Caller {
            ticket: to,
            options: AcquireOptions {
                fixed: old.fixed,
                solo: false,
                max_hold: old.held().and_then(Held::local).and_then(|local| local.hold.most),
                ..AcquireOptions::of_another(old.term, Mode::Read)
            },
            entered: cx.now,
            behind: false,
            failed_claims: 0,
            was_writer: true,
        };
        let kind = ClaimKind {
            mode: Mode::Read,
            fixed: old.fixed,
            mark: None,
        };
        let holder = cx.source.holder();
        let mut claim = Claim::new(holder, Claimant::Solo(caller), old.term, kind, cx.now);
        claim.seq = old.seq;
        claim.yielded = Some(Yielded {
            from: old.holder,
            term: old.term,
            release: Some(ticket),
        });
        self.claims.insert(claim);
        self.ask(cx, holder.claim, RequestKind::Yield);
    }

    pub(crate) fn passed_too_late(ticket: Ticket, to: Ticket) -> [Effect; 2] {
        let denied = AcquireError::Lost(LostCause::Deadline);
        [Self::released_too_late(ticket), Effect::Denied(to, denied)]
    }

    /// Somebody's own claim came to nothing: it is claimed for again. A writer that would become a reader is not, as others
    /// may have written meanwhile.
    pub(crate) fn go_on_alone(&mut self, cx: &mut StepContext<'_>, caller: Caller) {
        if caller.was_writer {
            let denied = AcquireError::Lost(LostCause::Gone);
            cx.effects.push(Effect::Denied(caller.ticket, denied));
        } else {
            self.solos.insert(caller.ticket, caller);
        }
    }
}
