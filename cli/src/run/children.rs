//! The children of this process: its own, and those that it inherits as a subreaper.
//!
//! Only children are signalled. A pid of a child is not used again before its parent has waited for it, so no signal reaches a
//! stranger. Each process that ends leaves its children to the subreaper above it, so a loop finds all descendants.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

/// How long to wait before looking for further children to end. A process that ends may leave some.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The children that may be signalled, and which of them have got TERM.
#[derive(Debug, Clone, Default)]
pub(crate) struct Children {
    terminated: HashSet<Pid>,
    /// Those that the process had before it began, as after `exec` of a shell. What they leave is not told apart.
    foreign: HashSet<Pid>,
}

/// Makes this process the parent of its orphaned descendants.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns the process group, by the numbers of this process's namespace. 0 is a group that has none there.
///
/// # Errors
/// Returns an error if `/proc` lists the processes of another namespace: their numbers mean nothing here.
pub(crate) fn group() -> io::Result<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let pid = stat.split(' ').next().and_then(|pid| pid.parse().ok());
    if pid.and_then(Pid::from_raw) != Some(getpid()) {
        return Err(io::Error::other(
            "/proc is that of another PID namespace: mount it anew",
        ));
    }
    // The second field is the name, which may have any characters.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let group = fields.and_then(|fields| fields.split(' ').nth(2)?.parse().ok());
    group.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Lists the children of all threads. Children may be missing that end meanwhile, or that begin.
pub(crate) fn list() -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("children"))?;
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.extend(pids.filter_map(Pid::from_raw));
    }
    Ok(children)
}

impl Children {
    /// Returns the children that this process gets from now on.
    pub(crate) fn from_now_on() -> io::Result<Children> {
        Ok(Children {
            terminated: HashSet::new(),
            foreign: list()?.into_iter().collect(),
        })
    }

    fn own(&self) -> impl Iterator<Item = Pid> {
        let listed = list().unwrap_or_default().into_iter();
        listed.filter(|child| !self.foreign.contains(child))
    }

    /// Sends TERM to each child that has not got it before.
    pub(crate) fn terminate(&mut self) {
        for child in self.own().collect::<Vec<_>>() {
            if self.terminated.insert(child) {
                let _ = kill_process(child, Signal::TERM);
                // A process that is stopped takes no other signal.
                let _ = kill_process(child, Signal::CONT);
            }
        }
    }

    /// Sends KILL to each child.
    pub(crate) fn kill(&self) {
        for child in self.own() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Forgets which children have got TERM.
    pub(crate) fn forget_terminated(&mut self) {
        self.terminated.clear();
    }

    /// Waits for the children that have ended. Returns whether there is no child any more.
    pub(crate) fn reap(&mut self, mut ended: impl FnMut(Pid, ExitStatus)) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.terminated.remove(&pid);
                    ended(pid, ExitStatus::from_raw(status.as_raw()));
                }
                Ok(None) => return !self.foreign.is_empty() && self.own().next().is_none(),
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}
