//! What holders say of themselves, as operators see it.

use std::sync::Arc;

use crate::protocol::message::{ClaimNumber, Fence};
use crate::protocol::view::NodeView;

/// What a holder said of itself by [`Lease::note`](crate::Lease::note), at the latest presence of its node.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// # let guard = locks.mutex("account:42").lock().await?;
/// for entry in locks.inspect().show("account:42").await?.entries {
///     for note in entry.holders.iter().flat_map(|holder| &holder.notes) {
///         println!("{} is held with the fence {} by {:?}", entry.key, note.fence, note.text);
///     }
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NoteEntry {
    /// The fence of the holder. The local holders of one grant have different fences.
    pub fence: Fence,
    /// The text, at most 200 bytes. It may contain any character: escape it before it is printed on a terminal.
    pub text: Arc<str>,
}

/// Returns the notes of a claim, which a node told.
pub(super) fn notes_of(node: Option<&NodeView>, claim: ClaimNumber) -> Vec<NoteEntry> {
    let told = node.and_then(|node| node.presence.as_ref()).into_iter();
    let notes = told.flat_map(|told| &told.notes);
    notes
        .filter(|note| note.claim == claim)
        .map(|note| NoteEntry {
            fence: note.fence,
            text: note.text.clone(),
        })
        .collect()
}
