//! Schedules that broke earlier designs, step by step. Each test moves every message between engines and a ledger by
//! hand.
//!
//! The stage has one key. Requests of the engines stay on it until [`Stage::execute`] gives them to the server, and
//! answers until [`Stage::answer`] delivers them. Pushes stay until [`Stage::push`] delivers them.

use crate::failures::Why;
use std::collections::VecDeque;
use std::time::Duration;

use tenure::error::LostCause;
use tenure::protocol::context::Seed;
use tenure::protocol::key::shard::Shard;
use tenure::protocol::ledger::{Ledger, RecordOwner};
use tenure::protocol::message::{
    Batch, ClaimId, ClaimNumber, ClaimReply, Fence, Grant, GrantNumber, LeaseTimes, LeaveReply, Mode, Name,
    NodeId, Push, QueueOwner, Reply, Request, Rule, Verb,
};
use tenure::protocol::step::{
    Effect, InboxState, Input, KeyEvent, LockOptions, Outcome, Outgoing, Rules, Ticket,
};
use tenure::protocol::time::Instant;
use tenure::testing::timed_out;

const LEASE: u64 = 1_000;
const MARGIN: u64 = 250;
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// A request that was sent and is still on the stage.
#[derive(Clone)]
struct Sent {
    outgoing: Outgoing,
    at: Instant,
}

struct Actor {
    shard: Shard,
    sent: VecDeque<Sent>,
    answered: VecDeque<(Sent, Reply)>,
    told: Vec<Effect>,
}

struct Stage {
    ms: u64,
    ledger: Ledger,
    actors: Vec<Actor>,
    pushes: VecDeque<Grant>,
    name: Name,
}

fn term(lease_ms: u64) -> LeaseTimes {
    LeaseTimes {
        lease_ms,
        margin_ms: MARGIN,
    }
}

fn want(lease_ms: u64) -> LockOptions {
    LockOptions {
        limit: 100,
        ..LockOptions::new(term(lease_ms))
    }
}

fn node(at: usize) -> NodeId {
    NodeId::numbered(at as u128 + 1)
}

impl Stage {
    fn new(nodes: usize) -> Self {
        // There is no hand-over within a node: every release with waiters behind it is a yield.
        let rules = Rules {
            burst: 0,
            ..Rules::default()
        };
        let actor = |at| Actor {
            shard: Shard::new(node(at), 0, 1, Seed::numbered(at as u64), rules),
            sent: VecDeque::new(),
            answered: VecDeque::new(),
            told: Vec::new(),
        };
        Stage {
            ms: 10,
            ledger: Ledger::new(),
            actors: (0..nodes).map(actor).collect(),
            pushes: VecDeque::new(),
            name: Name::lock("k".into()),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.ms * 1_000_000)
    }

    fn us(&self) -> u64 {
        EPOCH_US + self.ms * 1_000
    }

    /// Lets time pass without a message.
    fn pass(&mut self, ms: u64) {
        self.ms += ms;
    }

    fn keep(&mut self, at: usize, effects: Vec<Effect>) {
        let now = self.now();
        for effect in effects {
            match effect {
                Effect::Send(outgoing) => self.actors[at].sent.push_back(Sent { outgoing, at: now }),
                effect => self.actors[at].told.push(effect),
            }
        }
    }

    fn feed(&mut self, at: usize, input: Input) {
        let now = self.now();
        let effects = self.actors[at].shard.handle(now, &self.name, input).to_vec();
        self.keep(at, effects);
    }

    fn lock(&mut self, at: usize, lease_ms: u64) -> Ticket {
        let ticket = self.actors[at].shard.issue();
        self.feed(at, Input::Lock(ticket, want(lease_ms)));
        ticket
    }

    fn wake(&mut self, at: usize) {
        let now = self.now();
        let mut wake = || Some(self.actors[at].shard.wake_next(now)?.1.to_vec());
        let effects: Vec<Effect> = std::iter::from_fn(&mut wake).flatten().collect();
        self.keep(at, effects);
    }

    fn run(&mut self, request: Request, not_after: u64) -> Reply {
        let batch = Batch {
            highest: GrantNumber(0),
            not_after,
            poll_gap_ms: 0,
            is_unconfirmed: false,
            recovery_ms: 1_000,
            rule: Rule::Each,
            requests: vec![request],
        };
        let mut pushes = Vec::new();
        let answer = self.ledger.apply(self.us(), &batch, &mut pushes);
        self.pushes.extend(pushes.into_iter().map(|push| match push {
            Push::Granted(grant) => grant,
            _ => panic!("neither a watcher nor an operator exists here: {push:?}"),
        }));
        answer.replies[0].clone()
    }

    /// The server executes the oldest request of a node; the answer stays on the stage.
    fn execute(&mut self, at: usize) -> Reply {
        let sent = self.actors[at].sent.pop_front().expect("something was sent");
        let reply = self.run(sent.outgoing.request.clone(), u64::MAX);
        self.actors[at].answered.push_back((sent, reply.clone()));
        reply
    }

    fn answer(&mut self, at: usize) {
        let (sent, reply) = self.actors[at]
            .answered
            .pop_front()
            .expect("something was answered");
        self.feed(
            at,
            Input::Answered {
                tag: sent.outgoing.tag,
                sent: sent.at,
                time: 0,
                reply,
            },
        );
    }

    /// Executes and answers everything that the node sent.
    fn settle(&mut self, at: usize) {
        while !self.actors[at].answered.is_empty() || !self.actors[at].sent.is_empty() {
            if self.actors[at].answered.is_empty() {
                self.execute(at);
            }
            self.answer(at);
        }
    }

    /// A request gets no answer. It may have been executed, or may be executed later.
    fn lose(&mut self, at: usize, sent: &Sent, late_after: Instant) {
        let error = timed_out();
        let (tag, failed) = (sent.outgoing.tag, Why::Unknown.failed(late_after, error));
        self.feed(at, Input::Failed { tag, failed });
    }

    /// Delivers the oldest push.
    fn push(&mut self) {
        let grant = self.pushes.pop_front().expect("something was pushed");
        let at = (0..self.actors.len())
            .find(|at| node(*at) == grant.claim_id.node)
            .expect("a node of the stage");
        self.feed(at, Input::Pushed(grant));
    }

    fn holds(&self, at: usize, ticket: Ticket) -> bool {
        let shard = &self.actors[at].shard;
        let holding = shard.holding(self.now(), &self.name, ticket);
        holding.is_some_and(|holding| holding.is_held())
    }

    fn granted(&self, at: usize, ticket: Ticket) -> Option<Fence> {
        self.actors[at].told.iter().find_map(|effect| match effect {
            Effect::Granted(to, fence) if *to == ticket => Some(*fence),
            _ => None,
        })
    }

    fn told(&self, at: usize, what: impl Fn(&Effect) -> bool) -> bool {
        self.actors[at].told.iter().any(what)
    }

    fn noticed(&self, at: usize, what: impl Fn(&KeyEvent) -> bool) -> bool {
        self.told(
            at,
            |effect| matches!(effect, Effect::Event(notice) if what(notice)),
        )
    }

    fn owner(&self) -> Option<ClaimId> {
        match self.ledger.record(&self.name, self.us())?.owner {
            RecordOwner::Claim(claim_id, _) => Some(claim_id),
            _ => None,
        }
    }

    fn owner_node(&self) -> Option<NodeId> {
        self.owner().map(|claim_id| claim_id.node)
    }
}

const N: usize = 0;
const M: usize = 1;
const P: usize = 2;

/// A push waits in a stopped node's socket until its lease has ended and another node holds the key.
#[test]
fn a_push_read_after_the_lease_ended_grants_nothing() {
    let mut stage = Stage::new(2);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let n = stage.lock(N, LEASE);
    assert!(matches!(
        stage.execute(N),
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    stage.answer(N);
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    assert_eq!(
        stage.owner_node(),
        Some(node(N)),
        "handed over, and its push is not delivered yet"
    );
    stage.pass(LEASE + MARGIN + 1);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    assert!(stage.holds(M, m), "the lease that was not taken up has ended");
    // It wakes: its renewal is answered before the old push is read.
    stage.wake(N);
    assert_eq!(
        stage.execute(N),
        ClaimReply::Gone.into(),
        "a number that was granted never waits again"
    );
    stage.answer(N);
    stage.push();
    stage.settle(N);
    assert!(!stage.holds(N, n) && stage.holds(M, m));
    assert_eq!(
        stage.owner_node(),
        Some(node(M)),
        "and leaving the unknown grant affected no other claim"
    );
}

/// The push is read first, and is too old to start on. The node asks the store about it.
#[test]
fn a_push_that_is_too_old_is_asked_about() {
    let mut stage = Stage::new(2);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let n = stage.lock(N, LEASE);
    stage.settle(N);
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    stage.pass(LEASE + MARGIN + 1);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    stage.push();
    assert!(stage.noticed(N, |notice| matches!(notice, KeyEvent::PushConfirming)));
    assert!(!stage.holds(N, n));
    stage.settle(N);
    assert!(!stage.holds(N, n) && stage.holds(M, m));
}

/// A yield was executed and its answer was lost. The node was granted again. Then a copy of the yield is executed.
#[test]
fn a_repeated_yield_does_not_give_away_a_later_grant() {
    let mut stage = Stage::new(2);
    let first = stage.lock(N, LEASE);
    stage.settle(N);
    let second = stage.lock(N, LEASE);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    stage.feed(N, Input::Release(first));
    let yielded = stage.actors[N].sent.front().expect("a yield").clone();
    assert!(matches!(yielded.outgoing.request.verb, Verb::Yield { .. }));
    assert!(matches!(
        stage.execute(N),
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    stage.actors[N].answered.clear();
    stage.push();
    assert!(stage.holds(M, m));
    stage.pass(100);
    let late = stage.now() + Duration::from_millis(50);
    stage.lose(N, &yielded, late);
    stage.settle(N);
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    stage.push();
    assert!(stage.holds(N, second), "granted again, under the fresh number");
    let before = stage.owner();
    assert_eq!(
        stage.run(yielded.outgoing.request, u64::MAX),
        ClaimReply::Gone.into()
    );
    assert_eq!(stage.owner(), before);
    assert!(stage.holds(N, second));
}

/// An answer reported the grant while its push was delayed. Then the node yields, and the push arrives.
#[test]
fn a_push_that_arrives_after_the_yield_grants_nothing() {
    let mut stage = Stage::new(3);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let first = stage.lock(N, LEASE);
    stage.settle(N);
    let p = stage.lock(P, LEASE);
    stage.settle(P);
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    stage.pass(LEASE / 3);
    stage.wake(N);
    stage.settle(N);
    assert!(stage.holds(N, first), "learnt from the renewal");
    let second = stage.lock(N, LEASE);
    stage.feed(N, Input::Release(first));
    // While the yield is in flight, its old number is known to be given up.
    let copy = stage.pushes.front().expect("the push that hung").clone();
    stage.push();
    assert!(stage.noticed(N, |notice| matches!(notice, KeyEvent::PushStale)));
    assert!(matches!(
        stage.execute(N),
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Node(_)))
    ));
    stage.answer(N);
    // After the yield, the number has ended.
    stage.feed(N, Input::Pushed(copy));
    stage.settle(N);
    assert!(!stage.holds(N, first) && !stage.holds(N, second));
    stage.push();
    assert!(stage.holds(P, p), "the push to the other node is not old");
    assert_eq!(stage.owner_node(), Some(node(P)));
}

/// A lease expires, another claim comes and goes, and a request of the first claim is executed late.
#[test]
fn a_late_request_of_a_lapsed_claim_takes_nothing_back() {
    let mut stage = Stage::new(2);
    let n = stage.lock(N, LEASE);
    let claim = stage.actors[N]
        .sent
        .front()
        .expect("a claim")
        .outgoing
        .request
        .clone();
    let not_after = stage.us() + 250_000;
    stage.settle(N);
    stage.pass(LEASE + MARGIN + 1);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let theirs = stage.granted(M, m).expect("the other's turn");
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    assert_eq!(
        stage.run(claim, not_after),
        Reply::Late,
        "a claim number never takes a key twice"
    );
    assert!(stage.ledger.is_empty());
    stage.feed(N, Input::Release(n));
    let lost = |effect: &Effect| matches!(effect, Effect::Released(_, Outcome::Lost(LostCause::Deadline)));
    assert!(stage.told(N, lost));
    stage.settle(N);
    let again = stage.lock(N, LEASE);
    stage.settle(N);
    assert!(stage.granted(N, again).expect("free again") > theirs);
}

/// The holder and the first waiter are dead.
#[test]
fn the_living_get_in_when_holder_and_first_waiter_are_dead() {
    let mut stage = Stage::new(4);
    stage.lock(3, LEASE);
    stage.settle(3);
    stage.lock(N, LEASE);
    stage.settle(N);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let p = stage.lock(P, LEASE);
    stage.settle(P);
    // Holder and head are silent from now on; the other nodes are driven by their timers.
    let begin = stage.ms;
    while stage.granted(M, m).is_none() {
        stage.pass(5);
        for at in [P, M] {
            stage.wake(at);
            stage.settle(at);
        }
        while !stage.pushes.is_empty() {
            stage.push();
        }
        assert!(
            stage.ms - begin <= LEASE + MARGIN + LEASE / 3,
            "the queue does not move"
        );
        assert!(stage.granted(P, p).is_none(), "in order");
    }
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    stage.push();
    assert!(stage.holds(P, p));
}

/// Two callers of one node want different leases. A claim has one length for life, so the caller that wants the
/// longer lease gets another claim.
#[test]
fn a_claim_keeps_one_length_for_life() {
    let mut stage = Stage::new(2);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let short = stage.lock(N, 5_000);
    stage.settle(N);
    let long = stage.lock(N, 60_000);
    stage.feed(N, Input::Cancel(short));
    stage.pass(400);
    let t0 = stage.now();
    stage.actors[N].shard.inbox(t0, InboxState::Confirmed, |_, _| {});
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    let lease_ms = stage.pushes.front().expect("a push").lease_ms;
    assert_eq!(lease_ms, 5_000);
    stage.push();
    assert!(!stage.holds(N, long), "served by the short claim");
    stage.settle(N);
    let holding = stage.actors[N].shard.holding(stage.now(), &stage.name, long);
    let left = holding.and_then(|holding| holding.remaining);
    assert_eq!(left, Some(Duration::from_millis(60_000)));
    let record = stage.ledger.record(&stage.name, stage.us());
    let expires = record.and_then(|record| record.expires);
    assert_eq!(
        expires,
        Some(stage.us() / 1000 + 60_000 + MARGIN),
        "on its own terms"
    );
}

/// The server comes back empty after a long time at the highest load.
#[test]
fn fences_grow_after_the_server_forgot_everything() {
    let name = Name::lock("k".into());
    let mut ledger = Ledger::new();
    let mut highest = 0;
    for grant in 0..200_000u64 {
        // There are a hundred thousand grants each second.
        let us = EPOCH_US + grant * 10;
        if grant % 50_000 == 49_999 {
            ledger.forget();
        }
        let claim_id = ClaimId {
            node: node(N),
            claim: ClaimNumber(grant),
            nonce: 1,
        };
        let mut ask = |verb| {
            let request = Request {
                name: name.clone(),
                claim_id,
                term: term(LEASE),
                mode: Mode::Exclusive,
                when_behind: Default::default(),
                may_keep: false,
                data: None,
                mark: None,
                verb,
            };
            crate::help::ask(&mut ledger, us, request)
        };
        let Some(number) = ask(Verb::Claim { wait: false }).number() else {
            panic!("free")
        };
        assert!(number > GrantNumber(highest), "grant {grant}");
        highest = number.0;
        assert_eq!(ask(Verb::Leave), LeaveReply::Left.into());
    }
}

/// A claim hangs in a dead connection and its caller has gone. The leave overtakes the claim, which is executed last.
#[test]
fn a_claim_executed_after_its_leave_leaves_nothing_behind() {
    let mut stage = Stage::new(1);
    let n = stage.lock(N, LEASE);
    let claim = stage.actors[N].sent.pop_front().expect("a claim");
    let late_after = stage.now() + Duration::from_millis(400);
    stage.pass(250);
    stage.lose(N, &claim, late_after);
    stage.feed(N, Input::Cancel(n));
    while let Some(sent) = stage.actors[N].sent.front().cloned() {
        // The question about the claim and its leave come first: the store has no record yet.
        assert!(
            matches!(
                stage.execute(N),
                Reply::Claim(ClaimReply::Gone) | Reply::Leave(LeaveReply::NotThere)
            ),
            "{:?}",
            sent.outgoing.request.verb
        );
        stage.answer(N);
    }
    assert!(stage.noticed(N, |notice| matches!(notice, KeyEvent::GhostLeft)));
    stage.pass(100);
    assert!(
        matches!(
            stage.run(claim.outgoing.request, u64::MAX),
            Reply::Claim(ClaimReply::Granted(_))
        ),
        "the abandoned claim is granted"
    );
    stage.pass(100);
    stage.wake(N);
    stage.settle(N);
    assert!(
        stage.ledger.is_empty(),
        "the claim is left again when it can no longer be executed"
    );
    assert!(stage.actors[N].shard.is_empty());
}

/// The machine sleeps while its clock goes on.
#[test]
fn a_node_that_slept_past_its_lease_holds_nothing() {
    let mut stage = Stage::new(2);
    let n = stage.lock(N, LEASE);
    stage.settle(N);
    let (now, name) = (stage.now(), stage.name.clone());
    assert!(stage.actors[N].shard.take_up(now, &name, n).is_some());
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    stage.pass(60_000);
    assert!(
        !stage.holds(N, n),
        "the first look says so, before anything else was handled"
    );
    stage.wake(N);
    let lost = |effect: &Effect| matches!(effect, Effect::Lost(_, LostCause::Deadline));
    assert!(stage.told(N, lost));
    // The other machine slept, too: its place is gone, and it asks for a new one.
    stage.wake(M);
    stage.settle(M);
    stage.settle(N);
    assert!(stage.holds(M, m) && !stage.holds(N, n));
}

/// A monitor that subscribes to all channels keeps no node alive: only the node's own inbox counts. A node without an
/// inbox keeps its place.
#[test]
fn a_monitor_of_all_channels_makes_no_dead_waiter_alive() {
    let mut stage = Stage::new(3);
    for at in [M, P] {
        stage.ledger.set_listening(node(at), true);
    }
    let p = stage.lock(P, LEASE);
    stage.settle(P);
    stage.lock(N, LEASE);
    stage.settle(N);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    stage.feed(P, Input::Release(p));
    stage.settle(P);
    assert_eq!(stage.owner_node(), Some(node(M)), "passed over");
    stage.push();
    let waiters: Vec<_> = stage
        .ledger
        .waiters(&stage.name)
        .iter()
        .map(|claim_id| claim_id.node)
        .collect();
    assert_eq!(waiters, [node(N)], "and it keeps its place");
    stage.ledger.set_listening(node(N), true);
    stage.feed(M, Input::Release(m));
    stage.settle(M);
    assert_eq!(stage.owner_node(), Some(node(N)));
}

/// A push names a claim of this node, but has another nonce.
#[test]
fn a_push_with_a_wrong_nonce_grants_nothing() {
    let mut stage = Stage::new(2);
    let m = stage.lock(M, LEASE);
    stage.settle(M);
    let n = stage.lock(N, LEASE);
    stage.settle(N);
    let claim_id = stage.ledger.waiters(&stage.name)[0];
    let forged = ClaimId {
        nonce: claim_id.nonce ^ 1,
        ..claim_id
    };
    let grant = Grant {
        attempt: 0,
        name: stage.name.clone(),
        claim_id: forged,
        number: GrantNumber(u64::MAX >> 10),
        lease_ms: LEASE,
    };
    stage.feed(N, Input::Pushed(grant));
    assert!(stage.noticed(N, |notice| matches!(notice, KeyEvent::PushForged)));
    assert!(!stage.holds(N, n) && stage.holds(M, m));
}
