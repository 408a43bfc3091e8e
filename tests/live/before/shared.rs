//! Readers, permits and latches beside a node of commit 2a7eee7, which has a script file for each of them.

use std::sync::Arc;

use redis::Value;
use tenure::Key;
use tenure::protocol::message::{
    Call, CallTime, ClaimId, GrantNumber, LatchReport, Mode, Name, NodeId, Payload, Permits, Reply, Request,
    Verb,
};
use tenure::store::{Link, Store};

use super::{letter, number};
use crate::server::RedisServer;
use crate::tools::{CLAIM, Inbox, TERM, WAIT, batch, claim_id, connect, request, store};

const LOCKS: &str = include_str!("readers.lua");
const SEMAPHORES: &str = include_str!("semaphores.lua");
const LATCHES: &str = include_str!("latches.lua");

/// A server, a node of this version, and the name of a key in both versions.
struct Both {
    _server: RedisServer,
    store: Arc<dyn Store>,
    link: Arc<dyn Link>,
    client: redis::Connection,
    script: &'static str,
    name: Name,
    /// Empty until a request has created the keys.
    record: Vec<u8>,
    queue: Vec<u8>,
}

impl Both {
    async fn start(script: &'static str, name: Name) -> Self {
        let server = RedisServer::start();
        let store = store(&server.url());
        Both {
            link: connect(&store).await.unwrap(),
            client: server.client(),
            _server: server,
            store,
            script,
            name,
            record: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Reads the names of the record and the queue, which have tags, from the server, and forgets all keys.
    fn learn_names(&mut self, record: &str) {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.client).unwrap();
        let key = |begin: &str| {
            let found = keys.iter().find(|key| key.starts_with(begin.as_bytes()));
            found.expect("a key of that name").clone()
        };
        (self.record, self.queue) = (key(record), key("tenure1:q:"));
        let () = redis::cmd("FLUSHALL").query(&mut self.client).unwrap();
    }

    /// Returns the answer of the earlier version to one request.
    fn old(&mut self, verb: &str, of: ClaimId, tick: &str, to: &str) -> Value {
        let mut eval = redis::cmd("EVAL");
        eval.arg(self.script)
            .arg(3)
            .arg(&self.record)
            .arg("tenure1:clock")
            .arg(&self.queue);
        eval.arg(0).arg(0).arg("p").arg(verb).arg(format!("{of}:"));
        eval.arg(TERM.lease_ms).arg(TERM.hold_ms()).arg(tick).arg(to);
        let mut answer: Vec<Value> = eval.query(&mut self.client).unwrap();
        answer.pop().unwrap()
    }

    async fn new_request(&self, change: impl FnOnce(&mut Request), of: ClaimId, verb: Verb) -> Reply {
        let mut request = request(b"a", of, verb);
        request.name = self.name.clone();
        change(&mut request);
        self.link
            .apply(batch(vec![request]))
            .await
            .unwrap()
            .replies
            .remove(0)
    }

    async fn new_mode(&self, mode: Mode, of: ClaimId, verb: Verb) -> Reply {
        self.new_request(|request| request.mode = mode, of, verb).await
    }

    async fn new_question(&self, call: Call, id: &[u8]) -> Reply {
        let id = Payload(id.into());
        let verb = Verb::Call(call);
        self.new_request(|request| request.data = Some(id), claim_id(1, 1), verb)
            .await
    }

    async fn inbox(&self, node: u128) -> Inbox {
        Inbox::open(&self.store, NodeId::numbered(node)).await.unwrap()
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).unwrap(),
        other => panic!("not a text: {other:?}"),
    }
}

#[tokio::test]
async fn readers_of_two_versions_share_a_lock() {
    let mut both = Both::start(LOCKS, Name::lock(Key::from("a"))).await;
    both.new_mode(Mode::Exclusive, claim_id(9, 1), CLAIM).await;
    both.new_mode(Mode::Exclusive, claim_id(9, 2), WAIT).await;
    both.learn_names("lock:a");
    let mut inboxes = [both.inbox(3).await, both.inbox(4).await, both.inbox(5).await];
    let first = number(&both.old("w", claim_id(1, 1), "1", ""));
    let Reply::Granted(second) = both.new_mode(Mode::Read, claim_id(2, 1), WAIT).await else {
        panic!("readers share the lock")
    };
    assert!(second.0 > first);
    assert_eq!(number(&both.old("r", claim_id(2, 1), "1", "")), second.0);
    let renewed = both.new_mode(Mode::Read, claim_id(1, 1), Verb::HEARTBEAT).await;
    assert_eq!(renewed, Reply::Granted(GrantNumber(first)));
    // A writer waits for both readers, and two readers wait behind it.
    assert_eq!(letter(&both.old("w", claim_id(3, 1), "0", "")), 'Q');
    let queued = both.new_mode(Mode::Read, claim_id(4, 1), WAIT).await;
    assert!(
        matches!(queued, Reply::Queued(_) | Reply::QueuedBehind(..)),
        "{queued:?}"
    );
    assert_eq!(letter(&both.old("w", claim_id(5, 1), "1", "")), 'Q');
    assert_eq!(
        both.new_mode(Mode::Read, claim_id(1, 1), Verb::Leave).await,
        Reply::Done
    );
    assert_eq!(both.old("l", claim_id(2, 1), "1", ""), Value::Int(0));
    let writer = inboxes[0].grant().await;
    assert_eq!(writer.claim_id, claim_id(3, 1));
    assert_eq!(
        both.new_mode(Mode::Exclusive, claim_id(3, 1), Verb::Leave).await,
        Reply::Done
    );
    let [_, new, old] = &mut inboxes;
    let (new, old) = (new.grant().await, old.grant().await);
    assert_eq!((new.claim_id, old.claim_id), (claim_id(4, 1), claim_id(5, 1)));
    assert!(writer.number < new.number && new.number < old.number);
    assert_eq!(both.old("l", claim_id(4, 1), "1", ""), Value::Int(0));
    assert_eq!(
        both.new_mode(Mode::Read, claim_id(5, 1), Verb::Leave).await,
        Reply::Done
    );
    assert_eq!(redis::cmd("EXISTS").arg("lock:a").query(&mut both.client), Ok(0));
}

#[tokio::test]
async fn permits_of_two_versions_count_together() {
    let mut both = Both::start(SEMAPHORES, Name::semaphore(Key::from("a"))).await;
    let mode = |weight| Mode::Permits(Permits { weight, capacity: 3 });
    both.new_mode(mode(3), claim_id(9, 1), CLAIM).await;
    both.new_mode(mode(3), claim_id(9, 2), WAIT).await;
    both.learn_names("tenure1:s:");
    let mut inbox = both.inbox(4).await;
    number(&both.old("w", claim_id(1, 1), "2/3", ""));
    let granted = both.new_mode(mode(1), claim_id(2, 1), CLAIM).await;
    assert!(matches!(granted, Reply::Granted(_)), "{granted:?}");
    assert_eq!(words(&both.old("u", claim_id(3, 1), "1/3", "")), "I3");
    let busy = both.new_mode(mode(1), claim_id(3, 1), CLAIM).await;
    assert!(matches!(busy, Reply::Busy(_)), "{busy:?}");
    assert_eq!(letter(&both.old("w", claim_id(4, 1), "2/3", "")), 'Q');
    assert_eq!(
        both.new_mode(mode(2), claim_id(1, 1), Verb::Leave).await,
        Reply::Done
    );
    assert_eq!(inbox.grant().await.claim_id, claim_id(4, 1));
    assert_eq!(both.old("l", claim_id(2, 1), "1/3", ""), Value::Int(0));
    // Each version reports the capacity that the other recorded.
    let four = Mode::Permits(Permits {
        weight: 1,
        capacity: 4,
    });
    let beside = both.new_mode(four, claim_id(5, 1), CLAIM).await;
    assert!(matches!(beside, Reply::CapacityDiffers(_, 3)), "{beside:?}");
    assert_eq!(both.old("l", claim_id(4, 1), "2/3", ""), Value::Int(0));
    assert!(words(&both.old("c", claim_id(6, 1), "1/3", "")).ends_with(":4"));
}

#[tokio::test]
async fn a_latch_is_counted_down_by_two_versions() {
    let mut both = Both::start(LATCHES, Name::latch(Key::from("a"))).await;
    let set = |count| Call::SetCount {
        count,
        life_ms: 60_000,
    };
    let zero = |of| Call::Zero { of };
    let left = |left| Reply::Latch(LatchReport::Left(left));
    both.new_question(set(1), b"").await;
    both.new_question(zero(None), b"").await;
    both.learn_names("tenure1:l:");
    let past = format!("{}:{}:0:0", 1u64 << 52, 1u64 << 52);
    assert_eq!(
        both.new_question(set(2), b"new").await,
        Reply::Latch(LatchReport::Set)
    );
    assert_eq!(words(&both.old("n", claim_id(1, 1), &past, "old")), "D1");
    let Reply::Watching(generation) = both.new_question(zero(None), b"").await else {
        panic!("the latch is not at zero")
    };
    let called = CallTime {
        of: Some(generation),
        ..CallTime::default()
    };
    let down = Call::CountDown { called };
    assert_eq!(both.new_question(down, b"old").await, left(1), "counted once");
    assert_eq!(both.new_question(down, b"new").await, left(0));
    assert_eq!(words(&both.old("u", claim_id(1, 1), "0", "")), "D0");
    assert_eq!(both.new_question(set(3), b"third").await, left(0));
    // The earlier version sets the latch again. An earlier waiter of this version is still told of zero.
    assert_eq!(words(&both.old("t", claim_id(1, 1), &past, "3:60000:old")), "Y");
    assert_eq!(both.new_question(zero(Some(generation)), b"").await, left(0));
    assert_eq!(both.new_question(set(3), b"fourth").await, left(3));
}
