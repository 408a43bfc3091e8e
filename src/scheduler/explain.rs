//! Predicts what happens to a job's ticks on the days on which a zone's clocks change.
//!
//! The rule is that of croner. A fixed time runs at the first instant after a gap, and in the first pass of an
//! overlap. Times with wildcards or steps skip the gap, and run in both passes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use croner::Cron;

use crate::driver::clock::Clock;
use crate::scheduler::error::JobError;
use crate::scheduler::schedule::parse_cron;
use crate::scheduler::zone::IntoZone;

/// The number of days that are examined: two years.
const EXPLAINED_DAYS: usize = 731;

/// The upper bound of the offset of any zone from UTC, in hours.
const MAX_ZONE_OFFSET_HOURS: i64 = 15;

/// Jobs with more ticks in a day get no event when they are made. That some of their ticks come twice is expected.
const MAX_TICKS_PER_DAY: usize = 1_440;

/// What a change of the clocks does to the ticks of one local date.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// use tenure::scheduler::{Oddity, explain};
///
/// let days = explain("0 30 2 * * *", "Europe/Berlin")?;
/// // A fixed time never comes twice. In spring it comes after the gap.
/// assert!(days.iter().all(|day| matches!(day.oddity, Oddity::Shifted { .. })));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Oddity {
    /// The ticks come twice: in both passes of an overlap.
    Twice,
    /// The ticks do not come: the clocks do not show their time on that day.
    NotAtAll,
    /// The ticks come at another time, because the clocks do not show the time of the expression on that day.
    Shifted {
        /// The time of day at which the first of these ticks comes.
        to: NaiveTime,
    },
}

/// A local date on which ticks do not come as the expression says.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// for day in tenure::scheduler::explain("0 */15 * * * *", "Europe/Berlin")? {
///     println!("{}: {} ticks from {} on: {:?}", day.date, day.count, day.first, day.oddity);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OddDay {
    /// The date in the job's zone.
    pub date: NaiveDate,
    /// What happens to the ticks.
    pub oddity: Oddity,
    /// The time of day of the first of these ticks, by the expression.
    pub first: NaiveTime,
    /// The number of these ticks.
    pub count: usize,
}

impl fmt::Display for OddDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OddDay {
            date, first, count, ..
        } = self;
        match self.oddity {
            Oddity::Twice => write!(f, "{date}: {count} from {first} on come twice"),
            Oddity::NotAtAll => write!(f, "{date}: {count} from {first} on do not come"),
            Oddity::Shifted { to } => write!(f, "{date}: {first} comes at {to}"),
        }
    }
}

/// Returns the days of the next two years on which ticks of the expression come twice, not at all, or at another
/// time, because the clocks of the zone change.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for day in tenure::scheduler::explain("0 30 2 * * *", "Europe/Berlin")? {
///     println!("{day}"); // 2027-03-28: 02:30:00 comes at 03:00:00
/// }
/// assert!(tenure::scheduler::explain("0 30 2 * * *", "UTC")?.is_empty());
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`JobError::Unfit`] if the expression or the zone is invalid.
pub fn explain(expression: &str, zone: impl IntoZone) -> Result<Vec<OddDay>, JobError> {
    let unfit = |why| JobError::Unfit { name: None, why };
    let (zone, cron) = (
        zone.into_zone().map_err(unfit)?,
        parse_cron(expression).map_err(unfit)?,
    );
    Ok(odd_days(&cron, zone, Clock::new().wall().into()))
}

/// Returns the days to report when a job is made: none for a job with very many ticks.
///
/// # Errors
/// Returns what is wrong with the expression.
pub(crate) fn explain_rare_job(expression: &str, zone: Tz, now: SystemTime) -> Result<Vec<OddDay>, String> {
    let (cron, from) = (parse_cron(expression)?, DateTime::<Utc>::from(now));
    let day = ticks(&cron, from, from + chrono::Duration::days(1));
    if day.take(MAX_TICKS_PER_DAY + 1).count() > MAX_TICKS_PER_DAY {
        return Ok(Vec::new());
    }
    Ok(odd_days(&cron, zone, from))
}

fn odd_days(cron: &Cron, zone: Tz, from: DateTime<Utc>) -> Vec<OddDay> {
    let first = from.with_timezone(&zone).date_naive();
    let days = first.iter_days().take(EXPLAINED_DAYS);
    days.map(|date| date.and_time(NaiveTime::MIN))
        .filter(|start| has_change(*start, zone))
        .flat_map(|start| odd_days_on(cron, zone, start))
        .collect()
}

/// Returns whether the clocks change on the local date that begins at `start`.
fn has_change(start: NaiveDateTime, zone: Tz) -> bool {
    // The offsets are compared well before and well after the date, whatever the offset is.
    let offset = |hours| {
        let at = start + chrono::Duration::hours(hours);
        zone.offset_from_utc_datetime(&at).fix()
    };
    offset(-MAX_ZONE_OFFSET_HOURS) != offset(24 + MAX_ZONE_OFFSET_HOURS)
}

fn odd_days_on(cron: &Cron, zone: Tz, start: NaiveDateTime) -> Vec<OddDay> {
    let end = start + chrono::Duration::days(1);
    // The local times that the expression names, by clocks that do not change.
    let expected = ticks(cron, start.and_utc(), end.and_utc());
    let expected: Vec<NaiveDateTime> = expected.map(|tick| tick.naive_utc()).collect();
    // The ticks that come, until two hours after the date: a shifted tick may come on the next date.
    let instant = |local| first_instant(zone, local).or_else(|| after_gap(zone, local));
    let beyond = end + chrono::Duration::hours(2);
    let (Some(from), Some(until)) = (instant(start), instant(beyond)) else {
        return Vec::new();
    };
    let mut actual = BTreeMap::<NaiveDateTime, usize>::new();
    for tick in ticks(cron, from, until) {
        *actual.entry(tick.naive_local()).or_default() += 1;
    }
    let mut found = Vec::<OddDay>::new();
    for local in expected.iter().copied() {
        let oddity = match actual.get(&local) {
            Some(1) => continue,
            Some(_) => Oddity::Twice,
            None => match after_gap(zone, local).map(|to| to.naive_local()) {
                Some(to) if actual.contains_key(&to) && !expected.contains(&to) => {
                    Oddity::Shifted { to: to.time() }
                }
                _ => Oddity::NotAtAll,
            },
        };
        match found.iter_mut().find(|day| day.oddity == oddity) {
            Some(day) => day.count += 1,
            None => found.push(OddDay {
                date: start.date(),
                oddity,
                first: local.time(),
                count: 1,
            }),
        }
    }
    found
}

/// Returns the first instant at which the zone's clocks show that time, or `None` in a gap.
fn first_instant(zone: Tz, local: NaiveDateTime) -> Option<DateTime<Tz>> {
    zone.from_local_datetime(&local).earliest()
}

/// Returns the first full minute after a gap.
fn after_gap(zone: Tz, local: NaiveDateTime) -> Option<DateTime<Tz>> {
    let minute = local.with_second(0)?;
    // No gap is longer than a day, and each gap ends at a full minute.
    (1..=24 * 60 + 1).find_map(|later| first_instant(zone, minute + chrono::Duration::minutes(later)))
}

fn ticks<T: TimeZone>(
    cron: &Cron,
    from: DateTime<T>,
    until: DateTime<T>,
) -> impl Iterator<Item = DateTime<T>> {
    let first = cron.find_next_occurrence(&from, true).ok();
    let all = std::iter::successors(first, |tick| cron.find_next_occurrence(tick, false).ok());
    all.take_while(move |tick| *tick < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd_day_texts(expression: &str, zone: &str) -> Vec<String> {
        let cron = parse_cron(expression).unwrap();
        let from = "2026-01-01T12:00:00Z".parse().unwrap();
        let days = odd_days(&cron, zone.parse().unwrap(), from);
        days.iter()
            .filter(|day| day.date < "2027-01-01".parse().unwrap())
            .map(OddDay::to_string)
            .collect()
    }

    #[test]
    fn fixed_times_are_shifted_out_of_a_gap_and_come_once_in_an_overlap() {
        for (expression, zone, expected) in [
            (
                "0 30 2 * * *",
                "Europe/Berlin",
                "2026-03-29: 02:30:00 comes at 03:00:00",
            ),
            (
                "0 30 2 * * *",
                "America/New_York",
                "2026-03-08: 02:30:00 comes at 03:00:00",
            ),
            (
                "0 0 2 * * *",
                "Australia/Lord_Howe",
                "2026-10-04: 02:00:00 comes at 02:30:00",
            ),
            ("0 0 0 * * *", "Europe/Berlin", ""),
            ("0 30 2 * * *", "UTC", ""),
            ("0 30 2 * * *", "Asia/Kolkata", ""),
            ("0 30 2 * * SAT", "Europe/Berlin", ""),
        ] {
            assert_eq!(
                odd_day_texts(expression, zone).join("; "),
                expected,
                "{expression} {zone}"
            );
        }
    }

    #[test]
    fn wildcards_do_not_come_in_a_gap_and_come_twice_in_an_overlap() {
        assert_eq!(
            odd_day_texts("0 */15 * * * *", "Europe/Berlin"),
            [
                "2026-03-29: 4 from 02:00:00 on do not come",
                "2026-10-25: 4 from 02:00:00 on come twice"
            ]
        );
    }

    #[test]
    fn a_skipped_day_is_reported() {
        let cron = parse_cron("0 0 12 * * *").unwrap();
        let from = "2011-12-01T12:00:00Z".parse().unwrap();
        let days = odd_days(&cron, chrono_tz::Pacific::Apia, from);
        let days: Vec<String> = days.iter().take(1).map(OddDay::to_string).collect();
        assert_eq!(days, ["2011-12-30: 1 from 12:00:00 on do not come"]);
    }
}
