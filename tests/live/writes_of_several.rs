//! Writes under the leases of a multi-lock.

use crate::help::{Eyes, PATIENCE, ms, now, soon, until};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow};
use crate::writes::{a_lock, behind_a_proxy, number};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenure::error::LostCause;
use tenure::{CancellationToken, Error, MultiKey, MultiLease};

/// Moves so much from one account to the other.
async fn transfer(lease: &MultiLease, [from, to]: [&str; 2], amount: i64) -> Result<(i64, i64), Error> {
    let write = lease.atomically().command("DECRBY").key(from).arg(amount);
    soon(write.command("INCRBY").key(to).arg(amount).query()).await
}

fn balances(eyes: &mut Eyes) -> [i64; 2] {
    ["from", "to"].map(|account| eyes.text::<Option<i64>>(&format!("GET {account}")).unwrap_or(0))
}

fn lost_key(written: Result<(i64, i64), Error>) -> String {
    match written {
        Err(Error::Lost {
            key,
            cause: LostCause::Gone,
            ..
        }) => key.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_several_leases_is_done_while_each_of_them_is_current() {
    let (server, mut eyes, locks) = a_lock().await;
    let other = crate::help::locks(&server.url(), ms(10_000)).await;
    let accounts = ["from", "to"];
    let mut moved = 0;
    for lost in [None, Some("a"), Some("b"), Some("c"), Some("r")] {
        let keys = ["a", "b", "c"].map(MultiKey::write);
        let multi = locks.multi(keys.into_iter().chain([MultiKey::read("r")]));
        let guard = soon(multi.lock()).await.unwrap();
        let reader = soon(other.rw_lock("r").read()).await.unwrap();
        let before = eyes.calls()["evalsha"];
        moved += 1;
        let done = transfer(&guard.lease(), accounts, 1).await.unwrap();
        assert_eq!(done, (-moved, moved));
        let text = "return { #KEYS, #ARGV, KEYS[1], ARGV[2] }";
        let script = guard.atomically().script(text).key("k").arg("x").arg("y");
        let seen: (i64, i64, String, String) = soon(script.query()).await.unwrap();
        assert_eq!(seen, (1, 2, "k".to_owned(), "y".to_owned()));
        if moved > 1 {
            assert_eq!(eyes.calls()["evalsha"] - before, 2, "a trip each");
        }
        let Some(lost) = lost else {
            soon(guard.release()).await.unwrap();
            soon(reader.release()).await.unwrap();
            continue;
        };
        eyes.text::<()>(&format!("DEL lock:{lost}"));
        let before = eyes.calls()["evalsha"];
        assert_eq!(lost_key(transfer(&guard.lease(), accounts, 1).await), lost);
        // The others are not lost, and the guard of all is.
        assert_eq!(eyes.calls()["evalsha"] - before, 1);
        assert!(!guard.is_held() && guard.lost_token().is_cancelled(), "{lost}");
        // Known here: nothing is sent.
        assert_eq!(lost_key(transfer(&guard.lease(), accounts, 1).await), lost);
        assert_eq!(eyes.calls()["evalsha"] - before, 1);
        assert_eq!(balances(&mut eyes), [-moved, moved], "{lost}");
        for kept in ["a", "b", "c"].into_iter().filter(|key| *key != lost) {
            assert!(eyes.owner(kept).is_some(), "{kept}, {lost} was lost");
        }
        let released = soon(guard.release()).await;
        assert!(released.is_err_and(|error| error.is_lost()));
        let _ = soon(reader.release()).await;
    }
    eyes.text::<()>("DEL from to");
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_leases_of_two_locks_is_not_sent() {
    let (server, mut eyes, locks) = a_lock().await;
    let other = crate::help::locks(&server.url(), ms(10_000)).await;
    let multi = locks.multi(["a"]).and(other.multi(["b"]));
    let guard = soon(multi.lock()).await.unwrap();
    let before = eyes.calls()["evalsha"];
    let refused = transfer(&guard.lease(), ["from", "to"], 1).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("another `Locks`"));
    assert_eq!(eyes.calls()["evalsha"], before);
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

/// Each lease of a write that may be done later is given back, and is not handed on here. A write that was never sent
/// leaves no trace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_of_an_unanswered_write_is_handed_on() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (proxy, locks) = behind_a_proxy(&server).await;
    let multi = locks.multi(["a", "b"]);
    for is_answered in [true, false] {
        let guard = soon(multi.lock()).await.unwrap();
        transfer(&guard.lease(), ["from", "to"], 1).await.unwrap();
        let waiters = ["a", "b"].map(|key| tokio::spawn(locks.mutex(key).lock()));
        until("both wait", || locks.waiter_count() == 2).await;
        if !is_answered {
            proxy.set_existing(Direction::Requests, Flow::Hold);
            let late = transfer(&guard.lease(), ["from", "to"], 1).await;
            assert!(matches!(late, Err(Error::Unanswered { .. })), "{late:?}");
            assert!(proxy.holds(Direction::Requests) > 0);
        }
        let before = ["a", "b"].map(|key| number(guard.fence(key).unwrap()));
        soon(guard.release()).await.unwrap();
        let mut successors = Vec::new();
        for (waiter, before) in waiters.into_iter().zip(before) {
            let guard = soon(waiter).await.unwrap().unwrap();
            assert_eq!(number(guard.fence()) == before, is_answered, "{:?}", guard.key());
            successors.push(guard);
        }
        let executed = eyes.calls()["evalsha"];
        proxy.release();
        if !is_answered {
            until("it was executed", || eyes.calls()["evalsha"] > executed).await;
        }
        for guard in successors {
            soon(guard.release()).await.unwrap();
        }
    }
    assert_eq!(balances(&mut eyes), [-2, 2], "what came late was not done");
}

/// A write that fails before it is sent, as one of its leases is over, does not keep the others from being handed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_not_sent_keeps_no_lease_from_being_handed_on() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (_proxy, locks) = behind_a_proxy(&server).await;
    let guard = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    eyes.text::<()>("DEL lock:b");
    for _ in 0..2 {
        assert_eq!(lost_key(transfer(&guard.lease(), ["from", "to"], 1).await), "b");
    }
    let next = tokio::spawn(locks.mutex("a").lock());
    until("it waits", || locks.waiter_count() == 1).await;
    let before = number(guard.fence("a").unwrap());
    drop(guard);
    let next = soon(next).await.unwrap().unwrap();
    assert_eq!(number(next.fence()), before, "it was not handed on");
    soon(next.release()).await.unwrap();
}

/// Three nodes move money between four accounts while locks are deleted under them. Each reads two balances and writes both:
/// a write whose second lease is over would bring back a balance of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_is_neither_made_nor_lost_by_transfers_under_two_leases() {
    const ACCOUNTS: usize = 4;
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let client = redis::Client::open(server.url()).unwrap();
    for account in 0..ACCOUNTS {
        eyes.text::<()>(&format!("SET balance:{account} 1000"));
    }
    let end = CancellationToken::new();
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let mut tellers = Vec::new();
    for node in 0..3 {
        let locks = crate::help::locks(&server.url(), ms(3_000)).await;
        for teller in 0..4 {
            let (locks, end, counts) = (locks.clone(), end.clone(), counts.clone());
            let mut direct = client.get_multiplexed_async_connection().await.unwrap();
            tellers.push(tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(node * 4 + teller);
                while !end.is_cancelled() {
                    let from = rng.usize(..ACCOUNTS);
                    let to = (from + rng.usize(1..ACCOUNTS)) % ACCOUNTS;
                    let multi = locks.multi([from, to].map(|account| format!("account:{account}")));
                    let guard = soon(multi.lock()).await;
                    let Ok(guard) = guard else { continue };
                    let accounts = [from, to].map(|account| format!("balance:{account}"));
                    let get = redis::cmd("MGET").arg(&accounts).to_owned();
                    let read: (i64, i64) = get.query_async(&mut direct).await.unwrap();
                    // The work of the teller, in which leases are lost.
                    tokio::time::sleep(ms(rng.u64(0..4))).await;
                    let amount = rng.i64(1..10);
                    let first = guard.atomically().command("SET").key(&accounts[0]);
                    let second = first.arg(read.0 - amount).command("SET").key(&accounts[1]);
                    let kind = match soon(second.arg(read.1 + amount).query()).await {
                        Ok(()) => 0,
                        Err(Error::Lost { .. }) => 1,
                        // Done or not, which a busy machine does not say in time.
                        Err(Error::Unanswered { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    counts[kind].fetch_add(1, Ordering::Relaxed);
                    let _ = soon(guard.release()).await;
                }
            }));
        }
    }
    let counts = || [0, 1].map(|kind| counts[kind].load(Ordering::Relaxed));
    let mut rng = fastrand::Rng::with_seed(1);
    let start = now();
    // As long as it takes for both to have happened often.
    while counts()[0] < 500 || counts()[1] < 50 {
        assert!(now() - start < 2 * PATIENCE, "{:?}", counts());
        let before = counts()[0];
        let account = rng.usize(..ACCOUNTS);
        eyes.text::<()>(&format!("DEL lock:account:{account}"));
        until("work goes on", || counts()[0] > before + 3).await;
    }
    end.cancel();
    for teller in tellers {
        soon(teller).await.unwrap();
    }
    let balance = |account: usize| eyes.text::<i64>(&format!("GET balance:{account}"));
    let total: i64 = (0..ACCOUNTS).map(balance).sum();
    println!("done and refused: {:?}, in {:?}", counts(), now() - start);
    assert_eq!(total, 4_000, "done and refused: {:?}", counts());
}
