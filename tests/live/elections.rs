//! Elections, on a real server.

use std::sync::Arc;
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Fence, Lease, Locks};

use crate::help::{Eyes, addr, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let make = async |name| {
        let builder = crate::help::builder()
            .lease(ms(5_000))
            .request_timeout(ms(10_000));
        builder.node_name(name).connect(&server.url()).await.unwrap()
    };
    (make("one").await, make("other").await, server)
}

/// Waits until the server is empty. Watchers are forgotten within a lease.
async fn is_empty(server: RedisServer) {
    Eyes::on(&server).until_empty().await;
}

crate::laws_of_elections!(nodes, is_empty);

/// The delay in each direction. It is long, because a busy machine adds tens of milliseconds to each round trip.
const WAY: Duration = ms(60);

async fn behind(proxy: &Proxy) -> Locks {
    let builder = crate::help::builder()
        .lease(ms(20_000))
        .request_timeout(ms(10_000));
    builder.connect(&url(proxy.addr())).await.unwrap()
}

async fn until_waiting(locks: &Locks) {
    until("a candidate waits", || locks.waiter_count() > 0).await;
}

/// Returns the number of candidates in the queue on the server, including expired ones.
fn stand_by(eyes: &mut Eyes) -> usize {
    eyes.entries() / 2
}

/// From a resignation to the next leadership it takes one round trip: one way to the server, and one way back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resignation_hands_over_in_one_round_trip() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let proxy = Proxy::start(addr(&server));
    let nodes = [behind(&proxy).await, behind(&proxy).await];
    let mut leads = soon(nodes[0].election("relay").campaign()).await.unwrap();
    proxy.set(Direction::Both, Flow::Delay(WAY));
    let mut least = Duration::MAX;
    for round in 1..=8 {
        let next = nodes[round % 2].clone();
        let stands = tokio::spawn(async move {
            let guard = next.election("relay").campaign().await.unwrap();
            (now(), guard)
        });
        // Until the candidate has the answer that it is in the queue.
        until("the candidate waits", || stand_by(&mut eyes) == 1).await;
        tokio::time::sleep(2 * WAY).await;
        let began = now();
        let (released, stood) = soon(async { tokio::join!(leads.release(), stands) }).await;
        released.unwrap();
        let (at, guard) = stood.unwrap();
        least = least.min(at - began);
        leads = guard;
    }
    let trips = least.as_secs_f64() / (2 * WAY).as_secs_f64();
    println!("the next leads {trips:.2} trips after its predecessor resigns");
    assert!((1.0..1.6).contains(&trips), "{trips}");
    leads.release().await.unwrap();
}

/// Candidates and observers poll every third of a lease, and cost nothing in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_or_observer_costs_one_poll_per_third_of_a_lease() {
    const LEASE: Duration = ms(3_000);
    const FOR: Duration = ms(6_000);
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let nodes = async |lease| {
        crate::help::builder()
            .lease(lease)
            .connect(&server.url())
            .await
            .unwrap()
    };
    // The leader has a long lease, so its own renewals are rare.
    let leader = nodes(ms(60_000)).await;
    let guard = soon(leader.election("relay").campaign()).await.unwrap();
    let rate = async |eyes: &mut Eyes| {
        let (before, began) = (eyes.calls()["evalsha"], now());
        tokio::time::sleep(FOR).await;
        let calls = eyes.calls()["evalsha"] - before;
        calls as f64 / (now() - began).as_secs_f64() * 60.0
    };
    let follower = nodes(LEASE).await;
    let stands = tokio::spawn({
        let election = follower.election("relay");
        async move { election.campaign().await }
    });
    until_waiting(&follower).await;
    let standing_by = rate(&mut eyes).await;
    stands.abort();
    let observers = nodes(LEASE).await;
    let mut observing = Vec::new();
    for _ in 0..100 {
        let mut observer = observers.election("relay").observe();
        soon(observer.next()).await.unwrap().unwrap();
        observing.push(tokio::spawn(
            async move { while observer.next().await.is_ok() {} },
        ));
    }
    until("all observe", || observers.waiter_count() == observing.len()).await;
    let observed = rate(&mut eyes).await;
    println!(
        "with a lease of 3 s {standing_by:.0} commands a minute for a candidate, {observed:.0} for a hundred observers in a process"
    );
    // 60 polls a minute, up to a tenth earlier by jitter, one more at the edges, and the leader's renewals.
    for rate in [standing_by, observed] {
        assert!((1.0..=60.0 / 0.9 + 20.0).contains(&rate), "{rate}");
    }
    observing.iter().for_each(|observing| observing.abort());
    guard.release().await.unwrap();
}

/// The work of a leader that lost its lease is dropped. The node is a candidate again after a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_campaigns_again_after_a_pause() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(1_500);
    let locks = locks(&server.url(), lease).await;
    let (said, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let leading = tokio::spawn({
        let election = locks.election("relay");
        async move {
            let work = |lease: Lease| {
                let said = said.clone();
                async move {
                    said.send(("leads", lease.fence(), now())).unwrap();
                    let _told = Told(said, lease.clone());
                    std::future::pending::<()>().await;
                }
            };
            election.lead(work).await
        }
    });
    let mut before = None;
    for _ in 0..2 {
        let (what, fence, at) = soon(hears.recv()).await.unwrap();
        assert_eq!(what, "leads");
        if let Some((former, lost)) = before {
            assert!(fence > former);
            assert!(at - lost >= lease / 3 * 8 / 10, "{:?}", at - lost);
        }
        let records: Vec<String> = eyes.text("KEYS tenure1:e:*");
        let _: u64 = eyes.ask(&[b"DEL", records[0].as_bytes()]);
        let (what, _, lost) = soon(hears.recv()).await.unwrap();
        assert_eq!(what, "dropped");
        assert!(!locks.election("relay").is_leader());
        before = Some((fence, lost));
    }
    // A shutdown during the pause ends the campaign at once.
    locks.shutdown().await;
    let ended = soon(leading).await.unwrap();
    assert!(matches!(ended, Err(Error::Closed { .. })), "{ended:?}");
}

/// Reports that the work was dropped.
struct Told(
    tokio::sync::mpsc::UnboundedSender<(&'static str, Fence, Duration)>,
    Lease,
);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(("dropped", self.1.fence(), now()));
    }
}

/// Work that is told of the loss continues to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_told_of_its_loss_ends_by_itself() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(1_500)).await;
    let election = locks.election("relay").run_to_completion(true);
    let mut runs = 0;
    let led = election.lead(|lease| {
        runs += 1;
        let is_first = runs == 1;
        if is_first {
            let records: Vec<String> = eyes.text("KEYS tenure1:e:*");
            let _: u64 = eyes.ask(&[b"DEL", records[0].as_bytes()]);
        }
        async move {
            if is_first {
                assert_eq!(lease.lost().await, LostCause::Gone);
                tokio::task::yield_now().await;
            }
            is_first
        }
    });
    assert!(
        !soon(led).await.unwrap(),
        "the work of a leader that lost is repeated"
    );
    assert_eq!(runs, 2);
}

/// Callers get an error while the store is unavailable. Leading and observing continue when the store is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unavailable_store_ends_no_election() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = locks(&url(proxy.addr()), ms(3_000)).await;
    let election = locks.election("relay");
    let mut observer = election.observe();
    assert_eq!(soon(observer.next()).await.unwrap(), None);
    proxy.refuse(true);
    proxy.reset();
    let refused = [
        soon(election.campaign()).await.map(drop),
        soon(election.leader()).await.map(drop),
        soon(observer.next()).await.map(drop),
    ];
    for refused in refused {
        assert!(refused.as_ref().is_err_and(Error::is_unreachable), "{refused:?}");
    }
    let leading = tokio::spawn({
        let election = election.clone();
        async move { election.lead(|lease| async move { lease.fence() }).await }
    });
    // The observer has got the error twice, and pauses.
    let mut failed = 0;
    while failed < 2 {
        failed += u32::from(soon(observer.next()).await.is_err());
    }
    assert!(!leading.is_finished());
    proxy.heal();
    let fence = soon(leading).await.unwrap().unwrap();
    let guard = soon(election.campaign()).await.unwrap();
    assert!(guard.fence() > fence);
    // The observer may first see the previous leader, or none.
    soon(async {
        loop {
            let seen = observer.next().await;
            if seen.is_ok_and(|leader| leader.is_some_and(|leader| leader.fence() == guard.fence())) {
                return;
            }
        }
    })
    .await;
    guard.release().await.unwrap();
    locks.shutdown().await;
    let closed = soon(observer.next()).await;
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
}

/// The result of finished work is returned, also if the store cannot be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_finished_work_is_returned_without_a_store() {
    let server = RedisServer::start();
    let proxy = Arc::new(Proxy::start(addr(&server)));
    let locks = locks(&url(proxy.addr()), ms(10_000)).await;
    let election = locks.election("relay");
    let led = soon(election.lead(|_| {
        let proxy = proxy.clone();
        async move {
            proxy.refuse(true);
            proxy.reset();
            42
        }
    }));
    assert_eq!(led.await.unwrap(), 42);
}
