//! What the tests on a cluster rely on: how Redis moves slots, and how it promotes replicas. No locks.

use std::collections::HashSet;
use std::thread;

use redis::Value;

use crate::cluster::{Cluster, keys_in_slot, slot_of};
use crate::deployment::{eventually, info, query, tell};

/// One key, and two of them.
const GET: &str = "return redis.call('GET', KEYS[1])";
const GET_BOTH: &str = "return redis.call('GET', KEYS[1]) and redis.call('GET', KEYS[2])";

/// Sends commands to a server over one connection, one after another, and returns the last answer as a text. A server
/// that the answer names is its index: `MOVED 2`.
fn answer(cluster: &Cluster, at: usize, lines: &[&str]) -> String {
    let mut connection = cluster.server(at).client();
    let answers = lines.iter().map(|line| {
        let mut words = Vec::from_iter(line.split(' '));
        // A script has spaces.
        if words[0] == "SCRIPT" {
            words = line.splitn(3, ' ').collect();
        }
        let answer = redis::Cmd::new().arg(&words).query(&mut connection);
        answer.map_or_else(|error| refusal(cluster, &error), text)
    });
    answers.last().expect("a command")
}

fn text(value: Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        value => redis::from_redis_value(value).expect("a text or a number"),
    }
}

fn refusal(cluster: &Cluster, error: &redis::RedisError) -> String {
    let code = error.code().unwrap_or_default();
    let Some((addr, _)) = error.redirect_node() else {
        return code.to_owned();
    };
    let urls = cluster.urls();
    let server = urls.iter().position(|url| *url == format!("redis://{addr}/"));
    format!("{code} {}", server.expect("a server of the cluster"))
}

/// Loads both scripts on all masters, and returns the requests for them.
fn load(cluster: &Cluster, first: &str, second: &str) -> [String; 2] {
    let [one, both] = [GET, GET_BOTH].map(|script| {
        let load = |at| answer(cluster, at, &[&format!("SCRIPT LOAD {script}")]);
        let shas: HashSet<_> = cluster.masters().into_iter().map(load).collect();
        shas.into_iter().next().expect("a master")
    });
    [
        format!("EVALSHA {one} 1 {first}"),
        format!("EVALSHA {both} 2 {first} {second}"),
    ]
}

#[test]
fn a_slot_moves_with_its_keys_and_their_expiry() {
    let cluster = Cluster::start(3, 1);
    assert_eq!(cluster.masters(), [0, 1, 2]);
    let tagged = ["a{tag}b", "tag", "a{}b", "a{b", "a}b{c}", "{{a}}"];
    for key in tagged
        .map(str::to_owned)
        .into_iter()
        .chain(cluster.keys_of(1).take(4))
    {
        let slot: u16 = query(cluster.server(0), &["CLUSTER", "KEYSLOT", &key]).unwrap();
        assert_eq!(slot_of(&key), slot, "{key}");
    }

    let key = cluster.keys_of(1).next().unwrap();
    let record = format!("lock:{key}");
    let slot = slot_of(&record);
    let same_slot = keys_in_slot(slot).nth(1).unwrap();
    assert_ne!(key, same_slot);
    assert_eq!(slot_of(&format!("lock:{same_slot}")), slot);
    assert_eq!(cluster.master_of_slot(slot), 1);
    tell(cluster.server(1), &["SET", &record, "1", "PX", "60000"]);
    for (from, to) in [(1, 2), (2, 0), (0, 1)] {
        cluster.move_slot(slot, to);
        let read = format!("GET {record}");
        assert_eq!(answer(&cluster, to, &[&read]), "1");
        assert_eq!(answer(&cluster, from, &[&read]), format!("MOVED {to}"));
        assert_eq!(cluster.master_of_slot(slot), to);
        let left: i64 = query(cluster.server(to), &["PTTL", &record]).unwrap();
        assert!((1..=60_000).contains(&left), "{left}");
    }
}

#[test]
fn a_slot_half_moved_sends_clients_to_its_target_or_lets_them_try_again() {
    let cluster = Cluster::start(2, 0);
    let (slot, source, target) = (slot_of("{t}"), 1, 0);
    assert_eq!(cluster.master_of_slot(slot), source);
    tell(cluster.server(source), &["MSET", "{t}a", "1", "{t}b", "2"]);
    let [one, both] = load(&cluster, "{t}a", "{t}b");
    let moved_back = format!("MOVED {source}");
    let asks = format!("ASK {target}");

    // All keys are on the source: only a new key is sent to the target.
    let moving = cluster.begin_move(slot, target);
    assert_eq!((moving.from, moving.to), (source, target));
    assert_eq!(answer(&cluster, source, &[&both]), "2");
    assert_eq!(answer(&cluster, source, &["GET {t}new"]), asks);
    assert_eq!(answer(&cluster, target, &["GET {t}a"]), moved_back);
    cluster.abort_move(moving);
    assert_eq!(answer(&cluster, source, &["GET {t}new"]), "nil");

    // One key of two is on the target.
    let moving = cluster.begin_move(slot, target);
    cluster.migrate(moving, &["{t}a"]);
    // Redis 6.2 sends the request to the target, which has the other half of the keys only.
    let is_old = info(cluster.server(source), "redis_version").starts_with("6.");
    let halved = if is_old { &*asks } else { "TRYAGAIN" };
    assert_eq!(answer(&cluster, source, &[&both]), halved);
    assert_eq!(answer(&cluster, target, &["ASKING", &both]), "TRYAGAIN");
    assert_eq!(answer(&cluster, source, &[&one]), asks);
    assert_eq!(answer(&cluster, source, &["GET {t}b"]), "2");
    assert_eq!(answer(&cluster, target, &[&one]), moved_back);
    assert_eq!(answer(&cluster, target, &["ASKING", &one]), "1");
    // ASKING is for the next command, whichever it is.
    let load = format!("SCRIPT LOAD {GET}");
    assert_eq!(answer(&cluster, target, &["ASKING", &load, &one]), moved_back);
    assert_eq!(answer(&cluster, target, &["ASKING", &one, &one]), moved_back);

    // All keys are on the target, and it does not own the slot.
    cluster.migrate_all(moving);
    assert_eq!(answer(&cluster, source, &[&both]), asks);
    assert_eq!(answer(&cluster, target, &["ASKING", &both]), "2");
    assert_eq!(answer(&cluster, target, &[&both]), moved_back);
    cluster.end_move(moving);
    assert_eq!(answer(&cluster, target, &[&both]), "2");
    assert_eq!(answer(&cluster, source, &[&both]), format!("MOVED {target}"));
}

#[test]
fn a_replica_of_a_cluster_is_promoted_and_what_was_written_without_replication_is_lost() {
    let mut cluster = Cluster::start_with(3, 1, &["--cluster-node-timeout", "1000"]);
    let key = cluster.keys_of(0).next().unwrap();
    let write = |cluster: &Cluster, at, value: &str| {
        tell(cluster.server(at), &["SET", &*format!("lock:{key}"), value]);
    };
    let read = |cluster: &Cluster, at| answer(cluster, at, &[&format!("GET lock:{key}")]);

    write(&cluster, 0, "kept");
    cluster.wait_for_replicas(0);
    cluster.cut_replication(0);
    write(&cluster, 0, "lost");
    cluster.kill(0);
    cluster.heal_replication(0);
    assert_eq!(cluster.promoted(0), 3);
    assert_eq!(read(&cluster, 3), "kept");

    // A master that comes back follows the promoted replica.
    cluster.restart(0);
    cluster.settle();
    assert_eq!(cluster.masters(), [1, 2, 3]);
    assert_eq!(read(&cluster, 0), "MOVED 3");

    // A failover without a death loses nothing, but with `FORCE`.
    write(&cluster, 3, "handed over");
    cluster.fail_over(0, &[]);
    assert_eq!(cluster.promoted(3), 0);
    assert_eq!(read(&cluster, 0), "handed over");
    let key = cluster.keys_of(1).next().unwrap();
    cluster.cut_replication(1);
    tell(cluster.server(1), &["SET", &*format!("lock:{key}"), "lost"]);
    cluster.fail_over(4, &["FORCE"]);
    assert_eq!(cluster.promoted(1), 4);
    assert_eq!(answer(&cluster, 4, &[&format!("GET lock:{key}")]), "nil");
    cluster.heal_replication(1);
    cluster.settle();
    assert_eq!(cluster.masters(), [0, 2, 4]);
}

/// Stops one of three masters. Returns the answers of another master to a read of its own key, and of a key of the
/// stopped master.
fn answers_without_a_master(full_coverage: &str) -> [String; 2] {
    let args = [
        "--cluster-node-timeout",
        "1000",
        "--cluster-require-full-coverage",
        full_coverage,
    ];
    let cluster = Cluster::start_with(3, 0, &args);
    let reads = [0, 2].map(|at| format!("GET lock:{}", cluster.keys_of(at).next().unwrap()));
    cluster.freeze(2);
    eventually("the other masters agree that it is down", || {
        let nodes: String = query(cluster.server(0), &["CLUSTER", "NODES"]).unwrap();
        let mut flags = nodes.lines().filter_map(|line| line.split(' ').nth(2));
        flags
            .any(|flags| flags.split(',').any(|flag| flag == "fail"))
            .then_some(())
    });
    let answers = reads.map(|read| answer(&cluster, 0, &[&read]));
    cluster.thaw(2);
    cluster.settle();
    answers
}

#[test]
fn a_stopped_master_stops_all_masters() {
    assert_eq!(answers_without_a_master("yes"), ["CLUSTERDOWN", "CLUSTERDOWN"]);
}

#[test]
fn a_stopped_master_stops_no_other_if_full_coverage_is_not_required() {
    assert_eq!(answers_without_a_master("no"), ["nil", "MOVED 2"]);
}

#[test]
fn clusters_that_start_at_once_have_ports_of_their_own() {
    let start = || thread::spawn(|| Cluster::start(1, 2));
    let clusters = [start(), start(), start()].map(|thread| thread.join().unwrap());
    let servers = clusters
        .iter()
        .flat_map(|cluster| (0..3).map(|at| cluster.server(at)));
    let ports: HashSet<_> = servers.map(|server| server.port()).collect();
    assert_eq!(ports.len(), 9);
    assert!(ports.iter().all(|port| *port < 20_000), "{ports:?}");
}
