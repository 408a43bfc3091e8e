//! Records what the crate counts and measures, by name and label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// A metric with its labels: `tenure_losses_total{cause=gone}`.
type Series = String;

/// A recorder. Clones share their records.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    only_gauges: bool,
    counters: BTreeMap<Series, u64>,
    gauges: BTreeMap<Series, f64>,
    values: BTreeMap<Series, Vec<f64>>,
    described: BTreeMap<String, (&'static str, Option<Unit>, String)>,
    /// The addresses of the keys with which each series was fed.
    keys: BTreeMap<Series, BTreeSet<usize>>,
}

impl Meter {
    /// Returns the recorder for every thread of this binary, including those of other tests.
    pub fn global() -> Meter {
        static GLOBAL: std::sync::LazyLock<Meter> = std::sync::LazyLock::new(|| {
            let meter = Meter::default();
            metrics::set_global_recorder(meter.clone()).expect("no other recorder is set");
            meter
        });
        GLOBAL.clone()
    }

    /// Installs a recorder of gauges alone for this process, which may run for long.
    pub fn of_gauges() -> Meter {
        let meter = Meter::default();
        meter.0.lock().unwrap().only_gauges = true;
        metrics::set_global_recorder(meter.clone()).expect("no other recorder is set");
        meter
    }

    /// Returns the gauges that are not zero, of those that begin so.
    pub fn gauges_above_zero(&self, begin: &str) -> Vec<(Series, f64)> {
        let kept = self.kept();
        let set = kept
            .gauges
            .iter()
            .filter(|(series, value)| series.starts_with(begin) && **value != 0.0);
        set.map(|(series, value)| (series.clone(), *value)).collect()
    }

    pub fn count(&self, series: &str) -> u64 {
        self.kept().counters.get(series).copied().unwrap_or(0)
    }

    pub fn values(&self, series: &str) -> Vec<f64> {
        let kept = self.kept();
        kept.values.get(series).cloned().unwrap_or_default()
    }

    /// Returns the latest value of a gauge.
    pub fn gauge(&self, series: &str) -> Option<f64> {
        self.kept().gauges.get(series).copied()
    }

    /// Returns every series that was ever fed, and its kind.
    pub fn series(&self) -> Vec<(&'static str, Series)> {
        let kept = self.kept();
        let counters = kept.counters.keys().map(|series| ("counter", series.clone()));
        let values = kept.values.keys().map(|series| ("histogram", series.clone()));
        let gauges = kept.gauges.keys().map(|series| ("gauge", series.clone()));
        counters.chain(values).chain(gauges).collect()
    }

    /// Returns the addresses of the keys with which each series was fed.
    pub fn keys(&self) -> BTreeMap<Series, BTreeSet<usize>> {
        self.kept().keys.clone()
    }

    /// Returns the records, with everything that has happened so far.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        tenure::testing::flush_events();
        self.0.lock().unwrap()
    }

    /// Returns kind, unit and text of a metric.
    pub fn described(&self, name: &str) -> Option<(&'static str, Option<Unit>, String)> {
        self.0.lock().unwrap().described.get(name).cloned()
    }

    /// Waits until a series was fed.
    pub async fn until(&self, series: &str) {
        let fed = async {
            while self.count(series) == 0 && self.values(series).is_empty() && self.gauge(series).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), fed).await;
        assert!(
            in_time.is_ok(),
            "timed out waiting for {series}: {:?}",
            self.series()
        );
    }
}

struct Cell {
    series: Series,
    meter: Meter,
}

impl Cell {
    fn new(meter: &Meter, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let series = match labels.is_empty() {
            true => key.name().to_owned(),
            false => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        let meter = meter.clone();
        let at = std::ptr::from_ref(key).addr();
        meter
            .0
            .lock()
            .unwrap()
            .keys
            .entry(series.clone())
            .or_default()
            .insert(at);
        Arc::new(Cell { series, meter })
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        *self
            .meter
            .0
            .lock()
            .unwrap()
            .counters
            .entry(self.series.clone())
            .or_default() += value;
    }

    fn absolute(&self, _: u64) {
        panic!("{} is set", self.series);
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        let mut kept = self.meter.0.lock().unwrap();
        kept.values.entry(self.series.clone()).or_default().push(value);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        panic!("{} is incremented, and some recorders cannot", self.series);
    }

    fn decrement(&self, _: f64) {
        panic!("{} is decremented, and some recorders cannot", self.series);
    }

    fn set(&self, value: f64) {
        let mut kept = self.meter.0.lock().unwrap();
        kept.gauges.insert(self.series.clone(), value);
    }
}

impl Recorder for Meter {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = ("counter", unit, text.into_owned());
        let mut kept = self.0.lock().unwrap();
        kept.described.insert(name.as_str().to_owned(), described);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = ("gauge", unit, text.into_owned());
        let mut kept = self.0.lock().unwrap();
        kept.described.insert(name.as_str().to_owned(), described);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = ("histogram", unit, text.into_owned());
        let mut kept = self.0.lock().unwrap();
        kept.described.insert(name.as_str().to_owned(), described);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if self.0.lock().unwrap().only_gauges {
            return Counter::noop();
        }
        Counter::from_arc(Cell::new(self, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Cell::new(self, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if self.0.lock().unwrap().only_gauges {
            return Histogram::noop();
        }
        Histogram::from_arc(Cell::new(self, key))
    }
}
