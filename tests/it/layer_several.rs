//! Layers that lock several keys, that lock for reading, and that admit some requests at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::routing::any;
use http::request::Parts;
use http::{Method, Request};
use tenure::middleware::{IntoLockKey, KeySource, Leases, LockKey, Refused, keys};
use tenure::testing::Clock;
use tenure::{Key, Lease, LockLayer, Locks, MemoryStore, MultiKey, MultiLease};
use tracing::Level;

use crate::help::{ms, soon};
use crate::layer::{GatedHandler, request, send, status, steal, text, to, until};
use crate::layer_keys::{BAD_KEY, NO_KEY, app as one, key, with};
use crate::support::events::Watch;

/// Answers with the form of what the request holds, its keys, and the number of all leases.
async fn seen(one: Option<Lease>, several: Option<MultiLease>, leases: Leases) -> String {
    let names = |lease: &MultiLease| {
        lease
            .fences()
            .map(|(key, _)| key.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    match (one, several) {
        (Some(lease), None) => format!("one {} {}", lease.key(), leases.len()),
        (None, Some(lease)) => format!("several {} {}", names(&lease), leases.len()),
        (None, None) => format!("none {}", leases.len()),
        (Some(_), Some(_)) => panic!("the innermost layer has one form"),
    }
}

fn behind<K: KeySource>(layer: LockLayer<K>) -> Router {
    Router::new().route("/", any(seen)).route_layer(layer)
}

fn by<R: IntoLockKey + Send + 'static>(
    locks: &Locks,
    keys: impl Fn() -> R + Clone + Send + Sync + 'static,
) -> LockLayer<impl KeySource> {
    LockLayer::by(locks, move |_| keys())
}

async fn answer(app: &Router, request: Request<Body>) -> (u16, String) {
    let answer = soon(send(app, request)).await.unwrap();
    (answer.status().as_u16(), text(answer).await)
}

async fn shown(layer: LockLayer<impl KeySource>) -> String {
    let (status, text) = answer(&behind(layer), to("/")).await;
    assert_eq!(status, 200, "{text}");
    text
}

/// Returns two nodes of one store.
pub(crate) fn replicas() -> (MemoryStore, Locks, Locks) {
    let store = MemoryStore::new();
    let node = || Locks::builder().memory_shared(&store).unwrap();
    let (one, other) = (node(), node());
    (store, one, other)
}

#[tokio::test]
async fn the_form_of_a_key_decides_what_the_handler_sees() {
    let locks = Locks::memory();
    let locks = &locks;
    assert_eq!(shown(by(locks, || "a")).await, "one a 1");
    assert_eq!(shown(by(locks, || MultiKey::read("a"))).await, "one a 1");
    assert_eq!(shown(by(locks, || ["b", "a"])).await, "several a b 2");
    assert_eq!(
        shown(by(locks, || [("account", 2), ("account", 1)])).await,
        "several account:1 account:2 2"
    );
    assert_eq!(shown(by(locks, || [7_u64])).await, "several 7 1");
    assert_eq!(shown(by(locks, || ["a", "a"])).await, "several a 1");
    assert_eq!(
        shown(by(locks, || vec![MultiKey::read("b"), "a".into()])).await,
        "several a b 2"
    );
    assert_eq!(shown(by(locks, || Some([Key::from("a")]))).await, "several a 1");
    assert_eq!(
        shown(by(locks, || LockKey::several([MultiKey::from("a")]))).await,
        "several a 1"
    );
    assert_eq!(shown(by(locks, Vec::<MultiKey>::new)).await, "none 0");
    assert_eq!(shown(by(locks, || None::<[u64; 2]>)).await, "none 0");
    assert_eq!(shown(by(locks, || [0_u64; 0])).await, "none 0");
    let missing = || keys::header_text("missing").optional();
    let fixed = keys::fixed;
    assert_eq!(
        shown(LockLayer::new(locks, fixed("b").and(fixed("a")))).await,
        "several a b 2"
    );
    assert_eq!(
        shown(LockLayer::new(locks, fixed("a").and(missing()))).await,
        "several a 1"
    );
    assert_eq!(
        shown(LockLayer::new(locks, missing().and(missing()))).await,
        "none 0"
    );
    let three = fixed("c").and(fixed("a").and(fixed("b"))).per(fixed("x"));
    assert_eq!(shown(LockLayer::new(locks, three)).await, "several x:a x:b x:c 3");
    let hashed = shown(LockLayer::new(locks, fixed("a").and(fixed("b")).hashed("secret"))).await;
    assert_eq!(hashed.matches("hashed:").count(), 2, "{hashed}");
}

#[tokio::test]
async fn several_keys_are_held_together_and_excluded_elsewhere() {
    let (store, locks, other) = replicas();
    let (handler, mut inside) = GatedHandler::new();
    let keys = |_: &Parts| [MultiKey::write("a"), MultiKey::read("rates")];
    let app = handler.app(LockLayer::by(&locks, keys));
    let request = send(&app, to("/o/1"));
    inside.next().await;
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    assert!(other.rw_lock("rates").try_write().await.unwrap().is_none());
    drop(other.rw_lock("rates").try_read().await.unwrap().unwrap());
    let mutex = other.mutex("a");
    let waits = mutex.lock_timeout(ms(60_000));
    handler.let_go(1);
    assert_eq!(soon(request).await.unwrap().status(), 200);
    drop(soon(waits).await.unwrap());
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn keys_that_a_client_chose_badly_are_400() {
    let locks = Locks::memory();
    let many = |count: u64| by(&locks, move || LockKey::several((0..count).map(MultiKey::from)));
    assert_eq!(answer(&behind(many(64)), to("/")).await.0, 200);
    for layer in [many(65), many(1_000)] {
        let answer = soon(send(&behind(layer), to("/"))).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&Refused::BadKey));
    }
    let twice = by(&locks, || {
        LockKey::several((0..65_u64).map(|id| MultiKey::from(id % 64)))
    });
    assert_eq!(
        answer(&behind(twice), to("/")).await.0,
        200,
        "each key counts once"
    );
    for empty in [["a", ""], ["", "a"]] {
        assert_eq!(answer(&behind(by(&locks, move || empty)), to("/")).await.0, 400);
    }
    let long = by(&locks, || ["a".to_owned(), "x".repeat(100_000)]);
    assert_eq!(answer(&behind(long), to("/")).await.0, 400);
    // A refusal of one source is that of both.
    let both = || {
        keys::header::<u64>("from")
            .named("a")
            .and(keys::header::<u64>("to").named("a"))
    };
    let app = one(both());
    assert_eq!(key(&app, with(&[("from", b"1")])).await, NO_KEY);
    assert_eq!(key(&app, with(&[("to", b"x"), ("from", b"1")])).await, BAD_KEY);
    // A scope is one value, and each key is checked before it is hashed or scoped.
    assert_eq!(
        key(
            &one(keys::fixed("a").per(both())),
            with(&[("from", b"1"), ("to", b"2")])
        )
        .await
        .unwrap_err()
        .0,
        500
    );
    let empty = || keys::fixed("a").and(keys::fixed(""));
    assert_eq!(key(&one(empty().hashed("secret")), to("/")).await, BAD_KEY);
    assert_eq!(key(&one(empty().per(keys::fixed("x"))), to("/")).await, BAD_KEY);
}

#[tokio::test]
async fn a_key_that_is_read_and_written_is_written() {
    let (_, locks, other) = replicas();
    let (handler, mut inside) = GatedHandler::new();
    let app = handler.app(by(&locks, || [MultiKey::read("a"), MultiKey::write("a")]));
    let request = send(&app, to("/o/1"));
    inside.next().await;
    assert!(other.rw_lock("a").try_read().await.unwrap().is_none());
    handler.let_go(1);
    assert_eq!(soon(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn readers_share_and_a_writer_gets_its_turn() {
    let store = MemoryStore::new();
    let clock = Clock::new();
    let node = || {
        let builder = Locks::builder().clock(clock.clone());
        builder.memory_shared(&store).unwrap()
    };
    let (locks, other) = (node(), node());
    let (handler, mut inside) = GatedHandler::new();
    let app = |locks: &Locks| handler.app(LockLayer::new(locks, keys::fixed("a").by_method()));
    let (here, there) = (app(&locks), app(&other));
    let mut requests = vec![send(&here, to("/o/r1")), send(&there, to("/o/r2"))];
    let mut first = [inside.next().await, inside.next().await];
    first.sort();
    assert_eq!(first, ["r1", "r2"], "readers of two replicas are inside together");
    // The burst is over, in which readers of one process share a lease.
    clock.jump(ms(1_000));
    requests.push(send(&there, request(Method::POST, "/o/w")));
    until(|| other.waiter_count() == 1).await;
    // Readers that come after the writer do not pass it.
    requests.push(send(&here, request(Method::HEAD, "/o/r3")));
    requests.push(send(
        &there,
        request(Method::from_bytes(b"QUERY").unwrap(), "/o/r4"),
    ));
    until(|| locks.waiter_count() == 1).await;
    assert!(inside.is_empty());
    handler.let_go(2);
    assert_eq!(inside.next().await, "w");
    assert!(inside.is_empty());
    assert_eq!(handler.inside.load(Ordering::SeqCst), 1);
    handler.let_go(10);
    for request in requests {
        soon(request).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_read_stays_read() {
    let (_, locks, other) = replicas();
    let (handler, mut inside) = GatedHandler::new();
    let source = |_: &Parts| [MultiKey::write("a"), MultiKey::read("b")];
    for (app, method, free) in [
        (
            handler.app(LockLayer::new(&locks, source.read())),
            Method::POST,
            ["a", "b"].as_slice(),
        ),
        (
            handler.app(LockLayer::new(&locks, source.by_method())),
            Method::GET,
            &["a", "b"],
        ),
        (
            handler.app(LockLayer::new(&locks, source.by_method())),
            Method::POST,
            &["b"],
        ),
    ] {
        let request = send(&app, request(method, "/o/1"));
        inside.next().await;
        for key in ["a", "b"] {
            let is_free = other.rw_lock(key).try_read().await.unwrap().is_some();
            assert_eq!(is_free, free.contains(&key), "{key}");
        }
        handler.let_go(1);
        soon(request).await.unwrap();
        soon(locks.idle()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_pairs_never_wait_in_a_circle() {
    let (store, locks, other) = replicas();
    let inside: Arc<[AtomicUsize; 4]> = Arc::default();
    let app = |locks: &Locks| {
        let inside = inside.clone();
        let handler = move |lease: MultiLease| {
            let inside = inside.clone();
            async move {
                let at = |key: &Key| key.to_string().parse::<usize>().unwrap();
                let keys: Vec<_> = lease.fences().map(|(key, _)| at(key)).collect();
                for key in &keys {
                    assert_eq!(inside[*key].fetch_add(1, Ordering::SeqCst), 0);
                }
                tokio::task::yield_now().await;
                for key in &keys {
                    inside[*key].fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        let pair = |parts: &Parts| {
            let digits = parts.uri.query().unwrap().as_bytes();
            [u64::from(digits[0] - b'0'), u64::from(digits[1] - b'0')]
        };
        let layer = LockLayer::by(locks, pair)
            .wait(Duration::from_secs(60))
            .max_waiters(1_000);
        Router::new().route("/", any(handler)).route_layer(layer)
    };
    let apps = [app(&locks), app(&other)];
    let requests: Vec<_> = (0..1_000)
        .map(|at| {
            send(
                &apps[at % 2],
                to(&format!("/?{}{}", fastrand::u8(0..4), fastrand::u8(0..4))),
            )
        })
        .collect();
    for request in requests {
        assert_eq!(soon(request).await.unwrap().status(), 200);
    }
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_admit_some_at_a_time() {
    let (store, locks, other) = replicas();
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let app = |locks: &Locks| {
        let (inside, most) = (inside.clone(), most.clone());
        let handler = move |lease: Lease| {
            let (inside, most) = (inside.clone(), most.clone());
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                assert!(lease.is_held());
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let layer = LockLayer::new(locks, keys::fixed("exports")).permits(3);
        // An hour, because ten thousand requests take minutes on a slow machine.
        let layer = layer.wait(Duration::from_secs(3_600)).max_waiters(20_000);
        Router::new().route("/", any(handler)).route_layer(layer)
    };
    let apps = [app(&locks), app(&other)];
    let requests: Vec<_> = (0..10_000).map(|at| send(&apps[at % 2], to("/"))).collect();
    for request in requests {
        assert_eq!(soon(request).await.unwrap().status(), 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_request_without_a_permit_is_refused_or_waits() {
    let (_, locks, other) = replicas();
    let (handler, mut inside) = GatedHandler::new();
    let layer = |locks: &Locks| LockLayer::new(locks, keys::fixed("exports")).permits(3);
    let apps = [handler.app(layer(&locks)), handler.app(layer(&other))];
    let mut requests: Vec<_> = (0..3).map(|at| send(&apps[at % 2], to("/o/1"))).collect();
    for _ in 0..3 {
        inside.next().await;
    }
    assert_eq!(status(&handler.app(layer(&locks).skip()), to("/o/1")).await, 423);
    assert_eq!(
        status(&handler.app(layer(&other).wait(ms(10))), to("/o/1")).await,
        429
    );
    requests.push(send(&apps[1], to("/o/fourth")));
    until(|| other.waiter_count() == 1).await;
    assert!(inside.is_empty());
    handler.let_go(1);
    assert_eq!(inside.next().await, "fourth");
    handler.let_go(3);
    for request in requests {
        assert_eq!(soon(request).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn permits_that_cannot_be_given_are_a_fault_of_the_program() {
    let locks = Locks::memory();
    let locks = &locks;
    // Each test needs words of its own.
    async fn is_fault(layer: LockLayer<impl KeySource>, tells: &str) {
        let watch = Watch::of(tells);
        let answer = soon(send(&behind(layer), with(&[("idempotency-key", b"a")])))
            .await
            .unwrap();
        assert_eq!(answer.extensions().get(), Some(&Refused::BadOptions), "{tells}");
        assert_eq!(watch.until("refused").await.level, Level::ERROR);
    }
    is_fault(
        by(locks, || "p-none").permits(0),
        "semaphore `p-none` has no permits",
    )
    .await;
    is_fault(by(locks, || ["a"]).permits(71), "permits(71)").await;
    is_fault(by(locks, || MultiKey::read("a")).permits(72), "permits(72)").await;
    is_fault(
        LockLayer::new(locks, keys::idempotency_key()).permits(2),
        "`permits` would run both",
    )
    .await;
}

#[tokio::test]
async fn nested_layers_share_what_the_request_holds() {
    let (store, locks, _) = replicas();
    let nested = |outer: fn() -> LockKey, inner: fn() -> LockKey| {
        Router::new()
            .route("/", any(seen))
            .route_layer(by(&locks, inner))
            .route_layer(by(&locks, outer))
    };
    fn read(key: &'static str) -> LockKey {
        LockKey::lock(MultiKey::read(key))
    }
    fn write(key: &'static str) -> LockKey {
        LockKey::lock(key)
    }
    for (outer, inner, expected) in [
        (|| write("a"), || ["a", "b"].into_lock_key(), "several a b 3"),
        (|| write("a"), || ["a"].into_lock_key(), "several a 2"),
        (|| ["a", "b"].into_lock_key(), || write("b"), "one b 3"),
        (
            || ["a", "b"].into_lock_key(),
            || ["b", "c", "a"].into_lock_key(),
            "several a b c 5",
        ),
        (|| write("a"), || read("a"), "one a 2"),
        (
            || write("a"),
            || vec![MultiKey::read("a")].into_lock_key(),
            "several a 2",
        ),
        (|| read("a"), || read("a"), "one a 2"),
        (|| ["a", "b"].into_lock_key(), LockKey::nothing, "none 2"),
    ] as [(fn() -> LockKey, fn() -> LockKey, &str); 8]
    {
        assert_eq!(
            answer(&nested(outer, inner), to("/")).await,
            (200, expected.into())
        );
    }
    // Two readers that want to write would wait for each other.
    for (outer, inner) in [
        (|| read("rw-a"), || write("rw-a")),
        (|| read("rw-a"), || ["b", "rw-a"].into_lock_key()),
        (|| vec![MultiKey::read("rw-a")].into_lock_key(), || write("rw-a")),
    ] as [(fn() -> LockKey, fn() -> LockKey); 3]
    {
        let (app, watch) = (nested(outer, inner), Watch::of("`rw-a`"));
        for _ in 0..3 {
            assert_eq!(status(&app, to("/")).await, 500);
        }
        watch.until("refused").await;
        let told = watch.told();
        let errors = told.iter().filter(|told| told.level == Level::ERROR).count();
        assert_eq!(errors, 1, "once a minute for each route: {told:?}");
    }
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

/// The loss reaches the views of both layers.
#[tokio::test]
async fn a_loss_is_told_to_each_of_nested_layers() {
    let (store, locks, _) = replicas();
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let watch = move |lease: MultiLease, request: axum::extract::Request, next: Next| {
        let told = counted.clone();
        tokio::spawn(async move {
            lease.lost().await;
            told.fetch_add(1, Ordering::SeqCst);
        });
        async move { next.run(request).await }
    };
    let (handler, mut inside) = GatedHandler::new();
    let layer = || by(&locks, || ["a"]).lease(ms(3_000));
    let app = handler
        .app(layer())
        .route_layer(from_fn(watch))
        .route_layer(layer());
    let request = send(&app, to("/o/1"));
    inside.next().await;
    steal(&store, "a");
    assert_eq!(soon(request).await.unwrap().status(), 500);
    until(|| told.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn nested_layers_share_a_permit() {
    let locks = Locks::memory();
    let layer = |n| LockLayer::new(&locks, keys::fixed("a")).permits(n).skip();
    let nested = |outer, inner| {
        Router::new()
            .route("/", any(seen))
            .route_layer(layer(inner))
            .route_layer(layer(outer))
    };
    assert_eq!(answer(&nested(1, 1), to("/")).await, (200, "one a 2".into()));
    assert_eq!(
        answer(&nested(3, 1), to("/")).await.0,
        500,
        "another number is another promise"
    );
    let locked = Router::new()
        .route("/", any(seen))
        .route_layer(layer(2))
        .route_layer(by(&locks, || "a"));
    // A lock of the same key is another thing.
    assert_eq!(answer(&locked, to("/")).await, (200, "one a 2".into()));
    soon(locks.idle()).await;
}

#[tokio::test]
async fn only_a_writer_of_one_key_sends_its_fence() {
    let locks = Locks::memory();
    async fn sends(layer: LockLayer<impl KeySource>) -> bool {
        let app = behind(layer.fence_header("fence"));
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.headers().contains_key("fence")
    }
    assert!(sends(by(&locks, || "a")).await);
    assert!(!sends(by(&locks, || MultiKey::read("a"))).await);
    assert!(!sends(by(&locks, || ["a"])).await);
    assert!(!sends(by(&locks, || "a").permits(2)).await);
    // A reader that shares the lease of a writer.
    let reader = by(&locks, || MultiKey::read("a")).fence_header("fence");
    let app = behind(reader).route_layer(by(&locks, || "a"));
    assert!(
        !soon(send(&app, to("/")))
            .await
            .unwrap()
            .headers()
            .contains_key("fence")
    );
}

#[tokio::test]
async fn a_dry_run_tries_the_same_modes_and_permits() {
    let locks = Locks::memory();
    async fn overlaps(locks: &Locks, layer: LockLayer<impl KeySource>, count: usize) -> usize {
        let watch = Watch::of("/dry-modes/o/{id}");
        let (handler, mut inside) = GatedHandler::new();
        let app = Router::new().nest("/dry-modes", handler.app(layer.dry_run()));
        let mut requests = Vec::new();
        for _ in 0..count {
            requests.push(send(&app, to("/dry-modes/o/1")));
            inside.next().await;
            // The store hears of a request one step later.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        handler.let_go(count);
        for request in requests {
            assert_eq!(soon(request).await.unwrap().status(), 200);
        }
        soon(locks.idle()).await;
        watch
            .told()
            .iter()
            .filter(|told| told.text.contains("overlap"))
            .count()
    }
    let layer = |key: fn() -> LockKey| by(&locks, key);
    assert_eq!(overlaps(&locks, layer(|| LockKey::lock("a")), 3).await, 2);
    assert_eq!(
        overlaps(&locks, layer(|| LockKey::lock(MultiKey::read("b"))), 3).await,
        0
    );
    assert_eq!(overlaps(&locks, layer(|| ["c", "d"].into_lock_key()), 3).await, 2);
    assert_eq!(
        overlaps(&locks, layer(|| LockKey::lock("e")).permits(2), 3).await,
        1
    );
    // A key that is read and written is written.
    let both = layer(|| [MultiKey::read("f"), MultiKey::write("f")].into_lock_key());
    assert_eq!(overlaps(&locks, both, 3).await, 2);
}
