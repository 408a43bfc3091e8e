//! A check of the user's connection pool against the client that is given with it.
//!
//! The store opens all its connections from the client, never from the pool, for two reasons. A pool made from a URL
//! gives no access to the socket options: it uses Nagle's algorithm, which costs a second round trip under load. And a
//! connection from the pool is shared with the user's commands. So the store only asks whether the pool leads to the
//! same server.

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};

use crate::store::redis::decode::{field, result, text};
use crate::store::redis::tls;

/// A connection pool of the user.
pub(crate) type Pool = bb8::Pool<bb8_redis::RedisConnectionManager>;

/// Returns whether a pool and a client lead to the same server and database. A value that the Redis user may not read
/// counts as equal.
///
/// Must run on the caller's own runtime, because the pool runs code of the user.
pub(super) async fn is_same_server(pool: &Pool, client: &Client) -> RedisResult<bool> {
    tls::install_provider(client.get_connection_info().addr());
    let of_pool = ServerIdentity::of(pool.dedicated_connection().await?).await?;
    let of_client = ServerIdentity::of(client.get_multiplexed_async_connection().await?).await?;
    Ok(may_be_equal(of_pool.server, of_client.server) && may_be_equal(of_pool.database, of_client.database))
}

fn may_be_equal(one: Option<String>, other: Option<String>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// The identity of a connection's server and database. A field is `None` if the Redis user may not read it.
struct ServerIdentity {
    /// The server's run id, which is new each time the server starts.
    server: Option<String>,
    database: Option<String>,
}

impl ServerIdentity {
    async fn of(mut connection: MultiplexedConnection) -> RedisResult<ServerIdentity> {
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("server");
        questions.cmd("CLIENT").arg("INFO");
        let answers = connection.send_packed_commands(&questions, 0, 2).await?;
        let mut answers = answers
            .into_iter()
            .map(|answer| result(answer).ok().and_then(text));
        let server = answers.next().flatten();
        let client = answers.next().flatten().unwrap_or_default();
        let database = client
            .split_whitespace()
            .find_map(|word| word.strip_prefix("db="));
        Ok(ServerIdentity {
            server: server.and_then(|info| field(&info, "run_id").map(str::to_owned)),
            database: database.map(str::to_owned),
        })
    }
}
