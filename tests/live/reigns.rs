//! What the Sentinels say of the master, and what a node believes: a master that returns, too few answers, and two names of
//! one master.

use std::time::Duration;

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Guard, Locks, Mutex, Recovery};

use crate::deployment::{Deployment, NAME, eventually, query};
use crate::failovers::{at_last, in_time, node, skip_first_recovery};
use crate::help::{Eyes, addr, held, ms, soon, until, url};
use crate::recovery::is_recovering;
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::Proxy;

/// Longer than a failover with a second vote. Two thirds of it are left at any time.
const LEASE: Duration = ms(30_000);
const ALWAYS: Recovery = Recovery::Always {
    longest: LEASE,
    lag: Duration::ZERO,
};

/// Tries to acquire the lock until the server grants it, refuses it, or says that it recovers. A master may lack its replica for
/// a moment.
async fn answered(mutex: &Mutex) -> Result<Option<Guard>, Error> {
    let is_final = |error: &Error| {
        let Error::Store { source, .. } = error else {
            return true;
        };
        *source.kind() == StoreErrorKind::Refused(StoreRefusal::Recovering)
    };
    in_time(async {
        loop {
            match mutex.try_lock().await {
                Err(error) if !is_final(&error) => {}
                tried => return tried,
            }
        }
    })
    .await
}

/// The master is stopped, its successor grants a lease, and the master returns. It was never demoted, so it is in the run that it
/// recorded. A node that knows nothing must learn from the Sentinels that another master has granted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_returns_grants_nothing_that_its_successor_granted() {
    let mut deployment = Deployment::of_two_masters();
    let sentinels: Vec<_> = deployment.sentinels.iter().map(addr).map(Proxy::start).collect();
    let urls = sentinels.iter().map(|sentinel| url(sentinel.addr())).collect();
    let holder = node(urls, LEASE, ALWAYS).await;
    skip_first_recovery(&deployment, &holder).await;
    let first = deployment.stop_master();
    deployment.promoted(first);
    skip_first_recovery(&deployment, &holder).await;
    let guard = in_time(at_last(holder.mutex("a"))).await;
    // The holder does not follow the master yet, so the node that knows nothing is first there.
    for sentinel in &sentinels {
        sentinel.refuse(true);
        sentinel.reset();
    }
    let second = deployment.return_master(first);
    assert_eq!(deployment.promoted(second), first);

    let server = &deployment.servers[first];
    // The holder has other addresses of the Sentinels.
    let watch = Watch::of(format!("127.0.0.1:{}", deployment.sentinels[0].port()));
    let newcomer = node(deployment.urls(), LEASE, ALWAYS).await;
    let tried = answered(&newcomer.mutex("a")).await;
    assert!(guard.is_held(), "the failover took too long");
    is_recovering(&tried.map(drop).expect_err("there are two holders"));
    let told = watch.until("server_recovering").await;
    assert!(told.text.contains("why=epoch "), "{told:?}");

    sentinels.iter().for_each(Proxy::heal);
    let (mut eyes, id) = (Eyes::on(server), holder.node_id().to_string());
    until("the lease is asserted", || {
        eyes.owner("a").is_some_and(|owner| owner.starts_with(&id))
    })
    .await;
    eyes.text::<u8>("DEL tenure1:recovering");
    assert!(answered(&newcomer.mutex("a")).await.unwrap().is_none());
    assert!(guard.is_held());
    let fence = guard.fence();
    drop(guard);
    let next = in_time(at_last(newcomer.mutex("a"))).await;
    assert!(next.fence() > fence, "{:?} after {fence:?}", next.fence());
}

/// Starts Sentinels that know one master, each by this name of its host, and waits until they know each other.
fn watching<const N: usize>(master: &RedisServer, hosts: [&str; N]) -> [RedisServer; N] {
    let sentinels = hosts.map(|host| {
        let lines = [
            "sentinel resolve-hostnames yes".to_owned(),
            "sentinel announce-hostnames yes".to_owned(),
            format!("sentinel monitor {NAME} {host} {} {}", master.port(), N / 2 + 1),
        ];
        RedisServer::sentinel_with(&lines.each_ref().map(String::as_str))
    });
    let others = |sentinel: &RedisServer| {
        let others: Vec<redis::Value> = query(sentinel, &["SENTINEL", "SENTINELS", NAME]).ok()?;
        Some(others.len())
    };
    eventually("the Sentinels know each other", || {
        let all = sentinels.iter().all(|sentinel| others(sentinel) == Some(N - 1));
        all.then_some(())
    });
    sentinels
}

fn urls(sentinels: &[RedisServer]) -> Vec<String> {
    sentinels.iter().map(RedisServer::url).collect()
}

/// Waits until nodes have asked the Sentinel behind the proxy so often for the master. Each node needs its connection at any
/// time.
async fn until_asked(sentinel: &Proxy, times: u64, nodes: &[Locks]) {
    let mut question = redis::pipe();
    question.cmd("SENTINEL").arg("MASTER").arg(NAME);
    question.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(NAME);
    let bytes = times * question.get_packed_pipeline().len() as u64;
    let arrived = || sentinel.counts().arrived[0];
    let before = arrived();
    in_time(async {
        while arrived() < before + bytes {
            for node in nodes {
                // An error if the connection has just ended.
                let _ = node.ping().await;
            }
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

/// Ends the recovery of a server that is used for the first time: there are no earlier leases.
async fn skip_recovery(eyes: &mut Eyes, locks: &Locks) {
    in_time(async { while locks.ping().await.is_err() {} }).await;
    eyes.text::<u8>("DEL tenure1:recovering");
}

/// Two of three Sentinels are silent when a node starts. It must not grant at a master that another may have replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_too_few_sentinels_confirm_grants_nothing() {
    let master = RedisServer::start();
    let sentinels = watching(&master, ["127.0.0.1"; 3]);
    let mut eyes = Eyes::on(&master);
    let holder = node(urls(&sentinels), LEASE, ALWAYS).await;
    skip_recovery(&mut eyes, &holder).await;
    assert_eq!(eyes.text::<String>(&format!("GET tenure1:epoch:{NAME}")), "0");
    let guard = held(&holder, "held").await;

    let silent = &sentinels[1..];
    silent.iter().for_each(RedisServer::freeze);
    let mut listed = urls(&sentinels);
    let present = Proxy::start(addr(&sentinels[0]));
    listed[0] = url(present.addr());
    let watch = Watch::of(format!("nothing is granted at 127.0.0.1:{}", master.port()));
    let newcomer = node(listed, LEASE, ALWAYS).await;
    for _ in 0..3 {
        is_recovering(&answered(&newcomer.mutex("free")).await.map(drop).unwrap_err());
        until_asked(&present, 4, std::slice::from_ref(&newcomer)).await;
    }
    let waits = soon(newcomer.mutex("free").lock_timeout(ms(1_000))).await;
    is_recovering(&waits.map(drop).unwrap_err());
    let told = watch.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].text.contains("1 of 3 Sentinels"), "{told:?}");
    assert_eq!(eyes.text::<u8>("EXISTS tenure1:recovering"), 0);
    // A link that was confirmed serves its node as before.
    for key in ["one", "two"] {
        soon(guard.renew()).await.unwrap();
        assert!(soon(holder.mutex(key).try_lock()).await.unwrap().is_some());
    }

    silent.iter().for_each(RedisServer::thaw);
    let granted = in_time(at_last(newcomer.mutex("free"))).await;
    assert!(granted.is_held());
    assert!(soon(newcomer.mutex("held").try_lock()).await.unwrap().is_none());
    assert!(guard.is_held());
    assert_eq!(watch.told().len(), 1, "{:?}", watch.told());
}

/// Returns how many connections the server has accepted.
fn connections(eyes: &mut Eyes) -> u64 {
    let stats: String = eyes.text("INFO stats");
    let total = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    total.expect("the server counts them").parse().unwrap()
}

/// Checks that a node has two connections while the Sentinels are asked 15 times. `is_first_killed`: whether the first Sentinel
/// goes away meanwhile.
async fn two_connections_each<const N: usize>(hosts: [&str; N], is_first_killed: bool) {
    let master = RedisServer::start();
    let mut sentinels = watching(&master, hosts);
    let mut eyes = Eyes::on(&master);
    let before = connections(&mut eyes);
    let (mut listed, last) = (urls(&sentinels), Proxy::start(addr(&sentinels[N - 1])));
    listed[N - 1] = url(last.addr());
    let nodes = [
        node(listed.clone(), LEASE, ALWAYS).await,
        node(listed, LEASE, Recovery::OnEvidence).await,
    ];
    skip_recovery(&mut eyes, &nodes[0]).await;
    for (at, node) in nodes.iter().enumerate() {
        drop(held(node, format!("key {at}")).await);
    }
    let channels = nodes
        .each_ref()
        .map(|node| format!("tenure1:n:{}", node.node_id()));
    for channel in &channels {
        let ask = format!("PUBSUB NUMSUB {channel}");
        until("the node listens", || eyes.text::<(String, u8)>(&ask).1 == 1).await;
    }
    if is_first_killed {
        sentinels[0].kill();
    }
    until_asked(&last, 15 * nodes.len() as u64, &nodes).await;
    assert_eq!(connections(&mut eyes) - before, 2 * nodes.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_one_master_cost_no_connection() {
    two_connections_each(["127.0.0.1", "localhost"], false).await;
}

/// The name of the link had two votes, and then one of two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_goes_away_among_two_names_costs_no_connection() {
    two_connections_each(["127.0.0.1", "127.0.0.1", "localhost"], true).await;
}
