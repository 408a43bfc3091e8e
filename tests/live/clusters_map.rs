//! Which map of a cluster a node believes, and which server it takes for one of the map.

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Guard, Locks};

use crate::bad_input::{refused, tells};
use crate::cluster::Cluster;
use crate::deployment::{eventually, query, tell};
use crate::help::{PATIENCE, addr, ms, on_cluster, soon, url};
use crate::server::RedisServer;
use crate::support::proxy::Proxy;

/// Puts a proxy before each server, whose address the server announces.
fn announce(cluster: &Cluster) -> Vec<Proxy> {
    let proxies: Vec<_> = (0..cluster.size())
        .map(|at| Proxy::start(addr(cluster.server(at))))
        .collect();
    for (at, proxy) in proxies.iter().enumerate() {
        announce_at(cluster.server(at), proxy);
    }
    eventually("all servers know the addresses", || {
        let is_known = |at| {
            let told = query::<redis::Value>(cluster.server(at), &["CLUSTER", "SLOTS"]);
            let told = format!("{:?}", told.ok()?);
            let mut ports = proxies.iter().map(|proxy| proxy.addr().port());
            ports
                .all(|port| told.contains(&format!("int({port})")))
                .then_some(())
        };
        (0..cluster.size()).all(|at| is_known(at).is_some()).then_some(())
    });
    proxies
}

fn announce_at(server: &RedisServer, proxy: &Proxy) {
    let port = proxy.addr().port().to_string();
    tell(server, &["CONFIG", "SET", "cluster-announce-port", &port]);
}

async fn node(urls: &[String]) -> Locks {
    let like = redis::Client::open(&*urls[0]).unwrap();
    soon(crate::help::builder().lease(ms(10_000)).cluster(urls, like))
        .await
        .unwrap()
}

/// Takes five locks on each of the servers.
async fn take(cluster: &Cluster, locks: &Locks, servers: &[usize]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for server in servers {
        for key in cluster.keys_of(*server).take(5) {
            guards.push(soon(locks.mutex(key).lock()).await.unwrap());
        }
    }
    guards
}

/// Checks that all are held, for this node and another one.
async fn check_held(guards: &[Guard], other: &Locks) {
    for guard in guards {
        assert!(guard.is_held(), "{} was lost", guard.key());
        let second = soon(other.mutex(guard.key().clone()).try_lock()).await;
        assert!(!matches!(second, Ok(Some(_))), "two hold {}", guard.key());
    }
}

/// Starts another cluster of one server, which serves every slot, and which a test puts in the place of a server.
fn stranger(proxy: &Proxy) -> Cluster {
    let stranger = Cluster::start(1, 0);
    announce_at(stranger.server(0), proxy);
    stranger
}

/// Waits until more connections were made through the proxy, and calls `check` meanwhile.
async fn while_connecting(proxy: &Proxy, connections: u64, mut check: impl AsyncFnMut()) {
    let most = proxy.counts().connections + connections;
    let checking = async {
        while proxy.counts().connections < most {
            check().await;
            tokio::time::sleep(ms(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, checking)
        .await
        .expect("connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_cluster_at_a_known_address_is_not_used() {
    let mut cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let dead = cluster.keys_of(0).next().unwrap();
    let proxies = announce(&cluster);
    let urls: Vec<_> = proxies.iter().map(|proxy| url(proxy.addr())).collect();
    let (one, other) = (node(&urls).await, node(&urls).await);
    let guards = take(&cluster, &one, &[1, 2]).await;
    drop(soon(other.mutex(&*dead).lock()).await.unwrap());
    let another = stranger(&proxies[0]);
    cluster.kill(0);
    proxies[0].redirect(addr(another.server(0)));
    proxies[0].reset();
    while_connecting(&proxies[0], 12, async || {
        let granted = soon(other.mutex(&*dead).try_lock()).await;
        assert!(!matches!(granted, Ok(Some(_))), "granted by another cluster");
        check_held(&guards, &other).await;
    })
    .await;
    let written: Vec<String> = query(another.server(0), &["KEYS", "*"]).unwrap();
    assert_eq!(written, Vec::<String>::new());
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    // The server comes back.
    cluster.restart(0);
    proxies[0].redirect(addr(cluster.server(0)));
    proxies[0].reset();
    let locking = async {
        while other.mutex(&*dead).lock().await.is_err() {
            tokio::time::sleep(ms(20)).await;
        }
    };
    soon(locking).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_of_two_clusters_are_refused_if_neither_has_more() {
    let (cluster, another) = (Cluster::start(3, 0), Cluster::start(1, 0));
    let strange = another.urls()[0].clone();
    let own = cluster.urls();
    let locks = node(&[strange.clone(), own[0].clone(), own[1].clone()]).await;
    assert_eq!(take(&cluster, &locks, &[0, 1, 2]).await.len(), 15);
    let (text, error) = refused(on_cluster([&strange, &own[0]]).await);
    let unsupported = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    assert_eq!(error.kind(), &unsupported, "{text}");
    let ports = [&another, &cluster].map(|cluster| cluster.server(0).port().to_string());
    tells(&text, &["two clusters", &ports[0], &ports[1]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_removed_is_not_asked_alone() {
    let cluster = Cluster::start(3, 1);
    let removed = cluster.server(3);
    let id: String = query(removed, &["CLUSTER", "MYID"]).unwrap();
    for at in [0, 1, 2, 4, 5] {
        tell(cluster.server(at), &["CLUSTER", "FORGET", &id]);
    }
    tell(removed, &["CLUSTER", "RESET"]);
    let urls = [3, 1].map(|at| cluster.server(at).url());
    let locks = node(&urls).await;
    let key = "account:7";
    soon(soon(locks.mutex(key).lock()).await.unwrap().release())
        .await
        .unwrap();
    let (text, error) = refused(on_cluster(&urls[..1]).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &[&removed.port().to_string(), "knows no slots"]);
}

/// Starts a server that goes on with the view of a killed one, and reaches no other server.
fn isolated(cluster: &mut Cluster, at: usize, proxy: &Proxy) -> RedisServer {
    let dir: (String, String) = query(cluster.server(at), &["CONFIG", "GET", "dir"]).unwrap();
    let seen = std::fs::read_to_string(format!("{}/nodes.conf", dir.1)).unwrap();
    let cut = seen.lines().map(|line| match line.split_once(' ') {
        Some((id, rest)) if rest.contains("connected") && !rest.contains("myself") => {
            let (_, rest) = rest.split_once(' ').unwrap();
            format!("{id} 127.0.0.1:1@10001 {rest}\n")
        }
        _ => format!("{line}\n"),
    });
    let file = format!("{}/isolated.conf", dir.1);
    std::fs::write(&file, cut.collect::<String>()).unwrap();
    cluster.kill(at);
    let port = proxy.addr().port().to_string();
    let announced = [
        "--cluster-announce-port",
        &port,
        "--cluster-announce-ip",
        "127.0.0.1",
    ];
    let settings = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
    RedisServer::with_args(&[&settings[..], &announced].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_server_is_not_believed_beside_the_others() {
    let mut cluster = Cluster::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
    let key = cluster.keys_of(0).next().unwrap();
    let proxies = announce(&cluster);
    let urls: Vec<_> = proxies.iter().map(|proxy| url(proxy.addr())).collect();
    let locks = node(&urls[..1]).await;
    let cut_off = isolated(&mut cluster, 0, &proxies[0]);
    proxies[0].redirect(addr(&cut_off));
    proxies[0].reset();
    assert_eq!(cluster.promoted(0), 3);
    eventually("the cut off server knows that it is", || {
        (info_of_cluster(&cut_off, "cluster_state") == "fail").then_some(())
    });
    let guard = soon(locks.mutex(&*key).lock()).await.unwrap();
    soon(guard.release()).await.unwrap();
    for _ in 0..3 {
        let fresh = node(&urls[..2]).await;
        let guard = soon(fresh.mutex(&*key).lock()).await.unwrap();
        soon(guard.release()).await.unwrap();
    }
}

fn info_of_cluster(server: &RedisServer, field: &str) -> String {
    let told: String = query(server, &["CLUSTER", "INFO"]).unwrap();
    let mut lines = told.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| *name == field).unwrap().1.to_owned()
}

/// All servers of a cluster are at new addresses from one moment on.
async fn at_new_addresses(masters: usize) {
    let cluster = Cluster::start(masters, 0);
    let name = Proxy::start(addr(cluster.server(0)));
    let old = announce(&cluster);
    let (one, other) = (node(&[url(name.addr())]).await, node(&[url(name.addr())]).await);
    let servers: Vec<_> = (0..masters).collect();
    let guards = take(&cluster, &one, &servers).await;
    check_held(&guards, &other).await;
    let new = announce(&cluster);
    drop(old);
    for guard in guards {
        let renewing = async {
            while guard.renew().await.is_err() {
                tokio::time::sleep(ms(20)).await;
            }
        };
        soon(renewing).await;
        assert!(guard.is_held());
        let next = soon(other.mutex(guard.key().clone()).try_lock()).await;
        assert!(!matches!(next, Ok(Some(_))), "two hold {}", guard.key());
        soon(guard.release()).await.unwrap();
    }
    assert_eq!(take(&cluster, &other, &servers).await.len(), 5 * masters);
    assert!(new.iter().all(|proxy| proxy.counts().connections > 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_may_be_at_new_addresses_at_once() {
    at_new_addresses(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_server_of_a_cluster_may_be_at_a_new_address() {
    at_new_addresses(1).await;
}
