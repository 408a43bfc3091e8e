//! Renewals that a holder asks for: one more term of a fixed lease, and never one that no caller asked for.

use std::time::Duration;

use tenure::error::{LostCause, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{CallAnswer, ClaimReply, GrantNumber, Reply, Verb};
use tenure::protocol::step::{AcquireError, Effect, Input, LockOptions, Rules, Ticket};
use tenure::testing::Clock;
use tenure::{Error, Guard, Locks, MemoryStore};

use crate::failures::Why;
use crate::help::{ms, poll_once, soon};
use crate::machine::{Machine, options};

const GRANT: GrantNumber = GrantNumber(7);

/// A machine with a holder of a lease of 1,000 ms.
fn holding(fixed: bool) -> (Machine, Ticket) {
    let mut machine = Machine::new(Rules::default());
    let holder = machine.enter(LockOptions {
        fixed,
        ..options(1_000)
    });
    machine.answer(ClaimReply::granted(GRANT));
    assert!(machine.take_up(holder));
    (machine, holder)
}

fn renew(machine: &mut Machine, holder: Ticket) -> Ticket {
    let caller = machine.shard.issue();
    machine.tell(Input::Renew(holder, caller));
    caller
}

fn is_renewed(machine: &Machine, caller: Ticket) -> bool {
    matches!(machine.told(caller), Some(CallAnswer::Owned(true)))
}

fn is_lost(machine: &Machine, cause: LostCause) -> bool {
    let mut effects = machine.effects.iter();
    effects.any(|effect| matches!(effect, Effect::Lost(_, of) if *of == cause))
}

#[test]
fn the_new_term_of_a_fixed_lease_starts_when_the_request_is_sent() {
    let (mut machine, holder) = holding(true);
    machine.later(ms(700));
    let (sends, sent) = (machine.sends(), machine.now);
    let caller = renew(&mut machine, holder);
    assert_eq!(
        (machine.sends(), machine.sent().request.verb),
        (sends + 1, Verb::Renew { number: Some(GRANT) })
    );
    machine.later(ms(100));
    assert_eq!(machine.remaining(holder), Some(ms(200)), "no answer yet");
    let renewal = machine.sent();
    machine.answer_to(&renewal, sent, ClaimReply::granted(GRANT));
    assert!(is_renewed(&machine, caller));
    assert_eq!(machine.remaining(holder), Some(ms(900)));
    // The machine itself renews nothing: the next timer is the end of the lease.
    assert_eq!(machine.passes(), ms(900));
    assert!(is_lost(&machine, LostCause::Ended));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
}

#[test]
fn a_renewal_without_an_answer_leaves_a_fixed_lease_its_deadline() {
    let (mut machine, holder) = holding(true);
    machine.later(ms(400));
    let caller = renew(&mut machine, holder);
    machine.later(ms(250));
    machine.fail(Why::Unknown, None);
    let sends = machine.sends();
    assert!(matches!(machine.denial(caller), Some(AcquireError::Store(_))));
    assert_eq!(machine.remaining(holder), Some(ms(350)));
    machine.reachable();
    assert_eq!(
        machine.sends(),
        sends,
        "a fixed lease is renewed for its caller only"
    );
    // The caller may ask again.
    let second = renew(&mut machine, holder);
    machine.answer(ClaimReply::granted(GRANT));
    assert!(is_renewed(&machine, second));
    assert_eq!(machine.remaining(holder), Some(ms(1_000)));
}

#[test]
fn a_renewal_that_is_answered_after_the_deadline_revives_nothing() {
    let (mut machine, holder) = holding(true);
    machine.later(ms(900));
    let caller = renew(&mut machine, holder);
    let (renewal, sent) = (machine.sent(), machine.now);
    machine.later(ms(150));
    machine.answer_to(&renewal, sent, ClaimReply::granted(GRANT));
    assert!(is_lost(&machine, LostCause::Ended) && !machine.holds(holder));
    assert!(matches!(machine.denial(caller), Some(AcquireError::Lost(_))));
}

#[test]
fn a_lease_that_the_store_does_not_know_is_lost_by_its_renewal() {
    let (mut machine, holder) = holding(true);
    let caller = renew(&mut machine, holder);
    machine.answer(ClaimReply::Gone);
    assert!(is_lost(&machine, LostCause::Gone));
    assert!(matches!(machine.denial(caller), Some(AcquireError::Lost(_))));
    let late = renew(&mut machine, holder);
    assert!(matches!(machine.denial(late), Some(AcquireError::Lost(_))));
}

#[test]
fn a_refused_renewal_tells_what_the_store_said() {
    let (mut machine, holder) = holding(true);
    let caller = renew(&mut machine, holder);
    machine.answer(Reply::Refused(StoreRefusal::ReadOnly));
    let refused = StoreErrorKind::Refused(StoreRefusal::ReadOnly);
    match machine.denial(caller) {
        Some(AcquireError::Store(error)) => assert_eq!(*error.kind(), refused),
        other => panic!("{other:?}"),
    }
    assert!(machine.holds(holder));
}

#[test]
fn renewals_at_the_same_time_share_one_request() {
    for fixed in [true, false] {
        let (mut machine, holder) = holding(fixed);
        let sends = machine.sends();
        let callers = [(); 3].map(|()| renew(&mut machine, holder));
        assert_eq!(machine.sends(), sends + 1);
        machine.tell(Input::Cancel(callers[1]));
        machine.answer(ClaimReply::granted(GRANT));
        assert_eq!(
            callers.map(|caller| is_renewed(&machine, caller)),
            [true, false, true]
        );
        assert!(machine.holds(holder));
    }
}

#[test]
fn a_lease_is_not_renewed_for_longer_than_it_may_be_held() {
    let mut machine = Machine::new(Rules::default());
    let holder = machine.enter(LockOptions {
        max_hold: Some(ms(500)),
        ..options(1_000)
    });
    machine.answer(ClaimReply::granted(GRANT));
    assert!(machine.take_up(holder));
    machine.later(ms(600));
    let sends = machine.sends();
    let caller = renew(&mut machine, holder);
    let overdue = AcquireError::Lost(LostCause::Overdue);
    assert_eq!(
        format!("{:?}", machine.denial(caller)),
        format!("{:?}", Some(&overdue))
    );
    assert_eq!(machine.sends(), sends);
    assert!(machine.holds(holder), "until its deadline");
}

/// Locks with a clock that jumps, and a guard with a fixed lease of 60 s.
async fn fixed() -> (Locks, Clock, Guard) {
    let clock = Clock::new();
    let store = MemoryStore::new();
    let builder = Locks::builder().clock(clock.clone());
    let locks = builder.memory_shared(&store).unwrap();
    let guard = soon(locks.mutex("a").fixed(ms(60_000)).lock()).await.unwrap();
    (locks, clock, guard)
}

const MINUTE: Duration = ms(60_000);

#[tokio::test]
async fn a_fixed_lease_lasts_as_long_as_its_caller_renews_it() {
    let (locks, clock, guard) = fixed().await;
    for _ in 0..5 {
        clock.jump(MINUTE / 2);
        assert!(guard.remaining() <= MINUTE / 2);
        // The driver may send a renewal at a time that it read before the jump. The next one counts from later.
        let renewed = async {
            while guard.remaining() <= MINUTE / 2 {
                guard.renew().await.unwrap();
            }
        };
        soon(renewed).await;
        assert!(guard.is_held());
    }
    clock.jump(MINUTE);
    let late = soon(guard.renew()).await;
    let is_ended = |error: &Error| {
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Ended,
                ..
            }
        )
    };
    assert!(late.as_ref().is_err_and(is_ended), "{late:?}");
    assert!(soon(guard.release()).await.is_err_and(|error| is_ended(&error)));
    soon(locks.idle()).await;
}

#[tokio::test]
async fn a_lease_that_renews_itself_is_renewed_at_once() {
    let locks = Locks::memory();
    for guard in [
        soon(locks.mutex("a").lock()).await.unwrap(),
        soon(locks.rw_lock("b").read()).await.unwrap(),
        soon(locks.semaphore("c", 2).acquire()).await.unwrap(),
    ] {
        soon(guard.renew()).await.unwrap();
        assert!(guard.is_held());
        soon(guard.release()).await.unwrap();
    }
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let again = guard.again().unwrap();
    soon(locks.shutdown()).await;
    let closed = soon(again.renew()).await;
    assert!(
        matches!(
            &closed,
            Err(Error::Lost {
                cause: LostCause::Shutdown,
                ..
            })
        ),
        "{closed:?}"
    );
}

#[tokio::test]
async fn a_renewal_whose_future_is_dropped_leaves_the_guard_as_it_is() {
    let (locks, clock, guard) = fixed().await;
    for polled in [false, true] {
        clock.jump(ms(1_000));
        let mut renewal = Box::pin(guard.renew());
        if polled {
            let _ = poll_once(&mut renewal).await;
        }
        drop(renewal);
        assert!(guard.is_held());
        assert_eq!(locks.key_count(), 1);
    }
    soon(guard.renew()).await.unwrap();
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
}
