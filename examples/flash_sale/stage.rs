//! Two replicas, three hundred buyers, then ten tasks, and what came of it.

#[path = "../replicas/mod.rs"]
pub(crate) mod replicas;

use std::sync::Arc;

use tenure::Locks;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::stock::Stock;
use crate::{BoxError, sell, take_item, work_or_skip};
use replicas::Replicas;
use replicas::store::prefix;

const ITEMS: i64 = 100;
const BUYERS: usize = 300;
const TASKS: usize = 10;

/// Runs all buyers at the same time, on both replicas in turn. Returns how many items were sold.
async fn sale(stock: &Stock, replicas: Option<&[Locks; 2]>) -> Result<i64, BoxError> {
    stock.write(ITEMS).await?;
    let mut buyers = JoinSet::new();
    for n in 0..BUYERS {
        let stock = stock.clone();
        let locks = replicas.map(|replicas| replicas[n % 2].clone());
        buyers.spawn(async move {
            match locks {
                None => take_item(&stock).await,
                Some(locks) => sell(&locks, &stock).await,
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

/// Runs ten tasks on one account at the same time. Returns how many worked.
async fn ten_tasks(replicas: &[Locks; 2]) -> Result<usize, BoxError> {
    let all_have_tried = Arc::new(Barrier::new(TASKS));
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let (locks, tried) = (replicas[n % 2].clone(), all_have_tried.clone());
        tasks.spawn(async move {
            // The work lasts until all tasks have tried the lock.
            let work = async { _ = tried.wait().await };
            let has_worked = work_or_skip(&locks, work).await?;
            if !has_worked {
                tried.wait().await;
            }
            Ok::<_, tenure::Error>(has_worked)
        });
    }
    let mut worked = 0;
    while let Some(done) = tasks.join_next().await {
        worked += usize::from(done??);
    }
    Ok(worked)
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("flash_sale", "the locks and the stock").await?;
    let stock = Stock::open(replicas.store.data_url(), &prefix()).await?;
    let place = replicas.store.place_of("stock", "locks");
    println!("{ITEMS} items, {BUYERS} buyers at two replicas, {place}.\n");

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
