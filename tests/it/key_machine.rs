//! The key machine, fed with answers that no store gives on demand.

use std::time::Duration;

use tenure::Key;
use tenure::error::LostCause;
use tenure::protocol::message::{
    Call, CallAnswer, CallTime, ClaimReply, Grant, GrantNumber, LeaveReply, Name, Payload, QueueOwner,
    Redirect, Reply, TickRefusal, TickTime, Verb,
};
use tenure::protocol::step::{
    AcquireError, Effect, InboxState, Input, LockOptions, Outcome, Outgoing, Rules, Ticket, WhyDenied,
};
use tenure::testing::timed_out;

use crate::failures::Why;
use crate::help::ms;
use crate::machine::{Machine as Engine, asks, options, won};

fn a_job(queues: bool) -> Engine {
    Engine::of(
        Name::job(Key::from("a")),
        Rules {
            queues,
            ..Rules::default()
        },
    )
}

/// The first of three callers has handed the lease on to the second, whose release is a yield.
fn yielding() -> (Engine, [Ticket; 3]) {
    let mut engine = Engine::yielding();
    let tickets = [engine.lock(false), engine.lock(false), engine.lock(false)];
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    engine.tell(Input::Release(tickets[0]));
    engine.tell(Input::Release(tickets[1]));
    (engine, tickets)
}

#[test]
fn a_release_hears_that_a_yield_found_the_lease_gone() {
    let (mut engine, tickets) = yielding();
    assert!(matches!(engine.sent().request.verb, Verb::Yield { .. }));
    // Another client deleted the record.
    engine.answer(ClaimReply::Gone);
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
fn a_release_is_answered_when_a_push_overtakes_its_yield_and_no_caller_waits() {
    let (mut engine, tickets) = yielding();
    let Verb::Yield { to } = engine.sent().request.verb else {
        panic!("{:?} is no yield", engine.sent().request.verb)
    };
    engine.tell(Input::Cancel(tickets[2]));
    // The grant is old enough to be renewed before use.
    engine.now = engine.now + Duration::from_millis(800);
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        claim_id: to,
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
    assert!(matches!(answers[..], [Outcome::Held]), "{answers:?}");
}

#[test]
fn a_claim_follows_the_nodes_own_leave_at_once() {
    let mut engine = Engine::new(Rules::default());
    let claim_id = engine.claim_id(1000);
    engine.tell(Input::Release(claim_id));
    assert_eq!(engine.sent().request.verb, Verb::Leave);
    engine.lock(false);
    assert_eq!(engine.sent().request.verb, Verb::Claim { wait: true });
}

/// The key is held by claim `n`, which is being left while the next caller claims `n+1` behind it.
fn leaving_and_claiming() -> (Engine, [Outgoing; 2], Ticket) {
    let mut engine = Engine::new(Rules::default());
    let claim_id = engine.claim_id(1000);
    engine.tell(Input::Release(claim_id));
    let leave = engine.sent();
    let next = engine.lock(false);
    let claim = engine.sent();
    assert_eq!(leave.request.verb, Verb::Leave);
    assert_eq!(claim.request.verb, Verb::Claim { wait: true });
    assert!(claim.tag.claim > leave.tag.claim, "a number lives once");
    (engine, [leave, claim], next)
}

#[test]
fn a_claim_that_follows_a_leave_is_granted_whatever_becomes_of_the_leave() {
    // The requests are answered in order.
    let (mut engine, [leave, claim], next) = leaving_and_claiming();
    engine.answer_to(&leave, engine.now, LeaveReply::Left);
    engine.answer_to(&claim, engine.now, ClaimReply::granted(GrantNumber(8)));
    assert!(engine.holds(next));

    // The leave was executed and its answer was lost. The repeated leave finds another owner: this node's next claim.
    let (mut engine, [leave, claim], next) = leaving_and_claiming();
    let heard = Some(engine.now);
    engine.fail_with(&leave, Why::Unknown, heard, timed_out());
    let again = engine.sent();
    assert_eq!(
        (again.request.verb, again.request.claim_id),
        (Verb::Leave, leave.request.claim_id)
    );
    engine.answer_to(&claim, engine.now, ClaimReply::granted(GrantNumber(8)));
    engine.answer_to(&again, engine.now, LeaveReply::NotThere);
    assert!(engine.holds(next));

    // The server executed the two in the other order, as when the script had to be loaded again. The claim is queued
    // behind this node's own record, and the leave hands over to it.
    let (mut engine, [leave, claim], next) = leaving_and_claiming();
    engine.answer_to(
        &claim,
        engine.now,
        ClaimReply::Queued(Some(1000), QueueOwner::Shared),
    );
    engine.answer_to(&leave, engine.now, LeaveReply::Left);
    assert!(!engine.is_granted(next));
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        claim_id: claim.request.claim_id,
        number: GrantNumber(8),
        lease_ms: 1000,
        attempt: 0,
    }));
    assert!(engine.holds(next));
}

#[test]
fn a_leave_and_the_claim_behind_it_are_both_asked_again_when_their_connection_breaks() {
    let (mut engine, [leave, claim], next) = leaving_and_claiming();
    let heard = Some(engine.now);
    engine.fail_with(&leave, Why::Bystander, heard, timed_out());
    let again = engine.sent();
    assert_eq!(
        (again.request.verb, again.request.claim_id),
        (Verb::Leave, leave.request.claim_id)
    );
    engine.fail_with(&claim, Why::Bystander, heard, timed_out());
    let asked = engine.sent();
    assert_eq!(
        (asked.request.verb, asked.request.claim_id),
        (Verb::HEARTBEAT, claim.request.claim_id)
    );
    // Neither request had reached the server. The unknown claim ends, and the next one follows.
    engine.answer_to(&again, engine.now, LeaveReply::Left);
    engine.answer_to(&asked, engine.now, ClaimReply::Gone);
    let next_claim = engine.sent_of(|verb| matches!(verb, Verb::Claim { .. }));
    assert!(next_claim.tag.claim > claim.tag.claim);
    engine.answer_to(&next_claim, engine.now, ClaimReply::granted(GrantNumber(8)));
    assert!(engine.holds(next));
}

/// A server that lost the lease may execute a renewal after the leave that was sent behind it, and write the lease again. So the
/// claim is left once more when the outcome of the renewal is known. The simulator meets this too seldom to be relied on.
#[test]
fn a_claim_is_left_again_when_the_leave_overtook_its_renewal() {
    let mut engine = Engine::new(Rules::default());
    let holder = engine.enter(options(900));
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(engine.take_up(holder));
    engine.passes();
    let renewal = engine.sent();
    assert!(renewal.request.verb.is_renewal());
    engine.tell(Input::Release(holder));
    let leave = engine.sent();
    assert_eq!(leave.request.verb, Verb::Leave);
    engine.answer_to(&leave, engine.now, LeaveReply::Left);
    let sends = engine.sends();
    engine.answer_to(&renewal, engine.now, ClaimReply::granted(GrantNumber(7)));
    let again = engine.sent();
    assert_eq!(
        (engine.sends(), again.request.verb, again.request.claim_id),
        (sends + 1, Verb::Leave, leave.request.claim_id)
    );
    let knows = |engine: &Engine| {
        engine
            .shard
            .knows_claim(&again.request.name, again.request.claim_id)
    };
    assert!(knows(&engine));
    engine.answer_to(&again, engine.now, LeaveReply::Left);
    assert!(!knows(&engine));
}

/// A lease is renewed until `max_hold` ends, and not after that. The holder is told first; the lease is lost when it
/// expires.
#[test]
fn a_lease_is_renewed_no_longer_than_its_holder_may_hold_it() {
    let mut engine = Engine::new(Rules {
        burst_time: ms(60_000),
        ..Rules::default()
    });
    let begin = engine.now;
    let bounded = |most| LockOptions {
        max_hold: Some(most),
        ..options(900)
    };
    let first = engine.enter(bounded(ms(1_000)));
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(engine.take_up(first));
    let mut held = Duration::ZERO;
    for _ in 0..3 {
        // A moment of the node is a 1,024th of the period.
        let period = engine.passes();
        held += period;
        assert!(
            period <= ms(300) && period > ms(300) - ms(300) / 128,
            "{period:?}"
        );
        assert!(engine.sent().request.verb.is_renewal());
        engine.answer(ClaimReply::granted(GrantNumber(7)));
    }
    let (sends, is_overdue) = (engine.sends(), |engine: &Engine, of| {
        let mut effects = engine.effects.iter();
        effects.any(|effect| matches!(effect, Effect::Overdue(ticket) if *ticket == of))
    });
    assert!(!is_overdue(&engine, first));
    assert_eq!(engine.passes(), ms(1_000) - held);
    assert!(is_overdue(&engine, first) && engine.holds(first));

    // The next holder has a `max_hold` of its own, and its lease is renewed again.
    let second = engine.enter(bounded(ms(5_000)));
    engine.tell(Input::Release(first));
    assert!(engine.take_up(second));
    assert!(engine.is_granted(second));
    engine.passes();
    assert_eq!(
        (engine.sends(), engine.sent().request.verb),
        (
            sends + 1,
            Verb::Renew {
                number: Some(GrantNumber(7))
            }
        )
    );
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    while !is_overdue(&engine, second) {
        engine.passes();
        if engine.sent().request.verb.is_renewal() && !is_overdue(&engine, second) {
            engine.answer(ClaimReply::granted(GrantNumber(7)));
        }
    }
    let (sends, told) = (engine.sends(), engine.now);
    assert_eq!(told.since(begin), ms(1_000 + 5_000));
    while engine.holds(second) {
        engine.passes();
    }
    assert!((ms(600)..=ms(900)).contains(&engine.now.since(told)));
    let lost = |effect: &Effect| matches!(effect, Effect::Lost(_, LostCause::Overdue));
    assert!(engine.effects.iter().any(lost));
    assert_eq!(engine.sends(), sends + 1, "the leave");
    assert_eq!(engine.sent().request.verb, Verb::Leave);
}

/// A renewal that was in flight tells its holder when it is answered.
#[test]
fn a_renewal_that_is_answered_too_late_tells_that_it_is_overdue() {
    let mut engine = Engine::new(Rules::default());
    let ticket = engine.enter(LockOptions {
        max_hold: Some(ms(350)),
        ..options(900)
    });
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(engine.take_up(ticket));
    engine.passes();
    let (renewal, sent) = (engine.sent(), engine.now);
    engine.later(ms(100));
    engine.answer_to(&renewal, sent, ClaimReply::granted(GrantNumber(7)));
    let overdue = |effect: &&Effect| matches!(effect, Effect::Overdue(_));
    assert_eq!(engine.effects.iter().filter(overdue).count(), 1);
    while engine.holds(ticket) {
        engine.passes();
    }
    assert_eq!(engine.effects.iter().filter(overdue).count(), 1, "told twice");
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
            engine.answer(LeaveReply::Left);
            continue;
        }
        requests += 1;
        assert!(requests < 20, "confirming without end");
        let before = engine.sends();
        engine.answer_to(&outgoing, sent, ClaimReply::granted(GrantNumber(7)));
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
    assert!(leaves >= 2, "no other caller was let in");
}

#[test]
fn a_push_unknown_to_the_store_starts_no_request_loop() {
    let mut engine = Engine::new(Rules::default());
    let ticket = engine.lock(false);
    engine.answer(ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
    let claim = engine.sent();
    engine.later(ms(900));
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        claim_id: claim.request.claim_id,
        number: GrantNumber(9),
        lease_ms: 1000,
        attempt: 0,
    }));
    let call = engine.sent();
    assert!(call.request.verb.is_renewal());
    // An answer that was executed before the grant says nothing about it. The request is repeated after a pause.
    let before = engine.sends();
    let earlier = tenure::protocol::time::Instant::from_nanos(engine.now.as_nanos() - 1_000_000);
    engine.answer_to(
        &call,
        earlier,
        ClaimReply::Queued(Some(60_000), QueueOwner::Shared),
    );
    assert_eq!(engine.sends(), before, "asked again at once");
    assert!(engine.passes() >= ms(18));
    // An answer that was executed after the grant says that there is none. The claim waits as before.
    engine.answer(ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
    assert!(engine.passes() >= ms(250), "looked again too soon");
    assert!(!engine.is_granted(ticket));
}

#[test]
fn no_caller_is_handed_a_shorter_lease_than_requested() {
    let mut engine = Engine::new(Rules::default());
    let short = engine.claim_id(1000);
    let [shorter, long, last] = [500, 60_000, 1000].map(|lease| engine.enter(options(lease)));
    engine.tell(Input::Release(short));
    assert!(engine.is_granted(shorter), "a longer one is shared");
    engine.tell(Input::Release(shorter));
    assert!(!engine.is_granted(long), "handed what is left of a short lease");
    let yielded = engine.sent().request;
    assert!(matches!(yielded.verb, Verb::Yield { .. }));
    assert_eq!(
        yielded.term.lease_ms, 60_000,
        "the yield has the terms of the long lease"
    );
    engine.answer(ClaimReply::granted(GrantNumber(8)));
    assert!(engine.is_granted(long));
    let left = engine.remaining(long);
    assert_eq!(left, Some(ms(60_000)));
    engine.tell(Input::Release(long));
    assert!(engine.is_granted(last));
}

#[test]
fn a_queued_claim_does_not_serve_a_caller_with_a_longer_lease() {
    let mut engine = Engine::new(Rules::default());
    let short = engine.enter(options(1000));
    engine.answer(ClaimReply::Queued(Some(5_000), QueueOwner::Shared));
    let long = engine.enter(options(60_000));
    engine.tell(Input::Cancel(short));
    let claim = engine.sent();
    engine.tell(Input::Pushed(Grant {
        name: engine.name.clone(),
        claim_id: claim.request.claim_id,
        number: GrantNumber(9),
        lease_ms: 1000,
        attempt: 0,
    }));
    assert!(!engine.is_granted(long));
    let yielded = engine.sent().request;
    assert!(matches!(yielded.verb, Verb::Yield { .. }));
    assert_eq!(
        (yielded.claim_id, yielded.term.lease_ms),
        (claim.request.claim_id, 60_000)
    );
    engine.answer(ClaimReply::granted(GrantNumber(10)));
    assert!(engine.is_granted(long));
}

#[test]
fn a_grant_that_is_not_fetched_is_kept_for_one_lease() {
    let mut engine = Engine::new(Rules::default());
    let forgotten = engine.lock(false);
    engine.answer(ClaimReply::granted(GrantNumber(7)));
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
        if engine.sent().request.verb.is_renewal() {
            engine.answer(ClaimReply::granted(GrantNumber(7)));
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
    let claim_id = engine.claim_id(1000);
    for _ in 0..20 {
        engine.passes();
        engine.answer(ClaimReply::granted(GrantNumber(7)));
        assert!(engine.holds(claim_id));
    }
}

#[test]
fn a_full_node_refuses_only_callers_that_must_wait() {
    let mut engine = Engine::new(Rules::default());
    let full = LockOptions {
        node_is_full: true,
        ..options(1000)
    };
    let first = engine.enter(full);
    assert!(engine.denial(first).is_none(), "the key is not known to be taken");
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    let waits = engine.enter(full);
    assert!(matches!(engine.denial(waits), Some(AcquireError::NodeFull)));
    let tries = engine.enter(LockOptions { wait: false, ..full });
    assert!(matches!(engine.denial(tries), Some(AcquireError::Busy)));
    let mut job = a_job(true);
    job.tick(100);
    let tick = job.enter(LockOptions {
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
        engine.answer_to(
            claim,
            engine.now,
            ClaimReply::Queued(Some(60_000), QueueOwner::Shared),
        );
    }
    // Each caller looks once, is answered, and leaves, from the middle outwards.
    engine.later(ms(400));
    engine.wake();
    let looks: Vec<_> = engine.effects.drain(..).collect();
    assert_eq!(looks.len(), tickets.len());
    for look in &looks {
        if let Effect::Send(outgoing) = look {
            engine.answer_to(
                outgoing,
                engine.now,
                ClaimReply::Queued(Some(60_000), QueueOwner::Shared),
            );
        }
    }
    for ticket in tickets[5_000..].iter().chain(&tickets[..5_000]) {
        engine.tell(Input::Cancel(*ticket));
        engine.answer(LeaveReply::Left);
    }
    assert!(engine.shard.is_empty());
    // Walking all claims in each of 50,000 steps takes minutes in a debug build, and this takes a second.
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// Renews the keys that are due at `now`, answers the renewals at once, and returns the keys.
fn renew_what_is_due(engine: &mut Engine) -> Vec<Name> {
    let mut renewed = Vec::new();
    while let Some(name) = engine.wake_next() {
        assert!(engine.sent().request.verb.is_renewal());
        engine.name = name.clone();
        engine.answer(ClaimReply::granted(GrantNumber(7)));
        renewed.push(name);
    }
    renewed
}

#[test]
fn leases_due_at_once_after_an_outage_spread_again() {
    const APART: Duration = Duration::from_millis(20);
    let mut engine = Engine::new(Rules::default());
    let names: Vec<Name> = (0..10).map(|n| Name::lock(Key::from(format!("{n}")))).collect();
    for name in &names {
        engine.name = name.clone();
        engine.lock(false);
        engine.answer(ClaimReply::granted(GrantNumber(7)));
        engine.now = engine.now + APART;
    }
    // The keys are due after 333 to 513 ms. Nothing is answered before 600 ms, and then everything is.
    engine.now = engine.now + (Duration::from_millis(600) - 10 * APART);
    assert_eq!(renew_what_is_due(&mut engine).len(), names.len());
    // For a third of a lease nothing is late: the keys are renewed one after the other, in the order they were taken.
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
        let apart = pair[1].1.since(pair[0].1);
        let moment = ms(1_000) / 3 / 1_024;
        assert!(
            apart.abs_diff(APART) <= moment,
            "the renewals stay together: {dues:?}"
        );
    }
}

#[test]
fn a_store_that_cannot_queue_is_asked_again_until_the_tick_is_over() {
    let mut engine = a_job(false);
    let standby = engine.tick(100);
    let first = engine.sent();
    engine.answer(ClaimReply::Busy(Some(5_000)));
    assert!(engine.denial(standby).is_none(), "told busy");
    let passed = engine.passes();
    let first_pause = Duration::from_millis(30);
    assert!(passed <= first_pause && passed >= first_pause / 2, "{passed:?}");
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
    engine.answer(ClaimReply::Tick(TickRefusal::Over));
    assert!(matches!(
        engine.told_denial(standby),
        Some(WhyDenied::Tick(TickRefusal::Over))
    ));
    assert!(engine.shard.is_empty());
}

#[test]
fn a_store_that_cannot_queue_gives_a_dead_winners_tick_to_the_next_claim() {
    let mut engine = a_job(false);
    let standby = engine.tick(100);
    engine.answer(ClaimReply::Busy(Some(1)));
    engine.passes();
    engine.answer(won(GrantNumber(9), 2));
    assert_eq!(engine.holding(standby).map(|of| of.attempt), Some(2));
    assert!(engine.holds(standby));
}

#[test]
fn a_tick_does_not_wait_for_the_timer_of_an_earlier_one() {
    let mut engine = a_job(false);
    engine.tick(100);
    engine.answer(ClaimReply::Busy(Some(5_000)));
    let newer = engine.tick(200);
    let sent = engine.sent().request;
    assert_eq!(
        (sent.mark, sent.verb),
        (Some(TickTime(200)), Verb::Claim { wait: true })
    );
    engine.answer(won(GrantNumber(9), 1));
    assert_eq!(engine.holding(newer).map(|of| of.attempt), Some(1));
}

#[test]
fn only_consecutive_late_claims_are_counted() {
    for between in [
        ClaimReply::Tick(TickRefusal::Over),
        ClaimReply::Tick(TickRefusal::Early(Duration::from_millis(5))),
        ClaimReply::Busy(None),
    ] {
        let mut engine = a_job(true);
        // While the tick runs, the node remembers the job.
        engine.tick(100);
        engine.answer(won(GrantNumber(7), 1));
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
                    engine.told_denial(ticket),
                    Some(
                        WhyDenied::Tick(TickRefusal::Over | TickRefusal::Early(_))
                            | WhyDenied::Error(AcquireError::Busy)
                    )
                ),
                "{:?}",
                engine.told_denial(ticket)
            );
        }
    }
}

/// A call makes no claim, so there is nothing to withdraw.
#[test]
fn a_call_that_is_dropped_unanswered_is_not_left() {
    let mut engine = a_job(true);
    let open = Call::Open {
        fingerprint: 0,
        over: None,
    };
    let ticket = engine.call(asks(1000, open));
    assert!(matches!(engine.sent().request.verb, Verb::Call(_)));
    let sends = engine.sends();
    engine.tell(Input::Cancel(ticket));
    assert!(engine.shard.is_empty(), "nothing is left to do");
    engine.fail(Why::Unknown, Some(engine.now));
    assert_eq!(engine.sends(), sends, "left, and there was no claim");
    // A late answer has no effect either.
    engine.answer(CallAnswer::Report(Box::default()));
    assert_eq!(engine.sends(), sends);
    assert!(engine.shard.is_empty());
}

/// A slot may be half moved for long, and each call of a key asks by itself. They ask ever less often, and together no more
/// than as many waiters that expect no push.
#[test]
fn calls_of_a_half_moved_key_ask_less_often_as_time_passes() {
    const CALLS: usize = 20;
    let mut engine = Engine::of(Name::latch(Key::from("a")), Rules::default());
    let count = Call::CountDown {
        called: CallTime::default(),
    };
    for _ in 0..CALLS {
        engine.call(asks(30_000, count));
    }
    let (mut asked, end) = (0, engine.now + ms(5_000));
    while engine.now < end {
        let effects = std::mem::take(&mut engine.effects);
        for effect in &effects {
            if let Effect::Send(outgoing) = effect {
                asked += 1;
                let pending = Why::Elsewhere(Redirect::Pending);
                engine.fail_with(outgoing, pending, Some(engine.now), timed_out());
            }
        }
        engine.passes();
    }
    // Without growing pauses each call asks 125 times.
    assert!((30 * CALLS..50 * CALLS).contains(&asked), "{asked}");
}

/// A caller that came for one key alone while a group claimed it is not told that it is busy: the key is free.
#[test]
fn a_claim_of_one_key_that_is_left_answers_only_its_group() {
    let mut engine = Engine::new(Rules::default());
    let impatient = LockOptions {
        wait: false,
        ..options(1000)
    };
    assert!(engine.shard.is_free(&engine.name));
    let together = engine.enter(LockOptions {
        together: true,
        ..impatient
    });
    assert!(!engine.shard.is_free(&engine.name), "a caller asks for it");
    let alone = engine.enter(impatient);
    engine.answer(ClaimReply::GroupRefused);
    assert!(matches!(engine.denial(together), Some(AcquireError::Busy)));
    assert!(engine.denial(alone).is_none());
    assert_eq!(engine.sent().request.verb, Verb::Claim { wait: false });
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(engine.is_granted(alone));
    engine.tell(Input::Release(alone));
    assert!(
        engine.shard.is_free(&engine.name),
        "a claim follows the leave that is under way"
    );
}

/// Each yield continues the request count of the one before, and the count may be high.
#[test]
fn a_late_answer_about_a_yielded_grant_does_not_answer_its_leave() {
    let mut engine = Engine::yielding();
    let mut claim_id = engine.lock(false);
    engine.answer(ClaimReply::granted(GrantNumber(7)));
    let give_on = |engine: &mut Engine, claim_id: Ticket| {
        // The lease was handed on once, then yielded.
        let second = engine.lock(false);
        engine.tell(Input::Release(claim_id));
        let third = engine.lock(false);
        engine.tell(Input::Release(second));
        assert!(matches!(engine.sent().request.verb, Verb::Yield { .. }));
        third
    };
    loop {
        claim_id = give_on(&mut engine, claim_id);
        let Outgoing { tag, .. } = engine.sent();
        engine.answer(ClaimReply::granted(GrantNumber(7 + tag.claim.0)));
        assert!(engine.holds(claim_id));
        engine.effects.clear();
        if tag.seq >= 1 << 16 {
            break;
        }
    }
    assert!(engine.take_up(claim_id));
    engine.passes();
    let renewal = engine.sent();
    assert!(renewal.request.verb.is_renewal());
    // A server that recovers may execute the renewal late and write the lease again, so the lease is left, not yielded.
    let second = engine.lock(false);
    engine.tell(Input::Release(claim_id));
    engine.lock(false);
    engine.tell(Input::Release(second));
    let leave = engine.sent_of(|verb| verb == Verb::Leave);
    assert_eq!(leave.tag.claim, renewal.tag.claim);
    assert!(
        leave.tag.seq > renewal.tag.seq,
        "{:?} and {:?}",
        leave.tag,
        renewal.tag
    );
}

/// A request of one key's step is sent once, under the name of that key, and not again in the next step.
#[test]
fn a_step_of_every_key_leaves_no_effects_behind() {
    const WAITERS: u64 = 30;
    let mut engine = Engine::new(Rules::default());
    for n in 0..WAITERS {
        engine.name = Name::lock(Key::from(n));
        engine.lock(false);
        engine.answer(ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
    }
    let asked = |engine: &mut Engine, step: &str| {
        let mut asked = Vec::new();
        let now = engine.now;
        let mut keep = |name: &Name, effect: &Effect| match effect {
            Effect::Send(outgoing) => {
                assert_eq!(*name, outgoing.request.name, "{step}");
                asked.push((outgoing.tag, outgoing.request.verb));
            }
            other => panic!("{step}: {other:?}"),
        };
        match step {
            "inbox" => engine.shard.inbox(now, InboxState::Confirmed, &mut keep),
            "reachable" => engine.shard.reachable(now, false, |_| true, &mut keep),
            _ => {
                let ticket = engine.shard.issue();
                let name = Name::lock(Key::from("another"));
                let input = Input::Lock(ticket, options(1000));
                let effects = engine.shard.handle(now, &name, input);
                effects.iter().for_each(|effect| keep(&name, effect));
            }
        }
        asked
    };
    let renewals = asked(&mut engine, "inbox");
    assert_eq!(renewals.len() as u64, WAITERS);
    assert!(renewals.iter().all(|(_, verb)| verb.is_renewal()));
    assert!(asked(&mut engine, "reachable").is_empty(), "nothing failed");
    let claims = asked(&mut engine, "another");
    assert!(
        matches!(claims[..], [(_, Verb::Claim { wait: true })]),
        "{claims:?}"
    );
    // A claim that is given up is reported under its own name, too.
    let mut told = Vec::new();
    let now = engine.now;
    engine.shard.close(now, false, |name, effect| {
        if let Effect::Denied(ticket, WhyDenied::Error(AcquireError::Closed)) = effect {
            told.push((name.clone(), *ticket));
        }
    });
    assert_eq!(told.len() as u64, WAITERS + 1);
}

/// Nine candidates of one process have so many claims that these are found by an index. Their values stay, so whichever of them is
/// granted proclaims its own.
#[test]
fn nine_candidates_of_one_process_keep_their_values() {
    let mut engine = Engine::of(Name::election(Key::from("a")), Rules::default());
    let candidate = |engine: &mut Engine, value: u8| {
        let options = LockOptions {
            solo: true,
            ..options(1_000)
        };
        let ticket = engine.shard.issue();
        let value = Payload([value][..].into());
        engine.tell(Input::Campaign(ticket, options, value));
    };
    for value in 0..9 {
        candidate(&mut engine, value);
        engine.answer(ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
    }
    engine.effects.clear();
    engine.later(ms(334));
    engine.wake();
    let sent = engine.effects.iter().filter_map(|effect| match effect {
        Effect::Send(outgoing) => Some(outgoing.request.data.as_ref().map(|data| data.0[0])),
        _ => None,
    });
    let mut sent: Vec<_> = sent.collect();
    sent.sort();
    assert_eq!(sent, Vec::from_iter((0..9).map(Some)));
}
