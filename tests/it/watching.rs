//! Watching, in the machines of a shard alone: which watcher looks, how often, and which ones are told.

use tenure::Key;
use tenure::protocol::message::{
    Call, CallAnswer, CallReply, CallTime, LatchReport, Name, Reply, Verb, Version,
};
use tenure::protocol::step::{AcquireError, CallOptions, InboxState, Input, Rules, Ticket};

use crate::failures::Why;
use crate::help::ms;
use crate::machine::{Machine, asks};

const ZERO: Reply = Reply::Call(CallReply::Answer(CallAnswer::Latch(LatchReport::Left(0))));
const WATCHING: Reply = Reply::Call(CallReply::Watching(Version(7)));

fn machine() -> Machine {
    Machine::of(Name::latch(Key::from("a")), Rules::default())
}

fn watches(machine: &mut Machine) -> Ticket {
    machine.call(asks(1000, Call::Zero { of: None }))
}

/// A watcher that knows the leader, and waits for another one.
fn observes(machine: &mut Machine, lease_ms: u64, rests: bool) -> Ticket {
    let known = Some(Version(7));
    machine.call(CallOptions {
        rests,
        ..asks(lease_ms, Call::Leader { known })
    })
}

fn is_told_of_zero(machine: &Machine, ticket: Ticket) -> bool {
    matches!(
        machine.told(ticket),
        Some(CallAnswer::Latch(LatchReport::Left(0)))
    )
}

/// Returns the version in the latest look.
fn asked(machine: &Machine) -> Option<Version> {
    match machine.sent().request.verb {
        Verb::Call(Call::Zero { of }) => of,
        other => panic!("{other:?}"),
    }
}

/// The driver may have read its clock before the caller came. A call is not a look that others share: its answer is
/// for its caller, and it is not sent again.
#[test]
fn a_call_that_came_while_its_sender_was_at_work_is_sent_once() {
    let mut machine = machine();
    let before = machine.now;
    machine.later(ms(1));
    let count = Call::CountDown {
        called: CallTime::default(),
    };
    let ticket = machine.call(asks(1000, count));
    machine.answer_to(&machine.sent(), before, ZERO);
    assert!(is_told_of_zero(&machine, ticket));
    assert_eq!(machine.sends(), 1);
    assert!(machine.shard.is_empty());
}

#[test]
fn all_waiters_share_one_look() {
    let mut machine = machine();
    let first = watches(&mut machine);
    let (look, sent) = (machine.sent(), machine.now);
    machine.later(ms(1));
    let others = [watches(&mut machine), watches(&mut machine)];
    assert_eq!(machine.sends(), 1, "one is under way");
    machine.answer_to(&look, sent, WATCHING);
    assert_eq!(
        (machine.sends(), asked(&machine)),
        (2, None),
        "for the later waiters"
    );
    machine.answer(WATCHING);
    for round in 3..10 {
        let pause = machine.passes();
        assert!(
            pause >= ms(270) && pause <= ms(334),
            "a third of a lease: {pause:?}"
        );
        assert_eq!(machine.sends(), round, "one for all of them");
        assert_eq!(asked(&machine), Some(Version(7)));
        if round < 9 {
            machine.answer(WATCHING);
        }
    }
    machine.answer(ZERO);
    for ticket in [first, others[0], others[1]] {
        assert!(is_told_of_zero(&machine, ticket));
    }
    assert!(machine.shard.is_empty() && machine.shard.next_due().is_none());
}

/// The answer to an earlier look says nothing to a waiter that comes after it was sent.
#[test]
fn a_waiter_that_comes_during_a_look_does_not_get_its_answer() {
    let mut machine = machine();
    let first = watches(&mut machine);
    let (look, sent) = (machine.sent(), machine.now);
    machine.later(ms(1));
    let second = watches(&mut machine);
    machine.answer_to(&look, sent, ZERO);
    assert!(is_told_of_zero(&machine, first));
    assert!(machine.told(second).is_none());
    assert_eq!(machine.sends(), 2, "and asks at once");
    machine.answer(ZERO);
    assert!(is_told_of_zero(&machine, second));
}

#[test]
fn a_push_triggers_a_look_at_once() {
    let mut machine = machine();
    let ticket = watches(&mut machine);
    // The push comes during a look, whose answer may be older than the push.
    machine.tell(Input::Changed);
    assert_eq!(machine.sends(), 1);
    machine.answer(WATCHING);
    assert_eq!(machine.sends(), 2);
    machine.answer(WATCHING);
    machine.tell(Input::Changed);
    assert_eq!(machine.sends(), 3);
    machine.answer(WATCHING);
    // A closed inbox may have missed a push.
    machine.inbox(InboxState::Unconfirmed);
    assert_eq!(machine.sends(), 3);
    machine.inbox(InboxState::Confirmed);
    assert_eq!(machine.sends(), 4);
    machine.answer(ZERO);
    assert!(is_told_of_zero(&machine, ticket));
    machine.tell(Input::Changed);
    assert_eq!(machine.sends(), 4, "no caller waits");
}

#[test]
fn a_cancelled_wait_leaves_nothing() {
    let mut machine = machine();
    let ticket = watches(&mut machine);
    machine.tell(Input::Cancel(ticket));
    machine.answer(ZERO);
    assert!(machine.denial(ticket).is_none() && machine.told(ticket).is_none() && machine.shard.is_empty());
    let (gone, stays) = (watches(&mut machine), watches(&mut machine));
    machine.answer(WATCHING);
    machine.tell(Input::Cancel(gone));
    machine.passes();
    machine.tell(Input::Cancel(stays));
    let sends = machine.sends();
    machine.answer(WATCHING);
    assert_eq!(machine.sends(), sends, "a call makes no claim that must be left");
    assert!(machine.shard.is_empty() && machine.shard.next_due().is_none());
}

#[test]
fn an_outage_of_one_lease_is_ridden_out() {
    let mut machine = machine();
    let ticket = watches(&mut machine);
    machine.answer(WATCHING);
    let heard = machine.now;
    machine.passes();
    let mut tries = 0;
    while machine.denial(ticket).is_none() {
        let sends = machine.sends();
        machine.fail(Why::Unknown, Some(heard));
        tries += 1;
        if machine.denial(ticket).is_none() && machine.sends() == sends {
            assert!(machine.passes() <= ms(63), "a sixteenth of a lease");
        }
    }
    assert!(matches!(machine.denial(ticket), Some(AcquireError::Store(_))));
    let over = machine.now.since(heard);
    assert!(
        over >= ms(1000) && over < ms(1100) && tries > 5,
        "{over:?} {tries}"
    );
    assert!(machine.shard.is_empty());
    // A caller that comes while the store is known to be down gets the error at once.
    let late = watches(&mut machine);
    machine.fail(Why::Down, Some(heard));
    assert!(matches!(machine.denial(late), Some(AcquireError::Store(_))));
}

#[test]
fn a_failed_look_is_repeated_when_the_store_is_back() {
    let mut machine = machine();
    let ticket = watches(&mut machine);
    machine.answer(WATCHING);
    machine.passes();
    machine.fail(Why::Down, Some(machine.now));
    let sends = machine.sends();
    machine.reachable();
    assert_eq!(machine.sends(), sends + 1);
    machine.answer(WATCHING);
    machine.reachable();
    assert_eq!(machine.sends(), sends + 1, "it has nothing to repeat");
    assert!(machine.denial(ticket).is_none());
}

#[test]
fn a_watcher_that_rests_first_looks_after_its_rest() {
    let mut machine = Machine::of(Name::election(Key::from("a")), Rules::default());
    let ticket = observes(&mut machine, 1000, true);
    assert_eq!(machine.sends(), 0);
    let pause = machine.passes();
    assert!(pause >= ms(300) && pause <= ms(334), "{pause:?}");
    assert_eq!(machine.sends(), 1, "nothing else would make it ask");
    machine.answer(CallAnswer::Leader(None));
    assert!(matches!(machine.told(ticket), Some(CallAnswer::Leader(None))));
    assert!(machine.shard.is_empty() && machine.shard.next_due().is_none());
}

#[test]
fn a_watcher_with_a_shorter_lease_looks_sooner_than_earlier_watchers() {
    let mut machine = Machine::of(Name::election(Key::from("a")), Rules::default());
    observes(&mut machine, 3000, false);
    machine.answer(WATCHING);
    machine.later(ms(100));
    observes(&mut machine, 400, false);
    assert_eq!(machine.sends(), 1, "the store was asked once for all watchers");
    let pause = machine.passes();
    assert!(pause <= ms(134), "a third of the shorter lease: {pause:?}");
    assert_eq!(machine.sends(), 2);
}

#[test]
fn a_watcher_that_caught_up_looks_by_its_own_lease() {
    let mut machine = self::machine();
    for lease_ms in [3000, 400] {
        machine.call(asks(lease_ms, Call::Zero { of: None }));
        machine.answer(WATCHING);
        machine.later(ms(100));
    }
    assert_eq!(machine.sends(), 2);
    let pause = machine.passes();
    assert!(pause <= ms(134), "a third of the shorter lease: {pause:?}");
    assert_eq!(machine.sends(), 3);
}
