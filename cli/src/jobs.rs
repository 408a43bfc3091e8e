//! Jobs: which there are, what they did, and whether one is late.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono_tz::Tz;
use clap::Subcommand;
use serde_json::json;
use tenure::scheduler::{HistoryEntry, JobEntry, JobHistory, JobRun};
use tenure::{Key, Locks};

use crate::NO;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::job_acts::{self, JobActCommand};
use crate::table::{View, table};
use crate::terminal::{print, warn};
use crate::text::{self, age, duration, shown};
use crate::words::{HISTORY, date_in as date, history_row, node_of_run as node, or_none, took, zone_of};

/// How far a success may be ahead of the clock of the store, because clocks differ.
const MAX_AHEAD: Duration = Duration::from_secs(1);
/// How far a history goes back without `--since`.
const DEFAULT_SINCE: &str = "3d";

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    /// What the names begin with; all jobs without it
    #[arg(value_name = "PREFIX", default_value = "")]
    job_prefix: OsString,
    #[command(subcommand)]
    command: Option<JobCommand>,
}

#[derive(Subcommand)]
enum JobCommand {
    /// Shows a job with its plan, its nodes and its latest run; exits with 1 if the store does not know it
    Show {
        /// The name of the job
        name: OsString,
    },
    /// Prints the runs of a job and the ticks without a run, oldest first; exits with 1 if the store does not know the job
    History {
        /// The name of the job
        name: OsString,
        /// How far back, such as 12h or 30d
        #[arg(long, value_name = "TIME", default_value = DEFAULT_SINCE, value_parser = humantime::parse_duration)]
        since: Duration,
        /// The time zone of the table, such as Europe/Berlin; that of the job by default
        #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
        zone: Option<Tz>,
    },
    #[command(flatten)]
    Act(JobActCommand),
    /// Says whether the last success is recent enough; exits with 1 if it is not
    Check {
        /// The name of the job
        name: OsString,
        /// How old the tick of the last success may be, such as 25h for a nightly job
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        within: Duration,
    },
}

fn parse_zone(text: &str) -> Result<Tz, String> {
    text.parse()
        .map_err(|_| "it is no time zone of the IANA database, such as Europe/Berlin".to_owned())
}

pub(crate) async fn run(locks: &Locks, wanted: &JobsArgs, output: &OutputArgs) -> Result<ExitCode, Failure> {
    let view = View::new(output.is_hex);
    match &wanted.command {
        None => list(locks, &wanted.job_prefix, output, &view).await,
        Some(JobCommand::Show { name }) => show(locks, &key(output, name)?, output, &view).await,
        Some(JobCommand::History { name, since, zone }) => {
            if output.is_json && zone.is_some() {
                let text = "--zone is for the table: with --json all times are in UTC";
                return Err(Failure::Usage(text.to_owned()));
            }
            history(locks, &key(output, name)?, (*since, *zone), output, &view).await
        }
        Some(JobCommand::Act(act)) => job_acts::run(locks, act, output, &view).await,
        Some(JobCommand::Check { name, within }) => {
            check(locks, &key(output, name)?, *within, output, &view).await
        }
    }
}

pub(crate) fn key(output: &OutputArgs, name: &OsStr) -> Result<Key, Failure> {
    Ok(Key::from(output.bytes(name)?))
}

pub(crate) fn unknown(view: &View, name: &Key) -> ExitCode {
    warn(&format!("the store knows no job `{}`", view.key(name)));
    ExitCode::from(NO)
}

async fn list(locks: &Locks, prefix: &OsStr, output: &OutputArgs, view: &View) -> Result<ExitCode, Failure> {
    let jobs = locks.jobs().list(output.bytes(prefix)?).await?;
    if output.is_json {
        for job in &jobs {
            print(&text::json(serde_json::to_string(job))?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    print(&jobs_table(view, &jobs))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn jobs_table(view: &View, jobs: &[JobEntry]) -> String {
    let header = [
        "JOB",
        "STATE",
        "NODE",
        "LAST",
        "TOOK",
        "LAST-SUCCESS",
        "NEXT",
        "NODES",
    ];
    table(header, jobs.iter().map(|job| row(view, job)).collect())
}

fn row(view: &View, job: &JobEntry) -> [String; 8] {
    let latest = job.latest.as_ref();
    let last = |run: &JobRun| format!("{} {}", run.state.word(), age(run.began, job.now));
    let next = |next: SystemTime| {
        format!(
            "in {}",
            duration(next.duration_since(job.now).unwrap_or_default())
        )
    };
    [
        view.key(&job.job),
        job.state.word().to_owned(),
        or_none(latest.map(node)),
        or_none(latest.map(last)),
        or_none(latest.and_then(|run| run.took).map(took)),
        or_none(job.last_success.map(|tick| age(tick, job.now))),
        or_none(job.next.map(next)),
        job.nodes.len().to_string(),
    ]
}

async fn show(locks: &Locks, name: &Key, output: &OutputArgs, view: &View) -> Result<ExitCode, Failure> {
    let Some(job) = locks.jobs().show(name).await? else {
        return Ok(unknown(view, name));
    };
    if output.is_json {
        print(&text::json(serde_json::to_string(&job))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let zone = zone_of(job.plan.as_ref());
    let mut lines = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(lines, "{label:<9} {value}");
    };
    line("job", view.key(&job.job));
    line("state", job.state.word().to_owned());
    if let Some(pause) = &job.paused {
        line("paused", shown(format!("by {}: {}", pause.by, pause.why)));
        line("", format!("since {}", date(pause.since, zone)));
    }
    if let Some(wanted) = &job.wanted {
        let (tick, by, why) = (date(wanted.tick, zone), &wanted.act.by, &wanted.act.why);
        line("wanted", shown(format!("for {tick} by {by}: {why}")));
    }
    let plan = job.plan.as_ref();
    line("plan", or_none(plan.map(|plan| shown(&plan.expression))));
    line("zone", or_none(plan.map(|plan| shown(&plan.zone))));
    line("next", or_none(job.next.map(|next| date(next, zone))));
    line("success", or_none(job.last_success.map(|tick| date(tick, zone))));
    let latest = job.latest.iter().flat_map(|run| latest_lines(run, zone));
    for (label, text) in ["latest", "", ""].into_iter().zip(latest) {
        line(label, text);
    }
    line("nodes", job.nodes.len().to_string());
    for node in &job.nodes {
        line("", format!("{} {}", node.id, shown(&*node.name)));
    }
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what is shown of the latest run, on two lines or three.
fn latest_lines(run: &JobRun, zone: Tz) -> Vec<String> {
    let triggered = if run.is_triggered { ", triggered" } else { "" };
    let took = run
        .took
        .map_or(String::new(), |time| format!(", took {}", took(time)));
    let attempt = format!("attempt {} on {}", run.attempt, node(run));
    let mut lines = vec![
        format!("{} of {}{triggered}", run.state.word(), date(run.tick, zone)),
        format!("{attempt}, began {}{took}", date(run.began, zone)),
    ];
    if !run.text.is_empty() {
        lines.push(shown(&*run.text));
    }
    lines
}

async fn history(
    locks: &Locks,
    name: &Key,
    (since, zone): (Duration, Option<Tz>),
    output: &OutputArgs,
    view: &View,
) -> Result<ExitCode, Failure> {
    let since = view.now().checked_sub(since).unwrap_or(UNIX_EPOCH);
    let Some(history) = locks.jobs().history(name, since).await? else {
        return Ok(unknown(view, name));
    };
    if output.is_json {
        for entry in &history.entries {
            print(&text::json(serde_json::to_string(entry))?)?;
        }
    } else {
        print(&history_table(&history, zone))?;
    }
    if history.is_cut {
        warn("earlier ticks without a run are left out");
    }
    Ok(ExitCode::SUCCESS)
}

fn history_table(history: &JobHistory, zone: Option<Tz>) -> String {
    let zone = zone.unwrap_or_else(|| zone_of(history.plan.as_ref()));
    history_rows(&history.entries, zone)
}

/// Returns the table of these entries, with times in a zone.
pub(crate) fn history_rows(entries: &[HistoryEntry], zone: Tz) -> String {
    let rows = entries.iter().map(|entry| history_row(entry, zone));
    table(HISTORY, rows.collect())
}

async fn check(
    locks: &Locks,
    name: &Key,
    within: Duration,
    output: &OutputArgs,
    view: &View,
) -> Result<ExitCode, Failure> {
    let Some(job) = locks.jobs().show(name).await? else {
        return Ok(unknown(view, name));
    };
    let shown = view.key(name);
    let zone = zone_of(job.plan.as_ref());
    let (is_recent, sentence) = match job.last_success.map(|tick| (tick, job.now.duration_since(tick))) {
        None => (false, format!("`{shown}` has had no success")),
        // A clock was ahead once. Nothing is known of the time since.
        Some((tick, Err(ahead))) if ahead.duration() > MAX_AHEAD => {
            let tick = date(tick, zone);
            (
                false,
                format!("`{shown}` had its last success for {tick}, which is ahead of the store's clock"),
            )
        }
        Some((tick, past)) => {
            let is_recent = past.unwrap_or_default() <= within;
            let late = if is_recent { "" } else { ", which is too long ago" };
            let (tick, age) = (date(tick, zone), age(tick, job.now));
            (
                is_recent,
                format!("`{shown}` had its last success for {tick}, {age}{late}"),
            )
        }
    };
    print(&match output.is_json {
        true => text::json(Ok(json!({ "is_recent": is_recent, "job": job }).to_string()))?,
        false => format!("{sentence}\n"),
    })?;
    Ok(ExitCode::from(if is_recent { 0 } else { NO }))
}
