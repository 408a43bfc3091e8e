//! All durations and limits that a user can set: their defaults, and their bounds.

use std::time::Duration;

use crate::error::OptionsError;
use crate::key::Key;
use crate::protocol::message::LeaseTimes;
use crate::protocol::step::LockOptions;

/// The shortest lease. A shorter lease has no time for a renewal with its round trip.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(400);
/// The shortest lease with [`Options::short_leases`].
const SHORTEST_TEST_LEASE: Duration = Duration::from_millis(50);
/// The longest lease. Only fixed leases need to be long, because other leases are renewed.
pub const LONGEST_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The shortest request timeout.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest request timeout. After a longer silence the connection is dead at both ends.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The longest time for which a busy key is left free for other libraries that poll.
const LONGEST_POLL_GAP: Duration = Duration::from_secs(60);
/// The largest number of hand-overs in a burst. A fence has ten bits for the place among local holders.
pub const MAX_BURST: u32 = 1023;

/// The settings that a [`Builder`](crate::locks::Builder) collects. Its methods document them.
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
    /// The name of the service, which distinguishes two services that use the same job name. Empty if not set.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    pub(crate) service: String,
    pub(crate) request_timeout: Duration,
    pub(crate) poll_gap: Duration,
    pub(crate) lazy: bool,
    pub(crate) seed: Option<u64>,
    /// Whether leases may last down to [`SHORTEST_TEST_LEASE`].
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

/// Returns whether no key after this prefix can make the name of an internal record. Those names begin with `tenure`.
pub(crate) fn is_prefix(prefix: &[u8]) -> bool {
    !b"tenure".starts_with(prefix) && !prefix.starts_with(b"tenure")
}

impl Options {
    /// Checks every option against its bounds.
    ///
    /// # Errors
    /// Names the bound and the value of the first option that is out of bounds.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        self.term(self.lease)?;
        let refuse = |text: String| Err(OptionsError(text));
        if !is_prefix(&self.prefix) || self.prefix.len() > 128 {
            let shown = Key::from(self.prefix.clone());
            return refuse(format!(
                "a prefix has 1 to 128 bytes, and it must not begin with `tenure` or be a beginning of it, because internal records have such names: `{shown}`"
            ));
        }
        if self.burst == 0 || self.burst > MAX_BURST {
            return refuse(format!(
                "a burst is 1 to {MAX_BURST} hand-offs, not {}",
                self.burst
            ));
        }
        if self.max_key == 0 || self.max_waiters_per_key == 0 || self.max_waiters_per_node == 0 {
            return refuse("a limit of zero refuses every lock: limits are 1 or more".into());
        }
        if self.poll_gap > LONGEST_POLL_GAP
            || !self.poll_gap.is_zero() && self.poll_gap < Duration::from_millis(1)
        {
            return refuse(format!(
                "a poll gap is 1 ms to 1 min, the interval at which other libraries poll, not {:?}; zero leaves no gap",
                self.poll_gap
            ));
        }
        if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&self.request_timeout) {
            return refuse(format!(
                "a request timeout is 100 ms to one day, not {:?}: a shorter one closes healthy connections, a longer one keeps dead ones",
                self.request_timeout
            ));
        }
        Ok(())
    }

    /// Returns how long a server that may have lost grants grants nothing.
    pub(crate) fn recovery(&self) -> Duration {
        Duration::from_millis(self.times(self.lease).hold_ms())
    }

    /// Returns the options of a lock with the defaults of these settings.
    pub(crate) fn lock(&self) -> LockOptions {
        LockOptions {
            limit: self.max_waiters_per_key,
            ..LockOptions::new(self.times(self.lease))
        }
    }

    /// Returns the lease times of a claim with this lease. They may be out of bounds; see [`check_times`](Self::check_times).
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

    /// Checks lease times against their bounds.
    pub(crate) fn check_times(&self, term: LeaseTimes) -> Result<(), OptionsError> {
        self.check_lease(Duration::from_millis(term.lease_ms))?;
        let margin = Duration::from_millis(term.margin_ms);
        if margin > LONGEST_LEASE {
            return Err(OptionsError(format!(
                "a margin is 30 days at most, as a lease is, not {margin:?}"
            )));
        }
        Ok(())
    }

    fn check_lease(&self, lease: Duration) -> Result<(), OptionsError> {
        let shortest = if self.short_leases {
            SHORTEST_TEST_LEASE
        } else {
            SHORTEST_LEASE
        };
        if (shortest..=LONGEST_LEASE).contains(&lease) {
            return Ok(());
        }
        Err(OptionsError(format!(
            "a lease lasts {shortest:?} to 30 days, not {lease:?}: a shorter one cannot be renewed in time, a longer one keeps the key of a dead process locked"
        )))
    }

    /// Returns the lease times of a claim with this lease, after checking their bounds.
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
            (gap(LONGEST_POLL_GAP + least), "1 ms to 1 min"),
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
