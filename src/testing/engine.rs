//! tokio-cron-scheduler's clock as a model (0.15.1): when it looks, and which jobs it then fires.
//!
//! All else of that crate runs as it is. The crate's own loop reads the machine's clock, so it is not run: this says
//! what it would do. `tests/live/engine.rs` compares the two.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// So often it looks, and it is a little late each time.
pub const LOOKS_EVERY: Duration = Duration::from_millis(501);

/// The next tick of a job after a moment.
pub type After = Arc<dyn Fn(DateTime<Utc>) -> Option<DateTime<Utc>> + Send + Sync>;

/// The jobs of a scheduler, and when each fires next.
#[derive(Debug, Clone, Default)]
pub struct EngineModel(BTreeMap<Uuid, Job>);

#[derive(Clone)]
struct Job {
    after: After,
    next: Option<DateTime<Utc>>,
    last: Option<DateTime<Utc>>,
}

impl EngineModel {
    /// A job is added at that time.
    pub fn add(&mut self, id: Uuid, now: DateTime<Utc>, after: After) {
        let (next, last) = (whole(after(now)), None);
        self.0.insert(id, Job { after, next, last });
    }

    /// Keeps those jobs.
    pub fn retain(&mut self, is_there: impl Fn(Uuid) -> bool) {
        self.0.retain(|id, _| is_there(*id));
    }

    /// It has that job.
    pub fn has(&self, id: Uuid) -> bool {
        self.0.contains_key(&id)
    }

    /// When some job fires next: at the first look at that time or after it.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.0.values().filter_map(|job| job.next).min()
    }

    /// It looks, and its clock shows that time: these jobs fire.
    pub fn look(&mut self, now: DateTime<Utc>) -> Vec<Uuid> {
        let mut fired = Vec::new();
        for (id, job) in &mut self.0 {
            let is_due = |next: &DateTime<Utc>| now >= *next && job.last.is_none_or(|last| last <= *next);
            if job.next.as_ref().is_some_and(is_due) {
                fired.push(*id);
                // What it slept through it fires once, and what its clock shows twice it fires when that comes again.
                job.next = whole((job.after)(now));
                job.last = whole(Some(now));
            }
        }
        fired
    }
}

/// The crate keeps whole seconds, and what it works out has the fraction that its clock showed.
fn whole(at: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(at?.timestamp(), 0)
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
