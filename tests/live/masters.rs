//! The masters of a quorum, which a test starts, kills, and starts again empty.
//!
//! The functions block until the servers report what was asked for.

use std::time::Duration;

use redis::RedisResult;
use tenure::Builder;
use tenure::{Guard, Locks, Mutex};

use crate::deployment::{eventually, info, query};
use crate::help::{Canary, ms};
use crate::server::RedisServer;

/// Independent masters. All are killed when it is dropped.
pub struct Masters(pub Vec<RedisServer>);

impl Masters {
    pub fn start(count: usize) -> Self {
        Masters((0..count).map(|_| RedisServer::start()).collect())
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(RedisServer::url).collect()
    }

    /// Returns a node whose leases last this long. A recovery is longer by the margin.
    pub async fn locks(&self, lease: Duration) -> Locks {
        // A busy machine does not answer within less.
        let builder = crate::help::builder().lease(lease).request_timeout(ms(5_000));
        locks_of(&self.urls(), lease, builder).await
    }

    /// Returns the index of each master.
    pub fn all(&self) -> Vec<usize> {
        (0..self.0.len()).collect()
    }

    pub fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }

    /// Returns whether a master has a vote: a node has compared its run, and its recovery is over.
    pub fn votes(&self, at: usize) -> bool {
        let master = &self.0[at];
        let run = format!("{}:{}", info(master, "run_id"), info(master, "master_replid"));
        let recorded = query::<Option<String>>(master, &["GET", "tenure1:run"]);
        // The run is recorded together with the recovery, so the recovery is read later.
        recorded.is_ok_and(|recorded| recorded == Some(run))
            && query::<u8>(master, &["EXISTS", "tenure1:recovering"]).is_ok_and(|recovers| recovers == 0)
    }

    /// Waits until these masters have a vote.
    pub fn until_votes(&self, masters: &[usize]) {
        for at in masters {
            eventually("the master votes", || self.votes(*at).then_some(()));
        }
    }

    /// Waits until a node has compared the run of each master.
    pub fn until_used(&self) {
        for at in 0..self.0.len() {
            eventually("the run is recorded", || {
                let recorded = query::<u8>(&self.0[at], &["EXISTS", "tenure1:run"]);
                recorded.is_ok_and(|recorded| recorded == 1).then_some(())
            });
        }
    }

    /// Ends all recoveries. Nothing was granted before the first use of the masters.
    pub fn end_recoveries(&self) {
        for master in &self.0 {
            let _: u8 = query(master, &["DEL", "tenure1:recovering"]).expect("the master answers");
        }
    }

    /// Returns the owner that a record on a master names: everything in front of the number of the grant.
    pub fn owner(&self, at: usize, record: &str) -> Option<String> {
        let record: Option<String> = query(&self.0[at], &["GET", record]).ok()?;
        Some(record?.rsplit_once(':').expect("a grant number").0.to_owned())
    }

    /// Returns the owner that a majority of the masters names.
    pub fn owner_by_majority(&self, record: &str) -> Option<String> {
        let owners = (0..self.0.len()).filter_map(|at| self.owner(at, record));
        let owners: Vec<_> = owners.collect();
        let has_majority = |owner: &&String| {
            let same = owners.iter().filter(|other| other == owner);
            same.count() >= self.majority()
        };
        owners.iter().find(has_majority).cloned()
    }

    /// Waits until the lease that has this record is on these masters, too, or has ended. A renewal writes the record again.
    pub fn until_renewed(&self, record: &str, masters: &[usize]) {
        let Some(owner) = self.owner_by_majority(record) else {
            return;
        };
        for at in masters {
            eventually("a renewal writes the record again", || {
                let is_back = self.owner(*at, record).as_ref() == Some(&owner);
                (is_back || self.owner_by_majority(record).as_ref() != Some(&owner)).then_some(())
            });
        }
    }
}

/// Returns whether no lease was lost. A machine that stalled for a part of a lease gets another round, three in all.
pub fn is_none_lost(guards: &[Guard], lease: Duration, canary: &Canary, round: u32) -> bool {
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let stall = canary.worst();
    println!("{lost} of {} leases lost, largest stall {stall:?}", guards.len());
    assert!(
        lost == 0 || stall > lease / 4 && round < 3,
        "{lost} leases are lost"
    );
    lost == 0
}

/// Returns a node on the quorum of these masters.
pub async fn locks_of(urls: &[String], longest: Duration, builder: Builder) -> Locks {
    let clients = urls.iter().map(|url| redis::Client::open(&**url));
    let clients = clients.collect::<RedisResult<_>>().expect("good URLs");
    builder
        .quorum(clients, longest)
        .await
        .expect("a majority answers")
}

/// Returns the locks with these names.
pub fn mutexes(locks: &Locks, names: &[String]) -> Vec<Mutex> {
    names.iter().map(|name| locks.mutex(&**name)).collect()
}
