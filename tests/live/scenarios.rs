//! Attacks on the design, run with real servers.

use std::time::Duration;

use tenure::error::{LostCause, StoreErrorKind, StoreRefusal};
use tenure::{Error, Locks};

use crate::help::{Eyes, HOUR, Other, addr, held, locks, ms, now, patient, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};

async fn evalshas(eyes: &mut Eyes) -> u64 {
    eyes.calls().get("evalsha").copied().unwrap_or(0)
}

/// The claim is delayed in the network, its leave overtakes it on another connection, and then the claim arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_executed_after_its_leave_leaves_nothing_behind() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let one = locks(&url(proxy.addr()), ms(8_000)).await;
    held(&one, "warm").await.release().await.unwrap();
    soon(one.idle()).await;
    proxy.set_existing(Direction::Requests, Flow::Hold);
    let waiting = tokio::spawn(one.mutex("a").lock());
    proxy.until(|counts| counts.held[0] > 0).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    // The connection is given up, and the leave uses another one.
    soon(one.idle()).await;
    let asked = evalshas(&mut eyes).await;
    proxy.release();
    proxy.until(|counts| counts.late[0] > 0).await;
    until("the late claim arrives", || {
        eyes.calls().get("evalsha").copied().unwrap_or(0) > asked
    })
    .await;
    let other = locks(&server.url(), ms(30_000)).await;
    let guard = soon(other.mutex("a").try_lock()).await.unwrap();
    guard
        .expect("the late claim holds nothing")
        .release()
        .await
        .unwrap();
    eyes.until_empty().await;
}

/// Two hundred claims are in one batch, and one of the keys is a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_does_not_fail_its_batch() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let _: i64 = eyes.text("RPUSH lock:100 x");
    let before = evalshas(&mut eyes).await;
    let tasks: Vec<_> = (0..200)
        .map(|n| tokio::spawn(locks.mutex(n.to_string()).lock()))
        .collect();
    let mut guards = Vec::new();
    for (n, task) in tasks.into_iter().enumerate() {
        match soon(task).await.unwrap() {
            Ok(guard) => guards.push(guard),
            Err(Error::Store { source, .. }) => {
                assert_eq!(n, 100);
                assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::WrongType));
            }
            Err(other) => panic!("{n}: {other}"),
        }
    }
    assert_eq!(guards.len(), 199);
    let batches = evalshas(&mut eyes).await - before;
    assert!(batches <= 200, "a storm of {batches} batches");
    drop(guards);
    soon(locks.idle()).await;
    assert_eq!(eyes.left_behind(), ["lock:100"]);
}

/// With full memory, held leases are renewed and released. New claims get an error with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_and_releases() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(6_000)).await,
        locks(&server.url(), ms(6_000)).await,
    );
    let guard = held(&one, "oom").await;
    let waiter = tokio::spawn(other.mutex("oom").lock());
    until("the caller waits", || eyes.queue("oom") == 1).await;
    // Below the current use. If the test filled the memory, the result would depend on the sizes of buffers.
    let _: String = eyes.text("CONFIG SET maxmemory 100kb");
    let watch = Watch::of("key=oom ");
    watch.until("renewed").await;
    let error = soon(one.mutex("new").lock()).await.map(drop).unwrap_err();
    match &error {
        Error::Store { source, .. } => {
            assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::OutOfMemory));
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("maxmemory"), "{error}");
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    let _: String = eyes.text("CONFIG SET maxmemory 0");
    held(&one, "new").await.release().await.unwrap();
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert_eq!(eyes.left_behind(), Vec::<String>::new());
}

/// A user without channels, like a new ACL user: waiters use timers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_channels_waits_by_timers() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let _: String = eyes.text("ACL SETUSER mute on >hunter2 ~* +@all resetchannels");
    let url = format!("redis://mute:hunter2@127.0.0.1:{}/", server.port());
    let everything = Watch::of("");
    let lease = ms(8_000);
    let (one, other) = (locks(&url, lease).await, locks(&url, lease).await);
    let watch = Watch::of(other.node_id().to_string());
    for _ in 0..2 {
        let guard = held(&one, "a").await;
        let waiter = tokio::spawn(other.mutex("a").lock());
        until("the caller waits", || eyes.queue("a") == 1).await;
        soon(guard.release()).await.expect("a release");
        let guard = soon(waiter).await.unwrap().expect("a waiter's lock");
        soon(guard.release()).await.unwrap();
    }
    assert!(everything.count("inbox_lost") >= 2);
    assert_eq!(watch.count("connection_lost"), 0, "{:#?}", watch.told());
    for told in everything.told() {
        assert!(!told.text.contains("hunter2"), "{told:?}");
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Three seconds without a byte: the short lease is lost in time, the long one is kept, and no requests accumulate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_silent_seconds_end_short_leases_and_no_long_one() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    // The record outlasts the lease by far: a busy machine checks it late.
    let builder = crate::help::builder().lease(ms(30_000)).margin(ms(3_000));
    let locks = builder.connect(&url(proxy.addr())).await.unwrap();
    let long = held(&locks, "long").await;
    let short = soon(async {
        loop {
            // The machine may be too busy for such a short lease.
            if let Ok(short) = locks.mutex("short").lease(ms(2_000)).lock().await {
                return short;
            }
        }
    })
    .await;
    let waiting = tokio::spawn(locks.mutex("long").lock());
    let (before, hole) = (proxy.counts(), now());
    proxy.set(Direction::Both, Flow::Hold);
    assert_eq!(soon(short.lost()).await, LostCause::Deadline);
    assert!(eyes.pttl("short") > 0);
    tokio::time::sleep((hole + ms(3000)).saturating_sub(now())).await;
    assert!(long.is_held());
    let (after, seconds) = (proxy.counts(), (now() - hole).as_secs_f64());
    let (opened, sent) = (
        after.connections - before.connections,
        after.arrived[0] - before.arrived[0],
    );
    assert!(
        opened <= (2.5 * seconds).ceil() as u64,
        "{opened} connections in {seconds:.1} s"
    );
    assert!(sent < 40_000, "{sent} bytes in three seconds");
    let batches = evalshas(&mut eyes).await;
    proxy.heal();
    soon(short.release()).await.unwrap_err();
    assert!(long.is_held());
    // A busy machine may connect too late. The lease is then released in the background.
    let _ = soon(long.release()).await;
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
    soon(locks.idle()).await;
    let batches = evalshas(&mut eyes).await - batches;
    assert!(batches < 30, "{batches} batches after the hole");
    eyes.until_empty().await;
}

/// Other users of the pool block, and change the database of their connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_a_pool_do_not_disturb_locks() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(2).build(manager).await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let locks = crate::help::builder()
        .lease(ms(4_000))
        .pool(pool.clone(), client)
        .await
        .unwrap();
    let other = crate::help::locks(&server.url(), ms(4_000)).await;
    let watch = Watch::of("key=pooled ");
    let guard = held(&locks, "pooled").await;
    let mut users = Vec::new();
    for words in [&["SELECT", "3"][..], &["BLPOP", "nothing", "0"]] {
        let pool = pool.clone();
        users.push(tokio::spawn(async move {
            let mut connection = pool.get().await.unwrap();
            connection.set_response_timeout(Duration::from_secs(3600));
            let mut cmd = redis::Cmd::new();
            words.iter().for_each(|word| {
                cmd.arg(word);
            });
            let _: redis::RedisResult<redis::Value> = cmd.query_async(&mut *connection).await;
            std::future::pending::<()>().await;
        }));
    }
    until("one user blocks", || {
        let clients: String = eyes.text("CLIENT LIST");
        clients.contains("cmd=blpop") && clients.contains("db=3")
    })
    .await;
    // The pool is exhausted, and the locks are not affected.
    let renewed = watch.count("renewed");
    let waiter = tokio::spawn(other.mutex("pooled").lock());
    while watch.count("renewed") < renewed + 2 {
        watch.until("renewed").await;
        tokio::time::sleep(ms(5)).await;
        assert!(guard.is_held());
    }
    assert!(eyes.owner("pooled").is_some(), "in the database of the URL");
    soon(guard.release()).await.unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
    for n in 0..10 {
        held(&locks, format!("{n}")).await.release().await.unwrap();
    }
    soon(locks.idle()).await;
    soon(other.idle()).await;
    let _: String = eyes.text("SELECT 3");
    assert_eq!(eyes.text::<usize>("DBSIZE"), 0);
    users.into_iter().for_each(|user| user.abort());
}

/// A client listens to all channels, so that PUBLISH counts a listener for each dead waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_of_all_channels_makes_no_dead_waiter_alive() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut monitor = server.client();
    let mut monitor = monitor.as_pubsub();
    monitor.psubscribe("*").unwrap();
    // A timer takes an hour or more.
    let (one, other) = (patient(&server.url()).await, patient(&server.url()).await);
    let guard = held(&one, "a").await;
    let mut dead = Other::plays("waits", &server.url(), "a", 12 * HOUR);
    dead.hears("waits");
    until("the first waits", || eyes.queue("a") == 1).await;
    let waiter = tokio::spawn(other.mutex("a").lock());
    until("the second waits", || eyes.queue("a") == 2).await;
    // Each subscription has a channel of its own, too.
    let is_of_node = |channel: &&String| channel.matches(':').count() == 2;
    let mut channels = || {
        let channels: Vec<String> = eyes.text("PUBSUB CHANNELS tenure1:n:*");
        channels.iter().filter(is_of_node).count()
    };
    until("all listen", || channels() == 3).await;
    dead.kill();
    until("its subscription ends", || channels() == 2).await;
    soon(guard.release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    soon(one.idle()).await;
    soon(other.idle()).await;
    // The dead waiter's place may last for the rest of its lease. It delays no other caller.
    held(&one, "a").await.release().await.unwrap();
}

/// The holder dies with a dead waiter at the head of the queue. The live waiters get the lock in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_waiters_get_the_lock_after_a_dead_holder_and_a_dead_head() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(3_000);
    let mut claim_id = Other::plays("holds", &server.url(), "a", lease);
    claim_id.hears("holds");
    let mut dead = Other::plays("waits", &server.url(), "a", lease);
    dead.hears("waits");
    until("the first waits", || eyes.queue("a") == 1).await;
    let (b, c) = (
        locks(&server.url(), lease).await,
        locks(&server.url(), lease).await,
    );
    let in_turn = |locks: &Locks| {
        let mutex = locks.mutex("a");
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let fence = guard.fence();
            guard.release().await.unwrap();
            fence
        })
    };
    let b_waits = in_turn(&b);
    until("the second waits", || eyes.queue("a") == 2).await;
    let c_waits = in_turn(&c);
    until("the third waits", || eyes.queue("a") == 3).await;
    claim_id.kill();
    dead.kill();
    // At most two leases and their margin. Then each node looks at most twice, and the two guards are released.
    let fence = eyes.takes_over(2 * lease, 6, b_waits).await;
    assert!(soon(c_waits).await.unwrap() > fence, "in their order");
    eyes.until_empty().await;
}

/// The server becomes a replica. Its answers about leases are not trusted, and its connections are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_is_not_trusted() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    // New callers get an error when the server has not answered for this long.
    let builder = crate::help::builder().lease(ms(8_000)).request_timeout(ms(1_000));
    let locks = builder.connect(&server.url()).await.unwrap();
    let guard = held(&locks, "demoted").await;
    let (about_key, about_node) = (Watch::of("key=demoted "), Watch::of(locks.node_id().to_string()));
    let _: String = eyes.text("REPLICAOF 127.0.0.1 1");
    let assert_refused = |error: &Error| {
        match error {
            Error::Store { source, .. } => {
                assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::ReadOnly));
            }
            other => panic!("{other:?}"),
        }
        assert!(error.to_string().contains("connect to the master"), "{error}");
    };
    // The replica still has the record, so only the write is refused.
    let write = guard.atomically().command("SET").key("books").arg("closed");
    let written = soon(write.query::<redis::Value>()).await;
    assert_refused(&written.unwrap_err());
    assert_refused(&soon(locks.mutex("other").lock()).await.unwrap_err());
    about_key.until("renew_failed").await;
    assert!(about_node.count("connection_lost") > 0);
    assert!(guard.is_held());
    let _: String = eyes.text("REPLICAOF NO ONE");
    about_key.until("renewed").await;
    assert!(guard.is_held());
    assert_eq!(about_key.count("lost"), 0);
    soon(guard.release()).await.unwrap();
    soon(async {
        while locks.mutex("other").lock().await.is_err() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    soon(locks.idle()).await;
    eyes.until_empty().await;
}

/// The key is held in this process, so no request is needed.
#[tokio::test]
async fn try_lock_of_a_key_held_in_the_process_sends_no_request() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(30_000)).await;
    let guard = held(&locks, "a").await;
    let before = evalshas(&mut eyes).await;
    for _ in 0..100 {
        assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
        assert!(
            locks
                .mutex("a")
                .lock_timeout(Duration::ZERO)
                .await
                .unwrap_err()
                .is_busy()
        );
    }
    assert_eq!(evalshas(&mut eyes).await, before);
    guard.release().await.unwrap();
    // A queue in one process sends requests only for its first and last caller, and for the yields.
    let before = evalshas(&mut eyes).await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    let asked = evalshas(&mut eyes).await - before;
    assert!(asked <= 20, "{asked} round trips for fifty hand-offs");
}

/// A foreign client publishes a grant on the node's channel.
#[tokio::test]
async fn a_forged_grant_is_reported_and_grants_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    let guard = held(&one, "forged").await;
    let mut monitor = server.client();
    let mut monitor = monitor.as_pubsub();
    monitor.psubscribe("*").unwrap();
    let watch = Watch::of("key=forged ");
    let waiting = tokio::spawn(other.mutex("forged").lock());
    until("the caller waits", || eyes.queue("forged") == 1).await;
    let queues: Vec<String> = eyes.text("KEYS tenure1:q:*");
    let entries: Vec<String> = eyes.text(&format!("ZRANGE {} 0 0", queues[0]));
    let parts: Vec<&str> = entries[0].split(':').collect();
    let (node, claim) = (other.node_id(), parts[1]);
    let push = format!("1 lock {claim} dead {} 10000 lock:forged", 1u64 << 52);
    let words: [&[u8]; 3] = [
        b"PUBLISH",
        &format!("tenure1:n:{node}").into_bytes(),
        push.as_bytes(),
    ];
    let listeners = format!("PUBSUB NUMSUB tenure1:n:{node}");
    until("it listens", || eyes.text::<(String, u64)>(&listeners).1 == 1).await;
    let _: i64 = eyes.ask(&words);
    watch.until("forged_grant").await;
    assert!(!waiting.is_finished());
    assert!(guard.is_held());
    let _: i64 = eyes.ask(&[words[0], words[1], b"nonsense"]);
    let fence = guard.fence();
    soon(guard.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    // The forged number does not move the clock: otherwise it would be sent to the server as the highest seen number.
    assert!(
        guard.fence().number().0 - fence.number().0 < 60_000_000,
        "{guard:?}"
    );
    guard.release().await.unwrap();
    let guard = held(&other, "another").await;
    assert!(
        guard.fence().number().0 - fence.number().0 < 60_000_000,
        "{guard:?}"
    );
    guard.release().await.unwrap();
    // Events about a key do not name its holder.
    for told in watch.told() {
        for node in [one.node_id(), other.node_id()] {
            assert!(!told.text.contains(&node.to_string()), "{told:?}");
        }
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
}
