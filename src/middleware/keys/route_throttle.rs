//! What is told now and then, however many requests meet it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use tokio::time::Instant;

use crate::driver::waiter::lock;
use crate::middleware::refusal::route;

/// A fault of the program meets every request of a route: an error for each would fill the log.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// When it was told last, by route. There are as many as the program has declared; requests without a route are one.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteThrottle(Arc<Mutex<HashMap<String, Instant>>>);

impl RouteThrottle {
    /// Whether it was not told for this route within the last minute.
    pub(super) fn can_report(&self, parts: &Parts) -> bool {
        let (now, route) = (Instant::now(), route(parts).unwrap_or_default());
        let mut told = lock(&self.0);
        let last = told.get(route);
        let can_report = last.is_none_or(|last| now.duration_since(*last) >= MIN_REPORT_INTERVAL);
        if can_report {
            told.insert(route.to_owned(), now);
        }
        can_report
    }
}
