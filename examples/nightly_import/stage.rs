//! Two replicas, their workers and the books, and what came of two nights.

#[path = "../replicas/mod.rs"]
mod replicas;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Latch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::{BoxError, PARTS, begin, import, night, open_books, report};
use replicas::Replicas;

/// The fixed time: on most nights the import takes less.
const USUALLY: Duration = Duration::from_millis(180);

/// The parts that both replicas have imported.
#[derive(Debug, Default)]
pub(crate) struct Books {
    parts: AtomicU32,
}

impl Books {
    /// Each part takes longer than the one before it.
    pub(crate) async fn import(&self, part: u32) {
        sleep(Duration::from_millis(30 * u64::from(part))).await;
        self.parts.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many parts are in.
    pub(crate) fn open(&self) -> u32 {
        self.parts.load(Ordering::SeqCst)
    }
}

/// Starts a worker for each part, at both replicas in turn.
fn start_workers(books: &Arc<Books>, latches: &[Latch; 2]) -> JoinSet<Result<(), tenure::Error>> {
    let mut workers = JoinSet::new();
    for part in 1..=PARTS {
        let (books, latch) = (books.clone(), latches[part as usize % 2].clone());
        workers.spawn(async move {
            import(&latch, &books, part).await?;
            if part == 1 {
                // Stands for a restart: the worker reports its part a second time.
                report(&latch, part).await?;
            }
            Ok(())
        });
    }
    workers
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("nightly_import", "the latch").await?;
    let place = replicas.store.place();
    println!("{PARTS} parts of an import by the workers of two replicas, the latch {place}.\n");
    let latches_of = |date: &str| replicas.locks.each_ref().map(|locks| night(locks, date));
    let latches = latches_of("2026-11-22");
    let [here, there] = &latches;

    assert!(begin(here).await?);
    assert!(!begin(there).await?, "only one replica sets the count");
    let books = Arc::new(Books::default());
    let mut workers = start_workers(&books, &latches);
    sleep(USUALLY).await;
    let opened = books.open();
    println!("opened by the clock\n    {opened} of {PARTS} parts are in\n");
    assert_ne!(opened, PARTS, "all parts were in at the fixed time");

    let left = there.count().await?;
    let opened = open_books(there, &books).await?;
    println!(
        "opened when the latch is at zero\n    waited for {left} more: {opened} of {PARTS} parts are in\n"
    );
    assert_eq!(opened, PARTS, "the books were opened too early");
    while let Some(worker) = workers.join_next().await {
        worker??;
    }

    let [here, there] = &latches_of("2026-11-23");
    assert!(begin(there).await?);
    let late = here.wait_timeout(Duration::from_millis(20)).await?;
    println!(
        "the next night\n    {} parts to come, at zero: {late}",
        here.count().await?
    );
    assert!(!late);
    replicas.shutdown().await;
    Ok(())
}
