//! What a caller of any primitive names: the node, the key and the options of its lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::call::{self, CallFuture};
use crate::primitives::denial::unless_busy;
use crate::primitives::guard::Guard;
use crate::primitives::held::Held;
use crate::primitives::scope;
use crate::protocol::message::{Call, CallAnswer, Mode, Name};
use crate::protocol::step::{CallOptions, LockOptions};

/// A name of any kind at a node, and how its callers want their leases. The primitives are faces over it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) handle: Handle,
    pub(crate) name: Name,
    pub(crate) options: LockOptions,
}

impl Target {
    pub(crate) fn new(handle: Handle, name: Name) -> Self {
        let options = handle.options().lock();
        Target {
            handle,
            name,
            options,
        }
    }

    /// Sets leases of this length, which are renewed.
    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.options.term = self.handle.options().times(lease);
        self.options.fixed = false;
        self
    }

    /// Sets leases of exactly this length.
    pub(crate) fn fixed(mut self, lease: Duration) -> Self {
        self.options.term = self.handle.options().times(lease);
        self.options.fixed = true;
        self
    }

    /// Gives each caller a place of its own in the store's queue.
    pub(crate) fn fair(mut self) -> Self {
        self.options.solo = true;
        self
    }

    /// Limits how many callers of this process may wait for the key.
    pub(crate) fn max_waiters(mut self, limit: usize) -> Self {
        self.options.limit = limit;
        self
    }

    /// Stops the renewal of a lease that was held for so long.
    pub(crate) fn max_hold(mut self, max: Duration) -> Self {
        self.options.max_hold = Some(max);
        self
    }

    /// Sets how long the lease is kept after its last release in this process.
    pub(crate) fn keep(mut self, keep: Duration) -> Self {
        self.options.keep = keep;
        self
    }

    /// Sets the keep of the locks.
    pub(crate) fn keep_as_built(self) -> Self {
        let keep = self.handle.options().keep;
        self.keep(keep)
    }

    pub(crate) fn key(&self) -> &Key {
        &self.name.key
    }

    /// Returns what the calling code holds of this name, in any mode.
    pub(crate) fn find_held(&self) -> Option<Arc<Held>> {
        scope::find(self.handle.node(), &self.name)
    }

    /// Returns whether the calling code holds the name alone.
    pub(crate) fn writes_here(&self) -> bool {
        self.find_held().is_some_and(|held| held.mode == Mode::Exclusive)
    }

    pub(crate) async fn try_enter(&self, mode: Mode) -> Result<Option<Guard>, Error> {
        unless_busy(self.enter(mode, false).await)
    }

    pub(crate) async fn enter_timeout(&self, mode: Mode, wait: Duration) -> Result<Guard, Error> {
        self.enter(mode, true).within(wait).await
    }

    pub(crate) fn enter(&self, mode: Mode, wait: bool) -> Acquire {
        let options = LockOptions {
            mode,
            wait,
            ..self.options
        };
        Acquire::new(&self.handle, &self.name, options)
    }

    /// Sends a call about the name. `set` adds what the call needs, and `read` takes the value out of an answer of the
    /// call's kind.
    ///
    /// # Errors
    /// Bad input, and a forked process.
    pub(crate) fn ask<T>(
        &self,
        call: Call,
        set: impl FnOnce(&mut CallOptions),
        read: fn(CallAnswer) -> Option<T>,
    ) -> Result<CallFuture<T>, Error> {
        let (handle, name) = (&self.handle, &self.name);
        let mut options = call::check(handle, name, self.options.term, call)?;
        set(&mut options);
        Ok(CallFuture::new(handle, name, options, read))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("key", self.key())
            .field("lease", &self.options.lease())
            .field("fixed", &self.options.fixed)
            .field("fair", &self.options.solo)
            .finish_non_exhaustive()
    }
}
