//! What operators see of real servers, and that looking costs and changes nothing.

use std::collections::BTreeMap;

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::inspect::{FindingLevel, State};
use tenure::{Error, Locks};
use tracing::Level;

use crate::cluster::Cluster;
use crate::help::{Eyes, held, ms, quorum, soon, until};
use crate::quorums::{masters, urls};
use crate::server::RedisServer;
use crate::store::{locks_of, rights_of};
use crate::support::events::Watch;
use crate::support::inspect;

mod costs;
mod many_leases;
mod notes;
mod replies;

async fn node(url: &str, name: &str) -> Locks {
    let builder = crate::help::builder()
        .node_name(name)
        .lease(ms(60_000))
        .request_timeout(ms(10_000));
    soon(builder.connect(url)).await.unwrap()
}

/// Runs what is the same on every store.
async fn is_shown(one: &Locks, other: &Locks, count: usize) {
    inspect::an_owner_and_its_waiter_are_shown(one, other).await;
    inspect::each_kind_of_a_key_has_an_entry(one, other).await;
    inspect::pages_have_each_key_with_the_prefix(one, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_shown_as_memory_is() {
    for protocol in ["", "?protocol=resp3"] {
        let server = RedisServer::start();
        let url = format!("{}{protocol}", server.url());
        let (one, other) = (node(&url, "one").await, node(&url, "other").await);
        is_shown(&one, &other, 1_100).await;
        let nodes = soon(one.inspect().nodes()).await.unwrap();
        let names: Vec<_> = nodes
            .iter()
            .map(|node| &*node.presence.as_ref().unwrap().name)
            .collect();
        assert!(
            names.len() == 2 && names.contains(&"one") && names.contains(&"other"),
            "{names:?}"
        );
        soon(one.shutdown()).await;
        soon(other.shutdown()).await;
        let left: Vec<String> = Eyes::on(&server).text("KEYS tenure1:i:*");
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_shown_as_memory_is() {
    let cluster = Cluster::start(3, 0);
    let node = async |name: &str| {
        let urls = cluster.urls();
        let like = redis::Client::open(&*urls[0]).unwrap();
        let builder = crate::help::builder()
            .node_name(name)
            .lease(ms(60_000))
            .request_timeout(ms(10_000));
        builder.cluster(&urls[..1], like).await.unwrap()
    };
    let (one, other) = (node("one").await, node("other").await);
    is_shown(&one, &other, 300).await;
    let guard = held(&one, "a").await;
    inspect::until_told(&other, "a").await;
    drop(guard);
    assert_eq!(soon(one.inspect().nodes()).await.unwrap().len(), 2);
    // One server of it would show a part of the keys.
    let alone = crate::help::builder()
        .lazy()
        .connect(&cluster.urls()[0])
        .await
        .unwrap();
    let error = soon(alone.inspect().list("", None)).await.unwrap_err();
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_master_of_a_quorum_has_its_own_answer() {
    let mut masters = masters(3).await;
    let locks = soon(quorum(urls(&masters))).await.unwrap();
    let guard = held(&locks, "a").await;
    let what = "every master granted";
    until(what, || {
        masters.iter().all(|master| Eyes::on(master).owner("a").is_some())
    })
    .await;
    let page = soon(locks.inspect().show("a")).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    for entry in &page.entries {
        assert_eq!(
            (entry.state, entry.holders[0].node.id),
            (State::Held, locks.node_id())
        );
        let port: u16 = entry.server.rsplit(':').next().unwrap().parse().unwrap();
        assert!(masters.iter().any(|master| master.port() == port), "{entry:?}");
    }
    // One that is away is told.
    let away = masters.pop().unwrap();
    let port = away.port().to_string();
    drop(away);
    let page = soon(locks.inspect().show("a")).await.unwrap();
    assert_eq!((page.entries.len(), page.failures.len()), (2, 1));
    assert!(page.failures[0].0.contains(&port), "{page:?}");
    let mut listed = 0;
    let mut from = None;
    let inspection = locks.inspect();
    loop {
        let page = soon(inspection.list("", from)).await.unwrap();
        listed += page.entries.len();
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(listed, 2);
    assert_eq!(soon(locks.inspect().nodes()).await.unwrap().len(), 1);
    drop(guard);
    drop(masters);
    let error = soon(locks.inspect().show("a")).await.unwrap_err();
    assert!(matches!(&error, Error::Connect { .. }), "{error:?}");
    soon(locks.inspect().nodes()).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_wrote_is_foreign() {
    let server = RedisServer::start();
    let locks = node(&server.url(), "one").await;
    let mut eyes = Eyes::on(&server);
    for (line, digest) in [
        ("SET lock:text secret PX 60000", Some("e5e9fa1ba31e")),
        ("SET lock:endless secret", Some("e5e9fa1ba31e")),
        ("RPUSH lock:list x", None),
        ("ZADD lock:zset 1 x", None),
        ("HSET lock:hash x y", None),
        ("SADD lock:set x", None),
    ] {
        let _: redis::Value = eyes.text(line);
        let key = line.split([' ', ':']).nth(2).unwrap();
        let [entry] = &inspect::show(&locks, key).await[..] else {
            panic!("{line}")
        };
        assert_eq!(
            (entry.state, entry.foreign.as_deref()),
            (State::Foreign, digest),
            "{line}"
        );
        assert_eq!(entry.remaining.is_some(), line.contains("PX"), "{line}");
        assert!(!format!("{entry:?}").contains("secret"), "{entry:?}");
    }
    // Neither keys of the server that only look like ours, nor data of the user.
    let _: redis::Value = eyes.text("SET data:lock:a x");
    let _: redis::Value = eyes.text("SET tenure1:q:{0000}other x");
    assert_eq!(inspect::list(&locks, "").await.len(), 6);
}

/// Any client with write access can write anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_values_neither_end_nor_block_a_listing() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), "one").await,
        node(&server.url(), "other").await,
    );
    let guard = held(&one, "a").await;
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    inspect::until(&one, "a", |entry| entry.waiter_count == 1).await;
    assert!(soon(one.latch("l").try_set_count(2)).await.unwrap());
    let mut eyes = Eyes::on(&server);
    // More members than one command reads, of which none is a share, behind one that is.
    let claim = format!("h{}:1:ff:", one.node_id());
    for key in [&b"lock:readers"[..], b"lock:others"] {
        for n in 0..1_000 {
            let member = format!("garbage {n}");
            let _: u8 = eyes.ask(&[b"ZADD", key, b"99999999999999", member.as_bytes()]);
        }
    }
    let _: u8 = eyes.ask(&[b"ZADD", b"lock:readers", b"1", claim.as_bytes()]);
    // Empty and broken waiters, a broken latch, and a broken watcher.
    let queue: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
    for member in [&b""[..], b"a", b"a\xff", b"\xff"] {
        let _: u8 = eyes.ask(&[b"ZADD", &queue[0], b"1", member]);
    }
    let latch: Vec<Vec<u8>> = eyes.text("KEYS tenure1:l:*");
    let watchers = [b"tenure1:q:", &latch[0][b"tenure1:l:".len()..][..6], &latch[0]].concat();
    let _: u8 = eyes.ask(&[b"ZADD", &watchers, b"99999999999999", b"\xff"]);
    let presence = format!("tenure1:i:{}", tenure::NodeId::random());
    let _: String = eyes.ask(&[b"SET", presence.as_bytes(), &b"name=x&".repeat(1_000_000)]);
    let entries = inspect::list(&one, "").await;
    assert_eq!(entries.len(), 3, "{entries:?}");
    let of = |key: &str| entries.iter().find(|entry| entry.key == key.into()).unwrap();
    assert_eq!((of("a").state, of("a").waiters.len()), (State::Held, 1));
    assert_eq!(of("others").state, State::Foreign);
    assert_eq!((of("l").state, of("l").waiters.len()), (State::Set, 0));
    let _: u8 = eyes.ask(&[b"HSET", &latch[0], b"gen", b"\xff"]);
    assert_eq!(inspect::show(&one, "l").await[0].state, State::Foreign);
    assert!(soon(one.inspect().nodes()).await.unwrap().len() >= 3);
    waiting.abort();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_shown_is_a_secret() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), "one").await,
        node(&server.url(), "other").await,
    );
    let _guard = held(&one, "a").await;
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let entry = inspect::until(&one, "a", |entry| entry.waiter_count == 1).await;
    let mut eyes = Eyes::on(&server);
    let queue: Vec<String> = eyes.text("KEYS tenure1:q:*");
    let members: Vec<String> = eyes.ask(&[b"ZRANGE", queue[0].as_bytes(), b"0", b"-1"]);
    let owner = eyes.owner("a").unwrap();
    let nonces = members
        .iter()
        .filter(|member| member.len() > 1)
        .chain([&owner])
        .map(|text| {
            let nonce = text.split(':').nth(2).unwrap();
            u64::from_str_radix(nonce, 16).unwrap()
        });
    inspect::is_no_secret(&format!("{entry:?}"), &nonces.collect::<Vec<_>>());
    #[cfg(feature = "serde")]
    {
        let owner = eyes.owner("a").unwrap();
        let nonce = owner.split(':').nth(2).unwrap();
        assert!(!serde_json::to_string(&entry).unwrap().contains(nonce));
    }
    waiting.abort();
}

/// A large server is read in short steps, of which none writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_is_a_read_with_a_bound() {
    let server = RedisServer::start();
    let locks = node(&server.url(), "one").await;
    let mut guards = Vec::new();
    for n in 0..600 {
        guards.push(soon(locks.semaphore("s", 600).acquire()).await.unwrap());
        if n % 6 == 0 {
            guards.push(held(&locks, n.to_string()).await);
        }
    }
    let mut eyes = Eyes::on(&server);
    let watched = server.client();
    let inspector = crate::help::builder().presence(false).lazy();
    let inspector = inspector.connect(&server.url()).await.unwrap();
    let before = eyes.calls();
    let mut monitor = monitor(watched);
    let entries = inspect::list(&inspector, "").await;
    soon(inspector.inspect().nodes()).await.unwrap();
    assert_eq!(entries.len(), 101);
    let permits = entries.iter().find_map(|entry| entry.permits);
    assert_eq!(permits.map(|of| (of.in_use, of.capacity)), Some((600, 600)));
    let lines = monitor.until("tenure1:i:*");
    let mut seen = BTreeMap::<String, usize>::new();
    for words in &lines {
        // What the holder's node does meanwhile.
        if !is_of_inspection(words) {
            continue;
        }
        assert!(is_bounded(words), "{words:?}");
        *seen.entry(words[0].to_lowercase()).or_default() += 1;
    }
    assert!(seen["getrange"] >= 100 && seen["zrangebyscore"] >= 2, "{seen:?}");
    let after = eyes.calls();
    for write in ["zrem", "zadd", "del", "pexpire", "publish"] {
        assert_eq!(after.get(write), before.get(write), "{write}");
    }
    drop(guards);
}

/// Returns whether the command is neither of the node of a holder nor of a test, and opens no connection.
fn is_of_inspection(words: &[String]) -> bool {
    let others = "auth client config evalsha hello info keys monitor ping role script select set subscribe";
    others
        .split(' ')
        .all(|other| !words[0].eq_ignore_ascii_case(other))
}

/// Returns whether a command of an inspection is a plain read that ends after a bounded number of steps.
fn is_bounded(words: &[String]) -> bool {
    let last = || words.last().unwrap().as_str();
    match &*words[0].to_lowercase() {
        "scan" => last() == "100",
        "zrangebyscore" => words[words.len() - 3] == "LIMIT" && last().parse::<u32>().unwrap() <= 400,
        "zrange" => words[2] == "0" && words[3] == "0",
        // Two words for each of 50 shares.
        "zmscore" => words.len() <= 2 + 100,
        "getrange" => words[2] == "0" && ["512", "16383"].contains(&last()),
        "hmget" | "pubsub" => words.len() <= 102,
        "time" | "type" | "pttl" | "zcount" => words.len() <= 4,
        _ => false,
    }
}

/// Returns the words of a line of MONITOR.
fn words(line: &str) -> Vec<String> {
    line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A connection that prints every command.
struct Monitor(redis::Connection);

fn monitor(mut connection: redis::Connection) -> Monitor {
    connection
        .send_packed_command(&redis::cmd("MONITOR").get_packed_command())
        .unwrap();
    connection.recv_response().unwrap();
    Monitor(connection)
}

impl Monitor {
    /// Returns the words of each command up to the first that contains a text.
    fn until(&mut self, last: &str) -> Vec<Vec<String>> {
        self.lines_until(last).iter().map(|line| words(line)).collect()
    }

    /// Returns the words of each command up to the first that contains a text, without the commands of scripts.
    fn sent_until(&mut self, last: &str) -> Vec<Vec<String>> {
        let mut lines = self.lines_until(last);
        lines.retain(|line| !line.contains(" lua] "));
        lines.iter().map(|line| words(line)).collect()
    }

    fn lines_until(&mut self, last: &str) -> Vec<String> {
        let mut lines = Vec::<String>::new();
        while lines.last().is_none_or(|line| !line.contains(last)) {
            lines.push(redis::from_redis_value(self.0.recv_response().unwrap()).unwrap());
        }
        lines
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_presence_is_one_warning() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let rights = rights_of("tenure");
    let rights = rights.replace(
        "~tenure1:*",
        "~tenure1:clock ~tenure1:q:* ~tenure1:recovering ~tenure1:run ~tenure1:masters",
    );
    let _: String = eyes.text(&format!("ACL SETUSER app on >secret {rights}"));
    let watch = Watch::of("tells operators of itself");
    let url = server.url().replace("redis://", "redis://app:secret@");
    let locks = node(&url, "quiet").await;
    soon(held(&locks, "a").await.release()).await.unwrap();
    let told = watch.until("server_warning").await;
    assert_eq!(told.level, Level::WARN);
    assert!(told.text.contains("presence(false)"), "{told:?}");
    soon(held(&locks, "a").await.release()).await.unwrap();
    assert_eq!(watch.count("server_warning"), 1);
}

/// The user of the guide that looks can look, and can change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_looks_and_changes_nothing() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), "one").await,
        node(&server.url(), "other").await,
    );
    let looks = locks_of(&server, "look").await;
    let guard = held(&one, "a").await;
    let _readers = [
        soon(one.rw_lock("r").read()).await.unwrap(),
        soon(other.rw_lock("r").read()).await.unwrap(),
    ];
    let _permit = soon(one.semaphore("s", 2).acquire()).await.unwrap();
    assert!(soon(one.latch("l").try_set_count(2)).await.unwrap());
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let entry = inspect::until(&looks, "a", |entry| entry.waiter_count == 1).await;
    assert_eq!(entry.holders[0].node.id, one.node_id());
    inspect::until_told(&looks, "a").await;
    assert_eq!(inspect::list(&looks, "").await.len(), 4);
    assert_eq!(soon(looks.inspect().nodes()).await.unwrap().len(), 2);
    let findings = soon(looks.inspect().check()).await.unwrap();
    let found = findings
        .iter()
        .filter(|finding| finding.level != FindingLevel::Ok);
    let found: Vec<_> = found.map(|finding| finding.check).collect();
    assert_eq!((findings.len(), found), (9, vec!["persistence"]), "{findings:?}");
    let error = soon(looks.mutex("b").lock()).await.map(drop).unwrap_err();
    let is_refusal = |error: &Error| match error {
        Error::Store { source, .. } | Error::Connect { source, .. } => {
            *source.kind() == StoreErrorKind::Refused(StoreRefusal::NoPermission)
        }
        _ => false,
    };
    assert!(is_refusal(&error), "{error:?}");
    waiting.abort();
    drop(guard);
    // Without a store, the error says so.
    drop(server);
    let error = soon(looks.inspect().show("a")).await.unwrap_err();
    assert!(matches!(&error, Error::Connect { .. }), "{error:?}");
}
