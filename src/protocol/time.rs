//! A point in time on the node's own clock.

use std::ops::Add;
use std::time::Duration;

/// Nanoseconds on a clock that never steps and counts suspended time. The machines are told the time; they never ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// A moment so many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is not.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, span: Duration) -> Instant {
        // Without the 128 bits of `as_nanos`: every step adds.
        let nanos = span.as_secs().saturating_mul(1_000_000_000);
        Instant(
            self.0
                .saturating_add(nanos)
                .saturating_add(span.subsec_nanos().into()),
        )
    }
}
