//! Nothing: the benches are all there is. See `benches/compare.rs`.
