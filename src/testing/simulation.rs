//! A simulation of the replicas of a service, of their Redis and of all clocks, in one test that takes no real time.
//!
//! The jobs, the scheduler's data and channels, the leases and the protocol are the real ones. Only these are simulated: the store
//! behind its connections, the clocks, and the loop in which the scheduler looks at its clock
//! ([`EngineModel`](crate::testing::EngineModel)).

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, FixedOffset, Offset, TimeZone, Utc};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant as Timer, sleep_until};
use tokio_cron_scheduler::JobScheduler;
use uuid::Uuid;

use crate::driver::clock::Clock;
use crate::driver::handle::Handle;
use crate::driver::process::{Process, ProcessState, World};
use crate::driver::waiter::lock;
use crate::key::Key;
use crate::locks::{Builder, Locks};
use crate::protocol::message::TickTime;
use crate::scheduler::StillRunning;
use crate::testing::engine::{After, EngineModel, LOOKS_EVERY};
use crate::testing::store::SimulatedStore;

/// A world with a clock that the test owns: replicas of a service, and the store that they share. A simulated week takes
/// milliseconds of real time, or a second if jobs run for long, as their leases are renewed.
///
/// tokio's clock must be paused, which needs its feature `test-util`. A paused clock stands still while a task can run, and then
/// jumps to the next timer. All clocks of the simulation follow it, and so does `tokio::time::sleep` in jobs. The clock does not
/// wait for events from outside, such as a socket. `SystemTime::now` and `Utc::now` return the machine's time, so jobs must use
/// [`Tick::nominal`](crate::Tick::nominal).
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tenure::scheduler::JobError;
/// use tenure::testing::Simulation;
/// use tenure::{Locks, Tick};
/// use tokio_cron_scheduler::JobScheduler;
///
/// type Ledger = Arc<Mutex<Vec<u64>>>;
///
/// // As in your service: what it does when it starts.
/// async fn schedule(locks: Locks, scheduler: JobScheduler, ledger: Ledger) -> Result<(), JobError> {
///     let reconcile = move |tick: Tick| {
///         let ledger = ledger.clone();
///         async move { ledger.lock().unwrap().push(tick.nominal_unix()) }
///     };
///     let job = locks.cron("reconcile", "0 0 0 * * *").timezone("Europe/Berlin").run(reconcile)?;
///     locks.add_job(&scheduler, job).await?;
///     Ok(())
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() { three_replicas_run_each_midnight_once().await }
/// async fn three_replicas_run_each_midnight_once() {
///     let ledger = Ledger::default();
///     let sim = Simulation::at("2026-10-22T12:00:00Z"); // the clocks change on the 25th
///     let mut replicas = Vec::new();
///     for (name, ahead_ms) in [("a", 0), ("b", 40_000), ("c", -3_000)] {
///         let replica = sim.replica(name).clock_ahead_ms(ahead_ms);
///         replicas.push(replica.start(|locks, scheduler| schedule(locks, scheduler, ledger.clone())).await);
///     }
///     sim.run_until("2026-10-26T23:00:00Z").await;
///     replicas.remove(0).crash(); // at midnight
///     sim.run_until("2026-10-29T12:00:00Z").await;
///     assert_eq!(ledger.lock().unwrap().len(), 7);
/// }
/// ```
pub struct Simulation {
    world: Arc<World>,
    store: SimulatedStore,
    processes: AtomicU64,
}

impl Simulation {
    /// Begins a simulation at this RFC 3339 time: `2026-10-22T12:00:00Z`.
    ///
    /// # Panics
    /// If the text is no such time, or tokio's clock is not paused.
    pub fn at(time: &str) -> Simulation {
        assert!(
            is_paused(),
            "a simulation goes by tokio's clock, which is not paused here: write \
             `#[tokio::test(start_paused = true)]`, with tokio's feature `test-util`",
        );
        let world = World::new(parse(time));
        Simulation {
            store: SimulatedStore::new(world.clone()),
            world,
            processes: AtomicU64::new(0),
        }
    }

    /// Returns the true time. The clock of a replica may differ.
    pub fn now(&self) -> SystemTime {
        self.world.date()
    }

    /// Returns the simulated store.
    pub fn store(&self) -> &SimulatedStore {
        &self.store
    }

    /// Lets this much time pass.
    pub async fn run_for(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Lets time pass until this RFC 3339 time.
    ///
    /// # Panics
    /// If the text is no such time, or the time is past.
    pub async fn run_until(&self, time: &str) {
        let left = parse(time).duration_since(self.now());
        self.run_for(left.unwrap_or_else(|_| panic!("{time} is past in this simulation")))
            .await;
    }

    /// Returns the builder of a replica.
    pub fn replica(&self, name: impl Into<String>) -> ReplicaBuilder<'_> {
        ReplicaBuilder {
            simulation: self,
            name: name.into(),
            ahead_ms: 0,
            phase: None,
            options: Locks::builder(),
        }
    }
}

impl Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("now", &DateTime::<Utc>::from(self.now()))
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

fn parse(time: &str) -> SystemTime {
    match DateTime::parse_from_rfc3339(time) {
        Ok(time) => time.into(),
        Err(error) => panic!("`{time}` is no RFC 3339 time, as 2026-10-22T12:00:00Z: {error}"),
    }
}

/// Returns whether tokio's clock is paused. tokio has no function for this: a running clock advances with the machine's clock.
fn is_paused() -> bool {
    let (machine, began) = (Clock::new(), Timer::now());
    let until = machine.now() + Duration::from_micros(50);
    while machine.now() < until {
        std::hint::spin_loop();
    }
    Timer::now() == began
}

/// The builder of a replica.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # use std::time::Duration;
/// use tenure::scheduler::JobError;
/// use tenure::testing::Simulation;
///
/// let sim = Simulation::at("2026-10-22T12:00:00Z");
/// let replica = sim
///     .replica("a")
///     .clock_ahead_ms(-3_000)
///     .options(|builder| builder.lease(Duration::from_secs(5)))
///     .start(async |_locks, _scheduler| Ok::<(), JobError>(())) // what the service does when it starts
///     .await;
/// assert_eq!(replica.name(), "a");
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a replica does nothing until it is started"]
pub struct ReplicaBuilder<'a> {
    simulation: &'a Simulation,
    name: String,
    ahead_ms: i64,
    phase: Option<Duration>,
    options: Builder,
}

impl ReplicaBuilder<'_> {
    /// Sets the replica's wall clock `ahead_ms` milliseconds ahead of the true time, or behind it; 0 by default.
    pub fn clock_ahead_ms(mut self, ahead_ms: i64) -> Self {
        self.ahead_ms = ahead_ms;
        self
    }

    /// Sets how long after the start the scheduler looks at the clock for the first time. Then it looks each half second. By
    /// default every replica has another phase.
    pub fn phase(mut self, phase: Duration) -> Self {
        self.phase = Some(phase);
        self
    }

    /// Sets the options of the replica's locks, as with [`Locks::builder`].
    pub fn options(mut self, options: impl FnOnce(Builder) -> Builder) -> Self {
        self.options = options(self.options);
        self
    }

    /// Starts the replica. `setup` does what the service does at its start, with the locks and the scheduler of this replica.
    ///
    /// # Panics
    /// If `setup` fails, or an option is invalid.
    pub async fn start<F, Fut, E>(self, setup: F) -> Replica
    where
        F: FnOnce(Locks, JobScheduler) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Debug,
    {
        let (world, name) = (self.simulation.world.clone(), self.name);
        let number = self.simulation.processes.fetch_add(1, Ordering::Relaxed) + 1;
        let process = Process::new(world, number, self.ahead_ms);
        let options = self
            .options
            .node_name(name.clone())
            .clock(Clock::of_process(process.clone()));
        let made = options.on(Arc::new(self.simulation.store.for_process(&process)));
        let locks = made.unwrap_or_else(|error| panic!("the options of {name}: {error}"));
        let scheduler = JobScheduler::new().await;
        let scheduler = scheduler.unwrap_or_else(|error| panic!("the scheduler of {name}: {error}"));
        // The scheduler's own loop is not started, as it reads the machine's clock.
        scheduler.scheduler.write().await.inited = true;
        let engine = Engine {
            looks: Timer::now() + self.phase.unwrap_or(Duration::from_millis(number * 173 % 500)),
            scheduler: scheduler.clone(),
            handle: locks.handle().clone(),
            model: EngineModel::default(),
        };
        tokio::spawn(process.task(engine.run(process.clone())));
        if let Err(error) = setup(locks.clone(), scheduler.clone()).await {
            panic!("{name} does not start: {error:?}");
        }
        // The setup may have started it.
        let _ = scheduler.start().await;
        Replica {
            name,
            process,
            locks,
            scheduler,
        }
    }
}

/// A replica that was started. It goes on if this is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # use std::time::Duration;
/// use tenure::scheduler::JobError;
/// use tenure::testing::Simulation;
///
/// let sim = Simulation::at("2026-10-22T12:00:00Z");
/// let replica = sim.replica("a").start(async |_, _| Ok::<(), JobError>(())).await;
/// let guard = replica.locks().mutex("import").lock().await.unwrap();
/// replica.stop(); // as by SIGSTOP
/// sim.run_for(Duration::from_secs(60)).await;
/// replica.go_on();
/// assert!(!guard.is_held());
/// # }
/// ```
pub struct Replica {
    name: String,
    process: Arc<Process>,
    locks: Locks,
    scheduler: JobScheduler,
}

impl Replica {
    /// Returns the name of the replica.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the locks of the replica.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Returns the scheduler of the replica.
    pub fn scheduler(&self) -> &JobScheduler {
        &self.scheduler
    }

    /// Kills the replica without a word to other replicas. The futures of its jobs are dropped. Tasks that the jobs spawned go on,
    /// as the simulation does not know them.
    pub fn crash(self) {
        self.process.set_state(ProcessState::Dead);
    }

    /// Stops the replica, like a process that gets a SIGSTOP, or a suspended machine.
    pub fn stop(&self) {
        self.process.set_state(ProcessState::Stopped);
    }

    /// Continues the replica after a [`stop`](Self::stop).
    pub fn go_on(&self) {
        self.process.set_state(ProcessState::Running);
    }

    /// Sets the wall clock `ahead_ms` milliseconds ahead of the true time, or behind it.
    pub fn set_clock_ahead_ms(&self, ahead_ms: i64) {
        self.process.set_ahead_ms(ahead_ms);
    }

    /// Ends the replica as a service must end after a SIGTERM: [`Locks::drain`], the scheduler's shutdown, and
    /// [`Locks::shutdown`].
    ///
    /// # Errors
    /// The error of the drain. The replica is killed then.
    pub async fn shut_down(mut self, timeout: Duration) -> Result<(), StillRunning> {
        let drained = self.locks.drain(timeout).await;
        let _ = self.scheduler.shutdown().await;
        if drained.is_ok() {
            self.locks.shutdown().await;
        }
        self.crash();
        drained
    }

    /// Fires one job for one tick, as [`fire_tick`] does.
    ///
    /// # Panics
    /// As [`fire_tick`].
    pub async fn fire_tick(&self, job: &str, nominal: SystemTime) -> &'static str {
        fire_tick(&self.locks, job, nominal).await
    }
}

impl Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("name", &self.name)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// The substitute of a scheduler's loop.
struct Engine {
    scheduler: JobScheduler,
    handle: Handle,
    model: EngineModel,
    /// When the loop looks at the clock next.
    looks: Timer,
}

impl Engine {
    async fn run(mut self, process: Arc<Process>) {
        let context = self.scheduler.context.clone();
        let (mut created, mut deleted) = (
            context.job_created_tx.subscribe(),
            context.job_deleted_tx.subscribe(),
        );
        loop {
            let wall = DateTime::<Utc>::from(process.wall());
            self.read_jobs(wall).await;
            let due = self.model.next().map(|next| self.look_at(wall, next));
            tokio::select! {
                Ok(_) | Err(RecvError::Lagged(_)) = created.recv() => {}
                Ok(_) | Err(RecvError::Lagged(_)) = deleted.recv() => {}
                () = process.clock_set() => {}
                () = sleep_until(due.unwrap_or(self.looks)), if due.is_some() => {
                    self.looks = Timer::now() + LOOKS_EVERY;
                    let scheduler = self.scheduler.scheduler.read().await;
                    if scheduler.shutdown.load(Ordering::Relaxed) {
                        return;
                    }
                    let is_started = scheduler.ticking.load(Ordering::Relaxed);
                    drop(scheduler);
                    let now = DateTime::<Utc>::from(process.wall());
                    for id in self.model.look(now).into_iter().filter(|_| is_started) {
                        let _ = context.job_activation_tx.send(id);
                    }
                }
            }
        }
    }

    /// Returns the first look at or after the moment at which the replica's clock shows `next`; now it shows `wall`.
    fn look_at(&self, wall: DateTime<Utc>, next: DateTime<Utc>) -> Timer {
        let left = (next - wall).to_std().unwrap_or_default();
        let until = (Timer::now() + left).saturating_duration_since(self.looks);
        let looks = until.as_nanos().div_ceil(LOOKS_EVERY.as_nanos());
        self.looks + LOOKS_EVERY * u32::try_from(looks).unwrap_or(u32::MAX)
    }

    /// Takes over which jobs were added to the scheduler and which were removed.
    async fn read_jobs(&mut self, now: DateTime<Utc>) {
        let storage = self.scheduler.context.metadata_storage.clone();
        let listing = storage.write().await.list_next_ticks();
        let ticks = listing.await.unwrap_or_default();
        let ids: BTreeSet<Uuid> = ticks
            .iter()
            .filter_map(|tick| tick.id.as_ref().map(Uuid::from))
            .collect();
        self.model.retain(|id| ids.contains(&id));
        for id in ids {
            if self.model.has(id) {
                continue;
            }
            let asked = storage.write().await.get(id);
            let Ok(Some(data)) = asked.await else { continue };
            let Some(cron) = data.schedule() else { continue };
            // The crate reads the zone once. The zones of leased jobs are read by the clock of the simulation.
            let zone = lock(&self.handle.jobs().zones).get(&id).copied();
            let offset = match zone {
                Some(zone) => Some(zone.offset_from_utc_datetime(&now.naive_utc()).fix()),
                None => FixedOffset::east_opt(data.time_offset_seconds),
            };
            let Some(offset) = offset else { continue };
            let after: After = Arc::new(move |at| {
                let next = cron.iter_after(at.with_timezone(&offset)).next();
                next.map(|next| next.with_timezone(&Utc))
            });
            self.model.add(id, now, after);
        }
    }
}

/// Fires a job for one tick, as its scheduler does, waits until the tick is over in this process, and returns how it ended, in the
/// [words](crate::scheduler#outcomes) of the event `tick`.
///
/// The time is used in whole milliseconds, whether or not the job's schedule has such a tick. If it is ahead of the store's clock,
/// the call waits for it. If another node runs the tick, the call waits for its end, and notices that on a Redis within a third of
/// the job's lease: in memory at once.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::{Duration, SystemTime};
/// use tenure::{Locks, testing::fire_tick};
///
/// let locks = Locks::memory();
/// let job = locks.cron("reconcile", "0 0 0 * * *").run(|tick| async move {
///     if tick.nominal_unix() % 86_400 == 0 { Ok(()) } else { Err("no midnight") }
/// })?;
/// let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_627_200);
/// assert_eq!(fire_tick(&locks, "reconcile", midnight).await, "done");
/// assert_eq!(fire_tick(&locks, "reconcile", midnight).await, "elsewhere"); // it is over
/// assert_eq!(fire_tick(&locks, "reconcile", midnight + Duration::from_secs(1)).await, "failed");
/// # drop(job); Ok(()) }
/// ```
///
/// # Panics
/// If these locks have no job of that name.
pub async fn fire_tick(locks: &Locks, job: impl Into<Key>, nominal: SystemTime) -> &'static str {
    let job = job.into();
    let since = nominal.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mark = TickTime(since.as_millis() as u64);
    let found = lock(&locks.handle().jobs().fired.0).get(&job).cloned();
    match found.and_then(|job| job.upgrade()) {
        Some(job) => job.fire(mark).await,
        None => panic!("these locks have no job called `{job}`"),
    }
}
