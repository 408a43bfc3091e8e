//! The Sentinels of a world with failovers, and what each of them knows.

use tenure::protocol::sentinels::{KnownMaster, SentinelAnswer};

/// How many Sentinels there are.
pub(crate) const SENTINELS: usize = 3;

/// Three Sentinels. They count the promotions, and learn of them one after the other.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The generator for their choices, so that other worlds do not depend on them.
    pub(crate) rng: fastrand::Rng,
    /// The epoch of the latest promotion.
    pub(crate) epoch: u64,
    /// What each of them knows.
    pub(crate) views: [View; SENTINELS],
    /// Set if the former master is stopped, and returns as soon as its successor has recovered.
    pub(crate) is_staged: bool,
    /// A former master that was never demoted, and may be promoted again.
    pub(crate) retired: Option<usize>,
}

/// What a Sentinel knows, or a node of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct View {
    pub(crate) address: usize,
    pub(crate) epoch: u64,
}

/// What a node knows of the Sentinels.
#[derive(Debug, Default)]
pub(crate) struct SentinelsSeen {
    pub(crate) known: KnownMaster<usize>,
    /// The one Sentinel that it reaches until a time, if the others are cut off.
    pub(crate) only: Option<(usize, u64)>,
}

impl Sentinels {
    pub(crate) fn new(seed: u64) -> Self {
        Sentinels {
            rng: fastrand::Rng::with_seed(seed),
            epoch: 0,
            views: Default::default(),
            is_staged: false,
            retired: None,
        }
    }

    /// Returns the answers that reach a node at `now`. In a calm all Sentinels answer.
    pub(crate) fn answers(
        &mut self,
        (now, is_calm): (u64, bool),
        seen: &SentinelsSeen,
    ) -> Vec<SentinelAnswer<usize>> {
        let mut answers = Vec::new();
        for (at, view) in self.views.iter().enumerate() {
            let is_cut = seen.only.is_some_and(|(only, until)| now < until && only != at);
            if !is_cut && (is_calm || self.rng.u8(0..16) > 0) {
                answers.push(SentinelAnswer {
                    address: view.address,
                    epoch: view.epoch,
                    others: SENTINELS - 1,
                });
            }
        }
        answers
    }

    /// Promotes a server. The leader knows it at once. A majority, which voted for the leader, knows the epoch before: a
    /// Sentinel sends hello before it asks for votes. Returns the Sentinels that have to learn of the promotion.
    pub(crate) fn promote(&mut self, server: usize, before: usize) -> [usize; SENTINELS - 1] {
        let leader = self.rng.usize(0..SENTINELS);
        let voter = (leader + self.rng.usize(1..SENTINELS)) % SENTINELS;
        if self.views[voter].epoch < self.epoch {
            self.views[voter] = View {
                address: before,
                epoch: self.epoch,
            };
        }
        self.epoch += 1;
        self.views[leader] = View {
            address: server,
            epoch: self.epoch,
        };
        [voter, SENTINELS - leader - voter]
    }
}
