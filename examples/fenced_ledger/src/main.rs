//! A holder that is paused past its lease wakes up and writes. The lock cannot stop the write: the pause came between the check
//! of the lease and the write. The row of the account can: it stores the fence of its last write, and refuses smaller fences.
//!
//! With the locks in this process's memory and the account in a SQLite file, in two seconds:
//!
//!     cargo run -p tenure-fenced-ledger
//!
//! With the locks on a Redis, or without the fence check, so that the balance is wrong:
//!
//!     cargo run -p tenure-fenced-ledger -- redis://127.0.0.1/
//!     cargo run -p tenure-fenced-ledger -- --without-fence
//!
//! A paused process does not renew its leases. This example cannot pause one replica of its process alone. So the holder takes
//! a fixed lease, and waits until it has expired. Other holders see the same in both cases.

mod ledger;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use ledger::Ledger;
use tenure::{Guard, Locks, MemoryStore, Mutex};

type Trouble = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: cargo run -p tenure-fenced-ledger [-- [--without-fence] [redis://127.0.0.1/]]
A holder that is paused past its lease writes to an account in a SQLite file. With --without-fence its write is taken.
A Redis URL puts the locks on that Redis, else they are in memory.";

/// The shortest lease that is allowed.
const LEASE: Duration = Duration::from_millis(400);
const ROUNDS: i64 = 3;

/// The cents that replica 1 pays in, in each round.
const FIRST: i64 = 30;
/// The cents that replica 2 pays in, in each round.
const SECOND: i64 = 50;

struct Words {
    is_fenced: bool,
    redis: Option<String>,
}

/// Returns the arguments, or `None` if they are invalid or ask for help.
fn read_words() -> Option<Words> {
    let mut words = Words {
        is_fenced: true,
        redis: None,
    };
    for word in std::env::args().skip(1) {
        match &*word {
            "--without-fence" => words.is_fenced = false,
            url if !url.starts_with('-') && words.redis.is_none() => words.redis = Some(word),
            _ => return None,
        }
    }
    Some(words)
}

/// Returns the `Locks` of one replica. Each process of a service has its own.
async fn replica(redis: Option<&str>, memory: &MemoryStore) -> Result<Locks, Trouble> {
    // Two runs on one Redis must share no keys.
    let builder = Locks::builder().prefix(format!("example:{}:", std::process::id()));
    Ok(match redis {
        None => Locks::builder().memory_shared(memory)?,
        Some(url) => builder.connect(url).await?,
    })
}

/// Adds `cents` to the balance, under the lock that `guard` holds.
fn pay_in(ledger: &Ledger, who: &str, guard: &Guard, cents: i64) -> Result<(), Trouble> {
    let balance = ledger.balance()? + cents;
    if !ledger.write_fenced(balance, guard.fence())? {
        return Err("the account refused the fence of the current holder".into());
    }
    println!("  {who} pays in {cents} under fence {}: {balance}", guard.fence());
    Ok(())
}

/// Runs one round, in which replica 1 is paused. Returns how many writes the account refused.
async fn round(path: &str, account: &[Mutex; 2], is_fenced: bool) -> Result<u32, Trouble> {
    let ledger = Ledger::open(path)?;
    let guard = account[0].clone().fixed(LEASE).lock().await?;
    let balance = ledger.balance()?;
    let is_held = guard.is_held();
    println!("  replica 1 reads {balance}, sees that it holds the lock ({is_held}), and is paused");

    // Waits until the lease of replica 1 has expired.
    let next = account[1].lock().await?;
    pay_in(&ledger, "replica 2", &next, SECOND)?;
    next.release().await?;

    let stale = balance + FIRST;
    if !is_fenced {
        ledger.write(stale)?;
        println!("  replica 1 wakes up and writes {stale}: what replica 2 paid in is gone");
        return Ok(0);
    }
    if ledger.write_fenced(stale, guard.fence())? {
        return Err("the account accepted a stale write".into());
    }
    println!(
        "  replica 1 wakes up and writes {stale} under fence {}: refused",
        guard.fence()
    );
    let again = account[0].lock().await?;
    pay_in(&ledger, "replica 1", &again, FIRST)?;
    again.release().await?;
    Ok(1)
}

async fn show(words: Words, path: &str) -> Result<bool, Trouble> {
    let memory = MemoryStore::new();
    let replicas = [
        replica(words.redis.as_deref(), &memory).await?,
        replica(words.redis.as_deref(), &memory).await?,
    ];
    let account = replicas.each_ref().map(|locks| locks.mutex(("account", 42)));
    let ledger = Ledger::create(path)?;
    let mut refused = 0;
    for n in 1..=ROUNDS {
        println!("pause {n} of {ROUNDS}");
        refused += round(path, &account, words.is_fenced).await?;
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
    Ok(is_exact == words.is_fenced)
}

#[tokio::main]
async fn main() -> Result<ExitCode, Trouble> {
    let Some(words) = read_words() else {
        eprintln!("{USAGE}");
        let asked = std::env::args().any(|word| word == "--help");
        return Ok(if asked {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        });
    };
    let path = std::env::temp_dir().join(format!("tenure-fenced-ledger-{}.sqlite3", std::process::id()));
    let path = path
        .to_str()
        .ok_or("the path of the temporary directory is not UTF-8")?;
    let shown = show(words, path).await;
    let _ = std::fs::remove_file(path);
    Ok(if shown? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
