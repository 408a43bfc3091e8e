//! What layers tell of requests.

#[cfg(feature = "axum")]
use tracing::error;
use tracing::{Level, info, warn};

use crate::observe::event::event_at;
use crate::observe::metrics;

/// A layer answers a request itself.
pub(crate) struct Refusal<'a> {
    /// The outcome's name; the client is told no more than that.
    pub(crate) why: &'a str,
    /// The same as a label.
    pub(crate) label: &'static str,
    /// What was sent.
    pub(crate) status: u16,
    pub(crate) route: Option<&'a str>,
    /// A layer that is set up wrongly, for the first time.
    pub(crate) is_news: bool,
}

pub(crate) fn refused(refusal: &Refusal<'_>, error: Option<&crate::error::Error>) {
    metrics::refused(refusal.label);
    let error = error.map(tracing::field::display);
    let text = if refusal.is_news {
        "a request was refused, and the layer is set up wrongly: told once"
    } else {
        "a request was refused"
    };
    let level = level_of_fault(refusal.is_news);
    event_at!(level: event = "refused", why = refusal.why, status = refusal.status, route = refusal.route, error, "{text}");
}

/// A layer refused so many requests since this was told last, because others had or awaited their keys.
pub(crate) fn refused_busy(count: u64, route: Option<&str>) {
    warn!(target: "tenure", event = "refused_busy", count, route, "requests were refused, as others had or awaited their keys");
}

/// Counts a request behind a layer in a dry run, and reports one that would have waited or been refused.
pub(crate) fn dry_run(outcome: &'static str, route: Option<&str>) {
    metrics::dry_run(outcome, route);
    if outcome != "alone" {
        info!(target: "tenure", event = "dry_run", outcome, route, "the layer would have made a request wait, or would have refused it");
    }
}

#[cfg(feature = "axum")]
pub(crate) fn lease_missing(path: &str) {
    error!(target: "tenure", event = "lease_missing", path, "a handler asks for a lease, and no LockLayer took one");
}

/// The level of a fault of the program that many requests meet: an error now and then, and a detail in between.
fn level_of_fault(is_news: bool) -> Level {
    if is_news { Level::ERROR } else { Level::DEBUG }
}

#[cfg(feature = "axum")]
pub(crate) fn parameter_missing(parameter: &str, path: &str, is_routed: bool, is_news: bool) {
    let why = if is_routed {
        "a LockLayer locks a path parameter that this route does not have"
    } else {
        "a LockLayer locks a path parameter where no route is known: use `route_layer`, not `Router::layer`"
    };
    let level = level_of_fault(is_news);
    event_at!(level: event = "parameter_missing", parameter, path, "{why}");
}

#[cfg(feature = "axum")]
pub(crate) fn parameter_twice(parameter: &str, path: &str, is_news: bool) {
    let level = level_of_fault(is_news);
    event_at!(level: event = "parameter_twice", parameter, path, "a LockLayer locks a path parameter that this route has twice; name them apart");
}

pub(crate) fn extension_missing(extension: &str, path: &str, is_news: bool) {
    let level = level_of_fault(is_news);
    event_at!(level: event = "extension_missing", extension, path, "a LockLayer makes its key of an extension that the request does not have; put it inside of the layer that adds it");
}
