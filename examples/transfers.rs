//! Four accounts, and three hundred transfers at two replicas of a bank. Without locks money appears and disappears. With both
//! accounts of each transfer locked together the total is exact, and transfers in opposite directions do not deadlock. At the
//! end a teller sleeps in the middle of a transfer: the bank refuses its late write.
//!
//! In this process's memory, in one second:
//!
//!     cargo run --example transfers
//!
//! With the locks and the accounts on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example transfers

mod replicas;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use replicas::{Replicas, Trouble};
use tenure::{Locks, MultiLease};
use tokio::task::JoinSet;

const ACCOUNTS: usize = 4;
const BALANCE: i64 = 1_000;
const TRANSFERS: usize = 300;

/// Reads both accounts, pauses and writes both. A concurrent transfer breaks this. Returns `false` if the bank refused the
/// write because another teller wrote under later fences.
async fn transfer(
    bank: &Bank,
    [from, to]: [usize; 2],
    amount: i64,
    lease: Option<&MultiLease>,
) -> Result<bool, Trouble> {
    let balances = [bank.read(from).await?, bank.read(to).await?];
    // The time until the other bank answers.
    tokio::time::sleep(Duration::from_millis(2)).await;
    let fences = [from, to].map(|account| lease.and_then(|lease| lease.fence(name(account))));
    let fences = fences.map(|fence| fence.map_or(0, |fence| fence.get()));
    let balances = [balances[0] - amount, balances[1] + amount];
    bank.write([from, to], balances, fences).await
}

/// Runs all transfers at the same time, on both replicas in turn. Returns the total of all accounts afterwards.
async fn business(bank: &Bank, replicas: Option<&[Locks; 2]>) -> Result<i64, Trouble> {
    for account in 0..ACCOUNTS {
        bank.open_account(account).await?;
    }
    let mut tellers = JoinSet::new();
    for n in 0..TRANSFERS {
        let accounts = [n % ACCOUNTS, (n + 1 + n / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS];
        let amount = 1 + n as i64 % 7;
        let bank = bank.clone();
        let multi = replicas.map(|replicas| replicas[n % 2].multi(accounts.map(name)));
        tellers.spawn(async move {
            match multi {
                None => transfer(&bank, accounts, amount, None).await,
                Some(multi) => {
                    multi
                        .with(async |lease| transfer(&bank, accounts, amount, Some(&lease)).await)
                        .await?
                }
            }
        });
    }
    while let Some(done) = tellers.join_next().await {
        done??;
    }
    let mut total = 0;
    for account in 0..ACCOUNTS {
        total += bank.read(account).await?;
    }
    Ok(total)
}

/// A teller reads both accounts and falls asleep. Its lease ends, and another teller transfers. Returns whether the bank
/// accepted the late write of the first teller.
async fn sleeper(bank: &Bank, replicas: &[Locks; 2]) -> Result<bool, Trouble> {
    let accounts = [0, 1];
    let asleep = replicas[0].multi(accounts.map(name)).lock().await?;
    let old = accounts.map(|account| asleep.fence(name(account)).map_or(0, |fence| fence.get()));
    let balances = [bank.read(0).await?, bank.read(1).await?];
    // Stands for a lost lease: the example does not wait 10 s for it to expire.
    drop(asleep);
    let guard = replicas[1].multi(accounts.map(name)).lock().await?;
    let taken = transfer(bank, accounts, 1, Some(&guard.lease())).await?;
    assert!(taken, "the bank refused the write of the second teller");
    guard.release().await?;
    bank.write(accounts, [balances[0] - 1, balances[1] + 1], old)
        .await
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let replicas = Replicas::start("transfers", "the locks and the accounts").await?;
    let bank = Bank::open(replicas.redis.as_deref()).await?;
    let (place, right) = (replicas.place(), ACCOUNTS as i64 * BALANCE);
    println!(
        "{ACCOUNTS} accounts of {BALANCE}, {TRANSFERS} transfers at two replicas, accounts and locks {place}.\n"
    );

    println!("without locks");
    let mut total = business(&bank, None).await?;
    for _ in 0..10 {
        // By chance the gains may equal the losses.
        total = if total == right {
            business(&bank, None).await?
        } else {
            total
        };
    }
    println!("    {total} of {right}: {:+} out of nothing\n", total - right);
    assert_ne!(total, right, "no transfers overlapped without locks");

    println!("with both accounts of a transfer locked");
    let total = business(&bank, Some(&replicas.locks)).await?;
    assert_eq!(total, right, "money appeared or disappeared under the locks");
    println!("    {total} of {right}: exact\n");

    println!("a teller that fell asleep");
    let taken = sleeper(&bank, &replicas.locks).await?;
    assert!(!taken, "the bank accepted an old fence");
    println!("    what it wrote too late was refused");
    replicas.shutdown().await;
    Ok(())
}

/// Returns the key of an account's lock.
fn name(account: usize) -> String {
    format!("account:{account}")
}

/// Accounts, each with the fence of its last write. Like any database it lets two writers overwrite each other's work,
/// unless they send their fences.
#[derive(Clone)]
enum Bank {
    Memory(Arc<Mutex<[(i64, u64); ACCOUNTS]>>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection),
}

/// Writes both accounts in one step, or neither. Compares fences as texts of equal length: Lua numbers are exact up to 2^53.
#[cfg(feature = "redis")]
const WRITE: &str = "
for i = 1, 2 do
  local fence = redis.call('HGET', KEYS[i], 'fence')
  if fence and fence > ARGV[i] then return 0 end
end
for i = 1, 2 do
  redis.call('HSET', KEYS[i], 'balance', ARGV[i + 2], 'fence', ARGV[i])
end
return 1";

impl Bank {
    async fn open(redis: Option<&str>) -> Result<Bank, Trouble> {
        match redis {
            None => Ok(Bank::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => {
                let client = redis::Client::open(url)?;
                Ok(Bank::Redis(client.get_multiplexed_async_connection().await?))
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    async fn open_account(&self, account: usize) -> Result<(), Trouble> {
        match self {
            Bank::Memory(accounts) => {
                accounts.lock().unwrap_or_else(PoisonError::into_inner)[account] = (BALANCE, 0);
            }
            #[cfg(feature = "redis")]
            Bank::Redis(connection) => {
                let record = replicas::prefix() + "bank:" + &name(account);
                let mut open = redis::pipe();
                open.cmd("DEL").arg(&record);
                open.cmd("HSET").arg(&record).arg("balance").arg(BALANCE);
                open.cmd("EXPIRE").arg(&record).arg(60);
                open.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }

    async fn read(&self, account: usize) -> Result<i64, Trouble> {
        match self {
            Bank::Memory(accounts) => Ok(accounts.lock().unwrap_or_else(PoisonError::into_inner)[account].0),
            #[cfg(feature = "redis")]
            Bank::Redis(connection) => {
                let mut get = redis::cmd("HGET");
                get.arg(replicas::prefix() + "bank:" + &name(account))
                    .arg("balance");
                Ok(get.query_async(&mut connection.clone()).await?)
            }
        }
    }

    /// Writes both accounts or neither. Returns `false` if one of them was written under a later fence.
    async fn write(&self, of: [usize; 2], balances: [i64; 2], fences: [u64; 2]) -> Result<bool, Trouble> {
        match self {
            Bank::Memory(accounts) => {
                let mut accounts = accounts.lock().unwrap_or_else(PoisonError::into_inner);
                let is_late = (0..2).any(|at| accounts[of[at]].1 > fences[at]);
                if !is_late {
                    (0..2).for_each(|at| accounts[of[at]] = (balances[at], fences[at]));
                }
                Ok(!is_late)
            }
            #[cfg(feature = "redis")]
            Bank::Redis(connection) => {
                let mut write = redis::cmd("EVAL");
                write.arg(WRITE).arg(2);
                write.arg(&of.map(|account| replicas::prefix() + "bank:" + &name(account)));
                write
                    .arg(&fences.map(|fence| format!("{fence:020}")))
                    .arg(&balances);
                Ok(write.query_async(&mut connection.clone()).await?)
            }
        }
    }
}
