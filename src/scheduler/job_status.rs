//! What a node learns from the store about a job: its clock, its open ticks, and the ticks that are over.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant as Since;

use crate::driver::waiter::lock;
use crate::observe;
use crate::primitives::tick::ask_about_job;
use crate::protocol::message::{Call, JobReport, TickTime};
use crate::scheduler::schedule::{age, time};
use crate::scheduler::tick_runner::TickRunner;

/// So far a node's clock may be off, and a job's mark ahead of the store's clock, before that is told.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

impl TickRunner {
    /// What the job's name stands for: the service and the expression. 0 until that is known.
    fn fingerprint(&self) -> u64 {
        let service = &self.handle.options().service;
        let schedule = self.schedule.get();
        schedule.map_or(0, |schedule| schedule.fingerprint(service))
    }

    /// What the store knows of the job, as far as it can be asked. Whatever should not be so is told.
    pub(crate) async fn fetch_report(&self) -> Option<JobReport> {
        let call = Call::Open {
            within_ms: u64::try_from(self.settings.finish_within.as_millis()).unwrap_or(u64::MAX),
            fingerprint: self.fingerprint(),
            over: self.latest_over(),
        };
        let before = self.now();
        let answer = ask_about_job(&self.handle, &self.name, self.settings.lease, call).await;
        // Whatever keeps the store from answering is told by whoever needs an answer.
        let report = answer.ok()?;
        if report.now_ms > 0 {
            self.note_store_clock(report.now_ms);
        }
        let (label, name) = (self.label(), &self.name);
        if let Some((skew, is_ahead)) = skew(report.now_ms, (before, self.now())) {
            observe::clock_skewed(label, name, skew, is_ahead);
        }
        if Duration::from_millis(report.ahead_ms) > MAX_CLOCK_SKEW {
            observe::mark_ahead(label, name, report.ahead_ms);
        }
        if report.differs {
            observe::job_differs(label, name);
        }
        let mut over = lock(&self.jobs.over);
        let known = over.get(&self.name).copied();
        if known.is_some_and(|tick| tick.0 > report.now_ms) {
            // By a clock that was wrong. Ticks up to it may come again.
            over.remove(&self.name);
        }
        drop(over);
        if let Some(tick) = known.filter(|_| report.lost) {
            observe::store_went_back(label, name, tick);
        }
        Some(report)
    }

    /// It is too late to begin this tick. By the store's clock as it is known here, so that it makes no difference whose clock
    /// is off, and by how much.
    pub(super) fn is_too_old(&self, mark: TickTime, since: Option<Since>) -> bool {
        let age = match (self.store_time(), since) {
            (None, Some(since)) => since.elapsed(),
            (date, _) => age(mark, date.unwrap_or_else(|| self.now())),
        };
        self.settings.oldest().is_some_and(|oldest| age > oldest)
    }

    /// It was due when the store was away.
    pub(super) fn was_kept_waiting(&self, mark: TickTime) -> bool {
        lock(&self.last_outage).is_some_and(|last_outage| time(mark) <= last_outage)
    }

    /// What the store's clock shows, or this node's if that is not known yet.
    pub(super) fn store_or_local_time(&self) -> SystemTime {
        self.store_time().unwrap_or_else(|| self.now())
    }

    fn store_time(&self) -> Option<SystemTime> {
        let (ms, heard) = (*lock(&self.store_clock))?;
        Some(UNIX_EPOCH + Duration::from_millis(ms) + heard.elapsed())
    }

    pub(super) fn note_store_clock(&self, ms: u64) {
        *lock(&self.store_clock) = Some((ms, Since::now()));
    }

    /// The latest tick that this node knows to be over: a store that came back with an older copy does not.
    fn latest_over(&self) -> Option<TickTime> {
        lock(&self.jobs.over).get(&self.name).copied()
    }

    /// The store said so.
    pub(super) fn note_over(&self, mark: TickTime) {
        let mut over = lock(&self.jobs.over);
        let latest = over.entry(self.name.clone()).or_insert(mark);
        *latest = mark.max(*latest);
    }
}

/// So far this node's clock is off the store's for certain, and whether it is ahead, if that is worth telling.
fn skew(store_ms: u64, (asked, answered): (SystemTime, SystemTime)) -> Option<(Duration, bool)> {
    let store = UNIX_EPOCH + Duration::from_millis(store_ms);
    let behind = store.duration_since(answered).unwrap_or_default();
    let ahead = asked.duration_since(store).unwrap_or_default();
    let (skew, is_ahead) = (behind.max(ahead), ahead > behind);
    (store_ms > 0 && skew > MAX_CLOCK_SKEW).then_some((skew, is_ahead))
}
