//! The command `tenure`: which node holds which lease, since when, and which nodes wait, what jobs did, and a steal. Looking changes
//! nothing: the command takes no lock, and does not appear as a node.
//!
//!     tenure ls account:
//!     tenure show account:42
//!     tenure nodes
//!     tenure jobs history reconcile
//!     tenure steal account:42 --why 'stuck since the deploy'
//!
//! It exits with 0; with 1 if the answer is no; with 2 after wrong usage; with 3 if the store is unavailable or refuses.

#![forbid(unsafe_code)]

mod args;
mod failure;
mod jobs;
mod list;
mod steal;
mod store;
mod table;
mod terminal;
mod text;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser;
use tenure::Locks;
use tenure::inspect::Inspection;

use args::{Args, Command, OutputArgs};
use failure::Failure;
use table::View;

/// The exit code if the answer is no.
const NO: u8 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args).await {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let locks = store::connect(&args.store).await?;
    if !matches!(args.command, Command::Ls(_)) {
        warn_of_recovery(&locks.inspect()).await?;
    }
    match &args.command {
        Command::Ls(wanted) => list::run(&locks, wanted, &args.output).await?,
        Command::Show { key } => return show(&locks, key, &args.output).await,
        Command::Nodes => nodes(&locks, &args.output).await?,
        Command::Steal(wanted) => return steal::run(&locks, wanted, &args.output).await,
        Command::Jobs(wanted) => return jobs::run(&locks, wanted, &args.output).await,
        Command::Audit => steal::audit(&locks, &args.output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a line to stderr for each server that recovers. A failure is left to the screen.
async fn warn_of_recovery(inspection: &Inspection) -> Result<(), Failure> {
    for (server, left) in inspection.recovering().await? {
        let left = text::duration(left);
        terminal::warn(&text::shown(format!(
            "{server} may have lost leases, and grants none for {left}: holders go on, callers wait"
        )));
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
