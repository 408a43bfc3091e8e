//! This library is empty. The package has only benches: see `benches/compare.rs`.
