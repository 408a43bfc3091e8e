//! A time zone, given as a value or as a text.

use chrono_tz::Tz;

/// A time zone, or its name in a configuration: `"Europe/Berlin"`.
///
/// ```
/// use tenure::scheduler::{IntoZone, JobError, explain};
///
/// /// Prints the days on which clocks change a job at 02:30.
/// fn print_odd_days(zone: impl IntoZone) -> Result<(), JobError> {
///     explain("0 30 2 * * *", zone)?.iter().for_each(|day| println!("{day}"));
///     Ok(())
/// }
///
/// print_odd_days("Europe/Berlin")?;
/// print_odd_days(chrono_tz::Europe::Berlin)?;
/// assert!(print_odd_days("Europe/Berlim").is_err());
/// # Ok::<(), JobError>(())
/// ```
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
