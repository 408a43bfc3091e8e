//! The pause before a connection or an inbox is opened again.
//!
//! The backoff crates sleep, or use a clock and a random generator of their own. A machine of this folder gets the
//! time as an argument and uses its own seed, so it computes the pause here.

use std::time::Duration;

use crate::protocol::session::step::{MAX_RECONNECT_PAUSE, MIN_RECONNECT_PAUSE};

/// A pause that doubles each time, up to a limit.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(MIN_RECONNECT_PAUSE)
    }
}

impl Backoff {
    /// Returns the next pause, multiplied by `part` (0.5 to 1). The factor spreads out nodes that failed together.
    pub(super) fn next(&mut self, part: f64) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(MAX_RECONNECT_PAUSE);
        pause.mul_f64(part)
    }

    /// Resets the next pause to the shortest one, after a success.
    pub(super) fn reset(&mut self) {
        *self = Backoff::default();
    }
}

/// Returns a random factor for a pause, from 0.5 to 1.
pub(super) fn part_of_pause(jitter: &mut fastrand::Rng) -> f64 {
    0.5 + jitter.f64() / 2.0
}
