//! A node of an earlier version (commit c815443) beside a node of this version: its script runs on the same records,
//! queues and jobs.

mod shared;

use std::sync::Arc;

use redis::Value;
use tenure::protocol::message::{ClaimId, GrantNumber, LeaseTimes, Mode, NodeId, Reply, Request, Verb};
use tenure::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};
use tenure::store::{Link, Store};

use crate::server::RedisServer;
use crate::tools::{CLAIM, Inbox, TERM, WAIT, ask, batch, claim_id, connect, name, request, store, tick};

const LOCKS: &str = include_str!("before/locks.lua");
const JOBS: &str = include_str!("before/jobs.lua");

/// Returns the answer of the earlier version to a request about a lock: a number or a text.
pub fn old_lock(
    client: &mut redis::Connection,
    key: &str,
    queue: &[u8],
    verb: &str,
    of: ClaimId,
    term: LeaseTimes,
) -> Value {
    let mut eval = redis::cmd("EVAL");
    eval.arg(LOCKS)
        .arg(3)
        .arg(format!("lock:{key}"))
        .arg("tenure1:clock")
        .arg(queue);
    eval.arg(0)
        .arg(0)
        .arg("pq")
        .arg(verb)
        .arg(term.lease_ms)
        .arg(term.hold_ms());
    eval.arg(format!("{of}:"));
    let mut answer: Vec<Value> = eval.query(client).unwrap();
    answer.pop().unwrap()
}

/// A server, a node of this version, and the names of the keys in the earlier version.
struct Both {
    server: RedisServer,
    store: Arc<dyn Store>,
    link: Arc<dyn Link>,
    client: redis::Connection,
    queue: Vec<u8>,
    memory: Vec<u8>,
}

impl Both {
    /// The names have tags that only the store computes, so it is asked for them first.
    async fn start() -> Self {
        let server = RedisServer::start();
        let store = store(&server.url());
        let link = connect(&store).await.unwrap();
        let mut client = server.client();
        let mut named = async |verb, job, pattern: &str| {
            for (of, verb) in [(claim_id(1, 1), CLAIM), (claim_id(2, 1), verb)] {
                match job {
                    true => drop(link.apply(batch(vec![tick(b"a", of, 1, verb)])).await.unwrap()),
                    false => drop(ask(&link, b"a", of, verb).await),
                }
            }
            let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut client).unwrap();
            let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
            keys.into_iter().next().expect("a name")
        };
        let queue = named(WAIT, false, "tenure1:q:*").await;
        let memory = named(WAIT, true, "tenure1:j:*").await;
        Both {
            server,
            store,
            link,
            client,
            queue,
            memory,
        }
    }

    /// Returns the answer of the earlier version to a request about the lock `a`.
    fn old(&mut self, verb: &str, of: ClaimId) -> Value {
        old_lock(&mut self.client, "a", &self.queue, verb, of, TERM)
    }

    /// Returns the answer of the earlier version to a request about the job `a`.
    fn old_tick(&mut self, verb: &str, of: ClaimId, mark: u64) -> Value {
        let mut record = self.memory.clone();
        record["tenure1:".len()] = b'o';
        let end = self.memory[b"tenure1:j:{0000}".len()..].to_vec();
        let tag = &self.memory[b"tenure1:j:{".len()..][..4];
        // The queue of a job has the tag of its record.
        let queue = [b"tenure1:q:{", tag, b"}tenure1:o:{", tag, b"}", &*end].concat();
        let mut eval = redis::cmd("EVAL");
        eval.arg(JOBS)
            .arg(4)
            .arg(record)
            .arg("tenure1:clock")
            .arg(queue)
            .arg(&self.memory);
        eval.arg(0)
            .arg(0)
            .arg("pq")
            .arg(verb)
            .arg(TERM.lease_ms)
            .arg(TERM.hold_ms());
        eval.arg(format!("{of}:")).arg(mark);
        let mut answer: Vec<Value> = eval.query(&mut self.client).unwrap();
        answer.pop().unwrap()
    }

    async fn asked(&self, verb: Verb, of: ClaimId) -> Reply {
        ask(&self.link, b"a", of, verb).await
    }

    /// Returns the reply to a reader of this version.
    async fn read(&self, verb: Verb, of: ClaimId) -> Reply {
        let request = Request {
            mode: Mode::Read,
            ..request(b"a", of, verb)
        };
        let answer = self.link.apply(batch(vec![request])).await.unwrap();
        answer.replies.into_iter().next().unwrap()
    }

    async fn new_tick(&self, verb: Verb, of: ClaimId, mark: u64) -> Reply {
        let batch = batch(vec![tick(b"a", of, mark, verb)]);
        self.link.apply(batch).await.unwrap().replies.remove(0)
    }

    async fn inbox(&self, node: u128) -> Inbox {
        Inbox::open(&self.store, NodeId::numbered(node)).await.unwrap()
    }

    /// Ages a waiter by this number of its leases.
    fn age(&mut self, of: ClaimId, leases: f64) {
        let member = format!("b{of}:{}:{}", TERM.lease_ms, TERM.hold_ms());
        let by = -(TERM.lease_ms as f64 * leases) as i64;
        let mut cmd = redis::cmd("ZINCRBY");
        let () = cmd
            .arg(&self.queue)
            .arg(by)
            .arg(member)
            .query(&mut self.client)
            .unwrap();
    }

    fn members(&mut self) -> usize {
        redis::cmd("ZCARD")
            .arg(&self.queue)
            .query(&mut self.client)
            .unwrap()
    }
}

pub fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) if *number > 0 => number.unsigned_abs(),
        other => panic!("not a grant: {other:?}"),
    }
}

pub fn letter(value: &Value) -> char {
    match value {
        Value::BulkString(text) => text[0].into(),
        other => panic!("not a letter: {other:?}"),
    }
}

#[tokio::test]
async fn two_versions_hand_a_lock_over_to_each_other() {
    let mut both = Both::start().await;
    let mut inboxes = [both.inbox(2).await, both.inbox(3).await, both.inbox(4).await];
    let first = number(&both.old("w", claim_id(1, 1)));
    assert_eq!(letter(&both.old("w", claim_id(2, 1))), 'Q');
    assert!(matches!(
        both.asked(WAIT, claim_id(3, 1)).await,
        Reply::QueuedBehind(Some(_), _)
    ));
    assert_eq!(letter(&both.old("w", claim_id(4, 1))), 'Q');
    // Each version reads the values of the other: the owner, the waiters, and their order.
    assert_eq!(
        both.asked(Verb::HEARTBEAT, claim_id(1, 1)).await,
        Reply::Granted(GrantNumber(first))
    );
    assert!(matches!(
        both.asked(Verb::HEARTBEAT, claim_id(2, 1)).await,
        Reply::QueuedBehind(Some(_), _)
    ));
    assert_eq!(letter(&both.old("r", claim_id(3, 1))), 'Q');
    assert_eq!(both.asked(Verb::Leave, claim_id(1, 1)).await, Reply::Done);
    let second = inboxes[0].grant().await;
    assert_eq!(second.claim_id, claim_id(2, 1));
    assert_eq!(number(&both.old("r", claim_id(2, 1))), second.number.0);
    assert_eq!(both.old("l", claim_id(2, 1)), Value::Int(0));
    let third = inboxes[1].grant().await;
    assert_eq!((third.claim_id, third.lease_ms), (claim_id(3, 1), TERM.lease_ms));
    assert_eq!(
        both.asked(Verb::HEARTBEAT, claim_id(3, 1)).await,
        Reply::Granted(third.number)
    );
    let to = claim_id(3, 2);
    assert!(matches!(
        both.asked(Verb::Yield { to }, claim_id(3, 1)).await,
        Reply::QueuedBehind(Some(_), _)
    ));
    let fourth = inboxes[2].grant().await;
    assert!(first < second.number.0 && second.number < third.number && third.number < fourth.number);
    assert_eq!(both.old("l", claim_id(4, 1)), Value::Int(0));
    assert_eq!(inboxes[1].grant().await.claim_id, to);
    assert_eq!(both.old("l", to), Value::Int(0));
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut both.client).unwrap();
    assert_eq!(left, ["tenure1:clock"]);
    drop(both.server);
}

/// A node of the earlier version, which has no readers, is told that the record is not a lock. It changes nothing.
#[tokio::test]
async fn the_earlier_version_does_not_change_records_of_readers() {
    let mut both = Both::start().await;
    let mut inbox = both.inbox(3).await;
    let Reply::Granted(number) = both.read(CLAIM, claim_id(1, 1)).await else {
        panic!("the lock is free")
    };
    for waits in [false, true] {
        if waits {
            let writer = both.asked(WAIT, claim_id(3, 1)).await;
            assert!(matches!(writer, Reply::Queued(Some(_))), "{writer:?}");
        }
        for (verb, of) in [
            ("w", claim_id(2, 1)),
            ("c", claim_id(2, 2)),
            ("r", claim_id(1, 1)),
            ("l", claim_id(1, 1)),
            ("l", claim_id(2, 3)),
        ] {
            let answer = both.old(verb, of);
            assert_eq!(letter(&answer), 'E', "{verb} of {of}: {answer:?}");
        }
        assert_eq!(
            both.read(Verb::HEARTBEAT, claim_id(1, 1)).await,
            Reply::Granted(number)
        );
    }
    assert_eq!(both.members(), 2, "the writer keeps its place");
    assert_eq!(both.read(Verb::Leave, claim_id(1, 1)).await, Reply::Done);
    assert_eq!(inbox.grant().await.claim_id, claim_id(3, 1));
    assert_eq!(letter(&both.old("c", claim_id(2, 1))), 'B');
}

/// The earlier version hands over to a reader as to a writer. The reader admits others with its next renewal.
#[tokio::test]
async fn the_earlier_version_hands_over_to_a_reader() {
    let mut both = Both::start().await;
    let mut inboxes = [both.inbox(2).await, both.inbox(3).await];
    number(&both.old("w", claim_id(1, 1)));
    for node in [2, 3] {
        let queued = both.read(WAIT, claim_id(node, 1)).await;
        assert!(matches!(queued, Reply::QueuedBehind(Some(_), _)), "{queued:?}");
    }
    assert_eq!(both.old("l", claim_id(1, 1)), Value::Int(0));
    let first = inboxes[0].grant().await;
    assert_eq!(first.claim_id, claim_id(2, 1));
    assert_eq!(letter(&both.old("c", claim_id(4, 1))), 'B');
    assert_eq!(
        both.read(Verb::HEARTBEAT, claim_id(2, 1)).await,
        Reply::Granted(first.number)
    );
    let second = inboxes[1].grant().await;
    assert_eq!(second.claim_id, claim_id(3, 1));
    assert!(second.number > first.number);
    for (of, number) in [(claim_id(2, 1), first.number), (claim_id(3, 1), second.number)] {
        assert_eq!(both.read(Verb::HEARTBEAT, of).await, Reply::Granted(number));
        assert_eq!(both.read(Verb::Leave, of).await, Reply::Done);
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut both.client).unwrap();
    assert_eq!(left, ["tenure1:clock"]);
}

#[tokio::test]
async fn expired_waiters_of_one_version_are_expired_for_the_other() {
    for old_leaves in [false, true] {
        let mut both = Both::start().await;
        let mut inbox = both.inbox(3).await;
        let _dead = both.inbox(2).await;
        number(&both.old("w", claim_id(1, 1)));
        assert_eq!(letter(&both.old("w", claim_id(2, 1))), 'Q');
        assert!(matches!(
            both.asked(WAIT, claim_id(3, 1)).await,
            Reply::QueuedBehind(..)
        ));
        assert_eq!(letter(&both.old("w", claim_id(2, 2))), 'Q');
        both.age(claim_id(2, 1), 1.5);
        both.age(claim_id(2, 2), 1.5);
        // This version's heartbeat leaves expired waiters, which the heartbeat of the other removes.
        assert!(matches!(
            both.asked(Verb::HEARTBEAT, claim_id(3, 1)).await,
            Reply::QueuedBehind(..)
        ));
        assert_eq!(both.members(), 6);
        assert_eq!(both.asked(Verb::HEARTBEAT, claim_id(2, 2)).await, Reply::Gone);
        assert_eq!(both.members(), 4);
        if old_leaves {
            assert_eq!(both.old("l", claim_id(1, 1)), Value::Int(0));
        } else {
            assert_eq!(both.asked(Verb::Leave, claim_id(1, 1)).await, Reply::Done);
        }
        assert_eq!(inbox.grant().await.claim_id, claim_id(3, 1));
        assert_eq!(both.members(), 0);
        assert_eq!(letter(&both.old("r", claim_id(2, 1))), 'X');
    }
}

#[tokio::test]
async fn joining_a_queue_removes_expired_waiters() {
    let mut both = Both::start().await;
    number(&both.old("w", claim_id(1, 1)));
    for claim in 0..40 {
        assert_eq!(letter(&both.old("w", claim_id(2, claim))), 'Q');
    }
    for claim in 0..40 {
        both.age(claim_id(2, claim), 1.5);
    }
    assert!(matches!(
        both.asked(WAIT, claim_id(3, 1)).await,
        Reply::QueuedBehind(..)
    ));
    assert_eq!(both.members(), 2);
    let ttl: u64 = redis::cmd("PTTL")
        .arg(&both.queue)
        .query(&mut both.client)
        .unwrap();
    assert!(ttl <= TERM.lease_ms, "{ttl}");
}

#[tokio::test]
async fn two_versions_hand_a_tick_over_to_each_other() {
    let mut both = Both::start().await;
    let mut inboxes = [both.inbox(2).await, both.inbox(3).await];
    let won = both.old_tick("c", claim_id(1, 1), 1);
    assert_eq!(letter(&won), 'W', "{won:?}");
    assert!(matches!(
        both.new_tick(WAIT, claim_id(2, 1), 1).await,
        Reply::QueuedBehind(..)
    ));
    assert_eq!(letter(&both.old_tick("w", claim_id(3, 1), 1)), 'Q');
    assert_eq!(both.old_tick("l", claim_id(1, 1), 1), Value::Int(0));
    let grant = inboxes[0].grant().await;
    assert_eq!((grant.claim_id, grant.attempt), (claim_id(2, 1), 2));
    assert_eq!(
        both.new_tick(Verb::HEARTBEAT, claim_id(2, 1), 1).await,
        Reply::Won(grant.number, 2)
    );
    assert_eq!(both.new_tick(Verb::Leave, claim_id(2, 1), 1).await, Reply::Done);
    let grant = inboxes[1].grant().await;
    assert_eq!((grant.claim_id, grant.attempt), (claim_id(3, 1), 3));
    assert!(matches!(
        both.new_tick(WAIT, claim_id(2, 2), 1).await,
        Reply::QueuedBehind(..)
    ));
    assert_eq!(both.old_tick("f", claim_id(3, 1), 1), Value::Int(0));
    // Both versions tell a waiter of a finished tick that it is over.
    assert_eq!(
        both.new_tick(Verb::HEARTBEAT, claim_id(2, 2), 1).await,
        Reply::Over
    );
    assert_eq!(letter(&both.old_tick("c", claim_id(1, 2), 1)), 'O');
    assert_eq!(
        both.new_tick(Verb::Claim { wait: true }, claim_id(1, 3), 1).await,
        Reply::Over
    );
}

/// A node of this version leaves a key free for pollers, and the earlier version uses its own rules.
#[tokio::test]
async fn the_earlier_version_passes_over_the_mark_of_a_free_lock() {
    const GAP_MS: u64 = 20_000;
    let mut both = Both::start().await;
    let mut inboxes = [both.inbox(2).await, both.inbox(3).await];
    let with_gap = async |link: &Arc<dyn Link>, verb, of| {
        let mut batch = batch(vec![request(b"a", of, verb)]);
        batch.poll_gap_ms = GAP_MS;
        link.apply(batch).await.unwrap().replies.remove(0)
    };
    number(&both.old("w", claim_id(1, 1)));
    assert_eq!(letter(&both.old("w", claim_id(2, 1))), 'Q');
    assert!(matches!(
        with_gap(&both.link, WAIT, claim_id(3, 1)).await,
        Reply::QueuedBehindForeign(Some(_))
    ));
    // The lock was handed on for the first time, only a short time ago.
    assert_eq!(
        with_gap(&both.link, Verb::Leave, claim_id(1, 1)).await,
        Reply::Done
    );
    assert_eq!(inboxes[0].grant().await.claim_id, claim_id(2, 1));
    let mut older = redis::cmd("ZINCRBY");
    let older = older.arg(&both.queue).arg(-10 * GAP_MS.cast_signed()).arg("c");
    let _: f64 = older.query(&mut both.client).unwrap();
    assert_eq!(
        with_gap(&both.link, Verb::Leave, claim_id(2, 1)).await,
        Reply::Done
    );
    let record: Option<String> = redis::cmd("GET").arg("lock:a").query(&mut both.client).unwrap();
    assert_eq!(record, None);
    assert_eq!(
        with_gap(&both.link, Verb::Claim { wait: false }, claim_id(4, 1)).await,
        Reply::Busy(None)
    );
    // The earlier version has no poll gap: a free key goes to the first waiter.
    assert_eq!(letter(&both.old("w", claim_id(2, 2))), 'Q');
    assert_eq!(inboxes[1].grant().await.claim_id, claim_id(3, 1));
    assert_eq!(both.old("l", claim_id(3, 1)), Value::Int(0));
    assert_eq!(inboxes[0].grant().await.claim_id, claim_id(2, 2));
    assert_eq!(both.old("l", claim_id(2, 2)), Value::Int(0));
    number(&both.old("w", claim_id(1, 2)));
    assert_eq!(both.old("l", claim_id(1, 2)), Value::Int(0));
    // Only the mark is left, for at most 600 gaps. A node of this version that finds no waiter removes the mark.
    assert_eq!(both.members(), 1);
    assert!(matches!(
        with_gap(&both.link, WAIT, claim_id(3, 2)).await,
        Reply::Granted(_)
    ));
    assert_eq!(both.members(), 0);
}

/// A node of the earlier version learns by its renewal that an operator revoked its lease, and no other claim gets the key before
/// the record ends.
#[tokio::test]
async fn a_lease_of_the_earlier_version_is_revoked_until_its_end() {
    let mut both = Both::start().await;
    let number = GrantNumber(number(&both.old("w", claim_id(1, 1))));
    let inspector = both.store.inspector().unwrap();
    let steal = |act| StealRequest {
        name: name(b"a"),
        target: StealTarget::Grant(number, Mode::Exclusive),
        act,
        tells: false,
    };
    let (reply, _) = inspector.steal(steal(StealAct::Revoke)).await.unwrap();
    assert_eq!(reply, StealReply::Done(Some(claim_id(1, 1))));
    // Its versions of renew and leave know no such record, and change nothing.
    assert_eq!(letter(&both.old("r", claim_id(1, 1))), 'X');
    assert_eq!(letter(&both.old("l", claim_id(1, 1))), 'N');
    assert!(matches!(
        both.asked(WAIT, claim_id(2, 1)).await,
        Reply::QueuedBehindForeign(Some(_))
    ));
    assert_eq!(letter(&both.old("w", claim_id(3, 1))), 'Q');
    let left: i64 = redis::cmd("PTTL").arg("lock:a").query(&mut both.client).unwrap();
    assert!(left > 0 && left <= TERM.hold_ms() as i64, "{left}");
    let () = redis::cmd("DEL").arg("lock:a").query(&mut both.client).unwrap();
    let granted = both.asked(Verb::HEARTBEAT, claim_id(2, 1)).await;
    assert!(matches!(granted, Reply::Granted(_)), "{granted:?}");
}
