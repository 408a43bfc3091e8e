//! The key that a request locks, and the sources that read it.

use std::fmt::{self, Write};
use std::future::{Future, ready};
use std::num::NonZero;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::request::Parts;
use http::{Method, Response};
use http_body::Body;
use sha2::Sha256;
use uuid::Uuid;

use crate::key::{Key, KeyPart, with_key_tuples, with_plain_keys};
use crate::middleware::body::{BoxError, boxed};
use crate::middleware::refusal::{Answer, IntoAnswer, Refused};
use crate::primitives::multi::MultiKey;

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
    note = "a key source is one of `tenure::middleware::keys`, or a closure `|parts: &http::request::Parts|` that can be cloned and sent, and that returns a key: an integer, `bool`, `Uuid`, `String` or `Key`, a tuple such as `(\"account\", 42)`, a `MultiKey`, an array or a `Vec<MultiKey>`, an `Option` or a `Result` of one; for axum's extractors use `LockLayer::from_extractors`, and with the body `LockLayer::from_request` or `keys::body`"
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

    /// Locks the keys of `other`, too, all together as by [`Locks::multi`](crate::Locks::multi). A source that yields no key
    /// locks nothing. The handler sees a [`MultiLease`](crate::MultiLease), however many keys there are.
    ///
    /// A source with [`RETRIES`](Self::RETRIES), such as an `Idempotency-Key`, does not compile here: its lock ends with the
    /// handler, which would not exclude retries. Nest its layer outside.
    ///
    /// ```
    /// use tenure::{LockLayer, middleware::{KeySource, keys}};
    ///
    /// # let locks = tenure::Locks::memory();
    /// // Writes the account, and reads the rates beside other requests that read them.
    /// let account = keys::header::<u64>("x-account").named("account");
    /// let layer = LockLayer::new(&locks, account.and(keys::fixed("rates").read()));
    /// ```
    ///
    /// ```compile_fail,E0080
    /// use tenure::middleware::{KeySource, keys};
    ///
    /// let both = keys::fixed("a").and(keys::idempotency_key());
    /// ```
    fn and<S: KeySource>(self, other: S) -> And<Self, S> {
        const {
            assert!(
                !Self::RETRIES && !S::RETRIES,
                "a key that names a request and its retries is the only key of its layer: nest the layers"
            );
        }
        And {
            first: self,
            second: other,
        }
    }

    /// Locks each key for reading, beside other readers, as [`RwLock::read`](crate::RwLock::read) does. Readers send no
    /// [`fence_header`](crate::LockLayer::fence_header). Does not compile for a source with [`RETRIES`](Self::RETRIES).
    fn read(self) -> Reading<Self> {
        Reading::new(self, false)
    }

    /// Locks each key for reading in requests with a method that changes nothing: `GET`, `HEAD`, `OPTIONS`, `TRACE` and `QUERY`.
    /// Other methods lock for writing, except keys that are [for reading](crate::MultiKey::read) already. Does not compile for a
    /// source with [`RETRIES`](Self::RETRIES).
    ///
    /// ```
    /// use tenure::{LockLayer, middleware::{KeySource, keys}};
    ///
    /// # let locks = tenure::Locks::memory();
    /// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account").by_method());
    /// ```
    fn by_method(self) -> Reading<Self> {
        Reading::new(self, true)
    }
}

/// Returns whether requests with this method change nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    // The `http` crate has no constant for QUERY.
    method.is_safe() || method.as_str() == "QUERY"
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
        let keys = match self.source.key(parts).await.into_lock_key().0 {
            Choice::Lock(keys) => keys,
            other => return LockKey(other),
        };
        match self.scope.key(parts).await.into_lock_key().0 {
            Choice::Lock(Keys::One(scope)) if !is_empty(scope.key()) => {
                keys.map(|key| (!is_empty(&key)).then(|| key.scoped(scope.key())))
            }
            // An empty part is malformed, but the tuple with the other part is not empty.
            Choice::Lock(Keys::One(_)) => LockKey::refuse(Refused::BadKey),
            // A scope is one value.
            Choice::Lock(Keys::Several(_)) => LockKey::refuse(Refused::BadOptions),
            Choice::Nothing => LockKey::refuse(Refused::NoKey),
            other => LockKey(other),
        }
    }
}

fn is_empty(key: &Key) -> bool {
    key.as_bytes().is_empty()
}

/// The keys of two sources. Made by [`KeySource::and`].
#[derive(Debug, Clone)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A: KeySource, B: KeySource> KeySource for And<A, B> {
    type Key = LockKey;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        let mut keys = Vec::new();
        if let Some(refused) = self.first.key(parts).await.into_lock_key().append_to(&mut keys) {
            return refused;
        }
        if let Some(refused) = self.second.key(parts).await.into_lock_key().append_to(&mut keys) {
            return refused;
        }
        LockKey::several(keys)
    }
}

/// Keys that are locked for reading. Made by [`KeySource::read`] and [`KeySource::by_method`].
#[derive(Debug, Clone)]
pub struct Reading<K> {
    source: K,
    by_method: bool,
}

impl<K: KeySource> Reading<K> {
    fn new(source: K, by_method: bool) -> Self {
        const {
            assert!(
                !K::RETRIES,
                "a request and its retries exclude each other, so their key is not read"
            )
        }
        Reading { source, by_method }
    }
}

impl<K: KeySource> KeySource for Reading<K> {
    type Key = LockKey;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        let key = self.source.key(parts).await.into_lock_key();
        if self.by_method && !is_safe(&parts.method) {
            return key;
        }
        LockKey(match key.0 {
            Choice::Lock(Keys::One(key)) => Choice::Lock(Keys::One(key.into_read())),
            Choice::Lock(Keys::Several(keys)) => {
                Choice::Lock(Keys::Several(keys.into_iter().map(MultiKey::into_read).collect()))
            }
            other => other,
        })
    }
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
            Choice::Lock(keys) => keys.map(|key| (!is_empty(&key)).then(|| self.hash(&key))),
            other => LockKey(other),
        }
    }
}

impl<K> Hashed<K> {
    fn hash(&self, key: &Key) -> Key {
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
        name.into()
    }
}

impl<K: fmt::Debug> fmt::Debug for Hashed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashed")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The result of a key source: one key or several, no key, or a refusal.
///
/// ```
/// use http::{Method, request::Parts};
/// use tenure::middleware::{KeySource, LockKey, Refused};
///
/// #[derive(Clone)]
/// struct Tenant;
///
/// impl KeySource for Tenant {
///     type Key = LockKey;
///
///     async fn key(&self, parts: &mut Parts) -> LockKey {
///         match parts.headers.get("x-tenant").map(|value| value.to_str()) {
///             _ if parts.method == Method::GET => LockKey::nothing(),
///             Some(Ok(tenant)) => LockKey::lock(("tenant", tenant)),
///             Some(Err(_)) => LockKey::refuse(Refused::BadKey),
///             None => LockKey::refuse(Refused::NoKey),
///         }
///     }
/// }
/// # let locks = tenure::Locks::memory();
/// # let layer = tenure::LockLayer::new(&locks, Tenant);
/// # drop(layer);
/// ```
#[derive(Debug)]
pub struct LockKey(pub(super) Choice);

#[derive(Debug)]
pub(super) enum Choice {
    Lock(Keys),
    Nothing,
    Answer(Answer),
    Refuse(Refused),
}

/// What a request locks.
#[derive(Debug)]
pub(super) enum Keys {
    One(MultiKey),
    /// The form of the source is several keys, also if it names one only. There is at least one.
    Several(Vec<MultiKey>),
}

impl Keys {
    /// Replaces each key, and refuses the request if there is no replacement.
    pub(super) fn map(self, key: impl Fn(Key) -> Option<Key>) -> LockKey {
        let mapped = match self {
            Keys::One(one) => one.map(key).map(Keys::One),
            Keys::Several(keys) => {
                let keys: Option<Vec<_>> = keys.into_iter().map(|each| each.map(&key)).collect();
                keys.map(Keys::Several)
            }
        };
        mapped.map_or_else(
            || LockKey::refuse(Refused::BadKey),
            |keys| LockKey(Choice::Lock(keys)),
        )
    }
}

impl LockKey {
    /// Returns the result for a request that waits for the lock on `key`, which is written unless it is a
    /// [`MultiKey::read`].
    pub fn lock(key: impl Into<MultiKey>) -> LockKey {
        LockKey(Choice::Lock(Keys::One(key.into())))
    }

    /// Returns the result for a request that waits for the locks on all of these keys. With no key it passes without a lock.
    pub fn several(keys: impl IntoIterator<Item = MultiKey>) -> LockKey {
        let keys: Vec<_> = keys.into_iter().collect();
        if keys.is_empty() {
            return LockKey::nothing();
        }
        LockKey(Choice::Lock(Keys::Several(keys)))
    }

    /// Appends the keys, or returns the refusal of the request.
    fn append_to(self, keys: &mut Vec<MultiKey>) -> Option<LockKey> {
        match self.0 {
            Choice::Lock(Keys::One(key)) => keys.push(key),
            Choice::Lock(Keys::Several(more)) => keys.extend(more),
            Choice::Nothing => {}
            refused => return Some(LockKey(refused)),
        }
        None
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
/// of two to six [parts](KeyPart), `("account", 42)`, which are joined by `:`; a [`MultiKey`]; an array of these, or a
/// `Vec<MultiKey>`, which are locked together, as by [`Locks::multi`](crate::Locks::multi); an `Option`, where `None` passes
/// without a lock; or a `Result`, whose error is the [answer](IntoAnswer).
///
/// An array or list that is empty locks nothing, and one of more than 64 different keys is refused ([`BadKey`](Refused::BadKey)).
/// A key that is read and written is written.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, MultiKey};
///
/// # fn account(parts: &http::request::Parts, name: &str) -> Option<u64> { parts.headers.get(name)?.to_str().ok()?.parse().ok() }
/// let transfers = LockLayer::by(&locks, |parts| {
///     Some([("account", account(parts, "from")?), ("account", account(parts, "to")?)])
/// });
/// let payments = LockLayer::by(&locks, |parts| {
///     Some([MultiKey::write(("account", account(parts, "from")?)), MultiKey::read("rates")])
/// });
/// # tenure_layers_are_used(transfers, payments); fn tenure_layers_are_used<A, B>(_: A, _: B) {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "not a key",
    note = "a key is an integer, `bool`, `uuid::Uuid`, `String`, `&'static str` or `tenure::Key`, a tuple of two to six of the former, such as `(\"account\", 42)`, a `tenure::MultiKey`, an array of the former or a `Vec<MultiKey>`, an `Option` of one of them, or a `Result` whose error is a response"
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

impl IntoLockKey for MultiKey {
    fn into_lock_key(self) -> LockKey {
        LockKey::lock(self)
    }
}

impl<K: ListedKey, const N: usize> IntoLockKey for [K; N] {
    fn into_lock_key(self) -> LockKey {
        LockKey::several(self.map(Into::into))
    }
}

impl IntoLockKey for Vec<MultiKey> {
    fn into_lock_key(self) -> LockKey {
        LockKey::several(self)
    }
}

/// A key in an array of keys. `u8` is none, because an array of bytes looks like one key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key in an array",
    label = "not a key in an array",
    note = "an array is several keys: of integers except `u8`, of `bool`, `uuid::Uuid`, `String`, `&'static str`, `tenure::Key`, `tenure::MultiKey`, or of tuples such as `(\"account\", 42)`",
    note = "for one key of these bytes use `tenure::Key::from(&bytes[..])`"
)]
#[doc(hidden)]
pub trait ListedKey: Into<MultiKey> {}

macro_rules! listed {
    ($($key:ty),+ $(,)?) => {
        $(impl ListedKey for $key {})+
    };
}

// All that is one key, except for `u8`.
listed!(MultiKey, Key, String, &str, Vec<u8>, bool, Uuid);
listed!(i8, i16, i32, i64, i128, isize, u16, u32, u64, u128, usize);
listed!(
    NonZero<i8>,
    NonZero<i16>,
    NonZero<i32>,
    NonZero<i64>,
    NonZero<i128>,
    NonZero<isize>
);
listed!(
    NonZero<u8>,
    NonZero<u16>,
    NonZero<u32>,
    NonZero<u64>,
    NonZero<u128>,
    NonZero<usize>
);

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
        }

        impl<$($part: KeyPart),+> ListedKey for ($($part),+) {})+
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
