//! The journal of a process: one line per event, written at once, with the clock that all processes of a machine share.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of the machine's clock.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// An append-only file. A line is one `write`, so a process that is killed leaves whole lines.
pub struct Journal(File);

impl Journal {
    pub fn create(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Journal(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The caller reads the clock for `at`: the judgement depends on whether it is read before or after the event.
    pub fn write(&self, at: u64, what: fmt::Arguments<'_>) {
        let line = format!("{at} {what}\n");
        (&self.0)
            .write_all(line.as_bytes())
            .expect("the journal is writable");
    }
}
