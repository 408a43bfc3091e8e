//! What the tests of the store share.

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::error::StoreError;
use tenure::protocol::message::{
    Batch, BatchReply, ClaimId, ClaimNumber, Grant, GrantNumber, InboxEvent, LeaseTimes, Name, NodeId, Push,
    Reply, Request, Rule, TickTime, Verb,
};
use tenure::store::{Link, ServerId, Store};
use tenure::testing::redis_store;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Longer than anything takes; only a failure waits for it.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const TERM: LeaseTimes = LeaseTimes {
    lease_ms: 60_000,
    margin_ms: 6_000,
};

/// Which no slow machine makes give up.
pub fn store(url: &str) -> Arc<dyn Store> {
    redis_store(url, PATIENCE).unwrap()
}

pub async fn connect(store: &Arc<dyn Store>) -> Result<Arc<dyn Link>, StoreError> {
    store.connect(ServerId(0), None).await
}

pub fn claim_id(node: u128, claim: u64) -> ClaimId {
    ClaimId {
        node: NodeId::numbered(node),
        claim: ClaimNumber(claim),
        nonce: claim.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

pub fn name(key: &[u8]) -> Name {
    Name::lock(Key::from(key))
}

pub fn request(key: &[u8], claim_id: ClaimId, verb: Verb) -> Request {
    Request {
        name: name(key),
        claim_id,
        term: TERM,
        mode: Default::default(),
        when_behind: Default::default(),
        may_keep: false,
        data: None,
        mark: None,
        verb,
    }
}

/// A request for a tick of a job.
pub fn tick(key: &[u8], claim_id: ClaimId, ms: u64, verb: Verb) -> Request {
    Request {
        name: Name::job(Key::from(key)),
        mark: Some(TickTime(ms)),
        ..request(key, claim_id, verb)
    }
}

pub fn batch(requests: Vec<Request>) -> Batch {
    Batch {
        highest: GrantNumber(0),
        not_after: u64::MAX,
        poll_gap_ms: 0,
        is_unconfirmed: false,
        recovery_ms: 1_000,
        rule: Rule::Each,
        requests,
    }
}

pub const CLAIM: Verb = Verb::Claim { wait: false };
pub const WAIT: Verb = Verb::Claim { wait: true };

/// Applies one request.
pub async fn ask(link: &Arc<dyn Link>, key: &[u8], claim_id: ClaimId, verb: Verb) -> Reply {
    let answer: BatchReply = link
        .apply(batch(vec![request(key, claim_id, verb)]))
        .await
        .unwrap();
    answer.replies.into_iter().next().unwrap()
}

/// An open inbox of a node.
pub struct Inbox {
    pub task: JoinHandle<StoreError>,
    notes: mpsc::UnboundedReceiver<InboxEvent>,
}

impl Inbox {
    pub async fn open(store: &Arc<dyn Store>, node: NodeId) -> Result<Self, StoreError> {
        let (sender, notes) = mpsc::unbounded_channel();
        let sink = Arc::new(move |event| {
            let _ = sender.send(event);
        });
        let open = store.inbox(ServerId(0), node, sink).await?;
        // Whoever drops its pings closes it.
        let (pings, ended) = (open.pings, open.ended);
        let task = tokio::spawn(async move {
            let error = ended.await;
            drop(pings);
            error
        });
        Ok(Inbox { task, notes })
    }

    pub async fn grant(&mut self) -> Grant {
        match self.push().await {
            Some(InboxEvent::Pushed(Push::Granted(grant))) => grant,
            other => panic!("no grant but {other:?}"),
        }
    }

    /// What has changed.
    pub async fn news(&mut self) -> Name {
        match self.push().await {
            Some(InboxEvent::Pushed(Push::Changed(_, name))) => name,
            other => panic!("no news but {other:?}"),
        }
    }

    pub async fn push(&mut self) -> Option<InboxEvent> {
        tokio::time::timeout(PATIENCE, self.notes.recv())
            .await
            .expect("a push in time")
    }

    pub fn is_empty(&mut self) -> bool {
        self.notes.is_empty()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}
