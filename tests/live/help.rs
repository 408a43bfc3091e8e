//! Shared helpers of the live tests: waiting for events, inspecting the server, other processes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::testing::Clock;
use tenure::{Builder, Error, Guard, Key, Locks, Mutex};
use tokio::task::JoinHandle as JoinTask;

use crate::server::RedisServer;

/// Longer than any step takes. Only a failed test waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any test: what happens within [`PATIENCE`] did not wait for a timer or deadline of this length.
pub const HOUR: Duration = Duration::from_secs(3_600);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the builder of a node on this machine, which may be too busy for the default request timeout.
pub fn builder() -> Builder {
    Locks::builder().request_timeout(ms(10_000))
}

/// As `Locks::connect`, on this machine.
pub async fn connect(url: &str) -> Result<Locks, Error> {
    builder().connect(url).await
}

/// Returns locks on the master that these Sentinels know by this name.
pub async fn behind_sentinels<U: AsRef<str>>(
    name: &str,
    urls: impl IntoIterator<Item = U>,
) -> Result<Locks, Error> {
    let like = redis::Client::open("redis://127.0.0.1/").unwrap();
    builder().sentinel(name, urls, like).await
}

/// Returns locks on the cluster of these servers.
pub async fn on_cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Locks, Error> {
    let urls: Vec<U> = urls.into_iter().collect();
    let first = urls.first().map_or("redis://127.0.0.1/", AsRef::as_ref);
    let like = redis::Client::open(first).unwrap();
    builder().cluster(urls, like).await
}

/// Returns locks on the quorum of these masters.
pub async fn quorum<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Locks, Error> {
    let clients = urls
        .into_iter()
        .map(|url| redis::Client::open(url.as_ref()).unwrap());
    builder().quorum(clients.collect(), ms(10_000)).await
}

/// Awaits the future, and panics instead of hanging for ever.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the future finishes in time")
}

/// Polls until the condition holds.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let look = async {
        while !so() {
            tokio::time::sleep(ms(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, look).await.is_ok(),
        "timed out waiting for: {what}"
    );
}

/// Returns the reading of the machine's clock, which is the same in every process.
pub fn now() -> Duration {
    Duration::from_nanos(Clock::new().now().as_nanos())
}

pub fn addr(server: &RedisServer) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}

pub fn url(addr: SocketAddr) -> String {
    format!("redis://{addr}/")
}

/// Returns locks with that lease. A busy machine does not answer within less than a quarter of it.
pub async fn locks(url: &str, lease: Duration) -> Locks {
    builder().lease(lease).connect(url).await.unwrap()
}

/// Returns locks whose timers and deadlines take an hour or more.
pub async fn patient(url: &str) -> Locks {
    let builder = builder().lease(12 * HOUR).request_timeout(HOUR);
    builder.connect(url).await.unwrap()
}

pub async fn held(locks: &Locks, key: impl Into<Key>) -> Guard {
    soon(locks.mutex(key).lock()).await.unwrap()
}

/// Acquires the lock, and retries if a busy machine takes too long for a short lease.
pub async fn held_at_last(mutex: Mutex) -> Guard {
    let tries = async {
        loop {
            if let Ok(guard) = mutex.lock().await {
                return guard;
            }
        }
    };
    soon(tries).await
}

/// The beginning of the keys in which nodes tell of themselves. They end a minute after their node.
pub const PRESENCE: &[u8] = b"tenure1:i:";

/// A direct connection that inspects the server.
pub struct Eyes(pub redis::Connection);

impl Eyes {
    pub fn on(server: &RedisServer) -> Eyes {
        Eyes(server.client())
    }

    pub fn ask<T: redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut cmd = redis::Cmd::new();
        words.iter().for_each(|word| {
            cmd.arg(*word);
        });
        cmd.query(&mut self.0).unwrap()
    }

    pub fn text<T: redis::FromRedisValue>(&mut self, line: &str) -> T {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// Returns the owner of the key.
    pub fn owner(&mut self, key: &str) -> Option<String> {
        self.text(&format!("GET lock:{key}"))
    }

    /// Returns the rest of the record's life in milliseconds; negative if there is no record, or no expiry.
    pub fn pttl(&mut self, key: &str) -> i64 {
        self.text(&format!("PTTL lock:{key}"))
    }

    /// Returns the earliest time by this process's clock when the record ends, if no client changes it.
    pub fn ends(&mut self, key: &str) -> Duration {
        let asked = now();
        let left = self.pttl(key);
        asked + ms(u64::try_from(left).expect("the record exists and has an expiry"))
    }

    /// Returns the server's clock.
    fn time(&mut self) -> Duration {
        let (seconds, micros): (u64, u64) = self.text("TIME");
        Duration::new(
            seconds,
            1_000 * u32::try_from(micros).expect("less than a second"),
        )
    }

    /// Waits for what takes over leases of this length, whose nodes are dead. They have ended a lease and its margin from now by the
    /// server's clock. After that, the waiters look at most so often.
    pub async fn takes_over<T>(&mut self, lease: Duration, looks: u64, next: JoinTask<T>) -> T {
        let end = self.time() + lease + (lease / 10).max(ms(250));
        until("the leases have ended", || {
            next.is_finished() || self.time() > end
        })
        .await;
        let before = self.calls()["evalsha"];
        let next = soon(next).await.unwrap();
        let calls = self.calls()["evalsha"] - before;
        assert!(calls <= looks, "{calls} looks after the end");
        next
    }

    /// Returns the number of waiters in the key's queue.
    pub fn queue(&mut self, key: &str) -> usize {
        let queues: Vec<Vec<u8>> = self.text("KEYS tenure1:q:*");
        let record = format!("lock:{key}");
        let queue = queues
            .into_iter()
            .find(|queue| queue.ends_with(record.as_bytes()));
        let Some(queue) = queue else { return 0 };
        self.ask::<usize>(&[b"ZCARD", &queue]) / 2
    }

    /// Returns the number of entries in all queues: two for each waiter.
    pub fn entries(&mut self) -> usize {
        let queues: Vec<Vec<u8>> = self.text("KEYS tenure1:q:*");
        let entries = |queue: Vec<u8>| self.ask::<usize>(&[b"ZCARD", &queue]);
        queues.into_iter().map(entries).sum()
    }

    /// Returns all keys except for the clock, which stays, and what nodes tell of themselves.
    pub fn left_behind(&mut self) -> Vec<String> {
        let keys: Vec<Vec<u8>> = self.text("KEYS *");
        let keys = keys
            .into_iter()
            .filter(|key| key != b"tenure1:clock" && !key.starts_with(PRESENCE));
        keys.map(|key| key.escape_ascii().to_string()).collect()
    }

    /// Waits until only the clock is left.
    pub async fn until_empty(&mut self) {
        let mut left = Vec::new();
        let look = async {
            loop {
                left = self.left_behind();
                if left.is_empty() {
                    return;
                }
                tokio::time::sleep(ms(2)).await;
            }
        };
        let empty = tokio::time::timeout(PATIENCE, look).await.is_ok();
        assert!(empty, "left behind: {left:?}");
    }

    /// Returns the server's CPU time.
    pub fn cpu(&mut self) -> Duration {
        let info: String = self.text("INFO cpu");
        let seconds = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.expect("the server reports it").trim().parse().unwrap()
        };
        Duration::from_secs_f64(seconds("used_cpu_user:") + seconds("used_cpu_sys:"))
    }

    /// Returns the number of all commands so far, including those in scripts, without those that ask for it.
    pub fn executed(&mut self) -> u64 {
        let calls = self.calls().into_iter();
        calls
            .filter(|(name, _)| name != "info")
            .map(|(_, calls)| calls)
            .sum()
    }

    /// Returns the number of calls of each command, including calls inside scripts.
    pub fn calls(&mut self) -> BTreeMap<String, u64> {
        let stats: String = self.text("INFO commandstats");
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), calls))
        };
        stats.lines().filter_map(line).collect()
    }
}

/// A measured operation. Its argument is the number of the call.
pub trait Cycle {
    fn run(&self, n: u64) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}

impl<F: AsyncFn(u64)> Cycle for F {
    fn run(&self, n: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self(n))
    }
}

/// Returns how many commands the server executes for each of these cycles, those in scripts included: the fewest of some rounds,
/// because a node tells of itself now and then.
pub async fn commands<const N: usize>(eyes: &mut Eyes, cycles: [&dyn Cycle; N]) -> [u64; N] {
    let mut fewest = [u64::MAX; N];
    for round in 0..5 {
        for (cycle, fewest) in cycles.iter().zip(&mut fewest) {
            let before = eyes.executed();
            cycle.run(round).await;
            *fewest = (eyes.executed() - before).min(*fewest);
        }
    }
    fewest
}

/// This test binary as another process, in a role of `child.rs`. It is killed when dropped.
pub struct Other {
    child: Child,
    tell: Option<ChildStdin>,
    hear: Option<BufReader<ChildStdout>>,
}

impl Other {
    pub fn plays(role: &str, url: &str, key: &str, lease: Duration) -> Other {
        Other::runs(Other::command(role, url, key, lease))
    }

    /// Returns the command that starts the role. Callers may add to its environment.
    pub fn command(role: &str, url: &str, key: &str, lease: Duration) -> Command {
        let mut command = Other::door("child::plays_a_role");
        command
            .env("TENURE_ROLE", role)
            .env("TENURE_URL", url)
            .env("TENURE_KEY", key)
            .env("TENURE_LEASE_MS", lease.as_millis().to_string());
        command
    }

    /// Returns the command that runs one test as the entry point of another process.
    pub fn door(test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command
    }

    /// Starts another program that uses the protocol of `child.rs`.
    pub fn runs(mut command: Command) -> Other {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let tell = child.stdin.take();
        let hear = child.stdout.take().map(BufReader::new);
        Other { child, tell, hear }
    }

    /// From now on a thread passes the words of each line that begins with `@` to `told`. [`hears`](Self::hears) gets no lines.
    pub fn told_to(mut self, mut told: impl FnMut(&[&str]) + Send + 'static) -> Other {
        let hear = self.hear.take().expect("the output has one reader");
        std::thread::spawn(move || {
            for line in hear.lines().map_while(Result::ok) {
                // The test harness may write in front of the line.
                if let Some((_, said)) = line.split_once('@') {
                    told(&said.split(' ').collect::<Vec<_>>());
                }
            }
        });
        self
    }

    /// Returns the rest of the next line that begins with `@word`.
    pub fn hears(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let hear = self.hear.as_mut().expect("the output has one reader");
            let read = hear.read_line(&mut line).unwrap();
            assert!(read > 0, "the other process ended without a line `{word}`");
            // The test harness may write in front of the line.
            if let Some((_, said)) = line.split_once('@') {
                let (said, rest) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
                assert_eq!(said, word, "{line}");
                return rest.to_owned();
            }
        }
    }

    /// Sends the line that tells the process to continue.
    pub fn nod(&mut self) {
        self.tells("");
    }

    pub fn tells(&mut self, line: &str) {
        let mut tell = self.tell.as_ref().unwrap();
        tell.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Measures the stalls of this machine: it sleeps briefly in a loop, and notices longer sleeps. On a machine with much to do a
/// thread that sleeps stalls for less than a server that works: [`watch`](Self::watch) measures servers, too.
pub struct Canary {
    /// The first is that of the naps.
    stalls: Vec<Arc<Stall>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The stalls that one thread measures, in nanoseconds.
#[derive(Default)]
struct Stall {
    worst: AtomicU64,
    /// When the nap or the question began that goes on; 0: there is none.
    since: AtomicU64,
    /// The begin and end of each that took longer than [`Canary::NOTED`].
    noted: std::sync::Mutex<Vec<(u64, u64)>>,
}

impl Stall {
    fn begin(&self) {
        self.since.store(now().as_nanos() as u64, Ordering::SeqCst);
    }

    fn end(&self) {
        let (since, end) = (self.since.load(Ordering::SeqCst), now().as_nanos() as u64);
        self.worst.fetch_max(end - since, Ordering::SeqCst);
        if end - since > Canary::NOTED.as_nanos() as u64 {
            let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.push((since, end));
        }
        self.since.store(0, Ordering::SeqCst);
    }

    /// Ends a measurement that says nothing.
    fn forget(&self) {
        self.since.store(0, Ordering::SeqCst);
    }

    fn worst(&self) -> Duration {
        // In this order, a stall that ends meanwhile is seen.
        let going_on = match self.since.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => now().saturating_sub(Duration::from_nanos(since)),
        };
        going_on.max(Duration::from_nanos(self.worst.load(Ordering::SeqCst)))
    }
}

impl Canary {
    const NAP: Duration = ms(5);
    /// How long a stall takes that is noted with its time.
    const NOTED: Duration = ms(50);

    pub fn start() -> Self {
        let mut canary = Canary {
            stalls: Vec::new(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        canary.spawn(|stall, stop| {
            while !stop.load(Ordering::Relaxed) {
                stall.begin();
                std::thread::sleep(Canary::NAP);
                stall.end();
            }
        });
        canary
    }

    /// Counts the time that a server takes to answer as a stall, too. A server that is dead does not stall.
    pub fn watch(&mut self, server: &RedisServer) {
        let port = server.port();
        self.spawn(move |stall, stop| {
            while !stop.load(Ordering::Relaxed) {
                let _ = keep_pinging(port, stall, stop);
                stall.forget();
                std::thread::sleep(Canary::NAP);
            }
        });
    }

    fn spawn(&mut self, measure: impl FnOnce(&Stall, &AtomicBool) + Send + 'static) {
        let (stall, stop) = (Arc::<Stall>::default(), self.stop.clone());
        self.stalls.push(stall.clone());
        self.threads
            .push(std::thread::spawn(move || measure(&stall, &stop)));
    }

    /// Returns the largest stall so far, including a stall that has not ended.
    pub fn worst(&self) -> Duration {
        let nap = self.stalls[0].worst().saturating_sub(Canary::NAP);
        nap.max(self.slowest_answer())
    }

    /// Returns the begin and end of each stall that took longer than this, on the clock of [`now`].
    pub fn stalls(&self, longer_than: Duration) -> Vec<(u64, u64)> {
        let noted = |stall: &Arc<Stall>| stall.noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stalls = self.stalls.iter().flat_map(noted);
        let is_long = |(from, to): &(u64, u64)| Duration::from_nanos(to - from) > longer_than;
        stalls.filter(is_long).collect()
    }

    /// Returns the longest time that a watched server took to answer.
    pub fn slowest_answer(&self) -> Duration {
        let answers = self.stalls[1..].iter().map(|stall| stall.worst());
        answers.max().unwrap_or_default()
    }
}

/// Pings a server until the stop, or until the connection ends.
fn keep_pinging(port: u16, stall: &Stall, stop: &AtomicBool) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(ms(50)))?;
    while !stop.load(Ordering::Relaxed) {
        stall.begin();
        server.write_all(b"PING\r\n")?;
        let mut answer = [0; 512];
        loop {
            match server.read(&mut answer) {
                Ok(0) => return Ok(()),
                Ok(length) if answer[..length].ends_with(b"\n") => break,
                Ok(_) => {}
                Err(_) if stop.load(Ordering::Relaxed) => return Ok(()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        stall.end();
        std::thread::sleep(Canary::NAP);
    }
    Ok(())
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
