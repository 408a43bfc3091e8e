//! When the keys of a shard are due.

use std::collections::BTreeMap;

use crate::protocol::message::Name;
use crate::protocol::time::Instant;

/// When a key or its calls are due. A number tells those of one moment apart.
type Due = (Instant, u64);

/// One timer per key and one for its calls at the most. The earliest is kept beside the others: most of the time there is one or none, and
/// a tree would be made and freed for each lease.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    first: Option<(Due, Name)>,
    /// All later ones. Empty when there is no first.
    rest: BTreeMap<Due, Name>,
}

impl Timers {
    #[inline]
    pub(crate) fn first(&self) -> Option<(Instant, &Name)> {
        self.first.as_ref().map(|((due, _), name)| (*due, name))
    }

    /// Moves the timer of that number from `old`, which is kept beside it, to `due`.
    #[inline]
    pub(crate) fn change(
        &mut self,
        name: &Name,
        number: u64,
        old: &mut Option<Instant>,
        due: Option<Instant>,
    ) {
        if *old == due {
            return;
        }
        if let Some(old) = *old {
            self.remove((old, number));
        }
        if let Some(due) = due {
            self.set((due, number), name);
        }
        *old = due;
    }

    #[inline]
    fn set(&mut self, due: Due, name: &Name) {
        let mut timer = (due, name.clone());
        match &mut self.first {
            Some(first) => {
                if timer.0 < first.0 {
                    std::mem::swap(first, &mut timer);
                }
                self.rest.insert(timer.0, timer.1);
            }
            None => self.first = Some(timer),
        }
    }

    #[inline]
    fn remove(&mut self, due: Due) {
        match &self.first {
            Some((first, _)) if *first == due => self.first = self.rest.pop_first(),
            _ => {
                self.rest.remove(&due);
            }
        }
    }
}
