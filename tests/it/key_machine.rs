//! The key machine, told what to see: answers that no store gives on demand.

use std::time::Duration;

use tenure::Key;
use tenure::error::LostCause;
use tenure::protocol::message::{Grant, GrantNumber, Name, Reply, TickTime, Verb};
use tenure::protocol::step::{AcquireError, AcquireOptions, Effect, Input, Outcome, Rules, Ticket};

use crate::help::ms;
use crate::machine::{Machine as Engine, options};

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
    let mut engine = Engine::yielding();
    let tickets = [engine.lock(false), engine.lock(false), engine.lock(false)];
    engine.answer(Reply::Granted(GrantNumber(7)));
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
        number: GrantNumber(9),
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
fn a_claim_follows_our_own_leave_at_once() {
    let mut engine = Engine::new(Rules::default());
    let holder = engine.holder(1000);
    engine.tell(Input::Release(holder));
    assert_eq!(engine.sent().request.verb, Verb::Leave);
    engine.lock(false);
    assert_eq!(engine.sent().request.verb, Verb::Claim { wait: true });
}

#[test]
fn answers_that_are_too_old_to_be_used_end_with_an_error_and_let_others_in() {
    let mut engine = Engine::new(Rules::default());
    let ticket = engine.lock(false);
    let (mut requests, mut leaves) = (0, 0);
    while engine.denial(ticket).is_none() {
        let (outgoing, sent) = (engine.sent(), engine.now);
        let verb = outgoing.request.verb;
        engine.later(ms(900));
        if matches!(verb, Verb::Leave) {
            leaves += 1;
            engine.answer(Reply::Done);
            continue;
        }
        requests += 1;
        assert!(requests < 20, "confirming without end");
        let before = engine.sends();
        engine.answer_to(&outgoing, sent, Reply::Granted(GrantNumber(7)));
        if engine.sends() == before {
            let pause = engine.passes();
            assert!(pause >= ms(18), "asked again after {pause:?}");
        } else if let Some(leave) = engine.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send(outgoing) if outgoing.request.verb == Verb::Leave => Some(outgoing.clone()),
            _ => None,
        }) && leave.tag.claim == outgoing.tag.claim
        {
            leaves += 1;
        }
    }
    assert!(matches!(engine.denial(ticket), Some(AcquireError::Store(_))));
    assert!(leaves >= 2, "nobody else was let in");
}

#[test]
fn a_push_that_the_store_knows_nothing_of_makes_no_storm() {
    let mut engine = Engine::new(Rules::default());
    let ticket = engine.lock(false);
    engine.answer(Reply::Queued(Some(60_000)));
    let claim = engine.sent();
    engine.later(ms(900));
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        holder: claim.request.holder,
        number: GrantNumber(9),
        lease_ms: 1000,
        attempt: 0,
    }));
    let question = engine.sent();
    assert_eq!(question.request.verb, Verb::Renew);
    // One that was executed before the grant says nothing of it, and is asked again after a pause.
    let before = engine.sends();
    let earlier = tenure::protocol::time::Instant::from_nanos(engine.now.as_nanos() - 1_000_000);
    engine.answer_to(&question, earlier, Reply::Queued(Some(60_000)));
    assert_eq!(engine.sends(), before, "asked again at once");
    assert!(engine.passes() >= ms(18));
    // One that was asked after it says that there is none: it waits as before.
    engine.answer(Reply::Queued(Some(60_000)));
    assert!(engine.passes() >= ms(250), "looked again too soon");
    assert!(!engine.is_granted(ticket));
}

#[test]
fn nobody_is_handed_a_shorter_lease_than_it_wants() {
    let mut engine = Engine::new(Rules::default());
    let short = engine.holder(1000);
    let [shorter, long, last] = [500, 60_000, 1000].map(|lease| engine.enter(options(lease)));
    engine.tell(Input::Release(short));
    assert!(engine.is_granted(shorter), "a longer one is shared");
    engine.tell(Input::Release(shorter));
    assert!(!engine.is_granted(long), "handed what is left of a short lease");
    let yielded = engine.sent().request;
    assert!(matches!(yielded.verb, Verb::Yield { .. }));
    assert_eq!(yielded.term.lease_ms, 60_000, "goes on with its terms");
    engine.answer(Reply::Granted(GrantNumber(8)));
    assert!(engine.is_granted(long));
    let left = engine.shard.remaining(engine.now, &engine.name, long);
    assert_eq!(left, Some(ms(60_000)));
    engine.tell(Input::Release(long));
    assert!(engine.is_granted(last));
}

#[test]
fn a_queued_claim_that_is_granted_is_no_use_to_who_wants_a_longer_lease() {
    let mut engine = Engine::new(Rules::default());
    let short = engine.enter(options(1000));
    engine.answer(Reply::Queued(Some(5_000)));
    let long = engine.enter(options(60_000));
    engine.tell(Input::Cancel(short));
    let claim = engine.sent();
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        holder: claim.request.holder,
        number: GrantNumber(9),
        lease_ms: 1000,
        attempt: 0,
    }));
    assert!(!engine.is_granted(long));
    let yielded = engine.sent().request;
    assert!(matches!(yielded.verb, Verb::Yield { .. }));
    assert_eq!(
        (yielded.holder, yielded.term.lease_ms),
        (claim.request.holder, 60_000)
    );
    engine.answer(Reply::Granted(GrantNumber(10)));
    assert!(engine.is_granted(long));
}

#[test]
fn a_grant_that_nobody_fetches_is_kept_for_one_lease() {
    let mut engine = Engine::new(Rules::default());
    let forgotten = engine.lock(false);
    engine.answer(Reply::Granted(GrantNumber(7)));
    let granted = engine.now;
    let next = engine.lock(false);
    let lost = |engine: &Engine, of: Ticket| {
        engine.effects.iter().find_map(|effect| match effect {
            Effect::Lost(ticket, cause) if *ticket == of => Some(*cause),
            _ => None,
        })
    };
    while lost(&engine, forgotten).is_none() {
        engine.passes();
        if engine.sent().request.verb == Verb::Renew {
            engine.answer(Reply::Granted(GrantNumber(7)));
        }
        assert!(engine.now.since(granted) <= ms(1000), "renewed for ever");
    }
    assert_eq!(lost(&engine, forgotten), Some(LostCause::Unfetched));
    assert_eq!(engine.now.since(granted), ms(1000));
    assert!(engine.is_granted(next) || matches!(engine.sent().request.verb, Verb::Yield { .. }));
    assert!(!engine.holds(forgotten));
}

#[test]
fn a_grant_that_was_fetched_is_renewed_for_ever() {
    let mut engine = Engine::new(Rules::default());
    let holder = engine.holder(1000);
    for _ in 0..20 {
        engine.passes();
        engine.answer(Reply::Granted(GrantNumber(7)));
        assert!(engine.holds(holder));
    }
}

#[test]
fn a_full_node_refuses_only_whoever_would_have_to_wait() {
    let mut engine = Engine::new(Rules::default());
    let full = AcquireOptions {
        node_is_full: true,
        ..options(1000)
    };
    let first = engine.enter(full);
    assert!(engine.denial(first).is_none(), "the key is not known to be taken");
    engine.answer(Reply::Granted(GrantNumber(7)));
    let waits = engine.enter(full);
    assert!(matches!(engine.denial(waits), Some(AcquireError::NodeFull)));
    let tries = engine.enter(AcquireOptions { wait: false, ..full });
    assert!(matches!(engine.denial(tries), Some(AcquireError::Busy)));
    let mut job = a_job(true);
    job.tick(100);
    let tick = job.enter(AcquireOptions {
        mark: Some(TickTime(200)),
        ..full
    });
    assert!(job.denial(tick).is_none(), "a tick is never refused for it");
}

#[test]
fn a_step_costs_no_walk_along_ten_thousand_claims() {
    let mut engine = Engine::new(Rules::default());
    let tickets: Vec<Ticket> = (0..10_000).map(|_| engine.lock(true)).collect();
    let claims: Vec<_> = engine
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send(outgoing) => Some(outgoing.clone()),
            _ => None,
        })
        .collect();
    engine.effects.clear();
    let begin = std::time::Instant::now();
    for claim in &claims {
        engine.answer_to(claim, engine.now, Reply::Queued(Some(60_000)));
    }
    // Each looks once, is answered, and goes, from the middle outwards.
    engine.later(ms(400));
    engine.shard.wake(engine.now, &mut engine.effects);
    let looks: Vec<_> = engine.effects.drain(..).collect();
    assert_eq!(looks.len(), tickets.len());
    for look in &looks {
        if let Effect::Send(outgoing) = look {
            engine.answer_to(outgoing, engine.now, Reply::Queued(Some(60_000)));
        }
    }
    for ticket in tickets[5_000..].iter().chain(&tickets[..5_000]) {
        engine.tell(Input::Cancel(*ticket));
        engine.answer(Reply::Done);
    }
    assert!(engine.shard.is_empty());
    // A walk along all of them in each of 50,000 steps takes minutes in a debug build.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

/// The keys that are due at `now`, renewed and answered at once.
fn renew_what_is_due(engine: &mut Engine) -> Vec<Name> {
    let mut renewed = Vec::new();
    while let Some(name) = engine.shard.wake_next(engine.now, &mut engine.effects) {
        assert_eq!(engine.sent().request.verb, Verb::Renew);
        engine.name = name.clone();
        engine.answer(Reply::Granted(GrantNumber(7)));
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
        engine.answer(Reply::Granted(GrantNumber(7)));
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
fn a_store_that_cannot_queue_is_asked_again_until_the_tick_is_over() {
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
        (Verb::Claim { wait: true }, Some(TickTime(100)))
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
    engine.answer(Reply::Won(GrantNumber(9), 2));
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
    assert_eq!(
        (sent.mark, sent.verb),
        (Some(TickTime(200)), Verb::Claim { wait: true })
    );
    engine.answer(Reply::Won(GrantNumber(9), 1));
    assert_eq!(engine.shard.attempt(&engine.name, newer), 1);
}

#[test]
fn only_late_claims_in_a_row_are_counted_whatever_the_answers_between_them_say() {
    for between in [Reply::Over, Reply::Early(5), Reply::Busy(None)] {
        let mut engine = a_job(true);
        // While it runs, what the node knows of the job stays.
        engine.tick(100);
        engine.answer(Reply::Won(GrantNumber(7), 1));
        for mark in [200, 300, 400] {
            let ticket = engine.tick(mark);
            engine.answer(Reply::Late);
            assert!(
                engine.denial(ticket).is_none(),
                "{mark}, {between:?} between: {:?}",
                engine.denial(ticket)
            );
            assert_eq!(engine.sent().request.mark, Some(TickTime(mark)), "asked again");
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
