//! A real redis-server for one test, bench or example: on a free loopback port, gone when dropped.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to answer its first PING.
const START: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: ReservedPort,
    dir: PathBuf,
    args: Vec<String>,
    /// The words before `redis-server`.
    wrapper: &'static [&'static str],
}

/// A port of 127.0.0.1 that no other test, bench or example listens on while this lives, whether its server does or not.
///
/// A port that is only free at the moment is taken by two servers that start at once. One of them ends, but the other answers
/// the first PING of both, and two tests share it.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    /// Bound to the same number, where no server listens.
    _reservation: UdpSocket,
}

#[allow(
    dead_code,
    reason = "included by several binaries, none of which uses all of it"
)]
impl ReservedPort {
    /// Below 20000: the kernel gives no such port to a listener or a client that wants any, and the bus of a cluster's node
    /// has room 10,000 above.
    pub fn new() -> Self {
        let free = |number: u64| {
            let number = u16::try_from(number).ok()?;
            let reservation = UdpSocket::bind(("127.0.0.1", number)).ok()?;
            let is_free = |number| TcpListener::bind(("127.0.0.1", number)).is_ok();
            (is_free(number) && is_free(number + 10_000)).then_some(ReservedPort {
                number,
                _reservation: reservation,
            })
        };
        let random = || RandomState::new().hash_one(());
        let mut tries = (0..1_000).map(|_| 10_000 + random() % 10_000);
        tries.find_map(free).expect("a free port below 20000")
    }

    /// Its number.
    pub fn get(&self) -> u16 {
        self.number
    }

    /// The URL of a server there.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.number)
    }
}

#[allow(
    dead_code,
    reason = "included by several binaries, none of which uses all of it"
)]
impl RedisServer {
    /// An empty one without persistence.
    pub fn start() -> Self {
        Self::with_args(&[])
    }

    /// In a session of its own, as a service runs: Linux shares the CPUs between sessions first (autogroups), and a
    /// server in the session of a bench gets less the more threads the bench has. It dies with the thread that
    /// started it, as Ctrl-C does not reach it.
    pub fn as_service() -> Self {
        Self::wrapped(&["setsid", "setpriv", "--pdeathsig", "KILL"], &[])
    }

    /// The same with more arguments, as on the command line: `&["--maxmemory", "1mb"]`.
    pub fn with_args(args: &[&str]) -> Self {
        Self::wrapped(&[], args)
    }

    /// With a library that is loaded before all others.
    pub fn preloading(library: &std::path::Path) -> Self {
        // A few bytes per test, for ever.
        let variable: &'static str = format!("LD_PRELOAD={}", library.display()).leak();
        Self::wrapped(vec!["env", variable].leak(), &[])
    }

    /// A Sentinel that watches the server on that port under this name.
    pub fn sentinel(name: &str, port: u16) -> Self {
        Self::sentinel_with(&[&format!("sentinel monitor {name} 127.0.0.1 {port} 1")])
    }

    /// A Sentinel with these lines in its file.
    pub fn sentinel_with(lines: &[&str]) -> Self {
        // It wants a file that it can write, before all options. The tenth word is the server's folder.
        let lines: String = lines.iter().map(|line| format!(" '{line}'")).collect();
        let script = format!(
            "conf=\"${{10}}/conf\"; printf '%s\\n'{lines} > \"$conf\"; exec \"$0\" \"$conf\" \"$@\" --sentinel"
        );
        // A few bytes per test, for ever.
        Self::wrapped(vec!["sh", "-c", script.leak()].leak(), &[])
    }

    fn wrapped(wrapper: &'static [&'static str], args: &[&str]) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let n = STARTED.fetch_add(1, Ordering::Relaxed);
        let words = || args.iter().chain(wrapper);
        // They sync their state to the disk, and stand still while a busy disk takes seconds for that: no replica is promoted.
        let syncs = words().any(|word| word.contains("--sentinel") || *word == "--cluster-enabled");
        let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| syncs && memory.is_dir());
        let dir = memory.unwrap_or_else(std::env::temp_dir);
        let dir = dir.join(format!("tenure-live-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the server");
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Another program may take the port before the server does; then it exits, and the next one is tried.
        for _ in 0..20 {
            let port = ReservedPort::new();
            let mut child = spawn(port.number, &dir, &args, wrapper);
            if answers(&mut child, port.number) {
                return RedisServer {
                    child,
                    port,
                    dir,
                    args,
                    wrapper,
                };
            }
        }
        panic!(
            "redis-server with {args:?} does not start; its words are in {}",
            dir.join("log").display()
        );
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.port.url()
    }

    /// A blocking connection, to do what other clients do.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a good URL");
        client.get_connection().expect("the server is there")
    }

    /// Stops the process without telling anybody; connections stay.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped process go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Kills it; what it had not written is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, killing it first if it runs.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port.number, &self.dir, &self.args, self.wrapper);
        assert!(
            answers(&mut self.child, self.port.number),
            "the server does not start again on port {}",
            self.port.number
        );
    }

    /// The same with other arguments than before.
    pub fn restart_with(&mut self, args: &[&str]) {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.restart();
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill is there").success(), "kill {signal}");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn spawn(port: u16, dir: &std::path::Path, args: &[String], wrapper: &[&str]) -> Child {
    let log = std::fs::File::create(dir.join("log")).expect("a log file");
    let words: Vec<&str> = wrapper.iter().copied().chain(["redis-server"]).collect();
    Command::new(words[0])
        .args(&words[1..])
        .args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args(["--dir", &dir.display().to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run redis-server ({error}): apt-get install redis-server"))
}

/// Waits for the first answer to PING, whatever it is. False when the process ended.
fn answers(child: &mut Child, port: u16) -> bool {
    let start = Instant::now();
    while start.elapsed() < START {
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let mut first = [0; 1];
            let _ = stream.set_read_timeout(Some(START));
            if stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut first).is_ok() {
                // Another server on the port would have made ours exit.
                return matches!(child.try_wait(), Ok(None));
            }
        }
        sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}
