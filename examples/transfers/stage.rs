//! Two replicas and three hundred transfers, then a teller that sleeps, and what came of it.

#[path = "../replicas/mod.rs"]
pub(crate) mod replicas;

use tenure::Locks;
use tokio::task::JoinSet;

use crate::bank::{ACCOUNTS, Bank};
use crate::{BoxError, key, lock_of, move_money, transfer};
use replicas::Replicas;
use replicas::store::prefix;

const BALANCE: i64 = 1_000;
const TRANSFERS: usize = 300;

/// Runs all transfers at the same time, on both replicas in turn. Returns the total of all accounts afterwards.
async fn business(bank: &Bank, replicas: Option<&[Locks; 2]>) -> Result<i64, BoxError> {
    for account in 0..ACCOUNTS {
        bank.open_account(account, BALANCE).await?;
    }
    let mut tellers = JoinSet::new();
    for n in 0..TRANSFERS {
        let accounts = [n % ACCOUNTS, (n + 1 + n / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS];
        let amount = 1 + n as i64 % 7;
        let bank = bank.clone();
        let locks = replicas.map(|replicas| replicas[n % 2].clone());
        tellers.spawn(async move {
            match locks {
                None => move_money(&bank, accounts, amount, [None; 2]).await,
                Some(locks) => transfer(&locks, &bank, accounts, amount).await,
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
async fn sleeper(bank: &Bank, replicas: &[Locks; 2]) -> Result<bool, BoxError> {
    let accounts = [0, 1];
    let asleep = lock_of(&replicas[0], accounts).lock().await?;
    let old = accounts.map(|account| asleep.fence(key(account)));
    let balances = [bank.read(0).await?, bank.read(1).await?];
    // Stands for a lost lease: the example does not wait 10 s for it to expire.
    drop(asleep);
    let is_accepted = transfer(&replicas[1], bank, accounts, 1).await?;
    assert!(is_accepted, "the bank refused the write of the second teller");
    bank.write(accounts, [balances[0] - 1, balances[1] + 1], old)
        .await
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let replicas = Replicas::start("transfers", "the locks and the accounts").await?;
    let bank = Bank::open(replicas.store.data_url(), &prefix()).await?;
    let place = replicas.store.place_of("accounts", "locks");
    let right = ACCOUNTS as i64 * BALANCE;
    println!("{ACCOUNTS} accounts of {BALANCE}, {TRANSFERS} transfers at two replicas, {place}.\n");

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
    let is_accepted = sleeper(&bank, &replicas.locks).await?;
    assert!(!is_accepted, "the bank accepted an old fence");
    println!("    what it wrote too late was refused");
    replicas.shutdown().await;
    Ok(())
}
