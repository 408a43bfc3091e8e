//! Leases that stay with their process after the last release, on a real server.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Locks};

use crate::help::{Eyes, HOUR, addr, held, ms, patient, soon, until, url};
use crate::masters::Masters;
use crate::server::RedisServer;
use crate::support::inspect::show;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Returns the number of script calls of the server.
fn scripts(eyes: &mut Eyes) -> u64 {
    eyes.calls().get("evalsha").copied().unwrap_or(0)
}

/// Returns locks that keep their leases, for as long as nothing else ends that. A push reaches them.
async fn keeping(url: &str, eyes: &mut Eyes) -> Locks {
    let builder = crate::help::builder().lease(12 * HOUR).request_timeout(HOUR);
    let locks = builder.keep(Duration::MAX).connect(url).await.unwrap();
    until_kept(&locks, eyes).await;
    locks
}

/// Waits until the locks keep a lease: until then their inbox is not confirmed.
async fn until_kept(locks: &Locks, eyes: &mut Eyes) {
    let mut n = 0;
    until("a lease is kept", || {
        n += 1;
        let key = format!("first-{n}");
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                held(locks, &*key).await.release().await.unwrap();
            });
        });
        eyes.owner(&key).is_some()
    })
    .await;
    soon(locks.idle()).await;
}

async fn cycle(locks: &Locks, key: &str) {
    held(locks, key).await.release().await.unwrap();
}

/// Locks and releases until the lease is kept: a busy machine may not have left the lease before yet.
async fn keep(locks: &Locks, key: &str, eyes: &mut Eyes) {
    cycle(locks, key).await;
    while eyes.owner(key).is_none() {
        soon(locks.idle()).await;
        cycle(locks, key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_lease_is_used_again_without_a_request() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = keeping(&server.url(), &mut eyes).await;
    let first = held(&locks, "a").await;
    let fence = first.fence();
    first.release().await.unwrap();
    let before = scripts(&mut eyes);
    let second = soon(locks.mutex("a").try_lock())
        .await
        .unwrap()
        .expect("it is kept");
    assert!(second.fence() > fence);
    drop(second);
    for _ in 0..100 {
        cycle(&locks, "a").await;
    }
    assert_eq!(scripts(&mut eyes), before);
    // A burst has an end, so a lease of its own follows now and then.
    for _ in 0..10_000 {
        cycle(&locks, "a").await;
    }
    let sent = scripts(&mut eyes) - before;
    assert!((2..=100).contains(&sent), "{sent}");
    soon(locks.idle()).await;
    assert_eq!(eyes.owner("a"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_recalls_a_kept_lease() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        keeping(&server.url(), &mut eyes).await,
        patient(&server.url()).await,
    );
    cycle(&one, "a").await;
    assert!(eyes.owner("a").is_some());
    cycle(&other, "a").await;
    assert_eq!(eyes.owner("a"), None);
    // A caller that does not wait finds the key busy at first.
    cycle(&one, "a").await;
    assert!(soon(other.mutex("a").try_lock()).await.unwrap().is_none());
    until("it is free", || eyes.owner("a").is_none()).await;
    drop(
        soon(other.mutex("a").try_lock())
            .await
            .unwrap()
            .expect("it is free"),
    );
    // A lease in use goes back when its holder ends.
    let guard = held(&one, "b").await;
    let wanted = other.mutex("b");
    let next = tokio::spawn(async move { wanted.lock().await });
    until("it waits", || eyes.queue("b") == 1).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(soon(next).await.unwrap().unwrap());
    soon(other.idle()).await;
    // What came from the queue is given back as without a keep.
    let guard = held(&other, "c").await;
    let wanted = one.mutex("c");
    let next = tokio::spawn(async move { wanted.lock().await });
    until("it waits", || eyes.queue("c") == 1).await;
    guard.release().await.unwrap();
    soon(soon(next).await.unwrap().unwrap().release()).await.unwrap();
    assert_eq!(eyes.owner("c"), None);
}

/// A record with the mark is that of its owner for writes and renewals, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_writes_and_renews_under_the_mark() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = keeping(&server.url(), &mut eyes).await;
    let guard = held(&locks, "a").await;
    assert!(show(&locks, "a").await[0].holders[0].may_keep);
    let write = guard.atomically().command("INCR").key("count");
    assert_eq!(soon(write.query::<(u64,)>()).await.unwrap(), (1,));
    // After a write that was answered the lease may be kept.
    guard.release().await.unwrap();
    assert!(eyes.owner("a").is_some());
    let guard = held(&locks, "a").await;
    let write = guard.atomically().command("INCR").key("count");
    assert_eq!(soon(write.query::<(u64,)>()).await.unwrap(), (2,));
    // After a renewal it is given back: a recall may have been missed.
    soon(guard.renew()).await.unwrap();
    soon(guard.release()).await.unwrap();
    assert_eq!(eyes.owner("a"), None);
}

/// A process that never waits for other processes costs them nothing, and one that ends gives all back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_kept_up_to_a_limit() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = keeping(&server.url(), &mut eyes).await;
    for n in 0..20_000 {
        soon(soon(locks.mutex(n).lock()).await.unwrap().release())
            .await
            .unwrap();
    }
    let kept = eyes.text::<usize>("DBSIZE");
    assert!((10_000..=16_400).contains(&kept), "{kept}");
    soon(locks.shutdown()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Other processes get the keys of a process that was killed as if it had held them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_keys_of_a_process_that_is_gone_are_free_after_the_lease() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let proxy = Proxy::start(addr(&server));
    let lease = ms(4_000);
    let builder = || crate::help::builder().lease(lease);
    let gone = builder()
        .keep(Duration::MAX)
        .connect(&url(proxy.addr()))
        .await
        .unwrap();
    let other = builder().connect(&server.url()).await.unwrap();
    until_kept(&gone, &mut eyes).await;
    cycle(&gone, "a").await;
    proxy.set(Direction::Both, Flow::Hold);
    let left = eyes.pttl("a");
    assert!(left <= 4_400, "{left}");
    drop(held(&other, "a").await);
    soon(other.idle()).await;
    assert_eq!(eyes.owner("a"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_suit_leaves_the_lease_first() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = keeping(&server.url(), &mut eyes).await;
    let fence = |guard: tenure::Guard| guard.fence();
    let mut before = fence(held(&locks, "a").await);
    let (fair, fixed) = (locks.mutex("a").fair(), locks.mutex("a").fixed(HOUR));
    let longer = locks.mutex("a").lease(13 * HOUR);
    for (what, mutex) in [("fair", fair), ("fixed", fixed), ("longer", longer)] {
        cycle(&locks, "a").await;
        assert!(eyes.owner("a").is_some(), "{what}");
        let guard = soon(mutex.lock()).await.unwrap();
        assert!(guard.fence() > before, "{what}");
        before = guard.fence();
        guard.release().await.unwrap();
        soon(locks.idle()).await;
    }
    cycle(&locks, "a").await;
    let reader = soon(locks.rw_lock("a").read()).await.unwrap();
    soon(soon(locks.rw_lock("a").read()).await.unwrap().release())
        .await
        .unwrap();
    soon(reader.release()).await.unwrap();
    assert_eq!(eyes.owner("a"), None);
    cycle(&locks, "a").await;
    cycle(&locks, "b").await;
    let both = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    soon(both.release()).await.unwrap();
    soon(locks.idle()).await;
    assert!(eyes.left_behind().is_empty());
    // Zero keeps nothing, and neither does a caller that does not wait.
    soon(
        soon(locks.mutex("a").keep(Duration::ZERO).lock())
            .await
            .unwrap()
            .release(),
    )
    .await
    .unwrap();
    assert_eq!(eyes.owner("a"), None);
    let tried = soon(locks.mutex("a").try_lock()).await.unwrap().unwrap();
    soon(tried.release()).await.unwrap();
    assert_eq!(eyes.owner("a"), None);
    soon(soon(locks.rw_lock("a").write()).await.unwrap().release())
        .await
        .unwrap();
    assert_eq!(eyes.owner("a"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_lease_ends_with_its_time_its_locks_and_its_inbox() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let proxy = Proxy::start(addr(&server));
    let locks = keeping(&url(proxy.addr()), &mut eyes).await;
    // A time of its own, in place of that of the locks.
    soon(soon(locks.mutex("a").keep(ms(1)).lock()).await.unwrap().release())
        .await
        .unwrap();
    until("the keep ends", || eyes.owner("a").is_none()).await;
    soon(
        soon(locks.mutex("a").keep(Duration::from_nanos(1)).lock())
            .await
            .unwrap()
            .release(),
    )
    .await
    .unwrap();
    until("the keep ends", || eyes.owner("a").is_none()).await;
    // While it is unknown whether pushes arrive, nothing is kept.
    cycle(&locks, "a").await;
    proxy.reset();
    until("the inbox is not confirmed", || eyes.owner("a").is_none()).await;
    until_kept(&locks, &mut eyes).await;
    cycle(&locks, "a").await;
    soon(locks.shutdown()).await;
    assert!(eyes.left_behind().is_empty());
    let locks = keeping(&server.url(), &mut eyes).await;
    cycle(&locks, "a").await;
    drop(locks);
    until("it is left", || eyes.left_behind().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_takes_a_kept_lease() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        keeping(&server.url(), &mut eyes).await,
        patient(&server.url()).await,
    );
    keep(&one, "a", &mut eyes).await;
    let entry = show(&other, "a").await.remove(0);
    assert!(entry.holders[0].may_keep);
    let inspection = other.inspect();
    let steal = inspection.steal(&entry).grace(HOUR).by("test");
    soon(steal.into_future()).await.unwrap();
    assert_eq!(eyes.owner("a"), None);
    // A revoked lease is over although it had no holder.
    keep(&one, "a", &mut eyes).await;
    let entry = show(&other, "a").await.remove(0);
    soon(inspection.steal(&entry).now().by("test").into_future())
        .await
        .unwrap();
    until("it is left", || eyes.owner("a").is_none()).await;
    let guard = held(&one, "a").await;
    let entry = show(&other, "a").await.remove(0);
    soon(inspection.steal(&entry).now().by("test").into_future())
        .await
        .unwrap();
    let error = soon(guard.release()).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Revoked,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_cannot_keep_is_refused() {
    let builder = || crate::help::builder().keep(ms(1)).lazy();
    let gap = soon(builder().poll_gap(ms(100)).connect("redis://127.0.0.1/")).await;
    assert!(
        matches!(&gap, Err(Error::Options(error)) if error.to_string().contains("poll_gap")),
        "{gap:?}"
    );
    let locks = crate::help::builder().lazy().poll_gap(ms(100));
    let locks = locks.connect("redis://127.0.0.1/").await.unwrap();
    let error = soon(locks.mutex("a").keep(ms(1)).lock()).await.unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error:?}");
    let masters = Masters::start(3);
    let clients = || {
        masters
            .urls()
            .iter()
            .map(|url| redis::Client::open(&**url).unwrap())
            .collect()
    };
    let quorum = soon(builder().quorum(clients(), ms(10_000))).await;
    assert!(
        matches!(&quorum, Err(Error::Options(error)) if error.to_string().contains("quorum")),
        "{quorum:?}"
    );
    let locks = soon(crate::help::builder().quorum(clients(), ms(10_000)))
        .await
        .unwrap();
    let error = soon(locks.mutex("a").keep(ms(1)).lock()).await.unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error:?}");
}
