//! When a job is due. Knows croner, but no scheduler.

use std::hash::Hasher;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds};
use siphasher::sip::SipHasher24;

use crate::protocol::message::TickTime;

/// When a job is due. All nodes read it alike.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    rule: Recurrence,
    /// The text of the user, with its zone.
    text: String,
}

#[derive(Debug, Clone)]
enum Recurrence {
    Cron(Box<Cron>, Tz),
    /// The period in milliseconds, counted from the Unix epoch.
    Every(u64),
}

impl Schedule {
    /// Reads an expression in a zone, whose offset is computed for each tick.
    ///
    /// # Errors
    /// Returns what is wrong with the text.
    pub(crate) fn in_zone(text: &str, zone: Tz) -> Result<Schedule, String> {
        let cron = parse_cron(text)?;
        Ok(Schedule {
            text: format!("{} {zone:?}", cron.as_str()),
            rule: Recurrence::Cron(Box::new(cron), zone),
        })
    }

    /// Returns zone and expression as other nodes and operators are told: `<zone>:<expression>`. Empty for a text that is too
    /// long to be told.
    pub(crate) fn plan(&self) -> String {
        let plan = match &self.rule {
            Recurrence::Cron(cron, zone) => format!("{zone:?}:{}", cron.as_str()),
            Recurrence::Every(period) => format!("{:?}:every {} s", Tz::UTC, period / 1000),
        };
        if plan.len() > MAX_PLAN {
            String::new()
        } else {
            plan
        }
    }

    /// Reads a [`plan`](Self::plan). Returns the schedule and its zone, or `None` if the plan has another form.
    pub(crate) fn of_plan(plan: &str) -> Option<(Schedule, Tz)> {
        let (zone, expression) = plan.split_once(':')?;
        let zone = zone.parse().ok()?;
        let every = expression
            .strip_prefix("every ")
            .and_then(|rest| rest.strip_suffix(" s"));
        let schedule = match every {
            Some(seconds) => Schedule::every(Duration::from_secs(seconds.parse().ok()?)),
            None => Schedule::in_zone(expression, zone),
        };
        Some((schedule.ok()?, zone))
    }

    /// Returns a schedule with a fixed period, counted from the Unix epoch. It is the same on every node, whenever
    /// the node was started.
    ///
    /// # Errors
    /// Returns why the period is invalid.
    pub(crate) fn every(period: Duration) -> Result<Schedule, String> {
        if period < Duration::from_secs(1) || period.subsec_nanos() > 0 {
            return Err(format!("ticks are whole seconds apart, not {period:?}"));
        }
        if period > MAX_PERIOD {
            return Err(format!("ticks are at most ten years apart, not {period:?}"));
        }
        Ok(Schedule {
            rule: Recurrence::Every(u64::try_from(period.as_millis()).map_err(|_| "the period is too long")?),
            text: format!("every {period:?}"),
        })
    }

    /// Returns the latest tick that is not in the future of this node's clock, in whole seconds. All nodes agree on
    /// it, whatever their phase. If their clocks differ, the store decides.
    ///
    /// # Errors
    /// Returns why there is no such tick.
    pub(crate) fn latest(&self, now: SystemTime) -> Result<TickTime, String> {
        let now = to_date(now)?;
        let tick = match &self.rule {
            Recurrence::Cron(cron, zone) => previous_tick(cron, *zone, now)
                .map_err(|error| format!("`{}` has no tick before {now}: {error}", self.text))?
                .timestamp_millis(),
            Recurrence::Every(period) => {
                now.timestamp_millis() - now.timestamp_millis() % period.cast_signed()
            }
        };
        u64::try_from(tick)
            .map(TickTime)
            .map_err(|_| format!("a tick at {tick} ms is before 1970"))
    }

    /// Returns the time to the next tick, by this node's clock.
    pub(crate) fn until_next(&self, now: SystemTime) -> Option<Duration> {
        let from = to_date(now).ok()?;
        let next = match &self.rule {
            Recurrence::Cron(cron, zone) => {
                u64::try_from(next_tick(cron, *zone, from).ok()?.timestamp_millis()).ok()?
            }
            Recurrence::Every(period) => self.latest(now).ok()?.0 + period,
        };
        let next = UNIX_EPOCH + Duration::from_millis(next);
        Some(next.duration_since(now).unwrap_or_default())
    }

    /// Checks that the schedule has a next tick. An expression may name a day that no year has, or only past years.
    ///
    /// # Errors
    /// Returns a text if no tick will come.
    pub(crate) fn check_has_next(&self, now: SystemTime) -> Result<(), String> {
        match self.until_next(now) {
            Some(_) => Ok(()),
            None => Err(format!(
                "`{}` has no future tick: the job would never run",
                self.text
            )),
        }
    }

    /// Returns the nominal time of a tick in the zone of the schedule, by RFC 3339.
    pub(crate) fn date(&self, tick: TickTime) -> String {
        let zone = match &self.rule {
            Recurrence::Cron(_, zone) => *zone,
            Recurrence::Every(_) => Tz::UTC,
        };
        let date = to_date(time(tick)).map(|date| date.with_timezone(&zone));
        date.map_or_else(
            |error| error,
            |date| date.to_rfc3339_opts(SecondsFormat::Secs, true),
        )
    }

    /// Returns a hash that is the same on every node with the same service and schedule. It is never 0, because 0
    /// means unknown.
    pub(crate) fn fingerprint(&self, service: &str) -> u64 {
        let mut hasher = SipHasher24::new();
        hasher.write(service.as_bytes());
        hasher.write_u8(0);
        hasher.write(self.text.as_bytes());
        hasher.finish().max(1)
    }
}

/// Returns the nominal time of a tick.
pub(crate) fn time(tick: TickTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(tick.nominal_ms())
}

/// Returns how long before `now` a tick came, or zero if it will come later.
pub(crate) fn age(tick: TickTime, now: SystemTime) -> Duration {
    now.duration_since(time(tick)).unwrap_or_default()
}

/// The greatest length of a plan, in bytes.
const MAX_PLAN: usize = 1_024;

/// The longest period: ten years.
const MAX_PERIOD: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The upper bound of any gap in a zone's local time, in seconds.
const MAX_GAP_SECONDS: i64 = 48 * 3_600;

fn previous_tick(cron: &Cron, zone: Tz, now: DateTime<Utc>) -> Result<DateTime<Utc>, CronError> {
    let found = cron.find_previous_occurrence(&now.with_timezone(&zone), true)?;
    Ok(found.with_timezone(&Utc))
}

fn next_tick(cron: &Cron, zone: Tz, now: DateTime<Utc>) -> Result<DateTime<Utc>, CronError> {
    let next = |from: DateTime<Utc>, inclusive| {
        let found = cron.find_next_occurrence(&from.with_timezone(&zone), inclusive)?;
        Ok(found.with_timezone(&Utc))
    };
    let found = next(now, false);
    if found.is_ok() {
        return found;
    }
    // croner 4.0.3 finds no tick after a local date that a zone skipped, as Samoa did in 2011. It finds ticks
    // again from the end of that date, so a binary search looks for that end.
    let (mut before, mut after) = (0, MAX_GAP_SECONDS);
    if next(now + chrono::Duration::seconds(after), true).is_err() {
        return found;
    }
    while after - before > 1 {
        let middle = before.midpoint(after);
        let is_after = next(now + chrono::Duration::seconds(middle), true).is_ok();
        (before, after) = if is_after {
            (before, middle)
        } else {
            (middle, after)
        };
    }
    next(now + chrono::Duration::seconds(after), true)
}

/// Returns the time in whole seconds.
fn to_date(at: SystemTime) -> Result<DateTime<Utc>, String> {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
    date.ok_or_else(|| format!("this node's clock shows {seconds} s, which is not a valid date"))
}

/// Reads an expression as tokio-cron-scheduler does, which has an older croner: seconds are required, day of month
/// and day of week must both match, and `1/10` is a range.
///
/// # Errors
/// Returns what is wrong with the text.
pub(crate) fn parse_cron(text: &str) -> Result<Cron, String> {
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .dom_and_dow(true)
        .sloppy_ranges(true)
        .build();
    let cron = parser.parse(text);
    cron.map_err(|error| format!("`{text}` is not a cron expression: {error}"))
}

#[cfg(test)]
mod tests;
