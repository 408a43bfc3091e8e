//! The forms of acts about jobs, and the acts that they begin.

use std::time::UNIX_EPOCH;

use maud::{Markup, html};
use tenure::scheduler::{HistoryEntry, JobActOutcome, JobEntry, JobState, TickEntry};
use tenure::{Error, Key};

use crate::layout::{name, table};
use crate::links::ms;
use crate::order::{Described, Order, capital, grace_field};
use crate::progress::Begun;
use crate::text::shown;
use crate::views::job::{history_rows, pause_text};
use crate::visit::{GRACE, Query, Visit};
use crate::words::{self, date_in, zone_of};

/// An act about a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobAct {
    Pause,
    Resume,
    Trigger,
    Cancel,
}

impl JobAct {
    /// Returns the word for the act, which is its path, too.
    pub(crate) fn word(self) -> &'static str {
        match self {
            JobAct::Pause => "pause",
            JobAct::Resume => "resume",
            JobAct::Trigger => "trigger",
            JobAct::Cancel => "cancel",
        }
    }
}

/// Does what the form about a job showed.
pub(crate) async fn perform(act: JobAct, order: &Order, begun: &Begun) {
    let (jobs, key, by, why) = (order.app.locks.jobs(), &order.key, &order.by, &order.why);
    let (outcome, words) = match act {
        JobAct::Pause => (
            jobs.pause(key, by, why).await,
            ["The job is paused", "It was paused already"],
        ),
        JobAct::Resume => {
            let job = jobs.show(key).await;
            if job.is_ok_and(|job| job.is_some_and(|job| is_another_pause(&job, &order.query))) {
                return begun.say("It was paused again since you looked: nothing was done.");
            }
            let catch_up = order.form.get("catch_up") == "yes";
            let words = ["The job is resumed", "It was not paused"];
            (jobs.resume(key, catch_up, by, why).await, words)
        }
        JobAct::Trigger => {
            let tick = order.query.time("tick");
            let words = ["A run is wanted", "A run was wanted already"];
            (jobs.trigger(key, tick, by, why).await, words)
        }
        JobAct::Cancel => {
            let Some(tick) = tick_entry(&order.query) else {
                return begun.say("The link names no tick: nothing was done.");
            };
            let grace = order.form.grace().unwrap_or(GRACE);
            begun.say("A run that listens is asked to end; then its lease is revoked.");
            (jobs.cancel(key, tick, grace, by, why).await, ["Cancelled", ""])
        }
    };
    match outcome {
        Ok(outcome) => {
            begun.say(format!("{}.", capital(words::job_act(&outcome, words))));
            if let JobActOutcome::Done { unwritten, .. } = outcome {
                begun.say_unwritten(unwritten);
            }
        }
        Err(error) => begun.say(shown(format!(
            "The store did not answer, so it is not known whether it was done: {error}"
        ))),
    }
}

/// Returns the tick that a link names.
fn tick_entry(query: &Query) -> Option<TickEntry> {
    let time = query.time("tick")?;
    let mut tick = match query.get("triggered") {
        "yes" => TickEntry::triggered(time),
        _ => TickEntry::scheduled(time),
    };
    tick.since = query.time("since");
    Some(tick)
}

/// Returns what an act about a job does. `None`: the job, or the tick, is another one by now.
pub(crate) async fn describe(act: JobAct, visit: &Visit, key: &Key) -> Result<Option<Described>, Error> {
    let Some(job) = visit.app.locks.jobs().show(key).await? else {
        return Ok(None);
    };
    let zone = zone_of(job.plan.as_ref());
    let title = format!("{} {}", capital(act.word()), name(key.as_bytes()));
    let state = html! {
        p { "The job is " strong { (job.state.word()) } "." }
        @if let Some(pause) = &job.paused { p { (pause_text(pause, zone)) } }
    };
    let (text, fields, button) = match act {
        JobAct::Pause => (
            html! { p { "No tick begins, nor a further attempt, until the job is resumed. A run that goes on ends as always." } },
            html! {},
            "Pause the job",
        ),
        JobAct::Resume if is_another_pause(&job, &visit.query) => return Ok(None),
        JobAct::Resume => (
            html! { p { "Ticks begin again. Those of the pause do not run, unless they are caught up." } },
            html! {
                p { label { input type="checkbox" name="catch_up" value="yes"; " Catch up: the job's misfire policy decides about the ticks of the pause" } }
            },
            "Resume the job",
        ),
        JobAct::Trigger => (trigger_text(visit, &job).await?, html! {}, "Run it once more"),
        JobAct::Cancel => {
            let Some(tick) = tick_entry(&visit.query).filter(|tick| is_present(&job, tick)) else {
                return Ok(None);
            };
            let which = if tick.is_triggered {
                "triggered run"
            } else {
                "tick"
            };
            let text = html! {
                p { "The " (which) " of " strong { (date_in(tick.tick, zone)) } " is over then: no node runs it again. A run of it that goes on "
                    "is asked to end, and loses its lease after the grace." }
            };
            (text, grace_field(), "Cancel it")
        }
    };
    let text = html! { (state) (text) };
    Ok(Some(Described {
        title,
        text,
        fields,
        button,
    }))
}

/// Returns whether the job is paused since another time than the link names: an operator may have a new reason.
fn is_another_pause(job: &JobEntry, query: &Query) -> bool {
    let (pause, seen) = (job.paused.as_ref(), query.get("since"));
    pause.is_some_and(|pause| !seen.is_empty() && ms(pause.since) != seen)
}

/// Returns whether the job has that tick, or wants that run.
fn is_present(job: &JobEntry, tick: &TickEntry) -> bool {
    let wanted = job.wanted.as_ref().map(|wanted| wanted.tick_entry());
    [job.current, wanted].contains(&Some(*tick))
}

async fn trigger_text(visit: &Visit, job: &JobEntry) -> Result<Markup, Error> {
    let zone = zone_of(job.plan.as_ref());
    let Some(tick) = visit.query.time("tick") else {
        return Ok(html! { p { "One more run begins, for the present time." } (when_it_begins(job)) });
    };
    let history = visit.app.locks.jobs().history(&job.job, UNIX_EPOCH).await?;
    let mut entries = history.map_or(Vec::new(), |history| history.entries);
    entries.retain(|entry| matches!(entry, HistoryEntry::Run(run) if run.tick == tick));
    let rows = history_rows(&entries, zone, None);
    Ok(html! {
        p { "One more run begins, which does the work of the tick " strong { (date_in(tick, zone)) } "." }
        (when_it_begins(job))
        (table("tick-runs", "The runs that this tick had", &words::HISTORY, &rows))
    })
}

fn when_it_begins(job: &JobEntry) -> Markup {
    html! {
        @if job.nodes.is_empty() {
            p { "No node has the job: the run begins when one does, within a day." }
        } @else if matches!(job.state, JobState::Open | JobState::Running) {
            p { "The run begins when the tick that has begun has ended." }
        }
    }
}
