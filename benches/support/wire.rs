//! A wire with a delay between a bench and its server. It passes bytes on in order, a fixed time after their arrival. It limits
//! no bandwidth: any number of bytes may be in flight. Both of its sockets have TCP_NODELAY.
//!
//! The wire is a process in its own session, as the server is. Its only thread sleeps in `ppoll` with a timer slack of 1 ns,
//! and spins for the last microseconds. At its start PINGs through the wire measure the remaining cost of waking up. That cost
//! is subtracted from the delay.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How late a timer may wake the thread. The thread spins for this time before data is due.
const SPIN: Duration = Duration::from_micros(15);
/// The pause before a retry on a socket whose buffer is full.
const FULL: Duration = Duration::from_micros(20);
/// How often PINGs correct the delay of the wire.
const CALIBRATIONS: usize = 2;
/// The number of PINGs for one measurement.
const PINGS: usize = 200;

/// A running wire. Dropping it kills the process.
pub struct Wire {
    process: Child,
    port: u16,
    delay: Duration,
}

impl Wire {
    /// Starts a wire from a free port to `port` on loopback. A PING through it takes twice the delay longer than without it.
    pub fn start(port: u16, delay: Duration) -> Wire {
        let mut set = delay.as_secs_f64();
        for _ in 0..CALIBRATIONS {
            let wire = Wire::with_delay(port, Duration::from_secs_f64(set));
            let late = (trip(wire.port) - trip(port)) / 2.0 - delay.as_secs_f64();
            // On a busy machine the correction must not remove the delay.
            set = (set - late).clamp(delay.as_secs_f64() / 2.0, delay.as_secs_f64());
        }
        let mut wire = Wire::with_delay(port, Duration::from_secs_f64(set));
        wire.delay = delay;
        wire
    }

    fn with_delay(port: u16, delay: Duration) -> Wire {
        // The kernel kills it when its parent thread ends, because Ctrl-C does not reach another session.
        let mut process = Command::new("setsid")
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["wire", &port.to_string(), &delay.as_nanos().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let mut line = String::new();
        let out = process.stdout.take().expect("its output");
        let read = BufReader::new(out).read_line(&mut line);
        read.expect("the wire prints its port");
        let port = line.trim().parse().expect("a port");
        Wire { process, port, delay }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Returns the delay each way.
    pub fn delay(&self) -> Duration {
        self.delay
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the median round trip of a PING to a server on this port, in seconds.
fn trip(port: u16) -> f64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
    stream.set_nodelay(true).expect("a socket");
    let mut pong = [0; 7];
    super::median((0..PINGS).map(|_| {
        let start = Instant::now();
        stream.write_all(b"PING\r\n").expect("the server listens");
        stream.read_exact(&mut pong).expect("the server answers");
        start.elapsed().as_secs_f64()
    }))
}

/// Runs the wire, and never returns, if the command line asks for it.
pub fn serve_if_asked() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, port, nanos] = words.as_slice()
        && word == "wire"
    {
        let nanos = nanos.parse().expect("nanoseconds");
        serve(port.parse().expect("a port"), Duration::from_nanos(nanos));
    }
}

fn serve(port: u16, delay: Duration) -> ! {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).expect("a Linux");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    println!("{}", listener.local_addr().expect("a port").port());
    let mut pairs: Vec<Pair> = Vec::new();
    let mut bytes = vec![0; 256 * 1024];
    loop {
        let (came, clients, servers) = wait(&listener, &pairs);
        if came && let Ok((client, _)) = listener.accept() {
            pairs.push(Pair::connect(client, port));
        }
        let now = Instant::now();
        for (pair, is_ready) in pairs.iter_mut().zip(clients) {
            pair.ended |= is_ready && pair.up.take(&mut pair.client, &mut bytes, now + delay).is_err();
        }
        for (pair, is_ready) in pairs.iter_mut().zip(servers) {
            pair.ended |= is_ready && pair.down.take(&mut pair.server, &mut bytes, now + delay).is_err();
        }
        for pair in &mut pairs {
            let passed = pair
                .up
                .pass(&mut pair.server)
                .and(pair.down.pass(&mut pair.client));
            pair.ended |= passed.is_err();
        }
        pairs.retain(|pair| !pair.ended);
    }
}

/// Sleeps until a socket is readable or data is due. Returns which sockets are readable: the listener, clients, servers.
fn wait(listener: &TcpListener, pairs: &[Pair]) -> (bool, Vec<bool>, Vec<bool>) {
    let due = pairs.iter().flat_map(|pair| [pair.up.due(), pair.down.due()]);
    let sleep = due.flatten().min().map(|due| {
        let left = due.saturating_duration_since(Instant::now());
        left.saturating_sub(SPIN)
    });
    let sleep = sleep.map(|sleep| Timespec {
        tv_sec: sleep.as_secs() as i64,
        tv_nsec: i64::from(sleep.subsec_nanos()),
    });
    let sockets = [PollFd::new(listener, PollFlags::IN)].into_iter();
    let clients = pairs.iter().map(|pair| PollFd::new(&pair.client, PollFlags::IN));
    let servers = pairs.iter().map(|pair| PollFd::new(&pair.server, PollFlags::IN));
    let mut sockets: Vec<PollFd<'_>> = sockets.chain(clients).chain(servers).collect();
    // After an interrupted poll no socket is ready.
    let _ = poll(&mut sockets, sleep.as_ref());
    let mut ready = sockets.iter().map(|socket| !socket.revents().is_empty());
    let came = ready.next() == Some(true);
    let clients = ready.by_ref().take(pairs.len()).collect();
    (came, clients, ready.collect())
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    up: Way,
    down: Way,
    ended: bool,
}

impl Pair {
    fn connect(client: TcpStream, port: u16) -> Pair {
        let server = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
        for socket in [&client, &server] {
            socket.set_nodelay(true).expect("a socket");
            socket.set_nonblocking(true).expect("a socket");
        }
        Pair {
            client,
            server,
            up: Way::default(),
            down: Way::default(),
            ended: false,
        }
    }
}

/// The bytes in flight in one direction, and when they are due.
#[derive(Default)]
struct Way {
    pieces: VecDeque<(Instant, Vec<u8>)>,
}

impl Way {
    fn due(&self) -> Option<Instant> {
        self.pieces.front().map(|(due, _)| *due)
    }

    fn take(&mut self, from: &mut TcpStream, bytes: &mut [u8], due: Instant) -> io::Result<()> {
        match from.read(bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.pieces.push_back((due, bytes[..read].to_vec()));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes all pieces that are due.
    fn pass(&mut self, to: &mut TcpStream) -> io::Result<()> {
        let now = Instant::now();
        while let Some((due, piece)) = self.pieces.front_mut()
            && *due <= now
        {
            match to.write(piece) {
                Ok(written) if written == piece.len() => drop(self.pieces.pop_front()),
                Ok(written) => drop(piece.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *due = now + FULL;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
