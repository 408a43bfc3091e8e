//! What callers do when their node answers them.

use tenure::error::LostCause;
use tenure::protocol::message::Fence;
use tenure::protocol::step::{AcquireError, CallAnswer, Outcome, TickRefusal, Ticket};
use tenure::protocol::time::Instant;

use crate::coverage::Seen;
use crate::time::MS;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::caller::{Act, Caller, Fetches, PERMITS, State};
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    pub(crate) fn granted(&mut self, slot: usize, ticket: Ticket, fence: Fence) {
        let told = if self.setup.history {
            format!("granted {}.{}", fence.number(), fence.get() & 1023)
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        let Caller { key, want, state, .. } = self.nodes[slot].callers[caller];
        if state == State::GivingUp {
            return self.raise(Signal::FenceIssued {
                slot,
                key,
                mode: want.mode,
                fence,
            });
        }
        self.nodes[slot].callers[caller].state = State::Holding;
        self.nodes[slot].callers[caller].since = self.held_since(slot, caller);
        let holding = self.holding(slot, key, ticket);
        self.nodes[slot].callers[caller].claim = holding.map(|holding| holding.claim);
        self.saw(Seen::Granted);
        if want.fixed {
            self.saw(Seen::GrantedFixed);
        }
        self.raise(Signal::FenceIssued {
            slot,
            key,
            mode: want.mode,
            fence,
        });
        self.raise(Signal::LeaseGranted { slot, caller, fence });
        self.fetch_later(slot, caller);
    }

    /// Schedules when a granted caller takes up its grant: in time, late, or never.
    pub(crate) fn fetch_later(&mut self, slot: usize, caller: usize) {
        let life = self.nodes[slot].life;
        let lease = self.nodes[slot].callers[caller].want.term.lease_ms * MS;
        let delay = match self.rng.u8(0..100) {
            0..3 => {
                self.nodes[slot].callers[caller].fetches = Fetches::Never;
                return;
            }
            3..8 => self.rng.u64(0..lease * 3 / 2),
            8..40 => self.rng.u64(0..2 * MS),
            _ => 0,
        };
        self.after(
            delay,
            Event::Caller {
                slot,
                life,
                caller,
                act: Act::Fetch,
            },
        );
    }

    /// Returns when the caller's holding began. A reader that was a writer has held the key since its grant
    /// as a writer.
    pub(crate) fn held_since(&self, slot: usize, caller: usize) -> Option<Instant> {
        let callers = &self.nodes[slot].callers;
        let before = callers[caller].before.filter(|_| !callers[caller].travels);
        before.map_or(Some(self.local(slot)), |before| callers[before].since)
    }

    /// Restores the earlier holding: the store refused to change it.
    pub(crate) fn kept(&mut self, slot: usize, caller: usize) {
        self.saw(Seen::StillHeld);
        let node = &mut self.nodes[slot];
        let Some(before) = node.callers[caller].before else {
            let key = node.callers[caller].key;
            return self.wrong(Wrong::Outcome, Some(key), || {
                format!("ticket {} held nothing, and holds it still", caller + 1)
            });
        };
        let Caller {
            want, claim, since, ..
        } = node.callers[before];
        let kept = &mut node.callers[caller];
        (kept.want, kept.claim, kept.since) = (want, claim, since);
        (kept.state, kept.travels) = (State::Holding, false);
        self.fetch_later(slot, caller);
    }

    pub(crate) fn denied(&mut self, slot: usize, ticket: Ticket, denial: &AcquireError) {
        let told = if self.setup.history {
            format!("denied: {denial:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        if self.nodes[slot].callers[caller].state == State::Writing {
            self.over(slot, caller);
            return self.write_denied(denial);
        }
        self.saw(match denial {
            AcquireError::Busy => Seen::DeniedBusy,
            AcquireError::QueueFull { .. } => Seen::DeniedFull,
            AcquireError::NodeFull => Seen::DeniedNodeFull,
            AcquireError::Store(_) | AcquireError::Unanswered(_) => Seen::DeniedStore,
            AcquireError::Tick(TickRefusal::Over) => Seen::DeniedOver,
            AcquireError::Tick(TickRefusal::Skipped) => Seen::DeniedNeverBegun,
            AcquireError::Tick(TickRefusal::Early(_)) => Seen::DeniedEarly,
            AcquireError::Tick(TickRefusal::EarlierTickDue { .. }) => Seen::DeniedBehind,
            AcquireError::Closed => Seen::DeniedClosed,
            AcquireError::Lost(_) | AcquireError::Kept(..) => Seen::DeniedLost,
        });
        let Caller {
            key,
            want,
            asks,
            state,
            ..
        } = self.nodes[slot].callers[caller];
        let may_be_busy = want.mark.is_some() && self.profile.rules.queues;
        if matches!(denial, AcquireError::Busy) && want.wait && !may_be_busy {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("ticket {} would wait and was told busy", ticket.0)
            });
        }
        let is_of_store = matches!(denial, AcquireError::Store(_) | AcquireError::Kept(..));
        if is_of_store && self.is_calm() {
            self.wrong(Wrong::DeniedInCalm, Some(key), || {
                format!("ticket {} of node {slot} was told {denial:?}", ticket.0)
            });
        }
        if matches!(denial, AcquireError::Kept(..)) && state == State::Waiting {
            return self.kept(slot, caller);
        }
        self.over(slot, caller);
        self.raise(Signal::CallerDenied { slot, caller, denial });
        self.election_denied(slot, caller, denial);
        if want.mark.is_some() && asks.is_none() {
            self.tick_denied(slot, caller, denial);
        }
    }

    /// Handles the answer to a call.
    pub(crate) fn answered(&mut self, slot: usize, ticket: Ticket, answer: &CallAnswer) {
        let told = if self.setup.history {
            format!("answered: {answer:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        self.saw(match answer {
            CallAnswer::Report(_) => Seen::Reported,
            CallAnswer::InUse(_) => Seen::InUseTold,
            CallAnswer::Owned(_) => Seen::OwnerAnswered,
            CallAnswer::Latch(report) => Seen::latch(*report),
            CallAnswer::Leader(_) => Seen::LeaderAnswered,
            CallAnswer::Written(_) => Seen::WriteAnswered,
        });
        self.over(slot, caller);
        let key = self.nodes[slot].callers[caller].key;
        match answer {
            CallAnswer::Report(report) => self.job_answered(slot, caller, report),
            CallAnswer::InUse(Some(permits)) if *permits > u64::from(PERMITS) => {
                self.wrong(Wrong::TooMany, Some(key), || {
                    format!("told that {permits} are held")
                });
            }
            CallAnswer::InUse(_) => {}
            CallAnswer::Owned(owned) => {
                let is_owner = *owned;
                self.raise(Signal::OwnerAnswered {
                    slot,
                    caller,
                    is_owner,
                });
            }
            CallAnswer::Latch(report) => self.latch_answered(slot, caller, *report),
            CallAnswer::Leader(report) => self.told_who_leads(slot, caller, Some(report.as_ref())),
            CallAnswer::Written(_) => {}
        }
    }

    /// Handles a holding that lasts longer than its caller allows. It is reported before the loss, while the
    /// caller still holds.
    pub(crate) fn overdue(&mut self, slot: usize, ticket: Ticket) {
        self.expect(slot, ticket, "overdue", |state| state == State::Holding);
    }

    pub(crate) fn lost(&mut self, slot: usize, ticket: Ticket, cause: LostCause) {
        let told = if self.setup.history {
            format!("lost: {cause:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, |state| {
            // The loss may be reported while a late release or drop is in flight.
            matches!(state, State::Holding | State::Releasing { held: false, .. })
        });
        self.saw(match cause {
            LostCause::Deadline => Seen::LostDeadline,
            LostCause::Gone => Seen::LostGone,
            LostCause::Ended => Seen::LostEnded,
            LostCause::Unfetched => Seen::LostUnfetched,
            LostCause::Overdue => Seen::LostOverdue,
            _ => Seen::LostShutdown,
        });
        self.nodes[slot].callers[caller].dark = true;
        let Caller {
            key,
            want,
            state,
            claim,
            ..
        } = self.nodes[slot].callers[caller];
        let is_promised = matches!(cause, LostCause::Deadline | LostCause::Gone);
        if is_promised && self.is_calm() && !self.is_tainted_claim(claim) {
            self.wrong(Wrong::LostInCalm, Some(key), || {
                format!("ticket {} of node {slot} lost its lease: {cause:?}", ticket.0)
            });
        }
        let never = self.nodes[slot].callers[caller].fetches == Fetches::Never;
        if never && want.mark.is_none() {
            self.over(slot, caller);
        }
        if self.elections.contains(&key) && state == State::Holding {
            // The work of the leader stops with the loss.
            self.over(slot, caller);
            self.leads_no_more(slot, key);
        }
        if want.mark.is_some() && state == State::Holding {
            // The run is dropped, and its node stands by for the same tick.
            self.saw(Seen::TickLost);
            self.over(slot, caller);
            self.chase_after(slot, key, want.mark, MS, true);
        }
    }

    pub(crate) fn released(&mut self, slot: usize, ticket: Ticket, outcome: &Outcome) {
        let told = if self.setup.history {
            format!("released: {outcome:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, |state| {
            matches!(state, State::Releasing { .. })
        });
        self.raise(Signal::ReleaseAnswered {
            slot,
            caller,
            outcome,
        });
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        match (outcome, state) {
            (Outcome::Kept, State::Releasing { held: false, .. }) => {
                self.wrong(Wrong::Outcome, Some(key), || {
                    format!("ticket {} had lost and was told kept", ticket.0)
                });
            }
            (Outcome::Kept, State::Releasing { finished, .. }) => {
                self.saw(Seen::ReleaseKept);
                self.raise(Signal::ReleaseKept {
                    slot,
                    ticket,
                    finished,
                });
            }
            (Outcome::Kept, _) => {}
            (Outcome::Lost(_), _) => self.saw(Seen::ReleaseLost),
            (Outcome::Failed(_), _) => self.saw(Seen::ReleaseFailed),
        }
        self.over(slot, caller);
        let mark = self.nodes[slot].callers[caller].want.mark;
        if mark.is_some() {
            self.pursuit_ends(slot, key, mark);
        }
    }
}
