//! The history of a world: a hash of everything, and lines of text if they are wanted.

use std::fmt::Write;

use crate::setup::Line;

/// The history of one world.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) hash: u64,
    pub(crate) lines: Option<Vec<Line>>,
}

impl Log {
    pub(crate) fn new(history: bool) -> Self {
        Log {
            hash: 0,
            lines: history.then(Vec::new),
        }
    }

    /// Adds a number to the hash. Everything that happens is added, so that two runs can be compared.
    pub(crate) fn mix(&mut self, value: u64) {
        self.hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Adds a line of text if a history is wanted.
    pub(crate) fn line(
        &mut self,
        now: u64,
        node: Option<usize>,
        key: Option<usize>,
        text: impl FnOnce() -> String,
    ) {
        if let Some(lines) = &mut self.lines {
            let mut line = format!("{:>5}.{:06} ", now / 1_000_000_000, now / 1000 % 1_000_000);
            let _ = match node {
                Some(node) => write!(line, "node {node} "),
                None => write!(line, "       "),
            };
            let _ = match key {
                Some(key) => write!(line, "key {key} "),
                None => write!(line, "      "),
            };
            line.push_str(&text());
            lines.push(Line { key, text: line });
        }
    }
}
