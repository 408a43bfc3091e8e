//! A nightly import in parts. Workers of two replicas import the parts at the same time, and the books are opened after the
//! last part. At a fixed time some parts are missing. A latch tells when all parts are in, even if a worker runs twice.
//!
//! In this process's memory, in one or two seconds:
//!
//!     cargo run --example nightly_import
//!
//! With the latch on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example nightly_import

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Error, Latch};
use tokio::task::JoinSet;
use tokio::time::sleep;

const PARTS: u32 = 12;
/// The fixed time: on most nights the import takes less.
const USUALLY: Duration = Duration::from_millis(60);

/// The parts that both replicas have imported.
#[derive(Debug, Default)]
struct Books {
    parts: AtomicU32,
}

impl Books {
    /// Each part takes longer than the one before it.
    async fn import(&self, part: u32) {
        sleep(Duration::from_millis(10 * u64::from(part))).await;
        self.parts.fetch_add(1, Ordering::SeqCst);
    }

    fn open(&self) -> u32 {
        self.parts.load(Ordering::SeqCst)
    }
}

/// Starts a worker for each part, at both replicas in turn. Each worker counts down when its part is in.
fn start_workers(books: &Arc<Books>, latches: &[Latch; 2]) -> JoinSet<Result<(), Error>> {
    let mut workers = JoinSet::new();
    for part in 1..=PARTS {
        let (books, latch) = (books.clone(), latches[part as usize % 2].clone());
        workers.spawn(async move {
            books.import(part).await;
            latch.count_down_once(format!("part {part}")).await?;
            if part == 1 {
                // Stands for a restart: the worker reports its part a second time.
                latch.count_down_once("part 1").await?;
            }
            Ok(())
        });
    }
    workers
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("nightly_import", "the latch").await?;
    let place = replicas.place();
    println!("{PARTS} parts of an import by the workers of two replicas, the latch {place}.\n");
    // One latch per night: a night that fails affects no other.
    let night = |date: &str| {
        let of = |n: usize| replicas.locks[n].latch(format!("import:{date}"));
        [0, 1].map(|n| of(n).life(Duration::from_secs(60)))
    };
    let latches = night("2026-11-22");
    let [here, there] = &latches;

    assert!(here.try_set_count(PARTS).await?);
    assert!(
        !there.try_set_count(PARTS).await?,
        "only one replica sets the count"
    );
    let books = Arc::new(Books::default());
    let mut workers = start_workers(&books, &latches);
    sleep(USUALLY).await;
    let opened = books.open();
    println!("opened by the clock\n    {opened} of {PARTS} parts are in\n");
    assert_ne!(opened, PARTS, "all parts were in at the fixed time");

    let left = there.count().await?;
    there.wait().await?;
    let opened = books.open();
    println!(
        "opened when the latch is at zero\n    waited for {left} more: {opened} of {PARTS} parts are in\n"
    );
    assert_eq!(opened, PARTS, "the books were opened too early");
    while let Some(worker) = workers.join_next().await {
        worker??;
    }

    let [here, there] = &night("2026-11-23");
    assert!(there.try_set_count(PARTS).await?);
    let late = here.wait_timeout(Duration::from_millis(20)).await?;
    println!(
        "the next night\n    {} parts to come, at zero: {late}",
        here.count().await?
    );
    assert!(!late);
    replicas.shutdown().await;
    Ok(())
}
