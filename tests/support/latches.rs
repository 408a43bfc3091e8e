//! The laws of latches that every store must show, seen by two nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Error, Latch, Locks};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

async fn until_waiting(locks: &Locks, waiting: usize) {
    soon(async {
        while locks.waiter_count() != waiting {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn waits(latch: &Latch) -> JoinHandle<Result<(), Error>> {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait().await })
}

async fn set(latch: &Latch, count: u32) -> bool {
    soon(latch.try_set_count(count)).await.unwrap()
}

pub async fn waiters_continue_at_zero(one: &Locks, other: &Locks) {
    let (here, there) = (one.latch("parts"), other.latch("parts"));
    assert!(set(&here, 3).await);
    let waiting: Vec<_> = [&here, &here, &there].map(waits).into();
    until_waiting(one, 2).await;
    until_waiting(other, 1).await;
    assert_eq!(soon(there.count_down()).await.unwrap(), 2);
    assert_eq!(soon(here.count_down()).await.unwrap(), 1);
    assert_eq!(soon(here.count()).await.unwrap(), 1);
    assert!(!soon(there.wait_timeout(Duration::from_millis(50))).await.unwrap());
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(soon(there.count_down()).await.unwrap(), 0);
    for waiting in waiting {
        soon(waiting).await.unwrap().unwrap();
    }
    // The latch stays at zero, and a late waiter continues at once.
    for latch in [&here, &there] {
        soon(latch.wait()).await.unwrap();
        assert!(soon(latch.wait_timeout(PATIENCE)).await.unwrap());
        assert!(soon(latch.wait_timeout(Duration::ZERO)).await.unwrap());
        assert_eq!(soon(latch.count_down()).await.unwrap(), 0, "and no error");
        assert_eq!(soon(latch.count()).await.unwrap(), 0);
    }
    // A lock and a semaphore of the same key are independent.
    soon(one.mutex("parts").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let permit = soon(other.semaphore("parts", 1).acquire()).await.unwrap();
    permit.release().await.unwrap();
}

pub async fn a_latch_is_set_once(one: &Locks, other: &Locks) {
    let (here, there) = (one.latch("once"), other.latch("once"));
    assert!(set(&here, 2).await);
    for left in [1, 0] {
        assert!(!set(&there, 7).await && !set(&here, 7).await);
        let answer = soon(there.count_down()).await.unwrap();
        assert_eq!(answer, left, "as it was set first");
    }
    assert!(!set(&there, 7).await && !set(&here, 7).await);
    assert_eq!(soon(here.count()).await.unwrap(), 0);
    soon(there.wait()).await.unwrap();
}

/// The worker sets the latch, counts down, and is restarted. Callers that wait then must not wait for its second run.
pub async fn a_restarted_worker_does_not_set_it_again(one: &Locks, other: &Locks) {
    let (here, there) = (one.latch("restarted"), other.latch("restarted"));
    assert!(set(&here, 1).await);
    assert_eq!(soon(here.count_down_once("import")).await.unwrap(), 0);
    // The second run of the same program.
    assert!(!set(&here, 1).await, "set again at zero");
    for latch in [&here, &there] {
        assert!(
            soon(latch.wait_timeout(Duration::from_millis(300)))
                .await
                .unwrap()
        );
    }
    assert_eq!(soon(here.count_down_once("import")).await.unwrap(), 0);
    assert_eq!(soon(there.count()).await.unwrap(), 0);
}

pub async fn each_count_down_counts_once(one: &Locks, other: &Locks) {
    const COUNT: u32 = 40;
    let (lasts, latch) = (Arc::new(AtomicU32::new(0)), one.latch("crowd"));
    assert!(set(&latch, COUNT).await);
    let tasks: Vec<_> = (0..COUNT)
        .map(|n| {
            let latch = [one, other][n as usize % 2].latch("crowd");
            let lasts = lasts.clone();
            tokio::spawn(async move {
                let left = latch.count_down().await.unwrap();
                lasts.fetch_add(u32::from(left == 0), Ordering::SeqCst);
                left
            })
        })
        .collect();
    let mut lefts = Vec::new();
    for task in tasks {
        lefts.push(soon(task).await.unwrap());
    }
    lefts.sort_unstable();
    assert_eq!(lefts, (0..COUNT).collect::<Vec<_>>());
    assert_eq!(lasts.load(Ordering::SeqCst), 1, "one of them was the last");
}

pub async fn a_worker_that_starts_twice_counts_once(one: &Locks, other: &Locks) {
    let (here, there) = (one.latch("workers"), other.latch("workers"));
    assert!(set(&here, 3).await);
    assert_eq!(soon(here.count_down_once("a")).await.unwrap(), 2);
    assert_eq!(soon(there.count_down_once("b")).await.unwrap(), 1);
    for latch in [&here, &there] {
        assert_eq!(
            soon(latch.count_down_once("a")).await.unwrap(),
            2,
            "as it was counted"
        );
        assert_eq!(soon(latch.count()).await.unwrap(), 1);
    }
    assert_eq!(soon(there.count_down_once(b"\x00 :c")).await.unwrap(), 0);
    assert_eq!(soon(here.count_down_once("a")).await.unwrap(), 2);
}

fn is_unset<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let Err(Error::Unset { key, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert!(!key.as_bytes().is_empty());
}

pub async fn an_unset_latch_is_an_error(one: &Locks, _: &Locks) {
    let latch = one.latch("never");
    is_unset(soon(latch.count_down()).await);
    is_unset(soon(latch.count_down_once("a")).await);
    is_unset(soon(latch.count()).await);
    is_unset(soon(latch.wait()).await);
    is_unset(soon(latch.wait_timeout(PATIENCE)).await);
    is_unset(soon(latch.wait_timeout(Duration::ZERO)).await);
}

/// A latch ends with its life, whether or not it came to zero, and its waiters are told.
pub async fn a_latch_ends_with_its_life(one: &Locks, other: &Locks) {
    let short = |name| one.latch(name).life(Duration::from_secs(1));
    for name in ["counted", "waited for"] {
        assert!(soon(short(name).try_set_count(2)).await.unwrap());
    }
    soon(other.latch("counted").count_down_once("a")).await.unwrap();
    let waiting = waits(&other.latch("waited for"));
    is_unset(soon(waiting).await.unwrap());
    is_unset(soon(one.latch("waited for").count()).await);
    soon(async {
        while one.latch("counted").count().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    is_unset(soon(one.latch("counted").count_down()).await);
    // It can be set again: its next life ignores the count-downs of the first one.
    assert!(soon(short("counted").try_set_count(2)).await.unwrap());
    assert_eq!(soon(short("counted").count_down_once("a")).await.unwrap(), 1);
    assert_eq!(soon(other.latch("counted").count_down()).await.unwrap(), 0);
}

pub async fn a_caller_that_gives_up_leaves_the_queue(one: &Locks, other: &Locks) {
    let latch = other.latch("patience");
    assert!(set(&one.latch("patience"), 1).await);
    let (gone, stays) = (waits(&latch), waits(&latch));
    until_waiting(other, 2).await;
    gone.abort();
    assert!(soon(gone).await.is_err());
    until_waiting(other, 1).await;
    soon(one.latch("patience").count_down()).await.unwrap();
    soon(stays).await.unwrap().unwrap();
    assert_eq!(other.waiter_count(), 0);
}

pub async fn bad_numbers_are_refused(one: &Locks, _: &Locks) {
    let day = Duration::from_secs(24 * 3600);
    let latch = one.latch("bad");
    let refused = [
        (soon(latch.try_set_count(0)).await.map(drop), "not to 0"),
        (soon(latch.try_set_count(10_001)).await.map(drop), "1 to 10000"),
        (
            soon(latch.clone().life(Duration::ZERO).try_set_count(1))
                .await
                .map(drop),
            "1 s to 30 days",
        ),
        (
            soon(latch.clone().life(31 * day).try_set_count(1))
                .await
                .map(drop),
            "1 s to 30 days",
        ),
        (soon(latch.count_down_once("")).await.map(drop), "1 to 512 bytes"),
        (
            soon(latch.count_down_once([7; 513])).await.map(drop),
            "1 to 512 bytes, not 513",
        ),
    ];
    for (refused, told) in refused {
        let Err(Error::Options(error)) = refused else {
            panic!("{refused:?}")
        };
        let text = error.to_string();
        assert!(text.contains("latch `bad`") && text.contains(told), "{text}");
    }
    is_unset(soon(latch.count()).await);
    let empty = soon(one.latch("").count()).await;
    assert!(matches!(empty, Err(Error::Key { .. })), "{empty:?}");
    assert!(set(&latch, 10_000).await);
    let long = [7; 512];
    assert_eq!(soon(latch.count_down_once(long)).await.unwrap(), 9_999);
    assert_eq!(soon(latch.count_down_once(long)).await.unwrap(), 9_999);
    assert_eq!(soon(latch.count()).await.unwrap(), 9_999);
}

/// Runs each law on two nodes made by `$nodes`.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_latches {
    ($nodes:path) => {
        $crate::laws_of_latches!(all [$nodes]);
    };
    (list $list:ident) => {
        $crate::laws_of_latches!(all [list $list]);
    };
    (all $form:tt) => {
        $crate::laws_of_latches!($form:
            waiters_continue_at_zero,
            a_latch_is_set_once,
            a_restarted_worker_does_not_set_it_again,
            each_count_down_counts_once,
            a_worker_that_starts_twice_counts_once,
            an_unset_latch_is_an_error,
            a_latch_ends_with_its_life,
            a_caller_that_gives_up_leaves_the_queue,
            bad_numbers_are_refused,
        );
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::latches::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, _store) = $nodes().await;
            $crate::support::latches::$law(&one, &other).await;
            // No process holds anything for a latch.
            one.idle().await;
            other.idle().await;
            assert_eq!((one.key_count(), other.key_count()), (0, 0));
        })+
    };
}
