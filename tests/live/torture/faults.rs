//! Faults of nodes, connections and servers. The schedule follows from a seed, except that most faults of a node hit the
//! current holder of the key with long holdings.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::server::RedisServer;
use crate::support::proxy::{Counts, Direction, Flow, Proxy};
use crate::torture::journal::now;
use crate::torture::orders::{LONG, Orders, name};
use crate::torture::referee::{Scope, Trouble};
use crate::torture::worker::{TEST, WORKER};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `kill -9` of a node; another starts in its place.
    Kill,
    /// A node is stopped for longer than its lease, and continues.
    Stop,
    /// CLIENT KILL of all command connections.
    CutCommands,
    /// CLIENT KILL of all subscriptions.
    CutInboxes,
    /// SCRIPT FLUSH.
    ForgetScripts,
    /// CLIENT PAUSE ALL.
    PauseAll,
    /// CLIENT PAUSE WRITE.
    PauseWrites,
    /// The server is stopped, and continues.
    StopServer,
    /// The server becomes a replica, which refuses writes, and then a master again.
    Demote,
    /// A node's connections are reset.
    Reset,
    /// A request of a node is executed and its answer lost.
    LoseReply,
    /// The next answer to a node is lost, on each of its connections.
    LoseReplies,
    /// A node's bytes arrive late, but in time for all requests.
    Delay,
    /// A node's bytes arrive late, by up to a lease.
    LongDelay,
    /// A node's bytes are held back, and arrive after all timeouts.
    HoldThenDeliver,
    /// A node's bytes are held back, and are discarded.
    HoldThenDiscard,
    /// Only the requests of a node, or only the answers, are held back on its open connections.
    HoldOneWay,
    /// A node cannot connect.
    Refuse,
    /// No fault, for as long as locks may take to be free again.
    Quiet,
}

use Fault::{
    CutCommands, CutInboxes, Delay, Demote, ForgetScripts, HoldOneWay, HoldThenDeliver, HoldThenDiscard,
    Kill, LongDelay, LoseReplies, LoseReply, PauseAll, PauseWrites, Quiet, Refuse, Reset, Stop, StopServer,
};

/// The faults in which no live holder can lose its lease.
pub const WITHOUT_PAUSES: &[Fault] = &[
    Kill,
    CutCommands,
    CutInboxes,
    ForgetScripts,
    Reset,
    LoseReply,
    LoseReplies,
    Delay,
];

/// All faults.
pub const WITH_PAUSES: &[Fault] = &[
    Kill,
    Stop,
    CutCommands,
    CutInboxes,
    ForgetScripts,
    PauseAll,
    PauseWrites,
    StopServer,
    Demote,
    Reset,
    LoseReply,
    LoseReplies,
    Delay,
    LongDelay,
    HoldThenDeliver,
    HoldThenDiscard,
    HoldOneWay,
    Refuse,
    Quiet,
];

/// A process, and the proxy between it and the server. Behind Sentinels and on a cluster there is no proxy.
pub struct Node {
    number: usize,
    incarnation: u32,
    child: Child,
    proxy: Option<Proxy>,
    /// Whether the node has a fault. It has one at a time.
    in_trouble: bool,
}

impl Node {
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a node on one server")
    }

    /// Kills the process, also if it is stopped.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill is there").success(), "kill {signal}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts nodes.
pub struct Nodes {
    pub orders: Orders,
    pub dir: PathBuf,
    pub journals: Vec<(String, PathBuf)>,
    pub nodes: Vec<Node>,
}

impl Nodes {
    /// Starts nodes that reach this server through proxies, or the servers of the Sentinels or the cluster in their orders.
    pub fn start(orders: Orders, dir: PathBuf, server: Option<&RedisServer>, count: usize) -> Self {
        let mut nodes = Nodes {
            orders,
            dir,
            journals: Vec::new(),
            nodes: Vec::new(),
        };
        for number in 0..count {
            let proxy = server.map(|server| Proxy::start(([127, 0, 0, 1], server.port()).into()));
            let child = nodes.spawn(number, 0, proxy.as_ref());
            nodes.nodes.push(Node {
                number,
                incarnation: 0,
                child,
                proxy,
                in_trouble: false,
            });
        }
        nodes
    }

    /// Waits until all nodes work.
    pub fn ready(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let ready = |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|text| text.contains(" ready"));
        while !self.journals.iter().all(|(_, path)| ready(path)) {
            if Instant::now() > end {
                return false;
            }
            sleep(Duration::from_millis(10));
        }
        true
    }

    fn spawn(&mut self, number: usize, incarnation: u32, proxy: Option<&Proxy>) -> Child {
        let label = format!("{number}.{incarnation}");
        let journal = self.dir.join(format!("node-{label}"));
        let words = std::fs::File::create(self.dir.join(format!("words-{label}"))).expect("a file");
        self.journals.push((label, journal.clone()));
        let orders = Orders {
            url: proxy.map_or_else(String::new, |proxy| format!("redis://{}/", proxy.addr())),
            journal,
            seed: self.orders.seed ^ ((number as u64 + 1) << 32) ^ (u64::from(incarnation) << 40),
            ..self.orders.clone()
        };
        Command::new(std::env::current_exe().expect("this binary"))
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, orders.encode())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(words)
            .spawn()
            .expect("this binary starts again")
    }

    /// Returns the node that a record in Redis names: its owner, or one of its readers.
    pub fn owner(&self, record: &str) -> Option<usize> {
        let id = record.split(':').next()?;
        self.nodes.iter().position(|node| {
            let journal = self
                .dir
                .join(format!("node-{}.{}", node.number, node.incarnation));
            node_id(&journal).is_some_and(|node| node == id)
        })
    }

    /// Stops the process of a node.
    pub fn stop(&self, node: usize) {
        self.nodes[node].signal("-STOP");
    }

    /// Continues the process of a node.
    pub fn resume(&self, node: usize) {
        self.nodes[node].signal("-CONT");
    }

    /// Kills a node, and starts another in its place, which knows nothing. Returns the new node's journal.
    pub fn replace(&mut self, number: usize) -> PathBuf {
        self.nodes[number].kill();
        self.restart(number);
        self.journals
            .last()
            .expect("the journal of the new node")
            .1
            .clone()
    }

    fn restart(&mut self, number: usize) {
        let mut node = self.nodes.remove(number);
        node.incarnation += 1;
        node.child = self.spawn(number, node.incarnation, node.proxy.as_ref());
        self.nodes.insert(number, node);
    }

    /// Tells the nodes to finish, and waits for them. Returns the nodes that did not finish, or that ended with an error.
    pub fn finish(&mut self, patience: Duration) -> Vec<String> {
        for node in &mut self.nodes {
            drop(node.child.stdin.take());
        }
        let end = Instant::now() + patience;
        let mut bad = Vec::new();
        for node in &mut self.nodes {
            let label = format!("{}.{}", node.number, node.incarnation);
            loop {
                match node.child.try_wait() {
                    Ok(Some(status)) if status.success() => break,
                    Ok(Some(status)) => {
                        let words = std::fs::read_to_string(self.dir.join(format!("words-{label}")));
                        bad.push(format!(
                            "{label} ended with {status}: {}",
                            words.unwrap_or_default()
                        ));
                        break;
                    }
                    _ if Instant::now() > end => {
                        bad.push(format!("{label} does not finish within {patience:?}"));
                        node.kill();
                        break;
                    }
                    _ => sleep(Duration::from_millis(5)),
                }
            }
        }
        bad
    }
}

/// Returns the holder of the key with long holdings: its owner, or the reader whose lease ends first.
pub fn holder(server: &RedisServer) -> Option<String> {
    let (mut client, key) = (server.client(), format!("lock:{}", name(LONG)));
    // Readers do not have a string.
    if let Ok(owner) = redis::cmd("GET").arg(&key).query(&mut client) {
        return owner;
    }
    let first = redis::cmd("ZRANGE").arg(&key).arg(0).arg(0).query(&mut client);
    let first: Vec<String> = first.unwrap_or_default();
    Some(first.first()?.strip_prefix('h')?.to_owned())
}

/// Returns the id of the node with this journal, from one of its first lines.
pub fn node_id(journal: &Path) -> Option<String> {
    let lines = BufReader::new(File::open(journal).ok()?)
        .lines()
        .map_while(Result::ok);
    let mut ids = lines.filter_map(|line| Some(line.split_once(" ready ")?.1.to_owned()));
    ids.next()
}

/// The end of a fault.
enum Cure {
    Restart(usize),
    Continue(usize),
    Heal(usize, Fault, Counts),
    Thaw,
    Promote,
    /// The fault ends by itself.
    Wait(Fault),
}

struct Due {
    at: Instant,
    began: u64,
    scope: Scope,
    cure: Cure,
}

/// Starts and ends faults.
pub struct Faults<'a> {
    server: &'a RedisServer,
    kinds: &'static [Fault],
    deck: VecDeque<Fault>,
    rng: fastrand::Rng,
    lease: Duration,
    /// The longest time until a lock is free again.
    bound: Duration,
    due: Vec<Due>,
    blocked_until: Instant,
    pub counts: BTreeMap<Fault, u64>,
    pub troubles: Vec<Trouble>,
}

impl<'a> Faults<'a> {
    pub fn new(
        server: &'a RedisServer,
        kinds: &'static [Fault],
        seed: u64,
        lease: Duration,
        bound: Duration,
    ) -> Self {
        Faults {
            server,
            kinds,
            deck: VecDeque::new(),
            rng: fastrand::Rng::with_seed(seed),
            lease,
            bound,
            due: Vec::new(),
            blocked_until: Instant::now(),
            counts: kinds.iter().map(|kind| (*kind, 0)).collect(),
            troubles: Vec::new(),
        }
    }

    /// Causes faults for that long, and longer until each kind has happened.
    pub fn rage(&mut self, nodes: &mut Nodes, span: Duration) {
        let start = Instant::now();
        let mut next = start;
        while !self.kinds.is_empty() {
            let elapsed = start.elapsed();
            let all = self.counts.values().all(|count| *count > 0);
            if elapsed >= span && (all || elapsed >= 3 * span + 4 * self.bound) {
                break;
            }
            self.cure(nodes, Instant::now());
            if Instant::now() >= next {
                let pause = self.deal(nodes);
                next = Instant::now() + pause;
            }
            let wake = self
                .due
                .iter()
                .map(|due| due.at)
                .chain([next])
                .min()
                .unwrap_or(next);
            sleep(
                wake.saturating_duration_since(Instant::now())
                    .min(Duration::from_millis(20)),
            );
        }
        while !self.due.is_empty() {
            self.cure(nodes, Instant::now());
            sleep(Duration::from_millis(5));
        }
    }

    /// Returns the faults that did not happen.
    pub fn missing(&self) -> Vec<Fault> {
        let missing = self.counts.iter().filter(|(_, count)| **count == 0);
        missing.map(|(fault, _)| *fault).collect()
    }

    /// Begins the next fault. Returns the pause before the one after it.
    fn deal(&mut self, nodes: &mut Nodes) -> Duration {
        if self.deck.is_empty() {
            // Pauses without faults are rare. Stopped holders are frequent, because leases exist for them.
            let mut deck = self.kinds.to_vec();
            deck.extend(self.kinds.iter().filter(|kind| **kind != Quiet));
            deck.extend(self.kinds.iter().filter(|kind| **kind == Stop).cycle().take(4));
            self.rng.shuffle(&mut deck);
            self.deck = deck.into();
        }
        let fault = self.deck.pop_front().expect("just filled");
        let (mut victim, share) = (self.rng.usize(..nodes.nodes.len()), self.rng.f64());
        let at_holder = self.rng.u32(..4) > 0;
        let pause = Duration::from_millis(self.rng.u64(50..400));
        let speaks = matches!(
            fault,
            CutCommands | CutInboxes | ForgetScripts | PauseAll | PauseWrites
        );
        let to_node = !speaks && !matches!(fault, StopServer | Demote | Quiet);
        if to_node && at_holder && Instant::now() >= self.blocked_until {
            let record = holder(self.server);
            victim = record.and_then(|record| nodes.owner(&record)).unwrap_or(victim);
        }
        let troubled = nodes.nodes.iter().filter(|node| node.in_trouble).count();
        // Half of the nodes are always healthy, so that every key has a caller.
        let later = (speaks || matches!(fault, StopServer | Demote)) && Instant::now() < self.blocked_until
            || to_node && (nodes.nodes[victim].in_trouble || 2 * troubled >= nodes.nodes.len());
        if later {
            self.deck.push_back(fault);
            return Duration::from_millis(20);
        }
        let between = |from: Duration, to: Duration| from + to.saturating_sub(from).mul_f64(share);
        let ms = Duration::from_millis;
        let (lease, began) = (self.lease, now());
        if to_node {
            nodes.nodes[victim].in_trouble = true;
            let proxy = nodes.nodes[victim].proxy();
            let before = proxy.counts();
            let (span, scope) = match fault {
                Kill => {
                    nodes.nodes[victim].kill();
                    (between(ms(0), ms(300)), Scope::Node)
                }
                Stop => {
                    nodes.stop(victim);
                    (between(lease * 3 / 2, lease * 5 / 2), Scope::Node)
                }
                Reset => {
                    proxy.reset();
                    (ms(0), Scope::Passing)
                }
                LoseReply => {
                    proxy.cut_reply_to("EVALSHA");
                    (ms(1000), Scope::Passing)
                }
                LoseReplies => {
                    proxy.set_existing(Direction::Replies, Flow::Cut);
                    (ms(300), Scope::Passing)
                }
                Delay => {
                    proxy.set(Direction::Both, Flow::Delay(between(ms(2), ms(40))));
                    (ms(400), Scope::Passing)
                }
                LongDelay => {
                    proxy.set(Direction::Both, Flow::Delay(between(ms(50), lease)));
                    (2 * lease, Scope::Node)
                }
                HoldThenDeliver | HoldThenDiscard => {
                    proxy.set(Direction::Both, Flow::Hold);
                    (between(lease / 4, lease * 2), Scope::Node)
                }
                HoldOneWay => {
                    let way = if self.rng.bool() {
                        Direction::Requests
                    } else {
                        Direction::Replies
                    };
                    proxy.set_existing(way, Flow::Hold);
                    (between(lease / 4, lease * 2), Scope::Node)
                }
                Refuse => {
                    proxy.refuse(true);
                    proxy.reset();
                    (between(lease / 4, lease * 3 / 2), Scope::Node)
                }
                _ => unreachable!("not a fault of a node"),
            };
            let cure = match fault {
                Kill => Cure::Restart(victim),
                Stop => Cure::Continue(victim),
                _ => Cure::Heal(victim, fault, before),
            };
            self.begin(span, began, scope, cure);
            return pause;
        }
        let span = match fault {
            CutCommands => {
                self.count(fault, self.tell(&["CLIENT", "KILL", "TYPE", "normal"]) > 0);
                ms(0)
            }
            CutInboxes => {
                self.count(fault, self.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]) > 0);
                ms(0)
            }
            ForgetScripts => {
                self.tell(&["SCRIPT", "FLUSH"]);
                self.count(fault, true);
                ms(0)
            }
            PauseAll | PauseWrites => {
                let span = between(ms(200), ms(1500));
                let mode = if fault == PauseAll { "ALL" } else { "WRITE" };
                self.tell(&["CLIENT", "PAUSE", &span.as_millis().to_string(), mode]);
                span
            }
            StopServer => {
                self.server.freeze();
                between(lease / 4, lease * 3 / 2)
            }
            Demote => {
                // A request that was executed without an answer is repeated to a server that refuses writes.
                nodes
                    .nodes
                    .iter()
                    .filter(|node| !node.in_trouble)
                    .for_each(|node| node.proxy().cut_reply_to("EVALSHA"));
                sleep(ms(20));
                self.tell(&["REPLICAOF", "127.0.0.1", "1"]);
                between(ms(50), ms(600))
            }
            _ => self.bound,
        };
        match fault {
            PauseAll | PauseWrites => self.begin(span, began, Scope::All, Cure::Wait(fault)),
            StopServer => self.begin(span, began, Scope::All, Cure::Thaw),
            Demote => self.begin(span, began, Scope::All, Cure::Promote),
            Quiet => {
                self.begin(span, began, Scope::Passing, Cure::Wait(fault));
                return span;
            }
            _ => return pause,
        }
        // A little longer, so that the server can catch up.
        self.blocked_until = Instant::now() + span + ms(50);
        pause
    }

    fn begin(&mut self, span: Duration, began: u64, scope: Scope, cure: Cure) {
        let at = Instant::now() + span;
        self.due.push(Due {
            at,
            began,
            scope,
            cure,
        });
    }

    /// Ends the faults that are due by `when`.
    fn cure(&mut self, nodes: &mut Nodes, when: Instant) {
        while let Some(at) = self.due.iter().position(|due| due.at <= when) {
            let Due {
                began, scope, cure, ..
            } = self.due.swap_remove(at);
            let mut healed = None;
            match cure {
                Cure::Restart(victim) => {
                    nodes.restart(victim);
                    self.count(Kill, true);
                    healed = Some(victim);
                }
                Cure::Continue(victim) => {
                    nodes.resume(victim);
                    self.count(Stop, true);
                    healed = Some(victim);
                }
                Cure::Heal(victim, fault, before) => {
                    let happened = self.heal(nodes.nodes[victim].proxy(), fault, &before);
                    self.count(fault, happened);
                    healed = Some(victim);
                }
                Cure::Thaw => {
                    self.server.thaw();
                    self.count(StopServer, true);
                }
                Cure::Promote => {
                    self.tell(&["REPLICAOF", "NO", "ONE"]);
                    self.count(Demote, true);
                }
                Cure::Wait(fault) => self.count(fault, true),
            }
            if let Some(victim) = healed {
                nodes.nodes[victim].in_trouble = false;
            }
            let to = now();
            self.troubles.push(Trouble {
                from: began,
                to,
                scope,
            });
        }
    }

    /// Ends a fault of a proxy. Returns whether the fault happened.
    fn heal(&mut self, proxy: &Proxy, fault: Fault, before: &Counts) -> bool {
        let sum = |pair: [u64; 2]| pair[0] + pair[1];
        let held = sum(proxy.counts().held) > sum(before.held);
        if fault == HoldThenDiscard {
            proxy.discard();
        }
        proxy.heal();
        let after = proxy.counts();
        match fault {
            Reset => after.reset > before.reset,
            LoseReply | LoseReplies => sum(after.cut) > sum(before.cut),
            Delay | LongDelay => sum(after.delayed) > sum(before.delayed),
            HoldThenDiscard => sum(after.discarded) > sum(before.discarded),
            HoldThenDeliver | HoldOneWay => held,
            Refuse => after.refused > before.refused,
            _ => unreachable!("not a fault of a proxy"),
        }
    }

    fn count(&mut self, fault: Fault, happened: bool) {
        *self.counts.entry(fault).or_default() += u64::from(happened);
    }

    /// Sends a command to the server. Returns its answer if that is a number.
    fn tell(&self, words: &[&str]) -> u64 {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer: redis::Value = command
            .query(&mut self.server.client())
            .expect("the server answers");
        match answer {
            redis::Value::Int(number) => number as u64,
            _ => 0,
        }
    }
}

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(fault, n)| format!("{fault:?} {n}"))
            .collect();
        f.write_str(&counts.join(", "))
    }
}
