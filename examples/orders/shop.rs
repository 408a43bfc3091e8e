//! The shop, and the queue between its desk and its worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Locks;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// What the handlers know.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) locks: Locks,
    pub(crate) shop: Arc<Shop>,
    pub(crate) queue: Queue,
}

/// A message to the worker: it must ship this order.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) order: usize,
    /// The transfer of the order's lock. Empty if the lock ended with the answer.
    pub(crate) transfer: String,
}

/// A queue that duplicates some messages.
#[derive(Clone)]
pub(crate) struct Queue(pub(crate) mpsc::Sender<Message>);

impl Queue {
    /// Sends a message, and returns whether the queue took it.
    pub(crate) async fn send(&self, order: usize, transfer: String) -> bool {
        let message = Message { order, transfer };
        let times = if order.is_multiple_of(4) { 2 } else { 1 };
        for _ in 0..times {
            if self.0.send(message.clone()).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// How often each order was shipped and paid back. The shop uses no locks.
pub(crate) struct Shop(Vec<Order>);

#[derive(Debug, Default)]
struct Order {
    shipped: AtomicU32,
    paid_back: AtomicU32,
}

impl Shop {
    pub(crate) fn new(orders: usize) -> Shop {
        Shop((0..orders).map(|_| Order::default()).collect())
    }

    pub(crate) async fn ship(&self, order: usize) {
        sleep(Duration::from_millis(5)).await;
        self.0[order].shipped.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn pay_back_unless_shipped(&self, order: usize) {
        let order = &self.0[order];
        if order.shipped.load(Ordering::SeqCst) == 0 {
            order.paid_back.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns how many orders were both shipped and paid back, and how many were shipped twice.
    pub(crate) fn wrong(&self) -> (usize, usize) {
        let count = |is_wrong: &dyn Fn(u32, u32) -> bool| {
            let is_counted = |order: &&Order| {
                let paid_back = order.paid_back.load(Ordering::SeqCst);
                is_wrong(order.shipped.load(Ordering::SeqCst), paid_back)
            };
            self.0.iter().filter(is_counted).count()
        };
        (
            count(&|shipped, paid_back| shipped > 0 && paid_back > 0),
            count(&|shipped, _| shipped > 1),
        )
    }
}
