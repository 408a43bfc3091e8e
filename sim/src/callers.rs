//! Who wants locks: tries, waits, gives up, holds, releases, drops, and looks whether it still holds.

use crate::Wrong;
use crate::coverage::Seen;
use crate::world::{Event, MS, World};
use std::time::Duration;
use tenure::error::LostCause;
use tenure::protocol::key::claim::Holding;
use tenure::protocol::message::{Call, ClaimId, Fence, Mode, Name, Permits};
use tenure::protocol::session::step::{Probe, SessionInput};
use tenure::protocol::step::{
    AcquireError, CallAnswer, CallOptions, Input, LockOptions, Outcome, TickRefusal, Ticket,
};
use tenure::protocol::time::Instant;

/// How many permits there are of each key, in worlds of permits.
pub(crate) const PERMITS: u32 = 3;

/// One caller, from its call to its last word.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: usize,
    pub(crate) want: LockOptions,
    /// Its question, if it makes a call.
    pub(crate) asks: Option<Call>,
    pub(crate) state: State,
    /// Whether it takes up what it is granted: not yet, in time or late, never.
    pub(crate) fetches: Fetches,
    /// Was seen not to hold after it held.
    pub(crate) dark: bool,
    /// The claim that it holds or held by.
    pub(crate) claim: Option<ClaimId>,
    /// When it was granted, by its node's clock.
    pub(crate) since: Option<Instant>,
    /// When it asked, by the world's clock in ns.
    pub(crate) asked_at: u64,
    /// What it is granted is for others, who are told of it.
    pub(crate) travels: bool,
    /// It was told of the lease that it asks about.
    pub(crate) letter: Option<usize>,
    /// It asks about that while it lasts.
    pub(crate) in_time: bool,
    /// The holder that it was, of what it is to become.
    pub(crate) before: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    /// Its future is being dropped: what it is told in that step, for what was due before, nobody hears.
    GivingUp,
    Holding,
    /// Waits for what became of its release; whether it held until then.
    Releasing {
        held: bool,
        finished: bool,
    },
    /// Waits for what becomes of a write.
    Writing,
    /// Waits for what becomes of a renewal.
    Renewing,
    Over,
}

impl State {
    fn may_be_told(self) -> bool {
        matches!(
            self,
            State::Waiting | State::GivingUp | State::Writing | State::Renewing
        )
    }
}

/// Whether a caller takes up what it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetches {
    Later,
    Never,
    Did,
}

/// What a caller does next.
#[derive(Debug)]
pub(crate) enum Act {
    GiveUp,
    Fetch,
    Look,
    Release,
    Drop,
    Finish,
    Downgrade,
    /// Gives its lease to whoever is told of it.
    Transfer,
    /// Tells others of what it was granted for them.
    HandOut,
    /// Has something written under the lease.
    Write,
    /// Has its lease renewed.
    Renew,
    /// Tells whoever observes something, whether it leads or not.
    Proclaim,
    /// Leaves something for whoever runs its tick again, whether it holds or not.
    Save,
}

impl World {
    /// A caller comes, if there is room for one.
    pub(crate) fn arrival(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..2 * self.profile.pause);
        self.after(pause, Event::Arrival { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.live.len() >= self.profile.callers {
            return;
        }
        let key = self.rng.usize(0..self.locks);
        if self.chance(1) {
            self.probe(slot);
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        // In a crowd the first holds for long, and all others wait with claims of their own.
        let (crowd, is_first) = (self.profile.crowd, self.nodes[slot].callers.is_empty());
        let asks = self.question_of_next(slot);
        let want = LockOptions {
            mode: self.mode_of_next(slot),
            wait: crowd || self.rng.u8(0..10) > 0,
            fixed: if crowd { !is_first } else { self.chance(10) },
            solo: !crowd && self.nodes[slot].callers.len() % 16 == 6,
            // Not drawn: the same seed is the same world as before.
            max_hold: (!crowd && self.nodes[slot].callers.len() % 8 == 3)
                .then(|| Duration::from_millis(term.lease_ms / 2)),
            limit: if self.rng.u8(0..50) == 0 { 1 } else { 1000 },
            node_is_full: self.rng.u8(0..100) == 0,
            ..LockOptions::new(term)
        };
        let free = |key: &Name| self.nodes[slot].shard.is_free(key);
        // Not drawn, as above.
        let is_together = !crowd && !self.profile.permits && self.nodes[slot].callers.len() % 8 == 1;
        if is_together && self.locks > 1 && self.keys[..self.locks].iter().all(free) {
            return self.arrive_together(slot, want);
        }
        if let Some(call) = asks {
            return self.ask_patiently(slot, key, want, call);
        }
        let ticket = self.enter(slot, key, want);
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// A caller asks, and may lose patience.
    fn ask_patiently(&mut self, slot: usize, key: usize, want: LockOptions, call: Call) {
        let ticket = self.enter(slot, key, want);
        self.nodes[slot].callers[ticket.0 as usize - 1].asks = Some(call);
        let call = CallOptions {
            mode: want.mode,
            limit: want.limit,
            node_is_full: want.node_is_full,
            ..CallOptions::new(want.term, call)
        };
        self.feed(slot, key, Input::Call(ticket, call));
    }

    /// A caller makes a call, which must still be fed to its node with this ticket.
    pub(crate) fn new_call(&mut self, slot: usize, key: usize, call: &CallOptions) -> (Ticket, usize) {
        let want = LockOptions {
            mode: call.mode,
            wait: call.call.is_watched(),
            mark: call.mark,
            ..LockOptions::new(call.term)
        };
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Never);
        self.nodes[slot].callers[caller].asks = Some(call.call);
        (ticket, caller)
    }

    /// Somebody wants a key, and may lose patience.
    pub(crate) fn enter(&mut self, slot: usize, key: usize, want: LockOptions) -> Ticket {
        let (crowd, life) = (self.profile.crowd, self.nodes[slot].life);
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Later);
        if !crowd && self.chance(25) {
            let patience = self.rng.u64(0..want.term.lease_ms * MS);
            self.after(
                patience,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: Act::GiveUp,
                },
            );
        }
        ticket
    }

    /// Somebody wants something of a node. What it wants must still be fed to the node, with this ticket.
    pub(crate) fn new_caller(
        &mut self,
        slot: usize,
        key: usize,
        want: LockOptions,
        fetches: Fetches,
    ) -> (Ticket, usize) {
        let asked_at = self.now;
        let node = &mut self.nodes[slot];
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        debug_assert_eq!(ticket.0 as usize, caller + 1);
        node.callers.push(Caller {
            key,
            want,
            asks: None,
            state: State::Waiting,
            fetches,
            dark: false,
            claim: None,
            since: None,
            asked_at,
            travels: false,
            letter: None,
            in_time: false,
            before: None,
        });
        node.live.push(caller);
        node.asked += 1;
        (ticket, caller)
    }

    /// Not drawn: the same seed is the same world as before. In some worlds nearly all read, in others nearly nobody does.
    fn mode_of_next(&self, slot: usize) -> Mode {
        let next = (self.nodes[slot].callers.len() * 7 + slot * 3) as u64 % 10;
        if self.profile.permits {
            // Now and then somebody of before a deploy, which gave one more.
            let capacity = PERMITS - u32::from(next == 9);
            let weight = [1, 1, 2, 1, 3, 1, 1, 2, 1, 1][next as usize].min(capacity);
            return Mode::Permits(Permits { weight, capacity });
        }
        if self.profile.readers && next < 3 + 5 * (self.setup.seed % 2) {
            Mode::Read
        } else {
            Mode::Exclusive
        }
    }

    /// Now and then somebody asks how many permits are held.
    fn question_of_next(&self, slot: usize) -> Option<Call> {
        let asks = self.profile.permits && self.nodes[slot].callers.len() % 32 == 9;
        asks.then_some(Call::InUse)
    }

    /// A writer goes on as a reader.
    fn downgrade(&mut self, slot: usize, caller: usize) {
        let held = self.look(slot, caller);
        let node = &mut self.nodes[slot];
        let Caller { key, want, .. } = node.callers[caller];
        node.callers[caller].state = State::Releasing {
            held,
            finished: false,
        };
        let next = LockOptions {
            mode: Mode::Read,
            wait: true,
            solo: false,
            limit: usize::MAX,
            node_is_full: false,
            ..want
        };
        let (to, reader) = self.new_caller(slot, key, next, Fetches::Later);
        self.nodes[slot].callers[reader].before = Some(caller);
        self.feed(slot, key, Input::Downgrade(Ticket(caller as u64 + 1), to));
    }

    /// Somebody asks whether the server answers.
    fn probe(&mut self, slot: usize) {
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.probed += 1;
        let probe = Probe(node.probed);
        node.probes.insert(probe, now);
        self.tell_session(slot, SessionInput::Probed(probe));
    }

    /// A caller does what it had in mind.
    pub(crate) fn act(&mut self, slot: usize, caller: usize, act: Act) {
        let ticket = Ticket(caller as u64 + 1);
        let Caller {
            key, state, fetches, ..
        } = self.nodes[slot].callers[caller];
        match (act, state) {
            (Act::GiveUp, State::Waiting) => {
                let under_way = !self.nodes[slot].requests.is_empty();
                self.saw(if under_way {
                    Seen::CancelInFlight
                } else {
                    Seen::CancelWaiting
                });
                self.nodes[slot].callers[caller].state = State::GivingUp;
                // As a caller whose wait ends.
                self.tell_session(slot, SessionInput::SignWanted);
                self.feed(slot, key, Input::Cancel(ticket));
                self.over(slot, caller);
            }
            (Act::Fetch, State::Holding) => self.fetch(slot, caller),
            (Act::Look, State::Holding) => {
                self.look(slot, caller);
            }
            (Act::Release, State::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = State::Releasing {
                    held,
                    finished: false,
                };
                self.feed(slot, key, Input::Release(ticket));
            }
            (Act::Finish, State::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = State::Releasing { held, finished: true };
                let well = !caller.is_multiple_of(4);
                self.feed(slot, key, Input::Finish(ticket, well));
            }
            (Act::Downgrade, State::Holding) => self.downgrade(slot, caller),
            (Act::Transfer, State::Holding) => self.transfer(slot, caller),
            (Act::HandOut, State::Holding) => self.hand_out(slot, caller),
            (Act::Write, State::Holding) => self.begin_write(slot, caller),
            (Act::Renew, State::Holding) => self.renew(slot, caller),
            (Act::Save, _) => self.save(slot, caller),
            (Act::Proclaim, _) => self.proclaim(slot, caller),
            // The future is dropped, not the guard.
            (Act::GiveUp, State::Holding) if fetches == Fetches::Later => self.act(slot, caller, Act::Drop),
            (Act::Drop, State::Holding) => {
                self.saw(Seen::CancelHolder);
                self.feed(slot, key, Input::Cancel(ticket));
                self.over(slot, caller);
            }
            _ => {}
        }
    }

    /// What a guard's question sees, at any moment and before anything else was handled.
    pub(crate) fn look(&mut self, slot: usize, caller: usize) -> bool {
        let local = self.local(slot);
        let node = &mut self.nodes[slot];
        let asking = &mut node.callers[caller];
        let key = asking.key;
        let ticket = Ticket(caller as u64 + 1);
        let holding = node.shard.holding(local, &self.keys[key], ticket);
        let held = holding.is_some_and(|holding| holding.is_held());
        let revived = held && asking.dark;
        asking.dark |= !held;
        self.log.mix(u64::from(held));
        self.note(Some(slot), Some(key), || {
            format!("ticket {} looks: held {held}", caller + 1)
        });
        if revived {
            self.wrong(Wrong::Revived, Some(key), || {
                format!("ticket {} of node {slot} holds again", caller + 1)
            });
        }
        if held {
            self.check_key(key);
        }
        held
    }

    fn over(&mut self, slot: usize, caller: usize) {
        let node = &mut self.nodes[slot];
        node.callers[caller].state = State::Over;
        node.live.retain(|live| *live != caller);
    }

    // What callers are told.

    fn expect(&mut self, slot: usize, ticket: Ticket, told: &str, expected: impl Fn(State) -> bool) -> usize {
        let caller = ticket.0 as usize - 1;
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        self.log.mix(ticket.0);
        self.note(Some(slot), Some(key), || {
            format!("   => ticket {} {told}", ticket.0)
        });
        if !expected(state) {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!(
                    "ticket {} of node {slot} is {state:?} and was told: {told}",
                    ticket.0
                )
            });
        }
        caller
    }

    pub(crate) fn granted(&mut self, slot: usize, ticket: Ticket, fence: Fence) {
        let told = if self.setup.history {
            format!("granted {}.{}", fence.number(), fence.get() & 1023)
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        let Caller { key, want, state, .. } = self.nodes[slot].callers[caller];
        if state == State::GivingUp {
            return self.watch_fence(slot, key, want.mode, fence);
        }
        self.nodes[slot].callers[caller].state = State::Holding;
        self.nodes[slot].callers[caller].since = self.held_since(slot, caller);
        let holding = self.holding(slot, key, ticket);
        self.nodes[slot].callers[caller].claim = holding.map(|holding| holding.claim);
        self.saw(Seen::Granted);
        if want.fixed {
            self.saw(Seen::GrantedFixed);
        }
        self.watch_fence(slot, key, want.mode, fence);
        self.watch_own(slot, caller, fence);
        self.watch_adopted(slot, caller);
        self.fetch_later(slot, caller);
    }

    /// It is polled in time, or late, or never.
    fn fetch_later(&mut self, slot: usize, caller: usize) {
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

    /// Since when a caller holds that was granted something now. A reader that wrote before has held it since then.
    fn held_since(&self, slot: usize, caller: usize) -> Option<Instant> {
        let callers = &self.nodes[slot].callers;
        let before = callers[caller].before.filter(|_| !callers[caller].travels);
        before.map_or(Some(self.local(slot)), |before| callers[before].since)
    }

    /// What it was to become was refused: it holds what it held.
    fn kept(&mut self, slot: usize, caller: usize) {
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

    /// The caller is polled, and makes a guard of what it was granted.
    fn fetch(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, dark, .. } = self.nodes[slot].callers[caller];
        self.nodes[slot].callers[caller].fetches = Fetches::Did;
        if dark {
            self.saw(Seen::FetchedLost);
        }
        let ticket = Ticket(caller as u64 + 1);
        let local = self.local(slot);
        let is_taken = self.nodes[slot]
            .shard
            .take_up(local, &self.keys[key], ticket)
            .is_some();
        let is_held = self.look(slot, caller);
        if is_taken != is_held {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!(
                    "ticket {} of node {slot} took up its grant: {is_taken}, held: {is_held}",
                    ticket.0
                )
            });
        }
        if !is_taken {
            return self.act(slot, caller, Act::Drop);
        }
        if want.mark.is_some() {
            let holding = self.holding(slot, key, ticket);
            if let Some(holding) = holding.filter(Holding::is_held) {
                self.run_begins(slot, caller, holding.fence);
            }
            return;
        }
        if self.elections.contains(&key) {
            return self.lead(slot, caller);
        }
        self.hold(slot, caller);
    }

    fn hold(&mut self, slot: usize, caller: usize) {
        let Caller { want, .. } = self.nodes[slot].callers[caller];
        let hold = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            _ if self.profile.crowd => 1_800 * MS,
            _ if want.max_hold.is_some() => {
                let longest = self.profile.longest().as_nanos() as u64;
                self.rng.u64(0..4 * longest)
            }
            0..4 => self.rng.u64(0..2 * want.term.lease_ms * MS),
            4..30 => 0,
            _ => self.rng.u64(0..self.profile.hold),
        };
        let hold = self.plan_renewals(slot, caller, &want, hold);
        let life = self.nodes[slot].life;
        let act = if self.chance(60) { Act::Release } else { Act::Drop };
        let act = match want.mode {
            _ if self.nodes[slot].callers[caller].travels => Act::HandOut,
            _ if self.gives_up(caller, &want) => Act::Transfer,
            Mode::Exclusive if self.profile.readers && caller % 4 == 1 => Act::Downgrade,
            _ => act,
        };
        self.after(
            hold,
            Event::Caller {
                slot,
                life,
                caller,
                act,
            },
        );
        self.plan_writes(slot, caller, hold);
        if self.chance(20) {
            let pause = self.rng.u64(0..=hold);
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: Act::Look,
                },
            );
        }
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
        if state == State::Renewing {
            self.over(slot, caller);
            return self.renewal_denied(denial);
        }
        if matches!(denial, AcquireError::Kept(..)) && state == State::Waiting {
            return self.kept(slot, caller);
        }
        self.over(slot, caller);
        self.watch_refused_call(slot, caller, denial);
        self.watch_given_up(slot, caller, denial);
        let is_gone = matches!(denial, AcquireError::Lost(LostCause::Gone));
        self.watch_not_adopted(slot, caller, None, is_gone);
        self.election_denied(slot, caller, denial);
        if want.mark.is_some() && asks.is_none() {
            self.tick_denied(slot, caller, denial);
        }
    }

    /// A call is answered.
    pub(crate) fn answered(&mut self, slot: usize, ticket: Ticket, answer: &CallAnswer) {
        let told = if self.setup.history {
            format!("answered: {answer:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        if self.nodes[slot].callers[caller].state == State::Renewing {
            self.over(slot, caller);
            return self.renewed(slot, caller);
        }
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
                self.watch_not_adopted(slot, caller, Some(*owned), !owned);
                self.proclaim_answered(slot, caller, *owned);
            }
            CallAnswer::Latch(report) => self.latch_answered(slot, caller, *report),
            CallAnswer::Leader(report) => self.told_who_leads(slot, caller, Some(report.as_ref())),
            CallAnswer::Written(_) => {}
        }
    }

    /// It is told before it is lost, while it holds.
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
            // A release or drop that comes too late may hear of the loss first.
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
            // So is the work of a leader.
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
        self.watch_refused_release(slot, caller, outcome);
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        match (outcome, state) {
            (Outcome::Kept, State::Releasing { held: false, .. }) => {
                self.wrong(Wrong::Outcome, Some(key), || {
                    format!("ticket {} had lost and was told kept", ticket.0)
                });
            }
            (Outcome::Kept, State::Releasing { finished, .. }) => {
                self.saw(Seen::ReleaseKept);
                self.tick_kept(slot, ticket, finished);
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
