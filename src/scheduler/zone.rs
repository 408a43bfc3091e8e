//! A time zone as it is given: a value, or a text.

use chrono_tz::Tz;

/// A time zone, or the name of one as it stands in a configuration: `"Europe/Berlin"`.
pub trait IntoZone {
    /// # Errors
    /// What is wrong with the name.
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
            .map_err(|_| format!("`{self}` is no time zone of the IANA database, such as `Europe/Berlin`"))
    }
}

impl IntoZone for String {
    fn into_zone(self) -> Result<Tz, String> {
        self.as_str().into_zone()
    }
}
