//! The session alone: which requests it sends at which time, and what it reports about unanswered requests.

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::error::{StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{
    Batch, BatchReply, ClaimId, ClaimNumber, ClaimReply, Executed, Failure, GrantNumber, GrantReply,
    LeaseTimes, LeaveReply, LinkReply, Mode, Name, NodeId, RecoveryCause, Reply, Request, TickTime, Verb,
};
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{
    Attempt, BatchId, InboxEffect, MAX_SILENCE, Opened, Place, Probe, SessionEffect, SessionInput,
    SessionOptions, SessionRole,
};
use tenure::protocol::step::{Class, FormerMaster, InboxState, Input, Outgoing, Tag};
use tenure::protocol::time::Instant;

use crate::failures::Why;
use crate::help::ms;

const TIMEOUT: Duration = Duration::from_secs(2);
const LAG: Duration = Duration::from_secs(3);

/// A session, a clock, and the effects of the session.
struct Bench {
    session: Session,
    now: Instant,
    effects: Vec<SessionEffect>,
    /// What the server answers about the subscription of the inbox.
    is_inbox_there: Option<bool>,
}

impl Bench {
    fn new() -> Self {
        Bench::of(SessionRole::Only)
    }

    fn of(role: SessionRole) -> Self {
        let session = Session::new(SessionOptions {
            request_timeout: TIMEOUT,
            server: "here".into(),
            remote: true,
            can_fail: true,
            poll_gap: Duration::ZERO,
            recovery: Duration::from_secs(10),
            lag: LAG,
            seed: 7,
            role,
        });
        Bench {
            session,
            now: Instant::from_nanos(1_000_000_000_000),
            effects: Vec::new(),
            is_inbox_there: None,
        }
    }

    /// Returns a bench with an open connection on which a request was answered.
    fn proven() -> (Self, Attempt) {
        let mut bench = Bench::new();
        bench.ask("first", 1, 10_000, Class::Claim);
        let attempt = bench.connect();
        let (_, id, batch) = bench.sent().remove(0);
        bench.answer(id, batch.requests.len());
        bench.effects.clear();
        (bench, attempt)
    }

    fn step(&mut self) {
        loop {
            let before = self.effects.len();
            self.session.step(self.now, &mut self.effects);
            if self.effects.len() == before {
                return;
            }
        }
    }

    fn tell(&mut self, input: SessionInput) {
        self.session.handle(self.now, input, &mut self.effects);
        let seeks = |effect: &SessionEffect| match effect {
            SessionEffect::Inbox(InboxEffect::Seek { inbox, connection }) => Some((*inbox, *connection)),
            _ => None,
        };
        let sought: Vec<_> = self.effects.iter().filter_map(seeks).collect();
        self.effects.retain(|effect| seeks(effect).is_none());
        for (inbox, connection) in sought {
            let is_there = self.is_inbox_there;
            let answer = SessionInput::InboxSought {
                inbox,
                connection,
                is_there,
            };
            self.session.handle(self.now, answer, &mut self.effects);
        }
        self.step();
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.step();
    }

    fn ask(&mut self, key: &str, claim: u64, lease_ms: u64, class: Class) {
        self.ask_about(Name::lock(Key::from(key)), claim, lease_ms, class);
    }

    fn ask_about_job(&mut self, claim: u64, class: Class) {
        self.ask_about(Name::job(Key::from(format!("job {claim}"))), claim, 30_000, class);
    }

    fn ask_about(&mut self, name: Name, claim: u64, lease_ms: u64, class: Class) {
        let (node, nonce) = (NodeId::numbered(1), 0);
        self.session.queue(&Outgoing {
            tag: Tag {
                claim: ClaimNumber(claim),
                seq: 1,
                master: 0,
            },
            request: Request {
                name,
                claim_id: ClaimId {
                    node,
                    claim: ClaimNumber(claim),
                    nonce,
                },
                term: LeaseTimes {
                    lease_ms,
                    margin_ms: 250,
                },
                mode: Mode::Exclusive,
                when_behind: Default::default(),
                may_keep: false,
                data: None,
                mark: None,
                verb: Verb::HEARTBEAT,
            },
            lease: ms(lease_ms),
            class,
            called: self.now,
        });
    }

    fn attempts(&mut self) -> Vec<Attempt> {
        let of = |effect: &SessionEffect| match effect {
            SessionEffect::Connect(attempt) => Some(*attempt),
            _ => None,
        };
        let found = self.effects.iter().filter_map(of).collect();
        self.effects.retain(|effect| of(effect).is_none());
        found
    }

    fn connect(&mut self) -> Attempt {
        self.step();
        let attempt = self.attempts()[0];
        self.tell(SessionInput::Connected {
            attempt,
            opened: Opened::default(),
        });
        attempt
    }

    /// Opens the connection that the session asks for, to this address and run.
    fn connect_to(&mut self, address: &str, run: &str) -> Attempt {
        self.step();
        let attempt = self.attempts()[0];
        let (address, run) = (address.into(), run.into());
        let place = Place {
            address,
            run,
            ..Place::default()
        };
        self.tell(SessionInput::Connected {
            attempt,
            opened: Opened {
                place,
                ..Opened::default()
            },
        });
        attempt
    }

    fn refuse(&mut self) {
        let attempt = self.attempts()[0];
        let error = StoreError::new(StoreErrorKind::Unreachable, "refused");
        self.tell(SessionInput::ConnectFailed { attempt, error });
    }

    fn sent(&mut self) -> Vec<(Attempt, BatchId, Batch)> {
        let mut sent = Vec::new();
        self.effects.retain(|effect| match effect {
            SessionEffect::Send {
                connection,
                id,
                batch,
            } => {
                sent.push((*connection, *id, batch.clone()));
                false
            }
            _ => true,
        });
        sent
    }

    fn answer(&mut self, batch: BatchId, requests: usize) {
        self.answer_with(batch, vec![LeaveReply::Left.into(); requests]);
    }

    fn answer_with(&mut self, batch: BatchId, replies: Vec<Reply>) {
        let reply = Ok(BatchReply { time: 6, replies });
        self.tell(SessionInput::Replied { batch, reply });
    }

    /// Returns the claims that were told of a failure, and why.
    fn failed(&mut self) -> Vec<(u64, Why)> {
        let of = |effect: &SessionEffect| match effect {
            SessionEffect::Tell(_, Input::Failed { tag, failed }) => {
                Some((tag.claim.0, Why::kind_of(failed)))
            }
            _ => None,
        };
        let found = self.effects.iter().filter_map(of).collect();
        self.effects.retain(|effect| of(effect).is_none());
        found
    }

    /// Opens an inbox.
    fn subscribe(&mut self) -> Attempt {
        self.tell(SessionInput::InboxWanted);
        let opening = self.effects.iter().find_map(|effect| match effect {
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => Some(*attempt),
            _ => None,
        });
        let inbox = opening.expect("it is opened");
        self.tell(SessionInput::InboxOpened {
            attempt: inbox,
            address: Arc::default(),
        });
        assert!(self.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Confirmed))));
        self.effects.clear();
        inbox
    }

    /// Returns whether the last connection was reported to lead elsewhere than the one before.
    fn is_elsewhere(&self) -> bool {
        let reported = self.effects.iter().rev().find_map(|effect| match effect {
            SessionEffect::Reachable { is_elsewhere, .. } => Some(*is_elsewhere),
            _ => None,
        });
        reported.expect("a connection opened")
    }

    fn does(&self, wanted: InboxEffect) -> bool {
        self.wants(|effect| matches!(effect, SessionEffect::Inbox(done) if *done == wanted))
    }

    fn wants(&self, wanted: impl Fn(&SessionEffect) -> bool) -> bool {
        self.effects.iter().any(wanted)
    }
}

fn interrupted() -> Failure {
    Failure {
        executed: Executed::Unknown,
        error: StoreError::new(StoreErrorKind::Interrupted, "reset"),
    }
}

fn claims(batch: &Batch) -> Vec<u64> {
    batch
        .requests
        .iter()
        .map(|request| request.claim_id.claim.0)
        .collect()
}

#[test]
fn queued_requests_go_by_class_and_sixteen_batches_are_in_flight() {
    let (mut bench, _) = Bench::proven();
    for claim in 1..=20 {
        bench.ask("hot", claim, 10_000, Class::Claim);
    }
    bench.step();
    let sent = bench.sent();
    assert_eq!(
        sent.len(),
        16,
        "a batch names a key once, and no more are under way"
    );
    bench.ask("cool", 30, 10_000, Class::WaiterRenewal);
    bench.ask("cold", 31, 10_000, Class::OwnerRenewal);
    bench.ask("hot", 32, 10_000, Class::Leave);
    bench.answer(sent[0].1, 1);
    let next = bench.sent();
    assert_eq!(next.len(), 1);
    assert_eq!(claims(&next[0].2), [31, 32, 30]);
}

#[test]
fn each_batch_tells_the_highest_grant_that_was_answered() {
    let (mut bench, _) = Bench::proven();
    let granted = [
        GrantReply::default(),
        GrantReply {
            attempt: 1,
            ..GrantReply::default()
        },
        GrantReply {
            attempt: 1,
            overtook: Some(TickTime(7)),
            ..GrantReply::default()
        },
        GrantReply {
            other_capacity: Some(3),
            ..GrantReply::default()
        },
    ];
    for (claim, grant) in (1..).zip(granted) {
        let number = GrantNumber(10 + claim);
        let reply = ClaimReply::Granted(GrantReply { number, ..grant });
        bench.ask("hot", claim, 10_000, Class::Claim);
        bench.step();
        let (_, id, batch) = bench.sent().remove(0);
        assert_eq!(batch.highest.0, if claim == 1 { 0 } else { 9 + claim });
        bench.answer_with(id, vec![reply.into()]);
    }
    bench.ask("hot", 5, 10_000, Class::Claim);
    bench.step();
    assert_eq!(bench.sent()[0].2.highest, GrantNumber(14));
}

#[test]
fn the_next_claim_of_a_key_follows_the_nodes_leave_on_the_same_connection() {
    let (mut bench, connection) = Bench::proven();
    // Both are left in one batch: their order is decided by the session.
    bench.ask("hot", 2, 10_000, Class::Claim);
    bench.ask("hot", 1, 10_000, Class::Leave);
    bench.step();
    let sent = bench.sent();
    let order: Vec<_> = sent.iter().map(|(on, _, batch)| (*on, claims(batch))).collect();
    assert_eq!(order, [(connection, vec![1]), (connection, vec![2])]);
    // The leave is in flight: the claim of the next caller is sent behind it, without waiting for its answer.
    bench.ask("cold", 3, 10_000, Class::Leave);
    bench.step();
    let left = bench.sent();
    bench.ask("cold", 4, 10_000, Class::Claim);
    bench.step();
    let claimed = bench.sent();
    assert_eq!((claims(&left[0].2), left[0].0), (vec![3], connection));
    assert_eq!((claims(&claimed[0].2), claimed[0].0), (vec![4], connection));
    // The connection breaks under both: both are told, and neither is repeated automatically.
    let (batch, reply) = (left[0].1, Err(interrupted()));
    bench.tell(SessionInput::Replied { batch, reply });
    let mut failed = bench.failed();
    failed.sort_unstable_by_key(|(claim, _)| *claim);
    assert_eq!(
        failed,
        (1..=4).map(|claim| (claim, Why::Bystander)).collect::<Vec<_>>()
    );
}

#[test]
fn job_requests_gather_for_a_while_after_each_job_batch() {
    const GATHERS: Duration = ms(20);
    let (mut bench, _) = Bench::proven();
    bench.pass(ms(500));
    let sent = |bench: &mut Bench| -> Vec<_> {
        let sent = bench.sent().into_iter();
        sent.map(|(_, id, batch)| (id, claims(&batch))).collect()
    };
    // The first request is sent at once.
    bench.ask_about_job(1, Class::Claim);
    bench.step();
    let first = sent(&mut bench);
    assert_eq!(first[0].1, [1]);
    // Requests about locks do not gather. Once the batch is answered, calls of a run do not either, and gathered
    // requests go with them.
    bench.ask_about_job(2, Class::Claim);
    bench.ask_about_job(3, Class::Call);
    bench.ask("a lock", 4, 10_000, Class::Claim);
    bench.step();
    assert_eq!(
        sent(&mut bench).iter().map(|sent| &sent.1).collect::<Vec<_>>(),
        [&[4]]
    );
    bench.answer(first[0].0, 1);
    let second = sent(&mut bench);
    assert_eq!(second[0].1, [3, 2]);
    let began = bench.now;
    bench.answer(second[0].0, 2);
    // Claims still gather if a server answers at once.
    bench.pass(ms(1));
    for (claim, class) in [(5, Class::Claim), (6, Class::Leave), (7, Class::WaiterRenewal)] {
        bench.ask_about_job(claim, class);
    }
    bench.pass(ms(18));
    assert_eq!(sent(&mut bench), []);
    assert_eq!(
        bench.session.next_due(),
        Some(began + GATHERS),
        "it wakes by itself"
    );
    bench.pass(ms(1));
    let third = sent(&mut bench);
    assert_eq!(third[0].1, [6, 7, 5]);
    // An owner's renewal does not gather, and neither does a full batch.
    bench.ask_about_job(8, Class::OwnerRenewal);
    bench.step();
    let fourth = sent(&mut bench);
    assert_eq!(fourth[0].1, [8]);
    bench.answer(third[0].0, 3);
    bench.answer(fourth[0].0, 1);
    (100..228).for_each(|claim| bench.ask_about_job(claim, Class::Claim));
    bench.step();
    assert_eq!(sent(&mut bench)[0].1.len(), 128);
}

#[test]
fn each_request_has_its_own_timeout_and_a_short_lease_closes_no_connection() {
    let (mut bench, attempt) = Bench::proven();
    bench.ask("short", 2, 400, Class::Claim);
    bench.step();
    let (_, id, batch) = bench.sent().remove(0);
    assert!(batch.not_after < u64::MAX);
    bench.pass(ms(99));
    assert!(bench.failed().is_empty());
    bench.pass(ms(1));
    assert_eq!(bench.failed(), [(2, Why::Unknown)]);
    assert!(!bench.wants(|effect| matches!(effect, SessionEffect::Close(_))));
    // Its late reply has no effect.
    bench.answer(id, 1);
    assert!(!bench.wants(|effect| matches!(effect, SessionEffect::Tell(..))));
    // A request with a long lease gives the connection up after a quarter of its lease.
    bench.ask("long", 3, 4_000, Class::Claim);
    bench.step();
    bench.pass(ms(1_000));
    assert_eq!(bench.failed(), [(3, Why::Unknown)]);
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == attempt)));
}

#[test]
fn a_bystander_request_is_excused_if_the_connection_ever_answered() {
    let (mut bench, attempt) = Bench::proven();
    bench.ask("a", 2, 2_000, Class::OwnerRenewal);
    bench.step();
    bench.pass(ms(300));
    bench.ask("b", 3, 8_000, Class::OwnerRenewal);
    bench.step();
    bench.pass(ms(200));
    assert_eq!(bench.failed(), [(2, Why::Unknown), (3, Why::Bystander)]);
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == attempt)));
    // A connection that never answered excuses no request.
    bench.effects.clear();
    bench.ask("b", 4, 8_000, Class::OwnerRenewal);
    bench.pass(ms(100));
    let attempt = bench.connect();
    let sent = bench.sent();
    assert_eq!(sent[0].0, attempt);
    let reply = Err(interrupted());
    bench.tell(SessionInput::Replied {
        batch: sent[0].1,
        reply,
    });
    assert_eq!(bench.failed(), [(4, Why::Unknown)]);
}

#[test]
fn a_server_is_down_when_it_cannot_be_reached_and_was_not_heard_for_the_timeout() {
    let (mut bench, _) = Bench::proven();
    bench.ask("a", 2, 10_000, Class::Claim);
    bench.step();
    let id = bench.sent()[0].1;
    let reply = Err(interrupted());
    bench.tell(SessionInput::Replied { batch: id, reply });
    assert_eq!(bench.failed(), [(2, Why::Bystander)]);
    bench.ask("a", 3, 10_000, Class::Claim);
    bench.step();
    bench.refuse();
    assert!(bench.failed().is_empty(), "it may only be a moment");
    while bench.failed().is_empty() {
        let due = bench.session.next_due().expect("something is due");
        bench.pass(due.since(bench.now));
        if bench.wants(|effect| matches!(effect, SessionEffect::Connect(_))) {
            bench.refuse();
        }
    }
    assert!(bench.now.since(Instant::from_nanos(1_000_000_000_000)) >= TIMEOUT);
    // Later requests are sent at once.
    bench.ask("a", 4, 10_000, Class::Claim);
    bench.step();
    assert_eq!(bench.failed(), [(4, Why::Down)]);
}

#[test]
fn a_missing_right_means_down_at_once_and_a_wrong_password_or_a_full_server_does_not() {
    for (refusal, is_down) in [
        (StoreRefusal::NoPermission, true),
        (StoreRefusal::WrongPassword, false),
        (StoreRefusal::Loading, false),
        (
            StoreRefusal::Unready("ERR max number of clients reached".into()),
            false,
        ),
    ] {
        let (mut bench, _) = Bench::proven();
        bench.ask("a", 2, 10_000, Class::Claim);
        bench.step();
        let (batch, reply) = (bench.sent()[0].1, Err(interrupted()));
        bench.tell(SessionInput::Replied { batch, reply });
        bench.failed();
        bench.ask("a", 3, 10_000, Class::Claim);
        bench.step();
        let (attempt, error) = (bench.attempts()[0], StoreError::refused(refusal));
        bench.tell(SessionInput::ConnectFailed { attempt, error });
        assert_eq!(!bench.failed().is_empty(), is_down);
    }
}

#[test]
fn pauses_grow_to_a_second_at_most() {
    let mut bench = Bench::new();
    let mut longest = Duration::ZERO;
    bench.tell(SessionInput::Probed(Probe(1)));
    for probe in 2..20 {
        bench.refuse();
        bench.tell(SessionInput::Probed(Probe(probe)));
        let began = bench.now;
        while !bench.wants(|effect| matches!(effect, SessionEffect::Connect(_))) {
            bench.pass(ms(1));
            bench.tell(SessionInput::Probed(Probe(100 * probe)));
        }
        longest = longest.max(bench.now.since(began));
    }
    assert!((ms(500)..=ms(1_001)).contains(&longest), "{longest:?}");
}

#[test]
fn an_old_attempt_is_closed_and_does_not_affect_its_successor() {
    let mut bench = Bench::new();
    bench.ask("a", 1, 10_000, Class::Claim);
    bench.step();
    let old = bench.attempts()[0];
    bench.pass(TIMEOUT);
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == old)));
    bench.ask("a", 2, 10_000, Class::Claim);
    bench.pass(ms(100));
    let new = bench.attempts()[0];
    bench.effects.clear();
    bench.tell(SessionInput::Connected {
        attempt: old,
        opened: Opened::default(),
    });
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == old)));
    assert!(bench.sent().is_empty());
    bench.tell(SessionInput::Connected {
        attempt: new,
        opened: Opened::default(),
    });
    let sent = bench.sent();
    assert_eq!((sent.len(), sent[0].0), (1, new));
    let error = StoreError::new(StoreErrorKind::Unreachable, "late");
    bench.tell(SessionInput::ConnectFailed { attempt: old, error });
    assert!(bench.failed().is_empty());
}

#[test]
fn a_silent_server_is_probed_and_puts_the_inbox_under_suspicion() {
    let (mut bench, connection) = Bench::proven();
    let inbox = bench.subscribe();
    bench.pass(MAX_SILENCE);
    assert!(
        bench.wants(|effect| matches!(effect, SessionEffect::Inbox(InboxEffect::Ping(of)) if *of == inbox))
    );
    let sent = bench.sent();
    assert!(
        sent.len() == 1 && sent[0].2.requests.is_empty(),
        "an empty batch is a ping"
    );
    bench.tell(SessionInput::InboxHeard(inbox));
    bench.effects.clear();
    // No reply comes: the connection is given up, and the inbox must answer within the same time.
    bench.pass(TIMEOUT);
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == connection)));
    assert!(
        bench.wants(|effect| matches!(effect, SessionEffect::Inbox(InboxEffect::Ping(of)) if *of == inbox))
    );
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Unconfirmed))));
    bench.pass(TIMEOUT);
    assert!(
        bench.wants(|effect| matches!(effect, SessionEffect::Inbox(InboxEffect::Close(of)) if *of == inbox))
    );
    assert!(
        bench.wants(|effect| matches!(effect, SessionEffect::Inbox(InboxEffect::Open(of)) if *of != inbox))
    );
}

/// An inbox that was silent since the unanswered request is replaced in the same step as the connection.
#[test]
fn an_inbox_is_replaced_together_with_its_connection() {
    let is_opened =
        |bench: &Bench| bench.wants(|effect| matches!(effect, SessionEffect::Inbox(InboxEffect::Open(_))));
    for is_broken in [false, true] {
        let (mut bench, connection) = Bench::proven();
        let inbox = bench.subscribe();
        bench.pass(ms(1_500));
        bench.ask("a", 2, 10_000, Class::Claim);
        bench.step();
        let (_, batch, _) = bench.sent().remove(0);
        bench.effects.clear();
        if is_broken {
            let reply = Err(interrupted());
            bench.tell(SessionInput::Replied { batch, reply });
        } else {
            bench.pass(TIMEOUT);
        }
        assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == connection)));
        assert!(bench.does(InboxEffect::Close(inbox)) && is_opened(&bench));
        assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Unconfirmed))));
    }
    // A young inbox only has to answer: otherwise both may open and break in turn.
    let (mut bench, _) = Bench::proven();
    let inbox = bench.subscribe();
    bench.pass(ms(500));
    bench.ask("a", 2, 10_000, Class::Claim);
    bench.step();
    let (_, batch, _) = bench.sent().remove(0);
    let reply = Err(interrupted());
    bench.tell(SessionInput::Replied { batch, reply });
    assert!(bench.does(InboxEffect::Ping(inbox)) && !is_opened(&bench));
}

/// A grant was found long after its push was due. The inbox comes under suspicion, once a second at most.
#[test]
fn a_missed_push_puts_the_inbox_under_suspicion() {
    let (mut bench, _) = Bench::proven();
    let inbox = bench.subscribe();
    bench.pass(ms(1_500));
    bench.tell(SessionInput::PushMissed);
    assert!(bench.does(InboxEffect::Ping(inbox)));
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Unconfirmed))));
    bench.tell(SessionInput::InboxHeard(inbox));
    bench.effects.clear();
    bench.pass(ms(500));
    bench.tell(SessionInput::PushMissed);
    assert!(!bench.does(InboxEffect::Ping(inbox)), "it just answered");
    assert_eq!(bench.session.next_due(), Some(bench.now + ms(500)));
    bench.pass(ms(500));
    assert!(bench.does(InboxEffect::Ping(inbox)), "the miss was not forgotten");
    bench.pass(TIMEOUT);
    assert!(bench.does(InboxEffect::Close(inbox)), "it did not answer");
}

/// A sign of life after the miss shows that the inbox works.
#[test]
fn a_missed_push_is_forgotten_when_the_inbox_answers() {
    let (mut bench, _) = Bench::proven();
    let inbox = bench.subscribe();
    bench.pass(ms(400));
    bench.tell(SessionInput::PushMissed);
    bench.tell(SessionInput::InboxHeard(inbox));
    bench.pass(ms(1_500));
    assert!(!bench.does(InboxEffect::Ping(inbox)));
}

/// On a cluster an inbox may answer although its server is cut off from the others. It is replaced, once a second at most.
#[test]
fn a_missed_push_replaces_the_inbox_of_a_cluster() {
    let mut bench = Bench::of(SessionRole::Inbox);
    let inbox = bench.subscribe();
    bench.pass(ms(400));
    bench.tell(SessionInput::PushMissed);
    bench.tell(SessionInput::InboxHeard(inbox));
    assert!(!bench.does(InboxEffect::Close(inbox)), "it is young");
    bench.pass(ms(600));
    assert!(bench.does(InboxEffect::Close(inbox)));
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Unconfirmed))));
}

/// An outage begins when the first unanswered request is sent, and not when the server was last heard.
#[test]
fn an_outage_counts_from_the_first_unanswered_request() {
    let (mut bench, _) = Bench::proven();
    let heard = bench.now;
    bench.pass(ms(1_000));
    bench.ask("a", 2, 10_000, Class::OwnerRenewal);
    bench.step();
    let sent = bench.now;
    bench.pass(ms(500));
    bench.ask("b", 3, 10_000, Class::Claim);
    bench.step();
    bench.effects.clear();
    bench.pass(ms(1_500));
    let told = bench.effects.iter().filter_map(|effect| match effect {
        SessionEffect::Tell(_, Input::Failed { failed, .. }) => Some((failed.heard, failed.away)),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [(Some(heard), Some(sent)); 2]);
    bench.ask("a", 2, 10_000, Class::OwnerRenewal);
    // The server answers again, so later unanswered requests begin another outage.
    bench.connect();
    let (_, id, batch) = bench.sent().remove(0);
    bench.answer(id, batch.requests.len());
    let again = bench.now;
    bench.pass(ms(300));
    bench.ask("c", 4, 10_000, Class::Claim);
    bench.step();
    let sent = bench.now;
    bench.effects.clear();
    bench.pass(TIMEOUT);
    assert!(bench.wants(
        |effect| matches!(effect, SessionEffect::Tell(_, Input::Failed { failed, .. })
        if failed.heard == Some(again) && failed.away == Some(sent))
    ));
}

/// A caller that gives up is told whether the server has answered lately.
#[test]
fn a_server_is_silent_while_nothing_is_answered_and_just_after() {
    let (mut bench, _) = Bench::proven();
    bench.pass(ms(5_000));
    assert!(!bench.session.is_silent(bench.now), "nothing is asked");
    let (now, input) = (bench.now, SessionInput::SignWanted);
    bench.session.handle(now, input, &mut bench.effects);
    assert!(
        bench.sent().is_empty(),
        "only the driver sends, with its next step"
    );
    bench.step();
    assert_eq!(bench.sent().len(), 1);
    bench.tell(SessionInput::SignWanted);
    bench.step();
    assert!(bench.sent().is_empty(), "one is under way");
    bench.pass(ms(199));
    assert!(!bench.session.is_silent(bench.now));
    bench.pass(ms(1));
    assert!(bench.session.is_silent(bench.now));
    bench.pass(TIMEOUT);
    assert!(bench.session.is_silent(bench.now), "no connection");
    bench.ask("a", 2, 10_000, Class::Claim);
    bench.connect();
    let (_, id, batch) = bench.sent().remove(0);
    bench.answer(id, batch.requests.len());
    assert!(
        bench.session.is_silent(bench.now),
        "no request was answered just now"
    );
    bench.pass(ms(200));
    assert!(!bench.session.is_silent(bench.now));
    bench.tell(SessionInput::SignWanted);
    bench.step();
    let (_, id, _) = bench.sent().remove(0);
    bench.answer(id, 0);
    bench.tell(SessionInput::SignWanted);
    bench.step();
    assert!(bench.sent().is_empty(), "it just answered");
}

#[test]
fn a_connection_that_breaks_at_once_is_opened_a_few_times_a_second() {
    let mut bench = Bench::new();
    bench.tell(SessionInput::InboxWanted);
    bench.ask("a", 1, 10_000, Class::Claim);
    bench.step();
    let (begin, mut opened) = (bench.now, 0);
    while bench.now.since(begin) < Duration::from_secs(5) {
        for effect in std::mem::take(&mut bench.effects) {
            match effect {
                SessionEffect::Connect(attempt) => {
                    opened += 1;
                    bench.tell(SessionInput::Connected {
                        attempt,
                        opened: Opened::default(),
                    });
                }
                SessionEffect::Inbox(InboxEffect::Open(attempt)) => {
                    opened += 1;
                    bench.tell(SessionInput::InboxOpened {
                        attempt,
                        address: Arc::default(),
                    });
                    let error = StoreError::new(StoreErrorKind::Interrupted, "killed");
                    bench.tell(SessionInput::InboxFailed(attempt, error));
                }
                SessionEffect::Send { id, .. } => {
                    bench.tell(SessionInput::Replied {
                        batch: id,
                        reply: Err(interrupted()),
                    });
                    bench.ask("a", opened + 10, 10_000, Class::Claim);
                }
                _ => {}
            }
        }
        bench.pass(ms(1));
    }
    assert!(opened < 5 * 50, "{opened}");
}

#[test]
fn a_connection_that_ends_by_itself_is_replaced_at_once() {
    let mut bench = Bench::new();
    bench.ask("a", 1, 10_000, Class::Claim);
    let old = bench.connect_to("one", "run:1");
    let (_, id, _) = bench.sent().remove(0);
    bench.answer(id, 1);
    bench.ask("a", 2, 10_000, Class::OwnerRenewal);
    bench.step();
    assert_eq!(bench.sent().remove(0).0, old);
    bench.tell(SessionInput::ConnectionEnded(old));
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == old)));
    assert_eq!(bench.failed(), [(2, Why::Bystander)]);
    bench.ask("a", 2, 10_000, Class::OwnerRenewal);
    let new = bench.connect_to("two", "run:2");
    assert_eq!(bench.sent().remove(0).0, new);
    // The end of the old connection does not concern its successor.
    bench.effects.clear();
    bench.tell(SessionInput::ConnectionEnded(old));
    assert!(bench.effects.is_empty(), "{:?}", bench.effects);
}

#[test]
fn a_connection_to_another_server_is_reported() {
    let mut bench = Bench::new();
    for (address, run, is_elsewhere) in [
        ("one", "run:1", false),
        ("one", "run:1", false),
        ("one", "run:2", true),
        // One server with two names.
        ("two", "run:2", false),
        // An unknown run counts as the last one, and does not hide that the next run is another one.
        ("two", "", false),
        ("two", "run:2", false),
        ("two", "", false),
        ("two", "run:3", true),
        // Without a run on both sides only the address can tell.
        ("three", "", true),
        ("three", "run:4", false),
        ("three", "run:5", true),
    ] {
        bench.ask("a", 1, 10_000, Class::Claim);
        let attempt = bench.connect_to(address, run);
        assert_eq!(bench.is_elsewhere(), is_elsewhere, "{address} {run}");
        bench.tell(SessionInput::ConnectionEnded(attempt));
        bench.effects.clear();
        bench.pass(Duration::from_secs(2));
    }
}

#[test]
fn an_unconfirmed_link_grants_nothing_and_a_former_master_may_still_grant() {
    let mut bench = Bench::new();
    bench.ask("a", 1, 10_000, Class::Claim);
    bench.step();
    let attempt = bench.attempts()[0];
    let opened = Opened {
        is_unconfirmed: true,
        ..Opened::default()
    };
    bench.tell(SessionInput::Connected { attempt, opened });
    let former = bench.effects.iter().find_map(|effect| match effect {
        SessionEffect::Reachable { former, .. } => Some(*former),
        _ => None,
    });
    let expected = FormerMaster {
        until: Some(bench.now + LAG),
        highest: GrantNumber(u64::MAX),
    };
    assert_eq!(former, Some(expected));
    assert!(bench.sent()[0].2.is_unconfirmed);
}

#[test]
fn a_former_master_may_grant_for_the_lag_after_the_begin_of_a_recovery() {
    // Of a recovery of 10 s.
    for (left_ms, rest_ms) in [(10_000, 3_000), (9_000, 2_000), (7_000, 0), (100, 0)] {
        let mut bench = Bench::new();
        bench.ask("a", 1, 10_000, Class::Claim);
        bench.step();
        let attempt = bench.attempts()[0];
        let link = LinkReply {
            clock: GrantNumber(9),
            recovering: Some((left_ms, RecoveryCause::Epoch)),
        };
        let opened = Opened {
            link,
            ..Opened::default()
        };
        bench.tell(SessionInput::Connected { attempt, opened });
        let former = bench.effects.iter().find_map(|effect| match effect {
            SessionEffect::Reachable { former, .. } => Some(*former),
            _ => None,
        });
        let until = (rest_ms > 0).then(|| bench.now + ms(rest_ms));
        let highest = GrantNumber(9);
        assert_eq!(former, Some(FormerMaster { until, highest }), "{left_ms}");
        // The clock is handed on.
        assert_eq!(bench.session.highest(), Some(highest));
    }
}

#[test]
fn an_inbox_at_another_server_is_replaced_and_at_last_seldom() {
    let mut bench = Bench::new();
    bench.is_inbox_there = Some(false);
    bench.ask("a", 1, 10_000, Class::Claim);
    bench.connect();
    bench.tell(SessionInput::InboxWanted);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let since = bench.now;
        let attempt = loop {
            let opens = bench.effects.iter().find_map(|effect| match effect {
                SessionEffect::Inbox(InboxEffect::Open(attempt)) => Some(*attempt),
                _ => None,
            });
            match opens {
                Some(attempt) => break attempt,
                None => bench.pass(ms(100)),
            }
        };
        pauses.push(bench.now.since(since) >= Duration::from_secs(9));
        bench.effects.clear();
        let address = Arc::default();
        bench.tell(SessionInput::InboxOpened { attempt, address });
    }
    assert_eq!(pauses, [false, false, false, true, true]);
    let state = bench.effects.iter().rev().find_map(|effect| match effect {
        SessionEffect::InboxState(state) => Some(*state),
        _ => None,
    });
    assert_eq!(state, Some(InboxState::Unconfirmed));
}

#[test]
fn an_inbox_follows_the_connection_to_another_address() {
    let mut bench = Bench::new();
    let open = |bench: &Bench| {
        bench.effects.iter().find_map(|effect| match effect {
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => Some(*attempt),
            _ => None,
        })
    };
    let opens_at = |bench: &mut Bench, attempt, address: &str| {
        bench.effects.clear();
        let address = address.into();
        bench.tell(SessionInput::InboxOpened { attempt, address });
    };
    bench.tell(SessionInput::InboxWanted);
    let first = open(&bench).unwrap();
    opens_at(&mut bench, first, "one");
    bench.pass(Duration::from_secs(2));
    // The inbox answers later than the connection is lost, so only the address shows that it was left behind.
    bench.ask("a", 1, 10_000, Class::Claim);
    let attempt = bench.connect_to("one", "run:1");
    let (_, batch, _) = bench.sent().remove(0);
    bench.pass(ms(1));
    bench.tell(SessionInput::InboxHeard(first));
    let reply = Err(interrupted());
    bench.tell(SessionInput::Replied { batch, reply });
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::Close(of) if *of == attempt)));
    bench.tell(SessionInput::InboxHeard(first));
    assert!(!bench.does(InboxEffect::Close(first)));
    bench.ask("a", 2, 10_000, Class::Claim);
    bench.pass(ms(100));
    bench
        .effects
        .retain(|effect| matches!(effect, SessionEffect::Connect(_)));
    bench.connect_to("two", "run:2");
    assert!(bench.does(InboxEffect::Close(first)));
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Unconfirmed))));

    // An inbox that opens at another address is opened again too, after a pause.
    let second = open(&bench).unwrap();
    opens_at(&mut bench, second, "one");
    assert!(bench.does(InboxEffect::Close(second)));
    assert_eq!(open(&bench), None);
    bench.pass(Duration::from_secs(1));
    let third = open(&bench).unwrap();
    opens_at(&mut bench, third, "two");
    assert!(!bench.does(InboxEffect::Close(third)));
    assert!(bench.wants(|effect| matches!(effect, SessionEffect::InboxState(InboxState::Confirmed))));
}
