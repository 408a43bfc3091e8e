//! The events of the background: emitted without running foreign code on the driver's thread, or under the lock of a
//! shard.
//!
//! A subscriber may block, panic, or use the locks that emit to it. So an event of the background is counted in
//! atomics and, if its level is on, queued for the event thread of the process. What a caller itself sees is emitted
//! on its own thread, by [`observe`].

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::driver::events::queue::{EventQueue, QueuedEvent};
use crate::error::LostCause;
use crate::observe::pending::{self, Gauge};
use crate::observe::{self, Event, Label, catch_foreign_panic};
use crate::protocol::message::Name;
use crate::protocol::step::KeyEvent;

mod queue;

/// One queue for a process, one for its child after a fork, and so on: a fork does not copy threads, and may copy a
/// lock that is in use.
static QUEUES: [EventQueue; 4] = [const { EventQueue::new() }; 4];

/// Returns the queue of this process. From the fourth fork in a row on, no events are emitted.
fn queue() -> &'static EventQueue {
    let mine = QUEUES.iter().find(|queue| queue.is_of_this_process());
    mine.unwrap_or(&QUEUES[0])
}

/// The sink for the events of a node. Clones share its queue.
#[derive(Debug, Clone)]
pub(crate) struct EventSink {
    label: Label,
    /// The subscriber that was the default where the node was built. `None`: the global subscriber at the time of
    /// each event.
    dispatch: Option<Dispatch>,
    queue: &'static EventQueue,
}

impl EventSink {
    /// Returns a sink with the current default subscriber, for a node that is built here.
    pub(crate) fn capture(label: Label) -> EventSink {
        EventSink::with_queue(queue(), label)
    }

    fn with_queue(queue: &'static EventQueue, label: Label) -> EventSink {
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        EventSink {
            label,
            // Without a subscriber, each event looks up the global one, which may be set later.
            dispatch: (!dispatch.is::<NoSubscriber>()).then_some(dispatch),
            queue,
        }
    }

    /// Queues an event for the event thread. Never blocks, fails or panics. `None` is an event that no subscriber
    /// listens to.
    pub(crate) fn push(&self, event: Option<Event>) {
        // Such an event may have been counted, so the event thread must run.
        self.queue.note_count();
        if event.is_some() {
            self.queue.push(self.queued(event));
        }
    }

    /// Pushes an event of a key machine. Some of these events only concern the simulator.
    pub(crate) fn push_key_event(&self, name: &Name, event: &KeyEvent) {
        self.push(match event.clone() {
            KeyEvent::HandedOn => observe::handed_on(name),
            KeyEvent::Reused => observe::reused(name),
            KeyEvent::Recalled => observe::recalled(name),
            KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
                observe::taken_over(name)
            }
            KeyEvent::Inherited { from } => observe::inherited(name, from),
            KeyEvent::Renewed { slack, lease } => observe::renewed(name, slack, lease),
            KeyEvent::RenewFailed { left, error } => observe::renew_failed(name, left, error),
            KeyEvent::WaitFailed { error } => observe::wait_failed(name, error),
            KeyEvent::LeaveFailed { error } => observe::leave_failed(name, error),
            KeyEvent::Requeued => observe::requeued(name),
            KeyEvent::OutcomeQueried => observe::asked_again(name),
            KeyEvent::Late => observe::late(name),
            KeyEvent::UnknownLeft => observe::unknown_grant(name),
            KeyEvent::PushStale => observe::stale_grant(name),
            KeyEvent::PushForged => observe::forged_grant(name),
            KeyEvent::Overdue { held, left } => observe::overdue(name, held, left),
            KeyEvent::Asked(asking) => observe::asked(name, asking),
            KeyEvent::Revoked => observe::revoked(name),
            KeyEvent::HeldLong { held } => observe::held_long(name, held),
            KeyEvent::CapacityDiffers { local, recorded } => observe::capacity_differs(name, local, recorded),
            KeyEvent::GrantUnsuitable
            | KeyEvent::GhostLeft
            | KeyEvent::Yielded
            | KeyEvent::LeaveRepeated
            | KeyEvent::AnswerStale => None,
        });
    }

    /// Pushes the event that a lease ended while it was held. `paused` is the length of the pause of this process in
    /// which the deadline passed.
    pub(crate) fn push_loss(&self, name: &Name, cause: LostCause, paused: Option<Duration>) {
        let event = observe::lost(name, cause, paused);
        let is_trouble = matches!(cause, LostCause::Deadline | LostCause::Gone);
        self.push(if is_trouble { event.map(Event::loss) } else { event });
    }

    /// Counts the requests of a batch that is sent. A batch without requests is a ping, which is not counted.
    pub(crate) fn note_batch(&self, requests: usize) {
        if requests > 0 {
            pending::departed(requests);
            self.queue.note_count();
        }
    }

    /// Notes how long the store took to answer a batch.
    pub(crate) fn note_answer(&self, took: Duration) {
        if cfg!(feature = "metrics") {
            pending::store_answered(took);
            self.queue.note_count();
        }
    }

    /// Counts one in a gauge, until what is returned ends or is dropped.
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(crate) fn counted(&self, gauge: Gauge) -> Counted {
        #[cfg(feature = "metrics")]
        {
            gauge.add(1);
            self.queue.note_count();
        }
        Counted {
            #[cfg(feature = "metrics")]
            counting: (gauge, self.queue),
            #[cfg(feature = "metrics")]
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns the label of the node.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    fn queued(&self, event: Option<Event>) -> QueuedEvent {
        QueuedEvent {
            label: self.label.clone(),
            dispatch: self.dispatch.clone(),
            event,
        }
    }
}

/// Counts one in a gauge while it lives, so that no path forgets to subtract.
#[derive(Debug)]
pub(crate) struct Counted {
    #[cfg(feature = "metrics")]
    counting: (Gauge, &'static EventQueue),
    #[cfg(feature = "metrics")]
    is_over: AtomicBool,
}

impl Counted {
    /// Ends the count. Later calls do nothing.
    pub(crate) fn end(&self) {
        #[cfg(feature = "metrics")]
        if !self.is_over.swap(true, Ordering::AcqRel) {
            let (gauge, queue) = self.counting;
            gauge.add(-1);
            queue.note_count();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for EventSink {
    /// The last handle of a subscriber runs the subscriber's `Drop`, which must happen on the event thread.
    fn drop(&mut self) {
        if let Some(dispatch) = self.dispatch.take() {
            self.queue.push(QueuedEvent {
                label: self.label.clone(),
                dispatch: Some(dispatch),
                event: None,
            });
        }
    }
}

/// Waits until all events and counts so far were emitted, for at most ten seconds. Returns at once on the event
/// thread.
#[cfg(feature = "testing")]
pub(crate) fn flush() {
    queue().flush(std::time::Duration::from_secs(10));
}

/// Wakes a caller. A waker is foreign code; its panic is caught.
pub(crate) fn wake(waker: Waker) {
    catch_foreign_panic(|| waker.wake());
}

/// Sends a caller its result, which wakes the caller.
pub(crate) fn answer<T>(caller: oneshot::Sender<T>, result: T) {
    catch_foreign_panic(|| drop(caller.send(result)));
}

/// Cancels a token, which wakes the tasks that wait for it.
pub(crate) fn cancel(token: CancellationToken) {
    catch_foreign_panic(|| token.cancel());
}

#[cfg(test)]
mod tests;
