//! The engine, told what to see: answers that no store gives on demand.

use std::time::Duration;

use tenure::Key;
use tenure::claim::{Name, NodeId, Reply, Term, Verb};
use tenure::engine::moment::Moment;
use tenure::engine::shard::Shard;
use tenure::engine::{Effect, Input, Outcome, Parcel, Rules, Ticket, Want};
use tenure::error::LostCause;

/// A shard, its key, and what it sent.
struct Engine {
    shard: Shard,
    name: Name,
    now: Moment,
    effects: Vec<Effect>,
}

impl Engine {
    fn new(rules: Rules) -> Self {
        Engine {
            shard: Shard::new(NodeId::numbered(1), 0, 1, 1, rules),
            name: Name::lock(Key::from("a")),
            now: Moment::from_nanos(1_000_000_000),
            effects: Vec::new(),
        }
    }

    fn tell(&mut self, input: Input) {
        self.shard.handle(self.now, &self.name, input, &mut self.effects);
    }

    fn lock(&mut self, fixed: bool) -> Ticket {
        let ticket = self.shard.issue();
        let want = Want {
            term: Term {
                lease_ms: 1000,
                margin_ms: 250,
            },
            wait: true,
            fixed,
            mark: tenure::claim::NO_TICK,
            limit: 10,
        };
        self.tell(Input::Lock(ticket, want));
        ticket
    }

    /// The latest request.
    fn sent(&self) -> Parcel {
        let sent = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send(parcel) => Some(parcel.clone()),
            _ => None,
        });
        sent.expect("a request")
    }

    fn answer(&mut self, reply: Reply) {
        let (tag, sent) = (self.sent().tag, self.now);
        self.tell(Input::Answered { tag, sent, reply });
    }
}

#[test]
fn a_release_hears_that_a_yield_found_the_lease_gone() {
    let mut engine = Engine::new(Rules {
        burst: 1,
        ..Rules::default()
    });
    let tickets = [engine.lock(false), engine.lock(false), engine.lock(false)];
    engine.answer(Reply::Granted(7));
    engine.tell(Input::Release(tickets[0]));
    engine.tell(Input::Release(tickets[1]));
    assert!(matches!(engine.sent().request.verb, Verb::Yield { .. }));
    // Somebody deleted the record.
    engine.answer(Reply::Gone);
    let outcome = engine.effects.iter().find_map(|effect| match effect {
        Effect::Released(ticket, outcome) if *ticket == tickets[1] => Some(outcome.clone()),
        _ => None,
    });
    assert!(
        matches!(outcome, Some(Outcome::Lost(LostCause::Gone))),
        "{outcome:?}"
    );
}

#[test]
fn a_claim_that_is_due_again_waits_for_our_own_leave() {
    let mut engine = Engine::new(Rules {
        queues: false,
        ..Rules::default()
    });
    let holder = engine.lock(true);
    engine.answer(Reply::Granted(7));
    engine.lock(false);
    engine.answer(Reply::Busy(Some(5)));
    engine.tell(Input::Cancel(holder));
    assert_eq!(engine.sent().request.verb, Verb::Leave);
    engine.now = engine.now + Duration::from_millis(10);
    for _ in 0..3 {
        let _ = engine.shard.wake_next(engine.now, &mut engine.effects);
    }
    assert!(
        engine.shard.next_due().is_none_or(|due| due > engine.now),
        "due for ever"
    );
    engine.answer(Reply::Done);
    assert_eq!(engine.sent().request.verb, Verb::Claim { wait: true });
}

/// The keys that are due at `now`, renewed and answered at once.
fn renew_what_is_due(engine: &mut Engine) -> Vec<Name> {
    let mut renewed = Vec::new();
    while let Some(name) = engine.shard.wake_next(engine.now, &mut engine.effects) {
        assert_eq!(engine.sent().request.verb, Verb::Renew);
        engine.name = name.clone();
        engine.answer(Reply::Granted(7));
        renewed.push(name);
    }
    renewed
}

#[test]
fn leases_that_an_outage_made_due_at_once_part_again() {
    const APART: Duration = Duration::from_millis(20);
    let mut engine = Engine::new(Rules::default());
    let names: Vec<Name> = (0..10).map(|n| Name::lock(Key::from(format!("{n}")))).collect();
    for name in &names {
        engine.name = name.clone();
        engine.lock(false);
        engine.answer(Reply::Granted(7));
        engine.now = engine.now + APART;
    }
    // Due after 333 to 513 ms. Nothing is answered before 600 ms, and then everything is.
    engine.now = engine.now + (Duration::from_millis(600) - 10 * APART);
    assert_eq!(renew_what_is_due(&mut engine).len(), names.len());
    // A third of a lease in which nothing comes late: one after the other, as they were taken.
    let end = engine.now + Duration::from_millis(1000) / 3;
    let mut dues = Vec::new();
    while let Some(due) = engine.shard.next_due().filter(|due| *due <= end) {
        engine.now = due;
        dues.extend(renew_what_is_due(&mut engine).into_iter().map(|name| (name, due)));
    }
    assert_eq!(
        dues.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(),
        names
    );
    for pair in dues.windows(2) {
        assert_eq!(pair[1].1.since(pair[0].1), APART, "they stay in step: {dues:?}");
    }
}
