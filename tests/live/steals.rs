//! Leases on real servers that an operator takes: from holders that obey, that ignore it, that stand still or are gone, and from
//! other libraries. The next holder never holds beside them.

use std::time::Duration;

use tenure::error::{LostCause, StoreErrorKind, StoreRefusal};
use tenure::inspect::{Entry, State, StealEnd, StealError, StealStep};
use tenure::{Error, Guard, Locks};
use tokio::task::{JoinSet, block_in_place};

use crate::cluster::Cluster;
use crate::help::{Eyes, HOUR, Other, addr, held, ms, now, quorum, soon, until, url};
use crate::interop::foreign::{Foreign, Library};
use crate::quorums::{masters, urls};
use crate::server::RedisServer;
use crate::store::locks_of;
use crate::support::inspect::{self, show, until_told};
use crate::support::proxy::{Direction, Flow, Proxy};
use crate::support::steal;

/// Short, so that leases without a sign of their holders end soon.
const LEASE: Duration = ms(1_200);
/// Of a lock of redis-py.
const THEIR_LEASE: Duration = ms(4_000);

async fn node(url: &str, lease: Duration) -> Locks {
    let builder = crate::help::builder().lease(lease).request_timeout(ms(10_000));
    soon(builder.connect(url)).await.unwrap()
}

/// Runs what is the same on every store.
async fn are_taken(one: &Locks, other: &Locks) {
    steal::a_holder_that_is_asked_gives_the_lease_to_another_node(one, other).await;
    steal::a_holder_that_does_not_give_back_loses_the_lease_first(one, other).await;
    steal::one_of_several_holders_is_chosen_by_its_number(one, other).await;
    steal::a_reader_is_revoked_and_the_others_read_on(one, other).await;
    steal::a_lease_is_handed_over_at_once(one, other).await;
    steal::observers_learn_that_a_leader_was_revoked(one, other).await;
    steal::what_cannot_be_taken_is_refused(one, other).await;
    steal::a_lease_that_was_given_away_is_left_at_once(one, other).await;
    steal::a_revoked_writer_that_becomes_a_reader_leaves(one, other).await;
    steal::one_of_many_holders_is_taken(one, other).await;
    steal::a_holder_of_several_keys_is_asked_for_one(one, other).await;
    steal::a_share_that_was_given_away_is_left_at_once(one, other).await;
    steal::a_revoked_share_is_handed_over(one, other).await;
    steal::two_operators_take_one_share(one, other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_server_are_taken_as_in_memory() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), ms(60_000)).await,
        node(&server.url(), ms(60_000)).await,
    );
    are_taken(&one, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_cluster_are_taken_as_in_memory() {
    let cluster = Cluster::start(3, 0);
    let node = async || {
        let like = redis::Client::open(&*cluster.urls()[0]).unwrap();
        let builder = crate::help::builder()
            .lease(ms(60_000))
            .request_timeout(ms(10_000));
        builder.cluster(&cluster.urls()[..1], like).await.unwrap()
    };
    let (one, other) = (node().await, node().await);
    are_taken(&one, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_has_no_steal() {
    let masters = masters(3).await;
    let locks = soon(quorum(urls(&masters))).await.unwrap();
    let guard = held(&locks, "a").await;
    let entry = show_of_one_master(&locks).await;
    let error = soon(locks.inspect().steal(&entry).into_future())
        .await
        .unwrap_err();
    let StealError::Store(Error::Connect { source, .. }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*source.kind(), StoreErrorKind::Refused(StoreRefusal::Unsupported));
    assert!(guard.is_held());
}

async fn show_of_one_master(locks: &Locks) -> Entry {
    soon(locks.inspect().show("a")).await.unwrap().entries.remove(0)
}

/// What a holder does when an operator wants its lease.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Gives it back when it is asked.
    Obeys,
    /// Works until it loses the lease.
    Ignores,
    /// Keeps its guard beyond the loss.
    Keeps,
    /// Is another process that is stopped.
    Stopped,
    /// Is another process that is killed.
    Killed,
    /// Is redis-py.
    RedisPy,
    /// Is a node that tells nothing of itself.
    Silent,
}

/// One steal. Returns how long the next holder waited.
async fn steal_from(kind: Kind, url: String, key: String) -> Duration {
    let (one, next) = (node(&url, LEASE).await, node(&url, LEASE).await);
    let mutex = next.mutex(&*key);
    let waits = async move { (mutex.lock().await.unwrap(), now()) };
    let take = async |grace| {
        let entry = show(&next, &key).await.remove(0);
        let steal = next.inspect().steal(&entry).grace(grace).by("test");
        let began = now();
        let end = soon(steal.into_future()).await.unwrap().end;
        (end, began)
    };
    let ((end, began), (guard, got), last_held) = match kind {
        Kind::Obeys | Kind::Ignores | Kind::Keeps => {
            let holder = held(&one, &*key).await;
            until_told(&next, &key).await;
            let waiting = tokio::spawn(waits);
            inspect::until(&next, &key, |entry| entry.waiter_count == 1).await;
            let works = tokio::spawn(works(kind, holder));
            let grace = if kind == Kind::Obeys { ms(60_000) } else { ms(30) };
            let taken = take(grace).await;
            (taken, soon(waiting).await.unwrap(), soon(works).await.unwrap())
        }
        Kind::Stopped | Kind::Killed => {
            let mut other = Other::plays("watches its guard", &url, &key, LEASE);
            other.hears("holds");
            until_told(&next, &key).await;
            let waiting = tokio::spawn(waits);
            inspect::until(&next, &key, |entry| entry.waiter_count == 1).await;
            if kind == Kind::Killed {
                other.kill();
            } else {
                other.signal("-STOP");
            }
            let stopped = now();
            let taken = take(ms(30)).await;
            let next = soon(waiting).await.unwrap();
            if kind == Kind::Stopped {
                other.signal("-CONT");
                let lost = other.hears("lost");
                let last = lost.split(' ').next().unwrap().parse().unwrap();
                (taken, next, Duration::from_nanos(last))
            } else {
                (taken, next, stopped)
            }
        }
        Kind::RedisPy => {
            // The other process may be slow. It blocks no other steal, and its lock outlasts the first look.
            let mut theirs = block_in_place(|| Foreign::runs_on(Library::RedisPy, &url));
            let before = now();
            let ttl = THEIR_LEASE.as_secs_f64();
            let said = block_in_place(|| theirs.asks(&format!("acquire lock:{key} {ttl} 0")));
            assert_eq!(said, "yes");
            let waiting = tokio::spawn(waits);
            inspect::until(&next, &key, |entry| entry.waiter_count == 1).await;
            let taken = take(ms(30)).await;
            let said = block_in_place(|| theirs.asks(&format!("extend lock:{key} 60")));
            assert_eq!(said, "LockNotOwnedError");
            (taken, soon(waiting).await.unwrap(), before + THEIR_LEASE)
        }
        Kind::Silent => {
            let silent = crate::help::builder().lease(LEASE).presence(false);
            let silent = soon(silent.connect(&url)).await.unwrap();
            let holder = held(&silent, &*key).await;
            let waiting = tokio::spawn(waits);
            inspect::until(&next, &key, |entry| entry.waiter_count == 1).await;
            let works = tokio::spawn(works(Kind::Keeps, holder));
            let taken = take(ms(30)).await;
            (taken, soon(waiting).await.unwrap(), soon(works).await.unwrap())
        }
    };
    let wanted = if kind == Kind::Obeys {
        StealEnd::GivenBack
    } else {
        StealEnd::Revoked
    };
    assert_eq!(end, wanted, "{kind:?}");
    assert!(
        last_held <= got,
        "{kind:?}: held until {last_held:?}, and by the next from {got:?}"
    );
    // A machine that stops for longer than the lease ends it. Nothing else does.
    if let Err(error) = soon(guard.release()).await {
        let is_late = matches!(
            &error,
            Error::Lost {
                cause: LostCause::Deadline,
                ..
            }
        );
        assert!(is_late, "{kind:?}: {error}");
    }
    got - began
}

/// Works as long as the lease is held, and returns when it was last seen held. It looks all the time.
async fn works(kind: Kind, guard: Guard) -> Duration {
    let mut asked = tokio::spawn(guard.asked());
    let mut last = now();
    loop {
        // Read first: what is stopped in between counts from before that.
        let at = now();
        if !guard.is_held() {
            break;
        }
        last = at;
        if kind == Kind::Obeys && asked.is_finished() {
            assert!(asked.await.unwrap().is_some());
            let last = now();
            guard.release().await.unwrap();
            return last;
        }
        tokio::task::yield_now().await;
    }
    let cause = soon(guard.lost()).await;
    assert_eq!(cause, LostCause::Revoked, "{kind:?}");
    asked.abort();
    let _ = (&mut asked).await;
    if kind == Kind::Keeps {
        tokio::time::sleep(LEASE).await;
    }
    last
}

/// Two hundred steals: no two callers hold one key at once, whatever the first one does.
/// An operator that has the URL of one master would otherwise free a lease at that master alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_a_quorum_gives_no_lease_away_alone() {
    let masters = masters(3).await;
    let locks = soon(quorum(urls(&masters))).await.unwrap();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    for master in &masters {
        let operator = node(&master.url(), LEASE).await;
        let entry = show(&operator, "a").await.remove(0);
        for now in [true, false] {
            let steal = operator.inspect().steal(&entry);
            let steal = if now { steal.now() } else { steal };
            let error = soon(steal.into_future()).await.unwrap_err();
            let StealError::Store(Error::Connect { source, .. }) = &error else {
                panic!("{error:?}")
            };
            assert!(source.to_string().contains("is a master of a quorum"), "{error}");
        }
    }
    soon(guard.renew()).await.unwrap();
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_holder_holds_beside_the_next() {
    let server = RedisServer::start();
    for (kind, count) in [
        (Kind::Obeys, 40),
        (Kind::Ignores, 40),
        (Kind::Keeps, 30),
        (Kind::Stopped, 15),
        (Kind::Killed, 15),
        (Kind::RedisPy, 20),
        (Kind::Silent, 20),
    ] {
        let mut waited = Vec::new();
        // As many at once as a small machine runs.
        let at_once = match kind {
            Kind::Keeps | Kind::Silent => 10,
            _ => 5,
        };
        for batch in 0..count / at_once {
            let mut steals = JoinSet::new();
            for n in 0..at_once {
                steals.spawn(steal_from(kind, server.url(), format!("{kind:?}-{batch}-{n}")));
            }
            waited.append(&mut steals.join_all().await);
        }
        waited.sort();
        let (median, last) = (waited[waited.len() / 2], waited[waited.len() - 1]);
        println!(
            "{kind:?}: {count} steals, the next holder after {median:.1?} (median), {last:.1?} (longest)"
        );
    }
}

/// With a push, the next holder begins two trips after the revoke: the revoke and the push are one, the leave and the grant
/// the other. No timer is in between: they take an hour or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_holder_begins_within_three_trips() {
    let server = RedisServer::start();
    for (one_way, rounds) in [(ms(1), 40), (ms(15), 20)] {
        let proxy = Proxy::start(addr(&server));
        for direction in [Direction::Requests, Direction::Replies] {
            proxy.set(direction, Flow::Delay(one_way));
        }
        let url = url(proxy.addr());
        let (one, next) = (node(&url, 12 * HOUR).await, node(&url, 12 * HOUR).await);
        let mut took = Vec::new();
        for round in 0..rounds {
            let key = format!("{one_way:?} {round}");
            let holder = held(&one, &*key).await;
            until_told(&next, &key).await;
            let mutex = next.mutex(&*key);
            let waiting = tokio::spawn(mutex.lock());
            inspect::until(&next, &key, |entry| entry.waiter_count == 1).await;
            // An operator looks first, so the connection is open.
            let inspection = next.inspect();
            let entry = soon(inspection.show(&*key)).await.unwrap().entries.remove(0);
            let work = tokio::spawn(async move {
                let cause = holder.lost().await;
                drop(holder);
                cause
            });
            let before = proxy.counts().reads[0];
            let steal = inspection.steal(&entry).grace(Duration::ZERO);
            let stealing = tokio::spawn(steal.into_future());
            let guard = soon(waiting).await.unwrap().unwrap();
            took.push(proxy.counts().reads[0] - before);
            assert_eq!(soon(work).await.unwrap(), LostCause::Revoked);
            drop(guard);
            soon(stealing).await.unwrap().unwrap();
        }
        took.sort();
        let median = took[took.len() / 2];
        println!("{one_way:?} each way: {median} writes until the next holder (median), of {took:?}");
        assert!(median <= 4, "{took:?}");
    }
}

/// A revoked record is a foreign one to other libraries, and an endless one is not revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_without_an_end_is_handed_over_only() {
    let server = RedisServer::start();
    let locks = node(&server.url(), ms(10_000)).await;
    let mut eyes = Eyes::on(&server);
    let () = eyes.text("SET lock:a token");
    let entry = show(&locks, "a").await.remove(0);
    assert_eq!(entry.state, State::Foreign);
    let inspection = locks.inspect();
    // This is told before the grace.
    let steal = inspection.steal(&entry).grace(Duration::from_secs(600));
    let error = soon(steal.into_future()).await.unwrap_err();
    assert!(matches!(error, StealError::Endless { .. }), "{error}");
    let () = eyes.text("SET lock:b token PX 60000");
    let changed = show(&locks, "b").await.remove(0);
    let () = eyes.text("SET lock:b another PX 60000");
    let error = soon(inspection.steal(&changed).into_future()).await.unwrap_err();
    assert!(matches!(error, StealError::Changed { .. }), "{error}");
    assert_eq!(eyes.owner("a").as_deref(), Some("token"));
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until("it waits", || eyes.queue("a") == 1).await;
    let stolen = soon(inspection.steal(&entry).now().into_future()).await.unwrap();
    assert_eq!(stolen.end, StealEnd::HandedOver);
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// A server that lost its memory does not know who holds what: nothing is handed over until the earlier leases are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_handed_over_while_the_server_recovers() {
    let server = RedisServer::start();
    let locks = node(&server.url(), ms(60_000)).await;
    let guard = held(&locks, "a").await;
    let mut eyes = Eyes::on(&server);
    let record = eyes.owner("a");
    let entry = show(&locks, "a").await.remove(0);
    let () = eyes.text("SET tenure1:recovering 1 PX 60000");
    let steal = || locks.inspect().steal(&entry);
    let error = soon(steal().now().into_future()).await.unwrap_err();
    let StealError::Recovering { left, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(*left > ms(30_000) && *left <= ms(60_000), "{error}");
    assert_eq!((eyes.owner("a"), guard.is_held()), (record, true));
    assert!(soon(locks.inspect().audit()).await.unwrap().is_empty());
    // A revoke gives the key to no other holder.
    let stealing = tokio::spawn(steal().grace(Duration::ZERO).into_future());
    assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
    drop(guard);
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
}

/// Without the push the holder may learn of the revoke by a write that the store refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_tells_of_a_revoke() {
    let server = RedisServer::start();
    let other = node(&server.url(), ms(60_000)).await;
    let silent = crate::help::builder().lease(ms(60_000)).presence(false);
    let silent = soon(silent.connect(&server.url())).await.unwrap();
    let guard = held(&silent, "a").await;
    let mut eyes = Eyes::on(&server);
    let entry = show(&other, "a").await.remove(0);
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    inspect::until(&other, "a", |entry| entry.state == State::Revoked).await;
    assert!(guard.is_held());
    let write = guard.atomically().command("INCR").key("count");
    let refused = soon(write.query::<i64>()).await.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. }), "{refused:?}");
    assert!(!guard.is_held() && eyes.text::<u8>("EXISTS count") == 0);
    // The record excludes others until the guard is dropped, and not for the whole lease.
    let early = soon(other.mutex("a").try_lock()).await.unwrap();
    assert!(early.is_none() && !stealing.is_finished(), "{early:?}");
    drop(guard);
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
    soon(held(&other, "a").await.release()).await.unwrap();
}

/// Without the push a fixed lease learns nothing, as it is not renewed. It ends by itself, and excludes others until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_that_is_told_nothing_ends_by_itself() {
    let server = RedisServer::start();
    let other = node(&server.url(), ms(60_000)).await;
    let silent = crate::help::builder().presence(false);
    let silent = soon(silent.connect(&server.url())).await.unwrap();
    let before = now();
    let guard = soon(silent.mutex("a").fixed(LEASE).lock()).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), now()) });
    let entry = inspect::until(&other, "a", |entry| entry.waiter_count == 1).await;
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.into_future());
    assert_eq!(soon(guard.lost()).await, LostCause::Ended);
    let (next, began) = soon(waiting).await.unwrap();
    assert!(
        began >= before + LEASE,
        "held from {before:?}, and by the next from {began:?}"
    );
    assert_eq!(soon(stealing).await.unwrap().unwrap().end, StealEnd::Revoked);
    soon(next.release()).await.unwrap();
}

/// A node that never waits for a grant opens no connection for pushes. Its holder cannot be asked, and learns by its renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_listen_is_not_asked() {
    let server = RedisServer::start();
    let other = node(&server.url(), ms(60_000)).await;
    // Long enough that no renewal comes between the revoke and the look after it.
    let tries = crate::help::builder().lease(ms(9_000)).lazy();
    let tries = soon(tries.connect(&server.url())).await.unwrap();
    let guard = soon(tries.mutex("a").try_lock()).await.unwrap().unwrap();
    until_told(&other, "a").await;
    let entry = show(&other, "a").await.remove(0);
    let mut steps = Vec::new();
    let steal = other.inspect().steal(&entry).grace(ms(200));
    let stealing = steal.run(|step| steps.push(step));
    let losing = async {
        assert_eq!(soon(guard.lost()).await, LostCause::Revoked);
        drop(guard);
    };
    let (stolen, ()) = tokio::join!(soon(stealing), losing);
    assert_eq!(stolen.unwrap().end, StealEnd::Revoked);
    assert!(
        matches!(steps[..], [StealStep::NotAsked, StealStep::Revoked(Some(_))]),
        "{steps:?}"
    );
}

/// The operator waits through an outage of the server, and reads what is there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_does_not_end_a_steal() {
    let mut server = RedisServer::with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let other = node(&server.url(), ms(60_000)).await;
    let silent = crate::help::builder().lease(ms(60_000)).presence(false);
    let silent = soon(silent.connect(&server.url())).await.unwrap();
    let guard = held(&silent, "a").await;
    let entry = show(&other, "a").await.remove(0);
    let (told, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let steal = other.inspect().steal(&entry).grace(Duration::ZERO);
    let stealing = tokio::spawn(steal.run(move |step| told.send(step).unwrap()));
    let step = soon(steps.recv()).await;
    assert!(matches!(step, Some(StealStep::Revoked(Some(_)))), "{step:?}");
    server.kill();
    // Long enough for several looks.
    tokio::time::sleep(ms(1_500)).await;
    assert!(!stealing.is_finished());
    server.restart();
    drop(guard);
    let stolen = soon(stealing).await.unwrap().unwrap();
    assert_eq!((stolen.end, stolen.entry), (StealEnd::Revoked, None));
}

/// A failover that loses the revoke gives the lease back to its holder, and the steal says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_revoke_is_reported() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), ms(60_000)).await,
        node(&server.url(), ms(60_000)).await,
    );
    let silent = crate::help::builder().lease(ms(60_000)).presence(false);
    let silent = soon(silent.connect(&server.url())).await.unwrap();
    let guard = held(&silent, "a").await;
    let mut eyes = Eyes::on(&server);
    let record = eyes.owner("a").unwrap();
    let entry = show(&other, "a").await.remove(0);
    let stealing = tokio::spawn(other.inspect().steal(&entry).grace(Duration::ZERO).into_future());
    until("the lease is revoked", || {
        eyes.owner("a") == Some(format!("!{record}"))
    })
    .await;
    // A replica without the revoke became the master.
    let () = eyes.ask(&[b"SET", b"lock:a", record.as_bytes(), b"PX", b"60000"]);
    let error = soon(stealing).await.unwrap().unwrap_err();
    assert!(matches!(error, StealError::Undone { .. }), "{error}");
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    drop(one);
}

/// The user of the guide that steals can do all of it, and can take no lease itself beyond that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_takes_leases() {
    let server = RedisServer::start();
    let (one, other) = (
        node(&server.url(), ms(60_000)).await,
        node(&server.url(), ms(60_000)).await,
    );
    let thief = locks_of(&server, "steal").await;
    for (key, grace, is_now) in [
        ("asked", ms(60_000), false),
        ("revoked", ms(0), false),
        ("now", ms(0), true),
    ] {
        let guard = held(&one, key).await;
        until_told(&thief, key).await;
        let mutex = other.mutex(key);
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let entry = inspect::until(&thief, key, |entry| entry.waiter_count == 1).await;
        let work = tokio::spawn(async move {
            let _ = guard.asked().await;
            drop(guard);
        });
        let steal = thief.inspect().steal(&entry).grace(grace).by("ops");
        let steal = if is_now { steal.now() } else { steal };
        let stolen = soon(steal.into_future()).await.unwrap();
        assert!(stolen.unwritten.is_none(), "{stolen:?}");
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
        soon(work).await.unwrap();
    }
    let audit = soon(thief.inspect().audit()).await.unwrap();
    let acts: Vec<_> = audit.iter().map(|act| (&*act.what, act.key.clone())).collect();
    assert_eq!(
        acts,
        [
            ("handed_over", "now".into()),
            ("revoked", "revoked".into()),
            ("asked", "asked".into())
        ]
    );
    // The user that looks cannot take anything.
    let looks = locks_of(&server, "look").await;
    let guard = held(&one, "kept").await;
    let entry = show(&looks, "kept").await.remove(0);
    let error = soon(looks.inspect().steal(&entry).now().into_future())
        .await
        .unwrap_err();
    assert!(matches!(error, StealError::Store(_)), "{error}");
    assert!(guard.is_held());
}

/// The list of acts has a bound, and each act is there with its text as it was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_acts_has_a_bound() {
    let server = RedisServer::start();
    let locks = node(&server.url(), ms(60_000)).await;
    let mut eyes = Eyes::on(&server);
    let why = "\u{1b}[31m %& = \n".repeat(100);
    for round in 0..3 {
        let guard = held(&locks, format!("k{round}")).await;
        let entry = show(&locks, &format!("k{round}")).await.remove(0);
        let steal = locks.inspect().steal(&entry).now().why(&*why);
        soon(steal.into_future()).await.unwrap();
        drop(guard);
    }
    let acts = soon(locks.inspect().audit()).await.unwrap();
    assert_eq!(acts.len(), 3);
    assert!(
        why.starts_with(acts[0].why.trim_end_matches(['%', '\u{fffd}'])),
        "{:?}",
        acts[0].why
    );
    let filler: Vec<&[u8]> = [b"LPUSH" as &[u8], b"tenure1:a:lock:"]
        .into_iter()
        .chain([b"zone=b" as &[u8]; 1_200])
        .collect();
    let _: u64 = eyes.ask(&filler);
    let _guard = held(&locks, "last").await;
    let entry = show(&locks, "last").await.remove(0);
    soon(locks.inspect().steal(&entry).now().into_future())
        .await
        .unwrap();
    let acts = soon(locks.inspect().audit()).await.unwrap();
    assert_eq!(
        (acts.len(), &*acts[0].what, acts[1].kind),
        (1_000, "handed_over", None)
    );
}
