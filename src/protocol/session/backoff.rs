//! The pause before a connection or an inbox is opened again.
//!
//! Not of a crate: those sleep, or hand out their pauses from a clock and a generator of their own, and a machine of
//! this folder is told the time and draws from its seed.

use std::time::Duration;

use crate::protocol::session::step::{MAX_RECONNECT_PAUSE, MIN_RECONNECT_PAUSE};

/// Doubles from pause to pause, up to a limit.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(MIN_RECONNECT_PAUSE)
    }
}

impl Backoff {
    /// The next pause. `part` of it, 0.5 to 1, parts nodes that failed together.
    pub(super) fn next(&mut self, part: f64) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(MAX_RECONNECT_PAUSE);
        pause.mul_f64(part)
    }

    /// It went well: the next pause is the shortest.
    pub(super) fn reset(&mut self) {
        *self = Backoff::default();
    }
}

/// How much of a pause it is this time.
pub(super) fn part_of_pause(jitter: &mut fastrand::Rng) -> f64 {
    0.5 + jitter.f64() / 2.0
}
