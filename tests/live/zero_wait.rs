//! Waits of zero, on a real server: an answer takes a round trip, and a wait of zero does not end before it.

use tenure::Locks;

use crate::help::{locks, ms};
use crate::server::RedisServer;

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(20_000)).await,
        locks(&server.url(), ms(20_000)).await,
    );
    (one, other, server)
}

crate::laws_of_zero_waits!(nodes);
