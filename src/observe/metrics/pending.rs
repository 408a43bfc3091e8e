//! Counts of events in places that must not run foreign code: on the driver's thread, and under locks. A count costs
//! one atomic operation. The event thread passes the counts to the recorder.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[cfg(feature = "metrics")]
use super::{BATCH, SLACK, increment, record, record_many};
use super::{ERRORS, HANDOFFS, LOSSES, Series, kind, loss, word};
use crate::error::{LostCause, StoreError, StoreErrorKind};
#[cfg(feature = "metrics")]
use crate::observe::foreign_code::catch_foreign_panic;
use crate::protocol::message::Name;

/// Counts a lease that passed to the next holder, of this process (`local`) or from another process (`remote`).
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

/// Counts a dead claim that could not be withdrawn before it expired. Without an error, the last try got no answer.
pub(crate) fn leave_failed(error: Option<&StoreError>) {
    let error = word(error.map_or(&StoreErrorKind::TimedOut, StoreError::kind));
    count(&ERRORS, &["withdraw", error]);
}

/// Notes how much of a lease was left when it was renewed.
pub(crate) fn renewed(slack: Duration) {
    if cfg!(feature = "metrics")
        && let Some(mut slacks) = slacks()
        && slacks.len() < MAX_SLACKS
    {
        slacks.push(slack);
    }
}

/// Counts a batch of this many requests.
pub(crate) fn departed(requests: usize) {
    if cfg!(feature = "metrics") {
        BATCHES[requests.min(BATCHES.len() - 1)].fetch_add(1, Ordering::SeqCst);
    }
}

/// Passes all counts to the recorder. Only the event thread calls this. If a recorder panics, the counts of one
/// series are lost.
pub(crate) fn flush() {
    #[cfg(feature = "metrics")]
    {
        let series = [&HANDOFFS, &LOSSES, &ERRORS];
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
        for (requests, kept) in BATCHES.iter().enumerate() {
            let batches = kept.swap(0, Ordering::SeqCst);
            if batches > 0 {
                catch_foreign_panic(|| record_many(&BATCH, &[], batches, || requests as f64));
            }
        }
        let slacks = slacks().map(|mut slacks| std::mem::take(&mut *slacks));
        for slack in slacks.unwrap_or_default() {
            catch_foreign_panic(|| record(&SLACK, &[], || slack.as_secs_f64()));
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

/// At most this many slacks are kept for a tenth of a second. More values are dropped, since the histogram needs only
/// a sample.
const MAX_SLACKS: usize = 4_096;

static SLACKS: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

/// Returns `None` while another thread adds a value, or in a child that was forked at that moment: no thread waits
/// for a sample.
fn slacks() -> Option<MutexGuard<'static, Vec<Duration>>> {
    SLACKS.try_lock().ok()
}
