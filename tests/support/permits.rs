//! The laws of semaphores that every store must show, seen by two nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Guard, Locks, Semaphore};

use crate::support::events::Watch;

const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// Waits until `waiting` callers of this process wait, queued in the store or not.
async fn until_waiting(locks: &Locks, waiting: usize) {
    soon(async {
        while locks.waiter_count() < waiting {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until the store has a queue: one permit more is refused although it is free.
async fn until_queued(semaphore: &Semaphore) {
    soon(async {
        while let Some(guard) = semaphore.try_acquire().await.unwrap() {
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn release(guards: impl IntoIterator<Item = Guard>) {
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
}

pub async fn as_many_hold_as_there_are_permits(one: &Locks, other: &Locks) {
    let (here, there) = (one.semaphore("calls", 5), other.semaphore("calls", 5));
    let first = soon(here.acquire()).await.unwrap();
    let second = soon(there.acquire_many(2)).await.unwrap();
    let third = soon(there.acquire_timeout(PATIENCE)).await.unwrap();
    assert_eq!(
        [&first, &second, &third].map(|guard| guard.num_permits()),
        [1, 2, 1]
    );
    assert_eq!(soon(here.available_permits()).await.unwrap(), 1);
    assert!(soon(here.try_acquire_many(2)).await.unwrap().is_none());
    let last = soon(here.try_acquire())
        .await
        .unwrap()
        .expect("there is one left");
    for semaphore in [&here, &there] {
        assert_eq!(soon(semaphore.available_permits()).await.unwrap(), 0);
        assert!(soon(semaphore.try_acquire()).await.unwrap().is_none());
        let wait = Duration::from_millis(30);
        let refused = soon(semaphore.acquire_timeout(wait)).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    }
    assert!(first.is_held() && second.is_held() && third.is_held() && last.is_held());
    soon(second.release()).await.unwrap();
    assert_eq!(soon(there.available_permits()).await.unwrap(), 2);
    let again = soon(here.acquire_many(2)).await.unwrap();
    release([first, third, last, again]).await;
    assert_eq!(soon(here.available_permits()).await.unwrap(), 5);
    // A lock of the same key is independent.
    let lock = soon(one.mutex("calls").lock()).await.unwrap();
    let all = soon(there.acquire_many(5)).await.unwrap();
    release([lock, all]).await;
}

/// Tasks of both nodes ask for one or several permits, and give up, drop or release them. The permits in use never
/// exceed the capacity.
pub async fn permits_never_exceed_the_capacity(one: &Locks, other: &Locks) {
    const PERMITS: u32 = 4;
    let (held, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..24u32)
        .map(|n| {
            let semaphore = [one, other][n as usize % 2].semaphore("crowd", PERMITS);
            let (held, most) = (held.clone(), most.clone());
            tokio::spawn(async move {
                for turn in 0..12 {
                    let many = [1, 1, 1, 2, 3, 4][(n + turn) as usize % 6];
                    if (n + turn) % 7 == 0 {
                        // The future is dropped while it waits, or just when it is granted.
                        let wait = Duration::from_micros(u64::from(n * 100));
                        let _ = tokio::time::timeout(wait, semaphore.acquire_many(many)).await;
                        continue;
                    }
                    let guard = semaphore.acquire_many(many).await.unwrap();
                    let now = held.fetch_add(many, Ordering::SeqCst) + many;
                    most.fetch_max(now, Ordering::SeqCst);
                    assert!(now <= PERMITS, "{now} are held");
                    tokio::task::yield_now().await;
                    assert!(guard.is_held());
                    held.fetch_sub(many, Ordering::SeqCst);
                    if turn % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) > 1, "they hold beside each other");
}

pub async fn a_semaphore_of_one_is_a_mutex(one: &Locks, other: &Locks) {
    let (count, inside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let highest = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let semaphore = [one, other][n % 2].semaphore("alone", 1);
            let (count, inside, highest) = (count.clone(), inside.clone(), highest.clone());
            tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = semaphore.acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let fence = guard.fence().get();
                    assert!(highest.swap(fence, Ordering::SeqCst) < fence, "fences grow");
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 200);
}

/// In the order of grants: earlier callers come first, then the caller for all permits, although callers for one
/// permit come without end.
pub async fn a_request_for_all_permits_is_served_among_singles(one: &Locks, other: &Locks) {
    let (stop, singles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let semaphore = [one, other][n % 2].semaphore("busy", 4);
            let (stop, singles) = (stop.clone(), singles.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = semaphore.acquire().await.unwrap();
                    singles.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for locks in [one, other, one] {
        let enough = singles.load(Ordering::SeqCst) + 50;
        soon(async {
            while singles.load(Ordering::SeqCst) < enough {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let all = soon(locks.semaphore("busy", 4).acquire_many(4)).await.unwrap();
        let now = singles.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        // Callers that were granted before may count late.
        assert!(
            singles.load(Ordering::SeqCst) <= now + 8,
            "another caller holds beside it"
        );
        soon(all.release()).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        soon(task).await.unwrap();
    }
}

pub async fn a_small_request_waits_behind_a_large_one(one: &Locks, other: &Locks) {
    // The holding process has the large request at the head of its queue: a process hands permits on within itself.
    let claim_id = soon(other.semaphore("order", 3).acquire()).await.unwrap();
    let many = tokio::spawn(other.semaphore("order", 3).acquire_many(3));
    // Two permits are left, and no caller passes the one that waits for three.
    until_queued(&one.semaphore("order", 3)).await;
    assert_eq!(
        soon(one.semaphore("order", 3).available_permits()).await.unwrap(),
        2
    );
    let few: Vec<_> = [one, other]
        .map(|locks| tokio::spawn(locks.semaphore("order", 3).acquire()))
        .into();
    until_waiting(one, 1).await;
    until_waiting(other, 2).await;
    soon(claim_id.release()).await.unwrap();
    let many = soon(many).await.unwrap().unwrap();
    assert!(few.iter().all(|few| !few.is_finished()), "there are none left");
    soon(many.release()).await.unwrap();
    for few in few {
        soon(soon(few).await.unwrap().unwrap().release()).await.unwrap();
    }
}

pub async fn a_cancelled_waiter_leaves_nothing(one: &Locks, other: &Locks) {
    let all = soon(one.semaphore("patience", 2).acquire_many(2)).await.unwrap();
    for locks in [one, other] {
        let waiting = tokio::spawn(locks.semaphore("patience", 2).acquire_many(2));
        until_queued(&one.semaphore("patience", 2)).await;
        until_waiting(locks, 1).await;
        waiting.abort();
        assert!(soon(waiting).await.is_err());
    }
    soon(all.release()).await.unwrap();
    let again = soon(other.semaphore("patience", 2).acquire_many(2))
        .await
        .unwrap();
    drop(again);
}

pub async fn an_ended_permit_is_free_and_its_holder_told_before(one: &Locks, other: &Locks) {
    let lease = Duration::from_millis(400);
    let fixed = soon(one.semaphore("short", 2).fixed(lease).acquire())
        .await
        .unwrap();
    let renewed = soon(one.semaphore("short", 2).lease(lease).acquire())
        .await
        .unwrap();
    let lost = fixed.lease();
    let next = soon(other.semaphore("short", 2).acquire()).await.unwrap();
    assert!(!lost.is_held(), "it was lost before another had it");
    assert_eq!(soon(lost.lost()).await, LostCause::Ended);
    assert!(renewed.is_held() && next.is_held());
    let late = soon(fixed.release()).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    assert!(
        soon(one.semaphore("short", 2).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    release([renewed, next]).await;
}

pub async fn each_handle_is_judged_by_its_own_number(one: &Locks, other: &Locks) {
    let watch = Watch::of("key=deploy ");
    let (old, new) = (one.semaphore("deploy", 1), other.semaphore("deploy", 2));
    let first = soon(old.acquire()).await.unwrap();
    let second = soon(new.acquire()).await.unwrap();
    let told = watch.until("capacity_differs").await;
    assert!(
        told.text.contains("ours=2 ") && told.text.contains("theirs=1 "),
        "{told:?}"
    );
    assert!(soon(old.try_acquire()).await.unwrap().is_none());
    assert!(soon(new.try_acquire()).await.unwrap().is_none());
    soon(first.release()).await.unwrap();
    assert!(
        soon(old.try_acquire()).await.unwrap().is_none(),
        "of one, one is held"
    );
    let third = soon(new.acquire()).await.unwrap();
    release([second, third]).await;
    assert_eq!(watch.count("capacity_differs"), 1, "once a minute");
}

pub async fn bad_numbers_of_permits_are_refused(one: &Locks, _: &Locks) {
    let refused = [
        one.semaphore("bad", 0).acquire().await,
        one.semaphore("bad", 3).acquire_many(0).await,
        one.semaphore("bad", 3).acquire_many(4).await,
        one.semaphore("bad", 3)
            .acquire_many_timeout(u32::MAX, PATIENCE)
            .await,
    ];
    for refused in refused {
        let Err(Error::Options(error)) = refused else {
            panic!("{refused:?}")
        };
        let told = error.to_string();
        assert!(
            told.contains("semaphore `bad`") && !told.contains("1 to 0"),
            "{told}"
        );
    }
    assert!(matches!(
        one.semaphore("bad", 3).try_acquire_many(4).await,
        Err(Error::Options(_))
    ));
    let all = one.semaphore("bad", u32::MAX);
    let most = soon(all.acquire_many(u32::MAX)).await.unwrap();
    assert_eq!(soon(all.available_permits()).await.unwrap(), 0);
    assert!(soon(all.try_acquire()).await.unwrap().is_none());
    // A downgrade of a permit leaves the permits as they are.
    let most = soon(most.downgrade()).await.unwrap();
    assert!(most.is_held() && most.num_permits() == u32::MAX);
    // A task may hold several permits, and no deadlock is reported.
    most.release().await.unwrap();
    let first = soon(all.acquire()).await.unwrap();
    let second = first.scope(soon(all.acquire())).await.unwrap();
    release([first, second]).await;
}

/// Runs each law on two nodes made by `$nodes`, and checks with `$empty` that nothing is left.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_semaphores {
    ($nodes:path, $empty:path) => {
        $crate::laws_of_semaphores!(all [$nodes, $empty]);
    };
    (list $list:ident) => {
        $crate::laws_of_semaphores!(all [list $list]);
    };
    (all $form:tt) => {
        $crate::laws_of_semaphores!($form:
            as_many_hold_as_there_are_permits,
            permits_never_exceed_the_capacity,
            a_semaphore_of_one_is_a_mutex,
            a_request_for_all_permits_is_served_among_singles,
            a_small_request_waits_behind_a_large_one,
            a_cancelled_waiter_leaves_nothing,
            an_ended_permit_is_free_and_its_holder_told_before,
            each_handle_is_judged_by_its_own_number,
            bad_numbers_of_permits_are_refused,
        );
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::permits::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path, $empty:path]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::permits::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        })+
    };
}
