//! A server that may have lost grants: what its waiters and its holders learn.

use tenure::error::{LostCause, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{
    Call, CallAnswer, ClaimId, ClaimNumber, ClaimReply, Grant, GrantNumber, LeaseTimes, LeaveReply, Name,
    NodeId, QueueOwner, Reply, Verb,
};
use tenure::protocol::step::{
    AcquireError, Effect, FormerMaster, Input, LockOptions, Outgoing, Rules, Ticket, WhyDenied,
};
use tenure::protocol::time::Instant;
use tenure::{Error, Locks, MemoryStore};

use crate::failures::Why;
use crate::help::{ms, soon, two};
use crate::machine::{Machine, asks, options};

const GRANT: GrantNumber = GrantNumber(7);

fn is_recovering(error: &Error) -> bool {
    let Error::Store { source, .. } = error else {
        return false;
    };
    *source.kind() == StoreErrorKind::Refused(StoreRefusal::Recovering)
}

fn recover(store: &MemoryStore, lasts_ms: u64) {
    store.with_ledger(|ledger, now| ledger.begin_recovery(now, lasts_ms));
}

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

fn impatient() -> LockOptions {
    LockOptions {
        wait: false,
        ..options(1_000)
    }
}

fn is_denied_as_recovering(machine: &Machine, ticket: Ticket) -> bool {
    let recovers = StoreErrorKind::Refused(StoreRefusal::Recovering);
    matches!(machine.denial(ticket), Some(AcquireError::Store(error)) if *error.kind() == recovers)
}

/// Gives the lease of a holder away. Returns the caller that waits for the answer.
fn transfer(machine: &mut Machine, holder: Ticket) -> Ticket {
    let to = machine.shard.issue();
    let term = LeaseTimes {
        lease_ms: 60_000,
        margin_ms: 250,
    };
    machine.tell(Input::Transfer(holder, to, term));
    assert!(matches!(machine.sent().request.verb, Verb::Pass { .. }));
    to
}

/// Returns how many leaves of this claim were sent.
fn leaves(machine: &Machine, of: ClaimId) -> usize {
    let sent = machine.effects.iter().filter_map(|effect| match effect {
        Effect::Send(outgoing) => Some(&outgoing.request),
        _ => None,
    });
    sent.filter(|request| request.claim_id == of && request.verb == Verb::Leave)
        .count()
}

#[tokio::test]
async fn a_waiter_is_granted_the_key_when_the_recovery_is_over() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    recover(&store, 200);
    let begun = std::time::Instant::now();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    assert!(begun.elapsed() >= ms(190), "granted after {:?}", begun.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_caller_whose_wait_ends_is_told_of_the_recovery_and_not_of_an_owner() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    recover(&store, 600_000);
    let waits = locks.mutex("a").lock_timeout(ms(50)).await.unwrap_err();
    assert!(is_recovering(&waits), "{waits}");
    let tries = locks.mutex("b").try_lock().await.unwrap_err();
    assert!(is_recovering(&tries), "{tries}");
    let keys = locks.multi(["c", "d"]).lock_timeout(ms(50)).await.unwrap_err();
    assert!(is_recovering(&keys), "{keys}");
    let elects = locks.election("e").campaign_timeout(ms(50)).await.unwrap_err();
    assert!(is_recovering(&elects), "{elects}");
    // Another caller of the node waits for the key.
    let waiter = locks.mutex("w");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    let name = Name::lock("w".into());
    let waits = || store.with_ledger(|ledger, _| !ledger.waiters(&name).is_empty());
    crate::help::until("it waits", waits).await;
    let tries = locks.mutex("w").try_lock().await.unwrap_err();
    assert!(is_recovering(&tries), "{tries}");
    waiter.abort();
}

#[tokio::test]
async fn a_lost_lease_is_asserted_and_excludes_others() {
    let store = MemoryStore::new();
    let make = || Locks::builder().lease(ms(1_500)).memory_shared(&store).unwrap();
    let (mine, theirs) = (make(), make());
    let guard = mine.mutex("a").lock().await.unwrap();
    let permit = mine.semaphore("s", 1).acquire().await.unwrap();
    store.with_ledger(|ledger, _| ledger.forget());
    // Either the next renewal of the owner shows the loss, or the claim does, which names the highest number.
    let (name, other) = (Name::lock("a".into()), Name::semaphore("s".into()));
    let is_back = || {
        store.with_ledger(|ledger, now| {
            ledger.record(&name, now).is_some() && ledger.shares(&other, now).count() == 1
        })
    };
    crate::help::until("both leases are asserted", is_back).await;
    let waits = theirs.mutex("a").lock_timeout(ms(100)).await.unwrap_err();
    assert!(is_recovering(&waits), "{waits}");
    assert!(guard.is_held() && permit.is_held());
    guard.release().await.unwrap();
    permit.release().await.unwrap();
    // The next fence is larger than the asserted one.
    let next = soon(theirs.mutex("a").lock()).await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_deleted_record_is_no_loss_of_the_server() {
    let store = MemoryStore::new();
    let (mine, theirs) = two(&store);
    let guard = mine.mutex("a").lock().await.unwrap();
    store.with_ledger(|ledger, _| ledger.clear());
    let next = theirs.mutex("a").try_lock().await.unwrap();
    assert!(next.is_some(), "the key is free");
    assert!(guard.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn an_adopter_is_told_of_the_recovery_or_that_the_record_was_lost() {
    let store = MemoryStore::new();
    let (mine, theirs) = two(&store);
    let mut transfers = Vec::new();
    for key in ["lost", "kept"] {
        let guard = mine.mutex(key).lock().await.unwrap();
        transfers.push(guard.into_transfer(ms(60_000)).await.unwrap());
    }
    recover(&store, 200);
    store.with_ledger(|ledger, _| ledger.overwrite(&Name::lock("lost".into()), None));
    let [lost, kept] = &transfers[..] else { panic!() };
    assert!(matches!(theirs.adopt(lost).await, Err(Error::Gone { .. })));
    let adopts = theirs.adopt(kept).await.unwrap_err();
    assert!(is_recovering(&adopts), "{adopts}");
    let recovers = || store.with_ledger(|ledger, now| ledger.recovering(now).is_some());
    crate::help::until("the recovery is over", || !recovers()).await;
    theirs.adopt(kept).await.unwrap().release().await.unwrap();
}

#[test]
fn a_connection_to_another_place_renews_every_lease_at_once() {
    let (mut machine, holder) = holding(false);
    machine.later(ms(100));
    machine.reachable();
    assert_eq!(machine.sends(), 1, "the same place");
    machine.moved();
    assert_eq!(machine.sends(), 2);
    assert_eq!(machine.sent().request.verb, Verb::Renew { number: Some(GRANT) });
    assert_eq!(machine.sent().request.term.lease_ms, 1_000);
    machine.answer(ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(holder), Some(ms(1_000)));
}

/// Connects to the successor of a master that may still grant keys for this long.
fn succeed(machine: &mut Machine, rest_ms: u64) {
    machine.shard.note_former_master(FormerMaster {
        until: Some(machine.now + ms(rest_ms)),
        highest: GrantNumber(100),
    });
    machine.moved();
}

#[test]
fn a_renewal_moves_no_deadline_while_a_former_master_may_grant_the_key() {
    let (mut machine, holder) = holding(false);
    machine.later(ms(100));
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(holder), Some(ms(900)));
    // The next renewal comes after that time, and moves the deadline.
    assert!(machine.passes() >= ms(400));
    assert_eq!(machine.sent().request.verb, Verb::Renew { number: Some(GRANT) });
    machine.answer(ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(holder), Some(ms(1_000)));
}

#[test]
fn a_renewal_that_was_sent_before_and_executed_after_moves_no_deadline() {
    let (mut machine, holder) = holding(false);
    machine.later(ms(100));
    succeed(&mut machine, 400);
    let (renewal, sent) = (machine.sent(), machine.now);
    machine.later(ms(500));
    machine.answer_to(&renewal, sent, ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(holder), Some(ms(400)));
}

#[test]
fn a_lease_that_ends_while_a_former_master_may_grant_the_key_is_lost() {
    let (mut machine, holder) = holding(false);
    succeed(&mut machine, 2_000);
    machine.answer(ClaimReply::granted(GRANT));
    assert_eq!(machine.passes(), ms(1_000));
    assert!(!machine.holds(holder));
    let mut effects = machine.effects.iter();
    assert!(effects.any(|effect| matches!(effect, Effect::Lost(_, LostCause::Deadline))));
}

#[test]
fn a_yield_beside_a_former_master_lasts_no_longer_than_the_lease_before() {
    let mut machine = Machine::yielding();
    let holder = machine.claim_id(1_000);
    let next = [machine.enter(options(1_000)), machine.enter(options(1_000))];
    machine.tell(Input::Release(holder));
    assert!(machine.take_up(next[0]));
    machine.later(ms(100));
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::granted(GRANT));
    machine.tell(Input::Release(next[0]));
    assert!(matches!(machine.sent().request.verb, Verb::Yield { .. }));
    machine.answer(ClaimReply::granted(GrantNumber(101)));
    assert_eq!(machine.remaining(next[1]), Some(ms(900)));
}

#[test]
fn a_downgrade_beside_a_former_master_lasts_no_longer_than_the_lease_before() {
    let (mut machine, holder) = holding(false);
    machine.later(ms(100));
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::granted(GRANT));
    let reader = machine.shard.issue();
    machine.tell(Input::Downgrade(holder, reader));
    assert!(matches!(machine.sent().request.verb, Verb::Pass { .. }));
    machine.answer(ClaimReply::granted(GrantNumber(101)));
    assert_eq!(machine.remaining(reader), Some(ms(900)));
}

/// The former master grants the key when its copy of the lease ends, so the lease cannot be kept longer for an adopter.
#[test]
fn a_transfer_beside_a_former_master_that_is_longer_than_the_lease_is_refused() {
    let (mut machine, holder) = holding(false);
    machine.later(ms(100));
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::granted(GRANT));
    let sends = machine.sends();
    let to = machine.shard.issue();
    let term = |lease_ms| LeaseTimes {
        lease_ms,
        margin_ms: 250,
    };
    machine.tell(Input::Transfer(holder, to, term(60_000)));
    assert_eq!(machine.sends(), sends, "nothing is sent");
    let Some(WhyDenied::StillHeld(fence, error)) = machine.told_denial(to) else {
        panic!()
    };
    assert_eq!(fence.number(), GRANT);
    assert_eq!(error.retry_after(), Some(ms(400)));
    assert!(machine.take_up(to));
    // One that ends with the lease is passed on.
    let short = machine.shard.issue();
    machine.tell(Input::Transfer(to, short, term(900)));
    assert!(matches!(machine.sent().request.verb, Verb::Pass { .. }));
    // And so is a longer one, as soon as no former master can grant the key.
    let (mut machine, holder) = holding(false);
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::granted(GRANT));
    machine.later(ms(400));
    transfer(&mut machine, holder);
}

/// An extension at the successor does not move the copy of the former master.
#[test]
fn an_extension_beside_a_former_master_promises_nothing() {
    let mut machine = Machine::new(Rules::default());
    succeed(&mut machine, 400);
    let extend = |machine: &mut Machine| {
        let of = ClaimId {
            node: NodeId::numbered(2),
            claim: ClaimNumber(1),
            nonce: 1,
        };
        let caller = machine.call(asks(1_000, Call::Extend { of }));
        machine.answer(CallAnswer::Owned(true));
        caller
    };
    let early = extend(&mut machine);
    assert!(is_denied_as_recovering(&machine, early));
    machine.later(ms(400));
    let late = extend(&mut machine);
    assert!(machine.told(late).is_some());
}

/// The successor answers "queued" after the former master granted the key, so the answer proves nothing about that grant.
#[test]
fn a_push_of_a_former_master_is_confirmed_before_use() {
    let mut machine = Machine::new(Rules::default());
    let waiter = machine.enter(options(1_000));
    let claim_id = machine.sent().request.claim_id;
    succeed(&mut machine, 400);
    machine.answer(ClaimReply::Recovering(5_000));
    let push = |number| {
        Input::Pushed(Grant {
            name: Name::lock("a".into()),
            claim_id,
            number: GrantNumber(number),
            lease_ms: 1_000,
            attempt: 0,
        })
    };
    let sends = machine.sends();
    machine.tell(push(100));
    assert!(!machine.is_granted(waiter));
    assert_eq!(machine.sends(), sends + 1);
    machine.answer(ClaimReply::Recovering(4_000));
    // The push of the successor has a higher number.
    machine.tell(push(101));
    assert!(machine.is_granted(waiter));
}

#[test]
fn a_fixed_lease_is_asserted_for_the_time_that_is_left() {
    let (mut machine, holder) = holding(true);
    machine.later(ms(400));
    machine.moved();
    assert_eq!(machine.sends(), 2);
    assert_eq!(machine.sent().request.verb, Verb::Assert { number: GRANT });
    assert_eq!(machine.sent().request.term.lease_ms, 601);
    machine.answer(ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(holder), Some(ms(600)), "it is not lengthened");
    assert_eq!(machine.passes(), ms(600));
    let mut effects = machine.effects.iter();
    assert!(effects.any(|effect| matches!(effect, Effect::Lost(_, LostCause::Ended))));
}

#[test]
fn a_lease_is_left_again_when_an_unanswered_renewal_can_no_longer_assert_it() {
    let (mut machine, holder) = holding(false);
    machine.passes();
    let renewal = machine.sent();
    machine.tell(Input::Release(holder));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
    let leave = machine.sent();
    machine.fail_with(&renewal, Why::Unknown, None, tenure::testing::timed_out());
    machine.answer_to(&leave, machine.now, LeaveReply::Left);
    let sends = machine.sends();
    // The helper says that the renewal is refused as late after 50 ms.
    assert_eq!(machine.passes(), ms(50));
    assert_eq!(
        (machine.sends(), machine.sent().request.verb),
        (sends + 1, Verb::Leave)
    );
    machine.answer(LeaveReply::NotThere);
    assert!(machine.shard.is_empty());
}

#[test]
fn an_assertion_that_came_late_is_repeated() {
    let (mut machine, holder) = holding(false);
    machine.passes();
    machine.answer(Reply::Late);
    assert!(machine.holds(holder));
    let sends = machine.sends();
    machine.passes();
    assert_eq!(machine.sends(), sends + 1);
    assert!(machine.sent().request.verb.is_renewal());
}

#[test]
fn a_waiter_asks_again_when_the_recovery_is_over() {
    let mut machine = Machine::new(Rules::default());
    let waiter = machine.lock(false);
    machine.answer(ClaimReply::Recovering(100));
    assert_eq!(machine.passes(), ms(102));
    assert_eq!(machine.sent().request.verb, Verb::HEARTBEAT);
    machine.answer(ClaimReply::granted(GRANT));
    assert!(machine.is_granted(waiter));
    let impatient = machine.enter(impatient());
    assert!(matches!(machine.denial(impatient), Some(AcquireError::Busy)));
}

#[test]
fn a_caller_behind_a_waiter_is_told_of_the_recovery_and_later_of_the_owner() {
    let mut machine = Machine::new(Rules::default());
    machine.lock(false);
    machine.answer(ClaimReply::Recovering(100));
    let tries = machine.enter(impatient());
    assert!(is_denied_as_recovering(&machine, tries));
    machine.passes();
    machine.answer(ClaimReply::Queued(Some(900), QueueOwner::Shared));
    let tries = machine.enter(impatient());
    assert!(matches!(machine.denial(tries), Some(AcquireError::Busy)));
    // With many claims these are counted.
    for _ in 0..20 {
        machine.lock(true);
        machine.answer(ClaimReply::Recovering(100));
    }
    let tries = machine.enter(impatient());
    assert!(
        matches!(machine.denial(tries), Some(AcquireError::Busy)),
        "the first is behind an owner"
    );
}

/// A holder has released its lease, and a caller asks for the key since. Returns the leave too, and when the lease was granted.
fn asked_after_a_leave() -> (Machine, Outgoing, Instant) {
    let mut machine = Machine::new(Rules::default());
    let (holder, begun) = (machine.claim_id(1_000), machine.now);
    machine.later(ms(10));
    machine.tell(Input::Release(holder));
    let leave = machine.sent();
    machine.lock(false);
    (machine, leave, begun)
}

#[test]
fn the_answer_to_another_request_does_not_hide_the_recovery() {
    let (mut machine, leave, begun) = asked_after_a_leave();
    machine.answer(ClaimReply::Recovering(600));
    machine.answer_to(&leave, machine.now, LeaveReply::Left);
    machine.later(ms(10));
    let (now, name) = (machine.now, machine.name.clone());
    assert!(!machine.shard.is_known_taken(now, &name, begun));
    let error = machine.shard.last_error(now, &name).unwrap();
    assert_eq!(error.kind(), &StoreErrorKind::Refused(StoreRefusal::Recovering));
    // The answer came 10 ms ago.
    assert_eq!(error.retry_after(), Some(ms(590)));
}

/// No caller waits for the answer to a leave.
#[test]
fn a_leave_without_an_answer_does_not_hide_that_the_key_is_taken() {
    let (mut machine, leave, begun) = asked_after_a_leave();
    machine.answer(ClaimReply::Queued(Some(900), QueueOwner::Shared));
    machine.fail_with(&leave, Why::Unknown, None, tenure::testing::timed_out());
    let (now, name) = (machine.now, machine.name.clone());
    assert!(machine.shard.is_known_taken(now, &name, begun));
    assert!(machine.shard.last_error(now, &name).is_none());
}

#[test]
fn a_failed_assertion_of_a_fixed_lease_is_repeated() {
    let (mut machine, holder) = holding(true);
    machine.moved();
    machine.fail(Why::Unknown, None);
    assert!(machine.holds(holder));
    let sends = machine.sends();
    assert!(machine.passes() < ms(500));
    assert_eq!(machine.sends(), sends + 1);
    assert_eq!(machine.sent().request.verb, Verb::Assert { number: GRANT });
}

#[test]
fn a_lease_under_another_number_is_lost_and_left() {
    let (mut machine, _) = holding(false);
    let claim = machine.sent().request.claim_id;
    machine.passes();
    machine.answer(ClaimReply::granted(GrantNumber(9)));
    let mut effects = machine.effects.iter();
    assert!(effects.any(|effect| matches!(effect, Effect::Lost(_, LostCause::Gone))));
    assert_eq!(leaves(&machine, claim), 1);
}

/// Returns a machine with a lease whose renewal may assert it for 50 ms more, and the claim of that lease.
fn assertable() -> (Machine, Ticket, ClaimId) {
    let (mut machine, holder) = holding(false);
    machine.passes();
    let claim = machine.sent().request.claim_id;
    machine.fail(Why::Unknown, None);
    (machine, holder, claim)
}

#[test]
fn the_old_number_of_a_pass_is_left_again_when_it_can_no_longer_be_asserted() {
    for is_gone in [true, false] {
        let (mut machine, holder, old) = assertable();
        let to = transfer(&mut machine, holder);
        if is_gone {
            machine.answer(ClaimReply::Gone);
            assert!(matches!(
                machine.denial(to),
                Some(AcquireError::Lost(LostCause::Gone))
            ));
        } else {
            // The caller gives up, and the pass has no answer.
            machine.tell(Input::Cancel(to));
            machine.fail(Why::Down, None);
        }
        assert_eq!(leaves(&machine, old), 1);
        let sent = machine.effects.iter().filter_map(|effect| match effect {
            Effect::Send(sent) if sent.request.verb == Verb::Leave => Some(sent.clone()),
            _ => None,
        });
        for leave in sent.collect::<Vec<_>>() {
            machine.answer_to(&leave, machine.now, LeaveReply::NotThere);
        }
        while leaves(&machine, old) == 1 {
            machine.passes();
        }
        machine.answer(LeaveReply::NotThere);
        assert!(machine.shard.is_empty());
    }
}

/// The pass was answered before the renewal, as after a reload of the scripts. The renewal may have asserted the lease.
#[test]
fn the_old_number_of_a_pass_is_left_after_a_renewal_in_flight() {
    let in_flight = || {
        let (mut machine, holder) = holding(false);
        machine.passes();
        let renewal = machine.sent();
        let to = transfer(&mut machine, holder);
        (machine, renewal, to)
    };
    for reply in [ClaimReply::granted(GrantNumber(8)), ClaimReply::Gone] {
        let (mut machine, renewal, _) = in_flight();
        let old = renewal.request.claim_id;
        machine.answer(reply.clone());
        assert_eq!(leaves(&machine, old), 1);
        machine.answer(LeaveReply::NotThere);
        machine.answer_to(&renewal, machine.now, ClaimReply::granted(GRANT));
        assert_eq!(leaves(&machine, old), 2);
        machine.answer(LeaveReply::Left);

        let (mut machine, renewal, _) = in_flight();
        let old = renewal.request.claim_id;
        machine.answer(reply);
        machine.answer(LeaveReply::NotThere);
        machine.fail_with(&renewal, Why::Unknown, None, tenure::testing::timed_out());
        assert_eq!((leaves(&machine, old), machine.passes()), (1, ms(50)));
        assert_eq!(leaves(&machine, old), 2);
    }
    // A renewal that was answered first was executed first.
    let (mut machine, renewal, to) = in_flight();
    let pass = machine.sent();
    machine.answer_to(&renewal, machine.now, ClaimReply::granted(GRANT));
    machine.answer_to(&pass, machine.now, ClaimReply::granted(GrantNumber(8)));
    assert!(machine.is_granted(to));
    assert_eq!(leaves(&machine, renewal.request.claim_id), 0);
    // The lease is kept if the pass was refused.
    let (mut machine, renewal, to) = in_flight();
    machine.answer(Reply::Refused(StoreRefusal::NoPermission));
    assert!(matches!(machine.told_denial(to), Some(WhyDenied::StillHeld(..))));
    machine.answer_to(&renewal, machine.now, ClaimReply::granted(GRANT));
    assert_eq!(machine.remaining(to), Some(ms(1_000)));
}

#[test]
fn the_new_number_of_a_pass_is_left_if_the_first_try_may_still_be_executed() {
    let (mut machine, holder) = holding(false);
    let to = transfer(&mut machine, holder);
    machine.fail(Why::Unknown, None);
    let Verb::Pass { to: new, .. } = machine.sent().request.verb else {
        panic!("{:?}", machine.sent())
    };
    machine.answer(ClaimReply::Gone);
    assert!(machine.denial(to).is_some());
    assert_eq!((leaves(&machine, new), machine.passes()), (0, ms(50)));
    assert_eq!(leaves(&machine, new), 1);
}

/// After the recovery later ticks have come, and what the server knew of earlier ones may be lost.
#[test]
fn the_claim_of_a_tick_is_denied_with_the_rest_of_the_recovery() {
    let job = || Machine::of(Name::job("a".into()), Rules::default());
    let left = |machine: &Machine, tick| match machine.denial(tick) {
        Some(AcquireError::Store(error)) => error.retry_after(),
        denial => panic!("{denial:?}"),
    };
    let mut machine = job();
    let tick = machine.tick(200);
    machine.answer(ClaimReply::Recovering(5_000));
    assert_eq!(left(&machine, tick), Some(ms(5_000)));
    assert!(machine.shard.is_empty(), "the server did not queue it");
    // A standby is told by the answer to its heartbeat, and leaves the queue.
    let mut machine = job();
    let standby = machine.tick(200);
    machine.answer(ClaimReply::Queued(Some(900), QueueOwner::Shared));
    machine.passes();
    assert!(machine.sent().request.verb.is_renewal());
    machine.answer(ClaimReply::Recovering(5_000));
    assert_eq!(left(&machine, standby), Some(ms(5_000)));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
    machine.answer(LeaveReply::Left);
    assert!(machine.shard.is_empty());
}

/// The waits are so long that a caller that is not refused at once fails the test.
#[tokio::test]
async fn a_caller_whose_wait_ends_before_the_recovery_is_refused_at_once() {
    let (store, hour) = (MemoryStore::new(), ms(3_600_000));
    let locks = Locks::builder().memory_shared(&store).unwrap();
    assert_eq!(locks.recovering(), None);
    recover(&store, 7_200_000);
    let refused = soon(async {
        [
            locks.mutex("a").lock_timeout(hour).await.map(drop),
            locks.mutex("b").fair().lock_timeout(hour).await.map(drop),
            locks
                .mutex("c")
                .fixed(ms(9_000))
                .lock_timeout(hour)
                .await
                .map(drop),
            locks.rw_lock("d").read_timeout(hour).await.map(drop),
            locks.semaphore("e", 2).acquire_timeout(hour).await.map(drop),
            locks.election("f").campaign_timeout(hour).await.map(drop),
            locks.multi(["g", "h"]).lock_timeout(hour).await.map(drop),
        ]
    });
    for result in refused.await {
        let error = result.unwrap_err();
        assert!(is_recovering(&error), "{error}");
        let Error::Store { source, .. } = error else {
            unreachable!()
        };
        assert!(source.retry_after().unwrap() > hour);
    }
    assert!(locks.recovering().unwrap() > hour);
    // Nothing of these callers stays in the queue.
    for name in [
        Name::lock("b".into()),
        Name::lock("d".into()),
        Name::semaphore("e".into()),
    ] {
        let is_left = || store.with_ledger(|ledger, _| ledger.waiters(&name).is_empty());
        crate::help::until("its claim has left", is_left).await;
    }
}

#[test]
fn a_caller_is_held_back_only_if_its_wait_ends_before_the_recovery() {
    let waits = |machine: &Machine, for_ms| LockOptions {
        until: Some(machine.now + ms(for_ms)),
        ..options(1_000)
    };
    for solo in [false, true] {
        let mut machine = Machine::new(Rules::default());
        let of = |options| LockOptions { solo, ..options };
        let patient = machine.enter(of(waits(&machine, 5_000)));
        machine.answer(ClaimReply::Recovering(5_000));
        assert!(machine.denial(patient).is_none());
        // A caller behind it is told what the node knows, and the caller itself with the next answer.
        let other = machine.enter(of(waits(&machine, 4_000)));
        assert!(is_denied_as_recovering(&machine, other));
        machine.passes();
        machine.answer(ClaimReply::Recovering(9_000));
        assert!(is_denied_as_recovering(&machine, patient));
        assert_eq!(machine.sent().request.verb, Verb::Leave);
        machine.answer(LeaveReply::Left);
        assert!(machine.shard.is_empty());
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_request_is_told_how_long_the_recovery_lasts() {
    use axum::{Router, routing::get};
    use http::{Request, StatusCode, header::RETRY_AFTER};
    use tenure::LockLayer;
    use tenure::middleware::Refused;
    use tower::ServiceExt;

    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    recover(&store, 100_000);
    // The layer's own time is shorter than the recovery.
    let layer = LockLayer::by(&locks, |_| "a")
        .wait(ms(99_000))
        .retry_after(ms(1_000));
    let app = Router::new().route("/", get(async || "not reached")).layer(layer);
    let request = Request::get("/").body(axum::body::Body::empty()).unwrap();
    let response = soon(app.oneshot(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.extensions().get(), Some(&Refused::Recovering));
    let after: u64 = response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    let left = locks.recovering().unwrap().as_secs();
    assert!(
        (left..=102).contains(&after),
        "{after} s, of which {left} s are left"
    );
}
