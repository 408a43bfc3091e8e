//! Cron jobs that run once per tick, on the node that wins the lease.
//!
//! Every replica schedules the job, and one replica runs each tick. A plain lock is not enough: replicas fire at
//! different moments, and a replica that fires after the first one has released the lock runs the tick again. Here
//! every run has an identity, its nominal fire time. The store lets each tick be won once, by its own clock and a
//! mark that only grows.
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
//! let locks = Locks::memory(); // or Locks::connect("redis://127.0.0.1/").await?
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
//! | several nodes fire | one wins the tick and runs it; the others stand by until the run has ended, and ask the store at each third of the job's lease |
//! | the winner dies, stops, or loses its lease | a standby runs the tick again, as the next attempt with a larger fence, within a lease, the margin and a timer |
//! | the winner and all standbys are gone, as when replicas are replaced one by one during a run | a later node finishes the tick: each node asks the store for unfinished ticks of its jobs, one second after a job is made and then once per lease (at least 5 s). The tick must not be older than a day, and no later tick may have begun |
//! | a node's clock is ahead | the store says how early the tick is, and the node waits |
//! | a node's clock is behind, or the node comes late | the tick is over, and the node runs nothing |
//! | the job is still running when the next tick comes | that tick is skipped, and an event reports it; three in a row raise an alarm (`job_skips`) |
//! | the scheduler does not fire a tick within a second | the node starts the tick itself (`engine_missed`) |
//! | the job never reaches an `await` | its lease is renewed nevertheless; it cannot be cancelled, and a warning reports it (`job_blocks`) |
//! | the job is removed from a node's scheduler | a run continues; standbys on that node stop, and the job's name is free |
//! | the store knows a tick ahead of its clock | nothing runs, each node reports it (`mark_ahead`), and [`jobs().reset`](Jobs::reset) repairs it |
//! | the store is restored from an older copy, as after a failover that lost writes | each node remembers the latest tick of a job that is over, and reports it when it asks for unfinished ticks. From then on the store grants that tick to no node, and an event reports it (`store_went_back`). A standby that asks for its tick before that may run it again, and so may any node if no living node knows that the tick is over |
//! | another service, or another expression, uses the job's name | both run, and a warning reports it (`job_differs`) while both live |
//! | the job fails or panics | the tick has ended, and the next one comes as usual |
//! | the store is unavailable | no node runs the job until the store is back; then each node claims the newest tick that it has seen, and that tick runs once |
//! | the node drains | it claims nothing; a run is cancelled after the timeout, and handed to a standby |
//!
//! A run that lost its lease is notified, and its future is dropped. A job must tolerate that it runs again from its
//! beginning, and should [fence](crate::Tick::fence) its writes.
//!
//! # How a job is made
//!
//! `locks.cron(name, expression)` or `locks.every(name, period)`, options, `run(work)` or `run_blocking(work)`, and
//! [`add_job`](Locks::add_job). A job's lock has its own kind: `locks.mutex(name)` does not exclude it.
//! If a job must not run beside a handler, let the job lock the handler's key.
//!
//! tokio-cron-scheduler freezes the offset of a zone when the job is made, so it fires the job an hour too early or too late
//! for half of the year. That does nothing, because this node's own clock starts each tick that was not fired within a
//! second.
//!
//! # Changes of the clocks
//!
//! The rule is that of croner 4. A fixed time, such as 02:30, comes at the first instant after a gap, and in the
//! first pass of an overlap. Times with wildcards or steps, such as each quarter of an hour, skip the gap and come in
//! both passes. All nodes agree on the instants, whether they started before or after the change. When a job with a
//! zone is made, an event (`job_odd_days`) reports the days of the next two years on which ticks come twice, not at
//! all or at another time. [`explain`] returns these days.
//!
//! # Policies
//!
//! The policies hold for the whole cluster, whichever node fires. Set them alike on all nodes.
//!
//! | | |
//! |---|---|
//! | [`overlap`](LeasedJob::overlap) | a tick that comes during an earlier one is skipped, or waits: [`Overlap`] |
//! | [`misfire`](LeasedJob::misfire) | of the ticks that could not begin when they were due, none runs, or the newest, or all in order: [`Misfire`] |
//! | [`attempts`](LeasedJob::attempts) | a tick whose run was cut short runs again, up to a number of attempts; with 1 it does not |
//! | [`retry`](LeasedJob::retry) | a run that failed is repeated under its lease, after pauses: [`Retry`] |
//! | [`timeout`](LeasedJob::timeout) | limits each try: with [`retry`](LeasedJob::retry) a tick may take one timeout for each try, plus the pauses |
//! | [`run_blocking`](LeasedJob::run_blocking) | work that blocks its thread gets a thread of its own, and keeps the lease until the thread has ended |
//!
//! | case | result |
//! |---|---|
//! | a tick comes during an earlier one, and the policy is to skip it | it is skipped, on every replica |
//! | a tick comes during an earlier one, and the policy is to wait | the latest of these ticks runs after it, and the others are skipped |
//! | ticks are missed, and the policy is to skip them | none of them runs |
//! | ticks are missed, and the policy is to run the newest | it runs once, if it is not too old |
//! | ticks are missed, and the policy is to run all | they run one after the other, from the oldest one within the limits of age and number |
//! | a deploy changes the expression | its ticks from before the store first saw it are not missed: none of them is caught up. An expression that another one replaced for more than two leases counts as new when it comes back |
//! | ticks are missed, and clocks are wrong | the store's clock decides how old a tick is, whichever node fires |
//! | the owner dies repeatedly | the tick begins at most as often as the limit says |
//! | the owner dies, and the policy is not to run its tick again | the tick is over |
//! | a job fails, and the policy is to retry | the same replica retries under the same lease, after pauses that double |
//! | the owner dies between two tries | a standby runs the tick again, with as many tries |
//! | a job lasts longer than its timeout | it is cancelled, and its tick is over |
//!
//! A run may save a cursor for the next run of its tick: [`Tick::checkpoint`](crate::Tick::checkpoint).
//!
//! # What is promised
//!
//! Under the [conditions](crate::guide::guarantees) of every lease, for a job's name and a nominal tick:
//!
//! 1. At most one run is current at any moment, as the store judges it. A process that was suspended past its lease
//!    learns this before it does anything else, and the run's future is dropped.
//! 2. Every run has a fence that is larger than the fence of each earlier run of the job.
//! 3. If the store was told that a tick has ended, successfully or not, the tick never runs again, however late,
//!    skewed or restarted the node is that asks for it.
//! 4. No tick runs before its time by the store's clock.
//! 5. A tick that began runs to its end as long as a node with the job lives. If necessary it runs again, ten times
//!    at most, or as [`attempts`](LeasedJob::attempts) says. A standby takes over within a lease, the margin and a
//!    timer. A later node takes over within one more lease (at least 5 s), for a day, unless a later tick begins
//!    first; an event reports that.
//! 6. A tick that comes during an earlier one does not run, and an event reports it. With [`Overlap::QueueOne`], the
//!    latest of the ticks that come meanwhile runs after it.
//! 7. With [`Misfire::RunAll`], each tick within the limits of age and number runs to its end before the next begins.
//!    No such tick is passed over, whichever nodes live.
//! 8. A checkpoint is saved only if its run owns the tick at that moment, as the store judges it. Only runs of that
//!    tick see it.
//! 9. When a drain returns `Ok`, no run of this node continues. Each cancelled run was released only after its future
//!    had ended.
//! 10. If a node's scheduler does not fire a tick within a second, the node's own clock starts the tick.
//!     This is counted (`engine_missed`).
//! 11. A store that was restored from an older copy runs no tick again that a living node knows to be over, from the
//!     next query of that node on: once per lease (at least 5 s).
//!
//! Three things are not promised. A run whose lease was lost may not have stopped everything that it began elsewhere,
//! hence the fence. Of the ticks that no node could claim while the store was unavailable, only the newest is caught
//! up by default. And nothing else holds for a store that lost writes that it had acknowledged.
//!
//! # What a job did, and what operators do about it
//!
//! The store keeps the last 100 runs of each job: [`Locks::jobs`], and the guide on [jobs](crate::guide::jobs).
//!
//! | an operator | what happens to the job |
//! |---|---|
//! | pauses it before a tick | no tick begins on any node, and each node reports the pause once. A deploy does not end the pause |
//! | pauses it during a run | the run ends as always |
//! | pauses it, and the owner of a run dies | the tick gets its next attempt after the pause |
//! | resumes it | no tick of the pause runs |
//! | resumes it to catch up | the [misfire](LeasedJob::misfire) policy decides about the ticks of the pause, as after an outage |
//! | triggers a run while it is idle | the run begins at once on one node: each node of the job is told, and looks. A node that hears nothing looks once per lease (at least 5 s) |
//! | triggers a run during a run | the run begins when the other one has ended. In a pause the trigger is refused |
//! | triggers a run in a pause | the run begins. While a tick has begun and has not ended, the trigger is refused, because that tick may not run again in the pause. If the owner of a tick dies in a pause that came after the trigger, the run waits for the end of the pause |
//! | triggers a run twice | the second trigger is refused, as long as the first run has not ended |
//! | triggers a run just before a tick | the tick waits for the run. Of several ticks the latest runs then, and with [`Misfire::RunAll`] each of them |
//! | triggers a run for a failed tick | the run has the nominal time of that tick |
//! | triggers a run, and its owner dies | a standby runs it again, as the next attempt. If a tick runs in between, the checkpoint of the run is lost |
//! | triggers a run, and the store is restored from an older copy | a node that knows that the run has ended reports `store_went_back`, and ends it as `missed`. Another node may run it again |
//! | cancels a tick with standbys | the run is told and ends, and none of the standbys runs the tick |
//! | cancels a run that ends itself within the grace | nothing is cancelled: the history has the outcome of the run, and the audit list names the operator |
//! | cancels a run, and triggers it again for the same tick | each trigger is a run of its own, and a cancel of the first does not mean the second |
//! | cancels a tick as its lease is lost | the tick is over, and no node takes it over |
//! | cancels a tick during a drain | no other node runs the tick |
//! | cancels a run that blocks its thread | the run is told; the next one begins when the thread has ended, or when its lease has ended |
//!
//! # Not built
//!
//! | what | instead |
//! |---|---|
//! | a tick that cancels the run before it | [`timeout`](LeasedJob::timeout), or [`cancel`](Jobs::cancel) by an operator |
//! | runs of one job that overlap | two jobs, or tasks that a run spawns |
//! | a random delay of each tick (jitter) | another second in the expression of each job |
//! | a run at one time only (once) | not yet; [`trigger`](Jobs::trigger) runs a job now |
//!
//! # Your own tests
//!
//! With the feature `testing`, `testing::Simulation` runs your jobs through a week in milliseconds: several replicas
//! on one store, wrong clocks, crashes, changes of clocks, and a store that becomes unavailable or is restored from
//! an older copy. `testing::fire_tick` runs a job once. `tests/it/event_table.rs` has a test for each row of the
//! first tables above, and `tests/it/job_acts.rs` and `job_triggers.rs` for what operators do.
//!
//! # Outcomes
//!
//! The outcome of a tick on a node, in the event `tick` and the metric `tenure_ticks_total`:
//!
//! | outcome | |
//! |---|---|
//! | `done` | ran here, to its end |
//! | `failed`, `panicked` | ran here, and returned an error, or panicked, even while it was dropped. It does not run again |
//! | `timed_out` | ran here for longer than its [`timeout`](LeasedJob::timeout), and was cancelled. It does not run again |
//! | `given_up` | reached its number of [attempts](LeasedJob::attempts) and never ended, so it does not run again |
//! | `elsewhere` | another node ran it, or this one already runs it |
//! | `skipped` | an earlier tick was still running, here or elsewhere, so this one never runs. Or, with [`Overlap::QueueOne`], it waited, and a later tick replaced it |
//! | `paused` | an operator has paused the job: [`Jobs::pause`] |
//! | `cancelled` | an operator has cancelled it while it ran here: [`Jobs::cancel`]. It does not run again |
//! | `missed` | no node ran it: the store was unavailable until the next tick came, or until this one was too old ([`Misfire`]). A warning reports it, after the store was asked again |
//! | `drained` | this node drains. Its run was cancelled so that another node takes over |
//! | `removed` | the job was removed from this process while another node ran the tick |
//!
//! # What tokio-cron-scheduler does
//!
//! How version 0.15.1 behaves, and what a leased job does about it:
//!
//! | tokio-cron-scheduler | a leased job |
//! |---|---|
//! | polls every 500 ms, at a different phase in each process | the order of the replicas makes no difference |
//! | tells a job no nominal time | [`Tick::nominal`](crate::Tick::nominal) |
//! | starts the next run beside one that has not ended | that tick is skipped |
//! | fires once, late, for all ticks that a suspended process missed | the newest runs, unless another replica ran it |
//! | fires repeatedly if its own storage cannot be written, and after a restart with an older clock | the tick is over |
//! | never runs a job again after a panic of its closure | jobs are called outside the closure, and a panic ends only its tick |
//! | loses fires if more than 256 jobs fire at once on a current-thread runtime | another replica runs those ticks. To lose none, use [`JobScheduler::new_with_channel_size`] with twice the number of jobs |
//! | fires up to 500 ms after its `shutdown` | after [`drain`](Locks::drain), such a fire does nothing |
//! | freezes the offset of a zone | this node's own clock starts the ticks |
//! | stops repeated jobs for good after a delay | [`Locks::every`] makes no such jobs |
//! | sleeps until a time that its clock no longer shows, if the clock was ahead and is corrected | this node's own clock starts the ticks meanwhile |
//! | keeps a closure as long as one of its runs continues, even if the job was removed | the job's standby ends and its name is free, as soon as the scheduler reports the removal |
//! | fires jobs of other processes that share its storage, without their code, so that those processes do not fire them | refused by [`add_job`](Locks::add_job), and reported by an event |

use std::time::Duration;

use tokio_cron_scheduler::{Job, JobScheduler};
use uuid::Uuid;

use crate::driver::waiter::lock;
use crate::locks::Locks;

pub use crate::protocol::message::RunOutcome;
pub use crate::scheduler::error::{JobError, StillRunning};
pub use crate::scheduler::explain::{OddDay, Oddity, explain};
pub use crate::scheduler::history::{
    HistoryEntry, JobHistory, JobPlan, JobRun, RunState, TicksWithoutRun, WhyNoRun,
};
pub use crate::scheduler::jobs::{
    ActEntry, JobActOutcome, JobEntry, JobNodeEntry, JobState, Jobs, TickEntry, WantedRunEntry,
};
pub use crate::scheduler::on_end::EndedRun;
pub use crate::scheduler::policy::{DEFAULT_LEASE, JobOutput, Misfire, Overlap, Retry};
pub use crate::scheduler::setup::LeasedJob;
pub use crate::scheduler::tick::LONGEST_CHECKPOINT;
pub use crate::scheduler::work::Work;
pub use crate::scheduler::zone::IntoZone;

mod audit;
mod catch_up;
mod engine;
mod error;
mod explain;
mod gauges;
mod history;
mod job_status;
mod jobs;
mod on_end;
mod policy;
mod registration;
mod run;
mod schedule;
mod scheduled_job;
mod setup;
pub(crate) mod tick;
mod tick_runner;
mod work;
mod zone;

/// The least time that a drain gives cancelled jobs, however short its timeout is.
const GRACE: Duration = Duration::from_secs(1);

impl Locks {
    /// Adds a job that [`cron`](Self::cron) or [`every`](Self::every) of these `Locks` made to its scheduler. From then on, this
    /// node's own clock starts each tick that the scheduler has not fired within a second.
    ///
    /// Refuses another job, which would run on every node: add that one by [`JobScheduler::add`]. Also refuses a scheduler whose
    /// storage other processes use, because only one of them would fire each job.
    ///
    /// # Errors
    /// [`JobError::NotLeased`], [`JobError::SharedStorage`], and the errors of the scheduler.
    pub async fn add_job(&self, scheduler: &JobScheduler, job: Job) -> Result<Uuid, JobError> {
        let (jobs, id) = (self.handle().jobs(), job.guid());
        if !jobs.has_id(id) {
            return Err(JobError::NotLeased { id });
        }
        let ended = engine::ended_flag(scheduler).await;
        *lock(&jobs.engine) = Some(ended);
        engine::add(scheduler, job).await
    }

    /// Returns what operators do about jobs, of this service or of one that is no more.
    pub fn jobs(&self) -> Jobs {
        Jobs::new(self.handle())
    }

    /// Ends the jobs of this node within `timeout`, or within one second if that is longer. It claims no further
    /// tick, and waits for runs. In the last second, or in the last third if that is shorter, it cancels the
    /// remaining runs. It releases each tick when its job's future has ended.
    ///
    /// Call it when the process is told to end, at the same time as other shutdowns, such as that of a server that
    /// finishes its requests. If it runs after them, the jobs begin further ticks as long as one request continues.
    /// Call it before the scheduler's own shutdown, because the scheduler may fire once more after that.
    ///
    /// # Errors
    /// [`StillRunning`] if a cancelled job has not reached an `await` in time. The job keeps its lease.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime with time enabled.
    pub async fn drain(&self, timeout: Duration) -> Result<(), StillRunning> {
        let jobs = self.handle().jobs().clone();
        jobs.close();
        let whole = timeout.max(GRACE);
        let last = GRACE.min(whole / 3);
        let patience = timeout.min(whole - last);
        let began = tokio::time::Instant::now();
        let left = || whole.saturating_sub(began.elapsed());
        if tokio::time::timeout(patience, jobs.ended()).await.is_ok() {
            self.handle().jobs_withdrawn(last).await;
            let _ = tokio::time::timeout(left(), jobs.ends.wait()).await;
            return Ok(());
        }
        jobs.cancel();
        let ended = tokio::time::timeout(left(), jobs.ended()).await;
        let _ = tokio::time::timeout(left(), jobs.ends.wait()).await;
        // A thread without the task of its run counts, too.
        match jobs.pursuits.len().max(jobs.threads.len()) {
            jobs if ended.is_err() && jobs > 0 => Err(StillRunning { jobs }),
            _ => Ok(()),
        }
    }
}
