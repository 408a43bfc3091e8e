//! What callers do when their node answers them.

use tenure::error::LostCause;
use tenure::protocol::message::{CallAnswer, Fence, TickRefusal};
use tenure::protocol::step::{AcquireError, Input, Outcome, Ticket, WhyDenied};
use tenure::protocol::time::Instant;

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, PERMITS, TakeUp};
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Handles a grant: the caller holds, and takes the grant up soon.
    pub(crate) fn granted(&mut self, slot: usize, ticket: Ticket, fence: Fence) {
        let told = if self.setup.history {
            format!("granted {}.{}", fence.number(), fence.get() & 1023)
        } else {
            String::new()
        };
        let caller = self.expect_state(slot, ticket, &told, CallerState::may_be_told);
        let Caller {
            key, options, state, ..
        } = self.nodes[slot].callers[caller];
        if state == CallerState::GivingUp {
            return self.raise(Signal::FenceIssued {
                slot,
                key,
                mode: options.mode,
                fence,
            });
        }
        self.nodes[slot].callers[caller].state = CallerState::Holding;
        self.nodes[slot].callers[caller].since = self.held_since(slot, caller);
        let holding = self.holding(slot, key, ticket);
        self.nodes[slot].callers[caller].claim = holding.map(|holding| holding.claim);
        self.cover(Case::Granted);
        if options.fixed {
            self.cover(Case::GrantedFixed);
        }
        self.raise(Signal::FenceIssued {
            slot,
            key,
            mode: options.mode,
            fence,
        });
        self.raise(Signal::LeaseGranted { slot, caller, fence });
        self.schedule_take_up(slot, caller);
    }

    /// Schedules when a granted caller takes up its grant: in time, late, or never.
    pub(crate) fn schedule_take_up(&mut self, slot: usize, caller: usize) {
        let life = self.nodes[slot].life;
        let lease = self.nodes[slot].callers[caller].options.term.lease_ms * MS;
        let delay = match self.rng.u8(0..100) {
            0..3 => {
                self.nodes[slot].callers[caller].take_up_state = TakeUp::Never;
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
                act: CallerAction::TakeUp,
            },
        );
    }

    /// Returns when the caller's holding began. A reader that was a writer has held the key since its grant
    /// as a writer.
    pub(crate) fn held_since(&self, slot: usize, caller: usize) -> Option<Instant> {
        let callers = &self.nodes[slot].callers;
        let before = callers[caller]
            .before
            .filter(|_| !callers[caller].is_for_transfer);
        before.map_or(Some(self.local(slot)), |before| callers[before].since)
    }

    /// Restores the earlier holding: the store refused to change it.
    pub(crate) fn restore_holding(&mut self, slot: usize, caller: usize) {
        self.cover(Case::StillHeld);
        let node = &mut self.nodes[slot];
        let Some(before) = node.callers[caller].before else {
            let key = node.callers[caller].key;
            return self.report(Violation::WrongAnswer, Some(key), || {
                format!("ticket {} held nothing before and was told kept", caller + 1)
            });
        };
        let Caller {
            options,
            claim,
            since,
            ..
        } = node.callers[before];
        let kept = &mut node.callers[caller];
        (kept.options, kept.claim, kept.since) = (options, claim, since);
        (kept.state, kept.is_for_transfer) = (CallerState::Holding, false);
        self.schedule_take_up(slot, caller);
    }

    /// Handles a denial: the caller ends, or its kind of caller decides what follows.
    pub(crate) fn denied(&mut self, slot: usize, ticket: Ticket, denial: &WhyDenied) {
        let told = if self.setup.history {
            format!("denied: {denial:?}")
        } else {
            String::new()
        };
        let caller = self.expect_state(slot, ticket, &told, CallerState::may_be_told);
        if self.nodes[slot].callers[caller].state == CallerState::Writing {
            self.end_caller(slot, caller);
            return self.write_denied(denial);
        }
        if self.nodes[slot].callers[caller].state == CallerState::Renewing {
            self.end_caller(slot, caller);
            return self.renewal_denied(denial);
        }
        self.cover(match denial {
            WhyDenied::Error(AcquireError::Busy) => Case::DeniedBusy,
            WhyDenied::Error(AcquireError::QueueFull { .. }) => Case::DeniedFull,
            WhyDenied::Error(AcquireError::NodeFull) => Case::DeniedNodeFull,
            WhyDenied::Error(AcquireError::Store(_)) | WhyDenied::Error(AcquireError::Unanswered(_)) => {
                Case::DeniedStore
            }
            WhyDenied::Tick(TickRefusal::Over) => Case::DeniedOver,
            WhyDenied::Tick(TickRefusal::Skipped) => Case::DeniedNeverBegun,
            WhyDenied::Tick(TickRefusal::Paused) => Case::DeniedPaused,
            WhyDenied::Tick(TickRefusal::Early(_)) => Case::DeniedEarly,
            WhyDenied::Tick(TickRefusal::EarlierTickDue { .. }) => Case::DeniedBehind,
            WhyDenied::Error(AcquireError::Closed) => Case::DeniedClosed,
            WhyDenied::Error(AcquireError::Lost(_)) | WhyDenied::StillHeld(..) => Case::DeniedLost,
        });
        let Caller {
            key,
            options,
            call,
            state,
            ..
        } = self.nodes[slot].callers[caller];
        let may_be_busy = options.mark.is_some() && self.profile.rules.queues;
        if matches!(denial, WhyDenied::Error(AcquireError::Busy)) && options.wait && !may_be_busy {
            self.report(Violation::WrongAnswer, Some(key), || {
                format!("ticket {} wants to wait and was told busy", ticket.0)
            });
        }
        let is_of_store = matches!(
            denial,
            WhyDenied::Error(AcquireError::Store(_)) | WhyDenied::StillHeld(..)
        );
        if is_of_store && self.is_calm() {
            self.report(Violation::DeniedInCalm, Some(key), || {
                format!("ticket {} of node {slot} was told {denial:?}", ticket.0)
            });
        }
        if matches!(denial, WhyDenied::StillHeld(..)) && state == CallerState::Waiting {
            return self.restore_holding(slot, caller);
        }
        self.end_caller(slot, caller);
        self.raise(Signal::CallerDenied { slot, caller, denial });
        self.election_denied(slot, caller, denial);
        if options.mark.is_some() && call.is_none() {
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
        let caller = self.expect_state(slot, ticket, &told, CallerState::may_be_told);
        if self.nodes[slot].callers[caller].state == CallerState::Renewing {
            self.end_caller(slot, caller);
            return self.renewed(slot, caller);
        }
        self.cover(match answer {
            CallAnswer::Report(_) => Case::Reported,
            CallAnswer::InUse(_) => Case::InUseTold,
            CallAnswer::Owned(_) => Case::OwnerAnswered,
            CallAnswer::Latch(report) => Case::latch(*report),
            CallAnswer::Leader(_) => Case::LeaderAnswered,
            CallAnswer::Written(_) => Case::WriteAnswered,
        });
        self.end_caller(slot, caller);
        let key = self.nodes[slot].callers[caller].key;
        match answer {
            CallAnswer::Report(report) => self.job_answered(slot, caller, report),
            CallAnswer::InUse(Some(permits)) if *permits > u64::from(PERMITS) => {
                self.report(Violation::TooManyPermits, Some(key), || {
                    format!("told that {permits} permits are in use")
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
            CallAnswer::Leader(report) => self.leader_answered(slot, caller, Some(report.as_ref())),
            CallAnswer::Written(_) => {}
        }
    }

    /// Handles a holding that lasts longer than its caller allows. It is reported before the loss, while the
    /// caller still holds.
    pub(crate) fn overdue(&mut self, slot: usize, ticket: Ticket) {
        self.expect_state(slot, ticket, "overdue", |state| state == CallerState::Holding);
    }

    /// A holder is asked for its lease. Half of them release it soon.
    pub(crate) fn asked(&mut self, slot: usize, ticket: Ticket) {
        let caller = self.expect_state(slot, ticket, "asked", |state| state == CallerState::Holding);
        self.cover(Case::Asked);
        if self.nodes[slot].callers[caller].options.mark.is_none() && self.operator_rng.bool() {
            let (life, soon) = (self.nodes[slot].life, self.operator_rng.u64(0..5 * MS));
            let act = CallerAction::Release;
            self.after(
                soon,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
    }

    /// Handles the loss of a lease.
    pub(crate) fn lost(&mut self, slot: usize, ticket: Ticket, cause: LostCause) {
        let told = if self.setup.history {
            format!("lost: {cause:?}")
        } else {
            String::new()
        };
        let caller = self.expect_state(slot, ticket, &told, |state| {
            // The loss may be reported while a late release or drop is in flight.
            matches!(
                state,
                CallerState::Holding | CallerState::Releasing { held: false, .. }
            )
        });
        self.cover(match cause {
            LostCause::Deadline => Case::LostDeadline,
            LostCause::Gone => Case::LostGone,
            LostCause::Ended => Case::LostEnded,
            LostCause::Unfetched => Case::NeverTakenUp,
            LostCause::Overdue => Case::LostOverdue,
            LostCause::Revoked => Case::LostRevoked,
            _ => Case::LostShutdown,
        });
        self.nodes[slot].callers[caller].was_lost = true;
        let Caller {
            key,
            options,
            state,
            claim,
            ..
        } = self.nodes[slot].callers[caller];
        let is_promised = matches!(cause, LostCause::Deadline | LostCause::Gone);
        if is_promised
            && self.is_calm_but_for_moves()
            && self.renews_in_time(options.term)
            && !self.is_exempt_claim(claim)
        {
            self.report(Violation::LostInCalm, Some(key), || {
                format!("ticket {} of node {slot} lost its lease: {cause:?}", ticket.0)
            });
        }
        // A lagging copy may lack the lease. Otherwise a lease that is gone is at no server.
        let is_revoked = claim.is_some_and(|claim| self.memory.revoked.contains(&claim));
        if matches!(cause, LostCause::Gone) && self.is_cluster() && !self.is_after_loss() && !is_revoked {
            let owned = self.key_records(&self.keys[key]);
            if owned.grants().any(|(of, _)| Some(of) == claim) {
                self.report(Violation::ValidLeaseReportedGone, Some(key), || {
                    format!("ticket {} of node {slot}: {owned:?}", ticket.0)
                });
            }
        }
        let never = self.nodes[slot].callers[caller].take_up_state == TakeUp::Never;
        if never && options.mark.is_none() {
            self.end_caller(slot, caller);
        }
        let ends_itself = self.elections.contains(&key) || options.mark.is_some();
        if cause == LostCause::Revoked && ends_itself && state == CallerState::Holding {
            // The guard is dropped with the work, and so the lease is left.
            self.feed(slot, key, Input::Cancel(ticket));
        }
        if self.elections.contains(&key) && state == CallerState::Holding {
            // The work of the leader stops with the loss.
            self.end_caller(slot, caller);
            self.campaign_later(slot, key);
        }
        if options.mark.is_some() && state == CallerState::Holding {
            // The run is dropped, and its node stands by for the same tick.
            self.cover(Case::TickLost);
            if cause == LostCause::Revoked {
                self.ask_for_ending(slot, key);
            }
            self.end_caller(slot, caller);
            self.claim_tick_later(slot, key, options.mark, MS, true);
        }
    }

    /// Handles the outcome of a release.
    pub(crate) fn released(&mut self, slot: usize, ticket: Ticket, outcome: &Outcome) {
        let told = if self.setup.history {
            format!("released: {outcome:?}")
        } else {
            String::new()
        };
        let caller = self.expect_state(slot, ticket, &told, |state| {
            matches!(state, CallerState::Releasing { .. })
        });
        self.raise(Signal::ReleaseAnswered {
            slot,
            caller,
            outcome,
        });
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        match (outcome, state) {
            (Outcome::Held, CallerState::Releasing { held: false, .. }) => {
                self.report(Violation::WrongAnswer, Some(key), || {
                    format!("ticket {} had lost and was told kept", ticket.0)
                });
            }
            (Outcome::Held, CallerState::Releasing { finished, .. }) => {
                self.cover(Case::ReleaseKept);
                self.raise(Signal::ReleaseKept {
                    slot,
                    ticket,
                    finished,
                });
            }
            (Outcome::Held, _) => {}
            (Outcome::Lost(_), _) => self.cover(Case::ReleaseLost),
            (Outcome::Unconfirmed(_), _) => self.cover(Case::ReleaseFailed),
        }
        self.end_caller(slot, caller);
        let mark = self.nodes[slot].callers[caller].options.mark;
        if mark.is_some() {
            self.end_pursuit(slot, key, mark);
        }
    }
}
