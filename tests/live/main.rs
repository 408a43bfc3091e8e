//! Tests against a real Redis. They start their own servers: `apt-get install redis-server`.

#![allow(clippy::too_many_lines, reason = "a test tells one story")]
#![allow(
    clippy::disallowed_methods,
    reason = "waits for processes, and judges no lease"
)]
#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and `server` is included elsewhere"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod cancellation;
#[cfg(feature = "scheduler")]
mod checkpoints;
mod child;
mod clocks;
mod cluster;
mod cluster_rules;
mod clusters;
mod clusters_failover;
mod clusters_laws;
mod clusters_map;
mod commands;
mod contest;
mod credentials;
mod deployment;
mod differential;
mod elections;
#[cfg(feature = "scheduler")]
mod engine;
mod events;
mod failovers;
mod foreign_values;
mod help;
mod idle;
mod inspect;
mod interop;
#[cfg(feature = "scheduler")]
mod job_acts;
mod keeping;
mod latches;
mod leaders;
mod leading;
mod leases;
mod loss;
mod many_keys;
#[cfg(feature = "scheduler")]
mod many_ticks;
mod masters;
#[cfg(feature = "metrics")]
mod metrics;
mod moved_address;
mod multi;
mod mutexes;
mod outages;
mod pools;
mod ports;
mod quiet;
mod quorums;
mod quorums_clocks;
mod quorums_contention;
mod quorums_faults;
mod quorums_laws;
mod quorums_list;
mod reconnect;
mod recovery;
mod refusals;
mod reigns;
#[cfg(feature = "axum")]
mod requests;
mod retries;
#[cfg(feature = "scheduler")]
mod run_all;
mod runtimes;
mod rw_locks;
mod scenarios;
mod semaphores;
mod sentinels;
mod server;
mod server_faults;
#[cfg(feature = "scheduler")]
mod shutdown;
mod silence;
mod stage;
mod steals;
mod store;
mod subscribers;
#[cfg(feature = "scheduler")]
mod ticks;
#[cfg(feature = "scheduler")]
mod ticks_restarts;
#[cfg(feature = "rustls")]
mod tls;
mod tools;
mod torture;
mod transfers;
mod two_locks;
mod urls;
mod waiters;
mod wall_clock;
#[cfg(feature = "scheduler")]
mod went_back;
mod writes;
mod writes_of_several;
mod zero_wait;
