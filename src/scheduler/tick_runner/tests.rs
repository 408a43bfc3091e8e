use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::locks::Locks;
use crate::scheduler::tick::Tick;
use crate::store::memory::MemoryStore;

const ATTEMPT: TickAttempt = TickAttempt {
    when_behind: WhenBehind::Skip,
    is_catch_up: false,
    due_since: None,
    was_claimed_in_time: false,
    is_abandoned: false,
    revoked: None,
};

fn schedule() -> Schedule {
    Schedule::every(Duration::from_secs(1)).unwrap()
}

fn runner(locks: &Locks) -> (Arc<TickRunner>, JobRegistration) {
    let (runner, registration) = TickRunner::new(
        locks.handle().clone(),
        "job".into(),
        schedule(),
        JobSettings::default(),
    )
    .unwrap();
    (Arc::new(runner), registration)
}

#[allow(clippy::disallowed_methods)]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test]
async fn an_early_tick_waits_for_the_clock_of_the_store() {
    let ((runner, _registration), runs) = (runner(&Locks::memory()), Arc::new(AtomicUsize::new(0)));
    let mark = TickTime(now() + 400);
    let of_work = runs.clone();
    let work = move |tick: Tick| {
        of_work.fetch_add(1, Ordering::SeqCst);
        async move { assert!(now() >= tick.mark.0, "a tick does not run before its time") }
    };
    let run_if_won = async |mark| runner.run_if_won(mark, ATTEMPT, &work).await.unwrap();
    assert_eq!(run_if_won(mark).await, TickOutcome::Done);
    assert_eq!(run_if_won(mark).await, TickOutcome::Elsewhere);
    assert_eq!(run_if_won(TickTime(mark.0 - 1)).await, TickOutcome::Elsewhere);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_clock_that_is_many_ticks_ahead_misses_no_tick() {
    let (runner, _registration) = runner(&Locks::memory());
    let first = now() + 500;
    let mut pursuits = Vec::new();
    // Three ticks fire before the first one is due.
    for n in 0..3 {
        let runner = runner.clone();
        pursuits.push(tokio::spawn(async move {
            runner
                .run_if_won(TickTime(first + 1_000 * n), ATTEMPT, &|_| async {})
                .await
                .unwrap()
        }));
    }
    for pursuit in pursuits {
        assert_eq!(pursuit.await.unwrap(), TickOutcome::Done);
    }
}

#[tokio::test]
async fn after_a_recovery_the_newest_tick_runs_and_none_was_skipped() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (runner, _registration) = runner(&locks);
    store.with_ledger(|ledger, now| ledger.begin_recovery(now, 500));
    let ran: Arc<Mutex<Vec<TickTime>>> = Arc::default();
    let of_work = ran.clone();
    let work = move |tick: Tick| {
        lock(&of_work).push(tick.mark);
        async move { assert!(tick.is_catch_up) }
    };
    let newest = now();
    let marks = [newest - 3_000, newest - 2_000, newest - 1_000, newest].map(TickTime);
    let [a, b, c, d] = marks.map(|mark| runner.run_if_won(mark, ATTEMPT, &work));
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    let outcomes = [a, b, c, d].map(Result::unwrap);
    let missed = TickOutcome::Missed;
    assert_eq!(outcomes, [missed, missed, missed, TickOutcome::Done]);
    assert_eq!(*lock(&ran), [TickTime(newest)]);
    assert_eq!(runner.consecutive_skips.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_later_tick_waits_until_this_node_has_ended_the_earlier_one() {
    let locks = Locks::memory();
    let (runner, _registration) = runner(&locks);
    let mark = TickTime(now());
    let in_progress = runner.begin(mark).unwrap();
    let mut waits = std::pin::pin!(runner.wait_before_earlier_tick(mark));
    let is_pending = std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
    assert!(is_pending.await);
    drop(in_progress);
    assert_eq!(waits.await, None);
    let _pursued = runner.begin(mark);
    let _ = locks.drain(Duration::ZERO).await;
    assert_eq!(
        runner.wait_before_earlier_tick(mark).await,
        Some(TickOutcome::Drained)
    );
}

#[tokio::test]
async fn a_drain_ends_an_early_wait() {
    let locks = Locks::memory();
    let (runner, _registration) = runner(&locks);
    let far = TickTime(now() + 3_600_000);
    let pursuit = tokio::spawn(async move { runner.run_if_won(far, ATTEMPT, &|_| async {}).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(locks.drain(Duration::from_secs(5)).await.is_ok());
    assert_eq!(pursuit.await.unwrap(), TickOutcome::Drained);
}
