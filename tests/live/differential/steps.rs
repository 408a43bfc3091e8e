//! How long a comparison goes on, and whether it has seen what it must.

use std::collections::HashMap;

/// The steps of one comparison, which follow from a seed. `TENURE_SEED` and `TENURE_STEPS` choose other ones.
pub struct Steps {
    pub seed: u64,
    /// So many are taken in any case.
    pub least: u64,
    taken: u64,
}

impl Steps {
    pub fn begin() -> Self {
        let (seed, least) = (var("TENURE_SEED", fastrand::u64(..)), var("TENURE_STEPS", 2_500));
        println!("TENURE_SEED={seed} TENURE_STEPS={least}");
        Steps {
            seed,
            least,
            taken: 0,
        }
    }

    /// The number of the next one, or nothing at the end.
    ///
    /// Each of what is wanted happens so many times in a thousand of the least steps, and once at least: a branch that was seldom
    /// taken was hardly compared. A seed that is short of some then gets more, up to twenty times as many: that a seed falls
    /// short by chance is then not to be expected, and is a failure.
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
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}
