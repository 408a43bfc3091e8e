//! Units and moments of virtual time.

/// The server's wall clock at the start, in µs.
pub(crate) const EPOCH_US: u64 = 1_700_000_000_000_000;

/// Nanoseconds in a millisecond. Virtual time is in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The time after the last fault until the world must be in order, in ns.
pub(crate) const SETTLE_NS: u64 = 8_000 * MS;
