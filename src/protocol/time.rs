//! A point in time on the node's own clock.

use std::ops::Add;
use std::time::Duration;

/// A time in nanoseconds, on a clock that never steps and counts the time in which the machine is suspended. The
/// state machines are told the time, and never ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Returns the time this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns how long after `earlier` this is, or zero if it is not later.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, span: Duration) -> Instant {
        // Avoids the 128 bits of `as_nanos`, because every step adds.
        let nanos = span.as_secs().saturating_mul(1_000_000_000);
        Instant(
            self.0
                .saturating_add(nanos)
                .saturating_add(span.subsec_nanos().into()),
        )
    }
}
