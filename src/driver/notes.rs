//! The notes that callers put on the leases they hold. They are kept in memory, and the presence of the node has a few of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::driver::waiter::{Waiter, lock};
use crate::protocol::message::{ClaimNumber, Fence, start_within};
use crate::protocol::time::Instant;
use crate::protocol::view::{MAX_NOTE, MAX_NOTES, NoteView};

/// How long a lease is held before its note is told. So the notes of short requests cost no command.
const MIN_HOLD: Duration = Duration::from_secs(1);

/// The notes of a node, in the order in which their leases were granted. No other mutex is locked under this one.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    kept: Mutex<BTreeMap<NoteKey, KeptNote>>,
    /// Notified when there is a note and there was none.
    pub(super) first_note: Notify,
}

/// Since when a lease is held, by which claim, and by which local holder.
pub(crate) type NoteKey = (Instant, ClaimNumber, Fence);

#[derive(Debug)]
struct KeptNote {
    waiter: Arc<Waiter>,
    text: Arc<str>,
}

/// The place of a holding for its note. The note is removed with the place, or earlier, when the holding is over.
pub(crate) struct NotePlace {
    notes: Arc<Notes>,
    waiter: Arc<Waiter>,
    key: NoteKey,
}

impl Notes {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.kept).is_empty()
    }

    /// Removes the notes of leases that are over. Returns those that operators are told.
    pub(super) fn notes_to_tell(&self, now: Instant) -> Vec<NoteView> {
        let mut kept = lock(&self.kept);
        kept.retain(|_, note| !note.waiter.is_over());
        let is_old = |since: Instant| now.since(since) >= MIN_HOLD;
        kept.iter()
            .take_while(|((since, ..), _)| is_old(*since))
            .take(MAX_NOTES)
            .map(|(&(_, claim, fence), note)| NoteView {
                claim,
                fence,
                text: note.text.clone(),
            })
            .collect()
    }
}

impl NotePlace {
    pub(crate) fn new(notes: &Arc<Notes>, waiter: &Arc<Waiter>, key: NoteKey) -> NotePlace {
        NotePlace {
            notes: notes.clone(),
            waiter: waiter.clone(),
            key,
        }
    }

    /// Keeps the beginning of the text in place of an earlier note.
    pub(crate) fn write(&self, text: &str) {
        let note = KeptNote {
            waiter: self.waiter.clone(),
            text: start_within(text, MAX_NOTE).into(),
        };
        let mut kept = lock(&self.notes.kept);
        if kept.is_empty() {
            self.notes.first_note.notify_one();
        }
        kept.insert(self.key, note);
    }
}

impl Drop for NotePlace {
    fn drop(&mut self) {
        // A fork may have inherited the mutex locked. A note that stays is removed by the next look, because its lease is over.
        if let Ok(mut kept) = self.notes.kept.try_lock() {
            kept.remove(&self.key);
        }
    }
}

impl fmt::Debug for NotePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotePlace").field(&self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::GrantNumber;

    /// Keeps a note of a lease that is held since that many milliseconds, and returns its waiter.
    fn keep(notes: &Notes, since_ms: u64, text: &str) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::default());
        let fence = Fence::new(GrantNumber(since_ms), 0);
        let key = (at(since_ms), ClaimNumber(since_ms), fence);
        let note = KeptNote {
            waiter: waiter.clone(),
            text: text.into(),
        };
        lock(&notes.kept).insert(key, note);
        waiter
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn told(notes: &Notes, at_ms: u64) -> Vec<u64> {
        notes
            .notes_to_tell(at(at_ms))
            .iter()
            .map(|note| note.claim.0)
            .collect()
    }

    #[test]
    fn a_note_is_told_from_the_first_second_to_the_end_of_its_lease() {
        let notes = Notes::default();
        let waiter = keep(&notes, 100, "a");
        assert!(told(&notes, 1_099).is_empty());
        assert_eq!(told(&notes, 1_100), [100]);
        assert!(!notes.is_empty());
        waiter.mark_over();
        assert!(told(&notes, 1_200).is_empty());
        assert!(notes.is_empty(), "nothing is kept of a lease that is over");
    }

    #[test]
    fn the_leases_that_were_held_longest_are_told() {
        let notes = Notes::default();
        let waiters: Vec<_> = (0..20).rev().map(|n| keep(&notes, n, "a")).collect();
        assert_eq!(told(&notes, 2_000), (0..16).collect::<Vec<u64>>());
        waiters[19].mark_over();
        assert_eq!(told(&notes, 2_000), (1..17).collect::<Vec<u64>>());
    }
}
