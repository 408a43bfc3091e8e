//! The ends of the command other than an answer, and their exit codes.

use std::io;
use std::process::ExitCode;

use tenure::Error;

use crate::terminal::warn;
use crate::text::shown;

/// The exit code after wrong usage. clap has the same.
const WRONG_USAGE: u8 = 2;
/// The exit code if the store is unavailable or refuses, or if the answer cannot be written.
const NO_ANSWER: u8 = 3;

/// Why there is no answer. The texts are safe on a terminal.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument cannot be used.
    Usage(String),
    /// The store is unavailable or refuses.
    Store(String),
    /// The answer cannot be written.
    Output(io::Error),
}

impl Failure {
    /// Reports the failure on stderr, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Failure::Usage(text) => (text, WRONG_USAGE),
            Failure::Store(text) => (text, NO_ANSWER),
            // The reader, such as `head`, has all that it wants.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Failure::Output(error) => (format!("cannot write the answer: {error}"), NO_ANSWER),
        };
        warn(&text);
        ExitCode::from(code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        // The words of a server are part of the text.
        let text = shown(error.to_string());
        match error {
            Error::Options(_) | Error::Key { .. } => Failure::Usage(text),
            _ => Failure::Store(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}
