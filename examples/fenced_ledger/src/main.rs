//! A holder that is paused past its lease wakes up and writes. The lock cannot stop the write: the pause came between the check
//! of the lease and the write. The row of the account can: it stores the fence of its last write, and refuses smaller fences.
//!
//!     cargo run -p tenure-fenced-ledger                                  # locks in memory, the account in a SQLite file
//!     TENURE_URL=redis://127.0.0.1/ cargo run -p tenure-fenced-ledger    # the locks on a Redis
//!     cargo run -p tenure-fenced-ledger -- --without-fence               # the account checks no fence: the balance is wrong
//!
//! `stage.rs` has the replicas and the pauses. `ledger.rs` is the database.

mod ledger;
mod stage;

use std::error::Error;
use std::process::ExitCode;

use ledger::Ledger;
use tenure::{Fence, Guard, Locks, Mutex};

type BoxError = Box<dyn Error + Send + Sync>;

/// A write to the account.
struct Write {
    cents: i64,
    fence: Fence,
    /// Whether the account took it. If not, a later holder has written.
    is_accepted: bool,
}

fn account(locks: &Locks) -> Mutex {
    locks.mutex(("account", 42))
}

/// Adds `cents` to the balance under the lock.
///
/// `before_write` is the work between the read and the write. The process may be paused there for longer than the lease.
async fn pay_in(
    account: &Mutex,
    ledger: &Ledger,
    cents: i64,
    before_write: impl AsyncFnOnce(&Guard, i64) -> Result<(), BoxError>,
) -> Result<Write, BoxError> {
    let guard = account.lock().await?;
    let (balance, fence) = (ledger.balance()?, guard.fence());
    before_write(&guard, balance).await?;
    let cents = balance + cents;
    let is_accepted = ledger.write(cents, fence)?;
    // The account has decided, so a loss of the lease changes nothing any more.
    let _ = guard.release().await;
    Ok(Write {
        cents,
        fence,
        is_accepted,
    })
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    stage::play().await
}
