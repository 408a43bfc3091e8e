//! The quorum by hand: what three masters are sent, and what their answers mean together.

use crate::failures::Why;
use std::time::Duration;

use tenure::Key;
use tenure::error::{Error, LostCause, StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::context::Seed;
use tenure::protocol::key::shard::{Effects, Shard};
use tenure::protocol::message::{ClaimReply, GrantNumber, LeaseTimes, LeaveReply, Name, NodeId, Reply, Verb};
use tenure::protocol::step::{
    AcquireError, Effect, Input, LockOptions, Outcome, Outgoing, Rules, Ticket, WhyDenied,
};
use tenure::protocol::time::Instant;

const TERM: LeaseTimes = LeaseTimes {
    lease_ms: 3_000,
    margin_ms: 300,
};

/// A node with one key at three masters, and the requests that have no answer.
struct Node {
    shard: Shard,
    name: Name,
    now: Instant,
    sent: Vec<(usize, Outgoing)>,
    told: Vec<Effect>,
}

impl Node {
    fn new() -> Self {
        let rules = Rules {
            queues: false,
            masters: 3,
            ..Rules::default()
        };
        Node {
            shard: Shard::new(NodeId::numbered(1), 0, 1, Seed::numbered(1), rules),
            name: Name::lock(Key::from("a")),
            now: Instant::from_nanos(1_000_000_000),
            sent: Vec::new(),
            told: Vec::new(),
        }
    }

    fn note(sent: &mut Vec<(usize, Outgoing)>, told: &mut Vec<Effect>, effects: &Effects<'_>) {
        for effect in effects.iter() {
            match effect {
                Effect::Send(outgoing) => sent.push((usize::from(outgoing.tag.master), outgoing.clone())),
                effect => told.push(effect.clone()),
            }
        }
    }

    fn feed(&mut self, input: Input) {
        let effects = self.shard.handle(self.now, &self.name, input);
        Self::note(&mut self.sent, &mut self.told, &effects);
    }

    fn lock(&mut self, wait: bool) -> Ticket {
        let ticket = self.shard.issue();
        let options = LockOptions {
            wait,
            ..LockOptions::new(TERM)
        };
        self.feed(Input::Lock(ticket, options));
        ticket
    }

    /// Takes the next request to a master.
    #[track_caller]
    fn take(&mut self, master: usize) -> Outgoing {
        let at = self.sent.iter().position(|(to, _)| *to == master);
        self.sent.remove(at.expect("a request to this master")).1
    }

    /// Answers the next request to a master, which was sent now.
    #[track_caller]
    fn answer(&mut self, master: usize, reply: impl Into<Reply>) {
        let outgoing = self.take(master);
        let (tag, sent) = (outgoing.tag, self.now);
        self.now = self.now + Duration::from_millis(1);
        self.feed(Input::Answered {
            tag,
            sent,
            time: 5_000_000,
            reply: reply.into(),
        });
    }

    /// The next request to a master has no answer, and may be executed for 100 ms.
    #[track_caller]
    fn fail(&mut self, master: usize, why: Why) {
        let tag = self.take(master).tag;
        let error = StoreError::new(StoreErrorKind::Unreachable, "gone");
        let failed = why.failed(self.now + Duration::from_millis(100), error);
        self.feed(Input::Failed { tag, failed });
    }

    fn granted(&self) -> Option<GrantNumber> {
        self.told.iter().find_map(|effect| match effect {
            Effect::Granted(_, fence) => Some(fence.number()),
            _ => None,
        })
    }

    fn verbs(&self) -> Vec<(usize, Verb)> {
        let sent = self.sent.iter();
        sent.map(|(master, outgoing)| (*master, outgoing.request.verb))
            .collect()
    }

    /// Does what is due.
    fn wake(&mut self) {
        while let Some((_, effects)) = self.shard.wake_next(self.now) {
            Self::note(&mut self.sent, &mut self.told, &effects);
        }
    }
}

fn number(number: u64) -> Reply {
    ClaimReply::granted(GrantNumber(number)).into()
}

#[test]
fn a_majority_that_gives_one_number_grants_in_one_trip() {
    let mut node = Node::new();
    let ticket = node.lock(true);
    let none = Verb::Propose {
        number: GrantNumber(0),
    };
    assert_eq!(node.verbs(), [(0, none), (1, none), (2, none)]);
    node.answer(0, number(7));
    assert_eq!(node.granted(), None);
    node.answer(2, number(7));
    assert_eq!(node.granted(), Some(GrantNumber(7)));
    // The third answer changes nothing, whatever it is.
    node.answer(1, ClaimReply::Busy(Some(1_000)));
    node.feed(Input::Release(ticket));
    assert_eq!(node.verbs(), [(0, Verb::Leave), (2, Verb::Leave)]);
    node.answer(0, LeaveReply::Left);
    let kept = |effect: &Effect| matches!(effect, Effect::Released(_, Outcome::Held));
    assert!(node.told.iter().any(kept), "two masters do not have it");
    assert!(!node.shard.is_empty(), "the third is still told");
    node.answer(2, LeaveReply::Left);
    assert!(node.shard.is_empty());
}

#[test]
fn different_numbers_need_a_second_trip_to_the_masters_with_the_record() {
    let mut node = Node::new();
    node.lock(true);
    node.answer(0, number(5));
    node.answer(1, ClaimReply::Busy(None));
    node.answer(2, number(9));
    assert_eq!(node.granted(), None, "another claim may still get 6 and 7");
    let raise = Verb::Restore {
        number: GrantNumber(9),
    };
    assert_eq!(node.verbs(), [(0, raise)], "master 1 does not have the record");
    node.answer(0, number(9));
    assert_eq!(node.granted(), Some(GrantNumber(9)));
}

#[test]
fn the_lease_counts_from_the_last_vote_that_makes_a_majority() {
    let mut node = Node::new();
    node.lock(true);
    let (first, begin) = (node.take(0), node.now);
    node.answer(2, number(7));
    node.now = node.now + Duration::from_millis(700);
    let answered = Input::Answered {
        tag: first.tag,
        sent: begin,
        time: 0,
        reply: number(7),
    };
    node.feed(answered);
    assert_eq!(node.granted(), Some(GrantNumber(7)));
    let held = node.shard.held_alone(node.now, &node.name).unwrap();
    assert_eq!(held.deadline, begin + Duration::from_millis(3_000));
}

/// Of the three masters one never gave its vote, and one is killed before the first renewal. While a rival's claim has the
/// record on the third, no majority has the lease, and it ends.
#[test]
fn a_lease_of_a_bare_majority_is_lost_with_one_of_its_masters() {
    let mut node = Node::new();
    let ticket = node.lock(true);
    node.answer(0, number(7));
    node.answer(1, ClaimReply::Busy(Some(1_000)));
    node.answer(2, number(7));
    assert_eq!(node.granted(), Some(GrantNumber(7)));
    node.shard.take_up(node.now, &node.name, ticket);
    let lost = |effect: &Effect| matches!(effect, Effect::Lost(_, LostCause::Deadline));
    for _ in 0..4_000 {
        node.now = node.now + Duration::from_millis(1);
        node.wake();
        while let Some((master, _)) = node.sent.first() {
            match *master {
                0 => node.fail(0, Why::Down),
                1 => node.answer(1, ClaimReply::Busy(Some(1_000))),
                master => node.answer(master, number(7)),
            }
        }
        if node.told.iter().any(lost) {
            return;
        }
    }
    panic!("the lease goes on without a majority");
}

#[test]
fn a_claim_without_a_majority_is_left_wherever_it_may_be() {
    let mut node = Node::new();
    node.lock(false);
    node.answer(0, number(7));
    node.fail(1, Why::Unknown);
    node.answer(2, ClaimReply::Busy(Some(500)));
    let busy = |effect: &Effect| matches!(effect, Effect::Denied(_, WhyDenied::Error(AcquireError::Busy)));
    assert!(node.told.iter().any(busy), "granted and busy make a majority");
    // Master 1 may still execute the claim. It is left there when the claim would be late.
    assert_eq!(node.verbs(), [(0, Verb::Leave)]);
    node.answer(0, LeaveReply::Left);
    assert!(!node.shard.is_empty());
    node.now = node.now + Duration::from_millis(200);
    node.wake();
    assert_eq!(node.verbs(), [(1, Verb::Leave)]);
    node.answer(1, LeaveReply::NotThere);
    assert!(node.shard.is_empty());
}

#[test]
fn a_master_without_a_vote_does_not_hide_that_the_key_is_busy() {
    let mut node = Node::new();
    node.lock(false);
    node.answer(0, ClaimReply::Recovering(900));
    node.answer(1, ClaimReply::Busy(Some(500)));
    let denied = |node: &Node, is: fn(&AcquireError) -> bool| {
        let mut told = node.told.iter();
        told.any(|effect| matches!(effect, Effect::Denied(_, WhyDenied::Error(why)) if is(why)))
    };
    assert!(!denied(&node, |_| true), "a majority may still say busy");
    node.answer(2, ClaimReply::Busy(Some(500)));
    assert!(denied(&node, |why| matches!(why, AcquireError::Busy)));
    assert!(node.shard.is_empty());
}

#[test]
fn a_mute_master_does_not_keep_a_claim_whose_key_is_busy() {
    let mut node = Node::new();
    node.lock(false);
    node.answer(0, number(7));
    node.answer(1, ClaimReply::Busy(Some(500)));
    let busy = |effect: &Effect| matches!(effect, Effect::Denied(_, WhyDenied::Error(AcquireError::Busy)));
    node.wake();
    assert!(!node.told.iter().any(busy), "master 2 may still grant");
    node.now = node.now + Duration::from_millis(100);
    node.wake();
    assert!(node.told.iter().any(busy));
    // The claim is left at master 2, too, if that grants it after all.
    node.answer(0, LeaveReply::Left);
    node.answer(2, number(7));
    assert_eq!(node.verbs(), [(2, Verb::Leave)]);
    node.answer(2, LeaveReply::Left);
    assert!(node.shard.is_empty());
}

#[test]
fn without_enough_votes_the_caller_is_told_how_many_are_missing() {
    let mut node = Node::new();
    node.lock(false);
    node.answer(0, number(7));
    node.fail(1, Why::Down);
    node.answer(2, ClaimReply::Recovering(900));
    // It is tried once more.
    node.answer(0, LeaveReply::Left);
    node.answer(0, number(9));
    node.fail(1, Why::Down);
    node.answer(2, ClaimReply::Recovering(900));
    let text = node.told.iter().find_map(|effect| match effect {
        Effect::Denied(_, WhyDenied::Error(AcquireError::Store(error))) => Some(error.to_string()),
        _ => None,
    });
    let text = text.expect("no majority");
    assert!(text.contains("2 of 3 masters have no vote"), "{text}");
}

#[test]
fn a_renewal_goes_to_all_and_brings_a_master_back() {
    let mut node = Node::new();
    node.lock(true);
    node.answer(0, number(7));
    node.answer(1, number(7));
    node.fail(2, Why::No);
    assert!(node.sent.is_empty());
    node.now = node.now + Duration::from_millis(1_000);
    node.wake();
    let renewal = Verb::Restore {
        number: GrantNumber(7),
    };
    assert_eq!(node.verbs(), [(0, renewal), (1, renewal), (2, renewal)]);
    // Master 0 has lost its records. Master 2 takes its place.
    node.answer(0, ClaimReply::Recovering(3_000));
    node.answer(2, number(7));
    node.answer(1, number(7));
    let held = node.shard.held_alone(node.now, &node.name).unwrap();
    assert!(held.remaining.unwrap() > Duration::from_millis(2_900), "{held:?}");
    // Others have a majority now.
    node.now = node.now + Duration::from_millis(1_100);
    node.wake();
    node.answer(0, ClaimReply::Busy(Some(9)));
    assert!(node.shard.held_alone(node.now, &node.name).is_some());
    node.answer(1, ClaimReply::Busy(Some(9)));
    let lost = |effect: &Effect| matches!(effect, Effect::Lost(..));
    assert!(node.told.iter().any(lost), "one master is no majority");
}

/// A renewal that is answered after the release may have been executed after the leave, so it is left again.
#[test]
fn a_release_beside_a_renewal_is_no_loss() {
    let mut node = Node::new();
    let ticket = node.lock(true);
    for master in 0..3 {
        node.answer(master, number(7));
    }
    node.now = node.now + Duration::from_millis(1_000);
    node.wake();
    node.feed(Input::Release(ticket));
    for master in 0..3 {
        node.answer(master, number(7));
    }
    for master in 0..3 {
        node.answer(master, LeaveReply::Left);
    }
    for master in 0..3 {
        node.answer(master, LeaveReply::NotThere);
    }
    let kept = |effect: &Effect| matches!(effect, Effect::Released(_, Outcome::Held));
    assert!(node.told.iter().any(kept), "{:?}", node.told);
    assert!(node.shard.is_empty());
}

/// A master that was away from the beginning has not said that it has no record. Without its vote and that of a master that keeps
/// the record, no other claim gets the key.
#[test]
fn a_release_is_confirmed_by_a_majority_of_the_masters() {
    let mut node = Node::new();
    let ticket = node.lock(true);
    node.answer(0, number(7));
    node.answer(1, number(7));
    node.fail(2, Why::No);
    node.feed(Input::Release(ticket));
    node.answer(0, LeaveReply::Left);
    let is_over = |node: &Node| {
        node.told
            .iter()
            .any(|effect| matches!(effect, Effect::Released(..)))
    };
    assert!(!is_over(&node), "master 1 keeps the record");
    node.answer(1, LeaveReply::Left);
    assert!(is_over(&node) && node.shard.is_empty());
}

/// A leave of an earlier round may be under way when the key machine leaves again. The round waits for it.
#[test]
fn a_leave_to_masters_that_stay_down_comes_to_an_end() {
    let mut node = Node::new();
    let ticket = node.lock(true);
    for master in 0..3 {
        node.answer(master, number(7));
    }
    node.feed(Input::Release(ticket));
    node.answer(0, LeaveReply::Left);
    // The record ends after the lease and the margin, 3.3 s.
    let end = node.now + Duration::from_millis(5_000);
    let mut rounds = 0;
    while !node.shard.is_empty() {
        assert!(node.now < end, "the claim is kept for too long: {:?}", node.told);
        // Each request fails after half a second. What is sent meanwhile fails with the next ones.
        let under_way: Vec<_> = node.verbs();
        node.now = node.now + Duration::from_millis(500);
        node.wake();
        for (master, verb) in under_way {
            assert_eq!(verb, Verb::Leave);
            node.fail(master, Why::Down);
        }
        rounds += 1;
    }
    assert!(
        rounds > 4,
        "the leave is repeated while a record may exist: {rounds}"
    );
}

/// The masters do not exist, so a refusal was not asked for.
#[cfg(feature = "redis")]
async fn locks_of_no_masters() -> tenure::Locks {
    let masters = [1, 2, 3].map(|port| redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap());
    let quorum = tenure::Locks::builder()
        .lazy()
        .quorum(masters.into(), Duration::from_secs(10));
    quorum.await.unwrap()
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn what_a_quorum_does_not_serve_is_refused_before_anything_is_sent() {
    let locks = locks_of_no_masters().await;
    let refused = [
        ("read locks", locks.rw_lock("a").read().await.map(drop)),
        ("semaphores", locks.semaphore("a", 2).acquire().await.map(drop)),
        ("fair locks", locks.mutex("a").fair().lock().await.map(drop)),
        ("elections", locks.election("a").campaign().await.map(drop)),
        ("elections", locks.election("a").leader().await.map(drop)),
        ("latches", locks.latch("a").try_set_count(1).await.map(drop)),
        ("latches", locks.latch("a").wait().await),
    ];
    for (what, result) in refused {
        let Err(Error::Store { source, .. }) = result else {
            panic!("{what}: {result:?}");
        };
        assert_eq!(*source.kind(), StoreErrorKind::Refused(StoreRefusal::Unsupported));
        let text = format!("a quorum serves no {what}: use `Locks` on one Redis");
        assert!(source.to_string().contains(&text), "{source}");
    }
}

/// A job that is accepted and never runs is seen by no test of the user's.
#[cfg(all(feature = "redis", feature = "scheduler"))]
#[tokio::test]
async fn a_job_on_a_quorum_is_refused_when_it_is_made() {
    let locks = locks_of_no_masters().await;
    let refused = [
        locks.cron("a", "0 0 0 * * *").run(|_| async {}).err(),
        locks
            .every("a", Duration::from_secs(60))
            .run_blocking(|_| {})
            .err(),
    ];
    for error in refused {
        let text = error.expect("a job that never runs").to_string();
        assert!(
            text.contains("a quorum serves no jobs: use `Locks` on one Redis"),
            "{text}"
        );
    }
}
