//! How times are written for machines: dates by RFC 3339, durations in milliseconds.

use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

pub(crate) fn ms<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let ms = duration.map(|duration| duration.as_millis() as u64);
    ms.serialize(serializer)
}

/// A node may tell any date. RFC 3339 ends with the year 9999.
pub(crate) fn date<S: Serializer>(date: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let date = *date.min(&(SystemTime::UNIX_EPOCH + LAST));
    serializer.collect_str(&humantime::format_rfc3339_millis(date))
}

pub(crate) fn optional_date<S: Serializer>(
    value: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => date(value, serializer),
        None => serializer.serialize_none(),
    }
}
