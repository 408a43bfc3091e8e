//! A mistake planted by name, for the simulator.

use tenure::protocol::flaw::{Flaw, Plant};

/// What is planted, if anything is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planted(pub Option<Flaw>);

impl Plant for Planted {
    fn planted(self, flaw: Flaw) -> bool {
        self.0 == Some(flaw)
    }
}
