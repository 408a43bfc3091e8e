//! Two replicas: one takes the orders of the customers, the other ships them. At the end, what came of it.

#[path = "../replicas/mod.rs"]
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Method, Request, StatusCode};
use axum::routing::post;
use tenure::middleware::keys;
use tenure::{LockLayer, Locks};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::shop::{Desk, Message, Queue, Shop};
use crate::{BoxError, KEEP, cancel, service, work};
use replicas::Replicas;

const ORDERS: usize = 40;

/// The same service, but the lock ends with the answer.
fn service_without_transfer(desk: Desk) -> Router {
    let one_at_a_time = LockLayer::new(&desk.locks, keys::path_param::<usize>("id").named("order"));
    let routes = Router::new().route("/orders/{id}", post(take_without_transfer).delete(cancel));
    let routes = routes.route_layer(one_at_a_time.wait(KEEP).run_to_completion(true));
    routes.with_state(desk)
}

async fn take_without_transfer(State(desk): State<Desk>, Path(order): Path<usize>) -> StatusCode {
    if desk.queue.send(order, String::new()).await {
        StatusCode::ACCEPTED
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Receives a message at the worker.
async fn receive(locks: &Locks, shop: &Shop, message: Message) -> Result<(), BoxError> {
    // The delay of the queue.
    sleep(Duration::from_millis(20)).await;
    if message.transfer.is_empty() {
        shop.ship(message.order).await;
        return Ok(());
    }
    work(locks, shop, message).await
}

/// Takes, cancels and ships all orders. Returns the two counts of [`Shop::wrong`].
async fn sell(replicas: &[Locks; 2], service: fn(Desk) -> Router) -> Result<(usize, usize), BoxError> {
    let [locks, worker] = replicas.clone();
    let shop = Arc::new(Shop::new(ORDERS));
    let (sender, mut messages) = mpsc::channel(2 * ORDERS);
    let app = service(Desk {
        locks,
        shop: shop.clone(),
        queue: Queue(sender),
    });
    let mut customers = JoinSet::new();
    for order in 0..ORDERS {
        let app = app.clone();
        customers.spawn(async move {
            send(&app, Method::POST, order).await?;
            if order.is_multiple_of(3) {
                sleep(Duration::from_millis(2)).await;
                send(&app, Method::DELETE, order).await?;
            }
            Ok::<_, BoxError>(())
        });
    }
    // The queue ends with the last request.
    drop(app);
    let mut shipments = JoinSet::new();
    while let Some(message) = messages.recv().await {
        let (worker, shop) = (worker.clone(), shop.clone());
        shipments.spawn(async move { receive(&worker, &shop, message).await });
    }
    for tasks in [&mut customers, &mut shipments] {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
    }
    Ok(shop.wrong())
}

async fn send(app: &Router, method: Method, order: usize) -> Result<(), BoxError> {
    let request = Request::builder().method(method).uri(format!("/orders/{order}"));
    let answer = app.clone().oneshot(request.body(Body::empty())?).await?;
    if !answer.status().is_success() {
        return Err(format!("order {order}: {}", answer.status()).into());
    }
    Ok(())
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("orders", "the locks").await?;
    println!(
        "{ORDERS} orders, each taken by one process and shipped by another, locks {}.\n",
        replicas.store.place()
    );

    let (both, twice) = sell(&replicas.locks, service_without_transfer).await?;
    println!("the lock ends with the answer\n    {both} shipped and paid back, {twice} shipped twice\n");
    assert_ne!((both, twice), (0, 0), "no order went wrong without the transfer");

    let (both, twice) = sell(&replicas.locks, service).await?;
    println!("the lock travels with the message\n    {both} shipped and paid back, {twice} shipped twice");
    assert_eq!(
        (both, twice),
        (0, 0),
        "an order went wrong under its transferred lock"
    );
    replicas.shutdown().await;
    Ok(())
}
