//! The page on real servers. They are started here: `apt-get install redis-server`.

#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and some files are included from elsewhere"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests play the operator and the world around"
)]

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../../../tests/live/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../../../tests/live/deployment.rs"]
mod deployment;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../../../tests/live/server.rs"]
mod server;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../page/tools.rs"]
mod tools;

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use tenure::{Builder, Locks};
use tenure_page::{Access, router};
use tokio::time::sleep;

use crate::cluster::{Cluster, slot_of};
use crate::server::RedisServer;
use crate::tools::{Browser, hex, operated_by, read, until};

/// What the files of the other tests need of theirs.
mod help {
    use std::time::Duration;

    pub const PATIENCE: Duration = Duration::from_secs(60);

    pub const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}

/// Returns how often the server executed each command, without those of this question.
fn calls(server: &RedisServer) -> BTreeMap<String, u64> {
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.client())
        .unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let count = |rest: &str| rest.split(',').next().unwrap_or_default().parse().unwrap();
    let calls = lines.map(|(name, rest)| (name.to_owned(), count(rest)));
    calls.filter(|(name, _)| name != "info").collect()
}

/// Returns how often it executed each since then.
fn since(before: &BTreeMap<String, u64>, server: &RedisServer) -> BTreeMap<String, u64> {
    let now = calls(server).into_iter();
    let more = now.map(|(name, count)| (count - before.get(&name).unwrap_or(&0), name));
    more.filter(|(count, _)| *count > 0)
        .map(|(count, name)| (name, count))
        .collect()
}

/// Returns locks that look, and do not tell of themselves.
async fn watcher(server: &RedisServer) -> Locks {
    let locks = Locks::builder().presence(false).lazy();
    locks.connect(&server.url()).await.unwrap()
}

/// Writes records as clients write them that have a key for an hour.
fn write_records(server: &RedisServer, count: u64) {
    let script = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'lock:k' .. i, 'x', 'PX', 3600000) end";
    let mut call = redis::cmd("EVAL");
    let _: () = call
        .arg(script)
        .arg(0)
        .arg(count)
        .query(&mut server.client())
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_a_hundred_thousand_is_a_few_scans_and_goes_on_by_its_cursor() {
    let server = RedisServer::start();
    write_records(&server, 100_000);
    let locks = watcher(&server).await;
    let mut browser = read(&locks);
    let before = calls(&server);
    let page = browser.open("/leases").await;
    assert_eq!(page.texts("#leases tr").len(), 100);
    let scans = since(&before, &server)["scan"];
    assert!(scans <= 200, "{scans} SCANs for a hundred rows");
    let next = page.links("a#next").remove(0);
    browser.open(&format!("/{next}")).await;
    let sparse = calls(&server);
    let page = browser.open("/leases?q=none").await;
    let scans = since(&sparse, &server)["scan"];
    assert!(scans <= 200, "{scans} SCANs that find nothing");
    assert_eq!(page.texts("a#next"), ["Search on: nothing is found so far"]);
    // A link of another process of the page leads on, too.
    let mut other = read(&watcher(&server).await);
    let mut to = page.links("a#next").pop();
    let mut pages = 1;
    while let Some(link) = to {
        to = other.open(&format!("/{link}")).await.links("a#next").pop();
        pages += 1;
    }
    assert!(
        (5..=20).contains(&pages),
        "{pages} pages of 200 SCANs, each of which visits 100 keys or more"
    );
}

/// Returns what the store executes for that many viewers of a path at once.
async fn cost(server: &RedisServer, app: &axum::Router, path: &str, viewers: usize) -> BTreeMap<String, u64> {
    let before = calls(server);
    let views = (0..viewers).map(|_| {
        let (mut browser, path) = (Browser::new(app.clone()), path.to_owned());
        tokio::spawn(async move { browser.open(&path).await })
    });
    for view in views.collect::<Vec<_>>() {
        view.await.unwrap();
    }
    since(&before, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_viewers_cost_the_store_what_one_costs() {
    let paths = ["/leases", "/key?k=6b31", "/nodes", "/jobs", "/audit"];
    let compare = paths.map(|path| async move {
        let server = RedisServer::start();
        write_records(&server, 10);
        let app = router(&watcher(&server).await, |_| Access::Read);
        let one = cost(&server, &app, path, 1).await;
        // The look before is older than it may be.
        sleep(Duration::from_millis(if path == "/audit" {
            5_500
        } else {
            1_200
        }))
        .await;
        let ten = cost(&server, &app, path, 10).await;
        let sum = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
        // Viewers that come a second later look again.
        assert!(
            sum(&ten) < 3 * sum(&one),
            "{path}: {one:?}, and for ten viewers {ten:?}"
        );
    });
    for compared in compare.map(tokio::spawn) {
        compared.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_viewer_the_store_is_asked_nothing() {
    let server = RedisServer::start();
    write_records(&server, 10);
    let watcher = watcher(&server).await;
    let mut browser = read(&watcher);
    for path in ["/leases", "/key?k=6b31", "/nodes", "/jobs", "/audit"] {
        browser.open(path).await;
    }
    sleep(Duration::from_secs(1)).await;
    let before = calls(&server);
    sleep(Duration::from_secs(10)).await;
    let mut asked = since(&before, &server);
    asked.remove("ping");
    assert!(asked.is_empty(), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_view_says_that_the_store_is_away_and_comes_back_by_itself() {
    let mut server = RedisServer::start();
    let locks = Locks::builder()
        .presence(false)
        .lazy()
        .connect(&server.url())
        .await
        .unwrap();
    let mut browser = read(&locks);
    let views = ["/leases", "/key?k=61", "/nodes", "/jobs", "/job?k=61", "/audit"];
    for path in views {
        browser.open(path).await;
    }
    server.kill();
    for path in views {
        // What was seen last is served for some seconds.
        let answer = until("the view says so", || {
            let mut browser = read(&locks);
            async move { Some(browser.get(path).await).filter(|answer| answer.status != StatusCode::OK) }
        })
        .await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let notice = answer.texts("#notices .notice").join("; ");
        let error = locks.inspect().list("", None).await.unwrap_err().to_string();
        let words = error.split(':').next().unwrap();
        assert!(notice.contains(words), "{path}: {notice}, and not {error}");
        // The script loads the page again when the answer has a region that the page lacks, and each view has one of its own.
        assert!(
            answer.texts("[data-live]:not(#notices):not(#outcome)").is_empty(),
            "{path}: {}",
            answer.body
        );
    }
    server.restart();
    for path in views {
        until("the view comes back", || {
            let mut browser = read(&locks);
            async move { Some(browser.get(path).await).filter(|answer| answer.status == StatusCode::OK) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_offers_no_steal() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let locks = quorum_of(&servers, Locks::builder()).await;
    let _guard = locks.mutex("a").lease(LONGEST).lock().await.unwrap();
    let mut mia = operated_by(&locks, "mia");
    let page = mia.open("/key?k=61").await;
    assert!(page.texts("h3").join("; ").contains("Held by"), "{}", page.body);
    assert_eq!(page.links("a.act"), Vec::<String>::new());
}

/// The first masters leave room on the page, and the last has keys for several pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_goes_on_to_the_next_master() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let locks = quorum_of(&servers, Locks::builder().presence(false)).await;
    write_records(&servers[1], 30);
    write_records(&servers[2], 5_000);
    let mut browser = read(&locks);
    let (mut found, mut to) = ([0; 3], Some("leases".to_owned()));
    while let Some(link) = to {
        let page = browser.open(&format!("/{link}")).await;
        let of = page.texts("#leases tr td:last-child");
        let count = |server: &RedisServer| {
            let port = format!(":{}", server.port());
            of.iter().filter(|cell| cell.ends_with(&port)).count()
        };
        let counts = servers.each_ref().map(count);
        if link == "leases" {
            assert_eq!((counts[1] > 0, counts[1] + counts[2]), (true, 100), "{counts:?}");
        }
        // Names in the order of SCAN: a key may be on two pages.
        found = std::array::from_fn(|at| found[at] + counts[at]);
        to = page.links("a#next").pop();
    }
    assert_eq!(found[..2], [0, 30]);
    assert!(found[2] >= 5_000, "{found:?}");
}

/// What is held in a half-moved slot is shown, and not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_moved_slot_is_told() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(2, 0));
    let seed = cluster.urls().remove(0);
    let like = redis::Client::open(&*seed).unwrap();
    let locks = Locks::builder().cluster(&[seed], like).await.unwrap();
    let guard = locks.mutex("{order}:1").lock().await.unwrap();
    let slot = slot_of("{order}");
    let mut mia = operated_by(&locks, "mia");
    let key = format!("/key?k={}", hex("{order}:1"));
    let moving = cluster.begin_move(slot, 1 - cluster.master_of_slot(slot));
    for migrated in [false, true] {
        if migrated {
            cluster.migrate_all(moving);
        }
        let page = mia.open(&key).await;
        assert!(page.texts("h3").join("; ").contains("Held by"), "{}", page.body);
        let steal = format!("/{}", page.links("a.act").remove(0));
        let steps = mia.confirm(&steal, &[("grace", "0")]).await;
        let steps = steps.join("; ");
        assert!(steps.contains("on its way to another server"), "{steps}");
        sleep(Duration::from_millis(1_100)).await;
        let listed = mia.open("/leases").await.texts("#leases tr td:first-child");
        assert_eq!(listed, ["{order}:1"], "migrated: {migrated}");
    }
    cluster.end_move(moving);
    let steal = format!("/{}", mia.open(&key).await.links("a.act").remove(0));
    let steps = mia.confirm(&steal, &[("grace", "0")]).await.join("; ");
    assert!(steps.starts_with("Revoked"), "{steps}");
    assert_eq!(guard.lost().await, tenure::error::LostCause::Revoked);
}

const LONGEST: Duration = Duration::from_secs(2);

async fn quorum_of(servers: &[RedisServer], builder: Builder) -> Locks {
    let clients = servers
        .iter()
        .map(|server| redis::Client::open(server.url()).unwrap());
    builder.quorum(clients.collect(), LONGEST).await.unwrap()
}
