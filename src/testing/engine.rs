//! A model of the loop of tokio-cron-scheduler 0.15.1: when the loop looks at the clock, and which jobs it fires then.
//!
//! A simulation runs everything else of that crate as it is. It does not run the loop, which reads the machine's clock.
//! `tests/live/engine.rs` compares the model with the loop.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The pause between two looks of the loop, including its small delay.
pub const LOOKS_EVERY: Duration = Duration::from_millis(501);

/// A function that returns the next tick of a job after a moment.
pub type After = Arc<dyn Fn(DateTime<Utc>) -> Option<DateTime<Utc>> + Send + Sync>;

/// The jobs of a scheduler, and when each fires next.
#[derive(Debug, Clone, Default)]
pub struct EngineModel(BTreeMap<Uuid, ModelJob>);

#[derive(Clone)]
struct ModelJob {
    after: After,
    next: Option<DateTime<Utc>>,
    last: Option<DateTime<Utc>>,
}

impl EngineModel {
    /// Adds a job at the time `now`.
    pub fn add(&mut self, id: Uuid, now: DateTime<Utc>, after: After) {
        let (next, last) = (whole(after(now)), None);
        self.0.insert(id, ModelJob { after, next, last });
    }

    /// Keeps the jobs for which `is_there` returns `true`.
    pub fn retain(&mut self, is_there: impl Fn(Uuid) -> bool) {
        self.0.retain(|id, _| is_there(*id));
    }

    /// Returns whether the model has this job.
    pub fn has(&self, id: Uuid) -> bool {
        self.0.contains_key(&id)
    }

    /// Returns when a job is due next. The job fires at the first look at or after that time.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.0.values().filter_map(|job| job.next).min()
    }

    /// Looks at the clock, which shows `now`, and returns the jobs that fire.
    pub fn look(&mut self, now: DateTime<Utc>) -> Vec<Uuid> {
        let mut fired = Vec::new();
        for (id, job) in &mut self.0 {
            let is_due = |next: &DateTime<Utc>| now >= *next && job.last.is_none_or(|last| last <= *next);
            if job.next.as_ref().is_some_and(is_due) {
                fired.push(*id);
                // Of several missed ticks one is fired. If the clock is set back, a tick fires again when its time comes again.
                job.next = whole((job.after)(now));
                job.last = whole(Some(now));
            }
        }
        fired
    }
}

/// Cuts a time to whole seconds, as the crate does. The times that it calculates have the fraction of its clock.
fn whole(at: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(at?.timestamp(), 0)
}

impl fmt::Debug for ModelJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelJob")
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
