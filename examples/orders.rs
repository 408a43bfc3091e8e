//! A handler takes an order and answers at once. It sends a message, and a worker of another process ships the order later.
//! Meanwhile some customers cancel. If the handler releases its lock before it answers, some orders are both paid back and
//! shipped. A duplicate message then ships an order twice. If the handler transfers the lock with the message, no other caller
//! can lock the order until it is shipped. A duplicate message then cannot adopt the lock.
//!
//! In this process's memory, in one or two seconds:
//!
//!     cargo run --example orders
//!
//! With the locks on a Redis:
//!
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example orders

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Error, Locks, Transfer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

const ORDERS: usize = 40;
/// How long the lease of a transfer lasts. The worker that adopts it renews it.
const KEEP: Duration = Duration::from_secs(30);

/// How often an order was shipped and paid back. It uses no locks.
#[derive(Debug, Default)]
struct Order {
    shipped: AtomicU32,
    paid_back: AtomicU32,
}

/// A message to the worker.
enum Message {
    Ship(usize),
    /// With the transfer of the order's lock, as text.
    ShipUnder(usize, String),
}

struct Shop {
    replicas: [Locks; 2],
    orders: Vec<Order>,
}

fn key(order: usize) -> (&'static str, usize) {
    ("order", order)
}

impl Shop {
    /// The handler: takes the order and answers. The queue duplicates some messages.
    async fn take(&self, order: usize, travels: bool, queue: &mpsc::Sender<Message>) -> Result<(), Trouble> {
        let guard = self.replicas[0].mutex(key(order)).lock().await?;
        let transfer = if travels {
            Some(guard.into_transfer(KEEP).await?)
        } else {
            guard.release().await?;
            None
        };
        for _ in 0..if order.is_multiple_of(4) { 2 } else { 1 } {
            let message = match &transfer {
                Some(transfer) => Message::ShipUnder(order, transfer.to_string()),
                None => Message::Ship(order),
            };
            queue.send(message).await?;
        }
        Ok(())
    }

    /// Another handler: pays an order back if it was not shipped.
    async fn cancel(&self, order: usize) -> Result<(), Trouble> {
        let guard = self.replicas[0].mutex(key(order)).lock().await?;
        if self.orders[order].shipped.load(Ordering::SeqCst) == 0 {
            self.orders[order].paid_back.fetch_add(1, Ordering::SeqCst);
        }
        guard.release().await?;
        Ok(())
    }

    /// The worker, in a process that never had the lock before.
    async fn work(&self, message: Message) -> Result<(), Trouble> {
        // The delay of the queue.
        sleep(Duration::from_millis(20)).await;
        match message {
            Message::Ship(order) => self.ship(order).await,
            Message::ShipUnder(order, text) => {
                let transfer: Transfer = text.parse()?;
                let guard = match self.replicas[1].adopt(&transfer).await {
                    // Here the message is a duplicate. A service must check the order under its mutex: the message may also
                    // have waited for longer than KEEP, or the worker that adopted the lock may have died.
                    Err(Error::Gone { .. }) => return Ok(()),
                    adopted => adopted?,
                };
                guard.run(self.ship(order)).await?;
                guard.release().await?;
            }
        }
        Ok(())
    }

    async fn ship(&self, order: usize) {
        sleep(Duration::from_millis(5)).await;
        self.orders[order].shipped.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many orders were both shipped and paid back, and how many were shipped twice.
    fn wrong(&self) -> (usize, usize) {
        let count = |is: &dyn Fn(u32, u32) -> bool| {
            let counted = |order: &Order| {
                is(
                    order.shipped.load(Ordering::SeqCst),
                    order.paid_back.load(Ordering::SeqCst),
                )
            };
            self.orders.iter().filter(|order| counted(order)).count()
        };
        (
            count(&|shipped, paid_back| shipped > 0 && paid_back > 0),
            count(&|shipped, _| shipped > 1),
        )
    }
}

/// Takes, cancels and ships all orders. Returns the two counts of `Shop::wrong`.
async fn sell(replicas: &[Locks; 2], travels: bool) -> Result<(usize, usize), Trouble> {
    let shop = Arc::new(Shop {
        replicas: replicas.clone(),
        orders: (0..ORDERS).map(|_| Order::default()).collect(),
    });
    let (queue, mut messages) = mpsc::channel(2 * ORDERS);
    let mut handlers = JoinSet::new();
    for order in 0..ORDERS {
        let (shop, queue) = (shop.clone(), queue.clone());
        handlers.spawn(async move {
            shop.take(order, travels, &queue).await?;
            if order.is_multiple_of(3) {
                sleep(Duration::from_millis(2)).await;
                shop.cancel(order).await?;
            }
            Ok::<_, Trouble>(())
        });
    }
    drop(queue);
    let mut workers = JoinSet::new();
    while let Some(message) = messages.recv().await {
        let shop = shop.clone();
        workers.spawn(async move { shop.work(message).await });
    }
    for tasks in [&mut handlers, &mut workers] {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
    }
    Ok(shop.wrong())
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("orders", "the locks").await?;
    println!(
        "{ORDERS} orders, each taken by one process and shipped by another, locks {}.\n",
        replicas.place()
    );

    let (both, twice) = sell(&replicas.locks, false).await?;
    println!("the handler gives its lock back\n    {both} shipped and paid back, {twice} shipped twice\n");
    assert_ne!((both, twice), (0, 0), "no order went wrong without the transfer");

    let (both, twice) = sell(&replicas.locks, true).await?;
    println!("the lock travels with the message\n    {both} shipped and paid back, {twice} shipped twice");
    assert_eq!(
        (both, twice),
        (0, 0),
        "an order went wrong under its transferred lock"
    );
    replicas.shutdown().await;
    Ok(())
}
