//! What the driver, and the steps of keys under their locks, have to tell, without running a line of foreign code
//! there.
//!
//! A subscriber may block, panic, or ask the very locks that tell it. So nothing is told where it happens: it is
//! counted in atomics and, if its level is on, queued for the one event thread of the process. What a caller itself
//! sees is no matter of this: its own thread calls [`observe`].

use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::driver::events::queue::{Entry, Queue};
use crate::error::LostCause;
use crate::observe::{self, Event, Label, kept, shielded};
use crate::protocol::message::Name;
use crate::protocol::step::KeyEvent;

mod queue;

/// One for a process, and for its child after a fork, and for that one's: a thread is not copied, and a lock may have
/// been copied in use.
static QUEUES: [Queue; 4] = [const { Queue::new() }; 4];

/// The queue of this process. From the fourth fork in a row on nothing is told.
fn queue() -> &'static Queue {
    let mine = QUEUES.iter().find(|queue| queue.is_mine());
    mine.unwrap_or(&QUEUES[0])
}

/// Where a node's events go. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct EventSink {
    label: Label,
    /// The subscriber that was the default where the node was built. `None`: the global one of the moment.
    dispatch: Option<Dispatch>,
    queue: &'static Queue,
}

impl EventSink {
    /// For a node that is built here and now.
    pub(crate) fn capture(label: Label) -> EventSink {
        EventSink::to(queue(), label)
    }

    fn to(queue: &'static Queue, label: Label) -> EventSink {
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        EventSink {
            label,
            // One that is set later is looked up later.
            dispatch: (!dispatch.is::<NoSubscriber>()).then_some(dispatch),
            queue,
        }
    }

    /// Tells an event, unless no subscriber listens. Never blocks, fails or panics.
    pub(crate) fn push(&self, event: Option<Event>) {
        // Some events are counted, too.
        self.queue.counted();
        if event.is_some() {
            self.queue.push(self.entry(event));
        }
    }

    /// Pushes an event of a key machine. Some of them only concern the simulator.
    pub(crate) fn push_key_event(&self, name: &Name, event: &KeyEvent) {
        self.push(match event.clone() {
            KeyEvent::HandedOn => observe::handed_on(name),
            KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
                observe::taken_over(name)
            }
            KeyEvent::Inherited { from } => observe::inherited(name, from),
            KeyEvent::Renewed { slack } => observe::renewed(name, slack),
            KeyEvent::RenewFailed { left, error } => observe::renew_failed(name, left, error),
            KeyEvent::WaitFailed { error } => observe::wait_failed(name, error),
            KeyEvent::LeaveFailed { error } => observe::leave_failed(name, error),
            KeyEvent::Requeued => observe::requeued(name),
            KeyEvent::Asking => observe::asked_again(name),
            KeyEvent::Late => observe::late(name),
            KeyEvent::UnknownLeft => observe::unknown_grant(name),
            KeyEvent::PushStale => observe::stale_grant(name),
            KeyEvent::PushForged => observe::forged_grant(name),
            KeyEvent::Overdue { held, left } => observe::overdue(name, held, left),
            KeyEvent::HeldLong { held } => observe::held_long(name, held),
            KeyEvent::UnlikeCapacity { ours, theirs } => observe::capacity_differs(name, ours, theirs),
            KeyEvent::TooShort
            | KeyEvent::GhostLeft
            | KeyEvent::Yielded
            | KeyEvent::LeaveRepeated
            | KeyEvent::AnswerStale => None,
        });
    }

    /// Pushes the event that a lease ended while it was held. `paused` is the length of the pause of this process in which
    /// the deadline passed.
    pub(crate) fn push_loss(&self, name: &Name, cause: LostCause, paused: Option<Duration>) {
        let event = observe::lost(name, cause, paused);
        let is_trouble = matches!(cause, LostCause::Deadline | LostCause::Gone);
        self.push(if is_trouble { event.map(Event::loss) } else { event });
    }

    /// A batch of so many requests leaves for the store. One without any is a sign of life, and no batch.
    pub(crate) fn sent(&self, requests: usize) {
        if requests > 0 {
            kept::departed(requests);
            self.queue.counted();
        }
    }

    /// Whose they are.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    fn entry(&self, event: Option<Event>) -> Entry {
        Entry {
            label: self.label.clone(),
            dispatch: self.dispatch.clone(),
            event,
        }
    }
}

impl Drop for EventSink {
    /// The last handle of a subscriber runs its `Drop`: not here.
    fn drop(&mut self) {
        if let Some(dispatch) = self.dispatch.take() {
            self.queue.push(Entry {
                label: self.label.clone(),
                dispatch: Some(dispatch),
                event: None,
            });
        }
    }
}

/// Waits until everything that was queued and counted before has been told; ten seconds at the most, and not on the
/// event thread.
#[cfg(feature = "testing")]
pub(crate) fn flush() {
    queue().flush(std::time::Duration::from_secs(10));
}

/// Wakes a caller. A waker is foreign: it may panic, but not into us.
pub(crate) fn wake(waker: Waker) {
    shielded(|| waker.wake());
}

/// Tells a caller, which wakes it.
pub(crate) fn tell<T>(caller: oneshot::Sender<T>, told: T) {
    shielded(|| drop(caller.send(told)));
}

/// Cancels a token, which wakes whoever waits for it.
pub(crate) fn cancel(token: CancellationToken) {
    shielded(|| token.cancel());
}

#[cfg(test)]
mod tests;
