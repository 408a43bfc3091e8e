//! A guard that wakes the task of its request when the lease ends.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::primitives::guard::Guard;

/// A guard that wakes the task of its request when the lease ends.
pub(super) struct RequestGuard {
    guard: Guard,
    /// Resolves when the lease ends, for all but the first guard of the lease: these guards may be in different
    /// tasks.
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl RequestGuard {
    pub(super) fn new(guard: Guard) -> Self {
        RequestGuard { guard, ended: None }
    }

    /// Resolves when the lease has ended. The first guard of a lease needs no token.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.guard.is_held() {
            return Poll::Ready(());
        }
        if let Some(polled) = self.guard.poll_over(cx) {
            return polled;
        }
        let guard = &self.guard;
        let ended = || Box::pin(guard.held().end_token().cancelled_owned());
        self.ended.get_or_insert_with(ended).as_mut().poll(cx)
    }

    pub(super) fn into_guard(self) -> Guard {
        self.guard
    }
}

impl Deref for RequestGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
