//! A parameter of the path.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use crate::middleware::key::LockKey;
use crate::middleware::keys::path::original_path;
use crate::middleware::keys::route_throttle::RouteThrottle;
use crate::middleware::keys::value::{ByValue, ValueReader, ValueSource};
use crate::middleware::refusal::Refused;
use crate::observe;

/// A lock per value of a path parameter, `id` of `/accounts/{id}/withdraw`, where the value is a `T`: all that is parsed
/// as the same `T` is one key, as `T` is displayed. `/accounts/42`, `/accounts/042` and `/accounts/+42` are one `u64`, the
/// four spellings of a UUID one `Uuid`. Take the type that the handler takes.
///
/// The key is the route as it was declared, the parameter's name and its value, so that an account 42 and an order 42 are
/// two locks, and so are the same account's `withdraw` and `deposit`. To make several routes wait for each other,
/// [name](PathParam::named) what the parameter stands for. A name also outlives the route: without one, renaming `{id}`
/// or the route changes the key, and while replicas of both releases run, they have two locks for one account.
/// Other parameters of the route play no part.
///
/// A value that is no `T`, or no UTF-8 once it is decoded, gets 400 ([`BadKey`](Refused::BadKey)). A route that has no
/// such parameter, or has it twice (`/teams/{id}/members/{id}`), is a fault of the program: its requests get 500
/// ([`BadOptions`](Refused::BadOptions)) and an event names the path, once a minute for each route. It is the same around
/// a whole `Router` and on paths that lead nowhere, where no route is known: put the layer on routes with `route_layer`.
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

/// A lock per value of a path parameter, as it is once it is decoded: [`path_param`] where the value has no type.
///
/// **Every spelling is a lock of its own.** If the handler takes `/accounts/42`, `/accounts/042` and `/accounts/+42` for
/// the same, as one with `Path<u64>` does, then a client who writes it differently is past the lock, and beside whoever
/// holds it. It is for values that are opaque: a slug or a token that is looked up byte by byte.
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
pub type PathParam = ByValue<InPath>;

/// The place of a value: a parameter of the path.
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
                observe::parameter_twice(param, original_path(parts), fault.can_report(parts));
            }
            _ => observe::parameter_missing(
                param,
                original_path(parts),
                route.is_some(),
                fault.can_report(parts),
            ),
        }
        LockKey::refuse(Refused::BadOptions)
    }
}

/// Redis Cluster would take `{id}` for a tag, and put all locks of the route on one node. A template with `<` or a space in
/// it is never matched.
fn unnamed(route: &str, param: &str) -> String {
    let route = route.replace('{', "<").replace('}', ">");
    format!("{route} {param}=")
}
