//! Runs simulated worlds: `tenure-sim --seconds 3600`, or `--seed 7` for the story of one.

#![allow(clippy::disallowed_methods, reason = "measures its own speed")]

use std::fmt::Debug;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use strum::VariantArray;
use tenure::protocol::flaw::Flaw;
use tenure_sim::explore::{Limits, explore};
use tenure_sim::{Setup, Violation, run};

const HELP: &str = "tenure-sim: nodes as they ship in faulty worlds, each from a seed

  --worlds <n>     number of worlds (default: no limit)
  --seconds <n>    maximum time (default: no limit; 60 without --worlds)
  --from <seed>    the first seed (default: drawn from the clock; 1 with --flaw)
  --every <n>      only each n-th seed from the first; 8 stays with one kind of world
  --threads <n>    (default: as many as there are cores)
  --seed <seed>    runs one world and prints its story
  --history <file> with --seed: writes the whole history to this file
  --flaw <name>    with a planted mistake; \"all\": the seed that finds each one
  --only <name>    report this violation alone";

fn main() -> ExitCode {
    match arguments() {
        Ok(Command::Help) => println!("{HELP}"),
        Ok(Command::One(setup, history)) => return replay(setup, history),
        Ok(Command::Flaws(flaws, only, limits)) => return plant(&flaws, only, &limits),
        Ok(Command::Many(limits)) => return many(&limits),
        Err(error) => {
            eprintln!("{error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// What the arguments ask for.
enum Command {
    Help,
    One(Setup, Option<String>),
    Flaws(Vec<Flaw>, Option<Violation>, Limits),
    Many(Limits),
}

/// Parses the arguments.
fn arguments() -> Result<Command, String> {
    let (mut seed, mut history, mut seconds) = (None, None, None);
    let (mut flaws, mut only, mut from) = (Vec::new(), None, None);
    let mut limits = Limits {
        threads: thread::available_parallelism().map_or(2, usize::from),
        ..Limits::default()
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| {
            let text = text.replace(['_', ','], "");
            text.parse::<u64>()
                .map_err(|_| format!("{word}: {text} is not a number"))
        };
        match word.as_str() {
            "--worlds" => limits.worlds = Some(number(value()?)?),
            "--seconds" => seconds = Some(number(value()?)?),
            "--from" => from = Some(number(value()?)?),
            "--every" => limits.step = number(value()?)?,
            "--threads" => limits.threads = number(value()?)?.max(1) as usize,
            "--seed" => seed = Some(number(value()?)?),
            "--history" => history = Some(value()?),
            "--flaw" => flaws = named_flaws(&value()?)?,
            "--only" => only = Some(named(Violation::VARIANTS, &value()?)?),
            "--help" | "-h" => return Ok(Command::Help),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if let Some(seed) = seed {
        let setup = Setup {
            seed,
            only,
            flaw: flaws.first().copied(),
            history: true,
            ..Setup::default()
        };
        return Ok(Command::One(setup, history));
    }
    if !flaws.is_empty() && !cfg!(feature = "planted") {
        return Err("this build has no planted mistakes: it needs the feature `planted`".to_owned());
    }
    if !flaws.is_empty() {
        limits.from = from.unwrap_or(1);
        return Ok(Command::Flaws(flaws, only, limits));
    }
    if limits.worlds.is_none() && seconds.is_none() {
        seconds = Some(60);
    }
    limits.time = seconds.map(Duration::from_secs);
    limits.from = from.unwrap_or_else(drawn_base);
    Ok(Command::Many(limits))
}

/// Draws a first seed from the clock, so that each run explores other worlds.
fn drawn_base() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos() as u64);
    // Runs that begin soon after each other explore worlds that are far apart.
    nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

/// Explores worlds and prints the table. Begins with the command that explores the same worlds again.
fn many(limits: &Limits) -> ExitCode {
    const AGAIN: &str = "cargo run --profile sim -p tenure-sim --";
    println!("from {0}: {AGAIN} --from {0}", limits.from);
    let begin = Instant::now();
    let found = explore(limits);
    print!("{}", found.table(begin.elapsed()));
    match found.failure {
        Some((seed, story)) => {
            println!("{story}\nseed {seed}: {AGAIN} --seed {seed}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Returns the flaws with this name; all of them for "all".
fn named_flaws(text: &str) -> Result<Vec<Flaw>, String> {
    match text {
        "all" => Ok(Flaw::ALL.to_vec()),
        _ => named(Flaw::ALL, text).map(|flaw| vec![flaw]),
    }
}

/// Returns the value whose `Debug` name is `text`.
fn named<T: Copy + Debug>(all: &[T], text: &str) -> Result<T, String> {
    let mut all = all.iter();
    let found = all.find(|one| format!("{one:?}") == text);
    found.copied().ok_or_else(|| format!("there is no {text}"))
}

/// Prints the first seed that finds each mistake, and the violation found.
fn plant(flaws: &[Flaw], only: Option<Violation>, limits: &Limits) -> ExitCode {
    for &flaw in flaws {
        let setup = |seed| Setup {
            seed,
            only,
            flaw: Some(flaw),
            ..Setup::default()
        };
        let step = limits.step.max(1);
        let seeds = (limits.from..)
            .step_by(step as usize)
            .take(limits.worlds.unwrap_or(2_000) as usize);
        let failure = |seed| run(setup(seed)).failure.map(|failure| (seed, failure));
        match seeds.clone().find_map(failure) {
            Some((seed, failure)) => println!(
                "{flaw:?}: {:?} in seed {seed}: {:.150}",
                failure.violation, failure.text
            ),
            None => println!("{flaw:?}: not found in {seeds:?}"),
        }
    }
    ExitCode::SUCCESS
}

/// Runs one world and prints its story.
fn replay(setup: Setup, history: Option<String>) -> ExitCode {
    let run = run(setup);
    println!("{}", run.story());
    if let Some(path) = history {
        let lines: Vec<_> = run.history.iter().map(|line| line.text.as_str()).collect();
        if let Err(error) = std::fs::write(&path, lines.join("\n")) {
            eprintln!("{path}: {error}");
        }
    }
    match run.failure {
        Some(_) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}
