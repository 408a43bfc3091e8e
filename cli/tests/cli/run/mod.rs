//! `tenure run`: the command ends before the lease does, whatever ends first.
//!
//! Each test runs a family of processes, and a next holder that waits for the key. What the family wrote last is older than what
//! the next holder wrote first, and nothing of it remains.

mod codes;
mod crontabs;
mod ends;
mod habits;
mod terminal;

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::server::RedisServer;
use crate::tools::{command, run_on, with_signals};

/// Writes the time once.
const NEXT: &str = "import sys, time\n\
    open(sys.argv[1], 'w').write(str(time.clock_gettime_ns(time.CLOCK_MONOTONIC)))";
/// Tells the processes of a family from all others.
const MARK: &str = "TENURE_TEST_FAMILY";
/// Longer than any row takes. Only a failed test waits for it.
const PATIENCE: Duration = Duration::from_secs(40);

/// How often each row is run: `TENURE_RUN_ROUNDS`, or twice.
fn rounds() -> u32 {
    let rounds = std::env::var("TENURE_RUN_ROUNDS").ok();
    rounds.map_or(2, |rounds| rounds.parse().expect("TENURE_RUN_ROUNDS is a number"))
}

/// Polls until the condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let tries = PATIENCE.as_millis() / 5;
    for _ in 0..tries {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("timed out waiting until {what}");
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// A family of processes under a lease.
struct Family {
    server: RedisServer,
    dir: PathBuf,
    mark: String,
    run: Child,
    next: Option<Child>,
}

impl Family {
    /// Starts the family, which does as `how` says. A slow machine does not use up its lease.
    fn start(how: &str, code: i32) -> Family {
        let server = RedisServer::start();
        let url = server.url();
        Family::start_at(server, &url, how, code, "20s")
    }

    /// Starts a family that does not end by itself, under a lease that the test waits for.
    fn start_briefly() -> Family {
        let server = RedisServer::start();
        let url = server.url();
        Family::start_at(server, &url, "deaf", 0, "2s")
    }

    /// The same, with this URL of the server and this lease.
    fn start_at(server: RedisServer, url: &str, how: &str, code: i32, lease: &str) -> Family {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("tenure-run-{mark}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("family.py"), include_str!("family.py")).unwrap();
        let mut command = with_signals(&["run", "key", "--lease", lease, "--url", url, "--", "python3"]);
        command.args([dir.join("family.py"), dir.join("times")]);
        command.args([how, &code.to_string()]).env(MARK, &mark);
        let err = std::fs::File::create(dir.join("err")).unwrap();
        // In a group of its own, `run` is not in the foreground of the terminal of these tests.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let run = command.stdout(Stdio::null()).stderr(err).spawn().unwrap();
        let family = Family {
            server,
            dir,
            mark,
            run,
            next: None,
        };
        until("the family lives", || family.times().len() > 50);
        family
    }

    /// Starts the next holder, and waits until it waits.
    fn with_next(mut self) -> Family {
        let mut next = command(&["run", "key", "--url", &self.server.url(), "--"]);
        next.args(["python3", "-c", NEXT]).arg(self.dir.join("next"));
        self.next = Some(next.spawn().unwrap());
        until("the next holder waits", || {
            run_on(&self.server, &["show", "key"]).out.contains("waiting   1")
        });
        self
    }

    fn times(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.dir.join("times")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn err(&self) -> String {
        std::fs::read_to_string(self.dir.join("err")).unwrap()
    }

    /// Returns the only child of `run`.
    fn watcher(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.run.id());
        let children = std::fs::read_to_string(children).unwrap();
        children.trim().parse().expect("one child")
    }

    fn signal(&self, signal: Signal) {
        send(self.run.id(), signal);
    }

    /// Returns the processes of the family.
    fn members(&self) -> Vec<PathBuf> {
        marked(&self.mark)
    }

    /// Waits for the end of the family. The next holder must not have begun before it.
    fn end(mut self, is_ordered: bool) -> (ExitStatus, String) {
        let status = self.run.wait().unwrap();
        let next = self.next.as_mut().expect("there is a next holder");
        assert!(next.wait().unwrap().success());
        let first: u64 = std::fs::read_to_string(self.dir.join("next"))
            .unwrap()
            .parse()
            .unwrap();
        until("the family is gone", || self.members().is_empty());
        let last = *self.times().iter().max().unwrap();
        assert!(
            !is_ordered || last < first,
            "{last} is after {first}: {status:?} {}",
            self.err()
        );
        let listed = run_on(&self.server, &["ls", "--json"]);
        assert!(listed.out.is_empty(), "{listed:?}");
        let err = self.err();
        std::fs::remove_dir_all(&self.dir).unwrap();
        (status, err)
    }

    /// The same, and `run` has taken its presence back.
    fn end_without_presence(self, is_ordered: bool) -> (ExitStatus, String) {
        let url = self.server.url();
        // The server lives until the answer.
        let nodes = |url: &str| crate::tools::run(&["nodes", "--json", "--url", url]);
        let mut this = self;
        let status = this.run.wait().unwrap();
        assert!(this.next.as_mut().unwrap().wait().unwrap().success());
        let nodes = nodes(&url);
        assert!(nodes.out.is_empty(), "{status:?}: {nodes:?}");
        this.end(is_ordered)
    }
}

/// Returns the processes whose environment has the mark.
fn marked(mark: &str) -> Vec<PathBuf> {
    let mark = format!("{MARK}={mark}\0");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_marked = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        environment
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
    };
    processes
        .map(|process| process.path())
        .filter(is_marked)
        .collect()
}

/// Runs the rows, four at a time, in each round.
fn each_round(rows: &[(&str, fn())]) {
    for round in 0..rounds() {
        for rows in rows.chunks(4) {
            std::thread::scope(|scope| {
                for (name, row) in rows {
                    std::thread::Builder::new()
                        .name(format!("{name}, round {round}"))
                        .spawn_scoped(scope, row)
                        .unwrap();
                }
            });
        }
    }
}

/// Waits for a process that must end by itself, and returns its status.
fn ends(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("the command ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Returns `tenure run` on that server, in a group of its own.
fn run_with(server: &RedisServer, args: &[&str]) -> Command {
    let url = server.url();
    let mut command = with_signals(&[&["run", "--url", &url], args].concat());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
}
