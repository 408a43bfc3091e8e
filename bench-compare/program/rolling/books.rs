//! The records of what the replicas did, in the same Redis. A script writes each entry, and reports a fault if it finds one.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Script};

/// The weight of an exclusive holder, which fills the whole capacity.
pub const WHOLE: u32 = 1_000;

/// Adds a holder. `KEYS`: the holders. `ARGV`: id, replica, weight, capacity.
/// Holders in killed replicas do not count: their leases expire.
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
         local sum, all = 0, redis.call('HGETALL', KEYS[1])
         for i = 2, #all, 2 do
           local replica, weight = string.match(all[i], '^(%d+) (%d+)$')
           if redis.call('SISMEMBER', 'rolling:dead', replica) == 0 then sum = sum + weight end
         end
         if sum > tonumber(ARGV[4]) then
           redis.call('RPUSH', 'rolling:faults', KEYS[1] .. ' holds ' .. sum .. ' of ' .. ARGV[4] .. ': ' .. table.concat(all, ', '))
         end",
    )
});

/// Checks that the fence of an exclusive holder grows. `KEYS`: the latest fence. `ARGV`: the fence, as text that sorts as its
/// number.
static FENCE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local latest = redis.call('GET', KEYS[1])
         if latest and latest >= ARGV[1] then
           redis.call('RPUSH', 'rolling:faults', KEYS[1] .. ' ' .. ARGV[1] .. ' after ' .. latest)
         end
         redis.call('SET', KEYS[1], ARGV[1])",
    )
});

/// Adds a run of a tick. `KEYS`: the runs of the tick. `ARGV`: replica, attempt. A second run is allowed only after a kill.
static RUN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local runs = redis.call('LRANGE', KEYS[1], 0, -1)
         redis.call('RPUSH', KEYS[1], ARGV[1])
         local is_wrong = #runs >= tonumber(ARGV[2])
         for _, replica in ipairs(runs) do
           if redis.call('SISMEMBER', 'rolling:dead', replica) == 0 then is_wrong = true end
         end
         if is_wrong then
           redis.call('RPUSH', 'rolling:faults', KEYS[1] .. ' attempt ' .. ARGV[2] .. ' of ' .. ARGV[1] .. ' after ' .. table.concat(runs, ', '))
         end",
    )
});

/// One replica's connection to the records.
#[derive(Clone)]
pub struct Books {
    connection: MultiplexedConnection,
    side: String,
    replica: String,
}

impl Books {
    pub async fn open(url: &str, side: &str, replica: &str) -> Books {
        let client = redis::Client::open(url).expect("a URL");
        let connection = client.get_multiplexed_async_connection().await;
        Books {
            connection: connection.expect("the server is there"),
            side: side.to_owned(),
            replica: replica.to_owned(),
        }
    }

    pub async fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let answer = command.query_async(&mut self.connection).await;
        answer.expect("the server is there")
    }

    async fn call(&mut self, script: &Script, key: &str, words: &[&str]) {
        let mut call = script.key(key);
        words.iter().for_each(|word| {
            call.arg(*word);
        });
        let (): () = call
            .invoke_async(&mut self.connection)
            .await
            .expect("the server is there");
    }

    pub async fn enter(&mut self, what: &str, id: &str, weight: u32, capacity: u32) {
        let replica = self.replica.clone();
        let words = [id, &replica, &weight.to_string(), &capacity.to_string()];
        self.call(&ENTER, &format!("rolling:holders:{what}"), &words)
            .await;
    }

    pub async fn leave(&mut self, what: &str, id: &str) {
        let _: u32 = self.run(&["HDEL", &format!("rolling:holders:{what}"), id]).await;
    }

    pub async fn fence(&mut self, what: &str, fence: u64) {
        self.call(
            &FENCE,
            &format!("rolling:fence:{what}"),
            &[&format!("{fence:020}")],
        )
        .await;
    }

    pub async fn tick(&mut self, tick: u64, attempt: u32) {
        let replica = self.replica.clone();
        self.call(
            &RUN,
            &format!("rolling:tick:{tick}"),
            &[&replica, &attempt.to_string()],
        )
        .await;
    }

    /// Adds one: reads, waits and writes. Two holders at once lose an addition.
    pub async fn add(&mut self, counter: &str) {
        let [value, added] = ["value", "added"].map(|what| format!("rolling:{what}:{counter}"));
        let found: Option<u64> = self.run(&["GET", &value]).await;
        tokio::time::sleep(std::time::Duration::from_micros(200)).await;
        let mut write = redis::pipe();
        write.atomic();
        write.cmd("SET").arg(value).arg(found.unwrap_or(0) + 1);
        write.cmd("INCR").arg(added);
        write
            .exec_async(&mut self.connection)
            .await
            .expect("the server is there");
    }

    /// Returns the value of a counter, and the number of additions to it.
    pub async fn counter(&mut self, counter: &str) -> (u64, u64) {
        let [value, added] = ["value", "added"].map(|what| format!("rolling:{what}:{counter}"));
        self.run(&["MGET", &value, &added]).await
    }

    pub async fn fault(&mut self, text: &str) {
        let text = format!("{text} (replica {} of {})", self.replica, self.side);
        let _: u32 = self.run(&["RPUSH", "rolling:faults", &text]).await;
    }

    pub async fn faults(&mut self) -> Vec<String> {
        self.run(&["LRANGE", "rolling:faults", "0", "-1"]).await
    }

    /// Records that a replica is about to be killed.
    pub async fn declare_dead(&mut self, replica: &str) {
        let _: u32 = self.run(&["SADD", "rolling:dead", replica]).await;
    }

    /// Counts work that this version has done.
    pub async fn note(&mut self, what: &str) {
        let side = format!("rolling:done:{}", self.side);
        let _: u64 = self.run(&["HINCRBY", &side, what, "1"]).await;
    }

    pub async fn done(&mut self, side: &str, what: &str) -> u64 {
        let found: Option<u64> = self.run(&["HGET", &format!("rolling:done:{side}"), what]).await;
        found.unwrap_or(0)
    }
}
