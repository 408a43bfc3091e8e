//! A key machine that is fed with answers that no store gives on demand.

use std::time::Duration;

use tenure::Key;
use tenure::error::StoreError;
use tenure::protocol::claim::held_lease::Holding;
use tenure::protocol::context::Seed;
use tenure::protocol::key::shard::Shard;
use tenure::protocol::message::{
    Call, CallAnswer, ClaimReply, GrantNumber, GrantReply, LeaseTimes, Name, NodeId, Reply, TickTime, Verb,
};
use tenure::protocol::step::{
    AcquireError, CallOptions, Effect, InboxState, Input, LockOptions, Outgoing, Rules, Ticket, WhyDenied,
};
use tenure::protocol::time::Instant;
use tenure::testing::timed_out;

use crate::failures::Why;
use crate::help::ms;

/// A shard, its key, and the requests that it sent.
pub(crate) struct Machine {
    pub(crate) shard: Shard,
    pub(crate) name: Name,
    pub(crate) now: Instant,
    pub(crate) effects: Vec<Effect>,
}

/// The options of a patient caller.
pub(crate) fn options(lease_ms: u64) -> LockOptions {
    LockOptions {
        limit: 100_000,
        ..LockOptions::new(LeaseTimes {
            lease_ms,
            margin_ms: 250,
        })
    }
}

/// The options of a caller of `call`.
pub(crate) fn asks(lease_ms: u64, call: Call) -> CallOptions {
    CallOptions {
        limit: 100_000,
        ..CallOptions::new(options(lease_ms).term, call)
    }
}

impl Machine {
    pub(crate) fn new(rules: Rules) -> Self {
        Machine::of(Name::lock(Key::from("a")), rules)
    }

    pub(crate) fn of(name: Name, rules: Rules) -> Self {
        let mut machine = Machine {
            shard: Shard::new(NodeId::numbered(1), 0, 1, Seed::numbered(1), rules),
            name,
            now: Instant::from_nanos(1_000_000_000),
            effects: Vec::new(),
        };
        machine.inbox(InboxState::Confirmed);
        machine
    }

    /// Returns a node that yields at every second release.
    pub(crate) fn yielding() -> Self {
        Machine::new(Rules {
            burst: 1,
            ..Rules::default()
        })
    }

    pub(crate) fn tell(&mut self, input: Input) {
        let effects = self.shard.handle(self.now, &self.name, input);
        self.effects.extend_from_slice(&effects);
    }

    pub(crate) fn inbox(&mut self, state: InboxState) {
        let effects = &mut self.effects;
        self.shard
            .inbox(self.now, state, |_, effect| effects.push(effect.clone()));
    }

    /// A connection to the same server opened.
    pub(crate) fn reachable(&mut self) {
        self.connected(false);
    }

    /// A connection to another server opened.
    pub(crate) fn moved(&mut self) {
        self.connected(true);
    }

    fn connected(&mut self, is_elsewhere: bool) {
        let effects = &mut self.effects;
        self.shard.reachable(
            self.now,
            is_elsewhere,
            |_| true,
            |_, effect| effects.push(effect.clone()),
        );
    }

    pub(crate) fn close(&mut self) {
        let effects = &mut self.effects;
        self.shard
            .close(self.now, false, |_, effect| effects.push(effect.clone()));
    }

    /// Handles what is due.
    pub(crate) fn wake(&mut self) {
        while self.wake_next().is_some() {}
    }

    /// Handles what is due for one key, and returns its name.
    pub(crate) fn wake_next(&mut self) -> Option<Name> {
        let (name, effects) = self.shard.wake_next(self.now)?;
        self.effects.extend_from_slice(&effects);
        Some(name)
    }

    /// Takes up a granted lease. Returns whether the caller has a guard.
    pub(crate) fn take_up(&mut self, ticket: Ticket) -> bool {
        self.shard.take_up(self.now, &self.name, ticket).is_some()
    }

    pub(crate) fn enter(&mut self, options: LockOptions) -> Ticket {
        let ticket = self.shard.issue();
        self.tell(Input::Lock(ticket, options));
        ticket
    }

    pub(crate) fn call(&mut self, options: CallOptions) -> Ticket {
        let ticket = self.shard.issue();
        self.tell(Input::Call(ticket, options));
        ticket
    }

    pub(crate) fn lock(&mut self, fixed: bool) -> Ticket {
        self.enter(LockOptions {
            fixed,
            ..options(1000)
        })
    }

    pub(crate) fn tick(&mut self, ms: u64) -> Ticket {
        self.enter(LockOptions {
            mark: Some(TickTime(ms)),
            ..options(1000)
        })
    }

    /// Acquires a lease and takes it up.
    pub(crate) fn claim_id(&mut self, lease_ms: u64) -> Ticket {
        let ticket = self.enter(options(lease_ms));
        self.answer(ClaimReply::granted(GrantNumber(7)));
        self.take_up(ticket);
        ticket
    }

    /// Returns the number of requests.
    pub(crate) fn sends(&self) -> usize {
        let sends = self.effects.iter();
        sends.filter(|effect| matches!(effect, Effect::Send(_))).count()
    }

    /// Returns the latest request.
    pub(crate) fn sent(&self) -> Outgoing {
        let sent = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send(outgoing) => Some(outgoing.clone()),
            _ => None,
        });
        sent.expect("a request")
    }

    /// Returns the latest request of that kind.
    pub(crate) fn sent_of(&self, kind: impl Fn(Verb) -> bool) -> Outgoing {
        let sent = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send(outgoing) if kind(outgoing.request.verb) => Some(outgoing.clone()),
            _ => None,
        });
        sent.expect("a request of that kind")
    }

    pub(crate) fn answer(&mut self, reply: impl Into<Reply>) {
        self.answer_to(&self.sent(), self.now, reply);
    }

    pub(crate) fn answer_to(&mut self, outgoing: &Outgoing, sent: Instant, reply: impl Into<Reply>) {
        let (tag, reply) = (outgoing.tag, reply.into());
        self.tell(Input::Answered {
            tag,
            sent,
            time: 0,
            reply,
        });
    }

    /// Fails the latest request; its server was last heard at `heard`.
    pub(crate) fn fail(&mut self, why: Why, heard: Option<Instant>) {
        self.fail_with(&self.sent(), why, heard, timed_out());
    }

    pub(crate) fn fail_with(
        &mut self,
        outgoing: &Outgoing,
        why: Why,
        heard: Option<Instant>,
        error: StoreError,
    ) {
        let mut failed = why.failed(self.now + ms(50), error);
        (failed.heard, failed.away) = (heard, heard);
        let tag = outgoing.tag;
        self.tell(Input::Failed { tag, failed });
    }

    /// Lets time pass without a timer.
    pub(crate) fn later(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// Lets time pass until the next timer, and returns the pause.
    pub(crate) fn passes(&mut self) -> Duration {
        let due = self.shard.next_due().expect("something is due");
        let passed = due.since(self.now);
        self.now = due.max(self.now);
        self.wake();
        passed
    }

    pub(crate) fn denial(&self, of: Ticket) -> Option<&AcquireError> {
        match self.told_denial(of)? {
            WhyDenied::Error(error) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn told_denial(&self, of: Ticket) -> Option<&WhyDenied> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Denied(ticket, denial) if *ticket == of => Some(denial),
            _ => None,
        })
    }

    /// Returns the answer to a call.
    pub(crate) fn told(&self, of: Ticket) -> Option<&CallAnswer> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Answered(ticket, answer) if *ticket == of => Some(answer),
            _ => None,
        })
    }

    pub(crate) fn is_granted(&self, of: Ticket) -> bool {
        let mut effects = self.effects.iter();
        effects.any(|effect| matches!(effect, Effect::Granted(ticket, _) if *ticket == of))
    }

    pub(crate) fn holding(&self, ticket: Ticket) -> Option<Holding> {
        self.shard.holding(self.now, &self.name, ticket)
    }

    pub(crate) fn remaining(&self, ticket: Ticket) -> Option<Duration> {
        self.holding(ticket)?.remaining
    }

    pub(crate) fn holds(&self, ticket: Ticket) -> bool {
        self.remaining(ticket).is_some()
    }
}

/// Returns the reply to the claim of a tick that is granted, at this attempt.
pub(crate) fn won(number: GrantNumber, attempt: u32) -> ClaimReply {
    ClaimReply::Granted(GrantReply {
        number,
        attempt,
        ..GrantReply::default()
    })
}
