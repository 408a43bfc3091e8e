//! Runs simulated worlds: `tenure-sim --worlds 1000000 --from 1`, or `--seed 7` for the story of one.

#![allow(clippy::disallowed_methods, reason = "says how fast it was")]

use std::fmt::Debug;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use tenure::protocol::flaw::Flaw;
use tenure_sim::explore::{Limits, explore};
use tenure_sim::{Setup, Wrong, run};

const HELP: &str = "tenure-sim: nodes as they ship in worlds that fail, each from a seed

  --worlds <n>     how many worlds (default: without end)
  --seconds <n>    and for how long (default: without end; 60 when --worlds is not given either)
  --from <seed>    the first seed (default 1)
  --threads <n>    (default: as many as there are cores)
  --seed <seed>    one world, with its story
  --history <file> with --seed: all of its history
  --flaw <name>    with a mistake planted; \"all\": which seed finds each of them
  --only <name>    look out for this wrong alone";

fn main() -> ExitCode {
    match arguments() {
        Ok(Wanted::Help) => println!("{HELP}"),
        Ok(Wanted::One(setup, history)) => return replay(setup, history),
        Ok(Wanted::Flaws(flaws, only, limits)) => return plant(&flaws, only, &limits),
        Ok(Wanted::Many(limits)) => return many(&limits),
        Err(error) => {
            eprintln!("{error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

enum Wanted {
    Help,
    One(Setup, Option<String>),
    Flaws(Vec<Flaw>, Option<Wrong>, Limits),
    Many(Limits),
}

fn arguments() -> Result<Wanted, String> {
    let (mut seed, mut history, mut seconds) = (None, None, None);
    let (mut flaws, mut only) = (Vec::new(), None);
    let mut limits = Limits {
        from: 1,
        threads: thread::available_parallelism().map_or(2, usize::from),
        ..Limits::default()
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        let number = |text: String| {
            let text = text.replace(['_', ','], "");
            text.parse::<u64>()
                .map_err(|_| format!("{word}: {text} is no number"))
        };
        match word.as_str() {
            "--worlds" => limits.worlds = Some(number(value()?)?),
            "--seconds" => seconds = Some(number(value()?)?),
            "--from" => limits.from = number(value()?)?,
            "--threads" => limits.threads = number(value()?)?.max(1) as usize,
            "--seed" => seed = Some(number(value()?)?),
            "--history" => history = Some(value()?),
            "--flaw" => flaws = named_flaws(&value()?)?,
            "--only" => only = Some(named(&Wrong::ALL, &value()?)?),
            "--help" | "-h" => return Ok(Wanted::Help),
            _ => return Err(format!("what is {word}?")),
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
        return Ok(Wanted::One(setup, history));
    }
    if !flaws.is_empty() {
        return Ok(Wanted::Flaws(flaws, only, limits));
    }
    if limits.worlds.is_none() && seconds.is_none() {
        seconds = Some(60);
    }
    limits.time = seconds.map(Duration::from_secs);
    Ok(Wanted::Many(limits))
}

fn many(limits: &Limits) -> ExitCode {
    let begin = Instant::now();
    let found = explore(limits);
    print!("{}", found.table(begin.elapsed()));
    match found.failure {
        Some((seed, story)) => {
            println!("{story}\nseed {seed}: cargo run --release -p tenure-sim -- --seed {seed}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn named_flaws(text: &str) -> Result<Vec<Flaw>, String> {
    match text {
        "all" => Ok(Flaw::ALL.to_vec()),
        _ => named(Flaw::ALL, text).map(|flaw| vec![flaw]),
    }
}

fn named<T: Copy + Debug>(all: &[T], text: &str) -> Result<T, String> {
    let mut all = all.iter();
    let found = all.find(|one| format!("{one:?}") == text);
    found.copied().ok_or_else(|| format!("there is no {text}"))
}

/// Prints the first seed that finds each mistake, and the violation found.
fn plant(flaws: &[Flaw], only: Option<Wrong>, limits: &Limits) -> ExitCode {
    for &flaw in flaws {
        let setup = |seed| Setup {
            seed,
            only,
            flaw: Some(flaw),
            ..Setup::default()
        };
        let seeds = limits.from..limits.from + limits.worlds.unwrap_or(2_000);
        let failure = |seed| run(setup(seed)).failure.map(|failure| (seed, failure));
        match seeds.clone().find_map(failure) {
            Some((seed, failure)) => println!(
                "{flaw:?}: {:?} in seed {seed}: {:.150}",
                failure.wrong, failure.text
            ),
            None => println!("{flaw:?}: not found in {seeds:?}"),
        }
    }
    ExitCode::SUCCESS
}

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
