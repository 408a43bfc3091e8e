//! Waits of zero, on a real server: an answer takes a round trip, and a wait of zero does not end before it.

use tenure::Locks;

use crate::help::{addr, locks, ms, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Behind a wire that is slower than the shortest timer: an answer never comes by chance before the end of a wait of zero.
async fn nodes() -> (Locks, Locks, (RedisServer, Proxy)) {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let (one, other) = (
        locks(&url(proxy.addr()), ms(20_000)).await,
        locks(&server.url(), ms(20_000)).await,
    );
    proxy.set(Direction::Both, Flow::Delay(ms(10)));
    (one, other, (server, proxy))
}

crate::laws_of_zero_waits!(nodes);
