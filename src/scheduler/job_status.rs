//! What a node learns from the store about a job: its clock, its open ticks, and the ticks that are over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant as Since;

use crate::driver::waiter::lock;
use crate::observe;
use crate::primitives::tick::ask_about_job;
use crate::protocol::message::{Call, Fence, JobReport, LookData, TickTime, WantedRun, start_of};
use crate::scheduler::schedule::{age, time};
use crate::scheduler::tick_runner::TickRunner;

/// The largest difference between a node's clock, or a job's mark, and the store's clock that is not reported.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

impl TickRunner {
    /// Returns the hash of the service and the expression.
    fn fingerprint(&self) -> u64 {
        self.schedule.fingerprint(&self.handle.options().service)
    }

    /// Asks the store for the state of the job. Returns `None` if the store does not answer. Reports what is wrong
    /// with clocks and names.
    pub(crate) async fn fetch_report(&self) -> Option<JobReport> {
        let call = Call::Open {
            fingerprint: self.fingerprint(),
            over: self.latest_over(),
        };
        let (before, ended_before) = (self.now(), *lock(&self.ended_wanted_run));
        let name = self.handle.options().node_name.as_deref().unwrap_or_default();
        let look = LookData {
            name: start_of(name),
            plan: &self.schedule.plan(),
        };
        let look = Some(look.payload());
        let answer = ask_about_job(&self.handle, &self.name, self.settings.lease, (call, look)).await;
        // The code that needs an answer reports why the store does not answer.
        let mut report = answer.ok()?;
        if report.now_ms > 0 {
            self.note_store_clock(report.now_ms);
        }
        self.since_ms.store(report.since_ms, Ordering::Relaxed);
        // The run that was wanted then may have ended here meanwhile.
        let ended = *lock(&self.ended_wanted_run);
        let is_over =
            |wanted: &mut Arc<WantedRun>| ended != ended_before && Some(trigger_of(wanted)) == ended;
        let taken = report.wanted.take_if(is_over);
        if taken.is_none() {
            self.note_wanted(report.wanted.as_ref());
        }
        self.gauges.note_report(&report, &self.schedule);
        let (label, name) = (self.label(), &self.name);
        if let Some((skew, is_ahead)) = skew(report.now_ms, (before, self.now())) {
            observe::clock_skewed(label, name, skew, is_ahead);
        }
        if Duration::from_millis(report.ahead_ms) > MAX_CLOCK_SKEW {
            observe::mark_ahead(label, name, report.ahead_ms);
        }
        // The store knows the fingerprint of the latest question, and each node asks once a lease. Another fingerprint since the last
        // question of this node is that of a process that lives. One before the first may be of a process that a deploy replaced.
        let has_asked = self.has_asked.swap(true, Ordering::Relaxed);
        if report.differs && has_asked {
            observe::job_differs(label, name);
        }
        let mut over = lock(&self.jobs.over);
        let known = over.get(&self.name).copied();
        if known.is_some_and(|tick| tick.0 > report.now_ms) {
            // That tick came from a wrong clock. Ticks up to it may come again.
            over.remove(&self.name);
        }
        drop(over);
        let pause_since = report.paused.as_ref().map_or(u64::MAX, |pause| pause.since_ms);
        if self.reported_pause.swap(pause_since, Ordering::Relaxed) != pause_since
            && let Some(pause) = &report.paused
        {
            observe::job_paused(label, name, &pause.by, &pause.why, pause_since);
        }
        lock(&self.paused).retain(|tick| Some(*tick) > report.mark);
        if let Some(tick) = known.filter(|_| report.lost) {
            observe::store_went_back(label, name, tick);
        }
        Some(report)
    }

    /// Notes the run that operators want. The one before has ended if it is another one.
    fn note_wanted(&self, wanted: Option<&Arc<WantedRun>>) {
        let before = std::mem::replace(&mut *lock(&self.wanted), wanted.cloned());
        if let Some(ended) = before.filter(|before| wanted.map(trigger_of) != Some(trigger_of(before))) {
            *lock(&self.ended_wanted_run) = Some(trigger_of(&ended));
        }
    }

    /// Returns the triggered tick that operators want, unless this node works on it, and whether this node knows that its run has
    /// ended. A store that came back with an older copy of its data wants it again.
    pub(super) fn new_wanted_tick(&self, report: &JobReport) -> Option<(TickTime, bool)> {
        let wanted = report.wanted.as_ref()?;
        let has_ended = *lock(&self.ended_wanted_run) == Some(trigger_of(wanted));
        (!self.is_in_progress(wanted.tick)).then_some((wanted.tick, has_ended))
    }

    /// Returns whether an operator cancelled the run with this fence, whose lease was revoked. A lease may also be stolen. `None`
    /// if the store does not answer.
    pub(super) async fn was_cancelled(&self, fence: Fence) -> Option<bool> {
        let number = fence.number();
        let call = (Call::Ending { number }, None);
        let answer = ask_about_job(&self.handle, &self.name, self.settings.lease, call).await;
        answer.ok().map(|report| report.is_cancelled)
    }

    /// Returns the tick that was begun and has not ended, and whether it is too old to be run.
    pub(super) fn open_tick(&self, report: &JobReport) -> Option<(TickTime, bool)> {
        let open = report.open.filter(|open| !self.is_in_progress(*open))?;
        let age = Duration::from_millis(report.now_ms.saturating_sub(open.0));
        Some((open, age > self.settings.finish_within))
    }

    /// Waits until this node has the job no more, and tells the store. Without an answer the store learns it after the time of
    /// two looks. The future keeps nothing of the job's closure.
    pub(super) fn withdrawn(&self) -> impl Future<Output = ()> + Send + use<> {
        let (handle, name, lease) = (self.handle.clone(), self.name.clone(), self.settings.lease);
        let (closing, removed) = (self.jobs.closing.clone(), self.removed.clone());
        let gauges = self.gauges.clone();
        let withdrawal = self.jobs.withdrawals.token();
        async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = removed.cancelled() => {}
            }
            gauges.end();
            let _ = ask_about_job(&handle, &name, lease, (Call::Withdraw, None)).await;
            drop(withdrawal);
        }
    }

    /// Returns whether it is too late to begin this tick. The store's clock decides, so that a wrong clock of this
    /// node has no effect. Before the store's clock is known, `since` decides.
    pub(super) fn is_too_old(&self, mark: TickTime, since: Option<Since>) -> bool {
        let age = match (self.store_time(), since) {
            (None, Some(since)) => since.elapsed(),
            (date, _) => age(mark, date.unwrap_or_else(|| self.now())),
        };
        self.settings.oldest().is_some_and(|oldest| age > oldest)
    }

    /// Returns whether the store knew this expression when the tick was due. An earlier tick was never scheduled.
    pub(super) fn was_scheduled(&self, mark: TickTime) -> bool {
        mark.0 >= self.since_ms.load(Ordering::Relaxed)
    }

    /// Returns whether the tick was due while the store was unavailable.
    pub(super) fn was_kept_waiting(&self, mark: TickTime) -> bool {
        lock(&self.last_outage).is_some_and(|last_outage| time(mark) <= last_outage)
    }

    /// Returns what the store's clock shows, or this node's clock if that is not known yet.
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

    /// Returns the latest tick that this node knows to be over. A store that was restored from an older copy may not
    /// know it.
    fn latest_over(&self) -> Option<TickTime> {
        lock(&self.jobs.over).get(&self.name).copied()
    }

    /// Records that a tick is over, after the store said so.
    pub(super) fn note_over(&self, mark: TickTime) {
        if mark.is_triggered() {
            // The store compares no triggered tick with later ones. A trigger that came during the run is another one.
            let begun = lock(&self.begun_trigger).take_if(|(tick, _)| *tick == mark);
            if begun.is_some() {
                *lock(&self.ended_wanted_run) = begun;
            }
            return;
        }
        let mut over = lock(&self.jobs.over);
        let latest = over.entry(self.name.clone()).or_insert(mark);
        *latest = mark.max(*latest);
    }
}

/// Returns what names a trigger: its tick, and when it was triggered, in ms.
pub(super) fn trigger_of(wanted: &Arc<WantedRun>) -> (TickTime, u64) {
    (wanted.tick, wanted.act.since_ms)
}

/// Returns by how much this node's clock certainly differs from the store's, and whether it is ahead. Returns `None`
/// if the difference is too small to report.
fn skew(store_ms: u64, (asked_at, answered_at): (SystemTime, SystemTime)) -> Option<(Duration, bool)> {
    let store = UNIX_EPOCH + Duration::from_millis(store_ms);
    let behind = store.duration_since(answered_at).unwrap_or_default();
    let ahead = asked_at.duration_since(store).unwrap_or_default();
    let (skew, is_ahead) = (behind.max(ahead), ahead > behind);
    (store_ms > 0 && skew > MAX_CLOCK_SKEW).then_some((skew, is_ahead))
}
