//! Keys from the query, the host and extensions; keys within a scope, keys that are hashed, and what closures return.

use axum::extract::Query;
use axum::routing::any;
use axum::{Extension, Router};
use http::header::HOST;
use http::request::Parts;
use tenure::middleware::{IntoLockKey, KeySource, LockKey, Refused, keys};
use tenure::{Key, LockLayer, Locks};
use uuid::Uuid;

use crate::layer::to;
use crate::layer_keys::{BAD_KEY, MISCONFIGURED, NO_KEY, app, key, key_of, ok, routes, with};
use crate::support::events::Watch;

#[derive(Clone)]
pub(crate) struct User {
    pub(crate) id: u64,
    pub(crate) tenant: &'static str,
}

// Parameters of the query.

#[tokio::test]
async fn a_query_parameter_is_what_the_handler_reads() {
    let typed = app(keys::query_param::<u64>("id"));
    assert_eq!(key(&typed, to("/?id=007")).await, ok("?id=7"));
    assert_eq!(key(&typed, to("/a/1?x=y&%69d=7")).await, ok("?id=7"));
    for query in [
        "id=",
        "id",
        "id=x",
        "id=+7",
        "id=7&id=7",
        "id=7&id=8",
        "id=7&%69d=8",
        "id=%ff",
    ] {
        assert_eq!(key(&typed, to(&format!("/?{query}"))).await, BAD_KEY, "{query}");
    }
    for uri in ["/", "/?", "/?ID=7", "/?x=id", "/?id[]=7"] {
        assert_eq!(key(&typed, to(uri)).await, NO_KEY, "{uri}");
    }
    let named = app(keys::query_text("n").named("name").optional());
    assert_eq!(key(&named, to("/?m=1")).await, ok("none"));
    assert_eq!(key(&named, to("/?n=%C3%BC+%2B%3A")).await, ok("name:ü +%3A"));
    assert_eq!(key(&named, to("/?n=")).await, BAD_KEY);
    assert_eq!(key(&named, to("/?n=1&n=2")).await, BAD_KEY);

    // The source decodes as axum does.
    let locks = Locks::memory();
    let read = |Query(query): Query<Vec<(String, String)>>| async move { query[0].1.clone() };
    let app = Router::new()
        .route("/", any(read))
        .route_layer(LockLayer::new(&locks, keys::query_text("n").named("name")));
    for query in ["n=a+b", "n=a%20b%2B", "n=%ff"] {
        let read = key(&app, to(&format!("/?{query}"))).await.unwrap();
        assert_eq!(
            key(&named, to(&format!("/?{query}"))).await,
            ok(&format!("name:{read}"))
        );
    }
}

// The host.

#[tokio::test]
async fn a_request_names_one_host() {
    let strict = app(keys::host());
    let optional = app(keys::host().named("site").optional());
    assert_eq!(key(&strict, to("/")).await, NO_KEY);
    assert_eq!(key(&optional, to("/")).await, ok("none"));
    assert_eq!(
        key(&strict, with(&[("host", b"Example.com:80")])).await,
        ok("host:example.com")
    );
    assert_eq!(
        key(&optional, with(&[("host", b"example.com")])).await,
        ok("site:example.com")
    );
    assert_eq!(
        key(&strict, with(&[("host", b"[::1]:80")])).await,
        ok("host:[%3A%3A1]")
    );
    for app in [strict, optional] {
        let two = [("host", &b"example.com"[..]), ("host", b"example.com")];
        assert_eq!(key(&app, with(&two)).await, BAD_KEY);
        for value in [
            &b""[..],
            b".",
            b"a b",
            b"me@example.com",
            b"example.com:x",
            b"\xff",
        ] {
            assert_eq!(key(&app, with(&[("host", value)])).await, BAD_KEY, "{value:?}");
        }
        // The request line and the header name different hosts.
        for host in ["example.org", "", "x y"] {
            let mut request = to("http://example.com/");
            request.headers_mut().insert(HOST, host.parse().unwrap());
            assert_eq!(key(&app, request).await, BAD_KEY, "{host}");
        }
    }
}

// Extensions.

#[tokio::test]
async fn an_extension_is_a_key_only_inside_of_the_layer_that_adds_it() {
    let locks = Locks::memory();
    let watch = Watch::of("layer_sources::User");
    let user = User { id: 7, tenant: "a:b" };
    let source = keys::extension(|user: &User| user.id);
    // The later one of two route layers is outside.
    let inside = routes(&["/"], &locks, source.clone()).route_layer(Extension(user.clone()));
    assert_eq!(key(&inside, to("/")).await, ok("7"));
    let outside = Router::new()
        .route("/", any(key_of))
        .route_layer(Extension(user.clone()));
    let outside = outside.route_layer(LockLayer::new(&locks, source.clone()));
    assert_eq!(key(&outside, to("/")).await, MISCONFIGURED);
    let told = watch.until("extension_missing").await;
    assert_eq!(told.level, tracing::Level::ERROR);
    assert!(told.text.contains("path=/"), "{told:?}");

    let app = async |source: LockLayer<_>| {
        let app = Router::new().route("/", any(key_of)).route_layer(source);
        key(&app.route_layer(Extension(user.clone())), to("/")).await
    };
    assert_eq!(
        app(LockLayer::new(&locks, source.named("user"))).await,
        ok("user:7")
    );
}

#[tokio::test]
async fn an_extension_makes_all_that_a_closure_does() {
    async fn made<R: IntoLockKey + Send + 'static>(
        make: impl Fn(&User) -> R + Clone + Send + Sync + 'static,
    ) -> [Result<String, (u16, Option<Refused>)>; 2] {
        let user = User { id: 7, tenant: "a:b" };
        let source = keys::extension(make);
        let bare = app(source.clone()).layer(Extension(user.clone()));
        let named = app(source.named("user")).layer(Extension(user));
        [key(&bare, to("/")).await, key(&named, to("/")).await]
    }
    assert_eq!(made(|user| user.tenant).await, [ok("a:b"), ok("user:a%3Ab")]);
    assert_eq!(
        made(|user| (user.tenant, user.id)).await,
        [ok("a%3Ab:7"), ok("user:a%253Ab%3A7")]
    );
    assert_eq!(made(|_| None::<u64>).await, [ok("none"), ok("none")]);
    assert_eq!(made(|_| "").await, [BAD_KEY, BAD_KEY]);
    assert_eq!(made(|_| LockKey::refuse(Refused::NoKey)).await, [NO_KEY, NO_KEY]);
}

// Scopes and hashes.

#[tokio::test]
async fn a_scope_narrows_a_key() {
    let source = keys::header::<u64>("x-account").named("account");
    let scoped = app(source.clone().per(keys::header_text("x-tenant").named("tenant")));
    let of = |tenant: &[u8]| with(&[("x-account", b"42"), ("x-tenant", tenant)]);
    assert_eq!(key(&scoped, of(b"acme")).await, ok("tenant%3Aacme:account:42"));
    assert_eq!(key(&scoped, of(b"other")).await, ok("tenant%3Aother:account:42"));
    assert_eq!(
        key(&scoped, of(b"acme:account")).await,
        ok("tenant%3Aacme%253Aaccount:account:42")
    );
    // A job builds the same key from a tuple.
    assert_eq!(
        Key::from(("tenant:acme", "account", 42)).to_string(),
        "tenant%3Aacme:account:42"
    );
    let twice = app(source.per(keys::fixed(7)).per(keys::fixed(8)));
    assert_eq!(key(&twice, of(b"acme")).await, ok("8:7:account:42"));
}

#[tokio::test]
async fn a_missing_scope_is_refused() {
    let source = || keys::header_text("x-account");
    let tenant = || keys::header_text("x-tenant");
    let account = || with(&[("x-account", b"42")]);
    for app in [
        app(source().per(tenant())),
        app(source().per(tenant().optional())),
    ] {
        assert_eq!(key(&app, account()).await, NO_KEY);
        assert_eq!(
            key(&app, with(&[("x-account", b"42"), ("x-tenant", b"")])).await,
            BAD_KEY
        );
        assert_eq!(key(&app, with(&[("x-tenant", b"acme")])).await, NO_KEY);
    }
    let nothing = app(source().per(|_: &Parts| None::<u64>));
    assert_eq!(key(&nothing, account()).await, NO_KEY);
    let empty = app(source().per(keys::fixed("")));
    assert_eq!(key(&empty, account()).await, BAD_KEY);
    let empty = app(keys::fixed("").per(keys::fixed("acme")));
    assert_eq!(key(&empty, account()).await, BAD_KEY);
    let answers = app(source().per(|_: &Parts| Err::<u64, _>(http::StatusCode::FORBIDDEN)));
    assert_eq!(key(&answers, account()).await, Err((403, None)));
    let missing = app(source().per(keys::extension(|user: &User| user.id)));
    assert_eq!(key(&missing, account()).await, MISCONFIGURED);
    // A request that locks nothing needs no scope.
    let free = app(source().optional().per(tenant()));
    assert_eq!(key(&free, to("/")).await, ok("none"));
}

#[tokio::test]
async fn a_hash_hides_the_key() {
    let hashed = app(keys::fixed("The quick brown fox jumps over the lazy dog").hashed("key"));
    let vector = "hashed:f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
    assert_eq!(key(&hashed, to("/")).await, ok(vector));

    let source = || keys::header_text("x-email");
    let one = app(source().hashed([7; 32]));
    let of = |email: &[u8]| with(&[("x-email", email)]);
    let me = key(&one, of(b"me@example.com")).await.unwrap();
    assert!(me.starts_with("hashed:") && me.len() == 71, "{me}");
    let again = app(source().hashed(vec![7; 32]));
    assert_eq!(key(&again, of(b"me@example.com")).await, ok(&me));
    let other_secret = app(source().hashed([8; 32]));
    for (app, email) in [
        (&one, &b"you@example.com"[..]),
        (&other_secret, b"me@example.com"),
    ] {
        assert_ne!(key(app, of(email)).await, ok(&me));
    }
    // A text longer than the longest key is hashed, too, and a missing key stays missing.
    assert!(key(&one, of(&[b'a'; 600])).await.is_ok());
    assert_eq!(key(&one, to("/")).await, NO_KEY);
    assert_eq!(key(&one, of(b"")).await, BAD_KEY);
    assert_eq!(key(&app(keys::fixed("").hashed("key")), to("/")).await, BAD_KEY);
    assert_eq!(
        key(&app(source().optional().hashed("key")), to("/")).await,
        ok("none")
    );
    let shown = format!("{:?}", source().hashed("the secret itself"));
    assert!(
        shown.contains("x-email") && !shown.contains("the secret"),
        "{shown}"
    );
}

#[test]
#[should_panic(expected = "the secret of a hashed key must not be empty")]
fn an_empty_secret_panics() {
    let _ = keys::fixed("a").hashed("");
}

#[test]
fn only_idempotency_keys_name_a_request_and_its_retries() {
    fn retries<K: KeySource>(_: K) -> bool {
        K::RETRIES
    }
    let user = || keys::extension(|user: &User| user.id);
    assert!(retries(keys::idempotency_key()));
    assert!(retries(
        keys::idempotency_key().optional().per(user()).hashed("secret")
    ));
    assert!(retries(keys::idempotency_key().hashed("secret").per(user())));
    assert!(!retries(user().per(keys::idempotency_key())));
    assert!(!retries(keys::path_param::<u64>("id")));
    assert!(!retries(|parts: &Parts| parts.uri.path().to_owned()));
}

#[tokio::test]
async fn closures_return_keys_of_all_kinds() {
    async fn made<R: IntoLockKey + Send>(key: impl Fn() -> R + Clone + Send + Sync + 'static) -> String {
        let app = app(move |_: &Parts| key());
        self::key(&app, to("/")).await.unwrap()
    }
    let uuid: Uuid = "67E55044-10B1-426F-9247-BB680E5FE0C8".parse().unwrap();
    assert_eq!(made(|| 42).await, "42");
    assert_eq!(made(|| -42_i128).await, "-42");
    assert_eq!(made(|| true).await, "true");
    assert_eq!(made(move || uuid).await, "67e55044-10b1-426f-9247-bb680e5fe0c8");
    assert_eq!(made(|| ("account", 42)).await, "account:42");
    assert_eq!(
        made(|| Some(("a:b", String::from("c"), 'd', false))).await,
        "a%3Ab:c:d:false"
    );
    assert_eq!(made(|| None::<(u8, u8)>).await, "none");
    assert_eq!(
        made(|| Ok::<_, http::StatusCode>((1, 2, 3, 4, 5, 6))).await,
        "1:2:3:4:5:6"
    );
}
