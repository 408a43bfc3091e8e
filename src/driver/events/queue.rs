//! The bounded queue of events, and the one thread of the process that tells them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Dispatch;

use crate::observe::background;
use crate::observe::event::Event;
use crate::observe::{Label, kept, shielded};

const THREAD: &str = "tenure-events";
/// So many events wait at the most, and beyond them so many losses.
pub(super) const ROOM: usize = 4_096;
pub(super) const ROOM_BEYOND: usize = 1_024;
/// What was dropped is told when no more than this wait: not between each two.
const ROOM_AGAIN: usize = ROOM / 2;
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

/// Locked for nothing that takes time: no subscriber, recorder or waker is run, and none is dropped.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wanted: Condvar,
    /// Something was counted that the recorder was not told.
    counted: AtomicBool,
    /// Whose it is; 0 before the first.
    pid: AtomicU32,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<Entry>,
    dropped: Option<Dropped>,
    flushes: Vec<SyncSender<()>>,
    is_started: bool,
    /// The thread waits to be notified.
    is_asleep: bool,
}

/// Events for which there was no room. Told where the first of them would have been.
#[derive(Debug)]
struct Dropped {
    count: u64,
    dispatch: Option<Dispatch>,
}

enum Work {
    Tell(Entry),
    TellDropped(Dropped),
    /// What is counted.
    Count,
    /// Everything before was told.
    Flushed(Vec<SyncSender<()>>),
}

impl Queue {
    pub(super) const fn new() -> Queue {
        Queue {
            state: Mutex::new(State {
                entries: VecDeque::new(),
                dropped: None,
                flushes: Vec::new(),
                is_started: false,
                is_asleep: false,
            }),
            wanted: Condvar::new(),
            counted: AtomicBool::new(false),
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
        let mut state = self.lock();
        if state.entries.len() < room {
            state.entries.push_back(entry);
            self.wake_thread(state);
            return;
        }
        if entry.event.is_none() {
            // To drop the last handle of a subscriber would run its code here.
            std::mem::forget(entry);
            return;
        }
        match &mut state.dropped {
            Some(dropped) => dropped.count += 1,
            None => {
                let dispatch = entry.dispatch.clone();
                state.dropped = Some(Dropped { count: 1, dispatch });
            }
        }
        self.wake_thread(state);
    }

    /// Something was counted, for a recorder.
    pub(super) fn counted(&'static self) {
        let is_news = cfg!(feature = "metrics")
            && !self.counted.load(Ordering::SeqCst)
            && !self.counted.swap(true, Ordering::SeqCst);
        if is_news && self.is_mine() {
            self.wake_thread(self.lock());
        }
    }

    /// Waits until what was queued and counted before was told, for so long.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn flush(&'static self, patience: Duration) {
        let is_event_thread = std::thread::current().name() == Some(THREAD);
        if is_event_thread || !self.is_mine() {
            return;
        }
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        let mut state = self.lock();
        state.flushes.push(done);
        self.wake_thread(state);
        let _ = is_done.recv_timeout(patience);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not in a child that was forked since. Whoever asks first owns the queue.
    pub(super) fn is_mine(&self) -> bool {
        let me = std::process::id();
        let owner = self
            .pid
            .compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
        owner.is_ok() || owner == Err(me)
    }

    fn wake_thread(&'static self, mut state: MutexGuard<'_, State>) {
        let is_new = !std::mem::replace(&mut state.is_started, true);
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.wanted.notify_one();
        }
        if is_new {
            let thread = std::thread::Builder::new().name(THREAD.into());
            if thread.spawn(|| self.tell_for_ever()).is_err() {
                // The system has no thread to give. The next event tries again.
                self.lock().is_started = false;
            }
        }
    }

    fn tell_for_ever(&self) {
        loop {
            let work = self.next();
            // Before the event of which it was counted, so that whoever sees that finds its count.
            if self.counted.swap(false, Ordering::SeqCst) {
                kept::flush();
            }
            match work {
                Work::Tell(entry) => shielded(|| entry.tell()),
                Work::TellDropped(dropped) => shielded(|| dropped.tell()),
                // Whoever waited too long for it is gone.
                Work::Flushed(flushes) => flushes.iter().for_each(|done| done.try_send(()).unwrap_or(())),
                Work::Count => {}
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Work {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.take() {
                return work;
            }
            state.is_asleep = true;
            if self.counted.load(Ordering::SeqCst) {
                let waited = self.wanted.wait_timeout(state, GATHER);
                let waited = waited.unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                if waited.1.timed_out() {
                    state.is_asleep = false;
                    return Work::Count;
                }
            } else {
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_asleep = false;
        }
    }
}

impl State {
    fn take(&mut self) -> Option<Work> {
        if self.entries.len() <= ROOM_AGAIN
            && let Some(dropped) = self.dropped.take()
        {
            return Some(Work::TellDropped(dropped));
        }
        if let Some(entry) = self.entries.pop_front() {
            return Some(Work::Tell(entry));
        }
        let flushes = std::mem::take(&mut self.flushes);
        (!flushes.is_empty()).then_some(Work::Flushed(flushes))
    }
}

impl Entry {
    fn tell(self) {
        let Entry {
            label,
            dispatch,
            event,
        } = self;
        if let Some(event) = event {
            to(dispatch.as_ref(), || event.tell(&label));
        }
    }
}

impl Dropped {
    fn tell(self) {
        to(self.dispatch.as_ref(), || background::events_dropped(self.count));
    }
}

/// Runs what tells something, for the subscriber that was captured or else the global one.
fn to(dispatch: Option<&Dispatch>, tell: impl FnOnce()) {
    match dispatch {
        Some(dispatch) => tracing::dispatcher::with_default(dispatch, tell),
        None => tell(),
    }
}
