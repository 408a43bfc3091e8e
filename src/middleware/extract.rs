//! The parts for axum: keys from extractors, and the lease as an extractor.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::locks::Locks;
use crate::middleware::key::{IntoLockKey, KeySource, LockKey};
use crate::middleware::layer::LockLayer;
use crate::middleware::leases::Leases;
use crate::observe;
use crate::primitives::guard::Lease;
use crate::primitives::multi_guard::MultiLease;

/// A key source that reads the key from axum's extractors. Made by [`LockLayer::from_extractors`] and
/// [`LockLayer::from_extractors_with_state`].
pub struct FromExtractors<F, T, S = ()> {
    key: F,
    state: S,
    extractors: PhantomData<fn() -> T>,
}

impl<F, T> LockLayer<FromExtractors<F, T>>
where
    F: ExtractorFn<T>,
    T: 'static,
{
    /// Locks the key that `key` returns from axum's extractors: up to eight that need no body and no state. If an
    /// extractor fails, its rejection is the response. The extractors see what the handler sees, so a path parameter
    /// is decoded. For `State`, see [`from_extractors_with_state`](Self::from_extractors_with_state).
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

impl<F, T, S> LockLayer<FromExtractors<F, T, S>>
where
    F: ExtractorFn<T, S>,
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
        LockLayer::new(
            locks,
            FromExtractors {
                key,
                state,
                extractors: PhantomData,
            },
        )
    }
}

/// A closure over extractors that returns a key, for [`LockLayer::from_extractors`]. `S` is the router's state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a key of extractors",
    label = "does not make a key of extractors",
    note = "give a closure that can be cloned and sent, with one to eight arguments that have types, `|Path(id): Path<u64>|`, and that returns a key: an integer, `bool`, `Uuid`, `String` or `Key`, a tuple such as `(\"account\", 42)`, a `MultiKey`, an array or a `Vec<MultiKey>`, an `Option` or a `Result` of one",
    note = "an extractor that reads the body, `Json` or `Form` for one, makes a key in `LockLayer::from_request`, behind a `BufferBody`",
    note = "extractors that need the router's state, `State` for one, go into `LockLayer::from_extractors_with_state`"
)]
pub trait ExtractorFn<T, S = ()>: Clone + Send + Sync + 'static {
    /// Runs the extractors in order, then the closure.
    fn key(&self, parts: &mut Parts, state: &S) -> impl Future<Output = LockKey> + Send;
}

macro_rules! extractor_fn {
    ($($T:ident)+) => {
        #[allow(non_snake_case)]
        impl<F, R, S, $($T),+> ExtractorFn<($($T,)+), S> for F
        where
            F: Fn($($T),+) -> R + Clone + Send + Sync + 'static,
            R: IntoLockKey,
            S: Send + Sync,
            $($T: FromRequestParts<S> + Send,)+
        {
            async fn key(&self, parts: &mut Parts, state: &S) -> LockKey {
                $(
                    let $T = match $T::from_request_parts(parts, state).await {
                        Ok(found) => found,
                        Err(rejection) => return LockKey::answer(rejection.into_response()),
                    };
                )+
                self($($T),+).into_lock_key()
            }
        }
    };
}

extractor_fn!(T1);
extractor_fn!(T1 T2);
extractor_fn!(T1 T2 T3);
extractor_fn!(T1 T2 T3 T4);
extractor_fn!(T1 T2 T3 T4 T5);
extractor_fn!(T1 T2 T3 T4 T5 T6);
extractor_fn!(T1 T2 T3 T4 T5 T6 T7);
extractor_fn!(T1 T2 T3 T4 T5 T6 T7 T8);

impl<F, T, S> KeySource for FromExtractors<F, T, S>
where
    F: ExtractorFn<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    type Key = LockKey;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        self.key.key(parts, &self.state)
    }
}

impl<F: Clone, T, S: Clone> Clone for FromExtractors<F, T, S> {
    fn clone(&self) -> Self {
        FromExtractors {
            key: self.key.clone(),
            state: self.state.clone(),
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
                    observe::lease_missing(parts.uri.path());
                    LeaseMissing
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
    /// If a layer admits requests without a lock (a key that is `None`, or `OPTIONS`), extract an `Option<Lease>`.
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

/// The error of a handler that extracts a [`Lease`] or a [`MultiLease`] although no [`LockLayer`] took a lock for the request. This is a
/// fault of the program: the client gets 500, and an event names the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("LockLayer is missing on this route")]
#[non_exhaustive]
pub struct LeaseMissing;

impl IntoResponse for LeaseMissing {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}
