//! The command `tenure`: which node holds which lease, since when, and which nodes wait, what jobs did, and a steal. Looking changes
//! nothing: only `doctor` takes locks, under keys of its own, and the command does not appear as a node.
//!
//!     tenure ls account:
//!     tenure show account:42
//!     tenure nodes
//!     tenure jobs history reconcile
//!     tenure steal account:42 --why 'stuck since the deploy'
//!     tenure doctor
//!     tenure serve
//!
//! It exits with 0; with 1 if the answer is no; with 2 after wrong usage; with 3 if the store is unavailable or refuses. `run` has
//! the codes of `timeout(1)`.

#![forbid(unsafe_code)]

mod args;
mod doctor;
mod failure;
mod job_acts;
mod jobs;
mod list;
#[cfg(target_os = "linux")]
mod run;
mod run_args;
mod serve;
mod steal;
mod store;
mod table;
mod terminal;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tenure::Locks;
use tenure::inspect::Inspection;
use tenure_page::{text, words};

use args::{Args, Command, OutputArgs};
use failure::Failure;
use run_args::RunArgs;
use table::View;

/// The exit code if the answer is no.
const NO: u8 = 1;
/// The exit code of `run` if the command was not begun. 1 to 122 are the command's own.
const NOT_RUN: u8 = 125;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refuse(&error),
    };
    if let Command::Run(wanted) = &args.command {
        return run(wanted, &args);
    }
    match answer(&args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

#[cfg(target_os = "linux")]
fn run(wanted: &RunArgs, args: &Args) -> ExitCode {
    run::run(wanted, &args.store, &args.output)
}

#[cfg(not(target_os = "linux"))]
fn run(_: &RunArgs, _: &Args) -> ExitCode {
    terminal::warn("`run` finds the processes of a command by /proc: it needs Linux");
    ExitCode::from(NOT_RUN)
}

/// Prints why the arguments are refused, or the help that they ask for.
fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let words = Args::command().ignore_errors(true).try_get_matches();
    let is_run = words.is_ok_and(|words| words.subcommand_name() == Some("run"));
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if is_run => ExitCode::from(NOT_RUN),
        code => ExitCode::from(code as u8),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn answer(args: &Args) -> Result<ExitCode, Failure> {
    let locks = store::connect(&args.store).await?;
    if !matches!(
        args.command,
        Command::Ls(_) | Command::Doctor(_) | Command::Serve(_)
    ) {
        warn_of_recovery(&locks.inspect()).await?;
    }
    match &args.command {
        Command::Ls(wanted) => list::run(&locks, wanted, &args.output).await?,
        Command::Show { key } => return show(&locks, key, &args.output).await,
        Command::Nodes => nodes(&locks, &args.output).await?,
        Command::Steal(wanted) => return steal::run(&locks, wanted, &args.output).await,
        Command::Run(_) => unreachable!("it forks before there is a runtime"),
        Command::Jobs(wanted) => return jobs::run(&locks, wanted, &args.output).await,
        Command::Doctor(wanted) => return doctor::run(&locks.inspect(), wanted, &args.output).await,
        Command::Serve(wanted) => serve::run(&locks, wanted).await?,
        Command::Audit => steal::audit(&locks, &args.output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a line to stderr for each server that recovers. A failure is left to the screen.
async fn warn_of_recovery(inspection: &Inspection) -> Result<(), Failure> {
    for (server, left) in inspection.recovering().await? {
        terminal::warn(&words::recovering(&server, left));
    }
    Ok(())
}

async fn show(locks: &Locks, key: &OsStr, output: &OutputArgs) -> Result<ExitCode, Failure> {
    let key = tenure::Key::from(output.bytes(key)?);
    let page = locks.inspect().show(&key).await?;
    terminal::warn_of(&page.failures);
    let view = View::new(output.is_hex);
    if page.entries.is_empty() {
        terminal::warn(&format!(
            "`{}` is neither held, waited for nor set",
            view.key(&key)
        ));
        return Ok(ExitCode::from(NO));
    }
    let mut texts = Vec::new();
    for entry in &page.entries {
        texts.push(if output.is_json {
            text::json(serde_json::to_string(entry))?
        } else {
            view.details(entry)
        });
    }
    terminal::print(&texts.join(if output.is_json { "" } else { "\n" }))?;
    Ok(ExitCode::SUCCESS)
}

async fn nodes(locks: &Locks, output: &OutputArgs) -> Result<(), Failure> {
    let nodes = locks.inspect().nodes().await?;
    if !output.is_json {
        return Ok(terminal::print(&View::new(output.is_hex).nodes(&nodes))?);
    }
    for node in &nodes {
        terminal::print(&text::json(serde_json::to_string(node))?)?;
    }
    Ok(())
}
