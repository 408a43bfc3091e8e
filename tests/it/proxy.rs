//! The proxy of `tests/support` does what it says, against a server that echoes every line.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::proxy::Direction::{Both, Replies, Requests};
use crate::support::proxy::{Flow, Proxy};

/// Echoes every line, and remembers it.
struct Echo {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    async fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let echo = Echo {
            addr: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let seen = echo.seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let (read, mut write) = stream.into_split();
                    let mut lines = BufReader::new(read).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        seen.lock().unwrap().push(line.clone());
                        let _ = write.write_all(format!("{line}\n").as_bytes()).await;
                    }
                });
            }
        });
        echo
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    async fn until_seen(&self, line: &str) {
        while !self.seen().iter().any(|seen| seen == line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Client {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Client {
    async fn connect(addr: SocketAddr) -> Client {
        let (read, write) = TcpStream::connect(addr).await.unwrap().into_split();
        Client {
            lines: BufReader::new(read).lines(),
            write,
        }
    }

    async fn say(&mut self, line: &str) {
        self.write
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
    }

    /// Returns what comes within five seconds; `None` at the end of the stream.
    async fn hear(&mut self) -> Result<Option<String>, ErrorKind> {
        let line = timeout(Duration::from_secs(5), self.lines.next_line())
            .await
            .expect("an answer or an end");
        line.map_err(|error| error.kind())
    }

    async fn ask(&mut self, line: &str) {
        self.say(line).await;
        assert_eq!(self.hear().await, Ok(Some(line.to_owned())));
    }

    async fn hears_nothing(&mut self) {
        assert!(
            timeout(Duration::from_millis(30), self.lines.next_line())
                .await
                .is_err()
        );
    }
}

/// Connecting may already fail with the reset.
async fn assert_reset_on_arrival(addr: SocketAddr) {
    let error = match TcpStream::connect(addr).await {
        Ok(mut stream) => stream.read_u8().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn start() -> (Echo, Proxy, Client) {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr);
    let mut client = Client::connect(proxy.addr()).await;
    client.ask("hello").await;
    (echo, proxy, client)
}

#[tokio::test]
async fn passes_and_counts() {
    let (_echo, proxy, client) = start().await;
    proxy.until(|counts| counts.forwarded == [6, 6]).await;
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.open, counts.arrived), (1, 1, [6, 6]));
    drop(client);
    proxy.until(|counts| counts.open == 0).await;
    assert_eq!(proxy.counts().reset, 0);
}

#[tokio::test]
async fn passes_a_half_close_and_much() {
    let (_echo, proxy, _client) = start().await;
    let (mut read, mut write) = TcpStream::connect(proxy.addr()).await.unwrap().into_split();
    let line = format!("{}\n", "x".repeat(3_000_000));
    let send = async {
        write.write_all(line.as_bytes()).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = String::new();
    let (_, result) = tokio::join!(send, read.read_to_string(&mut back));
    result.unwrap();
    assert!(back == line);
}

#[tokio::test]
async fn delays_one_direction_in_order() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Replies, Flow::Delay(Duration::from_millis(500)));
    let start = Instant::now();
    client.say("a").await;
    echo.until_seen("a").await;
    client.say("b").await;
    assert_eq!(client.hear().await, Ok(Some("a".into())));
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert_eq!(client.hear().await, Ok(Some("b".into())));
    let counts = proxy.counts();
    assert_eq!(counts.delayed[0], 0);
    assert!(counts.delayed[1] > 0);
    // The flow passes again, but queued bytes still wait for their delay.
    proxy.set(Requests, Flow::Delay(Duration::from_secs(3600)));
    client.say("c").await;
    proxy.until(|counts| counts.delayed[0] > 0).await;
    proxy.set(Both, Flow::Pass);
    assert_eq!(client.hear().await, Ok(Some("c".into())));
}

#[tokio::test]
async fn holds_requests_and_releases_them() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Requests, Flow::Hold);
    client.say("a").await;
    client.say("b").await;
    proxy.until(|counts| counts.held[0] == 4).await;
    client.hears_nothing().await;
    assert_eq!((echo.seen(), proxy.holds(Both)), (vec!["hello".to_owned()], 4));
    proxy.release();
    assert_eq!(client.hear().await, Ok(Some("a".into())));
    assert_eq!(client.hear().await, Ok(Some("b".into())));
    assert_eq!((proxy.counts().late, proxy.holds(Both)), ([4, 0], 0));
}

#[tokio::test]
async fn holds_replies_while_requests_are_executed() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Replies, Flow::Hold);
    client.say("a").await;
    echo.until_seen("a").await;
    proxy.until(|counts| counts.held[1] == 2).await;
    client.hears_nothing().await;
    proxy.heal();
    assert_eq!(client.hear().await, Ok(Some("a".into())));
}

#[tokio::test]
async fn delivers_after_the_client_gave_up() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Requests, Flow::Hold);
    client.say("late").await;
    proxy.until(|counts| counts.held[0] == 5).await;
    drop(client);
    let mut other = Client::connect(proxy.addr()).await;
    proxy.set_new(Requests, Flow::Pass);
    let mut third = Client::connect(proxy.addr()).await;
    third.ask("in time").await;
    proxy.release();
    echo.until_seen("late").await;
    other.ask("later").await;
    assert_eq!(echo.seen(), ["hello", "in time", "late", "later"]);
}

#[tokio::test]
async fn delivers_even_if_the_client_was_reset() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Requests, Flow::Hold);
    client.say("late").await;
    proxy.until(|counts| counts.held[0] == 5).await;
    let stream = client
        .lines
        .into_inner()
        .into_inner()
        .reunite(client.write)
        .unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    // Time for the reset to arrive, which no event reports.
    tokio::time::sleep(Duration::from_millis(30)).await;
    proxy.release();
    echo.until_seen("late").await;
}

#[tokio::test]
async fn holds_what_is_open_while_new_connections_pass() {
    let (echo, proxy, mut old) = start().await;
    proxy.set_existing(Both, Flow::Hold);
    old.say("first").await;
    proxy.until(|counts| counts.held[0] == 6).await;
    let mut new = Client::connect(proxy.addr()).await;
    new.ask("second").await;
    proxy.release();
    assert_eq!(old.hear().await, Ok(Some("first".into())));
    assert_eq!(echo.seen(), ["hello", "second", "first"]);
}

#[tokio::test]
async fn throws_away_what_was_held() {
    let (echo, proxy, mut client) = start().await;
    let mut idle = Client::connect(proxy.addr()).await;
    idle.ask("idle").await;
    proxy.set(Requests, Flow::Hold);
    client.say("gone").await;
    proxy.until(|counts| counts.held[0] == 5).await;
    assert_eq!(proxy.discard(), 5);
    proxy.heal();
    assert_eq!(client.hear().await, Err(ErrorKind::ConnectionReset));
    idle.ask("still here").await;
    let counts = proxy.counts();
    assert_eq!((counts.discarded, counts.reset, counts.late), ([5, 0], 1, [0, 0]));
    assert_eq!(echo.seen(), ["hello", "idle", "still here"]);
}

#[tokio::test]
async fn resets_every_connection() {
    let (_echo, proxy, mut client) = start().await;
    let mut other = Client::connect(proxy.addr()).await;
    other.ask("here").await;
    assert_eq!(proxy.reset(), 2);
    assert_eq!(client.hear().await, Err(ErrorKind::ConnectionReset));
    assert_eq!(other.hear().await, Err(ErrorKind::ConnectionReset));
    proxy.until(|counts| counts.reset == 2 && counts.open == 0).await;
    Client::connect(proxy.addr()).await.ask("again").await;
}

#[tokio::test]
async fn refuses_new_connections() {
    let (_echo, proxy, mut client) = start().await;
    proxy.refuse(true);
    assert_reset_on_arrival(proxy.addr()).await;
    client.ask("still here").await;
    assert_eq!(proxy.counts().refused, 1);
    proxy.refuse(false);
    Client::connect(proxy.addr()).await.ask("again").await;
}

#[tokio::test]
async fn loses_replies() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Replies, Flow::Cut);
    client.say("executed").await;
    assert_eq!(client.hear().await, Err(ErrorKind::ConnectionReset));
    assert_eq!(echo.seen(), ["hello", "executed"]);
    let counts = proxy.counts();
    assert_eq!((counts.cut, counts.cut_bytes, counts.reset), ([0, 1], [0, 9], 0));
}

#[tokio::test]
async fn loses_requests() {
    let (echo, proxy, mut client) = start().await;
    proxy.set(Requests, Flow::Cut);
    client.say("lost").await;
    assert_eq!(client.hear().await, Err(ErrorKind::ConnectionReset));
    assert_eq!(
        (echo.seen(), proxy.counts().cut),
        (vec!["hello".to_owned()], [1, 0])
    );
}

#[tokio::test]
async fn loses_the_reply_to_one_request() {
    let (echo, proxy, mut client) = start().await;
    let mut other = Client::connect(proxy.addr()).await;
    proxy.cut_reply_to("needle");
    other.ask("hay").await;
    client.ask("hay").await;
    // The needle is also found across two pieces.
    client.write.write_all(b"a nee").await.unwrap();
    proxy.until(|counts| counts.forwarded[0] == 6 + 4 + 4 + 5).await;
    client.say("dle").await;
    assert_eq!(client.hear().await, Err(ErrorKind::ConnectionReset));
    other.ask("needle").await;
    assert_eq!(echo.seen(), ["hello", "hay", "hay", "a needle", "needle"]);
    assert_eq!(proxy.counts().cut, [0, 1]);
}

#[tokio::test]
async fn goes_to_another_server() {
    let (echo, proxy, mut client) = start().await;
    let other = Echo::start().await;
    proxy.redirect(other.addr);
    client.ask("old").await;
    Client::connect(proxy.addr()).await.ask("new").await;
    assert_eq!(
        (echo.seen(), other.seen()),
        (vec!["hello".into(), "old".into()], vec!["new".to_owned()])
    );
}

#[tokio::test]
async fn an_unreachable_server_is_a_reset() {
    // The port is bound, so that no other process gets it, but no socket listens.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Proxy::start(closed.local_addr().unwrap());
    assert_reset_on_arrival(proxy.addr()).await;
    proxy.until(|counts| counts.unreachable == 1).await;
}

#[test]
fn works_while_the_runtime_of_the_test_is_blocked() {
    use std::io::{BufRead, Write};
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let echo = server.block_on(Echo::start());
    let proxy = Proxy::start(echo.addr);
    // The client blocks: no runtime runs on this thread.
    let mut client = std::net::TcpStream::connect(proxy.addr()).unwrap();
    client.write_all(b"hello\n").unwrap();
    let mut line = String::new();
    std::io::BufReader::new(&client).read_line(&mut line).unwrap();
    assert_eq!(line, "hello\n");
}

#[tokio::test]
async fn closes_all_when_dropped() {
    let (_echo, proxy, mut client) = start().await;
    let addr = proxy.addr();
    drop(proxy);
    assert!(matches!(
        client.hear().await,
        Ok(None) | Err(ErrorKind::ConnectionReset)
    ));
    assert!(TcpStream::connect(addr).await.is_err());
}
