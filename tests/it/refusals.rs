//! Requests whose answer is lost and whose repeat is refused, and holders whose request is refused.

use tenure::error::{LostCause, StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{
    Call, CallAnswer, CallTime, ClaimId, ClaimNumber, ClaimReply, GrantNumber, LatchReport, LeaseTimes,
    LeaveReply, Mode, Name, NodeId, Payload, QueueOwner, Reply, Verb,
};
use tenure::protocol::step::{
    AcquireError, CallOptions, Effect, Input, LockOptions, Outcome, Rules, Ticket, WhyDenied,
};
use tenure::{Error, Guard, Key, Locks, TransferError};

use crate::failures::Why;
use crate::help::{ms, soon};
use crate::machine::{Machine, asks, options};

const REFUSED: Reply = Reply::Refused(StoreRefusal::ReadOnly);

fn another() -> ClaimId {
    ClaimId {
        node: NodeId::numbered(9),
        claim: ClaimNumber(9),
        nonce: 9,
    }
}

/// Returns the calls that may count twice or leave something behind, with their names.
fn calls() -> [(Call, Name); 7] {
    let called = CallTime::default();
    let (of, repeats) = (another(), false);
    let key = || Key::from("a");
    let set = Call::SetCount {
        count: 1,
        life_ms: 1_000,
    };
    [
        (set, Name::latch(key())),
        (Call::CountDown { called }, Name::latch(key())),
        (Call::Extend { of }, Name::lock(key())),
        (Call::Release { of, repeats }, Name::lock(key())),
        (Call::Save { of, seq: 1 }, Name::job(key())),
        (Call::Proclaim { of, seq: 1 }, Name::election(key())),
        (Call::Reset, Name::job(key())),
    ]
}

/// Returns the machine of a call that was sent once.
fn called((call, name): (Call, Name)) -> (Machine, Ticket) {
    let mut machine = Machine::of(name, Rules::default());
    let ticket = machine.call(CallOptions {
        data: Some(Payload(b"id"[..].into())),
        ..asks(1_000, call)
    });
    (machine, ticket)
}

fn kind_told(machine: &Machine, ticket: Ticket) -> StoreErrorKind {
    match machine.denial(ticket) {
        Some(AcquireError::Store(error)) => error.kind().clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_whose_repeat_is_refused_is_reported_as_unknown() {
    for call in calls() {
        for bystander in [false, true] {
            let (mut machine, ticket) = called(call.clone());
            if bystander {
                machine.fail(Why::Bystander, Some(machine.now));
            } else {
                machine.fail(Why::Unknown, None);
            }
            assert!(machine.denial(ticket).is_none(), "it is asked again");
            let again = machine.sent().request;
            assert_eq!(again.data, Some(Payload(b"id"[..].into())), "with the same id");
            machine.answer(REFUSED);
            assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut, "{call:?}");
            assert!(machine.shard.is_empty(), "nothing is left behind");
        }
    }
}

#[test]
fn a_call_whose_repeat_was_not_sent_is_reported_as_unknown() {
    for call in calls() {
        let (mut machine, ticket) = called(call.clone());
        machine.fail(Why::Unknown, None);
        let unreachable = StoreError::new(StoreErrorKind::Unreachable, "no server there");
        machine.fail_with(&machine.sent(), Why::Down, None, unreachable);
        assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut, "{call:?}");
    }
}

#[test]
fn a_call_that_was_never_executed_is_reported_as_refused() {
    for call in calls() {
        let (mut machine, ticket) = called(call.clone());
        machine.answer(REFUSED);
        let refused = StoreErrorKind::Refused(StoreRefusal::ReadOnly);
        assert_eq!(kind_told(&machine, ticket), refused, "{call:?}");
        assert!(machine.shard.is_empty(), "nothing is left behind");
    }
}

/// A script that ended in the middle was partly executed, whatever the server reports.
#[test]
fn an_error_in_the_middle_of_a_script_is_no_refusal() {
    for call in calls() {
        let (mut machine, ticket) = called(call.clone());
        let error = StoreError::refused(StoreRefusal::Other("ERR user_script:1".into()));
        machine.fail_with(&machine.sent(), Why::Unknown, None, error);
        assert_eq!(
            kind_told(&machine, ticket),
            StoreErrorKind::Interrupted,
            "{call:?}"
        );
    }
}

/// The repeat reaches the server too late, after a first request without an answer.
#[test]
fn a_repeated_call_that_comes_too_late_is_reported_as_unknown() {
    let [call, ..] = calls();
    let (mut machine, ticket) = called(call);
    machine.fail(Why::Bystander, Some(machine.now));
    machine.answer(Reply::Late);
    machine.answer(REFUSED);
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
}

/// The call is answered or closed during the pause before its repeat.
#[test]
fn a_call_that_waits_for_its_repeat_is_answered_or_closed() {
    let [_, call, ..] = calls();
    let (mut machine, ticket) = called(call.clone());
    machine.fail(Why::Unknown, None);
    machine.answer(CallAnswer::Latch(LatchReport::Left(2)));
    assert!(matches!(
        machine.told(ticket),
        Some(CallAnswer::Latch(LatchReport::Left(2)))
    ));
    let (mut machine, ticket) = called(call);
    machine.close();
    assert!(matches!(machine.denial(ticket), Some(AcquireError::Closed)));
    machine.answer(REFUSED);
    assert!(machine.shard.is_empty());
}

fn outcome(machine: &Machine, of: Ticket) -> Option<&Outcome> {
    machine.effects.iter().find_map(|effect| match effect {
        Effect::Released(ticket, outcome) if *ticket == of => Some(outcome),
        _ => None,
    })
}

#[test]
fn a_release_whose_repeat_is_refused_is_reported_as_unknown() {
    for is_unanswered in [true, false] {
        let mut machine = Machine::new(Rules::default());
        let claim_id = machine.claim_id(1_000);
        machine.tell(Input::Release(claim_id));
        if is_unanswered {
            machine.fail(Why::Unknown, None);
        } else {
            machine.answer(REFUSED);
        }
        machine.answer(REFUSED);
        let Some(Outcome::Unconfirmed(error)) = outcome(&machine, claim_id) else {
            panic!("{:?}", machine.effects)
        };
        let is_refused = matches!(error.kind(), StoreErrorKind::Refused(_));
        assert_eq!(is_refused, !is_unanswered, "{error}");
    }
}

/// A lock whose claim has no answer may have been granted.
#[test]
fn a_claim_whose_look_is_refused_is_reported_as_unknown() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.enter(LockOptions {
        wait: false,
        ..options(1_000)
    });
    machine.fail(Why::Unknown, None);
    machine.answer(REFUSED);
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
}

#[test]
fn an_adoption_whose_repeat_is_refused_is_reported_as_unknown() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.shard.issue();
    machine.tell(Input::Adopt(ticket, options(1_000), another()));
    machine.fail(Why::Unknown, None);
    machine.answer(REFUSED);
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
}

// Downgrades.

/// Returns a machine whose writer has asked to become a reader.
fn downgrading(wanted: LockOptions, after_ms: u64) -> (Machine, Ticket) {
    let mut machine = Machine::new(Rules::default());
    let writer = machine.enter(wanted);
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(machine.take_up(writer));
    machine.later(ms(after_ms));
    let reader = machine.shard.issue();
    machine.tell(Input::Downgrade(writer, reader));
    assert!(matches!(machine.sent().request.verb, Verb::Pass { .. }));
    (machine, reader)
}

#[test]
fn a_downgrade_without_an_answer_is_asked_for_again() {
    let (mut machine, reader) = downgrading(options(1_000), 0);
    let first = machine.sent().request;
    machine.fail(Why::Unknown, None);
    let again = machine.sent().request;
    assert_eq!(
        (again.claim_id, again.verb, again.mode),
        (first.claim_id, first.verb, Mode::Read)
    );
    assert!(machine.denial(reader).is_none(), "{:?}", machine.denial(reader));
    machine.answer(ClaimReply::granted(GrantNumber(8)));
    assert!(machine.holds(reader));
}

fn is_kept(machine: &Machine, ticket: Ticket) -> bool {
    matches!(machine.told_denial(ticket), Some(WhyDenied::StillHeld(fence, _)) if fence.number() == GrantNumber(7))
}

#[test]
fn a_refused_downgrade_still_writes() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    machine.answer(REFUSED);
    assert!(is_kept(&machine, ticket), "{:?}", machine.denial(ticket));
    let left = machine.remaining(ticket);
    assert_eq!(left, Some(ms(800)), "as before");
    assert!(machine.take_up(ticket));
    // The lease is renewed, alone, and released as before.
    machine.passes();
    assert!(machine.sent().request.verb.is_renewal());
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(machine.holds(ticket));
    machine.tell(Input::Release(ticket));
    machine.answer(LeaveReply::Left);
    assert!(matches!(outcome(&machine, ticket), Some(Outcome::Held)));
    assert!(machine.shard.is_empty());
}

/// A request that was never sent counts as refused.
#[test]
fn a_downgrade_that_was_not_sent_still_writes() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    machine.fail(Why::Down, None);
    assert!(is_kept(&machine, ticket), "{:?}", machine.denial(ticket));
    assert!(machine.holds(ticket));
}

/// The first request may have made the writer a reader: the number of the write stays dead.
#[test]
fn a_downgrade_whose_repeat_is_refused_holds_nothing() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    machine.fail(Why::Unknown, None);
    machine.answer(REFUSED);
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
    assert!(!machine.holds(ticket));
    let left = |effect: &Effect| matches!(effect, Effect::Send(sent) if sent.request.verb == Verb::Leave);
    let leaves = machine.effects.iter().filter(|effect| left(effect)).count();
    assert_eq!(leaves, 2, "both numbers are left");
}

/// The first request made the writer a reader, and its answer came too late to be used.
#[test]
fn a_downgrade_that_was_granted_too_late_and_is_refused_then_holds_nothing() {
    let (mut machine, ticket) = downgrading(options(1_000), 0);
    let sent = machine.now;
    machine.later(ms(900));
    machine.answer_to(&machine.sent(), sent, ClaimReply::granted(GrantNumber(8)));
    assert!(machine.denial(ticket).is_none(), "it is asked again");
    machine.passes();
    machine.answer(Reply::Refused(StoreRefusal::NoPermission));
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
    assert!(!machine.holds(ticket));
}

/// A lost lease stays lost.
#[test]
fn a_downgrade_that_is_refused_after_the_deadline_holds_nothing() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    machine.later(ms(800));
    machine.answer(REFUSED);
    assert!(!is_kept(&machine, ticket));
    assert!(!machine.holds(ticket));
}

/// The caller has gone: the lease is released.
#[test]
fn a_refused_downgrade_without_a_waiting_caller_is_left() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    machine.tell(Input::Cancel(ticket));
    machine.answer(REFUSED);
    assert!(!machine.holds(ticket));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
}

/// A caller of this process that came meanwhile has a claim in the store's queue, and keeps it.
#[test]
fn a_caller_that_came_during_a_refused_downgrade_keeps_waiting() {
    let (mut machine, ticket) = downgrading(options(1_000), 200);
    let pass = machine.sent();
    let waiter = machine.enter(options(1_000));
    machine.answer(ClaimReply::Queued(None, QueueOwner::Shared));
    machine.answer_to(&pass, machine.now, REFUSED);
    assert!(is_kept(&machine, ticket) && !machine.is_granted(waiter));
    machine.tell(Input::Release(ticket));
    assert_eq!(
        machine.sent().request.verb,
        Verb::Leave,
        "the store hands it over"
    );
    assert!(!machine.is_granted(waiter));
}

#[test]
fn a_downgraded_holder_keeps_its_max_hold() {
    let wanted = LockOptions {
        max_hold: Some(ms(700)),
        ..options(1_000)
    };
    let (mut machine, reader) = downgrading(wanted, 500);
    machine.answer(ClaimReply::granted(GrantNumber(8)));
    assert!(machine.take_up(reader));
    assert_eq!(machine.passes(), ms(200));
    let overdue = |effect: &Effect| matches!(effect, Effect::Overdue(ticket) if *ticket == reader);
    assert!(machine.effects.iter().any(overdue));
}

/// The writer was told that it is overdue; the reader that it becomes is told, too.
#[test]
fn a_writer_that_is_overdue_becomes_a_reader_that_is_told_so() {
    let wanted = LockOptions {
        max_hold: Some(ms(300)),
        ..options(1_000)
    };
    let mut machine = Machine::new(Rules::default());
    let writer = machine.enter(wanted);
    machine.answer(ClaimReply::granted(GrantNumber(7)));
    assert!(machine.take_up(writer));
    machine.later(ms(350));
    machine.wake();
    let reader = machine.shard.issue();
    let is_told = |machine: &Machine, of| {
        let mut effects = machine.effects.iter();
        effects.any(|effect| matches!(effect, Effect::Overdue(ticket) if *ticket == of))
    };
    assert!(is_told(&machine, writer));
    machine.tell(Input::Downgrade(writer, reader));
    machine.answer(ClaimReply::granted(GrantNumber(8)));
    assert!(machine.take_up(reader) && is_told(&machine, reader));
}

#[test]
fn a_fixed_lease_does_not_start_again_when_its_writer_reads() {
    let wanted = LockOptions {
        fixed: true,
        ..options(1_000)
    };
    for is_repeated in [false, true] {
        let (mut machine, reader) = downgrading(wanted, 500);
        assert_eq!(machine.sent().request.term.lease_ms, 500, "in the store, too");
        if is_repeated {
            machine.later(ms(100));
            machine.fail(Why::Unknown, None);
        }
        machine.later(ms(200));
        machine.answer(ClaimReply::granted(GrantNumber(8)));
        assert!(machine.take_up(reader));
        let left = if is_repeated { 200 } else { 300 };
        let remaining = machine.remaining(reader);
        assert_eq!(remaining, Some(ms(left)));
        machine.passes();
        let lost =
            |effect: &Effect| matches!(effect, Effect::Lost(ticket, LostCause::Ended) if *ticket == reader);
        assert!(machine.effects.iter().any(lost));
    }
}

// Transfers.

#[test]
fn a_refused_transfer_is_still_held() {
    for mode in [Mode::Exclusive, Mode::Read] {
        let mut machine = Machine::new(Rules::default());
        let claim_id = machine.enter(LockOptions {
            mode,
            ..options(1_000)
        });
        machine.answer(ClaimReply::granted(GrantNumber(7)));
        assert!(machine.take_up(claim_id));
        let to = machine.shard.issue();
        let keep = LeaseTimes {
            lease_ms: 60_000,
            margin_ms: 250,
        };
        machine.tell(Input::Transfer(claim_id, to, keep));
        machine.answer(REFUSED);
        assert!(is_kept(&machine, to), "{mode:?}: {:?}", machine.denial(to));
        assert!(machine.take_up(to));
        machine.passes();
        assert!(machine.sent().request.verb.is_renewal());
        assert!(machine.holds(to));
    }
}

/// An adoption whose transfer may have ended claims nothing: another caller may hold the lease by now.
#[test]
fn an_adoption_whose_answers_come_too_late_claims_nothing() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.shard.issue();
    machine.tell(Input::Adopt(ticket, options(1_000), another()));
    for _ in 0..3 {
        let sent = machine.now;
        machine.later(ms(900));
        machine.answer_to(&machine.sent(), sent, ClaimReply::granted(GrantNumber(7)));
        if machine.denial(ticket).is_none() {
            machine.passes();
        }
    }
    assert_eq!(kind_told(&machine, ticket), StoreErrorKind::TimedOut);
    assert_eq!(machine.sent().request.verb, Verb::Leave);
}

// The errors that `?` returns.

async fn downgraded(guard: Guard) -> Result<Guard, Error> {
    Ok(guard.downgrade().await?)
}

#[tokio::test]
async fn a_guard_that_is_still_held_is_in_the_error() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let (fence, again) = (guard.fence(), guard.again().unwrap());
    let error = downgraded(guard).await.unwrap_err();
    drop(again);
    assert!(matches!(error, Error::StillHeld { .. }), "{error:?}");
    assert!(error.to_string().contains("other guards"), "{error}");
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none(), "it is held");
    let copy = error.clone();
    let guard = error.into_guard().expect("it is in there");
    assert!(guard.is_held() && guard.fence() == fence);
    assert!(copy.into_guard().is_none(), "once");
    // A guard that is not taken out of the error is released.
    let again = guard.again().unwrap();
    let refused: Error = guard.into_transfer(ms(60_000)).await.unwrap_err().into();
    drop(again);
    drop(refused);
    soon(locks.idle()).await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_guard_that_is_no_longer_held_is_a_plain_error() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    soon(locks.shutdown()).await;
    let error = guard.downgrade().await.unwrap_err();
    let TransferError::Failed(Error::Lost { cause, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(cause, LostCause::Shutdown);
}

/// A handler that cannot give its lease up now can a moment later, so its client is told to come back.
#[cfg(feature = "tower")]
#[tokio::test]
async fn a_lease_that_cannot_be_given_up_for_now_is_no_fault_of_the_program() {
    use tenure::middleware::Refused;

    let locks = Locks::memory();
    let read = || soon(locks.rw_lock("rates").read());
    let (guard, other) = (read().await.unwrap(), read().await.unwrap());
    let error = Error::from(guard.into_transfer(ms(60_000)).await.unwrap_err());
    assert!(error.to_string().contains("read by it"), "{error}");
    assert_eq!(Refused::from(&error), Refused::StoreFailed);
    assert_eq!(Refused::from(&error).status(), 503);
    drop(other);
    let guard: Guard = error.into_guard().unwrap();
    assert!(guard.into_transfer(ms(60_000)).await.is_ok(), "a moment later");
}
