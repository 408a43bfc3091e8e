//! What is known of one server, shared by all who talk to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::claim::{Batch, Number, Request};
use crate::engine::moment::Moment;
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
    asked: Moment,
    heard: Moment,
}

impl Server {
    pub(crate) fn batch(&self, deadline: Moment, requests: Vec<Request>) -> Batch {
        // The latest that the server's clock can show when we give up.
        let not_after = lock(&self.time).map_or(u64::MAX, |known| {
            known.time.saturating_add(micros(deadline.since(known.asked)))
        });
        Batch {
            highest: self.highest.load(Ordering::Relaxed),
            not_after,
            requests,
        }
    }

    /// From when on the server refuses a claim of a batch with that deadline, for sure; or after `patience`, where
    /// nothing is known of its clock.
    pub(crate) fn late_after(&self, deadline: Moment, now: Moment, patience: Duration) -> Moment {
        match *lock(&self.time) {
            // What we do not know of its clock, and what its rate may differ from ours.
            Some(known) => {
                let age = deadline.since(known.asked);
                deadline.max(now) + known.heard.since(known.asked) + age / 100 + Duration::from_millis(10)
            }
            None => deadline.max(now) + patience,
        }
    }

    pub(crate) fn heard_time(&self, time: u64, asked: Moment, heard: Moment) {
        *lock(&self.time) = Some(ServerTime { time, asked, heard });
    }

    pub(crate) fn heard_number(&self, number: Number) {
        self.highest.fetch_max(number, Ordering::Relaxed);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
