//! Laws of a wait of zero, for two nodes on any store: each form tries once, and leaves no waiter.

use std::time::Duration;

use tenure::{Error, Guard, Locks, MultiGuard, block_on};

const PATIENCE: Duration = Duration::from_secs(30);
const KEY: &str = "zero";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// The name of a form, and its result.
type Answer = (&'static str, Result<(), Error>);

async fn release(acquired: impl Future<Output = Result<Guard, Error>>) -> Result<(), Error> {
    soon(async { acquired.await?.release().await }).await
}

/// Tries each async form with a wait of zero, and releases what it acquired.
async fn tries(locks: &Locks) -> [Answer; 7] {
    let zero = Duration::ZERO;
    let (rw_lock, semaphore) = (locks.rw_lock(KEY), locks.semaphore(KEY, 2));
    let (multi, election) = (locks.multi([KEY, "zero 2"]), locks.election(KEY));
    let several = async { multi.lock_timeout(zero).await?.release().await };
    [
        ("mutex", release(locks.mutex(KEY).lock_timeout(zero)).await),
        ("read", release(rw_lock.read_timeout(zero)).await),
        ("write", release(rw_lock.write_timeout(zero)).await),
        ("permit", release(semaphore.acquire_timeout(zero)).await),
        ("permits", release(semaphore.acquire_many_timeout(2, zero)).await),
        ("multi", soon(several).await),
        ("election", release(election.campaign_timeout(zero)).await),
    ]
}

/// Tries each blocking form with a wait of zero, and releases what it acquired.
fn blocking_tries(locks: &Locks) -> [Answer; 7] {
    let zero = Duration::ZERO;
    let release = |guard: Guard| block_on(guard.release());
    let (rw_lock, semaphore) = (locks.rw_lock(KEY), locks.semaphore(KEY, 2));
    let (multi, election) = (locks.multi([KEY, "zero 2"]), locks.election(KEY));
    let permits = block_on(semaphore.acquire_many_timeout(2, zero));
    [
        ("blocking permits", permits.and_then(release)),
        (
            "blocking permit",
            block_on(semaphore.acquire_timeout(zero)).and_then(release),
        ),
        (
            "blocking read",
            block_on(rw_lock.read_timeout(zero)).and_then(release),
        ),
        (
            "blocking write",
            block_on(rw_lock.write_timeout(zero)).and_then(release),
        ),
        (
            "blocking mutex",
            block_on(locks.mutex(KEY).lock_timeout(zero)).and_then(release),
        ),
        (
            "blocking election",
            block_on(election.campaign_timeout(zero)).and_then(release),
        ),
        (
            "blocking multi",
            block_on(multi.lock_timeout(zero)).and_then(|guard: MultiGuard| block_on(guard.release())),
        ),
    ]
}

pub async fn a_wait_of_zero_tries_once(one: &Locks, other: &Locks) {
    let all = async |locks: &Locks| {
        let blocking = locks.clone();
        let blocking = soon(tokio::task::spawn_blocking(move || blocking_tries(&blocking)));
        let mut answers: Vec<Answer> = blocking.await.unwrap().into();
        answers.extend(tries(locks).await);
        answers
    };
    for (form, answer) in all(one).await {
        assert!(answer.is_ok(), "{form}: {answer:?}");
    }
    let held = [
        soon(other.mutex(KEY).lock()).await.unwrap(),
        soon(other.semaphore(KEY, 2).acquire_many(2)).await.unwrap(),
        soon(other.election(KEY).campaign()).await.unwrap(),
    ];
    for (form, answer) in all(one).await {
        assert!(matches!(answer, Err(Error::Busy { .. })), "{form}: {answer:?}");
        assert_eq!(one.waiter_count(), 0, "{form}");
    }
    for guard in held {
        soon(guard.release()).await.unwrap();
    }
    for (form, answer) in all(one).await {
        assert!(answer.is_ok(), "{form}, after the holder: {answer:?}");
    }
    let latch = one.latch(KEY);
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    assert!(!soon(latch.wait_timeout(Duration::ZERO)).await.unwrap());
    assert_eq!(one.waiter_count(), 0);
    soon(other.latch(KEY).count_down()).await.unwrap();
    assert!(soon(latch.wait_timeout(Duration::ZERO)).await.unwrap());
}

/// A layer with a wait of zero lets a request in if the key is free, and refuses it at once if the key is held.
#[cfg(feature = "axum")]
pub async fn a_layer_with_a_wait_of_zero_tries_once(one: &Locks, other: &Locks) {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http::{Request, StatusCode};
    use tenure::LockLayer;
    use tower::ServiceExt;

    let layer = LockLayer::by(one, |_| KEY).wait(Duration::ZERO);
    let app = Router::new().route("/", get(async || "in")).route_layer(layer);
    let status = async || {
        let request = Request::get("/").body(Body::empty()).unwrap();
        soon(app.clone().oneshot(request)).await.unwrap().status()
    };
    assert_eq!(status().await, StatusCode::OK);
    soon(one.idle()).await;
    let held = soon(other.mutex(KEY).lock()).await.unwrap();
    assert_eq!(status().await, StatusCode::LOCKED);
    assert_eq!(one.waiter_count(), 0);
    soon(held.release()).await.unwrap();
    assert_eq!(status().await, StatusCode::OK);
}

/// Makes a test of each law. `$nodes` returns two nodes and a value that keeps their store alive.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_zero_waits {
    (list $list:ident) => {
        $crate::laws_of_zero_waits!([list $list]: a_wait_of_zero_tries_once);
        #[cfg(feature = "axum")]
        $crate::laws_of_zero_waits!([list $list]: a_layer_with_a_wait_of_zero_tries_once);
    };
    ([list $list:ident]: $law:ident) => {
        $list.add(stringify!($law), |on| on.run($crate::support::zero_wait::$law(&on.one, &on.other)));
    };
    ($nodes:path) => {
        $crate::laws_of_zero_waits!($nodes: a_wait_of_zero_tries_once);
        #[cfg(feature = "axum")]
        $crate::laws_of_zero_waits!($nodes: a_layer_with_a_wait_of_zero_tries_once);
    };
    ($nodes:path: $law:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, _store) = $nodes().await;
            $crate::support::zero_wait::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
        }
    };
}
