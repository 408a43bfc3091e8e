//! Counts of events in places that must not run foreign code: on the driver's thread, and under locks. A count costs
//! one atomic operation. The event thread passes the counts to the recorder.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[cfg(feature = "scheduler")]
use super::jobs::JobSeries;
#[cfg(feature = "metrics")]
use super::{ANSWER, BATCH, Row, SLACK, increment, named, record, record_many, set};
use super::{ERRORS, HANDOFFS, HELD, INBOX_LOST, LOSSES, RECALLS, Series, WAITING, kind, loss, word};
use crate::error::{LostCause, StoreError, StoreErrorKind};
#[cfg(feature = "metrics")]
use crate::observe::foreign_code::catch_foreign_panic;
use crate::protocol::message::Name;

/// Counts a lease that passed to the next holder, of this process (`local`) or from another process (`remote`).
pub(crate) fn handed(name: &Name, from: &'static str) {
    count(&HANDOFFS, &[kind(name), from]);
}

pub(crate) fn recalled() {
    count(&RECALLS, &[]);
}

pub(crate) fn lost(name: &Name, cause: LostCause) {
    if let Some(cause) = loss(cause) {
        count(&LOSSES, &[kind(name), cause]);
    }
}

pub(crate) fn store_failed(during: &'static str, error: &StoreError) {
    count(&ERRORS, &[during, word(error.kind())]);
}

/// Counts a dead claim that could not be withdrawn before it expired. Without an error, the last try got no answer.
pub(crate) fn leave_failed(error: Option<&StoreError>) {
    let error = word(error.map_or(&StoreErrorKind::TimedOut, StoreError::kind));
    count(&ERRORS, &["withdraw", error]);
}

/// A gauge of which each thing counts one while it lives. Adding and subtracting cost an atomic operation each.
#[derive(Clone, Copy)]
pub(crate) struct Gauge(#[cfg(feature = "metrics")] Option<&'static Row>);

impl std::fmt::Debug for Gauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauge").finish_non_exhaustive()
    }
}

impl Gauge {
    pub(crate) fn of_held(name: &Name) -> Gauge {
        Gauge::new(&HELD, &[kind(name)])
    }

    pub(crate) fn of_waiting(name: &Name) -> Gauge {
        Gauge::new(&WAITING, &[kind(name)])
    }

    pub(crate) fn of_lost_inboxes() -> Gauge {
        Gauge::new(&INBOX_LOST, &[])
    }

    #[cfg(feature = "scheduler")]
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(crate) fn of_running(job: JobSeries) -> Gauge {
        Gauge(
            #[cfg(feature = "metrics")]
            job.running(),
        )
    }

    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(crate) fn of_failing(server: &str) -> Gauge {
        Gauge(
            #[cfg(feature = "metrics")]
            named::SERVERS.get(server).0.row(&super::FAILING, &[]),
        )
    }

    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    fn new(series: &'static Series, values: &[&str]) -> Gauge {
        Gauge(
            #[cfg(feature = "metrics")]
            series.row(values),
        )
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn add(self, more: i64) {
        if let Some(row) = self.0 {
            row.value.fetch_add(more, Ordering::SeqCst);
            // Ordered with the flag that tells the event thread about new values.
            row.pending.store(1, Ordering::SeqCst);
        }
    }
}

/// Notes how much of a lease was left when it was renewed.
pub(crate) fn renewed(slack: Duration, lease: Duration) {
    SLACKS.note(slack.as_secs_f64() / lease.as_secs_f64());
}

/// Notes how long the store took to answer a batch.
pub(crate) fn store_answered(took: Duration) {
    ANSWERS.note(took.as_secs_f64());
}

/// Counts a batch of this many requests.
pub(crate) fn departed(requests: usize) {
    if cfg!(feature = "metrics") {
        BATCHES[requests.min(BATCHES.len() - 1)].fetch_add(1, Ordering::SeqCst);
    }
}

/// Passes all counts to the recorder. Only the event thread calls this. If a recorder panics, the counts of one
/// series are lost, and the value of a gauge until its next change.
pub(crate) fn flush() {
    #[cfg(feature = "metrics")]
    {
        let series = [&HANDOFFS, &RECALLS, &LOSSES, &ERRORS];
        for row in series
            .into_iter()
            .filter_map(|series| series.rows.get())
            .flatten()
        {
            let kept = row.pending.swap(0, Ordering::SeqCst);
            if kept > 0 {
                catch_foreign_panic(|| increment(row, kept));
            }
        }
        let series = [&HELD, &WAITING, &INBOX_LOST].into_iter();
        let gauges = series.flat_map(|series| {
            series
                .rows
                .get()
                .into_iter()
                .flatten()
                .map(move |row| (series, row))
        });
        let named = named::SERVERS.gauges().chain(named::JOBS.gauges());
        for (series, row) in gauges.chain(named).chain(named::VERSIONS.gauges()) {
            if row.pending.swap(0, Ordering::SeqCst) > 0 {
                catch_foreign_panic(|| set(series, row));
            }
        }
        for (requests, kept) in BATCHES.iter().enumerate() {
            let batches = kept.swap(0, Ordering::SeqCst);
            if batches > 0 {
                catch_foreign_panic(|| record_many(&BATCH, &[], batches, || requests as f64));
            }
        }
        for (series, samples) in [(&SLACK, &SLACKS), (&ANSWER, &ANSWERS)] {
            for value in samples.take() {
                catch_foreign_panic(|| record(series, &[], || value));
            }
        }
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
fn count(series: &Series, values: &[&str]) {
    #[cfg(feature = "metrics")]
    if let Some(row) = series.row(values) {
        // Ordered with the flag that tells the event thread about new counts.
        row.pending.fetch_add(1, Ordering::SeqCst);
    }
}

/// The number of batches of each length. A batch has at most 128 requests.
static BATCHES: [AtomicUsize; 129] = [const { AtomicUsize::new(0) }; 129];

static SLACKS: Samples = Samples(Mutex::new(Vec::new()));
static ANSWERS: Samples = Samples(Mutex::new(Vec::new()));

/// At most this many values are kept for a tenth of a second. More values are dropped, since a histogram needs only a sample.
const MAX_SAMPLES: usize = 4_096;

/// Values of a histogram that the recorder did not get yet.
struct Samples(Mutex<Vec<f64>>);

impl Samples {
    fn note(&self, value: f64) {
        if cfg!(feature = "metrics")
            && let Some(mut values) = self.values()
            && values.len() < MAX_SAMPLES
        {
            values.push(value);
        }
    }

    #[cfg(feature = "metrics")]
    fn take(&self) -> Vec<f64> {
        let values = self.values().map(|mut values| std::mem::take(&mut *values));
        values.unwrap_or_default()
    }

    /// Returns `None` while another thread adds a value, or in a child that was forked at that moment: no thread waits
    /// for a sample.
    fn values(&self) -> Option<MutexGuard<'_, Vec<f64>>> {
        self.0.try_lock().ok()
    }
}
