//! The orders of a worker, and the values that all workers share.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Locks, Recovery};

use crate::deployment::NAME;

/// The settings of a worker.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The Redis of the locks, through a proxy.
    pub url: String,
    /// The Sentinels of the locks, instead of the URL.
    pub sentinels: Vec<String>,
    /// Servers of the cluster of the locks, instead of the URL.
    pub cluster: Vec<String>,
    /// The masters of the quorum of the locks, instead of the URL.
    pub quorum: Vec<String>,
    /// The Redis of the register, which has no faults.
    pub register: Option<String>,
    /// The directory of the counters.
    pub counters: Option<PathBuf>,
    pub journal: PathBuf,
    pub seed: u64,
    pub keys: usize,
    pub lease: Duration,
    pub locked: Locked,
}

impl Orders {
    /// Returns orders without a server, for tasks that count in files of this directory.
    pub fn counting(dir: &Path, seed: u64, keys: usize, lease: Duration, locked: Locked) -> Self {
        Orders {
            url: String::new(),
            sentinels: Vec::new(),
            cluster: Vec::new(),
            quorum: Vec::new(),
            register: None,
            counters: Some(dir.to_owned()),
            journal: PathBuf::new(),
            seed,
            keys,
            lease,
            locked,
        }
    }

    /// Returns whether the locks are on a quorum, which serves only exclusive locks.
    pub fn is_quorum(&self) -> bool {
        !self.quorum.is_empty()
    }

    /// Returns the key of the permits, after the last lock.
    pub fn permits_key(&self) -> usize {
        self.keys
    }

    /// Returns the key of the election, after the permits.
    pub fn election_key(&self) -> usize {
        self.keys + 1
    }

    /// Returns the key of all latches, after the election.
    pub fn latches_key(&self) -> usize {
        self.keys + 2
    }

    pub fn encode(&self) -> String {
        let register = self.register.as_deref().unwrap_or_default();
        let counters = self.counters.clone().unwrap_or_default();
        format!(
            "{}|{}|{}|{}|{register}|{}|{}|{}|{}|{}|{:?}",
            self.url,
            self.sentinels.join(","),
            self.cluster.join(","),
            self.quorum.join(","),
            counters.display(),
            self.journal.display(),
            self.seed,
            self.keys,
            self.lease.as_millis(),
            self.locked
        )
    }

    pub fn decode(text: &str) -> Self {
        let [
            url,
            sentinels,
            cluster,
            quorum,
            register,
            counters,
            journal,
            seed,
            keys,
            lease,
            locked,
        ] = text
            .split('|')
            .collect::<Vec<_>>()
            .try_into()
            .expect("eleven orders");
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let list = |text: &str| text.split(',').filter_map(some).collect();
        Orders {
            url: url.into(),
            sentinels: list(sentinels),
            cluster: list(cluster),
            quorum: list(quorum),
            register: some(register),
            counters: some(counters).map(PathBuf::from),
            journal: journal.into(),
            seed: seed.parse().expect("a seed"),
            keys: keys.parse().expect("a number of keys"),
            lease: Duration::from_millis(lease.parse().expect("a lease")),
            locked: match locked {
                "All" => Locked::All,
                "Writers" => Locked::Writers,
                other => {
                    assert_eq!(other, "None");
                    Locked::None
                }
            },
        }
    }
}

/// The tasks that take locks. The other tasks act as holders of the keys that they ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    All,
    Writers,
    None,
}

impl Locked {
    pub fn is_real(self, reads: bool) -> bool {
        match self {
            Locked::All => true,
            Locked::Writers => !reads,
            Locked::None => false,
        }
    }
}

/// Returns the name of a lock.
pub fn name(key: usize) -> String {
    format!("torture:{key}")
}

/// Returns the locks of a node of the torture.
///
/// # Panics
/// If the locks cannot be built.
pub async fn build(orders: &Orders) -> Locks {
    let built = match orders.locked {
        Locked::None => Ok(Locks::memory()),
        Locked::All | Locked::Writers => {
            let builder = crate::help::builder().lease(orders.lease).lazy();
            // About half of the nodes keep their leases.
            let keeps = std::process::id().is_multiple_of(2) && !orders.is_quorum();
            let builder = builder.keep(if keeps { orders.lease } else { Duration::ZERO });
            let like = redis::Client::open("redis://127.0.0.1/").expect("a good URL");
            if orders.is_quorum() {
                let clients = orders.quorum.iter().map(|url| redis::Client::open(&**url));
                let clients = clients.collect::<Result<_, _>>().expect("good URLs");
                builder.quorum(clients, orders.lease).await
            } else if !orders.cluster.is_empty() {
                builder.cluster(&orders.cluster, like).await
            } else if orders.sentinels.is_empty() {
                builder.connect(&orders.url).await
            } else {
                let builder = builder.recovery(Recovery::Always {
                    longest: orders.lease,
                    lag: LAG,
                });
                builder.sentinel(NAME, &orders.sentinels, like).await
            }
        }
    };
    built.expect("locks")
}

/// How long an old master may accept writes: the replicas' longest lag, and two seconds.
const LAG: Duration = Duration::from_secs(3);

/// The number of permits.
pub const PERMITS: u32 = 3;
/// The name of the semaphore.
pub const SEMAPHORE: &str = "torture";

/// The key with holdings that are longer than a lease.
pub const LONG: usize = 0;

/// A file of eight bytes.
pub fn counter(dir: &std::path::Path, key: usize) -> File {
    let path = dir.join(format!("counter-{key}"));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path);
    file.expect("a counter")
}

pub fn count(counter: &File) -> u64 {
    let mut bytes = [0; 8];
    match counter.read_at(&mut bytes, 0) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}
