//! rslock for interop.rs, which says on stdin what to do with it: one line of words each, one answer each.
//!
//! ```text
//! acquire NAME SECONDS PATIENCE    yes, or no when PATIENCE seconds were not enough
//! extend NAME SECONDS              yes, or no
//! release NAME                     yes, whatever became of it: it does not say
//! owned NAME                       yes or no: whether the record is that of this process
//! count NAME SECONDS               adds one to what stands in the key `counted`, in two steps under the lock, for so
//!                                  many seconds; how often
//! ```

use std::collections::HashMap;
use std::io::BufRead;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rslock::{Lock, LockManager};
use tokio::time::sleep;

const RETRY: Duration = Duration::from_millis(20);

struct Program {
    manager: LockManager,
    /// The first is to the server that has `counted`.
    connections: Vec<MultiplexedConnection>,
    locks: HashMap<String, Lock>,
}

impl Program {
    async fn acquire(&mut self, name: &str, lease: Duration, patience: Duration) -> bool {
        // Its pauses are of random length, half of that on average.
        let tries = 1 + 2 * patience.as_millis() / RETRY.as_millis();
        self.manager.set_retry(tries as u32, RETRY);
        let lock = self.manager.lock(name, lease).await;
        lock.is_ok_and(|lock| {
            self.locks.insert(name.to_owned(), lock);
            true
        })
    }

    async fn owned(&mut self, name: &str) -> bool {
        let (mut owned, value) = (0, &self.locks[name].val);
        for connection in &mut self.connections {
            let record: Option<Vec<u8>> = connection.get(name).await.unwrap();
            owned += usize::from(record.as_ref() == Some(value));
        }
        owned > self.connections.len() / 2
    }

    async fn release(&mut self, name: &str) -> bool {
        self.manager.unlock(&self.locks[name]).await;
        true
    }

    async fn count(&mut self, name: &str, span: Duration) -> u64 {
        let start = Instant::now();
        let mut added = 0;
        while start.elapsed() < span {
            let got = self.acquire(name, Duration::from_secs(60), Duration::from_secs(20)).await;
            assert!(got, "20 seconds were not enough");
            let counted: Option<u64> = self.connections[0].get("counted").await.unwrap();
            sleep(Duration::from_millis(1)).await;
            let _: () = self.connections[0].set("counted", counted.unwrap_or(0) + 1).await.unwrap();
            assert!(self.owned(name).await, "the record is not ours while we hold it");
            self.release(name).await;
            added += 1;
            sleep(Duration::from_millis(5 + start.elapsed().as_micros() as u64 % 10)).await;
        }
        added
    }

    async fn obey(&mut self, words: &[&str]) -> String {
        let seconds = |at: usize| Duration::from_secs_f64(words[at].parse().unwrap());
        let name = words[1];
        let done = match words[0] {
            "acquire" => self.acquire(name, seconds(2), seconds(3)).await,
            "extend" => self.manager.extend(&self.locks[name], seconds(2)).await.is_ok(),
            "release" => self.release(name).await,
            "owned" => self.owned(name).await,
            "count" => return self.count(name, seconds(2)).await.to_string(),
            other => panic!("what is {other}?"),
        };
        if done { "yes" } else { "no" }.to_owned()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // Several URLs, with commas between them, are masters of a quorum.
    let urls = std::env::args().nth(1).expect("a URL");
    let urls: Vec<&str> = urls.split(',').collect();
    let mut connections = Vec::new();
    for url in &urls {
        let client = redis::Client::open(*url).unwrap();
        connections.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    let manager = LockManager::new(urls);
    let mut program = Program { manager, connections, locks: HashMap::new() };
    println!("@ready rslock");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        println!("@said {}", program.obey(&words).await);
    }
}
