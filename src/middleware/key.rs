//! The key that a request locks, and the sources that read it.

use std::fmt::{self, Write};
use std::future::{Future, ready};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::Response;
use http::request::Parts;
use http_body::Body;
use sha2::Sha256;
use uuid::Uuid;

use crate::key::{Key, KeyPart, with_key_tuples, with_plain_keys};
use crate::middleware::body::{BoxError, boxed};
use crate::middleware::refusal::{Answer, IntoAnswer, Refused};

/// Reads from a request's head which key it locks.
///
/// Every `Fn(&http::request::Parts) -> impl IntoLockKey` implements it. Implement it by hand if the source must
/// `await`, or deserves a name. [`keys`](crate::middleware::keys) has ready-made sources.
///
/// ```
/// use http::request::Parts;
/// use tenure::{Key, LockLayer, middleware::KeySource};
///
/// #[derive(Clone)]
/// struct Tenant;
///
/// impl KeySource for Tenant {
///     type Key = Option<Key>;
///
///     async fn key(&self, parts: &mut Parts) -> Option<Key> {
///         Some(("tenant", parts.headers.get("tenant")?.to_str().ok()?).into())
///     }
/// }
///
/// # let locks = tenure::Locks::memory();
/// let layer = LockLayer::new(&locks, Tenant);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a request locks",
    label = "not a key source",
    note = "a key source is one of `tenure::middleware::keys`, or a closure `|parts: &http::request::Parts|` that can be cloned and sent, and that returns a key: an integer, `bool`, `Uuid`, `String` or `Key`, a tuple such as `(\"account\", 42)`, an `Option` or a `Result` of one; for axum's extractors use `LockLayer::from_extractors`"
)]
pub trait KeySource: Clone + Send + Sync + 'static {
    /// The type of the key.
    type Key: IntoLockKey + Send;

    /// Whether the key names one request and its retries. Then the handler runs to its end, and a retry that finds
    /// the request in flight and may not wait gets 409. Of the ready-made sources, only
    /// [`idempotency_key`](crate::middleware::keys::idempotency_key) sets it.
    const RETRIES: bool = false;

    /// Returns the key of this request. The source may add values to the extensions.
    fn key(&self, parts: &mut Parts) -> impl Future<Output = Self::Key> + Send;

    /// Scopes each key by the tenant or user that `scope` names. The key is the tuple of the scope and the parts of
    /// the key, `("acme", "account", 42)`. A client that chooses one of them cannot reach a lock of another scope.
    ///
    /// If `scope` returns *nothing* (`None`, or an `optional` header that is missing), the request gets 400
    /// ([`NoKey`](Refused::NoKey)). Without a scope, a lock on the bare key would not exclude the locks with a scope.
    /// To admit requests without a tenant, give them a shared scope with a name. If `scope` refuses the request, it
    /// is refused. If the *key* is nothing, the request passes without a lock, and `scope` is not called.
    ///
    /// Use an authenticated value as the scope: a client that may choose the tenant may choose its own lock.
    ///
    /// ```
    /// use tenure::{LockLayer, Locks, middleware::{KeySource, keys}};
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: u64,
    /// }
    ///
    /// # let locks = Locks::memory();
    /// // 7:POST /payments 8e03978e-40d5-43dd
    /// let layer = LockLayer::new(&locks, keys::idempotency_key().per(keys::extension(|user: &User| user.id)));
    /// ```
    fn per<S: KeySource>(self, scope: S) -> Per<Self, S> {
        Per { source: self, scope }
    }

    /// Replaces the key by a keyed hash: `hashed:` and the HMAC-SHA-256 in hexadecimal. So values that clients send,
    /// such as an e-mail address, are neither in the store nor in logs. The name has 71 bytes, however long the key
    /// is.
    ///
    /// All replicas need the same secret, and so do other programs that lock the same key. Two secrets make two
    /// locks, even during the rollout of a new secret. The secret prevents guessing, because names and addresses can
    /// be guessed and tried. Use 32 random bytes, and keep them with your other secrets.
    ///
    /// ```
    /// use tenure::{LockLayer, Locks, middleware::{KeySource, keys}};
    ///
    /// # let locks = Locks::memory();
    /// # let secret = [7; 32];
    /// // hashed:5f0c…
    /// let layer = LockLayer::new(&locks, keys::header_text("x-email").hashed(secret));
    /// ```
    ///
    /// # Panics
    /// Panics if the secret is empty.
    fn hashed(self, secret: impl AsRef<[u8]>) -> Hashed<Self> {
        let secret = secret.as_ref();
        assert!(!secret.is_empty(), "the secret of a hashed key must not be empty");
        let mac = Hmac::new_from_slice(secret).expect("HMAC takes secrets of any length");
        Hashed { source: self, mac }
    }
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

/// A key within a scope. Made by [`KeySource::per`].
#[derive(Debug, Clone)]
pub struct Per<K, S> {
    source: K,
    scope: S,
}

impl<K: KeySource, S: KeySource> KeySource for Per<K, S> {
    type Key = LockKey;

    const RETRIES: bool = K::RETRIES;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        let key = match self.source.key(parts).await.into_lock_key().0 {
            Choice::Lock(key) => key,
            other => return LockKey(other),
        };
        match self.scope.key(parts).await.into_lock_key().0 {
            // An empty part is malformed, but the tuple with the other part is not empty.
            Choice::Lock(scope) if is_empty(&scope) || is_empty(&key) => LockKey::refuse(Refused::BadKey),
            Choice::Lock(scope) => LockKey::lock(key.scoped(&scope)),
            Choice::Nothing => LockKey::refuse(Refused::NoKey),
            other => LockKey(other),
        }
    }
}

fn is_empty(key: &Key) -> bool {
    key.as_bytes().is_empty()
}

/// A key that is stored only as a hash. Made by [`KeySource::hashed`].
#[derive(Clone)]
pub struct Hashed<K> {
    source: K,
    mac: Hmac<Sha256>,
}

impl<K: KeySource> KeySource for Hashed<K> {
    type Key = LockKey;

    const RETRIES: bool = K::RETRIES;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        match self.source.key(parts).await.into_lock_key().0 {
            // An empty key is malformed, but its hash is not empty.
            Choice::Lock(key) if is_empty(&key) => LockKey::refuse(Refused::BadKey),
            Choice::Lock(key) => {
                let hash = self
                    .mac
                    .clone()
                    .chain_update(key.as_bytes())
                    .finalize()
                    .into_bytes();
                let mut name = String::with_capacity("hashed:".len() + 2 * hash.len());
                name.push_str("hashed:");
                for byte in hash {
                    write!(name, "{byte:02x}").expect("writing to a string cannot fail");
                }
                LockKey::lock(name)
            }
            other => LockKey(other),
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Hashed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashed")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The result of a key source: a key, no key, or a refusal.
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
    /// Returns the result for a request that waits for the lock on `key`.
    pub fn lock(key: impl Into<Key>) -> LockKey {
        LockKey(Choice::Lock(key.into()))
    }

    /// Returns the result for a request that passes without a lock.
    pub fn nothing() -> LockKey {
        LockKey(Choice::Nothing)
    }

    /// Returns the result for a request that gets this response and goes no further. The response does not pass
    /// through [`on_refusal`](crate::LockLayer::on_refusal); for that, use [`refuse`](Self::refuse).
    pub fn answer<B>(response: Response<B>) -> LockKey
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        LockKey(Choice::Answer(Answer(response.map(boxed))))
    }

    /// Returns the result for a request that the layer refuses; see [`on_refusal`](crate::LockLayer::on_refusal).
    pub fn refuse(why: Refused) -> LockKey {
        LockKey(Choice::Refuse(why))
    }
}

/// A value that a key closure may return: an integer, `bool`, [`Uuid`], `String`, `&'static str` or [`Key`]; a tuple
/// of two to six [parts](KeyPart), `("account", 42)`, which are joined by `:`; an `Option`, where `None` passes
/// without a lock; or a `Result`, whose error is the [answer](IntoAnswer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "not a key",
    note = "a key is an integer, `bool`, `uuid::Uuid`, `String`, `&'static str` or `tenure::Key`, a tuple of two to six of the former, such as `(\"account\", 42)`, an `Option` of one of them, or a `Result` whose error is a response"
)]
pub trait IntoLockKey {
    /// Converts the value into the result of a key source.
    fn into_lock_key(self) -> LockKey;
}

impl IntoLockKey for LockKey {
    fn into_lock_key(self) -> LockKey {
        self
    }
}

macro_rules! keys {
    ($($key:ty),+ $(,)?) => {
        $(impl IntoLockKey for $key {
            fn into_lock_key(self) -> LockKey {
                LockKey::lock(self)
            }
        })+
    };
}

// `&str` is implemented for any lifetime. If a service behind a closure is awaited in a task, the compiler does not
// know that the text is `'static`.
keys!(Key, String, &str, Vec<u8>);
with_plain_keys!(keys);

macro_rules! tuples {
    ($($($part:ident)+;)+) => {
        $(impl<$($part: KeyPart),+> IntoLockKey for ($($part),+) {
            fn into_lock_key(self) -> LockKey {
                LockKey::lock(self)
            }
        })+
    };
}

with_key_tuples!(tuples);

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
