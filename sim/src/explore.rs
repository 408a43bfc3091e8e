//! Runs world after world on all cores until one fails.

#![allow(clippy::disallowed_methods, reason = "measures its own speed")]

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::coverage::Coverage;
use crate::run::run;
use crate::setup::Setup;

/// Which worlds are run, and how many.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Seeds that are run before all others.
    pub first: Vec<u64>,
    /// The first seed of a row.
    pub from: u64,
    /// The distance of two seeds of the row. Each eighth world is of one kind. Zero counts as one.
    pub step: u64,
    /// The maximum number of worlds.
    pub worlds: Option<u64>,
    /// The maximum time.
    pub time: Option<Duration>,
    /// The number of threads.
    pub threads: usize,
    /// The number of worlds after which the run stops if every case was met. `None` does not stop for that.
    pub enough: Option<u64>,
}

/// The results of all worlds that were run.
#[derive(Debug, Default)]
pub struct Exploration {
    /// The number of worlds that ended.
    pub worlds: u64,
    /// The number of events handled.
    pub steps: u64,
    /// The number of inputs to key machines.
    pub inputs: u64,
    /// The virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
    /// The sum of the worlds' hashes. The order of the worlds does not change it.
    pub hash: u64,
    /// How often each case was met.
    pub coverage: Coverage,
    /// The smallest seed that failed, and its story.
    pub failure: Option<(u64, String)>,
}

/// Runs worlds until a limit is reached or one fails.
pub fn explore(limits: &Limits) -> Exploration {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let first = limits.first.len() as u64;
    let end = limits.worlds.unwrap_or(u64::MAX - limits.from);
    let found = Mutex::new(Exploration::default());
    let lock = || found.lock().unwrap_or_else(|poison| poison.into_inner());
    let goes_on = || {
        let found = lock();
        let has_time = limits.time.is_none_or(|time| begin.elapsed() < time);
        let is_enough = limits.enough.is_some_and(|enough| found.worlds >= enough);
        found.failure.is_none() && has_time && !(is_enough && found.coverage.missing().is_empty())
    };
    let live = || {
        while goes_on() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= end {
                break;
            }
            let seed = match limits.first.get(index as usize) {
                Some(seed) => *seed,
                None => limits.from + (index - first) * limits.step.max(1),
            };
            let setup = Setup {
                seed,
                ..Setup::default()
            };
            let lived = run(setup);
            let failed = lived.failure.is_some().then(|| {
                let history = true;
                run(Setup { history, ..setup }).story()
            });
            let mut found = lock();
            found.worlds += 1;
            found.steps += lived.steps;
            found.inputs += lived.inputs;
            found.virtual_ms += lived.virtual_ms;
            found.hash = found.hash.wrapping_add(lived.hash);
            found.coverage.add(&lived.coverage);
            if let Some(story) = failed
                && found.failure.as_ref().is_none_or(|(first, _)| seed < *first)
            {
                found.failure = Some((seed, story));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(live);
        }
    });
    found.into_inner().unwrap_or_else(|poison| poison.into_inner())
}

impl Exploration {
    /// Returns the counts of all cases and the speed.
    pub fn table(&self, wall: Duration) -> String {
        let mut text = String::new();
        for (what, count) in self.coverage.table() {
            let _ = writeln!(text, "{count:>12}  {what}");
        }
        let missing = self.coverage.missing();
        if !missing.is_empty() {
            let _ = writeln!(text, "never happened: {missing:?}");
        }
        let (seconds, worlds) = (wall.as_secs_f64(), self.worlds.max(1));
        let _ = writeln!(
            text,
            "{} worlds in {seconds:.1} s ({:.0} a second), {:.1} virtual hours; per world {} events, {} inputs of key machines; hash {:016x}",
            self.worlds,
            self.worlds as f64 / seconds,
            self.virtual_ms as f64 / 3.6e6,
            self.steps / worlds,
            self.inputs / worlds,
            self.hash,
        );
        text
    }
}
