//! The bounded queue of events, and the one thread of the process that tells them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
#[cfg(any(test, feature = "testing"))]
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tracing::Dispatch;

use crate::observe::{self, Event, Label, kept, shielded};

const THREAD: &str = "tenure-events";
/// So many events wait at the most, and beyond them so many losses.
pub(super) const ROOM: usize = 4_096;
pub(super) const ROOM_BEYOND: usize = 1_024;
/// How long counts are gathered before the recorder is told.
const GATHER: Duration = Duration::from_millis(100);

/// An event on its way. Whatever is foreign in it is dropped on the event thread.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) label: Label,
    pub(super) dispatch: Option<Dispatch>,
    /// `None`: it only brings its subscriber to where that may be dropped.
    pub(super) event: Option<Event>,
}

/// Pushing takes no lock, runs no subscriber, recorder or waker, and drops none.
#[derive(Debug)]
pub(super) struct Queue {
    channel: OnceLock<(Sender<Work>, Mutex<Receiver<Work>>)>,
    /// How many entries wait.
    waiting: AtomicUsize,
    /// How many events had no room and are not told yet.
    dropped: AtomicU64,
    /// Something was counted that the recorder was not told.
    counted: AtomicBool,
    /// The event thread runs.
    is_started: AtomicBool,
    /// The process that the queue belongs to; 0 before the first event.
    pid: AtomicU32,
}

#[derive(Debug)]
enum Work {
    Tell(Entry),
    /// Tells this subscriber of events that had no room. It stands where the first of them would have been.
    TellDropped(Option<Dispatch>),
    /// Everything before was told.
    #[cfg(any(test, feature = "testing"))]
    Flushed(SyncSender<()>),
    /// Something was counted: it is told when no event comes for a while.
    Gather,
}

impl Queue {
    pub(super) const fn new() -> Queue {
        Queue {
            channel: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            pid: AtomicU32::new(0),
        }
    }

    /// Queues an event, or drops it when there is no room.
    pub(super) fn push(&'static self, entry: Entry) {
        if !self.is_mine() {
            std::mem::forget(entry);
            return;
        }
        let is_ordinary = entry.event.as_ref().is_some_and(|event| !event.is_loss);
        let room = ROOM + if is_ordinary { 0 } else { ROOM_BEYOND };
        let enter = |waiting| (waiting < room).then_some(waiting + 1);
        let entered = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter);
        if entered.is_ok() {
            self.send(Work::Tell(entry));
        } else if entry.event.is_none() {
            // To drop the last handle of a subscriber would run its code here.
            std::mem::forget(entry);
        } else if self.dropped.fetch_add(1, Ordering::SeqCst) == 0 {
            self.send(Work::TellDropped(entry.dispatch));
        }
    }

    /// Something was counted, for a recorder.
    pub(super) fn counted(&'static self) {
        let is_news = cfg!(feature = "metrics")
            && !self.counted.load(Ordering::SeqCst)
            && !self.counted.swap(true, Ordering::SeqCst);
        if is_news && self.is_mine() {
            self.send(Work::Gather);
        }
    }

    /// Waits until what was queued and counted before was told, for so long.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn flush(&'static self, patience: Duration) {
        let is_event_thread = std::thread::current().name() == Some(THREAD);
        if is_event_thread || !self.is_mine() {
            return;
        }
        let (done, is_done) = sync_channel(1);
        self.send(Work::Flushed(done));
        let _ = is_done.recv_timeout(patience);
    }

    /// Not in a child that was forked since. Whoever asks first owns the queue.
    pub(super) fn is_mine(&self) -> bool {
        let me = std::process::id();
        let owner = self
            .pid
            .compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
        owner.is_ok() || owner == Err(me)
    }

    fn channel(&self) -> &(Sender<Work>, Mutex<Receiver<Work>>) {
        self.channel.get_or_init(|| {
            let (sender, receiver) = channel();
            (sender, Mutex::new(receiver))
        })
    }

    fn send(&'static self, work: Work) {
        // The receiver lives as long as the sender.
        let _ = self.channel().0.send(work);
        if self.is_started.load(Ordering::SeqCst) || self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let thread = std::thread::Builder::new().name(THREAD.into());
        if thread.spawn(|| self.tell_for_ever()).is_err() {
            // The system has no thread to give. The next event tries again.
            self.is_started.store(false, Ordering::SeqCst);
        }
    }

    fn tell_for_ever(&self) {
        let receiver = self.channel().1.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let work = self.next(&receiver);
            // Before the event of which it was counted, so that whoever sees that finds its count.
            if self.counted.swap(false, Ordering::SeqCst) {
                kept::flush();
            }
            match work {
                Some(Work::Tell(entry)) => {
                    self.waiting.fetch_sub(1, Ordering::SeqCst);
                    shielded(|| entry.tell());
                }
                Some(Work::TellDropped(dispatch)) => {
                    let count = self.dropped.swap(0, Ordering::SeqCst);
                    shielded(|| to(dispatch.as_ref(), || observe::events_dropped(count)));
                }
                // A caller that waited too long for it is gone.
                #[cfg(any(test, feature = "testing"))]
                Some(Work::Flushed(done)) => done.try_send(()).unwrap_or(()),
                Some(Work::Gather) | None => {}
            }
        }
    }

    /// Waits for something to do. `None`: nothing came while counts were gathered.
    fn next(&self, receiver: &Receiver<Work>) -> Option<Work> {
        loop {
            let work = if self.counted.load(Ordering::SeqCst) {
                receiver.recv_timeout(GATHER).ok()?
            } else {
                receiver.recv().ok()?
            };
            if !matches!(work, Work::Gather) {
                return Some(work);
            }
        }
    }
}

impl Entry {
    fn tell(self) {
        if let Some(event) = self.event {
            to(self.dispatch.as_ref(), || event.emit(&self.label));
        }
    }
}

/// Runs what tells something, for the subscriber that was captured or else the global one.
fn to(dispatch: Option<&Dispatch>, tell: impl FnOnce()) {
    match dispatch {
        Some(dispatch) => tracing::dispatcher::with_default(dispatch, tell),
        None => tell(),
    }
}
