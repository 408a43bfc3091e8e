//! The metrics: what is counted and measured.

use std::collections::BTreeSet;
use std::time::Instant;

use ::metrics::Unit;
use tenure::error::LostCause;
use tenure::observe::{METRICS, MetricKind};
use tenure::testing::Clock;
use tenure::{Locks, MemoryStore};

use crate::help::{ms, soon, until};
use crate::support::alone::alone;
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::support::meter::Meter;

const METRICS_FILE: &str = include_str!("../../src/observe/metrics.rs");

type Labels = [(&'static str, &'static [&'static str])];

const KINDS: (&str, &[&str]) = ("kind", &["lock", "job", "semaphore", "election"]);

/// Every name with its kind, unit and labels, repeated here: changing one breaks the dashboards of users, and this
/// test.
#[rustfmt::skip]
const ALL: &[(&str, &str, &str, &Labels)] = &[
    ("tenure_grants_total", "counter", "callers", &[KINDS]),
    ("tenure_wait_seconds", "histogram", "seconds", &[KINDS, ("outcome", &[
        "granted", "busy", "queue_full", "store", "closed", "invalid", "not_due", "gave_up",
    ])]),
    ("tenure_hold_seconds", "histogram", "seconds", &[KINDS, ("outcome", &["released", "lost"])]),
    ("tenure_held", "gauge", "leases", &[KINDS]),
    ("tenure_waiting", "gauge", "callers", &[KINDS]),
    ("tenure_handoffs_total", "counter", "leases", &[KINDS, ("from", &["local", "remote", "kept"])]),
    ("tenure_recalls_total", "counter", "leases", &[]),
    ("tenure_losses_total", "counter", "leases", &[KINDS, ("cause", &["deadline", "gone", "revoked", "overdue", "unfetched", "ended", "shutdown"])]),
    ("tenure_renewal_slack_ratio", "histogram", "parts", &[]),
    ("tenure_store_seconds", "histogram", "seconds", &[]),
    ("tenure_store_failing", "gauge", "locks", &[("server", &[])]),
    ("tenure_inbox_lost", "gauge", "inboxes", &[]),
    ("tenure_build_info", "gauge", "builds", &[("version", &[])]),
    ("tenure_batch_requests", "histogram", "requests", &[]),
    ("tenure_store_errors_total", "counter", "errors", &[
        ("during", &["lock", "wait", "renew", "release", "withdraw", "connection", "inbox"]),
        ("error", &[
            "unreachable", "timed_out", "interrupted", "wrong_type", "out_of_memory", "read_only", "loading", "busy",
            "misconfigured", "no_replicas", "recovering", "unready", "no_auth", "wrong_password", "no_permission", "unsupported", "other",
        ]),
    ]),
    ("tenure_ticks_total", "counter", "ticks", &[("job_name", &[]), ("outcome", &[
        "done", "failed", "panicked", "timed_out", "given_up", "elsewhere", "skipped", "missed", "drained", "paused", "cancelled",
        "removed",
    ])]),
    ("tenure_job_last_success_timestamp_seconds", "gauge", "seconds", &[("job_name", &[])]),
    ("tenure_job_success_due_timestamp_seconds", "gauge", "seconds", &[("job_name", &[])]),
    ("tenure_job_paused", "gauge", "pauses", &[("job_name", &[])]),
    ("tenure_job_running", "gauge", "runs", &[("job_name", &[])]),
    ("tenure_job_run_seconds", "histogram", "seconds", &[("job_name", &[])]),
    ("tenure_job_alarms_total", "counter", "alarms", &[("alarm", &[
        "early", "skewed", "overtaken", "given_up", "mark_ahead", "went_back", "differs", "skips", "blocks", "engine_missed", "storage_shared",
        "passed_over",
    ])]),
    ("tenure_refused_total", "counter", "requests", &[("why", &[
        "busy", "in_flight", "waited_too_long", "queue_full", "store_failed", "recovering", "store_refused", "closed", "lost", "outcome_unknown",
        "bad_key", "no_key", "bad_options",
    ])]),
    ("tenure_unlocked_total", "counter", "requests", &[]),
    ("tenure_dry_run_total", "counter", "requests", &[("outcome", &["alone", "overlap", "refused"]), ("route", &[])]),
];

fn word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
        _ => "unknown",
    }
}

/// Lets every task of this thread run until it waits.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Requests that a layer refuses, and requests that it only observes.
#[cfg(feature = "tower")]
async fn layers(locks: &Locks, meter: &Meter) {
    use tower::{Layer, ServiceExt};
    let done = tower::service_fn(async |_: http::Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    });
    let layer = tenure::LockLayer::by(locks, |_| "metered route");
    let dry_run = layer.clone().dry_run().layer(done);
    dry_run.oneshot(http::Request::default()).await.unwrap();
    meter.until("tenure_dry_run_total{outcome=alone,route=}").await;
    let held = locks.mutex("metered route").lock().await.unwrap();
    layer
        .skip()
        .layer(done)
        .oneshot(http::Request::default())
        .await
        .unwrap();
    meter.until("tenure_refused_total{why=busy}").await;
    held.release().await.unwrap();
    #[cfg(feature = "redis")]
    {
        // Nothing listens at this port.
        let builder = Locks::builder().lazy().request_timeout(ms(200));
        let gone = builder.connect("redis://127.0.0.1:1/").await.unwrap();
        let unlocked = tenure::LockLayer::by(&gone, |_| "metered route")
            .on_store_failure(tenure::middleware::StoreFailure::RunUnlocked)
            .layer(done);
        unlocked.oneshot(http::Request::default()).await.unwrap();
        meter.until("tenure_unlocked_total").await;
    }
}

/// The list, the table, the descriptions given to a recorder, and the series that it receives are the same.
#[test]
fn every_metric_is_listed_documented_described_and_fed() {
    // Other tests have more than a hundred jobs, and only the first hundred of a process have series of their own.
    alone(
        "metrics::every_metric_is_listed_documented_described_and_fed",
        || {
            block_on(every_metric());
        },
    );
}

fn block_on(future: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future);
}

async fn every_metric() {
    let meter = Meter::global();
    let listed: Vec<_> = METRICS
        .iter()
        .map(|metric| (metric.name, word(metric.kind), metric.unit, metric.labels))
        .collect();
    assert_eq!(listed, ALL);

    let (_, table) = METRICS_FILE.split_once("\nmetrics! {\n").unwrap();
    let (table, _) = table.split_once("\n}\n").unwrap();
    let mut documented = Vec::new();
    for row in table.split("\n\n") {
        assert!(row.trim_start().starts_with("/// "), "{row}");
        documented.extend(row.split('"').filter(|name| name.starts_with("tenure_")));
    }
    assert_eq!(documented, ALL.iter().map(|(name, ..)| *name).collect::<Vec<_>>());

    let store = MemoryStore::new();
    let locks = Locks::builder()
        .lease(ms(1_500))
        .burst(64, ms(600_000))
        .memory_shared(&store)
        .unwrap();
    for (name, kind, unit, _) in ALL {
        let (described, told, text) = meter.described(name).expect(name);
        assert_eq!(described, *kind, "{name}");
        let seconds = *unit == "seconds";
        assert_eq!(name.ends_with("_seconds"), seconds, "{name}");
        let metric = METRICS.iter().find(|metric| metric.name == *name).unwrap();
        assert_eq!(!metric.bounds.is_empty(), *kind == "histogram", "{name}");
        assert!(metric.bounds.is_sorted_by(|a, b| a < b), "{name}");
        let expected = if seconds { Unit::Seconds } else { Unit::Count };
        assert_eq!(told, Some(expected), "{name}");
        assert!(!text.is_empty(), "{name}");
    }

    // The counts of the driver's thread are checked only here. If the machine stalls for a lease, the lease is lost
    // before it is renewed or found gone: then try once more.
    let mutex = locks.mutex("metered");
    soon(async {
        let mut guard = mutex.lock().await.unwrap();
        while meter.values("tenure_renewal_slack_ratio").is_empty() {
            if !guard.is_held() {
                drop(guard);
                guard = mutex.lock().await.unwrap();
            }
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    soon(async {
        loop {
            let guard = mutex.lock().await.unwrap();
            // A client deletes every lease.
            store.with_ledger(|ledger, _| ledger.clear());
            if guard.lost().await == LostCause::Gone {
                break;
            }
        }
    })
    .await;
    meter.until("tenure_losses_total{kind=lock,cause=gone}").await;
    meter.until("tenure_hold_seconds{kind=lock,outcome=lost}").await;
    soon(handed_on(&locks)).await;
    // A lease is kept once the inbox is open.
    let (kept, other) = (
        locks.mutex("kept").keep(std::time::Duration::MAX),
        Locks::builder().memory_shared(&store),
    );
    let wanted = other.unwrap().mutex("kept");
    soon(async {
        while meter.count("tenure_recalls_total") == 0 {
            for mutex in [&kept, &wanted] {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        }
    })
    .await;
    #[cfg(feature = "tower")]
    layers(&locks, &meter).await;
    #[cfg(feature = "redis")]
    {
        // The patience is long, so that no wait ends before the refusal.
        let nowhere = Locks::builder()
            .lease(ms(60_000))
            .request_timeout(ms(10_000))
            .lazy()
            .connect("redis://127.0.0.1:1/")
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
        meter
            .until("tenure_ticks_total{job_name=metered,outcome=done}")
            .await;
        meter.until("tenure_grants_total{kind=job}").await;
        meter
            .until("tenure_hold_seconds{kind=job,outcome=released}")
            .await;
        // The mark of this job is far ahead.
        let name = tenure::protocol::message::Name::job("ahead".into());
        let far = tenure::protocol::message::TickTime(1 << 50);
        store.with_ledger(|ledger, _| {
            let job = tenure::protocol::ledger::JobRecord {
                mark: Some(far),
                ..Default::default()
            };
            ledger.set_job(&name, job);
        });
        let _ahead = locks.job("ahead", |_: tenure::Tick| async {}).unwrap();
        meter.until("tenure_job_alarms_total{alarm=mark_ahead}").await;
        scheduler.shutdown().await.unwrap();
    }

    let mut fed = BTreeSet::new();
    for (kind, series) in meter.series() {
        let (name, labels) = series.split_once('{').unwrap_or((&series, "}"));
        let (_, listed, _, allowed) = ALL.iter().find(|(listed, ..)| *listed == name).expect(&series);
        assert_eq!(kind, *listed, "{series}");
        let labels: Vec<_> = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| label.split_once('='))
            .collect();
        assert_eq!(labels.len(), allowed.len(), "{series}");
        // Labels are therefore never keys or nodes.
        for ((label, value), (listed, values)) in labels.iter().zip(*allowed) {
            assert_eq!(label, listed, "{series}");
            assert!(values.is_empty() || values.contains(value), "{series}");
        }
        if kind != "counter" || meter.count(&series) > 0 {
            fed.insert(name.to_owned());
        }
    }
    // Each series has one key for the life of the program, so no event creates a key.
    let keys = meter.keys();
    let places: BTreeSet<usize> = keys.values().flatten().copied().collect();
    assert!(keys.values().all(|places| places.len() == 1), "{keys:?}");
    assert_eq!(places.len(), keys.len(), "{keys:?}");
    let expected = ALL.iter().map(|(name, ..)| *name);
    let expected: BTreeSet<_> = expected
        .filter(|name| {
            let is_of_jobs = name.starts_with("tenure_job_") || *name == "tenure_ticks_total";
            cfg!(feature = "scheduler") || !is_of_jobs
        })
        // The answers of Redis: see `tests/live`.
        .filter(|name| *name != "tenure_store_seconds")
        .filter(|name| {
            cfg!(feature = "redis") || !["tenure_store_errors_total", "tenure_unlocked_total"].contains(name)
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(fed, expected);
}

/// The rules, their tests and the dashboard name no metric that does not exist.
#[test]
fn alerts_and_dashboard_name_only_these_metrics() {
    let files = [
        include_str!("../../ops/tenure.rules.yml"),
        include_str!("../../ops/tenure.test.yml"),
        include_str!("../../ops/dashboard.json"),
        include_str!("../../docs/alerts.md"),
    ];
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for text in files {
        let words = text
            .split(|c| !is_part(c))
            .filter(|word| word.starts_with("tenure_"));
        for word in words {
            let ends = ["_bucket", "_sum", "_count"].iter();
            let name = ends
                .filter_map(|end| word.strip_suffix(end))
                .next()
                .unwrap_or(word);
            assert!(METRICS.iter().any(|metric| metric.name == name), "{word}");
        }
    }
}

/// Gauges are those of the process, so this test has one of its own.
#[test]
fn what_is_held_and_waits_is_counted_while_it_does() {
    alone("metrics::what_is_held_and_waits_is_counted_while_it_does", || {
        crate::help::block_on(held_and_waiting());
    });
}

async fn held_and_waiting() {
    let meter = Meter::global();
    let gauges = |kind: &str| {
        let of = |name: &str| meter.gauge(&format!("{name}{{kind={kind}}}")).unwrap_or(0.0);
        (of("tenure_held"), of("tenure_waiting"))
    };
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let other = Locks::builder().memory_shared(&store).unwrap();
    let mutex = locks.mutex("a");
    let guard = mutex.lock().await.unwrap();
    assert_eq!(
        gauges("lock"),
        (1.0, 0.0),
        "an answer in the first poll is no wait"
    );
    // Two nodes of one process add up.
    let waiter = tokio::spawn(other.mutex("a").lock());
    let permits = locks.semaphore("s", 3).acquire_many(2).await.unwrap();
    let mut cancelled = Box::pin(mutex.lock());
    assert!(futures_is_pending(&mut cancelled).await);
    until("one more waits", || gauges("lock") == (1.0, 2.0)).await;
    assert_eq!(gauges("semaphore"), (1.0, 0.0));
    drop(cancelled);
    assert_eq!(gauges("lock"), (1.0, 1.0));
    guard.release().await.unwrap();
    let next = soon(waiter).await.unwrap().unwrap();
    assert_eq!(gauges("lock"), (1.0, 0.0));
    // A guard of the same lease counts with it, and a holder that panics counts no more.
    let again = next.lease().again().unwrap();
    assert_eq!(gauges("lock"), (1.0, 0.0));
    drop(next);
    let panicking = tokio::spawn(async move {
        let _held = again;
        panic!("planted")
    });
    assert!(panicking.await.is_err());
    assert_eq!(gauges("lock"), (0.0, 0.0));
    // A transfer takes the lease to another process, where it counts.
    let travels = locks.mutex("t").lock().await.unwrap();
    let sent = travels.into_transfer(ms(60_000)).await.unwrap();
    assert_eq!(gauges("lock"), (0.0, 0.0));
    let adopted = soon(other.adopt(&sent)).await.unwrap();
    assert_eq!(gauges("lock"), (1.0, 0.0));
    drop(adopted);
    assert_eq!(gauges("lock"), (0.0, 0.0));
    // A guard that a handler takes counts after the response, too.
    #[cfg(feature = "axum")]
    {
        use axum::body::Body;
        use tower::ServiceExt;
        let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
        let take = axum::routing::post(move |lease: tenure::Lease| {
            let keep = keep.clone();
            async move { keep.send(lease.take_guard().unwrap()).unwrap() }
        });
        let app = axum::Router::new().route("/", take);
        let app = app.layer(tenure::LockLayer::by(&locks, |_| "h"));
        let request = http::Request::post("/").body(Body::empty()).unwrap();
        assert!(app.oneshot(request).await.unwrap().status().is_success());
        assert_eq!(gauges("lock"), (1.0, 0.0));
        drop(kept.recv().await);
        assert_eq!(gauges("lock"), (0.0, 0.0));
    }
    // A lost lease counts until its guard ends, as in `tenure_hold_seconds`.
    let lost = locks.mutex("b").lock().await.unwrap();
    locks.shutdown().await;
    drop(lost);
    drop(permits);
    assert_eq!((gauges("lock"), gauges("semaphore")), ((0.0, 0.0), (0.0, 0.0)));
}

async fn futures_is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending()))
        .await
}

async fn handed_on(locks: &Locks) {
    let mutex = locks.mutex("metered").lease(ms(60_000));
    let guard = mutex.lock().await.unwrap();
    let next = tokio::spawn(mutex.lock());
    while locks.waiter_count() == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// What callers see is counted on their own threads, so this test sees only its own counts, exactly. Hand-overs are
/// counted for the whole process, and reported per key.
#[tokio::test]
async fn callers_are_counted_once_by_their_result() {
    let everybody = Meter::global();
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
    // The lease is handed over by a push, on the thread of the releasing holder.
    let id = other.node_id().to_string();
    until("it is pushed to", || {
        opened.told().iter().any(|told| told.text.contains(&id))
    })
    .await;
    let granted = |meter: &Meter| {
        let waits = meter
            .values("tenure_wait_seconds{kind=lock,outcome=granted}")
            .len() as u64;
        assert_eq!(waits, meter.count("tenure_grants_total{kind=lock}"));
        waits
    };
    let of_key = Watch::of("key=counted ");
    let handed = || {
        let all = ["local", "remote"]
            .map(|from| everybody.count(&format!("tenure_handoffs_total{{kind=lock,from={from}}}")));
        let own = ["handed_on", "taken_over"].map(|event| of_key.count(event) as u64);
        assert!(own[0] <= all[0] && own[1] <= all[1], "{own:?} of {all:?}");
        own
    };

    // The key is free.
    let asked = Instant::now();
    let guard = soon(one.mutex("counted").lock()).await.unwrap();
    assert_eq!((granted(&meter), handed()), (1, [0, 0]));
    let batches = everybody.values("tenure_batch_requests");
    assert!(batches.contains(&1.0), "{batches:?}");

    // The key is held: one caller does not wait, another gives up.
    assert!(soon(one.mutex("counted").try_lock()).await.unwrap().is_none());
    assert_eq!(
        meter.values("tenure_wait_seconds{kind=lock,outcome=busy}").len(),
        1
    );
    let (mutex, patience) = (one.mutex("counted"), ms(20));
    let began = Instant::now();
    let gives_up = tokio::spawn(async move { mutex.lock_timeout(patience).await.is_err() });
    settle().await;
    // The caller waits by now.
    let least = patience.saturating_sub(began.elapsed()).as_secs_f64();
    assert!(soon(gives_up).await.unwrap());
    let gave_up = meter.values("tenure_wait_seconds{kind=lock,outcome=gave_up}");
    assert!(gave_up.len() == 1 && gave_up[0] >= least, "{gave_up:?} {least}");
    let nobody = one.mutex("counted").max_waiters(0);
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

    // Handed to the next caller of this process, after ten seconds of work.
    let next = tokio::spawn(one.mutex("counted").lock());
    settle().await;
    clock.jump(ms(10_000));
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!((granted(&meter), handed()), (2, [1, 0]));
    let held = meter.values("tenure_hold_seconds{kind=lock,outcome=released}");
    let most = 10.0 + asked.elapsed().as_secs_f64();
    assert!(
        held.len() == 1 && (10.0..most).contains(&held[0]),
        "{held:?} {most}"
    );

    // Handed to another process.
    let next = tokio::spawn(other.mutex("counted").lock());
    soon(async {
        let name = tenure::protocol::message::Name::lock("counted".into());
        while store.with_ledger(|ledger, _| ledger.waiters(&name).is_empty()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!((granted(&meter), handed()), (3, [1, 1]));
    soon(guard.release()).await.unwrap();
    assert_eq!(
        meter
            .values("tenure_hold_seconds{kind=lock,outcome=released}")
            .len(),
        3
    );
    // The key is free again: no holder handed it on.
    soon(other.mutex("counted").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!((granted(&meter), handed()), (4, [1, 1]));

    // The lease is lost under the guard, which learns it from its next request.
    let guard = soon(one.mutex("counted").lock()).await.unwrap();
    clock.jump(ms(60_001));
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
    // The driver may have found out first.
    let ended = ["released", "lost"]
        .map(|outcome| meter.values(&format!("tenure_hold_seconds{{kind=lock,outcome={outcome}}}")));
    assert_eq!(ended.concat().len(), 5, "{ended:?}");

    // The node has shut down.
    soon(other.shutdown()).await;
    assert!(soon(other.mutex("counted").lock()).await.is_err());
    assert_eq!(
        meter
            .values("tenure_wait_seconds{kind=lock,outcome=closed}")
            .len(),
        1
    );
    assert_eq!(granted(&meter), 5);
}

#[tokio::test]
async fn losses_are_counted_by_cause() {
    let meter = Meter::global();
    let clock = Clock::new();
    let locks = Locks::builder()
        .lease(ms(60_000))
        .clock(clock.clone())
        .memory_shared(&MemoryStore::new())
        .unwrap();
    let (fixed, renewed) = (locks.mutex("fixed").fixed(ms(400)), locks.mutex("renewed"));
    let guard = soon(fixed.lock()).await.unwrap();
    soon(guard.lost()).await;
    meter.until("tenure_losses_total{kind=lock,cause=ended}").await;
    let guard = soon(renewed.lock()).await.unwrap();
    clock.jump(ms(60_001));
    assert!(!guard.is_held());
    meter.until("tenure_losses_total{kind=lock,cause=deadline}").await;
    drop(guard);
    let guard = soon(renewed.lock()).await.unwrap();
    soon(locks.shutdown()).await;
    soon(guard.lost()).await;
    meter.until("tenure_losses_total{kind=lock,cause=shutdown}").await;
}

#[cfg(feature = "scheduler")]
mod ticks {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use tokio::sync::Notify;
    use tokio_cron_scheduler::{Job, JobScheduler};

    use super::*;

    fn as_planned() {
        panic!("as planned")
    }

    /// Every attempt to run a tick is counted once, by its outcome, on the thread of the scheduler.
    #[test]
    fn a_tick_is_counted_once_by_its_outcome() {
        alone("metrics::ticks::a_tick_is_counted_once_by_its_outcome", || {
            super::block_on(each_outcome());
        });
    }

    async fn each_outcome() {
        let _everybody = Meter::global();
        let meter = Meter::default();
        let _mine = ::metrics::set_default_local_recorder(&meter);
        let store = MemoryStore::new();
        let node = || Locks::builder().memory_shared(&store).unwrap();
        let (one, other) = (node(), node());
        // The scheduler is never started, so closures are called by hand. The latest tick of one job stays the same
        // during the test; that of the other job is younger.
        let scheduler = JobScheduler::new().await.unwrap();
        let (mut old, mut young) = (None, None);
        for (id, expression) in [(&mut old, "0 0 0 1 1 *"), (&mut young, "* * * * * *")] {
            let job = Job::new_async(expression, |_, _| Box::pin(async {})).unwrap();
            *id = Some(scheduler.add(job).await.unwrap());
        }
        let (old, young) = (old.unwrap(), young.unwrap());
        let counted = || {
            let mut all = BTreeMap::<String, u64>::new();
            for (_, series) in meter.series() {
                let labels = series.strip_prefix("tenure_ticks_total{job_name=");
                let outcome = labels.and_then(|labels| labels.split_once(",outcome="));
                if let Some((_, outcome)) = outcome.filter(|_| meter.count(&series) > 0) {
                    *all.entry(outcome.trim_end_matches('}').to_owned()).or_default() += meter.count(&series);
                }
            }
            all
        };
        let mut expected = BTreeMap::new();
        macro_rules! counts {
            ($outcome:literal) => {
                *expected.entry($outcome.to_owned()).or_default() += 1;
                assert_eq!(counted(), expected);
            };
        }

        let mut fire = one.job("done", |_| async {}).unwrap();
        soon(fire(old, scheduler.clone())).await;
        counts!("done");
        soon(fire(old, scheduler.clone())).await;
        counts!("elsewhere");
        assert_eq!(
            meter
                .values("tenure_wait_seconds{kind=job,outcome=not_due}")
                .len(),
            1
        );
        let mut fire = one
            .job("failed", |_| async { Err::<(), _>("no space left") })
            .unwrap();
        soon(fire(old, scheduler.clone())).await;
        counts!("failed");
        let mut fire = one.job("panicked", |_| async { as_planned() }).unwrap();
        soon(fire(old, scheduler.clone())).await;
        counts!("panicked");
        let timed = one.job_builder("timed out").timeout(ms(10));
        let mut fire = timed.run(|_| std::future::pending::<()>()).unwrap();
        soon(fire(old, scheduler.clone())).await;
        counts!("timed_out");
        let name = tenure::protocol::message::Name::job("given up".into());
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let begun = tenure::protocol::ledger::JobRecord {
            mark: Some(tenure::protocol::message::TickTime(
                now.as_millis() as u64 / 1000 * 1000,
            )),
            attempt: 10,
            ..Default::default()
        };
        store.with_ledger(|ledger, _| ledger.set_job(&name, begun));
        let _fire = one.job("given up", |_| async {}).unwrap();
        meter
            .until("tenure_ticks_total{job_name=given up,outcome=given_up}")
            .await;
        counts!("given_up");

        // The next tick comes during a run, which then loses its lease. The loss does not end the tick: it is run
        // again.
        let (started, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = {
            let (started, begun) = (started.clone(), begun.clone());
            move |tick: tenure::Tick| {
                let (started, begun) = (started.clone(), begun.clone());
                async move {
                    started.notify_one();
                    match tick.attempt() {
                        1 => std::future::pending().await,
                        _ => begun.notified().await,
                    }
                }
            }
        };
        let mut fire = one.job_with("skipped", ms(4_500), work).unwrap();
        let run = tokio::spawn(fire(old, scheduler.clone()));
        soon(started.notified()).await;
        let mut next = other.job("skipped", |_| async {}).unwrap();
        soon(next(young, scheduler.clone())).await;
        counts!("skipped");
        // Otherwise this pursuit becomes a standby.
        drop(next);
        let name = tenure::protocol::message::Name::job("skipped".into());
        store.with_ledger(|ledger, _| ledger.overwrite(&name, None));
        soon(started.notified()).await;
        assert_eq!(counted(), expected);
        assert_eq!(
            meter.values("tenure_hold_seconds{kind=job,outcome=lost}").len(),
            1
        );
        begun.notify_one();
        soon(run).await.unwrap();
        counts!("done");

        // The tick is too old to start, and the store knows of no run.
        let ahead = tenure::protocol::message::TickTime(now.as_millis() as u64 + 3_600_000);
        let known = tenure::protocol::ledger::JobRecord {
            mark: Some(ahead),
            done: true,
            attempt: 1,
            passed: Some((tenure::protocol::message::TickTime(1), ahead)),
            ..Default::default()
        };
        let name = tenure::protocol::message::Name::job("missed".into());
        store.with_ledger(|ledger, _| ledger.set_job(&name, known));
        let job = one
            .job_builder("missed")
            .misfire(tenure::scheduler::Misfire::Skip);
        let mut fire = job.run(|_| async {}).unwrap();
        meter.until("tenure_job_alarms_total{alarm=mark_ahead}").await;
        soon(fire(old, scheduler.clone())).await;
        counts!("missed");

        // An operator has paused the job.
        let name = tenure::protocol::message::Name::job("paused".into());
        let pause = tenure::protocol::message::OperatorAct {
            since_ms: 1,
            by: "ann".into(),
            why: "".into(),
        };
        let known = tenure::protocol::ledger::JobRecord {
            paused: Some(Arc::new(pause)),
            ..Default::default()
        };
        store.with_ledger(|ledger, _| ledger.set_job(&name, known));
        let mut fire = one.job("paused", |_| async {}).unwrap();
        soon(fire(young, scheduler.clone())).await;
        counts!("paused");
        // The store cannot be reached before the next tick.
        #[cfg(feature = "redis")]
        {
            use std::time::{SystemTime, UNIX_EPOCH};
            let nowhere = Locks::builder()
                .lazy()
                .connect("redis://127.0.0.1:1/")
                .await
                .unwrap();
            let mut fire = nowhere.job("not known", |_| async {}).unwrap();
            let first = tokio::spawn(fire(young, scheduler.clone()));
            meter
                .until("tenure_store_errors_total{during=lock,error=unreachable}")
                .await;
            let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let fired = second();
            until("the next tick has come", || second() != fired).await;
            let second = tokio::spawn(fire(young, scheduler.clone()));
            soon(nowhere.drain(ms(0))).await.unwrap();
            soon(first).await.unwrap();
            soon(second).await.unwrap();
            *expected.entry("drained".to_owned()).or_default() += 1;
            counts!("drained");
        }
        // The job is removed while another node runs its tick.
        let (runs, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = {
            let (runs, goes_on) = (runs.clone(), goes_on.clone());
            move |_: tenure::Tick| {
                let (runs, goes_on) = (runs.clone(), goes_on.clone());
                async move {
                    runs.notify_one();
                    goes_on.notified().await;
                }
            }
        };
        let mut fire = one.job("removed", work).unwrap();
        let run = tokio::spawn(fire(old, scheduler.clone()));
        soon(runs.notified()).await;
        let mut standby = other.job("removed", |_| async {}).unwrap();
        let stands_by = tokio::spawn(standby(old, scheduler.clone()));
        let name = tenure::protocol::message::Name::job("removed".into());
        until("it stands by", || {
            store.with_ledger(|ledger, _| !ledger.waiters(&name).is_empty())
        })
        .await;
        drop(standby);
        soon(stands_by).await.unwrap();
        counts!("removed");
        goes_on.notify_one();
        soon(run).await.unwrap();
        counts!("done");

        // An operator cancels the tick that runs.
        let runs = Arc::new(Notify::new());
        let began = runs.clone();
        let work = move |_: tenure::Tick| {
            began.notify_one();
            std::future::pending::<()>()
        };
        let mut fire = one.job("cancelled", work).unwrap();
        let run = tokio::spawn(fire(old, scheduler.clone()));
        soon(runs.notified()).await;
        let jobs = one.jobs();
        let current = jobs.show("cancelled").await.unwrap().unwrap().current.unwrap();
        let at_once = std::time::Duration::ZERO;
        jobs.cancel("cancelled", current, at_once, "ann", "")
            .await
            .unwrap();
        soon(run).await.unwrap();
        counts!("cancelled");

        let mut next = other.job("drained", |_| async {}).unwrap();
        soon(other.drain(ms(0))).await.unwrap();
        soon(next(young, scheduler)).await;
        counts!("drained");
        let (.., labels) = ALL
            .iter()
            .find(|(name, ..)| *name == "tenure_ticks_total")
            .unwrap();
        let all: BTreeSet<&str> = labels[1].1.iter().copied().collect();
        let counted: BTreeSet<&str> = expected.keys().map(String::as_str).collect();
        assert_eq!(counted, all);
    }
}
