//! Keys from parameters of the path.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use crate::middleware::key::LockKey;
use crate::middleware::keys::path::original_path;
use crate::middleware::keys::value::{ByValue, ValueReader, ValueSource};
use crate::middleware::refusal::Refused;
use crate::middleware::route::RouteThrottle;
use crate::observe;

/// A lock per value of a path parameter, such as `id` of `/accounts/{id}/withdraw`, that is parsed as a `T`. All
/// texts that parse as the same `T` are one key, as `T` is displayed. `/accounts/42`, `/accounts/042` and
/// `/accounts/+42` are one `u64`; the four spellings of a UUID are one `Uuid`. Use the type that the handler uses.
///
/// The key is the declared route, the parameter's name and its value. So account 42 and order 42 are two locks, and
/// so are `withdraw` and `deposit` of one account. To make several routes wait for each other,
/// [name](PathParam::named) what the parameter stands for. A name also survives changes of the route. Without a name,
/// renaming `{id}` or the route changes the key; while replicas of both releases run, an account has two locks. Other
/// parameters of the route have no effect.
///
/// A malformed value, or one that is not UTF-8 after decoding, gets 400 ([`BadKey`](Refused::BadKey)). A route
/// without such a parameter, or with the parameter twice (`/teams/{id}/members/{id}`), is a fault of the program. Its
/// requests get 500 ([`BadOptions`](Refused::BadOptions)), and an event names the path, once a minute for each route.
/// The same happens around a whole `Router` and on paths without a route, because no route is known there: put the
/// layer on routes with `route_layer`.
///
/// ```
/// use axum::{Router, routing::post};
/// use tenure::{LockLayer, Locks, middleware::keys};
///
/// # async fn withdraw() {}
/// # async fn deposit() {}
/// # let locks = Locks::memory();
/// let app: Router = Router::new()
///     .route("/accounts/{id}/withdraw", post(withdraw))
///     .route("/accounts/{id}/deposit", post(deposit))
///     // One lock per account for both, and for `locks.mutex(("account", 42))`.
///     .route_layer(LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")));
/// ```
pub fn path_param<T: FromStr + Display>(name: impl Into<Cow<'static, str>>) -> PathParam {
    ByValue::new(InPath::of(name.into()), ValueReader::typed::<T>())
}

/// A lock per value of a path parameter, without a type: the decoded text is the value. See [`path_param`] for values
/// with a type.
///
/// **Every spelling is a lock of its own.** If the handler treats `/accounts/42`, `/accounts/042` and `/accounts/+42`
/// as the same account, as with `Path<u64>`, a client with another spelling bypasses the lock. Use it for opaque
/// values: a slug, or a token that is looked up byte by byte.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::path_text("slug").named("article")); // article:on-leases
/// ```
pub fn path_text(name: impl Into<Cow<'static, str>>) -> PathParam {
    ByValue::new(InPath::of(name.into()), ValueReader::text())
}

/// A lock per value of a path parameter. Made by [`path_param`] and [`path_text`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// The key of each route with an `{id}` that is an account: `account:42`.
/// fn source() -> keys::PathParam {
///     keys::path_param::<u64>("id").named("account")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub type PathParam = ByValue<InPath>;

/// The source of a value: a path parameter.
#[derive(Debug, Clone)]
pub struct InPath {
    param: Cow<'static, str>,
    fault: RouteThrottle,
}

impl InPath {
    fn of(param: Cow<'static, str>) -> InPath {
        InPath {
            param,
            fault: RouteThrottle::default(),
        }
    }
}

impl ValueSource for InPath {
    async fn key(&self, parts: &mut Parts, value: &ValueReader) -> LockKey {
        let InPath { param, fault } = self;
        let params = RawPathParams::from_request_parts(parts, &()).await;
        if let Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) = params {
            return LockKey::refuse(Refused::BadKey);
        }
        let params = params.ok();
        let mut values = params
            .iter()
            .flatten()
            .filter(|(name, _)| name == param)
            .map(|(_, value)| value);
        let route = parts.extensions.get::<MatchedPath>();
        match (values.next(), values.next(), route) {
            (Some(read), None, Some(route)) => {
                return value.key(read.as_bytes(), || unnamed(route.as_str(), param));
            }
            (Some(_), Some(_), _) => {
                observe::parameter_twice(param, original_path(parts), fault.allow(parts));
            }
            _ => observe::parameter_missing(param, original_path(parts), route.is_some(), fault.allow(parts)),
        }
        LockKey::refuse(Refused::BadOptions)
    }
}

/// Replaces the braces: Redis Cluster would read `{id}` as a hash tag, and put all locks of the route on one node. A
/// template with `<` or a space never matches a request.
fn unnamed(route: &str, param: &str) -> String {
    let route = route.replace('{', "<").replace('}', ">");
    format!("{route} {param}=")
}
