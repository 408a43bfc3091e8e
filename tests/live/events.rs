//! The log lines of an outage: its begin, its end and its cost, but not a line per lease.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tenure::{LockLayer, Locks};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};
use tracing::Level;

use crate::help::{Eyes, Other, PATIENCE, addr, held, held_at_last, ms, soon, until, url};
use crate::recovery::is_recovering;
use crate::server::RedisServer;
use crate::support::alone::alone;
use crate::support::events::{Told, Watch};
use crate::support::proxy::Proxy;

/// The largest number of lines of an outage at INFO and above, besides the lines of lost leases.
const LINES: usize = 20;

/// Returns the number of leases, their length, and the length of the outage: small, unless `TENURE_QUIET_FULL` is set.
fn size() -> (usize, Duration, Duration) {
    if std::env::var_os("TENURE_QUIET_FULL").is_some() {
        (2_000, ms(10_000), ms(14_000))
    } else {
        (200, ms(3_000), ms(4_200))
    }
}

/// Returns the number in a field.
fn field(told: &Told, name: &str) -> u64 {
    let (_, rest) = told
        .text
        .split_once(&format!("{name}="))
        .unwrap_or_else(|| panic!("no {name} in {told:?}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_outage_is_reported_in_a_few_lines() {
    alone("events::an_outage_is_reported_in_a_few_lines", || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(an_outage());
    });
}

async fn an_outage() {
    let (count, lease, away) = size();
    let server = RedisServer::start();
    // A caller that gives up before a request is late is not refused by the outage.
    let builder = || crate::help::builder().request_timeout(ms(2_000));
    let locks = |name: &str| builder().lease(lease).node_name(name.to_owned());
    let one = locks("quiet one").connect(&server.url()).await.unwrap();
    let other = locks("quiet two").connect(&server.url()).await.unwrap();
    let mut taking = JoinSet::new();
    for n in 0..count {
        let mutex = one.mutex(format!("lease {n}"));
        taking.spawn(async move { mutex.lock().await.unwrap() });
    }
    let guards = taking.join_all().await;
    let mut waiting = JoinSet::new();
    for n in 0..count / 10 {
        let mutex = other.mutex(format!("lease {n}"));
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    until("they wait", || other.waiter_count() == count / 10).await;
    let watch = Watch::of("");

    server.freeze();
    let began = std::time::Instant::now();
    let one_fails =
        |told: &&Told| told.event == "store_failing" && told.text.contains("node_name=quiet one ");
    // This node learns it from its renewals. The other node may know earlier, because callers wait there.
    until("it fails", || watch.told().iter().any(|told| one_fails(&told))).await;
    let failing = watch.told().into_iter().find(|told| one_fails(&told)).unwrap();
    // The store is known to be down when callers get errors.
    let refused = soon(one.mutex("refused").lock()).await;
    assert!(refused.unwrap_err().is_unreachable());
    let layer = LockLayer::by(&one, |_| "refused, too");
    let service = layer.layer(tower::service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
    }));
    for _ in 0..count {
        let request = Request::new(Body::empty());
        let answer = soon(service.clone().oneshot(request)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    until("all guards are lost", || {
        guards.iter().all(|guard| !guard.is_held())
    })
    .await;
    while let Some(waited) = soon(waiting.join_next()).await {
        let _ = waited.unwrap();
    }
    // The outage lasts as long as configured.
    tokio::time::sleep(away.saturating_sub(began.elapsed())).await;
    server.thaw();
    let of_one = |told: &Told| told.event == "store_recovered" && told.text.contains("node_name=quiet one ");
    tokio::time::timeout(PATIENCE, async {
        while !watch.told().iter().any(of_one) {
            // A node without requests need not know that the store is back.
            let _ = one.ping().await;
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await
    .expect("the end is reported");

    let told = watch.told();
    let loud: Vec<_> = told.iter().filter(|told| told.level <= Level::INFO).collect();
    let (lost, beside): (Vec<_>, Vec<_>) = loud.into_iter().partition(|told| told.event == "lost");
    assert_eq!(lost.len(), count, "a lost lease is always reported");
    assert!(lost.iter().all(|told| told.level == Level::ERROR));
    assert!(lost[0].text.contains("kind=lock "), "{:?}", lost[0]);
    assert!(beside.len() <= LINES, "{} lines: {beside:#?}", beside.len());

    assert_eq!(failing.level, Level::WARN);
    let server_name = format!("127.0.0.1:{}", server.port());
    assert!(failing.text.contains(&server_name), "{failing:?}");
    assert_eq!(told.iter().filter(one_fails).count(), 1);
    assert_eq!(told.iter().filter(|told| of_one(told)).count(), 1);
    let recovered = told.iter().find(|told| of_one(told)).unwrap();
    assert_eq!(recovered.level, failing.level);
    assert!(recovered.text.contains(&server_name), "{recovered:?}");
    let away_ms = field(recovered, "away_ms");
    assert!(
        away_ms > 500 && away_ms <= began.elapsed().as_millis() as u64,
        "{recovered:?}"
    );
    assert_eq!(field(recovered, "leases_lost"), count as u64);
    assert!(
        field(recovered, "callers_refused") > count as u64,
        "{recovered:?}"
    );
    assert!(
        field(recovered, "requests_failed") >= count as u64,
        "{recovered:?}"
    );
    // The other events are there at lower levels.
    let mut counts = std::collections::BTreeMap::<_, usize>::new();
    for told in watch.told() {
        *counts.entry(told.event).or_default() += 1;
    }
    assert!(watch.count("renew_failed") > 0, "{counts:?}");
    assert!(watch.count("refused") >= count, "{counts:?}");
}

/// Returns the events of level WARN of one node, in order.
fn warnings(watch: &Watch, node: &str) -> Vec<String> {
    let of_node = format!("node_name={node} ");
    let told = watch.told().into_iter();
    let warned = told.filter(|told| told.level == Level::WARN && told.text.contains(&of_node));
    warned.map(|told| told.event).collect()
}

/// Waits until each of these nodes has reported the end of an outage.
async fn until_recovered(watch: &Watch, nodes: &[&str]) {
    let is_told = |node: &&str| warnings(watch, node).contains(&"store_recovered".to_owned());
    until("the end is reported", || nodes.iter().all(is_told)).await;
}

/// Connections and inboxes break together. They are one outage, whichever is noticed first.
#[test]
fn a_restart_is_one_warning_at_its_beginning_and_one_at_its_end() {
    alone(
        "events::a_restart_is_one_warning_at_its_beginning_and_one_at_its_end",
        || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                for _ in 0..2 {
                    a_restart().await;
                }
            });
        },
    );
}

async fn a_restart() {
    let mut server = RedisServer::start();
    let nodes = ["holder", "waiter", "idle"];
    let mut all = Vec::new();
    for node in nodes {
        let builder = crate::help::builder().lease(ms(6_000)).node_name(node);
        all.push(builder.connect(&server.url()).await.unwrap());
    }
    let [claim_id, waiter, _idle] = &all[..] else {
        unreachable!()
    };
    // A node that knows no number shows no loss.
    held(waiter, "known").await.release().await.unwrap();
    let mut guards = Vec::new();
    let mut waiting = JoinSet::new();
    for n in 0..5 {
        let key = format!("restart-{n}");
        guards.push(held(claim_id, &key).await);
        for _ in 0..3 {
            waiting.spawn(waiter.mutex(key.as_str()).lock());
        }
    }
    until("they wait", || waiter.waiter_count() == 15).await;
    // A caller whose claim the restart interrupts is told of it.
    let mut eyes = Eyes::on(&server);
    until("their claims are queued", || {
        (0..5).all(|n| eyes.queue(&format!("restart-{n}")) == 1)
    })
    .await;
    let watch = Watch::of("");
    server.restart();
    until_recovered(&watch, &nodes).await;
    // Redis lost the leases, and the holder asserts them. Then the waiters get them, one after the other.
    let mut eyes = Eyes::on(&server);
    until("the leases are asserted", || {
        (0..5).all(|n| eyes.owner(&format!("restart-{n}")).is_some())
    })
    .await;
    for guard in guards {
        soon(guard.release()).await.expect("it was not lost");
    }
    while let Some(granted) = soon(waiting.join_next()).await {
        granted
            .unwrap()
            .expect("the waiter is still in the queue")
            .release()
            .await
            .unwrap();
    }
    for (node, claims) in nodes.into_iter().zip([false, true, false]) {
        let told = warnings(&watch, node);
        let (recovering, told): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|event| event == "server_recovering");
        assert_eq!(
            told,
            ["store_failing", "store_recovered"],
            "{node}: {:#?}",
            watch.told()
        );
        assert_eq!(
            recovering.len(),
            usize::from(claims),
            "{node}: {:#?}",
            watch.told()
        );
    }
    let is_another = |told: &Told| told.event == "store_recovered" && told.text.contains("is_another=true ");
    assert!(
        watch
            .told()
            .iter()
            .all(|told| told.event != "store_recovered" || is_another(told))
    );
}

/// Only the connection for grants breaks: it has its own report.
#[test]
fn an_inbox_that_breaks_alone_is_one_warning_and_one_when_it_is_back() {
    alone(
        "events::an_inbox_that_breaks_alone_is_one_warning_and_one_when_it_is_back",
        || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let server = RedisServer::start();
                let builder = crate::help::builder().node_name("listens");
                let locks = builder.connect(&server.url()).await.unwrap();
                let _guard = held(&locks, "held").await;
                let watch = Watch::of("");
                let killed: usize = Eyes::on(&server).text("CLIENT KILL TYPE pubsub");
                assert_eq!(killed, 1);
                watch.until("inbox_open").await;
                until("both are reported", || warnings(&watch, "listens").len() >= 2).await;
                assert_eq!(warnings(&watch, "listens"), ["inbox_lost", "inbox_open"]);
            });
        },
    );
}

/// Another server behind the same address. The connection was idle, so its end was no failure. The server knows no number,
/// and the node does: that is a loss.
#[test]
fn another_server_behind_the_address_is_one_warning_and_one_of_its_recovery() {
    let name = "events::another_server_behind_the_address_is_one_warning_and_one_of_its_recovery";
    alone(name, || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (one, other) = (RedisServer::with_args(&["--timeout", "1"]), RedisServer::start());
            let proxy = Proxy::start(addr(&one));
            let builder = crate::help::builder().node_name("moved");
            // Without an inbox, which would notice at once that a server is gone.
            let locks = builder.lazy().connect(&url(proxy.addr())).await.unwrap();
            held_at_once(&locks, "before").await;
            let watch = Watch::of("");
            // The connection is closed while it is idle, which is not a failure.
            let mut eyes = Eyes::on(&one);
            until("the server hung up", || {
                let clients: String = eyes.text("CLIENT LIST");
                !clients.contains("name=tenure")
            })
            .await;
            proxy.redirect(addr(&other));
            for key in ["after", "again"] {
                let refused = soon(locks.mutex(key).try_lock()).await.unwrap_err();
                is_recovering(&refused);
            }
            watch.until("server_recovering").await;
            let expected = ["server_changed", "server_recovering"];
            assert_eq!(warnings(&watch, "moved"), expected, "{:#?}", watch.told());
        });
    });
}

/// Acquires and releases a lock without an inbox.
async fn held_at_once(locks: &Locks, key: &str) {
    let guard = soon(locks.mutex(key).try_lock()).await.unwrap();
    soon(guard.expect("the key is free").release()).await.unwrap();
}

/// A server that closes idle connections is reported only at DEBUG. A server that is gone is reported.
#[test]
fn a_connection_that_was_closed_while_idle_is_no_outage() {
    alone(
        "events::a_connection_that_was_closed_while_idle_is_no_outage",
        || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let mut server = RedisServer::with_args(&["--timeout", "1"]);
                let watch = Watch::of("");
                let locks = crate::help::builder().connect(&server.url()).await.unwrap();
                held(&locks, "before").await.release().await.unwrap();
                // Redis checks for idle clients about once a second.
                tokio::time::sleep(ms(4_000)).await;
                held(&locks, "after").await.release().await.unwrap();
                assert_eq!(watch.count("connection_lost"), 1, "{:#?}", watch.told());
                assert_eq!(loud(&watch), Vec::<String>::new());
                // The connection is idle again, but this time the server does not answer.
                tokio::time::sleep(ms(4_000)).await;
                server.kill();
                soon(locks.mutex("gone").lock()).await.unwrap_err();
                watch.until("store_failing").await;
                server.restart();
                held_at_last(locks.mutex("back")).await.release().await.unwrap();
                watch.until("store_recovered").await;
            });
        },
    );
}

fn loud(watch: &Watch) -> Vec<String> {
    let told = watch.told().into_iter();
    let is_loud = |told: &Told| told.level <= Level::INFO && told.event != "locks_built";
    let loud = told.filter(is_loud);
    loud.map(|told| told.text).collect()
}

/// All parts of a process end with its runtime, in any order.
#[test]
fn a_process_that_ends_without_a_shutdown_ends_quietly() {
    alone(
        "events::a_process_that_ends_without_a_shutdown_ends_quietly",
        || {
            let server = RedisServer::start();
            let watch = Watch::of("");
            for keeps in [false, true] {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let locks = runtime.block_on(async {
                    let locks = crate::help::builder()
                        .lease(ms(2_000))
                        .connect(&server.url())
                        .await
                        .unwrap();
                    let guard = held(&locks, "held").await;
                    let (mine, waits) = (locks.clone(), locks.mutex("held"));
                    runtime.spawn(async move {
                        let _guard = guard;
                        let _mine = mine;
                        std::future::pending::<()>().await;
                    });
                    runtime.spawn(waits.lock());
                    until("the caller waits", || locks.waiter_count() == 1).await;
                    keeps.then_some(locks)
                });
                drop(runtime);
                drop(locks);
                let began = std::time::Instant::now();
                while drivers() > 0 && began.elapsed() < PATIENCE {
                    std::thread::sleep(ms(5));
                }
                assert_eq!(drivers(), 0, "they end");
            }
            assert_eq!(loud(&watch), Vec::<String>::new());
        },
    );
}

/// Returns the number of driver threads of this process.
fn drivers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads
        .filter_map(name)
        .filter(|name| name.trim() == "tenure-driver")
        .count()
}

/// A caller that gets a lock because its owner died gets an event about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inherited_lock_is_reported() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(1_000);
    let locks = crate::help::builder()
        .lease(lease)
        .node_name("the heir")
        .connect(&server.url())
        .await
        .unwrap();
    let watch = Watch::of("key=inheritance ");
    // A live holder hands the lock over.
    let giver = crate::help::builder()
        .lease(ms(10_000))
        .connect(&server.url())
        .await
        .unwrap();
    let guard = held(&giver, "inheritance").await;
    let waiting = tokio::spawn(locks.mutex("inheritance").lock());
    until("the caller waits", || eyes.queue("inheritance") == 1).await;
    guard.release().await.unwrap();
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
    watch.until("taken_over").await;
    assert_eq!(watch.count("inherited"), 0, "{:#?}", watch.told());

    let mut dead = Other::plays("holds", &server.url(), "inheritance", lease);
    dead.hears("holds");
    let waiting = tokio::spawn(locks.mutex("inheritance").lock());
    until("the caller waits", || eyes.queue("inheritance") == 1).await;
    let record: String = eyes.text("GET lock:inheritance");
    let of = record.split(':').next().unwrap();
    dead.kill();
    let guard = soon(waiting).await.unwrap().unwrap();
    let told = watch.until("inherited").await;
    assert_eq!(told.level, Level::INFO);
    assert!(
        told.text.contains("node_name=the heir ") && told.text.contains("kind=lock "),
        "{told:?}"
    );
    // The record names the node that died.
    assert!(told.text.contains(&format!("from={of} ")), "{told:?} {of}");
    guard.release().await.unwrap();
}

/// A node name may have any text. Its connection has a sanitized form of the name.
#[tokio::test]
async fn a_connection_has_the_name_of_its_node() {
    let server = RedisServer::start();
    let name = "web 1\r\nFLUSHALL";
    let locks = crate::help::builder()
        .node_name(name)
        .connect(&server.url())
        .await
        .unwrap();
    drop(held(&locks, "named").await);
    let clients: String = Eyes::on(&server).text("CLIENT LIST");
    assert!(clients.contains(" name=tenure:web_1__FLUSHALL "), "{clients}");
}

/// The first event of new `Locks` names their server.
#[tokio::test]
async fn built_locks_report_their_server() {
    let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
    let watch = Watch::of("node_name=built here ");
    let url = format!("redis://:hunter2@127.0.0.1:{}/", server.port());
    let builder = crate::help::builder()
        .node_name("built here")
        .prefix("shop:lock:");
    let locks = builder.connect(&url).await.unwrap();
    let told = watch.until("locks_built").await;
    assert_eq!(told.level, Level::INFO);
    let server = format!("server=127.0.0.1:{} ", server.port());
    let node = format!("node={} ", locks.node_id());
    for field in [&*server, &*node, "prefix=shop:lock: "] {
        assert!(told.text.contains(field), "{field} is not in {told:?}");
    }
    assert!(!format!("{:?}", watch.told()).contains("hunter2"));
}

/// A stopped process has one report: later events name neither the scheduler nor the renewals as the cause.
#[test]
fn a_stopped_process_reports_the_pause_once_and_no_other_cause() {
    let server = RedisServer::start();
    let mut child = Other::plays("stands still", &server.url(), "stopped", ms(2_000));
    child.hears("ready");
    child.signal("-STOP");
    std::thread::sleep(ms(6_000));
    child.signal("-CONT");
    let told = child.hears("told");
    let events: Vec<&str> = told.split(' ').collect();
    let count = |event: &str| events.iter().filter(|told| **told == event).count();
    assert_eq!(events[0], "process_paused", "{events:?}");
    assert_eq!(count("process_paused"), 1, "{events:?}");
    assert_eq!(count("lost"), 1, "{events:?}");
    assert_eq!(events.len(), 2, "no other cause is reported: {events:?}");
    let paused: u64 = child.hears("paused").parse().unwrap();
    // The heartbeat comes every half second, and a busy machine makes the pause longer.
    assert!((5_000..20_000).contains(&paused), "{paused}");
    let cause = child.hears("cause");
    assert!(cause.contains("stood still"), "{cause}");
}
