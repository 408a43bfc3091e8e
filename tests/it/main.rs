//! The suite that needs no server: `cargo test`. One binary, so that touching `lib.rs` relinks one.

// Tests play the outside world: they may read its clock.
#![allow(clippy::too_many_lines, reason = "a test tells one story")]
#![allow(clippy::disallowed_methods)]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "../support/mod.rs"]
mod support;

mod architecture;
mod blocking;
mod bounds;
mod cancellation;
#[cfg(feature = "scheduler")]
mod checkpoints;
mod clockless;
mod debug;
mod elections;
mod errors;
#[cfg(feature = "scheduler")]
mod event_table;
mod events;
mod failures;
#[cfg(all(unix, feature = "scheduler"))]
mod forks;
mod guards;
mod help;
mod inspect;
mod interop;
#[cfg(feature = "scheduler")]
mod job_acts;
#[cfg(feature = "scheduler")]
mod job_triggers;
mod keeping;
mod key_machine;
mod latches;
#[cfg(feature = "axum")]
mod layer;
#[cfg(feature = "axum")]
mod layer_bodies;
#[cfg(feature = "axum")]
mod layer_choices;
#[cfg(feature = "axum")]
mod layer_completion;
#[cfg(feature = "axum")]
mod layer_guard;
#[cfg(feature = "axum")]
mod layer_keys;
#[cfg(feature = "axum")]
mod layer_lease;
#[cfg(feature = "axum")]
mod layer_nested;
#[cfg(feature = "axum")]
mod layer_notes;
#[cfg(feature = "axum")]
mod layer_options;
#[cfg(feature = "axum")]
mod layer_order;
#[cfg(feature = "axum")]
mod layer_refusals;
#[cfg(feature = "axum")]
mod layer_retries;
#[cfg(feature = "axum")]
mod layer_servers;
#[cfg(feature = "axum")]
mod layer_several;
#[cfg(feature = "axum")]
mod layer_sources;
#[cfg(feature = "axum")]
mod layer_spellings;
#[cfg(feature = "scheduler")]
mod lease_times;
mod leases;
mod locking;
mod loss;
mod machine;
mod map;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(all(feature = "metrics", feature = "scheduler"))]
mod metrics_jobs;
#[cfg(all(feature = "metrics", feature = "scheduler"))]
mod metrics_scrape;
mod multi;
mod mutexes;
mod nonce;
mod notes;
mod outages;
mod pages;
mod paused_clock;
#[cfg(feature = "scheduler")]
mod policies;
mod proxy;
mod quorums;
#[cfg(feature = "metrics")]
mod recorders;
mod recovery;
mod refusals;
mod renewals;
#[cfg(feature = "scheduler")]
mod run_all;
mod runtimes;
mod rw_locks;
mod scenarios;
#[cfg(feature = "scheduler")]
mod schedules;
mod semaphores;
mod session;
#[cfg(all(feature = "scheduler", feature = "axum"))]
mod shutdown;
#[cfg(feature = "scheduler")]
mod simulations;
mod spans;
mod steals;
mod subscribers;
#[cfg(feature = "scheduler")]
mod ticks;
#[cfg(feature = "scheduler")]
mod ticks_engine;
#[cfg(feature = "scheduler")]
mod ticks_removal;
#[cfg(feature = "scheduler")]
mod ticks_runs;
#[cfg(feature = "scheduler")]
mod ticks_takeover;
mod transfers;
mod two_locks;
mod urls;
mod waiters;
mod watching;
mod writes;
mod zero_wait;
