//! The only file that knows tokio-cron-scheduler.
//!
//! What that crate does not give is made up for here (0.15.1): it tells a job no nominal time, so it is computed from
//! the job's own expression; it polls every 500 ms at a phase of its own; a panic in the closure poisons a lock and
//! ends the job for ever, so nothing of the user's is called in the closure itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds};
use tokio_cron_scheduler::JobScheduler;
use uuid::Uuid;

use crate::observe;
use crate::protocol::message::TickTime;
use crate::scheduler::gate::Gate;
use crate::scheduler::policy::JobOutput;
use crate::scheduler::tick::Tick;

/// What `Job::new_async` takes.
pub(crate) type JobFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A job's expression as it was found at its first tick.
type Schedule = Arc<OnceLock<Cron>>;

/// Makes the closure that tokio-cron-scheduler calls.
pub(crate) fn closure<F, Fut>(
    gate: Gate,
    work: F,
) -> impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static
where
    F: Fn(Tick) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: JobOutput + Send,
{
    let shared = Arc::new((gate, work));
    let schedule = Schedule::default();
    move |id, scheduler| {
        let (shared, schedule) = (shared.clone(), schedule.clone());
        Box::pin(async move {
            let (gate, work) = &*shared;
            match nominal(id, &scheduler, &schedule).await {
                Ok(mark) => {
                    gate.pursue(mark, work).await;
                }
                Err(why) => observe::job_refused(gate.label(), gate.name(), &why),
            }
        })
    }
}

/// The tick that fired just now: the latest one that is not in the future of this node's clock, in whole seconds. All
/// nodes agree on it whatever their phase; what their clocks disagree on is judged by the store.
async fn nominal(id: Uuid, scheduler: &JobScheduler, schedule: &Schedule) -> Result<TickTime, String> {
    let cron = match schedule.get() {
        Some(cron) => cron,
        None => {
            let cron = expression(id, scheduler).await?;
            schedule.get_or_init(|| cron)
        }
    };
    let seconds = now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let now = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
    let now = now.ok_or_else(|| format!("this node's clock shows {seconds} s, which is no date"))?;
    let tick = cron
        .find_previous_occurrence(&now, true)
        .map_err(|error| format!("`{}` has no tick before {now}: {error}", cron.as_str()))?;
    let ms = u64::try_from(tick.timestamp_millis());
    ms.map(TickTime)
        .map_err(|_| format!("a tick at {tick} lies before 1970"))
}

/// The scheduler's own data say what it was told.
async fn expression(id: Uuid, scheduler: &JobScheduler) -> Result<Cron, String> {
    let context = scheduler.context.clone();
    let asked = context.metadata_storage.write().await.get(id);
    let data = asked
        .await
        .map_err(|error| format!("the scheduler's data cannot be read: {error}"))?;
    let data = data.ok_or("the scheduler does not know the job that it fires")?;
    if data.time_offset_seconds != 0 {
        return Err(format!(
            "it is scheduled {} s off UTC, by `Job::new_async_tz` or `JobBuilder::with_timezone`, and \
             tokio-cron-scheduler freezes the offset of a zone when the job is made: use `Job::new_async`, whose \
             expression is read in UTC",
            data.time_offset_seconds
        ));
    }
    let text = data.schedule().map(|cron| cron.as_str().to_owned());
    let text = text.ok_or("it has no cron expression: only cron jobs have ticks that all nodes agree on")?;
    parser()
        .parse(&text)
        .map_err(|error| format!("`{text}` is no cron expression: {error}"))
}

/// Set as tokio-cron-scheduler sets its own, which is an older croner: seconds are required, day of month and day of
/// week must both match, and `1/10` is a range.
fn parser() -> CronParser {
    CronParser::builder()
        .seconds(Seconds::Required)
        .dom_and_dow(true)
        .sloppy_ranges(true)
        .build()
}

/// Jobs live on wall time. What becomes of a tick is judged by the store's clock, and leases by another.
#[allow(clippy::disallowed_methods)]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use tokio_cron_scheduler::Job;

    use super::*;

    /// What people write, and what reads differently in other crons.
    const PATTERNS: &[&str] = &[
        "* * * * * *",
        "*/5 * * * * *",
        "1/10 * * * * *",
        "0 0 0 * * *",
        "0 30 1 * * *",
        "0 0 0 13 * FRI",
        "0 0 12 * * MON-FRI",
        "0 0,30 8-18 * * *",
        "0 0 0 L * *",
        "0 0 0 29 2 *",
        "0 0 9 * * 1#1",
        "0 0 0 1 1 *",
        "59 59 23 31 12 *",
        "0 0 0 * * 7",
        "0 0 0 15W * *",
    ];

    #[test]
    fn the_scheduler_and_we_read_an_expression_alike() {
        let mut read = 0;
        for pattern in PATTERNS {
            let job = Job::new_async(*pattern, |_, _| Box::pin(async {}));
            let Ok(mut job) = job else {
                panic!("`{pattern}` is refused by tokio-cron-scheduler")
            };
            let theirs = job.job_data().unwrap().schedule().unwrap();
            let ours = parser().parse(theirs.pattern.as_str()).unwrap();
            let mut at = DateTime::<Utc>::from_timestamp(1_793_000_000, 0).unwrap();
            for _ in 0..20 {
                let next = theirs.find_next_occurrence(&at, false).unwrap();
                assert_eq!(
                    ours.find_next_occurrence(&at, false).unwrap(),
                    next,
                    "`{pattern}` after {at}"
                );
                // What fires is the tick that fired, up to the next.
                for later in [0, 1] {
                    let seen = next + chrono::Duration::seconds(later);
                    let found = ours.find_previous_occurrence(&seen, true).unwrap();
                    let exact = ours.is_time_matching(&seen).unwrap();
                    assert_eq!(found, if exact { seen } else { next }, "`{pattern}` at {seen}");
                }
                at = next;
            }
            read += 1;
        }
        assert!(read >= 10, "{read}");
    }
}
