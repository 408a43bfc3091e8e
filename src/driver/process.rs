//! A process of a simulation: it has clocks that a test owns, may be stopped and go on, and may be killed.
//!
//! All its clocks follow tokio's, which stands still while anything can be done, and else goes on to the next timer.

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

/// What every clock of a simulation shows more than it has run for: no machine has just been started.
const BEFORE: Duration = Duration::from_secs(3600);

/// The time of a simulation, and whether anything has happened in its store.
#[derive(Debug)]
pub(crate) struct World {
    began: Timer,
    date: SystemTime,
    latest: AtomicU64,
    news: watch::Sender<()>,
}

impl World {
    /// It begins now, at that date.
    pub(crate) fn new(date: SystemTime) -> Arc<World> {
        Arc::new(World {
            began: Timer::now(),
            date,
            latest: AtomicU64::new(0),
            news: watch::Sender::new(()),
        })
    }

    /// Since it began.
    pub(crate) fn elapsed(&self) -> Duration {
        let elapsed = self.began.elapsed().as_nanos() as u64;
        // Outside of the runtime its clock is another.
        let latest = self.latest.fetch_max(elapsed, Ordering::Relaxed);
        Duration::from_nanos(latest.max(elapsed))
    }

    /// The true time, as no clock need show it.
    pub(crate) fn date(&self) -> SystemTime {
        self.date + self.elapsed()
    }

    /// On a clock that never steps.
    pub(crate) fn monotonic(&self) -> Duration {
        BEFORE + self.elapsed()
    }

    /// Whoever asked the store may get another answer now.
    pub(crate) fn has_news(&self) {
        self.news.send_replace(());
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    /// Of all that the simulation ever had.
    pub(crate) number: u64,
    ahead_ms: AtomicI64,
    /// Its wall clock was set.
    set: watch::Sender<()>,
    run: watch::Sender<Run>,
    tasks: Mutex<Tasks>,
}

/// Whether a process goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    Goes,
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
            run: watch::Sender::new(Run::Goes),
            tasks: Mutex::default(),
        })
    }

    pub(crate) fn node(&self) -> NodeId {
        // Spread, as those are that are drawn.
        NodeId::numbered(u128::from(self.number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    /// By the clock that leases are judged by.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.world.monotonic().as_nanos() as u64)
    }

    /// What its wall clock shows.
    pub(crate) fn wall(&self) -> SystemTime {
        let (date, ahead) = (self.world.date(), self.ahead_ms.load(Ordering::Relaxed));
        let off = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { date - off } else { date + off }
    }

    pub(crate) fn set_ahead_ms(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        self.set.send_replace(());
    }

    /// Resolves when its wall clock is set.
    pub(crate) async fn clock_set(&self) {
        let _ = self.set.subscribe().changed().await;
    }

    /// What happens in the store from now on.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.world.news.subscribe()
    }

    pub(crate) fn set_run(&self, run: Run) {
        if *self.run.borrow() != Run::Dead {
            self.run.send_replace(run);
        }
        let wakers: Vec<_> = lock(&self.tasks).wakers.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
        self.world.has_news();
    }

    /// Resolves while it goes on; of a dead one never.
    pub(crate) async fn goes(&self) {
        let _ = self.run.subscribe().wait_for(|run| *run == Run::Goes).await;
    }

    /// Resolves when it is killed, and its connections are closed.
    pub(crate) async fn died(&self) {
        let _ = self.run.subscribe().wait_for(|run| *run == Run::Dead).await;
    }

    /// A task of this process.
    pub(crate) fn task<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, of: F) -> Task<F> {
        let mut tasks = lock(&self.tasks);
        tasks.latest += 1;
        Task {
            process: self.clone(),
            number: tasks.latest,
            of: Some(Box::pin(of)),
        }
    }
}

/// Stands still while its process is stopped, and is dropped when that is killed.
pub(crate) struct Task<F> {
    process: Arc<Process>,
    number: u64,
    of: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (process, number) = (self.process.clone(), self.number);
        lock(&process.tasks).wakers.insert(number, cx.waker().clone());
        let run = *process.run.borrow();
        match (run, &mut self.of) {
            (Run::Goes, Some(of)) => of.as_mut().poll(cx),
            (Run::Stopped, _) => Poll::Pending,
            _ => {
                self.of = None;
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
