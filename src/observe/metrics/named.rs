//! The series of jobs and servers, whose names are known only at run time. The first names of a process have series of their
//! own; all later names share the series of `other`.

use std::sync::OnceLock;

use super::{
    FAILING, JOB_DUE, JOB_PAUSED, JOB_RUN, JOB_RUNNING, JOB_SUCCESS, MetricKind, Row, Series, TICKS, VERSION,
};

/// The names that have series of their own: at most `MOST`.
pub(super) struct NamedSeries<const MOST: usize> {
    series: &'static [&'static Series],
    /// Filled from the front, so that lookups need no lock.
    named: [OnceLock<Named>; MOST],
    other: OnceLock<Named>,
}

/// A metric and its rows.
type Rows = (&'static Series, Box<[Row]>);

/// The series of one name.
pub(super) struct Named {
    name: Box<str>,
    rows: Box<[Rows]>,
    /// How many jobs of this name the process has.
    #[cfg(feature = "scheduler")]
    pub(super) users: std::sync::atomic::AtomicUsize,
}

pub(super) static JOBS: NamedSeries<100> = NamedSeries::of(&[
    &TICKS,
    &JOB_SUCCESS,
    &JOB_DUE,
    &JOB_PAUSED,
    &JOB_RUNNING,
    &JOB_RUN,
]);
pub(super) static SERVERS: NamedSeries<64> = NamedSeries::of(&[&FAILING]);
pub(super) static VERSIONS: NamedSeries<1> = NamedSeries::of(&[&VERSION]);

impl<const MOST: usize> NamedSeries<MOST> {
    const fn of(series: &'static [&'static Series]) -> Self {
        NamedSeries {
            series,
            named: [const { OnceLock::new() }; MOST],
            other: OnceLock::new(),
        }
    }

    /// Returns the series of a name, and whether they are its own.
    pub(super) fn get(&'static self, name: &str) -> (&'static Named, bool) {
        let made = |name: &str| Named::new(name, self.series);
        let own = self.named.iter().map(|slot| slot.get_or_init(|| made(name)));
        let own = own.into_iter().find(|named| *named.name == *name);
        let other = || self.other.get_or_init(|| made("other"));
        (own.unwrap_or_else(other), own.is_some())
    }

    /// Returns the rows of all gauges.
    pub(super) fn gauges(&'static self) -> impl Iterator<Item = (&'static Series, &'static Row)> {
        let made = self.named.iter().map_while(OnceLock::get);
        let rows = made.chain(self.other.get()).flat_map(|named| &named.rows);
        let gauges = rows.filter(|(series, _)| series.metric.kind == MetricKind::Gauge);
        gauges.flat_map(|(series, rows)| rows.iter().map(|row| (*series, row)))
    }
}

impl Named {
    fn new(name: &str, series: &'static [&'static Series]) -> Named {
        let rows = series
            .iter()
            .map(|series| (*series, series.metric.rows(Some(name))));
        Named {
            name: name.into(),
            rows: rows.collect(),
            #[cfg(feature = "scheduler")]
            users: Default::default(),
        }
    }

    /// Returns the row of a series with these values, one for each of its other labels.
    pub(super) fn row(&'static self, series: &Series, values: &[&str]) -> Option<&'static Row> {
        let (_, rows) = self.rows.iter().find(|(own, _)| std::ptr::eq(*own, series))?;
        series.metric.row(rows, values)
    }

    /// Returns all rows with their series.
    pub(super) fn rows(&'static self) -> impl Iterator<Item = (&'static Series, &'static Row)> {
        let all = self.rows.iter();
        all.flat_map(|(series, rows)| rows.iter().map(|row| (*series, row)))
    }
}
