//! The laws of futures that are not polled in time, for every store: no call returns a guard that is not held.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Guard, Locks, MultiGuard};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("did not happen in time")
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// The part of a call's result that these laws look at.
trait Answer {
    fn is_still_held(&self) -> bool;
}

macro_rules! answers {
    ($($guard:ty),+) => {
        $(impl Answer for $guard {
            fn is_still_held(&self) -> bool {
                self.is_held()
            }
        })+
    };
}

answers!(Guard, MultiGuard);

impl Answer for () {
    fn is_still_held(&self) -> bool {
        true
    }
}

/// Checks what [`is_lost_if_it_waits`] checks, of a future that waits for a holder.
async fn is_lost<T: Answer>(
    what: &str,
    claim_id: impl Future<Output = Result<(), Error>>,
    future: impl Future<Output = Result<T, Error>>,
    next: impl Future<Output = Result<(), Error>>,
) {
    let waited = is_lost_if_it_waits(what, claim_id, future, next).await;
    assert!(waited, "{what} waits for the holder");
}

/// Polls the future once, then releases `claim_id`, so that the future is granted. Polls it again after another node
/// has held the same lock. Returns false, and checks nothing, if the first poll has the answer.
async fn is_lost_if_it_waits<T: Answer>(
    what: &str,
    claim_id: impl Future<Output = Result<(), Error>>,
    future: impl Future<Output = Result<T, Error>>,
    next: impl Future<Output = Result<(), Error>>,
) -> bool {
    let mut future = Box::pin(future);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut poll = || Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
    if poll().is_ready() {
        return false;
    }
    soon(claim_id).await.unwrap();
    soon(async {
        while !woken.0.load(Ordering::Acquire) {
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    // The lock is granted, and its caller does not poll for longer than a lease.
    soon(next).await.unwrap();
    let late = match poll() {
        Poll::Ready(answer) => answer,
        Poll::Pending => soon(poll_fn(|cx| future.as_mut().poll(cx))).await,
    };
    match late {
        Err(Error::Lost { cause, .. }) => assert_eq!(cause, LostCause::Unfetched, "{what}"),
        Ok(guard) => panic!(
            "{what} returned a guard that says held: {}",
            guard.is_still_held()
        ),
        Err(other) => panic!("{what}: {other:?}"),
    }
    true
}

/// `lease` is the lease of each call. A store answers within a quarter of it, also on a slow machine.
pub async fn a_grant_that_is_not_taken_up_in_time_is_no_guard(one: &Locks, other: &Locks, lease: Duration) {
    let next = |key: &'static str| async move { other.mutex(key).lease(lease).lock().await?.release().await };
    let mutex = one.mutex("mutex").lease(lease);
    let claim_id = async || mutex.lock().await.unwrap().release();
    is_lost("lock", claim_id().await, mutex.lock(), next("mutex")).await;
    let waits = mutex.lock_timeout(2 * PATIENCE);
    is_lost("lock_timeout", claim_id().await, waits, next("mutex")).await;
    let worked = AtomicBool::new(false);
    let with = mutex.with(async |_| worked.store(true, Ordering::Release));
    is_lost("with", claim_id().await, with, next("mutex")).await;
    assert!(!worked.load(Ordering::Acquire), "its work must not begin");

    let rw_lock = one.rw_lock("rw lock").lease(lease);
    let claim_id = async || rw_lock.write().await.unwrap().release();
    is_lost("read", claim_id().await, rw_lock.read(), next("rw lock")).await;
    is_lost("write", claim_id().await, rw_lock.write(), next("rw lock")).await;

    let semaphore = one.semaphore("permits", 1).lease(lease);
    let claim_id = soon(semaphore.acquire()).await.unwrap().release();
    let next = async { other.semaphore("permits", 1).acquire().await?.release().await };
    is_lost("acquire", claim_id, semaphore.acquire(), next).await;

    let election = one.election("leader").lease(lease);
    let claim_id = soon(election.campaign()).await.unwrap().release();
    let next = async { other.election("leader").campaign().await?.release().await };
    is_lost("campaign", claim_id, election.campaign(), next).await;

    let multi = one.multi(["multi"]).lease(lease);
    let claim_id = soon(multi.lock()).await.unwrap().release();
    let next = async { other.mutex("multi").lock().await?.release().await };
    is_lost("multi", claim_id, multi.lock(), next).await;
    soon(one.idle()).await;
    soon(other.idle()).await;
}

/// A store that answers at once grants with the first poll; another store needs a round trip.
pub async fn a_lease_that_is_adopted_too_late_is_no_guard(one: &Locks, other: &Locks, lease: Duration) {
    // A thread that stands still during the first poll may find the answer of a server in it.
    let mut waited = false;
    while !waited {
        let guard = soon(one.mutex("order").lease(lease).lock()).await.unwrap();
        let transfer = soon(guard.into_transfer(lease)).await.unwrap();
        let nothing = async { Ok(()) };
        let next = async { other.mutex("order").lock().await?.release().await };
        waited = is_lost_if_it_waits("adopt", nothing, one.adopt(&transfer), next).await;
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
}
