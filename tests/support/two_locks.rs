//! The laws of two [`Locks`] in one process, for every store: the shutdown of one does not affect the other.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure::{Guard, Locks};

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

async fn held(locks: &Locks, key: impl Into<tenure::Key>) -> Guard {
    soon(locks.mutex(key).lock()).await.unwrap()
}

/// Runs on one thread, so that both take their steps on it.
pub async fn one_ends_while_it_waits_for_the_other(one: &Locks, other: &Locks) {
    let guard = held(one, "shared").await;
    let mutex = other.mutex("shared");
    let mut waits = pin!(mutex.lock());
    assert!(poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending())).await);
    soon(other.shutdown()).await;
    assert!(soon(waits).await.is_err(), "it is closed");
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    soon(held(one, "shared").await.release()).await.unwrap();
}

pub async fn one_ends_while_it_holds_another_key(one: &Locks, other: &Locks) {
    let theirs = held(other, "theirs").await;
    soon(other.shutdown()).await;
    assert!(!theirs.is_held());
    let guard = held(one, "ours").await;
    assert!(guard.is_held(), "nothing ended it");
    soon(guard.release()).await.unwrap();
    // The key of the other one is free.
    soon(held(one, "theirs").await.release()).await.unwrap();
}

pub async fn one_ends_while_both_hold_many_keys(one: &Locks, other: &Locks) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for n in 0..40_u64 {
        ours.push(held(one, n).await);
        theirs.push(held(other, 1_000 + n).await);
    }
    soon(other.shutdown()).await;
    // Each of these steps comes after a step of the other one.
    let more = held(one, "more").await;
    assert!(more.is_held());
    assert!(theirs.iter().all(|guard| !guard.is_held()));
    for guard in ours {
        assert!(guard.is_held(), "{guard:?}");
        soon(guard.release()).await.unwrap();
    }
    soon(more.release()).await.unwrap();
}

/// Both have waiters, at the same time: each step of the thread belongs to one of them.
pub async fn one_ends_under_waiters_of_both(one: &Locks, other: &Locks) {
    let guards = [held(one, "a").await, held(other, "b").await];
    let waiters: Vec<_> = (0..20)
        .flat_map(|_| [one.mutex("a"), one.mutex("b"), other.mutex("a"), other.mutex("b")])
        .enumerate()
        .map(|(n, mutex)| {
            let is_closed = n % 4 >= 2;
            tokio::spawn(async move {
                let answer = match mutex.lock().await {
                    Ok(guard) => {
                        assert!(guard.is_held());
                        guard.release().await
                    }
                    Err(error) => Err(error),
                };
                (is_closed, answer)
            })
        })
        .collect();
    soon(async {
        while one.waiter_count() < 40 || other.waiter_count() < 40 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(other.shutdown()).await;
    let [a, b] = guards;
    assert!(a.is_held() && !b.is_held());
    soon(a.release()).await.unwrap();
    for waiter in waiters {
        let (is_closed, answer) = soon(waiter).await.unwrap();
        assert_eq!(answer.is_err(), is_closed, "{answer:?}");
    }
    soon(one.idle()).await;
}

/// Builds the laws for one store.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_two_locks {
    ($nodes:path, $empty:path) => {
        $crate::laws_of_two_locks!(all [$nodes, $empty]);
    };
    (list $list:ident) => {
        $crate::laws_of_two_locks!(all [list $list]);
    };
    (all $form:tt) => {
        $crate::laws_of_two_locks!($form:
            one_ends_while_it_waits_for_the_other,
            one_ends_while_it_holds_another_key,
            one_ends_while_both_hold_many_keys,
            one_ends_under_waiters_of_both,
        );
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::two_locks::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path, $empty:path]: $($law:ident,)+) => {
        $(#[tokio::test]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::two_locks::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        })+
    };
}
