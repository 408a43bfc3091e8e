//! A time zone, given as a value or as a text.

use chrono_tz::Tz;

/// A time zone, or its name in a configuration: `"Europe/Berlin"`.
pub trait IntoZone {
    /// # Errors
    /// Returns what is wrong with the name.
    fn into_zone(self) -> Result<Tz, String>;
}

impl IntoZone for Tz {
    fn into_zone(self) -> Result<Tz, String> {
        Ok(self)
    }
}

impl IntoZone for &str {
    fn into_zone(self) -> Result<Tz, String> {
        self.parse()
            .map_err(|_| format!("`{self}` is not a time zone of the IANA database, such as `Europe/Berlin`"))
    }
}

impl IntoZone for String {
    fn into_zone(self) -> Result<Tz, String> {
        self.as_str().into_zone()
    }
}
