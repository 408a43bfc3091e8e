//! One node: a process that acquires locks, works and releases them, and keeps a journal.
//!
//! | line | its time was read | content |
//! |---|---|---|
//! | `granted id key fence mode` | after the grant | a guard, `read`, `write` or `permits:<how many>` |
//! | `check id 1` | **before** `is_held` was called | it returned true |
//! | `check id 0` | after | it returned false |
//! | `ending id how` | before the end began | the guard is about to end |
//! | `released id kept/told/lost…` | after | the result of `release`; `told`: held to the call, but the store cannot be told |
//! | `lost id cause` | after | the result of `lost()` once `is_held` was false; `Unfetched`: the guard should not exist |
//! | `about id n` / `wrote id n overrun` | before / after | the counter that is not atomic |
//! | `saw id first last` | after | the first and last value that a reader read of one of the two; a check follows |
//! | `event adopted`, `event gone` | after | this node adopted a transfer; the transfer was gone |
//! | `event gone_early sent` | after | a transfer that was sent once, at this time, was gone before its lease had expired |
//! | `downgraded id to` | after | the writer `id` continues as the reader `to`, whose grant is an earlier line |
//! | `note id asked` / `note id done/not` | before / after | the list of fences, written only while the lease is current |
//! | `latch name set/down/wait asked` / `… answer` | before / after | a latch; no answer: outcome unknown; `not`: not executed |
//! | `leader fence value` | after | the leader that an observer saw |
//! | `asked id` / `accepted id` / `refused id held` | before / after / after | the register that refuses old fences |
//! | `event stalled ms` | after | a task of this process that wanted to sleep for 5 ms slept for longer than a twelfth of a lease |
//! | `event quiet` | after | the gauges equalled the journal while guards were held and callers waited |
//! | `ready node`, `miss key why`, `error key kind`, `event name`, `broken text`, `end state` | after | the rest |

use std::fmt;
use std::fs::File;
use std::future::{pending, poll_fn};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

use tenure::{Error, Guard, Lease, Locks, RwLock, Semaphore, TransferError};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::support::meter::Meter;
use crate::torture::events::{Events, kind};
use crate::torture::journal::{Journal, now};
use crate::torture::notes::Plain;
use crate::torture::orders::{LONG, Locked, Orders, PERMITS, SEMAPHORE, build, count, counter, name};
use crate::torture::quiet::Quiet;
use crate::torture::register::Register;

/// Tells a process that it is a worker, and its [`Orders`].
pub const WORKER: &str = "TENURE_TORTURE_WORKER";
/// The name of the test below.
pub const TEST: &str = "torture::worker::torture_worker";

/// Not a test: the body of a worker process, which is this binary started with [`WORKER`] set.
#[test]
fn torture_worker() {
    if let Ok(orders) = std::env::var(WORKER) {
        work(Orders::decode(&orders));
    }
}

pub struct Worker {
    pub orders: Orders,
    pub journal: Arc<Journal>,
    pub node: Locks,
    /// The connection of a writer without a lock.
    pub plain: Option<Plain>,
    locks: Vec<RwLock>,
    semaphore: Semaphore,
    counters: Option<Vec<File>>,
    register: Option<Register>,
    ids: AtomicU64,
    pub quiet: Arc<Quiet>,
    pub stop: Receiver<bool>,
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
        // The end of the input is the order to finish, also if the parent dies.
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

/// Notes the stalls of this process that may cost a lease.
async fn note_stalls(journal: Arc<Journal>, least: Duration) {
    loop {
        let begin = Instant::now();
        sleep(Duration::from_millis(5)).await;
        let took = begin.elapsed();
        if took > least {
            journal.write(now(), format_args!("event stalled {}", took.as_millis()));
        }
    }
}

/// A dropped sender would end the wait of the receivers.
fn pending_for_ever(stop: Sender<bool>) {
    std::mem::forget(stop);
}

impl Worker {
    async fn run(orders: Orders, journal: Arc<Journal>, stop: Receiver<bool>) {
        let gauges = Meter::of_gauges();
        let locks = build(&orders).await;
        let register = match &orders.register {
            Some(url) => Some(Register::connect(url).await),
            None => None,
        };
        let counters = orders.counters.as_ref();
        let worker = Arc::new(Worker {
            semaphore: locks.semaphore(SEMAPHORE, PERMITS),
            node: locks.clone(),
            plain: Plain::connect(&orders).await,
            locks: (0..orders.keys).map(|key| locks.rw_lock(name(key))).collect(),
            counters: counters.map(|dir| (0..orders.keys).map(|key| counter(dir, key)).collect()),
            register,
            journal,
            ids: AtomicU64::new(0),
            quiet: Arc::default(),
            stop,
            orders,
        });
        worker
            .journal
            .write(now(), format_args!("ready {}", locks.node_id()));
        // Each key always has a task that wants to write and one that wants to read, so a key without grants is stuck.
        let keys = worker.orders.keys;
        let tasks = (0..2 * keys + 4).map(|task| {
            let worker = worker.clone();
            let mut rng = fastrand::Rng::with_seed(worker.orders.seed ^ (task as u64 + 1));
            tokio::spawn(async move {
                while !*worker.stop.borrow() {
                    let (key, how, mode) = match task {
                        task if task < keys => (task, AcquireWay::Lock, Mode::Write),
                        task if task < 2 * keys => (task - keys, AcquireWay::Lock, Mode::Read),
                        _ => (rng.usize(..keys), AcquireWay::any(&mut rng), Mode::any(&mut rng)),
                    };
                    let mode = if worker.orders.is_quorum() {
                        Mode::Write
                    } else {
                        mode
                    };
                    worker.cycle(key, how, mode, &mut rng).await;
                }
            })
        });
        let mut tasks: Vec<_> = tasks.collect();
        // A quorum serves nothing else.
        let (permits, others) = match worker.orders.is_quorum() {
            true => (0..0, 4..5),
            false => (0..2, 0..6),
        };
        tasks.extend(permits.map(|task| {
            let worker = worker.clone();
            let mut rng = fastrand::Rng::with_seed(worker.orders.seed ^ (1_000 + task));
            tokio::spawn(async move { worker.wants_permits(&mut rng).await })
        }));
        tasks.extend(others.map(|task| {
            let worker = worker.clone();
            let mut rng = fastrand::Rng::with_seed(worker.orders.seed ^ (2_000 + task));
            tokio::spawn(async move {
                match task {
                    0 => worker.stands(&mut rng).await,
                    1 => worker.observes(&mut rng).await,
                    2 => worker.counts_down(&mut rng).await,
                    3 => worker.adopts(&mut rng).await,
                    4 => worker.builds_and_shuts_down(&mut rng).await,
                    _ => worker.waits_for_zero(&mut rng).await,
                }
            })
        }));
        let stalls = tokio::spawn(note_stalls(worker.journal.clone(), worker.orders.lease / 12));
        tasks.push(tokio::spawn({
            let (worker, gauges) = (worker.clone(), gauges.clone());
            let mut rng = fastrand::Rng::with_seed(worker.orders.seed ^ 3_000);
            async move { worker.keep_comparing_gauges(&gauges, &mut rng).await }
        }));
        let mut stop = worker.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
        stalls.abort();
        let end = Instant::now() + Duration::from_secs(15);
        for task in tasks {
            let how = match timeout_at(end, task).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("a task ended: {error}"),
                Err(_) => "a task hangs".into(),
            };
            worker.journal.write(now(), format_args!("broken {how}"));
        }
        // All guards were given up. The rest must happen by itself.
        let idle = timeout(Duration::from_secs(10), locks.idle()).await.is_ok();
        let state = match (idle, locks.key_count(), locks.waiter_count()) {
            (true, 0, 0) => "idle".to_owned(),
            (idle, keys, waiting) => format!("stuck idle={idle} keys={keys} waiting={waiting}"),
        };
        worker.journal.write(now(), format_args!("end {state}"));
        // A call of a handle that another task dropped may end a moment later.
        let counts = || {
            [
                gauges.gauges_above_zero("tenure_held"),
                gauges.gauges_above_zero("tenure_waiting"),
            ]
            .concat()
        };
        if !counts().is_empty() {
            worker
                .journal
                .write(now(), format_args!("broken gauges {:?}", counts()));
        }
    }

    async fn cycle(&self, key: usize, how: AcquireWay, mode: Mode, rng: &mut fastrand::Rng) {
        self.quiet.pass().await;
        let mut stop = self.stop.clone();
        let got = tokio::select! {
            got = self.acquire(key, how, mode, rng) => got,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match got {
            Ok(Some(held)) => self.hold(held, key, mode, rng).await,
            Ok(None) => self
                .journal
                .write(now(), format_args!("miss {key} {how:?} {mode:?}")),
            Err(error) => {
                self.failed(key, &error);
                sleep(Duration::from_millis(rng.u64(5..25))).await;
            }
        }
        sleep(Duration::from_micros(rng.u64(0..3000))).await;
    }

    pub fn semaphore(&self) -> Semaphore {
        self.semaphore.clone()
    }

    pub fn pretended(&self) -> Held {
        Held::Pretended(1 + self.ids.load(Ordering::Relaxed))
    }

    pub fn failed(&self, key: usize, error: &Error) {
        let line = format_args!("error {key} {}", kind(error));
        self.journal.write(now(), line);
    }

    async fn acquire(
        &self,
        key: usize,
        how: AcquireWay,
        mode: Mode,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<Held>, Error> {
        if !self.orders.locked.is_real(mode == Mode::Read) {
            sleep(Duration::from_millis(rng.u64(0..4))).await;
            return Ok(Some(self.pretended()));
        }
        let _waits = self.quiet.waits("lock");
        let lock = &self.locks[key];
        let lease = self.orders.lease;
        let reads = mode == Mode::Read;
        let enter = |lock: &RwLock| if reads { lock.read() } else { lock.write() };
        let real = |guard| Some(Held::Real(guard));
        match how {
            // A mutex of the key, whose lease some nodes keep.
            AcquireWay::Lock if !reads => self.node.mutex(name(key)).lock().await.map(real),
            AcquireWay::Lock => enter(lock).await.map(real),
            AcquireWay::Shorter => enter(&lock.clone().lease(lease / 2)).await.map(real),
            AcquireWay::Fixed => enter(&lock.clone().fixed(lease * 2 / 3)).await.map(real),
            AcquireWay::Try if reads => Ok(lock.try_read().await?.and_then(real)),
            AcquireWay::Try => Ok(lock.try_write().await?.and_then(real)),
            AcquireWay::Timeout => {
                let wait = Duration::from_millis(rng.u64(1..300));
                let answer = if reads {
                    lock.read_timeout(wait).await
                } else {
                    lock.write_timeout(wait).await
                };
                match answer {
                    Err(Error::Busy { .. }) => Ok(None),
                    other => other.map(real),
                }
            }
            // The lease is short, because several of these in a row block the key for all others.
            AcquireWay::Late => match late(enter(&lock.clone().lease(lease / 2)), lease, rng).await {
                Err(Error::Lost { .. }) => Ok(None),
                other => other.map(real),
            },
            // The future is dropped at any point between its first poll and its grant.
            AcquireWay::Cancelled => {
                let patience = Duration::from_micros(1 << rng.u32(4..16));
                match timeout(patience, enter(lock)).await {
                    Err(_) => Ok(None),
                    Ok(other) => other.map(real),
                }
            }
        }
    }

    pub fn check(&self, id: u64, held: &Held) -> bool {
        check(&self.journal, id, || held.is_held())
    }

    /// Holds a guard from its grant to its end. A downgrade makes two guards, one after the other.
    async fn hold(&self, held: Held, key: usize, mode: Mode, rng: &mut fastrand::Rng) {
        let (id, wrote) = self.work_under(&held, key, mode == Mode::Read, None, rng).await;
        let held = match (held, mode) {
            (Held::Real(guard), Mode::Downgrade) => {
                let Some((reader, to)) = self.downgrade(id, guard, key, rng).await else {
                    return;
                };
                self.work_as(to, &reader, key, true, wrote, rng).await;
                return self.end(to, reader, rng).await;
            }
            (Held::Real(guard), _) if !self.orders.is_quorum() && rng.u32(..6) == 0 => {
                return self.send(id, guard, key, mode == Mode::Read, rng).await;
            }
            (held, _) => held,
        };
        self.end(id, held, rng).await;
    }

    /// Downgrades a writer to a reader, if there is enough time.
    async fn downgrade(
        &self,
        id: u64,
        guard: Guard,
        key: usize,
        rng: &mut fastrand::Rng,
    ) -> Option<(Held, u64)> {
        self.ending(id, "downgrade");
        let patience = match rng.u32(..8) {
            0 => Duration::from_micros(1 << rng.u32(4..13)),
            _ => Duration::from_secs(3600),
        };
        match timeout(patience, guard.downgrade()).await {
            Ok(Ok(reader)) => {
                let reader = Held::Real(reader);
                let to = self.granted(key, reader.fence(), format_args!("read"));
                self.journal.write(now(), format_args!("downgraded {id} {to}"));
                Some((reader, to))
            }
            Ok(Err(TransferError::Failed(error))) => {
                self.failed(key, &error);
                None
            }
            // The guard is still a writer, and is released.
            Ok(Err(TransferError::Refused(..))) | Err(_) => None,
            Ok(Err(error)) => panic!("an unexpected error: {error}"),
        }
    }

    pub fn granted(&self, key: usize, fence: u64, mode: fmt::Arguments<'_>) -> u64 {
        let granted = now();
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        self.journal
            .write(granted, format_args!("granted {id} {key} {fence} {mode}"));
        if key < self.orders.keys {
            self.quiet.granted(id, "lock");
        } else if key == self.orders.permits_key() {
            self.quiet.granted(id, "semaphore");
        }
        id
    }

    pub fn ending(&self, id: u64, how: &str) {
        self.journal.write(now(), format_args!("ending {id} {how}"));
        self.quiet.ending(id);
    }

    pub async fn work_under(
        &self,
        held: &Held,
        key: usize,
        reads: bool,
        saw: Option<i64>,
        rng: &mut fastrand::Rng,
    ) -> (u64, Option<i64>) {
        let mode = if reads { "read" } else { "write" };
        let id = self.granted(key, held.fence(), format_args!("{mode}"));
        (id, self.work_as(id, held, key, reads, saw, rng).await)
    }

    /// Does the work of a guard. Returns the written value if it is known.
    async fn work_as(
        &self,
        id: u64,
        held: &Held,
        key: usize,
        reads: bool,
        saw: Option<i64>,
        rng: &mut fastrand::Rng,
    ) -> Option<i64> {
        self.check(id, held);
        let span = Duration::from_micros(match rng.u32(..10) {
            // Long enough for renewals and losses. A downgrade that waited for a failover may begin to work after the end.
            0..5 if key == LONG && self.orders.locked == Locked::All && !*self.stop.borrow() => {
                rng.u64(..self.orders.lease.as_micros() as u64 * 3 / 2)
            }
            0..5 => rng.u64(..2_000),
            5..9 => rng.u64(2_000..10_000),
            _ => rng.u64(10_000..30_000),
        });
        let watched = match held {
            Held::Real(guard) if span > Duration::from_millis(30) => {
                Some(watch(self.journal.clone(), id, guard.lease()))
            }
            _ => None,
        };
        // Without pauses a holder checks its lease, and must be exact. With pauses some do not check, and are refused.
        let careful = self.counters.is_some() || rng.bool();
        let labour = async {
            if reads {
                self.look(id, key, held, span, saw).await;
                None
            } else {
                self.labour(id, key, held, span).await
            }
        };
        let labour = async {
            match held {
                Held::Real(guard) if careful => guard.run(labour).await.ok().flatten(),
                _ => labour.await,
            }
        };
        let noting = async {
            if watched.is_some() {
                self.notes(id, held, key, span).await;
            }
        };
        let (wrote, ()) = tokio::join!(labour, noting);
        drop(watched);
        if rng.u32(..3) == 0 {
            self.note(id, held, key).await;
        }
        self.tell_loss(id, held).await;
        wrote
    }

    /// Writes the cause of a guard's loss, if it is not held any more.
    pub async fn tell_loss(&self, id: u64, held: &Held) {
        let is_held = self.check(id, held);
        if !is_held && let Held::Real(guard) = held {
            let cause = timeout(Duration::from_secs(10), guard.lost()).await;
            let cause = cause.map_or("never".into(), |cause| format!("{cause:?}"));
            self.journal.write(now(), format_args!("lost {id} {cause}"));
        }
    }

    /// Ends a guard in one of the possible ways.
    pub async fn end(&self, id: u64, held: Held, rng: &mut fastrand::Rng) {
        let ending = |how| self.ending(id, how);
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

    /// Reads twice a value that writers change. No writer changes it during the read.
    async fn look(&self, id: u64, key: usize, held: &Held, span: Duration, saw: Option<i64>) {
        let began = now();
        let fence = format!("{:020}", held.fence());
        let look = async || match (&self.counters, &self.register) {
            (_, Some(register)) => Some(register.call(&register.look, key, &fence, None).await),
            (Some(counters), None) => Some(count(&counters[key]) as i64),
            (None, None) => None,
        };
        let first = look().await;
        let first = saw.or(first);
        self.stay(began, span, || self.check(id, held)).await;
        if let (Some(first), Some(last)) = (first, look().await) {
            self.journal.write(now(), format_args!("saw {id} {first} {last}"));
        }
    }

    /// Waits for `span`, or until the lease is lost.
    pub async fn stay(&self, began: u64, span: Duration, is_held: impl Fn() -> bool) {
        loop {
            self.quiet.pass().await;
            let left = span.saturating_sub(Duration::from_nanos(now() - began));
            if !is_held() || left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_millis(5))).await;
        }
    }

    /// Writes, and returns the value that readers see.
    async fn labour(&self, id: u64, key: usize, held: &Held, span: Duration) -> Option<i64> {
        let began = now();
        let mut wrote = None;
        if let Some(counters) = &self.counters {
            let value = count(&counters[key]) + 1;
            sleep(span / 2).await;
            let before = now();
            // The write begins only if enough time is left.
            let left = held.remaining();
            if left > self.orders.lease / 4 {
                self.journal.write(before, format_args!("about {id} {value}"));
                let written = counters[key].write_at(&value.to_le_bytes(), 0);
                let after = now();
                assert_eq!(written.expect("the counter"), 8);
                // This machine stalled for longer than the rest of the lease: no promise holds.
                let overrun = Duration::from_nanos(after - before) >= left;
                self.journal
                    .write(after, format_args!("wrote {id} {value} {}", u8::from(overrun)));
                wrote = Some(value as i64);
            }
        }
        if let Some(register) = &self.register {
            let fence = format!("{:020}", held.fence());
            let seen = register.call(&register.read, key, &fence, None).await;
            if seen < 0 {
                self.refused(id, held);
                return None;
            }
            sleep(span / 2).await;
            self.journal.write(now(), format_args!("asked {id}"));
            let accepted = register.call(&register.write, key, &fence, Some(seen + 1)).await;
            if accepted < 0 {
                self.refused(id, held);
                return None;
            }
            self.journal.write(now(), format_args!("accepted {id}"));
            wrote = Some(seen + 1);
        }
        self.stay(began, span, || self.check(id, held)).await;
        wrote
    }

    /// A holder with a larger fence was first, so this guard must know that it is lost.
    fn refused(&self, id: u64, held: &Held) {
        let is_held = held.is_held();
        self.journal
            .write(now(), format_args!("refused {id} {}", u8::from(is_held)));
    }
}

/// Polls once, and then not for up to a lease, as a caller that is busy with other work.
pub async fn late<T>(future: impl Future<Output = T>, lease: Duration, rng: &mut fastrand::Rng) -> T {
    let mut future = pin!(future);
    let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    if let Poll::Ready(answer) = first {
        return answer;
    }
    sleep(lease.mul_f64(rng.f64())).await;
    future.await
}

pub fn check(journal: &Journal, id: u64, is_held: impl FnOnce() -> bool) -> bool {
    let before = now();
    let answer = is_held();
    let at = if answer { before } else { now() };
    journal.write(at, format_args!("check {id} {}", u8::from(answer)));
    answer
}

/// Checks from a thread of its own, which wakes up first after a stop: the answer must be true before the driver notices
/// the stop. The thread ends when the returned sender is dropped.
fn watch(journal: Arc<Journal>, id: u64, lease: Lease) -> mpsc::Sender<()> {
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut written = 0;
        while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            // Not every time, but always after a stall.
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

/// The use of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Write,
    Read,
    /// First writes, then reads.
    Downgrade,
}

impl Mode {
    fn any(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(..10) {
            0..5 => Mode::Read,
            5..7 => Mode::Downgrade,
            _ => Mode::Write,
        }
    }
}

/// The way to acquire a lock.
#[derive(Debug, Clone, Copy)]
pub enum AcquireWay {
    Lock,
    Shorter,
    Fixed,
    Try,
    Timeout,
    Late,
    Cancelled,
}

impl AcquireWay {
    pub fn any(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(..13) {
            12 => AcquireWay::Late,
            0..3 => AcquireWay::Lock,
            3 => AcquireWay::Shorter,
            4 => AcquireWay::Fixed,
            5..8 => AcquireWay::Try,
            8..10 => AcquireWay::Timeout,
            _ => AcquireWay::Cancelled,
        }
    }
}

pub enum Held {
    Real(Guard),
    /// A guard without a lock.
    Pretended(u64),
}

impl Held {
    pub fn fence(&self) -> u64 {
        match self {
            Held::Real(guard) => guard.fence().get(),
            Held::Pretended(fence) => *fence,
        }
    }

    pub fn is_held(&self) -> bool {
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
