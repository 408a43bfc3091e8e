//! What is counted and measured.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use ::metrics::Unit;
use tenure::observe::{METRICS, MetricKind};
use tenure::{Clock, Locks, MemoryStore};

use crate::support::events::Watch;
use crate::support::meter::Meter;

const OBSERVE: &str = include_str!("../../src/observe.rs");

/// Every name with its kind and labels, once more: whoever changes one breaks somebody's dashboard, and meets this.
const ALL: &[(&str, &str, &[&str])] = &[
    ("tenure_grants_total", "counter", &["kind"]),
    ("tenure_wait_seconds", "histogram", &["kind", "outcome"]),
    ("tenure_hold_seconds", "histogram", &["kind", "outcome"]),
    ("tenure_handoffs_total", "counter", &["kind", "from"]),
    ("tenure_losses_total", "counter", &["kind", "cause"]),
    ("tenure_renewal_slack_seconds", "histogram", &[]),
    ("tenure_batch_requests", "histogram", &[]),
    ("tenure_store_errors_total", "counter", &["during", "error"]),
    ("tenure_ticks_total", "counter", &["outcome"]),
];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("did not happen in time")
}

fn word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Histogram => "histogram",
        _ => "unknown",
    }
}

/// Lets every task of this thread go as far as it can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// The list, the table in the documentation, what a recorder is told and what it is fed with are the same.
#[tokio::test]
async fn every_metric_is_listed_documented_described_and_fed() {
    let meter = Meter::global();
    let listed: Vec<_> = METRICS
        .iter()
        .map(|metric| (metric.name, word(metric.kind), metric.labels))
        .collect();
    assert_eq!(listed, ALL);

    let (_events, table) = OBSERVE.split_once("//! # Metrics").unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `tenure_"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
    assert_eq!(rows.len(), ALL.len());
    for (row, (name, kind, labels)) in rows.iter().zip(ALL) {
        assert_eq!(format!("tenure_{}", row[0]), format!("{name}`"));
        assert_eq!(row[1], *kind, "{name}");
        for label in *labels {
            assert!(row[2].contains(&format!("`{label}`: ")), "{name} and {label}");
        }
    }

    let store = MemoryStore::new();
    let locks = Locks::builder()
        .lease(ms(300))
        .burst(64, ms(600_000))
        .memory_shared(&store)
        .unwrap();
    for (name, kind, _) in ALL {
        let (described, unit, text) = meter.described(name).expect(name);
        assert_eq!(described, *kind, "{name}");
        let seconds = name.ends_with("_seconds");
        assert_eq!(unit == Some(Unit::Seconds), seconds, "{name}");
        assert!(!text.is_empty(), "{name}");
    }

    // What the keeper's thread does comes here alone.
    let guard = soon(locks.mutex("metered").lock()).await.unwrap();
    meter.until("tenure_renewal_slack_seconds").await;
    // As if it were flushed.
    store.with_ledger(|ledger, _| ledger.forget());
    soon(guard.lost()).await;
    meter.until("tenure_losses_total{kind=lock,cause=gone}").await;
    drop(guard);
    soon(handed_on(&locks)).await;
    #[cfg(feature = "redis")]
    {
        let nowhere = Locks::builder()
            .lazy()
            .redis("redis://127.0.0.1:1/")
            .await
            .unwrap();
        assert!(soon(nowhere.mutex("metered").lock()).await.is_err());
        for during in ["lock", "connection"] {
            let series = format!("tenure_store_errors_total{{during={during},error=unreachable}}");
            meter.until(&series).await;
        }
    }

    #[cfg(feature = "scheduler")]
    {
        use tokio_cron_scheduler::{Job, JobScheduler};
        let mut scheduler = JobScheduler::new().await.unwrap();
        let leased = locks.job("metered", |_: tenure::Tick| async {}).unwrap();
        let job = Job::new_async("* * * * * *", leased).unwrap();
        scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        meter.until("tenure_ticks_total{outcome=done}").await;
        meter.until("tenure_grants_total{kind=job}").await;
        meter
            .until("tenure_hold_seconds{kind=job,outcome=released}")
            .await;
        scheduler.shutdown().await.unwrap();
    }

    let mut fed = BTreeSet::new();
    for (kind, series) in meter.series() {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let (_, listed, allowed) = ALL.iter().find(|(listed, ..)| *listed == name).expect(&series);
        assert_eq!(kind, *listed, "{series}");
        let labels: Vec<&str> = labels
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0))
            .collect();
        assert_eq!(labels, *allowed, "{series}");
        assert!(!series.contains("metered"), "a key in {series}");
        assert!(!series.contains(&locks.node().to_string()), "a node in {series}");
        fed.insert(name.to_owned());
    }
    let expected = ALL.iter().map(|(name, ..)| *name);
    let expected: BTreeSet<_> = expected
        .filter(|name| cfg!(feature = "scheduler") || *name != "tenure_ticks_total")
        .filter(|name| cfg!(feature = "redis") || *name != "tenure_store_errors_total")
        .map(str::to_owned)
        .collect();
    assert_eq!(fed, expected);
}

async fn handed_on(locks: &Locks) {
    let guard = locks.mutex("metered").lock().await.unwrap();
    let next = tokio::spawn(locks.mutex("metered").lock());
    while locks.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// What callers do is counted on their own threads, so this test sees its own alone, and to the number.
#[tokio::test]
async fn callers_are_counted_once_and_by_what_they_were_told() {
    let _everybody = Meter::global();
    let meter = Meter::default();
    let _mine = ::metrics::set_default_local_recorder(&meter);
    let opened = Watch::of("event=inbox_open ");
    let store = MemoryStore::new();
    let clock = Clock::new();
    let one = Locks::builder()
        .lease(ms(60_000))
        .burst(64, ms(600_000))
        .clock(clock.clone())
        .memory_shared(&store)
        .unwrap();
    let other = Locks::builder().lease(ms(60_000)).memory_shared(&store).unwrap();
    soon(async {
        // So that it is handed over by a push, on the thread of whoever releases.
        let id = other.node().to_string();
        while !opened.told().iter().any(|told| told.text.contains(&id)) {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    let granted = |meter: &Meter| {
        let waits = meter
            .values("tenure_wait_seconds{kind=lock,outcome=granted}")
            .len() as u64;
        assert_eq!(waits, meter.count("tenure_grants_total{kind=lock}"));
        waits
    };
    let handed = |meter: &Meter| {
        ["local", "remote"]
            .map(|from| meter.count(&format!("tenure_handoffs_total{{kind=lock,from={from}}}")))
    };

    // Free.
    let guard = soon(one.mutex("a").lock()).await.unwrap();
    assert_eq!((granted(&meter), handed(&meter)), (1, [0, 0]));
    assert_eq!(meter.values("tenure_batch_requests"), [1.0]);

    // Not free, for one who does not wait and for one who gives up.
    assert!(soon(one.mutex("a").try_lock()).await.unwrap().is_none());
    assert_eq!(
        meter.values("tenure_wait_seconds{kind=lock,outcome=busy}").len(),
        1
    );
    assert!(one.mutex("a").lock_timeout(ms(5)).await.is_err());
    let gave_up = meter.values("tenure_wait_seconds{kind=lock,outcome=gave_up}");
    assert!(gave_up.len() == 1 && gave_up[0] >= 0.004, "{gave_up:?}");
    let nobody = one.mutex("a").max_waiters(0);
    assert!(soon(nobody.lock()).await.unwrap_err().is_busy());
    assert_eq!(
        meter
            .values("tenure_wait_seconds{kind=lock,outcome=queue_full}")
            .len(),
        1
    );
    assert!(soon(one.mutex("").lock()).await.is_err());
    assert_eq!(
        meter
            .values("tenure_wait_seconds{kind=lock,outcome=invalid}")
            .len(),
        1
    );
    assert_eq!(granted(&meter), 1);

    // To the next of this process, after ten seconds of work.
    let next = tokio::spawn(one.mutex("a").lock());
    settle().await;
    clock.jump(ms(10_000));
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!((granted(&meter), handed(&meter)), (2, [1, 0]));
    let held = meter.values("tenure_hold_seconds{kind=lock,outcome=released}");
    assert!(held.len() == 1 && (10.0..11.0).contains(&held[0]), "{held:?}");

    // To another process.
    let next = tokio::spawn(other.mutex("a").lock());
    soon(async {
        let name = tenure::claim::Name::lock("a".into());
        while store.with_ledger(|ledger, _| ledger.waiters(&name).is_empty()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!((granted(&meter), handed(&meter)), (3, [1, 1]));
    soon(guard.release()).await.unwrap();
    assert_eq!(
        meter
            .values("tenure_hold_seconds{kind=lock,outcome=released}")
            .len(),
        3
    );
    // Free again: nobody handed it on.
    soon(other.mutex("a").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!((granted(&meter), handed(&meter)), (4, [1, 1]));

    // Lost under the guard, which is told when it asks for anything.
    let guard = soon(one.mutex("a").lock()).await.unwrap();
    clock.jump(ms(60_001));
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
    assert_eq!(
        meter
            .values("tenure_hold_seconds{kind=lock,outcome=released}")
            .len(),
        5
    );

    // After the end.
    soon(other.shutdown()).await;
    assert!(soon(other.mutex("a").lock()).await.is_err());
    assert_eq!(
        meter
            .values("tenure_wait_seconds{kind=lock,outcome=closed}")
            .len(),
        1
    );
    assert_eq!(granted(&meter), 5);
}
