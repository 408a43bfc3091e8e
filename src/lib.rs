// What the names of links in the README mean here. In Markdown the first definition of a name holds.
#![doc = include_str!("links.md")]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// In reading order: from the vocabulary to the front doors.
pub mod error;
mod key;
#[doc(hidden)]
pub mod protocol;

pub mod observe;
mod options;
#[doc(hidden)]
pub mod store;

mod driver;

mod locks;
mod primitives;

#[cfg(feature = "tower")]
pub mod middleware;

#[cfg(feature = "scheduler")]
pub mod scheduler;

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(any(doc, doctest))]
pub mod guide;

pub use error::Error;
pub use key::{Key, KeyPart};
pub use locks::{Builder, Locks};
#[cfg(feature = "tower")]
pub use middleware::LockLayer;
pub use options::Recovery;
pub use primitives::acquire::Acquire;
pub use primitives::blocking::block_on;
pub use primitives::election::{Election, Leader, Observer};
pub use primitives::guard::{Guard, Lease};
pub use primitives::inspect;
pub use primitives::latch::Latch;
pub use primitives::multi::{MultiKey, MultiLock};
pub use primitives::multi_guard::{MultiGuard, MultiLease};
pub use primitives::mutex::Mutex;
pub use primitives::rw_lock::RwLock;
pub use primitives::semaphore::Semaphore;
pub use primitives::transfer::{ParseTransferError, Transfer, TransferError};
#[cfg(feature = "redis")]
pub use primitives::write::{Atomically, Commands, Script};
pub use protocol::message::{Fence, NodeId};
/// What [`Builder::tls`] takes: types of redis-rs, so users need no dependency on that crate.
#[cfg(feature = "rustls")]
pub use redis::{ClientTlsConfig, TlsCertificates};
#[cfg(feature = "scheduler")]
pub use scheduler::tick::Tick;
pub use store::memory::MemoryStore;
/// The token that [`Lease::lost_token`] returns. It is the type of tokio-util, so users need no dependency on that crate.
pub use tokio_util::sync::CancellationToken;
