//! A TCP proxy on loopback that breaks things on demand.
//!
//! The proxy has its own thread and runtime, so a blocked test runtime does not stop it. It can be controlled at any
//! time from any thread:
//!
//! ```text
//! let proxy = Proxy::start(server);                   // clients connect to proxy.addr(), other processes too
//! proxy.set(Replies, Flow::Delay(ms(50)));            // all connections, present and to come
//! proxy.set_existing(Both, Flow::Hold);               // what is open now; new connections pass
//! proxy.set_subscribed(Both, Flow::Hold);             // the same of subscriptions alone; commands pass
//! proxy.release();                                    // what was held arrives late, in order
//! proxy.discard();                                    // or never: thrown away, and its connections reset
//! proxy.set(Replies, Flow::Cut);                      // executed, answer lost
//! proxy.cut_reply_to(b"stock:7");                     // the same once, for the next request that says so
//! proxy.misname_scripts(2);                           // the server is asked for scripts that it does not know
//! proxy.reset(); proxy.refuse(true); proxy.heal();
//! proxy.until(|counts| counts.held[0] > 0).await;     // the fault really happened
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// The direction of the bytes: from the client, from the server, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Requests,
    Replies,
    Both,
}

use Direction::{Both, Replies, Requests};

const UP: usize = 0;
const DOWN: usize = 1;

impl Direction {
    fn ways(self) -> &'static [usize] {
        match self {
            Requests => &[UP],
            Replies => &[DOWN],
            Both => &[UP, DOWN],
        }
    }
}

/// What the proxy does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Forwarded at once.
    Pass,
    /// Forwarded in order, after this delay.
    Delay(Duration),
    /// Kept, including the end of the stream: a client that gives up does not take back what it sent. The sockets
    /// stay open. See [`Proxy::release`] and [`Proxy::discard`].
    Hold,
    /// The next bytes are thrown away and the client's connection is reset. The server still executes what it
    /// received. On [`Replies`] a request is *executed, but the answer is lost*; on [`Requests`] it *never arrived*.
    Cut,
}

/// Counts of what really happened. Pairs are requests, replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections taken from clients and joined with the server.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections that were reset on arrival because of [`Proxy::refuse`].
    pub refused: u64,
    /// Connections that were reset on arrival because the server could not be reached.
    pub unreachable: u64,
    /// Connections that [`Proxy::reset`] or [`Proxy::discard`] tore down.
    pub reset: u64,
    /// Connections that a [`Flow::Cut`] ended.
    pub cut: [u64; 2],
    /// Bytes that a [`Flow::Cut`] threw away.
    pub cut_bytes: [u64; 2],
    /// Reads that found something: one or more writes of the other side.
    pub reads: [u64; 2],
    /// Bytes that arrived.
    pub arrived: [u64; 2],
    /// Bytes that were forwarded.
    pub forwarded: [u64; 2],
    /// Bytes that a [`Flow::Delay`] delayed.
    pub delayed: [u64; 2],
    /// Bytes that a [`Flow::Hold`] kept.
    pub held: [u64; 2],
    /// Bytes that were held and then forwarded.
    pub late: [u64; 2],
    /// Bytes that were held and then thrown away.
    pub discarded: [u64; 2],
    /// Requests whose script was renamed.
    pub misnamed: u64,
}

/// The proxy. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream`.
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("nonblocking");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                upstream,
                refuse: false,
                flows: [Flow::Pass; 2],
                traps: Vec::new(),
                misname: 0,
                connections: BTreeMap::new(),
                counts: Counts::default(),
            }),
            changed: watch::Sender::new(()),
        });
        let (stop, stopped) = oneshot::channel();
        let inside = shared.clone();
        let thread = thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, inside) => {}
                        _ = stopped => {}
                    }
                });
            })
            .expect("a thread");
        Proxy {
            addr,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Returns the address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends new connections to another server; open connections stay where they are.
    pub fn redirect(&self, upstream: SocketAddr) {
        self.shared.lock().upstream = upstream;
    }

    /// Sets the flow of all connections, present and future.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.change(|state| {
            for &way in direction.ways() {
                state.flows[way] = flow;
                state
                    .connections
                    .values_mut()
                    .for_each(|connection| connection.own[way] = None);
            }
        });
    }

    /// Sets the flow of the open connections. New ones follow [`set`](Proxy::set).
    pub fn set_existing(&self, direction: Direction, flow: Flow) {
        self.change(|state| {
            for &way in direction.ways() {
                state
                    .connections
                    .values_mut()
                    .for_each(|connection| connection.own[way] = Some(flow));
            }
        });
    }

    /// Sets the flow of the open connections that have subscribed to a channel.
    pub fn set_subscribed(&self, direction: Direction, flow: Flow) {
        self.change(|state| {
            let connections = state.connections.values_mut();
            for connection in connections.filter(|connection| connection.subscribed) {
                for &way in direction.ways() {
                    connection.own[way] = Some(flow);
                }
            }
        });
    }

    /// Sets the flow of new connections. Open connections stay as they are.
    pub fn set_new(&self, direction: Direction, flow: Flow) {
        self.change(|state| {
            for &way in direction.ways() {
                for connection in state.connections.values_mut() {
                    connection.own[way].get_or_insert(state.flows[way]);
                }
                state.flows[way] = flow;
            }
        });
    }

    /// Turns every [`Flow::Hold`] into [`Flow::Pass`]: held bytes are forwarded, in order.
    pub fn release(&self) {
        self.change(|state| {
            let own = state
                .connections
                .values_mut()
                .flat_map(|connection| connection.own.iter_mut().flatten());
            own.chain(&mut state.flows)
                .filter(|flow| **flow == Flow::Hold)
                .for_each(|flow| *flow = Flow::Pass);
        });
    }

    /// Throws away all held bytes and resets their connections; returns the number of bytes. The flows stay set.
    pub fn discard(&self) -> usize {
        self.change(|state| {
            let mut bytes = 0;
            for connection in state.connections.values_mut() {
                for way in [UP, DOWN] {
                    let held = connection.pipes[way].queue.iter().filter(|piece| piece.held);
                    let held: usize = held.map(|piece| piece.bytes.len()).sum();
                    if held > 0 {
                        state.counts.discarded[way] += held as u64;
                        connection.pipes[way].queue.clear();
                        connection.end(End::Reset, &mut state.counts);
                        bytes += held;
                    }
                }
            }
            bytes
        })
    }

    /// Resets (RST) every open connection on both sides; returns their number.
    pub fn reset(&self) -> usize {
        self.change(|state| {
            let open = state
                .connections
                .values_mut()
                .filter(|connection| connection.end.is_none());
            open.map(|connection| connection.end(End::Reset, &mut state.counts))
                .count()
        })
    }

    /// Sets whether new connections are reset on arrival.
    pub fn refuse(&self, refuse: bool) {
        self.shared.lock().refuse = refuse;
    }

    /// Forwards the next request that contains `needle`, then cuts its connection at the first reply. Works once.
    pub fn cut_reply_to(&self, needle: impl Into<Vec<u8>>) {
        let needle = needle.into();
        assert!(!needle.is_empty());
        self.shared.lock().traps.push(needle);
    }

    /// Renames the script in the next `requests` EVALSHA, so that no server knows it.
    pub fn misname_scripts(&self, requests: u64) {
        self.shared.lock().misname = requests;
    }

    /// Restores the proxy: all flows pass, nothing is refused, held bytes are released, no trap is left.
    pub fn heal(&self) {
        self.change(|state| {
            state.refuse = false;
            state.traps.clear();
            state.misname = 0;
        });
        self.set(Both, Flow::Pass);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().snapshot()
    }

    /// Returns the number of bytes held at this moment.
    pub fn holds(&self, direction: Direction) -> usize {
        let state = self.shared.lock();
        let pipes = state
            .connections
            .values()
            .flat_map(|c| direction.ways().iter().map(|&way| &c.pipes[way]));
        pipes
            .flat_map(|pipe| &pipe.queue)
            .filter(|piece| piece.held)
            .map(|piece| piece.bytes.len())
            .sum()
    }

    /// Waits until the condition is true; panics after ten seconds. (Not for a paused clock.)
    pub async fn until(&self, happened: impl Fn(&Counts) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let wait = async {
            while !happened(&self.counts()) {
                changed.changed().await.expect("the proxy is alive");
            }
        };
        if timeout(Duration::from_secs(10), wait).await.is_err() {
            panic!(
                "the proxy waited for 10 s without the event: {:#?}",
                self.counts()
            );
        }
    }

    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.shared.lock();
        let result = f(&mut state);
        state.connections.values().for_each(Connection::wake);
        drop(state);
        self.shared.changed.send_replace(());
        result
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something was counted or set.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    refuse: bool,
    flows: [Flow; 2],
    /// Requests whose replies are cut.
    traps: Vec<Vec<u8>>,
    /// The number of EVALSHA that still get another script name.
    misname: u64,
    connections: BTreeMap<u64, Connection>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Connection {
    /// The flows that differ from those of other connections.
    own: [Option<Flow>; 2],
    pipes: [Pipe; 2],
    /// Whether a request has subscribed.
    subscribed: bool,
    end: Option<End>,
    ended: Arc<Notify>,
}

/// One direction of one connection.
#[derive(Debug, Default)]
struct Pipe {
    queue: VecDeque<Piece>,
    /// Nothing comes after the queue.
    closed: bool,
    /// The end of the last piece, for a needle that spans two pieces.
    tail: Vec<u8>,
    /// Wakes the writing task: bytes came or a flow was set.
    wake: Arc<Notify>,
}

#[derive(Debug)]
struct Piece {
    came: Instant,
    bytes: Vec<u8>,
    delayed: bool,
    held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Both sockets are reset.
    Reset,
    /// The client's socket is reset; the server may finish.
    Cut,
}

/// The next action of the writing task.
enum Next {
    Write(Vec<u8>),
    Until(Instant),
    Wait,
    Close,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the proxy did not panic")
    }

    /// Runs `f` on a connection that still exists, and notifies the tasks that watch the counts.
    fn with<T>(&self, id: u64, f: impl FnOnce(&mut Connection, &mut Common<'_>) -> T) -> Option<T> {
        let mut state = self.lock();
        let State {
            flows,
            traps,
            misname,
            connections,
            counts,
            ..
        } = &mut *state;
        let mut common = Common {
            flows,
            traps,
            misname,
            counts,
        };
        let result = f(connections.get_mut(&id)?, &mut common);
        drop(state);
        self.changed.send_replace(());
        Some(result)
    }
}

/// State shared by the connections.
struct Common<'a> {
    flows: &'a [Flow; 2],
    traps: &'a mut Vec<Vec<u8>>,
    misname: &'a mut u64,
    counts: &'a mut Counts,
}

impl State {
    fn snapshot(&self) -> Counts {
        Counts {
            open: self.connections.len() as u64,
            ..self.counts
        }
    }
}

impl Connection {
    fn wake(&self) {
        self.pipes.iter().for_each(|pipe| pipe.wake.notify_one());
    }

    fn end(&mut self, end: End, counts: &mut Counts) {
        if self.end.is_none() {
            self.end = Some(end);
            counts.reset += u64::from(end == End::Reset);
            self.ended.notify_one();
        }
    }

    /// Handles received bytes.
    fn push(&mut self, way: usize, bytes: &[u8], common: &mut Common<'_>) {
        common.counts.reads[way] += 1;
        common.counts.arrived[way] += bytes.len() as u64;
        self.subscribed |= way == UP && contains(bytes, b"SUBSCRIBE");
        let pipe = &mut self.pipes[way];
        if way == UP && !common.traps.is_empty() {
            pipe.tail.extend_from_slice(bytes);
            let sprung = common
                .traps
                .iter()
                .position(|needle| contains(&pipe.tail, needle));
            if let Some(trap) = sprung {
                common.traps.remove(trap);
                self.own[DOWN] = Some(Flow::Cut);
            }
            let longest = common.traps.iter().map(Vec::len).max().unwrap_or(1);
            let excess = pipe.tail.len().saturating_sub(longest - 1);
            pipe.tail.drain(..excess);
        }
        let mut bytes = bytes.to_vec();
        if way == UP && *common.misname > 0 {
            let misnamed = misname(&mut bytes, *common.misname);
            *common.misname -= misnamed;
            common.counts.misnamed += misnamed;
        }
        pipe.queue.push_back(Piece {
            came: Instant::now(),
            bytes,
            delayed: false,
            held: false,
        });
        pipe.wake.notify_one();
    }

    fn next(&mut self, way: usize, common: &mut Common<'_>) -> Next {
        let pipe = &mut self.pipes[way];
        let flow = self.own[way].unwrap_or(common.flows[way]);
        if flow == Flow::Hold {
            for piece in pipe.queue.iter_mut().filter(|piece| !piece.held) {
                piece.held = true;
                common.counts.held[way] += piece.bytes.len() as u64;
            }
            return Next::Wait;
        }
        let Some(piece) = pipe.queue.front_mut() else {
            return if pipe.closed { Next::Close } else { Next::Wait };
        };
        match flow {
            Flow::Delay(delay) if Instant::now() < piece.came + delay => {
                if !piece.delayed {
                    piece.delayed = true;
                    common.counts.delayed[way] += piece.bytes.len() as u64;
                }
                Next::Until(piece.came + delay)
            }
            Flow::Cut => {
                let bytes: usize = pipe.queue.drain(..).map(|piece| piece.bytes.len()).sum();
                common.counts.cut[way] += 1;
                common.counts.cut_bytes[way] += bytes as u64;
                self.end(End::Cut, common.counts);
                Next::Wait
            }
            _ => {
                let piece = pipe.queue.pop_front().expect("it was there");
                if piece.held {
                    common.counts.late[way] += piece.bytes.len() as u64;
                }
                Next::Write(piece.bytes)
            }
        }
    }
}

/// Renames the scripts in the first `limit` EVALSHA; returns the number renamed.
fn misname(bytes: &mut [u8], limit: u64) -> u64 {
    const CALL: &[u8] = b"EVALSHA\r\n$40\r\n";
    let (mut at, mut misnamed) = (0, 0);
    while misnamed < limit
        && let Some(found) = bytes[at..].windows(CALL.len()).position(|window| window == CALL)
    {
        at += found + CALL.len();
        let Some(name) = bytes.get_mut(at..at + 40) else {
            break;
        };
        name.fill(b'0');
        misnamed += 1;
    }
    misnamed
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("a runtime");
    for id in 0.. {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let upstream = {
            let mut state = shared.lock();
            state.counts.refused += u64::from(state.refuse);
            (!state.refuse).then_some(state.upstream)
        };
        match upstream {
            Some(upstream) => drop(tokio::spawn(serve(client, upstream, id, shared.clone()))),
            None => {
                reset(client);
                shared.changed.send_replace(());
            }
        }
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, id: u64, shared: Arc<Shared>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        reset(client);
        shared.lock().counts.unreachable += 1;
        shared.changed.send_replace(());
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let connection = Connection::default();
    let ended = connection.ended.clone();
    {
        let mut state = shared.lock();
        state.counts.connections += 1;
        state.connections.insert(id, connection);
    }
    shared.changed.send_replace(());
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let pumps = async {
            tokio::join!(
                read(from_client, UP, id, &shared),
                write(to_server, UP, id, &shared),
                read(from_server, DOWN, id, &shared),
                write(to_client, DOWN, id, &shared),
            )
        };
        tokio::select! {
            biased;
            () = ended.notified() => {}
            _ = pumps => {}
        }
    }
    let end = shared
        .lock()
        .connections
        .remove(&id)
        .and_then(|connection| connection.end);
    match end {
        None => {}
        Some(End::Reset) => {
            reset(client);
            reset(server);
        }
        Some(End::Cut) => {
            reset(client);
            // A reset here takes back requests that the server has not read yet.
            let _ = server.shutdown().await;
            let rest = async {
                let mut bytes = [0; 4096];
                while matches!(server.read(&mut bytes).await, Ok(1..)) {}
            };
            let _ = timeout(Duration::from_secs(5), rest).await;
        }
    }
    shared.changed.send_replace(());
}

/// Reads until the end. A reset by the client counts as its end.
async fn read(mut from: ReadHalf<'_>, way: usize, id: u64, shared: &Shared) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match from.read(&mut bytes).await {
            Ok(n @ 1..) => {
                shared.with(id, |connection, common| connection.push(way, &bytes[..n], common));
            }
            other => {
                shared.with(id, |connection, common| {
                    connection.pipes[way].closed = true;
                    connection.pipes[way].wake.notify_one();
                    if way == DOWN && other.is_err() {
                        connection.end(End::Reset, common.counts);
                    }
                });
                return;
            }
        }
    }
}

/// Writes what the flow allows, until the end of the stream, which is forwarded.
async fn write(mut to: WriteHalf<'_>, way: usize, id: u64, shared: &Shared) {
    let Some(wake) = shared.with(id, |connection, _| connection.pipes[way].wake.clone()) else {
        return;
    };
    let mut broken = false;
    loop {
        match shared.with(id, |connection, common| connection.next(way, common)) {
            None => return,
            Some(Next::Wait) => wake.notified().await,
            Some(Next::Until(due)) => {
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = wake.notified() => {}
                }
            }
            Some(Next::Write(bytes)) if !broken => match to.write_all(&bytes).await {
                Ok(()) => {
                    let counted = bytes.len() as u64;
                    shared.with(id, |_, common| common.counts.forwarded[way] += counted);
                }
                // The other end has gone; later bytes are dropped.
                Err(_) => broken = true,
            },
            Some(Next::Write(_)) => {}
            Some(Next::Close) => {
                let _: io::Result<()> = to.shutdown().await;
                return;
            }
        }
    }
}

/// Closes with RST.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}
