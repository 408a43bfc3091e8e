//! `tenure run`: a command that runs while a key is held, and ends before its lease does.
//!
//! Three processes: `run` holds the key; the watcher, its child, is the parent of the command and ends it. Neither trusts the
//! other to live: the watcher has the deadline of the lease, and `run` inherits the command from a watcher that dies.

mod children;
mod hold;
mod messages;
mod signals;
mod watcher;

use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use fork::{Fork, fork};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid};

use crate::NOT_RUN;
use crate::args::{OutputArgs, StoreArgs};
use crate::run_args::RunArgs;
use crate::terminal::warn;
use children::Children;
use hold::RunEnd;
use watcher::CommandSpec;

/// The command was ended because its lease was lost or asked for.
const LOST: u8 = 123;
/// The key was not had in time.
const NOT_HAD: u8 = 124;
/// The command cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
const NOT_FOUND: u8 = 127;
/// What the number of a signal is added to.
const SIGNALLED: u8 = 128;

/// Runs the command. Called before the process has a second thread, because it forks.
pub(crate) fn run(wanted: &RunArgs, store: &StoreArgs, output: &OutputArgs) -> ExitCode {
    let watcher = match start_watcher(wanted) {
        Ok(watcher) => watcher,
        Err(error) => {
            warn(&format!("the command cannot be watched, and is not run: {error}"));
            return ExitCode::from(NOT_RUN);
        }
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let ended = match runtime.enable_all().build() {
        Ok(runtime) => {
            let ended = runtime.block_on(hold::run(wanted, store, output, &watcher));
            // A name server that does not answer blocks a thread of it.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(error.into()),
    };
    // Nothing of the command remains, if it was begun. A watcher that waits for its start is not needed any more.
    watcher.kill();
    let _ = waitpid(Some(watcher.pid), WaitOptions::empty());
    match ended {
        Ok(RunEnd::By(signal)) => {
            // A loop of the shell ends if its command was ended by INT. No signal ends the first process of a container.
            if signal == Signal::INT && getpid() != Pid::INIT {
                let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
            }
            ExitCode::from(SIGNALLED + signal.as_raw() as u8)
        }
        Ok(RunEnd::With(code)) => ExitCode::from(code),
        Err(failure) => {
            failure.report();
            ExitCode::from(NOT_RUN)
        }
    }
}

/// The watcher, for `run`.
struct WatcherProcess {
    pid: Pid,
    /// Refers to this process also when its pid is used again.
    pidfd: OwnedFd,
    stream: UnixStream,
    /// The children of `run` without those that it had before.
    children: Children,
}

impl WatcherProcess {
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Forks the watcher, which waits for the order to start the command.
fn start_watcher(wanted: &RunArgs) -> io::Result<WatcherProcess> {
    // Without the list the children cannot be found. The kernel must have been built with it.
    let children = Children::from_now_on()?;
    let group = children::group()?;
    if group == 0 {
        return Err(io::Error::other(
            "its process group is that of another PID namespace: run it by setsid",
        ));
    }
    signals::keep_zombies()?;
    children::adopt_orphans()?;
    let spec = CommandSpec {
        key: wanted.key.clone(),
        words: wanted.words.clone(),
        group,
        lease: wanted.lease,
    };
    let (stream, orders) = UnixStream::pair()?;
    match fork()? {
        Fork::Parent(pid) => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            Ok(WatcherProcess {
                pid,
                pidfd: pidfd_open(pid, PidfdFlags::empty())?,
                stream,
                children,
            })
        }
        Fork::Child => {
            drop(stream);
            let watched = watcher::watch(spec, orders);
            if let Err(error) = &watched {
                warn(&format!("the watcher of the command failed: {error}"));
            }
            std::process::exit(i32::from(watched.is_err()));
        }
    }
}
