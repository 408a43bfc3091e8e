//! What holders say of themselves, as operators see it.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use std::future::pending;
use tenure::inspect::{Entry, Kind};
use tenure::{Lease, LockLayer, Locks, MultiKey, MultiLease};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};

use crate::help::soon;
use crate::support::inspect;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Returns the notes of all holders.
fn notes(entry: &Entry) -> Vec<&str> {
    let notes = entry.holders.iter().flat_map(|holder| &holder.notes);
    notes.map(|note| &*note.text).collect()
}

fn request(path: &str) -> Request<Body> {
    Request::post(format!("{path}?token=secret"))
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .header("authorization", "secret")
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn a_handler_that_hangs_is_named_by_its_route_and_trace() {
    let locks = Locks::memory();
    let layer = |key: &'static str| LockLayer::by(&locks, move |_| key).noted();
    let several = LockLayer::by(&locks, |_| ["one", "two"].map(MultiKey::write).to_vec()).noted();
    let long = format!("/{}/{{id}}", "ü".repeat(200));
    let app = Router::new()
        .route("/accounts/{id}", post(pending::<()>).layer(layer("plain")))
        .route(
            "/own",
            post(async |lease: Lease| {
                lease.note("row 7 of 9");
                pending::<()>().await;
            })
            .layer(layer("own")),
        )
        .route(
            "/several",
            post(async |_: MultiLease| pending::<()>().await).layer(several),
        )
        .route(&long, post(pending::<()>).layer(layer("long")))
        .route(
            "/silent",
            post(pending::<()>).layer(LockLayer::by(&locks, |_| "silent")),
        );
    // Not of axum: no route is known.
    let other = layer("tower").layer(service_fn(async |_: Request<Body>| {
        pending::<Result<http::Response<Body>, std::convert::Infallible>>().await
    }));
    let other = other.map_response(|answer| answer.map(Body::new));
    let mut requests = JoinSet::new();
    for path in [
        "/accounts/4711",
        "/own",
        "/several",
        &long.replace("{id}", "4711"),
        "/silent",
    ] {
        requests.spawn(app.clone().oneshot(request(path)));
    }
    requests.spawn(other.oneshot(request("/accounts/4711")));
    let shown = async |key| {
        let noted = |entry: &Entry| !notes(entry).is_empty();
        inspect::until(&locks, key, noted).await
    };
    let [entry] = [shown("plain").await];
    assert_eq!(notes(&entry), [format!("POST /accounts/{{id}} trace {TRACE}")]);
    assert_eq!(Some(entry.holders[0].notes[0].fence), entry.holders[0].fence);
    assert_eq!(notes(&shown("own").await), ["row 7 of 9"]);
    for key in ["one", "two"] {
        assert_eq!(notes(&shown(key).await), [format!("POST /several trace {TRACE}")]);
    }
    assert_eq!(notes(&shown("tower").await), [format!("POST trace {TRACE}")]);
    let cut = shown("long").await;
    let text = notes(&cut)[0];
    assert!((199..=200).contains(&text.len()), "{text}");
    assert!(
        text.starts_with("POST /ü") && text.ends_with(&format!("ü trace {TRACE}")),
        "{text}"
    );
    assert_eq!(notes(&inspect::show(&locks, "silent").await[0]), [""; 0]);
    // The note leaves with the request.
    requests.shutdown().await;
    let again = soon(locks.mutex("plain").lock()).await.unwrap();
    assert_eq!(notes(&inspect::show(&locks, "plain").await[0]), [""; 0]);
    drop(again);
}

#[tokio::test]
async fn each_of_several_holders_of_a_key_has_its_own_note() {
    let locks = Locks::memory();
    let readers = [(); 3].map(|()| locks.rw_lock("doc"));
    let mut guards = Vec::new();
    for reader in &readers {
        guards.push(soon(reader.read()).await.unwrap());
    }
    let permits = [
        soon(locks.semaphore("pool", 3).acquire()).await.unwrap(),
        soon(locks.semaphore("pool", 3).acquire()).await.unwrap(),
    ];
    guards[0].note("first");
    guards[2].note("before");
    guards[2].note("third");
    permits[1].note("permit");
    let doc = inspect::until(&locks, "doc", |entry| notes(entry).len() == 2).await;
    assert_eq!(doc.holder_count, 1, "readers of a node share a grant");
    let told: Vec<_> = doc.holders[0]
        .notes
        .iter()
        .map(|note| (note.fence, &*note.text))
        .collect();
    assert_eq!(told, [(guards[0].fence(), "first"), (guards[2].fence(), "third")]);
    let pool = inspect::until(&locks, "pool", |entry| !notes(entry).is_empty()).await;
    assert_eq!(pool.holder_count, 2);
    for holder in &pool.holders {
        let is_noted = holder.fence == Some(permits[1].fence());
        assert_eq!(holder.notes.len(), usize::from(is_noted), "{holder:?}");
    }
    // The next text takes the place of the former, and a view that stays keeps no note.
    let left = guards[0].lease();
    drop(guards.remove(0));
    guards[1].note("third again");
    let doc = inspect::until(&locks, "doc", |entry| notes(entry) == ["third again"]).await;
    assert_eq!(doc.holders[0].notes[0].fence, guards[1].fence());
    left.note("too late");
    drop((guards, permits));
}

#[cfg(all(feature = "scheduler", feature = "testing"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_is_noted_with_job_date_and_attempt() {
    use std::time::{Duration, UNIX_EPOCH};

    let locks = std::sync::Arc::new(Locks::memory());
    let job = locks.cron("reconcile", "0 0 0 1 1 *").timezone("Asia/Kolkata");
    let _job = job.run(async |_| pending::<()>().await).unwrap();
    let hours = UNIX_EPOCH.elapsed().unwrap().as_secs() / 3_600;
    let tick = UNIX_EPOCH + Duration::from_secs(hours * 3_600);
    let fired = locks.clone();
    let run = tokio::spawn(async move { tenure::testing::fire_tick(&fired, "reconcile", tick).await });
    let is_noted = |entry: &Entry| entry.kind == Kind::Job && !notes(entry).is_empty();
    let entry = inspect::until(&locks, "reconcile", is_noted).await;
    let note = notes(&entry)[0];
    let form = note.starts_with("reconcile 20") && note.ends_with(":30:00+05:30 attempt 1");
    assert!(form && note.contains('T'), "{note}");
    run.abort();
}
