//! What the command writes. The macros of the standard library panic if a reader has closed its end.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use tenure::error::StoreError;

use crate::text::shown;

/// ANSI: the cursor goes to the first line, and the screen is cleared.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Writes a text to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes to stdout. A reader that is gone neither stops an act nor changes its exit code.
pub(crate) fn tell(text: &str) {
    if let Err(error) = print(text)
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        warn(&format!("cannot write the answer: {error}"));
    }
}

/// Writes a text to stdout, in the place of everything that a terminal shows.
pub(crate) fn replace(text: &str) -> io::Result<()> {
    let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
    print(&format!("{clear}{text}"))
}

/// Asks a question on stderr, and returns whether the answer is yes.
pub(crate) fn ask(question: &str) -> io::Result<bool> {
    let mut out = io::stderr().lock();
    out.write_all(question.as_bytes())?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Writes a line to stderr.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "tenure: {text}");
}

/// Writes a line to stderr for each master that did not answer.
pub(crate) fn warn_of(failures: &[(Arc<str>, StoreError)]) {
    for (server, error) in failures {
        warn(&shown(format!("{server}: {error}")));
    }
}
