//! Four accounts, and three hundred transfers at two replicas of a bank. Without locks money appears and disappears. With both
//! accounts of each transfer locked together the total is exact, and transfers in opposite directions do not deadlock. At the
//! end a teller sleeps in the middle of a transfer: the bank refuses its late write.
//!
//!     cargo run --example transfers                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example transfers    # the locks and the accounts on a Redis
//!
//! `stage.rs` has the replicas and the tellers. `bank.rs` is the database.

mod bank;
mod stage;

use std::error::Error;
use std::time::Duration;

use bank::Bank;
use tenure::{Fence, Locks, MultiLock};
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;

/// Returns the key of an account's lock.
fn key(account: usize) -> String {
    format!("account:{account}")
}

/// Returns the lock of both accounts.
fn lock_of(locks: &Locks, accounts: [usize; 2]) -> MultiLock {
    locks.multi(accounts.map(key))
}

/// Transfers `amount` from the first account to the second under both locks. Returns `false` if the bank refused the write.
async fn transfer(locks: &Locks, bank: &Bank, accounts: [usize; 2], amount: i64) -> Result<bool, BoxError> {
    let both = lock_of(locks, accounts);
    both.with(async |lease| {
        let fences = accounts.map(|account| lease.fence(key(account)));
        move_money(bank, accounts, amount, fences).await
    })
    .await?
}

/// Reads both accounts, pauses and writes both. A concurrent transfer breaks this. Returns `false` if the bank refused the
/// write because another teller wrote under later fences.
async fn move_money(
    bank: &Bank,
    [from, to]: [usize; 2],
    amount: i64,
    fences: [Option<Fence>; 2],
) -> Result<bool, BoxError> {
    let balances = [bank.read(from).await?, bank.read(to).await?];
    // The time until the other bank answers.
    sleep(Duration::from_millis(2)).await;
    let balances = [balances[0] - amount, balances[1] + amount];
    bank.write([from, to], balances, fences).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
