//! Everything that this crate tells: events through [`tracing`], and with the feature `metrics` numbers through the
//! `metrics` facade. Names, fields, levels and labels are here and nowhere else.
//!
//! # Events
//!
//! Events of a tick have its nominal time as `tick_ms`, those of its runs and its end also as `tick`, by RFC 3339.
//!
//! All events have the target `tenure` and a field `event` with one of the names in [`EVENTS`]. Keys are a field of
//! events about one key, beside their `kind`: `lock`, `job`, `semaphore`, `election` or `latch`. They are no label of anything that is counted. What
//! happens to a node has its id as `node`, and everything but what layers tell has a `node_name`, if the
//! [builder](crate::locks::Builder::node_name) gave one.
//!
//! A server that fails is two events, however many leases and callers it concerns: `store_failing` when the first
//! connection is given up or the first request is refused or not answered in time, with the `server` and the `error`;
//! and `store_recovered` when it answers again and its inbox is open again, with `away_ms`, and what happened in between:
//! `requests_failed`, `callers_refused`, `leases_lost`. After refusals, and when it failed again within five seconds, it counts as back
//! when nothing failed for five seconds. What fails for one key, caller or request is told at the level of debugging,
//! and counted by the metrics one by one. A lost lease is always told for itself.
//!
//! What a caller sees (`granted`, `denied`, `released`, `release_failed`, and all of layers and jobs) is told on its own
//! thread, in its span: a subscriber that blocks stops that thread, as it does for events of your own. Who writes to a pipe
//! that may be full writes by a thread of its own, such as `tracing_appender::non_blocking`. What happens in the background goes through a bounded queue to one thread of the process,
//! `tenure-events`: a subscriber that blocks or panics costs no lease and delays no caller. It is told to the subscriber
//! that was the default, scoped ones included, when the `Locks` were built; if there was none, to the global one of the
//! moment. A full queue drops what it has no room for and says how much (`events_dropped`); losses have room of their
//! own.
//!
//! # Metrics
//!
//! With `features = ["metrics"]`. Whatever recorder you install receives them; install it before `Locks` are built, so
//! that it also learns units and texts. What happens in the background is counted at once, and told to the global
//! recorder within a tenth of a second by the thread `tenure-events`; a recorder that is local to a thread sees what
//! the callers of that thread see. They are listed in [`METRICS`]. Counters end with `_total`, spans of time with
//! `_seconds`. The values of labels below are all that there are: neither keys nor nodes are among them.
//!
//! | metric | kind | unit | labels | what it says |
//! |---|---|---|---|---|
//! | `tenure_grants_total` | counter | callers | `kind`: `lock`, `job` for the ticks of a job, `semaphore`, or `election` | callers that got a lock |
//! | `tenure_wait_seconds` | histogram | seconds | `kind`: `lock`, `job`, `semaphore`, `election`. `outcome`: `granted`, `busy`, `queue_full`, `store`, `closed`, `invalid` (a key, an option, or a wait for oneself), `not_due` (a tick that is over, or early), or `gave_up` | from asking for a lock to the answer; giving up is to drop the future, as a timeout does |
//! | `tenure_hold_seconds` | histogram | seconds | `kind`: `lock`, `job`, `semaphore`, `election`. `outcome`: `released`, or `lost` when the guard had been told before that the lease was lost | from getting a lock to giving it back or dropping the guard |
//! | `tenure_handoffs_total` | counter | leases | `kind`: `lock`, `job`, `semaphore`, `election`. `from`: `local`, a caller of this process; `remote`, the store's queue | leases that passed from one holder to the next who waited |
//! | `tenure_losses_total` | counter | leases | `kind`: `lock`, `job`, `semaphore`, `election`. `cause`: `deadline` and `gone` are trouble; `overdue` (held for longer than it may be) and `unfetched` (nobody polled the future that it was granted to) are faults of the program; `ended` (a fixed lease) and `shutdown` are neither | leases that ended before their guard did |
//! | `tenure_renewal_slack_seconds` | histogram | seconds | | what had been left of a lease when the answer to its renewal came. Two thirds of the lease are normal; near zero leases are about to be lost |
//! | `tenure_batch_requests` | histogram | requests | | requests that travelled to the store together |
//! | `tenure_store_errors_total` | counter | errors | `during`: `lock` (callers that were refused), `wait` and `renew` (tried again), `release` (a caller was told), `withdraw` (given up, it ends by itself), `connection`, `inbox`. `error`: `unreachable`, `timed_out`, `interrupted`, or why it refused: `wrong_type`, `out_of_memory`, `read_only`, `loading`, `busy`, `misconfigured`, `no_replicas`, `no_auth`, `wrong_password`, `no_permission`, `unsupported`, `other` | errors of the store |
//! | `tenure_ticks_total` | counter | ticks | `outcome`: `done`, `failed`, `panicked`, `timed_out`, `given_up`, `elsewhere`, `skipped`, `missed`, `drained`, `removed`, `refused` | ticks that are over for this process; the module `scheduler` says what the words mean. A run that loses its lease is a loss of a `job`; its tick is over when this process knows who ended it |
//! | `tenure_job_alarms_total` | counter | alarms | `alarm`: `early`, `skewed`, `overtaken`, `given_up`, `mark_ahead`, `went_back`, `differs`, `skips`, `blocks`, `engine_missed`, `storage_shared`, `passed_over` | what is wrong with jobs and clocks, by the events of like names |
//! | `tenure_refused_total` | counter | requests | `why`: `busy`, `in_flight`, `waited_too_long`, `queue_full`, `store_failed`, `closed`, `lost`, `outcome_unknown`, `bad_key`, `no_key`, `bad_options` | requests that a layer answered itself |
//! | `tenure_observed_total` | counter | requests | `outcome`: `alone`, `overlap`, `refused`. `route`: of yours, as axum knows it, else empty | requests behind a layer that only observes |

mod event;
mod events;
mod metrics;
mod shield;

pub(crate) use event::{Event, Label};
pub use events::EVENTS;
pub(crate) use events::*;
pub(crate) use metrics::{Began, answered, describe, gave_up, held, kept};
pub use metrics::{METRICS, Metric, MetricKind};
pub(crate) use shield::shielded;
