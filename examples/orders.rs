//! A handler behind a `LockLayer` takes an order and answers 202. It sends a message, and a worker of another process ships the
//! order later. Meanwhile some customers cancel. If the lock ends with the answer, some orders are both paid back and shipped. A
//! duplicate message then ships an order twice. If the handler takes the guard from the layer and transfers the lock with the
//! message, no other caller can lock the order until it is shipped. A duplicate message then cannot adopt the lock.
//!
//! In this process's memory, in one or two seconds:
//!
//!     cargo run --example orders
//!
//! With the locks on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example orders

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Method, Request, StatusCode};
use axum::routing::post;
use replicas::{Replicas, Trouble};
use tenure::middleware::keys;
use tenure::{Error, Lease, LockLayer, Locks, Transfer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::ServiceExt;

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

/// What the handlers know.
#[derive(Clone)]
struct Desk {
    locks: Locks,
    shop: Arc<Shop>,
    queue: mpsc::Sender<Message>,
    /// The lock travels with the message.
    travels: bool,
}

/// The service. Each request has the lock of its order. The message is sent even if the customer leaves.
fn service(desk: Desk) -> Router {
    let one_at_a_time = LockLayer::new(&desk.locks, keys::path_param::<usize>("id").named("order"));
    Router::new()
        .route("/orders/{id}", post(take).delete(cancel))
        .route_layer(one_at_a_time.wait(KEEP).run_to_completion(true))
        .with_state(desk)
}

/// Takes the order and answers. The queue duplicates some messages.
async fn take(State(desk): State<Desk>, lease: Lease, Path(order): Path<usize>) -> Result<StatusCode, Error> {
    let transfer = if desk.travels {
        Some(lease.take_guard()?.into_transfer(KEEP).await?)
    } else {
        None
    };
    for _ in 0..if order.is_multiple_of(4) { 2 } else { 1 } {
        let message = match &transfer {
            Some(transfer) => Message::ShipUnder(order, transfer.to_string()),
            None => Message::Ship(order),
        };
        if desk.queue.send(message).await.is_err() {
            // No worker will adopt the lock.
            if let Some(transfer) = &transfer {
                desk.locks.release_transfer(transfer).await?;
            }
            return Ok(StatusCode::SERVICE_UNAVAILABLE);
        }
    }
    Ok(StatusCode::ACCEPTED)
}

/// Pays an order back if it was not shipped.
async fn cancel(State(desk): State<Desk>, Path(order): Path<usize>) {
    let order = &desk.shop.orders[order];
    if order.shipped.load(Ordering::SeqCst) == 0 {
        order.paid_back.fetch_add(1, Ordering::SeqCst);
    }
}

struct Shop {
    worker: Locks,
    orders: Vec<Order>,
}

impl Shop {
    /// The worker, in a process that never had the lock before.
    async fn work(&self, message: Message) -> Result<(), Trouble> {
        // The delay of the queue.
        sleep(Duration::from_millis(20)).await;
        match message {
            Message::Ship(order) => self.ship(order).await,
            Message::ShipUnder(order, text) => {
                let transfer: Transfer = text.parse()?;
                let guard = match self.worker.adopt(&transfer).await {
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
        worker: replicas[1].clone(),
        orders: (0..ORDERS).map(|_| Order::default()).collect(),
    });
    let (queue, mut messages) = mpsc::channel(2 * ORDERS);
    let desk = Desk {
        locks: replicas[0].clone(),
        shop: shop.clone(),
        queue,
        travels,
    };
    let app = service(desk);
    let mut customers = JoinSet::new();
    for order in 0..ORDERS {
        let app = app.clone();
        customers.spawn(async move {
            send(&app, Method::POST, order).await?;
            if order.is_multiple_of(3) {
                sleep(Duration::from_millis(2)).await;
                send(&app, Method::DELETE, order).await?;
            }
            Ok::<_, Trouble>(())
        });
    }
    // The queue ends with the last request.
    drop(app);
    let mut workers = JoinSet::new();
    while let Some(message) = messages.recv().await {
        let shop = shop.clone();
        workers.spawn(async move { shop.work(message).await });
    }
    for tasks in [&mut customers, &mut workers] {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
    }
    Ok(shop.wrong())
}

async fn send(app: &Router, method: Method, order: usize) -> Result<(), Trouble> {
    let request = Request::builder().method(method).uri(format!("/orders/{order}"));
    let answer = app.clone().oneshot(request.body(Body::empty())?).await?;
    if !answer.status().is_success() {
        return Err(format!("order {order}: {}", answer.status()).into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("orders", "the locks").await?;
    println!(
        "{ORDERS} orders, each taken by one process and shipped by another, locks {}.\n",
        replicas.place()
    );

    let (both, twice) = sell(&replicas.locks, false).await?;
    println!("the lock ends with the answer\n    {both} shipped and paid back, {twice} shipped twice\n");
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
