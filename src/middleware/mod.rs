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
//! On axum, a lock per account:
//!
//! ```
//! use axum::{Router, extract::Path, routing::post};
//! use tenure::{Lease, LockLayer, Locks, middleware::keys};
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
//!     .route_layer(LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")));
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
//!     Some(("tenant", tenant.to_str().ok()?.to_lowercase()))
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
//! | the same, and the key is an `Idempotency-Key` | 409 | 1 to 3 s | [`InFlight`](Refused::InFlight) |
//! | busy for all of the [`wait`](LockLayer::wait) | 429 | 1 to 3 s | [`WaitedTooLong`](Refused::WaitedTooLong) |
//! | [`max_waiters`](LockLayer::max_waiters) wait already | 429 | 1 to 3 s | [`QueueFull`](Refused::QueueFull) |
//! | the store is unreachable, refuses, or said nothing for all of the wait | 503 | 1 to 3 s | [`StoreFailed`](Refused::StoreFailed) |
//! | [`Locks::shutdown`](crate::Locks::shutdown) was called | 503 | 1 to 3 s | [`Closed`](Refused::Closed) |
//! | the lease was lost before the handler began | 503 | 1 to 3 s | [`Lost`](Refused::Lost) |
//! | the lease was lost while the handler ran, unless it is [`OnLost::Tell`] | 500 | | [`OutcomeUnknown`](Refused::OutcomeUnknown) |
//! | the key is empty, too long or malformed | 400 | | [`BadKey`](Refused::BadKey) |
//! | what the key is made of is missing from the request | 400 | | [`NoKey`](Refused::NoKey) |
//! | an option makes no sense, or the route lacks the path parameter, or the request an extension | 500 | | [`BadOptions`](Refused::BadOptions) |
//! | the key closure returns an `Err`, or an extractor fails | its own | its own | |
//!
//! After a 429 or 503 of this table nothing was done, and a proxy may send the request again. After a 500 *outcome unknown*
//! it may have been done, in part or wholly, so it has no `Retry-After`; a proxy that is told to repeat every 5xx, as
//! Envoy's `retry_on: 5xx` says, repeats it all the same: tell it `gateway-error` or a list of statuses. A key that many
//! want is no reason for 503: load balancers take replicas out that answer it in a row.
//!
//! Refusals are `application/problem+json`, name neither key nor holder, and carry their [`Refused`] in the response's
//! extensions. Each [`status`](LockLayer::status), [`Retry-After`](LockLayer::retry_after) and
//! [problem type](LockLayer::problem_base) can be set; to answer otherwise give [`on_refusal`](LockLayer::on_refusal) a
//! closure or a type of yours. The last row passes it by.
//!
//! # Keys
//! A key is a name in a space that all of your services on the same store and prefix share, and the very one of
//! [`Locks::mutex`](crate::Locks::mutex): `("account", 42)` locked by a request excludes a job that locks `account:42`.
//! Begin it with what it is about.
//!
//! *A key is a resource, not a spelling.* Make it of the value that the handler works with, a `u64` or a `Uuid`: a lock
//! per text has another one for `/accounts/042`, and lets it in beside `/accounts/42`. The sources in [`keys`] are read
//! by type: a path parameter, a header, a parameter of the query; besides there are the host, the user whom a layer
//! outside has authenticated, `Idempotency-Key`, the whole path, a fixed key. Each can be
//! [scoped by another](KeySource::per) and be [hashed](KeySource::hashed). For closures a tuple is a key; its parts are
//! escaped, so that no text reaches into the next one. What clients choose freely should be bounded: a key has at most
//! [`max_key`](crate::Builder::max_key) bytes, longer ones get 400.
//!
//! *Keys and job names are a contract between releases.* While one is rolled out, old and new replicas exclude each other
//! only where both make the same key. Renaming `{id}` in a route changes the key of a path parameter that has no name, and
//! gives an account two locks for as long as the rollout takes; so [name](keys::Header::named) what a value stands for.
//! The same goes for a job that gets another name.
//!
//! # Where to put it
//!
//! ```text
//!   request
//!      │   trace, request id         outside: the wait is measured, refusals are logged
//!      │   CORS                      outside: preflights and refusals have its headers
//!      │   catch panic               outside: a panic is an answer, and the lock is free
//!      │   compression               outside: nothing to do with the lock
//!      │   authentication            outside: only those who may wait do, and the user can be the key
//!      │   timeout over all          outside: counts the wait and the handler together
//!      ▼
//!   LockLayer
//!      │   timeout of the handler    inside: counts the handler alone
//!      │   concurrency limit, load shed, buffer, rate limit    inside: those who wait for a lock hold no slots
//!      ▼
//!   handler
//! ```
//!
//! * On axum use `route_layer`: a `layer` also runs for paths that lead nowhere, and takes a lock for each of them.
//!   Around a whole `Router` neither path parameters nor the matched path are there yet. `post(handler).route_layer(…)`
//!   runs for that handler's methods only, `Router::route_layer` for all methods of its routes, also those that are
//!   answered with 405.
//! * A `ConcurrencyLimit` **outside** is eaten by one hot key: everybody who waits for it holds a slot, and another
//!   account waits 1.9 s instead of 0.35 ms. The layer is always ready, and makes the service inside ready once it has the
//!   lock; so a load shedder outside of it sees no pressure. [`max_waiters`](LockLayer::max_waiters) is what sheds.
//! * A timeout outside that fires drops the handler, as a client that leaves does: see below.
//! * A handler reads the request's body under the lock, and a slow client makes that long: read it outside or bound it.
//! * The lock ends with the handler's answer; a body that is streamed after it is not under it, nor is a connection that
//!   was upgraded, nor a task that was spawned. Move a guard into those: [`Lease::again`](crate::Lease::again).
//!
//! # The same key twice
//! Of nested layers the outer one locks first. If both have the same key the inner one passes the lease on that the request
//! holds; it knows that from the request's extensions, and from where the code runs. A handler that locks its own key gets
//! [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once: take [`Lease::again`](crate::Lease::again) of the lease it
//! has. What it spawned or buffered without the request does not know of it and waits. The handler sees the
//! [`Lease`](crate::Lease) of the innermost layer, or none if that one took none; [`Leases`] has all of them. Two routes
//! that nest two keys in opposite order can wait for each other until one's wait is over.
//!
//! # When the client leaves
//! Then hyper drops the response's future, in most cases: it does not notice while a request's body is unread, or while
//! another request stands behind it on the same connection. A dropped future gives up its place in the line, or drops
//! the handler's future at the `await` where it stands and then gives back the lock in the background. The same goes for
//! a timeout outside, and for a handler that panics. What the handler had begun elsewhere, a statement sent to a
//! database say, may then still be under way when the next one gets the lock, and that may be the retry of the same client.
//! Handlers that charge, ship or pay should [run to completion](LockLayer::run_to_completion): once begun they go on with
//! the lock, whether or not the client stays, and a retry waits for the end. With an `Idempotency-Key` they do so unless
//! told otherwise.
//!
//! # The answer and the release
//! The answer does not wait for the lock to be free: the lock is given back beside it, and whoever waits for it gets it a
//! trip later at most. So a `try_lock` or a `skip` *elsewhere* right after the answer may find it busy still, and a process
//! that exits needs [`Locks::shutdown`](crate::Locks::shutdown) to leave nothing. A layer that was told to
//! [`skip`](LockLayer::skip), or to [`release_before_answer`](LockLayer::release_before_answer), waits for the release,
//! 250 ms at most when the store does not answer.
//!
//! # When the lease is lost
//! The store was out of reach for longer than a lease, or the process stood still, or
//! [`max_hold`](LockLayer::max_hold) was over. Unless told otherwise the handler is dropped at its next `await`, and the
//! client gets 500, *outcome unknown*; [`OnLost`] says what else there is. One that runs to completion is told through its
//! [`Lease`](crate::Lease) and goes on, and its client gets the same 500 without waiting for the end.
//!
//! # Not sure yet?
//! A [dry run](LockLayer::dry_run) locks nothing and refuses no request. It counts, for each route, the requests that would
//! have waited.

pub use self::body::ResponseBody;
#[cfg(feature = "axum")]
pub use self::extract::{ExtractorFn, FromExtractors, LeaseMissing};
pub use self::future::ResponseFuture;
pub use self::key::{IntoLockKey, KeySource, LockKey};
pub use self::layer::{LockLayer, OnLost};
pub use self::leases::Leases;
pub use self::refusal::{Answer, IntoAnswer, OnRefusal, Problem, Refused, RefusedRequest};
pub use self::service::LockService;

mod body;
mod busy_refusals;
mod completion;
mod dry_run;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod key;
pub mod keys;
mod layer;
mod leases;
mod refusal;
mod request_guard;
mod service;
