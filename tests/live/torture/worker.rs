//! One node: a process that locks, works and lets go, and writes down what it sees.
//!
//! | line | its time was read | says |
//! |---|---|---|
//! | `granted id key fence` | after the guard was there | a guard |
//! | `check id 1` | **before** `is_held` was called | it answered true |
//! | `check id 0` | after | it answered false |
//! | `ending id how` | before anything was done | it is about to be given up |
//! | `released id kept/told/lost…` | after | what `release` answered; `told`: held to the call, but the store cannot be told |
//! | `lost id cause` | after | what `lost()` answered once `is_held` was false |
//! | `about id n` / `wrote id n overrun` | before / after | the counter that is not atomic |
//! | `asked id` / `accepted id` / `refused id held` | before / after / after | the register that refuses old fences |
//! | `ready node`, `miss key why`, `error key kind`, `event name`, `broken text`, `end state` | after | the rest |

use std::fmt;
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure::error::StoreErrorKind;
use tenure::{Error, Guard, Lease, Locks, Mutex};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::torture::journal::{Journal, now};

/// Tells a process that it is a worker, and its [`Orders`].
pub const WORKER: &str = "TENURE_TORTURE_WORKER";
/// The name of the test below.
pub const TEST: &str = "torture::worker::torture_worker";

/// Not a test but the body of a worker process, which is this same binary started with [`WORKER`] set.
#[test]
fn torture_worker() {
    if let Ok(orders) = std::env::var(WORKER) {
        work(Orders::decode(&orders));
    }
}

/// What a worker is told.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The Redis of the locks, through a proxy.
    pub url: String,
    /// The Redis of the register, which has no faults.
    pub register: Option<String>,
    /// Where the counters are.
    pub counters: Option<PathBuf>,
    pub journal: PathBuf,
    pub seed: u64,
    pub keys: usize,
    pub lease: Duration,
    /// False: everybody believes to hold what it asks for.
    pub locked: bool,
}

impl Orders {
    pub fn encode(&self) -> String {
        let register = self.register.as_deref().unwrap_or_default();
        let counters = self.counters.clone().unwrap_or_default();
        format!(
            "{}|{register}|{}|{}|{}|{}|{}|{}",
            self.url,
            counters.display(),
            self.journal.display(),
            self.seed,
            self.keys,
            self.lease.as_millis(),
            self.locked
        )
    }

    fn decode(text: &str) -> Self {
        let [url, register, counters, journal, seed, keys, lease, locked] = text
            .split('|')
            .collect::<Vec<_>>()
            .try_into()
            .expect("eight orders");
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Orders {
            url: url.into(),
            register: some(register),
            counters: some(counters).map(PathBuf::from),
            journal: journal.into(),
            seed: seed.parse().expect("a seed"),
            keys: keys.parse().expect("a number of keys"),
            lease: Duration::from_millis(lease.parse().expect("a lease")),
            locked: locked.parse().expect("locked or not"),
        }
    }
}

/// The name of a lock.
pub fn name(key: usize) -> String {
    format!("torture:{key}")
}

/// The key that is also held for longer than a lease.
pub const LONG: usize = 0;

/// A file of eight bytes.
pub fn counter(dir: &std::path::Path, key: usize) -> File {
    let path = dir.join(format!("counter-{key}"));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path);
    file.expect("a counter")
}

pub fn count(counter: &File) -> u64 {
    let mut bytes = [0; 8];
    match counter.read_at(&mut bytes, 0) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

/// A reader makes itself known: from then on older writers are refused. Without that a stale write could slip in
/// between somebody's read and write. Fences are above 2^53, so they are compared as text of one length.
const READ: &str = "
    local last = redis.call('HGET', KEYS[1], 'fence') or ''
    if ARGV[1] < last then redis.call('HINCRBY', KEYS[1], 'refused', 1) return -1 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1])
    return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)";
const WRITE: &str = "
    local last = redis.call('HGET', KEYS[1], 'fence') or ''
    if ARGV[1] < last then redis.call('HINCRBY', KEYS[1], 'refused', 1) return -1 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
    return redis.call('HINCRBY', KEYS[1], 'accepted', 1)";

struct Worker {
    orders: Orders,
    journal: Arc<Journal>,
    mutexes: Vec<Mutex>,
    counters: Option<Vec<File>>,
    register: Option<(MultiplexedConnection, redis::Script, redis::Script)>,
    ids: AtomicU64,
    stop: Receiver<bool>,
}

fn work(orders: Orders) {
    let journal = Arc::new(Journal::create(&orders.journal));
    let _ = tracing::subscriber::set_global_default(Events(journal.clone()));
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&INTENDED) {
            usual(panic);
        }
    }));
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        // Its end is the word to finish, also when the parent dies.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.send_replace(true);
        pending_for_ever(stop);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime
        .expect("a runtime")
        .block_on(Worker::run(orders, journal, stopped));
}

/// A dropped sender would end the wait of the receivers.
fn pending_for_ever(stop: Sender<bool>) {
    std::mem::forget(stop);
}

impl Worker {
    async fn run(orders: Orders, journal: Arc<Journal>, stop: Receiver<bool>) {
        let locks = match orders.locked {
            true => {
                Locks::builder()
                    .lease(orders.lease)
                    .lazy()
                    .redis(&orders.url)
                    .await
            }
            false => Ok(Locks::memory()),
        };
        let locks = locks.expect("locks");
        let register = match &orders.register {
            Some(url) => {
                let config = redis::AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None);
                let client = redis::Client::open(url.as_str()).expect("a good URL");
                let connection = client.get_multiplexed_async_connection_with_config(&config).await;
                Some((
                    connection.expect("the register is there"),
                    redis::Script::new(READ),
                    redis::Script::new(WRITE),
                ))
            }
            None => None,
        };
        let counters = orders.counters.as_ref();
        let worker = Arc::new(Worker {
            mutexes: (0..orders.keys).map(|key| locks.mutex(name(key))).collect(),
            counters: counters.map(|dir| (0..orders.keys).map(|key| counter(dir, key)).collect()),
            register,
            journal,
            ids: AtomicU64::new(0),
            stop,
            orders,
        });
        worker
            .journal
            .write(now(), format_args!("ready {}", locks.node()));
        // One for each key that always wants it, so that a key that nobody gets is a key that is stuck.
        let keys = worker.orders.keys;
        let tasks = (0..keys + 4).map(|task| {
            let worker = worker.clone();
            let mut rng = fastrand::Rng::with_seed(worker.orders.seed ^ (task as u64 + 1));
            tokio::spawn(async move {
                while !*worker.stop.borrow() {
                    let (key, how) = match task {
                        task if task < keys => (task, How::Lock),
                        _ => (rng.usize(..keys), How::any(&mut rng)),
                    };
                    worker.cycle(key, how, &mut rng).await;
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut stop = worker.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
        let end = Instant::now() + Duration::from_secs(15);
        for task in tasks {
            let how = match timeout_at(end, task).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("a task ended: {error}"),
                Err(_) => "a task hangs".into(),
            };
            worker.journal.write(now(), format_args!("broken {how}"));
        }
        // Everything was let go; the rest must happen by itself.
        let idle = timeout(Duration::from_secs(10), locks.idle()).await.is_ok();
        let state = match (idle, locks.keys(), locks.waiting()) {
            (true, 0, 0) => "idle".to_owned(),
            (idle, keys, waiting) => format!("stuck idle={idle} keys={keys} waiting={waiting}"),
        };
        worker.journal.write(now(), format_args!("end {state}"));
    }

    async fn cycle(&self, key: usize, how: How, rng: &mut fastrand::Rng) {
        let mut stop = self.stop.clone();
        let got = tokio::select! {
            got = self.acquire(key, how, rng) => got,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match got {
            Ok(Some(held)) => self.hold(held, key, rng).await,
            Ok(None) => self.journal.write(now(), format_args!("miss {key} {how:?}")),
            Err(error) => {
                self.journal
                    .write(now(), format_args!("error {key} {}", kind(&error)));
                sleep(Duration::from_millis(rng.u64(5..25))).await;
            }
        }
        sleep(Duration::from_micros(rng.u64(0..3000))).await;
    }

    async fn acquire(&self, key: usize, how: How, rng: &mut fastrand::Rng) -> Result<Option<Held>, Error> {
        if !self.orders.locked {
            sleep(Duration::from_millis(rng.u64(0..4))).await;
            return Ok(Some(Held::Pretended(1 + self.ids.load(Ordering::Relaxed))));
        }
        let mutex = &self.mutexes[key];
        let lease = self.orders.lease;
        let real = |guard| Some(Held::Real(guard));
        match how {
            How::Lock => mutex.lock().await.map(real),
            How::Shorter => mutex.clone().lease(lease / 2).lock().await.map(real),
            How::Fixed => mutex.clone().fixed(lease * 2 / 3).lock().await.map(real),
            How::Try => Ok(mutex.try_lock().await?.and_then(real)),
            How::Timeout => match mutex.lock_timeout(Duration::from_millis(rng.u64(1..300))).await {
                Err(Error::Busy { .. }) => Ok(None),
                other => other.map(real),
            },
            // Dropped anywhere between its first poll and its grant.
            How::Cancelled => {
                let patience = Duration::from_micros(1 << rng.u32(4..16));
                match timeout(patience, mutex.lock()).await {
                    Err(_) => Ok(None),
                    Ok(other) => other.map(real),
                }
            }
        }
    }

    fn check(&self, id: u64, held: &Held) -> bool {
        check(&self.journal, id, || held.is_held())
    }

    async fn hold(&self, held: Held, key: usize, rng: &mut fastrand::Rng) {
        let granted = now();
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        self.journal
            .write(granted, format_args!("granted {id} {key} {}", held.fence()));
        self.check(id, &held);
        let span = Duration::from_micros(match rng.u32(..10) {
            // Renewals, and something to be lost.
            0..5 if key == LONG && self.orders.locked => {
                rng.u64(..self.orders.lease.as_micros() as u64 * 3 / 2)
            }
            0..5 => rng.u64(..2_000),
            5..9 => rng.u64(2_000..10_000),
            _ => rng.u64(10_000..30_000),
        });
        let watched = match &held {
            Held::Real(guard) if span > Duration::from_millis(30) => {
                Some(watch(self.journal.clone(), id, guard.lease()))
            }
            _ => None,
        };
        // Without pauses a holder is careful, and must be exact. With pauses some are not, and are refused.
        let careful = self.counters.is_some() || rng.bool();
        let labour = self.labour(id, key, &held, span);
        match &held {
            Held::Real(guard) if careful => drop(guard.run(labour).await),
            _ => labour.await,
        }
        drop(watched);
        let is_held = self.check(id, &held);
        if !is_held && let Held::Real(guard) = &held {
            let cause = timeout(Duration::from_secs(10), guard.lost()).await;
            let cause = cause.map_or("never".into(), |cause| format!("{cause:?}"));
            self.journal.write(now(), format_args!("lost {id} {cause}"));
        }
        let ending = |how| self.journal.write(now(), format_args!("ending {id} {how}"));
        match (held, rng.u32(..20)) {
            (Held::Real(guard), 0) => {
                let task = tokio::spawn(async move {
                    let _guard = guard;
                    pending::<()>().await;
                });
                ending("abort");
                task.abort();
            }
            (Held::Real(guard), 1) => {
                ending("panic");
                let task = tokio::spawn(async move {
                    let _guard = guard;
                    std::panic::panic_any(INTENDED);
                });
                let _ = task.await;
            }
            (Held::Real(guard), 2..6) => {
                ending("drop");
                drop(guard);
            }
            (Held::Real(guard), 6) => {
                ending("release-forgotten");
                let _ = timeout(Duration::from_micros(rng.u64(..300)), guard.release()).await;
            }
            (Held::Real(guard), _) => {
                ending("release");
                let outcome = match guard.release().await {
                    Ok(()) => "kept".into(),
                    Err(Error::Store { .. }) => "told".into(),
                    Err(error) => kind(&error),
                };
                self.journal.write(now(), format_args!("released {id} {outcome}"));
            }
            (Held::Pretended(_), _) => ending("release"),
        }
    }

    async fn labour(&self, id: u64, key: usize, held: &Held, span: Duration) {
        let began = now();
        if let Some(counters) = &self.counters {
            let value = count(&counters[key]) + 1;
            sleep(span / 2).await;
            let before = now();
            // Enough is left for the write, or it is not begun.
            let left = held.remaining();
            if left > self.orders.lease / 4 {
                self.journal.write(before, format_args!("about {id} {value}"));
                let written = counters[key].write_at(&value.to_le_bytes(), 0);
                let after = now();
                assert_eq!(written.expect("the counter"), 8);
                // This machine stood still for longer than was left: nobody can promise anything.
                let overrun = Duration::from_nanos(after - before) >= left;
                self.journal
                    .write(after, format_args!("wrote {id} {value} {}", u8::from(overrun)));
            }
        }
        if let Some((connection, read, write)) = &self.register {
            let fence = format!("{:020}", held.fence());
            let mut connection = connection.clone();
            let mut call = read.key(name(key));
            let seen: i64 = call
                .arg(&fence)
                .invoke_async(&mut connection)
                .await
                .expect("the register");
            if seen < 0 {
                return self.refused(id, held);
            }
            sleep(span / 2).await;
            self.journal.write(now(), format_args!("asked {id}"));
            let mut call = write.key(name(key));
            let accepted: i64 = call
                .arg(&fence)
                .arg(seen + 1)
                .invoke_async(&mut connection)
                .await
                .expect("the register");
            if accepted < 0 {
                return self.refused(id, held);
            }
            self.journal.write(now(), format_args!("accepted {id}"));
        }
        loop {
            let left = span.saturating_sub(Duration::from_nanos(now() - began));
            if left.is_zero() || !self.check(id, held) {
                return;
            }
            sleep(left.min(Duration::from_millis(5))).await;
        }
    }

    /// Somebody with a younger fence was there first, so this guard must know that it is over.
    fn refused(&self, id: u64, held: &Held) {
        let is_held = held.is_held();
        self.journal
            .write(now(), format_args!("refused {id} {}", u8::from(is_held)));
    }
}

fn check(journal: &Journal, id: u64, is_held: impl FnOnce() -> bool) -> bool {
    let before = now();
    let answer = is_held();
    let at = if answer { before } else { now() };
    journal.write(at, format_args!("check {id} {}", u8::from(answer)));
    answer
}

/// Checks from a thread of its own, faster than anything else in the process wakes up after a stop: it must be told
/// the truth before the driver had a chance to notice. Ends when what it answers is dropped.
fn watch(journal: Arc<Journal>, id: u64, lease: Lease) -> mpsc::Sender<()> {
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut written = 0;
        while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            // Not every time, but always after having stood still.
            if now() - written > 2_000_000 {
                written = now();
                if !check(&journal, id, || lease.is_held()) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    end
}

/// How a lock is asked for.
#[derive(Debug, Clone, Copy)]
enum How {
    Lock,
    Shorter,
    Fixed,
    Try,
    Timeout,
    Cancelled,
}

impl How {
    fn any(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(..12) {
            0..3 => How::Lock,
            3 => How::Shorter,
            4 => How::Fixed,
            5..8 => How::Try,
            8..10 => How::Timeout,
            _ => How::Cancelled,
        }
    }
}

enum Held {
    Real(Guard),
    /// What there is when the lock is switched off.
    Pretended(u64),
}

impl Held {
    fn fence(&self) -> u64 {
        match self {
            Held::Real(guard) => guard.fence().get(),
            Held::Pretended(fence) => *fence,
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Held::Real(guard) => guard.is_held(),
            Held::Pretended(_) => true,
        }
    }

    fn remaining(&self) -> Duration {
        match self {
            Held::Real(guard) => guard.remaining(),
            Held::Pretended(_) => Duration::from_secs(3600),
        }
    }
}

/// A panic that is part of the torture.
const INTENDED: &str = "a holder panics, as intended";

fn kind(error: &Error) -> String {
    match error {
        Error::Lost { cause, .. } => format!("lost {cause:?}"),
        Error::Store { source, .. } => match source.kind() {
            StoreErrorKind::Refused(refusal) => format!("refused {refusal:?}"),
            kind => format!("{kind:?}").to_lowercase(),
        },
        Error::QueueFull { .. } => "queue full".into(),
        Error::Busy { .. } => "busy".into(),
        other => format!("unexpected {other:?}"),
    }
}

/// Writes the events of the crate into the journal, except for the most frequent ones.
struct Events(Arc<Journal>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure" && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.event != "denied" {
            let Line { event, rest } = line;
            self.0.write(now(), format_args!("event {event}{rest}"));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line {
    event: String,
    rest: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => self.event = value.into(),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !matches!(field.name(), "message" | "node") {
            let text = format!(" {}={value:?}", field.name());
            self.rest.push_str(&text.replace('\n', " "));
        }
    }
}
