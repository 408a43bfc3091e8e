//! The kinds of failed requests that tests tell apart.

use tenure::error::StoreError;
use tenure::protocol::failed_request::FailedRequest;
use tenure::protocol::message::{Executed, Failure, Redirect};
use tenure::protocol::time::Instant;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was not executed and never will be.
    No,
    /// It may have been executed, and may still be until it is late.
    Unknown,
    /// Its connection worked, and broke or was given up because of another request.
    Bystander,
    /// It was not sent, because the server is known to be down.
    Down,
    /// The server does not serve the name.
    Elsewhere(Redirect),
}

impl Why {
    /// Returns the failure of a request to a server that was never heard.
    pub(crate) fn failed(self, late_after: Instant, error: StoreError) -> FailedRequest {
        let executed = match self {
            Why::No | Why::Down => Executed::No,
            Why::Unknown | Why::Bystander => Executed::Unknown,
            Why::Elsewhere(redirect) => Executed::Elsewhere(redirect),
        };
        let mut failed = FailedRequest::new(Failure { executed, error }, late_after);
        (failed.bystander, failed.down) = (self == Why::Bystander, self == Why::Down);
        failed
    }

    /// Returns the kind of a failure.
    pub(crate) fn kind_of(failed: &FailedRequest) -> Self {
        match (failed.executed, failed.bystander, failed.down) {
            (Executed::No, false, false) => Why::No,
            (Executed::No, false, true) => Why::Down,
            (Executed::Unknown, false, false) => Why::Unknown,
            (Executed::Unknown, true, false) => Why::Bystander,
            (Executed::Elsewhere(redirect), false, false) => Why::Elsewhere(redirect),
            _ => panic!("no such failure: {failed:?}"),
        }
    }
}
