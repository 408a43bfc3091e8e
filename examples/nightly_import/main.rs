//! A nightly import in parts. Workers of two replicas import the parts at the same time, and the books are opened after the
//! last part. At a fixed time some parts are missing. A latch tells when all parts are in, even if a worker runs twice.
//!
//!     cargo run --example nightly_import                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example nightly_import    # the latch on a Redis
//!
//! `stage.rs` has the replicas, the workers and the books.

mod stage;

use std::error::Error;
use std::time::Duration;

use stage::Books;
use tenure::{Latch, Locks};

type BoxError = Box<dyn Error + Send + Sync>;

const PARTS: u32 = 12;

/// Returns the latch of a night. Each night has its own, so a night that fails affects no other.
fn night(locks: &Locks, date: &str) -> Latch {
    let latch = locks.latch(format!("import:{date}"));
    latch.life(Duration::from_secs(60))
}

/// Begins the night. Each replica calls this, and the first call sets the count. Returns whether this call was the first.
async fn begin(latch: &Latch) -> Result<bool, tenure::Error> {
    latch.try_set_count(PARTS).await
}

/// Imports a part. Each part has a worker, at any replica.
async fn import(latch: &Latch, books: &Books, part: u32) -> Result<(), tenure::Error> {
    books.import(part).await;
    report(latch, part).await
}

/// Reports that a part is in. A part counts once, even if its worker restarts and reports it again.
async fn report(latch: &Latch, part: u32) -> Result<(), tenure::Error> {
    latch.count_down_once(format!("part {part}")).await?;
    Ok(())
}

/// Opens the books when all parts are in. Returns how many parts the books have.
async fn open_books(latch: &Latch, books: &Books) -> Result<u32, tenure::Error> {
    latch.wait().await?;
    Ok(books.open())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
