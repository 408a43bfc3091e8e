//! One record, many languages: the real redis-py and we exclude each other. What holds for its `Lock` holds for
//! redsync, node-redlock and rslock, whose record and scripts are the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use tenure::{Locks, error::LostCause};

use crate::help::{Eyes, Other, held, locks, ms, now, soon, until};
use crate::server::RedisServer;

const REDIS_PY: &str = "6.4.0";
const PYTHON_REDIS_LOCK: &str = "4.0.0";
const NEEDED: &str = "\
redis-py and python-redis-lock are needed, which pip fetches from PyPI into target/: apt-get install python3 python3-venv";

/// A Python that has it: kept under `target/`, so that only the first run asks PyPI. In an environment of its own, as
/// Debian's Python lets nobody install anything else (PEP 668).
static PYTHON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = tmp.join(format!("redis-py-{REDIS_PY}-{PYTHON_REDIS_LOCK}"));
    let python = kept.join("bin/python");
    if has_redis_py(&python).is_ok() {
        return Ok(python);
    }
    let fresh = tmp.join(format!("redis-py-{REDIS_PY}.{}", std::process::id()));
    let made = make(&fresh);
    if made.is_ok() && std::fs::rename(&fresh, &kept).is_err() {
        // Another run was faster, or what is there is of a Python that is gone.
        if has_redis_py(&python).is_err() {
            let _ = std::fs::remove_dir_all(&kept);
            let _ = std::fs::rename(&fresh, &kept);
        }
    }
    let _ = std::fs::remove_dir_all(&fresh);
    made?;
    has_redis_py(&python)?;
    Ok(python)
});

fn has_redis_py(python: &Path) -> Result<(), String> {
    let look = format!(
        "import redis, redis_lock as prl
assert (redis.__version__, prl.__version__) == ('{REDIS_PY}', '{PYTHON_REDIS_LOCK}'), (redis.__version__, prl.__version__)"
    );
    run(Command::new(python).args(["-c", &look]))
}

fn make(environment: &Path) -> Result<(), String> {
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.arg(format!("redis=={REDIS_PY}"));
    run(pip.arg(format!("python-redis-lock=={PYTHON_REDIS_LOCK}")))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{command:?} ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// A Python program with redis-py's locks.
struct Snake(Other);

impl Snake {
    fn on(server: &RedisServer) -> Snake {
        let python = PYTHON
            .as_ref()
            .unwrap_or_else(|error| panic!("{NEEDED}\n{error}"));
        let mut command = Command::new(python);
        command
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/live/interop/redis_py.py"
            ))
            .arg(server.url());
        let mut other = Other::runs(command);
        assert_eq!(other.hears("redis-py"), REDIS_PY);
        Snake(other)
    }

    /// Begins something; [`said`](Self::said) is how it went.
    fn tells(&mut self, what: &str) {
        self.0.tells(what);
    }

    fn said(&mut self) -> String {
        self.0.hears("said")
    }

    fn asks(&mut self, what: &str) -> String {
        self.tells(what);
        self.said()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_excludes_the_other() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut snake = Snake::on(&server);
    let ours = Locks::redis(&server.url()).await.unwrap();
    let mutex = ours.mutex("account:42");

    assert_eq!(snake.asks("acquire lock:account:42 60 0"), "yes");
    let token = eyes.owner("account:42");
    assert!(soon(mutex.try_lock()).await.unwrap().is_none());
    assert!(soon(mutex.lock_timeout(ms(50))).await.unwrap_err().is_busy());
    assert_eq!(eyes.owner("account:42"), token);
    assert_eq!(snake.asks("release lock:account:42"), "yes");
    soon(ours.idle()).await;

    let guard = soon(mutex.try_lock()).await.unwrap().expect("it is free");
    assert_eq!(snake.asks("acquire lock:account:42 60 0"), "no");
    assert_eq!(snake.asks("acquire lock:account:42 60 0.1"), "no");
    assert!(guard.is_held());
    // It looks again and again, and finds the record gone.
    snake.tells("acquire lock:account:42 60 20");
    guard.release().await.unwrap();
    assert_eq!(snake.said(), "yes");
    assert_eq!(snake.asks("release lock:account:42"), "yes");
    soon(ours.idle()).await;
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_not_atomic_is_exact_across_languages() {
    count_together("count", 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_not_atomic_is_exact_beside_python_redis_lock() {
    count_together("count-prl", 10).await;
}

/// Two nodes of ours and two Pythons add to a counter in two steps.
async fn count_together(how: &str, theirs: u64) {
    const EACH: u64 = 40;
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut snakes = [Snake::on(&server), Snake::on(&server)];
    for snake in &mut snakes {
        snake.tells(&format!("{how} lock:counter {theirs}"));
    }
    let client = redis::Client::open(server.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = locks(&server.url(), ms(4_000)).await;
        for _ in 0..2 {
            let mutex = locks.mutex("counter");
            let connection = client.get_multiplexed_async_connection_with_config(&patient);
            let mut connection = connection.await.unwrap();
            tasks.push(tokio::spawn(async move {
                for _ in 0..EACH {
                    let guard = mutex.lock().await.unwrap();
                    let get = redis::cmd("GET").arg("counted").to_owned();
                    let counted: Option<u64> = get.query_async(&mut connection).await.unwrap();
                    let mut set = redis::cmd("SET");
                    set.arg("counted").arg(counted.unwrap_or(0) + 1);
                    set.exec_async(&mut connection).await.unwrap();
                    guard.release().await.unwrap();
                    // Else nobody who only looks now and then would find it free.
                    tokio::time::sleep(ms(10)).await;
                }
            }));
        }
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    for snake in &mut snakes {
        assert_eq!(snake.said(), "yes");
    }
    assert_eq!(eyes.text::<u64>("GET counted"), 4 * EACH + 2 * theirs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_removes_or_extends_what_is_the_others() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut snake = Snake::on(&server);
    let ours = locks(&server.url(), ms(4_000)).await;

    // Theirs ran out, and ours came after it.
    assert_eq!(snake.asks("acquire lock:a 0.1 0"), "yes");
    let guard = held(&ours, "a").await;
    let owner = eyes.owner("a");
    assert_eq!(snake.asks("owned lock:a"), "no");
    assert_eq!(snake.asks("extend lock:a 60"), "LockNotOwnedError");
    assert_eq!(snake.asks("release lock:a"), "LockNotOwnedError");
    assert_eq!(eyes.owner("a"), owner);
    assert!(eyes.pttl("a") < 5_000);
    assert!(guard.is_held());
    guard.release().await.unwrap();

    // Ours was taken away, and theirs came after it: a renewal finds out, and so does a release.
    for released in [false, true] {
        // A release that is repeated after a timeout could not tell whether it was done before.
        let lease = ms(if released { 30_000 } else { 4_000 });
        let guard = soon(ours.mutex("b").lease(lease).lock()).await.unwrap();
        let _: u64 = eyes.text("DEL lock:b");
        assert_eq!(snake.asks("acquire lock:b 60 0"), "yes");
        let ends = "PEXPIRETIME lock:b";
        let (token, before) = (eyes.owner("b"), eyes.text::<i64>(ends));
        if released {
            assert!(guard.release().await.unwrap_err().is_lost());
        } else {
            assert_eq!(soon(guard.lost()).await, LostCause::Gone);
            drop(guard);
        }
        soon(ours.idle()).await;
        assert_eq!(eyes.owner("b"), token);
        assert_eq!(eyes.text::<i64>(ends), before, "somebody changed its end");
        assert_eq!(snake.asks("owned lock:b"), "yes");
        assert_eq!(snake.asks("release lock:b"), "yes");
    }
    eyes.until_empty().await;
}

/// A foreign release does not know of our queue. Our waiters look, and soon while the owner is foreign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_waiters_get_in_after_a_foreign_release() {
    const LEASE: Duration = ms(6_000);
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut snake = Snake::on(&server);
    let (one, other) = (
        locks(&server.url(), LEASE).await,
        locks(&server.url(), LEASE).await,
    );

    assert_eq!(snake.asks("acquire lock:a 60 0"), "yes");
    let first = tokio::spawn(one.mutex("a").lock());
    until("the first waits", || eyes.queue("a") == 1).await;
    let second = tokio::spawn(other.mutex("a").lock());
    until("the second waits", || eyes.queue("a") == 2).await;
    assert_eq!(snake.asks("release lock:a"), "yes");
    let since = now();
    let guard = soon(first).await.unwrap().unwrap();
    // Who looked every third of its lease would come later.
    assert!(now() - since < LEASE / 4, "{:?}", now() - since);
    assert!(!second.is_finished());
    // Among ourselves it is a push that does not wait for a timer.
    guard.release().await.unwrap();
    let guard = soon(second).await.unwrap().unwrap();
    guard.release().await.unwrap();

    // One that ends by itself is waited for to its end, not for a third of a long lease.
    let patient = locks(&server.url(), Duration::from_secs(120)).await;
    assert_eq!(snake.asks("acquire lock:b 0.3 0"), "yes");
    let since = now();
    let guard = held(&patient, "b").await;
    assert!(now() - since < Duration::from_secs(10), "{:?}", now() - since);
    guard.release().await.unwrap();
    for locks in [&one, &other, &patient] {
        soon(locks.idle()).await;
    }
    eyes.until_empty().await;
}

/// Services that hold a key for half of each second, and ours beside them with what is the default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_waiters_get_in_soon_after_a_foreign_release() {
    const KEYS: usize = 3;
    const ROUNDS: usize = 6;
    let server = RedisServer::start();
    let ours = Locks::redis(&server.url()).await.unwrap();
    let tasks: Vec<_> = (0..KEYS)
        .map(|key| {
            let (mutex, mut snake) = (ours.mutex(format!("{key}")), Snake::on(&server));
            tokio::spawn(async move {
                let mut waits = Vec::new();
                for _ in 0..ROUNDS {
                    assert_eq!(snake.asks(&format!("acquire lock:{key} 60 5")), "yes");
                    snake.tells(&format!("hold lock:{key} 0.5"));
                    let guard = mutex.lock_timeout(ms(5_000)).await.expect("it was free in time");
                    let granted = now();
                    let released = Duration::from_nanos(snake.said().parse().unwrap());
                    waits.push(granted.checked_sub(released).expect("not before the release"));
                    guard.release().await.unwrap();
                    tokio::time::sleep(ms(500)).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(soon(task).await.unwrap());
    }
    waits.sort();
    let (p50, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!("{} foreign releases: p50 {p50:?}, worst {worst:?}", waits.len());
    // 20 ms when nothing else runs. Who looked every third of its lease would come seconds later.
    assert!(p50 <= ms(150), "{waits:?}");
    soon(ours.idle()).await;
    Eyes::on(&server).until_empty().await;
}

/// redis-py's default: a lock that ends only when it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_lock_without_an_end_makes_no_busy_loop() {
    const LEASE: Duration = ms(3_000);
    const LOOK: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut snake = Snake::on(&server);
    let (one, other) = (
        locks(&server.url(), LEASE).await,
        locks(&server.url(), LEASE).await,
    );

    assert_eq!(snake.asks("acquire lock:a endless 0"), "yes");
    assert_eq!(eyes.pttl("a"), -1);
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let mutex = if n % 2 == 0 { &one } else { &other }.mutex("a");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("they wait", || {
        one.waiting() == 10 && other.waiting() == 10 && eyes.queue("a") == 2
    })
    .await;
    // The first two seconds, in which they look often.
    tokio::time::sleep(ms(2_050)).await;
    let (since, before) = (now(), eyes.calls());
    tokio::time::sleep(LOOK).await;
    let after = eyes.calls();
    // On a busy machine it was more than that.
    let looked = now() - since;
    let calls = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    // Each node looks once in 250 ms.
    let looks = 2 * looked.div_duration_f64(ms(250)).ceil() as u64;
    let scripts = calls("evalsha") + calls("eval");
    assert!(
        (5..=looks + 2).contains(&scripts),
        "{scripts} scripts, not {looks}"
    );
    let all: u64 = after.keys().map(|name| calls(name)).sum();
    assert!(all < 12 * looks, "{all} commands for {looks} looks");

    // Nobody else removes it, and when its owner does, everybody gets in.
    assert_eq!(snake.asks("owned lock:a"), "yes");
    assert_eq!(snake.asks("release lock:a"), "yes");
    for task in tasks {
        soon(task).await.unwrap();
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    eyes.until_empty().await;
}
