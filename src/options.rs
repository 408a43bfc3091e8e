//! All durations and limits that a user can set: their defaults, and their bounds.

use std::time::Duration;

use crate::error::OptionsError;
use crate::key::Key;
use crate::protocol::message::LeaseTimes;
use crate::protocol::step::LockOptions;

/// The shortest lease. A shorter lease has no time for a renewal with its round trip.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(400);
/// The shortest lease with [`Options::short_leases`].
const SHORTEST_TEST_LEASE: Duration = Duration::from_millis(50);
/// The longest lease. Only fixed leases need to be long, because other leases are renewed.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The shortest request timeout.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest request timeout. After a longer silence the connection is dead at both ends.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The longest time for which a busy key is left free for other libraries that poll.
const LONGEST_POLL_GAP: Duration = Duration::from_secs(60);
/// The largest number of hand-overs in a burst. A fence has ten bits for the place among local holders.
pub(crate) const MAX_BURST: u32 = 1023;

/// The default lease of jobs.
#[cfg(any(feature = "redis", feature = "scheduler"))]
pub(crate) const JOB_LEASE: Duration = Duration::from_secs(30);
/// The default of other leases.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// The lease of a trial of the locks. A third of it, after which a waiter looks by itself, is longer than [`TRIAL_PATIENCE`].
const TRIAL_LEASE: Duration = Duration::from_secs(30);
/// How long each step of a trial may take.
pub(crate) const TRIAL_PATIENCE: Duration = Duration::from_secs(5);
/// The default lag behind Sentinels.
#[cfg(feature = "redis")]
const DEFAULT_LAG: Duration = Duration::from_secs(3);

/// When a server *recovers*: it grants nothing until every earlier lease is over, because it may have lost grants.
///
/// Redis answers before it replicates and before it writes to disk. So a server that was restarted, or a replica that was
/// promoted, may lack the last grants. Without a recovery it may grant a held lease again. `WAIT` proves nothing about the
/// replica that is promoted.
///
/// While a server recovers, live holders assert their leases, and the server writes them again under their old numbers.
/// Renewals, releases and guarded writes work. Waiters stay in the queue. A caller whose wait ends gets
/// [`Error::Store`](crate::Error::Store) with [`StoreRefusal::Recovering`](crate::error::StoreRefusal::Recovering), and never
/// [`Error::Busy`](crate::Error::Busy).
///
/// [`Builder::recovery`](crate::locks::Builder::recovery) sets when a recovery begins, or the option `recovery` of the
/// [URL](crate::Locks::connect). Choose it once for all processes of a store.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
/// use tenure::{Locks, Recovery};
///
/// // As `?recovery=always&longest=10s&lag=15s` in the URL.
/// let recovery = Recovery::Always { longest: Duration::from_secs(10), lag: Duration::from_secs(15) };
/// let locks = Locks::builder().recovery(recovery).memory()?;
/// let too_long = locks.mutex("account:42").lease(Duration::from_secs(20));
/// assert!(too_long.lock().await.is_err()); // a server that lost grants waits no longer than for `longest`
/// # Ok(()) }
/// ```
///
/// What a restart may lose stands in the guide of [one server](crate::guide::redis#a-restart-that-loses-writes), and what a failover may lose
/// and what to set there, in that of [Sentinels](crate::guide::sentinel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// A server recovers when a node knows a higher number of a grant than the server does. The default of a single Redis and of
    /// memory. It costs nothing.
    ///
    /// A grant of *any* key to a node that knew no number hides the loss, so two holders may exist. A lost renewal leaves no
    /// evidence at all.
    ///
    /// A recovery lasts for the lease of the builder and its [margin](crate::locks::Builder::margin), as the node has them
    /// that noticed the loss: 11 s with the defaults. Longer leases are not protected. Further evidence begins the time again if
    /// less of it is left. A node that comes back in second 10 of 11 makes the recovery last 21 s.
    OnEvidence,
    /// A server recovers after each restart and each promotion, also when a former master is promoted again, and the first time
    /// that it is used. The default behind Sentinels. It has no effect in memory. A Redis Cluster refuses it, because a slot that
    /// moved looks like a promotion.
    ///
    /// A recovery lasts for `longest`, its [margin](crate::locks::Builder::margin) and `lag`. A node compares the run of the server
    /// when it opens a connection, which takes one more round trip: the run id, which a restart changes, and the replication id,
    /// which a promotion changes. The Redis user needs the right `+info`.
    ///
    /// Every process of the store needs `Always` with the same times. A process that recovers on evidence is not checked, and may
    /// hold longer leases.
    Always {
        /// The longest lease that any process uses, fixed leases and leases of jobs included. A longer lease is an
        /// options error. By default the lease of the builder, or that of jobs, 30 s, if that is longer.
        ///
        /// The server keeps it and the length of a recovery, until a recovery and a minute after the last such process has
        /// disconnected, and refuses a process with other times.
        longest: Duration,
        /// How long an old master may accept writes after a replica was promoted; default 3 s, which does not cover `SENTINEL
        /// FAILOVER`.
        lag: Duration,
    },
}

/// The settings that a [`Builder`](crate::locks::Builder) collects. Its methods document them.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) prefix: Vec<u8>,
    /// `None` if the user has set none: the default depends on the longest that is allowed.
    pub(crate) lease: Option<Duration>,
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
    /// How long a mutex keeps its lease after the release.
    pub(crate) keep: Duration,
    /// `None` if the user has set none: the default depends on the store.
    pub(crate) recovery: Option<Recovery>,
    pub(crate) lazy: bool,
    /// Whether the store is a quorum of masters.
    pub(crate) is_quorum: bool,
    /// Whether the node tells operators of itself.
    pub(crate) presence: bool,
    pub(crate) seed: Option<u64>,
    /// Whether leases may last down to [`SHORTEST_TEST_LEASE`].
    pub(crate) short_leases: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            prefix: DEFAULT_PREFIX.to_vec(),
            lease: None,
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
            keep: Duration::ZERO,
            recovery: None,
            lazy: false,
            is_quorum: false,
            presence: true,
            seed: None,
            short_leases: false,
        }
    }
}

/// The prefix of records by default.
pub(crate) const DEFAULT_PREFIX: &[u8] = b"lock:";

/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 128;

/// Returns whether the prefix is not too long, and no key after it can make the name of an internal record. Those names begin
/// with `tenure`.
pub(crate) fn is_prefix(prefix: &[u8]) -> bool {
    prefix.len() <= MAX_PREFIX && !b"tenure".starts_with(prefix) && !prefix.starts_with(b"tenure")
}

impl Options {
    /// Checks every option against its bounds.
    ///
    /// # Errors
    /// Names the bound and the value of the first option that is out of bounds.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        self.term(self.lease())?;
        let refuse = |text: String| Err(OptionsError(text));
        if let Some(Recovery::Always { longest, lag }) = self.recovery {
            self.term(longest)?;
            if lag > LONGEST_LEASE {
                return refuse(format!("a lag is 30 days at most, as a lease is, not {lag:?}"));
            }
        }
        if !is_prefix(&self.prefix) {
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
        self.check_keep(self.keep)?;
        if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&self.request_timeout) {
            return refuse(format!(
                "a request timeout is 100 ms to one day, not {:?}: a shorter one closes healthy connections, a longer one keeps dead ones",
                self.request_timeout
            ));
        }
        Ok(())
    }

    /// Returns the options of a node that tries the locks: it is in no contract with other processes, and tells nothing of itself.
    pub(crate) fn for_trial(&self) -> Options {
        Options {
            prefix: self.prefix.clone(),
            node_name: self.node_name.clone(),
            request_timeout: self.request_timeout,
            lease: Some(TRIAL_LEASE),
            presence: false,
            ..Options::default()
        }
    }

    /// Returns how long a server that may have lost grants grants nothing.
    pub(crate) fn recovery_time(&self) -> Duration {
        let (longest, lag) = match self.recovery {
            Some(Recovery::Always { longest, lag }) => (longest, lag),
            Some(Recovery::OnEvidence) | None => (self.lease(), Duration::ZERO),
        };
        Duration::from_millis(self.times(longest).hold_ms()).saturating_add(lag)
    }

    /// Returns how long a former master may accept writes.
    pub(crate) fn lag(&self) -> Duration {
        match self.recovery {
            Some(Recovery::Always { lag, .. }) => lag,
            Some(Recovery::OnEvidence) | None => Duration::ZERO,
        }
    }

    /// Returns how long a lease lasts that has no length of its own.
    pub(crate) fn lease(&self) -> Duration {
        self.lease.unwrap_or_else(|| self.at_most_longest(DEFAULT_LEASE))
    }

    /// Returns a default length, or the longest that is allowed.
    pub(crate) fn at_most_longest(&self, lease: Duration) -> Duration {
        self.longest_lease().map_or(lease, |longest| lease.min(longest))
    }

    /// Returns the longest lease of any process, if a server recovers after each restart or promotion.
    pub(crate) fn longest_lease(&self) -> Option<Duration> {
        match self.recovery {
            Some(Recovery::Always { longest, .. }) => Some(longest),
            Some(Recovery::OnEvidence) | None => None,
        }
    }

    /// Sets the default of servers behind Sentinels, unless the user has set another recovery.
    #[cfg(feature = "redis")]
    pub(crate) fn recover_always(&mut self) {
        let longest = self.lease().max(JOB_LEASE);
        self.recovery.get_or_insert(Recovery::Always {
            longest,
            lag: DEFAULT_LAG,
        });
    }

    /// Sets what a URL says of recoveries: whether a server always recovers, and for how long. It wins over the builder.
    #[cfg(feature = "redis")]
    pub(crate) fn recover_as(
        &mut self,
        always: Option<bool>,
        (longest, lag): (Option<Duration>, Option<Duration>),
    ) {
        if always == Some(false) {
            self.recovery = Some(Recovery::OnEvidence);
        } else if always.is_some() || longest.is_some() || lag.is_some() {
            let known = self.longest_lease().map(|longest| (longest, self.lag()));
            let (of_builder, lag_of_builder) = known.unwrap_or((self.lease().max(JOB_LEASE), DEFAULT_LAG));
            self.recovery = Some(Recovery::Always {
                longest: longest.unwrap_or(of_builder),
                lag: lag.unwrap_or(lag_of_builder),
            });
        }
    }

    /// Sets when a master of a quorum has no vote: after each restart, for the longest lease. Checks that the other settings
    /// suit a quorum.
    #[cfg(feature = "redis")]
    pub(crate) fn recover_as_quorum(&mut self, longest: Duration) -> Result<(), OptionsError> {
        let lag = Duration::ZERO;
        self.is_quorum = true;
        self.check_keep(self.keep)?;
        if self.recovery.replace(Recovery::Always { longest, lag }).is_some() {
            return Err(OptionsError(
                "a quorum has a recovery of its own: set `longest` of `Builder::quorum`, and no `recovery`"
                    .to_owned(),
            ));
        }
        if !self.poll_gap.is_zero() {
            return Err(OptionsError(
                "a quorum has no poll gap: each of its waiters polls, as other libraries do, so set none"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that these settings suit a cluster.
    #[cfg(feature = "redis")]
    pub(crate) fn check_cluster(&self) -> Result<(), OptionsError> {
        if self.longest_lease().is_none() {
            return Ok(());
        }
        Err(OptionsError(
            "`Recovery::Always` does not suit a cluster, where a slot that moved looks like a promotion: use `Recovery::OnEvidence`, and a `cluster-node-timeout` of at least the longest lease"
                .to_owned(),
        ))
    }

    /// Checks that a lease may be kept for so long with these settings.
    pub(crate) fn check_keep(&self, keep: Duration) -> Result<(), OptionsError> {
        let (is_kept, is_polled) = (!keep.is_zero(), !self.poll_gap.is_zero());
        if is_kept && is_polled {
            return Err(OptionsError(
                "`keep` and `poll_gap` exclude each other: clients that poll cannot ask for a lease that is kept".to_owned(),
            ));
        }
        if is_kept && self.is_quorum {
            return Err(OptionsError(
                "a quorum keeps no lease: its masters cannot ask for one, so set no `keep`".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the options of a lock with the defaults of these settings.
    pub(crate) fn lock(&self) -> LockOptions {
        LockOptions {
            limit: self.max_waiters_per_key,
            ..LockOptions::new(self.times(self.lease()))
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
        if let Some(longest) = self.longest_lease().filter(|longest| lease > *longest) {
            return Err(OptionsError(format!(
                "a lease lasts at most {longest:?}, the `longest` of `Recovery::Always` or of `Builder::quorum`, not {lease:?}: a server that lost grants waits no longer; use a shorter lease, or a larger `longest` in all processes"
            )));
        }
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
    fn a_recovery_lasts_for_the_longest_lease_its_margin_and_the_lag() {
        let (longest, lag) = (Duration::from_secs(30), Duration::from_secs(3));
        let mut options = Options::default();
        assert_eq!(options.recovery_time(), Duration::from_secs(11));
        options.recovery = Some(Recovery::Always { longest, lag });
        options.check().unwrap();
        assert_eq!(options.recovery_time(), Duration::from_secs(36));
        options.term(longest).unwrap();
        let longer = longest + Duration::from_millis(1);
        let error = options.term(longer).unwrap_err().to_string();
        for part in ["30s", "30.001s", "`longest` of `Recovery::Always`"] {
            assert!(error.contains(part), "{error}");
        }
        // Without a length of its own, a lease fits: the command `tenure` knows the URL of the services only.
        options.lease = None;
        for (longest, lease) in
            [(3, 3), (10, 10), (60, 10)].map(|(longest, lease)| (longest * 1_000, lease * 1_000))
        {
            let longest = Duration::from_millis(longest);
            options.recovery = Some(Recovery::Always { longest, lag });
            options.check().unwrap();
            assert_eq!(options.lease(), Duration::from_millis(lease));
        }
        options.recovery = Some(Recovery::Always { longest, lag });
        // A fixed lease and the lease of a call are checked in another place.
        options.check_times(options.times(longer)).unwrap_err();
        options.lease = Some(longer);
        options.check().unwrap_err();
        options.recovery = Some(Recovery::OnEvidence);
        options.check().unwrap();
    }

    #[test]
    #[cfg(feature = "redis")]
    fn behind_sentinels_a_server_always_recovers_unless_the_user_says_otherwise() {
        let lag = Duration::from_secs(3);
        for (lease, longest) in [(10, 30), (40, 40)] {
            let lease = Duration::from_secs(lease);
            let mut options = Options {
                lease: Some(lease),
                ..Options::default()
            };
            options.recover_always();
            let longest = Duration::from_secs(longest);
            assert_eq!(options.recovery, Some(Recovery::Always { longest, lag }));
        }
        let mut options = Options {
            recovery: Some(Recovery::OnEvidence),
            ..Options::default()
        };
        options.recover_always();
        assert_eq!(options.recovery, Some(Recovery::OnEvidence));
    }

    #[test]
    fn a_refusal_names_the_bounds() {
        let timeout = |request_timeout| Options {
            request_timeout,
            ..Options::default()
        };
        let lease = |ms, short_leases| Options {
            lease: Some(Duration::from_millis(ms)),
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
