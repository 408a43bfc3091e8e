//! The accounts. They live in the Redis that the locks are in, and know nothing of locks.

use std::collections::BTreeSet;

use redis::aio::MultiplexedConnection;

use crate::help::ms;

pub const PREFIX: &str = "books:";
pub const ACCOUNTS: u64 = 4;
const OPENED_WITH: i64 = 1_000_000_000;
const AMOUNT: i64 = 10;

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

    /// Reads, thinks, writes. Who asks again gets the same answer.
    pub async fn withdraw(&self, id: u64, attempt: &str) -> i64 {
        let done = format!("{PREFIX}done:{attempt}");
        if let Some(left) = self.get(done.clone()).await {
            return left;
        }
        let left: i64 = self.get::<i64>(balance(id)).await - AMOUNT;
        tokio::time::sleep(ms(fastrand::u64(1..6))).await;
        let mut write = redis::pipe();
        write.atomic().set(balance(id), left).ignore();
        write.set(done, left).ignore();
        write.rpush(journal(id), attempt).ignore();
        write.query_async::<()>(&mut self.0.clone()).await.unwrap();
        left
    }

    /// What is wrong, when each client stayed until it was told that its withdrawal was done.
    pub async fn audit(&self, accepted: &[String]) -> Vec<String> {
        let (mut wrong, mut done) = (Vec::new(), BTreeSet::new());
        for id in 0..ACCOUNTS {
            let mut list = redis::cmd("LRANGE");
            let written: Vec<String> = self.ask(list.arg(journal(id)).arg(0).arg(-1)).await;
            let left: i64 = self.get(balance(id)).await;
            let expected = OPENED_WITH - AMOUNT * written.len() as i64;
            if left != expected {
                wrong.push(format!(
                    "account {id} has {} too much after {} withdrawals",
                    left - expected,
                    written.len()
                ));
            }
            for attempt in written {
                if done.contains(&attempt) {
                    wrong.push(format!("{attempt} was done twice"));
                }
                done.insert(attempt);
            }
        }
        let accepted: BTreeSet<String> = accepted.iter().cloned().collect();
        let differ = accepted.symmetric_difference(&done);
        wrong.extend(differ.map(|attempt| format!("{attempt} was accepted or done, but not both")));
        wrong
    }
}
