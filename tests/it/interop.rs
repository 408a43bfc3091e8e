//! Other libraries lock the same record. A foreign owner does not know the queue and pushes no release, so the
//! waiters behind it look for themselves, often.

use std::time::Duration;

use tenure::Key;
use tenure::protocol::message::{ClaimReply, Name, QueueOwner, Reply};
use tenure::protocol::step::{Effect, InboxState, Rules};

use crate::help::ms;
use crate::machine::{Machine, options};

/// Long enough that a third of it is later than every other timer.
const LEASE_MS: u64 = 30_000;
/// The factor by which a timer may be shortened, so that the timers of many nodes spread.
const JITTER: f64 = 0.9;

fn waiting() -> Machine {
    let mut machine = Machine::new(Rules::default());
    machine.enter(options(LEASE_MS));
    machine
}

/// Returns the pause until the next look, after this answer.
fn looks_after(machine: &mut Machine, reply: impl Into<Reply>) -> Duration {
    machine.answer(reply);
    let pause = machine.passes();
    assert!(machine.sent().request.verb.is_renewal());
    pause
}

fn is_about(pause: Duration, span: Duration) -> bool {
    span.mul_f64(JITTER) <= pause && pause <= span
}

#[test]
fn a_foreign_owner_is_looked_at_every_30_ms_for_2_s_and_every_250_ms_after_that() {
    for left in [None, Some(60_000)] {
        let mut machine = waiting();
        let asked = machine.now;
        let first = looks_after(&mut machine, ClaimReply::Queued(left, QueueOwner::Foreign));
        assert!(first <= ms(30), "{first:?}");
        while machine.now.since(asked) < ms(2_000) {
            let pause = looks_after(&mut machine, ClaimReply::Queued(left, QueueOwner::Foreign));
            assert_eq!(pause, ms(30));
        }
        let first = looks_after(&mut machine, ClaimReply::Queued(left, QueueOwner::Foreign));
        assert!(first <= ms(250), "{first:?}");
        for _ in 0..20 {
            let pause = looks_after(&mut machine, ClaimReply::Queued(left, QueueOwner::Foreign));
            assert_eq!(pause, ms(250));
        }
    }
}

/// A late answer or a late timer does not shift the looks.
#[test]
fn a_node_looks_at_all_its_keys_in_the_same_moments() {
    let mut machine = waiting();
    machine.answer(ClaimReply::Queued(None, QueueOwner::Foreign));
    machine.later(ms(7));
    machine.name = Name::lock(Key::from("b"));
    machine.enter(options(LEASE_MS));
    machine.later(ms(4));
    machine.answer(ClaimReply::Queued(None, QueueOwner::Foreign));
    let before = machine.sends();
    machine.passes();
    assert_eq!(machine.sends(), before + 2);
}

#[test]
fn a_tenure_owner_is_looked_at_every_third_of_a_lease() {
    let mut machine = waiting();
    let third = ms(LEASE_MS / 3);
    for _ in 0..3 {
        let pause = looks_after(&mut machine, ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
        assert!(is_about(pause, third), "{pause:?}");
    }
    // Each answer decides for itself: the next owner after the foreign one is a tenure node.
    let mut machine = waiting();
    let pause = looks_after(
        &mut machine,
        ClaimReply::Queued(Some(60_000), QueueOwner::Foreign),
    );
    assert!(pause <= ms(30), "{pause:?}");
    let pause = looks_after(&mut machine, ClaimReply::Queued(Some(60_000), QueueOwner::Shared));
    assert!(is_about(pause, third), "{pause:?}");
}

#[test]
fn a_foreign_owner_is_never_looked_at_later_than_a_tenure_owner() {
    // The record of the foreign owner ends sooner.
    let pause = looks_after(&mut waiting(), ClaimReply::Queued(Some(5), QueueOwner::Foreign));
    assert!(pause <= ms(7), "{pause:?}");
    // A third of the lease is sooner than the slow pace.
    let mut machine = Machine::new(Rules::default());
    machine.enter(options(400));
    machine.later(ms(10_000));
    let pause = looks_after(&mut machine, ClaimReply::Queued(None, QueueOwner::Foreign));
    assert!(pause <= ms(134), "{pause:?}");
    // The pace stays fast while pushes are not confirmed.
    let mut machine = waiting();
    machine.inbox(InboxState::Unconfirmed);
    let pause = looks_after(&mut machine, ClaimReply::Queued(None, QueueOwner::Foreign));
    assert!(pause <= ms(30), "{pause:?}");
}

/// Any look moves the queue on, so a thousand claims look hardly more often than one, and not all at once.
#[test]
fn many_claims_of_one_key_take_turns() {
    /// Less than a third of the lease, when each claim tells that it lives.
    const WATCHED: Duration = Duration::from_millis(260);
    for count in [1, 3, 1_000] {
        let mut machine = Machine::new(Rules::default());
        for _ in 0..count {
            machine.lock(true);
        }
        answer_all(&mut machine);
        let (start, mut looks, mut longest) = (machine.now, 0, Duration::ZERO);
        while machine.now.since(start) < WATCHED {
            longest = longest.max(machine.passes());
            looks += answer_all(&mut machine);
        }
        assert!((3..=15).contains(&looks), "{count} claims look {looks} times");
        assert!(
            longest < ms(150),
            "{count} claims look at nothing for {longest:?}"
        );
    }
}

/// Answers every request in flight with "queued behind a foreign owner", and counts them.
fn answer_all(machine: &mut Machine) -> usize {
    let effects = std::mem::take(&mut machine.effects).into_iter();
    let sent = effects.filter_map(|effect| match effect {
        Effect::Send(outgoing) => Some(outgoing),
        _ => None,
    });
    sent.map(|outgoing| {
        machine.answer_to(
            &outgoing,
            machine.now,
            ClaimReply::Queued(None, QueueOwner::Foreign),
        )
    })
    .count()
}
