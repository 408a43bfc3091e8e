//! The parts for axum: keys from extractors, and the lease as an extractor.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::LazyLock;

use axum_core::body::Body;
use axum_core::extract::{FromRequest, FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Extensions, Request, StatusCode};

use crate::locks::Locks;
use crate::middleware::buffer_body::BufferedBody;
use crate::middleware::key::{IntoLockKey, KeySource, LockKey};
use crate::middleware::keys::extension::missing;
use crate::middleware::layer::LockLayer;
use crate::middleware::leases::{Leases, WithoutLock};
#[cfg(doc)]
use crate::middleware::refusal::Refused;
use crate::middleware::route::RouteThrottle;
use crate::observe;
use crate::primitives::guard::Lease;
use crate::primitives::multi_guard::MultiLease;

/// A key source that reads the key from axum's extractors. Made by [`LockLayer::from_extractors`] and
/// [`LockLayer::from_request`], and by their forms with a state.
///
/// ```
/// use axum::extract::Path;
/// use tenure::{LockLayer, Locks, middleware::{ExtractorFn, FromExtractors}};
///
/// /// Has the settings of every layer of this service.
/// fn layer<F, T: 'static>(locks: &Locks, key: F) -> LockLayer<FromExtractors<F, (T,)>>
/// where
///     F: ExtractorFn<(T,)>,
/// {
///     LockLayer::from_extractors(locks, key).max_waiters(100)
/// }
///
/// let layer = layer(&Locks::memory(), |Path(id): Path<u64>| ("account", id));
/// # drop(layer);
/// ```
pub struct FromExtractors<F, T, S = ()> {
    key: F,
    state: S,
    /// Limits the reports of requests whose body no layer has read.
    unread: RouteThrottle,
    extractors: PhantomData<fn() -> T>,
}

impl<F, T> LockLayer<FromExtractors<F, (T,)>>
where
    F: ExtractorFn<(T,)>,
    T: 'static,
{
    /// Locks the key that `key` returns from axum's extractors: up to eight that need no body and no state. If an
    /// extractor fails, its rejection is the response. The extractors see what the handler sees, so a path parameter
    /// is decoded. For `State`, see [`from_extractors_with_state`](LockLayer::from_extractors_with_state).
    ///
    /// ```
    /// use axum::{Router, extract::Path, routing::post};
    /// use tenure::{LockLayer, Locks};
    ///
    /// # async fn withdraw() {}
    /// # let locks = Locks::memory();
    /// let layer = LockLayer::from_extractors(&locks, |Path(id): Path<u64>| ("account", id));
    /// let app: Router = Router::new().route("/accounts/{id}/withdraw", post(withdraw)).route_layer(layer);
    /// ```
    pub fn from_extractors(locks: &Locks, key: F) -> Self {
        LockLayer::from_extractors_with_state(locks, (), key)
    }
}

impl<F, T, S> LockLayer<FromExtractors<F, (T,), S>>
where
    F: ExtractorFn<(T,), S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    /// Locks the key that `key` returns from extractors that need the router's state. A layer is made before the
    /// router has its state, so pass a clone of the state here.
    ///
    /// ```
    /// use axum::{Router, extract::{Path, State}, routing::post};
    /// use tenure::{LockLayer, Locks};
    ///
    /// #[derive(Clone)]
    /// struct App {
    ///     region: &'static str,
    /// }
    ///
    /// # async fn withdraw() {}
    /// # let locks = Locks::memory();
    /// let app = App { region: "eu" };
    /// let layer = LockLayer::from_extractors_with_state(
    ///     &locks,
    ///     app.clone(),
    ///     |State(app): State<App>, Path(id): Path<u64>| ("account", app.region, id),
    /// );
    /// let app: Router =
    ///     Router::new().route("/accounts/{id}/withdraw", post(withdraw)).route_layer(layer).with_state(app);
    /// ```
    pub fn from_extractors_with_state(locks: &Locks, state: S, key: F) -> Self {
        LockLayer::new(locks, FromExtractors::new(key, state))
    }
}

impl<F, M, T, L> LockLayer<FromExtractors<F, (M, T, L)>>
where
    F: ExtractorFn<(M, T, L)>,
    (M, T, L): 'static,
{
    /// Locks the key that `key` returns from axum's extractors: up to eight without state, of which the last may read the body.
    /// If an extractor fails, its rejection is the response. The handler reads the same body again.
    ///
    /// A [`BufferBody`](crate::middleware::BufferBody) outside of the layer reads the body. Without it, the request gets 500
    /// ([`BadOptions`](Refused::BadOptions)), and the event `extension_missing` names `BufferedBody`.
    ///
    /// ```
    /// use axum::{Json, Router, extract::Path, routing::post};
    /// use tenure::{LockLayer, Locks, middleware::BufferBody};
    /// # #[derive(Clone)] struct Order { id: u64 }
    /// # impl<S: Sync> axum::extract::FromRequest<S> for Order {
    /// #     type Rejection = (); async fn from_request(_: axum::extract::Request, _: &S) -> Result<Self, ()> { Ok(Order { id: 1 }) }
    /// # }
    ///
    /// # async fn ship() {}
    /// # let locks = Locks::memory();
    /// // `Order` is an extractor that reads the body, as `Json<T>` is.
    /// let layer = LockLayer::from_request(&locks, |Path(shop): Path<u64>, order: Order| ("order", shop, order.id));
    /// let app: Router = Router::new()
    ///     .route("/{shop}/orders", post(ship))
    ///     .route_layer(layer)
    ///     .route_layer(BufferBody::new(64 * 1024));
    /// ```
    pub fn from_request(locks: &Locks, key: F) -> Self {
        LockLayer::from_request_with_state(locks, (), key)
    }
}

impl<F, M, T, L, S> LockLayer<FromExtractors<F, (M, T, L), S>>
where
    F: ExtractorFn<(M, T, L), S>,
    (M, T, L): 'static,
    S: Clone + Send + Sync + 'static,
{
    /// As [`from_request`](LockLayer::from_request), with extractors that need the router's state. A layer is made before the
    /// router has its state, so pass a clone of the state here.
    pub fn from_request_with_state(locks: &Locks, state: S, key: F) -> Self {
        LockLayer::new(locks, FromExtractors::new(key, state))
    }
}

impl<F, T, S> FromExtractors<F, T, S> {
    fn new(key: F, state: S) -> Self {
        FromExtractors {
            key,
            state,
            unread: RouteThrottle::default(),
            extractors: PhantomData,
        }
    }
}

/// A closure over extractors that returns a key. `S` is the router's state. `T` is `((…),)` for
/// [`LockLayer::from_extractors`], and has the last extractor apart, with axum's marker for it, for [`LockLayer::from_request`].
///
/// ```
/// use axum::{extract::Path, http::Method};
/// use tenure::{LockLayer, Locks};
///
/// // A function is one, too.
/// fn account(method: Method, Path(id): Path<u64>) -> Option<(&'static str, u64)> {
///     (method != Method::GET).then_some(("account", id))
/// }
///
/// let layer = LockLayer::from_extractors(&Locks::memory(), account);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a key of extractors",
    label = "does not make a key of extractors",
    note = "give a closure that can be cloned and sent, with one to eight arguments that have types, `|Path(id): Path<u64>|`, and that returns a key: an integer, `bool`, `Uuid`, `String` or `Key`, a tuple such as `(\"account\", 42)`, a `MultiKey`, an array or a `Vec<MultiKey>`, an `Option` or a `Result` of one",
    note = "an extractor that reads the body, `Json` or `Form` for one, makes a key in `LockLayer::from_request`, behind a `BufferBody`; only the last extractor may read the body",
    note = "extractors that need the router's state, `State` for one, go into `LockLayer::from_extractors_with_state` and `LockLayer::from_request_with_state`"
)]
pub trait ExtractorFn<T, S = ()>: Clone + Send + Sync + 'static {
    /// Whether the last extractor may read the body.
    const READS_BODY: bool;

    /// Runs the extractors in order, then the closure.
    fn key(&self, parts: &mut Parts, state: &S) -> impl Future<Output = LockKey> + Send;
}

/// Implements the trait for closures over these extractors. With `+ L`, the last one gets the whole request.
macro_rules! extractor_fn {
    ($($T:ident)* $(+ $L:ident)?) => {
        #[allow(non_snake_case)]
        impl<F, R, S, $($T,)* $($L, M)?> ExtractorFn<extractor_fn!(@form ($($T,)*) $($L M)?), S> for F
        where
            F: Fn($($T,)* $($L)?) -> R + Clone + Send + Sync + 'static,
            R: IntoLockKey,
            S: Send + Sync,
            $($T: FromRequestParts<S> + Send,)*
            $($L: FromRequest<S, M> + Send,)?
        {
            const READS_BODY: bool = extractor_fn!(@reads_body $($L)?);

            async fn key(&self, parts: &mut Parts, state: &S) -> LockKey {
                $(
                    let $T = match $T::from_request_parts(parts, state).await {
                        Ok(found) => found,
                        Err(rejection) => return LockKey::answer(rejection.into_response()),
                    };
                )*
                $(
                    let $L = match $L::from_request(whole_request(parts), state).await {
                        Ok(found) => found,
                        Err(rejection) => return LockKey::answer(rejection.into_response()),
                    };
                )?
                self($($T,)* $($L)?).into_lock_key()
            }
        }
    };
    (@reads_body) => { false };
    (@reads_body $L:ident) => { true };
    (@form $head:tt) => { ($head,) };
    (@form $head:tt $L:ident $M:ident) => { ($M, $head, $L) };
}

/// Returns the request for an extractor that takes all of it. The handler gets the same request.
fn whole_request(parts: &Parts) -> Request<Body> {
    let body = parts.extensions.get::<BufferedBody>();
    let body = body.map(|body| body.bytes().clone()).unwrap_or_default();
    Request::from_parts(parts.clone(), Body::from(body))
}

extractor_fn!(T1);
extractor_fn!(T1 T2);
extractor_fn!(T1 T2 T3);
extractor_fn!(T1 T2 T3 T4);
extractor_fn!(T1 T2 T3 T4 T5);
extractor_fn!(T1 T2 T3 T4 T5 T6);
extractor_fn!(T1 T2 T3 T4 T5 T6 T7);
extractor_fn!(T1 T2 T3 T4 T5 T6 T7 T8);
extractor_fn!(+ L);
extractor_fn!(T1 + L);
extractor_fn!(T1 T2 + L);
extractor_fn!(T1 T2 T3 + L);
extractor_fn!(T1 T2 T3 T4 + L);
extractor_fn!(T1 T2 T3 T4 T5 + L);
extractor_fn!(T1 T2 T3 T4 T5 T6 + L);
extractor_fn!(T1 T2 T3 T4 T5 T6 T7 + L);

impl<F, T, S> KeySource for FromExtractors<F, T, S>
where
    F: ExtractorFn<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    type Key = LockKey;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        if F::READS_BODY && parts.extensions.get::<BufferedBody>().is_none() {
            return missing::<BufferedBody>(&self.unread, parts);
        }
        self.key.key(parts, &self.state).await
    }
}

impl<F: Clone, T, S: Clone> Clone for FromExtractors<F, T, S> {
    fn clone(&self) -> Self {
        FromExtractors {
            key: self.key.clone(),
            state: self.state.clone(),
            unread: self.unread.clone(),
            extractors: PhantomData,
        }
    }
}

impl<F, T, S> std::fmt::Debug for FromExtractors<F, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FromExtractors")
    }
}

macro_rules! extract_lease {
    ($($(#[$doc:meta])* $lease:ident;)+) => {
        $($(#[$doc])*
        impl<S: Sync> FromRequestParts<S> for $lease {
            type Rejection = LeaseMissing;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, LeaseMissing> {
                parts.extensions.get().cloned().ok_or_else(|| {
                    let missing = LeaseMissing::new(stringify!($lease), &parts.extensions);
                    observe::lease_missing(parts.uri.path(), &missing, LEASES_MISSING.allow(parts));
                    missing
                })
            }
        }

        /// The same, or `None` if the layer took no lock.
        impl<S: Sync> OptionalFromRequestParts<S> for $lease {
            type Rejection = Infallible;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
                Ok(parts.extensions.get().cloned())
            }
        })+
    };
}

extract_lease! {
    /// The lease of the innermost [`LockLayer`] around the handler, if that layer locks one key. [`Leases`] has the leases of all
    /// layers.
    ///
    /// If a layer admits requests without a lock, extract an `Option<Lease>`: a key that is `None`, `OPTIONS`,
    /// [`only_unsafe`](LockLayer::only_unsafe), [`dry_run`](LockLayer::dry_run), or
    /// [`RunUnlocked`](crate::middleware::StoreFailure::RunUnlocked).
    Lease;
    /// The leases of the innermost [`LockLayer`] around the handler, if its source names several keys: an array, a `Vec` or
    /// [`and`](KeySource::and). It is there even if the source names one key for this request, or only keys of outer layers.
    ///
    /// If a layer admits requests without a lock, extract an `Option<MultiLease>`.
    MultiLease;
}

/// All leases of the request. The list may be empty.
impl<S: Sync> FromRequestParts<S> for Leases {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Leases, Infallible> {
        Ok(Leases::of(&parts.extensions))
    }
}

/// Limits the reports of handlers without their lease. A route that lacks a layer has no layer that could keep this.
static LEASES_MISSING: LazyLock<RouteThrottle> = LazyLock::new(RouteThrottle::default);

/// The error of a handler that extracts a [`Lease`] or a [`MultiLease`] which is not there. The text says what the [`LockLayer`] of the
/// route did instead, and which extractor fits. This is a fault of the program: the client gets 500, and an error event names the
/// path once a minute for each route.
///
/// ```
/// use tenure::{Lease, middleware::LeaseMissing};
///
/// // Without a `Result` the error is the response.
/// async fn withdraw(lease: Result<Lease, LeaseMissing>) -> String {
///     match lease {
///         Ok(lease) => format!("fence {}", lease.fence()),
///         Err(missing) => format!("the routes are wrong: {missing}"),
///     }
/// }
/// # let app: axum::Router = axum::Router::new().route("/", axum::routing::post(withdraw));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub struct LeaseMissing {
    /// The extractor that failed.
    wanted: &'static str,
    is_single: bool,
    is_several: bool,
    why: Option<WithoutLock>,
}

impl LeaseMissing {
    fn new(wanted: &'static str, extensions: &Extensions) -> Self {
        LeaseMissing {
            wanted,
            is_single: extensions.get::<Lease>().is_some(),
            is_several: extensions.get::<MultiLease>().is_some(),
            why: extensions.get().copied(),
        }
    }

    fn text(&self) -> Cow<'static, str> {
        match self.why {
            _ if self.is_several => {
                "the LockLayer of this route locks several keys: extract a `MultiLease`".into()
            }
            _ if self.is_single => "the LockLayer of this route locks one key: extract a `Lease`".into(),
            Some(why) => format!("{why}: extract an `Option<{}>`", self.wanted).into(),
            None => "LockLayer is missing on this route".into(),
        }
    }
}

impl IntoResponse for LeaseMissing {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}
