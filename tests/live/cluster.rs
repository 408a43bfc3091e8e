//! A Redis Cluster, which the test starts: slots that move, masters that die, replicas that take over.
//!
//! The functions block until the servers report what was asked for. A server is named by its index: the masters of the
//! start come first, then one replica of each, and so on. So servers whose indices differ by a multiple of the number of
//! masters are a *shard*, of which one is the master.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Instant;

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
            let state = |at| info_of_cluster(self.server(at), "cluster_state");
            let follows = |at| info(self.server(at), "master_link_status") == "up";
            let is_well = |member: &Member| {
                let at = member.server;
                !self.is_live(at) || state(at) == "ok" && (member.is_master || follows(at))
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
        let seen = eventually("the target knows the owner", || owner(&self.members(to)?, slot));
        let moving = SlotMove { slot, from: seen, to };
        self.set_slot(to, slot, &["IMPORTING", &self.nodes[seen].id]);
        self.set_slot(seen, slot, &["MIGRATING", &self.nodes[to].id]);
        moving
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
            .map(|member| member.server)
            .filter(|at| ![from, to].contains(at));
        // The target comes first: if the source did, it could send clients to a target that sends them back.
        for at in [to, from]
            .into_iter()
            .chain(others)
            .filter(|at| self.is_live(*at))
        {
            self.set_slot(at, slot, &["NODE", &self.nodes[to].id]);
        }
    }

    /// Kills the server. It keeps its port and its view of the cluster for a restart.
    pub fn kill(&mut self, at: usize) {
        *self.nodes[at].is_live.get_mut() = false;
        self.nodes[at].server.kill();
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
        eventually("a replica is promoted", || {
            let members = self.agreed()?;
            let mut owners = members.iter().filter(|member| !member.slots.is_empty());
            let of_shard = |server: usize| server % self.shards == old % self.shards;
            let found = owners.find(|member| of_shard(member.server))?;
            (found.server != old).then_some(found.server)
        })
    }

    /// Waits until the live replicas of the shard have what its master has written.
    pub fn wait_for_replicas(&self, shard: usize) {
        eventually("the replicas have it", || {
            let offset = |at: &usize| info(self.server(*at), "master_repl_offset").parse::<u64>().ok();
            let shard = (shard % self.shards..self.nodes.len()).step_by(self.shards);
            let live: Vec<_> = shard.filter(|at| self.is_live(*at)).collect();
            let is_master = |at: &&usize| info(self.server(**at), "role") == "master";
            let Some(master) = live.iter().find(is_master) else {
                return live.is_empty().then_some(());
            };
            let written = offset(master)?;
            let has_it = |at| offset(at).is_some_and(|offset| offset >= written);
            live.iter().all(has_it).then_some(())
        });
    }

    /// Returns false if the server was killed, or stopped.
    pub fn is_live(&self, at: usize) -> bool {
        self.nodes[at].is_live.load(Ordering::Relaxed)
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
        let [id, _, flags, _, _, _, _, link, slots @ ..] = &words[..] else {
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
            slots: slots.map(|word| range(word)).collect::<Option<_>>()?,
        })
    }
}

impl Node {
    fn start(args: &[&str]) -> Node {
        let server = RedisServer::cluster_node(args);
        let id = query(&server, &["CLUSTER", "MYID"]).unwrap();
        let is_live = AtomicBool::new(true);
        Node { server, id, is_live }
    }
}

fn owner(members: &[Member], slot: u16) -> Option<usize> {
    let owns = |member: &&Member| {
        let mut slots = member.slots.iter();
        slots.any(|(first, last)| (*first..=*last).contains(&slot))
    };
    Some(members.iter().find(owns)?.server)
}

/// Returns a field of the server's CLUSTER INFO, or an empty text.
fn info_of_cluster(server: &RedisServer, field: &str) -> String {
    let info: String = query(server, &["CLUSTER", "INFO"]).unwrap_or_default();
    let mut values = info
        .lines()
        .filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    values.next().unwrap_or_default().to_owned()
}
