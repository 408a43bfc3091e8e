//! The series of jobs, which have the names of the jobs.

#[cfg(feature = "metrics")]
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(feature = "metrics")]
use super::named::{JOBS, Named};
#[cfg(feature = "metrics")]
use super::{
    JOB_DUE, JOB_PAUSED, JOB_RUN, JOB_RUNNING, JOB_SUCCESS, METADATA, MetricKind, Row, TICKS, UNKNOWN, exist,
    increment,
};
use crate::key::Key;

/// The series of a job, while this process has the job.
#[derive(Clone, Copy)]
pub(crate) struct JobSeries(#[cfg(feature = "metrics")] Option<&'static Named>);

/// A gauge of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobGauge {
    /// In ms since 1970.
    LastSuccess,
    /// In ms since 1970.
    SuccessDue,
    /// 0 or 1.
    Paused,
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self))]
impl JobSeries {
    /// Begins the series of a job, at zero, but those of timestamps. Runs the recorder.
    pub(crate) fn begin(job: &Key) -> JobSeries {
        #[cfg(feature = "metrics")]
        {
            let (named, is_own) = JOBS.get(&job.unique_text());
            for (series, row) in named.rows() {
                let is_counter = series.metric.kind == MetricKind::Counter;
                // Timestamps are not known yet: those of 1970 would raise alerts.
                if is_counter || is_own && series.metric.unit != "seconds" {
                    exist(series, row);
                }
            }
            // After the recorder, which may panic.
            if is_own {
                named.users.fetch_add(1, Ordering::SeqCst);
            }
            JobSeries(is_own.then_some(named))
        }
        #[cfg(not(feature = "metrics"))]
        JobSeries()
    }

    /// Sets a gauge. `None`: the value is not known.
    pub(crate) fn set(self, gauge: JobGauge, value: Option<u64>) {
        #[cfg(feature = "metrics")]
        self.store(
            gauge,
            value.map_or(UNKNOWN, |value| i64::try_from(value).unwrap_or(i64::MAX)),
        );
    }

    /// Ends the series of one job of this name. After the last one, nothing is known.
    pub(crate) fn end(self) {
        #[cfg(feature = "metrics")]
        if self
            .0
            .is_some_and(|named| named.users.fetch_sub(1, Ordering::SeqCst) == 1)
        {
            self.store(JobGauge::LastSuccess, UNKNOWN);
            self.store(JobGauge::SuccessDue, UNKNOWN);
            self.store(JobGauge::Paused, 0);
        }
    }

    /// Returns the row of the gauge of runs.
    #[cfg(feature = "metrics")]
    pub(super) fn running(self) -> Option<&'static Row> {
        self.0?.row(&JOB_RUNNING, &[])
    }

    #[cfg(feature = "metrics")]
    fn store(self, gauge: JobGauge, value: i64) {
        let series = match gauge {
            JobGauge::LastSuccess => &JOB_SUCCESS,
            JobGauge::SuccessDue => &JOB_DUE,
            JobGauge::Paused => &JOB_PAUSED,
        };
        if let Some(row) = self.0.and_then(|named| named.row(series, &[])) {
            row.value.store(value, Ordering::SeqCst);
            row.pending.store(1, Ordering::SeqCst);
        }
    }
}

/// Counts a tick that is over for this process, and records how long its run lasted, if it was run here.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn ticked(job: &Key, outcome: &'static str, took: Option<Duration>) {
    #[cfg(feature = "metrics")]
    {
        let (named, _) = JOBS.get(&job.unique_text());
        if let Some(row) = named.row(&TICKS, &[outcome]) {
            increment(row, 1);
        }
        // Such a tick was granted, and the job was not called.
        let took = took.filter(|_| !["missed", "given_up"].contains(&outcome));
        if let Some((row, took)) = named.row(&JOB_RUN, &[]).zip(took) {
            ::metrics::with_recorder(|to| {
                to.register_histogram(&row.key, &METADATA)
                    .record(took.as_secs_f64())
            });
        }
    }
}
