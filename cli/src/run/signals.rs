//! Signals of `run` and of its watcher.
//!
//! A signal that was ignored when `run` began, as under `nohup`, stays ignored, for the command too. A handler would end that.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};

use rustix::process::Signal;
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that go to the command, or end `run` before the grant.
const PASSED: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedSignal {
    pub(crate) signal: Signal,
    /// The kernel has sent it to the command, too: a terminal signals a whole process group.
    pub(crate) is_of_group: bool,
}

/// The signals for the command, as they come.
#[derive(Debug)]
pub(crate) struct Signals {
    origins: SignalsInfo<WithOrigin>,
    /// They wake the task up.
    streams: Vec<Stream>,
    received: VecDeque<ReceivedSignal>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Signals> {
        let handled = handled();
        // Its handlers must run before those that wake the task up.
        let origins = SignalsInfo::new(handled.iter().map(|signal| signal.as_raw()))?;
        let streams = handled.iter().map(|of| signal(SignalKind::from_raw(of.as_raw())));
        Ok(Signals {
            origins,
            streams: streams.collect::<io::Result<_>>()?,
            received: VecDeque::new(),
        })
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> ReceivedSignal {
        poll_fn(|cx| {
            loop {
                if let Some(received) = self.received.pop_front() {
                    return Poll::Ready(received);
                }
                let mut streams = self.streams.iter_mut();
                let is_woken = streams.any(|stream| stream.poll_recv(cx).is_ready());
                ready!(if is_woken { Poll::Ready(()) } else { Poll::Pending });
                self.received.extend(self.origins.pending().filter_map(received));
            }
        })
        .await
    }
}

fn received(origin: Origin) -> Option<ReceivedSignal> {
    Some(ReceivedSignal {
        signal: Signal::from_named_raw(origin.signal)?,
        is_of_group: matches!(origin.cause, Cause::Kernel),
    })
}

/// Takes signals without an effect. An ignored one would be ignored in the command, too.
pub(crate) fn outlive() -> io::Result<()> {
    for signal in handled() {
        signal_hook::flag::register(signal.as_raw(), Arc::default())?;
    }
    Ok(())
}

/// Keeps the children that have ended until they are waited for. A parent may have left SIGCHLD ignored.
pub(crate) fn keep_zombies() -> io::Result<()> {
    signal_hook::flag::register(SIGCHLD, Arc::default()).map(drop)
}

/// Returns the signals for the command, without those that this process ignores.
fn handled() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_handled = |signal: &Signal| ignored.unwrap_or(0) >> (signal.as_raw() - 1) & 1 == 0;
    PASSED.into_iter().filter(is_handled).collect()
}
