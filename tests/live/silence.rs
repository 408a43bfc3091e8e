//! A silent network path without any error, and the answers to callers meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Error, Locks};
use tokio::task::JoinSet;

use crate::contest::Contest;
use crate::help::{Eyes, HOUR, addr, held, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};

/// A caller that nothing wakes waits for hours.
async fn patient(url: &str) -> Locks {
    crate::help::builder()
        .lease(12 * HOUR)
        .connect(url)
        .await
        .unwrap()
}

/// Connections that go silent without an error are replaced by their deadline: those for grants and those for commands.
/// Hand-overs between nodes continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_continue_after_the_path_went_silent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let url = url(proxy.addr());
    let nodes = [patient(&url).await, patient(&url).await];
    let keys: Vec<String> = (0..4).map(|n| n.to_string()).collect();
    let contest = Contest::start(keys.iter().map(|key| (key.clone(), &nodes[..])), ms(10));
    contest.until_handed_over(&keys, now(), 3).await;
    // Existing connections are silent, and new ones work.
    proxy.set_existing(Direction::Both, Flow::Hold);
    contest.until_handed_over(&keys, now() + ms(1_000), 16).await;
}

/// A subscription is silent while the commands of its node pass. The node checks its inbox as soon as it finds a grant
/// without a push: when the timer of a waiter fires. From then on no waiter needs its timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_subscription_delays_a_contended_key_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let nodes = [
        crate::help::connect(&url(proxy.addr())).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
    ];
    let keys = ["a".to_owned()];
    let contest = Contest::start([(keys[0].clone(), &nodes[..])], ms(10));
    contest.until_handed_over(&keys, now(), 10).await;
    let before = proxy.counts().connections;
    proxy.set_subscribed(Direction::Both, Flow::Hold);
    let silent = now();
    until("the inbox is replaced", || proxy.counts().connections > before).await;
    assert!(proxy.counts().held[1] > 0, "no push was held");
    until("each node has its turns", || {
        let turns = contest.turns("a", silent);
        (0..nodes.len()).all(|node| turns.iter().filter(|turn| turn.node == node).count() >= 5)
    })
    .await;
    // Each waiter of this key would wait for hours.
    let [one, other, _] = &nodes;
    for _ in 0..10 {
        let [one, other] = [one, other].map(|locks| locks.mutex("b").lease(12 * HOUR));
        let guard = soon(other.lock()).await.unwrap();
        let waiting = tokio::spawn(one.lock());
        until("it waits", || Eyes::on(&server).queue("b") == 1).await;
        soon(guard.release()).await.unwrap();
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
}

/// The inbox is replaced with the connection. Callers are served as soon as that is done, without a timer.
///
/// `behind`: the number of silent nodes among three. Only the results of their callers count.
async fn an_inbox_is_replaced_with_its_connection(behind: usize) {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let (url, direct) = (url(proxy.addr()), server.url());
    let mut nodes = Vec::new();
    for n in 0..3 {
        nodes.push(patient(if n < behind { &url } else { &direct }).await);
    }
    let grants = Arc::new(Mutex::new(Vec::new()));
    let mut clients = JoinSet::new();
    for (node, key) in (0..36).map(|n| (n % 3, n / 3 % 4)) {
        let locks = &nodes[node];
        let (mutex, grants) = (locks.mutex(key.to_string()), grants.clone());
        clients.spawn(async move {
            loop {
                match mutex.lock().await {
                    Ok(guard) => {
                        if node < behind {
                            grants.lock().unwrap().push((now(), key));
                        }
                        tokio::time::sleep(ms(2)).await;
                        let _ = guard.release().await;
                    }
                    Err(error) => {
                        assert!(error.is_unreachable(), "{error}");
                        tokio::time::sleep(ms(20)).await;
                    }
                }
            }
        });
    }
    // A service also asks for many free keys.
    for (n, locks) in nodes.iter().enumerate() {
        let free = locks.mutex(format!("free {n}"));
        clients.spawn(async move {
            loop {
                if let Ok(Some(guard)) = free.try_lock().await {
                    let _ = guard.release().await;
                }
                tokio::time::sleep(ms(1)).await;
            }
        });
    }
    let since = |from: Duration| -> Vec<usize> {
        let grants = grants.lock().unwrap();
        let later = grants.iter().filter(|(at, _)| *at > from);
        later.map(|(_, key)| *key).collect()
    };
    let begin = now();
    until("the callers hand over", || since(begin).len() > 200).await;
    proxy.set_existing(Direction::Both, Flow::Hold);
    // What was under way has come by then.
    let silent = now() + ms(1_000);
    until("the callers are served again", || {
        let granted = since(silent);
        (0..4).all(|key| granted.contains(&key))
    })
    .await;
    clients.abort_all();
    while let Some(ended) = clients.join_next().await {
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "no caller was refused"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_inboxes_are_replaced_together_with_silent_connections() {
    an_inbox_is_replaced_with_its_connection(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inbox_of_one_node_is_replaced_together_with_its_silent_connection() {
    an_inbox_is_replaced_with_its_connection(1).await;
}

/// A store that reported an owner and then stopped is not contention: its report is older than its silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_stops_after_its_first_answer_is_not_contention() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (locks, other) = (
        crate::help::connect(&server.url()).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
    );
    let _guard = held(&other, "a").await;
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock_timeout(ms(4_500)).await.map(drop) });
    until("the caller waits", || eyes.queue("a") == 1).await;
    server.freeze();
    let answer = soon(waiting).await.unwrap();
    server.thaw();
    assert!(
        answer.as_ref().is_err_and(Error::is_unreachable),
        "got {answer:?} from a stopped store"
    );
}

/// A caller gets a store error while the store does not answer. `Busy` means that the store reported an owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_not_contention() {
    let server = RedisServer::start();
    let (locks, other) = (
        crate::help::connect(&server.url()).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
    );
    let _guard = held(&other, "held").await;
    let busy = soon(locks.mutex("held").lock_timeout(ms(500))).await.map(drop);
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    held(&locks, "free 0").await.release().await.unwrap();
    soon(locks.idle()).await;

    server.freeze();
    let mut waits = JoinSet::new();
    let keys = (0..20).map(|n| format!("free {}", n % 5));
    for key in keys.chain(["held".to_owned()]) {
        let mutex = locks.mutex(key.as_str());
        waits.spawn(async move { (key, mutex.lock_timeout(ms(500)).await.map(drop)) });
    }
    let answers = soon(waits.join_all()).await;
    server.thaw();
    let wrong: Vec<_> = answers
        .iter()
        .filter(|(_, answer)| !answer.as_ref().is_err_and(Error::is_unreachable))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} were not told that the store is silent: {wrong:#?}",
        wrong.len(),
        answers.len()
    );
}

/// A caller's short wait is not a failure of the server: no request is late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_wait_is_no_failure_of_the_server() {
    let server = RedisServer::start();
    let locks = crate::help::connect(&server.url()).await.unwrap();
    let other = crate::help::connect(&server.url()).await.unwrap();
    let guard = held(&other, "held").await;
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    server.freeze();
    let answer = soon(locks.mutex("held").lock_timeout(ms(5))).await.map(drop);
    server.thaw();
    assert!(answer.is_err_and(|error| error.is_unreachable()));
    // The server answers again, without an event.
    guard.release().await.unwrap();
    held(&locks, "held").await.release().await.unwrap();
    let failing = watch.count("store_failing");
    assert_eq!(failing, 0, "{:?}", watch.told());
}

/// A short lease needs quick answers. Callers with long leases do not fail for that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_leases_do_not_fail_callers_with_long_ones() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = crate::help::connect(&url(proxy.addr())).await.unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..2 {
        let short = locks.mutex(format!("short {n}")).lease(ms(400));
        tasks.spawn(async move {
            loop {
                // This caller may fail in a stall of three quarters of its lease. The test ignores that.
                match short.lock().await {
                    Ok(guard) => drop(guard.release().await),
                    Err(_) => tokio::time::sleep(ms(2)).await,
                }
            }
        });
    }
    let keys: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    let alone = [locks.clone()];
    let contest = Contest::start(keys.iter().map(|key| (key.clone(), &alone[..])), Duration::ZERO);
    let moved = |from: Duration| keys.iter().all(|key| contest.turns(key, from).len() > 2);
    for _ in 0..20 {
        let before = now();
        until("all keys continue", || moved(before)).await;
        let (held_up, held_down) = (proxy.counts().held[0], proxy.counts().held[1]);
        proxy.set(Direction::Both, Flow::Hold);
        tokio::time::sleep(ms(300)).await;
        proxy.release();
        let counts = proxy.counts();
        assert!(
            counts.held[0] > held_up || counts.held[1] > held_down,
            "nothing was held"
        );
    }
    let after = now();
    until("all keys continue", || moved(after)).await;
    let errors = contest.errors();
    assert!(
        errors.is_empty(),
        "{} locks of ten seconds failed in stalls of 300 ms, as `{}`",
        errors.len(),
        errors[0]
    );
    tasks.abort_all();
}

/// A server that loses its scripts right after they are loaded refuses no caller for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_lost_twice_refuse_no_waiter() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        crate::help::locks(&server.url(), ms(30_000)).await,
        crate::help::locks(&url(proxy.addr()), ms(3_000)).await,
    );
    let guard = held(&one, "a").await;
    let waiting = tokio::spawn(other.mutex("a").lock());
    until("the caller waits", || eyes.queue("a") == 1).await;
    // The heartbeat, and its repetition after the script was loaded.
    proxy.misname_scripts(2);
    proxy.until(|counts| counts.misnamed == 2).await;
    let asked = eyes.calls()["evalsha"];
    until("the waiter continues, or ends", || {
        waiting.is_finished() || eyes.calls()["evalsha"] > asked + 4
    })
    .await;
    soon(guard.release()).await.unwrap();
    let guard = soon(waiting)
        .await
        .unwrap()
        .expect("the waiter is still in the queue");
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    // A new caller may get an error that allows a retry, which is not a refusal.
    proxy.misname_scripts(2);
    match soon(other.mutex("b").lock()).await {
        Ok(guard) => soon(guard.release()).await.unwrap(),
        Err(error) => assert!(error.is_unreachable(), "{error}"),
    }
    assert_eq!(proxy.counts().misnamed, 4);
}
