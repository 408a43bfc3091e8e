//! A process of a simulation. A test owns its clocks, and can stop, continue and kill it.
//!
//! All clocks follow tokio's clock, which stands still while any task can run, and then jumps to the next timer.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant as Timer;

use crate::driver::waiter::lock;
use crate::protocol::message::NodeId;
use crate::protocol::time::Instant;

/// Is added to every clock of a simulation: no machine has just been started.
const TIME_BEFORE_START: Duration = Duration::from_secs(3600);

/// The time of a simulation, and a signal for changes in its store.
#[derive(Debug)]
pub(crate) struct World {
    began: Timer,
    date: SystemTime,
    latest: AtomicU64,
    news: watch::Sender<()>,
}

impl World {
    /// Returns a world that begins now, at that date.
    pub(crate) fn new(date: SystemTime) -> Arc<World> {
        Arc::new(World {
            began: Timer::now(),
            date,
            latest: AtomicU64::new(0),
            news: watch::Sender::new(()),
        })
    }

    /// Returns the time since the world began.
    pub(crate) fn elapsed(&self) -> Duration {
        let elapsed = self.began.elapsed().as_nanos() as u64;
        // Outside of the runtime, tokio's clock is another one.
        let latest = self.latest.fetch_max(elapsed, Ordering::Relaxed);
        Duration::from_nanos(latest.max(elapsed))
    }

    /// Returns the true time, which no clock need show.
    pub(crate) fn date(&self) -> SystemTime {
        self.date + self.elapsed()
    }

    /// Returns the time of a clock that never steps.
    pub(crate) fn monotonic(&self) -> Duration {
        TIME_BEFORE_START + self.elapsed()
    }

    /// Notes that the store may answer differently now.
    pub(crate) fn note_news(&self) {
        self.news.send_replace(());
    }
}

/// A simulated process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    /// The number of the process in the simulation; never reused.
    pub(crate) number: u64,
    ahead_ms: AtomicI64,
    /// Changes when the wall clock is set.
    set: watch::Sender<()>,
    state: watch::Sender<ProcessState>,
    tasks: Mutex<Tasks>,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Running,
    Stopped,
    Dead,
}

#[derive(Debug, Default)]
struct Tasks {
    latest: u64,
    wakers: HashMap<u64, Waker>,
}

impl Process {
    pub(crate) fn new(world: Arc<World>, number: u64, ahead_ms: i64) -> Arc<Process> {
        Arc::new(Process {
            world,
            number,
            ahead_ms: AtomicI64::new(ahead_ms),
            set: watch::Sender::new(()),
            state: watch::Sender::new(ProcessState::Running),
            tasks: Mutex::default(),
        })
    }

    pub(crate) fn node(&self) -> NodeId {
        // Spread like drawn ids.
        NodeId::numbered(u128::from(self.number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    /// Returns the time of the clock that judges leases.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.world.monotonic().as_nanos() as u64)
    }

    /// Returns the time of the wall clock.
    pub(crate) fn wall(&self) -> SystemTime {
        let (date, ahead) = (self.world.date(), self.ahead_ms.load(Ordering::Relaxed));
        let off = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { date - off } else { date + off }
    }

    pub(crate) fn set_ahead_ms(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        self.set.send_replace(());
    }

    /// Resolves when the wall clock is set.
    pub(crate) async fn clock_set(&self) {
        let _ = self.set.subscribe().changed().await;
    }

    /// Returns a watch on changes in the store from now on.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.world.news.subscribe()
    }

    pub(crate) fn set_state(&self, state: ProcessState) {
        if *self.state.borrow() != ProcessState::Dead {
            self.state.send_replace(state);
        }
        let wakers: Vec<_> = lock(&self.tasks).wakers.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
        self.world.note_news();
    }

    /// Resolves while the process runs; never after it was killed.
    pub(crate) async fn running(&self) {
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| *state == ProcessState::Running)
            .await;
    }

    /// Resolves when the process is killed, and its connections are closed.
    pub(crate) async fn dead(&self) {
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| *state == ProcessState::Dead)
            .await;
    }

    /// Returns a task of this process.
    pub(crate) fn task<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, future: F) -> Task<F> {
        let mut tasks = lock(&self.tasks);
        tasks.latest += 1;
        Task {
            process: self.clone(),
            number: tasks.latest,
            future: Some(Box::pin(future)),
        }
    }
}

/// A task that stands still while its process is stopped, and is dropped when the process is killed.
pub(crate) struct Task<F> {
    process: Arc<Process>,
    number: u64,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (process, number) = (self.process.clone(), self.number);
        lock(&process.tasks).wakers.insert(number, cx.waker().clone());
        let state = *process.state.borrow();
        match (state, &mut self.future) {
            (ProcessState::Running, Some(future)) => future.as_mut().poll(cx),
            (ProcessState::Stopped, _) => Poll::Pending,
            _ => {
                self.future = None;
                Poll::Ready(())
            }
        }
    }
}

impl<F> Drop for Task<F> {
    fn drop(&mut self) {
        lock(&self.process.tasks).wakers.remove(&self.number);
    }
}
