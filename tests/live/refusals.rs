//! Requests whose answer is lost and whose repeat is refused, and holders whose request is refused.

use std::time::Duration;

use tenure::error::StoreErrorKind;
use tenure::{Error, Guard, Locks, Transfer, TransferError};

use crate::help::{Eyes, addr, held, locks, ms, soon, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

const MINUTE: Duration = Duration::from_secs(60);

/// How a server refuses what it is asked.
const REFUSALS: [&str; 3] = [
    "REPLICAOF 127.0.0.1 1",
    "ACL SETUSER default -evalsha",
    "CONFIG SET min-replicas-to-write 1",
];

/// A server, with a node that reaches it directly and one that does so by a proxy, and a server that refuses.
struct World {
    server: RedisServer,
    refuser: RedisServer,
    proxy: Proxy,
    near: Locks,
    far: Locks,
    cuts: [u64; 2],
}

impl World {
    async fn new(refusal: &str) -> World {
        let (server, refuser) = (RedisServer::start(), RedisServer::start());
        let _: String = Eyes::on(&refuser).text(refusal);
        let proxy = Proxy::start(addr(&server));
        // A server that takes no connections counts as down after this.
        let far = crate::help::builder()
            .lease(ms(60_000))
            .request_timeout(ms(2_000));
        World {
            near: locks(&server.url(), ms(60_000)).await,
            far: far.connect(&url(proxy.addr())).await.unwrap(),
            server,
            refuser,
            proxy,
            cuts: [0; 2],
        }
    }

    /// The answer to the next request about this is lost, and its repeat comes to the server that refuses.
    fn refuses_the_repeat(&mut self, needle: impl Into<Vec<u8>>) {
        self.cuts = self.proxy.counts().cut;
        self.proxy.redirect(addr(&self.refuser));
        self.proxy.cut_reply_to(needle);
    }

    /// The far node was told that the outcome of its request is unknown. Has it answered again.
    async fn was_told_as_unknown<T: std::fmt::Debug>(&self, told: Result<T, Error>) {
        let unknown = matches!(
            &told,
            Err(Error::Store { source, .. })
                if matches!(source.kind(), StoreErrorKind::TimedOut | StoreErrorKind::Interrupted)
        );
        assert!(unknown, "{told:?}");
        assert_ne!(self.proxy.counts().cut, self.cuts, "its answer was lost");
        self.proxy.redirect(addr(&self.server));
        self.proxy.reset();
        soon(async {
            while self.far.ping().await.is_err() {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_counted_is_not_told_as_refused() {
    for refusal in REFUSALS {
        let mut world = World::new(refusal).await;
        let (near, far) = (world.near.latch("parts"), world.far.latch("parts"));
        world.refuses_the_repeat("parts");
        let told = soon(far.try_set_count(5)).await;
        world.was_told_as_unknown(told).await;
        assert_eq!(soon(near.count()).await.unwrap(), 5, "it was set");
        world.refuses_the_repeat("parts");
        let told = soon(far.count_down()).await;
        world.was_told_as_unknown(told).await;
        assert_eq!(soon(near.count()).await.unwrap(), 4, "it was counted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_proclaimed_is_not_told_as_refused() {
    for refusal in REFUSALS {
        let mut world = World::new(refusal).await;
        let election = world.far.election("region");
        let leader = soon(election.campaign()).await.unwrap();
        world.refuses_the_repeat("region");
        let told = soon(election.proclaim("v2")).await;
        world.was_told_as_unknown(told).await;
        let seen = soon(world.near.election("region").leader()).await.unwrap();
        assert_eq!(seen.unwrap().value(), Some(&b"v2"[..]));
        soon(leader.release()).await.unwrap();
    }
}

fn holder_of(transfer: &Transfer) -> String {
    let text = transfer.to_string();
    text.split('.').nth(4).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_is_gone_is_not_told_as_refused() {
    for refusal in REFUSALS {
        let mut world = World::new(refusal).await;
        for adopts in [false, true] {
            let guard = held(&world.near, "order").await;
            let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
            world.refuses_the_repeat(holder_of(&transfer));
            let told = match adopts {
                true => soon(world.far.adopt(&transfer)).await.map(drop),
                false => soon(world.far.release_transfer(&transfer)).await,
            };
            world.was_told_as_unknown(told).await;
            let gone = soon(world.near.adopt(&transfer)).await;
            assert!(matches!(gone, Err(Error::Gone { .. })), "{gone:?}");
            // A lease that was adopted without a guard is given back.
            soon(held(&world.near, "order").await.release()).await.unwrap();
        }
    }
}

fn failed<T: std::fmt::Debug>(told: Result<T, TransferError>) -> Result<T, Error> {
    told.map_err(|error| match error {
        TransferError::Failed(error) => error,
        refused => panic!("{refused:?}"),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_given_back_or_up_is_not_told_as_refused() {
    for refusal in REFUSALS {
        let mut world = World::new(refusal).await;
        for ending in 0..3 {
            let guard = held(&world.far, "order").await;
            world.refuses_the_repeat("order");
            let told = match ending {
                0 => soon(guard.release()).await,
                1 => failed(soon(guard.into_transfer(MINUTE)).await).map(drop),
                _ => failed(soon(guard.downgrade()).await).map(drop),
            };
            world.was_told_as_unknown(told).await;
            soon(held(&world.near, "order").await.release()).await.unwrap();
        }
    }
}

/// Nothing of it was executed, so the guard goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_whose_request_is_refused_is_still_held() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    let kept = |told: Result<Guard, TransferError>| match told {
        Err(TransferError::Refused(guard, Error::Store { source, .. })) => {
            assert!(matches!(source.kind(), StoreErrorKind::Refused(_)), "{source:?}");
            guard
        }
        told => panic!("{told:?}"),
    };
    let guard = held(&one, "order").await;
    let (fence, owner) = (guard.fence(), eyes.owner("order"));
    let _: String = eyes.text("ACL SETUSER default -evalsha");
    let guard = kept(soon(guard.downgrade()).await);
    assert!(guard.is_held() && guard.fence() == fence);
    let never = async |guard: Guard| {
        guard
            .into_transfer(MINUTE)
            .await
            .map(|_| panic!("it was given up"))
    };
    let guard = kept(soon(never(guard)).await);
    assert!(guard.is_held() && guard.fence() == fence);
    assert_eq!(eyes.owner("order"), owner, "as it was");
    let _: String = eyes.text("ACL SETUSER default +evalsha");
    assert!(soon(other.mutex("order").try_lock()).await.unwrap().is_none());
    let reader = soon(guard.downgrade()).await.unwrap();
    assert!(reader.fence() > fence);
    soon(reader.release()).await.unwrap();
    soon(held(&other, "order").await.release()).await.unwrap();
    eyes.until_empty().await;
}

/// The connection is cut before the server reads the request, and when its answer is on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_is_cut_off_becomes_a_reader() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let near = locks(&server.url(), ms(60_000)).await;
    let far = locks(&url(proxy.addr()), ms(60_000)).await;
    for direction in [Direction::Requests, Direction::Replies] {
        let writer = soon(far.rw_lock("prices").write()).await.unwrap();
        let (cuts, fence) = (proxy.counts().cut, writer.fence());
        proxy.set_existing(direction, Flow::Cut);
        let reader = soon(writer.downgrade()).await.unwrap();
        assert_ne!(proxy.counts().cut, cuts, "it was cut off");
        assert!(reader.is_held() && reader.fence() > fence);
        let beside = soon(near.rw_lock("prices").read()).await.unwrap();
        assert!(soon(near.rw_lock("prices").try_write()).await.unwrap().is_none());
        soon(beside.release()).await.unwrap();
        soon(reader.release()).await.unwrap();
    }
    Eyes::on(&server).until_empty().await;
}
