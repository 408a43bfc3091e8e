//! What a request locks, and where that is read from.

use std::future::{Future, ready};

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;

use crate::key::Key;
use crate::middleware::body::{BoxError, boxed};
use crate::middleware::refusal::{Answer, IntoAnswer, Refused};

/// Reads from a request's head what it locks.
///
/// Every `Fn(&http::request::Parts) -> impl IntoLockKey` is one. Write one by hand when the answer takes an `await`, or
/// deserves a name. Some are [ready-made](crate::middleware::keys).
///
/// ```
/// use http::request::Parts;
/// use tenure::{LockLayer, middleware::KeySource};
///
/// #[derive(Clone)]
/// struct Tenant;
///
/// impl KeySource for Tenant {
///     type Key = Option<String>;
///
///     async fn key(&self, parts: &mut Parts) -> Option<String> {
///         Some(format!("tenant:{}", parts.headers.get("tenant")?.to_str().ok()?))
///     }
/// }
///
/// # let locks = tenure::Locks::memory();
/// let layer = LockLayer::new(&locks, Tenant);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a request locks",
    label = "not a key source",
    note = "a key source is a closure `|parts: &http::request::Parts|` that can be cloned and sent, and that returns a `String`, a `Key`, an `Option` or a `Result` of one; for axum's extractors use `LockLayer::from_extractors`"
)]
pub trait KeySource: Clone + Send + Sync + 'static {
    /// What it comes to.
    type Key: IntoLockKey + Send;

    /// The key of this request. It may leave something in the extensions.
    fn key(&self, parts: &mut Parts) -> impl Future<Output = Self::Key> + Send;
}

impl<F, R> KeySource for F
where
    F: Fn(&Parts) -> R + Clone + Send + Sync + 'static,
    R: IntoLockKey + Send,
{
    type Key = R;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = R> + Send {
        ready(self(parts))
    }
}

/// What a request locks: a key, nothing, or it is refused.
#[derive(Debug)]
pub struct LockKey(pub(super) Choice);

#[derive(Debug)]
pub(super) enum Choice {
    Lock(Key),
    Nothing,
    Answer(Answer),
    Refuse(Refused),
}

impl LockKey {
    /// The request waits for the lock on `key`.
    pub fn lock(key: impl Into<Key>) -> LockKey {
        LockKey(Choice::Lock(key.into()))
    }

    /// The request passes without a lock.
    pub fn nothing() -> LockKey {
        LockKey(Choice::Nothing)
    }

    /// The request is answered with this response and goes no further. It does not pass through
    /// [`on_refusal`](crate::LockLayer::on_refusal); for that there is [`refuse`](Self::refuse).
    pub fn answer<B>(response: Response<B>) -> LockKey
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        LockKey(Choice::Answer(Answer(response.map(boxed))))
    }

    /// The request goes no further, and the layer answers it as it answers all that it refuses; see
    /// [`on_refusal`](crate::LockLayer::on_refusal).
    pub fn refuse(why: Refused) -> LockKey {
        LockKey(Choice::Refuse(why))
    }
}

/// What a key closure may return: a `String`, `&'static str` or [`Key`]; an `Option` of one, where `None` passes
/// without a lock; a `Result`, whose error is the [answer](IntoAnswer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    note = "return a `String`, `&'static str`, `tenure::Key` or `LockKey`, an `Option` of one of them, or a `Result` whose error is a response"
)]
pub trait IntoLockKey {
    /// The conversion.
    fn into_lock_key(self) -> LockKey;
}

impl IntoLockKey for LockKey {
    fn into_lock_key(self) -> LockKey {
        self
    }
}

macro_rules! keys {
    ($($text:ty),+) => {
        $(impl IntoLockKey for $text {
            fn into_lock_key(self) -> LockKey {
                LockKey::lock(self)
            }
        })+
    };
}

keys!(Key, String, &'static str, Vec<u8>);

impl<T: IntoLockKey> IntoLockKey for Option<T> {
    fn into_lock_key(self) -> LockKey {
        self.map_or_else(LockKey::nothing, T::into_lock_key)
    }
}

impl<T: IntoLockKey, E: IntoAnswer> IntoLockKey for Result<T, E> {
    fn into_lock_key(self) -> LockKey {
        self.map_or_else(
            |refusal| LockKey(Choice::Answer(refusal.into_answer())),
            T::into_lock_key,
        )
    }
}
