//! The part for axum that makes keys of extractors, of which the last may read the body.

use std::any::type_name;
use std::future::Future;
use std::marker::PhantomData;

use axum_core::body::Body;
use axum_core::extract::{FromRequest, FromRequestParts};
use axum_core::response::IntoResponse;
use bytes::Bytes;
use http::Request;
use http::request::Parts;

use crate::locks::Locks;
use crate::middleware::buffer_body::BufferedBody;
use crate::middleware::key::{IntoLockKey, KeySource, LockKey};
use crate::middleware::keys::path::original_path;
use crate::middleware::layer::LockLayer;
use crate::middleware::refusal::Refused;
use crate::middleware::route::RouteThrottle;
use crate::observe;

/// A key source that reads the key from axum's extractors, of which the last may read the body. Made by
/// [`LockLayer::from_request`] and [`LockLayer::from_request_with_state`].
pub struct FromRequestBody<F, T, S = ()> {
    key: F,
    state: S,
    missing: RouteThrottle,
    extractors: PhantomData<fn() -> T>,
}

impl<F, T> LockLayer<FromRequestBody<F, T>>
where
    F: RequestFn<T>,
    T: 'static,
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

impl<F, T, S> LockLayer<FromRequestBody<F, T, S>>
where
    F: RequestFn<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    /// As [`from_request`](Self::from_request), with extractors that need the router's state. A layer is made before the router
    /// has its state, so pass a clone of the state here.
    pub fn from_request_with_state(locks: &Locks, state: S, key: F) -> Self {
        LockLayer::new(
            locks,
            FromRequestBody {
                key,
                state,
                missing: RouteThrottle::default(),
                extractors: PhantomData,
            },
        )
    }
}

/// A closure over extractors that returns a key, for [`LockLayer::from_request`]. `S` is the router's state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a key of a request",
    label = "does not make a key of a request",
    note = "give a closure that can be cloned and sent, with one to eight arguments that have types, `|Json(order): Json<Order>|`, and that returns a key: an integer, `bool`, `Uuid`, `String` or `Key`, a tuple such as `(\"account\", 42)`, a `MultiKey`, an array or a `Vec<MultiKey>`, an `Option` or a `Result` of one",
    note = "only the last extractor may read the body",
    note = "extractors that need the router's state, `State` for one, go into `LockLayer::from_request_with_state`"
)]
pub trait RequestFn<T, S = ()>: Clone + Send + Sync + 'static {
    /// Runs the extractors in order, then the closure.
    fn key(&self, parts: &mut Parts, body: Bytes, state: &S) -> impl Future<Output = LockKey> + Send;
}

macro_rules! request_fn {
    ($($T:ident)*) => {
        #[allow(non_snake_case)]
        impl<F, R, S, M, $($T,)* L> RequestFn<(M, $($T,)* L), S> for F
        where
            F: Fn($($T,)* L) -> R + Clone + Send + Sync + 'static,
            R: IntoLockKey,
            S: Send + Sync,
            $($T: FromRequestParts<S> + Send,)*
            L: FromRequest<S, M> + Send,
        {
            async fn key(&self, parts: &mut Parts, body: Bytes, state: &S) -> LockKey {
                $(
                    let $T = match $T::from_request_parts(parts, state).await {
                        Ok(found) => found,
                        Err(rejection) => return LockKey::answer(rejection.into_response()),
                    };
                )*
                // The extractor takes the request, and the handler gets the same one.
                let request = Request::from_parts(parts.clone(), Body::from(body));
                match L::from_request(request, state).await {
                    Ok(last) => self($($T,)* last).into_lock_key(),
                    Err(rejection) => LockKey::answer(rejection.into_response()),
                }
            }
        }
    };
}

request_fn!();
request_fn!(T1);
request_fn!(T1 T2);
request_fn!(T1 T2 T3);
request_fn!(T1 T2 T3 T4);
request_fn!(T1 T2 T3 T4 T5);
request_fn!(T1 T2 T3 T4 T5 T6);
request_fn!(T1 T2 T3 T4 T5 T6 T7);

impl<F, T, S> KeySource for FromRequestBody<F, T, S>
where
    F: RequestFn<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    type Key = LockKey;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        let Some(body) = parts.extensions.get::<BufferedBody>() else {
            let is_news = self.missing.allow(parts);
            observe::extension_missing(type_name::<BufferedBody>(), original_path(parts), is_news);
            return LockKey::refuse(Refused::BadOptions);
        };
        let body = body.bytes().clone();
        self.key.key(parts, body, &self.state).await
    }
}

impl<F: Clone, T, S: Clone> Clone for FromRequestBody<F, T, S> {
    fn clone(&self) -> Self {
        FromRequestBody {
            key: self.key.clone(),
            state: self.state.clone(),
            missing: self.missing.clone(),
            extractors: PhantomData,
        }
    }
}

impl<F, T, S> std::fmt::Debug for FromRequestBody<F, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FromRequestBody")
    }
}
