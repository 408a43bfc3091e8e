//! What is counted where no foreign code may run: on the driver's thread, and under locks. It costs an atomic, and the
//! event thread tells it to the recorder.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[cfg(feature = "metrics")]
use super::{BATCH, SLACK, increment, record, record_many};
use super::{ERRORS, HANDOFFS, LOSSES, Series, kind, loss, word};
use crate::error::{LostCause, StoreError, StoreErrorKind};
#[cfg(feature = "metrics")]
use crate::observe::shield::shielded;
use crate::protocol::message::Name;

/// A lease passed to the next holder, within the process (`local`) or from another one (`remote`).
pub(crate) fn handed(name: &Name, from: &'static str) {
    count(&HANDOFFS, &[kind(name), from]);
}

pub(crate) fn lost(name: &Name, cause: LostCause) {
    if let Some(cause) = loss(cause) {
        count(&LOSSES, &[kind(name), cause]);
    }
}

pub(crate) fn store_failed(during: &'static str, error: &StoreError) {
    count(&ERRORS, &[during, word(error.kind())]);
}

/// A dead claim could not be withdrawn before it ended by itself. Without an error the last try got no answer.
pub(crate) fn leave_failed(error: Option<&StoreError>) {
    let error = word(error.map_or(&StoreErrorKind::TimedOut, StoreError::kind));
    count(&ERRORS, &["withdraw", error]);
}

/// A lease was renewed with so much of it left.
pub(crate) fn renewed(slack: Duration) {
    if cfg!(feature = "metrics")
        && let Some(mut slacks) = slacks()
        && slacks.len() < MOST_SLACKS
    {
        slacks.push(slack);
    }
}

/// So many requests leave for the store in one batch.
pub(crate) fn departed(requests: usize) {
    if cfg!(feature = "metrics") {
        BATCHES[requests.min(BATCHES.len() - 1)].fetch_add(1, Ordering::SeqCst);
    }
}

/// Tells the recorder what was kept. For the event thread alone; a recorder that panics loses one series' counts.
pub(crate) fn flush() {
    #[cfg(feature = "metrics")]
    {
        let series = [&HANDOFFS, &LOSSES, &ERRORS];
        for row in series
            .into_iter()
            .filter_map(|series| series.rows.get())
            .flatten()
        {
            let kept = row.kept.swap(0, Ordering::SeqCst);
            if kept > 0 {
                shielded(|| increment(row, kept));
            }
        }
        for (requests, kept) in BATCHES.iter().enumerate() {
            let batches = kept.swap(0, Ordering::SeqCst);
            if batches > 0 {
                shielded(|| record_many(&BATCH, &[], batches, || requests as f64));
            }
        }
        let slacks = slacks().map(|mut slacks| std::mem::take(&mut *slacks));
        for slack in slacks.unwrap_or_default() {
            shielded(|| record(&SLACK, &[], || slack.as_secs_f64()));
        }
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
fn count(series: &Series, values: &[&str]) {
    #[cfg(feature = "metrics")]
    if let Some(row) = series.row(values) {
        // In one order with what tells the event thread that there is something.
        row.kept.fetch_add(1, Ordering::SeqCst);
    }
}

/// Batches by their length, which is 128 at the most.
static BATCHES: [AtomicUsize; 129] = [const { AtomicUsize::new(0) }; 129];

/// Slacks that are kept at the most, for a tenth of a second. The rest is left out: it would say the same.
const MOST_SLACKS: usize = 4_096;

static SLACKS: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

/// `None` while another thread adds one, or in a child that was forked just then: nobody waits for a sample.
fn slacks() -> Option<MutexGuard<'static, Vec<Duration>>> {
    SLACKS.try_lock().ok()
}
