//! Two replicas, forty readers and a writer, then two writers, and what came of it.

#[path = "../replicas/mod.rs"]
pub(crate) mod replicas;

use std::time::Duration;

use tenure::{Locks, RwLock};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::shop::Shop;
use crate::{BoxError, change, publish, read, show_page, write};
use replicas::Replicas;
use replicas::store::prefix;

const READERS: usize = 40;
const READS: usize = 5;
const CHANGES: i64 = 20;

/// What the readers saw.
#[derive(Debug, Default)]
struct Pages {
    reads: usize,
    /// Reads that saw half a change.
    halves: usize,
    /// The largest number of readers at the same time.
    readers: usize,
}

/// Runs readers at both replicas while a writer changes the prices.
async fn business(shop: &Shop, replicas: Option<&[Locks; 2]>) -> Result<Pages, BoxError> {
    change(shop, 1).await?;
    let lock = |n: usize| replicas.map(|replicas| replicas[n % 2].rw_lock("prices"));
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let (shop, lock) = (shop.clone(), lock(n));
        readers.spawn(async move {
            let mut halves = 0;
            for _ in 0..READS {
                let is_whole = match &lock {
                    None => show_page(&shop).await?,
                    Some(lock) => read(lock, &shop).await?,
                };
                halves += usize::from(!is_whole);
            }
            Ok::<_, BoxError>(halves)
        });
    }
    for price in 2..2 + CHANGES {
        match lock(1) {
            None => change(shop, price).await?,
            Some(lock) => write(&lock, shop, price).await?,
        }
    }
    let mut pages = Pages::default();
    while let Some(halves) = readers.join_next().await {
        pages.reads += READS;
        pages.halves += halves??;
    }
    pages.readers = shop.take_highest();
    Ok(pages)
}

/// Publishes a price while another writer waits. Returns the price that was announced, and the price after the other writer.
async fn publish_before_rival(shop: &Shop, [lock, rival_lock]: [RwLock; 2]) -> Result<[i64; 2], BoxError> {
    let rival = async {
        while shop.price("shoe").await? != 100 {
            sleep(Duration::from_millis(1)).await;
        }
        write(&rival_lock, shop, 200).await
    };
    let (announced, ()) = tokio::try_join!(publish(&lock, shop, 100), rival)?;
    Ok([announced, shop.price("shoe").await?])
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("prices", "the lock and the prices").await?;
    let shop = Shop::open(replicas.store.data_url(), &prefix()).await?;
    let place = replicas.store.place_of("list", "lock");
    println!("{READERS} readers at two replicas, {CHANGES} changes of two prices, {place}.\n");

    println!("without a lock");
    let mut pages = business(&shop, None).await?;
    for _ in 0..10 {
        // By chance no reader may have read in the middle of a change.
        if pages.halves == 0 {
            pages = business(&shop, None).await?;
        }
    }
    println!(
        "    {} reads, {} of them of half a change\n",
        pages.reads, pages.halves
    );
    assert_ne!(pages.halves, 0, "no reader saw half a change without a lock");

    println!("with a read-write lock");
    let pages = business(&shop, Some(&replicas.locks)).await?;
    println!(
        "    {} reads, {} of half a change, up to {} readers at once\n",
        pages.reads, pages.halves, pages.readers
    );
    assert_eq!(pages.halves, 0, "a reader saw half a change under the lock");
    assert!(pages.readers > 1, "readers waited for each other");

    println!("a change that is announced");
    let locks = [0, 1].map(|n| replicas.locks[n].rw_lock("prices"));
    let [announced, after] = publish_before_rival(&shop, locks).await?;
    println!("    announced {announced}, as it was written; then the next one made it {after}");
    assert_eq!([announced, after], [100, 200]);
    replicas.shutdown().await;
    Ok(())
}
