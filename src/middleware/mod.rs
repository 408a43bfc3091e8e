//! A tower layer that runs each request under the lock that its key names.
//!
//! Requests with the same key are served one after the other, on all replicas together. Requests with different keys
//! are served in parallel. Each request gets the lock before its handler begins, and the lock is released when the
//! handler ends. The lease is renewed meanwhile.
//!
//! # Differences from tower's `ConcurrencyLimit`
//! A concurrency limit counts all requests of one process. This layer distinguishes requests by key, and excludes
//! requests in all processes that use the same store. A refusal is a response, so the error type of the inner service
//! stays unchanged: an `Infallible` stays `Infallible`.
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
//! let locks = Locks::memory(); // or Locks::connect("redis://127.0.0.1/").await?
//! let app: Router = Router::new()
//!     .route("/accounts/{id}/withdraw", post(withdraw))
//!     .route_layer(LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")));
//! # use tower::ServiceExt;
//! # let request = http::Request::post("/accounts/7/withdraw").body(axum::body::Body::empty()).unwrap();
//! # assert_eq!(app.oneshot(request).await.unwrap().status(), 200);
//! # }
//! ```
//!
//! On any tower service over [`http`], with many options set:
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
//! # What the client gets
//!
//! | outcome | status | `Retry-After` | [`Refused`] |
//! |---|---|---|---|
//! | the handler ended | the handler's | | |
//! | busy, with [`skip`](LockLayer::skip) or a wait of zero | 423 | | [`Busy`](Refused::Busy) |
//! | busy, with `skip` or a wait of zero, and the key is an `Idempotency-Key` | 409 | 1 to 3 s | [`InFlight`](Refused::InFlight) |
//! | busy for the whole [`wait`](LockLayer::wait) | 429 | 1 to 3 s | [`WaitedTooLong`](Refused::WaitedTooLong) |
//! | [`max_waiters`](LockLayer::max_waiters) requests already wait | 429 | 1 to 3 s | [`QueueFull`](Refused::QueueFull) |
//! | the store is unavailable, refuses for now, or did not answer for the whole wait | 503 | 1 to 3 s | [`StoreFailed`](Refused::StoreFailed) |
//! | the server [recovers](crate::Recovery) for longer than the request can wait: refused at once | 503 | its rest, and up to 2 s | [`Recovering`](Refused::Recovering) |
//! | the store refuses the lock until something is [corrected](crate::error::Trouble): another value under the key, a missing right | 500 | | [`StoreRefused`](Refused::StoreRefused) |
//! | [`Locks::shutdown`](crate::Locks::shutdown) was called | 503 | 1 to 3 s | [`Closed`](Refused::Closed) |
//! | the lease was lost before the handler began | 503 | 1 to 3 s | [`Lost`](Refused::Lost) |
//! | the lease was lost while the handler ran, unless the layer has [`OnLost::Tell`] | 500 | | [`OutcomeUnknown`](Refused::OutcomeUnknown) |
//! | the key is empty, too long or malformed | 400 | | [`BadKey`](Refused::BadKey) |
//! | a part of the key is missing from the request | 400 | | [`NoKey`](Refused::NoKey) |
//! | an option is invalid, or the route lacks the path parameter, or the request lacks an extension | 500 | | [`BadOptions`](Refused::BadOptions) |
//! | the key closure returns an `Err`, or an extractor fails | that of the error | that of the error | |
//!
//! After each refusal of this table but *outcome unknown* nothing was done, and a proxy may repeat a 429 or a 503. A 503 of the
//! handler itself is not in this table. After a 500 *outcome
//! unknown*, the work may have been done, in part or completely. So that response has no `Retry-After`. A proxy that
//! repeats every 5xx, such as Envoy with `retry_on: 5xx`, repeats it nevertheless: configure `gateway-error` or a
//! list of statuses. A busy key is never answered with 503, because load balancers eject replicas that answer 503
//! several times in a row.
//!
//! With the feature `axum` a [`tenure::Error`](crate::Error) is a response, too, so a handler may return
//! `Result<_, tenure::Error>`: `Busy` and full queues give 429, `Closed` and a `Store` error that passes 503, `Lost` 500. The
//! text of a 503 says that nothing was done, so a handler that did something before the error answers with a response of its
//! own.
//!
//! With [`StoreFailure::RunUnlocked`], a request runs without its lock in place of the 503 of a store that failed, but not of a
//! server that recovers.
//!
//! Refusals are `application/problem+json`. They name neither the key nor its holder, and have their [`Refused`] in
//! the response's extensions. You can set each [`status`](LockLayer::status), [`Retry-After`](LockLayer::retry_after)
//! and [problem type](LockLayer::problem_base). To send other responses, pass a closure or your own type to
//! [`on_refusal`](LockLayer::on_refusal): for gRPC it is [`Grpc`]. The last row of the table does not pass through it.
//!
//! # Keys
//! All services with the same store and prefix share one space of keys. The keys are those of
//! [`Locks::mutex`](crate::Locks::mutex): a request that locks `("account", 42)` excludes a job that locks
//! `account:42`. Begin each key with the kind of its resource.
//!
//! *A client that may choose a key may block its owner.* An extractor of the *handler* that authorizes the request runs after the
//! wait, under the lock. So authorize in a layer outside, or in `LockLayer::from_extractors` with the user first:
//! if that extractor fails, nothing is locked. A client that names many keys blocks all of their owners: limit how many it may name.
//!
//! A key is a resource and not a spelling, and it is a contract between releases: the module [`keys`] has the sources, what each
//! does with two spellings and with a missing value, and what must not change in a deploy. For closures, a tuple is a key; its
//! parts are escaped, so that no part can contain a separator. Limit the length of values that clients choose: a key has at most
//! [`max_key`](crate::Builder::max_key) bytes, and a longer key gets 400.
//!
//! # Several keys, readers and permits
//! A source may name several keys, each to be written or [read](crate::MultiKey::read): an array, a `Vec<MultiKey>`, or two sources
//! joined by [`and`](KeySource::and). They are locked together as by [`Locks::multi`](crate::Locks::multi): free keys take one round
//! trip, and two requests never wait for each other in a circle. The handler then sees a [`MultiLease`](crate::MultiLease) in place
//! of a `Lease`. [`read`](KeySource::read) and [`by_method`](KeySource::by_method) make readers, which share a key.
//! [`permits`](LockLayer::permits) admits some requests at a time. Several keys, readers and permits send no
//! [`fence_header`](LockLayer::fence_header).
//!
//! # Where to put it
//!
//! ```text
//!   request
//!      │   trace, request id         outside: the wait is measured, refusals are logged
//!      │   CORS                      outside: preflights and refusals have its headers
//!      │   catch panic               outside: a panic becomes a response, and the lock is free
//!      │   compression               outside: needs no lock
//!      │   authentication            outside: only users with access wait, and the user can be the key
//!      │   timeout over all          outside: counts the wait and the handler together
//!      │   BufferBody                outside: a slow upload holds no lock, and the key may be made of the body
//!      ▼
//!   LockLayer
//!      │   timeout of the handler    inside: counts the handler alone
//!      │   concurrency limit, load shed, buffer, rate limit    inside: waiting requests hold no slots
//!      ▼
//!   handler
//! ```
//!
//! * On axum, use `route_layer`. A `layer` also runs for paths without a route, and takes a lock for each of them.
//!   Around a whole `Router`, the path parameters and the matched path are not known yet.
//!   `post(handler).route_layer(…)` runs only for that handler's methods. `Router::route_layer` runs for all methods
//!   of its routes, also for methods that get 405.
//! * A `ConcurrencyLimit` **outside** is exhausted by one hot key: each waiting request holds a slot, and a request
//!   for another account waits 1.9 s in place of 0.35 ms. The layer is always ready, and makes the inner service
//!   ready only when it has the lock. So a load shedder outside sees no pressure. Use
//!   [`max_waiters`](LockLayer::max_waiters) to shed load.
//! * Many requests of *one HTTP/2 connection*, of a proxy or a gRPC channel, share its streams and its window. The waiters of one hot
//!   key use them up, and requests for other keys wait behind them, even while they hold their own locks. Limit the waiters with
//!   [`max_waiters`](LockLayer::max_waiters) to a part of the streams, put a [`BufferBody`] outside, so that bodies that no handler reads
//!   do not fill the window, or let the proxy open several connections.
//! * If a timeout outside fires, it drops the handler, as a client that leaves does: see below. If the handler runs to completion,
//!   the timeout ends the response only.
//! * A handler reads the request's body under the lock, and a slow client makes that long: other requests get 429 meanwhile.
//!   Put a [`BufferBody`] outside, and inside of what decompresses bodies, or let the reverse proxy buffer bodies, as nginx does by
//!   default. Each body that is read takes memory: limit their *number* outside of it by what sheds load, not by
//!   a limit at which requests wait, which one hot key would use up. For a
//!   handler that runs to completion, only a timeout *between* the layer and the handler, or [`max_hold`](LockLayer::max_hold),
//!   limits a body that never ends.
//! * The lock ends with the handler's response, or with its body if the layer
//!   [holds it until then](LockLayer::hold_until_body_end). It does not protect an upgraded connection or a spawned task. Move a
//!   guard into those: [`Lease::again`](crate::Lease::again), or take the layer's own, which the layer then leaves alone:
//!   [`Lease::take_guard`](crate::Lease::take_guard).
//!
//! # The same key twice
//! Of nested layers, the outer one locks first. If both have the same key, the inner one passes on the lease that the
//! request holds. It knows that lease from the request's extensions, and from the scope of the running code. A
//! handler that locks its own key gets [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once: use
//! [`Lease::again`](crate::Lease::again) of its lease. A task that was spawned or buffered without the request does
//! not know the lease, and waits. The handler sees the [`Lease`](crate::Lease) of the innermost layer, or none if
//! that layer took none; [`Leases`] has all leases. A layer that reads a key shares a lease that writes it. A layer that writes a
//! key which the request only reads is a fault of the program: 500, and an error event once a minute for each route. Layers of two
//! [`Locks`](crate::Locks) are like two processes: with one key the inner one waits for the outer one in vain. Two routes that nest two keys in opposite order can wait for each
//! other until the wait of one of them ends.
//!
//! # When the client leaves
//! When a client leaves, hyper drops the response's future in most cases. It does not notice while a request's body
//! is unread, or while another request is queued on the same connection. A dropped future gives up its place in the
//! queue. If the handler already runs, it is dropped at its current `await`, and the lock is then released in the
//! background. The same happens after a timeout outside, and after a panic of the handler. Work that the handler
//! began elsewhere, such as a statement sent to a database, may still be in flight when the next request gets the
//! lock. That request may be the retry of the same client. Handlers that charge, ship or pay should [run to
//! completion](LockLayer::run_to_completion): they continue even if the client leaves, and a retry waits for their end. They keep
//! every lease of their request, also those of layers outside. With an `Idempotency-Key` they do so by default.
//!
//! # The answer and the release
//! The response does not wait until the lock is free. The lock is released beside the response, and the next waiting
//! request gets it at most one round trip later. So a `try_lock` or a `skip` *elsewhere* may still find the lock busy
//! directly after the response. A process that exits needs [`Locks::shutdown`](crate::Locks::shutdown) to release all
//! locks. Call it after the server has finished its connections: it ends the leases of handlers that do not run to completion, which
//! is a loss for them, and cuts off bodies that hold a lock. A layer with [`skip`](LockLayer::skip) or [`release_before_answer`](LockLayer::release_before_answer) waits
//! for the release, for at most 250 ms if the store does not answer.
//!
//! # When the lease is lost
//! A lease is lost if the store was unavailable for longer than a lease, if the process was suspended, or if
//! [`max_hold`](LockLayer::max_hold) has ended. By default the handler is dropped at its next `await`, and the client
//! gets 500, *outcome unknown*; [`OnLost`] has the alternatives. A handler that runs to completion is notified
//! through its [`Lease`](crate::Lease) and continues. Its client gets the same 500 without waiting for the end.
//!
//! # Dry run
//! A [dry run](LockLayer::dry_run) locks nothing and refuses no request. It counts, for each route, the requests that would
//! have waited.

pub use self::body::ResponseBody;
pub use self::buffer_body::{BufferBody, BufferBodyService, BufferedBody};
#[cfg(feature = "axum")]
pub use self::extract::{ExtractorFn, FromExtractors, LeaseMissing};
pub use self::future::ResponseFuture;
pub use self::grpc::Grpc;
pub use self::key::{IntoLockKey, KeySource, LockKey};
pub use self::layer::{LockLayer, OnLost, StoreFailure, Unlocked};
pub use self::leases::Leases;
pub use self::refusal::{Answer, IntoAnswer, OnRefusal, Problem, Refused, RefusedRequest};
pub use self::service::LockService;

mod acquire;
mod body;
mod buffer_body;
mod busy_refusals;
mod completion;
mod dry_run;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod grpc;
mod kept_leases;
mod key;
pub mod keys;
mod layer;
mod leases;
mod note;
mod refusal;
mod request_guard;
mod route;
mod service;
