//! The engine, told what to see: answers that no store gives on demand.

use std::time::Duration;

use tenure::Key;
use tenure::error::LostCause;
use tenure::protocol::context::Seed;
use tenure::protocol::message::{Grant, LeaseTimes, NO_TICK, Name, NodeId, Reply, TickTime, Verb};
use tenure::protocol::shard::Shard;
use tenure::protocol::step::{AcquireError, AcquireOptions, Effect, Input, Outcome, Outgoing, Rules, Ticket};
use tenure::protocol::time::Instant;

/// A shard, its key, and what it sent.
struct Engine {
    shard: Shard,
    name: Name,
    now: Instant,
    effects: Vec<Effect>,
}

impl Engine {
    fn new(rules: Rules) -> Self {
        Engine::of(Name::lock(Key::from("a")), rules)
    }

    fn of(name: Name, rules: Rules) -> Self {
        Engine {
            shard: Shard::new(NodeId::numbered(1), 0, 1, Seed::numbered(1), rules),
            name,
            now: Instant::from_nanos(1_000_000_000),
            effects: Vec::new(),
        }
    }

    fn tell(&mut self, input: Input) {
        self.shard.handle(self.now, &self.name, input, &mut self.effects);
    }

    fn lock(&mut self, fixed: bool) -> Ticket {
        self.want(fixed, NO_TICK)
    }

    fn tick(&mut self, mark: TickTime) -> Ticket {
        self.want(false, mark)
    }

    fn want(&mut self, fixed: bool, mark: TickTime) -> Ticket {
        let ticket = self.shard.issue();
        let want = AcquireOptions {
            term: LeaseTimes {
                lease_ms: 1000,
                margin_ms: 250,
            },
            wait: true,
            fixed,
            mark,
            limit: 10,
            node_is_full: false,
        };
        self.tell(Input::Lock(ticket, want));
        ticket
    }

    /// The latest request.
    fn sent(&self) -> Outgoing {
        let sent = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send(outgoing) => Some(outgoing.clone()),
            _ => None,
        });
        sent.expect("a request")
    }

    fn answer(&mut self, reply: Reply) {
        let (tag, sent) = (self.sent().tag, self.now);
        self.tell(Input::Answered { tag, sent, reply });
    }

    /// Until the next timer.
    fn passes(&mut self) -> Duration {
        let due = self.shard.next_due().expect("something is due");
        let passed = due.since(self.now);
        self.now = due;
        self.shard.wake(self.now, &mut self.effects);
        passed
    }

    fn denial(&self, of: Ticket) -> Option<&AcquireError> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Denied(ticket, denial) if *ticket == of => Some(denial),
            _ => None,
        })
    }
}

fn a_job(queues: bool) -> Engine {
    Engine::of(
        Name::job(Key::from("a")),
        Rules {
            queues,
            ..Rules::default()
        },
    )
}

/// The first of three has handed on to the second, whose release is a yield.
fn yielding() -> (Engine, [Ticket; 3]) {
    let mut engine = Engine::new(Rules {
        burst: 1,
        ..Rules::default()
    });
    let tickets = [engine.lock(false), engine.lock(false), engine.lock(false)];
    engine.answer(Reply::Granted(7));
    engine.tell(Input::Release(tickets[0]));
    engine.tell(Input::Release(tickets[1]));
    (engine, tickets)
}

#[test]
fn a_release_hears_that_a_yield_found_the_lease_gone() {
    let (mut engine, tickets) = yielding();
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
fn a_release_is_answered_when_a_push_overtakes_its_yield_and_nobody_wants_the_lease() {
    let (mut engine, tickets) = yielding();
    let Verb::Yield { to } = engine.sent().request.verb else {
        panic!("{:?} is no yield", engine.sent().request.verb)
    };
    engine.tell(Input::Cancel(tickets[2]));
    // So old that it would be renewed before use.
    engine.now = engine.now + Duration::from_millis(800);
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        holder: to,
        number: 9,
        lease_ms: 1000,
        attempt: 0,
    }));
    assert_eq!(engine.sent().request.verb, Verb::Leave);
    let answers: Vec<_> = engine
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Released(ticket, outcome) if *ticket == tickets[1] => Some(outcome),
            _ => None,
        })
        .collect();
    assert!(matches!(answers[..], [Outcome::Kept]), "{answers:?}");
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

#[test]
fn a_store_that_cannot_queue_is_asked_anew_until_the_tick_is_over() {
    let mut engine = a_job(false);
    let standby = engine.tick(100);
    let first = engine.sent();
    engine.answer(Reply::Busy(Some(5_000)));
    assert!(engine.denial(standby).is_none(), "told busy");
    let passed = engine.passes();
    let third = Duration::from_millis(1000) / 3;
    assert!(passed <= third && passed >= third * 8 / 10, "{passed:?}");
    let again = engine.sent();
    assert_eq!(
        (again.request.verb, again.request.mark),
        (Verb::Claim { wait: true }, 100)
    );
    assert!(
        again.tag.claim > first.tag.claim,
        "a number lives once: {:?} after {:?}",
        again.tag,
        first.tag
    );
    engine.answer(Reply::Over);
    assert!(matches!(engine.denial(standby), Some(AcquireError::Over)));
    assert!(engine.shard.is_empty());
}

#[test]
fn a_store_that_cannot_queue_gives_a_dead_winners_tick_to_whoever_asks_again() {
    let mut engine = a_job(false);
    let standby = engine.tick(100);
    engine.answer(Reply::Busy(Some(1)));
    engine.passes();
    engine.answer(Reply::Won(9, 2));
    assert_eq!(engine.shard.attempt(&engine.name, standby), 2);
    assert!(
        engine
            .shard
            .remaining(engine.now, &engine.name, standby)
            .is_some()
    );
}

#[test]
fn a_tick_does_not_wait_for_the_timer_of_an_earlier_one() {
    let mut engine = a_job(false);
    engine.tick(100);
    engine.answer(Reply::Busy(Some(5_000)));
    let newer = engine.tick(200);
    let sent = engine.sent().request;
    assert_eq!((sent.mark, sent.verb), (200, Verb::Claim { wait: true }));
    engine.answer(Reply::Won(9, 1));
    assert_eq!(engine.shard.attempt(&engine.name, newer), 1);
}

#[test]
fn only_late_claims_in_a_row_are_counted_whatever_the_answers_between_them_say() {
    for between in [Reply::Over, Reply::Early(5), Reply::Busy(None)] {
        let mut engine = a_job(true);
        // While it runs, what the node knows of the job stays.
        engine.tick(100);
        engine.answer(Reply::Won(7, 1));
        for mark in [200, 300, 400] {
            let ticket = engine.tick(mark);
            engine.answer(Reply::Late);
            assert!(
                engine.denial(ticket).is_none(),
                "{mark}, {between:?} between: {:?}",
                engine.denial(ticket)
            );
            assert_eq!(engine.sent().request.mark, mark, "asked again");
            engine.answer(between.clone());
            assert!(
                matches!(
                    engine.denial(ticket),
                    Some(AcquireError::Over | AcquireError::Early(_) | AcquireError::Busy)
                ),
                "{:?}",
                engine.denial(ticket)
            );
        }
    }
}
