//! A Redis Cluster, which the test starts: slots that move, masters that die, replicas that take over.
//!
//! The functions block until the servers report what was asked for. A server is named by its index: the masters of the
//! start come first, then one replica of each, and so on. So servers whose indices differ by a multiple of the number of
//! masters are a *shard*, of which one is the master.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crc::{CRC_16_XMODEM, Crc};
use redis::ToRedisArgs;

use crate::deployment::{eventually, info, query, tell};
use crate::help::{PATIENCE, ms};
use crate::server::RedisServer;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;
/// What each server starts with. Replicas join at once, stay with their shard, and may be promoted however long they
/// heard nothing from their master. A server that was a replica does not start again with the data that it got then.
const SERVER: [&str; 14] = [
    "--cluster-enabled",
    "yes",
    "--cluster-announce-ip",
    "127.0.0.1",
    "--cluster-node-timeout",
    "2000",
    "--cluster-allow-replica-migration",
    "no",
    "--cluster-replica-validity-factor",
    "0",
    "--repl-diskless-sync-delay",
    "0",
    "--rdb-del-sync-files",
    "yes",
];
/// The settings while a cluster is built. A server takes no writes before it was in the majority for a node timeout, of
/// at most 5 s, and gossips twice in a node timeout. A replica that was not heard in time must not cause an election.
const BUILDING: [(&str, &str); 2] = [
    ("cluster-node-timeout", "1000"),
    ("cluster-replica-no-failover", "yes"),
];

/// After how long a failover is asked for again. The servers give up a failover after 5 s.
const FAILOVER_RETRY: Duration = Duration::from_secs(6);

/// The servers. All are killed when it is dropped.
pub struct Cluster {
    nodes: Vec<Node>,
    shards: usize,
}

struct Node {
    server: RedisServer,
    /// Its name in the cluster, which a restart does not change.
    id: String,
    /// False if the server was killed, or stopped.
    is_live: AtomicBool,
    /// When the test last saw that it was promoted.
    promoted: Mutex<Option<Instant>>,
}

/// A slot that is half moved.
#[derive(Debug, Clone, Copy)]
pub struct SlotMove {
    pub slot: u16,
    pub from: usize,
    pub to: usize,
}

/// A server as another one sees it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    server: usize,
    is_master: bool,
    /// A server takes a slot under an epoch above all that it knows. A slot that moves again before the others know it can be
    /// taken back by a late message of its former owner.
    epoch: u64,
    slots: Vec<SlotRange>,
}

/// First and last.
type SlotRange = (u16, u16);

impl Cluster {
    /// Starts a cluster with a node timeout of 2 s, and waits until it takes writes and its replicas are in sync.
    pub fn start(masters: usize, replicas_of_each: usize) -> Self {
        Self::start_with(masters, replicas_of_each, &[])
    }

    /// Starts a cluster with more arguments for each server: `&["--cluster-node-timeout", "5000"]`. Servers lose their
    /// data at a restart, but for `&["--appendonly", "yes"]`.
    pub fn start_with(masters: usize, replicas_of_each: usize, args: &[&str]) -> Self {
        let args = [&SERVER[..], args].concat();
        let count = masters * (1 + replicas_of_each);
        let cluster = Cluster {
            nodes: (0..count).map(|_| Node::start(&args)).collect(),
            shards: masters,
        };
        let settings = BUILDING.map(|(name, _)| cluster.settings(name));
        cluster.build();
        for ((name, _), values) in BUILDING.iter().zip(settings) {
            for (node, value) in cluster.nodes.iter().zip(values) {
                tell(&node.server, &["CONFIG", "SET", name, &value]);
            }
        }
        cluster
    }

    /// Returns the URLs of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// Returns a server.
    pub fn server(&self, at: usize) -> &RedisServer {
        &self.nodes[at].server
    }

    /// Waits until the cluster takes writes, all live servers agree, and the live replicas are in sync.
    pub fn settle(&self) {
        eventually("the cluster settles", || {
            let members = self.agreed()?;
            let follows = |at| info(self.server(at), "master_link_status") == "up";
            let is_well = |member: &Member| {
                let at = member.server;
                !self.is_live(at) || takes_requests(self.server(at)) && (member.is_master || follows(at))
            };
            members.iter().all(is_well).then_some(())
        });
        (0..self.shards).for_each(|shard| self.wait_for_replicas(shard));
    }

    /// Returns the server that owns the slot.
    pub fn master_of_slot(&self, slot: u16) -> usize {
        let members = eventually("the servers agree", || self.agreed());
        owner(&members, slot).expect("the slot has an owner")
    }

    /// Returns the servers that own slots.
    pub fn masters(&self) -> Vec<usize> {
        let members = eventually("the servers agree", || self.agreed());
        let owners = members.iter().filter(|member| !member.slots.is_empty());
        owners.map(|member| member.server).collect()
    }

    /// Moves the slot and its keys.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let moving = self.begin_move(slot, to);
        self.migrate_all(moving);
        self.end_move(moving);
    }

    /// Begins to move the slot. Its owner then sends clients to `to` for each key that it does not have.
    pub fn begin_move(&self, slot: u16, to: usize) -> SlotMove {
        // On a loaded machine a server may still believe in an earlier owner.
        eventually("the move begins", || {
            let from = owner(&self.members(to)?, slot)?;
            let number = slot.to_string();
            let set = |at: usize, state: &str, node: usize| {
                let words = ["CLUSTER", "SETSLOT", &number, state, &self.nodes[node].id];
                query::<String>(self.server(at), &words).ok()
            };
            set(to, "IMPORTING", from)?;
            set(from, "MIGRATING", to)?;
            Some(SlotMove { slot, from, to })
        })
    }

    /// Moves keys of a slot that is half moved. Keys that do not exist are skipped.
    pub fn migrate<K: ToRedisArgs>(&self, moving: SlotMove, keys: &[K]) {
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.server(moving.to).port());
        migrate
            .arg("")
            .arg(0)
            .arg(5_000)
            .arg("REPLACE")
            .arg("KEYS")
            .arg(keys);
        let mut source = self.server(moving.from).client();
        migrate.exec(&mut source).unwrap();
    }

    /// Moves all keys of a slot that is half moved.
    pub fn migrate_all(&self, moving: SlotMove) {
        let slot = moving.slot.to_string();
        let ask = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
        loop {
            let keys: Vec<Vec<u8>> = query(self.server(moving.from), &ask).unwrap();
            if keys.is_empty() {
                return;
            }
            self.migrate(moving, &keys);
        }
    }

    /// Ends a move whose keys are all on the target. The masters know the new owner at once, and the replicas soon.
    pub fn end_move(&self, moving: SlotMove) {
        let SlotMove { slot, from, to } = moving;
        let members = eventually("the target knows the masters", || self.members(to));
        let masters = members.iter().filter(|member| member.is_master);
        let others = masters
            .clone()
            .map(|member| member.server)
            .filter(|at| ![from, to].contains(at));
        // The target takes an epoch above those that it knows. A message of the source under a later one, from before it learns of
        // the move, would take the slot from the target again, and no server would own it.
        eventually("the target knows the epochs of the masters", || {
            let live = masters
                .clone()
                .map(|member| member.server)
                .filter(|at| self.is_live(*at));
            let epochs = live.map(|at| self.epoch(at, "cluster_my_epoch"));
            (self.epoch(to, "cluster_current_epoch")? >= epochs.max().flatten()?).then_some(())
        });
        // The target comes first: if the source did, it could send clients to a target that sends them back.
        for at in [to, from]
            .into_iter()
            .chain(others)
            .filter(|at| self.is_live(*at))
        {
            self.set_slot(at, slot, &["NODE", &self.nodes[to].id]);
        }
    }

    /// Returns an epoch in `CLUSTER INFO` of the server.
    fn epoch(&self, at: usize, field: &str) -> Option<u64> {
        let info: String = query(self.server(at), &["CLUSTER", "INFO"]).ok()?;
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.parse().ok())
    }

    /// Ends a move of which no key is on the target: the slot stays where it is.
    pub fn abort_move(&self, moving: SlotMove) {
        let SlotMove { slot, from, to } = moving;
        let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
        let count: u64 = query(self.server(to), &count).unwrap();
        assert_eq!(
            count, 0,
            "keys on the target are lost: end the move, then move the slot back"
        );
        [from, to]
            .into_iter()
            .for_each(|at| self.set_slot(at, slot, &["STABLE"]));
    }

    /// Returns keys of locks whose records the master owns.
    pub fn keys_of(&self, master: usize) -> impl Iterator<Item = String> {
        let members = eventually("the servers agree", || self.agreed());
        keys(move |slot| owner(&members, slot) == Some(master))
    }

    /// Kills the server. It keeps its port and its view of the cluster for a restart.
    pub fn kill(&mut self, at: usize) {
        *self.nodes[at].is_live.get_mut() = false;
        self.nodes[at].server.kill();
    }

    /// Starts a killed server again. A master takes writes again after 2 s or the node timeout, unless a replica was
    /// promoted, which it then follows.
    pub fn restart(&mut self, at: usize) {
        self.nodes[at].server.restart();
        *self.nodes[at].is_live.get_mut() = true;
    }

    /// Stops the server, as a long pause of its machine does. Connections stay.
    pub fn freeze(&self, at: usize) {
        self.nodes[at].is_live.store(false, Ordering::Relaxed);
        self.nodes[at].server.freeze();
    }

    /// Lets a stopped server go on.
    pub fn thaw(&self, at: usize) {
        self.nodes[at].server.thaw();
        self.nodes[at].is_live.store(true, Ordering::Relaxed);
    }

    /// Makes the replica the master of its shard, and waits until it is. Without `FORCE` it first gets all that the
    /// master has written. Other servers learn of it later: see [`Cluster::promoted`].
    ///
    /// A replica that was promoted less than four node timeouts ago waits for the rest of them. Redis (6.2.5 and 7.0.15)
    /// still counts the votes of its last election, so it becomes a master without an election and under its old epoch,
    /// beside the present master, until that one's epoch reaches it.
    pub fn fail_over(&self, replica: usize, options: &[&str]) {
        let timeout =
            query::<(String, u64)>(self.server(replica), &["CONFIG", "GET", "cluster-node-timeout"]);
        let rest = 4 * ms(timeout.unwrap().1.max(1_000));
        let is_recent = |at: Instant, than| at.elapsed() < than;
        let promoted = *self.nodes[replica].promoted.lock().unwrap();
        let mut asked = None;
        eventually("the replica takes over", || {
            if info(self.server(replica), "role") == "master" {
                return Some(());
            }
            let waits = promoted.is_some_and(|at| is_recent(at, rest));
            if !waits && !asked.is_some_and(|at| is_recent(at, FAILOVER_RETRY)) {
                tell(
                    self.server(replica),
                    &[&["CLUSTER", "FAILOVER"], options].concat(),
                );
                asked = Some(Instant::now());
            }
            None
        });
        self.note_promotion(replica);
    }

    /// Stops replication from the master for good: what is written from now on is on the master alone. Its replicas can
    /// be promoted: after its death, or with `FORCE`.
    pub fn cut_replication(&self, master: usize) {
        for replica in self.shard(master).filter(|at| *at != master) {
            // The master has no password, so it refuses this one, and with it the next attempts to follow. The bus has
            // no passwords, so the replica still stands for election.
            tell(self.server(replica), &["CONFIG", "SET", "masterauth", "refused"]);
        }
        tell(self.server(master), &["CLIENT", "KILL", "TYPE", "replica"]);
        eventually("the replicas are gone", || {
            (info(self.server(master), "connected_slaves") == "0").then_some(())
        });
    }

    /// Lets replicas follow again that were cut off.
    pub fn heal_replication(&self, shard: usize) {
        for server in self.shard(shard) {
            tell(self.server(server), &["CONFIG", "SET", "masterauth", ""]);
        }
    }

    /// Starts a killed server again, without its data, as a replica of the server that took its slots over.
    pub fn rejoin(&mut self, at: usize) {
        let of_shard = |server: &usize| server % self.shards == at % self.shards;
        let master = self
            .masters()
            .into_iter()
            .find(of_shard)
            .expect("the shard has a master");
        let master = self.nodes[master].id.clone();
        self.nodes[at].server.restart();
        *self.nodes[at].is_live.get_mut() = true;
        // It refuses while it believes that it has slots.
        let end = Instant::now() + PATIENCE;
        while let Err(error) = query::<String>(self.server(at), &["CLUSTER", "REPLICATE", &master]) {
            let seen: String = query(self.server(at), &["CLUSTER", "NODES"]).unwrap();
            assert!(Instant::now() < end, "no replica of {master}: {error}\n{seen}");
            sleep(ms(20));
        }
        self.settle();
    }

    /// Sends a command to all live servers, which they accept.
    pub fn tell_all(&self, words: &[&str]) {
        let live = (0..self.nodes.len()).filter(|at| self.is_live(*at));
        live.for_each(|at| tell(self.server(at), words));
    }

    /// Returns how many servers there are, dead ones included.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Waits until a replica owns the slots of the killed or stopped master and all live servers know it. Returns that
    /// replica. This takes the node timeout, and another second or two.
    pub fn promoted(&self, old: usize) -> usize {
        let promoted = eventually("a replica is promoted", || {
            let members = self.agreed()?;
            let mut owners = members.iter().filter(|member| !member.slots.is_empty());
            let of_shard = |server: usize| server % self.shards == old % self.shards;
            let found = owners.find(|member| of_shard(member.server))?;
            (found.server != old).then_some(found.server)
        });
        self.note_promotion(promoted);
        promoted
    }

    /// Waits until the live replicas of the shard have what its master has written.
    pub fn wait_for_replicas(&self, shard: usize) {
        eventually("the replicas have it", || {
            let offset = |at: &usize| info(self.server(*at), "master_repl_offset").parse::<u64>().ok();
            let live: Vec<_> = self.shard(shard).collect();
            let is_master = |at: &&usize| info(self.server(**at), "role") == "master";
            let Some(master) = live.iter().find(is_master) else {
                return live.is_empty().then_some(());
            };
            let written = offset(master)?;
            let has_it = |at| offset(at).is_some_and(|offset| offset >= written);
            live.iter().all(has_it).then_some(())
        });
    }

    fn note_promotion(&self, replica: usize) {
        *self.nodes[replica].promoted.lock().unwrap() = Some(Instant::now());
    }

    /// Returns false if the server was killed, or stopped.
    pub fn is_live(&self, at: usize) -> bool {
        self.nodes[at].is_live.load(Ordering::Relaxed)
    }

    /// Returns the live servers of the shard.
    fn shard(&self, shard: usize) -> impl Iterator<Item = usize> {
        let servers = (shard % self.shards..self.nodes.len()).step_by(self.shards);
        servers.filter(|at| self.is_live(*at))
    }

    fn settings(&self, name: &str) -> Vec<String> {
        let ask = ["CONFIG", "GET", name];
        let ask = |node: &Node| query::<(String, String)>(&node.server, &ask).unwrap().1;
        self.nodes.iter().map(ask).collect()
    }

    /// Makes a cluster of servers that do not know each other.
    fn build(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            for (name, value) in BUILDING {
                tell(&node.server, &["CONFIG", "SET", name, value]);
            }
            // Equal epochs are a conflict, which servers resolve one after another.
            tell(
                &node.server,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()],
            );
            if let Some(slots) = self.first_slots(at) {
                let slots = slots.map(|slot| slot.to_string());
                let words = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
                tell(&node.server, &words.into_iter().chain(slots).collect::<Vec<_>>());
            }
        }
        // All meet all, which is quicker than gossip.
        for (at, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[at + 1..] {
                let port = other.server.port().to_string();
                tell(&node.server, &["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
        }
        for (at, node) in self.nodes.iter().enumerate().skip(self.shards) {
            let master = &self.nodes[at % self.shards].id;
            eventually("the replica knows its master", || {
                query::<String>(&node.server, &["CLUSTER", "REPLICATE", master]).ok()
            });
        }
        self.settle();
    }

    /// Returns the slots that the server owns after the start.
    fn first_slots(&self, at: usize) -> Option<RangeInclusive<usize>> {
        let first = |at| at * usize::from(SLOTS) / self.shards;
        (at < self.shards).then(|| first(at)..=first(at + 1) - 1)
    }

    fn set_slot(&self, at: usize, slot: u16, words: &[&str]) {
        let slot = slot.to_string();
        tell(self.server(at), &[&["CLUSTER", "SETSLOT", &slot], words].concat());
    }

    /// Returns the members of the cluster if all live servers agree on them.
    fn agreed(&self) -> Option<Vec<Member>> {
        let mut live = (0..self.nodes.len()).filter(|at| self.is_live(*at));
        let members = self.members(live.next()?)?;
        live.all(|at| self.members(at).as_ref() == Some(&members))
            .then_some(members)
    }

    /// Returns the members of the cluster as the server sees them, if it is connected to all live ones.
    fn members(&self, at: usize) -> Option<Vec<Member>> {
        let lines: String = query(self.server(at), &["CLUSTER", "NODES"]).ok()?;
        let members = lines.lines().map(|line| self.member(line));
        let mut members = members.collect::<Option<Vec<_>>>()?;
        members.sort_unstable();
        (members.len() == self.nodes.len()).then_some(members)
    }

    /// Reads a line of `CLUSTER NODES`, if its server is dead, or known and connected.
    fn member(&self, line: &str) -> Option<Member> {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, _, flags, _, _, _, epoch, link, slots @ ..] = &words[..] else {
            return None;
        };
        let server = self.nodes.iter().position(|node| node.id == *id)?;
        let has = |flag| flags.split(',').any(|word| word == flag);
        if self.is_live(server) && (*link != "connected" || has("fail") || has("fail?") || has("handshake")) {
            return None;
        }
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        // A word in brackets is a slot that is half moved, which the server alone knows.
        let slots = slots.iter().filter(|word| !word.starts_with('['));
        Some(Member {
            server,
            is_master: has("master"),
            epoch: epoch.parse().ok()?,
            slots: slots.map(|word| range(word)).collect::<Option<_>>()?,
        })
    }
}

impl Node {
    fn start(args: &[&str]) -> Node {
        let server = RedisServer::with_args(args);
        let id = query(&server, &["CLUSTER", "MYID"]).unwrap();
        let is_live = AtomicBool::new(true);
        let promoted = Mutex::default();
        Node {
            server,
            id,
            is_live,
            promoted,
        }
    }
}

/// Returns keys of locks whose records are in the slot. Each takes 16,384 tries on average.
pub fn keys_in_slot(slot: u16) -> impl Iterator<Item = String> {
    keys(move |found| found == slot)
}

fn keys(is_good: impl Fn(u16) -> bool) -> impl Iterator<Item = String> {
    let keys = (0..).map(|n: u32| format!("k{n}"));
    keys.filter(move |key| is_good(slot_of(&format!("lock:{key}"))))
}

/// Returns the slot of what Redis calls a key, as the specification of Redis Cluster defines it.
pub fn slot_of(key: &str) -> u16 {
    const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    CRC.checksum(hashed.unwrap_or(key).as_bytes()) % SLOTS
}

fn owner(members: &[Member], slot: u16) -> Option<usize> {
    let owns = |member: &&Member| {
        let mut slots = member.slots.iter();
        slots.any(|(first, last)| (*first..=*last).contains(&slot))
    };
    Some(members.iter().find(owns)?.server)
}

/// Returns whether the server takes requests for its slots.
fn takes_requests(server: &RedisServer) -> bool {
    let info: String = query(server, &["CLUSTER", "INFO"]).unwrap_or_default();
    info.lines().any(|line| line == "cluster_state:ok")
}
