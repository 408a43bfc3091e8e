//! The configuration of a layer: the key, how long requests wait, and how they are refused.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::error::{Error, OptionsError, Trouble};
use crate::locks::Locks;
use crate::middleware::key::{IntoLockKey, KeySource, is_safe};
use crate::middleware::refusal::{OnRefusal, RefusalPolicy, Refused};
use crate::primitives::multi::MultiLock;
use crate::primitives::target::Target;
use crate::protocol::message::Fence;
use crate::protocol::primitive::Primitive;

/// Runs each request under the lock that its key names. See the [module](crate::middleware) for the manual.
///
/// ```
/// use std::time::Duration;
/// use tenure::{LockLayer, Locks, middleware::keys};
///
/// let locks = Locks::memory();
/// // Requests with one `x-account` run one after the other, on all replicas together.
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account").named("account"))
///     .wait(Duration::from_secs(2))
///     .max_waiters(100);
/// # drop(layer);
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct LockLayer<K> {
    pub(super) locks: Locks,
    pub(super) key: K,
    pub(super) settings: Arc<LayerSettings>,
}

/// The settings of a layer, shared by all of its requests.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerSettings {
    /// How long a request waits for a locked key. Zero means that it does not wait.
    wait: Duration,
    max_waiters: Option<usize>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    keep: Option<Duration>,
    /// How many requests hold a key at a time, on all replicas together.
    pub(super) permits: Option<u32>,
    fair: bool,
    release_before_answer: bool,
    pub(super) hold_until_body_end: bool,
    on_lost: OnLost,
    /// Whether the key names one request and its retries.
    pub(super) has_retries: bool,
    pub(super) to_completion: bool,
    include_options: bool,
    only_unsafe: bool,
    wait_by: Option<WaitBy>,
    store_failure: StoreFailure,
    pub(super) dry_run: bool,
    /// Whether a response reports how long its request waited.
    pub(super) server_timing: bool,
    /// Whether operators see which request holds a lease.
    pub(super) noted: bool,
    /// The response header that contains the fence.
    fence_header: Option<HeaderName>,
    pub(super) refusals: RefusalPolicy,
}

/// A closure that returns how long a request waits.
#[derive(Clone)]
struct WaitBy(Arc<WaitByFn>);

type WaitByFn = dyn Fn(&Parts) -> Option<Duration> + Send + Sync;

impl fmt::Debug for WaitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitBy")
    }
}

/// What happens to a request whose lock the store cannot give: the store is unavailable, refuses for now, or did not answer in time.
///
/// ```
/// use tenure::{LockLayer, Locks, middleware::{StoreFailure, keys}};
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account"))
///     .on_store_failure(StoreFailure::RunUnlocked); // an outage is worse than two requests at once
/// # drop(layer);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The request is refused, [`StoreFailed`](Refused::StoreFailed), by default with 503.
    #[default]
    Refuse,
    /// The request runs without a lock. Requests for one key may then run at once, as without the layer: choose it only where an
    /// outage of the store is worse than that. The handler sees no [`Lease`](crate::Lease), and [`Unlocked`] is in the
    /// request's extensions. The metric `tenure_unlocked_total` counts such requests.
    ///
    /// A request that arrives when a server falls silent first waits for its lock: until its wait ends, or until the server has
    /// not answered for about two [`request_timeout`](crate::Builder::request_timeout)s. A request that does not wait for a busy
    /// key waits for the answer of the server, too, for that long. Later requests run at once.
    ///
    /// A lock that the store refuses until something is corrected is no failure of the store: the request is refused,
    /// [`StoreRefused`](Refused::StoreRefused). Otherwise a missing right would end all exclusion.
    ///
    /// A server that [recovers](crate::Recovery) is no failure: earlier leases may be in use then, so the request is refused. A server
    /// that comes back without its data recovers. A request whose wait was so short that no answer was late is refused, too.
    RunUnlocked,
}

/// In the extensions of a request that runs without its lock, because the store failed: [`StoreFailure::RunUnlocked`].
///
/// ```
/// use http::Request;
/// use tenure::middleware::Unlocked;
///
/// async fn withdraw(request: Request<String>) -> &'static str {
///     match request.extensions().get::<Unlocked>() {
///         Some(Unlocked) => "locks are unavailable: this account cannot be changed now",
///         None => "done",
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlocked;

/// What happens to a handler whose lease is lost: the store was unavailable for too long, the process was suspended,
/// or a user deleted the lock.
///
/// ```
/// use tenure::{LockLayer, Locks, middleware::{OnLost, keys}};
///
/// # let locks = Locks::memory();
/// // The handler fences each write, so it may finish without the lock.
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account")).on_lost(OnLost::Tell);
/// # drop(layer);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The handler's future is dropped at its next `await`, and the client gets 500, *outcome unknown*. So the handler need not
    /// call [`Lease::run`](crate::Lease::run). Work that the
    /// handler began elsewhere, such as a statement sent to a database, may still happen:
    /// [fence](crate::Lease::fence) it. A handler that [runs to completion](LockLayer::run_to_completion) is not
    /// dropped: its [`Lease`](crate::Lease) reports the loss, it continues, and its client gets the 500 at once.
    #[default]
    Cancel,
    /// The handler continues, and its [`Lease`](crate::Lease) reports the loss: [`is_held`](crate::Lease::is_held),
    /// [`lost`](crate::Lease::lost). When the handler ends, its response is replaced by 500, *outcome unknown*: the
    /// handler finished, but another holder may have run beside it.
    Replace,
    /// The handler continues, its [`Lease`](crate::Lease) reports the loss, and its response is sent unchanged. After
    /// a suspension that is longer than the lease, the handler may overwrite what other holders wrote. To prevent
    /// that, check the lease before each write, or fence every write.
    Tell,
}

impl<K: KeySource> LockLayer<K> {
    /// Locks the key that a [`KeySource`] names: a [ready-made one](crate::middleware::keys), or your own. For
    /// closures see [`by`](Self::by).
    pub fn new(locks: &Locks, key: K) -> Self {
        let settings = LayerSettings {
            wait: Duration::from_secs(5),
            has_retries: K::RETRIES,
            to_completion: K::RETRIES,
            ..LayerSettings::default()
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
    /// Locks the key that `key` returns for a request's head.
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
    fn set(mut self, change: impl FnOnce(&mut LayerSettings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Panics if the store of the layer does not serve this. Each request would be refused.
    #[track_caller]
    fn require(&self, primitive: Primitive) {
        if let Some(error) = self.locks.handle().node().servers.refusal(primitive) {
            panic!("{error}");
        }
    }

    /// Waits for the lock for at most this time, then answers 429. The default is 5 s; zero is the same as
    /// [`skip`](Self::skip). If the time is shorter, clients learn sooner that they must retry. If it is longer, more
    /// requests are served, and more requests wait. It does not limit how long the handler runs.
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|settings| settings.wait = wait)
    }

    /// Does not wait. If the key is locked, the request gets 423 at once, or 409 if the key is an
    /// [`Idempotency-Key`](crate::middleware::keys::idempotency_key).
    pub fn skip(self) -> Self {
        self.wait(Duration::ZERO)
    }

    /// Sets for each request how long it waits. `None` is the layer's [`wait`](Self::wait), which is also the longest wait. Zero is
    /// [`skip`](Self::skip) for this request: it does not wait, and its response is sent when the lock is free.
    ///
    /// A client's `Prefer: wait=5` (RFC 7240, section 4.3):
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::request::Parts;
    /// use tenure::{LockLayer, Locks};
    ///
    /// fn prefer(parts: &Parts) -> Option<Duration> {
    ///     let fields = parts.headers.get_all("prefer").iter();
    ///     let mut preferences = fields.filter_map(|field| field.to_str().ok()).flat_map(|field| field.split(','));
    ///     let seconds = preferences.find_map(|preference| preference.trim().strip_prefix("wait="))?;
    ///     seconds.parse().ok().map(Duration::from_secs)
    /// }
    ///
    /// # let locks = Locks::memory();
    /// let layer = LockLayer::by(&locks, |_| "import").wait(Duration::from_secs(30)).wait_by(prefer);
    /// ```
    pub fn wait_by(self, wait: impl Fn(&Parts) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.wait_by = Some(WaitBy(Arc::new(wait))))
    }

    /// Sets what happens to a request whose lock the store cannot give. The default is [`StoreFailure::Refuse`].
    ///
    /// A key that names one request and its retries, as an
    /// [`Idempotency-Key`](crate::middleware::keys::idempotency_key) does, cannot be given up: with
    /// [`StoreFailure::RunUnlocked`] such a layer answers each request with 500, and an error event reports it.
    pub fn on_store_failure(self, failure: StoreFailure) -> Self {
        self.set(|settings| settings.store_failure = failure)
    }

    /// Limits how many requests of this process wait for one key. The next request gets 429 at once. The default is
    /// [`Builder::max_waiters_per_key`](crate::Builder::max_waiters_per_key), which this limit replaces; it may be larger.
    pub fn max_waiters(self, limit: usize) -> Self {
        self.set(|settings| settings.max_waiters = Some(limit))
    }

    /// Sets the length of the leases, which are renewed while the handler runs; see
    /// [`Mutex::lease`](crate::Mutex::lease). If the length is out of range, requests get 500, and an error event
    /// reports it.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = Some(lease))
    }

    /// Limits how long a lock is held by a handler that hangs, or by an inner service that never becomes ready. The
    /// default is no limit. After this time the handler is notified ([`Lease::overdue`](crate::Lease::overdue)), and
    /// its lease is no longer renewed. The lease is lost when its remaining time is over; see
    /// [`Mutex::max_hold`](crate::Mutex::max_hold) and [`OnLost`]. A handler that [runs to
    /// completion](Self::run_to_completion) then continues without the lock, and its client gets 500.
    pub fn max_hold(self, most: Duration) -> Self {
        self.set(|settings| settings.max_hold = Some(most))
    }

    /// Sets how long a lock stays with this process after its last request, in place of
    /// [`Builder::keep`](crate::Builder::keep). Only the lock of one key that excludes all others is kept, and only if requests
    /// wait for it.
    pub fn keep(self, keep: Duration) -> Self {
        self.set(|settings| settings.keep = Some(keep))
    }

    /// Admits `permits` requests at a time for each key, on all replicas together, as
    /// [`Locks::semaphore`](crate::Locks::semaphore) does: the permits are those of `locks.semaphore(key, permits)`, and a lock of
    /// the same key is independent of them. The others wait, or are refused, as for a lock. Permits send no
    /// [`fence_header`](Self::fence_header). Nested layers with one key and the same number share one permit.
    ///
    /// Each request needs exactly one key, which is not [read](crate::MultiKey::read), and which does not name a request and its
    /// retries. Otherwise, and with zero permits, it gets 500, and an error event reports it.
    ///
    /// # Panics
    /// Panics if the locks are those of a quorum, which serves no permits.
    ///
    /// ```
    /// use tenure::{LockLayer, middleware::keys};
    ///
    /// # let locks = tenure::Locks::memory();
    /// // Three exports at a time for each tenant.
    /// let layer = LockLayer::new(&locks, keys::header_text("x-tenant").named("exports")).permits(3);
    /// ```
    #[track_caller]
    pub fn permits(self, permits: u32) -> Self {
        self.require(Primitive::Semaphore);
        self.set(|settings| settings.permits = Some(permits))
    }

    /// Serves requests of all replicas first come, first served, as [`Mutex::fair`](crate::Mutex::fair) does, at the same cost.
    ///
    /// # Panics
    /// Panics if the locks are those of a quorum, which has no queue.
    #[track_caller]
    pub fn fair(self) -> Self {
        self.require(Primitive::FairLock);
        self.set(|settings| settings.fair = true)
    }

    /// Holds the lock until the body of the response ends, fails or is dropped, for downloads and streams. The default is the end
    /// of the handler. The lease is renewed meanwhile, so a client that reads slowly holds the lock for as long as it reads: limit
    /// it with [`max_hold`](Self::max_hold), after which the lease runs out. [`Locks::shutdown`](crate::Locks::shutdown) ends
    /// the lease, and so the body: first let the server finish its connections.
    ///
    /// If the lease is lost while the body is sent, the body ends with an error, and the client sees that it was cut off, unless
    /// the layer has [`OnLost::Tell`]. The lock of an upgraded connection, 101 or `CONNECT`, ends with the head. The response does
    /// not wait for a release: this option comes before [`release_before_answer`](Self::release_before_answer). A guard that the
    /// handler has [taken](crate::Lease::take_guard) is the handler's.
    pub fn hold_until_body_end(self) -> Self {
        self.set(|settings| settings.hold_until_body_end = true)
    }

    /// Sets what happens to a handler whose lease is lost while it runs. The default is [`OnLost::Cancel`].
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.set(|settings| settings.on_lost = on_lost)
    }

    /// Runs each handler to its end, even if its client leaves: in a task of its own, with every lease of its request. These are the
    /// lease of this layer, those of other layers outside, and those in whose [scope](crate::Lease::scope) the layer runs, of any
    /// [`Locks`](crate::Locks). If one of them is over before the handler begins, the request is refused ([`Lost`](Refused::Lost)).
    /// A request without a lock of this layer runs to its end, too: it has no key, or [the store
    /// failed](StoreFailure::RunUnlocked). A request that passes by its method does not.
    ///
    /// Without it, the handler of a client that leaves is dropped at an `await`, and its lock is released. Work that
    /// the handler began elsewhere continues. So the client's retry may run beside the first attempt. This is the
    /// default, except if the key is an [`Idempotency-Key`](crate::middleware::keys::idempotency_key): such a layer
    /// runs handlers to completion unless it gets `run_to_completion(false)`.
    ///
    /// A tower `ConcurrencyLimit` *outside* does not limit such handlers: when a client leaves, its slot is free, and its handler
    /// continues. A limit *between* this layer and the handler does. A request waits for it under its lock.
    ///
    /// A timeout outside ends the response only. A handler that reads a body which never ends keeps its locks until the client
    /// leaves: put a [`BufferBody`](crate::middleware::BufferBody) outside, or limit the handler by a timeout between this layer and
    /// the handler, or the lock by [`max_hold`](Self::max_hold).
    ///
    /// A client that stays gets the response, and a panic of the handler is passed on. The span and the subscriber of
    /// [`tracing`] are passed to the task; other task-local values are not.
    /// [`Locks::shutdown`](crate::Locks::shutdown) of each `Locks` waits for such handlers as long as they have a lease of it. When
    /// the lease of this layer is lost, the handler is notified and continues, and the client gets 500, *outcome unknown*, at once; see
    /// [`OnLost`]. When another lease is lost, its layer answers as its own [`OnLost`] says.
    ///
    /// # Panics
    /// A request panics outside of a tokio runtime.
    pub fn run_to_completion(self, yes: bool) -> Self {
        self.set(|settings| settings.to_completion = yes)
    }

    /// Sends the response only when the store knows that the lock is free, or has not answered for 250 ms. This costs
    /// each request one round trip. A layer with [`skip`](Self::skip) always does so: otherwise a client that has its
    /// response might find its own lock busy. Without this option the lock is released while the response is sent,
    /// and the next waiting request waits at most one round trip longer.
    pub fn release_before_answer(self) -> Self {
        self.set(|settings| settings.release_before_answer = true)
    }

    /// Locks `OPTIONS` requests too. By default they pass without a lock, and no key is read: a browser's preflight
    /// changes nothing and need not wait.
    pub fn include_options(self) -> Self {
        self.set(|settings| settings.include_options = true)
    }

    /// Locks only requests whose method may change something. `GET`, `HEAD`, `OPTIONS`, `TRACE` and `QUERY` pass without a lock,
    /// and no key is read, whatever [`include_options`](Self::include_options) says.
    pub fn only_unsafe(self) -> Self {
        self.set(|settings| settings.only_unsafe = true)
    }

    /// Locks nothing, and reports what the layer would have done.
    ///
    /// Each handler runs at once, and no request is refused. Beside the handler, the layer tries to lock a shadow of the
    /// key. This finds out whether another request for the same key is in flight. Each request is counted by route in the
    /// metric `tenure_dry_run_total`. A request that would have waited, or would have been refused, is also an event,
    /// `dry_run`. So a team can find out which routes need the layer, and what it would cost.
    ///
    /// For the store, a shadow is as much work as a real lock. The count is an upper bound: the store hears of a request
    /// one round trip late, so two requests within one or two round trips count as an overlap.
    ///
    /// # Panics
    /// A request panics outside of a tokio runtime.
    pub fn dry_run(self) -> Self {
        self.set(|settings| settings.dry_run = true)
    }

    /// Reports how long a request waited for its lock, also if it then [runs without
    /// it](StoreFailure::RunUnlocked), as `Server-Timing: lock;dur=1.5`, in milliseconds. Browsers
    /// show it beside the request. Pages of other origins see it only if `Timing-Allow-Origin` permits it.
    pub fn server_timing(self) -> Self {
        self.set(|settings| settings.server_timing = true)
    }

    /// Notes on each lease which request holds it, for operators: method, route and trace id, as
    /// `POST /accounts/{id} trace 4bf92f3577b34da6a3ce929d0e0e4736`. `tenure show` prints the notes of requests that take longer than
    /// 1 s; [`Lease::note`](crate::Lease::note) says which and when. The handler may write another note.
    ///
    /// The route is that of axum, as it was declared; other services have none. The trace id is that of a valid `traceparent`
    /// (W3C Trace Context). A method that is not known is `other`. The note has neither the path nor the query, and nothing else of
    /// the headers.
    pub fn noted(self) -> Self {
        self.set(|settings| settings.noted = true)
    }

    /// Sends the fence in this header of the handler's responses, for clients that pass it on with their writes.
    /// Pages of other origins see it only if CORS exposes the header (`Access-Control-Expose-Headers`).
    ///
    /// # Panics
    /// Panics if `name` is not a valid header name.
    pub fn fence_header<N>(self, name: N) -> Self
    where
        N: TryInto<HeaderName>,
        N::Error: fmt::Debug,
    {
        let name = name.try_into().expect("the name is a valid header name");
        self.set(|settings| settings.fence_header = Some(name))
    }

    /// Sets the status of a refusal, in place of the status in the table of the [module](crate::middleware). `Retry-After` follows
    /// the status that is sent: 409, 429 and 503 have it, unless the reason does not pass.
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

    /// Sets `Retry-After`, rounded up to whole seconds, from 1 s to one day. The default is random, from 1 to 3 s, so
    /// that clients that were refused together do not return together. While the store recovers, the rest of that time and up
    /// to 2 s are sent if that is longer.
    pub fn retry_after(self, after: Duration) -> Self {
        self.set(|settings| settings.refusals.set_retry_after(after))
    }

    /// Sets the page to which the `type` of a [`Problem`](crate::middleware::Problem) points. The `type` is this
    /// text, a `#` and the outcome's name. The default is this crate's documentation of
    /// [`Refused`](crate::middleware::Refused).
    pub fn problem_base(self, base: impl Into<Cow<'static, str>>) -> Self {
        self.set(|settings| settings.refusals.set_base(base.into()))
    }

    /// Answers refused requests with this value in place of a [`Problem`](crate::middleware::Problem): a closure that
    /// takes the [`RefusedRequest`](crate::middleware::RefusedRequest), or a type with [`OnRefusal`]. The `Err` of a
    /// key closure and the rejection of an extractor do not pass through here; they are responses themselves.
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

impl LayerSettings {
    /// Returns the target with the layer's settings.
    pub(super) fn target(&self, target: Target) -> Target {
        let target = self.lease.into_iter().fold(target, Target::lease);
        let target = self.max_hold.into_iter().fold(target, Target::max_hold);
        let target = self.max_waiters.into_iter().fold(target, Target::max_waiters);
        let target = match self.keep {
            Some(keep) => target.keep(keep),
            None => target.keep_as_built(),
        };
        if self.fair { target.fair() } else { target }
    }

    /// Returns the multi-lock with the layer's settings.
    pub(super) fn multi(&self, multi: MultiLock) -> MultiLock {
        let multi = self.lease.into_iter().fold(multi, MultiLock::lease);
        let multi = self.max_hold.into_iter().fold(multi, MultiLock::max_hold);
        let multi = self.max_waiters.into_iter().fold(multi, MultiLock::max_waiters);
        if self.fair { multi.fair() } else { multi }
    }

    /// Returns whether requests with this method need no lock.
    pub(super) fn passes(&self, method: &Method) -> bool {
        method == Method::OPTIONS && !self.include_options || self.only_unsafe && is_safe(method)
    }

    /// Returns how the settings contradict the key of one request and its retries, which two attempts may never hold at once.
    pub(super) fn contradiction(&self) -> Option<Error> {
        let what = match self.permits {
            _ if !self.has_retries => return None,
            Some(_) => "`permits`",
            None if self.store_failure == StoreFailure::RunUnlocked => "`StoreFailure::RunUnlocked`",
            None => return None,
        };
        Some(Error::Options(OptionsError(format!(
            "the key of this layer names a request and its retries, and {what} would run both at once: use a layer without it"
        ))))
    }

    /// Returns whether a request runs without its lock, which it did not get for this reason.
    pub(super) fn runs_unlocked(&self, why: Refused, error: Option<&Error>) -> bool {
        let source = match error {
            Some(Error::Store { source, .. } | Error::Connect { source, .. }) => source,
            _ => return false,
        };
        // Otherwise a client that chooses a short wait would never wait for the lock of a store that is well.
        let is_passing = matches!(source.trouble(), Trouble::Unanswered | Trouble::Passing);
        let fails = why == Refused::StoreFailed && is_passing && !source.is_premature();
        self.store_failure == StoreFailure::RunUnlocked && fails
    }

    /// Returns how long this request waits.
    pub(super) fn wait_of(&self, parts: &Parts) -> Duration {
        let wanted = self.wait_by.as_ref().and_then(|wait| wait.0(parts));
        wanted.map_or(self.wait, |wanted| wanted.min(self.wait))
    }

    /// Returns whether the response to a request that waited at most this long waits until the store knows that the lock is free.
    pub(super) fn releases_before_answer(&self, wait: Duration) -> bool {
        self.release_before_answer || wait.is_zero()
    }

    /// Returns whether the handler is dropped when its lease is lost.
    pub(super) fn cancels_on_loss(&self) -> bool {
        self.on_lost == OnLost::Cancel && !self.to_completion
    }

    /// Returns whether the response of a handler with a lost lease is replaced.
    pub(super) fn replaces_on_loss(&self) -> bool {
        self.on_lost != OnLost::Tell
    }

    /// Adds the layer's headers to a response. An existing `Server-Timing` header stays.
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
