//! The accounts. They live in the Redis that the locks are in, and know nothing of locks.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;

use crate::help::ms;
use crate::requests::orders::Order;

pub const PREFIX: &str = "books:";
pub const ACCOUNTS: u64 = 4;
const OPENED_WITH: i64 = 1_000_000_000;

#[derive(Clone)]
pub struct Ledger(MultiplexedConnection);

fn balance(id: u64) -> String {
    format!("{PREFIX}balance:{id}")
}

fn journal(id: u64) -> String {
    format!("{PREFIX}journal:{id}")
}

impl Ledger {
    pub async fn connect(url: &str) -> Ledger {
        let client = redis::Client::open(url).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ledger(connection.await.unwrap())
    }

    pub async fn open(&self) {
        for id in 0..ACCOUNTS {
            let mut set = redis::cmd("SET");
            set.arg(balance(id)).arg(OPENED_WITH);
            self.ask::<()>(&set).await;
        }
    }

    async fn ask<T: redis::FromRedisValue>(&self, cmd: &redis::Cmd) -> T {
        cmd.query_async(&mut self.0.clone()).await.unwrap()
    }

    async fn get<T: redis::FromRedisValue>(&self, key: String) -> T {
        self.ask(redis::cmd("GET").arg(key)).await
    }

    /// Reads, thinks, writes, and answers what is left to the account that pays. A client that asks again gets the same answer.
    pub async fn carry_out(&self, order: Order, attempt: &str) -> i64 {
        let done = format!("{PREFIX}done:{attempt}");
        if let Some(left) = self.get(done.clone()).await {
            return left;
        }
        let mut write = redis::pipe();
        write.atomic();
        let mut left = Vec::new();
        for (id, change) in order.changes() {
            let changed = self.get::<i64>(balance(id)).await + change;
            write.set(balance(id), changed).ignore();
            write.rpush(journal(id), format!("{attempt} {change}")).ignore();
            left.push(changed);
        }
        tokio::time::sleep(ms(fastrand::u64(1..6))).await;
        write.set(done, left[0]).ignore();
        write.query_async::<()>(&mut self.0.clone()).await.unwrap();
        left[0]
    }

    /// What is wrong, when each client stayed until it was told that its order was done.
    pub async fn audit(&self, accepted: &BTreeMap<String, Order>) -> Vec<String> {
        let (mut wrong, mut done) = (Vec::new(), BTreeMap::<String, Vec<(u64, i64)>>::new());
        let mut all = 0;
        for id in 0..ACCOUNTS {
            let mut list = redis::cmd("LRANGE");
            let written: Vec<String> = self.ask(list.arg(journal(id)).arg(0).arg(-1)).await;
            let left: i64 = self.get(balance(id)).await;
            let mut expected = OPENED_WITH;
            for line in &written {
                let (attempt, change) = line.split_once(' ').unwrap();
                let change: i64 = change.parse().unwrap();
                expected += change;
                done.entry(attempt.to_owned()).or_default().push((id, change));
            }
            if left != expected {
                wrong.push(format!(
                    "account {id} has {} too much after {} orders",
                    left - expected,
                    written.len()
                ));
            }
            all += left;
        }
        let mut expected = ACCOUNTS as i64 * OPENED_WITH;
        for (attempt, order) in accepted {
            let mut changes = order.changes();
            expected += changes.iter().map(|(_, change)| change).sum::<i64>();
            changes.sort_unstable();
            let done = done.remove(attempt).unwrap_or_default();
            if done != changes {
                wrong.push(format!(
                    "{attempt} was accepted for {changes:?}, and did {done:?}"
                ));
            }
        }
        if all != expected {
            wrong.push(format!("all accounts have {} too much", all - expected));
        }
        wrong.extend(
            done.keys()
                .map(|attempt| format!("{attempt} was done, not accepted")),
        );
        wrong
    }
}
