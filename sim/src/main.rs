//! Lives through worlds: `tenure-sim --worlds 1000000 --from 1`, or `--seed 7` to see one of them.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use tenure_sim::explore::{Limits, explore};
use tenure_sim::{Setup, run};

const HELP: &str = "tenure-sim: nodes as they ship in worlds that fail, each from a seed

  --worlds <n>     how many worlds (default: without end)
  --seconds <n>    and for how long (default: without end; 60 when --worlds is not given either)
  --from <seed>    the first seed (default 1)
  --threads <n>    (default: as many as there are cores)
  --seed <seed>    one world, with its story
  --history <file> with --seed: all of its history";

fn main() -> ExitCode {
    match arguments() {
        Ok(Wanted::Help) => println!("{HELP}"),
        Ok(Wanted::One(seed, history)) => return replay(seed, history),
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
    One(u64, Option<String>),
    Many(Limits),
}

fn arguments() -> Result<Wanted, String> {
    let (mut seed, mut history, mut seconds) = (None, None, None);
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
            text.parse::<u64>().map_err(|_| format!("{word}: {text} is no number"))
        };
        match word.as_str() {
            "--worlds" => limits.worlds = Some(number(value()?)?),
            "--seconds" => seconds = Some(number(value()?)?),
            "--from" => limits.from = number(value()?)?,
            "--threads" => limits.threads = number(value()?)?.max(1) as usize,
            "--seed" => seed = Some(number(value()?)?),
            "--history" => history = Some(value()?),
            "--help" | "-h" => return Ok(Wanted::Help),
            _ => return Err(format!("what is {word}?")),
        }
    }
    if let Some(seed) = seed {
        return Ok(Wanted::One(seed, history));
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

fn replay(seed: u64, history: Option<String>) -> ExitCode {
    let run = run(Setup {
        seed,
        history: true,
        ..Setup::default()
    });
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
