//! Helpers that several of these tests share.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{Batch, GrantNumber, Reply, Request, Rule};
use tenure::{Locks, MemoryStore};

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Awaits the future, and fails loudly instead of hanging for ever.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(ms(20_000), future)
        .await
        .expect("did not happen in time")
}

/// Waits until the condition is true. Not every feature set uses this function.
#[allow(dead_code)]
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let look = async {
        while !so() {
            tokio::time::sleep(ms(2)).await;
        }
    };
    let seen = tokio::time::timeout(ms(20_000), look).await;
    assert!(seen.is_ok(), "timed out: {what}");
}

/// Sets the store's record of a job, whose expression the store has known since ever. `job` makes a job with that expression.
#[cfg(feature = "scheduler")]
pub async fn known_since_ever<J>(
    (store, name): (&MemoryStore, &str),
    job: impl FnOnce(&Locks) -> J,
    record: tenure::protocol::ledger::JobRecord,
) {
    use tenure::protocol::ledger::Expression;
    use tenure::protocol::message::Name;
    let (locks, key) = (
        Locks::builder().memory_shared(store).unwrap(),
        Name::job(name.into()),
    );
    let job = job(&locks);
    let known = || store.with_ledger(|ledger, _| ledger.job(&key).and_then(|job| job.expression));
    until("the store knows the expression", || known().is_some()).await;
    drop(job);
    soon(async { while locks.drain(Duration::ZERO).await.is_err() {} }).await;
    let expression = known().map(|known| Expression { since_ms: 0, ..known });
    store.with_ledger(|ledger, _| {
        ledger.set_job(&key, tenure::protocol::ledger::JobRecord { expression, ..record })
    });
}

/// Polls the future once and returns its output if it is ready.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *future).poll(cx) {
            Poll::Ready(ready) => Some(ready),
            Poll::Pending => None,
        })
    })
    .await
}

/// Returns two nodes on one store.
pub fn two(store: &MemoryStore) -> (Locks, Locks) {
    let make = || Locks::builder().memory_shared(store).unwrap();
    (make(), make())
}

/// Gives one request to a ledger, and returns its reply.
pub fn ask(ledger: &mut Ledger, now_us: u64, request: Request) -> Reply {
    let batch = Batch {
        highest: GrantNumber(0),
        not_after: u64::MAX,
        poll_gap_ms: 0,
        is_unconfirmed: false,
        recovery_ms: 1_000,
        rule: Rule::Each,
        requests: vec![request],
    };
    ledger.apply(now_us, &batch, &mut Vec::new()).replies.remove(0)
}

/// Runs a test that has a process of its own.
pub fn block_on(future: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(future);
}
