//! A holder that is paused past its lease wakes up and writes. The lock cannot stop it: it looked, and was paused between its
//! look and its write. The account's row can: it keeps the fence of its last write, and refuses smaller ones.
//!
//! With the locks in this process's memory and the account in a SQLite file, in two seconds:
//!
//!     cargo run -p tenure-fenced-ledger
//!
//! The same with the locks on a Redis, and what becomes of the books without the fence:
//!
//!     cargo run -p tenure-fenced-ledger -- redis://127.0.0.1/
//!     cargo run -p tenure-fenced-ledger -- --without-fence
//!
//! A process that is paused renews nothing. Nobody can pause half of a process, so the holder that is paused has a lease of
//! fixed length here, and sleeps past it. To everybody else that is the same.

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

/// The shortest there is, so that the show is short.
const LEASE: Duration = Duration::from_millis(400);
const ROUNDS: i64 = 3;

/// What a replica pays in.
const FIRST: i64 = 30;
const SECOND: i64 = 50;

struct Words {
    is_fenced: bool,
    redis: Option<String>,
}

/// `None`: the words make no sense, or ask for help.
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

/// A replica of the service, as each process has one.
async fn replica(redis: Option<&str>, memory: &MemoryStore) -> Result<Locks, Trouble> {
    // So that two shows on one Redis know nothing of each other.
    let builder = Locks::builder().prefix(format!("example:{}:", std::process::id()));
    Ok(match redis {
        None => Locks::builder().memory_shared(memory)?,
        Some(url) => builder.redis(url).await?,
    })
}

/// Pays in under the lock, which is held.
fn pay_in(ledger: &Ledger, who: &str, guard: &Guard, cents: i64) -> Result<(), Trouble> {
    let balance = ledger.balance()? + cents;
    if !ledger.write_fenced(balance, guard.fence())? {
        return Err("the fence of a holder is the largest".into());
    }
    println!("  {who} pays in {cents} under fence {}: {balance}", guard.fence());
    Ok(())
}

/// One replica is paused, the other is not. Answers how many writes the account refused.
async fn round(path: &str, account: &[Mutex; 2], is_fenced: bool) -> Result<u32, Trouble> {
    let ledger = Ledger::open(path)?;
    let guard = account[0].clone().fixed(LEASE).lock().await?;
    let balance = ledger.balance()?;
    let is_held = guard.is_held();
    println!("  replica 1 reads {balance}, sees that it holds the lock ({is_held}), and is paused");

    // Comes in when that lease is over.
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
        return Err("a stale write was taken".into());
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
    // Without the fence the books are to be wrong, or there was nothing to see.
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
        .ok_or("the path of the temporary directory is no text")?;
    let shown = show(words, path).await;
    let _ = std::fs::remove_file(path);
    Ok(if shown? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
