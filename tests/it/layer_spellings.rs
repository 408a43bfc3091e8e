//! All spellings of a resource in a request are one lock, for each source of keys.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Path;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use tenure::middleware::{KeySource, keys};
use tenure::{Lease, LockLayer, Locks};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use uuid::Uuid;

use crate::help::soon;
use crate::layer::{GatedHandler, send, text, to};
use crate::layer_sources::User;

const UUIDS: [&str; 6] = [
    "67e55044-10b1-426f-9247-bb680e5fe0c8",
    "67E55044-10B1-426F-9247-BB680E5FE0C8",
    "67e5504410b1426f9247bb680e5fe0c8",
    "urn:uuid:67e55044-10b1-426f-9247-bb680e5fe0c8",
    "{67e55044-10b1-426f-9247-bb680e5fe0c8}",
    "67e55044-10b1-426f-9247-bb680e5fe0c9",
];

fn head(uri: &str) -> Parts {
    to(uri).into_parts().0
}

fn heads<const N: usize>(uris: [&str; N]) -> Vec<Parts> {
    uris.map(head).into()
}

/// Returns requests to `/o/1`, one for each value of this header.
fn headers<const N: usize>(name: &'static str, values: [&str; N]) -> Vec<Parts> {
    let with = |value: &str| {
        let mut head = head("/o/1");
        head.headers.insert(name, value.parse().unwrap());
        head
    };
    values.map(with).into()
}

fn by<const N: usize>(users: [User; N]) -> Vec<Parts> {
    let of = |user| {
        let mut head = head("/o/1");
        head.extensions.insert(user);
        head
    };
    users.map(of).into()
}

/// The status for a request that finds a lock of this source taken.
fn taken<K: KeySource>(_: &K) -> u16 {
    if K::RETRIES { 409 } else { 423 }
}

/// While a request with one spelling is in the handler, no other spelling gets in. The last request is about another
/// resource, and gets in.
async fn one_lock(source: impl KeySource, mut spellings: Vec<Parts>) {
    let taken = taken(&source);
    let other = spellings.pop().unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(LockLayer::new(&Locks::memory(), source).skip());
    let send = |head: &Parts| send(&app, Request::from_parts(head.clone(), Body::empty()));
    for holder in &spellings {
        let held = send(holder);
        seen.next().await;
        for spelling in &spellings {
            let status = soon(send(spelling)).await.unwrap().status();
            assert_eq!(status, taken, "{holder:?} and {spelling:?}");
        }
        let beside = send(&other);
        seen.next().await;
        handler.let_go(2);
        assert_eq!(soon(held).await.unwrap().status(), 200);
        assert_eq!(soon(beside).await.unwrap().status(), 200);
    }
    assert!(spellings.len() > 1 && seen.is_empty());
}

/// Checks the same around a service without axum.
async fn one_lock_on_any_service(source: impl KeySource, mut spellings: Vec<Parts>) {
    let taken = taken(&source);
    let other = spellings.pop().unwrap();
    let locks = Locks::memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(&locks, source).skip())
        .service(service_fn(|request: Request<String>| async move {
            let lease: &Lease = request.extensions().get().unwrap();
            Ok::<_, Infallible>(Response::new(Body::from(lease.key().as_bytes().to_vec())))
        }));
    let send = async |head: &Parts| {
        let request = Request::from_parts(head.clone(), String::new());
        soon(service.clone().oneshot(request)).await.unwrap()
    };
    let key = text(send(&spellings[0]).await).await;
    let _held = locks.mutex(key).try_lock().await.unwrap().unwrap();
    for spelling in &spellings {
        assert_eq!(send(spelling).await.status(), taken, "{spelling:?}");
    }
    assert_eq!(send(&other).await.status(), 200);
}

#[tokio::test]
async fn all_spellings_of_a_path_parameter_are_one_lock() {
    let accounts = || {
        heads([
            "/o/42",
            "/o/042",
            "/o/+42",
            "/o/%34%32",
            "/o/%2b42",
            "/o/42?x",
            "/o/43",
        ])
    };
    one_lock(keys::path_param::<u64>("id"), accounts()).await;
    one_lock(keys::path_param::<u64>("id").named("account"), accounts()).await;
    let uuids: Vec<_> = UUIDS
        .iter()
        .map(|uuid| head(&format!("/o/{}", uuid.replace('{', "%7B").replace('}', "%7D"))))
        .collect();
    one_lock(keys::path_param::<Uuid>("id"), uuids).await;
    let encoded = heads(["/o/a%2Fb", "/o/a%2fb", "/o/%61%2fb", "/o/a"]);
    one_lock(keys::path_text("id"), encoded.clone()).await;
    one_lock(keys::path(), encoded).await;

    // Extractors behave alike.
    let (handler, mut seen) = GatedHandler::new();
    let layer = LockLayer::from_extractors(&Locks::memory(), |Path(id): Path<u64>| ("account", id));
    let app = handler.app(layer.skip());
    let held = send(&app, to("/o/42"));
    seen.next().await;
    for uri in ["/o/042", "/o/+42", "/o/%34%32"] {
        assert_eq!(soon(send(&app, to(uri))).await.unwrap().status(), 423, "{uri}");
    }
    handler.let_go(1);
    assert_eq!(soon(held).await.unwrap().status(), 200);
}

#[tokio::test]
async fn all_spellings_of_a_header_are_one_lock() {
    let accounts = || headers("x-account", ["42", "042", "+42", " 42\t", "43"]);
    one_lock(keys::header::<u64>("x-account"), accounts()).await;
    one_lock_on_any_service(keys::header::<u64>("x-account").named("account"), accounts()).await;
    one_lock(keys::header::<Uuid>("x-account"), headers("x-account", UUIDS)).await;
    let tenants = || headers("x-tenant", ["acme", " acme", "acme  ", "ACME"]);
    one_lock(keys::header_text("x-tenant"), tenants()).await;
    one_lock_on_any_service(keys::header_text("x-tenant"), tenants()).await;
}

#[tokio::test]
async fn all_spellings_of_a_query_parameter_are_one_lock() {
    let accounts = || {
        heads([
            "/o/1?id=42",
            "/o/1?id=042",
            "/o/2?id=%2B42",
            "/o/1?%69d=%34%32",
            "/o/1?a=b&id=42&ids=7",
            "/o/1?id=43",
        ])
    };
    one_lock(keys::query_param::<u64>("id"), accounts()).await;
    one_lock_on_any_service(keys::query_param::<u64>("id").named("account"), accounts()).await;
    let names = || heads(["/o/1?n=a+b", "/o/1?n=a%20b", "/o/1?n=%61%20%62", "/o/1?n=a%2Bb"]);
    one_lock(keys::query_text("n"), names()).await;
    one_lock_on_any_service(keys::query_text("n"), names()).await;
}

#[tokio::test]
async fn all_spellings_of_a_host_are_one_lock() {
    let hosts = || {
        let mut all = headers(
            "host",
            [
                "example.com",
                "EXAMPLE.com",
                "example.com:80",
                "example.com.:8080",
            ],
        );
        all.extend(heads(["http://example.com/o/1", "http://Example.Com.:80/o/1"]));
        let mut both = head("http://example.com/o/1");
        both.headers
            .insert(HOST, HeaderValue::from_static("Example.com:80"));
        all.push(both);
        all.extend(headers("host", ["example.org"]));
        all
    };
    one_lock(keys::host(), hosts()).await;
    one_lock_on_any_service(keys::host().named("site"), hosts()).await;
    one_lock(
        keys::host(),
        headers("host", ["[::1]", "[0:0::1]:80", "[0::0:1]", "[::2]"]),
    )
    .await;
}

#[tokio::test]
async fn all_spellings_of_an_idempotency_key_are_one_lock() {
    let attempts = || headers("idempotency-key", ["8e03", r#""8e03""#, r#" "8e03";v=1"#, "8E03"]);
    one_lock(keys::idempotency_key(), attempts()).await;
    one_lock_on_any_service(keys::idempotency_key(), attempts()).await;
}

#[tokio::test]
async fn a_user_is_one_lock_wherever_the_request_goes() {
    let user = |id| User { id, tenant: "acme" };
    let users = || by([user(7), User { id: 7, tenant: "" }, user(8)]);
    one_lock(keys::extension(|user: &User| user.id), users()).await;
    one_lock_on_any_service(keys::extension(|user: &User| user.id).named("user"), users()).await;
}

#[tokio::test]
async fn all_spellings_are_one_lock_also_when_scoped_and_hashed() {
    let accounts = || headers("x-account", ["42", "042", "+42", "43"]);
    let source = || keys::header::<u64>("x-account");
    one_lock(source().hashed("secret"), accounts()).await;
    one_lock_on_any_service(source().per(keys::fixed("acme")), accounts()).await;
    one_lock(keys::fixed("a").per(source()), accounts()).await;
    one_lock(source().per(keys::fixed("acme")).hashed("secret"), accounts()).await;
}
