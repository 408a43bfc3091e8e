//! A parameter of the query.

use std::borrow::Cow;
use std::fmt::Display;
use std::future::{Future, ready};
use std::str::FromStr;

use http::request::Parts;

use crate::middleware::key::LockKey;
use crate::middleware::keys::value::{ByValue, MayBeMissing, Place, Value};
#[cfg(doc)]
use crate::middleware::refusal::Refused;

/// A lock per value of a query parameter, where the value is a `T`: all that is parsed as the same `T` is one key, as `T`
/// is displayed. `?id=42`, `?id=042` and `?%69d=%34%32` are one `u64`.
///
/// The key is a question mark, the parameter's name and the value, on all routes alike; [name](QueryParam::named) what it
/// stands for. A request without the parameter is answered with 400 ([`NoKey`](Refused::NoKey)) unless it is
/// [`optional`](QueryParam::optional). One whose value is no `T`, or with the parameter twice, gets 400
/// ([`BadKey`](Refused::BadKey)): the handler might read the other one.
///
/// It is decoded as forms are (`+` is a space), as axum's `Query` and most others do.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::query_param::<u64>("id")); // ?id=42
/// let layer = LockLayer::new(&locks, keys::query_param::<u64>("id").named("account")); // account:42
/// ```
pub fn query_param<T: FromStr + Display>(name: impl Into<Cow<'static, str>>) -> QueryParam {
    ByValue::new(InQuery(name.into()), Value::typed::<T>())
}

/// A lock per value of a query parameter, as it is once it is decoded: [`query_param`] where the value has no type.
///
/// **Every spelling is a lock of its own.** If the service takes `acme` and `ACME`, or `42` and `042`, for the same, then
/// a client who writes it differently is past the lock. It is for values that are opaque. An empty one gets 400
/// ([`BadKey`](Refused::BadKey)).
pub fn query_text(name: impl Into<Cow<'static, str>>) -> QueryParam {
    ByValue::new(InQuery(name.into()), Value::text())
}

/// A lock per value of a query parameter. Made by [`query_param`] and [`query_text`].
pub type QueryParam = ByValue<InQuery>;

/// The place of a value: a parameter of the query.
#[derive(Debug, Clone)]
pub struct InQuery(Cow<'static, str>);

impl MayBeMissing for InQuery {}

impl Place for InQuery {
    fn key(&self, parts: &mut Parts, value: &Value) -> impl Future<Output = LockKey> + Send {
        let InQuery(param) = self;
        let query = parts.uri.query().unwrap_or_default();
        let values = form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| name == param)
            .map(|(_, value)| Cow::Owned(value.into_owned().into_bytes()));
        ready(value.only(values, || format!("?{param}=")))
    }
}
