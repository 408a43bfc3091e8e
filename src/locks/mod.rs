//! The entry point of the crate: [`Locks`] on one store, and its [`Builder`].
//!
//! # Which one for what
//!
//! | what must be exclusive, limited or ordered | use | cost, and what to know |
//! |---|---|---|
//! | work on one thing: an account, an order, a file | [`Locks::mutex`] and [`lock`](Mutex::lock) | a round trip to lock and one to release; none if the lease is handed on within the process |
//! | work that is skipped if another caller does it already | [`try_lock`](Mutex::try_lock) | a round trip; none if this process holds the lock |
//! | work whose caller waits for a limited time | [`lock_timeout`](Mutex::lock_timeout) | returns *busy* only if the store reported a holder |
//! | work of limited time: "ten seconds, then let go" | [`Mutex::fixed`] | never renewed in the background, never handed on within the process |
//! | work in the order in which callers of all processes came | [`Mutex::fair`] | a place in the store's queue, a round trip and a renewal for each caller: for tens of waiters |
//! | a function that may run only under a lock | [`Mutex::is_held_here`] | no round trip |
//! | many readers, or one writer: prices, a configuration | [`Locks::rw_lock`] | as a mutex; readers of a process share one lease, and a writer waits for the readers that came before it |
//! | at most n at a time: calls to a partner, exports, jobs of a tenant | [`Locks::semaphore`] | as a mutex; each holder has a lease that is renewed on its own |
//! | one waits until n others have finished: parts of an import | [`Locks::latch`] | a round trip to set it, to count down and to wait. The waiters of a process look together, each third of a lease. A latch has no lease and no holder |
//! | one process leads, as long as it lives: a relay, a poller, a cache warmer | [`Locks::election`] | a round trip to lead and one to hand over; candidates and observers look each third of a lease |
//! | a write to Redis that must be refused once the lease is lost | [`Lease::atomically`](crate::Lease::atomically), under several leases [`MultiLease::atomically`](crate::MultiLease::atomically) | a round trip, checked and done in one step; for SQL send the [fence](crate::Lease::fence) |
//! | work on several things together: a transfer between two accounts | [`Locks::multi`]; [`MultiKey::read`] for a key that is only read | one round trip each way if all keys are free; otherwise a round trip for each key, and no deadlock |
//! | one process acquires the lock and another finishes the work: a handler and a worker behind a queue | [`Guard::into_transfer`](crate::Guard::into_transfer) and [`Locks::adopt`] | a round trip each; between the two the lease is not renewed, and it ends by itself |
//! | a handler of an HTTP service, for one account, order or `Idempotency-Key` | `LockLayer`, see [the front page](crate#the-layer) | as a mutex; refusals are responses |
//! | a cron job on several replicas | `Locks::cron`, see [the front page](crate#cron-jobs) | a mutex is not enough: replicas never fire at the same moment |
//!
//! Code that is not async waits by [`block_on`](crate::block_on)`(mutex.lock())`, and so for each method. The lease of a
//! guard is renewed while the guard lives. A guard reports its loss, and has a [fence](crate::Lease::fence) for writes.
//!
//! [When not to use it](crate#when-not-to-use-it) lists work that needs no lease. Examples to run:
//!
//! | example | what it shows |
//! |---|---|
//! | `cargo run --example flash_sale` | three hundred buyers of a hundred items, on a mutex |
//! | `cargo run --example prices` | forty readers of two prices and one writer, on a read-write lock |
//! | `cargo run --example orders` | orders taken by one process and shipped by another: the lock goes with the message |
//! | `cargo run --example partner` | two replicas and a partner that answers three calls at a time, on a semaphore |
//! | `cargo run --example nightly_import` | an import in parts by two replicas; the books are opened after the last part, on a latch |
//! | `cargo run --example leader` | three processes of a relay; the leader is killed, on an election |
//! | `cargo run --example transfers` | money between accounts, on a multi-lock, and a teller that sleeps too long |
//! | `cargo run --example accounts` | two replicas of a bank behind the layer |
//! | `cargo run --example reconcile` | three replicas and one cron job |

#[cfg(doc)]
use crate::primitives::multi::MultiKey;
#[cfg(doc)]
use crate::primitives::mutex::Mutex;

pub use self::builder::Builder;
pub use self::entry::Locks;

mod builder;
mod entry;
mod url;
