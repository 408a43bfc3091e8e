//! What `run` and its watcher tell each other: lines of JSON on a socket.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time of `CLOCK_BOOTTIME`, in ns. Both processes read this clock, and it goes on while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BootTime(pub(crate) u64);

impl BootTime {
    #[allow(
        clippy::disallowed_methods,
        reason = "the watcher judges no lease: it keeps the deadline that it is told"
    )]
    pub(crate) fn now() -> BootTime {
        let now = clock_gettime(ClockId::Boottime);
        BootTime(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    pub(crate) fn after(self, span: Duration) -> BootTime {
        BootTime(
            self.0
                .saturating_add(span.as_nanos().try_into().unwrap_or(u64::MAX)),
        )
    }

    pub(crate) fn before(self, span: Duration) -> BootTime {
        BootTime(
            self.0
                .saturating_sub(span.as_nanos().try_into().unwrap_or(u64::MAX)),
        )
    }
}

/// What `run` tells its watcher.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The lease ends then, unless it is renewed.
    Deadline(BootTime),
    /// Start the command with this fence.
    Start(u64),
    /// Pass the signal with this number on to the command.
    Pass(i32),
    /// End the command, which has until then.
    EndBy(BootTime),
}

/// What the watcher tells `run`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command has this pid.
    Started(i32),
    /// The command could not be started, with this `errno`.
    NotStarted(i32),
    /// The command and all that it left behind have ended. `status` is that of `wait`. `was_ended`: because of the lease.
    Ended { status: i32, was_ended: bool },
}

/// Returns the line of a message.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
