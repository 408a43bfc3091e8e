//! A hundred items, three hundred buyers, and two replicas of a shop. Without a lock the shop sells more than it has. With a
//! lock it sells exactly a hundred. Then ten tasks try one account: one works, nine skip, and the lock is free again.
//!
//! In this process's memory, in one second:
//!
//!     cargo run --example flash_sale
//!
//! With the locks and the stock on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example flash_sale

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::Locks;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const ITEMS: i64 = 100;
const BUYERS: usize = 300;
const TASKS: usize = 10;

/// Takes an item off the stock, and returns whether there was one. A concurrent buyer breaks this.
async fn buy(stock: &Stock) -> Result<bool, Trouble> {
    let left = stock.read().await?;
    if left == 0 {
        return Ok(false);
    }
    // The time that the payment takes.
    tokio::time::sleep(Duration::from_millis(2)).await;
    stock.write(left - 1).await?;
    Ok(true)
}

/// Runs all buyers at the same time, on both replicas in turn. Returns how many items were sold.
async fn sale(stock: &Stock, replicas: Option<&[Locks; 2]>) -> Result<i64, Trouble> {
    stock.write(ITEMS).await?;
    let mut buyers = JoinSet::new();
    for n in 0..BUYERS {
        let stock = stock.clone();
        let mutex = replicas.map(|replicas| replicas[n % 2].mutex("sku:1"));
        buyers.spawn(async move {
            match mutex {
                None => buy(&stock).await,
                Some(mutex) => mutex.with(async |_| buy(&stock).await).await?,
            }
        });
    }
    let (mut sold, mut served) = (0, 0);
    while let Some(bought) = buyers.join_next().await {
        sold += i64::from(bought??);
        served += 1;
        if served % 100 == 0 {
            println!("    {served:>3} buyers served, {sold:>3} items sold");
        }
    }
    Ok(sold)
}

/// Runs ten tasks that each try the account's lock, and skip the work if it is busy. Returns how many worked.
async fn ten_tasks(replicas: &[Locks; 2]) -> Result<usize, Trouble> {
    let everybody_has_looked = Arc::new(Barrier::new(TASKS));
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let mutex = replicas[n % 2].mutex("account:42");
        let looked = everybody_has_looked.clone();
        tasks.spawn(async move {
            let guard = mutex.try_lock().await;
            // Holds the lock until all tasks have tried it.
            looked.wait().await;
            match guard? {
                Some(guard) => guard.release().await.map(|()| true),
                None => Ok(false),
            }
        });
    }
    let mut worked = 0;
    while let Some(done) = tasks.join_next().await {
        worked += usize::from(done??);
    }
    Ok(worked)
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("flash_sale", "the locks and the stock").await?;
    let stock = Stock::open(replicas.redis.as_deref()).await?;
    let place = replicas.place();
    println!("{ITEMS} items, {BUYERS} buyers at two replicas, stock and locks {place}.\n");

    println!("without a lock");
    let oversold = sale(&stock, None).await?;
    println!("    sold {oversold} of {ITEMS}: {} too many\n", oversold - ITEMS);
    assert!(oversold > ITEMS, "no buyers overlapped without a lock");

    println!("with a lock on the item");
    let sold = sale(&stock, Some(&replicas.locks)).await?;
    let left = stock.read().await?;
    assert_eq!((sold, left), (ITEMS, 0), "oversold under the lock");
    println!("    sold {sold} of {ITEMS}, {left} left: exact\n");

    println!("{TASKS} tasks on one account");
    let worked = ten_tasks(&replicas.locks).await?;
    assert_eq!(worked, 1, "exactly one task must work");
    println!("    {worked} worked, {} skipped", TASKS - worked);
    let again = replicas.locks[1].mutex("account:42").try_lock().await?;
    again.ok_or("the account stayed locked")?.release().await?;
    println!("    free again");
    replicas.shutdown().await;
    Ok(())
}

/// The number of items left. Like any database it lets two writers overwrite each other's work.
#[derive(Clone)]
enum Stock {
    Memory(Arc<AtomicI64>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection, String),
}

impl Stock {
    async fn open(redis: Option<&str>) -> Result<Stock, Trouble> {
        match redis {
            None => Ok(Stock::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => {
                let client = redis::Client::open(url)?;
                let connection = client.get_multiplexed_async_connection().await?;
                Ok(Stock::Redis(connection, replicas::prefix() + "stock"))
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    async fn read(&self) -> Result<i64, Trouble> {
        match self {
            Stock::Memory(stock) => Ok(stock.load(Ordering::SeqCst)),
            #[cfg(feature = "redis")]
            Stock::Redis(connection, key) => {
                let mut get = redis::cmd("GET");
                Ok(get.arg(key).query_async(&mut connection.clone()).await?)
            }
        }
    }

    async fn write(&self, left: i64) -> Result<(), Trouble> {
        match self {
            Stock::Memory(stock) => stock.store(left, Ordering::SeqCst),
            #[cfg(feature = "redis")]
            Stock::Redis(connection, key) => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(left).arg("EX").arg(60);
                set.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }
}
