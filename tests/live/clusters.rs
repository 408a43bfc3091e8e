//! Locks on a Redis Cluster: slots that move, masters that stop, and what users get wrong.

use std::time::{Duration, Instant};

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::inspect::{Entry, State};
use tenure::{Error, Guard, Locks, Recovery};

use crate::bad_input::{options, refused, tells};
use crate::cluster::{Cluster, slot_of};
use crate::deployment::{info, query};
use crate::help::{HOUR, ms, on_cluster, soon};
use crate::server::{RedisServer, ReservedPort};
use crate::store::acl;
use crate::support::events::Watch;
use crate::support::inspect;

/// How many leases are held while a slot is half moved.
const HELD: usize = 20;

pub async fn node(cluster: &Cluster, lease: Duration) -> Locks {
    let seed = &cluster.urls()[..1];
    let like = redis::Client::open(&*seed[0]).unwrap();
    crate::help::builder()
        .lease(lease)
        .cluster(seed, like)
        .await
        .unwrap()
}

/// Returns the slot of a key with this hash tag.
fn slot(cluster: &Cluster, tag: &str) -> u16 {
    query(cluster.server(0), &["CLUSTER", "KEYSLOT", tag]).unwrap()
}

/// Returns a server that does not own the slot.
fn other_master(cluster: &Cluster, slot: u16) -> usize {
    let owner = cluster.master_of_slot(slot);
    let mut masters = cluster.masters().into_iter();
    masters.find(|at| *at != owner).unwrap()
}

/// Takes the locks `{tag}:0`, `{tag}:1`, ….
async fn take(locks: &Locks, tag: &str, count: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(soon(locks.mutex(format!("{{{tag}}}:{n}")).lock()).await.unwrap());
    }
    guards
}

/// Waits for five leases, and checks at each moment that all are held.
async fn hold(guards: &[Guard], lease: Duration) {
    let end = Instant::now() + 5 * lease;
    while Instant::now() < end {
        assert!(guards.iter().all(|guard| guard.is_held()), "a lease was lost");
        tokio::time::sleep(lease / 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holds_at_a_time_and_waiters_are_pushed_their_grants() {
    let cluster = Cluster::start(3, 0);
    // A waiter that is not pushed its grant looks after an hour or more.
    let (one, other) = (node(&cluster, 12 * HOUR).await, node(&cluster, 12 * HOUR).await);
    let mut used = std::collections::BTreeSet::new();
    for n in 0..40 {
        let key = format!("account:{n}");
        used.insert(cluster.master_of_slot(slot(&cluster, &format!("lock:{key}"))));
        let guard = soon(one.mutex(&*key).lock()).await.unwrap();
        assert!(soon(other.mutex(&*key).try_lock()).await.unwrap().is_none());
        let waiter = tokio::spawn(other.mutex(&*key).lock());
        while other.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
        let fence = guard.fence();
        soon(guard.release()).await.unwrap();
        let next = soon(waiter).await.unwrap().unwrap();
        assert!(next.fence() > fence);
        soon(next.release()).await.unwrap();
    }
    assert_eq!(used.len(), 3, "locks on all masters");
    let all = one.multi((0..20).map(|n| format!("account:{n}")));
    soon(soon(all.lock()).await.unwrap().release()).await.unwrap();
    soon(one.shutdown()).await;
    soon(other.shutdown()).await;
    for at in 0..3 {
        let keys: Vec<String> = query(cluster.server(at), &["KEYS", "*"]).unwrap();
        let left: Vec<_> = keys
            .iter()
            .filter(|key| !key.starts_with("tenure1:clock:"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_to_and_fro_loses_no_lease_and_keeps_fences_growing() {
    let cluster = Cluster::start(3, 0);
    let lease = ms(2_000);
    let (one, other) = (node(&cluster, lease).await, node(&cluster, lease).await);
    let servers = (0..3).map(|at| Watch::of(format!("127.0.0.1:{}", cluster.server(at).port())));
    let watches: Vec<_> = servers.collect();
    let slot = slot(&cluster, "order");
    let guards = take(&one, "order", HELD).await;
    let waiting = other.mutex("{order}:0");
    let waiter = tokio::spawn(waiting.lock());
    let mut fence = guards[0].fence();
    for _ in 0..6 {
        cluster.move_slot(slot, other_master(&cluster, slot));
        let key = one.mutex("{order}:turn");
        for locks in [&one, &other] {
            let guard = soon(locks.mutex("{order}:turn").lock()).await.unwrap();
            assert!(guard.fence() > fence, "{:?} after {fence:?}", guard.fence());
            fence = guard.fence();
            soon(guard.release()).await.unwrap();
        }
        let permit = soon(other.semaphore("{order}:permits", 2).acquire())
            .await
            .unwrap();
        cluster.move_slot(slot, other_master(&cluster, slot));
        assert!(permit.is_held());
        soon(permit.release()).await.unwrap();
        assert!(guards.iter().all(|guard| guard.is_held()));
        drop(key);
    }
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    soon(soon(waiter).await.unwrap().unwrap().release())
        .await
        .unwrap();
    for watch in watches {
        assert_eq!(watch.count("store_failing"), 0, "a slot that moves is no outage");
    }
}

/// An operator sees each lease of a half-moved slot. A steal says why it must wait.
async fn operator_sees(operator: &Locks) {
    let held = |entry: &&Entry| entry.state == State::Held;
    let listed = inspect::list(operator, "{order}").await;
    assert_eq!(listed.iter().filter(held).count(), HELD + 3, "{listed:#?}");
    for key in ["{order}:0", "{order}:book"] {
        let shown = inspect::show(operator, key).await;
        assert_eq!(shown.iter().filter(held).count(), 1, "{shown:?}");
    }
    let entry = &inspect::show(operator, "{order}:0").await[0];
    let steal = operator.inspect().steal(entry).grace(Duration::ZERO);
    let error = soon(steal.into_future()).await.unwrap_err();
    tells(
        &format!(
            "{error} {:?}",
            std::error::Error::source(&error).map(ToString::to_string)
        ),
        &["on its way to another server"],
    );
}

/// What holds while a slot is half moved: with the records at the source, or at the target.
async fn half_moved(migrated: bool) {
    let cluster = Cluster::start(3, 0);
    let lease = ms(1_000);
    let (one, other) = (node(&cluster, lease).await, node(&cluster, lease).await);
    let slot = slot(&cluster, "order");
    let mut guards = take(&one, "order", HELD).await;
    let reader = soon(one.rw_lock("{order}:book").read()).await.unwrap();
    let permits = soon(one.semaphore("{order}:permits", 3).acquire_many(2))
        .await
        .unwrap();
    let election = one.election("{order}:leader");
    let leads = soon(election.campaign()).await.unwrap();
    soon(election.proclaim("10.0.0.7:8080")).await.unwrap();
    let moving = cluster.begin_move(slot, other_master(&cluster, slot));
    if migrated {
        cluster.migrate_all(moving);
    }
    guards.push(reader);
    guards.push(permits);
    hold(&guards, lease).await;
    operator_sees(&other).await;
    // A release takes effect, although other names of the key are elsewhere.
    for guard in guards.drain(..HELD / 2) {
        soon(guard.release()).await.unwrap();
    }
    let exists = |n: usize| {
        let record = format!("lock:{{order}}:{n}");
        let mut client = cluster
            .server(if migrated { moving.to } else { moving.from })
            .client();
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").ignore().cmd("GET").arg(record);
        // The source refers to the target for what it does not have.
        let found: Result<(Option<String>,), _> = pipeline.query(&mut client);
        found.is_ok_and(|(record,)| record.is_some())
    };
    assert!(!exists(0) && exists(HELD - 1));
    // So does the release of the last reader, and of the last permits: their records end with them.
    for guard in guards.split_off(HELD / 2) {
        soon(guard.release()).await.unwrap();
    }
    // A new lock waits, and then says why.
    let error = soon(other.mutex("{order}:new").try_lock()).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    let text = format!(
        "{error}: {:?}",
        std::error::Error::source(&error).map(ToString::to_string)
    );
    tells(&text, &["{order}:new", "on its way to another server"]);
    let elsewhere = soon(other.mutex("another").lock()).await.unwrap();
    soon(elsewhere.release()).await.unwrap();
    // A claim that waits is granted when the slot has arrived.
    let last = other.mutex(format!("{{order}}:{}", HELD - 1));
    let waiter = tokio::spawn(async move { last.lock_timeout(ms(30_000)).await });
    if !migrated {
        cluster.migrate_all(moving);
    }
    cluster.end_move(moving);
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    drop(soon(waiter).await.unwrap().unwrap());
    // What the leader proclaimed has lived as long as its lease.
    let leader = soon(other.election("{order}:leader").leader()).await.unwrap();
    let leader = leader.expect("it leads");
    assert!(leads.is_held() && leader.fence() == leads.fence());
    assert_eq!(leader.value(), Some(&b"10.0.0.7:8080"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_and_released_in_a_half_moved_slot_with_the_records_at_the_source() {
    half_moved(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_and_released_in_a_half_moved_slot_with_the_records_at_the_target() {
    half_moved(true).await;
}

/// The records are at the source, and there is no proclaimed value that the target might have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_outlives_a_target_that_hangs_while_its_slot_is_half_moved() {
    let settings = [
        "--cluster-require-full-coverage",
        "no",
        "--cluster-node-timeout",
        "15000",
    ];
    let cluster = Cluster::start_with(3, 0, &settings);
    let lease = ms(1_500);
    let locks = node(&cluster, lease).await;
    let slot = slot(&cluster, "order");
    let leads = soon(locks.election("{order}:leader").campaign()).await.unwrap();
    let beside = soon(locks.mutex("{order}:1").lock()).await.unwrap();
    let moving = cluster.begin_move(slot, other_master(&cluster, slot));
    cluster.freeze(moving.to);
    hold(&[leads, beside], lease).await;
    cluster.thaw(moving.to);
    cluster.abort_move(moving);
}

/// What an operator asks of a server that does not serve the slot any more is asked of the server that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_follows_a_slot_that_has_moved() {
    let cluster = Cluster::start(2, 0);
    let operator = node(&cluster, ms(1_000)).await;
    let slot = slot_of("tenure1:a:lock:");
    // The map is read again if it is older than a second: on a slow machine it may be.
    for _ in 0..10 {
        let from = cluster.master_of_slot(slot);
        let moved = || info(cluster.server(from), "errorstat_MOVED");
        let before = moved();
        soon(operator.inspect().audit()).await.unwrap();
        cluster.move_slot(slot, 1 - from);
        assert!(soon(operator.inspect().audit()).await.unwrap().is_empty());
        if moved() != before {
            return;
        }
    }
    panic!("no question came to a server that does not serve its slot any more");
}

/// The rights of the guide are enough on a cluster, also in a half-moved slot, and those that it adds are needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_acl_is_enough_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let rights = |added: &str| {
        let rule = format!("ACL SETUSER app on >secret {}{added}", acl());
        let words: Vec<&str> = rule.split_whitespace().collect();
        cluster.tell_all(&words);
    };
    let url = cluster.urls()[0].replace("redis://", "redis://app:secret@");
    rights("");
    let error = on_cluster([&url]).await.map(drop).unwrap_err();
    tells(&error, &["cluster|slots"]);
    // Without two of them a node works, and warns once.
    rights(" +cluster|slots +asking");
    let watch = Watch::of("+cluster|info +cluster|myid");
    let locks = on_cluster([&url]).await.unwrap();
    for n in 0..20 {
        let guard = soon(locks.mutex(format!("key:{n}")).lock()).await.unwrap();
        soon(guard.release()).await.unwrap();
    }
    soon(locks.shutdown()).await;
    assert_eq!(watch.told().len(), 1, "{:?}", watch.told());
    rights(" +cluster|slots +cluster|info +cluster|myid +asking");
    cluster.tell_all(&["ACL", "LOG", "RESET"]);
    let (one, other) = (
        on_cluster([&url]).await.unwrap(),
        on_cluster([&url]).await.unwrap(),
    );
    let moved = soon(one.mutex("{order}:0").fixed(ms(8_000)).lock())
        .await
        .unwrap();
    let slot = slot(&cluster, "order");
    let moving = cluster.begin_move(slot, other_master(&cluster, slot));
    cluster.migrate_all(moving);
    soon(moved.renew()).await.unwrap();
    soon(moved.release()).await.unwrap();
    cluster.end_move(moving);
    for n in 0..20 {
        let key = format!("key:{n}");
        let guard = soon(one.mutex(&*key).lock()).await.unwrap();
        let waiter = tokio::spawn(other.mutex(&*key).lock());
        while other.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
        soon(guard.release()).await.unwrap();
        soon(soon(waiter).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
    for at in 0..3 {
        let log: redis::Value = query(cluster.server(at), &["ACL", "LOG"]).unwrap();
        assert_eq!(log, redis::Value::Array(Vec::new()), "{log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stops_costs_only_its_own_leases() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let lease = ms(4_000);
    let locks = node(&cluster, lease).await;
    let mut guards = Vec::new();
    for n in 0..300 {
        guards.push(soon(locks.mutex(format!("account:{n}")).lock()).await.unwrap());
    }
    let stopped = cluster.masters()[0];
    let is_stopped = |guard: &Guard| {
        let record = format!("lock:{}", String::from_utf8_lossy(guard.key().as_bytes()));
        cluster.master_of_slot(slot(&cluster, &record)) == stopped
    };
    let (dead, live): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_stopped);
    assert!(
        dead.len() > 50 && live.len() > 100,
        "{} and {}",
        dead.len(),
        live.len()
    );
    cluster.server(stopped).freeze();
    let end = Instant::now() + 3 * lease;
    while Instant::now() < end {
        assert!(
            live.iter().all(|guard| guard.is_held()),
            "a lease on another master was lost"
        );
        tokio::time::sleep(ms(50)).await;
    }
    for guard in &dead {
        assert!(!guard.is_held());
        soon(guard.lost()).await;
    }
    cluster.server(stopped).thaw();
}

/// The first master of the map is away. A new process that does not insist on all masters starts, as does the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_master_of_the_map_is_needed_by_its_own_keys_alone() {
    let mut cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let first = cluster.master_of_slot(0);
    let urls = cluster.urls();
    cluster.kill(first);
    let seeds: Vec<_> = (0..3).filter(|at| *at != first).map(|at| &*urls[at]).collect();
    let like = redis::Client::open(seeds[0]).unwrap();
    let builder = crate::help::builder().lease(ms(4_000)).lazy();
    let locks = soon(builder.cluster(&seeds, like)).await.unwrap();
    let is_served = |key: &String| cluster.master_of_slot(slot_of(&format!("lock:{key}"))) != first;
    let key = (0..).map(|n| format!("account:{n}")).find(is_served).unwrap();
    // The first request finds out which server serves which slot.
    assert!(soon(locks.jobs().show(&*key)).await.unwrap().is_none());
    let guard = soon(locks.mutex(&*key).lock()).await.unwrap();
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_users_get_wrong_is_a_clear_error() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let seed = cluster.urls()[0].clone();
    let unsupported = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    // A server without cluster mode, and a server of a cluster as a single server.
    let plain = RedisServer::start();
    let (text, error) = refused(on_cluster([plain.url()]).await);
    assert_eq!(error.kind(), &unsupported, "{text}");
    tells(
        &text,
        &["cluster-enabled no", "`redis://", &plain.port().to_string()],
    );
    let (text, error) = refused(crate::help::connect(&seed).await);
    assert_eq!(error.kind(), &unsupported, "{text}");
    tells(&text, &["`redis+cluster://"]);
    // No seed can be reached; one that can be is enough.
    let closed = [ReservedPort::new(), ReservedPort::new()];
    let (text, error) = refused(on_cluster(closed.each_ref().map(ReservedPort::url)).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &["no server of the cluster", "onnection refused"]);
    let locks = on_cluster([closed[0].url(), seed.clone()]).await.unwrap();
    soon(locks.ping()).await.unwrap();
    // Databases and recoveries.
    let text = options(on_cluster([format!("{seed}3")]).await);
    tells(&text, &["database 3", "database 0"]);
    let like = redis::Client::open(format!("{seed}2")).unwrap();
    let text = options(crate::help::builder().cluster([&*seed], like).await);
    tells(&text, &["database 2"]);
    let text = options(on_cluster(Vec::<String>::new()).await);
    tells(&text, &["empty"]);
    let always = Recovery::Always {
        longest: ms(30_000),
        lag: ms(3_000),
    };
    let like = redis::Client::open(&*seed).unwrap();
    let text = options(
        crate::help::builder()
            .recovery(always)
            .cluster([&*seed], like)
            .await,
    );
    tells(&text, &["Recovery::Always", "cluster-node-timeout"]);
    // Writes over several slots.
    let order = soon(locks.mutex("{order:7}").lock()).await.unwrap();
    let own: (i64,) = soon(order.atomically().command("INCR").key("stock:{order:7}").query())
        .await
        .unwrap();
    assert_eq!(own, (1,));
    let other = order
        .atomically()
        .command("INCR")
        .key("stock:8")
        .query::<(i64,)>();
    let error = soon(other).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    tells(&error.to_string(), &["stock:8", "{order:7}", "slot"]);
    let several = soon(locks.multi(["account:1", "account:2"]).lock())
        .await
        .unwrap();
    let both = several
        .atomically()
        .command("INCR")
        .key("account:1")
        .query::<(i64,)>();
    let error = soon(both).await.unwrap_err();
    tells(&error.to_string(), &["slot", "{order:7}"]);
    soon(several.release()).await.unwrap();
    soon(order.release()).await.unwrap();
    // A slot that no master serves.
    let lost = slot(&cluster, "lost");
    for at in 0..3 {
        crate::deployment::tell(cluster.server(at), &["CLUSTER", "DELSLOTS", &lost.to_string()]);
    }
    let error = soon(locks.mutex("{lost}").try_lock()).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    tells(&error.to_string(), &["{lost}", "not served"]);
    let well = soon(locks.mutex("{order:7}").lock()).await.unwrap();
    soon(well.release()).await.unwrap();
}

/// The servers announce an address where nothing listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_address_that_cannot_be_reached_is_named() {
    let cluster = Cluster::start(3, 0);
    for at in 0..3 {
        crate::deployment::tell(
            cluster.server(at),
            &["CONFIG", "SET", "cluster-announce-ip", "127.0.0.9"],
        );
    }
    crate::deployment::eventually("the servers announce it", || {
        let slots: redis::Value = query(cluster.server(0), &["CLUSTER", "SLOTS"]).ok()?;
        format!("{slots:?}").contains("127.0.0.9").then_some(())
    });
    let (text, error) = refused(on_cluster([cluster.urls()[0].clone()]).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &["127.0.0.9"]);
}
