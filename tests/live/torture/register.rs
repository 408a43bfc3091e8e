//! The register that refuses old fences, on a Redis that has no faults.

use redis::aio::MultiplexedConnection;

use crate::torture::orders::name;

/// A reader records its fence: from then on older writers are refused. Otherwise a stale write could come between the
/// read and the write of another holder. Fences are above 2^53, so they are compared as text of one length.
const READ: &str = "
    local last = redis.call('HGET', KEYS[1], 'fence') or ''
    if ARGV[1] < last then redis.call('HINCRBY', KEYS[1], 'refused', 1) return -1 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1])
    return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)";
const WRITE: &str = "
    local last = redis.call('HGET', KEYS[1], 'fence') or ''
    if ARGV[1] < last then redis.call('HINCRBY', KEYS[1], 'refused', 1) return -1 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
    return redis.call('HINCRBY', KEYS[1], 'accepted', 1)";
/// Reads for a reader beside other readers: their fences may come in any order.
const LOOK: &str = "
    local last = redis.call('HGET', KEYS[1], 'fence') or ''
    if ARGV[1] > last then redis.call('HSET', KEYS[1], 'fence', ARGV[1]) end
    return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)";

pub struct Register {
    connection: MultiplexedConnection,
    pub read: redis::Script,
    pub write: redis::Script,
    pub look: redis::Script,
}

impl Register {
    pub async fn connect(url: &str) -> Register {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let client = redis::Client::open(url).expect("a good URL");
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Register {
            connection: connection.expect("the register answers"),
            read: redis::Script::new(READ),
            write: redis::Script::new(WRITE),
            look: redis::Script::new(LOOK),
        }
    }

    /// Runs one of the scripts on a key for the holder of this fence. Returns its answer; a negative number: refused.
    pub async fn call(&self, script: &redis::Script, key: usize, fence: &str, value: Option<i64>) -> i64 {
        let mut call = script.key(name(key));
        call.arg(fence).arg(value);
        let answer = call.invoke_async(&mut self.connection.clone()).await;
        answer.expect("the register")
    }
}
