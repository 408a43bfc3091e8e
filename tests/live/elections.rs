//! Elections, on a real server.

use tenure::Locks;

use crate::help::{Eyes, ms};
use crate::server::RedisServer;

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let make = async |name| {
        let builder = Locks::builder().lease(ms(5_000)).request_timeout(ms(10_000));
        builder.node_name(name).redis(&server.url()).await.unwrap()
    };
    (make("one").await, make("other").await, server)
}

/// Whoever watched is forgotten within a lease.
async fn is_empty(server: RedisServer) {
    Eyes::on(&server).until_empty().await;
}

crate::laws_of_elections!(nodes, is_empty);
