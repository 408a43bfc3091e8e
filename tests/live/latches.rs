//! Latches, on a real server.

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Locks};
use tokio::task::JoinHandle;

use crate::help::{Eyes, Other, locks, ms, now, soon, until};
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

/// Who watches the latch of that name, on the server.
fn watchers(eyes: &mut Eyes, name: &str) -> usize {
    let queues: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
    let queue = queues.into_iter().find(|queue| queue.ends_with(name.as_bytes()));
    queue.map_or(0, |queue| eyes.ask::<usize>(&[b"ZCARD", &queue]))
}

/// Each call is a trip, also by who never heard of the latch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_a_trip() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let one = locks(&server.url(), ms(60_000)).await;
    assert!(soon(one.latch("parts").try_set_count(3)).await.unwrap());
    // It knows the server's clock by its own connection, and that came later.
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

/// However many of a process wait, they look once, and who comes meanwhile once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_wait_share_one_look() {
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
    until("all of them wait", || other.waiting() == 50).await;
    proxy.release();
    until("they look", || eyes.calls()["evalsha"] >= before + 2).await;
    assert_eq!(watchers(&mut eyes, "parts"), 1);
    assert_eq!(soon(one.latch("parts").count_down()).await.unwrap(), 0);
    for waiting in waiting {
        soon(waiting).await.unwrap().unwrap();
    }
    // Two of those who came, one to count, and one when they were told; one more where the inbox opened after the first look.
    let calls = eyes.calls()["evalsha"] - before;
    assert!((4..=5).contains(&calls), "{calls}");
    assert_eq!(watchers(&mut eyes, "parts"), 0);
}

/// Whoever waits hears of it by a push, long before it would look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_is_pushed() {
    let server = RedisServer::start();
    let one = locks(&server.url(), ms(60_000)).await;
    let other = locks(&server.url(), ms(60_000)).await;
    assert!(soon(one.latch("parts").try_set_count(1)).await.unwrap());
    let waiting = waits(&other, "parts");
    let mut eyes = Eyes::on(&server);
    until("it is known as a watcher", || watchers(&mut eyes, "parts") == 1).await;
    let start = now();
    soon(one.latch("parts").count_down()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    let took = now() - start;
    // Its own look would come after a third of a minute, or half of that.
    assert!(took < ms(10_000), "{took:?}");
}

/// Nothing depends on the push: with an inbox that nothing comes through, and that nobody closed, it looks by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_nothing_looks() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let _: String = eyes.text("ACL SETUSER mute on >hunter2 ~* +@all resetchannels");
    let one = locks(&server.url(), ms(60_000)).await;
    let url = format!("redis://mute:hunter2@127.0.0.1:{}/", server.port());
    let lease = ms(3_000);
    let deaf = locks(&url, lease).await;
    assert!(soon(one.latch("parts").try_set_count(1)).await.unwrap());
    let waiting = waits(&deaf, "parts");
    until("it is known as a watcher", || watchers(&mut eyes, "parts") == 1).await;
    let start = now();
    soon(one.latch("parts").count_down()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    let took = now() - start;
    // A third of a lease, and what this machine stands still.
    assert!(took < lease / 3 + ms(3_000), "{took:?}");
}

/// What a killed process waited for is forgotten when its lease would have ended, and the latch with its life: DBSIZE is back.
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
    until("it is known as a watcher", || watchers(&mut eyes, "parts") == 1).await;
    other.kill();
    until("it is forgotten", || watchers(&mut eyes, "parts") == 0).await;
    // In the end the clock alone is there.
    eyes.until_empty().await;
    until("the clock alone is there", || eyes.text::<u64>("DBSIZE") == 1).await;
    let unset = soon(latch.count()).await;
    assert!(matches!(unset, Err(Error::Unset { .. })), "{unset:?}");
}

/// The answer to a count-down is cut off, and it is asked for again on another connection: it counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_whose_answer_is_lost_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(crate::help::addr(&server));
    let direct = locks(&server.url(), ms(60_000)).await;
    let latch = direct.latch("parts");
    assert!(soon(latch.try_set_count(3)).await.unwrap());
    // It knows of the server's clock since then, and counts on it that nobody steps it.
    let builder = Locks::builder()
        .lease(ms(60_000))
        .margin(ms(0))
        .request_timeout(ms(10_000));
    let far = builder.redis(&crate::help::url(proxy.addr())).await.unwrap();
    for left in [2, 1, 0] {
        let before = proxy.counts().cut;
        proxy.cut_reply_to("parts");
        assert_eq!(soon(far.latch("parts").count_down()).await.unwrap(), left);
        assert_ne!(proxy.counts().cut, before, "its answer was lost");
        assert_eq!(soon(latch.count()).await.unwrap(), left);
    }
    // The same of a set: it is answered as the first time.
    let before = proxy.counts().cut;
    proxy.cut_reply_to("others");
    assert!(soon(far.latch("others").try_set_count(2)).await.unwrap());
    assert_ne!(proxy.counts().cut, before, "its answer was lost");
    assert_eq!(soon(direct.latch("others").count()).await.unwrap(), 2);
}

/// An outage that is shorter than a lease is ridden out by who waits, a longer one is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_rides_out_an_outage_of_one_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(crate::help::addr(&server));
    let direct = locks(&server.url(), ms(60_000)).await;
    let patient = locks(&crate::help::url(proxy.addr()), ms(60_000)).await;
    let builder = Locks::builder().lease(ms(1_000));
    let hasty = builder.redis(&crate::help::url(proxy.addr())).await.unwrap();
    assert!(soon(direct.latch("parts").try_set_count(1)).await.unwrap());
    let (waiting, refused) = (waits(&patient, "parts"), waits(&hasty, "parts"));
    let mut eyes = Eyes::on(&server);
    until("both are known as watchers", || watchers(&mut eyes, "parts") == 2).await;
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
async fn a_value_of_another_type_under_its_name_is_refused_and_left_alone() {
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
        // Edited by hand.
        &["HSET", "gen", "1e30", "first", "1", "by", "x", "left", "2"],
        &["HSET", "gen", "x", "first", "1", "by", "x", "left", "2"],
        &[
            "HSET",
            "gen",
            "9999999999999999",
            "first",
            "1",
            "by",
            "x",
            "left",
            "2",
        ],
        &["HSET", "gen", "7", "first", "?", "by", "x", "left", "2"],
        &["HSET", "gen", "7", "first", "7", "by", "x", "left", "-1"],
        &["HSET", "gen", "7", "first", "7", "by", "x", "left", "1e9"],
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

/// What takes something back works without memory, and what adds something is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_it_is_counted_down_and_not_set() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let latch = locks.latch("parts");
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    let waiting = waits(&locks, "parts");
    until("it is known as a watcher", || watchers(&mut eyes, "parts") == 1).await;
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    assert_eq!(soon(latch.count_down()).await.unwrap(), 0);
    soon(waiting).await.unwrap().unwrap();
    let other = locks.latch("others");
    let Err(Error::Store { source, .. }) = soon(other.try_set_count(1)).await else {
        panic!("it was set")
    };
    assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::OutOfMemory));
    let unset = soon(other.count()).await;
    assert!(matches!(unset, Err(Error::Unset { .. })), "{unset:?}");
    assert!(!soon(latch.try_set_count(1)).await.unwrap(), "it is at zero");
    assert_eq!(soon(latch.count()).await.unwrap(), 0, "as it was");
}
