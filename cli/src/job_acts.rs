//! What an operator does about jobs: pause, resume, trigger, cancel, reset and forget.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime};
use chrono_tz::Tz;
use clap::Subcommand;
use serde_json::json;
use tenure::scheduler::{
    HistoryEntry, JobActOutcome, JobEntry, JobHistory, JobState, RunOutcome, RunState, WantedRunEntry,
};
use tenure::{Error, Key, Locks};
use tokio::time::sleep;

use crate::NO;
use crate::args::{ConfirmArgs, OperatorArgs, OutputArgs};
use crate::failure::Failure;
use crate::jobs::{history_rows, jobs_table, key, unknown};
use crate::table::View;
use crate::terminal::{tell, warn};
use crate::text::shown;
use crate::words::{self, date_in as date, zone_of};

/// How often `--wait` looks whether the run has ended.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub(crate) enum JobActCommand {
    /// Pauses jobs: no tick begins until they are resumed. A run that goes on ends as always. Exits with 1 if nothing was done
    Pause(ActArgs),
    /// Resumes jobs. No tick of the pause runs, unless with --catch-up. Exits with 1 if nothing was done
    Resume {
        #[command(flatten)]
        act: ActArgs,
        /// The job's misfire policy decides about the ticks of the pause, as after an outage
        #[arg(long)]
        catch_up: bool,
    },
    /// Runs a job one more time, also in a pause; exits with 1 if that is refused
    Trigger {
        #[command(flatten)]
        job: JobArgs,
        /// Does the work of that past tick of the plan, as `history` prints it; without an offset in the zone of the job
        #[arg(long = "for", value_name = "TICK")]
        tick: Option<String>,
        /// Waits for the end of the run; exits with 1 unless it is done
        #[arg(long)]
        wait: bool,
    },
    /// Ends the tick that runs or is open, or withdraws a triggered run: no node runs it again. Exits with 1 if nothing was done
    Cancel {
        #[command(flatten)]
        job: JobArgs,
        /// How long a run that awaits `asked` has to end itself; 0s revokes its lease at once, 30 days at most
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
        grace: Duration,
        /// Cancels the triggered run, even if a tick runs before it
        #[arg(long)]
        triggered: bool,
    },
    /// Repairs a job that knows a tick ahead of the store's clock, and so runs none; exits with 1 if it does not
    Reset(RepairArgs),
    /// Deletes what the store knows of a job that no node has any more, with its history; exits with 1 if nothing was done
    Forget(RepairArgs),
}

#[derive(clap::Args)]
pub(crate) struct ActArgs {
    /// The name of the job; with --all what the names begin with
    #[arg(required_unless_present = "all", default_value = "")]
    name: OsString,
    /// All jobs whose names begin with NAME; without NAME all jobs
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    operator: OperatorArgs,
}

#[derive(clap::Args)]
pub(crate) struct JobArgs {
    /// The name of the job
    name: OsString,
    #[command(flatten)]
    operator: OperatorArgs,
}

#[derive(clap::Args)]
pub(crate) struct RepairArgs {
    /// The name of the job
    name: OsString,
    #[command(flatten)]
    confirmation: ConfirmArgs,
}

/// What all commands need.
struct Context<'a> {
    locks: &'a Locks,
    output: &'a OutputArgs,
    view: &'a View,
}

pub(crate) async fn run(
    locks: &Locks,
    wanted: &JobActCommand,
    output: &OutputArgs,
    view: &View,
) -> Result<ExitCode, Failure> {
    let context = Context { locks, output, view };
    match wanted {
        JobActCommand::Pause(act) => context.pause(act, None).await,
        JobActCommand::Resume { act, catch_up } => context.pause(act, Some(*catch_up)).await,
        JobActCommand::Trigger { job, tick, wait } => context.trigger(job, tick.as_deref(), *wait).await,
        JobActCommand::Cancel {
            job,
            grace,
            triggered,
        } => context.cancel(job, *grace, *triggered).await,
        JobActCommand::Reset(job) => context.reset(job).await,
        JobActCommand::Forget(job) => context.forget(job).await,
    }
}

impl Context<'_> {
    /// Pauses jobs, or resumes them if `catch_up` is given.
    async fn pause(&self, wanted: &ActArgs, catch_up: Option<bool>) -> Result<ExitCode, Failure> {
        let (jobs, name) = (self.locks.jobs(), key(self.output, &wanted.name)?);
        let found = match wanted.all {
            true => jobs.list(name.as_bytes()).await?,
            false => jobs.show(&name).await?.into_iter().collect(),
        };
        if found.is_empty() && wanted.all {
            warn(&format!(
                "the store knows no job whose name begins with `{}`",
                self.view.key(&name)
            ));
            return Ok(exit(false));
        } else if found.is_empty() {
            return Ok(unknown(self.view, &name));
        }
        self.show(&found);
        let verb = if catch_up.is_some() { "Resume" } else { "Pause" };
        let operator = &wanted.operator;
        if !operator.confirms(&format!("{verb} {} jobs?", found.len()))? {
            return Ok(exit(false));
        }
        let (by, why) = (operator.by(), &operator.why);
        let mut is_done = false;
        for job in &found {
            let (outcome, words) = match catch_up {
                None => (
                    jobs.pause(&job.job, &by, why).await?,
                    ["paused", "was paused already"],
                ),
                Some(catch_up) => (
                    jobs.resume(&job.job, catch_up, &by, why).await?,
                    ["resumed", "was not paused"],
                ),
            };
            is_done |= self.tell(&job.job, &outcome, words);
        }
        Ok(exit(is_done))
    }

    async fn trigger(&self, wanted: &JobArgs, tick: Option<&str>, waits: bool) -> Result<ExitCode, Failure> {
        let (jobs, name) = (self.locks.jobs(), key(self.output, &wanted.name)?);
        let Some(job) = jobs.show(&name).await? else {
            return Ok(unknown(self.view, &name));
        };
        let history = match tick {
            Some(_) => jobs.history(&name, UNIX_EPOCH).await?,
            None => None,
        };
        let entries = history.map_or(Vec::new(), |history| history.entries);
        let tick = tick.map(|tick| tick_of(tick, &job, &entries)).transpose()?;
        self.show(std::slice::from_ref(&job));
        if let Some(tick) = tick.filter(|_| !self.output.is_json) {
            show_runs_of(&job, entries, tick);
        }
        let what = match tick {
            Some(tick) => format!(" for {}", date(tick, zone_of(job.plan.as_ref()))),
            None => String::new(),
        };
        let operator = &wanted.operator;
        if !operator.confirms(&format!("Run `{}` once more{what}?", self.view.key(&name)))? {
            return Ok(exit(false));
        }
        let outcome = jobs.trigger(&name, tick, operator.by(), &operator.why).await?;
        self.tell(&name, &outcome, ["triggered", "a run is wanted already"]);
        let JobActOutcome::Done { at, .. } = outcome else {
            return Ok(exit(false));
        };
        if job.nodes.is_empty() {
            warn("no node has the job: the run begins when one does, within a day");
        } else if job.state == JobState::Open {
            warn("the run begins when the tick that is open has ended");
        }
        if !waits {
            return Ok(exit(true));
        }
        let state = self.wait(&name, at).await?;
        let text = state.map_or("ended without a run", RunState::word);
        self.say(&name, text, state.map_or("none", RunState::word));
        let is_done = state == Some(RunState::Ended(RunOutcome::Done));
        Ok(exit(is_done))
    }

    /// Waits until the run that was triggered at that time is wanted no more. Returns how the latest run of it ended. While the store
    /// does not answer, it waits on: the run is wanted, and a second command would trigger another one.
    async fn wait(&self, name: &Key, at: SystemTime) -> Result<Option<RunState>, Failure> {
        let (jobs, mut is_away) = (self.locks.jobs(), false);
        loop {
            let found = match jobs.show(name).await {
                Ok(job) if job.as_ref().and_then(|job| Some(job.wanted.as_ref()?.act.since)) != Some(at) => {
                    jobs.history(name, UNIX_EPOCH).await.map(Some)
                }
                other => other.map(|_| None),
            };
            match found {
                Ok(None) => is_away = false,
                Ok(Some(history)) => return Ok(history.and_then(|history| end_of(&history, at))),
                Err(Error::Connect { .. } | Error::Store { .. }) if is_away => {}
                Err(error @ (Error::Connect { .. } | Error::Store { .. })) => {
                    is_away = true;
                    warn(&shown(format!(
                        "the run is wanted, and its end is not known yet: {error}"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    async fn cancel(&self, wanted: &JobArgs, grace: Duration, triggered: bool) -> Result<ExitCode, Failure> {
        let Some(job) = self.find(&wanted.name).await? else {
            return Ok(exit(false));
        };
        let wish = job.wanted.as_ref().map(WantedRunEntry::tick_entry);
        let (current, missing) = match triggered {
            true => (wish, "is wanted"),
            false => (job.current, "runs, is open or is wanted"),
        };
        let name = self.view.key(&job.job);
        let Some(current) = current else {
            warn(&format!("no tick of `{name}` {missing}"));
            return Ok(exit(false));
        };
        let tick = date(current.tick, zone_of(job.plan.as_ref()));
        let kind = if current.is_triggered {
            "triggered run"
        } else {
            "tick"
        };
        let operator = &wanted.operator;
        if !operator.confirms(&format!("Cancel the {kind} {tick} of `{name}`?"))? {
            return Ok(exit(false));
        }
        let (jobs, by) = (self.locks.jobs(), operator.by());
        let outcome = jobs.cancel(&job.job, current, grace, by, &operator.why).await?;
        let is_done = self.tell(&job.job, &outcome, ["cancelled", ""]);
        Ok(exit(is_done || matches!(outcome, JobActOutcome::EndedItself)))
    }

    async fn reset(&self, wanted: &RepairArgs) -> Result<ExitCode, Failure> {
        let Some(job) = self.find(&wanted.name).await? else {
            return Ok(exit(false));
        };
        let name = self.view.key(&job.job);
        let what = format!("Set the latest tick of `{name}` back to now, if it lies ahead?");
        if !wanted.confirmation.confirms(&what)? {
            return Ok(exit(false));
        }
        let is_done = self.locks.jobs().reset(&job.job).await?;
        let (text, word) = match is_done {
            true => ("reset", "reset"),
            false => ("no tick lies ahead", "unchanged"),
        };
        self.say(&job.job, text, word);
        Ok(exit(is_done))
    }

    async fn forget(&self, wanted: &RepairArgs) -> Result<ExitCode, Failure> {
        let Some(job) = self.find(&wanted.name).await? else {
            return Ok(exit(false));
        };
        let what = format!(
            "Delete what is known of `{}`, with its history?",
            self.view.key(&job.job)
        );
        if !wanted.confirmation.confirms(&what)? {
            return Ok(exit(false));
        }
        let (is_done, text, word) = match self.locks.jobs().forget(&job.job).await {
            Ok(true) => (true, "forgotten", "forgotten"),
            Ok(false) => (false, "unknown", "unknown"),
            Err(error) if error.is_busy() => {
                let text =
                    "a node has it, or died less than two looks ago: `tenure jobs show` names the nodes";
                (false, text, "in_use")
            }
            Err(error) => return Err(error.into()),
        };
        self.say(&job.job, text, word);
        Ok(exit(is_done))
    }

    /// Shows the jobs before the operator is asked.
    fn show(&self, jobs: &[JobEntry]) {
        if !self.output.is_json {
            tell(&jobs_table(self.view, jobs));
        }
    }

    /// Prints what became of an act: for people by the text for what was done, or the text if nothing had to be done. Returns whether
    /// it was done.
    fn tell(&self, job: &Key, outcome: &JobActOutcome, words: [&'static str; 2]) -> bool {
        if let JobActOutcome::Done {
            unwritten: Some(error),
            ..
        } = outcome
        {
            warn(&shown(format!("the audit list could not be written: {error}")));
        }
        let is_done = matches!(outcome, JobActOutcome::Done { .. });
        let text = words::job_act(outcome, words);
        self.say(job, text, if is_done { words[0] } else { outcome.word() });
        is_done
    }

    /// Prints the text, or as JSON the word.
    fn say(&self, job: &Key, text: &str, word: &str) {
        tell(&match self.output.is_json {
            true => format!("{}\n", json!({ "job": job, "outcome": word })),
            false => format!("{}: {text}\n", self.view.key(job)),
        });
    }

    /// Returns the job with this name, and shows it to the operator. `None`: the store does not know it, which is told.
    async fn find(&self, name: &OsStr) -> Result<Option<JobEntry>, Failure> {
        let name = key(self.output, name)?;
        let found = self.locks.jobs().show(&name).await?;
        match &found {
            Some(job) => self.show(std::slice::from_ref(job)),
            None => drop(unknown(self.view, &name)),
        }
        Ok(found)
    }
}

/// Prints the runs that a tick had.
fn show_runs_of(job: &JobEntry, mut entries: Vec<HistoryEntry>, tick: SystemTime) {
    entries.retain(|entry| matches!(entry, HistoryEntry::Run(run) if run.tick == tick));
    let zone = zone_of(job.plan.as_ref());
    tell(&match entries.is_empty() {
        true => format!("no run of {} is known\n", date(tick, zone)),
        false => history_rows(&entries, zone),
    });
}

/// Returns how the latest run ended of those that were triggered at that time. Until the next trigger all triggered runs are of this
/// one.
fn end_of(history: &JobHistory, at: SystemTime) -> Option<RunState> {
    let next = history.entries.iter().find_map(|entry| match entry {
        HistoryEntry::Act(act) if act.what == "triggered" && act.time() > at => Some(act.time()),
        _ => None,
    });
    let runs = history.entries.iter().filter_map(|entry| match entry {
        HistoryEntry::Run(run) if run.is_triggered && run.began >= at => Some(run),
        _ => None,
    });
    let mut runs = runs.filter(|run| next.is_none_or(|next| run.began < next));
    Some(runs.next_back()?.state)
}

/// Returns the exit code of an act.
fn exit(is_done: bool) -> ExitCode {
    ExitCode::from(if is_done { 0 } else { NO })
}

/// Reads the time of a tick, in the zone of the job if it has no offset. It is one of the plan, or one that had a run: `runs`.
fn tick_of(text: &str, job: &JobEntry, runs: &[HistoryEntry]) -> Result<SystemTime, Failure> {
    let usage = |why: &str| Failure::Usage(format!("--for {text}: {why}"));
    let Some(plan) = &job.plan else {
        return Err(usage("no node has told when the job is due"));
    };
    let (zone, text) = (zone_of(Some(plan)), text.trim());
    let time = read_time(text, zone).ok_or_else(|| {
        usage("it is no time such as 2026-11-28T00:00:00, or the clocks of the zone show it twice or never: add an offset")
    })?;
    let had_run = |entry: &HistoryEntry| matches!(entry, HistoryEntry::Run(run) if run.tick == time);
    if !plan.is_due(time) && !runs.iter().any(had_run) {
        let plan = format!(
            "it is no tick of the plan `{}` in {}, and had no run",
            plan.expression, plan.zone
        );
        return Err(usage(&shown(plan)));
    }
    Ok(time)
}

fn read_time(text: &str, zone: Tz) -> Option<SystemTime> {
    let with_offset = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%:z"));
    let seconds = match with_offset {
        Ok(time) => time.timestamp(),
        Err(_) => {
            let text = text.replace('T', " ");
            let time = NaiveDateTime::parse_from_str(&text, "%Y-%m-%d %H:%M:%S")
                .or_else(|_| NaiveDateTime::parse_from_str(&text, "%Y-%m-%d %H:%M"))
                .ok()?;
            time.and_local_timezone(zone).single()?.timestamp()
        }
    };
    UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}
