//! A pool of the user's, and the client beside it.
//!
//! All connections of ours come from the client. A pool's manager keeps its own to itself and leaves no say in the
//! options: made from a URL it has Nagle's algorithm on, which costs a second trip under load, and a connection that is
//! checked out is shared with the user's commands. So the pool is asked one thing, whether it leads to the same place.

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};

use crate::store::redis::link::{field, result, text};
use crate::store::redis::tls;

/// A pool of the user's.
pub(crate) type Pool = bb8::Pool<bb8_redis::RedisConnectionManager>;

/// Whether a pool and a client lead to one server and database. What a user may not ask for differs from nothing.
///
/// For the caller's own runtime: the pool runs code of the user's.
pub(super) async fn is_same_place(pool: &Pool, client: &Client) -> RedisResult<bool> {
    tls::provide(client.get_connection_info().addr());
    let theirs = Place::of(pool.dedicated_connection().await?).await?;
    let ours = Place::of(client.get_multiplexed_async_connection().await?).await?;
    Ok(is_same(theirs.server, ours.server) && is_same(theirs.database, ours.database))
}

fn is_same(one: Option<String>, other: Option<String>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// Where a connection leads.
struct Place {
    /// A new one each time a server is started.
    server: Option<String>,
    database: Option<String>,
}

impl Place {
    async fn of(mut connection: MultiplexedConnection) -> RedisResult<Place> {
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
        Ok(Place {
            server: server.and_then(|info| field(&info, "run_id").map(str::to_owned)),
            database: database.map(str::to_owned),
        })
    }
}
