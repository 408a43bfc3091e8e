//! A hundred items, three hundred buyers, and two replicas of a shop. Without a lock the shop sells more than it has. With a
//! lock it sells exactly a hundred. Then ten tasks try one account: one works, nine skip, and the lock is free again.
//!
//!     cargo run --example flash_sale                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example flash_sale    # the locks and the stock on a Redis
//!
//! `stage.rs` has the replicas, the buyers and the tasks. `stock.rs` is the database.

mod stage;
mod stock;

use std::error::Error;
use std::time::Duration;

use stock::Stock;
use tenure::Locks;
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;

/// Sells an item, and returns whether there was one. All replicas together serve one buyer at a time.
async fn sell(locks: &Locks, stock: &Stock) -> Result<bool, BoxError> {
    let mutex = locks.mutex("sku:1");
    mutex.with(|_| take_item(stock)).await?
}

/// Takes an item off the stock, and returns whether there was one. A concurrent buyer breaks this.
async fn take_item(stock: &Stock) -> Result<bool, BoxError> {
    let left = stock.read().await?;
    if left == 0 {
        return Ok(false);
    }
    // The time that the payment takes.
    sleep(Duration::from_millis(2)).await;
    stock.write(left - 1).await?;
    Ok(true)
}

/// Works on the account, or skips the work if another task does it. Returns whether it worked.
async fn work_or_skip(locks: &Locks, work: impl Future<Output = ()>) -> Result<bool, tenure::Error> {
    let Some(guard) = locks.mutex("account:42").try_lock().await? else {
        return Ok(false);
    };
    guard.run(work).await?;
    guard.release().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A service has one: `Locks::connect(&url).await?`. The stage has one for each replica.
    stage::play().await
}
