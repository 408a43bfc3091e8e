//! `tenure doctor` on servers with a fault, and without one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::connections::cluster;
use crate::proxy::{Direction, Flow, Proxy};
use crate::server::{RedisServer, ReservedPort};
use crate::tools::{Answer, command, rows, run, until};
use crate::wall_clock::WallClock;

/// The checks of a server, in the order of the lines.
const CHECKS: [&str; 9] = [
    "version",
    "role",
    "eviction",
    "memory",
    "persistence",
    "replicas",
    "clock",
    "recovery",
    "latency",
];

/// Sends a command to a server.
fn send<T: redis::FromRedisValue>(server: &RedisServer, line: &str) -> T {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query(&mut server.client()).unwrap()
}

/// Returns a server with an append-only file.
fn durable(server: RedisServer) -> RedisServer {
    send::<()>(&server, "CONFIG SET appendonly yes");
    server
}

/// Adds a user of the guide to the server, and returns the user's URL.
fn url_of(server: &RedisServer, user: &str) -> String {
    let page = include_str!("../../../docs/redis.md");
    let rule = page
        .split_once(&format!("ACL SETUSER {user} on '>password' "))
        .unwrap()
        .1;
    let rule = rule.split_once("```").unwrap().0.replace(['\'', '\\'], "");
    let rule: Vec<&str> = rule.split_whitespace().collect();
    send::<()>(
        server,
        &format!("ACL SETUSER {user} on >secret {}", rule.join(" ")),
    );
    server.url().replace("//", &format!("//{user}:secret@"))
}

fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = send(server, "KEYS *");
    keys.sort();
    keys
}

/// Returns the lines of an answer that are not `ok`: the level, the check and the text of each.
fn faults(answer: &Answer) -> Vec<[&str; 3]> {
    let rows = rows(&answer.out).into_iter();
    let faults = rows.filter(|row| row[0] != "ok");
    faults.map(|row| [row[0], row[1], row[3]]).collect()
}

#[test]
fn a_good_server_is_all_ok_for_the_documented_user_and_nothing_is_left() {
    let server = durable(RedisServer::start());
    let url = url_of(&server, "tenure");
    for options in ["", "?recovery=always&longest=1s"] {
        let table = run(&["doctor", "--url", &format!("{url}{options}")]).well();
        let rows = rows(&table);
        let checks: Vec<&str> = rows.iter().map(|row| row[1]).collect();
        assert_eq!(checks, [&CHECKS[..], &["locks"]].concat(), "{table}");
        assert!(rows.iter().all(|row| row[0] == "ok"), "{table}");
        assert!(table.contains("handed over by a push"), "{table}");
        assert_eq!(keys(&server), ["tenure1:clock"]);
    }
    let lines = run(&["doctor", "--json", "--url", &url]).well();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(lines.len(), 10);
    assert!(
        lines
            .iter()
            .all(|line| line["level"] == "ok" && line["server"] == *address)
    );
}

/// A trial uses few commands of the scripts in each step, and a script is refused without the name of the command.
#[test]
fn each_right_that_the_services_need_is_tried_and_named() {
    let server = durable(RedisServer::start());
    let url = url_of(&server, "tenure");
    for right in [
        "get",
        "mget",
        "exists",
        "pttl",
        "del",
        "pexpire",
        "pexpireat",
        "hget",
        "hmget",
        "hdel",
        "hkeys",
        "zadd",
        "zrem",
        "zscore",
        "zcount",
        "zrange",
        "zrangebyscore",
        "zrevrangebyscore",
    ] {
        send::<()>(&server, &format!("ACL SETUSER tenure -{right}"));
        let answer = run(&["doctor", "--url", &url]);
        send::<()>(&server, &format!("ACL SETUSER tenure +{right}"));
        let found = faults(&answer);
        let words = format!("'{right}' command");
        let named =
            |[level, check, text]: &[&str; 3]| *level == "fail" && *check == "locks" && text.contains(&words);
        assert!(answer.code == 1 && found.iter().any(named), "{right}: {answer:?}");
    }
    run(&["doctor", "--url", &url]).well();
}

/// Returns a server, the URL of `tenure`, and more arguments.
type Case = (&'static str, &'static str, RedisServer, Option<String>);

fn ten_faults(clock: &WallClock, proxy: &mut Option<Proxy>) -> Vec<Case> {
    let start = || durable(RedisServer::start());
    let evicts = durable(RedisServer::with_args(&[
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-lru",
    ]));
    let full = start();
    send::<()>(&full, "SETRANGE filling 20000000 x");
    let info: String = send(&full, "INFO memory");
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap();
    let limit = used.parse::<u64>().unwrap() * 100 / 93;
    send::<()>(&full, &format!("CONFIG SET maxmemory {limit}"));
    let (master, replica) = (start(), start());
    send::<()>(&replica, &format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let recovers = start();
    send::<()>(&recovers, "SET tenure1:recovering run PX 60000");
    let ahead = durable(RedisServer::preloading(&clock.library()));
    clock.step(60);
    let far = start();
    let between = Proxy::start(([127, 0, 0, 1], far.port()).into());
    between.set(Direction::Replies, Flow::Delay(Duration::from_millis(120)));
    let url = format!("redis://{}/", between.addr());
    *proxy = Some(between);
    let [mute, barred] = ["-publish", "-evalsha"].map(|right| {
        let server = start();
        let url = url_of(&server, "tenure");
        send::<()>(&server, &format!("ACL SETUSER tenure {right}"));
        (server, Some(url))
    });
    vec![
        ("eviction", "allkeys-lru", evicts, None),
        ("memory", "of maxmemory is used", full, None),
        ("persistence", "appendonly yes", RedisServer::start(), None),
        ("replicas", "recovery=always", master, None),
        ("role", "read-only (READONLY)", replica, None),
        ("recovery", "nothing is granted for", recovers, None),
        ("clock", "ahead of this machine's", ahead, None),
        ("latency", "the median of 20 pings is 1", far, Some(url)),
        (
            "locks",
            "NOPERM this user has no permissions to run the 'publish' command",
            mute.0,
            mute.1,
        ),
        (
            "locks",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            barred.0,
            barred.1,
        ),
    ]
}

#[tokio::test]
async fn each_of_ten_faults_is_named_and_all_else_is_ok() {
    let (clock, mut proxy) = (WallClock::new(), None);
    let cases = ten_faults(&clock, &mut proxy);
    let master = &cases[3].2;
    let is_followed = async || send::<String>(master, "INFO replication").contains("state=online");
    until("the replica follows", is_followed).await;
    for (check, words, server, url) in &cases {
        let url = url.clone().unwrap_or_else(|| server.url());
        // No lock can be had there, which is the same fault.
        let is_closed = ["role", "recovery"].contains(check);
        let option: &[&str] = if is_closed { &["--read-only"] } else { &[] };
        let answer = run(&[&["doctor", "--url", &url], option].concat());
        let level = if ["persistence", "replicas"].contains(check) {
            "warn"
        } else {
            "fail"
        };
        let found = faults(&answer);
        assert!(
            matches!(&found[..], [[at, what, text]] if at == &level && what == check && text.contains(words)),
            "{check}: {answer:?}"
        );
        let (count, code) = (rows(&answer.out).len(), i32::from(level == "fail"));
        assert_eq!((count, answer.code), (10 - option.len(), code), "{answer:?}");
    }
}

/// Each command that the server executes meanwhile is a plain read.
#[test]
fn the_documented_user_looks_and_writes_nothing() {
    let server = durable(RedisServer::start());
    let url = url_of(&server, "look");
    let mut monitor = server.client();
    monitor
        .send_packed_command(&redis::cmd("MONITOR").get_packed_command())
        .unwrap();
    monitor.recv_response().unwrap();
    let table = run(&["doctor", "--read-only", "--url", &url]).well();
    assert_eq!(rows(&table).len(), CHECKS.len());
    send::<()>(&server, "ECHO end");
    let mut seen = BTreeSet::new();
    loop {
        let line: String = redis::from_redis_value(monitor.recv_response().unwrap()).unwrap();
        let command = line.split('"').nth(1).unwrap().to_lowercase();
        if command == "echo" {
            break;
        }
        seen.insert(command);
    }
    seen.retain(|command| !["auth", "client", "hello", "select"].contains(&&**command));
    assert_eq!(
        Vec::from_iter(&seen),
        ["get", "info", "ping", "pttl", "role", "time"]
    );
    // The same user has no right for a trial.
    let answer = run(&["doctor", "--url", &url]);
    assert_eq!(faults(&answer)[0][..2], ["fail", "locks"], "{answer:?}");
}

/// Services that always recover need no persistence, and a trial takes no part in what they agree on.
#[tokio::test]
async fn a_master_behind_sentinels_is_checked() {
    let master = RedisServer::start();
    let sentinel = RedisServer::sentinel("db", master.port());
    let url = format!(
        "redis+sentinel://127.0.0.1:{}/db?longest=400ms&lag=10ms",
        sentinel.port()
    );
    let service = tenure::Locks::builder()
        .presence(false)
        .connect(&url)
        .await
        .unwrap();
    until("the master has recovered", async || {
        !master_has(&master, "tenure1:recovering")
    })
    .await;
    let before = keys(&master);
    let table = run(&["doctor", "--url", &url]).well();
    assert!(rows(&table).iter().all(|row| row[0] == "ok"), "{table}");
    assert_eq!(keys(&master), before);
    service.shutdown().await;
}

fn master_has(server: &RedisServer, key: &str) -> bool {
    send(server, &format!("EXISTS {key}"))
}

#[tokio::test]
async fn each_server_of_a_cluster_is_checked_and_tried() {
    let servers = cluster(2).await;
    let url = servers[0].url().replace("redis://", "redis+cluster://");
    let table = run(&["doctor", "--url", &url]).well();
    for server in &servers {
        let address = format!("127.0.0.1:{}", server.port());
        let rows = rows(&table).into_iter().filter(|row| row[2] == address);
        let other: Vec<_> = rows.filter(|row| row[0] != "ok").map(|row| row[1]).collect();
        assert_eq!(other, ["persistence"], "{table}");
        assert!(keys(server).iter().all(|key| key.starts_with("tenure1:clock:")));
    }
    send::<()>(&servers[1], "ACL SETUSER default -hset");
    let answer = run(&["doctor", "--url", &url]);
    let failed: Vec<_> = rows(&answer.out)
        .into_iter()
        .filter(|row| row[0] == "fail")
        .collect();
    let address = format!("127.0.0.1:{}", servers[1].port());
    assert!(
        matches!(&failed[..], [row] if row[1..3] == ["locks", &address]),
        "{answer:?}"
    );
    assert!(failed[0][3].contains("NOPERM"), "{answer:?}");
}

#[test]
fn a_master_of_a_quorum_that_is_away_is_named_and_the_others_are_checked() {
    let mut masters: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = masters
        .iter()
        .map(|master| format!("127.0.0.1:{}", master.port()))
        .collect();
    let url = format!("redis+quorum://{}/", hosts.join(","));
    let table = run(&["doctor", "--url", &url]).well();
    assert_eq!(
        rows(&table).iter().filter(|row| row[0] == "ok").count(),
        25,
        "{table}"
    );
    for master in &masters {
        assert!(keys(master).iter().all(|key| key.starts_with("tenure1:clock:")));
    }
    masters[1].kill();
    let answer = run(&["doctor", "--url", &url]);
    let failed = rows(&answer.out).into_iter().filter(|row| row[0] == "fail");
    let failed: Vec<_> = failed.map(|row| (row[1], row[2])).collect();
    assert_eq!(
        (failed, answer.code),
        (vec![("connection", &*hosts[1])], 1),
        "{}",
        answer.out
    );
    assert_eq!(rows(&answer.out).len(), 20);
}

/// Each server that is silent is named by its own address, and not by that of the first.
#[test]
fn a_server_that_is_silent_is_named() {
    let masters: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = masters
        .iter()
        .map(|master| format!("127.0.0.1:{}", master.port()))
        .collect();
    let url = format!("redis+quorum://{}/", hosts.join(","));
    masters[1].freeze();
    let answer = run(&["doctor", "--read-only", "--url", &url]);
    let rows = rows(&answer.out).into_iter();
    let failed: Vec<_> = rows.filter(|row| row[0] == "fail").collect();
    assert!(
        matches!(&failed[..], [row] if row[1..3] == ["connection", &*hosts[1]] && row[3].contains(&hosts[1])),
        "{answer:?}"
    );
    let listing = run(&["ls", "--url", &url]);
    assert!(
        listing.err.contains(&hosts[1]) && !listing.err.contains(&hosts[0]),
        "{listing:?}"
    );
    masters[1].thaw();
}

/// A server that loads its data answers so, too. A right would not help.
#[test]
fn a_server_that_refuses_plain_reads_fails() {
    let server = durable(RedisServer::with_args(&["--replica-serve-stale-data", "no"]));
    let closed = ReservedPort::new();
    send::<()>(&server, &format!("REPLICAOF 127.0.0.1 {}", closed.get()));
    let answer = run(&["doctor", "--read-only", "--url", &server.url()]);
    let found = faults(&answer);
    let words: Vec<_> = found
        .iter()
        .map(|[level, check, text]| (*level, *check, text.contains("MASTERDOWN")))
        .collect();
    assert_eq!(
        words,
        [
            ("fail", "role", false),
            ("fail", "recovery", true),
            ("fail", "latency", true)
        ],
        "{answer:?}"
    );
}

#[test]
fn a_store_that_does_not_answer_or_refuses_is_code_3() {
    let closed = ReservedPort::new();
    for options in [&[][..], &["--read-only"]] {
        let doctor = |url: &str| run(&[&["doctor", "--url", url], options].concat());
        doctor(&closed.url().replace("//", "//:hunter2@")).refuses(3, "efused");
        let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
        doctor(&server.url()).refuses(3, "NOAUTH");
        doctor(&server.url().replace("//", "//:wrong@")).refuses(3, "WRONGPASS");
    }
}

#[test]
fn a_closed_pipe_does_not_hide_a_fault() {
    let server = RedisServer::with_args(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let url = server.url();
    let mut doctor = command(&["doctor", "--read-only", "--url", &url]);
    let code = doctor.stdout(writer).status().unwrap().code();
    assert_eq!(code, Some(1));
}

#[test]
fn a_report_that_cannot_be_written_is_code_3() {
    let server = RedisServer::start();
    for option in [&[][..], &["--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut doctor = command(&["doctor", "--read-only", "--url", &server.url()]);
        let code = doctor.args(option).stdout(full).status().unwrap().code();
        assert_eq!(code, Some(3));
    }
}
