//! What a layer decides for each request: whether it locks, how long it waits, and what a refusal looks like for gRPC.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::header::{CONTENT_TYPE, COOKIE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use tenure::middleware::{Grpc, KeySource, Refused, StoreFailure, Unlocked, keys};
use tenure::{Key, Lease, LockLayer, Locks};

use crate::help::{ms, soon};
use crate::layer::{by_path, request, send, status, text, to, until};
use crate::layer_keys::{app as keyed, key, ok, routes, with};

/// Answers with the locked key, or with `unlocked` or `none`.
async fn seen(lease: Option<Lease>, request: Request<Body>) -> String {
    match (lease, request.extensions().get::<Unlocked>()) {
        (Some(lease), None) => lease.key().to_string(),
        (None, Some(Unlocked)) => "unlocked".into(),
        (None, None) => "none".into(),
        (Some(_), Some(_)) => panic!("a request with a lease is not unlocked"),
    }
}

fn served(layer: LockLayer<impl KeySource>) -> Router {
    Router::new().route("/", any(seen)).route_layer(layer)
}

#[tokio::test]
async fn only_methods_that_may_change_something_are_locked() {
    let locks = Locks::memory();
    let app = served(by_path(&locks).only_unsafe().include_options());
    let query = Method::from_bytes(b"QUERY").unwrap();
    for (method, expected) in [
        (Method::GET, "none"),
        (Method::OPTIONS, "none"),
        (Method::TRACE, "none"),
        (query.clone(), "none"),
        (Method::POST, "/"),
        (Method::DELETE, "/"),
        (Method::PATCH, "/"),
        (Method::from_bytes(b"query").unwrap(), "/"),
    ] {
        let answer = soon(send(&app, request(method.clone(), "/"))).await.unwrap();
        assert_eq!(text(answer).await, expected, "{method}");
    }
    // No key is read: this source refuses each request.
    let app = served(LockLayer::new(&locks, keys::header_text("missing")).only_unsafe());
    assert_eq!(status(&app, request(Method::HEAD, "/")).await, 200);
    assert_eq!(status(&app, request(Method::PUT, "/")).await, 400);
    // A layer that took no lock shows none, as with `OPTIONS`.
    let inner = served(LockLayer::by(&locks, |_| "inner").only_unsafe());
    let app = inner.route_layer(by_path(&locks));
    let answer = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(text(answer).await, "none");
    let app = served(by_path(&locks));
    let answer = soon(send(&app, request(query, "/"))).await.unwrap();
    assert_eq!(text(answer).await, "/", "only on request");
}

#[tokio::test]
async fn each_request_may_wait_for_a_time_of_its_own() {
    let locks = Locks::memory();
    let wait = |parts: &http::request::Parts| {
        let seconds = parts.headers.get("wait")?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs_f64(seconds))
    };
    let held = locks.mutex("/").lock().await.unwrap();
    let app = served(by_path(&locks).wait(ms(50)).wait_by(wait));
    // Zero is a skip; a longer time than that of the layer is not waited; none is that of the layer.
    for (headers, expected) in [
        (&[("wait", &b"0"[..])][..], StatusCode::LOCKED),
        (&[("wait", b"0.01")], StatusCode::TOO_MANY_REQUESTS),
        (&[("wait", b"1000")], StatusCode::TOO_MANY_REQUESTS),
        (&[], StatusCode::TOO_MANY_REQUESTS),
    ] {
        assert_eq!(status(&app, with(headers)).await, expected, "{headers:?}");
    }
    let patient = served(by_path(&locks).wait(ms(60_000)).wait_by(wait));
    let waits = send(&patient, with(&[("wait", b"50")]));
    until(|| locks.waiter_count() == 1).await;
    assert_eq!(status(&patient, with(&[("wait", b"0.01")])).await, 429);
    drop(held);
    assert_eq!(soon(waits).await.unwrap().status(), 200);
    // A retry under a key of its own gets the status of its draft.
    let app = served(LockLayer::new(&locks, keys::idempotency_key()).wait_by(|_| Some(Duration::ZERO)));
    let held = locks.mutex("GET / a").lock().await.unwrap();
    assert_eq!(status(&app, with(&[("idempotency-key", b"a")])).await, 409);
    drop(held);
}

#[tokio::test]
async fn a_request_that_does_not_wait_is_answered_when_its_lock_is_free() {
    let locks = Locks::memory();
    let app = served(by_path(&locks).wait_by(|_| Some(Duration::ZERO)));
    for _ in 0..100 {
        assert_eq!(
            status(&app, to("/")).await,
            200,
            "the lock of the request before is free"
        );
        assert!(locks.mutex("/").try_lock().await.unwrap().is_some());
    }
}

/// The crate reads what the handlers of axum-extra, tower-cookies and actix-web see.
#[tokio::test]
async fn a_cookie_is_read_as_the_crate_cookie_reads_it() {
    let sid = keyed(keys::cookie_text("sid"));
    let (mut locked, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let parts = [
            "sid", "%73id", "si%64", "s", "=", "=", "a", "%61", "%ff", "\"", "%22", " ", ";", "; sid=", "%",
            "%2561",
        ];
        let field: String = (0..fastrand::usize(1..8))
            .map(|_| fastrand::choice(parts).unwrap())
            .collect();
        let mut request = to("/");
        request.headers_mut().insert(COOKIE, field.parse().unwrap());
        let found = cookie::Cookie::split_parse_encoded(&field).filter_map(Result::ok);
        let found: Vec<_> = found.filter(|cookie| cookie.name() == "sid").collect();
        match (key(&sid, request).await, &found[..]) {
            (Ok(key), [cookie]) => {
                let value = Key::from(("", cookie.value_trimmed()));
                assert_eq!(key, format!("cookie:sid{value}"), "{field}");
                locked += 1;
            }
            (Ok(key), found) => panic!("{field} is {key}, and a handler sees {found:?}"),
            // A handler may see no cookie where its value is no UTF-8.
            (Err((_, Some(Refused::NoKey))), found) => assert!(found.is_empty(), "{field}: {found:?}"),
            (Err((status, why)), found) => {
                assert_eq!((status, why), (400, Some(Refused::BadKey)), "{field}");
                let is_read = found.len() == 1 && !found[0].value_trimmed().is_empty();
                assert!(!is_read || field.contains("%ff"), "{field}: {found:?}");
                refused += 1;
            }
        }
    }
    assert!(locked > 50 && refused > 50, "{locked} locked, {refused} refused");
}

#[tokio::test]
async fn a_cookie_is_a_key() {
    let sid = keyed(keys::cookie_text("sid"));
    let cookies = |fields: &[&'static str]| {
        let mut request = to("/");
        for field in fields {
            request
                .headers_mut()
                .append(COOKIE, HeaderValue::from_static(field));
        }
        request
    };
    let refused = |status, why| Err((status, Some(why)));
    for (fields, expected) in [
        (&["sid=abc"][..], ok("cookie:sid:abc")),
        (&["a=b; sid=\"abc\";c=d"], ok("cookie:sid:abc")),
        (&["a=b", " sid = a:b=c "], ok("cookie:sid:a%3Ab=c")),
        (&["SID=abc; xsid=abc"], refused(400, Refused::NoKey)),
        (&[], refused(400, Refused::NoKey)),
        (&["sid"], refused(400, Refused::NoKey)),
        (&["sid="], refused(400, Refused::BadKey)),
        (&["sid=\"\""], refused(400, Refused::BadKey)),
        (&["sid=a; sid=a"], refused(400, Refused::BadKey)),
        (&["sid=a", "b=c; sid=d"], refused(400, Refused::BadKey)),
        // axum-extra, tower-cookies and actix-web decode name and value; `headers::Cookie` decodes neither, and Express the
        // value only. The handler of one of them must not find another cookie than the lock of another.
        (&["sid=%61bc"], ok("cookie:sid:abc")),
        (&["%73id=abc"], ok("cookie:sid:abc")),
        (&["%73%69%64=\"%61b%63\""], ok("cookie:sid:abc")),
        (&["sid=%22abc%22"], ok("cookie:sid:abc")),
        (&["sid=a%3bb%2"], ok("cookie:sid:a;b%252")),
        (&["sid=%2561bc"], ok("cookie:sid:%2561bc")),
        (&["sid=abc", "%73id=def"], refused(400, Refused::BadKey)),
        (&["%73id=abc; s%69d=abc"], refused(400, Refused::BadKey)),
        (&["sid=%ff"], refused(400, Refused::BadKey)),
        (&["sid=%22%22"], refused(400, Refused::BadKey)),
        (&["sid=+a"], ok("cookie:sid:+a")),
    ] {
        assert_eq!(key(&sid, cookies(fields)).await, expected, "{fields:?}");
    }
    let named = keyed(keys::cookie_text("sid").named("session").optional());
    assert_eq!(key(&named, cookies(&["sid=abc"])).await, ok("session:abc"));
    assert_eq!(key(&named, cookies(&["a=b"])).await, ok("none"));
    let hashed = keyed(keys::cookie_text("sid").hashed("0123456789abcdef"));
    let key = key(&hashed, cookies(&["sid=abc"])).await.unwrap();
    assert!(key.starts_with("hashed:") && !key.contains("abc"), "{key}");
}

#[tokio::test]
async fn an_idempotency_key_may_have_another_header() {
    let locks = Locks::memory();
    let app = routes(&["/"], &locks, keys::idempotency_key().header("X-Request-Id"));
    assert_eq!(key(&app, with(&[("x-request-id", b"a")])).await, ok("GET / a"));
    let missing = Err((400, Some(Refused::NoKey)));
    assert_eq!(key(&app, with(&[("idempotency-key", b"a")])).await, missing);
}

/// Without a store behind it.
pub(crate) async fn without_store() -> Locks {
    let builder = Locks::builder().lazy().request_timeout(ms(200));
    // Nothing listens at this port.
    builder.connect("redis://127.0.0.1:1/").await.unwrap()
}

#[tokio::test]
async fn requests_run_unlocked_if_the_store_fails_and_the_layer_permits_it() {
    let locks = without_store().await;
    let answer = |layer: LockLayer<_>| {
        let app = served(layer);
        async move {
            let answer = soon(send(&app, to("/"))).await.unwrap();
            (answer.status().as_u16(), text(answer).await)
        }
    };
    let layer = by_path(&locks).wait(ms(2_000));
    assert_eq!(answer(layer.clone()).await.0, 503);
    let unlocked = layer.on_store_failure(StoreFailure::RunUnlocked);
    assert_eq!(answer(unlocked.clone()).await, (200, "unlocked".into()));
    assert_eq!(answer(unlocked.skip()).await, (200, "unlocked".into()));
    // All other refusals stay.
    let memory = Locks::memory();
    let held = memory.mutex("/").lock().await.unwrap();
    let layer = by_path(&memory).on_store_failure(StoreFailure::RunUnlocked);
    assert_eq!(answer(layer.clone().skip()).await.0, 423);
    drop(held);
    assert_eq!(answer(layer.clone()).await, (200, "/".into()));
    soon(memory.shutdown()).await;
    assert_eq!(answer(layer).await.0, 503);
}

#[tokio::test]
async fn a_key_of_one_request_and_its_retries_is_never_given_up() {
    let layer = |locks: &Locks| {
        let layer = LockLayer::new(locks, keys::idempotency_key().optional());
        served(layer.on_store_failure(StoreFailure::RunUnlocked))
    };
    for locks in [Locks::memory(), without_store().await] {
        let app = layer(&locks);
        let answer = soon(send(&app, with(&[("idempotency-key", b"a")])))
            .await
            .unwrap();
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.extensions().get(), Some(&Refused::BadOptions));
        assert_eq!(status(&app, to("/")).await, 200, "this request has no key");
    }
}

#[tokio::test]
async fn a_grpc_client_gets_a_code() {
    let locks = Locks::memory();
    let held = locks.mutex("/").lock().await.unwrap();
    let app = served(by_path(&locks).wait(ms(1)).on_refusal(Grpc));
    let answer = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/grpc");
    assert_eq!(answer.headers()["grpc-status"], "10");
    let message = answer.headers()["grpc-message"].to_str().unwrap();
    assert!(message.contains("Nothing was done"), "{message}");
    assert_eq!(answer.extensions().get(), Some(&Refused::WaitedTooLong));
    let body = answer.into_body().collect().await.unwrap();
    assert!(body.trailers().is_none() && body.to_bytes().is_empty());
    drop(held);
}

/// Each refusal has a code, and its text needs no encoding (percent-encoding of `grpc-message` in the gRPC protocol).
#[test]
fn texts_of_grpc_need_no_encoding() {
    for why in [
        Refused::Busy,
        Refused::InFlight,
        Refused::WaitedTooLong,
        Refused::QueueFull,
        Refused::StoreFailed,
        Refused::Recovering,
        Refused::StoreRefused,
        Refused::Closed,
        Refused::Lost,
        Refused::OutcomeUnknown,
        Refused::BadKey,
        Refused::NoKey,
        Refused::BadOptions,
    ] {
        let plain = |c: char| (' '..='~').contains(&c) && c != '%';
        assert!(why.detail().chars().all(plain), "{why:?}");
    }
}
