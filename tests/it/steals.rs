//! Leases in memory that an operator takes.

use std::time::Duration;

use tenure::protocol::message::{ClaimReply, Grant, GrantNumber, LeaveReply, Mode, Name, Verb};
use tenure::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};
use tenure::protocol::step::{Effect, Input, Outcome, Rules};
use tenure::testing::timed_out;
use tenure::{Locks, MemoryStore};
use tracing::Level;

use crate::failures::Why;
use crate::help::ms;
use crate::machine::{Machine, options};
use crate::support::events::Watch;
use crate::support::inspect::{show, until_told};
use crate::support::steal;

fn nodes() -> (Locks, Locks) {
    let store = MemoryStore::new();
    let node = |name: &str| {
        let builder = Locks::builder().node_name(name).seed(7);
        builder.memory_shared(&store).unwrap()
    };
    (node("one"), node("other"))
}

#[tokio::test]
async fn a_holder_that_is_asked_gives_the_lease_to_another_node() {
    let (one, other) = nodes();
    steal::a_holder_that_is_asked_gives_the_lease_to_another_node(&one, &other).await;
}

#[tokio::test]
async fn a_holder_that_does_not_give_back_loses_the_lease_first() {
    let (one, other) = nodes();
    steal::a_holder_that_does_not_give_back_loses_the_lease_first(&one, &other).await;
}

#[tokio::test]
async fn one_of_several_holders_is_chosen_by_its_number() {
    let (one, other) = nodes();
    steal::one_of_several_holders_is_chosen_by_its_number(&one, &other).await;
}

#[tokio::test]
async fn a_reader_is_revoked_and_the_others_read_on() {
    let (one, other) = nodes();
    steal::a_reader_is_revoked_and_the_others_read_on(&one, &other).await;
}

#[tokio::test]
async fn a_lease_is_handed_over_at_once() {
    let (one, other) = nodes();
    steal::a_lease_is_handed_over_at_once(&one, &other).await;
}

#[tokio::test]
async fn observers_learn_that_a_leader_was_revoked() {
    let (one, other) = nodes();
    steal::observers_learn_that_a_leader_was_revoked(&one, &other).await;
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused() {
    let (one, other) = nodes();
    steal::what_cannot_be_taken_is_refused(&one, &other).await;
}

#[tokio::test]
async fn a_lease_that_was_given_away_is_left_at_once() {
    let (one, other) = nodes();
    steal::a_lease_that_was_given_away_is_left_at_once(&one, &other).await;
}

#[tokio::test]
async fn a_revoked_writer_that_becomes_a_reader_leaves() {
    let (one, other) = nodes();
    steal::a_revoked_writer_that_becomes_a_reader_leaves(&one, &other).await;
}

#[tokio::test]
async fn one_of_many_holders_is_taken() {
    let (one, other) = nodes();
    steal::one_of_many_holders_is_taken(&one, &other).await;
}

#[tokio::test]
async fn a_holder_of_several_keys_is_asked_for_one() {
    let (one, other) = nodes();
    steal::a_holder_of_several_keys_is_asked_for_one(&one, &other).await;
}

#[tokio::test]
async fn a_share_that_was_given_away_is_left_at_once() {
    let (one, other) = nodes();
    steal::a_share_that_was_given_away_is_left_at_once(&one, &other).await;
}

#[tokio::test]
async fn a_revoked_share_is_handed_over() {
    let (one, other) = nodes();
    steal::a_revoked_share_is_handed_over(&one, &other).await;
}

#[tokio::test]
async fn two_operators_take_one_share() {
    let (one, other) = nodes();
    steal::two_operators_take_one_share(&one, &other).await;
}

/// A release to the store, as a caller of the same process waits, arrives after a revoke.
#[test]
fn a_release_of_a_revoked_lease_is_confirmed() {
    let mut machine = Machine::yielding();
    let first = machine.claim_id(1_000);
    let [ticket, next] = [(); 2].map(|()| machine.enter(options(1_000)));
    machine.tell(Input::Release(first));
    assert!(machine.take_up(ticket), "the first release stays in the process");
    machine.tell(Input::Release(ticket));
    let yielded = machine.sent();
    let Verb::Yield { .. } = yielded.request.verb else {
        panic!("{yielded:?}")
    };
    machine.answer(ClaimReply::Revoked);
    let leave = machine.sent_of(|verb| verb == Verb::Leave);
    assert_eq!(leave.request.claim_id, yielded.request.claim_id);
    machine.answer_to(&leave, machine.now, LeaveReply::Left);
    let mut effects = machine.effects.iter();
    assert!(effects.any(|effect| matches!(effect, Effect::Released(of, Outcome::Held) if *of == ticket)));
    assert!(!effects.any(|effect| matches!(effect, Effect::Lost(..))));
    // The waiter is claimed for under a new number.
    let claim = machine.sent_of(|verb| verb == Verb::Claim { wait: true });
    machine.answer_to(&claim, machine.now, ClaimReply::granted(GrantNumber(9)));
    assert!(machine.holds(next));
}

/// The push of the grant and the push of the revoke overtake the answer to the claim, which is lost.
#[test]
fn a_lease_that_is_revoked_before_its_claim_is_answered_ends_at_its_deadline() {
    let mut machine = Machine::new(Rules::default());
    let ticket = machine.enter(options(1_000));
    let claim = machine.sent();
    let claim_id = claim.request.claim_id;
    machine.tell(Input::Pushed(Grant {
        name: machine.name.clone(),
        claim_id,
        number: GrantNumber(7),
        lease_ms: 1_000,
        attempt: 0,
    }));
    assert!(machine.take_up(ticket));
    machine.tell(Input::Revoked(claim_id, Mode::Exclusive));
    assert!(!machine.holds(ticket));
    machine.fail_with(&claim, Why::Unknown, Some(machine.now), timed_out());
    assert_eq!(machine.sends(), 1, "the holder's code may still run");
    // Its guard is never dropped.
    assert_eq!(machine.passes(), ms(1_000));
    assert_eq!(machine.sent().request.verb, Verb::Leave);
    machine.answer(LeaveReply::Left);
    assert!(machine.shard.is_empty(), "nothing is left");
}

#[tokio::test]
async fn both_sides_tell_of_a_steal() {
    let (one, other) = nodes();
    for (what, of_the_holder) in [
        ("asked", &["asked"][..]),
        ("revoked", &["revoked", "lost"]),
        ("handed_over", &["revoked", "lost"]),
    ] {
        let key = format!("told of {what}");
        let watch = Watch::of(&*key);
        let guard = one.mutex(&*key).lock().await.unwrap();
        until_told(&other, &key).await;
        let steal = other.inspect().steal(&show(&other, &key).await[0]);
        let steal = match what {
            "asked" => steal.grace(Duration::from_secs(600)),
            "revoked" => steal.grace(Duration::ZERO),
            _ => steal.now(),
        };
        let stealing = tokio::spawn(steal.by("the operator").why("the reason").into_future());
        for event in of_the_holder {
            let told = watch.until(event).await;
            assert_eq!(told.level, Level::WARN, "{told:?}");
        }
        if what == "asked" {
            let asked = guard.asked().await.unwrap();
            assert_eq!((&*asked.by, &*asked.why), ("the operator", "the reason"));
            assert!(guard.is_held());
        }
        drop(guard);
        stealing.await.unwrap().unwrap();
        let told = watch.until("stolen").await;
        for word in [&*format!("what={what}"), "by=the operator", "why=the reason"] {
            assert!(told.text.contains(word), "{told:?}");
        }
        let counts = ["asked", "revoked", "lost", "stolen"].map(|event| watch.count(event));
        let wanted = if what == "asked" {
            [1, 0, 0, 1]
        } else {
            [0, 1, 1, 1]
        };
        assert_eq!(counts, wanted, "{what}");
    }
}

/// A steal that is cut off after its revoke leaves no entry. The same steal then writes what is missing, once.
#[tokio::test]
async fn a_repeated_steal_writes_down_a_revoke_that_has_no_entry() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let guard = locks.mutex("stuck").lock().await.unwrap();
    let request = StealRequest {
        name: Name::lock("stuck".into()),
        target: StealTarget::Grant(guard.fence().number(), Mode::Exclusive),
        act: StealAct::Revoke,
        tells: true,
    };
    let reply = store.with_ledger(|ledger, now| ledger.steal(now, &request, &mut Vec::new()));
    assert!(matches!(reply, StealReply::Done(Some(_))), "{reply:?}");
    let inspection = locks.inspect();
    assert!(inspection.audit().await.unwrap().is_empty());
    let entry = inspection.show("stuck").await.unwrap().entries.remove(0);
    let steals = [(); 2].map(|()| inspection.steal(&entry).by("ops").why("stuck").into_future());
    let [first, second] = steals;
    // The steals wait for the end of the lease when they are polled once.
    let (first, second, ()) = tokio::join!(first, second, async { drop(guard) });
    assert!(first.unwrap().unwritten.is_none() && second.unwrap().unwritten.is_none());
    let audit = inspection.audit().await.unwrap();
    assert!(
        matches!(&audit[..], [only] if only.what == "revoked" && only.by == "ops"),
        "{audit:?}"
    );
}
