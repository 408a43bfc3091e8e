//! How large the answers to an inspection are. A proxy measures each answer, by the command that it belongs to.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tenure::{Guard, Locks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::task::JoinSet;

use crate::help::{Eyes, addr, ms, soon, until};
use crate::inspect::{is_bounded, is_of_inspection, node};
use crate::server::RedisServer;
use crate::support::inspect;

/// The most bytes of an answer, for keys of at most 64 bytes.
const MAX_REPLY: usize = 64_000;
/// The members of a record or of a queue: many times what one command reads.
const MANY: u64 = 5_000;
/// The names of one kind, more than one page.
const NAMES: usize = 600;

/// The words of a command, and the length of its answer in bytes.
type Measured = (Vec<String>, usize);

/// A proxy on loopback that measures the answer to each command.
struct ReplyMeter {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Measured>>>,
    _tasks: JoinSet<()>,
}

impl ReplyMeter {
    async fn start(server: SocketAddr) -> ReplyMeter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Measured>>>::default();
        let (measured, mut tasks) = (seen.clone(), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(server).await.unwrap();
                connections.spawn(measure(client, server, measured.clone()));
            }
        });
        ReplyMeter {
            addr,
            seen,
            _tasks: tasks,
        }
    }

    /// Returns what was measured since the last call.
    fn take(&self) -> Vec<Measured> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

/// Passes bytes between a client and a server, and measures each answer.
async fn measure(client: TcpStream, server: TcpStream, seen: Arc<Mutex<Vec<Measured>>>) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let asked = Mutex::new(VecDeque::new());
    let requests = pass(from_client, to_server, |request| {
        asked.lock().unwrap().push_back(words(request));
    });
    let replies = pass(from_server, to_client, |reply| {
        let command = asked.lock().unwrap().pop_front();
        let command = command.expect("an answer follows its command");
        seen.lock().unwrap().push((command, reply.len()));
    });
    tokio::join!(requests, replies);
}

/// Passes bytes until their end. Each complete value is told before its last byte is passed on.
async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut value: impl FnMut(&[u8])) {
    let (mut kept, mut bytes) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        kept.extend_from_slice(&bytes[..count]);
        while let Some(length) = value_length(&kept) {
            value(&kept[..length]);
            kept.drain(..length);
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Returns the length of the first value in the bytes, or `None` if its end is missing (the protocol of Redis, RESP 2 and 3).
fn value_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let number = std::str::from_utf8(&bytes[1..line - 2]).ok();
    // A text of a server is no number, and the length of no value is -1.
    let number = number.and_then(|number| number.parse().ok()).unwrap_or(-1_i64);
    match bytes[0] {
        b'$' | b'=' | b'!' if number >= 0 => {
            let length = line + number as usize + 2;
            (bytes.len() >= length).then_some(length)
        }
        b'*' | b'~' | b'>' => values_length(bytes, line, number),
        b'%' => values_length(bytes, line, 2 * number),
        _ => Some(line),
    }
}

/// Returns where so many values end that begin at this byte.
fn values_length(bytes: &[u8], from: usize, count: i64) -> Option<usize> {
    (0..count).try_fold(from, |at, _| Some(at + value_length(&bytes[at..])?))
}

/// Returns the words of a request.
fn words(request: &[u8]) -> Vec<String> {
    let redis::Value::Array(words) = redis::parse_redis_value(request).unwrap() else {
        panic!("no request: {}", request.escape_ascii())
    };
    let text = |word| redis::from_redis_value::<Vec<u8>>(word).unwrap();
    let words = words.into_iter().map(text);
    words.map(|word| word.escape_ascii().to_string()).collect()
}

/// Returns a key of 64 bytes.
fn key(n: usize) -> String {
    format!("{n:064}")
}

/// Holds a semaphore for each of many keys of 64 bytes, and waits for it: the names of these records and queues are the
/// longest. The tasks wait until they are dropped.
async fn many_long_names(one: &Locks, other: &Locks) -> (Vec<Guard>, JoinSet<()>) {
    let (mut guards, mut waiting) = (Vec::new(), JoinSet::new());
    for n in 0..NAMES {
        guards.push(soon(one.semaphore(key(n), 1).acquire()).await.unwrap());
        let semaphore = other.semaphore(key(n), 1);
        waiting.spawn(async move { drop(semaphore.acquire().await) });
    }
    (guards, waiting)
}

/// Adds members to a sorted set, in commands of 500.
fn add(eyes: &mut Eyes, key: &[u8], members: impl Iterator<Item = (String, u64)>) {
    let members: Vec<_> = members.map(|(member, score)| (score, member)).collect();
    for members in members.chunks(500) {
        let mut command = redis::cmd("ZADD");
        command.arg(key);
        for (score, member) in members {
            command.arg(score).arg(member);
        }
        command.exec(&mut eyes.0).unwrap();
    }
}

/// Fills records and queues with the longest members that the formats allow.
fn crowd(eyes: &mut Eyes) {
    let far = 99_999_999_999_999;
    let holder = |n: u64| format!("{:032x}:{}:{:016x}:", n, u64::MAX - n, u64::MAX - n);
    let key = |name: &str| format!("{name:0>64}");
    let shares = |rest: &'static str| {
        (0..MANY).flat_map(move |n| {
            let share = (format!("h{}{rest}", holder(n)), far);
            [share, (format!("n{}", holder(n)), 1_700_000_000_000_000)]
        })
    };
    let waiters = (1..=MANY).flat_map(|n| {
        let waiter = format!("{}99999999999:99999999999:4294967295/4294967295", holder(n));
        [(format!("a{waiter}"), n), (format!("b{waiter}"), far)]
    });
    let permits: Vec<Vec<u8>> = eyes.text(&format!("KEYS tenure1:s:*{}", self::key(0)));
    let queue: Vec<Vec<u8>> = eyes.text(&format!("KEYS tenure1:q:*{}", self::key(0)));
    add(eyes, &permits[0], shares("4294967295/4294967295"));
    add(eyes, &queue[0], waiters);
    add(eyes, format!("lock:{}", key("readers")).as_bytes(), shares(""));
    let foreign = vec![b'x'; 1 << 20];
    for n in 0..100 {
        let name = format!("lock:{}", key(&format!("f{n:02}")));
        let _: String = eyes.ask(&[b"SET", name.as_bytes(), &foreign]);
        let presence = format!("tenure1:i:{}", tenure::NodeId::random());
        let _: String = eyes.ask(&[b"SET", presence.as_bytes(), &foreign]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_above_64_kilobytes() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), "one").await,
        node(&server.url(), "other").await,
    );
    let (guards, mut waiting) = many_long_names(&one, &other).await;
    until("all wait", || other.waiter_count() == NAMES).await;
    inspect::until(&one, &key(NAMES - 1), |entry| entry.waiter_count == 1).await;
    crowd(&mut Eyes::on(&server));
    for protocol in ["", "?protocol=resp3"] {
        let meter = ReplyMeter::start(addr(&server)).await;
        let builder = crate::help::builder()
            .presence(false)
            .request_timeout(ms(10_000))
            .lazy();
        let looks = builder
            .connect(&format!("redis://{}/{protocol}", meter.addr))
            .await;
        let looks = looks.unwrap();
        let entries = inspect::list(&looks, "").await;
        assert_eq!(entries.len(), NAMES + 1 + 100);
        let crowded = inspect::show(&looks, &key(0)).await.remove(0);
        assert!(
            crowded.holder_count > MANY && crowded.waiter_count > MANY,
            "{crowded:?}"
        );
        assert!(soon(looks.inspect().nodes()).await.unwrap().len() >= 100);
        let mut worst = BTreeMap::<String, usize>::new();
        for (command, bytes) in meter.take() {
            if !is_of_inspection(&command) {
                continue;
            }
            assert!(is_bounded(&command), "{command:?}");
            assert!(bytes <= MAX_REPLY, "{bytes} bytes: {command:?}");
            let worst = worst.entry(command[0].to_lowercase()).or_default();
            *worst = bytes.max(*worst);
        }
        println!("the most bytes of an answer {protocol}: {worst:?}");
        let is_filled = |command: &str, bytes| worst[command] >= bytes;
        assert!(
            is_filled("scan", 8_000) && is_filled("zrangebyscore", 40_000),
            "{worst:?}"
        );
    }
    waiting.shutdown().await;
    drop(guards);
}
