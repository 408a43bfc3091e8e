//! The bounded queue of events, and the one thread of the process that emits them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
#[cfg(any(test, feature = "testing"))]
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tracing::Dispatch;

use crate::observe::{self, Event, Label, catch_foreign_panic, pending};

const THREAD: &str = "tenure-events";
/// The queue holds at most this many events. Beyond that, only losses are queued.
pub(super) const MAX_WAITING_EVENTS: usize = 4_096;
/// Beyond `MAX_WAITING_EVENTS`, at most this many losses, and subscribers to drop, are queued.
pub(super) const MAX_EXTRA_LOSSES: usize = 1_024;
/// How long counts are gathered before they go to the recorder.
const GATHER: Duration = Duration::from_millis(100);

/// An event in the queue. Foreign values in it are dropped on the event thread.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    pub(super) label: Label,
    pub(super) dispatch: Option<Dispatch>,
    /// `None`: the entry only moves its subscriber to the event thread, where the subscriber may be dropped.
    pub(super) event: Option<Event>,
}

/// A queue of events. Pushing takes no lock, and neither runs nor drops a subscriber, a recorder or a waker.
#[derive(Debug)]
pub(super) struct EventQueue {
    channel: OnceLock<(Sender<QueueItem>, Mutex<Receiver<QueueItem>>)>,
    /// The number of entries in the queue.
    waiting: AtomicUsize,
    /// The number of events that found no room and are not reported yet.
    dropped: AtomicU64,
    /// Set when there are counts that the recorder did not get yet.
    counted: AtomicBool,
    /// Set while the event thread runs.
    is_started: AtomicBool,
    /// The process that the queue belongs to; 0 before the first event.
    pid: AtomicU32,
}

#[derive(Debug)]
enum QueueItem {
    Emit(QueuedEvent),
    /// Reports to this subscriber how many events found no room. Its place in the queue is that of the first such
    /// event.
    ReportDropped(Option<Dispatch>),
    /// Signals that all earlier items are done.
    #[cfg(any(test, feature = "testing"))]
    Flush(SyncSender<()>),
    /// Starts to gather counts, which go to the recorder if no event comes for a while.
    Gather,
}

impl EventQueue {
    pub(super) const fn new() -> EventQueue {
        EventQueue {
            channel: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            pid: AtomicU32::new(0),
        }
    }

    /// Queues an event, or drops it if there is no room.
    pub(super) fn push(&'static self, entry: QueuedEvent) {
        if !self.is_of_this_process() {
            std::mem::forget(entry);
            return;
        }
        let is_ordinary = entry.event.as_ref().is_some_and(|event| !event.is_loss);
        let room = MAX_WAITING_EVENTS + if is_ordinary { 0 } else { MAX_EXTRA_LOSSES };
        let enter = |waiting| (waiting < room).then_some(waiting + 1);
        let entered = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter);
        if entered.is_ok() {
            self.send(QueueItem::Emit(entry));
        } else if entry.event.is_none() {
            // Dropping the last handle of a subscriber here would run its code on this thread.
            std::mem::forget(entry);
        } else if self.dropped.fetch_add(1, Ordering::SeqCst) == 0 {
            self.send(QueueItem::ReportDropped(entry.dispatch));
        }
    }

    /// Notes that there are new counts for the recorder.
    pub(super) fn note_count(&'static self) {
        let is_news = cfg!(feature = "metrics")
            && !self.counted.load(Ordering::SeqCst)
            && !self.counted.swap(true, Ordering::SeqCst);
        if is_news && self.is_of_this_process() {
            self.send(QueueItem::Gather);
        }
    }

    /// Waits until all earlier events and counts were emitted, for at most `patience`.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn flush(&'static self, patience: Duration) {
        let is_event_thread = std::thread::current().name() == Some(THREAD);
        if is_event_thread || !self.is_of_this_process() {
            return;
        }
        let (done, is_done) = sync_channel(1);
        self.send(QueueItem::Flush(done));
        let _ = is_done.recv_timeout(patience);
    }

    /// Returns whether this process owns the queue. The first process that asks owns it; a forked child does not.
    pub(super) fn is_of_this_process(&self) -> bool {
        let me = std::process::id();
        let owner = self
            .pid
            .compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
        owner.is_ok() || owner == Err(me)
    }

    fn channel(&self) -> &(Sender<QueueItem>, Mutex<Receiver<QueueItem>>) {
        self.channel.get_or_init(|| {
            let (sender, receiver) = channel();
            (sender, Mutex::new(receiver))
        })
    }

    fn send(&'static self, item: QueueItem) {
        // The receiver lives as long as the sender.
        let _ = self.channel().0.send(item);
        if self.is_started.load(Ordering::SeqCst) || self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let thread = std::thread::Builder::new().name(THREAD.into());
        if thread.spawn(|| self.run()).is_err() {
            // The system has no thread to give. The next event tries again.
            self.is_started.store(false, Ordering::SeqCst);
        }
    }

    fn run(&self) {
        let receiver = self.channel().1.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let item = self.next(&receiver);
            // Counts go first, so that an observer of an event finds the count of that event.
            if self.counted.swap(false, Ordering::SeqCst) {
                pending::flush();
            }
            match item {
                Some(QueueItem::Emit(entry)) => {
                    self.waiting.fetch_sub(1, Ordering::SeqCst);
                    catch_foreign_panic(|| entry.emit());
                }
                Some(QueueItem::ReportDropped(dispatch)) => {
                    let count = self.dropped.swap(0, Ordering::SeqCst);
                    catch_foreign_panic(|| {
                        with_subscriber(dispatch.as_ref(), || observe::events_dropped(count))
                    });
                }
                // The caller may have stopped waiting.
                #[cfg(any(test, feature = "testing"))]
                Some(QueueItem::Flush(done)) => done.try_send(()).unwrap_or(()),
                Some(QueueItem::Gather) | None => {}
            }
        }
    }

    /// Waits for the next item. Returns `None` if no item came while counts were gathered.
    fn next(&self, receiver: &Receiver<QueueItem>) -> Option<QueueItem> {
        loop {
            let item = if self.counted.load(Ordering::SeqCst) {
                receiver.recv_timeout(GATHER).ok()?
            } else {
                receiver.recv().ok()?
            };
            if !matches!(item, QueueItem::Gather) {
                return Some(item);
            }
        }
    }
}

impl QueuedEvent {
    fn emit(self) {
        if let Some(event) = self.event {
            with_subscriber(self.dispatch.as_ref(), || event.emit(&self.label));
        }
    }
}

/// Runs `emit` with the captured subscriber, or else with the global one.
fn with_subscriber(dispatch: Option<&Dispatch>, emit: impl FnOnce()) {
    match dispatch {
        Some(dispatch) => tracing::dispatcher::with_default(dispatch, emit),
        None => emit(),
    }
}
