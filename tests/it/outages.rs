//! What happens to waiters, holders and leaves while the store is unavailable, and when it is back.

use std::time::Duration;

use tenure::error::{LostCause, StoreErrorKind};
use tenure::protocol::message::{ClaimReply, GrantNumber, LeaveReply, QueueOwner, Reply, RunOutcome, Verb};
use tenure::protocol::step::{
    AcquireError, Class, Effect, InboxState, Input, LockOptions, Outcome, Rules, Ticket,
};

use crate::failures::Why;
use crate::help::ms;
use crate::machine::{Machine, options, won};

const HOUR: u64 = 3_600_000;

fn is_claim(verb: Verb) -> bool {
    matches!(verb, Verb::Claim { .. })
}

fn is_told_of_the_store(machine: &Machine, ticket: Ticket) -> bool {
    matches!(machine.denial(ticket), Some(AcquireError::Store(_)))
}

#[test]
fn a_bystander_claim_is_checked_at_once_and_counts_no_failure() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.lock(false);
    let number = machine.sent().tag.claim;
    for _ in 0..5 {
        let before = machine.sends();
        machine.fail(Why::Bystander, Some(machine.now));
        assert_eq!(machine.sends(), before + 1, "at once");
        let sent = machine.sent();
        assert_eq!((sent.request.verb, sent.tag.claim), (Verb::HEARTBEAT, number));
        assert!(machine.denial(ticket).is_none());
    }
    // An excused bystander is no failure, so the first failure is still to come.
    machine.fail(Why::Unknown, None);
    assert!(machine.denial(ticket).is_none());
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(machine.holds(ticket));
    // The requests are a holder's renewal, and a leave.
    machine.passes();
    let before = machine.sends();
    machine.fail(Why::Bystander, Some(machine.now));
    assert_eq!(
        (machine.sends(), machine.sent().class),
        (before + 1, Class::OwnerRenewal)
    );
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    machine.tell(Input::Release(ticket));
    machine.fail(Why::Bystander, Some(machine.now));
    machine.answer(LeaveReply::NotThere);
    let kept = |effect: &Effect| matches!(effect, Effect::Released(_, Outcome::Held));
    assert!(
        machine.effects.iter().any(kept),
        "the node's own first request did it"
    );
}

#[test]
fn connections_that_break_without_end_are_an_outage() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.lock(false);
    let heard = machine.now;
    machine.later(ms(1001));
    for _ in 0..2 {
        machine.fail(Why::Bystander, Some(heard));
    }
    assert!(is_told_of_the_store(&machine, ticket));
}

#[test]
fn a_new_caller_hears_at_once_that_the_store_is_down() {
    let mut machine = Machine::new(Rules::default());
    for wait in [true, false] {
        let ticket = machine.enter(LockOptions {
            wait,
            ..options(1000)
        });
        machine.fail(Why::Down, None);
        assert!(is_told_of_the_store(&machine, ticket));
        assert!(machine.shard.is_empty());
    }
}

#[test]
fn a_new_caller_gets_an_error_after_two_unanswered_requests() {
    let mut machine = Machine::new(Rules::default());
    let asked = machine.lock(false);
    machine.fail(Why::Unknown, None);
    assert!(machine.sent().request.verb.is_renewal());
    assert!(machine.denial(asked).is_none());
    machine.fail(Why::Unknown, None);
    assert!(is_told_of_the_store(&machine, asked));
    assert_eq!(machine.sent().request.verb, Verb::Leave);

    let mut machine = Machine::new(Rules::default());
    let unsent = machine.lock(false);
    let first = machine.sent().tag.claim;
    machine.fail(Why::No, None);
    assert!(is_claim(machine.sent().request.verb) && machine.sent().tag.claim > first);
    machine.fail(Why::No, None);
    assert!(is_told_of_the_store(&machine, unsent));
    assert!(machine.shard.is_empty());
}

#[test]
fn a_permanent_refusal_reaches_all_waiters_at_once() {
    let mut machine = Machine::new(Rules::default());
    let tickets = [machine.lock(false), machine.lock(false)];
    machine.answer(ClaimReply::Queued(Some(5_000), QueueOwner::Shared));
    machine.passes();
    machine.answer(Reply::Refused(tenure::error::StoreRefusal::NoPermission));
    for ticket in tickets {
        assert!(is_told_of_the_store(&machine, ticket));
    }
}

/// Waiters queue behind a holder of their process, whose lease is yielded while the server is down. They ride out one
/// lease, counted from when the server last answered.
#[test]
fn local_waiters_ride_out_one_lease_since_the_server_last_answered() {
    for why in [Why::Down, Why::No, Why::Unknown] {
        let mut machine = Machine::yielding();
        let tickets: Vec<Ticket> = (0..4).map(|_| machine.lock(false)).collect();
        machine.answer(ClaimReply::granted(GrantNumber(7)));
        machine.tell(Input::Release(tickets[0]));
        let heard = machine.now;
        // The server is silent for a while before any request is sent to it.
        machine.later(ms(300));
        machine.tell(Input::Release(tickets[1]));
        let newcomer = machine.lock(false);
        let mut tries = 0;
        loop {
            let outgoing = machine.sent_of(|verb| verb != Verb::Leave);
            let before = machine.sends();
            machine.fail_with(&outgoing, why, Some(heard), tenure::testing::timed_out());
            tries += 1;
            if tries > 1 || why == Why::Down {
                assert!(
                    is_told_of_the_store(&machine, newcomer),
                    "{why:?}: a newcomer waits"
                );
            }
            if is_told_of_the_store(&machine, tickets[2]) {
                break;
            }
            assert!(machine.now.since(heard) < ms(1500), "{why:?}: waits for ever");
            // Until the next claim for the waiters.
            while !machine.effects[..].iter().skip(before).any(|effect| {
                matches!(effect, Effect::Send(sent) if sent.request.verb != Verb::Leave && sent.tag != outgoing.tag)
            }) || machine.sent_of(|verb| verb != Verb::Leave).tag == outgoing.tag
            {
                machine.passes();
            }
        }
        let waited = machine.now.since(heard);
        assert!(waited >= ms(1000), "{why:?}: denied after {waited:?}");
        assert!(is_told_of_the_store(&machine, tickets[3]));
    }
}

/// A caller came after the latest answer, behind a holder of its own process. It waits as earlier callers do: it
/// rides out one lease from the sending of the first request without an answer.
#[test]
fn a_caller_behind_a_local_holder_rides_out_one_lease_of_the_outage() {
    let mut machine = Machine::new(Rules::default());
    let claim_id = machine.claim_id(1000);
    let heard = machine.now;
    machine.later(ms(100));
    let before = machine.enter(options(1000));
    // The holder's renewal is the first request that has no answer.
    machine.passes();
    let away = machine.now;
    assert_eq!(machine.sent().class, Class::OwnerRenewal);
    machine.later(ms(1));
    let after = machine.enter(options(1000));
    let mut denied = [None, None];
    while denied.iter().any(Option::is_none) {
        let outgoing = machine.sent();
        let sends = machine.sends();
        let mut failed = Why::Down.failed(machine.now, tenure::testing::timed_out());
        (failed.heard, failed.away) = (Some(heard), Some(away));
        let tag = outgoing.tag;
        machine.tell(Input::Failed { tag, failed });
        for (caller, denied) in [before, after].into_iter().zip(&mut denied) {
            if is_told_of_the_store(&machine, caller) {
                denied.get_or_insert(machine.now);
            }
        }
        while machine.sends() == sends && denied.iter().any(Option::is_none) {
            machine.passes();
        }
        assert!(machine.now.since(away) < ms(1500), "waits for ever");
    }
    assert!(!machine.holds(claim_id));
    let [before, after] = denied.map(|at| at.expect("denied").since(away));
    assert!(before >= ms(1000), "denied after {before:?} of the outage");
    assert!(after < before, "came when the server was away: {after:?}");
}

#[test]
fn a_new_caller_is_not_kept_waiting_by_earlier_waiters() {
    let mut machine = Machine::yielding();
    let tickets: Vec<Ticket> = (0..3).map(|_| machine.lock(false)).collect();
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    machine.tell(Input::Release(tickets[0]));
    let heard = machine.now;
    machine.tell(Input::Release(tickets[1]));
    machine.fail_with(
        &machine.sent_of(|verb| matches!(verb, Verb::Yield { .. })),
        Why::Down,
        Some(heard),
        tenure::testing::timed_out(),
    );
    assert!(machine.denial(tickets[2]).is_none(), "it waited before");
    machine.later(ms(1));
    let newcomer = machine.lock(false);
    let claim = machine.sent_of(is_claim);
    machine.fail_with(&claim, Why::Down, Some(heard), tenure::testing::timed_out());
    assert!(is_told_of_the_store(&machine, newcomer), "hears of it at once");
    assert!(machine.denial(tickets[2]).is_none());
    // When the store is back, the earlier waiter is claimed for.
    machine.later(ms(1));
    machine.reachable();
    machine.answer(ClaimReply::granted(GrantNumber(9)));
    assert!(machine.is_granted(tickets[2]));
}

#[test]
fn failures_of_other_requests_do_not_count_for_waiters() {
    let mut machine = Machine::new(Rules::default());
    let alone = machine.lock(true);
    machine.fail(Why::No, None);
    machine.fail(Why::No, None);
    assert!(is_told_of_the_store(&machine, alone));
    let other = machine.lock(true);
    machine.fail(Why::No, None);
    let in_line = machine.lock(false);
    machine.fail(Why::No, None);
    assert!(machine.denial(in_line).is_none(), "its first failure");
    assert!(machine.denial(other).is_none());
}

/// Returns the longest pause between requests that fail, for a lease of one hour.
fn longest_pause(machine: &mut Machine, why: Why) -> Duration {
    let heard = Some(machine.now);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let before = machine.sends();
        machine.fail(why, heard);
        if machine.sends() == before {
            longest = longest.max(machine.passes());
        }
        assert!(machine.sends() > before, "nothing is tried again");
    }
    longest
}

#[test]
fn no_pause_is_longer_than_a_second_whatever_the_lease() {
    for why in [Why::Unknown, Why::No, Why::Down] {
        let mut leaving = Machine::new(Rules::default());
        let claim_id = leaving.claim_id(HOUR);
        leaving.tell(Input::Release(claim_id));
        assert!(longest_pause(&mut leaving, why) <= ms(1000), "a leave");

        let mut waiting = Machine::new(Rules::default());
        waiting.enter(options(HOUR));
        waiting.answer(ClaimReply::Queued(None, QueueOwner::Shared));
        waiting.passes();
        assert!(longest_pause(&mut waiting, why) <= ms(1000), "a waiter");

        let mut holding = Machine::new(Rules::default());
        holding.claim_id(HOUR);
        holding.passes();
        assert!(longest_pause(&mut holding, why) <= ms(1000), "a holder");
    }
    // A short remaining lease shortens the pause.
    let mut short = Machine::new(Rules::default());
    let claim_id = short.claim_id(400);
    short.passes();
    while let Some(left) = short.remaining(claim_id) {
        short.fail(Why::Down, None);
        let pause = short.passes();
        assert!(pause <= (left / 4).max(ms(10)), "{pause:?} of {left:?}");
    }
}

#[test]
fn a_connection_that_opens_retries_all_failed_requests() {
    let mut leaving = Machine::new(Rules::default());
    let claim_id = leaving.claim_id(HOUR);
    leaving.tell(Input::Release(claim_id));
    leaving.fail(Why::Down, Some(leaving.now));

    let mut waiting = Machine::new(Rules::default());
    waiting.enter(options(HOUR));
    waiting.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    waiting.passes();
    waiting.fail(Why::Down, Some(waiting.now));

    let mut holding = Machine::new(Rules::default());
    holding.claim_id(HOUR);
    holding.passes();
    holding.fail(Why::Down, Some(holding.now));

    let mut line = Machine::yielding();
    let tickets: Vec<Ticket> = (0..3).map(|_| line.lock(false)).collect();
    line.answer(ClaimReply::granted(GrantNumber(7)));
    line.tell(Input::Release(tickets[0]));
    line.tell(Input::Release(tickets[1]));
    line.fail(Why::Down, Some(line.now));
    line.answer(LeaveReply::Left);

    for (mut machine, class) in [
        (leaving, Class::Leave),
        (waiting, Class::WaiterRenewal),
        (holding, Class::OwnerRenewal),
        (line, Class::Claim),
    ] {
        machine.later(ms(1));
        let before = machine.sends();
        machine.reachable();
        assert_eq!(machine.sends(), before + 1, "{class:?}");
        assert_eq!(machine.sent().class, class);
        // A request in flight is not sent twice.
        machine.reachable();
        assert_eq!(machine.sends(), before + 1, "{class:?}");
    }
}

#[test]
fn a_claim_that_may_still_be_executed_is_not_left_before_its_time() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.lock(false);
    machine.fail(Why::Unknown, None);
    machine.tell(Input::Cancel(ticket));
    machine.answer(ClaimReply::Gone);
    // The leave is repeated when the claim can no longer be executed, and not because a connection opens.
    let before = machine.sends();
    machine.reachable();
    assert_eq!(machine.sends(), before);
    assert_eq!(machine.passes(), ms(50));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
}

#[test]
fn after_a_shutdown_requests_are_repeated_no_longer_than_the_lease_lasts() {
    let mut machine = Machine::of(tenure::protocol::message::Name::job("a".into()), Rules::default());
    let tick = machine.tick(100);
    machine.answer(won(GrantNumber(7), 1));
    assert!(machine.take_up(tick));
    machine.tell(Input::Finish(tick, RunOutcome::Done.into()));
    let begin = machine.now;
    // Retried for eight leases, if the program keeps running.
    while machine.now.since(begin) < ms(3_000) {
        machine.fail(Why::Down, Some(begin));
        machine.passes();
    }
    assert!(!machine.shard.is_empty());
    machine.close();
    machine.fail(Why::Down, Some(begin));
    assert!(machine.shard.is_empty(), "told for longer than its lease");

    let mut machine = Machine::new(Rules::default());
    // Only a short rest of a fixed lease, and the margin, are left.
    let claim_id = machine.lock(true);
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    machine.later(ms(900));
    machine.close();
    let lost =
        |effect: &Effect| matches!(effect, Effect::Lost(ticket, LostCause::Shutdown) if *ticket == claim_id);
    assert!(machine.effects.iter().any(lost));
    let closed = machine.now;
    while !machine.shard.is_empty() {
        machine.fail(Why::Down, Some(closed));
        if machine.shard.next_due().is_some() {
            machine.passes();
        }
    }
    let (took, pause) = (machine.now.since(closed), ms(250));
    assert!(took <= ms(350) + pause, "{took:?}");
}

#[test]
fn waiters_look_often_until_pushes_are_confirmed() {
    let mut machine = Machine::new(Rules::default());
    machine.enter(options(30_000));
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    machine.inbox(InboxState::Unconfirmed);
    for _ in 0..5 {
        let pause = machine.passes();
        assert!((ms(100)..=ms(250)).contains(&pause), "{pause:?}");
        assert_eq!(machine.sent().class, Class::WaiterRenewal);
        machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    }
    machine.inbox(InboxState::Refused);
    machine.passes();
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    let pause = machine.passes();
    assert!((ms(9_000)..=ms(10_000)).contains(&pause), "{pause:?}");
}

/// A waiter that finds itself the owner by an old grant got no push. The push of a young grant may still be in
/// flight, or the request that found the grant received it.
#[test]
fn an_old_grant_that_was_not_pushed_is_noticed() {
    for (age_us, is_missed) in [(0, false), (99_000, false), (100_000, true)] {
        let mut machine = Machine::new(Rules::default());
        let ticket = machine.lock(false);
        machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
        machine.passes();
        machine.tell(Input::Answered {
            tag: machine.sent().tag,
            sent: machine.now,
            time: 7_000_000 + age_us,
            reply: ClaimReply::granted(GrantNumber(7_000_000)).into(),
        });
        assert!(machine.holds(ticket));
        let missed = machine
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::PushMissed));
        assert_eq!(missed, is_missed, "{age_us} µs old");
    }
    // The owner's own renewals report the same number again.
    let mut machine = Machine::new(Rules::default());
    machine.claim_id(1000);
    machine.passes();
    machine.tell(Input::Answered {
        tag: machine.sent().tag,
        sent: machine.now,
        time: 9_000_000,
        reply: ClaimReply::granted(GrantNumber(7)).into(),
    });
    assert!(
        !machine
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::PushMissed))
    );
}

#[test]
fn a_claim_whose_request_is_under_way_when_the_inbox_opens_looks_again() {
    let mut machine = Machine::new(Rules::default());
    machine.enter(options(30_000));
    machine.inbox(InboxState::Confirmed);
    // The claim may have been executed, and another's lease handed over, before the inbox was open.
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    assert!(machine.sent().request.verb.is_renewal());
    machine.inbox(InboxState::Unconfirmed);
    machine.inbox(InboxState::Confirmed);
    let before = machine.sends();
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    assert_eq!(machine.sends(), before + 1);
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    assert_eq!(machine.sends(), before + 1, "one more look is enough");
}

#[test]
fn an_error_tells_whether_the_key_is_held_and_why_it_is_unknown() {
    let mut machine = Machine::new(Rules::default());
    let begin = machine.now;
    machine.lock(false);
    let told = |machine: &Machine| machine.shard.is_known_taken(machine.now, &machine.name, begin);
    assert!(!told(&machine));
    machine.fail(Why::Unknown, None);
    let error = machine
        .shard
        .last_error(machine.now, &machine.name)
        .expect("the last error is known");
    assert_eq!(error.kind(), &StoreErrorKind::TimedOut);
    assert!(!told(&machine));
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    assert!(told(&machine) && machine.shard.last_error(machine.now, &machine.name).is_none());
    machine.later(ms(1));
    // The place in the queue stays known until it is asked for again.
    assert!(
        machine
            .shard
            .is_known_taken(machine.now, &machine.name, machine.now)
    );
    machine.inbox(InboxState::Confirmed);
    assert!(
        !machine
            .shard
            .is_known_taken(machine.now, &machine.name, machine.now)
    );
    assert!(told(&machine));
    machine.fail(Why::Unknown, Some(begin));
    assert!(!told(&machine), "nor does it hold through an outage");
    let mut holding = Machine::new(Rules::default());
    holding.claim_id(1000);
    holding.later(ms(1));
    assert!(
        holding
            .shard
            .is_known_taken(holding.now, &holding.name, holding.now)
    );
}
