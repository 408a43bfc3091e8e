//! A nightly import in parts: workers of two replicas import them beside each other, and the books are opened when all of
//! them are in. Who opens them by the clock opens them too early; a latch tells, also when a worker is started twice.
//!
//! In this process's memory, in a second or two:
//!
//!     cargo run --example nightly_import
//!
//! The same with the latch on a Redis:
//!
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example nightly_import

mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Error, Latch};
use tokio::task::JoinSet;
use tokio::time::sleep;

const PARTS: u32 = 12;
/// By then all of it is in, on most nights.
const USUALLY: Duration = Duration::from_millis(60);

/// What has been imported, whoever did it.
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

/// Imports all parts, by both replicas in turn; each worker counts down when it is through.
fn start_workers(books: &Arc<Books>, latches: &[Latch; 2]) -> JoinSet<Result<(), Error>> {
    let mut workers = JoinSet::new();
    for part in 1..=PARTS {
        let (books, latch) = (books.clone(), latches[part as usize % 2].clone());
        workers.spawn(async move {
            books.import(part).await;
            latch.count_down_once(format!("part {part}")).await?;
            if part == 1 {
                // It was restarted before it could say that it is through, and says so once more.
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
    // A name for each night: one that fails spoils no other.
    let night = |date: &str| {
        let of = |n: usize| replicas.locks[n].latch(format!("import:{date}"));
        [0, 1].map(|n| of(n).life(Duration::from_secs(60)))
    };
    let latches = night("2026-11-22");
    let [here, there] = &latches;

    assert!(here.try_set_count(PARTS).await?);
    assert!(!there.try_set_count(PARTS).await?, "one of them sets it");
    let books = Arc::new(Books::default());
    let mut workers = start_workers(&books, &latches);
    sleep(USUALLY).await;
    let opened = books.open();
    println!("opened by the clock\n    {opened} of {PARTS} parts are in\n");
    assert_ne!(opened, PARTS, "a quiet night");

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
