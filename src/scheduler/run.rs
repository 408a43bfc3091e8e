//! One run of a tick: from its lease to what the store is told of its end.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant as Since, sleep};

use crate::driver::jobs::{Jobs, RunEnd};
use crate::driver::waiter::lock;
use crate::observe::{self, FailedTry, Ran};
use crate::primitives::guard::Guard;
use crate::protocol::message::TickTime;
use crate::scheduler::policy::{Ended, JobOutput, Run, TickOutcome};
use crate::scheduler::tick::Tick;
use crate::scheduler::tick_runner::{OngoingPoll, TickAttempt, TickRunner};
use crate::scheduler::work::Work;

/// A run that a drain can cancel.
struct RunEntry<'a>(&'a Jobs, u64);

impl Drop for RunEntry<'_> {
    fn drop(&mut self) {
        lock(&self.0.running).remove(&self.1);
    }
}

impl TickRunner {
    /// Runs a tick whose lease this node has. `None` when the lease was lost: this node stands by for the next winner.
    pub(super) async fn run(
        &self,
        guard: Guard,
        mark: TickTime,
        tick_attempt: TickAttempt,
        work: &impl Work,
    ) -> Option<Run> {
        let (began, fence) = (Since::now(), guard.fence().get());
        let holding = guard.held().holding();
        let attempt = holding.map_or(0, |holding| holding.attempt);
        let outcome = if attempt > self.settings.attempts {
            observe::tick_given_up(self.label(), &self.name, mark, self.settings.attempts);
            TickOutcome::GivenUp
        } else if (attempt == 1 || self.settings.runs_all()) && self.is_too_old(mark, tick_attempt.due_since)
        {
            // It was granted too late, or begun by nodes that are no more long ago. What was begun in time is run to its end.
            TickOutcome::Missed
        } else {
            if let Some(overtaken) = holding.and_then(|holding| holding.overtook) {
                observe::tick_overtaken(self.label(), &self.name, overtaken);
            }
            let tick = Tick {
                lease: guard.lease(),
                term: self.settings.lease,
                mark,
                attempt,
                is_catch_up: tick_attempt.is_catch_up || self.was_kept_waiting(mark),
                retry: 0,
                saves: Arc::default(),
                end: RunEnd::new(guard.lost_token()),
            };
            // After a loss the node that has the lease now runs the tick, whatever became of it here.
            self.run_and_retry(&guard, tick, work).await?
        };
        self.finish(guard, mark, outcome).await;
        let took = began.elapsed();
        let ran = Some(Ran { attempt, fence, took });
        Some(Run { outcome, ran })
    }

    /// Tells the store that the tick is over; or, when the node drains, that another node may run it.
    async fn finish(&self, guard: Guard, mark: TickTime, outcome: TickOutcome) {
        let lease = guard.lease();
        let ended = match outcome {
            TickOutcome::Drained => guard.release().await,
            outcome => guard.finish(outcome == TickOutcome::Done).await,
        };
        match ended {
            Ok(()) if outcome == TickOutcome::Drained => {}
            // What the job has left behind may have a guard of its own: then the store is told with that one.
            Ok(()) if lease.held.over().is_none() => {}
            Ok(()) => self.note_over(mark),
            // What was run was run; but the store may not know, and have it run again.
            Err(error) => observe::tick_untold(self.label(), &self.name, mark, &error),
        }
    }

    /// Runs the job until it goes well, or has failed as often as it may. `None` when the lease was lost.
    async fn run_and_retry(&self, guard: &Guard, mut tick: Tick, work: &impl Work) -> Option<TickOutcome> {
        let mut pauses = self.settings.retry.pauses_between_tries();
        loop {
            let again = pauses.next();
            let outcome = self.try_once(guard, tick.clone(), again, work).await?;
            let failed = matches!(
                outcome,
                TickOutcome::Failed | TickOutcome::Panicked | TickOutcome::TimedOut
            );
            let Some(pause) = again.filter(|_| failed) else {
                return Some(outcome);
            };
            tokio::select! {
                biased;
                slept = guard.run(sleep(pause)) => slept.ok()?,
                () = self.jobs.cancelling.cancelled() => return Some(TickOutcome::Drained),
            }
            tick.retry += 1;
            tick.end = RunEnd::new(guard.lost_token());
        }
    }

    /// Runs the job once. `again`: the pause before the next try, if there is one.
    async fn try_once(
        &self,
        guard: &Guard,
        tick: Tick,
        again: Option<Duration>,
        work: &impl Work,
    ) -> Option<TickOutcome> {
        let (mark, end) = (tick.mark, tick.end.clone());
        let failed = FailedTry {
            number: tick.retry + 1,
            of: self.settings.retry.tries(),
            again,
        };
        // Also when this very future is dropped.
        let _cancel = end.token().clone().drop_guard();
        let fence = guard.fence().get();
        lock(&self.jobs.running).insert(fence, end.clone());
        let _running = RunEntry(&self.jobs, fence);
        if self.jobs.cancelling.is_cancelled() {
            // It was won in that very moment.
            end.drain();
        }
        observe::tick_starts(self.label(), &self.name, mark, tick.attempt);
        // The job is called inside, so that a panic before its first await is caught as one after it, and so is one of the
        // error that it returns.
        let mut job = Box::pin(async { work(tick).await.failure() });
        let ended = self.run_to_end((guard, mark), &end, job.as_mut()).await;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(job)));
        // From here on the job's future is gone: only now may somebody else begin.
        self.outcome(mark, failed, ended, dropped.is_err())
    }

    /// What a run came to, whose future is gone by now. `None` when its lease was lost.
    fn outcome(&self, mark: TickTime, of: FailedTry, ended: Ended, panicked: bool) -> Option<TickOutcome> {
        let is_timeout = matches!(ended, Ended::TimedOut);
        let failed = |why: &str| observe::tick_failed(self.label(), &self.name, mark, why, of, is_timeout);
        if panicked {
            failed("it panicked when it was cancelled");
        }
        let (outcome, why) = match ended {
            Ended::Itself(None) => (TickOutcome::Done, None),
            Ended::Itself(Some(text)) => (TickOutcome::Failed, Some(text)),
            Ended::Panicked => (TickOutcome::Panicked, Some("it panicked".to_owned())),
            Ended::LeaseLost => return None,
            Ended::Drained | Ended::TimedOut if panicked => (TickOutcome::Panicked, None),
            Ended::TimedOut => {
                let limit = self.settings.timeout.unwrap_or_default();
                let why = format!("it was cancelled, as it ran for longer than its timeout of {limit:?}");
                (TickOutcome::TimedOut, Some(why))
            }
            Ended::Drained => (TickOutcome::Drained, None),
        };
        if let Some(why) = why {
            failed(&why);
        }
        Some(outcome)
    }

    /// Runs the job until it ends by itself, loses its lease, has no time left, or the node drains. One that blocks a thread is
    /// told so, and run until it ends by itself whatever happens.
    async fn run_to_end(
        &self,
        (guard, mark): (&Guard, TickTime),
        end: &RunEnd,
        mut job: Pin<&mut impl Future<Output = Option<String>>>,
    ) -> Ended {
        let fence = guard.fence().get();
        let mut is_over = false;
        let mut job = pin!(poll_fn(|cx| {
            // Its end was seen with the loss of its lease, and it is waited for once more.
            if is_over {
                return Poll::Ready(Ended::Panicked);
            }
            let step = OngoingPoll {
                mark,
                since: self.handle.node().clock.now(),
                is_reported: false,
            };
            lock(&self.ongoing_polls).insert(fence, step);
            let polled = catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(cx)));
            lock(&self.ongoing_polls).remove(&fence);
            let polled = polled.map_or(Poll::Ready(Ended::Panicked), |polled| polled.map(Ended::Itself));
            is_over = polled.is_ready();
            polled
        }));
        let timeout = self.settings.timeout;
        let told = tokio::select! {
            biased;
            ended = guard.run(job.as_mut()) => match ended {
                // It heard of the drain in that very moment, and says so: its tick is not over for that.
                Ok(Ended::Itself(Some(_))) if end.is_drained() => return Ended::Drained,
                Ok(ended) => return ended,
                Err(_) => Ended::LeaseLost,
            },
            () = self.jobs.cancelling.cancelled() => {
                // Whatever the job has spawned must hear of it before somebody else begins.
                end.drain();
                Ended::Drained
            }
            () = sleep(timeout.unwrap_or_default()), if timeout.is_some() => {
                end.token().cancel();
                Ended::TimedOut
            }
        };
        if !self.settings.blocks {
            return told;
        }
        match (self.wait_for_thread(guard, job).await, told) {
            (Ended::LeaseLost, _) | (_, Ended::LeaseLost) => Ended::LeaseLost,
            // It was told to end, and says so; or did its work all the same.
            (Ended::Itself(Some(_)), told) => told,
            (ended, _) => ended,
        }
    }

    /// A thread cannot be cancelled: its lease is kept until it has ended, and nothing else is begun here before.
    async fn wait_for_thread(&self, guard: &Guard, mut job: Pin<&mut impl Future<Output = Ended>>) -> Ended {
        match guard.run(job.as_mut()).await {
            Ok(ended) => ended,
            Err(_) => {
                job.await;
                Ended::LeaseLost
            }
        }
    }
}
