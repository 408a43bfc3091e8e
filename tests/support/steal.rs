//! A steal, on every store: the holder is asked, and its lease is revoked before another holder can have it.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::inspect::{Entry, State, StealEnd, StealError, StealStep};
use tenure::{Error, Guard, Locks};
use tokio::task::JoinHandle;

use crate::support::inspect::{show, until, until_told};

const PATIENCE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(600);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("did not happen in time")
}

/// Returns the entry of a key whose holder has told of itself.
async fn told(locks: &Locks, key: &str) -> Entry {
    until_told(locks, key).await;
    show(locks, key).await.remove(0)
}

/// Waits for the lock, and returns when the store has the waiter in its queue.
async fn waiting(locks: &Locks, key: &str) -> JoinHandle<Result<Guard, Error>> {
    let mutex = locks.mutex(key);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until(locks, key, |entry| entry.waiter_count == 1).await;
    waiting
}

pub async fn a_holder_that_is_asked_gives_the_lease_to_another_node(one: &Locks, other: &Locks) {
    let guard = soon(one.mutex("asked").lock()).await.unwrap();
    // A caller of the holder's own process waits first.
    let mutex = one.mutex("asked");
    let local = tokio::spawn(async move { mutex.lock().await });
    let remote = waiting(other, "asked").await;
    let entry = told(other, "asked").await;
    let steal = other.inspect().steal(&entry).grace(LONG);
    let mut steps = Vec::new();
    let stealing = steal
        .by("Zoë & co")
        .why("100% stuck\n")
        .run(|step| steps.push(step));
    let obeying = async {
        let asked = guard.asked().await.unwrap();
        assert_eq!((&*asked.by, &*asked.why), ("Zoë & co", "100% stuck\n"));
        assert!(asked.grace > LONG / 2 && asked.grace <= LONG, "{asked:?}");
        assert!(guard.is_held());
        soon(guard.release()).await.unwrap();
    };
    let (stolen, ()) = soon(async { tokio::join!(stealing, obeying) }).await;
    let stolen = stolen.unwrap();
    assert_eq!(stolen.end, StealEnd::GivenBack);
    assert_eq!(steps, [StealStep::Asked(LONG)]);
    assert!(stolen.unwritten.is_none(), "{stolen:?}");
    // The release went to the store, although a caller of the process came first.
    let remote = soon(remote).await.unwrap().unwrap();
    assert!(!local.is_finished());
    soon(remote.release()).await.unwrap();
    soon(soon(local).await.unwrap().unwrap().release()).await.unwrap();
    let audit = soon(one.inspect().audit()).await.unwrap();
    let [act] = &audit[..] else { panic!("{audit:?}") };
    assert_eq!(
        (&*act.by, &*act.what, &*act.why, act.kind, &act.key),
        ("Zoë & co", "asked", "100% stuck\n", Some(entry.kind), &entry.key)
    );
    assert_eq!(act.number, entry.holders[0].number.unwrap().to_string());
}

pub async fn a_holder_that_does_not_give_back_loses_the_lease_first(one: &Locks, other: &Locks) {
    let guard = soon(one.mutex("revoked").lock()).await.unwrap();
    let fence = guard.fence();
    let mut remote = waiting(other, "revoked").await;
    let entry = told(other, "revoked").await;
    let inspection = other.inspect();
    let steal = inspection.steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(async move { steal.await });
    assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
    assert!(!guard.is_held());
    // The lease excludes others until its guard is dropped: the code may still be at work.
    let entry = until(other, "revoked", |entry| entry.state == State::Revoked).await;
    assert!(entry.holders[0].is_revoked, "{entry:?}");
    assert_eq!(entry.holders[0].fence.unwrap().number(), fence.number());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut remote).await;
    assert!(early.is_err() && !stealing.is_finished(), "{early:?}");
    assert!(soon(one.mutex("revoked").try_lock()).await.unwrap().is_none());
    let lost = soon(guard.release()).await.unwrap_err();
    let is_revoked = matches!(&lost, Error::Lost { cause, .. } if *cause == LostCause::Revoked);
    assert!(is_revoked, "{lost:?}");
    let next = soon(remote).await.unwrap().unwrap();
    assert!(next.fence() > fence);
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
    soon(next.release()).await.unwrap();
}

pub async fn one_of_several_holders_is_chosen_by_its_number(one: &Locks, other: &Locks) {
    let (first, second) = (one.semaphore("permits", 3), other.semaphore("permits", 3));
    let kept = soon(first.acquire()).await.unwrap();
    let taken = soon(second.acquire_many(2)).await.unwrap();
    let entry = told(one, "permits").await;
    let inspection = one.inspect();
    let error = inspection.steal(&entry).await.unwrap_err();
    assert!(
        matches!(error, StealError::SeveralHolders { holders: 2, .. }),
        "{error}"
    );
    let number = taken.fence().number().0;
    let steal = inspection.steal(&entry).number(number).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    assert_eq!(soon(taken.lost()).await, LostCause::Revoked);
    // Its permits count until it leaves.
    assert!(soon(first.try_acquire()).await.unwrap().is_none());
    let entry = show(one, "permits").await.remove(0);
    let permits = entry.permits.unwrap();
    assert_eq!(
        (entry.state, permits.in_use, permits.capacity),
        (State::Held, 3, 3)
    );
    assert_eq!(entry.holders.iter().filter(|holder| holder.is_revoked).count(), 1);
    drop(taken);
    soon(soon(first.acquire()).await.unwrap().release())
        .await
        .unwrap();
    soon(stealing).await.unwrap().unwrap();
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
}

pub async fn a_reader_is_revoked_and_the_others_read_on(one: &Locks, other: &Locks) {
    let kept = soon(one.rw_lock("read").read()).await.unwrap();
    let taken = soon(other.rw_lock("read").read()).await.unwrap();
    let entry = told(one, "read").await;
    let number = taken.fence().number().0;
    let steal = one.inspect().steal(&entry).number(number).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    assert_eq!(soon(taken.lost()).await, LostCause::Revoked);
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
    // A writer waits for the revoked reader, too.
    let lock = one.rw_lock("read");
    let mut writing = tokio::spawn(async move { lock.write().await });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut writing).await;
    assert!(early.is_err(), "{early:?}");
    drop(taken);
    let writer = soon(writing).await.unwrap().unwrap();
    soon(writer.release()).await.unwrap();
    soon(stealing).await.unwrap().unwrap();
}

pub async fn a_lease_is_handed_over_at_once(one: &Locks, other: &Locks) {
    let guard = soon(one.mutex("now").lock()).await.unwrap();
    let remote = waiting(other, "now").await;
    let entry = told(other, "now").await;
    let stolen = soon(other.inspect().steal(&entry).now().into_future())
        .await
        .unwrap();
    assert_eq!(stolen.end, StealEnd::HandedOver);
    let next = soon(remote).await.unwrap().unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
    drop(guard);
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

pub async fn observers_learn_that_a_leader_was_revoked(one: &Locks, other: &Locks) {
    let leader = soon(one.election("leads").campaign()).await.unwrap();
    let mut observer = other.election("leads").observe();
    while soon(observer.next()).await.unwrap().is_none() {}
    let entry = told(other, "leads").await;
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    assert!(soon(observer.next()).await.unwrap().is_none());
    assert_eq!(soon(leader.lost()).await, LostCause::Revoked);
    drop(leader);
    soon(stealing).await.unwrap().unwrap();
}

pub async fn what_cannot_be_taken_is_refused(one: &Locks, other: &Locks) {
    let inspection = one.inspect();
    soon(one.latch("latch").try_set_count(2)).await.unwrap();
    let latch = show(one, "latch").await.remove(0);
    let error = inspection.steal(&latch).await.unwrap_err();
    assert!(matches!(error, StealError::NoLease { .. }), "{error}");
    // The lease changed hands since it was looked at.
    let guard = soon(one.mutex("changed").lock()).await.unwrap();
    let entry = show(one, "changed").await.remove(0);
    soon(guard.release()).await.unwrap();
    soon(one.idle()).await;
    let guard = soon(other.mutex("changed").lock()).await.unwrap();
    for steal in [
        inspection.steal(&entry),
        inspection.steal(&entry).grace(Duration::ZERO),
        inspection.steal(&entry).now(),
    ] {
        let error = soon(steal.into_future()).await.unwrap_err();
        assert!(matches!(error, StealError::Changed { .. }), "{error}");
    }
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

pub async fn a_lease_that_was_given_away_is_left_at_once(one: &Locks, other: &Locks) {
    let guard = soon(one.mutex("sent").lock()).await.unwrap();
    let transfer = soon(guard.into_transfer(LONG)).await.unwrap();
    let entry = told(other, "sent").await;
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    // No process holds it, so its node leaves it, although it lasts for long.
    let stolen = soon(steal.into_future()).await.unwrap();
    assert_eq!((stolen.end, stolen.entry), (StealEnd::Revoked, None));
    soon(other.adopt(&transfer)).await.unwrap_err();
    assert!(soon(other.mutex("sent").try_lock()).await.unwrap().is_some());
}

pub async fn a_holder_of_several_keys_is_asked_for_one(one: &Locks, other: &Locks) {
    let guard = soon(one.multi(["several 1", "several 2"]).lock()).await.unwrap();
    let entry = told(other, "several 2").await;
    let stealing = tokio::spawn(
        other
            .inspect()
            .steal(&entry)
            .grace(LONG)
            .why("one of two")
            .into_future(),
    );
    let asked = soon(guard.asked()).await.unwrap();
    assert_eq!(&*asked.why, "one of two");
    drop(guard);
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::GivenBack);
}

/// As an exclusive lease. The store finds a share of permits only with its weight and capacity.
pub async fn a_share_that_was_given_away_is_left_at_once(one: &Locks, other: &Locks) {
    let reader = soon(one.rw_lock("shared").read()).await.unwrap();
    let given = [
        soon(one.semaphore("given", 2).acquire_transfer(LONG))
            .await
            .unwrap(),
        soon(reader.into_transfer(LONG)).await.unwrap(),
    ];
    for (key, transfer) in ["given", "shared"].into_iter().zip(given) {
        let entry = told(other, key).await;
        let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
        let stolen = soon(steal.into_future()).await.unwrap();
        assert_eq!((stolen.end, stolen.entry), (StealEnd::Revoked, None), "{key}");
        soon(other.adopt(&transfer)).await.unwrap_err();
    }
}

/// A revoked share has no number any more, and may stay for as long as its holder's code runs.
pub async fn a_revoked_share_is_handed_over(one: &Locks, other: &Locks) {
    let permits = one.semaphore("twice", 2);
    let kept = soon(permits.acquire()).await.unwrap();
    let revoked = soon(other.semaphore("twice", 2).acquire()).await.unwrap();
    let inspection = one.inspect();
    let entry = told(one, "twice").await;
    let steal = inspection.steal(&entry).number(revoked.fence().number().0);
    let first = tokio::spawn(steal.grace(Duration::ZERO).into_future());
    assert_eq!(soon(revoked.lost()).await, LostCause::Revoked);
    // Without a hand-over it must be said which holder is meant.
    let entry = until(one, "twice", |entry| {
        entry.holders.iter().any(|holder| holder.is_revoked)
    })
    .await;
    let error = soon(inspection.steal(&entry).into_future()).await.unwrap_err();
    assert!(matches!(error, StealError::SeveralHolders { .. }), "{error}");
    let stolen = soon(inspection.steal(&entry).now().into_future()).await.unwrap();
    assert_eq!(stolen.end, StealEnd::HandedOver);
    assert_eq!(soon(first).await.unwrap().unwrap().end, StealEnd::Revoked);
    let next = soon(permits.acquire()).await.unwrap();
    assert!(kept.is_held());
    // It is over: nothing is taken again.
    let error = soon(inspection.steal(&entry).now().into_future())
        .await
        .unwrap_err();
    assert!(matches!(error, StealError::Changed { .. }), "{error}");
    drop(revoked);
    for guard in [kept, next] {
        soon(guard.release()).await.unwrap();
    }
}

/// The second operator finds no number, and still waits until the share has ended.
pub async fn two_operators_take_one_share(one: &Locks, other: &Locks) {
    let guard = soon(one.rw_lock("two").read()).await.unwrap();
    let entry = told(other, "two").await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let run = |entry: &Entry, grace| {
        let tell = tell.clone();
        let report = move |step| tell.send(step).unwrap();
        tokio::spawn(other.inspect().steal(entry).grace(grace).run(report))
    };
    let late = run(&entry, Duration::from_millis(500));
    assert!(soon(guard.asked()).await.is_some());
    let early = run(&entry, Duration::ZERO);
    assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
    // A third one looks only now.
    let entry = until(other, "two", |entry| entry.state == State::Revoked).await;
    let repeated = run(&entry, LONG);
    for waits in 0..3 {
        let mut step = soon(told.recv()).await.unwrap();
        while let StealStep::Asked(_) = step {
            step = soon(told.recv()).await.unwrap();
        }
        let StealStep::Revoked(Some(_)) = step else {
            panic!("{step:?}, and {waits} wait")
        };
    }
    assert!(!late.is_finished() && !early.is_finished() && !repeated.is_finished());
    drop(guard);
    for stealing in [late, early, repeated] {
        assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
    }
}

pub async fn a_revoked_writer_that_becomes_a_reader_leaves(one: &Locks, other: &Locks) {
    let guard = soon(one.rw_lock("down").write()).await.unwrap();
    let entry = told(other, "down").await;
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
    assert!(soon(guard.downgrade()).await.is_err());
    let stolen = soon(stealing).await.unwrap().unwrap();
    assert_eq!((stolen.end, stolen.entry), (StealEnd::Revoked, None));
}

/// Of many holders the first are listed. One that renews its lease is listed no more, and has not given it back.
pub async fn one_of_many_holders_is_taken(one: &Locks, other: &Locks) {
    let semaphore = one.semaphore("many", 100);
    let mut guards = Vec::new();
    for _ in 0..60 {
        guards.push(soon(semaphore.acquire()).await.unwrap());
    }
    let entry = told(other, "many").await;
    assert_eq!((entry.holder_count, entry.holders.len()), (60, 50));
    let number = entry.holders[0].number.unwrap();
    let at = guards.iter().position(|guard| guard.fence().number().0 == number);
    let target = guards.remove(at.unwrap());
    let steal = other.inspect().steal(&entry).number(number);
    let stealing = tokio::spawn(steal.grace(Duration::from_millis(700)).into_future());
    assert!(soon(target.asked()).await.is_some());
    soon(target.renew()).await.unwrap();
    assert_eq!(soon(target.lost()).await, LostCause::Revoked);
    drop((target, guards));
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
}
