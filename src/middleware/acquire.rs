//! Acquires what a request locks, with the settings of its layer.

use std::time::Duration;

use http::request::Parts;

use crate::error::{Error, OptionsError};
use crate::locks::Locks;
use crate::middleware::key::Keys;
use crate::middleware::layer::LayerSettings;
use crate::middleware::leases;
use crate::middleware::refusal::Refused;
use crate::middleware::request_guard::Acquired;
use crate::primitives::guard::{Guard, Guards, Lease};
use crate::primitives::multi::{MAX_KEYS, MultiKey, MultiLock};
use crate::primitives::multi_guard::MultiGuard;
use crate::protocol::message::{Mode, Name, Permits};

/// Why a request gets no lock, and the error that says more.
pub(super) type Denial = (Refused, Option<Error>);

impl LayerSettings {
    /// Acquires the keys that the request does not hold yet, and shares the leases that it holds.
    pub(super) async fn acquire(
        &self,
        locks: &Locks,
        keys: Keys,
        parts: &Parts,
        wait: Duration,
    ) -> Result<Acquired, Denial> {
        match keys {
            Keys::One(key) => {
                let (name, mode) = self.one(key).map_err(bad_options)?;
                // A request does not wait for a lock that it already holds.
                if let Some(lease) = leases::held(parts, locks, &name) {
                    return again(&lease, mode).map(|guard| Acquired::Again(guard, mode));
                }
                let acquired = self.target(locks.target(name)).enter_timeout(mode, wait).await;
                acquired
                    .map(Acquired::One)
                    .map_err(|error| self.denial(error, wait))
            }
            // A box, so that the future of a request with one key stays small.
            Keys::Several(keys) => Box::pin(self.acquire_several(locks, keys, parts, wait)).await,
        }
    }

    async fn acquire_several(
        &self,
        locks: &Locks,
        keys: Vec<MultiKey>,
        parts: &Parts,
        wait: Duration,
    ) -> Result<Acquired, Denial> {
        let mut multi = self.several(locks, keys).map_err(bad_options)?;
        // The client chose the keys, so this is no fault of the program.
        if multi.keys().count() > MAX_KEYS {
            return Err((Refused::BadKey, None));
        }
        let mut guards = Guards::default();
        for key in multi.multi_keys() {
            if let Some(lease) = leases::held(parts, locks, key.name()) {
                guards.0.push(again(&lease, key.mode())?);
            }
        }
        multi.retain(|key| guards.0.iter().all(|guard| guard.held().name != *key.name()));
        if multi.keys().next().is_some() {
            let acquired = multi.lock_timeout(wait).await;
            let acquired = acquired.map_err(|error| self.denial(error, wait))?;
            guards.0.extend(acquired.into_guards());
        }
        guards.0.sort_by(|one, other| one.key().cmp(other.key()));
        Ok(Acquired::Several(MultiGuard::new(guards)))
    }

    /// Tries once to acquire the keys, for a request that holds none of them.
    pub(super) async fn try_acquire(&self, locks: &Locks, keys: Keys) -> Result<Option<Acquired>, Error> {
        match keys {
            Keys::One(key) => {
                let (name, mode) = self.one(key)?;
                let acquired = self.target(locks.target(name)).try_enter(mode).await?;
                Ok(acquired.map(Acquired::One))
            }
            Keys::Several(keys) => {
                let multi = self.several(locks, keys)?;
                Ok(multi.try_lock().await?.map(Acquired::Several))
            }
        }
    }

    /// Returns what a request with one key acquires, and how.
    fn one(&self, key: MultiKey) -> Result<(Name, Mode), Error> {
        match (self.permits, key.mode()) {
            (Some(capacity), Mode::Exclusive) => {
                let permits = Permits { weight: 1, capacity };
                Ok((Name::semaphore(key.into_name().key), Mode::Permits(permits)))
            }
            (Some(permits), _) => Err(not_with_permits(permits, "a key for reading")),
            (None, mode) => Ok((key.into_name(), mode)),
        }
    }

    /// Returns the lock on several keys.
    fn several(&self, locks: &Locks, keys: Vec<MultiKey>) -> Result<MultiLock, Error> {
        match self.permits {
            Some(permits) => Err(not_with_permits(permits, "several keys")),
            None => Ok(self.multi(locks.multi(keys))),
        }
    }

    fn denial(&self, error: Error, wait: Duration) -> Denial {
        match error {
            Error::Busy { .. } if wait.is_zero() && self.has_retries => (Refused::InFlight, None),
            Error::Busy { .. } if wait.is_zero() => (Refused::Busy, None),
            // The handler had not begun, so this outcome is known.
            error if error.is_lost() => (Refused::Lost, Some(error)),
            error => (Refused::from(&error), Some(error)),
        }
    }
}

fn not_with_permits(permits: u32, got: &str) -> Error {
    Error::Options(OptionsError(format!(
        "a layer with `permits({permits})` has one key for each request, which is not read, and got {got}: use two layers"
    )))
}

fn bad_options(error: Error) -> Denial {
    (Refused::BadOptions, Some(error))
}

/// Returns another guard of a lease that the request holds, if that lease permits what the layer wants.
fn again(lease: &Lease, wanted: Mode) -> Result<Guard, Denial> {
    let mode = lease.held.mode;
    if mode != Mode::Exclusive && mode != wanted {
        return Err(bad_options(Error::WouldDeadlock {
            key: lease.key().clone(),
            is_upgrade: mode == Mode::Read && wanted == Mode::Exclusive,
        }));
    }
    lease.again().map_err(|error| (Refused::Lost, Some(error)))
}
