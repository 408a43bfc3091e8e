//! A caller's part in the sending: it sends for all who queued when a slot is free, and polls what it sent.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{self, yield_now};

use crate::runtime::carriage::Carriage;
use crate::runtime::courier::{Courier, Turn};
use crate::runtime::node::Node;
use crate::runtime::slot::Slot;

/// Polls a caller's batch along with what the caller waits for.
#[derive(Debug)]
pub(crate) struct Helper {
    node: Arc<Node>,
    courier: Arc<Courier>,
    slot: Arc<Slot>,
    carriage: Option<Arc<Carriage>>,
    /// It has waited for company or for a slot, and need not wait for company again.
    has_waited: bool,
    /// Others leave the sending to us.
    gathers: bool,
    /// It looks for its answer again and again instead of sleeping.
    spins: bool,
}

impl Helper {
    pub(crate) fn new(node: &Arc<Node>, courier: Arc<Courier>, slot: Arc<Slot>) -> Self {
        Helper {
            node: node.clone(),
            courier,
            slot,
            carriage: None,
            has_waited: false,
            gathers: false,
            spins: false,
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
                self.stop_spinning();
            }
            if let Poll::Ready(ready) = wanted(&self.slot, cx) {
                self.resign();
                return Poll::Ready(ready);
            }
            let runtime = Handle::try_current();
            let is_runtime = runtime.is_ok();
            if let Some(carriage) = &self.carriage {
                let now = self.node.clock.now();
                if runtime.is_ok_and(|runtime| gives_way(&runtime))
                    && self.courier.may_spin(carriage, now, self.spins)
                {
                    self.spins = true;
                    give_way(cx);
                } else {
                    self.stop_spinning();
                }
                return Poll::Pending;
            }
            let may_gather = is_runtime && !self.has_waited;
            self.has_waited = true;
            if !self.gathers {
                match self.courier.turn(may_gather) {
                    Turn::Send => {}
                    Turn::Wait => return Poll::Pending,
                    Turn::Gather => {
                        self.gathers = true;
                        if give_way(cx) {
                            return Poll::Pending;
                        }
                    }
                }
            }
            self.gathers = false;
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

    fn stop_spinning(&mut self) {
        if std::mem::take(&mut self.spins) {
            self.courier.stopped_spinning();
        }
    }

    /// Leaves the sending, and the looking, to somebody else after all.
    fn resign(&mut self) {
        self.stop_spinning();
        if std::mem::take(&mut self.gathers) {
            self.courier.gave_up_gathering(&self.node);
        }
    }
}

/// Whether to yield lets others run, and the runtime look for what arrived. What `block_on` runs beside the workers of a
/// runtime, or another executor, would only be polled again at once.
fn gives_way(runtime: &Handle) -> bool {
    task::try_id().is_some() || runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Puts the task behind all that can run. The first poll does that, and it is all it does: it need not be kept.
fn give_way(cx: &mut Context<'_>) -> bool {
    pin!(yield_now()).poll(cx).is_pending()
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.slot.abandon();
        self.resign();
        if let Some(carriage) = self.carriage.take() {
            self.node.keeper.adopt(carriage);
        }
    }
}
