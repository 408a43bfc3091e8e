//! A handler takes an order and answers 202, and a worker ships it later. Meanwhile some customers cancel. If the lock ends with
//! the answer, some orders are paid back and shipped, or shipped twice. Here the lock goes with the message, so no other caller
//! has it until the order is shipped, and a duplicate message cannot adopt it. `stage.rs` has the customers, `shop.rs` the queue.
//!
//!     cargo run --example orders                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example orders    # the locks on a Redis

mod shop;
mod stage;

use std::error::Error as StdError;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::{Router, http::StatusCode, routing::post};
use shop::{Desk, Message, Shop};
use tenure::middleware::keys;
use tenure::{Error, Lease, LockLayer, Locks, Transfer};

type BoxError = Box<dyn StdError + Send + Sync>;

/// How long the lease of a transfer lasts. The worker that adopts it renews it.
const KEEP: Duration = Duration::from_secs(30);

/// Each request has the lock of its order. The message is sent even if the customer leaves.
fn service(desk: Desk) -> Router {
    let one_at_a_time = LockLayer::new(&desk.locks, keys::path_param::<usize>("id").named("order"));
    let routes = Router::new().route("/orders/{id}", post(take).delete(cancel));
    let routes = routes.route_layer(one_at_a_time.wait(KEEP).run_to_completion(true));
    routes.with_state(desk)
}

/// Takes the order and answers. The lock goes with the message.
async fn take(State(desk): State<Desk>, lease: Lease, Path(order): Path<usize>) -> Result<StatusCode, Error> {
    let transfer = lease.take_guard()?.into_transfer(KEEP).await?;
    if !desk.queue.send(order, transfer.to_string()).await {
        // No worker will adopt the lock.
        desk.locks.release_transfer(&transfer).await?;
        return Ok(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(StatusCode::ACCEPTED)
}

/// Pays an order back if it was not shipped.
async fn cancel(State(desk): State<Desk>, Path(order): Path<usize>) {
    desk.shop.pay_back_unless_shipped(order);
}

/// Ships an order: the worker, in a process that never had the lock before.
async fn work(locks: &Locks, shop: &Shop, message: Message) -> Result<(), BoxError> {
    let transfer: Transfer = message.transfer.parse()?;
    let guard = match locks.adopt(&transfer).await {
        // Here the message is a duplicate. A service must check the order under its mutex: the message may also have waited
        // for longer than KEEP, or the worker that adopted the lock may have died.
        Err(Error::Gone { .. }) => return Ok(()),
        adopted => adopted?,
    };
    guard.run(shop.ship(message.order)).await?;
    Ok(guard.release().await?)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
