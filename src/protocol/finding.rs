//! What a check of a server has found, for an operator.

use std::sync::Arc;

/// What one check of a server has found. [`Inspection::check`](crate::inspect::Inspection::check) returns them.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for finding in tenure::block_on(locks.inspect().check())? {
///     println!("{} {} of {}: {}", finding.level.word(), finding.check, finding.server, finding.text);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The server that was checked. The locks of a quorum are checked at all its masters together.
    pub server: Arc<str>,
    /// What was checked: one word, such as `memory`.
    pub check: &'static str,
    /// Whether it is a fault.
    pub level: FindingLevel,
    /// What was found, and what to do about it.
    pub text: String,
}

/// Whether what a check has found is a fault.
///
/// ```
/// use tenure::inspect::FindingLevel;
///
/// assert!(FindingLevel::Ok < FindingLevel::Warn && FindingLevel::Warn < FindingLevel::Fail);
/// assert_eq!(FindingLevel::Fail.word(), "fail");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FindingLevel {
    /// As it must be.
    Ok,
    /// Leases may be lost or held twice after a failure, or the server did not tell.
    Warn,
    /// Locks do not work, or not for long.
    Fail,
}

impl FindingLevel {
    /// Returns the word for the level: `ok`, `warn` or `fail`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}
