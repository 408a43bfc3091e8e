//! Two replicas, and pauses of the first one past its lease.
//!
//! A paused process does not renew its leases. This example cannot pause one replica of its process alone. So the holder takes
//! a fixed lease, and waits until it has expired. Other holders see the same in both cases.

#[path = "../../replicas/store.rs"]
mod store;

use std::process::ExitCode;
use std::time::Duration;

use tenure::Mutex;

use crate::ledger::Ledger;
use crate::{BoxError, Write, account, pay_in};
use store::Store;

const USAGE: &str = "usage: cargo run -p tenure-fenced-ledger [-- --without-fence]
A holder that is paused past its lease writes to an account in a SQLite file. With --without-fence its write is taken.
TENURE_URL=redis://127.0.0.1/ puts the locks on that Redis, else they are in memory.";

/// The shortest lease that is allowed.
const LEASE: Duration = Duration::from_millis(400);
const ROUNDS: i64 = 3;

/// The cents that replica 1 pays in, in each round.
const FIRST: i64 = 30;
/// The cents that replica 2 pays in, in each round.
const SECOND: i64 = 50;

/// Pays in without a pause. Returns the balance.
async fn pay_in_at_once(name: &str, account: &Mutex, ledger: &Ledger, cents: i64) -> Result<i64, BoxError> {
    let write = pay_in(account, ledger, cents, async |_, _| Ok(())).await?;
    if !write.is_accepted {
        return Err("the account refused the fence of the current holder".into());
    }
    println!(
        "  {name} pays in {cents} under fence {}: {}",
        write.fence, write.cents
    );
    Ok(write.cents)
}

/// Runs one round, in which replica 1 is paused. Returns how many writes the account refused.
async fn round(ledger: &Ledger, accounts: &[Mutex; 2], is_fenced: bool) -> Result<u32, BoxError> {
    let pausing = accounts[0].clone().fixed(LEASE);
    let Write {
        cents,
        fence,
        is_accepted,
    } = pay_in(&pausing, ledger, FIRST, async |guard, balance| {
        let is_held = guard.is_held();
        println!("  replica 1 reads {balance}, sees that it holds the lock ({is_held}), and is paused");
        // Replica 2 waits until the lease of replica 1 has expired.
        pay_in_at_once("replica 2", &accounts[1], ledger, SECOND).await?;
        Ok(())
    })
    .await?;

    if !is_fenced {
        println!("  replica 1 wakes up and writes {cents}: what replica 2 paid in is gone");
        return Ok(0);
    }
    if is_accepted {
        return Err("the account accepted a stale write".into());
    }
    println!("  replica 1 wakes up and writes {cents} under fence {fence}: refused");
    pay_in_at_once("replica 1", &accounts[0], ledger, FIRST).await?;
    Ok(1)
}

/// Plays all rounds. Returns whether the balance is as it must be with the fence check, or without it.
async fn play_rounds(path: &str, is_fenced: bool) -> Result<bool, BoxError> {
    let store = Store::from_env();
    let replicas = [store.connect().await?, store.connect().await?];
    let accounts = replicas.each_ref().map(account);
    let ledger = Ledger::create(path, is_fenced)?;
    let mut refused = 0;
    for n in 1..=ROUNDS {
        println!("pause {n} of {ROUNDS}");
        refused += round(&ledger, &accounts, is_fenced).await?;
    }
    for locks in replicas {
        locks.shutdown().await;
    }
    let (balance, paid_in) = (ledger.balance()?, ROUNDS * (FIRST + SECOND));
    let is_exact = balance == paid_in;
    let verdict = if is_exact { "exact" } else { "wrong" };
    println!(
        "{paid_in} were paid in, the account has {balance}: {verdict}; {refused} late writes were refused"
    );
    // Without the fence check the balance must be wrong; otherwise the run showed nothing.
    Ok(is_exact == is_fenced)
}

pub(crate) async fn play() -> Result<ExitCode, BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_fenced = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => true,
        ["--without-fence"] => false,
        other => {
            eprintln!("{USAGE}");
            let is_question = other.contains(&"--help");
            return Ok(ExitCode::from(if is_question { 0 } else { 2 }));
        }
    };
    let path = std::env::temp_dir().join(format!("tenure-fenced-ledger-{}.sqlite3", std::process::id()));
    let path = path
        .to_str()
        .ok_or("the path of the temporary directory is not UTF-8")?;
    let is_right = play_rounds(path, is_fenced).await;
    let _ = std::fs::remove_file(path);
    Ok(if is_right? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
