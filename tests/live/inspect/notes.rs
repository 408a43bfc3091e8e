//! Notes on real servers: which of them operators see, after which writes, and that none is shown under another holder.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tenure::inspect::Entry;
use tenure::{Guard, Locks, Recovery};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::help::{Eyes, held, ms, on_cluster, soon, until};
use crate::inspect::{Monitor, monitor, node};
use crate::server::RedisServer;
use crate::support::inspect;

/// How often a node looks at its notes.
const NOTES_INTERVAL: Duration = Duration::from_secs(2);

/// Returns the notes of all holders.
fn notes(entry: &Entry) -> Vec<&str> {
    let notes = entry.holders.iter().flat_map(|holder| &holder.notes);
    notes.map(|note| &*note.text).collect()
}

async fn until_noted(locks: &Locks, key: &str, text: &str) -> Entry {
    inspect::until(locks, key, |entry| notes(entry) == [text]).await
}

/// Counts how often nodes wrote their presence.
struct Writes(Vec<(Eyes, Monitor)>);

impl Writes {
    fn on<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> Writes {
        let one = |server: &RedisServer| (Eyes::on(server), monitor(server.client()));
        Writes(servers.into_iter().map(one).collect())
    }

    /// Returns what was written since the last call.
    fn take(&mut self) -> Vec<String> {
        let sent = self.0.iter_mut().flat_map(|(eyes, monitor)| {
            let _: String = eyes.text("ECHO end-of-writes");
            monitor.sent_until("end-of-writes")
        });
        let is_presence = |words: &Vec<String>| words[0] == "SET" && words[1].starts_with("tenure1:i:");
        sent.filter(is_presence)
            .map(|mut words| words.swap_remove(2))
            .collect()
    }
}

/// Returns the presence of a node as it is in the store.
fn presence(eyes: &mut Eyes, locks: &Locks) -> String {
    let told: Option<String> = eyes.text(&format!("GET tenure1:i:{}", locks.node_id()));
    told.unwrap_or_default()
}

/// A hanging handler behind a layer is named on these servers. Returns the presences written until then.
#[cfg(feature = "axum")]
async fn names_a_handler(locks: &Locks, mut writes: Writes) -> Vec<String> {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;
    use http::Request;
    use tower::ServiceExt;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    soon(held(locks, "warm").await.release()).await.unwrap();
    until("the node told of itself", || !writes.take().is_empty()).await;
    let layer = tenure::LockLayer::by(locks, |_| "a").noted();
    let route = post(std::future::pending::<()>).layer(layer);
    let app = Router::new().route("/accounts/{id}", route);
    let request = Request::post("/accounts/4711?token=secret")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .body(Body::empty())
        .unwrap();
    let hanging = tokio::spawn(app.oneshot(request));
    let text = format!("POST /accounts/{{id}} trace {TRACE}");
    let entry = until_noted(locks, "a", &text).await;
    assert_eq!(entry.holders[0].notes[0].fence, entry.holders[0].fence.unwrap());
    let written = writes.take();
    let last = written.last().unwrap();
    assert!(last.contains("note=") && !last.contains("4711"), "{last}");
    hanging.abort();
    // The next presence has no note.
    let mut after = Vec::new();
    until("the note is gone", || {
        after.extend(writes.take());
        !after.is_empty()
    })
    .await;
    assert!(!after[0].contains("note="), "{after:?}");
    written
}

#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_presence_names_a_handler_that_hangs() {
    let server = RedisServer::start();
    let locks = node(&server.url(), "one").await;
    let written = names_a_handler(&locks, Writes::on([&server])).await;
    let noted = written.iter().filter(|told| told.contains("note="));
    assert_eq!(noted.count(), 1, "{written:?}");
}

#[cfg(feature = "axum")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_is_named_behind_sentinels_and_on_a_cluster() {
    let (master, like) = (
        RedisServer::start(),
        redis::Client::open("redis://127.0.0.1/").unwrap(),
    );
    let sentinel = RedisServer::sentinel("stock-db", master.port());
    let builder = crate::help::builder()
        .recovery(Recovery::OnEvidence)
        .lease(ms(60_000));
    let behind = builder.sentinel("stock-db", [sentinel.url()], like);
    let behind = soon(behind).await.unwrap();
    names_a_handler(&behind, Writes::on([&master])).await;
    let cluster = Cluster::start(3, 0);
    let on_cluster = soon(on_cluster(&cluster.urls())).await.unwrap();
    let servers = (0..3).map(|at| cluster.server(at));
    names_a_handler(&on_cluster, Writes::on(servers)).await;
}

/// The requests are shorter than the time after which a note is told.
#[cfg(feature = "tower")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_notes_of_short_requests_cost_no_command() {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use http::{Request, Response};
    use tower::{Layer, ServiceExt, service_fn};

    const REQUESTS: usize = 10_000;
    /// So many tasks at once, each with a key: a look at the notes finds some.
    const TASKS: usize = 50;
    /// What a client sends to connect, and to hear that a server is alive.
    const OUTSIDE: &str =
        "auth client echo hello info keys mget monitor ping pubsub role script select subscribe time";

    let server = RedisServer::start();
    let began = Instant::now();
    let (mut eyes, mut monitor) = (Eyes::on(&server), monitor(server.client()));
    let locks = node(&server.url(), "one").await;
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut tasks = JoinSet::new();
    let longest = Arc::new(AtomicU64::new(0));
    for n in 0..TASKS {
        let layer = tenure::LockLayer::by(&locks, move |_| n.to_string()).noted();
        let service = layer.release_before_answer().layer(handler);
        let longest = longest.clone();
        tasks.spawn(async move {
            for _ in 0..REQUESTS / TASKS {
                let begun = Instant::now();
                let answer = soon(service.clone().oneshot(Request::new(()))).await.unwrap();
                assert_eq!(answer.status(), 200);
                longest.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
            }
        });
    }
    tasks.join_all().await;
    let _: String = eyes.text("ECHO end-of-requests");
    let mut sent = BTreeMap::<String, usize>::new();
    for words in monitor.sent_until("end-of-requests") {
        // A slow machine makes long requests, which are told.
        let is_noted = words.iter().any(|word| word.contains("note="));
        assert!(!is_noted || longest.load(Relaxed) >= 1_000, "{words:?}");
        *sent.entry(words[0].to_lowercase()).or_default() += 1;
    }
    sent.retain(|command, _| !OUTSIDE.split(' ').any(|outside| outside == command));
    println!("{REQUESTS} requests with notes: {sent:?}");
    let told = sent.remove("set").unwrap();
    let most = began.elapsed().as_secs() as usize / 20 + 1;
    assert!(told <= most, "{told} presences, {most} at most");
    // Requests of several tasks travel together.
    let scripts = sent.remove("evalsha").unwrap();
    assert!(scripts < 2 * REQUESTS + TASKS, "{scripts}");
    assert!(sent.is_empty(), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_that_change_are_written_every_two_seconds_at_most() {
    let server = RedisServer::start();
    let (mut writes, began) = (Writes::on([&server]), Instant::now());
    let locks = node(&server.url(), "one").await;
    let guard = held(&locks, "a").await;
    // Each look of the node finds notes of short leases, too.
    let mut tasks = JoinSet::new();
    let longest = Arc::new(AtomicU64::new(0));
    for n in 0..10 {
        let mutex = locks.mutex(n.to_string());
        let longest = longest.clone();
        tasks.spawn(async move {
            loop {
                let begun = Instant::now();
                let guard = soon(mutex.lock()).await.unwrap();
                guard.note("short");
                soon(guard.renew()).await.unwrap();
                soon(guard.release()).await.unwrap();
                longest.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
            }
        });
    }
    let (mut written, mut changes) = (Vec::new(), 0);
    until("three notes were told", || {
        guard.note(format!("row {changes}"));
        changes += 1;
        written.extend(writes.take());
        written.iter().filter(|told| told.contains("note=")).count() >= 3
    })
    .await;
    let most = began.elapsed().div_duration_f64(NOTES_INTERVAL) as usize + 1;
    assert!(
        written.len() <= most && changes > most,
        "{} presences, {most} at most",
        written.len()
    );
    let is_short = |told: &String| told.contains("short");
    let has_short = written.iter().any(is_short);
    assert!(!has_short || longest.load(Relaxed) >= 1_000, "{written:?}");
    tasks.shutdown().await;
    // The latest text counts.
    guard.note("the end");
    until_noted(&locks, "a", "the end").await;
    soon(guard.release()).await.unwrap();
}

/// The oldest leases have a place, and the others follow when one ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_notes_of_the_leases_that_were_held_longest_are_told_in_a_bounded_presence() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = node(&server.url(), "one").await;
    let mut guards: Vec<Guard> = Vec::new();
    let large = "\u{1b}".repeat(10_000);
    for n in 0..20 {
        guards.push(held(&locks, format!("{n:02}")).await);
        guards[n].note(&large);
    }
    // The names of the keys with notes.
    let noted = async || {
        let entries = inspect::list(&locks, "").await;
        let mut noted: Vec<String> = entries
            .iter()
            .filter(|entry| notes(entry) == [&large[..200]])
            .map(|entry| entry.key.to_string())
            .collect();
        noted.sort();
        noted
    };
    let names = |range: std::ops::Range<u64>| range.map(|n| format!("{n:02}")).collect::<Vec<_>>();
    soon(async { while noted().await != names(0..16) {} }).await;
    let size = presence(&mut eyes, &locks).len();
    assert!((16 * 600..16 * 700).contains(&size), "{size}");
    soon(guards.remove(0).release()).await.unwrap();
    soon(async { while noted().await != names(1..17) {} }).await;
    drop(guards);
}

/// A presence is older than the record: the node was slow, or its server was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_is_never_shown_under_the_next_holder() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        node(&server.url(), "one").await,
        node(&server.url(), "other").await,
    );
    let guard = held(&one, "a").await;
    guard.note("former");
    let former = until_noted(&other, "a", "former").await;
    let old = presence(&mut eyes, &one);
    soon(guard.release()).await.unwrap();
    let name = format!("tenure1:i:{}", one.node_id());
    for (next, permits) in [(&one, None), (&other, None), (&one, Some(2))] {
        let guard = match permits {
            None => held(next, "a").await,
            Some(permits) => soon(next.semaphore("a", permits).acquire()).await.unwrap(),
        };
        // The node may write between two of these commands.
        loop {
            let _: String = eyes.ask(&[b"SET", name.as_bytes(), old.as_bytes()]);
            let [entry] = &inspect::show(&other, "a").await[..] else {
                panic!("one holds it")
            };
            // Another node may have a claim of the same number.
            let of = |entry: &Entry| (entry.holders[0].node.id, entry.holders[0].claim);
            assert_ne!(of(entry), of(&former));
            assert_eq!(notes(entry), [""; 0], "{entry:?}");
            if presence(&mut eyes, &one) == old {
                break;
            }
        }
        soon(guard.release()).await.unwrap();
    }
}
