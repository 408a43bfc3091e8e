//! The gauges of a job: when it succeeded last, since when a success is due, whether it is paused, and what runs here.

use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use crate::driver::events::{Counted, EventSink};
use crate::driver::waiter::lock;
use crate::key::Key;
use crate::observe::pending::Gauge;
use crate::observe::{JobGauge, JobSeries};
use crate::protocol::message::{JobReport, TickTime};
use crate::scheduler::schedule::{Schedule, time};

/// The gauges of a job, while this node has the job.
pub(crate) struct JobGauges {
    series: JobSeries,
    events: EventSink,
    /// `None` once this node has the job no more.
    known: Mutex<Option<Known>>,
}

/// What decides when a success is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// The latest tick that succeeded, on any node.
    well: Option<TickTime>,
    /// When the latest pause ended.
    resumed: Option<TickTime>,
    /// When the store first saw the schedule, which a deploy may change.
    since: Option<TickTime>,
    /// When a success is due, in ms since 1970.
    due: Option<u64>,
}

impl JobGauges {
    /// Begins the gauges of a job.
    pub(crate) fn begin(events: &EventSink, job: &Key) -> JobGauges {
        let gauges = JobGauges {
            series: JobSeries::begin(job),
            events: events.clone(),
            known: Mutex::new(Some(Known::default())),
        };
        gauges.events.push(None);
        gauges
    }

    /// Shows what the store knows of the job. Before its first answer, a new process would hide that a success is overdue.
    pub(crate) fn note_report(&self, report: &JobReport, schedule: &Schedule) {
        let since = (report.since_ms > 0).then_some(TickTime(report.since_ms));
        let paused = u64::from(report.paused.is_some());
        self.change(schedule, Some(paused), |known| Known {
            // A tick may have succeeded here since the look. One of the future is of a wrong clock, and may have been reset.
            well: known.well.filter(|well| well.0 <= report.now_ms).max(report.well),
            resumed: report.resumed_ms.map(TickTime),
            since: since.or(known.since),
            ..known
        });
    }

    /// Shows that a tick succeeded here.
    pub(crate) fn note_success(&self, mark: TickTime, schedule: &Schedule) {
        let nominal = TickTime(mark.nominal_ms());
        self.change(schedule, None, |known| Known {
            well: known.well.max(Some(nominal)),
            ..known
        });
    }

    /// Counts a run while it lasts.
    pub(crate) fn running(&self) -> Counted {
        self.events.counted(Gauge::of_running(self.series))
    }

    /// Ends the gauges: this node has the job no more. Later calls do nothing.
    pub(crate) fn end(&self) {
        let mut known = lock(&self.known);
        if known.take().is_some() {
            self.series.end();
            self.events.push(None);
        }
    }

    /// Shows what is known after a change. Of two `Locks` with one job the latest answer counts, also if it changes nothing.
    fn change(&self, schedule: &Schedule, paused: Option<u64>, change: impl FnOnce(Known) -> Known) {
        let mut known = lock(&self.known);
        let Some(before) = known.filter(|_| cfg!(feature = "metrics")) else {
            return;
        };
        let mut after = change(before);
        // A look for the next tick may take long, so it is not repeated for nothing.
        if after.due.is_none() || after != before {
            after.due = after.due_ms(schedule);
        }
        *known = Some(after);
        self.series
            .set(JobGauge::LastSuccess, Some(after.well.map_or(0, |well| well.0)));
        self.series.set(JobGauge::SuccessDue, after.due);
        if paused.is_some() {
            self.series.set(JobGauge::Paused, paused);
        }
        self.events.push(None);
    }
}

impl Known {
    /// Returns when a success is due, in ms since 1970. `None` without a further tick. The store's clock decides, and starts of
    /// replicas change nothing: otherwise a replica that crashes again and again would postpone it for ever.
    fn due_ms(&self, schedule: &Schedule) -> Option<u64> {
        let since = time(self.well.max(self.resumed).max(self.since)?);
        let due = schedule.until_next(since).map(|left| since + left)?;
        let due = due.duration_since(UNIX_EPOCH).ok()?;
        Some(u64::try_from(due.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Drop for JobGauges {
    fn drop(&mut self) {
        self.end();
    }
}
