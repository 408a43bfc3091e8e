//! Elections on a real server that loses its scripts, has no memory left, or has many observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Leader, Locks, Observer};

use crate::help::{Eyes, Other, locks, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;

fn value(leader: Option<&Leader>) -> Option<&[u8]> {
    leader.and_then(Leader::value)
}

/// Waits until the observer sees the value.
async fn sees(mut observer: Observer, wanted: impl AsRef<[u8]>) {
    while value(observer.next().await.unwrap().as_ref()) != Some(wanted.as_ref()) {}
}

/// Returns the watchers of the election on the server, and when they expire.
fn watchers(eyes: &mut Eyes) -> Vec<(String, u64)> {
    let memories: Vec<Vec<u8>> = eyes.text("KEYS tenure1:v:*");
    let fields = |memory: Vec<u8>| eyes.ask::<Vec<(String, String)>>(&[b"HGETALL", &memory]);
    let fields = memories.into_iter().flat_map(fields);
    let watchers = fields.filter(|(field, _)| field.starts_with('w'));
    watchers
        .map(|(node, until)| (node, until.parse().unwrap()))
        .collect()
}

/// Without memory the leader still leads, is observed, proclaims, and resigns. New claims wait for memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_leader_stays_and_no_new_one_is_elected() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(3_000)).await;
    let election = locks.election("scarce");
    let guard = soon(election.campaign()).await.unwrap();
    let watch = Watch::of("kind=election key=scarce ");
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    let seen = tokio::spawn(sees(election.observe(), "here"));
    until("it watches", || watchers(&mut eyes).len() == 1).await;
    soon(election.proclaim("here")).await.unwrap();
    soon(seen).await.unwrap();
    watch.until("renewed").await;
    watch.until("renewed").await;
    assert!(guard.is_held());
    let leader = soon(election.leader()).await.unwrap();
    assert_eq!(value(leader.as_ref()), Some(&b"here"[..]));
    soon(guard.release()).await.unwrap();
    assert_eq!(soon(election.leader()).await.unwrap(), None);
    let Err(Error::Store { source, .. }) = soon(election.campaign()).await else {
        panic!("it leads")
    };
    assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::OutOfMemory));
    let _: String = eyes.text("CONFIG SET maxmemory 0");
    soon(election.campaign()).await.unwrap().release().await.unwrap();
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_stop_no_election() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let election = locks.election("flushed");
    let mut flush = || eyes.text::<String>("SCRIPT FLUSH");
    flush();
    let guard = soon(election.campaign()).await.unwrap();
    let seen = tokio::spawn(sees(election.observe(), "here"));
    flush();
    soon(election.proclaim("here")).await.unwrap();
    soon(seen).await.unwrap();
    flush();
    assert!(soon(election.leader()).await.unwrap().is_some());
    flush();
    soon(guard.release()).await.unwrap();
    flush();
    assert_eq!(soon(election.leader()).await.unwrap(), None);
    eyes.until_empty().await;
}

/// All observers of a process share one poll, and one push reaches all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_observers_of_a_process_share_one_poll() {
    const OBSERVERS: usize = 1_000;
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let one = locks(&server.url(), ms(60_000)).await;
    let other = locks(&server.url(), ms(60_000)).await;
    let guard = soon(one.election("seen").campaign()).await.unwrap();
    let mut observers = tokio::task::JoinSet::new();
    let before = eyes.calls()["evalsha"];
    let asked = Arc::<AtomicUsize>::default();
    for _ in 0..OBSERVERS {
        let (mut observer, asked) = (other.election("seen").observe(), asked.clone());
        observers.spawn(async move {
            assert!(observer.next().await.unwrap().is_some());
            asked.fetch_add(1, Ordering::SeqCst);
            sees(observer, "here").await;
        });
    }
    until("all observers wait as one watcher", || {
        asked.load(Ordering::SeqCst) == OBSERVERS
            && other.waiter_count() == OBSERVERS
            && watchers(&mut eyes).len() == 1
    })
    .await;
    println!("{} trips until all wait", eyes.calls()["evalsha"] - before);
    let before = eyes.calls()["evalsha"];
    soon(one.election("seen").proclaim("here")).await.unwrap();
    let all = async { while observers.join_next().await.is_some_and(|seen| seen.is_ok()) {} };
    soon(all).await;
    assert!(observers.is_empty());
    let looks = eyes.calls()["evalsha"] - before;
    assert!(looks <= 4, "{looks} trips");
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    eyes.until_empty().await;
}

/// A leader may observe its own election while it works: it waits for news, not for its own lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_observes_itself() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(30_000)).await;
    let election = locks.election("mirror");
    let led = election.lead(async |_| {
        let mut observer = election.observe();
        assert_eq!(value(observer.next().await?.as_ref()), None);
        let (news, told) = tokio::join!(observer.next(), election.proclaim("here"));
        told?;
        assert_eq!(value(news?.as_ref()), Some(&b"here"[..]));
        Ok::<(), Error>(())
    });
    soon(led).await.unwrap().unwrap();
    Eyes::on(&server).until_empty().await;
}

/// A killed observer gets no more news after its lease. It is removed when another observer comes, or the leader resigns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_observer_is_forgotten() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(1_000);
    let one = locks(&server.url(), ms(30_000)).await;
    let guard = soon(one.election("seen").campaign()).await.unwrap();
    // A proclaimed value makes the memory last as long as the leader.
    soon(one.election("seen").proclaim("first")).await.unwrap();
    let mut other = Other::plays("observes", &server.url(), "seen", lease);
    other.hears("observes");
    until("it watches", || watchers(&mut eyes).len() == 1).await;
    other.kill();
    until("the killed observer has expired", || {
        let (seconds, micros): (u64, u64) = eyes.text("TIME");
        let now = seconds * 1_000 + micros / 1_000;
        watchers(&mut eyes).iter().all(|(_, until)| *until < now)
    })
    .await;
    let seen = tokio::spawn(sees(one.election("seen").observe(), "here"));
    let ours = format!("w{}", one.node_id());
    until("the new observer is the only watcher", || {
        let watchers = watchers(&mut eyes);
        watchers.len() == 1 && watchers[0].0 == ours
    })
    .await;
    soon(one.election("seen").proclaim("here")).await.unwrap();
    soon(seen).await.unwrap();
    soon(guard.release()).await.unwrap();
    eyes.until_empty().await;
}

/// Observers see the latest of many concurrent values. They may miss only earlier values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_values_end_with_the_latest() {
    const VALUES: u32 = 1_000;
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let one = locks(&server.url(), ms(30_000)).await;
    let other = locks(&server.url(), ms(30_000)).await;
    let election = one.election("fast");
    let guard = soon(election.campaign()).await.unwrap();
    let last = VALUES.to_be_bytes();
    let seen = tokio::spawn(async move { sees(other.election("fast").observe(), last).await });
    // All values are in flight, in this order.
    let mut values = Vec::new();
    for n in 1..=VALUES {
        let election = election.clone();
        let mut value = Box::pin(async move { election.proclaim(n.to_be_bytes()).await });
        match first_look(&mut value).await {
            // This task was stopped for as long as a round trip.
            Some(done) => done.unwrap(),
            None => values.push(tokio::spawn(value)),
        }
    }
    for value in values {
        soon(value).await.unwrap().unwrap();
    }
    let leader = soon(election.leader()).await.unwrap();
    assert_eq!(value(leader.as_ref()), Some(&last[..]));
    soon(seen).await.unwrap();
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    eyes.until_empty().await;
}

async fn first_look<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    use std::task::Poll;
    let look = std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx)));
    match look.await {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Keys may have any bytes, and are separate from the keys of another prefix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_may_have_any_bytes_and_prefixes_separate_them() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let make = async |prefix: &[u8]| -> Locks {
        let builder = crate::help::builder().lease(Duration::from_secs(30));
        builder.prefix(prefix).connect(&server.url()).await.unwrap()
    };
    let (one, beside) = (make(b"app \n{x}:").await, make(b"\xff:").await);
    let same = make(b"app \n{x}:").await;
    let all: Vec<u8> = (0..=255).collect();
    for key in [&b"\0"[..], b"a b\r\n", b"}{", b"{}", &all, &[b'x'; 512]] {
        let (here, there) = (one.election(key), beside.election(key));
        let seen = tokio::spawn(sees(same.election(key).observe(), key.to_vec()));
        until("it watches", || watchers(&mut eyes).len() == 1).await;
        let (first, second) = (
            soon(here.campaign()).await.unwrap(),
            soon(there.campaign()).await.unwrap(),
        );
        soon(there.proclaim("beside")).await.unwrap();
        soon(here.proclaim(key)).await.unwrap();
        soon(seen).await.unwrap();
        // A waiting observer gets a push.
        let stands = same.election(key);
        let stands = tokio::spawn(async move { stands.campaign().await });
        until("it stands", || eyes.entries() == 2).await;
        soon(first.release()).await.unwrap();
        soon(stands).await.unwrap().unwrap().release().await.unwrap();
        soon(second.release()).await.unwrap();
        eyes.until_empty().await;
    }
}
