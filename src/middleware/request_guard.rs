//! A guard whose task is woken when its lease is over.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::primitives::guard::Guard;

/// See the module.
pub(super) struct RequestGuard {
    guard: Guard,
    /// How one of several guards of a lease sees that it is over: they may be in different tasks.
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl RequestGuard {
    pub(super) fn new(guard: Guard) -> Self {
        RequestGuard { guard, ended: None }
    }

    /// Ready when it is held no more. The first guard of a lease costs no token.
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
