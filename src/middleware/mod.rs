//! A tower layer that runs each request under the lock that its key names.
//!
//! Requests with the same key are served one after the other, on all replicas together; requests with different keys in
//! parallel. Each gets the lock before its handler begins and gives it back when the handler is done. It is renewed
//! meanwhile.
//!
//! # Differences to tower's `ConcurrencyLimit`
//! A concurrency limit counts the requests of one process, all alike. This layer tells them apart by key, and holds
//! between all processes that use the same store. It also refuses with responses: the error type of the service inside
//! stays what it is, and what was `Infallible` is so still.
//!
//! # Examples
//! On axum, with the key made of extractors:
//!
//! ```
//! use axum::{Router, extract::Path, routing::post};
//! use tenure::{Lease, LockLayer, Locks};
//!
//! async fn withdraw(lease: Lease, Path(id): Path<u64>) -> String {
//!     // Alone with this account. Send the fence with each write, and let the database refuse smaller ones.
//!     format!("account {id}, fence {}", lease.fence())
//! }
//!
//! # #[cfg(not(feature = "axum"))] fn main() {}
//! # #[cfg(feature = "axum")] #[tokio::main(flavor = "current_thread")] async fn main() {
//! let locks = Locks::memory(); // or Locks::redis("redis://127.0.0.1/").await?
//! let app: Router = Router::new()
//!     .route("/accounts/{id}/withdraw", post(withdraw))
//!     .route_layer(LockLayer::from_extractors(&locks, |Path(id): Path<u64>| format!("account:{id}")));
//! # use tower::ServiceExt;
//! # let request = http::Request::post("/accounts/7/withdraw").body(axum::body::Body::empty()).unwrap();
//! # assert_eq!(app.oneshot(request).await.unwrap().status(), 200);
//! # }
//! ```
//!
//! On any tower service over [`http`], with everything set:
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//! use http::{Request, Response};
//! use tenure::{LockLayer, Locks, middleware::OnLost};
//! use tower::{ServiceBuilder, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let locks = Locks::memory();
//! let layer = LockLayer::by(&locks, |parts| {
//!     let tenant = parts.headers.get("tenant")?; // without the header: without a lock
//!     Some(format!("tenant:{}", tenant.to_str().ok()?))
//! })
//! .wait(Duration::from_secs(2)) // or .skip()
//! .max_waiters(100)
//! .lease(Duration::from_secs(30))
//! .on_lost(OnLost::Cancel)
//! .include_options();
//!
//! let service = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::from("done"))) }));
//! # use tower::ServiceExt;
//! # assert_eq!(service.oneshot(Request::new(String::new())).await.unwrap().status(), 200);
//! # }
//! ```
//!
//! # What the client is told
//!
//! | outcome | status | `Retry-After` | [`Refused`] |
//! |---|---|---|---|
//! | the handler is done | the handler's | | |
//! | busy, and told to [`skip`](LockLayer::skip) or to wait for nothing | 423 | | [`Busy`](Refused::Busy) |
//! | busy for all of the [`wait`](LockLayer::wait) | 429 | 1 to 3 s | [`WaitedTooLong`](Refused::WaitedTooLong) |
//! | [`max_waiters`](LockLayer::max_waiters) wait already | 429 | 1 to 3 s | [`QueueFull`](Refused::QueueFull) |
//! | the store is unreachable or refuses | 503 | 1 to 3 s | [`StoreFailed`](Refused::StoreFailed) |
//! | [`Locks::shutdown`](crate::Locks::shutdown) was called | 503 | 1 to 3 s | [`Closed`](Refused::Closed) |
//! | the lease was lost before the handler began | 503 | 1 to 3 s | [`Lost`](Refused::Lost) |
//! | the lease was lost while the handler ran, with [`OnLost::Cancel`] | 500 | | [`OutcomeUnknown`](Refused::OutcomeUnknown) |
//! | the key is empty, too long or malformed | 400 | | [`BadKey`](Refused::BadKey) |
//! | a header that the key is made of is missing | 400 | | [`NoKey`](Refused::NoKey) |
//! | an option makes no sense, or the route lacks the path parameter | 500 | | [`BadOptions`](Refused::BadOptions) |
//! | the key closure returns an `Err`, or an extractor fails | its own | its own | |
//!
//! Refusals are `application/problem+json`, name neither key nor holder, and carry their [`Refused`] in the response's
//! extensions. To answer otherwise give [`on_refusal`](LockLayer::on_refusal) a closure or a type of yours; the last row
//! passes it by.
//!
//! # Keys
//! A key is a name in a space that all of your services on the same store and prefix share, and the very one of
//! [`Locks::mutex`](crate::Locks::mutex): `account:42` locked by a request excludes a job that locks `account:42`. Begin
//! it with what it is about. Make it of decoded values, as extractors give them: in a raw path `/o/a%2Fb` and `/o/a%2fb`
//! are two keys for one resource. What clients choose freely should be bounded: a key has at most
//! [`max_key`](crate::Builder::max_key) bytes, longer ones get 400.
//!
//! The usual ones are in [`keys`]: a path parameter, a header, `Idempotency-Key`, the whole path, a fixed key.
//!
//! # Where to put it
//! * On axum use `route_layer`: a `layer` also runs for paths that lead nowhere, and takes a lock for each of them.
//!   Around a whole `Router` neither path parameters nor the matched path are there yet.
//! * Inside of authentication, so that only those who may wait do; and inside of tracing, so that the wait is measured.
//! * A timeout outside of it counts the wait and the handler together; one inside counts the handler alone.
//! * The layer is always ready, and makes the service inside ready once it has the lock; so a load shedder outside of it
//!   sees no pressure. [`max_waiters`](LockLayer::max_waiters) is what sheds.
//! * A handler reads the request's body under the lock, and a slow client makes that long: read it outside or bound it.
//! * The lock ends with the handler's answer; a body that is streamed after it is not under it, nor is a connection that
//!   was upgraded.
//! * Of nested layers the outer one locks first, and the handler sees the [`Lease`](crate::Lease) of the inner one. Two
//!   routes that nest the same keys in opposite order can wait for each other until one's wait is over.
//!
//! # When the client leaves
//! Then hyper drops the response's future, in most cases: it does not notice while a request's body is unread, or while
//! another request stands behind it on the same connection. A dropped future gives up its place in the line, or drops
//! the handler's future at the `await` where it stands and then gives back the lock in the background. The same goes for
//! a timeout outside, and for a handler that panics. What the handler had begun elsewhere, a statement sent to a
//! database say, may then still be under way when the next one gets the lock: [fence](crate::Lease::fence) it.
//!
//! An answer is sent when the lock has been given back, so that whoever has it finds the lock free. That costs a round
//! trip when nobody in this process waits for the key, and at most 250 ms when the store does not answer.
//!
//! # When the lease is lost
//! The store was out of reach for longer than a lease, or the process stood still. The handler is told through its
//! [`Lease`](crate::Lease), or dropped: [`OnLost`].

pub use self::body::ResponseBody;
#[cfg(feature = "axum")]
pub use self::extract::{ExtractorFn, FromExtractors, LeaseMissing};
pub use self::future::ResponseFuture;
pub use self::key::{IntoLockKey, KeySource, LockKey};
pub use self::layer::{LockLayer, OnLost};
pub use self::refusal::{Answer, IntoAnswer, OnRefusal, Problem, Refused, RefusedRequest};
pub use self::service::LockService;

mod body;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod key;
pub mod keys;
mod layer;
mod refusal;
mod service;
