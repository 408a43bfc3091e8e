//! The laws of exclusive locks that every store must show, seen by two nodes: a mutex, the write side of a read-write
//! lock, and a multi-lock of one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Fence, Guard, Locks, MultiGuard};

const PATIENCE: Duration = Duration::from_secs(30);
/// The key of all these laws.
const KEY: &str = "k";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// Tries until the key is reported busy. A slow machine may not answer within the wait, and then the store gets the blame.
pub async fn busy_at_last(mut attempt: impl AsyncFnMut() -> Result<(), Error>) {
    soon(async {
        loop {
            let error = attempt().await.expect_err("it is held");
            if error.is_busy() {
                return;
            }
            assert!(error.is_unreachable(), "{error}");
        }
    })
    .await;
}

async fn until_waiting(locks: &Locks, callers: usize) {
    soon(async {
        while locks.waiter_count() < callers {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// The kind of lock that a test uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Mutex,
    Writer,
    Multi,
}

const ALL: [By; 3] = [By::Mutex, By::Writer, By::Multi];

#[derive(Debug)]
enum Held {
    One(Guard),
    Several(MultiGuard),
}

impl Held {
    fn fence(&self) -> Fence {
        match self {
            Held::One(guard) => guard.fence(),
            Held::Several(guard) => guard.fence(KEY).expect("the guard has one key"),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Held::One(guard) => guard.is_held(),
            Held::Several(guard) => guard.is_held(),
        }
    }

    async fn lost(&self) -> LostCause {
        match self {
            Held::One(guard) => guard.lost().await,
            Held::Several(guard) => guard.lost().await,
        }
    }

    fn again(&self) -> Held {
        match self {
            Held::One(guard) => Held::One(guard.again().unwrap()),
            Held::Several(guard) => Held::Several(guard.again().unwrap()),
        }
    }

    async fn run<F: Future>(&self, work: F) -> F::Output {
        match self {
            Held::One(guard) => guard.run(work).await.unwrap(),
            Held::Several(guard) => guard.run(work).await.unwrap(),
        }
    }

    async fn release(self) -> Result<(), Error> {
        soon(async {
            match self {
                Held::One(guard) => guard.release().await,
                Held::Several(guard) => guard.release().await,
            }
        })
        .await
    }
}

impl By {
    async fn lock(self, locks: &Locks) -> Result<Held, Error> {
        Ok(match self {
            By::Mutex => Held::One(locks.mutex(KEY).lock().await?),
            By::Writer => Held::One(locks.rw_lock(KEY).write().await?),
            By::Multi => Held::Several(locks.multi([KEY]).lock().await?),
        })
    }

    async fn fixed(self, locks: &Locks, lease: Duration) -> Held {
        match self {
            By::Mutex => Held::One(locks.mutex(KEY).fixed(lease).lock().await.unwrap()),
            By::Writer => Held::One(locks.rw_lock(KEY).fixed(lease).write().await.unwrap()),
            By::Multi => Held::Several(locks.multi([KEY]).fixed(lease).lock().await.unwrap()),
        }
    }

    async fn try_lock(self, locks: &Locks) -> Option<Held> {
        let tried = async {
            Ok::<_, Error>(match self {
                By::Mutex => locks.mutex(KEY).try_lock().await?.map(Held::One),
                By::Writer => locks.rw_lock(KEY).try_write().await?.map(Held::One),
                By::Multi => locks.multi([KEY]).try_lock().await?.map(Held::Several),
            })
        };
        soon(tried).await.unwrap()
    }

    async fn timeout(self, locks: &Locks, wait: Duration) -> Result<Held, Error> {
        Ok(match self {
            By::Mutex => Held::One(locks.mutex(KEY).lock_timeout(wait).await?),
            By::Writer => Held::One(locks.rw_lock(KEY).write_timeout(wait).await?),
            By::Multi => Held::Several(locks.multi([KEY]).lock_timeout(wait).await?),
        })
    }

    fn spawn(self, locks: &Locks) -> tokio::task::JoinHandle<Held> {
        let locks = locks.clone();
        tokio::spawn(async move { self.lock(&locks).await.unwrap() })
    }
}

/// The lock also excludes callers that lock the key in other ways.
pub async fn one_holds_at_a_time(by: By, one: &Locks, other: &Locks) {
    let (inside, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let locks = if n % 2 == 0 { one } else { other }.clone();
            let by = if n < 4 { by } else { ALL[n % 3] };
            let (inside, done) = (inside.clone(), done.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    let held = by.lock(&locks).await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold");
                    tokio::task::yield_now().await;
                    assert!(held.is_held());
                    inside.store(false, Ordering::SeqCst);
                    if round % 3 > 0 {
                        held.release().await.unwrap();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(done.load(Ordering::Relaxed), 200);
}

pub async fn a_try_reports_that_the_key_is_held(by: By, one: &Locks, other: &Locks) {
    for claim_id in ALL {
        let held = soon(claim_id.lock(one)).await.unwrap();
        for locks in [one, other] {
            assert!(by.try_lock(locks).await.is_none());
            for wait in [Duration::ZERO, Duration::from_millis(100)] {
                busy_at_last(async || by.timeout(locks, wait).await.map(drop)).await;
            }
        }
        assert!(held.is_held());
        held.release().await.unwrap();
        let next = by.try_lock(other).await.expect("it is free");
        next.release().await.unwrap();
        let next = soon(by.timeout(one, PATIENCE)).await.unwrap();
        next.release().await.unwrap();
    }
}

pub async fn fences_grow(by: By, one: &Locks, other: &Locks) {
    let mut highest = None;
    for round in 0..6 {
        for locks in [one, one, other] {
            let way = if round % 2 == 0 { by } else { ALL[round % 3] };
            let held = soon(way.lock(locks)).await.unwrap();
            assert!(Some(held.fence()) > highest, "{way:?}");
            highest = Some(held.fence());
            held.release().await.unwrap();
        }
    }
}

/// Waiters of one process.
pub async fn callers_are_served_in_order(by: By, one: &Locks, _: &Locks) {
    let held = soon(by.lock(one)).await.unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..4 {
        let (next, turns) = (by.spawn(one), turns.clone());
        tasks.push(tokio::spawn(async move {
            let held = next.await.unwrap();
            let turn = turns.fetch_add(1, Ordering::SeqCst);
            held.release().await.unwrap();
            (n, turn)
        }));
        until_waiting(one, n as usize + 1).await;
    }
    held.release().await.unwrap();
    for task in tasks {
        let (n, turn) = soon(task).await.unwrap();
        assert_eq!(n, turn);
    }
}

pub async fn a_dropped_waiter_or_holder_blocks_no_caller(by: By, one: &Locks, other: &Locks) {
    let held = soon(by.lock(one)).await.unwrap();
    for locks in [one, other] {
        let waits = by.spawn(locks);
        until_waiting(locks, 1).await;
        waits.abort();
        assert!(soon(waits).await.unwrap_err().is_cancelled());
        assert_eq!(locks.waiter_count(), 0);
    }
    let next = by.spawn(other);
    until_waiting(other, 1).await;
    drop(held);
    let held = soon(next).await.unwrap();
    let holds = tokio::spawn(async move {
        let _held = held;
        std::future::pending::<()>().await;
    });
    assert!(by.try_lock(one).await.is_none());
    holds.abort();
    soon(by.lock(one)).await.unwrap().release().await.unwrap();
}

pub async fn a_lease_ends_and_the_next_begins(by: By, one: &Locks, other: &Locks) {
    let held = soon(by.fixed(one, Duration::from_millis(1_000))).await;
    let (fence, next) = (held.fence(), by.spawn(other));
    assert_eq!(soon(held.lost()).await, LostCause::Ended);
    let next = soon(next).await.unwrap();
    assert!(!held.is_held() && next.is_held() && next.fence() > fence);
    assert!(held.release().await.unwrap_err().is_lost());
    next.release().await.unwrap();
}

pub async fn a_caller_that_waits_for_itself_is_refused(by: By, one: &Locks, _: &Locks) {
    let held = soon(by.lock(one)).await.unwrap();
    for way in ALL {
        let refused = soon(held.run(way.lock(one))).await.unwrap_err();
        assert!(
            matches!(
                refused,
                Error::WouldDeadlock {
                    is_upgrade: false,
                    ..
                }
            ),
            "{way:?}: {refused}"
        );
        assert!(soon(held.run(way.try_lock(one))).await.is_none());
    }
    let again = held.again();
    held.release().await.unwrap();
    assert!(again.is_held() && by.try_lock(one).await.is_none());
    again.release().await.unwrap();
}

/// Runs each law on two nodes made by `$nodes`, for each kind of lock, and checks with `$empty` that nothing is left.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_mutexes {
    ($nodes:path, $empty:path) => {
        mod mutex {
            $crate::laws_of_mutexes!(all [$nodes, $empty, Mutex]);
        }
        mod write_lock {
            $crate::laws_of_mutexes!(all [$nodes, $empty, Writer]);
        }
        mod multi_lock_of_one_key {
            $crate::laws_of_mutexes!(all [$nodes, $empty, Multi]);
        }
    };
    (list $list:ident) => {
        $crate::laws_of_mutexes!(all [list $list, Mutex]);
        $crate::laws_of_mutexes!(all [list $list, Writer]);
        $crate::laws_of_mutexes!(all [list $list, Multi]);
    };
    (all $form:tt) => {
        $crate::laws_of_mutexes!($form:
            one_holds_at_a_time,
            a_try_reports_that_the_key_is_held,
            fences_grow,
            callers_are_served_in_order,
            a_dropped_waiter_or_holder_blocks_no_caller,
            a_lease_ends_and_the_next_begins,
            a_caller_that_waits_for_itself_is_refused,
        );
    };
    ([list $list:ident, $by:ident]: $($law:ident,)+) => {
        $($list.add(concat!(stringify!($by), " ", stringify!($law)), |on| {
            on.run($crate::support::mutexes::$law($crate::support::mutexes::By::$by, &on.one, &on.other));
        });)+
    };
    ([$nodes:path, $empty:path, $by:ident]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::mutexes::$law($crate::support::mutexes::By::$by, &one, &other).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        })+
    };
}
