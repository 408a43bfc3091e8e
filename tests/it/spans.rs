//! The spans of waits and of runs, each test in a process of its own: a subscriber is that of the process.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tenure::Locks;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::help::{block_on, ms, poll_once, soon};
use crate::support::alone::alone;

/// The fields of a span or an event, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0
            .insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// A span that has ended, and the names of its parents, from the inside.
#[derive(Debug, Clone)]
struct Ended {
    name: &'static str,
    fields: Fields,
    parents: Vec<&'static str>,
    was_entered: bool,
}

/// A line of a program, and the spans around it, from the inside.
#[derive(Debug, Clone)]
struct Line {
    text: String,
    spans: Vec<(&'static str, Fields)>,
}

#[derive(Debug, Clone, Default)]
struct Scribe {
    ended: Arc<Mutex<Vec<Ended>>>,
    lines: Arc<Mutex<Vec<Line>>>,
}

struct WasEntered;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Scribe {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        cx.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, cx: Context<'_, S>) {
        record.record(cx.span(id).unwrap().extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_enter(&self, id: &Id, cx: Context<'_, S>) {
        cx.span(id).unwrap().extensions_mut().replace(WasEntered);
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        let span = cx.span(&id).unwrap();
        self.ended.lock().unwrap().push(Ended {
            name: span.name(),
            fields: span.extensions().get::<Fields>().cloned().unwrap(),
            parents: span.scope().skip(1).map(|span| span.name()).collect(),
            was_entered: span.extensions().get::<WasEntered>().is_some(),
        });
    }

    fn on_event(&self, event: &Event<'_>, cx: Context<'_, S>) {
        if event.metadata().target() != "tenure" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let scope = cx.event_scope(event).into_iter().flatten();
            let spans = scope.map(|span| (span.name(), span.extensions().get::<Fields>().cloned().unwrap()));
            self.lines.lock().unwrap().push(Line {
                text: fields.get("message").to_owned(),
                spans: spans.collect(),
            });
        }
    }
}

impl Scribe {
    fn install() -> Scribe {
        let scribe = Scribe::default();
        let subscriber = tracing_subscriber::registry().with(scribe.clone());
        tracing::subscriber::set_global_default(subscriber).unwrap();
        scribe
    }

    /// Returns the spans `lock` that have ended since the last call.
    fn waits(&self) -> Vec<Ended> {
        let ended = std::mem::take(&mut *self.ended.lock().unwrap());
        ended.into_iter().filter(|span| span.name == "lock").collect()
    }
}

#[test]
fn a_wait_is_a_span_within_that_of_its_caller() {
    alone("spans::a_wait_is_a_span_within_that_of_its_caller", || {
        block_on(waits())
    });
}

async fn waits() {
    let (scribe, locks) = (Scribe::install(), Locks::memory());
    let mutex = locks.mutex("account:42");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(scribe.waits().is_empty(), "no caller waited");

    // One waiter is granted, one gives up, and one waits until its time is over.
    let of_request = |name: &'static str| tracing::info_span!("request", name);
    // A caller that is answered in its first poll does not wait.
    let mut waiter = Box::pin(mutex.lock().instrument(of_request("first")));
    assert!(poll_once(&mut waiter).await.is_none());
    let mut cancelled = Box::pin(mutex.lock().instrument(of_request("second")));
    assert!(poll_once(&mut cancelled).await.is_none());
    drop(cancelled);
    let late = mutex.lock_timeout(ms(10)).instrument(of_request("third"));
    assert!(soon(late).await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    soon(waiter).await.unwrap().release().await.unwrap();
    let waits = scribe.waits();
    let shown: Vec<_> = waits
        .iter()
        .map(|wait| {
            (
                wait.fields.get("kind"),
                wait.fields.get("key"),
                wait.fields.get("outcome"),
            )
        })
        .collect();
    let of = |outcome| ("lock", "account:42", outcome);
    assert_eq!(shown, [of("gave_up"), of("gave_up"), of("granted")]);
    assert!(
        waits
            .iter()
            .all(|wait| wait.parents == ["request"] && !wait.was_entered),
        "{waits:?}"
    );
}

/// A service with a span for each request, as most have it.
#[cfg(feature = "axum")]
#[test]
fn the_wait_of_a_request_is_within_the_span_of_the_request() {
    alone(
        "spans::the_wait_of_a_request_is_within_the_span_of_the_request",
        || {
            block_on(requests());
        },
    );
}

#[cfg(feature = "axum")]
async fn requests() {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;
    use tower::ServiceExt;
    use tower_http::trace::TraceLayer;
    let (scribe, locks) = (Scribe::install(), Locks::memory());
    let pay = async || tracing::info!("paid");
    let app = Router::new()
        .route("/accounts/{account}/pay", post(pay))
        .route_layer(tenure::LockLayer::by(&locks, |_| "account:42"))
        .layer(TraceLayer::new_for_http());
    let request = || {
        http::Request::post("/accounts/42/pay")
            .body(Body::empty())
            .unwrap()
    };
    soon(app.clone().oneshot(request())).await.unwrap();
    assert!(scribe.waits().is_empty());
    let key = scribe_key(&locks, &app, &scribe).await;
    assert!(key.contains("42"), "{key}");
}

/// Makes a request wait for the key of its layer, and returns the key.
#[cfg(feature = "axum")]
async fn scribe_key(locks: &Locks, app: &axum::Router, scribe: &Scribe) -> String {
    use axum::body::Body;
    use tower::ServiceExt;
    let held = locks.mutex("account:42").lock().await.unwrap();
    let request = http::Request::post("/accounts/42/pay")
        .body(Body::empty())
        .unwrap();
    let mut request = Box::pin(app.clone().oneshot(request));
    assert!(poll_once(&mut request).await.is_none());
    assert_eq!(locks.waiter_count(), 1);
    held.release().await.unwrap();
    assert!(soon(request).await.unwrap().status().is_success());
    let waits = scribe.waits();
    let [wait] = &*waits else { panic!("{waits:?}") };
    assert_eq!(
        (wait.fields.get("outcome"), &*wait.parents),
        ("granted", &["request"][..])
    );
    let lines = scribe.lines.lock().unwrap();
    let paid: Vec<_> = lines.iter().filter(|line| line.text == "paid").collect();
    assert!(
        paid.iter().all(|line| line.spans.len() == 1),
        "the handler is in no span of ours: {paid:?}"
    );
    wait.fields.get("key").to_owned()
}

#[cfg(feature = "scheduler")]
#[test]
fn each_line_of_a_run_names_its_tick() {
    alone("spans::each_line_of_a_run_names_its_tick", || block_on(lines()));
}

#[cfg(feature = "scheduler")]
async fn lines() {
    use std::time::{Duration, UNIX_EPOCH};
    use tenure::Tick;
    use tenure::scheduler::Retry;
    use tenure::testing::fire_tick;
    let (scribe, locks) = (Scribe::install(), Locks::memory());
    let midnight = "0 0 0 * * *";
    let fails = async |tick: Tick| {
        tracing::info!("begins");
        tokio::task::yield_now().await;
        tracing::info!(parent: None, "outside");
        tracing::info_span!("step").in_scope(|| tracing::info!("within a step"));
        match tick.retry() {
            0 => Err("not yet"),
            _ => Ok(()),
        }
    };
    let jobs = [
        locks
            .cron("twice", midnight)
            .retry(Retry::times(1).pauses(ms(1), ms(1)))
            .run(fails)
            .unwrap(),
        locks
            .cron("blocks", midnight)
            .run_blocking(|_| tracing::info!("on a thread"))
            .unwrap(),
    ];
    let tick = UNIX_EPOCH + Duration::from_secs(1_792_627_200);
    for job in ["twice", "blocks"] {
        assert_eq!(soon(fire_tick(&locks, job, tick)).await, "done");
    }
    let lines = std::mem::take(&mut *scribe.lines.lock().unwrap());
    let lines: Vec<_> = lines.iter().filter(|line| line.text != "outside").collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    for (line, (job, retry)) in lines.iter().zip([
        ("twice", "0"),
        ("twice", "0"),
        ("twice", "1"),
        ("twice", "1"),
        ("blocks", "0"),
    ]) {
        let (name, fields) = line.spans.last().expect("it is in a span");
        assert_eq!(*name, "tick", "{line:?}");
        let fields = ["job", "tick", "attempt", "retry"].map(|field| fields.get(field));
        assert_eq!(fields, [job, "2026-10-22T00:00:00Z", "1", retry], "{line:?}");
    }
    let fences: Vec<_> = lines
        .iter()
        .map(|line| line.spans.last().unwrap().1.get("fence"))
        .collect();
    assert!(
        fences
            .iter()
            .all(|fence| fence.parse::<u64>().is_ok_and(|fence| fence > 0)),
        "{fences:?}"
    );
    drop(jobs);
}

/// How a subscriber fails in a span of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Panics,
    PanicsOnExit,
    Blocks,
}

struct Faulty(Ill);

impl Faulty {
    fn fails(&self) {
        match self.0 {
            Ill::Panics | Ill::PanicsOnExit => panic!("a span cannot be written"),
            Ill::Blocks => loop {
                std::thread::park();
            },
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Faulty {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        // Only the first of two waits: the other one has the key `b`.
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if self.0 == Ill::Panics || fields.get("key") == "a" {
            self.fails();
        }
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        if self.0 == Ill::PanicsOnExit {
            self.fails();
        }
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        if self.0 == Ill::Panics {
            self.fails();
        }
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        if self.0 == Ill::Panics {
            self.fails();
        }
    }
}

#[test]
fn a_subscriber_that_panics_in_a_span_costs_no_lock() {
    alone("spans::a_subscriber_that_panics_in_a_span_costs_no_lock", || {
        std::panic::set_hook(Box::new(|_| {}));
        block_on(ill(Ill::Panics));
    });
}

#[cfg(feature = "scheduler")]
fn as_planned() {
    panic!("as planned");
}

#[cfg(feature = "scheduler")]
#[test]
fn a_job_that_panics_in_a_span_that_panics_aborts_no_process() {
    alone(
        "spans::a_job_that_panics_in_a_span_that_panics_aborts_no_process",
        || {
            std::panic::set_hook(Box::new(|_| {}));
            block_on(async {
                let subscriber = tracing_subscriber::registry().with(Faulty(Ill::PanicsOnExit));
                tracing::subscriber::set_global_default(subscriber).unwrap();
                let locks = Locks::memory();
                let jobs = [
                    locks
                        .cron("panics", "0 0 0 * * *")
                        .run(async |_| as_planned())
                        .unwrap(),
                    locks
                        .cron("blocks", "0 0 0 * * *")
                        .run_blocking(|_| as_planned())
                        .unwrap(),
                ];
                let tick = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_792_627_200);
                for job in ["panics", "blocks"] {
                    assert_eq!(
                        soon(tenure::testing::fire_tick(&locks, job, tick)).await,
                        "panicked"
                    );
                }
                drop(jobs);
            });
        },
    );
}

#[test]
fn a_subscriber_that_blocks_in_a_span_harms_its_own_caller_alone() {
    alone(
        "spans::a_subscriber_that_blocks_in_a_span_harms_its_own_caller_alone",
        || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(3).enable_all().build().unwrap();
            runtime.block_on(ill(Ill::Blocks));
            // The blocked thread never ends.
            runtime.shutdown_background();
        },
    );
}

async fn ill(ill: Ill) {
    let subscriber = tracing_subscriber::registry().with(Faulty(ill));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let locks = Locks::memory();
    let held = [
        locks.mutex("a").lock().await.unwrap(),
        locks.mutex("b").lock().await.unwrap(),
    ];
    let waiters = ["a", "b"].map(|key| tokio::spawn(locks.mutex(key).lock()));
    while locks.waiter_count() < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    for guard in held {
        guard.release().await.unwrap();
    }
    let [of_a, of_b] = waiters;
    soon(of_b).await.unwrap().unwrap().release().await.unwrap();
    match ill {
        Ill::Panics => {
            soon(of_a).await.unwrap().unwrap().release().await.unwrap();
            let held = locks.mutex("c").lock().await.unwrap();
            // The drop of a waiter ends its span, too.
            let mut cancelled = Box::pin(locks.mutex("c").lock());
            assert!(poll_once(&mut cancelled).await.is_none());
            drop(cancelled);
            held.release().await.unwrap();
            assert_eq!(locks.waiter_count(), 0);
        }
        Ill::PanicsOnExit => unreachable!(),
        Ill::Blocks => of_a.abort(),
    }
}
