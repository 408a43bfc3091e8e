//! A mistake that is planted by name.

use tenure::protocol::flaw::{Flaw, Plant};

/// The planted mistake, or none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planted(pub Option<Flaw>);

impl Plant for Planted {
    fn planted(self, flaw: Flaw) -> bool {
        self.0 == Some(flaw)
    }
}
