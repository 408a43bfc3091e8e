//! The watcher: the parent of the command, in a process of its own. It ends the command before the lease ends, also if `run` hangs,
//! is stopped, or is killed.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, setpgid};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use signal_hook::consts::SIGCHLD;

use crate::run::children::{Children, LOOK_AGAIN, adopt_orphans};
use crate::run::messages::{BootTime, Order, Report, line};
use crate::run::signals;

/// How long what the command left behind has to end by itself. The reader of its log may have some lines to write.
const LEFTOVERS_WAIT: Duration = Duration::from_secs(1);
/// How long it then has to end after TERM.
const LEFTOVERS_TERM: Duration = Duration::from_secs(5);

/// What to start, and how.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    pub(crate) key: OsString,
    pub(crate) words: Vec<OsString>,
    /// The process group of `run`, which may be in the foreground of a terminal.
    pub(crate) group: i32,
    pub(crate) lease: Duration,
}

/// What is done to the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Force {
    None,
    Term,
    Kill,
}

struct Watcher {
    spec: CommandSpec,
    orders: BufReader<UnixStream>,
    /// An order that has not come as a whole.
    order: String,
    children: Children,
    command: Option<Pid>,
    /// The status of the command, when it has ended, and when that was.
    ended: Option<(ExitStatus, BootTime)>,
    deadline: BootTime,
    /// When the command must have ended on the demand of an operator, or because the lease is lost.
    end_by: Option<BootTime>,
    /// Whether `run` is gone.
    is_alone: bool,
    /// Whether the command was told to end because of its lease.
    was_ended: bool,
}

/// Watches the command until nothing of it remains.
pub(crate) fn watch(spec: CommandSpec, orders: UnixStream) -> io::Result<()> {
    setpgid(None, None)?;
    adopt_orphans()?;
    signals::outlive()?;
    orders.set_nonblocking(true)?;
    let (wakes, wake) = UnixStream::pair()?;
    wakes.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wake)?;
    let timer = timerfd_create(
        TimerfdClockId::Boottime,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let mut watcher = Watcher {
        spec,
        orders: BufReader::new(orders),
        order: String::new(),
        children: Children::default(),
        command: None,
        ended: None,
        deadline: BootTime(u64::MAX),
        end_by: None,
        is_alone: false,
        was_ended: false,
    };
    watcher.run(wakes, &timer)
}

impl Watcher {
    fn run(&mut self, mut wakes: UnixStream, timer: &OwnedFd) -> io::Result<()> {
        loop {
            let is_over = self.reap();
            if is_over && (self.ended.is_some() || self.is_alone) {
                self.tell_end();
                return Ok(());
            }
            let next = self.enforce(BootTime::now());
            set(timer, next)?;
            let ready = PollFlags::IN;
            let mut sources = [&wakes, self.orders.get_ref()]
                .map(|stream| PollFd::new(stream, ready))
                .to_vec();
            // The end of the stream would wake the watcher again and again.
            sources.truncate(2 - usize::from(self.is_alone));
            sources.push(PollFd::new(timer, ready));
            match poll(&mut sources, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while matches!(wakes.read(&mut [0; 64]), Ok(1..)) {}
            self.read_orders();
        }
    }

    /// Obeys all orders that have come. A watcher that was stopped judges by the latest deadline, unless it was stopped for so long
    /// that the socket was full.
    fn read_orders(&mut self) {
        while !self.is_alone {
            match self.orders.read_line(&mut self.order) {
                Ok(1..) => match serde_json::from_str(&self.order) {
                    Ok(order) => self.obey(order),
                    Err(_) => self.is_alone = true,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => self.is_alone = true,
            }
            self.order.clear();
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Deadline(deadline) => {
                let now = BootTime::now();
                let (before, _) = self.force_of_lease(now);
                self.deadline = deadline;
                let (after, _) = self.force_of_lease(now);
                if before > after && self.ended.is_none() {
                    // The lease was renewed at last. If it comes near its end again, the command is told again.
                    self.children.forget_terminated();
                }
            }
            Order::Start(fence) => self.start(fence),
            Order::Pass(signal) => {
                let command = self.command.filter(|_| self.ended.is_none());
                if let (Some(command), Some(signal)) = (command, Signal::from_named_raw(signal)) {
                    let _ = kill_process(command, signal);
                    if matches!(signal, Signal::TERM | Signal::HUP) {
                        // A process that is stopped takes no other signal.
                        let _ = kill_process(command, Signal::CONT);
                    }
                }
            }
            Order::EndBy(end) => self.end_by = Some(self.end_by.map_or(end, |before| before.min(end))),
        }
    }

    fn start(&mut self, fence: u64) {
        let (program, args) = (&self.spec.words[0], &self.spec.words[1..]);
        let spawn = |mut command: Command| {
            command.args(args).env("TENURE_KEY", &self.spec.key);
            command.env("TENURE_FENCE", fence.to_string());
            command.process_group(self.spec.group).spawn()
        };
        let spawned = spawn(Command::new(program)).or_else(|error| {
            // A script by its path, without a first line that names its shell.
            let is_script = Errno::from_io_error(&error) == Some(Errno::NOEXEC);
            if !is_script || !program.as_encoded_bytes().contains(&b'/') {
                return Err(error);
            }
            let mut shell = Command::new("/bin/sh");
            shell.arg(program);
            spawn(shell)
        });
        match spawned {
            Ok(child) => {
                self.command = Pid::from_raw(child.id() as i32);
                self.tell(Report::Started(child.id() as i32));
            }
            Err(error) => {
                self.is_alone = true;
                self.tell(Report::NotStarted(error.raw_os_error().unwrap_or_default()));
            }
        }
    }

    fn tell(&mut self, report: Report) {
        // If `run` is gone, the stream ends, which is noticed.
        let _ = self.orders.get_mut().write_all(&line(&report));
    }

    fn tell_end(&mut self) {
        if let Some((status, _)) = self.ended {
            let was_ended = self.was_ended;
            let status = status.into_raw();
            self.tell(Report::Ended { status, was_ended });
        }
    }

    fn reap(&mut self) -> bool {
        let (command, mut status) = (self.command, None);
        let is_over = self.children.reap(|pid, ended| {
            if Some(pid) == command {
                status = Some(ended);
            }
        });
        if let Some(status) = status {
            self.ended = Some((status, BootTime::now()));
        }
        is_over
    }

    /// Tells the children to end if it is time, and returns when to look again.
    fn enforce(&mut self, now: BootTime) -> BootTime {
        let (of_lease, term_at) = self.force_of_lease(now);
        let leftovers_term = self.ended.map(|(_, at)| at.after(LEFTOVERS_WAIT));
        let of_leftovers = match leftovers_term {
            Some(term) if now >= term.after(LEFTOVERS_TERM) => Force::Kill,
            Some(term) if now >= term => Force::Term,
            _ => Force::None,
        };
        let next = leftovers_term.map_or(term_at, |term| term.min(term_at));
        if of_lease > Force::None && self.command.is_some() && self.ended.is_none() {
            self.was_ended = true;
        }
        match of_lease.max(of_leftovers) {
            Force::None => return next,
            Force::Term => self.children.terminate(),
            Force::Kill => self.children.kill(),
        }
        now.after(LOOK_AGAIN)
    }

    /// Returns what the state of the lease demands, and when it demands TERM unless it is renewed.
    fn force_of_lease(&self, now: BootTime) -> (Force, BootTime) {
        let term_at = self.deadline.before(self.spec.lease / 4);
        let kill_at = self.deadline.before(self.spec.lease / 10);
        let is_late = now >= kill_at || self.end_by.is_some_and(|end| now >= end);
        let force = match () {
            () if self.is_alone || is_late => Force::Kill,
            () if now >= term_at || self.end_by.is_some() => Force::Term,
            () => Force::None,
        };
        (force, term_at)
    }
}

fn set(timer: &OwnedFd, at: BootTime) -> io::Result<()> {
    let at = Timespec {
        tv_sec: (at.0 / 1_000_000_000) as i64,
        tv_nsec: (at.0 % 1_000_000_000) as i64,
    };
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let once = Itimerspec {
        it_interval: zero,
        it_value: at,
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}
