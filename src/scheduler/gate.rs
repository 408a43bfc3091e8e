//! Decides, tick by tick, whether this node runs the job. Knows leases and ticks, and no cron crate.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::driver::handle::Handle;
use crate::driver::jobs::{Jobs, RunEnd};
use crate::driver::waiter::lock;
use crate::error::Error;
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::acquire::Unacquired;
use crate::primitives::guard::Guard;
use crate::primitives::tick::acquire_tick;
use crate::protocol::message::TickTime;

use crate::scheduler::policy::{JobOutput, TickOutcome};
use crate::scheduler::tick::Tick;

/// The pauses between attempts while the store is away.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// One job of this node.
pub(crate) struct Gate {
    handle: Handle,
    name: Key,
    lease: Duration,
    jobs: Arc<Jobs>,
    newest: watch::Sender<TickTime>,
    /// The ticks that are claimed, awaited or run right now.
    pursued: Mutex<HashSet<TickTime>>,
}

/// What became of one holding.
enum Run {
    Over(TickOutcome),
    /// It was lost in the middle: this node stands by for whoever runs the tick now.
    Lost,
}

/// A tick that this node pursues.
struct Pursued<'a>(&'a Gate, TickTime);

impl Drop for Pursued<'_> {
    fn drop(&mut self) {
        lock(&self.0.pursued).remove(&self.1);
    }
}

/// A run that a drain can cancel.
struct Running<'a>(&'a Jobs, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.running).remove(&self.1);
    }
}

impl Gate {
    /// `None` when this node has a job of that name.
    pub(crate) fn new(handle: Handle, name: Key, lease: Duration) -> Option<Gate> {
        let jobs = handle.jobs().clone();
        let is_new = lock(&jobs.names).insert(name.clone());
        is_new.then(|| Gate {
            handle,
            name,
            lease,
            jobs,
            newest: watch::Sender::new(TickTime(0)),
            pursued: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &Key {
        &self.name
    }

    pub(crate) fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// Pursues a tick until it is over: runs it here if this node wins it, and else stands by until its winner has
    /// ended.
    pub(crate) async fn pursue<F, Fut>(&self, mark: TickTime, work: &F) -> TickOutcome
    where
        F: Fn(Tick) -> Fut,
        Fut: Future,
        Fut::Output: JobOutput,
    {
        let _pursuit = self.jobs.pursuits.token();
        let outcome = self.run_tick(mark, work).await;
        // A refusal was told where it happened, which may be before there is a tick.
        if outcome != TickOutcome::Refused {
            observe::tick(self.label(), &self.name, mark, outcome.word());
        }
        outcome
    }

    async fn run_tick<F, Fut>(&self, mark: TickTime, work: &F) -> TickOutcome
    where
        F: Fn(Tick) -> Fut,
        Fut: Future,
        Fut::Output: JobOutput,
    {
        self.newest
            .send_if_modified(|newest| mark > std::mem::replace(newest, mark.max(*newest)));
        let mut newest = self.newest.subscribe();
        let mut pause = RETRY.0;
        loop {
            // The scheduler may fire one tick again and again, every 500 ms when its own store cannot be written:
            // whoever is after it here already will do.
            let Some(pursued) = self.take_up(mark) else {
                return TickOutcome::Elsewhere;
            };
            let entering = acquire_tick(&self.handle, &self.name, self.lease, mark);
            let entered = tokio::select! {
                biased;
                () = self.jobs.closing.cancelled() => return TickOutcome::Drained,
                entered = entering => entered,
            };
            let wait = match entered {
                Ok(guard) => match self.run(guard, mark, work).await {
                    Run::Over(outcome) => return outcome,
                    Run::Lost => continue,
                },
                Err(Unacquired::Over) => return TickOutcome::Elsewhere,
                // The store's clock decides when it is time. Later ticks may fire meanwhile, where this node's clock is
                // ahead by more than their distance: they are early, too, and no reason to let go of this one.
                Err(Unacquired::Early(left)) => {
                    drop(pursued);
                    tokio::select! {
                        biased;
                        () = self.jobs.closing.cancelled() => return TickOutcome::Drained,
                        () = sleep(left) => continue,
                    }
                }
                Err(Unacquired::Error(Error::Busy { .. })) => return TickOutcome::Skipped,
                Err(Unacquired::Error(Error::Closed { .. })) => return TickOutcome::Drained,
                Err(Unacquired::Error(error @ (Error::Key { .. } | Error::Options(_)))) => {
                    observe::job_refused(self.label(), &self.name, &error);
                    return TickOutcome::Refused;
                }
                // Fail closed: nobody runs until the store is back, and then only the newest tick.
                Err(Unacquired::Error(error)) => {
                    observe::tick_waits(self.label(), &self.name, mark, &error);
                    pause = (2 * pause).min(RETRY.1);
                    pause.mul_f64(0.5 + fastrand::f64() * 0.5)
                }
            };
            drop(pursued);
            tokio::select! {
                biased;
                () = self.jobs.closing.cancelled() => return TickOutcome::Drained,
                Ok(_) = newest.wait_for(|newest| *newest > mark) => return TickOutcome::Missed,
                () = sleep(wait) => {}
            }
        }
    }

    fn take_up(&self, mark: TickTime) -> Option<Pursued<'_>> {
        let is_new = lock(&self.pursued).insert(mark);
        is_new.then(|| Pursued(self, mark))
    }

    #[allow(clippy::too_many_lines, reason = "one run from its beginning to its end")]
    async fn run<F, Fut>(&self, guard: Guard, mark: TickTime, work: &F) -> Run
    where
        F: Fn(Tick) -> Fut,
        Fut: Future,
        Fut::Output: JobOutput,
    {
        // A child, so that it speaks at once when the lease is lost, also while the job keeps its own task busy.
        let end = RunEnd::new(guard.lease().end_token().child_token());
        // Also when this very future is dropped.
        let _cancel = end.token().clone().drop_guard();
        let fence = guard.fence().get();
        lock(&self.jobs.running).insert(fence, end.clone());
        let _running = Running(&self.jobs, fence);
        if self.jobs.cancelling.is_cancelled() {
            // It was won in that very moment.
            end.drain();
        }
        let attempt = guard.attempt();
        let tick = Tick {
            lease: guard.lease(),
            mark,
            attempt,
            end: end.clone(),
        };
        observe::tick_starts(self.label(), &self.name, mark, attempt);
        // The job is called inside, so that a panic before its first await is caught as one after it, and so is one of the
        // error that it returns.
        let mut job = Box::pin(async { work(tick).await.failure() });
        let ended = {
            let job = poll_fn(
                |cx| match catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(cx))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
                    Err(_) => Poll::Ready(None),
                },
            );
            tokio::select! {
                biased;
                ended = guard.run(job) => Some(ended),
                () = self.jobs.cancelling.cancelled() => {
                    // Whatever the job has spawned must hear of it before somebody else begins.
                    end.drain();
                    None
                }
            }
        };
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(job)));
        // From here on the job's future is gone: only now may somebody else begin.
        if dropped.is_err() {
            observe::tick_failed(
                self.label(),
                &self.name,
                mark,
                "it panicked when it was cancelled",
            );
        }
        let outcome = match ended {
            Some(Ok(Some(None))) => TickOutcome::Done,
            Some(Ok(Some(Some(text)))) => {
                observe::tick_failed(self.label(), &self.name, mark, &text);
                TickOutcome::Failed
            }
            Some(Ok(None)) => {
                observe::tick_failed(self.label(), &self.name, mark, "it panicked");
                TickOutcome::Panicked
            }
            // Whoever has the lease now runs the tick, whatever became of it here.
            Some(Err(_)) => {
                drop(guard);
                return Run::Lost;
            }
            None if dropped.is_err() => TickOutcome::Panicked,
            None => {
                if let Err(error) = guard.release().await {
                    observe::tick_untold(self.label(), &self.name, mark, &error);
                }
                return Run::Over(TickOutcome::Drained);
            }
        };
        if let Err(error) = guard.finish().await {
            // What was run was run; but the store may not know, and have it run again.
            observe::tick_untold(self.label(), &self.name, mark, &error);
        }
        Run::Over(outcome)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        lock(&self.jobs.names).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::locks::Locks;

    fn gate(locks: &Locks) -> Arc<Gate> {
        let lease = Duration::from_secs(30);
        Arc::new(Gate::new(locks.handle().clone(), "job".into(), lease).unwrap())
    }

    #[allow(clippy::disallowed_methods)]
    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
    }

    #[tokio::test]
    async fn an_early_tick_waits_for_the_clock_of_the_store() {
        let (gate, runs) = (gate(&Locks::memory()), AtomicUsize::new(0));
        let mark = TickTime(now() + 400);
        let work = |tick: Tick| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move { assert!(now() >= tick.mark.0, "not before its time") }
        };
        assert_eq!(gate.pursue(mark, &work).await, TickOutcome::Done);
        assert_eq!(gate.pursue(mark, &work).await, TickOutcome::Elsewhere);
        assert_eq!(
            gate.pursue(TickTime(mark.0 - 1), &work).await,
            TickOutcome::Elsewhere
        );
        assert_eq!(runs.into_inner(), 1);
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_by_many_ticks_misses_none() {
        let gate = gate(&Locks::memory());
        let first = now() + 500;
        let mut pursuits = Vec::new();
        // Three fire before it is time for the first.
        for n in 0..3 {
            let gate = gate.clone();
            pursuits.push(tokio::spawn(async move {
                gate.pursue(TickTime(first + 1_000 * n), &|_| async {}).await
            }));
        }
        for pursuit in pursuits {
            assert_eq!(pursuit.await.unwrap(), TickOutcome::Done);
        }
    }

    #[tokio::test]
    async fn a_drain_ends_an_early_wait() {
        let locks = Locks::memory();
        let gate = gate(&locks);
        let far = TickTime(now() + 3_600_000);
        let pursuit = tokio::spawn(async move { gate.pursue(far, &|_| async {}).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(locks.drain(Duration::from_secs(5)).await.is_ok());
        assert_eq!(pursuit.await.unwrap(), TickOutcome::Drained);
    }
}
