//! Guarded writes on a real server: they are executed while the lease is current, and refused otherwise.

use crate::help::{Eyes, Other, addr, held, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::store::acl;
use crate::support::jobs::ByHand;
use crate::support::proxy::{Direction, Flow, Proxy};
use redis::Value;
use redis::aio::MultiplexedConnection;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenure::error::{LostCause, StoreErrorKind, StoreRefusal};
use tenure::{CancellationToken, Error, Fence, Guard, Locks, Mutex};

pub(crate) async fn a_lock() -> (RedisServer, Eyes, Locks) {
    let server = RedisServer::start();
    let eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    (server, eyes, locks)
}

/// Adds one to the count, and appends an id.
pub(crate) async fn add(guard: &Guard, id: &str) -> Result<i64, Error> {
    let (count, _): (i64, i64) = soon(
        guard
            .atomically()
            .command("INCR")
            .key("count")
            .command("RPUSH")
            .key("ids")
            .arg(id)
            .query(),
    )
    .await?;
    Ok(count)
}

pub(crate) fn count(eyes: &mut Eyes) -> i64 {
    eyes.text::<Option<i64>>("GET count").unwrap_or(0)
}

pub(crate) fn number(fence: Fence) -> u64 {
    fence.get() / Fence::LOCAL
}

pub(crate) fn failed(written: Result<Value, Error>) -> String {
    match written {
        Err(Error::Failed { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_and_scripts_are_done_in_one_trip() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    // The scripts are loaded into the server once.
    assert_eq!(add(&guard, "first").await.unwrap(), 1);
    let script =
        "-- a comment on the first line\nlocal by = ARGV[1]\nreturn redis.call('INCRBY', KEYS[1], by)";
    let by = |by: i64| {
        guard
            .atomically()
            .script(script)
            .key("count")
            .arg(by)
            .query::<i64>()
    };
    assert_eq!(soon(by(40)).await.unwrap(), 41);
    let before = eyes.calls()["evalsha"];
    assert_eq!(add(&guard, "second").await.unwrap(), 42);
    assert_eq!(soon(by(-2)).await.unwrap(), 40);
    assert_eq!(eyes.calls()["evalsha"] - before, 2);
    let replies: (String, Option<String>, Vec<String>, i64) = soon(
        guard
            .atomically()
            .command("SET")
            .key("name")
            .arg("a b\r\n")
            .command("GET")
            .key("missing")
            .command("LRANGE")
            .key("ids")
            .arg(0)
            .arg(-1)
            .command("EXISTS")
            .key(&["name", "count"])
            .query(),
    )
    .await
    .unwrap();
    let ids = vec!["first".to_owned(), "second".to_owned()];
    assert_eq!(replies, ("OK".to_owned(), None, ids, 2));
    assert_eq!(eyes.ask::<String>(&[b"GET", b"name"]), "a b\r\n");
    // A script sees only its own keys and arguments, and may return nothing.
    for ours in ["body", "is_current", "keys"] {
        let sees = format!("return {{ #KEYS, #ARGV, pcall(function() return {ours} end) and 1 or 0 }}");
        let seen: (i64, i64, i64) = soon(guard.atomically().script(sees).query()).await.unwrap();
        assert_eq!(seen, (0, 0, 0), "{ours}");
    }
    let nothing: Value = soon(guard.atomically().script("local nothing").query())
        .await
        .unwrap();
    assert_eq!(nothing, Value::Nil);
    // A write with an unreadable answer was executed.
    let unread = soon(guard.atomically().command("INCR").key("count").query::<i64>()).await;
    assert!(matches!(unread, Err(Error::Reply { .. })), "{unread:?}");
    assert_eq!(count(&mut eyes), 41);
    // Many words and keys.
    let many: Vec<String> = (0..5_000).map(|n| format!("m{n}")).collect();
    let script = "return { #KEYS, #ARGV, KEYS[5000], ARGV[5000] }";
    let call = guard.atomically().script(script).key(&many).arg(&many);
    let seen: (i64, i64, String, String) = soon(call.query()).await.unwrap();
    assert_eq!(seen, (5_000, 5_000, "m4999".to_owned(), "m4999".to_owned()));
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_the_lease_was_lost_is_refused() {
    let (server, mut eyes, locks) = a_lock().await;
    let is_gone = |written: Result<i64, Error>| {
        assert!(
            matches!(
                written,
                Err(Error::Lost {
                    cause: LostCause::Gone,
                    ..
                })
            ),
            "{written:?}"
        );
    };
    // The record is deleted by hand, taken over by another process, or overwritten by another client. Each lease is new:
    // otherwise the process would know of the loss.
    let guard = held(&locks, "a").await;
    add(&guard, "mine").await.unwrap();
    eyes.text::<()>("DEL lock:a");
    is_gone(add(&guard, "deleted").await);
    let guard = held(&locks, "a").await;
    eyes.text::<()>("DEL lock:a");
    let other = crate::help::locks(&server.url(), ms(10_000)).await;
    let successor = held(&other, "a").await;
    is_gone(add(&guard, "taken").await);
    assert_eq!(add(&successor, "theirs").await.unwrap(), 2);
    for (record, case) in [
        ("SET lock:a foreign-owner", "foreign"),
        ("HSET lock:a some thing", "no lock"),
    ] {
        eyes.text::<()>("DEL lock:a");
        let guard = held(&locks, "a").await;
        eyes.text::<()>("DEL lock:a");
        eyes.text::<()>(record);
        is_gone(add(&guard, case).await);
    }
    assert_eq!(count(&mut eyes), 2);
    // The owner's claim, with another grant number.
    let guard = held(&locks, "b").await;
    let record = eyes.owner("b").unwrap();
    eyes.text::<()>(&format!("SET lock:b {record}1"));
    is_gone(add(&guard, "another grant").await);
    assert_eq!(count(&mut eyes), 2);
    // After its release the write is refused without a request.
    let guard = held(&locks, "c").await;
    let lease = guard.lease();
    soon(guard.release()).await.unwrap();
    let before = eyes.calls()["evalsha"];
    let released = soon(lease.atomically().command("INCR").key("count").query::<i64>()).await;
    assert!(
        matches!(
            released,
            Err(Error::Lost {
                cause: LostCause::Released,
                ..
            })
        ),
        "{released:?}"
    );
    assert_eq!(eyes.calls()["evalsha"], before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_holders_of_permits_and_second_guards_write_while_they_hold() {
    let (_server, mut eyes, locks) = a_lock().await;
    let first = held(&locks, "a").await;
    let second = first.again().unwrap();
    assert_eq!(add(&first, "first").await.unwrap(), 1);
    soon(first.release()).await.unwrap();
    assert_eq!(add(&second, "second").await.unwrap(), 2);
    let reader = soon(locks.rw_lock("read").read()).await.unwrap();
    assert_eq!(add(&reader, "reader").await.unwrap(), 3);
    let permits = locks.semaphore("calls", 3);
    let (two, one) = (
        soon(permits.acquire_many(2)).await.unwrap(),
        soon(permits.acquire()).await.unwrap(),
    );
    assert_eq!(add(&two, "two").await.unwrap(), 4);
    assert_eq!(add(&one, "one").await.unwrap(), 5);
    let records: Vec<Vec<u8>> = eyes.text("KEYS tenure1:s:*");
    for record in [&records[0][..], b"lock:read"] {
        // Its lease and margin have expired, and no request has removed it since.
        let members: Vec<Vec<u8>> = eyes.ask(&[b"ZRANGE", record, b"0", b"-1"]);
        for member in members.iter().filter(|member| member[0] == b'h') {
            eyes.ask::<()>(&[b"ZADD", record, b"XX", b"1000", member]);
        }
    }
    for guard in [&reader, &two, &one] {
        let written = add(guard, "late").await;
        assert!(matches!(written, Err(Error::Lost { .. })), "{written:?}");
    }
    assert_eq!(count(&mut eyes), 5);
    soon(second.release()).await.unwrap();
}

#[cfg(feature = "scheduler")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_a_job_writes_while_it_owns_its_tick() {
    use std::sync::Mutex;

    use tenure::Tick;
    use tokio_cron_scheduler::{Job, JobScheduler};

    let (_server, mut eyes, locks) = a_lock().await;
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let runs: Arc<Mutex<Option<Tick>>> = Arc::default();
    let run = runs.clone();
    let work = move |tick: Tick| {
        *run.lock().unwrap() = Some(tick);
        std::future::pending::<()>()
    };
    let mut fire = locks.job_with("reconcile", ms(30_000), work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || runs.lock().unwrap().is_some()).await;
    let tick = runs.lock().unwrap().clone().unwrap();
    let write = || {
        let lease = tick.lease();
        soon(lease.atomically().command("INCR").key("count").query::<(i64,)>())
    };
    assert_eq!(write().await.unwrap(), (1,));
    let records: Vec<Vec<u8>> = eyes.text("KEYS tenure1:o:*");
    eyes.ask::<()>(&[b"DEL", &records[0]]);
    let late = write().await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    assert_eq!(count(&mut eyes), 1);
    pursuit.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_has_the_servers_text_and_earlier_writes_stay() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    eyes.text::<()>("RPUSH list some");
    // In the middle of commands.
    let commands = guard.atomically().command("SET").key("before").arg(1);
    let commands = commands
        .command("INCR")
        .key("list")
        .command("SET")
        .key("after")
        .arg(1);
    let said = failed(soon(commands.query()).await);
    assert!(said.contains("WRONGTYPE"), "{said}");
    assert_eq!(eyes.text::<i64>("EXISTS before"), 1);
    assert_eq!(eyes.text::<i64>("EXISTS after"), 0);
    // Errors before the first write of a script, after it, raised by the script, and of an invalid script.
    let set = "redis.call('INCR', KEYS[1])";
    for (text, told, written) in [
        ("error('too early')".to_owned(), "too early", 0),
        (format!("{set} error('too late')"), "too late", 1),
        (
            format!("{set} return redis.error_reply('MINE not so')"),
            "MINE not so",
            2,
        ),
        (format!("{set} return redis.call('NO_SUCH')"), "Unknown", 3),
        (format!("{set} return unknown()"), "unknown", 4),
        ("this is no Lua".to_owned(), "user_script:1: '=' expected", 4),
    ] {
        let run = guard.atomically().script(&*text).key("written");
        let said = failed(soon(run.query()).await);
        assert!(said.contains(told), "{text}: {said}");
        let found = eyes.text::<Option<i64>>("GET written").unwrap_or(0);
        assert_eq!(found, written, "{text}");
    }
    // A failure is not a loss, and does not change the lease.
    assert!(guard.is_held());
    assert_eq!(add(&guard, "after all").await.unwrap(), 1);
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_loaded_again_after_a_flush_and_the_write_is_done_once() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    for n in 1..=3 {
        eyes.text::<()>("SCRIPT FLUSH");
        assert_eq!(add(&guard, "again").await.unwrap(), n);
    }
    assert_eq!(count(&mut eyes), 3);
    // The user may not load the script.
    eyes.text::<()>("SCRIPT FLUSH");
    eyes.text::<()>("ACL SETUSER default -script");
    let refused = add(&guard, "refused").await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
    eyes.text::<()>("ACL SETUSER default +script");
    assert_eq!(count(&mut eyes), 3);
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_write_fails_and_the_lease_stays() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    add(&guard, "before").await.unwrap();
    eyes.text::<()>("CONFIG SET maxmemory 1");
    let said = failed(soon(guard.atomically().command("INCR").key("count").query()).await);
    assert!(said.contains("OOM"), "{said}");
    // Requests that need no memory succeed.
    let gone: (i64,) = soon(guard.atomically().command("DEL").key("count").query())
        .await
        .unwrap();
    assert_eq!(gone, (1,));
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_of_the_readme_writes_only_with_rights_to_the_keys() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let rule = format!("ACL SETUSER app on >secret {}", acl());
    eyes.text::<()>(&rule);
    let app = format!("redis://app:secret@{}/", addr(&server));
    let locks = locks(&app, ms(10_000)).await;
    let guard = held(&locks, "a").await;
    let write = || soon(guard.atomically().command("INCR").key("count").query::<Value>());
    let said = write().await;
    // The call declares the key, so the server checks the right before it begins.
    let refused = |error: &Error| match error {
        Error::Store { source, .. } => *source.kind() == StoreErrorKind::Refused(StoreRefusal::NoPermission),
        Error::Failed { message, .. } => message.contains("can't"),
        _ => false,
    };
    assert!(said.as_ref().is_err_and(refused), "{said:?}");
    eyes.text::<()>("ACL SETUSER app ~count");
    let said = write().await;
    assert!(said.as_ref().is_err_and(refused), "{said:?}");
    eyes.text::<()>("ACL SETUSER app +incr");
    assert_eq!(write().await.unwrap(), Value::Array(vec![Value::Int(1)]));
    // For readers and permits the check needs only documented rights.
    let reader = soon(locks.rw_lock("read").read()).await.unwrap();
    let permit = soon(locks.semaphore("calls", 3).acquire_many(2)).await.unwrap();
    for guard in [reader, permit] {
        let written: (i64,) = soon(guard.atomically().command("INCR").key("count").query())
            .await
            .unwrap();
        assert!(written.0 > 1);
        eyes.text::<()>("ACL LOG RESET");
        soon(guard.release()).await.unwrap();
    }
}

/// Returns a proxy, and locks through it.
pub(crate) async fn behind_a_proxy(server: &RedisServer) -> (Proxy, Locks) {
    let proxy = Proxy::start(addr(server));
    let builder = crate::help::builder()
        .lease(ms(30_000))
        .request_timeout(ms(1_000));
    // Nothing else ends a burst.
    let builder = builder.burst(256, ms(60_000));
    let locks = builder.connect(&url(proxy.addr())).await.unwrap();
    (proxy, locks)
}

pub(crate) fn unanswered(written: Result<i64, Error>) {
    assert!(matches!(written, Err(Error::Unanswered { .. })), "{written:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_is_done_once_and_its_lease_is_not_handed_on() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (proxy, locks) = behind_a_proxy(&server).await;
    let guard = held(&locks, "a").await;
    add(&guard, "first").await.unwrap();
    let next = tokio::spawn(locks.mutex("a").lock());
    proxy.cut_reply_to("RPUSH");
    unanswered(add(&guard, "second").await);
    proxy.until(|counts| counts.cut[1] > 0).await;
    assert_eq!(
        count(&mut eyes),
        2,
        "the write was done once, and is not repeated"
    );
    // The lease stays valid, and may write.
    assert_eq!(add(&guard, "third").await.unwrap(), 3);
    let before = guard.fence();
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_ne!(number(guard.fence()), number(before), "the lease was handed on");
    // A guard whose writes all have answers hands on.
    let next = tokio::spawn(locks.mutex("a").lock());
    until("a caller waits", || locks.waiter_count() == 1).await;
    assert_eq!(add(&guard, "fourth").await.unwrap(), 4);
    let before = guard.fence();
    soon(guard.release()).await.unwrap();
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!(
        number(guard.fence()),
        number(before),
        "the lease was not handed on"
    );
    soon(guard.release()).await.unwrap();
}

/// A connection that was given up may still deliver a request. By then another holder has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_arrives_when_the_next_one_holds_is_not_done() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (proxy, locks) = behind_a_proxy(&server).await;
    let guard = held(&locks, "a").await;
    add(&guard, "first").await.unwrap();
    let next = tokio::spawn(locks.mutex("a").lock());
    until("a caller waits", || locks.waiter_count() == 1).await;
    proxy.set_existing(Direction::Requests, Flow::Hold);
    unanswered(add(&guard, "late").await);
    assert!(proxy.holds(Direction::Requests) > 0);
    soon(guard.release()).await.unwrap();
    let next = soon(next).await.unwrap().unwrap();
    assert_eq!(add(&next, "second").await.unwrap(), 2);
    let before = eyes.calls()["evalsha"];
    proxy.release();
    until("the request was executed", || eyes.calls()["evalsha"] > before).await;
    assert_eq!(count(&mut eyes), 2);
    assert_eq!(eyes.text::<Vec<String>>("LRANGE ids 0 -1"), ["first", "second"]);
    soon(next.release()).await.unwrap();
}

/// The write is in flight, and its caller dropped the future.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_with_a_write_in_flight_is_not_handed_on() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (proxy, locks) = behind_a_proxy(&server).await;
    let guard = held(&locks, "a").await;
    add(&guard, "first").await.unwrap();
    let next = tokio::spawn(locks.mutex("a").lock());
    until("a caller waits", || locks.waiter_count() == 1).await;
    proxy.set(Direction::Replies, Flow::Hold);
    let mut write = Box::pin(add(&guard, "second"));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx).is_pending()));
    assert!(polled.await);
    proxy.until(|counts| counts.held[1] > 0).await;
    drop(write);
    let before = guard.fence();
    drop(guard);
    proxy.heal();
    let next = soon(next).await.unwrap().unwrap();
    assert_ne!(number(next.fence()), number(before), "the lease was handed on");
    assert_eq!(count(&mut eyes), 2);
    soon(next.release()).await.unwrap();
}

/// Without a connection the write is not sent, also not later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_connection_no_write_is_done() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (proxy, locks) = behind_a_proxy(&server).await;
    let guard = held(&locks, "a").await;
    add(&guard, "first").await.unwrap();
    proxy.refuse(true);
    proxy.reset();
    proxy.until(|counts| counts.open == 0).await;
    let refused = async {
        loop {
            match add(&guard, "away").await {
                // This write is the first to find the connection broken.
                Err(Error::Unanswered { .. }) => {}
                other => break other,
            }
        }
    };
    let refused = soon(refused).await;
    assert!(refused.as_ref().is_err_and(Error::is_unreachable), "{refused:?}");
    proxy.heal();
    let written = async {
        loop {
            if let Ok(count) = add(&guard, "back").await {
                break count;
            }
        }
    };
    assert_eq!(soon(written).await, 2);
    assert_eq!(count(&mut eyes), 2);
    soon(guard.release()).await.unwrap();
}

/// Ten thousand increments in three processes that stop past their leases, or whose writes arrive after them. Each task
/// reads the count, and writes one more under its lease: a late write would take back the increments of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_ten_thousand_increments_is_lost() {
    const INCREMENTS: usize = 10_000;
    const LEASE_MS: u64 = 500;
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut others: Vec<(Proxy, Other)> = (0..3)
        .map(|n| {
            let proxy = Proxy::start(addr(&server));
            let mut command = Other::command("increments", &url(proxy.addr()), "a", ms(LEASE_MS));
            command.env("TENURE_DIRECT", server.url());
            command.env("TENURE_ID", n.to_string());
            (proxy, Other::runs(command))
        })
        .collect();
    for (_, other) in &mut others {
        other.hears("ready");
        other.nod();
    }
    let mut rng = fastrand::Rng::with_seed(now().as_nanos() as u64);
    let (mut stops, mut faults) = (0, [0; 2]);
    let written = |eyes: &mut Eyes| eyes.text::<usize>("LLEN ids");
    let lost = |eyes: &mut Eyes| eyes.text::<Option<u64>>("GET lost").unwrap_or(0);
    let unanswered = |eyes: &mut Eyes| eyes.text::<Option<u64>>("GET unanswered").unwrap_or(0);
    // Until both faults have happened.
    let start = now();
    while written(&mut eyes) < INCREMENTS || lost(&mut eyes) == 0 || unanswered(&mut eyes) == 0 {
        assert!(
            now() - start < ms(120_000),
            "{faults:?}, {} written",
            written(&mut eyes)
        );
        let kind = stops % 2;
        // The latest writer probably holds the key: stopped, it loses the lease that it holds.
        let latest: Option<String> = eyes.text("LINDEX ids -1");
        let writer = latest.and_then(|id| id.split(':').next()?.parse().ok());
        let chosen = writer.filter(|_| kind == 0).unwrap_or_else(|| rng.usize(0..3));
        let (proxy, other) = &others[chosen];
        stops += 1;
        faults[kind] += 1;
        let over = now() + ms(LEASE_MS + 250 + rng.u64(0..200));
        if kind == 0 {
            other.signal("-STOP");
        } else {
            proxy.set_existing(Direction::Requests, Flow::Hold);
        }
        until("its lease has expired", || now() > over).await;
        if kind == 0 {
            other.signal("-CONT");
        } else {
            proxy.release();
        }
        // The other processes work, and this process works again.
        let more = written(&mut eyes) + rng.usize(1..2 * INCREMENTS / 10);
        until("work continues", || written(&mut eyes) >= more).await;
    }
    let (mut acknowledged, mut open) = (BTreeSet::new(), BTreeSet::new());
    let mut refused = BTreeSet::new();
    for (n, (_, other)) in others.iter_mut().enumerate() {
        other.nod();
        for (task, outcomes) in other.hears("outcomes").split(',').enumerate() {
            for (attempt, outcome) in outcomes.chars().enumerate() {
                let id = format!("{n}:{task}:{attempt}");
                match outcome {
                    'a' => acknowledged.insert(id),
                    'u' => open.insert(id),
                    _ => refused.insert(id),
                };
            }
        }
    }
    let ids: Vec<String> = eyes.text("LRANGE ids 0 -1");
    let done: BTreeSet<String> = ids.iter().cloned().collect();
    assert_eq!(done.len(), ids.len(), "no write is done twice");
    assert!(acknowledged.is_subset(&done), "each acknowledged write was done");
    assert!(refused.is_disjoint(&done), "no refused write was done");
    let late: BTreeSet<_> = done.difference(&acknowledged).collect();
    assert!(late.iter().all(|id| open.contains(*id)));
    assert_eq!(count(&mut eyes), ids.len() as i64, "an increment was taken back");
    println!(
        "{} increments, {} acknowledged, {} without an answer of which {} were done, {} refused, {} stops, {} held back, {:?}",
        ids.len(),
        acknowledged.len(),
        open.len(),
        late.len(),
        refused.len(),
        faults[0],
        faults[1],
        now() - start,
    );
}

/// One process of that test. Its parent tells it when to begin and when to end.
pub async fn increments(locks: Locks, key: &str) {
    let client = redis::Client::open(std::env::var("TENURE_DIRECT").unwrap()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let direct = connection.await.unwrap();
    let process = std::env::var("TENURE_ID").unwrap();
    println!("@ready");
    crate::child::nod().await;
    let end = CancellationToken::new();
    let tasks = [0, 1, 2, 3].map(|task| {
        let of_task = (locks.mutex(key), direct.clone(), format!("{process}:{task}"));
        tokio::spawn(increments_of_a_task(of_task, end.clone()))
    });
    crate::child::nod().await;
    end.cancel();
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    println!("@outcomes {}", outcomes.join(","));
    crate::child::nod().await;
}

async fn increments_of_a_task(
    (mutex, mut direct, task): (Mutex, MultiplexedConnection, String),
    end: CancellationToken,
) -> String {
    let script = "redis.call('SET', KEYS[1], ARGV[1])\nreturn redis.call('RPUSH', KEYS[2], ARGV[2])";
    let mut outcomes = String::new();
    while !end.is_cancelled() {
        let guard = match mutex.lock().await {
            Ok(guard) => guard,
            Err(error) => {
                // The process was stopped before it took its grant.
                if error.is_lost() {
                    redis::cmd("INCR")
                        .arg("lost")
                        .exec_async(&mut direct)
                        .await
                        .unwrap();
                }
                continue;
            }
        };
        let get = redis::cmd("GET").arg("count").to_owned();
        let read: Option<i64> = get.query_async(&mut direct).await.unwrap();
        let write = guard.atomically().script(script).key("count").key("ids");
        let id = format!("{task}:{}", outcomes.len());
        if outcomes.len().is_multiple_of(10) {
            // Some stops come between the grant and the write.
            tokio::time::sleep(ms(5)).await;
        }
        let write = write.arg(read.unwrap_or(0) + 1).arg(id);
        let (outcome, counted) = match write.query::<i64>().await {
            Ok(_) => ('a', None),
            Err(Error::Unanswered { .. }) => ('u', Some("unanswered")),
            Err(Error::Lost { .. }) => ('l', Some("lost")),
            Err(Error::Store { .. }) => ('s', None),
            Err(other) => panic!("{other}"),
        };
        outcomes.push(outcome);
        if let Some(counted) = counted {
            let mut count = redis::cmd("INCR");
            count.arg(counted).exec_async(&mut direct).await.unwrap();
        }
        let _ = guard.release().await;
    }
    outcomes
}

/// An unreadable answer would end the connection that all callers share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_with_invalid_text_or_answers_do_not_disturb_other_callers() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    add(&guard, "first").await.unwrap();
    let before = eyes.text::<String>("INFO stats");
    let connections = |info: &str| {
        let line = info
            .lines()
            .find(|line| line.starts_with("total_connections_received"));
        line.expect("the server has this line").to_owned()
    };
    let words = [
        ("return “1”", "near"),
        ("return \u{a0}1", "near"),
        ("error('\\255\\254')", "\u{fffd}"),
        ("error({ err = {} })", "table"),
        ("error({ err = '' })", "without text"),
        ("return redis.error_reply('ü')", "ü"),
        ("return { redis.error_reply('\\255') }", "no client can read"),
        ("return { ok = '\\255' }", "no client can read"),
        (
            "local deep = {} for _ = 1, 150 do deep = { deep } end return deep",
            "no client can read",
        ),
        ("local loop = {} loop[1] = loop return loop", "no client can read"),
        // The text cannot end the function that contains it.
        (
            "local x end end\nredis.call('INCR', KEYS[1]) do",
            "expected near 'end'",
        ),
    ];
    for (script, said) in words {
        let written = soon(guard.atomically().script(script).key("count").query::<Value>()).await;
        let told = failed(written);
        assert!(told.contains(said), "{script}: {told}");
    }
    let list = soon(
        guard
            .atomically()
            .script("return { 1, { 'a', 'ü', '\\255' } }")
            .query::<(i64, Vec<Vec<u8>>)>(),
    );
    assert_eq!(list.await.unwrap().1[1..], ["ü".as_bytes().to_vec(), vec![255]]);
    let shebang = soon(guard.atomically().script("#!lua\nreturn 1").query::<Value>()).await;
    assert!(matches!(shebang, Err(Error::Options(_))), "{shebang:?}");
    assert_eq!(count(&mut eyes), 1);
    let after = eyes.text::<String>("INFO stats");
    assert_eq!(connections(&before), connections(&after));
    soon(guard.release()).await.unwrap();
}

/// The answer to a refused write ends the lease. No renewal is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_whose_write_is_refused_is_lost_with_the_answer() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = soon(locks.mutex("a").lease(ms(600_000)).lock()).await.unwrap();
    let readers = [
        soon(locks.rw_lock("b").lease(ms(600_000)).read()).await.unwrap(),
        soon(locks.rw_lock("b").lease(ms(600_000)).read()).await.unwrap(),
    ];
    let fixed = soon(locks.mutex("c").fixed(ms(600_000)).lock()).await.unwrap();
    add(&guard, "first").await.unwrap();
    for (guard, lost) in [(&guard, 1), (&readers[0], 2), (&fixed, 1)] {
        let tokens = [guard.lost_token(), readers[1].lost_token()];
        eyes.text::<()>(&format!("DEL lock:{}", guard.key()));
        let before = eyes.calls()["evalsha"];
        let written = add(guard, "late").await;
        assert!(!guard.is_held(), "{}: {written:?}", guard.key());
        let is_cancelled = tokens.iter().filter(|token| token.is_cancelled()).count();
        assert!(is_cancelled >= lost, "{}", guard.key());
        assert_eq!(soon(guard.lost()).await, LostCause::Gone);
        assert!(matches!(
            written,
            Err(Error::Lost {
                cause: LostCause::Gone,
                ..
            })
        ));
        assert_eq!(eyes.calls()["evalsha"] - before, 1, "{}", guard.key());
    }
    assert!(!readers[1].is_held(), "the second guard reads by the same lease");
    assert_eq!(count(&mut eyes), 1);
}

/// Lua's `unpack` and old Redis versions limit the number of arguments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_too_many_words_is_refused_before_it_is_sent() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let builder = crate::help::builder()
        .lease(ms(600_000))
        .request_timeout(ms(30_000));
    let locks = builder.connect(&server.url()).await.unwrap();
    let guard = held(&locks, "a").await;
    let words = vec!["x"; 1_000_000];
    let pushes = |count: usize| {
        let counted = guard.atomically().command("INCR").key("count");
        let pushed = counted.command("RPUSH").key("list").arg(&words[..count]);
        soon(pushed.query::<(i64, i64)>())
    };
    assert_eq!(pushes(7_995).await.unwrap(), (1, 7_995));
    let script = |count: usize| {
        let script = guard
            .atomically()
            .script("return redis.call('INCRBY', KEYS[1], #ARGV)");
        soon(script.key("count").arg(&words[..count]).query::<i64>())
    };
    assert_eq!(script(999_999).await.unwrap(), 1_000_000);
    let many = |count: usize| {
        let counted = guard.atomically().command("INCR").key("count");
        let pushed = (0..count).fold(counted, |all, _| {
            all.command("RPUSH").key("list").arg(&words[..7_000])
        });
        soon(pushed.query::<Value>())
    };
    let before = eyes.calls()["evalsha"];
    let refusals = [
        (pushes(7_996).await.map(drop), ["7997", "7998"]),
        (script(1_000_000).await.map(drop), ["1000000", "1000001"]),
        (many(143).await.map(drop), ["1000000", "1001576"]),
    ];
    for (refused, told) in refusals {
        assert!(matches!(refused, Err(Error::Options(_))), "{refused:?}");
        let said = refused.unwrap_err().to_string();
        assert!(told.iter().all(|number| said.contains(number)), "{said}");
    }
    assert_eq!(eyes.calls()["evalsha"], before, "nothing was sent");
    assert_eq!((count(&mut eyes), eyes.text("LLEN list")), (1_000_000, 7_995));
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

/// A script of another client that checks the globals.
const GLOBALS: &str = "
return { redis.call('PING').ok, string.format('%d', math.floor(1.5)), cjson.encode({ 1 }), #cmsgpack.pack(1), bit.band(3, 1),
  #struct.pack('B', 9), table.concat({ 'a', 'b' }), type(tonumber('1')), ('ax'):find('x'), redis.sha1hex(''),
  tostring(rawget(_G, 'unheard_of')), coroutine.wrap(function() return 7 end)(), #tostring(getmetatable(_G) ~= nil) }";

/// Redis before 7.0 does not protect its globals. A server from 7.0 on refuses these scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_breaks_its_globals_disturbs_no_later_script() {
    let (_server, mut eyes, locks) = a_lock().await;
    let guard = held(&locks, "a").await;
    let before: Value = eyes.ask(&[b"EVAL", GLOBALS.as_bytes(), b"0"]);
    let mut written = 0;
    for script in [
        "redis.call = nil",
        "redis.pcall = nil redis.error_reply = nil",
        "string.format = nil string.find = nil string.gmatch = nil",
        "table.concat = nil math.floor = nil cjson.encode = nil",
        "cmsgpack.pack = nil bit.band = nil struct.pack = nil coroutine.wrap = nil",
        "redis = nil",
        "tonumber = nil pcall = nil type = nil",
        "_G.redis.call = nil",
        "_G.redis = nil",
        "rawset(_G, 'type', nil)",
        "rawset(_G, 'unheard_of', 1)",
        "rawset(redis, 'call', nil)",
        "unheard_of = 1",
        "getfenv(0).redis.call = nil",
        "setfenv(0, {})",
        "setfenv(redis.sha1hex, {})",
        "getmetatable('').__index.find = nil",
        "getmetatable('').__index = nil",
        "getmetatable(_G).__index = function() end",
        "setmetatable(_G, nil)",
        "setmetatable(_G, {}) unheard_of = 1",
        "loadstring('redis.call = nil')()",
        "loadstring('unheard_of = 1')()",
        "local text = 'redis.call = nil' load(function() local part = text text = nil return part end)()",
        "coroutine.wrap(function() redis.call = nil end)()",
        "pcall(function() string.find = nil end)",
        "table.foreach(redis, function(name) redis[name] = nil end)",
        "for name in pairs(_G) do _G[name] = nil end",
    ] {
        let _ = soon(guard.atomically().script(script).query::<Value>()).await;
        let after: Value = eyes.ask(&[b"EVAL", GLOBALS.as_bytes(), b"0"]);
        assert_eq!(after, before, "{script}");
        written += 1;
        assert_eq!(add(&guard, script).await.unwrap(), written, "{script}");
    }
    let other = held(&locks, "b").await;
    soon(other.release()).await.unwrap();
    // All functions that scripts may use are present.
    for (script, returned) in [
        ("return cjson.decode(cjson.encode({ a = 1 })).a", 1),
        ("return cmsgpack.unpack(cmsgpack.pack(2))", 2),
        ("return bit.bor(1, 2)", 3),
        ("return (struct.unpack('B', struct.pack('B', 4)))", 4),
        ("return loadstring('return 5')()", 5),
        ("return coroutine.wrap(function() coroutine.yield(6) end)()", 6),
        ("return #('x'):rep(7)", 7),
        (
            "return setmetatable({}, { __index = function() return 8 end }).x",
            8,
        ),
        ("return #redis.sha1hex('')", 40),
        ("redis.log(redis.LOG_DEBUG, 'x') return 1", 1),
        ("return redis.pcall('NO_SUCH').err and 2", 2),
        ("return tonumber(redis.status_reply('3').ok)", 3),
        ("return select('#', unpack({ 1, 2, 3, 4 }))", 4),
        ("return rawget(_G, 'redis') and _G._G == _G and 5", 5),
        ("return select(2, xpcall(error, function() return 6 end))", 6),
        (
            "local list = { 9, 7, 8 } table.sort(list) return math.min(unpack(list))",
            7,
        ),
        (
            "local well, said = pcall(error, 'x') return not well and #said + 7",
            8,
        ),
        ("return unheard_of", -1),
    ] {
        let said = soon(guard.atomically().script(script).query::<i64>()).await;
        match said {
            Ok(said) => assert_eq!(said, returned, "{script}"),
            Err(Error::Failed { message, .. }) => {
                assert!(returned < 0 && message.contains("unheard_of"), "{message}")
            }
            Err(error) => panic!("{script}: {error}"),
        }
    }
    soon(guard.release()).await.unwrap();
}
