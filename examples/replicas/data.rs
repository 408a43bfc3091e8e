//! The connection for the data of an example.

use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};

/// Connects to the Redis at `url`. A busy machine may answer late: redis-rs waits for half a second by default.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let patience = Some(Duration::from_secs(10));
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(patience)
        .set_response_timeout(patience);
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}
