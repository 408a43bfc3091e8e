//! What kind of world a seed makes.

use std::time::Duration;

use tenure::protocol::message::LeaseTimes;
use tenure::protocol::step::Rules;

use crate::setup::Setup;
use crate::time::{MS, SETTLE_NS};

/// The properties of a world. They are drawn from the seed, then fixed.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) nodes: usize,
    /// The time between two ticks of a job, in ms.
    pub(crate) period: u64,
    /// The lease times of the callers.
    pub(crate) terms: Vec<LeaseTimes>,
    /// The shortest and longest delay of a message, in ns.
    pub(crate) delay: (u64, u64),
    /// The mean time between two callers of a node, in ns.
    pub(crate) pause: u64,
    /// The maximum number of concurrent callers of a node.
    pub(crate) callers: usize,
    /// The longest ordinary hold, in ns.
    pub(crate) hold: u64,
    /// The mean time between two faults, in ns.
    pub(crate) fault_pause: u64,
    /// The rules of the key machines.
    pub(crate) rules: Rules,
    /// The timeout of a request.
    pub(crate) request_timeout: Duration,
    /// How long a key is left free after many hand-overs, in ms; 0 for never.
    pub(crate) poll_gap: u64,
    /// The longest delay before the driver wakes, in ns. With 0 it steps its session after each input.
    pub(crate) lag: u64,
    /// The driver may read its clock before the callers come whose requests it sends.
    pub(crate) old_reading: bool,
    /// Some callers read.
    pub(crate) readers: bool,
    /// Some holders transfer their lease to another process.
    pub(crate) transfers: bool,
    /// All callers want permits.
    pub(crate) permits: bool,
    /// Some callers let their node keep the lease.
    pub(crate) keeps: bool,
    /// Holders write under their leases.
    pub(crate) writes: bool,
    /// The server permits no subscriptions.
    pub(crate) no_inbox: bool,
    /// Far more callers with claims of their own than the server can serve in time.
    pub(crate) crowd: bool,
    /// The server knows its subscribers.
    pub(crate) probe: bool,
    /// A lagging replica may become the master. For this long, in ms, the former master may still take writes.
    pub(crate) failover_lag: Option<u64>,
    /// Sentinels tell where the master is. Without them its address moves to the promoted server.
    pub(crate) has_sentinels: bool,
    /// The server may come back empty.
    pub(crate) forgetful: bool,
    /// The server comes back empty again and again, so that holders assert their leases.
    pub(crate) forgets_often: bool,
    /// One contended key, with frequent process stops and slow inboxes, so that old messages meet young ones.
    pub(crate) pauses_often: bool,
    /// The server's clock may step by more than the margin.
    pub(crate) wild_clock: bool,
    /// The time after which no tick fires, in ns. No later tick replaces the last one.
    pub(crate) quiet_from: Option<u64>,
    /// Several servers, between which slots move.
    pub(crate) cluster: bool,
    /// The number of masters of a quorum; 0 in every other world.
    pub(crate) quorum: usize,
    /// A lagging copy may replace a server of a cluster.
    pub(crate) members_fail: bool,
    /// When the faults begin and end, in ns.
    pub(crate) fault_period: (u64, u64),
    /// When callers stop coming, in ns.
    pub(crate) drain: u64,
}

impl Profile {
    /// Returns the longest time for which a lease's record lasts.
    pub(crate) fn longest(&self) -> Duration {
        let holds = self.terms.iter().map(|term| term.hold_ms());
        Duration::from_millis(holds.max().unwrap_or_default())
    }

    /// Returns how long a server recovers.
    pub(crate) fn recovery(&self) -> Duration {
        self.longest() + Duration::from_millis(self.failover_lag.unwrap_or_default())
    }

    /// Draws the profile of a world.
    pub(crate) fn draw(rng: &mut fastrand::Rng, setup: &Setup) -> Self {
        let lengths: &[u64] = match rng.u8(0..5) {
            0 => &[400],
            1 => &[1000],
            2 => &[3000],
            3 => &[400, 1000],
            _ => &[400, 1000, 3000],
        };
        let margin = |lease: u64| if setup.no_margin { 0 } else { (lease / 10).max(250) };
        let terms = lengths
            .iter()
            .map(|&lease_ms| LeaseTimes {
                lease_ms,
                margin_ms: margin(lease_ms),
            })
            .collect();
        let high = [200_000, 2 * MS, 10 * MS, 35 * MS][rng.usize(0..4)];
        let burst = [1, 4, 64, 1023][rng.usize(0..4)];
        let burst_time = Duration::from_millis([5, 20, 20, 1000][rng.usize(0..4)]);
        let rules = Rules {
            burst,
            burst_time,
            long_hold: Duration::from_millis(700),
            queues: rng.u8(0..16) > 0,
            final_push: rng.u8(0..16) > 0,
            masters: 0,
        };
        // A quarter of the worlds is calm, a quarter has faults to the end, the others have faults and then a
        // calm.
        let (fault_period, drain) = match rng.u8(0..4) {
            0 => ((0, 0), 6_800 * MS),
            1 => ((200 * MS, 12_000 * MS), 12_000 * MS),
            _ => ((200 * MS, 6_000 * MS), 6_000 * MS + SETTLE_NS + 4_800 * MS),
        };
        if setup.seed % 96 == 5 {
            return Profile::with_crowd(setup, rules);
        }
        let pauses_often = fault_period.1 > 0 && rng.u8(0..3) == 0;
        // Derived, not drawn, so the other worlds stay the same.
        let has_failovers = setup.seed % 8 == 6 && fault_period.1 > 0;
        let forgets_often = setup.seed % 16 == 12 && fault_period.1 > 0;
        let cluster = setup.seed % 8 == 1;
        let quorum = match setup.seed % 16 {
            11 => [3, 3, 5][(setup.seed / 16 % 3) as usize],
            _ => 0,
        };
        let rules = Rules {
            queues: rules.queues && quorum == 0,
            masters: quorum,
            ..rules
        };
        let failover_lag = has_failovers.then_some([0, 200, 700][(setup.seed / 8 % 3) as usize]);
        let hold = [1, 10, 100, 500][rng.usize(0..4)] * MS;
        Profile {
            pauses_often,
            nodes: rng.usize(2..=5),
            period: [400, 1000, 2000, 3000][(setup.seed / 3 % 4) as usize],
            terms,
            delay: (high / 8, high),
            pause: [2, 5, 30, 200][rng.usize(0..4)] * MS,
            callers: [2, 4, 8][rng.usize(0..3)],
            hold: if pauses_often { hold.max(100 * MS) } else { hold },
            fault_pause: [10, 60, 250][rng.usize(0..3)] * MS,
            rules,
            request_timeout: Duration::from_millis([500, 1000, 2000][rng.usize(0..3)]),
            poll_gap: match quorum {
                0 => [0, 0, 0, 0, 20, 100][(setup.seed / 7 % 6) as usize],
                _ => 0,
            },
            lag: [0, 0, 200_000, 2 * MS][rng.usize(0..4)],
            // Derived, not drawn, so the other worlds stay the same.
            old_reading: setup.seed % 32 == 22,
            readers: setup.seed % 5 < 2 && quorum == 0,
            transfers: setup.seed % 7 == 3 && quorum == 0 || has_failovers && setup.seed / 8 % 4 == 1,
            permits: setup.seed % 10 == 4 && quorum == 0,
            keeps: (setup.seed / 5) % 4 == 1 && quorum == 0,
            // Few worlds have writes, so the seeds that find other planted mistakes stay the same.
            writes: setup.seed % 32 == 3 || cluster && (setup.seed / 8).is_multiple_of(4),
            no_inbox: rng.u8(0..16) == 0,
            crowd: false,
            // A server of a cluster does not know the subscribers of the others.
            probe: rng.u8(0..8) > 0 && !cluster,
            failover_lag,
            has_sentinels: failover_lag.is_some() && setup.seed / 8 % 4 != 2,
            forgetful: rng.bool() && !cluster || forgets_often,
            forgets_often,
            wild_clock: rng.u8(0..4) == 0 && failover_lag.is_none() && !cluster && quorum == 0,
            cluster,
            quorum,
            members_fail: cluster && setup.seed / 8 % 4 == 2,
            quiet_from: (setup.seed / 3).is_multiple_of(2).then(|| {
                let calm = if fault_period.1 > 0 {
                    fault_period.1 + SETTLE_NS
                } else {
                    0
                };
                calm + 1_000 * MS
            }),
            fault_period,
            drain,
        }
    }

    /// Two nodes with far more claims of one key than can be renewed in time on a slow network. The holder's
    /// renewals must get through.
    fn with_crowd(setup: &Setup, rules: Rules) -> Self {
        Profile {
            crowd: true,
            pauses_often: false,
            nodes: 2,
            period: 1000,
            terms: vec![LeaseTimes {
                lease_ms: 400,
                margin_ms: if setup.no_margin { 0 } else { 250 },
            }],
            delay: (25 * MS, 35 * MS),
            pause: 2 * MS,
            callers: 200,
            hold: 500 * MS,
            fault_pause: 250 * MS,
            rules: Rules {
                queues: true,
                ..rules
            },
            request_timeout: Duration::from_secs(2),
            poll_gap: 0,
            lag: 0,
            old_reading: false,
            readers: false,
            transfers: false,
            permits: false,
            keeps: false,
            writes: false,
            no_inbox: false,
            probe: true,
            failover_lag: None,
            has_sentinels: false,
            forgetful: false,
            forgets_often: false,
            wild_clock: false,
            cluster: false,
            quorum: 0,
            members_fail: false,
            quiet_from: None,
            fault_period: (0, 0),
            drain: 2_500 * MS,
        }
    }
}
