//! Reports that are made at most once a minute.

use std::time::Duration;

use crate::protocol::time::Instant;

/// The shortest time between two reports.
const PERIOD: Duration = Duration::from_secs(60);

/// When a report was last made.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Option<Instant>);

impl Throttle {
    /// Returns whether no report was made within a minute, and notes that one is made now.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|at| now.since(at) >= PERIOD);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}
