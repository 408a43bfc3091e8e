//! Every number that can be set, and how they relate.

use std::time::Duration;

use crate::error::OptionsError;
use crate::key::Key;
use crate::protocol::message::LeaseTimes;
use crate::protocol::step::LockOptions;

/// The shortest lease: below it, a round trip and a renewal do not fit in.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(400);
/// The shortest that tests of ours may ask for.
const SHORTEST_IN_TESTS: Duration = Duration::from_millis(50);
/// The longest lease. A lease that is renewed has no need of a long one; this is for fixed ones.
pub const LONGEST_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The shortest request timeout.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest request timeout. A connection that is silent for longer has been forgotten by both ends.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The longest time that a lock is left free for who polls.
const LONGEST_GAP: Duration = Duration::from_secs(60);
/// The longest burst: the fence keeps ten bits for the place among local holders.
pub const LONGEST_BURST: u32 = 1023;

/// What [`Builder`](crate::locks::Builder) collects.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) prefix: Vec<u8>,
    pub(crate) lease: Duration,
    pub(crate) margin: Option<Duration>,
    pub(crate) burst: u32,
    pub(crate) burst_time: Duration,
    pub(crate) long_hold: Duration,
    pub(crate) max_waiters_per_key: usize,
    pub(crate) max_waiters_per_node: usize,
    pub(crate) max_key: usize,
    pub(crate) node_name: Option<String>,
    /// Of jobs, what tells two services apart that use one name.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) service: String,
    pub(crate) request_timeout: Duration,
    pub(crate) poll_gap: Duration,
    pub(crate) lazy: bool,
    pub(crate) seed: Option<u64>,
    /// Leases may be shorter than is wise, for tests.
    pub(crate) short_leases: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            prefix: b"lock:".to_vec(),
            lease: Duration::from_secs(10),
            margin: None,
            burst: 256,
            burst_time: Duration::from_millis(20),
            long_hold: Duration::from_secs(60),
            max_waiters_per_key: 10_000,
            max_waiters_per_node: 100_000,
            max_key: 512,
            node_name: None,
            service: String::new(),
            request_timeout: Duration::from_secs(2),
            poll_gap: Duration::ZERO,
            lazy: false,
            seed: None,
            short_leases: false,
        }
    }
}

/// Whatever key follows, the record is none of our own: those begin with `tenure`.
pub(crate) fn is_prefix(prefix: &[u8]) -> bool {
    !b"tenure".starts_with(prefix) && !prefix.starts_with(b"tenure")
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        self.term(self.lease)?;
        let refuse = |text: String| Err(OptionsError(text));
        if !is_prefix(&self.prefix) || self.prefix.len() > 128 {
            let shown = Key::from(self.prefix.clone());
            return refuse(format!(
                "a prefix has 1 to 128 bytes, and neither it nor what follows may make `tenure`, which names our own records: `{shown}`"
            ));
        }
        if self.burst == 0 || self.burst > LONGEST_BURST {
            return refuse(format!(
                "a burst is 1 to {LONGEST_BURST} hand-offs, not {}",
                self.burst
            ));
        }
        if self.max_key == 0 || self.max_waiters_per_key == 0 || self.max_waiters_per_node == 0 {
            return refuse("a limit of zero would refuse every lock: limits are 1 or more".into());
        }
        if self.poll_gap > LONGEST_GAP || !self.poll_gap.is_zero() && self.poll_gap < Duration::from_millis(1)
        {
            return refuse(format!(
                "a lock is left free for 1 ms to 1 min, which is the interval at which others poll, not {:?}; zero leaves it never free",
                self.poll_gap
            ));
        }
        if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&self.request_timeout) {
            return refuse(format!(
                "a request timeout is 100 ms to one day, not {:?}: a shorter one gives up healthy connections, a longer one keeps dead ones",
                self.request_timeout
            ));
        }
        Ok(())
    }

    /// What a lock wants unless its builder is told otherwise.
    pub(crate) fn lock(&self) -> LockOptions {
        LockOptions {
            limit: self.max_waiters_per_key,
            ..LockOptions::new(self.times(self.lease))
        }
    }

    /// The lengths of a claim with this lease, which may be out of bounds.
    pub(crate) fn times(&self, lease: Duration) -> LeaseTimes {
        let margin = self
            .margin
            .unwrap_or((lease / 10).max(Duration::from_millis(250)));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LeaseTimes {
            lease_ms: ms(lease),
            margin_ms: ms(margin),
        }
    }

    /// Refuses lengths that are out of bounds.
    pub(crate) fn check_times(&self, term: LeaseTimes) -> Result<(), OptionsError> {
        self.check_lease(Duration::from_millis(term.lease_ms))?;
        let margin = Duration::from_millis(term.margin_ms);
        if margin > LONGEST_LEASE {
            return Err(OptionsError(format!(
                "a margin of {margin:?} is longer than any lease: 30 days at most"
            )));
        }
        Ok(())
    }

    fn check_lease(&self, lease: Duration) -> Result<(), OptionsError> {
        let shortest = if self.short_leases {
            SHORTEST_IN_TESTS
        } else {
            SHORTEST_LEASE
        };
        if (shortest..=LONGEST_LEASE).contains(&lease) {
            return Ok(());
        }
        Err(OptionsError(format!(
            "a lease lasts {shortest:?} to 30 days, not {lease:?}: shorter ones cannot be renewed in time, longer ones outlive their reason"
        )))
    }

    /// The lengths of a claim with this lease, checked.
    pub(crate) fn term(&self, lease: Duration) -> Result<LeaseTimes, OptionsError> {
        self.check_lease(lease)?;
        let term = self.times(lease);
        self.check_times(term).map(|()| term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_bounds() {
        let timeout = |request_timeout| Options {
            request_timeout,
            ..Options::default()
        };
        let lease = |ms, short_leases| Options {
            lease: Duration::from_millis(ms),
            short_leases,
            ..Options::default()
        };
        let gap = |poll_gap| Options {
            poll_gap,
            ..Options::default()
        };
        let least = Duration::from_nanos(1);
        for (bad, bounds) in [
            (timeout(Duration::ZERO), "100 ms to one day"),
            (timeout(LONGEST_TIMEOUT + least), "100 ms to one day"),
            (timeout(Duration::MAX), "100 ms to one day"),
            (lease(399, false), "400ms"),
            (lease(49, true), "50ms"),
            (gap(Duration::from_micros(999)), "1 ms to 1 min"),
            (gap(LONGEST_GAP + least), "1 ms to 1 min"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(bounds), "{error}");
        }
        timeout(LONGEST_TIMEOUT).check().unwrap();
        gap(Duration::from_millis(100)).check().unwrap();
        lease(400, false).check().unwrap();
        lease(50, true).check().unwrap();
    }
}
