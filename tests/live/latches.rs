//! Latches on a real server.

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Locks};
use tokio::task::JoinHandle;

use crate::help::{Eyes, Other, locks, ms, patient, soon, until};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(1_500)).await,
        locks(&server.url(), ms(1_500)).await,
    );
    (one, other, server)
}

crate::laws_of_latches!(nodes);

fn waits(locks: &Locks, name: &'static str) -> JoinHandle<Result<(), Error>> {
    let latch = locks.latch(name);
    tokio::spawn(async move { latch.wait().await })
}

/// Returns the number of watchers of the latch on the server.
fn watchers(eyes: &mut Eyes, name: &str) -> usize {
    let queues: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
    let queue = queues.into_iter().find(|queue| queue.ends_with(name.as_bytes()));
    queue.map_or(0, |queue| eyes.ask::<usize>(&[b"ZCARD", &queue]))
}

/// Each call takes one round trip, also from a node that has not used the latch before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_takes_one_round_trip() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let one = locks(&server.url(), ms(60_000)).await;
    assert!(soon(one.latch("parts").try_set_count(3)).await.unwrap());
    // The second node knows the server's clock from its own connection, which came later.
    let other = locks(&server.url(), ms(60_000)).await;
    let mut trips = Vec::new();
    let mut before = eyes.calls()["evalsha"];
    let mut trip = |eyes: &mut Eyes| {
        let after = eyes.calls()["evalsha"];
        trips.push(after - std::mem::replace(&mut before, after));
    };
    assert_eq!(soon(other.latch("parts").count_down()).await.unwrap(), 2);
    trip(&mut eyes);
    assert_eq!(soon(one.latch("parts").count_down_once("a")).await.unwrap(), 1);
    trip(&mut eyes);
    assert_eq!(soon(other.latch("parts").count()).await.unwrap(), 1);
    trip(&mut eyes);
    assert!(!soon(other.latch("parts").try_set_count(5)).await.unwrap());
    trip(&mut eyes);
    assert_eq!(trips, [1, 1, 1, 1]);
}

/// All waiters of a process share one poll. Waiters that come during the poll share a second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_of_a_process_share_one_poll() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let proxy = Proxy::start(crate::help::addr(&server));
    let one = locks(&server.url(), ms(60_000)).await;
    let other = locks(&crate::help::url(proxy.addr()), ms(60_000)).await;
    assert!(soon(one.latch("parts").try_set_count(1)).await.unwrap());
    assert_eq!(soon(other.latch("parts").count()).await.unwrap(), 1);
    let before = eyes.calls()["evalsha"];
    proxy.set(Direction::Requests, Flow::Hold);
    let waiting: Vec<_> = (0..50).map(|_| waits(&other, "parts")).collect();
    until("all callers wait", || other.waiter_count() == 50).await;
    proxy.release();
    until("they poll", || eyes.calls()["evalsha"] >= before + 2).await;
    assert_eq!(watchers(&mut eyes, "parts"), 1);
    assert_eq!(soon(one.latch("parts").count_down()).await.unwrap(), 0);
    for waiting in waiting {
        soon(waiting).await.unwrap().unwrap();
    }
    // Two for the waiters, one to count down, and one after the push. One more if the inbox opened after the first poll.
    let calls = eyes.calls()["evalsha"] - before;
    assert!((4..=5).contains(&calls), "{calls}");
    assert_eq!(watchers(&mut eyes, "parts"), 0);
}

/// Waiters get a push, long before their next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_is_pushed() {
    let server = RedisServer::start();
    let (one, other) = (patient(&server.url()).await, patient(&server.url()).await);
    assert!(soon(one.latch("parts").try_set_count(1)).await.unwrap());
    let waiting = waits(&other, "parts");
    let mut eyes = Eyes::on(&server);
    until("the waiter is a watcher", || watchers(&mut eyes, "parts") == 1).await;
    soon(one.latch("parts").count_down()).await.unwrap();
    // The next poll would come after an hour or more.
    soon(waiting).await.unwrap().unwrap();
}

/// The push is not necessary: with an inbox that is open but gets nothing, a waiter polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_without_pushes_polls() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let _: String = eyes.text("ACL SETUSER mute on >hunter2 ~* +@all resetchannels");
    let one = locks(&server.url(), ms(60_000)).await;
    let url = format!("redis://mute:hunter2@127.0.0.1:{}/", server.port());
    let deaf = locks(&url, ms(3_000)).await;
    assert!(soon(one.latch("parts").try_set_count(1)).await.unwrap());
    let waiting = waits(&deaf, "parts");
    until("the waiter is a watcher", || watchers(&mut eyes, "parts") == 1).await;
    soon(one.latch("parts").count_down()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
}

/// A killed waiter is forgotten when its lease would have ended. The latch is removed after its life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_and_a_latch_after_its_life_leave_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(1_000);
    let locks = locks(&server.url(), lease).await;
    let latch = locks.latch("parts").life(ms(4_000));
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    let mut other = Other::plays("waits for a latch", &server.url(), "parts", lease);
    other.hears("waits");
    until("the waiter is a watcher", || watchers(&mut eyes, "parts") == 1).await;
    other.kill();
    until("the waiter is forgotten", || watchers(&mut eyes, "parts") == 0).await;
    // At the end only the clock is left.
    eyes.until_empty().await;
    let unset = soon(latch.count()).await;
    assert!(matches!(unset, Err(Error::Unset { .. })), "{unset:?}");
}

/// The answer to a count-down is lost, and the request is repeated on another connection. It counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_whose_answer_is_lost_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(crate::help::addr(&server));
    let direct = locks(&server.url(), ms(60_000)).await;
    let latch = direct.latch("parts");
    assert!(soon(latch.try_set_count(3)).await.unwrap());
    // The node knows the server's clock since then, and assumes that the clock is not stepped.
    let builder = crate::help::builder()
        .lease(ms(60_000))
        .margin(ms(0))
        .request_timeout(ms(10_000));
    let far = builder.connect(&crate::help::url(proxy.addr())).await.unwrap();
    for left in [2, 1, 0] {
        let before = proxy.counts().cut;
        proxy.cut_reply_to("parts");
        assert_eq!(soon(far.latch("parts").count_down()).await.unwrap(), left);
        assert_ne!(proxy.counts().cut, before, "the answer was lost");
        assert_eq!(soon(latch.count()).await.unwrap(), left);
    }
    // A repeated set gets the same answer as the first time.
    let before = proxy.counts().cut;
    proxy.cut_reply_to("others");
    assert!(soon(far.latch("others").try_set_count(2)).await.unwrap());
    assert_ne!(proxy.counts().cut, before, "the answer was lost");
    assert_eq!(soon(direct.latch("others").count()).await.unwrap(), 2);
}

/// A waiter survives an outage that is shorter than its lease. A longer outage is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_an_outage_shorter_than_its_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(crate::help::addr(&server));
    let direct = locks(&server.url(), ms(60_000)).await;
    let patient = locks(&crate::help::url(proxy.addr()), ms(60_000)).await;
    let builder = crate::help::builder().lease(ms(1_000));
    let hasty = builder.connect(&crate::help::url(proxy.addr())).await.unwrap();
    assert!(soon(direct.latch("parts").try_set_count(1)).await.unwrap());
    let (waiting, refused) = (waits(&patient, "parts"), waits(&hasty, "parts"));
    let mut eyes = Eyes::on(&server);
    until("both are known as watchers", || watchers(&mut eyes, "parts") == 2).await;
    // The patient waiter has heard of the store: this answer follows that to its watch on the same connection. A caller that
    // has not is told of an outage at once.
    assert_eq!(soon(patient.latch("parts").count()).await.unwrap(), 1);
    proxy.refuse(true);
    proxy.reset();
    let told = soon(refused).await.unwrap();
    assert!(matches!(told, Err(Error::Store { .. })), "{told:?}");
    soon(direct.latch("parts").count_down()).await.unwrap();
    assert!(!waiting.is_finished());
    proxy.refuse(false);
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_another_type_is_refused_and_left_unchanged() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let latch = locks.latch("parts");
    assert!(soon(latch.try_set_count(2)).await.unwrap());
    let [record] = <[Vec<u8>; 1]>::try_from(eyes.text::<Vec<Vec<u8>>>("KEYS tenure1:l:*")).unwrap();
    for words in [
        &["SET", "x"][..],
        &["RPUSH", "x"],
        &["ZADD", "1", "x"],
        &["HSET", "f", "x"],
        // The record was edited by hand.
        &["HSET", "gen", "1e30", "by", "x", "left", "2"],
        &["HSET", "gen", "x", "by", "x", "left", "2"],
        &["HSET", "gen", "9999999999999999", "by", "x", "left", "2"],
        &["HSET", "gen", "7", "by", "x", "left", "-1"],
        &["HSET", "gen", "7", "by", "x", "left", "1e9"],
    ] {
        let _: u64 = eyes.ask(&[b"DEL", &record]);
        let mut put = vec![words[0].as_bytes(), &record];
        put.extend(words[1..].iter().map(|word| word.as_bytes()));
        let _: redis::Value = eyes.ask(&put);
        let before: Vec<u8> = eyes.ask(&[b"DUMP", &record]);
        for refused in [
            soon(latch.try_set_count(2)).await.map(drop),
            soon(latch.count_down()).await.map(drop),
            soon(latch.count()).await.map(drop),
            soon(latch.wait()).await,
        ] {
            let Err(Error::Store { source, .. }) = refused else {
                panic!("{words:?}: {refused:?}")
            };
            let wrong = StoreErrorKind::Refused(StoreRefusal::WrongType);
            assert_eq!(source.kind(), &wrong, "{words:?}");
        }
        assert_eq!(eyes.ask::<Vec<u8>>(&[b"DUMP", &record]), before, "{words:?}");
    }
}

/// Without memory, calls that free memory succeed, and calls that add data are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_latch_is_counted_down_but_not_set() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let latch = locks.latch("parts");
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    let waiting = waits(&locks, "parts");
    until("the waiter is a watcher", || watchers(&mut eyes, "parts") == 1).await;
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    assert_eq!(soon(latch.count_down()).await.unwrap(), 0);
    soon(waiting).await.unwrap().unwrap();
    let other = locks.latch("others");
    let Err(Error::Store { source, .. }) = soon(other.try_set_count(1)).await else {
        panic!("the latch was set")
    };
    assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::OutOfMemory));
    let unset = soon(other.count()).await;
    assert!(matches!(unset, Err(Error::Unset { .. })), "{unset:?}");
    assert!(
        !soon(latch.try_set_count(1)).await.unwrap(),
        "the latch is at zero"
    );
    assert_eq!(soon(latch.count()).await.unwrap(), 0, "the count is unchanged");
}
