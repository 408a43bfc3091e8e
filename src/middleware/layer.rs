//! What is locked, for whom we wait, and how long.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use crate::error::Error;
use crate::locks::Locks;
use crate::middleware::key::{IntoLockKey, KeySource};
use crate::middleware::refusal::{OnRefusal, Refusals, Refused};
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Mutex;
use crate::protocol::message::Fence;

/// Runs each request under the lock that its key names. See the [module](crate::middleware) for the manual.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct LockLayer<K> {
    pub(super) locks: Locks,
    pub(super) key: K,
    pub(super) settings: Arc<Settings>,
}

/// What a layer was told. Shared by all of its requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    /// How long a request waits that finds its key locked. Zero: not at all.
    wait: Duration,
    max_waiters: Option<usize>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    release_before_answer: bool,
    on_lost: OnLost,
    /// The key names one request and its retries.
    has_retries: bool,
    pub(super) to_completion: bool,
    pub(super) include_options: bool,
    pub(super) observe: bool,
    /// Whether an answer tells how long its request waited.
    pub(super) server_timing: bool,
    /// The header in which an answer has the fence.
    fence_header: Option<HeaderName>,
    pub(super) refusals: Refusals,
}

/// What happens to a handler whose lease is lost: the store was out of reach for too long, the process stood still, or
/// somebody deleted the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The handler's future is dropped at its next `await`, and the client gets 500, *outcome unknown*. What it had begun
    /// elsewhere, a statement sent to a database say, may still happen: [fence](crate::Lease::fence) it. One that
    /// [runs to completion](LockLayer::run_to_completion) is not dropped: for it this is [`Replace`](Self::Replace).
    #[default]
    Cancel,
    /// The handler goes on and its [`Lease`](crate::Lease) tells: [`is_held`](crate::Lease::is_held),
    /// [`lost`](crate::Lease::lost). When it is done, its answer is replaced by 500, *outcome unknown*: it finished, but
    /// somebody else may have been at work beside it.
    Replace,
    /// The handler goes on, its [`Lease`](crate::Lease) tells, and its answer is sent as it is. A process that was
    /// suspended for longer than its lease writes over what others wrote meanwhile, unless the handler looks before each
    /// write, or every write is fenced.
    Tell,
}

impl<K: KeySource> LockLayer<K> {
    /// Locks what a [`KeySource`] names: a [ready-made one](crate::middleware::keys), or one of yours. For closures see
    /// [`by`](Self::by).
    pub fn new(locks: &Locks, key: K) -> Self {
        let settings = Settings {
            wait: Duration::from_secs(5),
            has_retries: K::RETRIES,
            to_completion: K::RETRIES,
            ..Settings::default()
        };
        LockLayer {
            locks: locks.clone(),
            key,
            settings: Arc::new(settings),
        }
    }
}

impl<F, R> LockLayer<F>
where
    F: Fn(&Parts) -> R + Clone + Send + Sync + 'static,
    R: IntoLockKey + Send,
{
    /// Locks the key that `key` makes of a request's head.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// use tenure::LockLayer;
    /// use http::StatusCode;
    ///
    /// // Every request has a key …
    /// let layer = LockLayer::by(&locks, |parts| parts.uri.path().to_owned());
    /// // … or only some are locked …
    /// let layer = LockLayer::by(&locks, |parts| {
    ///     let account = parts.headers.get("account")?;
    ///     Some(format!("account:{}", account.to_str().ok()?))
    /// });
    /// // … or some are refused, with anything that axum makes a response of.
    /// # #[cfg(feature = "axum")]
    /// let layer = LockLayer::by(&locks, |parts| match parts.headers.get("account") {
    ///     Some(account) => Ok(tenure::Key::from(account.as_bytes())),
    ///     None => Err((StatusCode::BAD_REQUEST, "which account?")),
    /// });
    /// # tenure_layer_is_used(layer);
    /// # fn tenure_layer_is_used<T>(_: T) {}
    /// ```
    pub fn by(locks: &Locks, key: F) -> Self {
        LockLayer::new(locks, key)
    }
}

impl<K> LockLayer<K> {
    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Wait for the lock, no longer than this; then 429. A wait of nothing is [`skip`](Self::skip). The default is 5 s.
    /// Shorter: clients learn sooner that they should come back. Longer: more of them are served, and more of them stand in
    /// line. It has nothing to do with how long the handler may take.
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|settings| settings.wait = wait)
    }

    /// Do not wait: whoever finds the key locked gets 423 at once, or 409 where the key is an
    /// [`Idempotency-Key`](crate::middleware::keys::idempotency_key).
    pub fn skip(self) -> Self {
        self.wait(Duration::ZERO)
    }

    /// Limits how many requests of this process may wait for one key; the next request gets 429 at once. The default is
    /// [`Builder::max_waiters_per_key`](crate::Builder::max_waiters_per_key).
    pub fn max_waiters(self, limit: usize) -> Self {
        self.set(|settings| settings.max_waiters = Some(limit))
    }

    /// Leases of this length instead of the default, renewed while the handler runs; see
    /// [`Mutex::lease`](crate::Mutex::lease). A length that makes no sense is answered with 500 and an error event.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = Some(lease))
    }

    /// A bound for handlers that hang, and for services inside that never become ready. It bounds how long the lock is held;
    /// a handler that [runs to completion](Self::run_to_completion) goes on without it, and its client is answered with
    /// 500. After this long the handler is told
    /// ([`Lease::overdue`](crate::Lease::overdue)), its lease is renewed no more, and when what is left of it is over, it
    /// is lost; see [`Mutex::max_hold`](crate::Mutex::max_hold) and [`OnLost`]. The default is none.
    pub fn max_hold(self, most: Duration) -> Self {
        self.set(|settings| settings.max_hold = Some(most))
    }

    /// What happens to a handler whose lease is lost while it runs. The default is [`OnLost::Cancel`].
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.set(|settings| settings.on_lost = on_lost)
    }

    /// Once the handler has begun it runs to its end, whether or not the client stays: in a task of its own, with the
    /// lock. Else the handler of a client that leaves is dropped at an `await` and its lock given back, while what it had
    /// begun elsewhere goes on: the client's retry then runs beside its first attempt. It is the default where the key is
    /// an [`Idempotency-Key`](crate::middleware::keys::idempotency_key).
    ///
    /// A client that stays gets the answer, also that a panic is: it is carried over. So are the span and the subscriber of
    /// [`tracing`]; task-local values of your own are not. [`Locks::shutdown`](crate::Locks::shutdown) waits for such
    /// handlers, for as long as they have their lease. When that is lost the handler is told and goes on, and the client gets
    /// 500, *outcome unknown*, at once; see [`OnLost`].
    ///
    /// # Panics
    /// Requests do, outside of a tokio runtime.
    pub fn run_to_completion(self, yes: bool) -> Self {
        self.set(|settings| settings.to_completion = yes)
    }

    /// Send the answer only when the store knows that the lock is free, or has not answered for 250 ms. That costs each
    /// request a round trip. A layer that was told to [`skip`](Self::skip) does so anyway: a client that has its answer
    /// would else find its own lock busy. Where requests wait, the lock is given back while the answer is sent, and whoever
    /// comes next waits a trip at most.
    pub fn release_before_answer(self) -> Self {
        self.set(|settings| settings.release_before_answer = true)
    }

    /// Lock `OPTIONS` requests too. By default they pass without a key being asked for: a browser's preflight changes
    /// nothing and should not wait.
    pub fn include_options(self) -> Self {
        self.set(|settings| settings.include_options = true)
    }

    /// Lock nothing, and tell what would have happened: the handler runs at once, and beside it, never waited for, a
    /// `try_lock` of a shadow of the key tells whether another request for the same key is under way. It is counted by
    /// route (`tenure_observed_total`) and told (`overlap`). Nobody is refused, whatever the key. The way in for a team
    /// that is not sure which routes need the layer, and what it would cost them. It is the work of a real lock for the
    /// store. The figure is an upper bound: what the store is told of a request arrives a trip later, so requests that
    /// follow each other within a trip or two count as an overlap.
    ///
    /// # Panics
    /// Requests do, outside of a tokio runtime.
    pub fn observe(self) -> Self {
        self.set(|settings| settings.observe = true)
    }

    /// Tell clients how long their request waited for its lock, as `Server-Timing: lock;dur=1.5`, in milliseconds: browsers
    /// show it beside the request. Pages of other origins see it only where `Timing-Allow-Origin` lets them.
    pub fn server_timing(self) -> Self {
        self.set(|settings| settings.server_timing = true)
    }

    /// Send the fence in this header of the handler's answers, for clients that pass it on to what they write to. Pages of
    /// other origins see it only where CORS exposes the header (`Access-Control-Expose-Headers`).
    ///
    /// # Panics
    /// If no header can have that name.
    pub fn fence_header<N>(self, name: N) -> Self
    where
        N: TryInto<HeaderName>,
        N::Error: fmt::Debug,
    {
        let name = name.try_into().expect("it is the name of a header");
        self.set(|settings| settings.fence_header = Some(name))
    }

    /// Refuse with this status instead of the one in the table of the [module](crate::middleware).
    ///
    /// ```
    /// use http::StatusCode;
    /// use tenure::{LockLayer, Locks, middleware::Refused};
    ///
    /// # let locks = Locks::memory();
    /// let layer = LockLayer::by(&locks, |_| "import").skip().status(Refused::Busy, StatusCode::CONFLICT);
    /// ```
    pub fn status(self, why: Refused, status: StatusCode) -> Self {
        self.set(|settings| settings.refusals.set_status(why, status))
    }

    /// What `Retry-After` says, rounded up to whole seconds, one at least and a day at most. The default is 1 to 3 s, at
    /// random, so that those who were refused together do not come back together.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.refusals.set_retry_after(after))
    }

    /// Where the `type` of a [`Problem`](crate::middleware::Problem) points to: this text, a `#` and the outcome's name. The
    /// default is this crate's documentation of [`Refused`](crate::middleware::Refused).
    pub fn problem_base(self, base: impl Into<Cow<'static, str>>) -> Self {
        self.set(|settings| settings.refusals.set_base(base.into()))
    }

    /// Answer whom the layer refuses with this instead of a [`Problem`](crate::middleware::Problem): a closure that is given
    /// the [`RefusedRequest`](crate::middleware::RefusedRequest), or a type with [`OnRefusal`]. Answers of a key closure's
    /// `Err` and of failing extractors are theirs, and do not pass through here.
    ///
    /// ```
    /// use http::Response;
    /// use tenure::{LockLayer, Locks, middleware::{OnRefusal, Problem, Refused, RefusedRequest, keys}};
    ///
    /// # let locks = Locks::memory();
    /// let layer = LockLayer::new(&locks, keys::fixed("import"))
    ///     .skip()
    ///     .on_refusal(|request: &RefusedRequest| match request.why() {
    ///         Refused::Busy => Response::builder().status(409).body(String::from("one import at a time")).unwrap(),
    ///         _ => Problem.answer(request),
    ///     });
    /// ```
    pub fn on_refusal(self, answer: impl OnRefusal) -> Self {
        self.set(|settings| settings.refusals.set_answer(answer))
    }
}

impl Settings {
    /// The lock of a key, as told.
    pub(super) fn mutex(&self, mut mutex: Mutex) -> Mutex {
        if let Some(lease) = self.lease {
            mutex = mutex.lease(lease);
        }
        if let Some(most) = self.max_hold {
            mutex = mutex.max_hold(most);
        }
        if let Some(limit) = self.max_waiters {
            mutex = mutex.max_waiters(limit);
        }
        mutex
    }

    /// Takes the lock as told, or says how the request is refused.
    pub(super) async fn enter(&self, mutex: &Mutex) -> Result<Guard, (Refused, Option<Error>)> {
        let entered = mutex.lock_timeout(self.wait).await;
        entered.map_err(|error| match error {
            Error::Busy { .. } if self.wait.is_zero() && self.has_retries => (Refused::InFlight, None),
            Error::Busy { .. } if self.wait.is_zero() => (Refused::Busy, None),
            // Whatever was lost here, no handler had begun.
            error if error.is_lost() => (Refused::Lost, Some(error)),
            error => (Refused::from(&error), Some(error)),
        })
    }

    /// The answer waits until the store knows that the lock is free.
    pub(super) fn releases_first(&self) -> bool {
        self.release_before_answer || self.wait.is_zero()
    }

    /// The handler is dropped when its lease is lost.
    pub(super) fn cancels(&self) -> bool {
        self.on_lost == OnLost::Cancel && !self.to_completion
    }

    /// The answer of a handler whose lease was lost is not sent.
    pub(super) fn replaces(&self) -> bool {
        self.on_lost != OnLost::Tell
    }

    /// Adds the layer's headers to an answer. Others may have written a `Server-Timing` of their own, which stays.
    pub(super) fn add_headers(&self, to: &mut HeaderMap, waited: Duration, fence: Option<Fence>) {
        if self.server_timing {
            let text = format!("lock;dur={:.3}", waited.as_secs_f64() * 1e3);
            if let Ok(value) = HeaderValue::try_from(text) {
                to.append(HeaderName::from_static("server-timing"), value);
            }
        }
        if let (Some(name), Some(fence)) = (&self.fence_header, fence) {
            to.insert(name.clone(), HeaderValue::from(fence.get()));
        }
    }
}

impl<K> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locks", &self.locks)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
