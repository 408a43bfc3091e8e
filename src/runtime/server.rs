//! What is known of one server, shared by all who talk to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::message::{Batch, GrantNumber, Request};
use crate::protocol::time::Instant;
use crate::runtime::slot::lock;

/// The highest grant number it was seen to give, and its clock.
#[derive(Debug, Default)]
pub(crate) struct Server {
    highest: AtomicU64,
    time: Mutex<Option<ServerTime>>,
}

/// The server said `time` somewhere between two moments of ours.
#[derive(Debug, Clone, Copy)]
struct ServerTime {
    time: u64,
    asked: Instant,
    heard: Instant,
}

impl Server {
    /// A batch, and from when on the server refuses its claims as late, for sure: `patience` after the deadline, where
    /// nothing is known of its clock.
    pub(crate) fn batch(
        &self,
        deadline: Instant,
        requests: Vec<Request>,
        patience: Duration,
    ) -> (Batch, Instant) {
        let (not_after, late_after) = match *lock(&self.time) {
            Some(known) => {
                let age = deadline.since(known.asked);
                // The latest that the server's clock can show when we give up.
                let not_after = known.time.saturating_add(micros(age));
                // And the earliest, with what its rate may differ from ours.
                let unknown = known.heard.since(known.asked) + age / 100 + Duration::from_millis(10);
                (not_after, deadline + unknown)
            }
            None => (u64::MAX, deadline + patience),
        };
        let batch = Batch {
            highest: self.highest.load(Ordering::Relaxed),
            not_after,
            requests,
        };
        (batch, late_after)
    }

    /// The server's clock showed `time` between two moments of ours. The younger of two is kept.
    pub(crate) fn heard_time(&self, time: u64, asked: Instant, heard: Instant) {
        let mut known = lock(&self.time);
        if known.is_none_or(|known| known.asked <= asked) {
            *known = Some(ServerTime { time, asked, heard });
        }
    }

    /// When it last said what time it is.
    pub(crate) fn heard(&self) -> Option<Instant> {
        lock(&self.time).map(|known| known.heard)
    }

    pub(crate) fn heard_number(&self, number: GrantNumber) {
        self.highest.fetch_max(number, Ordering::Relaxed);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
