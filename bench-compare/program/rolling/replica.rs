//! A replica: tasks that use each primitive until SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::testing::fire_tick;
use tenure::{Error, Guard, Locks, Tick};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::books::{Books, WHOLE};

const LEASE: Duration = Duration::from_secs(2);
/// The lease of nodes that wait for latches. Without a push, they ask the store after a sixth of it.
const PATIENT: Duration = Duration::from_secs(30);
/// A waiter that is told of zero within this time was told by a push.
const PUSHED: Duration = Duration::from_secs(3);

const PERMITS: u32 = 3;
/// The initial count of a latch. Each replica counts down as often, so the latch reaches zero even if all others are killed.
const COUNT: u32 = 3;
/// The length of a round, in milliseconds. Each round has one latch and two ticks.
const ROUND_MS: u64 = 1_000;
const JOB: &str = "rolling";

/// The work that replicas record.
pub const WORK: [&str; 9] = [
    "mutex",
    "writer",
    "reader",
    "permit",
    "latch set",
    "latch counted down",
    "latch: told of zero",
    "latch: told by a push",
    "tick",
];

/// Returns the names of the counters: some are changed under a mutex, the others under a write lock.
pub fn counters() -> impl Iterator<Item = String> {
    let names = |kind, number| (0..number).map(move |nth| format!("{kind}:{nth}"));
    names("mutex", 3).chain(names("writer", 2))
}

#[derive(Clone)]
struct Replica {
    locks: Locks,
    patient: Locks,
    books: Books,
    name: String,
    ids: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

pub async fn run(url: &str, side: &str, name: &str) {
    let mut asked = signal(SignalKind::terminate()).expect("a signal handler");
    let connect = async |lease| {
        let locks = Locks::builder().lease(lease).connect(url).await;
        locks.expect("the server is there")
    };
    let replica = Replica {
        locks: connect(LEASE).await,
        patient: connect(PATIENT).await,
        books: Books::open(url, side, name).await,
        name: name.to_owned(),
        ids: Arc::default(),
        ends: Arc::default(),
    };
    let mut tasks = Vec::new();
    for nth in 0..4 {
        tasks.push(tokio::spawn(replica.clone().locks_a_mutex(nth % 3)));
    }
    for nth in 0..2 {
        tasks.push(tokio::spawn(replica.clone().writes(nth)));
        tasks.push(tokio::spawn(replica.clone().reads(nth)));
        tasks.push(tokio::spawn(replica.clone().reads(nth)));
    }
    for nth in 0..3 {
        tasks.push(tokio::spawn(replica.clone().takes_permits(1 + nth % 2)));
    }
    tasks.push(tokio::spawn(replica.clone().uses_latches()));
    tasks.push(tokio::spawn(replica.clone().runs_ticks()));
    println!("ready");
    asked.recv().await;
    replica.ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task without a panic");
    }
    replica.locks.shutdown().await;
    replica.patient.shutdown().await;
}

/// Returns the granted value, and panics on an error: a healthy server grants everything.
fn granted<T>(answer: Result<T, Error>) -> T {
    answer.unwrap_or_else(|error| panic!("refused, on a healthy server: {error}"))
}

/// Returns the milliseconds since the Unix epoch.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_millis() as u64
}

fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}

impl Replica {
    fn works(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }

    /// Records the holder, does the work, removes the record and releases the guard.
    async fn hold(
        &mut self,
        guard: Guard,
        what: &str,
        weight: u32,
        capacity: u32,
        work: impl AsyncFnOnce(&mut Books),
    ) {
        let id = format!("{}.{}", self.name, self.ids.fetch_add(1, Ordering::Relaxed));
        self.books.enter(what, &id, weight, capacity).await;
        work(&mut self.books).await;
        self.books.leave(what, &id).await;
        guard.release().await.expect("a lease that was held");
    }

    /// Adds one to the counter, as an exclusive holder.
    async fn add(&mut self, guard: Guard, counter: &str, kind: &str) {
        let fence = guard.fence().get();
        let work = async |books: &mut Books| {
            books.fence(counter, fence).await;
            books.add(counter).await;
            books.note(kind).await;
        };
        self.hold(guard, counter, WHOLE, WHOLE, work).await;
        sleep(Duration::from_millis(1)).await;
    }

    async fn locks_a_mutex(mut self, nth: usize) {
        let counter = format!("mutex:{nth}");
        while self.works() {
            let guard = granted(self.locks.mutex(&counter).lock().await);
            self.add(guard, &counter, "mutex").await;
        }
    }

    async fn writes(mut self, nth: usize) {
        let counter = format!("writer:{nth}");
        while self.works() {
            let guard = granted(self.locks.rw_lock(&counter).write().await);
            self.add(guard, &counter, "writer").await;
        }
    }

    async fn reads(mut self, nth: usize) {
        let counter = format!("writer:{nth}");
        while self.works() {
            let guard = granted(self.locks.rw_lock(&counter).read().await);
            let work = async |books: &mut Books| {
                sleep(Duration::from_millis(1)).await;
                books.note("reader").await;
            };
            self.hold(guard, &counter, 1, WHOLE - 1, work).await;
            sleep(Duration::from_millis(3)).await;
        }
    }

    async fn takes_permits(mut self, many: u32) {
        while self.works() {
            let guard = granted(self.locks.semaphore("permits", PERMITS).acquire_many(many).await);
            let work = async |books: &mut Books| {
                sleep(Duration::from_millis(1)).await;
                books.note("permit").await;
            };
            self.hold(guard, "permits", many, PERMITS, work).await;
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Uses one latch per round, each with its own name. Skips a latch if the replica that sets it was killed.
    async fn uses_latches(mut self) {
        while self.works() {
            let round = now_ms() / ROUND_MS;
            let latch = format!("latch:{round}");
            let [setter, set] = ["setter", "set"].map(|what| format!("rolling:{what}:{round}"));
            let chosen: u32 = self.books.run(&["SETNX", &setter, &self.name]).await;
            if chosen == 1 {
                if !granted(self.patient.latch(&latch).try_set_count(COUNT).await) {
                    self.books.fault(&format!("{latch} was set before")).await;
                }
                let _: () = self.books.run(&["SET", &set, "1"]).await;
                self.books.note("latch set").await;
            }
            while self.works() && now_ms() / ROUND_MS == round {
                if self.books.run::<Option<u32>>(&["GET", &set]).await.is_some() {
                    self.clone().goes_to_zero(round, &latch).await;
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
            let next = (round + 1) * ROUND_MS;
            sleep(Duration::from_millis(next.saturating_sub(now_ms()))).await;
        }
    }

    /// Waits for the latch, and counts it down meanwhile.
    async fn goes_to_zero(mut self, round: u64, latch: &str) {
        let waits = tokio::spawn(self.clone().waits_for_zero(round, latch.to_owned()));
        // Long enough that waiters of other replicas wait, too.
        let half = round * ROUND_MS + ROUND_MS / 2;
        sleep(Duration::from_millis(half.saturating_sub(now_ms()))).await;
        for _ in 0..COUNT {
            let _: u32 = self.books.run(&["INCR", &format!("rolling:began:{round}")]).await;
            let left = granted(self.patient.latch(latch).count_down().await);
            self.books.note("latch counted down").await;
            // At zero a call changes nothing, and returns zero, too.
            if left > 0 {
                let told = format!("rolling:left:{round}:{left}");
                if self.books.run::<u32>(&["INCR", &told]).await > 1 {
                    self.books.fault(&format!("{latch} had {left} left twice")).await;
                }
            }
        }
        waits.await.expect("a waiter without a panic");
    }

    async fn waits_for_zero(mut self, round: u64, latch: String) {
        let began = format!("rolling:began:{round}");
        let before: Option<u32> = self.books.run(&["GET", &began]).await;
        let start = tokio::time::Instant::now();
        let wait = self.patient.latch(&latch).wait_timeout(2 * PATIENT).await;
        if !granted(wait) {
            return self
                .books
                .fault(&format!("{latch}: a waiter was not told of zero"))
                .await;
        }
        let after: Option<u32> = self.books.run(&["GET", &began]).await;
        if after < Some(COUNT) {
            self.books
                .fault(&format!("{latch} was at zero after {after:?} calls"))
                .await;
        }
        self.books.note("latch: told of zero").await;
        if before.is_none() && start.elapsed() < PUSHED {
            self.books.note("latch: told by a push").await;
        }
    }

    /// Fires one tick after the other, as all replicas do.
    async fn runs_ticks(self) {
        let books = self.books.clone();
        let work = move |tick: Tick| {
            let mut books = books.clone();
            async move {
                books.tick(unix_ms(tick.nominal()), tick.attempt()).await;
                books.fence(JOB, tick.fence().get()).await;
                sleep(Duration::from_millis(20)).await;
                books.note("tick").await;
            }
        };
        let job = self.locks.cron(JOB, "0 0 0 1 1 *").lease(LEASE).run(work);
        let _job = job.expect("a valid job");
        while self.works() {
            let tick = (now_ms() / (ROUND_MS / 2) + 1) * (ROUND_MS / 2);
            fire_tick(&self.locks, JOB, UNIX_EPOCH + Duration::from_millis(tick)).await;
        }
    }
}
