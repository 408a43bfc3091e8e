//! Callers that renew their fixed leases. Each waits for the answer beside its guard, and holds for longer only after the
//! store extended the lease.

use tenure::protocol::step::{AcquireError, Input, LockOptions, Ticket, WhyDenied};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, TakeUp};
use crate::world::event::Event;

impl World {
    /// Plans two renewals of a fixed lease, in an eighth of all worlds. Nothing is drawn, so every other world stays the
    /// same. Returns for how long the caller then holds, instead of `hold`.
    pub(crate) fn plan_renewals(
        &mut self,
        slot: usize,
        caller: usize,
        options: &LockOptions,
        hold: u64,
    ) -> u64 {
        if !options.fixed || self.profile.crowd || self.setup.seed % 8 != 7 || self.draining {
            return hold;
        }
        let (life, lease) = (self.nodes[slot].life, options.term.lease_ms * MS);
        for quarters in [2, 5] {
            self.after(
                lease * quarters / 4,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: CallerAction::Renew,
                },
            );
        }
        2 * lease
    }

    /// Sends the renewal of a holder.
    pub(crate) fn renew(&mut self, slot: usize, caller: usize) {
        let Caller { key, options, .. } = self.nodes[slot].callers[caller];
        let (ticket, renewal) = self.new_caller(slot, key, options, TakeUp::Never);
        let made = &mut self.nodes[slot].callers[renewal];
        (made.state, made.before) = (CallerState::Renewing, Some(caller));
        self.cover(Case::RenewalAsked);
        self.feed(slot, key, Input::Renew(Ticket(caller as u64 + 1), ticket));
    }

    /// The store extended the lease. The request was sent before now, so the new term ends at the latest one term from now.
    pub(crate) fn renewed(&mut self, slot: usize, renewal: usize) {
        self.cover(Case::RenewalAnswered);
        let now = self.local(slot);
        let callers = &mut self.nodes[slot].callers;
        if let Some(holder) = callers[renewal].before {
            callers[holder].since = Some(now);
        }
    }

    pub(crate) fn renewal_denied(&mut self, denial: &WhyDenied) {
        self.cover(match denial {
            WhyDenied::Error(AcquireError::Lost(_)) => Case::RenewalLost,
            _ => Case::RenewalFailed,
        });
    }
}
