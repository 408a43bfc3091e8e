//! Multi-locks on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use tenure::{Error, Locks, MultiGuard, MultiKey, MultiLock};

use crate::help::{Eyes, Other, commands, held, locks, ms, now, soon, until};
use crate::server::RedisServer;

const ACCOUNTS: usize = 4;
const BALANCE: i64 = 10_000;

/// Reads both accounts in one step, and records the fences of the reader. From then on earlier fences are refused:
/// otherwise a stale write could come between the read and the write of another process.
const READ: &str = "
for i = 1, 2 do
  local fence = redis.call('HGET', KEYS[i], 'fence')
  if fence and fence > ARGV[i] then return {} end
end
local balances = {}
for i = 1, 2 do
  redis.call('HSET', KEYS[i], 'fence', ARGV[i])
  balances[i] = tonumber(redis.call('HGET', KEYS[i], 'balance'))
end
return balances";

/// Writes both accounts in one step, unless one of them was read or written under a later fence.
const WRITE: &str = "
for i = 1, 2 do
  local fence = redis.call('HGET', KEYS[i], 'fence')
  if fence and fence > ARGV[i] then return 0 end
end
for i = 1, 2 do redis.call('HSET', KEYS[i], 'balance', ARGV[i + 2], 'fence', ARGV[i]) end
return redis.call('INCR', 'bank:transfers')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_keys_take_one_trip_each_way() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let [locks, other] = [
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    ];
    held(&other, "warm").await.release().await.unwrap();
    held(&locks, "warm").await.release().await.unwrap();
    let mut trips = || eyes.calls()["evalsha"];
    let multi = locks.multi(["a", "b", "c", "d", "e"]);
    let before = trips();
    let guard = soon(multi.lock()).await.unwrap();
    assert_eq!(trips() - before, 1, "to lock");
    soon(guard.release()).await.unwrap();
    assert_eq!(trips() - before, 2, "to release");
    let guard = soon(multi.try_lock()).await.unwrap().expect("all keys are free");
    drop(guard);
    // Behind its own release, which is in flight.
    let guard = soon(multi.lock()).await.unwrap();
    assert_eq!(trips() - before, 5, "to drop, and to lock again at once");
    soon(guard.release()).await.unwrap();
    let reader = soon(other.rw_lock(2_u64).read()).await.unwrap();
    let before = trips();
    let guard = soon(written_and_read(&locks, 0).lock()).await.unwrap();
    assert_eq!(
        trips() - before,
        1,
        "to lock, to read a key with another reader and a free key"
    );
    assert!(reader.is_held() && guard.is_held());
    soon(reader.release()).await.unwrap();
    let before = trips();
    soon(guard.release()).await.unwrap();
    assert_eq!(trips() - before, 1, "to release");
    eyes.until_empty().await;
}

/// Returns a multi-lock of five keys from `first` on. Every second key is read.
fn written_and_read(locks: &Locks, first: u64) -> MultiLock {
    locks.multi((0..5).map(|n| match n % 2 {
        0 => MultiKey::read(first + n),
        _ => MultiKey::write(first + n),
    }))
}

/// Per key, a multi-lock of five free keys takes at most twice the commands of a mutex, also if it reads some keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_multi_lock_costs_the_server_at_most_two_mutexes() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let [mutex, multi, mixed] = commands(
        &mut eyes,
        [
            &async |n| held(&locks, n).await.release().await.unwrap(),
            &async |n| {
                let multi = locks.multi((0..5).map(|key| 5 * n + key));
                let guard = soon(multi.lock()).await.unwrap();
                soon(guard.release()).await.unwrap();
            },
            &async |n| {
                let multi = written_and_read(&locks, 5 * n);
                let guard = soon(multi.lock()).await.unwrap();
                soon(guard.release()).await.unwrap();
            },
        ],
    )
    .await;
    println!("commands: a mutex {mutex}, five keys at once {multi}, three of them read {mixed}");
    for (keys, what) in [(multi, "written"), (mixed, "written or read")] {
        assert!(
            keys <= 5 * 2 * mutex,
            "{keys} for five keys {what}, a mutex {mutex}"
        );
    }
}

/// Free keys are not taken if another key is busy. A waiting multi-lock holds only the keys before the one it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_are_taken_or_none_and_a_waiter_takes_them_in_order() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    let (one, other) = (locks(&url, ms(60_000)).await, locks(&url, ms(60_000)).await);
    let b = held(&other, "b").await;
    let multi = one.multi(["c", "b", "a"]);
    assert!(soon(multi.try_lock()).await.unwrap().is_none());
    assert_eq!((eyes.owner("a"), eyes.owner("c")), (None, None));
    // A caller waits for c. When the multi-lock comes to c, its holder is gone, but the multi-lock does not overtake the caller.
    let waits = tokio::spawn(multi.lock());
    until("the multi-lock waits for b", || eyes.queue("b") == 1).await;
    assert!(eyes.owner("a").is_some() && eyes.owner("c").is_none());
    let fence = b.fence();
    b.release().await.unwrap();
    let guard = soon(waits).await.unwrap().unwrap();
    assert!(guard.fence("b").unwrap() > fence && guard.is_held());
    soon(guard.release()).await.unwrap();
    eyes.until_empty().await;
}

/// Overlapping sets of keys of two nodes: each caller gets all its keys, exclusively.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_sets_exclude_each_other_and_do_not_deadlock() {
    const KEYS: usize = 6;
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    let nodes = [locks(&url, ms(30_000)).await, locks(&url, ms(30_000)).await];
    let inside: Arc<[AtomicBool; KEYS]> = Arc::default();
    let mut tasks = Vec::new();
    for task in 0..6 {
        let (locks, inside) = (nodes[task % 2].clone(), inside.clone());
        tasks.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task as u64);
            for _ in 0..25 {
                let wanted = (0..rng.usize(1..=4)).map(|_| rng.usize(..KEYS));
                let multi = locks.multi(wanted.collect::<Vec<_>>());
                let guard = multi.lock().await.unwrap();
                let mine: Vec<usize> = multi.keys().map(|key| key.to_string().parse().unwrap()).collect();
                for &key in &mine {
                    assert!(!inside[key].swap(true, Ordering::SeqCst), "{key} is held twice");
                }
                tokio::task::yield_now().await;
                for &key in &mine {
                    inside[key].store(false, Ordering::SeqCst);
                }
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    eyes.until_empty().await;
}

fn account(n: usize) -> String {
    format!("bank:{n}")
}

fn open_accounts(eyes: &mut Eyes) {
    for n in 0..ACCOUNTS {
        let _: () = eyes.text(&format!("HSET {} balance {BALANCE}", account(n)));
    }
}

/// Returns the total at one moment: a concurrent transfer is counted wholly or not at all.
fn total(eyes: &mut Eyes) -> i64 {
    let mut all = redis::pipe();
    all.atomic();
    for n in 0..ACCOUNTS {
        all.cmd("HGET").arg(account(n)).arg("balance");
    }
    all.query::<Vec<i64>>(&mut eyes.0).unwrap().iter().sum()
}

/// Returns the fences of the first two accounts, as texts of one length.
fn fences(eyes: &mut Eyes) -> [Option<String>; 2] {
    [0, 1].map(|n| eyes.text(&format!("HGET {} fence", account(n))))
}

fn balances(eyes: &mut Eyes) -> [i64; 2] {
    [0, 1].map(|n| eyes.text(&format!("HGET {} balance", account(n))))
}

/// The server with the accounts.
struct Bank(MultiplexedConnection);

impl Bank {
    async fn connect(url: &str) -> Bank {
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url).unwrap();
        let connection = client.get_multiplexed_async_connection_with_config(&patient);
        Bank(connection.await.unwrap())
    }

    /// Reads two accounts, pauses, and writes both. Returns false if the bank refused the write because of a given fence.
    async fn transfer(
        &mut self,
        accounts: &[String; 2],
        amount: i64,
        guard: Option<&MultiGuard>,
        pause: impl Future<Output = ()>,
    ) -> bool {
        let fence = |account: &String| guard.and_then(|guard| guard.fence(account.as_str()));
        // Padded: the script compares texts, as Lua's numbers are exact to 53 bits.
        let fences = accounts
            .each_ref()
            .map(|account| format!("{:020}", fence(account).map_or(0, |fence| fence.get())));
        let script = |text: &str| {
            let mut eval = redis::cmd("EVAL");
            eval.arg(text).arg(2).arg(&accounts[..]).arg(&fences[..]);
            eval
        };
        let balances: Vec<i64> = script(READ).query_async(&mut self.0).await.unwrap();
        let [from, to] = balances[..] else { return false };
        pause.await;
        let mut write = script(WRITE);
        write.arg(from - amount).arg(to + amount);
        let written: u64 = write.query_async(&mut self.0).await.unwrap();
        written > 0
    }
}

/// Repeats transfers between two accounts.
pub async fn transfers(locks: Option<Locks>, url: &str, fenced: bool) {
    let mut bank = Bank::connect(url).await;
    let mut rng = fastrand::Rng::new();
    loop {
        let from = rng.usize(..ACCOUNTS);
        let accounts = [from, (from + rng.usize(1..ACCOUNTS)) % ACCOUNTS].map(account);
        let guard = match &locks {
            // A process that was stopped gets an error, and retries.
            Some(locks) => match locks.multi(accounts.iter().map(String::as_str)).lock().await {
                Ok(guard) => Some(guard),
                Err(_) => continue,
            },
            None => None,
        };
        let fences_of = guard.as_ref().filter(|_| fenced);
        let pause = tokio::time::sleep(ms(1));
        bank.transfer(&accounts, rng.i64(1..100), fences_of, pause).await;
        if let Some(guard) = guard {
            let _ = guard.release().await;
        }
    }
}

/// Transfers once between the first two accounts, with a pause between read and write. Returns whether the bank accepted
/// the write.
pub async fn one_transfer(locks: Option<Locks>, url: &str, pause: impl Future<Output = ()>) -> bool {
    let mut bank = Bank::connect(url).await;
    let accounts = [0, 1].map(account);
    let guard = match &locks {
        Some(locks) => {
            let multi = locks.multi(accounts.iter().map(String::as_str));
            Some(soon(multi.lock()).await.unwrap())
        }
        None => None,
    };
    bank.transfer(&accounts, 1_000, guard.as_ref(), pause).await
}

fn transfers_done(eyes: &mut Eyes) -> u64 {
    eyes.text::<Option<u64>>("GET bank:transfers").unwrap_or(0)
}

/// The locks protect the total without fences while no process is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_keep_the_total() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    open_accounts(&mut eyes);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (locks, url) = (locks(&url, ms(60_000)).await, url.clone());
        for _ in 0..2 {
            let (locks, url) = (locks.clone(), url.clone());
            tasks.spawn(async move { transfers(Some(locks), &url, false).await });
        }
    }
    until("they transfer", || transfers_done(&mut eyes) >= 400).await;
    tasks.shutdown().await;
    assert_eq!(total(&mut eyes), ACCOUNTS as i64 * BALANCE);
}

/// Processes transfer between accounts. Some are stopped for longer than a lease, or killed, at any moment. The total does
/// not change, and no key stays locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_keep_the_total_while_processes_are_stopped_or_killed() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    open_accounts(&mut eyes);
    let lease = ms(1_000);
    let start = || Other::plays("transfers", &server.url(), "with locks", lease);
    let mut others: Vec<Other> = (0..3).map(|_| start()).collect();
    for other in &mut others {
        other.hears("ready");
    }
    let until_more = async |eyes: &mut Eyes| {
        let enough = transfers_done(eyes) + 20;
        until("transfers continue", || transfers_done(eyes) >= enough).await;
    };
    for round in 0..2 {
        until_more(&mut eyes).await;
        others[round % 3].signal("-STOP");
        // After its lease and margin the others continue, and write under later fences.
        tokio::time::sleep(ms(1_400)).await;
        until_more(&mut eyes).await;
        others[round % 3].signal("-CONT");
        until_more(&mut eyes).await;
        let killed = (round + 1) % 3;
        others[killed].kill();
        others[killed] = start();
        others[killed].hears("ready");
    }
    until_more(&mut eyes).await;
    drop(others);
    let locks = locks(&url, lease).await;
    // The keys of the killed processes are free at the end.
    let killed = now();
    let all = soon(locks.multi((0..ACCOUNTS).map(account)).lock())
        .await
        .unwrap();
    let (done, after) = (transfers_done(&mut eyes), now() - killed);
    println!("{done} transfers, all accounts free {after:?} after the last was killed");
    assert_eq!(total(&mut eyes), ACCOUNTS as i64 * BALANCE);
    all.release().await.unwrap();
}

/// A process is stopped between its read and its write until others have transferred with both accounts. Its write is then
/// refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_a_process_that_was_stopped_too_long_is_refused() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    open_accounts(&mut eyes);
    let lease = ms(1_000);
    let mut slow = Other::plays("transfers once", &url, "with locks", lease);
    slow.hears("read");
    slow.signal("-STOP");
    let before = fences(&mut eyes);
    assert!(
        before.iter().all(Option::is_some),
        "the process recorded its fences"
    );
    let _others = [(); 2].map(|()| Other::plays("transfers", &url, "with locks", lease));
    until("others transfer with both accounts", || {
        let after = fences(&mut eyes);
        after.iter().zip(&before).all(|(after, before)| after > before)
    })
    .await;
    slow.signal("-CONT");
    slow.nod();
    assert_eq!(slow.hears("wrote"), "false");
    assert_eq!(total(&mut eyes), ACCOUNTS as i64 * BALANCE);
}

/// Checks the tests above: without locks, the total changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_without_the_locks_do_not_keep_the_total() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    let right = ACCOUNTS as i64 * BALANCE;
    let start = |role| Other::plays(role, &server.url(), "without locks", ms(1_000));
    open_accounts(&mut eyes);
    let others = [(); 3].map(|()| start("transfers"));
    until("the total changes", || total(&mut eyes) != right).await;
    drop(others);
    until("no request is in flight", || {
        eyes.text::<String>("CLIENT LIST").lines().count() == 1
    })
    .await;
    // One process that stalls between its read and its write is enough.
    open_accounts(&mut eyes);
    let mut slow = start("transfers once");
    slow.hears("read");
    let mut bank = Bank::connect(&url).await;
    let accounts = [0, 2].map(account);
    assert!(bank.transfer(&accounts, 300, None, async {}).await);
    assert_eq!(balances(&mut eyes)[0], BALANCE - 300);
    slow.nod();
    assert_eq!(slow.hears("wrote"), "true");
    assert_eq!(total(&mut eyes), right + 300);
}

/// A caller that gives up may have waited for a key that is held, and wait for the first answer about another one now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_held_are_busy_and_never_unavailable() {
    const CALLERS: u64 = 12;
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse::<u64>().unwrap());
    // On a busy machine the store may not answer within 20 ms, and then it is not known whether the keys are held.
    let (calls, shortest) = (
        number("TENURE_CALLS", 360) / CALLERS,
        number("TENURE_SHORTEST_WAIT", 100),
    );
    let server = RedisServer::start();
    let nodes = [
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    ];
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let node = nodes[caller as usize % 2].clone();
        callers.spawn(async move {
            let mut busy = 0;
            for call in 0..calls {
                let keys = (0..3).map(|n| format!("account:{}", (caller + call * 7 + n * 5) % 9));
                let wait = ms(shortest + (caller * 31 + call * 17) % (300 - shortest));
                match soon(node.multi(keys).lock_timeout(wait)).await {
                    Ok(guard) => {
                        tokio::time::sleep(ms(20)).await;
                        soon(guard.release()).await.unwrap();
                    }
                    Err(Error::Busy { .. }) => busy += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            busy
        });
    }
    let busy: Vec<u64> = callers.join_all().await;
    let busy = busy.iter().sum::<u64>();
    assert!(busy > 0, "no caller gave up");
    println!("{} calls, {busy} busy", CALLERS * calls);
}
