//! The layer's ready-made keys, and keys from extractors with state.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, Path, State};
use axum::routing::any;
use http::header::HOST;
use http::{HeaderValue, Method, Request, Response};
use tenure::middleware::{KeySource, Refused, keys};
use tenure::{Key, Lease, LockLayer, Locks};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::help::{ms, soon};
use crate::layer::{request, send, text, to};
use crate::support::events::Watch;

/// A handler that answers with the locked key, or `none`.
pub(crate) async fn key_of(lease: Option<Lease>) -> Vec<u8> {
    lease.map_or(b"none".to_vec(), |lease| lease.key().as_bytes().to_vec())
}

pub(crate) fn routes(paths: &[&str], locks: &Locks, keys: impl KeySource) -> Router {
    paths
        .iter()
        .fold(Router::new(), |router, path| router.route(path, any(key_of)))
        .route_layer(LockLayer::new(locks, keys))
}

pub(crate) fn app(keys: impl KeySource) -> Router {
    routes(
        &["/", "/a/{id}", "/b/{id}", "/a/{id}/c/{other}", "/all/{*rest}"],
        &Locks::memory(),
        keys,
    )
}

pub(crate) fn with(headers: &[(&'static str, &[u8])]) -> Request<Body> {
    let mut request = to("/");
    for &(name, value) in headers {
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append(name, value);
    }
    request
}

/// Returns the key that this request locks, `Err` if it is refused.
pub(crate) async fn key(app: &Router, request: Request<Body>) -> Result<String, (u16, Option<Refused>)> {
    let response = soon(send(app, request)).await.unwrap();
    match response.status().as_u16() {
        200 => Ok(text(response).await),
        status => Err((status, response.extensions().get().copied())),
    }
}

pub(crate) fn ok(key: &str) -> Result<String, (u16, Option<Refused>)> {
    Ok(key.to_owned())
}

pub(crate) const NO_KEY: Result<String, (u16, Option<Refused>)> = Err((400, Some(Refused::NoKey)));
pub(crate) const BAD_KEY: Result<String, (u16, Option<Refused>)> = Err((400, Some(Refused::BadKey)));
pub(crate) const MISCONFIGURED: Result<String, (u16, Option<Refused>)> =
    Err((500, Some(Refused::BadOptions)));

#[tokio::test]
async fn a_fixed_key_is_that_of_the_core() {
    let locks = Locks::memory();
    let _held = locks.mutex("nightly").lock().await.unwrap();
    let app = Router::new().route("/{id}", any(key_of));
    let app = app.route_layer(LockLayer::new(&locks, keys::fixed("nightly")).skip());
    for uri in ["/a", "/b?c"] {
        assert_eq!(key(&app, to(uri)).await, Err((423, Some(Refused::Busy))));
    }
    let app = self::app(keys::fixed(""));
    assert_eq!(key(&app, to("/")).await, BAD_KEY);
}

// Path parameters.

#[tokio::test]
async fn a_path_parameter_is_of_its_type() {
    let app = app(keys::path_param::<u64>("id").named("account"));
    for uri in ["/a/7", "/b/007", "/a/+7/c/x"] {
        assert_eq!(key(&app, to(uri)).await, ok("account:7"), "{uri}");
    }
    for uri in [
        "/a/x",
        "/a/-7",
        "/a/7.0",
        "/a/7%20",
        "/a/18446744073709551616",
        "/a/%ff",
    ] {
        assert_eq!(key(&app, to(uri)).await, BAD_KEY, "{uri}");
    }
    let app = self::app(keys::path_param::<u64>("id"));
    assert_eq!(key(&app, to("/a/007/c/8")).await, ok("/a/<id>/c/<other> id=7"));
    assert_eq!(key(&app, to("/a/x")).await, BAD_KEY);
}

#[tokio::test]
async fn a_path_parameter_that_a_route_has_twice_is_refused() {
    let locks = Locks::memory();
    let watch = Watch::of("path=/teams/1/members/2");
    for source in [
        keys::path_param::<u64>("id"),
        keys::path_param::<u64>("id").named("member"),
    ] {
        let members = routes(&["/members/{id}"], &locks, source);
        let app = Router::new().nest("/teams/{id}", members);
        assert_eq!(key(&app, to("/teams/1/members/2")).await, MISCONFIGURED);
        assert_eq!(key(&app, to("/teams/2/members/2")).await, MISCONFIGURED);
    }
    let told = watch.until("parameter_twice").await;
    assert_eq!(told.level, tracing::Level::ERROR);
    assert!(told.text.contains("parameter=id"), "{told:?}");
}

#[tokio::test]
async fn a_client_cannot_reach_another_key() {
    // A job may lock an order of the account in this way.
    let order = Key::from(("account", 7, "order")).to_string();
    let app = app(keys::path_text("id").named("account"));
    assert_eq!(key(&app, to("/a/7")).await, ok("account:7"));
    assert_eq!(order, "account:7:order");
    assert_eq!(key(&app, to("/a/7:order")).await, ok("account:7%3Aorder"));
    assert_eq!(key(&app, to("/a/7%253Aorder")).await, ok("account:7%253Aorder"));
}

#[tokio::test]
async fn a_path_parameter_is_decoded_and_of_its_route() {
    let app = app(keys::path_text("id"));
    assert_eq!(key(&app, to("/a/7")).await, ok("/a/<id> id=7"));
    assert_eq!(key(&app, to("/b/7")).await, ok("/b/<id> id=7"));
    assert_eq!(key(&app, to("/a/7/c/8")).await, ok("/a/<id>/c/<other> id=7"));
    assert_eq!(
        key(&app, request(Method::DELETE, "/a/7?x=1")).await,
        ok("/a/<id> id=7")
    );
    for uri in ["/a/x%2Fy", "/a/x%2fy", "/a/%78%2fy"] {
        assert_eq!(key(&app, to(uri)).await, ok("/a/<id> id=x/y"), "{uri}");
    }
    assert_eq!(key(&app, to("/a/%C3%BC%20")).await, ok("/a/<id> id=ü "));
    assert_eq!(key(&app, to("/a/%ff")).await, BAD_KEY);
    assert_eq!(key(&app, to(&format!("/a/{}", "x".repeat(600)))).await, BAD_KEY);
}

#[tokio::test]
async fn a_named_path_parameter_is_one_key_on_all_routes() {
    let app = app(keys::path_text("id").named("account"));
    for uri in ["/a/7", "/b/7", "/a/7/c/8", "/b/%37"] {
        assert_eq!(key(&app, to(uri)).await, ok("account:7"), "{uri}");
    }
    assert_eq!(key(&app, to("/a/8")).await, ok("account:8"));
}

#[tokio::test]
async fn wildcards_are_path_parameters() {
    let app = app(keys::path_text("rest"));
    assert_eq!(
        key(&app, to("/all/x/%79%2Fz")).await,
        ok("/all/<*rest> rest=x/y/z")
    );
}

#[tokio::test]
async fn the_same_route_in_two_nests_is_two_routes() {
    let locks = Locks::memory();
    let inner = |keys| routes(&["/o/{id}"], &locks, keys);
    let app = Router::new()
        .nest("/v1", inner(keys::path_text("id")))
        .nest("/v2/{tenant}", inner(keys::path_text("id")));
    assert_eq!(key(&app, to("/v1/o/7")).await, ok("/v1/o/<id> id=7"));
    assert_eq!(key(&app, to("/v2/t/o/7")).await, ok("/v2/<tenant>/o/<id> id=7"));
}

#[tokio::test]
async fn a_route_without_the_parameter_is_misconfigured() {
    for source in [keys::path_text("id"), keys::path_text("id").named("a")] {
        let app = app(source.clone());
        assert_eq!(key(&app, to("/")).await, MISCONFIGURED);
        assert_eq!(key(&app, to("/all/x")).await, MISCONFIGURED);
        assert_eq!(key(&app, to("/nowhere")).await, Err((404, None)));

        // The layer is around the router, where no route is known.
        let around = ServiceBuilder::new()
            .layer(LockLayer::new(&Locks::memory(), source))
            .service(Router::<()>::new().route("/a/{id}", any(key_of)));
        let response = around.oneshot(to("/a/7")).await.unwrap();
        assert_eq!(response.extensions().get(), Some(&Refused::BadOptions));
    }
}

#[tokio::test]
async fn a_missing_parameter_is_reported() {
    let watch = Watch::of("parameter=nope");
    let app = app(keys::path_text("nope"));
    assert_eq!(key(&app, to("/a/7")).await, MISCONFIGURED);
    let told = watch.until("parameter_missing").await;
    assert_eq!(told.level, tracing::Level::ERROR);
    assert!(told.text.contains("path=/a/7"), "{told:?}");
    assert!(!told.text.contains("route_layer"), "{told:?}");
}

/// A layer around a router also runs for requests without a route, which have no path parameters.
#[tokio::test]
async fn a_layer_around_a_router_is_told_to_move_to_the_routes() {
    let watch = Watch::of("path=/leads/nowhere");
    let layer = LockLayer::new(&Locks::memory(), keys::path_param::<u64>("id"));
    let app: Router = Router::new().route("/a/{id}", any(key_of)).layer(layer);
    assert_eq!(key(&app, to("/leads/nowhere")).await, MISCONFIGURED);
    let told = watch.until("parameter_missing").await;
    assert_eq!(told.level, tracing::Level::ERROR);
    assert!(told.text.contains("use `route_layer`"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_program_is_an_error_once_a_minute_for_each_route() {
    let watch = Watch::of("parameter=seldom");
    let routes = Router::new()
        .route("/seldom/{a}", any(key_of))
        .route("/seldom/{a}/{b}", any(key_of));
    let app = routes.route_layer(LockLayer::new(&Locks::memory(), keys::path_text("seldom")));
    let errors = || {
        let mut told = watch.told();
        told.retain(|told| told.level == tracing::Level::ERROR);
        told.len()
    };
    for minute in 1..=2 {
        for n in 0..3 {
            assert_eq!(key(&app, to(&format!("/seldom/{n}"))).await, MISCONFIGURED);
            assert_eq!(key(&app, to(&format!("/seldom/{n}/x"))).await, MISCONFIGURED);
            tokio::time::advance(ms(19_000)).await;
        }
        assert_eq!(errors(), 2 * minute);
        tokio::time::advance(ms(3_000)).await;
    }
    assert_eq!(watch.count("parameter_missing"), 12);
}

// Headers.

#[tokio::test]
async fn a_header_is_bytes() {
    let app = app(keys::header_text("X-Account"));
    assert_eq!(key(&app, with(&[("x-account", b"7")])).await, ok("x-account:7"));
    let response = send(&app, with(&[("x-account", b"\xff:\xc3")])).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
    assert_eq!(&body[..], b"x-account:\xff%3A\xc3");
    let long = "7".repeat(600);
    assert_eq!(key(&app, with(&[("x-account", long.as_bytes())])).await, BAD_KEY);
}

#[tokio::test]
async fn a_missing_or_ambiguous_header_is_refused() {
    let strict = app(keys::header_text("x-account"));
    let optional = app(keys::header_text("x-account").optional());
    assert_eq!(key(&strict, to("/")).await, NO_KEY);
    assert_eq!(key(&strict, with(&[("account", b"7")])).await, NO_KEY);
    assert_eq!(key(&optional, to("/")).await, ok("none"));
    for app in [strict, optional] {
        assert_eq!(key(&app, with(&[("x-account", b"7")])).await, ok("x-account:7"));
        assert_eq!(key(&app, with(&[("x-account", b"")])).await, BAD_KEY);
        assert_eq!(key(&app, with(&[("x-account", b" ")])).await, BAD_KEY);
        let twice = [("x-account", &b"7"[..]), ("x-account", b"8")];
        assert_eq!(key(&app, with(&twice)).await, BAD_KEY);
        let same = [("x-account", &b"7"[..]), ("x-account", b"7")];
        assert_eq!(key(&app, with(&same)).await, BAD_KEY);
    }
}

#[tokio::test]
async fn a_header_is_of_its_type() {
    let app = app(keys::header::<u64>("x-account").named("account").optional());
    assert_eq!(key(&app, to("/")).await, ok("none"));
    assert_eq!(key(&app, with(&[("x-account", b" 007")])).await, ok("account:7"));
    for value in [&b""[..], b" ", b"x", b"-7", b"7, 8", b"\xff"] {
        assert_eq!(
            key(&app, with(&[("x-account", value)])).await,
            BAD_KEY,
            "{value:?}"
        );
    }
    let twice = [("x-account", &b"7"[..]), ("x-account", b"07")];
    assert_eq!(key(&app, with(&twice)).await, BAD_KEY);
}

#[tokio::test]
async fn headers_and_parameters_meet_if_they_are_named_alike() {
    let one = app(keys::header_text(HOST).named("account"));
    let other = app(keys::path_text("id").named("account"));
    assert_eq!(key(&one, with(&[("host", b"7")])).await, ok("account:7"));
    assert_eq!(key(&other, to("/a/7")).await, ok("account:7"));
}

#[test]
#[should_panic(expected = "the name is a valid header name")]
fn a_name_that_no_header_can_have_panics() {
    keys::header_text("x account");
}

// Idempotency-Key.

fn attempt(method: Method, uri: &str, value: &str) -> Request<Body> {
    let mut request = request(method, uri);
    request
        .headers_mut()
        .insert("idempotency-key", value.parse().unwrap());
    request
}

#[tokio::test]
async fn idempotency_keys_are_of_their_method_and_path() {
    let app = app(keys::idempotency_key());
    let post = |uri, value| attempt(Method::POST, uri, value);
    for value in [r#""8e03""#, "8e03", r#""8e03"; v=1"#] {
        assert_eq!(
            key(&app, post("/a/7", value)).await,
            ok("POST /a/7 8e03"),
            "{value}"
        );
    }
    assert_eq!(key(&app, post("/a/7?x", "8e03")).await, ok("POST /a/7 8e03"));
    assert_eq!(key(&app, post("/a/%37", "8e03")).await, ok("POST /a/7 8e03"));
    assert_eq!(key(&app, post("/a/8", "8e03")).await, ok("POST /a/8 8e03"));
    assert_eq!(
        key(&app, attempt(Method::PATCH, "/a/7", "8e03")).await,
        ok("PATCH /a/7 8e03")
    );
    // Without separators, both are the path `/a/7` and the key `x 8e03`, or the path `/a/7 x` and the key `8e03`.
    let one = key(&app, post("/a/7", r#""x 8e03""#)).await;
    let other = key(&app, post("/a/7%20x", "8e03")).await;
    assert_eq!((one, other), (ok("POST /a/7 x 8e03"), ok("POST /a/7%20x 8e03")));
}

#[tokio::test]
async fn idempotency_keys_that_are_missing_or_bad_are_refused() {
    let strict = app(keys::idempotency_key());
    let optional = app(keys::idempotency_key().optional());
    assert_eq!(key(&strict, to("/")).await, NO_KEY);
    assert_eq!(key(&optional, to("/")).await, ok("none"));
    for app in [strict, optional] {
        for value in ["", r#""""#, r#""a"#, r#""a" b"#, "a, b", "a b", "\"\u{fc}\""] {
            let mut request = to("/");
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            request.headers_mut().insert("idempotency-key", value.clone());
            assert_eq!(key(&app, request).await, BAD_KEY, "{value:?}");
        }
        let twice = [("idempotency-key", &b"a"[..]), ("idempotency-key", b"b")];
        assert_eq!(key(&app, with(&twice)).await, BAD_KEY);
        let long = format!("\"{}\"", "a".repeat(600));
        assert_eq!(key(&app, attempt(Method::POST, "/", &long)).await, BAD_KEY);
    }
}

// The whole path.

#[tokio::test]
async fn a_path_is_one_key_however_it_is_encoded() {
    let app = app(keys::path());
    for uri in ["/a/x%2Fy", "/a/x%2fy?q", "/a/%78%2Fy"] {
        assert_eq!(key(&app, to(uri)).await, ok("/a/x%2Fy"), "{uri}");
    }
    assert_eq!(key(&app, to("/all/x/y")).await, ok("/all/x/y"));
    // The key differs from that of a path parameter.
    assert_eq!(
        key(&app, to("/a/%3Cid%3E%20id=7")).await,
        ok("/a/%3Cid%3E%20id=7")
    );
}

#[tokio::test]
async fn the_same_path_in_two_nests_is_two_paths() {
    let locks = Locks::memory();
    let inner = || routes(&["/o"], &locks, keys::path());
    let app = Router::new()
        .nest("/v1", inner())
        .nest("/v2", inner())
        .nest_service("/v3", routes(&["/o"], &locks, keys::idempotency_key()));
    assert_eq!(key(&app, to("/v1/o")).await, ok("/v1/o"));
    assert_eq!(key(&app, to("/v2/o")).await, ok("/v2/o"));
    assert_eq!(
        key(&app, attempt(Method::POST, "/v3/o", "1")).await,
        ok("POST /v3/o 1")
    );
}

#[tokio::test]
async fn key_sources_work_without_axum() {
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(&Locks::memory(), keys::path()))
        .service(service_fn(|request: Request<()>| async move {
            let lease: &Lease = request.extensions().get().unwrap();
            Ok::<_, Infallible>(Response::new(lease.key().to_string()))
        }));
    let request = Request::builder().uri("/a/%62").body(()).unwrap();
    assert_eq!(text(service.oneshot(request).await.unwrap()).await, "/a/b");
}

// State.

#[derive(Clone)]
struct App {
    region: &'static str,
    depot: Depot,
}

#[derive(Clone)]
struct Depot(u64);

impl FromRef<App> for Depot {
    fn from_ref(app: &App) -> Depot {
        app.depot.clone()
    }
}

#[tokio::test]
async fn extractors_have_the_routers_state() {
    let state = App {
        region: "eu",
        depot: Depot(3),
    };
    let layer = LockLayer::from_extractors_with_state(
        &Locks::memory(),
        state.clone(),
        |State(app): State<App>, State(Depot(depot)): State<Depot>, Path(id): Path<u64>| {
            (app.region, depot, id)
        },
    );
    let handler =
        |State(app): State<App>, lease: Lease| async move { format!("{} {}", app.region, lease.key()) };
    let app: Router = Router::new()
        .route("/a/{id}", any(handler))
        .route_layer(layer)
        .with_state(state);
    assert_eq!(key(&app, to("/a/7")).await, ok("eu eu:3:7"));
    assert_eq!(
        key(&app, to("/a/x")).await,
        Err((400, None)),
        "the extractor's own"
    );
}
