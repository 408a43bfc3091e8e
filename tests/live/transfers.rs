//! Leases that go from one process to another, on a real server.

use tenure::Locks;

use crate::help::{Eyes, locks, ms};
use crate::server::RedisServer;

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    (one, other, server)
}

fn is_empty(server: RedisServer) {
    let mut eyes = Eyes::on(&server);
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}

crate::laws_of_transfers!(nodes, is_empty);
