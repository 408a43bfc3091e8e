//! Keys from extensions that outer layers add to the request.

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;

use bytes::Bytes;
use http::request::Parts;

use crate::key::Key;
use crate::middleware::buffer_body::BufferedBody;
use crate::middleware::key::{Choice, IntoLockKey, KeySource, LockKey};
#[cfg(doc)]
use crate::middleware::keys::field::Header;
use crate::middleware::keys::path::original_path;
use crate::middleware::keys::value::named;
use crate::middleware::refusal::Refused;
use crate::middleware::route::RouteThrottle;
use crate::observe;

/// A lock per extension of the request, such as the user that an outer layer has authenticated.
///
/// The closure returns [a key](IntoLockKey), `None` for no lock, or a refusal. A bare number is a complete key. To
/// say what it stands for, use a tuple or [`named`](Extension::named).
///
/// A request without the extension is a fault of the program: no layer added it, or only an inner layer does. The
/// request gets 500 ([`BadOptions`](Refused::BadOptions)) and never passes without a lock. The event
/// `extension_missing` names the extension and the path, once a minute for each route.
///
/// ```
/// use tenure::{LockLayer, Locks, middleware::keys};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::new(&locks, keys::extension(|user: &User| ("user", user.id))); // user:42
/// let layer = LockLayer::new(&locks, keys::extension(|user: &User| user.id).named("user")); // the same
/// ```
pub fn extension<E, F, R>(key: F) -> Extension<E, F>
where
    E: Send + Sync + 'static,
    F: Fn(&E) -> R + Clone + Send + Sync + 'static,
    R: IntoLockKey + Send,
{
    Extension {
        key,
        prefix: None,
        missing: RouteThrottle::default(),
        of: PhantomData,
    }
}

/// A lock per body of the request, or per part of it, such as an account in JSON.
///
/// The closure returns [a key](IntoLockKey), `None` for no lock, or a refusal. Parse the body with the type that the handler
/// uses; two spellings of one account are then one key.
///
/// A [`BufferBody`](crate::middleware::BufferBody) outside of the layer reads the body. Without it, the request gets 500
/// ([`BadOptions`](Refused::BadOptions)), and the event `extension_missing` names `BufferedBody`. For axum's extractors see
/// [`LockLayer::from_request`](crate::LockLayer::from_request).
///
/// ```
/// use bytes::Bytes;
/// use http::{Response, StatusCode};
/// use tenure::{LockLayer, middleware::keys};
///
/// # let locks = tenure::Locks::memory();
/// let layer = LockLayer::new(&locks, keys::body(|body: &Bytes| {
///     let account: Option<u64> = str::from_utf8(body).ok().and_then(|text| text.trim().parse().ok());
///     let refusal = || Response::builder().status(StatusCode::BAD_REQUEST).body(String::from("which account?")).unwrap();
///     account.map(|id| ("account", id)).ok_or_else(refusal)
/// }));
/// ```
pub fn body<F, R>(
    key: F,
) -> Extension<BufferedBody, impl Fn(&BufferedBody) -> R + Clone + Send + Sync + 'static>
where
    F: Fn(&Bytes) -> R + Clone + Send + Sync + 'static,
    R: IntoLockKey + Send,
{
    extension(move |body: &BufferedBody| key(body.bytes()))
}

/// A lock per extension. Made by [`extension`].
///
/// ```
/// use tenure::middleware::keys::{self, Extension};
///
/// #[derive(Clone)]
/// struct User(u64);
///
/// /// One request for each user: `user:42`.
/// fn source() -> Extension<User, fn(&User) -> u64> {
///     let id: fn(&User) -> u64 = |user| user.0;
///     keys::extension(id).named("user")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub struct Extension<E, F> {
    key: F,
    prefix: Option<Cow<'static, str>>,
    missing: RouteThrottle,
    of: PhantomData<fn(&E)>,
}

impl<E, F> Extension<E, F> {
    /// Sets the beginning of the key, as [`Header::named`] does: `user:42`. The name is used unchanged. In the
    /// closure's key, `:` and `%` are escaped, as in a tuple.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.prefix = Some(named(name));
        self
    }
}

/// Reports that a request lacks an extension, and refuses the request.
pub(crate) fn missing<E>(throttle: &RouteThrottle, parts: &Parts) -> LockKey {
    let is_news = throttle.allow(parts);
    observe::extension_missing(type_name::<E>(), original_path(parts), is_news);
    LockKey::refuse(Refused::BadOptions)
}

impl<E, F, R> KeySource for Extension<E, F>
where
    E: Send + Sync + 'static,
    F: Fn(&E) -> R + Clone + Send + Sync + 'static,
    R: IntoLockKey + Send,
{
    type Key = LockKey;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        let Some(extension) = parts.extensions.get::<E>() else {
            return ready(missing::<E>(&self.missing, parts));
        };
        ready(match ((self.key)(extension).into_lock_key().0, &self.prefix) {
            (Choice::Lock(keys), Some(prefix)) => {
                keys.map(|key| (!key.as_bytes().is_empty()).then(|| Key::prefixed(prefix, key.as_bytes())))
            }
            (choice, _) => LockKey(choice),
        })
    }
}

impl<E, F: Clone> Clone for Extension<E, F> {
    fn clone(&self) -> Self {
        Extension {
            key: self.key.clone(),
            prefix: self.prefix.clone(),
            missing: self.missing.clone(),
            of: PhantomData,
        }
    }
}

impl<E, F> fmt::Debug for Extension<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension")
            .field("of", &type_name::<E>())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
