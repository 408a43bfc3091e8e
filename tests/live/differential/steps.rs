//! The length of a comparison, and the check that each wanted event happened.

use std::collections::HashMap;

/// The steps of one comparison. They follow from a seed; `TENURE_SEED` and `TENURE_STEPS` choose the seed and the number.
pub struct Steps {
    pub seed: u64,
    /// The smallest number of steps.
    pub least: u64,
    taken: u64,
}

impl Steps {
    pub fn begin() -> Self {
        let (seed, least) = (var("TENURE_SEED", fastrand::u64(..)), var("TENURE_STEPS", 1_500));
        println!("TENURE_SEED={seed} TENURE_STEPS={least}");
        Steps {
            seed,
            least,
            taken: 0,
        }
    }

    /// Returns the number of the next step, or `None` at the end.
    ///
    /// Each wanted event must happen the given number of times in a thousand of the least steps, and at least once: a branch
    /// that is seldom taken is hardly compared. A seed that lacks some events gets more steps, up to twenty times as many. A seed
    /// that still lacks some is a failure, because chance alone almost never causes it.
    pub fn next(&mut self, seen: &HashMap<&'static str, u64>, wanted: &[(&str, u64)]) -> Option<u64> {
        let short = wanted.iter().find_map(|&(what, often)| {
            let count = seen.get(what).copied().unwrap_or(0);
            let enough = (often * self.least / 1000).max(1);
            (self.least >= 1000 && count < enough).then_some((what, count))
        });
        if self.taken < self.least || (self.taken < 20 * self.least && short.is_some()) {
            self.taken += 1;
            return Some(self.taken);
        }
        let mut seen: Vec<_> = seen.iter().collect();
        seen.sort_unstable();
        println!("{} steps: {seen:?}", self.taken);
        assert_eq!(short, None, "in {} steps", self.taken);
        None
    }
}

fn var(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}
