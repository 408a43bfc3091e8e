//! What `run` does: it takes the key, has the command started, and tells the watcher how long the lease lasts.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tenure::inspect::StealNotice;
use tenure::{Error, Guard, Locks};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::NOT_RUN;
use crate::args::{OutputArgs, StoreArgs};
use crate::failure::Failure;
use crate::run::children::LOOK_AGAIN;
use crate::run::messages::{BootTime, Order, Report, line};
use crate::run::signals::{ReceivedSignal, Signals};
use crate::run::{LOST, NOT_EXECUTABLE, NOT_FOUND, NOT_HAD, SIGNALLED, WatcherProcess};
use crate::run_args::RunArgs;
use crate::store;
use crate::terminal::warn;
use crate::text::{duration, shown};

/// How long `run` waits to take its name from the store, at its end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// How the command ended.
enum CommandEnd {
    /// It was not started.
    NotStarted(Errno),
    /// With this status, after all that it left behind. `was_ended`: because of the lease.
    Ended { status: ExitStatus, was_ended: bool },
    /// The watcher died before it had started the command.
    Unwatched,
}

/// The watcher, as `run` sees it.
struct WatcherLink<'a> {
    process: &'a WatcherProcess,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
}

/// How `run` ends.
pub(crate) enum RunEnd {
    /// As this signal would end it.
    By(Signal),
    With(u8),
}

/// Takes the key, and runs the command. Nothing of it remains afterwards.
pub(crate) async fn run(
    wanted: &RunArgs,
    store: &StoreArgs,
    output: &OutputArgs,
    process: &WatcherProcess,
) -> Result<RunEnd, Failure> {
    let mut signals = Signals::listen()?;
    let watcher = WatcherLink::new(process)?;
    let connect = async {
        let key = output.bytes(&wanted.key)?;
        let builder = store::builder(store)?.node_name(wanted.node_name());
        let locks = builder.connect(store::url(store)).await?;
        Ok::<_, Failure>((key, locks))
    };
    let (key, locks) = tokio::select! {
        biased;
        came = signals.next() => return Ok(RunEnd::By(came.signal)),
        connected = connect => connected?,
    };
    let ended = hold(&locks, wanted, key, watcher, &mut signals).await;
    // A store that does not answer keeps nothing for longer than a lease.
    let _ = timeout(SHUTDOWN, locks.shutdown()).await;
    ended
}

async fn hold(
    locks: &Locks,
    wanted: &RunArgs,
    key: Vec<u8>,
    watcher: WatcherLink<'_>,
    signals: &mut Signals,
) -> Result<RunEnd, Failure> {
    let guard = tokio::select! {
        biased;
        came = signals.next() => return Ok(RunEnd::By(came.signal)),
        guard = acquire(locks, wanted, key) => guard?,
    };
    let Some(guard) = guard else {
        return Ok(RunEnd::With(NOT_HAD));
    };
    guard.note(wanted.line());
    let mut kept = pin!(sleep(wanted.at_least));
    let mut follower = Follower::new(&guard, wanted.lease);
    let end = follower.follow(watcher, signals).await;
    let mut interruption = None;
    if matches!(end, CommandEnd::Ended { was_ended: false, .. }) && !follower.was_interrupted {
        tokio::select! {
            () = &mut kept => {}
            signal = interrupted(signals) => interruption = Some(signal),
            _ = guard.lost() => {}
            _ = guard.asked() => {}
        }
    }
    let mut remarks = follower.remarks;
    match guard.release().await {
        // The command has ended before its lease: the loss came after that.
        Ok(()) | Err(Error::Lost { .. }) => {}
        Err(error) => remarks.push(error.to_string()),
    }
    // Not before: a log that blocks must not keep the key.
    for remark in &remarks {
        warn(&shown(remark));
    }
    Ok(match interruption {
        Some(Signal::INT) => RunEnd::By(Signal::INT),
        _ => end.into_run_end(wanted),
    })
}

/// Waits for a signal that ends the time for which the key is kept. The others are for the command, which has ended.
async fn interrupted(signals: &mut Signals) -> Signal {
    loop {
        let ReceivedSignal { signal, .. } = signals.next().await;
        if interrupts(signal) {
            return signal;
        }
    }
}

fn interrupts(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT | Signal::TERM)
}

/// Returns `None` if the key was not had in time.
async fn acquire(locks: &Locks, wanted: &RunArgs, key: Vec<u8>) -> Result<Option<Guard>, Failure> {
    let permits = wanted.permits;
    let semaphore = permits.map(|permits| locks.semaphore(key.clone(), permits).lease(wanted.lease));
    let lock = locks.rw_lock(key).lease(wanted.lease);
    if wanted.is_try {
        return Ok(match &semaphore {
            Some(semaphore) => semaphore.try_acquire().await?,
            None if wanted.is_read => lock.try_read().await?,
            None => lock.try_write().await?,
        });
    }
    let Some(wait) = wanted.wait else {
        let acquire = match &semaphore {
            Some(semaphore) => semaphore.acquire(),
            None if wanted.is_read => lock.read(),
            None => lock.write(),
        };
        return Ok(Some(acquire.await?));
    };
    let granted = match &semaphore {
        Some(semaphore) => semaphore.acquire_timeout(wait).await,
        None if wanted.is_read => lock.read_timeout(wait).await,
        None => lock.write_timeout(wait).await,
    };
    if let Err(Error::Busy { .. }) = granted {
        let key = shown(wanted.key.as_encoded_bytes());
        let wait = humantime::format_duration(wait);
        warn(&format!("`{key}` was not had within {wait}"));
        return Ok(None);
    }
    Ok(Some(granted?))
}

impl WatcherLink<'_> {
    fn new(process: &WatcherProcess) -> io::Result<WatcherLink<'_>> {
        let stream = process.stream.try_clone()?;
        stream.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(stream)?.into_split();
        Ok(WatcherLink {
            process,
            orders,
            reports: BufReader::new(reports).lines(),
        })
    }

    /// Sends an order. The socket takes many, and one that is lost with a watcher that is stopped or dead does not matter.
    fn send(&self, order: Order) {
        let _ = self.orders.try_write(&line(&order));
    }

    /// Returns the next report, or `None` if the watcher has ended. Cancel safe.
    async fn next(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}

/// What follows a command from its start to its end.
struct Follower<'a> {
    guard: &'a Guard,
    lease: Duration,
    command: Option<Pid>,
    was_interrupted: bool,
    /// What is written when the key was released.
    remarks: Vec<String>,
    is_lost: bool,
    /// Whether the watcher did not end the command in time.
    is_late: bool,
}

impl<'a> Follower<'a> {
    fn new(guard: &'a Guard, lease: Duration) -> Self {
        Follower {
            guard,
            lease,
            command: None,
            was_interrupted: false,
            remarks: Vec::new(),
            is_lost: false,
            is_late: false,
        }
    }

    /// Has the command started, and follows it until nothing of it remains.
    async fn follow(&mut self, mut watcher: WatcherLink<'_>, signals: &mut Signals) -> CommandEnd {
        let mut beats = interval(self.lease / 10);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut lost, mut asked) = (pin!(self.guard.lost()), pin!(self.guard.asked()));
        let mut was_asked = false;
        self.send_deadline(&watcher);
        watcher.send(Order::Start(self.guard.fence().get()));
        loop {
            tokio::select! {
                biased;
                report = watcher.next() => match report {
                    Some(Report::Started(pid)) => self.command = Pid::from_raw(pid),
                    Some(Report::NotStarted(errno)) => return CommandEnd::NotStarted(Errno::from_raw_os_error(errno)),
                    Some(Report::Ended { status, was_ended }) => {
                        return CommandEnd::Ended { status: ExitStatus::from_raw(status), was_ended };
                    }
                    None => return self.replace(watcher.process).await,
                },
                came = signals.next() => {
                    self.was_interrupted |= interrupts(came.signal);
                    if !came.is_of_group {
                        watcher.send(Order::Pass(came.signal.as_raw()));
                    }
                }
                _ = &mut lost, if !self.is_lost => {
                    self.is_lost = true;
                    watcher.send(Order::EndBy(BootTime(0)));
                }
                notice = &mut asked, if !was_asked => {
                    was_asked = true;
                    self.remarks.extend(notice.map(|notice| end_for(&notice, &watcher)));
                }
                _ = beats.tick() => self.send_deadline(&watcher),
                // A watcher that is stopped ends nothing. `run` inherits its children.
                () = sleep(self.patience()), if !self.is_late => {
                    self.is_late = true;
                    watcher.process.kill();
                }
            }
        }
    }

    /// Returns how long the watcher still has to end the command.
    fn patience(&self) -> Duration {
        let reserve = self.lease / 20;
        match self.is_lost {
            true => reserve,
            false => self.guard.remaining().saturating_sub(reserve),
        }
    }

    fn send_deadline(&self, watcher: &WatcherLink<'_>) {
        // Read first: the deadline is never too late.
        let now = BootTime::now();
        watcher.send(Order::Deadline(now.after(self.guard.remaining())));
    }

    /// Takes the place of a watcher that died: kills all that it left.
    async fn replace(&mut self, process: &WatcherProcess) -> CommandEnd {
        let mut found = None;
        let mut children = process.children.clone();
        let mut was_over = false;
        loop {
            children.kill();
            let is_over = children.reap(|pid, status| {
                if Some(pid) == self.command {
                    found = Some(status);
                }
            });
            // One list may be too short, while a process leaves its children to this one.
            if is_over && was_over {
                break;
            }
            was_over = is_over;
            sleep(LOOK_AGAIN).await;
        }
        self.remarks
            .push("the watcher died: the command was killed".to_owned());
        // The watcher may have taken the status with it.
        let killed = self.command.map(|_| ExitStatus::from_raw(Signal::KILL.as_raw()));
        let was_ended = self.is_late || self.is_lost;
        found
            .or(killed)
            .map_or(CommandEnd::Unwatched, |status| CommandEnd::Ended {
                status,
                was_ended,
            })
    }
}

/// Ends the command for an operator that asks for the key. Returns what to remark.
fn end_for(notice: &StealNotice, watcher: &WatcherLink<'_>) -> String {
    // A tenth is left for the release.
    watcher.send(Order::EndBy(BootTime::now().after(notice.grace.mul_f64(0.9))));
    let (by, why, within) = (&notice.by, &notice.why, duration(notice.grace));
    format!("{by} wants the key within {within}: {why}")
}

impl CommandEnd {
    fn into_run_end(self, wanted: &RunArgs) -> RunEnd {
        let program = shown(wanted.words[0].as_encoded_bytes());
        match self {
            CommandEnd::NotStarted(error) => {
                warn(&format!(
                    "`{program}` cannot be executed: {}",
                    io::Error::from(error)
                ));
                RunEnd::With(match error {
                    Errno::NOENT => NOT_FOUND,
                    Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => NOT_RUN,
                    _ => NOT_EXECUTABLE,
                })
            }
            CommandEnd::Unwatched => RunEnd::With(NOT_RUN),
            CommandEnd::Ended { was_ended: true, .. } => {
                warn(&format!("`{program}` was ended: its lease was lost or asked for"));
                RunEnd::With(LOST)
            }
            CommandEnd::Ended { status, .. } => match (status.code(), status.signal()) {
                (Some(code), _) => RunEnd::With(code as u8),
                (None, Some(number)) => match Signal::from_named_raw(number) {
                    Some(signal @ Signal::INT) => RunEnd::By(signal),
                    _ => RunEnd::With(SIGNALLED + number as u8),
                },
                (None, None) => RunEnd::With(NOT_RUN),
            },
        }
    }
}
