//! The cost of 100,000 held leases: the Redis commands and the CPU time of their renewals, and the effect on another caller.
//!
//! `cargo bench --bench renewal` runs all parts. `-- watchdog`, `-- 10`, `-- 30`, `-- once` or `-- evenly` runs a part. The
//! default lease is 10 s for a lock, and 30 s for a job. A lease keeps the phase in which it was acquired, so both ways are
//! measured. Leases that are acquired at once are renewed in bursts. Leases that are acquired evenly are renewed evenly. CPU
//! times and threads are read from Linux's `/proc`.
#![allow(clippy::too_many_lines, clippy::type_complexity)]
#![allow(clippy::disallowed_methods)]

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use support::server::RedisServer;
use support::{Raw, Report, Target, rate};
use tenure::{Guard, Locks};
use tokio::time::{sleep, sleep_until};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// The number of tasks that acquire, and later release, the leases.
const TASKS: usize = 100;
/// The pause between two locks of the other caller.
const PAUSE: Duration = Duration::from_millis(1);
/// The length of the time slots in which renewals are counted, to detect bursts.
const SLOT: Duration = Duration::from_millis(10);

fn leases() -> usize {
    if support::is_quick() { 1_000 } else { 100_000 }
}

fn main() {
    if !support::is_wanted() {
        return;
    }
    let server = RedisServer::as_service();
    let mut report = Report::new("renewal");
    support::runtime().block_on(async {
        let mut raw = Raw::connect(&server.url()).await;
        if support::asks_for("watchdog") {
            watchdog(&mut raw, &mut report).await;
        }
        tracing::subscriber::set_global_default(Ears).expect("the first global subscriber");
        let locks = Locks::connect(&server.url()).await.expect("the server is there");
        let seconds: &[u64] = if support::is_quick() { &[1] } else { &[10, 30] };
        for &lease in seconds {
            for evenly in [false, true] {
                let scene = Scene {
                    lease: Duration::from_secs(lease),
                    evenly,
                };
                if support::asks_for(&scene.name()) {
                    scene.run(&locks, &mut raw, &mut report).await;
                }
            }
        }
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

/// Measures the minimal cost of a renewal without batches: a script that compares and extends, called once for each key. It
/// runs at full speed, where a call costs both sides less than a single call does.
async fn watchdog(raw: &mut Raw, report: &mut Report) {
    const EXTEND: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
    let mut load = redis::cmd("SCRIPT");
    let sha: String = raw.run(load.arg("LOAD").arg(EXTEND)).await;
    for task in 0..TASKS {
        let mut set = redis::cmd("SET");
        raw.run::<()>(set.arg(format!("watched:{task}")).arg("token"))
            .await;
    }
    raw.forget_stats().await;
    let before = Cpu::read(raw, None).await;
    let cycle = |task: usize| {
        let mut extend = redis::cmd("EVALSHA");
        extend.arg(&sha).arg(1).arg(format!("watched:{task}"));
        extend.arg("token").arg(30_000);
        let raw = raw.clone();
        move || {
            let (mut raw, extend) = (raw.clone(), extend.clone());
            async move {
                let extended: i64 = raw.run(&extend).await;
                assert_eq!(extended, 1, "the key still has its token");
            }
        }
    };
    let rate = rate(TASKS, 3 * support::window(), cycle).await;
    let cpu = Cpu::read(raw, None).await - before;
    let (renewals, _) = raw.stats(|name| name == "pexpire").await;
    report.section("a watchdog per key: an EVALSHA for each renewal, as fast as 100 tasks can");
    report.line(
        "watchdog: renewals/s",
        rate,
        Target::None,
        &[
            ("server µs/renewal", micros(cpu.server) / renewals),
            ("process µs/renewal", micros(cpu.process) / renewals),
        ],
    );
}

/// Leases of one length, acquired in one way.
#[derive(Debug, Clone, Copy)]
struct Scene {
    lease: Duration,
    evenly: bool,
}

impl Scene {
    fn name(&self) -> String {
        let way = if self.evenly { "evenly" } else { "at once" };
        format!("{} s {way}", self.lease.as_secs())
    }

    /// Returns the time from one renewal to the next.
    fn period(&self) -> Duration {
        self.lease / 3
    }

    /// Returns the measured time: whole periods, so that all leases are renewed equally often.
    fn window(&self) -> Duration {
        let period = self.period();
        period
            * (Duration::from_secs(6)
                .div_duration_f64(period)
                .ceil()
                .clamp(1.0, 3.0) as u32)
    }

    async fn run(self, locks: &Locks, raw: &mut Raw, report: &mut Report) {
        let driver = driver_thread();
        let alone = trips(locks, self.window().min(Duration::from_secs(3))).await;

        let before = (resident(), server_memory(raw).await);
        let start = Instant::now();
        let guards = self.take(locks).await;
        let taking = start.elapsed();
        let after = (resident(), server_memory(raw).await);

        // No renewal is recorded while CPU time is measured.
        let window = self.window();
        raw.forget_stats().await;
        let (start, cpu) = (Instant::now(), Cpu::read(raw, Some(driver)).await);
        sleep(window).await;
        let cpu = Cpu::read(raw, Some(driver)).await - cpu;
        let elapsed = start.elapsed().as_secs_f64();
        let (scripts, server_time) = raw.stats(|name| name == "evalsha").await;
        let (inside, _) = raw.stats(is_of_scripts).await;
        let (renewals, _) = raw.stats(|name| name == "pexpire").await;

        // A second window records the renewals, while another caller locks and releases.
        let (start, told) = (Instant::now(), Ears::listen());
        let beside = trips(locks, window).await;
        let renewed = told.end();
        let shape = Shape::of(&renewed, start, self.lease);

        let start = Instant::now();
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        let untimely = give_back(guards).await;
        let releasing = start.elapsed();
        locks.idle().await;

        let name = self.name();
        let expected = leases() as f64 / self.period().as_secs_f64();
        report.section(&format!(
            "{} leases of {} s, taken {}",
            leases(),
            self.lease.as_secs(),
            if self.evenly {
                "evenly over a third of it"
            } else {
                "all at once"
            },
        ));
        report.line(
            &format!("{name}: EVALSHA/s"),
            scripts / elapsed,
            Target::None,
            &[
                ("commands in scripts/s", inside / elapsed),
                ("renewals/s", renewals / elapsed),
                ("leases per third/s", expected),
            ],
        );
        report.line(
            &format!("{name}: times fewer EVALSHA than a watchdog's"),
            expected / (scripts / elapsed),
            Target::AtLeast(1.0),
            &[
                ("keys/EVALSHA", renewals / scripts),
                ("a watchdog's EVALSHA/s", expected),
            ],
        );
        let percent = |seconds: f64| 100.0 * seconds / elapsed;
        report.line(
            &format!("{name}: CPU of this process, % of a core"),
            percent(cpu.process),
            Target::None,
            &[
                ("µs/renewal", micros(cpu.process) / renewals),
                ("the driver's thread %", percent(cpu.driver)),
                ("its µs/renewal", micros(cpu.driver) / renewals),
            ],
        );
        report.line(
            &format!("{name}: CPU of redis-server, % of a core"),
            percent(cpu.server),
            Target::None,
            &[
                ("µs/renewal", micros(cpu.server) / renewals),
                ("in scripts µs/renewal", server_time / renewals),
            ],
        );
        report.line(
            &format!("{name}: leases lost"),
            (lost + untimely) as f64,
            Target::AtMost(0.0),
            &[("renewals seen", renewed.len() as f64)],
        );
        // A renewal is due when two thirds of the lease are left.
        report.line(
            &format!("{name}: least left of a lease, in leases"),
            shape.least / self.lease.as_secs_f64(),
            Target::AtLeast(0.5),
            &[
                ("s", shape.least),
                ("due to answered, median ms", shape.late[0]),
                ("99% ms", shape.late[1]),
                ("all ms", shape.late[2]),
            ],
        );
        report.line(
            &format!("{name}: renewals in the busiest 10 ms"),
            shape.busiest,
            Target::None,
            &[
                ("of the mean", shape.busiest / shape.mean),
                ("10 ms without any, %", shape.idle),
            ],
        );
        report.line(
            &format!("{name}: lock + release beside it, µs"),
            beside[0],
            Target::None,
            &[
                ("99%", beside[1]),
                ("99.9%", beside[2]),
                ("worst", beside[3]),
                ("alone", alone[0]),
                ("alone 99%", alone[1]),
                ("alone 99.9%", alone[2]),
                ("alone worst", alone[3]),
            ],
        );
        report.line(
            &format!("{name}: taken in s"),
            taking.as_secs_f64(),
            Target::None,
            &[
                ("released in s", releasing.as_secs_f64()),
                // The allocator reuses memory of earlier scenes.
                ("resident B/lease", (after.0 - before.0) / leases() as f64),
                ("Redis B/lease", (after.1 - before.1) / leases() as f64),
            ],
        );
    }

    async fn take(self, locks: &Locks) -> Vec<Guard> {
        let start = tokio::time::Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let mut guards = Vec::with_capacity(leases() / TASKS);
                    for nth in (task..leases()).step_by(TASKS) {
                        if self.evenly {
                            sleep_until(start + self.period().mul_f64(nth as f64 / leases() as f64)).await;
                        }
                        let mutex = locks.mutex(format!("held:{nth}")).lease(self.lease);
                        guards.push(mutex.lock().await.expect("a free lock"));
                    }
                    guards
                })
            })
            .collect();
        let mut guards = Vec::with_capacity(leases());
        for task in tasks {
            guards.extend(task.await.expect("a task of the bench"));
        }
        assert!(
            guards.iter().all(|guard| guard.is_held()),
            "a lease was lost before all were acquired"
        );
        guards
    }
}

/// Releases all leases. Returns how many held leases were not released in time.
async fn give_back(mut guards: Vec<Guard>) -> usize {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let share = guards.split_off(guards.len() - guards.len() / (TASKS - task));
            tokio::spawn(async move {
                let mut untimely = 0;
                for guard in share {
                    // A lease that was lost earlier is counted already.
                    let held = guard.is_held();
                    untimely += usize::from(guard.release().await.is_err() && held);
                }
                untimely
            })
        })
        .collect();
    let mut untimely = 0;
    for task in tasks {
        untimely += task.await.expect("a task of the bench");
    }
    untimely
}

/// Returns the microseconds of a lock and its release by an occasional caller: median, 99 %, 99.9 %, worst.
async fn trips(locks: &Locks, window: Duration) -> [f64; 4] {
    let mutex = locks.mutex("beside");
    let (start, mut trips) = (Instant::now(), Vec::new());
    while start.elapsed() < window {
        sleep(PAUSE).await;
        let start = Instant::now();
        let guard = mutex.lock().await.expect("a free lock");
        std::hint::black_box(guard.fence());
        guard.release().await.expect("a release in time");
        trips.push(micros(start.elapsed().as_secs_f64()));
    }
    trips.sort_by(f64::total_cmp);
    [0.5, 0.99, 0.999, 1.0].map(|share| within(&trips, share))
}

/// Returns the quantile `share` of the sorted values.
fn within(sorted: &[f64], share: f64) -> f64 {
    let nth = (sorted.len() as f64 * share).ceil() as usize;
    sorted[nth.saturating_sub(1)]
}

fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Returns whether a command is called by a script, not by a client of this bench or by the connection of an inbox.
fn is_of_scripts(name: &str) -> bool {
    !["evalsha", "info", "config|resetstat", "ping"].contains(&name)
}

// CPU and memory.

/// The CPU seconds used so far.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    process: f64,
    driver: f64,
    server: f64,
}

impl Cpu {
    async fn read(raw: &mut Raw, driver: Option<u32>) -> Self {
        let process = clock_gettime(ClockId::ProcessCPUTime);
        Cpu {
            server: info(raw, "cpu", "used_cpu_user:").await + info(raw, "cpu", "used_cpu_sys:").await,
            process: process.tv_sec as f64 + process.tv_nsec as f64 / 1e9,
            driver: driver.map_or(0.0, |thread| {
                let path = format!("/proc/self/task/{thread}/schedstat");
                let text = fs::read_to_string(path).expect("the driver's thread runs");
                let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
                nanos
                    .map(|nanos: f64| nanos / 1e9)
                    .expect("nanoseconds on the CPU")
            }),
        }
    }
}

impl std::ops::Sub for Cpu {
    type Output = Cpu;

    fn sub(self, other: Cpu) -> Cpu {
        Cpu {
            process: self.process - other.process,
            driver: self.driver - other.driver,
            server: self.server - other.server,
        }
    }
}

/// Returns the thread of the only `Locks` of this process.
fn driver_thread() -> u32 {
    let threads = fs::read_dir("/proc/self/task").expect("a Linux");
    let mut drivers = threads.filter_map(|thread| {
        let path = thread.ok()?.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        (name.starts_with("tenure-") && !name.contains("event"))
            .then(|| path.file_name()?.to_str()?.parse().ok())?
    });
    let driver = drivers.next().expect("a driver thread");
    assert!(drivers.next().is_none(), "one driver thread");
    driver
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB"));
    1024.0
        * kib
            .and_then(|kib| kib.parse::<f64>().ok())
            .expect("a number of kB")
}

async fn server_memory(raw: &mut Raw) -> f64 {
    info(raw, "memory", "used_memory:").await
}

async fn info(raw: &mut Raw, section: &str, field: &str) -> f64 {
    let text: String = raw.run(redis::cmd("INFO").arg(section)).await;
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    value
        .and_then(|value| value.parse().ok())
        .expect("a number in INFO")
}

// The renewal events of the crate.

/// When a renewal was answered, and how much of the lease was left then.
type Renewed = (Instant, Duration);

static IS_HEARD: AtomicBool = AtomicBool::new(false);
static HEARD: StdMutex<Vec<Renewed>> = StdMutex::new(Vec::new());

fn heard() -> MutexGuard<'static, Vec<Renewed>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscriber to renewal events only.
struct Ears;

/// A recording of renewals, until `end`.
struct Listening;

impl Ears {
    fn listen() -> Listening {
        *heard() = Vec::with_capacity(4 * leases());
        IS_HEARD.store(true, Ordering::Relaxed);
        Listening
    }
}

impl Listening {
    fn end(self) -> Vec<Renewed> {
        IS_HEARD.store(false, Ordering::Relaxed);
        std::mem::take(&mut *heard())
    }
}

impl Subscriber for Ears {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.fields().field("slack_ms").is_some() {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        IS_HEARD.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut slack = Slack(None);
        event.record(&mut slack);
        if let Some(slack) = slack.0 {
            heard().push((Instant::now(), slack));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Slack(Option<Duration>);

impl Visit for Slack {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "slack_ms" {
            self.0 = Some(Duration::from_millis(value));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// The distribution of renewals in time.
#[derive(Debug)]
struct Shape {
    /// The least time that was left of a lease, in seconds.
    least: f64,
    /// Milliseconds from the due time to the answer: median, 99 %, worst.
    late: [f64; 3],
    /// The renewals in the busiest slot.
    busiest: f64,
    /// The mean of the renewals per slot.
    mean: f64,
    /// The percentage of slots without a renewal.
    idle: f64,
}

impl Shape {
    fn of(renewed: &[Renewed], start: Instant, lease: Duration) -> Self {
        let due = lease - lease / 3;
        let mut late: Vec<f64> = renewed
            .iter()
            .map(|(_, slack)| 1000.0 * due.saturating_sub(*slack).as_secs_f64())
            .collect();
        assert!(!late.is_empty(), "no renewal was recorded");
        late.sort_by(f64::total_cmp);
        let slot = |at: Instant| (at.duration_since(start).as_nanos() / SLOT.as_nanos()) as usize;
        let last = renewed.iter().map(|(at, _)| slot(*at)).max().unwrap_or_default();
        let mut slots = vec![0_usize; last + 1];
        renewed.iter().for_each(|(at, _)| slots[slot(*at)] += 1);
        let count = slots.len() as f64;
        Shape {
            least: renewed
                .iter()
                .map(|(_, slack)| slack.as_secs_f64())
                .fold(f64::MAX, f64::min),
            late: [0.5, 0.99, 1.0].map(|share| within(&late, share)),
            busiest: slots.iter().copied().max().unwrap_or_default() as f64,
            mean: renewed.len() as f64 / count,
            idle: 100.0 * slots.iter().filter(|&&slot| slot == 0).count() as f64 / count,
        }
    }
}
