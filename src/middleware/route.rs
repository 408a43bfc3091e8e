//! The route of a request, and a limit of how often a fault is reported for each route.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use tokio::time::Instant;

use crate::driver::waiter::lock;

/// Returns the route as it was declared, if axum knows it.
#[cfg_attr(not(feature = "axum"), allow(unused_variables))]
pub(super) fn route(parts: &Parts) -> Option<&str> {
    #[cfg(feature = "axum")]
    return parts
        .extensions
        .get::<axum::extract::MatchedPath>()
        .map(axum::extract::MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    None
}

/// The shortest time between two reports of one route. A fault of the program affects every request of a route, and
/// an error for each request would fill the log.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// When the fault was last reported, by route. The map has at most one entry per declared route, and one for requests
/// without a route.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteThrottle(Arc<Mutex<HashMap<String, Instant>>>);

impl RouteThrottle {
    /// Returns whether the fault was not reported for this route within the last minute, and records this report.
    pub(super) fn allow(&self, parts: &Parts) -> bool {
        let (now, route) = (Instant::now(), route(parts).unwrap_or_default());
        let mut reports = lock(&self.0);
        let last = reports.get(route);
        let allow = last.is_none_or(|last| now.duration_since(*last) >= MIN_REPORT_INTERVAL);
        if allow {
            reports.insert(route.to_owned(), now);
        }
        allow
    }
}
