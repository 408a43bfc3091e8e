//! Cron jobs that run once per tick, on the node that wins the lease.
//!
//! Every replica schedules the job; one runs each tick. A plain lock does not give that: replicas fire at different
//! moments, and who comes when the first has released runs the tick again. Here every run has an identity, its nominal
//! fire time, and the store lets each be won once, by its own clock and a mark that only grows.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::{Locks, Tick};
//! use tokio_cron_scheduler::JobScheduler;
//!
//! async fn reconcile(tick: Tick) {
//!     println!("{} attempt {} fence {}", tick.nominal_unix(), tick.attempt(), tick.fence());
//! }
//!
//! let locks = Locks::memory(); // or Locks::redis("redis://127.0.0.1/").await?
//! let scheduler = JobScheduler::new().await?;
//! locks.add_job(&scheduler, locks.cron("reconcile", "0 0 0 * * *").run(reconcile)?).await?;
//! scheduler.start().await?;
//! # Ok(()) }
//! ```
//!
//! # What happens
//!
//! | | |
//! |---|---|
//! | several nodes fire | one wins the tick and runs it; the others stand by until they hear that the run has ended: they ask each third of the job's lease |
//! | the winner dies, stops, or loses its lease | a standby runs the tick again, as the next attempt with a larger fence, within a lease, the margin and a timer |
//! | the winner and all standbys are gone, as when replicas are replaced one by one during a run | whoever comes later finishes the tick: each node asks the store for an unfinished tick of its jobs, a second after a job is made and from then on once in a lease (5 s at least). It must not be older than a day, and no later tick may have begun |
//! | a node's clock is ahead | it is told how early it is, and waits |
//! | a node's clock is behind, or it comes late | the tick is over, and it runs nothing |
//! | the job is still running when the next tick comes | that tick is skipped, and an event says so; three in a row are an alarm (`job_skips`) |
//! | the engine does not fire a tick within a second | it is started without it (`engine_missed`) |
//! | the job comes to no await | its lease is renewed all the same; it cannot be cancelled, and a warning tells (`job_blocks`) |
//! | the job is removed from a node's scheduler | what runs goes on; whoever stands by there stops, and the job's name is free |
//! | the store knows of a tick ahead of its clock | nothing is run, each node says so (`mark_ahead`), and [`reset_job`](Locks::reset_job) mends it |
//! | the store comes back with an older copy, as after a failover that lost writes | each node remembers the latest tick of a job that it was told is over, and says so when it asks for unfinished ticks. The store takes it for over before anybody is granted it, and an event tells (`store_went_back`); a standby that asks for its tick before that node does may run it again, and so may anybody where no living node knows of it |
//! | another service, or another expression, uses the job's name | both run, and a warning tells (`job_differs`) |
//! | the job fails or panics | the tick has ended, and the next one comes as usual |
//! | the store is away | nobody runs until it is back; then each node pursues the newest tick that it has seen, which is run once |
//! | the node drains | it claims nothing; what runs is cancelled after the timeout, and handed to a standby |
//!
//! A run that lost its lease is told, and its future dropped. A job must bear being run again from its beginning, and
//! should [fence](crate::Tick::fence) what it writes.
//!
//! # Which way to make a job
//!
//! Take the first of these that fits. A job's lock is of its own kind: `locks.mutex(name)` does not exclude it.
//!
//! | | |
//! |---|---|
//! | [`locks.cron(name, expression)`](Locks::cron)`.run(work)` | for a new job. It knows its schedule from the beginning; `.timezone(zone)` also takes a text from a configuration |
//! | [`locks.every(name, period)`](Locks::every)`.run(work)` | the same for a period |
//! | `JobBuilder` with [`.leased(&locks, name, work)`](Leased::leased) | for a builder that is there already. Its zone is known, and asked at each tick; [`.leased_with(locks.job_builder(name), work)`](Leased::leased_with) takes policies, [`.leased_blocking`](Leased::leased_blocking) work that blocks its thread |
//! | `Job::new_async(expression, locks.job(name, work)?)` | for a `Job::new_async` that is there already, one line. The expression is read in UTC, and known from the first fire on; [`locks.job_with`](Locks::job_with) sets its lease, `locks.job_builder(name)` its timeout and policies |
//!
//! tokio-cron-scheduler freezes the offset of a zone when the job is made, so a job of the last form with an offset is
//! refused: with an error by [`add_job`](Locks::add_job), and with an event when it fires; a zone whose offset happens to be
//! zero when the job is made cannot be told from UTC. Jobs of the other forms are fired by the scheduler an hour off for
//! half of the year, which does nothing: this node's own clock starts each tick that was not fired within a second.
//! [`add_job`](Locks::add_job) or [`attach`](Locks::attach) says which scheduler that is. A job of the last form learns its
//! expression when it fires for the first time. Neither `add_job` nor `attach` can tell it sooner: the scheduler keeps
//! expressions and closures by its own ids, and whose closure one is only a call of it would say, which may be a foreign job's.
//! It costs this: in each process, up to that fire, no tick is made up for, whatever [`misfire`](LeasedJob::misfire) says, and
//! none is started that the scheduler has not fired. What all replicas slept through, or lost as their first, is left until
//! the next tick, which may be a day later. The other forms know it from the beginning.
//!
//! # Changes of the clocks
//!
//! The rule is that of croner 4: a fixed time, as 02:30, comes at the first instant after a gap, and in the first pass of
//! an overlap. Times with wildcards or steps, as each quarter of an hour, skip the gap and come in both passes. All nodes
//! agree on the instants, whether they were started before the change or after it. When a job with a zone is made, an
//! event (`job_odd_days`) tells the days of the next two years on which ticks come twice, not at all or at another time, and
//! [`explain`] returns them.
//!
//! # Policies
//!
//! They hold for the whole cluster, whichever node fires. Set them alike on all nodes.
//!
//! | | |
//! |---|---|
//! | [`overlap`](LeasedJob::overlap) | a tick that comes while an earlier one is run is skipped, or waits: [`Overlap`] |
//! | [`misfire`](LeasedJob::misfire) | ticks that could not be begun when they were due are not made up for, or the newest is, or all are, in their order: [`Misfire`] |
//! | [`on_crash`](LeasedJob::on_crash) | a tick whose run was cut short is run again, so often at most, or not: [`OnCrash`] |
//! | [`retry`](LeasedJob::retry) | a run that failed is tried again under its lease, after pauses: [`Retry`] |
//! | [`timeout`](LeasedJob::timeout) | each try may last so long: with [`retry`](LeasedJob::retry) a tick may take a timeout for each try, and the pauses |
//! | [`run_blocking`](LeasedJob::run_blocking) | work that blocks its thread has one of its own, and the lease until that has ended |
//!
//! | what happens | what becomes of it |
//! |---|---|
//! | a tick comes while an earlier one is run, and is to be skipped | it is skipped, on every replica |
//! | a tick comes while an earlier one is run, and is to wait | of those that come the latest is run after it, and the others are skipped |
//! | ticks are missed and are to be skipped | none of them is run |
//! | ticks are missed and the newest is to be run | it is run once, if it is young enough |
//! | ticks are missed and all are to be run | they are run one after the other, from the oldest that is young enough, and not too many |
//! | ticks are missed and clocks are off | how old a tick is the store's clock says, whichever node fires |
//! | the owner dies again and again | the tick is begun so often at most |
//! | the owner dies and its tick is not to be run again | it is over |
//! | a job fails and is to be tried again | the same replica does so under the same lease, after pauses that double |
//! | the owner dies between two tries | a standby runs the tick again, and tries as often |
//! | a job lasts longer than its timeout | it is cancelled then, and its tick is over |
//!
//! A run may leave a cursor for whoever runs its tick again: [`Tick::checkpoint`](crate::Tick::checkpoint).
//!
//! # What is promised
//!
//! Under the [conditions](crate#guarantees) of every lease, for a job's name and a nominal tick:
//!
//! 1. At most one run is current at any moment, as the store judges it. A process that was stopped past its lease is told
//!    so before it does anything else, and its future is dropped.
//! 2. Every run has a fence that is larger than that of each run of the job before it.
//! 3. A tick that ended, well or not, and of which the store was told, is never run again, however late, skewed or restarted
//!    the node is that asks for it.
//! 4. No tick is run before its time by the store's clock.
//! 5. A tick that was begun is run to its end, again if need be (ten times at most, or as
//!    [you say](LeasedJob::attempts)), as long as some node lives that has the job: by a standby within a lease, the margin
//!    and a timer; by whoever comes later within a lease more (5 s at least), for a day, unless a later tick begins first,
//!    which an event tells.
//! 6. A tick that comes while an earlier one is run is not run, and an event says so. With [`Overlap::QueueOne`] the latest
//!    of those that come meanwhile is run after it.
//! 7. With [`Misfire::RunAll`] each tick that is not too old, or one of too many, is run to its end before the next begins, and
//!    none is passed over, whichever nodes live.
//! 8. A checkpoint is kept only if the run that leaves it owns its tick in that moment, as the store judges it, and is shown
//!    to runs of that tick alone.
//! 9. When a drain returns `Ok`, no run of this node goes on, and each that was cancelled was given back only after its
//!    future had ended.
//! 10. A tick that the scheduler of a node does not fire within a second is started by that node's own clock, if the job
//!     knows its expression. This, too, is counted (`engine_missed`).
//! 11. A store that came back with an older copy runs no tick again that a living node knows to be over, from the moment in
//!     which that node asks next: once in a lease (5 s at least).
//!
//! What is not promised: that a run whose lease was lost has stopped everything that it began elsewhere (hence the fence);
//! that a tick which nobody could claim while the store was away is made up for, but for the newest; anything else about a
//! store that lost what it had acknowledged.
//!
//! # Your own tests
//!
//! With the feature `testing`, `testing::Simulation` runs your jobs through a week in milliseconds: several replicas on one
//! store, clocks that are off, crashes, changes of clocks, a store that goes away or back; and `testing::fire_tick` runs a
//! job once. `tests/it/event_table.rs` has the tables above in that form, a test for each row.
//!
//! # Outcomes
//!
//! How a tick ended for a node, as the event `tick` and the metric `tenure_ticks_total` call it:
//!
//! | outcome | |
//! |---|---|
//! | `done` | run here, to its end |
//! | `failed`, `panicked` | run here, and it said so, or panicked, when it was dropped included. It is not run again |
//! | `timed_out` | run here for longer than its [`timeout`](LeasedJob::timeout), and cancelled. It is not run again |
//! | `given_up` | begun [as often as it may](LeasedJob::attempts) and never ended, so it is not run again |
//! | `elsewhere` | another node ran it, or this one does already |
//! | `skipped` | an earlier tick was still running, here or elsewhere, so this one is never run; with [`Overlap::QueueOne`], it waited, and a later one took its place |
//! | `missed` | no node ran it: the store could not be reached before the next tick came, or until this one was too old ([`Misfire`]). It is told as a warning, after the store was asked again |
//! | `drained` | this node drains. What it ran was cancelled for another node to take over |
//! | `removed` | the job was removed from this process while another node ran the tick |
//! | `refused` | the job cannot be run as it is; an event says why |
//!
//! # What tokio-cron-scheduler does
//!
//! Version 0.15.1, and what a leased job makes of it:
//!
//! | it | |
//! |---|---|
//! | looks every 500 ms, at a phase of its own in each process | which replica comes first or last makes no difference |
//! | tells a job no nominal time | [`Tick::nominal`](crate::Tick::nominal) |
//! | starts the next run beside one that has not ended | that tick is skipped |
//! | fires once, late, for all the ticks that a stopped process slept through | the newest is run, unless another replica has done so |
//! | fires again and again when its own storage cannot be written, and after a restart with an older clock | the tick is over |
//! | never runs a job again whose closure panicked | jobs are called elsewhere, and a panic ends its tick |
//! | loses what fires when more than 256 jobs do so at once on a current-thread runtime | another replica runs those; none loses any with [`JobScheduler::new_with_channel_size`] of twice the number of jobs |
//! | fires up to 500 ms after its `shutdown` | [`drain`](Locks::drain) first, and it fires in vain |
//! | makes the first tick of a [`JobBuilder`](tokio_cron_scheduler::JobBuilder) with both a day of the month and a day of the week where one matches, all others where both do | it is the tick before, by the rule of all others, and over if it was run: make such jobs with `Job::new_async` |
//! | freezes the offset of a zone | a job that knows its zone is started by this node's own clock; any other with an offset is refused |
//! | stops repeated jobs for good after a delay | they are refused; [`Locks::every`] takes their place |
//! | sleeps until a time that its clock no longer shows, when that was ahead and is set right | this node's own clock starts the ticks meanwhile |
//! | keeps a closure for as long as one of its runs goes on, also when the job was removed | the job's standby ends and its name is free, as soon as the scheduler has told us |
//! | fires the jobs of other processes that share its storage, in vain, and these do not | refused by [`add_job`](Locks::add_job), and told in an event |

use std::time::Duration;

use tokio_cron_scheduler::{Job, JobScheduler};
use uuid::Uuid;

use crate::driver::waiter::lock;
use crate::error::Error;
use crate::key::Key;
use crate::locks::Locks;
use crate::primitives::tick::ask_about_job;
use crate::protocol::message::Call;
use crate::scheduler::engine::JobFuture;

pub use crate::scheduler::error::{JobError, StillRunning};
pub use crate::scheduler::explain::{OddDay, Oddity, explain};
pub use crate::scheduler::policy::{DEFAULT_LEASE, Misfire, OnCrash, Overlap, Retry};
pub use crate::scheduler::setup::{Leased, LeasedJob, Scheduled, Unscheduled};
pub use crate::scheduler::work::Work;
pub use crate::scheduler::zone::IntoZone;

mod audit;
mod catch_up;
mod engine;
mod error;
mod explain;
mod job_status;
pub mod policy;
mod registration;
mod run;
mod schedule;
mod scheduled_job;
mod setup;
pub mod tick;
mod tick_runner;
mod work;
mod zone;

/// What a cancelled job has to come to an await and be given back, however short the timeout of a drain.
const GRACE: Duration = Duration::from_secs(1);

impl Locks {
    /// Makes of `work` what [`Job::new_async`](tokio_cron_scheduler::Job::new_async) takes: it is called on the node
    /// that wins the tick, and nowhere else. The name is the job's identity in the store; all replicas use the same. The
    /// lease lasts 30 s ([`DEFAULT_LEASE`]), whatever the [`Builder`](crate::Builder::lease) says, and is renewed while
    /// the job runs.
    ///
    /// The job learns its expression when it is fired for the first time, and until then makes up for no tick that was missed:
    /// see [`run`](LeasedJob::<Unscheduled>::run). [`cron`](Self::cron) knows it from the beginning.
    ///
    /// # Errors
    /// [`JobError`] when the name is taken in this process or unfit.
    pub fn job(
        &self,
        name: impl Into<Key>,
        work: impl Work,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError> {
        self.job_with(name, DEFAULT_LEASE, work)
    }

    /// The same with a lease of its own. A shorter one lets a standby take over sooner when the winner dies.
    ///
    /// # Errors
    /// As [`job`](Self::job), and when the lease makes no sense.
    pub fn job_with(
        &self,
        name: impl Into<Key>,
        lease: Duration,
        work: impl Work,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError> {
        self.job_builder(name).lease(lease).run(work)
    }

    /// Says which scheduler fires the jobs of this node, before it has fired one: from then on a tick of a job that knows its
    /// schedule is started by this node's own clock if the scheduler has not fired it within a second. A scheduler that takes
    /// the place of another is attached in its turn. [`add_job`](Self::add_job) does the same.
    pub async fn attach(&self, scheduler: &JobScheduler) {
        let ended = engine::ended_flag(scheduler).await;
        *lock(&self.handle().jobs().engine) = Some(ended);
    }

    /// Adds a leased job to its scheduler, and refuses what could not be leased when it fires: a job with another offset
    /// than UTC's or without an expression, and a scheduler whose storage other processes use as well, since of those only
    /// one fires what all have. It cannot see whether a job is leased at all before that fires: one that neither
    /// [`job`](Self::job) nor a builder of this `Locks` made is added as it is, and runs on every node.
    ///
    /// # Errors
    /// [`JobError::Unfit`], [`JobError::SharedStorage`], and what the scheduler says.
    pub async fn add_job(&self, scheduler: &JobScheduler, mut job: Job) -> Result<Uuid, JobError> {
        if !self.handle().jobs().has_schedule(job.guid()) {
            engine::unfit(&mut job).map_err(|why| JobError::Unfit { name: None, why })?;
        }
        self.attach(scheduler).await;
        engine::add(scheduler, job).await
    }

    /// Brings a job back whose mark lies ahead of the store's clock, because that was wrong once: from now on its ticks are
    /// run again, and those up to now are over. Says whether that was so. Until it is done each node says so in an event,
    /// `mark_ahead`, and runs nothing. A tick that is running meanwhile, and that the clock has yet to come to, is run once more
    /// when it does.
    ///
    /// # Errors
    /// What keeps the store from doing it.
    pub async fn reset_job(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = name.into();
        let report = ask_about_job(self.handle(), &name, DEFAULT_LEASE, Call::Reset).await?;
        lock(&self.handle().jobs().over).remove(&name);
        Ok(report.ahead_ms > 0)
    }

    /// Ends the jobs of this node, within `timeout` (or a second, if that is longer): claims no tick from now on, waits for
    /// what runs, cancels what still does in the last second of it, or in the last third if that is shorter, and gives
    /// each tick back when its job's future has ended.
    ///
    /// Call it when the process is told to end, beside what else ends then, such as a server that lets its requests finish:
    /// behind it, the jobs would begin tick after tick for as long as one request goes on. And before the scheduler's own
    /// shutdown, after which that may fire once more.
    ///
    /// # Errors
    /// [`StillRunning`] when a cancelled job has not come to an await in time. It keeps its lease.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn drain(&self, timeout: Duration) -> Result<(), StillRunning> {
        let jobs = self.handle().jobs().clone();
        jobs.closing.cancel();
        jobs.pursuits.close();
        let whole = timeout.max(GRACE);
        let last = GRACE.min(whole / 3);
        let patience = timeout.min(whole - last);
        if tokio::time::timeout(patience, jobs.pursuits.wait()).await.is_ok() {
            return Ok(());
        }
        jobs.cancel();
        let ended = tokio::time::timeout(whole - patience, jobs.pursuits.wait()).await;
        match jobs.pursuits.len() {
            jobs if ended.is_err() && jobs > 0 => Err(StillRunning { jobs }),
            _ => Ok(()),
        }
    }
}
