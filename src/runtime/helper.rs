//! A caller's part in the sending: it sends for all who queued when a slot is free, and polls what it sent.

use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

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
}

impl Helper {
    pub(crate) fn new(node: &Arc<Node>, courier: Arc<Courier>, slot: Arc<Slot>) -> Self {
        Helper {
            node: node.clone(),
            courier,
            slot,
            carriage: None,
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
            let Some(carriage) = self.courier.depart(&self.node) else {
                return Poll::Pending;
            };
            if Handle::try_current().is_err() {
                // No runtime that could drive a connection.
                self.node.keeper.adopt(carriage);
                return Poll::Pending;
            }
            self.node.keeper.watch(self.node.clock.now());
            self.carriage = Some(carriage);
        }
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
