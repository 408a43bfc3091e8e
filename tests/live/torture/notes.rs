//! Guarded writes in the torture: a holder adds its fence to a list on the locks' own server, if its lease is current. Many
//! holders try that after the end of their lease.
//!
//! The list has every write with the answer done, and no refused write. Its order is the order of the fences. Only the
//! writes that no replica had may be lost with a master.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure::Error;
use tokio::time::sleep;

use crate::server::RedisServer;
use crate::torture::journal::now;
use crate::torture::orders::{Locked, Orders, name};
use crate::torture::referee::{Case, Findings, Hold, Tally, show};
use crate::torture::worker::{Held, Worker};

/// The prefix of the keys that are left on the server.
pub const PREFIX: &str = "notes:";

/// Returns the name of a list. It is in the slot of the lock's record, because a write is executed in one slot.
pub fn list(key: usize) -> String {
    format!("{PREFIX}{{lock:{}}}", name(key))
}

/// Returns the written fences, in their order.
pub fn written(server: &RedisServer, key: usize) -> Vec<u64> {
    let mut range = redis::cmd("LRANGE");
    range.arg(list(key)).arg(0).arg(-1);
    range.query(&mut server.client()).expect("a list of fences")
}

/// The connection of a writer without a lock.
pub struct Plain(MultiplexedConnection);

impl Plain {
    pub async fn connect(orders: &Orders) -> Option<Plain> {
        if orders.locked != Locked::None {
            return None;
        }
        let client = redis::Client::open(&*orders.url).expect("a good URL");
        let connection = client.get_multiplexed_async_connection().await;
        Some(Plain(connection.expect("the server is there")))
    }
}

/// The number of each answer to the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notes {
    /// No answer: the write may have been done.
    unanswered: u64,
    done: u64,
    /// The number of writes with the answer done that cannot be lost with a master.
    kept: u64,
    refused: u64,
}

impl Notes {
    pub fn read(&mut self, word: &str, may_be_lost: bool) {
        match word {
            "asked" => return self.unanswered += 1,
            "done" => {
                self.done += 1;
                self.kept += u64::from(!may_be_lost);
            }
            _ => self.refused += 1,
        }
        self.unanswered -= 1;
    }
}

impl Worker {
    /// Notes its fence repeatedly, so that a write is in flight when a fault comes.
    pub async fn notes(&self, id: u64, held: &Held, key: usize, span: Duration) {
        let end = now() + span.as_nanos() as u64;
        while held.is_held() && now() < end {
            self.note(id, held, key).await;
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Notes its fence, also if the lease is not held.
    pub async fn note(&self, id: u64, held: &Held, key: usize) {
        // No server of a quorum knows whether the lease is current.
        if self.orders.is_quorum() {
            return;
        }
        let note = |what| self.journal.write(now(), format_args!("note {id} {what}"));
        let fence = held.fence();
        match (held, &self.plain) {
            (Held::Real(guard), _) => {
                note("asked");
                let write = guard.atomically().command("RPUSH").key(list(key)).arg(fence);
                match write.query::<(u64,)>().await {
                    Ok(_) => note("done"),
                    Err(Error::Unanswered { .. }) => {}
                    Err(Error::Lost { .. }) => note("not"),
                    Err(error) => {
                        note("not");
                        self.failed(key, &error);
                    }
                }
            }
            (Held::Pretended(_), Some(Plain(connection))) => {
                note("asked");
                let mut push = redis::cmd("RPUSH");
                push.arg(list(key)).arg(fence);
                let pushed = push.query_async::<u64>(&mut connection.clone()).await;
                pushed.expect("the server writes");
                note("done");
            }
            (Held::Pretended(_), None) => {}
        }
    }
}

pub fn judge(case: &Case, key: usize, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    let by_fence: HashMap<u64, &Hold> = holds.iter().map(|hold| (hold.fence, *hold)).collect();
    let mut times: HashMap<u64, u64> = HashMap::new();
    let (mut of_writers, mut of_all) = (0, 0);
    for fence in &case.notes[key] {
        *times.entry(*fence).or_default() += 1;
        let Some(hold) = by_fence.get(fence) else {
            findings.add("a note without a holder", format!("key {key}: {fence}"));
            continue;
        };
        // Readers share the key, so they have no order.
        if *fence < if hold.reads { of_writers } else { of_all } {
            findings.add("written when the lease was over", show(case, hold));
        }
        of_all = of_all.max(*fence);
        if !hold.reads {
            of_writers = of_writers.max(*fence);
        }
    }
    for hold in holds {
        let times = times.get(&hold.fence).copied().unwrap_or_default();
        let Notes {
            unanswered,
            done,
            kept,
            refused,
        } = hold.notes;
        if !(kept..=done + unanswered).contains(&times) {
            let text = format!("{:?}, written {times} times: {}", hold.notes, show(case, hold));
            findings.add("a note that is off", text);
        }
        tally.notes += done;
        tally.notes_unanswered += unanswered;
        tally.notes_refused += refused;
    }
}
