//! A master, two replicas and three Sentinels, which the test starts, and what ends in a failover.
//!
//! The functions block until the servers report what was asked for.

use std::collections::HashMap;
use std::fmt::Debug;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult, ToRedisArgs};

use crate::help::ms;
use crate::server::RedisServer;

/// The name of the master.
pub const NAME: &str = "orders-db";
/// How many replicas and how many other Sentinels each Sentinel knows.
const OTHERS: u64 = 2;
/// Longer than two failovers in a row: Sentinel begins the second after twice the failover timeout. A Sentinel that was not run
/// for 2 s does nothing for the next 30 s (TILT), and that may happen twice.
const PATIENCE: Duration = Duration::from_secs(120);
/// A write needs a replica that was heard within the last second. A replica joins at once.
const SERVER: [&str; 6] = [
    "--min-replicas-to-write",
    "1",
    "--min-replicas-max-lag",
    "1",
    "--repl-diskless-sync-delay",
    "0",
];

/// The servers and their Sentinels. All are killed when it is dropped.
pub struct Deployment {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Deployment {
    /// Starts them, and waits until all know all.
    pub fn start() -> Self {
        Self::with_priority("100")
    }

    /// The same, but the Sentinels never promote the third server. So a master that returns is promoted when its successor is
    /// gone.
    pub fn of_two_masters() -> Self {
        Self::with_priority("0")
    }

    /// `third`: the priority of the third server, by which the Sentinels choose the next master.
    fn with_priority(third: &str) -> Self {
        let master = RedisServer::with_args(&SERVER);
        let port = master.port();
        let follows = port.to_string();
        let second = RedisServer::with_args(&replica_of(&follows));
        let priority = ["--replica-priority", third];
        let third = RedisServer::with_args(&[&replica_of(&follows)[..], &priority].concat());
        let servers = vec![master, second, third];
        let lines = [
            format!("sentinel monitor {NAME} 127.0.0.1 {port} 2"),
            format!("sentinel down-after-milliseconds {NAME} 1000"),
            format!("sentinel failover-timeout {NAME} 5000"),
        ];
        let lines = lines.each_ref().map(String::as_str);
        let sentinels = (0..=OTHERS).map(|_| RedisServer::sentinel_with(&lines));
        let sentinels = sentinels.collect();
        let deployment = Deployment { servers, sentinels };
        deployment.settle();
        deployment
    }

    /// Returns the URLs of the Sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// Returns the server that all Sentinels call the master, if they agree.
    pub fn agreed(&self) -> Option<usize> {
        let mut ports = self.sentinels.iter().map(|sentinel| {
            let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
            let address: RedisResult<(String, u16)> = query(sentinel, &ask);
            address.ok().map(|(_, port)| port)
        });
        let port = ports.next().flatten()?;
        let all = ports.all(|other| other == Some(port));
        self.servers
            .iter()
            .position(|server| all && server.port() == port)
    }

    /// Returns the master.
    pub fn master(&self) -> usize {
        eventually("the Sentinels agree", || self.agreed())
    }

    /// Waits until every Sentinel knows the master, both replicas and the other Sentinels, and all are well. The master
    /// then takes writes, and the Sentinels can promote either replica.
    pub fn settle(&self) {
        eventually("all know all", || {
            let master = self.agreed()?;
            let all = self.sentinels.iter().all(knows_all);
            (all && info(&self.servers[master], "min_slaves_good_slaves") == "2").then_some(())
        });
    }

    /// Waits until both replicas have what the master has written.
    pub fn wait_for_replicas(&self) {
        let master = &self.servers[self.master()];
        eventually("the replicas have it", || {
            let offset = |server| info(server, "master_repl_offset").parse::<u64>().ok();
            let at = offset(master)?;
            let has_it = |server| offset(server).is_some_and(|offset| offset >= at);
            self.servers.iter().all(has_it).then_some(())
        });
    }

    /// Kills the master. Returns which server that was.
    pub fn kill_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Stops the process of the master. Returns which server that was: it is not demoted, and will not know that it was
    /// replaced.
    pub fn stop_master(&self) -> usize {
        let master = self.master();
        self.servers[master].freeze();
        master
    }

    /// Kills the master, and lets the server that it replaced go on. Returns which server was killed.
    ///
    /// The Sentinels then promote the other one again. They demote a returning master only after its successor and it were
    /// well for 8 s.
    pub fn return_master(&mut self, stopped: usize) -> usize {
        eventually("the failover is over", || {
            // Until then the Sentinel that leads it has the former master in its list.
            let port = self.servers[self.agreed()?].port().to_string();
            let is_over = |sentinel: &RedisServer| {
                let master: HashMap<String, String> = query(sentinel, &["SENTINEL", "MASTER", NAME]).ok()?;
                Some(master.get("port") == Some(&port) && master.get("flags")? == "master")
            };
            self.sentinels
                .iter()
                .all(|sentinel| is_over(sentinel) == Some(true))
                .then_some(())
        });
        let killed = self.kill_master();
        self.servers[stopped].thaw();
        killed
    }

    /// Lets a Sentinel promote a replica while the master is well. Returns the old master.
    pub fn fail_over(&self) -> usize {
        let master = self.master();
        eventually("a Sentinel begins the failover", || {
            // It refuses while an earlier failover is not over.
            query::<String>(&self.sentinels[0], &["SENTINEL", "FAILOVER", NAME]).ok()
        });
        master
    }

    /// Waits until all Sentinels call another server the master, and it is one. Returns that server.
    pub fn promoted(&self, old: usize) -> usize {
        eventually("a replica is promoted", || {
            let master = self.agreed().filter(|master| *master != old)?;
            (info(&self.servers[master], "role") == "master").then_some(master)
        })
    }

    /// Starts a killed server again, as a replica of the master. It is empty until then, and never a master of its own.
    pub fn rejoin(&mut self, dead: usize) {
        let port = self.servers[self.master()].port().to_string();
        self.servers[dead].restart_with(&replica_of(&port));
        self.settle();
    }

    /// Stops replication for good: what is written from now on is on the master alone. Both replicas can be promoted.
    pub fn cut_replication(&self) {
        let master = &self.servers[self.master()];
        // Without this the master refuses to write. It is the setting by default.
        tell(master, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
        for replica in self
            .servers
            .iter()
            .filter(|server| server.port() != master.port())
        {
            // The master has no password, so it refuses this one, and with it the next attempts to follow.
            tell(replica, &["CONFIG", "SET", "masterauth", "refused"]);
        }
        tell(master, &["CLIENT", "KILL", "TYPE", "replica"]);
        eventually("the replicas are gone", || {
            (info(master, "connected_slaves") == "0").then_some(())
        });
    }

    /// Lets replicas follow again that were cut off.
    pub fn heal_replication(&self) {
        for server in &self.servers {
            // A server that was killed has no connection, and starts without the password.
            let _ = query::<String>(server, &["CONFIG", "SET", "masterauth", ""]);
        }
    }
}

fn replica_of(port: &str) -> Vec<&str> {
    [&SERVER[..], &["--replicaof", "127.0.0.1", port]].concat()
}

/// Returns whether the Sentinel knows all servers and Sentinels, and finds nothing wrong.
fn knows_all(sentinel: &RedisServer) -> bool {
    type Fields = HashMap<String, String>;
    let list = |what| query::<Vec<Fields>>(sentinel, &["SENTINEL", what, NAME]).unwrap_or_default();
    let master: Fields = query(sentinel, &["SENTINEL", "MASTER", NAME]).unwrap_or_default();
    let has = |fields: &Fields, name: &str, value: &str| fields.get(name).is_some_and(|found| found == value);
    let (replicas, others) = (list("REPLICAS"), list("SENTINELS"));
    let follows = |replica: &Fields| {
        let port = master.get("port").map_or("", String::as_str);
        has(replica, "flags", "slave")
            && has(replica, "master-link-status", "ok")
            && has(replica, "master-port", port)
    };
    has(&master, "flags", "master")
        && [replicas.len(), others.len()] == [OTHERS as usize; 2]
        && replicas.iter().all(follows)
        && others.iter().all(|other| has(other, "flags", "sentinel"))
}

/// Returns a field of the server's INFO, or an empty text.
pub fn info(server: &RedisServer, field: &str) -> String {
    let info: String = query(server, &["INFO"]).unwrap_or_default();
    let mut values = info
        .lines()
        .filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    values.next().unwrap_or_default().to_owned()
}

/// Sends a command that the server accepts.
pub fn tell(server: &RedisServer, words: &[impl ToRedisArgs + Debug]) {
    query::<redis::Value>(server, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Sends a command, and returns the answer.
pub fn query<T: FromRedisValue>(server: &RedisServer, words: &[impl ToRedisArgs]) -> RedisResult<T> {
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_connection_with_timeout(ms(1_000))?;
    connection.set_read_timeout(Some(ms(10_000)))?;
    redis::Cmd::new().arg(words).query(&mut connection)
}

/// Polls until there is a value.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for: {what}");
        sleep(ms(20));
    }
}
