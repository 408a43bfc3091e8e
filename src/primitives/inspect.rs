//! Inspection: which nodes hold which keys, since when, and which nodes wait. Looking changes nothing. A steal takes a
//! lease from its holder.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
//! let locks = tenure::Locks::memory();
//! let guard = locks.mutex("account:42").lock().await?;
//! for entry in locks.inspect().show("account:42").await?.entries {
//!     for holder in &entry.holders {
//!         println!("{} is held by {} since {:?}", entry.key, holder.node.id, holder.since);
//!     }
//! }
//! # guard.release().await }
//! ```

pub use crate::primitives::held::StealNotice;
pub use crate::primitives::inspect::inspection::{
    Cursor, Entry, HolderEntry, Inspection, Kind, Mode, NodeEntry, NotACursor, Page, PermitCount, Permits,
    PresenceEntry, State, WaiterEntry,
};
pub use crate::primitives::inspect::note::NoteEntry;
pub use crate::primitives::inspect::steal::{Steal, StealEnd, StealError, StealStep, Stolen};
pub use crate::protocol::finding::{Finding, FindingLevel};
pub use crate::protocol::steal::AuditEntry;

mod check;
mod inspection;
#[cfg(feature = "serde")]
pub(crate) mod json;
mod note;
pub(crate) mod steal;
