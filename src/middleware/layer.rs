//! What is locked, for whom we wait, and how long.

use std::fmt;
use std::time::Duration;

use http::request::Parts;

use crate::error::Error;
use crate::locks::Locks;
use crate::middleware::key::{IntoLockKey, KeySource};
use crate::middleware::refusal::{OnRefusal, Problem, Refusals, Refused};
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Mutex;

/// Runs each request under the lock that its key names. See the [module](crate::middleware) for the manual.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct LockLayer<K> {
    pub(super) locks: Locks,
    pub(super) key: K,
    pub(super) policy: Policy,
    pub(super) refusals: Refusals,
}

/// How to enter, and what to do when the lease ends early.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    wait: Wait,
    max_waiters: Option<usize>,
    lease: Option<Duration>,
    pub(super) on_lost: OnLost,
    pub(super) include_options: bool,
}

/// What a request does that finds its key locked.
#[derive(Debug, Clone, Copy)]
enum Wait {
    UpTo(Duration),
    Skip,
}

/// What happens to a handler whose lease is lost: the store was out of reach for too long, the process stood still, or
/// somebody deleted the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The handler goes on, and its [`Lease`](crate::Lease) tells: [`is_held`](crate::Lease::is_held),
    /// [`lost`](crate::Lease::lost). Its answer is sent as it is.
    #[default]
    Tell,
    /// The handler's future is dropped at its next `await`, and the client gets 500, *outcome unknown*. What it had begun
    /// elsewhere, a statement sent to a database say, may still happen: [fence](crate::Lease::fence) it.
    Cancel,
}

impl<K: KeySource> LockLayer<K> {
    /// Locks what a [`KeySource`] names: a [ready-made one](crate::middleware::keys), or one of yours. For closures see
    /// [`by`](Self::by).
    pub fn new(locks: &Locks, key: K) -> Self {
        let policy = Policy {
            wait: Wait::UpTo(Duration::from_secs(5)),
            max_waiters: None,
            lease: None,
            on_lost: OnLost::Tell,
            include_options: false,
        };
        LockLayer {
            locks: locks.clone(),
            key,
            policy,
            refusals: Refusals::new(Problem),
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
    /// Wait for the lock, no longer than this; then 429. A wait of nothing is [`skip`](Self::skip). The default is 5 s.
    /// Shorter: clients learn sooner that they should come back. Longer: more of them are served, and more of them stand in
    /// line. It has nothing to do with how long the handler may take.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = if wait.is_zero() {
            Wait::Skip
        } else {
            Wait::UpTo(wait)
        };
        self
    }

    /// Do not wait: whoever finds the key locked gets 423 at once.
    pub fn skip(mut self) -> Self {
        self.policy.wait = Wait::Skip;
        self
    }

    /// So many requests of this process may wait for one key; the next gets 429 at once. The default is what
    /// [`Builder::waiters_per_key`](crate::Builder::waiters_per_key) says, and so is the upper bound.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.policy.max_waiters = Some(limit);
        self
    }

    /// Leases of this length instead of the default, renewed while the handler runs; see
    /// [`Mutex::lease`](crate::Mutex::lease). A length that makes no sense is answered with 500 and an error event.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = Some(lease);
        self
    }

    /// What happens to a handler whose lease is lost while it runs. The default is [`OnLost::Tell`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.policy.on_lost = on_lost;
        self
    }

    /// Lock `OPTIONS` requests too. By default they pass without a key being asked for: a browser's preflight changes
    /// nothing and should not wait.
    pub fn include_options(mut self) -> Self {
        self.policy.include_options = true;
        self
    }

    /// Answer whom the layer refuses with this instead of a [`Problem`]: a closure that is given the
    /// [`RefusedRequest`](crate::middleware::RefusedRequest), or a type with [`OnRefusal`]. Answers of a key closure's
    /// `Err` and of failing extractors are theirs, and do not pass through here.
    ///
    /// ```
    /// use http::Response;
    /// use tenure::{LockLayer, Locks, middleware::{OnRefusal, Problem, Refused, RefusedRequest, keys}};
    ///
    /// # let locks = Locks::memory();
    /// // What the draft of Idempotency-Key asks for: 409 while the first request with the key is under way.
    /// let layer = LockLayer::new(&locks, keys::idempotency_key())
    ///     .skip()
    ///     .on_refusal(|request: &RefusedRequest| match request.why() {
    ///         Refused::Busy => Response::builder().status(409).body(String::from("it is under way")).unwrap(),
    ///         _ => Problem.answer(request),
    ///     });
    /// ```
    pub fn on_refusal(mut self, answer: impl OnRefusal) -> Self {
        self.refusals = Refusals::new(answer);
        self
    }
}

impl Policy {
    /// Takes the lock as told, or says how the request is refused.
    pub(super) async fn enter(self, mut mutex: Mutex) -> Result<Guard, (Refused, Option<Error>)> {
        if let Some(lease) = self.lease {
            mutex = mutex.lease(lease);
        }
        if let Some(limit) = self.max_waiters {
            mutex = mutex.max_waiters(limit);
        }
        let entered = match self.wait {
            Wait::UpTo(wait) => mutex.lock_timeout(wait).await,
            Wait::Skip => match mutex.try_lock().await {
                Ok(guard) => return guard.ok_or((Refused::Busy, None)),
                Err(error) => Err(error),
            },
        };
        entered.map_err(|error| {
            // Whatever was lost here, no handler had begun.
            let why = if error.is_lost() {
                Refused::Lost
            } else {
                Refused::from(&error)
            };
            (why, Some(error))
        })
    }
}

impl<K> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locks", &self.locks)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
