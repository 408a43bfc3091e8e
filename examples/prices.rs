//! A price list with two prices that belong together. Forty readers read it and one writer changes it. Without a lock readers
//! see half a change. With a read-write lock they read at the same time and see complete changes only. At the end a writer
//! publishes a change: it downgrades its lock to a read lock, so it announces the price that all readers see.
//!
//! In this process's memory, in one second:
//!
//!     cargo run --example prices
//!
//! With the lock and the prices on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example prices

mod replicas;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Locks, RwLock};
use tokio::task::JoinSet;

const READERS: usize = 40;
const READS: usize = 5;
const CHANGES: i64 = 20;
/// The price of a pair of shoes, as a multiple of the price of one shoe.
const PAIR: i64 = 2;

/// What the readers saw.
#[derive(Debug, Default)]
struct Seen {
    reads: usize,
    /// Reads that saw half a change.
    halves: usize,
    /// The largest number of readers at the same time.
    beside: usize,
}

/// Reads both prices, one after the other, and returns whether they belong together. A change between the two reads breaks this.
async fn read(list: &PriceList) -> Result<bool, Trouble> {
    let one = list.read("shoe").await?;
    // The time to render the rest of the page.
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(list.read("pair").await? == PAIR * one)
}

async fn change(list: &PriceList, price: i64) -> Result<(), Trouble> {
    list.write("shoe", price).await?;
    tokio::time::sleep(Duration::from_millis(2)).await;
    list.write("pair", PAIR * price).await
}

/// Runs readers at both replicas while a writer changes the prices.
async fn business(list: &PriceList, replicas: Option<&[Locks; 2]>) -> Result<Seen, Trouble> {
    change(list, 1).await?;
    let lock = |n: usize| replicas.map(|replicas| replicas[n % 2].rw_lock("prices"));
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let (list, lock) = (list.clone(), lock(n));
        let (inside, most) = (inside.clone(), most.clone());
        readers.spawn(async move {
            let mut halves = 0;
            for _ in 0..READS {
                let guard = match &lock {
                    Some(lock) => Some(lock.read().await?),
                    None => None,
                };
                most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                let is_whole = read(&list).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                halves += usize::from(!is_whole?);
                if let Some(guard) = guard {
                    guard.release().await?;
                }
            }
            Ok::<_, Trouble>(halves)
        });
    }
    for price in 2..2 + CHANGES {
        match lock(1) {
            None => change(list, price).await?,
            Some(lock) => {
                let guard = lock.write().await?;
                change(list, price).await?;
                guard.release().await?;
            }
        }
    }
    let mut seen = Seen::default();
    while let Some(halves) = readers.join_next().await {
        seen.reads += READS;
        seen.halves += halves??;
    }
    seen.beside = most.load(Ordering::SeqCst);
    Ok(seen)
}

/// Changes the prices, downgrades to a read lock and reads the new price back, although another writer waits. Returns the price
/// that was read, and the price after the other writer.
async fn publish(list: &PriceList, [mine, theirs]: [RwLock; 2]) -> Result<[i64; 2], Trouble> {
    let writer = mine.write().await?;
    change(list, 100).await?;
    let rival = {
        let list = list.clone();
        tokio::spawn(async move {
            let guard = theirs.write().await?;
            change(&list, 200).await?;
            guard.release().await?;
            Ok::<_, Trouble>(())
        })
    };
    let reader = writer.downgrade().await?;
    // Readers can share the lock now; no writer can have it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let announced = list.read("shoe").await?;
    reader.release().await?;
    rival.await??;
    Ok([announced, list.read("shoe").await?])
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("prices", "the lock and the prices").await?;
    let list = PriceList::open(replicas.redis.as_deref()).await?;
    let place = replicas.place();
    println!("{READERS} readers at two replicas, {CHANGES} changes of two prices, list and lock {place}.\n");

    println!("without a lock");
    let mut seen = business(&list, None).await?;
    for _ in 0..10 {
        // By chance no reader may have read in the middle of a change.
        if seen.halves == 0 {
            seen = business(&list, None).await?;
        }
    }
    println!(
        "    {} reads, {} of them of half a change\n",
        seen.reads, seen.halves
    );
    assert_ne!(seen.halves, 0, "no reader saw half a change without a lock");

    println!("with a read-write lock");
    let seen = business(&list, Some(&replicas.locks)).await?;
    println!(
        "    {} reads, {} of half a change, up to {} readers at once\n",
        seen.reads, seen.halves, seen.beside
    );
    assert_eq!(seen.halves, 0, "a reader saw half a change under the lock");
    assert!(seen.beside > 1, "readers waited for each other");

    println!("a change that is announced");
    let locks = [0, 1].map(|n| replicas.locks[n].rw_lock("prices"));
    let [announced, after] = publish(&list, locks).await?;
    println!("    announced {announced}, as it was written; then the next one made it {after}");
    assert_eq!([announced, after], [100, 200]);
    replicas.shutdown().await;
    Ok(())
}

/// Prices by name. A read returns the current value and takes no lock.
#[derive(Clone)]
enum PriceList {
    Memory(Arc<Mutex<[i64; 2]>>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection),
}

impl PriceList {
    async fn open(redis: Option<&str>) -> Result<PriceList, Trouble> {
        match redis {
            None => Ok(PriceList::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => {
                let client = redis::Client::open(url)?;
                Ok(PriceList::Redis(client.get_multiplexed_async_connection().await?))
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    async fn read(&self, what: &str) -> Result<i64, Trouble> {
        match self {
            PriceList::Memory(prices) => {
                let prices = prices.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(prices[usize::from(what == "pair")])
            }
            #[cfg(feature = "redis")]
            PriceList::Redis(connection) => {
                let mut get = redis::cmd("GET");
                get.arg(replicas::prefix() + what);
                Ok(get.query_async(&mut connection.clone()).await?)
            }
        }
    }

    async fn write(&self, what: &str, price: i64) -> Result<(), Trouble> {
        match self {
            PriceList::Memory(prices) => {
                prices.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(what == "pair")] = price;
            }
            #[cfg(feature = "redis")]
            PriceList::Redis(connection) => {
                let mut set = redis::cmd("SET");
                set.arg(replicas::prefix() + what).arg(price).arg("EX").arg(60);
                set.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }
}
