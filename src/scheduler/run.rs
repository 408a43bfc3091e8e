//! One run of a tick: from its lease to the report of its end.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant as Since, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::driver::jobs::{NodeJobs, RunEnd};
use crate::driver::waiter::lock;
use crate::observe::{self, FailedTry, Ran};
use crate::primitives::guard::Guard;
use crate::protocol::message::{RunEnding, RunOutcome, RunResult, TickTime, WantedRun, start_of};
use crate::scheduler::job_status::trigger_of;
use crate::scheduler::on_end::EndedRun;
use crate::scheduler::policy::{Ended, JobOutput, Run, TickOutcome};
use crate::scheduler::schedule::time;
use crate::scheduler::tick::Tick;
use crate::scheduler::tick_runner::{OngoingPoll, TickAttempt, TickRunner};
use crate::scheduler::work::Work;

/// How long the function for the ends of runs may take.
const MAX_END_TIME: Duration = Duration::from_secs(10);

/// A run that a drain can cancel. Dropping it removes the run from the node's list.
struct RunEntry<'a>(&'a NodeJobs, u64);

impl Drop for RunEntry<'_> {
    fn drop(&mut self) {
        lock(&self.0.running).remove(&self.1);
    }
}

/// A job panicked.
struct Panicked;

/// The end of the last try of a run.
struct TryEnd {
    outcome: TickOutcome,
    retries: u32,
    text: String,
}

impl TryEnd {
    fn of(outcome: TickOutcome) -> TryEnd {
        TryEnd {
            outcome,
            retries: 0,
            text: String::new(),
        }
    }

    /// Returns what the store is told.
    fn ending(&self, outcome: RunOutcome, took: Duration) -> RunEnding {
        RunEnding {
            result: RunResult {
                outcome,
                took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                retries: self.retries,
            },
            text: start_of(&self.text).into(),
        }
    }
}

impl TickRunner {
    /// Runs a tick whose lease this node has.
    ///
    /// # Errors
    /// Returns what ran if the lease was lost: this node then stands by for the next winner.
    pub(super) async fn run(
        &self,
        guard: Guard,
        mark: TickTime,
        tick_attempt: &TickAttempt,
        work: &impl Work,
    ) -> Result<Run, Ran> {
        let (began, fence) = (Since::now(), guard.fence());
        let holding = guard.held().holding();
        let attempt = holding.map_or(0, |holding| holding.attempt);
        let ended = if attempt > self.settings.attempts {
            observe::tick_given_up(self.label(), &self.name, mark, self.settings.attempts);
            TryEnd::of(TickOutcome::GivenUp)
        } else if tick_attempt.is_abandoned || self.is_granted_late(mark, attempt, tick_attempt) {
            // The tick was granted too late, or its nodes were gone for too long. A tick that began in time runs to
            // its end.
            TryEnd::of(TickOutcome::Missed)
        } else {
            if let Some(overtaken) = holding.and_then(|holding| holding.overtook) {
                observe::tick_overtaken(self.label(), &self.name, overtaken);
            }
            let date = self.schedule.date(mark);
            guard.note(format!("{} {date} attempt {attempt}", self.name));
            let trigger = match mark.is_triggered() {
                true => self.trigger_of_run(&guard, mark).await,
                false => None,
            };
            let tick = Tick {
                lease: guard.lease(),
                term: self.settings.lease,
                mark,
                attempt,
                is_catch_up: !mark.is_triggered()
                    && (tick_attempt.is_catch_up || self.was_kept_waiting(mark)),
                trigger,
                retry: 0,
                saves: Arc::default(),
                end: RunEnd::new(guard.lost_token()),
            };
            // After a loss, the next node with the lease runs the tick, whatever happened here.
            let _running = self.gauges.running();
            let ended = self.run_and_retry(&guard, tick, work).await;
            ended.ok_or_else(|| Ran {
                attempt,
                fence,
                took: began.elapsed(),
            })?
        };
        let (outcome, took) = (ended.outcome, began.elapsed());
        let ran = Ran { attempt, fence, took };
        let ending = outcome.of_run().map(|of_run| ended.ending(of_run, took));
        if self.finish(guard, mark, outcome, ending.clone()).await {
            if outcome == TickOutcome::Done {
                self.gauges.note_success(mark, &self.schedule);
            }
            if let Some(ending) = ending {
                self.tell_end(mark, ran, ending);
            }
        }
        let ran = Some(ran);
        Ok(Run { outcome, ran })
    }

    /// Returns who triggered the tick that is granted now. It may have been cancelled and triggered again since the latest look.
    async fn trigger_of_run(&self, guard: &Guard, mark: TickTime) -> Option<Arc<WantedRun>> {
        let _ = guard.run(self.fetch_report()).await;
        let wanted = lock(&self.wanted).clone();
        let trigger = wanted.filter(|wanted| wanted.tick == mark);
        *lock(&self.begun_trigger) = trigger.as_ref().map(trigger_of);
        trigger
    }

    /// Returns whether a tick is granted too late to begin. A triggered tick is never too old, nor is one that waited for it.
    fn is_granted_late(&self, mark: TickTime, attempt: u32, tick_attempt: &TickAttempt) -> bool {
        let is_judged = attempt == 1 || self.settings.runs_all();
        let is_exempt = mark.is_triggered() || tick_attempt.was_claimed_in_time;
        is_judged && !is_exempt && self.is_too_old(mark, tick_attempt.due_since)
    }

    /// Tells the store how the run ended, and so that the tick is over. If the node drains, releases the tick for another node.
    /// Returns whether the store was told.
    async fn finish(
        &self,
        guard: Guard,
        mark: TickTime,
        outcome: TickOutcome,
        ending: Option<RunEnding>,
    ) -> bool {
        let lease = guard.lease();
        let ended = match ending {
            Some(ending) => guard.finish(ending).await,
            None => guard.release().await,
        };
        let is_told = ended.is_ok();
        match ended {
            Ok(()) if outcome == TickOutcome::Drained => {}
            // A task that the job left behind may have its own guard. The store is told when that guard ends.
            Ok(()) if lease.held.over().is_none() => {}
            Ok(()) => self.note_over(mark),
            // The job ran, but the store may not know it, and may have it run again.
            Err(error) => observe::tick_untold(self.label(), &self.name, mark, &error),
        }
        is_told
    }

    /// Calls the function for the ends of runs, on a task of its own. A drain waits for it.
    pub(super) fn tell_end(&self, mark: TickTime, ran: Ran, ending: RunEnding) {
        let Some(on_end) = self.settings.on_end.clone() else {
            return;
        };
        let RunResult { outcome, retries, .. } = ending.result;
        let end = EndedRun {
            job: self.name.clone(),
            tick: time(mark),
            is_triggered: mark.is_triggered(),
            attempt: ran.attempt,
            outcome,
            text: ending.text,
            retries,
            took: ran.took,
            fence: ran.fence,
        };
        let (node, name) = (self.handle.node().clone(), self.name.clone());
        let token = self.jobs.ends.token();
        let called = tokio::spawn(self.clock().task(on_end.call(end)));
        let waited = async move {
            let why = match timeout(MAX_END_TIME, AbortOnDropHandle::new(called)).await {
                Ok(Ok(())) => None,
                Ok(Err(_)) => Some("panicked"),
                Err(_) => Some("took longer than 10 s, and was dropped"),
            };
            if let Some(why) = why {
                observe::on_end_failed(node.events.label(), &name, mark, why);
            }
            drop(token);
        };
        tokio::spawn(self.clock().task(waited));
    }

    /// Runs the job until it succeeds or its retries are used up. Returns `None` if the lease was lost.
    async fn run_and_retry(&self, guard: &Guard, mut tick: Tick, work: &impl Work) -> Option<TryEnd> {
        let mut pauses = self.settings.retry.pauses_between_tries();
        loop {
            let again = pauses.next();
            let retries = tick.retry;
            let ended = self.try_once(guard, tick.clone(), again, work).await?;
            let failed = matches!(
                ended.outcome,
                TickOutcome::Failed | TickOutcome::Panicked | TickOutcome::TimedOut
            );
            let Some(pause) = again.filter(|_| failed) else {
                return Some(TryEnd { retries, ..ended });
            };
            tokio::select! {
                biased;
                slept = guard.run(sleep(pause)) => slept.ok()?,
                () = self.jobs.cancelling.cancelled() => {
                    let outcome = TickOutcome::Drained;
                    return Some(TryEnd { outcome, retries, ..ended });
                }
            }
            tick.retry += 1;
            tick.end = RunEnd::new(guard.lost_token());
        }
    }

    /// Runs the job once. `again` is the pause before the next try, or `None` for the last try.
    async fn try_once(
        &self,
        guard: &Guard,
        tick: Tick,
        again: Option<Duration>,
        work: &impl Work,
    ) -> Option<TryEnd> {
        let (mark, end) = (tick.mark, tick.end.clone());
        let failed = FailedTry {
            number: tick.retry + 1,
            of: self.settings.retry.tries(),
            again,
        };
        // The token is cancelled even if this future is dropped.
        let _cancel = end.token().clone().drop_guard();
        let fence = guard.fence().get();
        lock(&self.jobs.running).insert(fence, end.clone());
        let _running = RunEntry(&self.jobs, fence);
        if self.jobs.cancelling.is_cancelled() {
            // The tick was won while the drain began.
            end.drain();
        }
        let span = observe::tick_span(&self.name, (mark, tick.attempt, tick.retry), fence);
        observe::tick_starts(self.label(), &self.name, mark, tick.attempt);
        // The job is called inside the future. So a panic before its first `await` is caught, and so is a panic while
        // its error is formatted.
        // The panic of a job does not unwind through its span: a subscriber that panics, too, would abort the process.
        let mut work = Box::pin(async { work(tick).await.failure() });
        let caught = poll_fn(move |cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
            polled.map_or(Poll::Ready(Err(Panicked)), |polled| polled.map(Ok))
        });
        let mut job = Box::pin(caught.instrument(span));
        let ended = self.run_to_end((guard, mark), &end, job.as_mut()).await;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(job)));
        // The job's future is gone now. Only now may another holder begin.
        self.outcome(mark, failed, ended, dropped.is_err())
    }

    /// Returns the outcome of a run whose future is gone, or `None` if its lease was lost.
    fn outcome(&self, mark: TickTime, of: FailedTry, ended: Ended, panicked: bool) -> Option<TryEnd> {
        let is_timeout = matches!(ended, Ended::TimedOut);
        let failed = |why: &str| observe::tick_failed(self.label(), &self.name, mark, why, of, is_timeout);
        const PANICKED: &str = "the job panicked while it was cancelled";
        if panicked {
            failed(PANICKED);
        }
        let (outcome, why) = match ended {
            Ended::Itself(None) => (TickOutcome::Done, None),
            Ended::Itself(Some(text)) => (TickOutcome::Failed, Some(text)),
            Ended::Panicked => (TickOutcome::Panicked, Some("the job panicked".to_owned())),
            Ended::LeaseLost => return None,
            Ended::Drained | Ended::TimedOut if panicked => {
                return Some(TryEnd {
                    text: PANICKED.into(),
                    ..TryEnd::of(TickOutcome::Panicked)
                });
            }
            Ended::TimedOut => {
                let limit = self.settings.timeout.unwrap_or_default();
                let why =
                    format!("the job was cancelled, because it ran for longer than its timeout of {limit:?}");
                (TickOutcome::TimedOut, Some(why))
            }
            Ended::Drained => (TickOutcome::Drained, None),
        };
        if let Some(why) = &why {
            failed(why);
        }
        Some(TryEnd {
            text: why.unwrap_or_default(),
            ..TryEnd::of(outcome)
        })
    }

    /// Runs the job until it returns, loses its lease, times out, or the node drains. A job that blocks a thread is
    /// only notified, and always runs until it returns.
    async fn run_to_end(
        &self,
        (guard, mark): (&Guard, TickTime),
        end: &RunEnd,
        mut job: Pin<&mut impl Future<Output = Result<Option<String>, Panicked>>>,
    ) -> Ended {
        let fence = guard.fence().get();
        let mut is_over = false;
        let mut job = pin!(poll_fn(|cx| {
            // The job ended when its lease was lost, and is polled once more.
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
            let ended = |ended: Result<_, _>| ended.map_or(Ended::Panicked, Ended::Itself);
            let polled = polled.map_or(Poll::Ready(Ended::Panicked), |polled| polled.map(ended));
            is_over = polled.is_ready();
            polled
        }));
        let timeout = self.settings.timeout;
        let reason = tokio::select! {
            biased;
            ended = guard.run(job.as_mut()) => match ended {
                // The job learned of the drain and returned an error. Its tick is not over for that.
                Ok(Ended::Itself(Some(_))) if end.is_drained() => return Ended::Drained,
                Ok(ended) => return ended,
                Err(_) => Ended::LeaseLost,
            },
            () = self.jobs.cancelling.cancelled() => {
                // Tasks that the job spawned must learn of the drain before another holder begins.
                end.drain();
                Ended::Drained
            }
            () = sleep(timeout.unwrap_or_default()), if timeout.is_some() => {
                end.token().cancel();
                Ended::TimedOut
            }
        };
        if !self.settings.blocks {
            return reason;
        }
        match (self.wait_for_thread(guard, job).await, reason) {
            (Ended::LeaseLost, _) | (_, Ended::LeaseLost) => Ended::LeaseLost,
            // The job was told to end and returned an error; or it finished its work nevertheless.
            (Ended::Itself(Some(_)), reason) => reason,
            (ended, _) => ended,
        }
    }

    /// Waits until a blocked thread has ended, because it cannot be cancelled. Its lease is kept until then, and
    /// nothing else begins here.
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
