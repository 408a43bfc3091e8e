//! What a request locks, and where that is read from.

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

/// Reads from a request's head what it locks.
///
/// Every `Fn(&http::request::Parts) -> impl IntoLockKey` is one. Write one by hand when the answer takes an `await`, or
/// deserves a name. Some are [ready-made](crate::middleware::keys).
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
    /// What it comes to.
    type Key: IntoLockKey + Send;

    /// The key names one request and its retries: what runs under it is run to its end, and a retry that finds it in
    /// flight and may not wait is answered with 409. So it is for
    /// [`idempotency_key`](crate::middleware::keys::idempotency_key), and for nothing else that is ready-made.
    const RETRIES: bool = false;

    /// The key of this request. It may leave something in the extensions.
    fn key(&self, parts: &mut Parts) -> impl Future<Output = Self::Key> + Send;

    /// A lock for each key within a scope: for each tenant, or user, that `scope` names. The key is that of the tuple of
    /// the scope and the parts of the key, `("acme", "account", 42)`; a client who chooses one of them reaches no lock of
    /// another scope.
    ///
    /// A scope makes locks narrower, so one that is not there is no way around them: where `scope` says *nothing*
    /// (`None`, or an `optional` header that is missing) the request gets 400 ([`NoKey`](Refused::NoKey)). Neither would
    /// it be alone without a lock, nor with the key as it is, which is another one than all that have a scope. Let
    /// requests without a tenant share one that you name. What `scope` refuses is refused. A request whose *key* is
    /// nothing passes without a lock, and its scope is not asked for.
    ///
    /// Take for a scope what was authenticated: whoever may choose the tenant chooses a lock of their own.
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

    /// The lock's name is a keyed hash of the key, `hashed:` and HMAC-SHA-256 in hexadecimal: what clients send, an e-mail
    /// address say, is neither in the store nor in logs. However long the key, the name has 71 bytes.
    ///
    /// All replicas need the same secret, and so does whoever makes the same key elsewhere: two secrets are two locks,
    /// also while a new one is being rolled out. It is a secret because what people call themselves can be guessed and
    /// tried: 32 random bytes, kept where you keep the others.
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
    /// If the secret is empty.
    fn hashed(self, secret: impl AsRef<[u8]>) -> Hashed<Self> {
        let secret = secret.as_ref();
        assert!(!secret.is_empty(), "a secret is not empty");
        let mac = Hmac::new_from_slice(secret).expect("HMAC takes secrets of every length");
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
            // An empty one is malformed, and would be so no longer with the other beside it.
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

/// A key of which only a hash is kept. Made by [`KeySource::hashed`].
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
            // Its hash would be a fine key.
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
                    write!(name, "{byte:02x}").expect("a string takes all");
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

/// What a key closure may return: an integer, `bool`, [`Uuid`], `String`, `&'static str` or [`Key`]; a tuple of two to
/// six [parts](KeyPart), `("account", 42)`, which are joined by `:`; an `Option` of one, where `None` passes without a
/// lock; a `Result`, whose error is the [answer](IntoAnswer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "not a key",
    note = "a key is an integer, `bool`, `uuid::Uuid`, `String`, `&'static str` or `tenure::Key`, a tuple of two to six of the former, such as `(\"account\", 42)`, an `Option` of one of them, or a `Result` whose error is a response"
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
    ($($key:ty),+ $(,)?) => {
        $(impl IntoLockKey for $key {
            fn into_lock_key(self) -> LockKey {
                LockKey::lock(self)
            }
        })+
    };
}

// Of any lifetime: the compiler forgets that it is `'static` where a service behind a closure is awaited in a task.
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
