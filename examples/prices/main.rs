//! A price list with two prices that belong together. Forty readers read it and one writer changes it. Without a lock readers
//! see half a change. With a read-write lock they read at the same time and see complete changes only. At the end a writer
//! publishes a change: it downgrades its lock to a read lock, so it announces the price that all readers see.
//!
//!     cargo run --example prices                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example prices    # the lock and the prices on a Redis
//!
//! `stage.rs` has the replicas, the readers and the writers. `shop.rs` has the price list.

mod shop;
mod stage;

use std::error::Error;

use shop::Shop;
use tenure::RwLock;

type BoxError = Box<dyn Error + Send + Sync>;

/// The price of a pair of shoes, as a multiple of the price of one shoe.
const PAIR: i64 = 2;

/// Shows the page, and returns whether its prices belong together. Readers share the lock.
async fn read(lock: &RwLock, shop: &Shop) -> Result<bool, BoxError> {
    lock.read_with(|_| show_page(shop)).await?
}

/// Changes both prices. A writer has the lock alone.
async fn write(lock: &RwLock, shop: &Shop, price: i64) -> Result<(), BoxError> {
    lock.write_with(|_| change(shop, price)).await?
}

/// Changes both prices, announces the new one, and returns it.
async fn publish(lock: &RwLock, shop: &Shop, price: i64) -> Result<i64, BoxError> {
    let writer = lock.write().await?;
    change(shop, price).await?;
    let reader = writer.downgrade().await?;
    // Readers share the lock now. No writer has it before the end, so the announced price is the price that they see.
    let announced = shop.announce().await?;
    reader.release().await?;
    Ok(announced)
}

/// Reads both prices, one after the other. A change between the two reads breaks this.
async fn show_page(shop: &Shop) -> Result<bool, BoxError> {
    let shoe = shop.price("shoe").await?;
    shop.render().await;
    Ok(shop.price("pair").await? == PAIR * shoe)
}

/// Changes both prices, one after the other. A read between the two writes breaks this.
async fn change(shop: &Shop, price: i64) -> Result<(), BoxError> {
    shop.set_price("shoe", price).await?;
    shop.pause().await;
    shop.set_price("pair", PAIR * price).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
