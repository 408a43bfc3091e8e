//! Why a store gave no reply, and what may have become of the request.

use crate::error::StoreError;

/// Whether a failed batch may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It was not executed and never will be.
    No,
    /// It may have been executed, or may still be.
    Unknown,
    /// It was not executed and never will be: the server does not serve the name now. The request is asked for again, so that
    /// the store can be asked which server serves the name.
    Elsewhere(Redirect),
}

/// What a server says of a name that it does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// Another server serves the name, and the store knows which.
    Moved,
    /// The name is on its way to another server, or no server serves it now.
    Pending,
}

/// Why a batch, or a part of it, has no reply.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Whether it may have been executed.
    pub executed: Executed,
    /// The error.
    pub error: StoreError,
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.executed == other.executed && self.error.kind() == other.error.kind()
    }
}
