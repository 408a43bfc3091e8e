//! A caller's part in the sending: it sends for all who queued when a slot is free, and polls what it sent.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::yield_now;

use crate::runtime::courier::{Carriage, Courier};
use crate::runtime::node::Node;
use crate::runtime::slot::Slot;

/// Polls a caller's batch along with what the caller waits for.
#[derive(Debug)]
pub(crate) struct Helper {
    node: Arc<Node>,
    courier: Arc<Courier>,
    slot: Arc<Slot>,
    carriage: Option<Arc<Carriage>>,
    /// Others that can run had their turn before we send.
    has_yielded: bool,
}

impl Helper {
    pub(crate) fn new(node: &Arc<Node>, courier: Arc<Courier>, slot: Arc<Slot>) -> Self {
        Helper {
            node: node.clone(),
            courier,
            slot,
            carriage: None,
            has_yielded: false,
        }
    }

    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        wanted: impl Fn(&Slot, &Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // While we run nobody needs to wake us; what arrives meanwhile is seen below.
        self.slot.abandon();
        loop {
            if let Some(carriage) = &self.carriage
                && carriage.poll(cx).is_ready()
            {
                self.carriage = None;
            }
            if let Poll::Ready(ready) = wanted(&self.slot, cx) {
                return Poll::Ready(ready);
            }
            if self.carriage.is_some() {
                return Poll::Pending;
            }
            let is_runtime = Handle::try_current().is_ok();
            if is_runtime && self.gather(cx).is_pending() {
                return Poll::Pending;
            }
            let Some(carriage) = self.courier.depart(&self.node) else {
                return Poll::Pending;
            };
            if !is_runtime {
                // No runtime that could drive a connection.
                self.node.keeper.adopt(carriage);
                return Poll::Pending;
            }
            self.node.keeper.watch(self.node.clock.now());
            self.carriage = Some(carriage);
        }
    }

    /// While batches are under way, lets every task that can run go first: the answers that woke us woke others,
    /// and what they ask for travels with us. Alone we wait for nobody.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded || !self.courier.is_under_way() {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        // Its first poll puts us behind all that can run, and that is all it does: it need not be kept.
        pin!(yield_now()).poll(cx)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.slot.abandon();
        if let Some(carriage) = self.carriage.take() {
            self.node.keeper.adopt(carriage);
        }
    }
}
