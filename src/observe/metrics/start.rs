//! What happens to metrics before the first event: they are described, and exist.

#[cfg(feature = "metrics")]
use super::named::VERSIONS;
#[cfg(feature = "metrics")]
use super::{METRICS, Metric, MetricKind, SERIES, exist};

/// Describes all metrics to the recorder, and makes counters and gauges exist at zero. A recorder that is installed later has no
/// units and texts, and gets each series with its next change.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    for Metric {
        name,
        kind,
        unit,
        text,
        ..
    } in METRICS
    {
        let unit = match *unit {
            "seconds" => ::metrics::Unit::Seconds,
            _ => ::metrics::Unit::Count,
        };
        match kind {
            MetricKind::Counter => ::metrics::describe_counter!(*name, unit, *text),
            MetricKind::Gauge => ::metrics::describe_gauge!(*name, unit, *text),
            MetricKind::Histogram => ::metrics::describe_histogram!(*name, unit, *text),
        }
    }
    #[cfg(feature = "metrics")]
    {
        for series in SERIES {
            let rows = series.rows.get_or_init(|| series.metric.rows(None));
            rows.iter().for_each(|row| exist(series, row));
        }
        let (version, _) = VERSIONS.get(env!("CARGO_PKG_VERSION"));
        for (series, row) in version.rows() {
            row.value.store(1, std::sync::atomic::Ordering::SeqCst);
            exist(series, row);
        }
    }
}
