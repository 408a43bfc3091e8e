//! What is simulated, and the result.

use tenure::protocol::flaw::{Flaw, Plant};

use crate::coverage::Coverage;
use crate::violation::Violation;

/// What is simulated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    /// Decides everything.
    pub seed: u64,
    /// A mistake that is planted in the key machine, the session, the link or the ledger.
    pub flaw: Option<Flaw>,
    /// The store adds no margin to a lease.
    pub no_margin: bool,
    /// The former master takes writes for longer than the recovery allows.
    pub late_demotion: bool,
    /// A promoted server does not recover, except on evidence.
    pub no_recovery: bool,
    /// The scheduler releases the guard of a job whose future goes on.
    pub release_early: bool,
    /// Reports this violation alone, so that a planted mistake is found by its harm and not by its means.
    pub only: Option<Violation>,
    /// Records the history.
    pub history: bool,
}

impl Setup {
    /// Returns the mistake for the machines.
    pub fn plant(&self) -> Plant {
        #[cfg(feature = "planted")]
        return Plant::new(self.flaw);
        #[cfg(not(feature = "planted"))]
        return Plant::NONE;
    }
}

/// The result of one world.
#[derive(Debug)]
pub struct Run {
    /// The number of events handled.
    pub steps: u64,
    /// The number of inputs to key machines.
    pub inputs: u64,
    /// The virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
    /// Depends on everything that happened.
    pub hash: u64,
    /// How often each case was met.
    pub coverage: Coverage,
    /// The first violation, if there was one.
    pub failure: Option<Failure>,
    /// The history, if it was wanted.
    pub history: Vec<Line>,
}

/// One line of a history.
#[derive(Debug, Clone)]
pub struct Line {
    /// The key that the line is about, if there is one.
    pub key: Option<usize>,
    /// Time, node and event.
    pub text: String,
}

/// A violation that happened.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Its kind.
    pub violation: Violation,
    /// The key that it is about, if there is one.
    pub key: Option<usize>,
    /// The details, in words.
    pub text: String,
}

impl Run {
    /// Returns the failure with its history, as text.
    pub fn story(&self) -> String {
        use std::fmt::Write;
        let mut story = String::new();
        let key = self.failure.as_ref().and_then(|failure| failure.key);
        let (old, last) = self.history.split_at(self.history.len().saturating_sub(200));
        // Lines of the failing key, at most 400, and the last 200 lines of all keys.
        let of_key: Vec<_> = old
            .iter()
            .filter(|line| line.key.is_some() && line.key == key)
            .collect();
        for line in &of_key[of_key.len().saturating_sub(400)..] {
            let _ = writeln!(story, "{}", line.text);
        }
        let _ = writeln!(story, "---- the last {} lines, all keys", last.len());
        for line in last {
            let _ = writeln!(story, "{}", line.text);
        }
        if let Some(failure) = &self.failure {
            let _ = writeln!(story, "==== {:?}: {}", failure.violation, failure.text);
        }
        story
    }
}
