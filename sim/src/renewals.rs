//! Callers that renew their fixed leases: each waits for the answer beside its guard, and holds for longer only if it was told so.

use tenure::protocol::step::{AcquireError, Input, LockOptions, Ticket};

use crate::callers::{Act, Caller, Fetches, State};
use crate::coverage::Seen;
use crate::world::{Event, MS, World};

impl World {
    /// Plans two renewals of a fixed lease, in a quarter of all worlds. Nothing is drawn: every other world stays as it was. Returns
    /// for how long the caller then holds instead of `hold`.
    pub(crate) fn plan_renewals(&mut self, slot: usize, caller: usize, want: &LockOptions, hold: u64) -> u64 {
        if !want.fixed || self.profile.crowd || self.setup.seed % 4 != 3 || self.draining {
            return hold;
        }
        let life = self.nodes[slot].life;
        for quarters in [2, 5] {
            let act = Act::Renew;
            self.after(
                want.term.lease_ms * MS * quarters / 4,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
        2 * want.term.lease_ms * MS
    }

    /// A holder has its lease renewed.
    pub(crate) fn renew(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let (ticket, renewal) = self.new_caller(slot, key, want, Fetches::Never);
        let made = &mut self.nodes[slot].callers[renewal];
        (made.state, made.before) = (State::Renewing, Some(caller));
        self.saw(Seen::RenewalAsked);
        self.feed(slot, key, Input::Renew(Ticket(caller as u64 + 1), ticket));
    }

    /// The store has extended the lease. The request was sent before now, so the new term ends at the latest one term from now.
    pub(crate) fn renewed(&mut self, slot: usize, renewal: usize) {
        self.saw(Seen::RenewalAnswered);
        let now = self.local(slot);
        let callers = &mut self.nodes[slot].callers;
        if let Some(holder) = callers[renewal].before {
            callers[holder].since = Some(now);
        }
    }

    pub(crate) fn renewal_denied(&mut self, denial: &AcquireError) {
        self.saw(match denial {
            AcquireError::Lost(_) => Seen::RenewalLost,
            _ => Seen::RenewalFailed,
        });
    }
}
