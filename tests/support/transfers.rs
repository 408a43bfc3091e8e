//! The laws of leases that move from one process to another, which every store must show, seen by two nodes.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Fence, Guard, Locks, Transfer, TransferError};

const PATIENCE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// The transfer as a message carries it.
fn sent(transfer: &Transfer) -> Transfer {
    let read: Transfer = transfer.to_string().parse().unwrap();
    assert_eq!(read, *transfer);
    read
}

fn is_gone<T: std::fmt::Debug>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Gone { key, .. }) if key.to_string() == "order")
}

/// Acquires one guard of the given mode, under the name `order`.
async fn of_each_mode(locks: &Locks, mode: usize) -> Guard {
    match mode {
        0 => soon(locks.mutex("order").lock()).await.unwrap(),
        1 => soon(locks.rw_lock("order").read()).await.unwrap(),
        2 => soon(locks.semaphore("order", 3).acquire_many(3)).await.unwrap(),
        _ => soon(locks.mutex("order").fixed(MINUTE).lock()).await.unwrap(),
    }
}

/// Returns whether a writer, or a caller for one more permit, is refused.
async fn is_taken(locks: &Locks, mode: usize) -> bool {
    match mode {
        2 => soon(locks.semaphore("order", 3).try_acquire())
            .await
            .unwrap()
            .is_none(),
        _ => soon(locks.mutex("order").try_lock()).await.unwrap().is_none(),
    }
}

pub async fn a_lease_moves_between_processes(one: &Locks, other: &Locks) {
    for mode in 0..4 {
        let guard = of_each_mode(one, mode).await;
        let (lease, first) = (guard.lease(), guard.fence());
        let transfer = sent(&soon(guard.into_transfer(MINUTE)).await.unwrap());
        assert_eq!(
            (transfer.key().to_string(), transfer.lease()),
            ("order".to_owned(), MINUTE)
        );
        assert_eq!(soon(lease.lost()).await, LostCause::Released);
        assert!(
            is_taken(one, mode).await && is_taken(other, mode).await,
            "mode {mode}"
        );
        let adopted = soon(other.adopt(&transfer)).await.unwrap();
        assert!(first < transfer.fence() && transfer.fence() < adopted.fence());
        assert!(
            is_taken(one, mode).await && is_taken(other, mode).await,
            "mode {mode}"
        );
        // The lease moves on, also back to its first process.
        let back = sent(&soon(adopted.into_transfer(MINUTE)).await.unwrap());
        let adopted = soon(one.adopt(&back)).await.unwrap();
        assert!(back.fence() < adopted.fence());
        soon(adopted.release()).await.unwrap();
        assert!(!is_taken(other, mode).await, "mode {mode}");
        soon(other.idle()).await;
    }
}

/// A message that is delivered twice is processed once.
pub async fn an_adopted_transfer_is_gone(one: &Locks, other: &Locks) {
    for mode in 0..4 {
        let transfer = soon(of_each_mode(one, mode).await.into_transfer(MINUTE))
            .await
            .unwrap();
        let adopted = soon(other.adopt(&transfer)).await.unwrap();
        for locks in [one, other] {
            assert!(is_gone(&soon(locks.adopt(&transfer)).await));
            assert!(is_gone(&soon(locks.extend_transfer(&transfer, MINUTE)).await));
            assert!(is_gone(&soon(locks.release_transfer(&transfer)).await));
        }
        assert!(adopted.is_held());
        soon(adopted.release()).await.unwrap();
        assert!(is_gone(&soon(one.adopt(&transfer)).await));
    }
}

pub async fn the_receiver_of_a_transfer_can_give_it_back(one: &Locks, other: &Locks) {
    for mode in 0..4 {
        let transfer = soon(of_each_mode(one, mode).await.into_transfer(MINUTE))
            .await
            .unwrap();
        soon(other.extend_transfer(&transfer, 2 * MINUTE)).await.unwrap();
        soon(one.extend_transfer(&transfer, MINUTE)).await.unwrap();
        soon(other.release_transfer(&transfer)).await.unwrap();
        assert!(!is_taken(one, mode).await);
        assert!(is_gone(&soon(other.release_transfer(&transfer)).await));
        assert!(is_gone(&soon(other.extend_transfer(&transfer, MINUTE)).await));
        assert!(is_gone(&soon(other.adopt(&transfer)).await));
        soon(one.idle()).await;
    }
}

/// A waiter is granted after all the transfers, and not between them.
pub async fn a_waiter_is_granted_after_the_last_transfer(one: &Locks, other: &Locks) {
    let guard = soon(one.mutex("order").lock()).await.unwrap();
    let lock = |locks: &Locks| {
        let lock = locks.mutex("order").lock();
        tokio::spawn(async move {
            let guard = lock.await.unwrap();
            let fence = guard.fence();
            guard.release().await.unwrap();
            fence
        })
    };
    let waiting = [lock(one), lock(other)];
    soon(async {
        while one.waiter_count() + other.waiter_count() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
    let adopted = soon(other.adopt(&transfer)).await.unwrap();
    assert!(waiting.iter().all(|task| !task.is_finished()));
    let last = adopted.fence();
    soon(adopted.release()).await.unwrap();
    for task in waiting {
        let fence: Fence = soon(task).await.unwrap();
        assert!(transfer.fence() < last && last < fence);
    }
}

/// An adopted lease is not handed on to other callers of the process that adopted it.
pub async fn an_adopted_lease_is_not_handed_on(one: &Locks, other: &Locks) {
    let transfer = soon(
        soon(one.mutex("order").lock())
            .await
            .unwrap()
            .into_transfer(MINUTE),
    )
    .await
    .unwrap();
    let adopted = soon(other.adopt(&transfer)).await.unwrap();
    let next = tokio::spawn(other.mutex("order").lock());
    soon(async {
        while other.waiter_count() < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let before = adopted.fence().get();
    soon(adopted.release()).await.unwrap();
    let next = soon(next).await.unwrap().unwrap();
    // The fence is not the next place of the same grant.
    assert!(next.fence().get() / 1024 > before / 1024);
    soon(next.release()).await.unwrap();
}

/// No node renews the lease in transit, and it ends without being given back.
pub async fn an_ended_transfer_frees_the_lease(one: &Locks, other: &Locks) {
    let lease = Duration::from_millis(500);
    for mode in 0..4 {
        let transfer = soon(of_each_mode(one, mode).await.into_transfer(lease))
            .await
            .unwrap();
        match mode {
            2 => drop(soon(other.semaphore("order", 3).acquire_many(3)).await.unwrap()),
            _ => drop(soon(other.mutex("order").lock()).await.unwrap()),
        }
        assert!(is_gone(&soon(other.adopt(&transfer)).await));
        assert!(is_gone(&soon(one.extend_transfer(&transfer, MINUTE)).await));
        soon(other.idle()).await;
    }
}

/// An extended transfer lasts, and an adopted lease is renewed.
pub async fn an_extended_transfer_lasts(one: &Locks, other: &Locks) {
    let lease = Duration::from_millis(800);
    for mode in 0..3 {
        let transfer = soon(of_each_mode(one, mode).await.into_transfer(lease))
            .await
            .unwrap();
        soon(other.extend_transfer(&transfer, MINUTE)).await.unwrap();
        // An extension never shortens it.
        soon(other.extend_transfer(&transfer, lease)).await.unwrap();
        // Without the extension it ends here, margin included.
        tokio::time::sleep(2 * lease + Duration::from_millis(500)).await;
        let adopted = soon(one.adopt(&transfer)).await.unwrap();
        soon(adopted.release()).await.unwrap();
    }
}

pub async fn a_permit_is_given_out_by_itself(one: &Locks, other: &Locks) {
    let lease = Duration::from_millis(500);
    let calls = one.semaphore("order", 2);
    let kept = sent(&soon(calls.acquire_transfer(MINUTE)).await.unwrap());
    let left = soon(calls.acquire_transfer(lease)).await.unwrap();
    assert!(
        soon(other.semaphore("order", 2).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    // This guard is not given back.
    let guard = soon(other.semaphore("order", 2).acquire()).await.unwrap();
    assert!(is_gone(&soon(other.release_transfer(&left)).await));
    soon(other.release_transfer(&kept)).await.unwrap();
    assert_eq!(soon(calls.available_permits()).await.unwrap(), 1);
    soon(guard.release()).await.unwrap();
}

/// The guard keeps its lease.
pub async fn a_shared_lease_is_not_given_up(one: &Locks, other: &Locks) {
    let refused = |answer: Result<Transfer, TransferError>| match answer {
        Err(TransferError::Refused(guard, why @ (Error::Options(_) | Error::InUse { .. }))) => {
            assert!(guard.is_held());
            (guard, why.to_string())
        }
        answer => panic!("{answer:?}"),
    };
    let guard = soon(one.mutex("order").lock()).await.unwrap();
    let again = guard.again().unwrap();
    let (guard, why) = refused(soon(guard.into_transfer(MINUTE)).await);
    assert!(why.contains("`order`") && why.contains("other guards"), "{why}");
    drop(again);
    let (guard, why) = refused(soon(guard.into_transfer(Duration::ZERO)).await);
    assert!(why.contains("0ns"), "{why}");
    let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
    soon(other.release_transfer(&transfer)).await.unwrap();

    let (first, second) = (
        soon(one.rw_lock("order").read()).await.unwrap(),
        soon(one.rw_lock("order").read()).await.unwrap(),
    );
    let (first, why) = refused(soon(first.into_transfer(MINUTE)).await);
    assert!(why.contains("other callers of this process read"), "{why}");
    soon(second.release()).await.unwrap();
    let transfer = soon(first.into_transfer(MINUTE)).await.unwrap();
    let adopted = soon(other.adopt(&transfer)).await.unwrap();
    // Other readers may hold beside it.
    let beside = soon(one.rw_lock("order").try_read())
        .await
        .unwrap()
        .expect("no writer holds it");
    soon(beside.release()).await.unwrap();
    soon(adopted.release()).await.unwrap();
}

/// An election cannot be transferred: leadership moves by campaigning.
pub async fn an_election_is_not_given_up(one: &Locks, other: &Locks) {
    let guard = soon(one.election("order").campaign()).await.unwrap();
    let guard = match soon(guard.into_transfer(MINUTE)).await {
        Err(TransferError::Refused(guard, Error::Options(why))) => {
            assert!(why.to_string().contains("of an election"), "{why}");
            guard
        }
        answer => panic!("{answer:?}"),
    };
    assert!(guard.is_held());
    let leader = soon(other.election("order").leader()).await.unwrap();
    assert_eq!(leader.unwrap().fence(), guard.fence());
    soon(guard.release()).await.unwrap();
}

/// Runs each law on two nodes made by `$nodes`, and checks with `$empty` that nothing is left.
///
/// The form `list laws` adds the laws to the list `laws` instead.
#[macro_export]
macro_rules! laws_of_transfers {
    ($nodes:path, $empty:path) => {
        $crate::laws_of_transfers!(all [$nodes, $empty]);
    };
    (list $list:ident) => {
        $crate::laws_of_transfers!(all [list $list]);
    };
    (all $form:tt) => {
        $crate::laws_of_transfers!($form:
            a_lease_moves_between_processes,
            an_adopted_transfer_is_gone,
            the_receiver_of_a_transfer_can_give_it_back,
            a_waiter_is_granted_after_the_last_transfer,
            an_adopted_lease_is_not_handed_on,
            an_ended_transfer_frees_the_lease,
            an_extended_transfer_lasts,
            a_permit_is_given_out_by_itself,
            a_shared_lease_is_not_given_up,
            an_election_is_not_given_up,
        );
    };
    ([list $list:ident]: $($law:ident,)+) => {
        $($list.add(stringify!($law), |on| on.run($crate::support::transfers::$law(&on.one, &on.other)));)+
    };
    ([$nodes:path, $empty:path]: $($law:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            let (one, other, store) = $nodes().await;
            $crate::support::transfers::$law(&one, &other).await;
            one.idle().await;
            other.idle().await;
            $empty(store);
        })+
    };
}
