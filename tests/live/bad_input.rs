//! What users get wrong, and what servers are set up to: a clear error each, and nothing lost or left behind.

use std::time::Duration;

use tenure::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use tenure::locks::ConnectError;
use tenure::{Error, Key, Locks};

use crate::help::{Eyes, PATIENCE, addr, held, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Every word stands in the text.
#[track_caller]
fn tells(error: &impl std::fmt::Display, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(text.len() < 700, "{text}");
}

fn options(result: Result<Locks, ConnectError>) -> OptionsError {
    match result {
        Err(ConnectError::Options(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn refused(result: Result<Locks, ConnectError>) -> (String, StoreError) {
    match result {
        Err(ref error @ ConnectError::Store { ref source, .. }) => (error.to_string(), source.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_of_a_bad_length_are_refused() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    for (key, length) in [
        (vec![], 0),
        (vec![b'x'; 10 * 1024], 10 * 1024),
        (vec![0xff; 513], 513),
    ] {
        let mutex = locks.mutex(key);
        for error in [
            mutex.lock().await.map(drop).unwrap_err(),
            mutex.try_lock().await.map(drop).unwrap_err(),
            mutex.lock_timeout(ms(10)).await.map(drop).unwrap_err(),
            mutex.with(async |_| ()).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, Error::Key { length: l, limit: 512, .. } if l == length),
                "{error:?}"
            );
            tells(&error, &["1 to 512 bytes", &length.to_string()]);
        }
    }
    held(&locks, vec![b'x'; 512]).await.release().await.unwrap();
    soon(locks.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Each byte alone, and all of them in a row; braces, newlines and our own words too.
#[tokio::test]
async fn keys_of_any_bytes_are_exclusive_independent_and_free_again() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let one = locks(&server.url(), ms(10_000)).await;
    let other = locks(&server.url(), ms(10_000)).await;
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.push((0..=255).collect());
    keys.push((0..=255).rev().collect());
    let words = [
        "{}",
        "a}b{c}",
        "}{",
        "{",
        "}",
        "{a}",
        "{{a}}",
        "clock",
        "tenure1:clock",
        "tenure1:q:",
        "lock:",
        "lock:a",
        "a\r\nDEL x\r\n",
        "\n",
        "\r\n",
        "a b",
        " a",
        "a ",
        "*",
        "%s",
        "%.0f",
        "]]",
        "\\",
        "\u{1F512}",
        "é",
        "e\u{301}",
    ];
    keys.extend(
        words
            .iter()
            .filter(|word| word.len() > 1)
            .map(|word| word.as_bytes().to_vec()),
    );
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(held(&one, key.clone()).await);
    }
    // None excludes another, and all of them exclude the other node.
    assert_eq!(one.keys(), keys.len());
    let mut waiters = Vec::new();
    for key in &keys {
        assert!(
            other.mutex(key.clone()).try_lock().await.unwrap().is_none(),
            "{key:?}"
        );
        let record = [b"lock:", &key[..]].concat();
        let owner: Option<String> = eyes.ask(&[b"GET", &record]);
        assert!(
            owner.is_some_and(|owner| owner.starts_with(&one.node().to_string())),
            "{key:?}"
        );
        waiters.push(tokio::spawn(other.mutex(key.clone()).lock()));
    }
    until("all wait", || {
        let queues: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
        queues.len() == keys.len()
    })
    .await;
    // Handed over by push, each to its own.
    for (guard, waiter) in guards.into_iter().zip(waiters) {
        let (key, fence) = (guard.key().clone(), guard.fence());
        guard.release().await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        assert_eq!(guard.key(), &key);
        assert!(guard.fence() > fence);
        guard.release().await.unwrap();
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    // Nobody is asked: the server does not exist.
    let nowhere = "redis://127.0.0.1:1/";
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(49),
        Duration::from_secs(31 * 24 * 3600),
        Duration::MAX,
    ] {
        let error = options(Locks::builder().lease(lease).redis(nowhere).await);
        tells(&error, &["lease", "400ms", "30 days", &format!("{lease:?}")]);
    }
    for prefix in ["", "t", "tenur", "tenure", "tenure1:q:", &"x".repeat(129)] {
        let error = options(Locks::builder().prefix(prefix).redis(nowhere).await);
        tells(&error, &["prefix", "tenure"]);
    }
    for burst in [0, 1024, u32::MAX] {
        let error = options(Locks::builder().burst(burst, ms(20)).redis(nowhere).await);
        tells(&error, &["burst", "1 to 1023", &burst.to_string()]);
    }
    let error = options(Locks::builder().margin(Duration::MAX).redis(nowhere).await);
    tells(&error, &["margin"]);
    for limitless in [
        Locks::builder().max_waiters_per_key(0),
        Locks::builder().max_waiters_per_node(0),
        Locks::builder().max_key(0),
    ] {
        tells(&options(limitless.redis(nowhere).await), &["limit", "zero"]);
    }
    for timeout in [Duration::ZERO, Duration::MAX] {
        let error = options(Locks::builder().request_timeout(timeout).redis(nowhere).await);
        tells(&error, &["request timeout", "100 ms", "one day"]);
    }
    // And for one lock.
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(1000)).await;
    for mutex in [
        locks.mutex("a").lease(Duration::ZERO),
        locks.mutex("a").lease(Duration::MAX),
        locks.mutex("a").fixed(Duration::ZERO),
        locks.mutex("a").fixed(Duration::MAX),
    ] {
        let error = mutex.lock().await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error:?}");
        tells(&error, &["lease", "400ms"]);
    }
    soon(locks.idle()).await;
    assert_eq!((locks.keys(), locks.waiting()), (0, 0));
}

/// Large numbers are numbers.
#[tokio::test]
async fn options_at_their_bounds_work() {
    let server = RedisServer::start();
    let locks = Locks::builder()
        .lease(Duration::from_secs(30 * 24 * 3600))
        .margin(Duration::ZERO)
        .burst(1023, Duration::MAX)
        .request_timeout(Duration::from_secs(24 * 3600))
        .max_waiters_per_key(usize::MAX)
        .max_waiters_per_node(1)
        .max_key(usize::MAX)
        .prefix([0xff; 128])
        .redis(&server.url())
        .await
        .unwrap();
    let guard = held(&locks, vec![b'x'; 10 * 1024]).await;
    assert!(soon(locks.mutex("a").lock_timeout(Duration::MAX)).await.is_ok());
    guard.release().await.unwrap();
    let locks = Locks::builder()
        .lease(ms(400))
        .redis(&server.url())
        .await
        .unwrap();
    // So short a lease is lost when the machine is busy, but not every time.
    soon(async {
        loop {
            if let Ok(guard) = locks.mutex("a").lock().await
                && guard.release().await.is_ok()
            {
                return;
            }
        }
    })
    .await;
    soon(locks.idle()).await;
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_refused() {
    for url in [
        "",
        "localhost",
        "http://localhost/",
        "redis://",
        "redis://host:port/",
        "redis://host/db",
    ] {
        match Locks::redis(url).await {
            Err(error @ ConnectError::Options(_)) => tells(&error, &["URL", url]),
            other => panic!("{url}: {other:?}"),
        }
    }
    let error = Locks::redis("http://me:hunter2@localhost/").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

/// Connections live on a thread of our own, so that a runtime without input, output and timers will do.
#[test]
fn a_runtime_without_io_and_timers_will_do() {
    let server = RedisServer::start();
    for host in ["127.0.0.1", "localhost"] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let url = format!("redis://{host}:{}", server.port());
        let locks = runtime.block_on(Locks::builder().lazy().redis(&url)).unwrap();
        let guard = runtime.block_on(locks.mutex("a").lock()).unwrap();
        // Nor does it matter that it ends.
        drop(runtime);
        assert!(guard.is_held());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(guard.release()).unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told() {
    let start = now();
    let patient = Locks::builder().request_timeout(Duration::from_secs(30));
    let (text, error) = refused(patient.redis("redis://me:hunter2@127.0.0.1:1/").await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable);
    tells(&text, &["127.0.0.1:1", "unreachable"]);
    assert!(!format!("{text} {error:?}").contains("hunter2"));
    assert!(now() - start < ms(10_000));
    // One that listens and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let connect = Locks::builder()
        .request_timeout(ms(200))
        .redis(&url(address))
        .await;
    let (text, error) = refused(connect);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &[&address.to_string(), "200ms"]);
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_told() {
    let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
    let port = server.port();
    let (text, error) = refused(Locks::redis(&server.url()).await);
    assert_eq!(
        error.kind(),
        &StoreErrorKind::Refused(StoreRefusal::NoAuth),
        "{text}"
    );
    tells(&text, &[&port.to_string(), "password", "URL"]);
    let (text, error) = refused(Locks::redis(&format!("redis://:swordfish@127.0.0.1:{port}/")).await);
    assert_eq!(
        error.kind(),
        &StoreErrorKind::Refused(StoreRefusal::WrongPassword),
        "{text}"
    );
    tells(&text, &[&port.to_string(), "password", "URL"]);
    assert!(!format!("{text} {error:?}").contains("swordfish"), "{error:?}");

    // The same when it is found out later.
    let lazy = Locks::builder().lazy().redis(&server.url()).await.unwrap();
    let error = soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err();
    match &error {
        Error::Store { source, .. } => {
            assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::NoAuth));
        }
        other => panic!("{other:?}"),
    }
    tells(&error, &["`a`", "password"]);
    assert!(!error.is_unreachable());

    let locks = Locks::redis(&format!("redis://:hunter2@127.0.0.1:{port}/"))
        .await
        .unwrap();
    held(&locks, "a").await.release().await.unwrap();
    assert!(!format!("{locks:?}").contains("hunter2"));
}

/// The server names what it denied; so does the error itself, and not only its source.
#[tokio::test]
async fn a_missing_right_is_named() {
    let server = RedisServer::start();
    let port = server.port();
    for command in ["evalsha", "time"] {
        let rule = format!("ACL SETUSER app on >secret {} -{command}", crate::store::acl());
        let _: String = Eyes::on(&server).text(&rule);
        let (text, error) = refused(Locks::redis(&format!("redis://app:secret@127.0.0.1:{port}/")).await);
        let kind = StoreErrorKind::Refused(StoreRefusal::NoPermission);
        assert_eq!(error.kind(), &kind, "{text}");
        tells(&text, &["NOPERM", "README", &format!("'{command}'")]);
    }
    // Later, too.
    let _: String = Eyes::on(&server).text("ACL SETUSER app +@all");
    let url = format!("redis://app:secret@127.0.0.1:{port}/");
    let locks = Locks::redis(&url).await.unwrap();
    let _: String = Eyes::on(&server).text("ACL SETUSER app -evalsha");
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    tells(&error, &["`a`", "NOPERM", "'evalsha'"]);
    let error = soon(locks.ping()).await.unwrap_err();
    tells(&error, &["NOPERM", "'evalsha'", &port.to_string()]);
}

/// A node of a cluster takes connections, and each lock would fail by its slot.
#[tokio::test]
async fn a_cluster_is_refused_when_connecting() {
    let server = RedisServer::with_args(&["--cluster-enabled", "yes"]);
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut all: Vec<&[u8]> = vec![b"CLUSTER", b"ADDSLOTS"];
    all.extend(slots.iter().map(String::as_bytes));
    let _: String = Eyes::on(&server).ask(&all);
    let words = [
        "Redis Cluster",
        "not supported",
        "cluster-enabled no",
        &server.port().to_string(),
    ];
    for prefix in ["lock:", "a:", "b:", "c:"] {
        let builder = Locks::builder().prefix(prefix);
        let (text, error) = refused(builder.redis(&server.url()).await);
        let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
        assert_eq!(error.kind(), &kind, "{text}");
        tells(&text, &words);
    }
    let lazy = Locks::builder().lazy().redis(&server.url()).await.unwrap();
    let unready: Error = soon(lazy.ping()).await.unwrap_err();
    tells(&unready, &words);
    tells(&soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err(), &words);
    assert!(!unready.is_unreachable(), "{unready:?}");
}

#[tokio::test]
async fn a_sentinel_tells_where_its_master_is_asked_for() {
    let (master, name) = (RedisServer::start(), "orders-db");
    let sentinel = RedisServer::sentinel(name, master.port());
    let (text, error) = refused(Locks::redis(&sentinel.url()).await);
    let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    assert_eq!(error.kind(), &kind, "{text}");
    let call = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {name}");
    tells(&text, &["is a Sentinel", &call, &sentinel.port().to_string()]);
    let lazy = Locks::builder().lazy().redis(&sentinel.url()).await.unwrap();
    tells(&soon(lazy.ping()).await.unwrap_err(), &["is a Sentinel", &call]);
    // What it tells there is what to give.
    let words = call.split(' ').fold(redis::Cmd::new(), |mut cmd, word| {
        cmd.arg(word);
        cmd
    });
    let (host, port): (String, u16) = words.query(&mut sentinel.client()).unwrap();
    let locks = Locks::redis(&format!("redis://{host}:{port}/")).await.unwrap();
    held(&locks, "a").await.release().await.unwrap();
}

#[tokio::test]
async fn urls_of_what_is_not_supported_yet_say_what_to_give() {
    for scheme in ["redis+sentinel", "rediss+sentinel", "sentinel", "REDIS+SENTINEL"] {
        let url = format!("{scheme}://:hunter2@one:26379,two:26379/orders-db");
        let error = options(Locks::redis(&url).await);
        tells(
            &error,
            &[
                "Sentinel",
                "GET-MASTER-ADDR-BY-NAME",
                "redis://host:port",
                "one:26379",
            ],
        );
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let error = options(Locks::redis("redis+cluster://one:6379/").await);
    tells(&error, &["Redis Cluster", "not supported", "cluster-enabled no"]);
}

#[tokio::test]
async fn a_key_of_another_type_is_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let _: i64 = eyes.text("RPUSH lock:list 1 2 3");
    let mutex = locks.mutex("list");
    for error in [
        soon(mutex.lock()).await.map(drop).unwrap_err(),
        soon(mutex.try_lock()).await.map(drop).unwrap_err(),
        soon(mutex.lock_timeout(PATIENCE)).await.map(drop).unwrap_err(),
    ] {
        match &error {
            Error::Store { source, .. } => {
                assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::WrongType));
            }
            other => panic!("{other:?}"),
        }
        tells(&error, &["`list`", "not a lock", "another key or prefix"]);
    }
    // It becomes one while we hold.
    let guard = soon(locks.mutex("a").lease(ms(3_000)).lock()).await.unwrap();
    let _: () = redis::pipe()
        .atomic()
        .del("lock:a")
        .rpush("lock:a", 1)
        .query(&mut eyes.0)
        .unwrap();
    soon(guard.lost()).await;
    assert!(soon(guard.release()).await.is_err());
    soon(locks.idle()).await;
    assert_eq!((locks.keys(), locks.waiting()), (0, 0));
    assert_eq!(eyes.text::<usize>("LLEN lock:list"), 3);
    assert_eq!(eyes.left_behind().len(), 2);
}

/// What somebody else keeps under the name of a record is refused to whoever reads, writes or wants it with others, in clear
/// words, and is not touched: it gets no members, no end, and the other keys stay free.
#[tokio::test]
async fn foreign_values_under_a_records_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    for (make, dump) in [
        ("RPUSH lock:theirs 1 2 3", "LRANGE lock:theirs 0 -1"),
        ("ZADD lock:theirs 1 one 2 two", "ZRANGE lock:theirs 0 -1"),
        // As if it were one of ours, but for what stands first.
        ("ZADD lock:theirs 0 hearts 99 n1:1:1:", "ZRANGE lock:theirs 0 -1"),
        ("HSET lock:theirs field value", "HVALS lock:theirs"),
    ] {
        let _: () = eyes.text(make);
        let theirs: Vec<String> = eyes.text(dump);
        let (lock, multi) = (locks.rw_lock("theirs"), locks.multi(["mine", "theirs", "yours"]));
        for (what, error) in [
            ("read", soon(lock.read()).await.map(drop)),
            ("try to read", soon(lock.try_read()).await.map(drop)),
            ("read in time", soon(lock.read_timeout(PATIENCE)).await.map(drop)),
            ("write", soon(lock.write()).await.map(drop)),
            ("try to write", soon(lock.try_write()).await.map(drop)),
            ("several", soon(multi.lock()).await.map(drop)),
            ("try several", soon(multi.try_lock()).await.map(drop)),
            (
                "several in time",
                soon(multi.lock_timeout(PATIENCE)).await.map(drop),
            ),
        ] {
            let error = error.expect_err(what);
            match &error {
                Error::Store { source, .. } => {
                    let kind = StoreErrorKind::Refused(StoreRefusal::WrongType);
                    assert_eq!(source.kind(), &kind, "{make}, {what}");
                }
                other => panic!("{make}, {what}: {other:?}"),
            }
            tells(&error, &["`theirs`", "not a lock", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.keys(), locks.waiting()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(dump), theirs);
        assert_eq!(eyes.text::<i64>("PTTL lock:theirs"), -1, "{make}: it got an end");
        assert_eq!(eyes.left_behind(), ["lock:theirs"]);
        let _: i64 = eyes.text("DEL lock:theirs");
    }
}

/// The same under the name of a semaphore's record, also when it comes there under a holder.
#[tokio::test]
async fn foreign_values_under_a_semaphores_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let semaphore = locks.semaphore("calls", 3);
    let permit = soon(semaphore.acquire()).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:s:*");
    let name = &names[0];
    permit.release().await.unwrap();
    for (make, dump) in [
        ("RPUSH {} 1 2 3", "LRANGE {} 0 -1"),
        ("ZADD {} 1 one 2 two", "ZRANGE {} 0 -1"),
        // As if it were one of ours, of a format to come.
        ("ZADD {} 0 hof-a-later-version 99 n1:1:1:", "ZRANGE {} 0 -1"),
        ("HSET {} field value", "HVALS {}"),
    ] {
        let (make, dump) = (make.replace("{}", name), dump.replace("{}", name));
        let _: () = eyes.text(&make);
        let theirs: Vec<String> = eyes.text(&dump);
        for (what, error) in [
            ("one", soon(semaphore.acquire()).await.map(drop)),
            ("many", soon(semaphore.acquire_many(3)).await.map(drop)),
            ("try", soon(semaphore.try_acquire()).await.map(drop)),
            (
                "in time",
                soon(semaphore.acquire_timeout(PATIENCE)).await.map(drop),
            ),
            ("how many", soon(semaphore.available_permits()).await.map(drop)),
        ] {
            let error = error.expect_err(what);
            let is_told = matches!(&error, Error::Store { source, .. }
                if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
            assert!(is_told, "{make}, {what}: {error:?}");
            tells(&error, &["`calls`", "or a semaphore", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.keys(), locks.waiting()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(&dump), theirs);
        assert_eq!(
            eyes.text::<i64>(&format!("PTTL {name}")),
            -1,
            "{make}: it got an end"
        );
        let _: i64 = eyes.text(&format!("DEL {name}"));
    }
    // It comes there while we hold.
    let permit = soon(locks.semaphore("calls", 3).lease(ms(3_000)).acquire())
        .await
        .unwrap();
    let _: () = redis::pipe()
        .atomic()
        .del(name)
        .rpush(name, 1)
        .query(&mut eyes.0)
        .unwrap();
    soon(permit.lost()).await;
    assert!(soon(permit.release()).await.is_err());
    soon(locks.idle()).await;
    assert_eq!((locks.keys(), locks.waiting()), (0, 0));
    // Text is what somebody holds who knows no queue: it is waited for, and left alone.
    let _: () = eyes.text(&format!("SET {name} theirs"));
    assert!(soon(semaphore.try_acquire()).await.unwrap().is_none());
    let waited = soon(semaphore.acquire_timeout(ms(300))).await.unwrap_err();
    assert!(matches!(waited, Error::Busy { .. }), "{waited:?}");
    assert_eq!(soon(semaphore.available_permits()).await.unwrap(), 0);
    let waits = tokio::spawn(semaphore.acquire());
    until("it waits", || locks.waiting() == 1).await;
    assert_eq!(eyes.text::<String>(&format!("GET {name}")), "theirs");
    let _: i64 = eyes.text(&format!("DEL {name}"));
    soon(waits).await.unwrap().unwrap().release().await.unwrap();
    eyes.until_empty().await;
}

/// The same under the name of an election's record, also where it is text that looks like a record of ours.
#[tokio::test]
async fn foreign_values_under_an_elections_name_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let election = locks.election("relay");
    let guard = soon(election.campaign()).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:e:*");
    let (name, record) = (&names[0], eyes.text::<String>(&format!("GET {}", names[0])));
    guard.release().await.unwrap();
    for (make, dump) in [
        ("RPUSH {} 1 2 3", "LRANGE {} 0 -1"),
        ("ZADD {} 1 one 2 two", "ZRANGE {} 0 -1"),
        ("HSET {} field value", "HVALS {}"),
    ] {
        let (make, dump) = (make.replace("{}", name), dump.replace("{}", name));
        let _: () = eyes.text(&make);
        let theirs: Vec<String> = eyes.text(&dump);
        for (what, error) in [
            ("stand", soon(election.campaign()).await.map(drop)),
            (
                "in time",
                soon(election.campaign_timeout(PATIENCE)).await.map(drop),
            ),
            ("lead", soon(election.lead(async |_| ())).await),
            ("who leads", soon(election.leader()).await.map(drop)),
            ("observe", soon(election.observe().next()).await.map(drop)),
        ] {
            let error = error.expect_err(what);
            let is_told = matches!(&error, Error::Store { source, .. }
                if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
            assert!(is_told, "{make}, {what}: {error:?}");
            tells(&error, &["`relay`", "an election", "another key or prefix"]);
        }
        soon(locks.idle()).await;
        assert_eq!((locks.keys(), locks.waiting()), (0, 0));
        assert_eq!(eyes.text::<Vec<String>>(&dump), theirs);
        let _: i64 = eyes.text(&format!("DEL {name}"));
    }
    // Whoever has it is none of ours: nobody is told a leader that no node can be, and the other questions of the batch are answered.
    let beside = locks.election("beside");
    let (ours, _) = record.rsplit_once(':').unwrap();
    let numbers = ["0", "007", "9007199254740992", "99999999999999999999"];
    let near = numbers.map(|number| format!("{ours}:{number}"));
    let others = ["theirs", "5f3b:12:ab:7"].map(str::to_owned);
    for theirs in near.into_iter().chain(others) {
        let _: () = eyes.text(&format!("SET {name} {theirs}"));
        let asked = async { tokio::join!(election.leader(), beside.leader(), beside.leader()) };
        let (theirs_leads, nobody, again) = soon(asked).await;
        assert_eq!(theirs_leads.unwrap(), None, "{theirs}");
        assert_eq!((nobody.unwrap(), again.unwrap()), (None, None), "{theirs}");
        let waited = soon(election.campaign_timeout(ms(100))).await.unwrap_err();
        assert!(matches!(waited, Error::Busy { .. }), "{theirs}: {waited:?}");
        assert_eq!(eyes.text::<String>(&format!("GET {name}")), theirs);
    }
    let _: i64 = eyes.text(&format!("DEL {name}"));
    soon(election.campaign()).await.unwrap().release().await.unwrap();
    soon(locks.idle()).await;
    eyes.until_empty().await;
}

/// The same where what a leader proclaims should be: it leads all the same, and resigns.
#[tokio::test]
async fn a_foreign_memory_of_an_election_is_refused_and_keeps_nobody_from_leading() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(3_000)).await;
    let election = locks.election("relay");
    let guard = soon(election.campaign()).await.unwrap();
    soon(election.proclaim("here")).await.unwrap();
    let names: Vec<String> = eyes.text("KEYS tenure1:v:*");
    let name = &names[0];
    guard.release().await.unwrap();
    let _: i64 = eyes.text(&format!("RPUSH {name} 1 2 3"));
    let watch = Watch::of("kind=election key=relay ");
    let guard = soon(election.campaign()).await.unwrap();
    for (what, error) in [
        ("proclaim", soon(election.proclaim("x")).await),
        ("who leads", soon(election.leader()).await.map(drop)),
        ("observe", soon(election.observe().next()).await.map(drop)),
    ] {
        let error = error.expect_err(what);
        let is_told = matches!(&error, Error::Store { source, .. }
            if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
        assert!(is_told, "{what}: {error:?}");
    }
    watch.until("renewed").await;
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    assert_eq!(eyes.text::<usize>(&format!("LLEN {name}")), 3);
    let _: i64 = eyes.text(&format!("DEL {name}"));

    // What is none of ours within it is no news, and is gone with the leader.
    for rubbish in [
        "version x seq y said theirs",
        "version 007 seq 1 said theirs",
        "version 99999999999999999999 seq 1 said theirs",
        "version 7",
        "said theirs",
        "seq nan wzz x w nan",
    ] {
        let guard = soon(election.campaign()).await.unwrap();
        let record: Vec<String> = eyes.text("KEYS tenure1:e:*");
        let record: String = eyes.text(&format!("GET {}", record[0]));
        let (_, number) = record.rsplit_once(':').unwrap();
        let _: i64 = eyes.text(&format!("HSET {name} number {number} {rubbish}"));
        let leader = soon(election.leader()).await.unwrap().expect("it leads");
        assert_eq!(
            (leader.fence(), leader.value()),
            (guard.fence(), None),
            "{rubbish}"
        );
        let mut observer = election.observe();
        let seen = soon(observer.next()).await.unwrap().unwrap();
        assert_eq!(seen, leader, "{rubbish}");
        let (news, told) = tokio::join!(soon(observer.next()), soon(election.proclaim("here")));
        told.unwrap_or_else(|error| panic!("{rubbish}: {error}"));
        assert_eq!(news.unwrap().unwrap().value(), Some(&b"here"[..]), "{rubbish}");
        soon(guard.release()).await.unwrap();
        soon(locks.idle()).await;
        assert_eq!(eyes.left_behind(), [""; 0], "{rubbish}");
    }
}

/// The same where the queue of a record should be. What a later version may write there is passed over, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_queue_is_refused_and_one_of_another_format_is_passed_over() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    // How it is called.
    let guard = held(&one, "a").await;
    let waits = tokio::spawn(other.mutex("a").lock());
    until("it waits", || eyes.queue("a") == 1).await;
    let queue: Vec<Vec<u8>> = eyes.text("KEYS tenure1:q:*");
    let queue = queue.into_iter().next().unwrap();
    guard.release().await.unwrap();
    soon(waits).await.unwrap().unwrap().release().await.unwrap();
    eyes.until_empty().await;

    let (lock, multi) = (one.rw_lock("a"), one.multi(["a", "b"]));
    let _: i64 = eyes.ask(&[b"RPUSH", &queue, b"theirs"]);
    for (what, error) in [
        ("read", soon(lock.read()).await.map(drop)),
        ("try to read", soon(lock.try_read()).await.map(drop)),
        ("write", soon(lock.write()).await.map(drop)),
        ("several", soon(multi.lock()).await.map(drop)),
        ("try several", soon(multi.try_lock()).await.map(drop)),
    ] {
        let error = error.expect_err(what);
        let is_told = matches!(&error, Error::Store { source, .. }
            if *source.kind() == StoreErrorKind::Refused(StoreRefusal::WrongType));
        assert!(is_told, "{what}: {error:?}");
        tells(&error, &["`a`"]);
    }
    soon(one.idle()).await;
    assert_eq!(eyes.left_behind().len(), 1, "{:?}", eyes.left_behind());
    assert_eq!(
        eyes.ask::<Vec<String>>(&[b"LRANGE", &queue, b"0", b"-1"]),
        ["theirs"]
    );
    let _: i64 = eyes.ask(&[b"DEL", &queue]);

    let far = b"99999999999999";
    let later = [&b"aof-a-later-version"[..], b"bof-a-later-version"];
    let _: i64 = eyes.ask(&[b"ZADD", &queue, b"1", later[0], far, later[1]]);
    for round in 0..3 {
        let reader = soon(lock.read()).await.unwrap();
        let beside = soon(other.rw_lock("a").read()).await.unwrap();
        // Handed over past it, to a writer and to several.
        let waits = tokio::spawn(other.rw_lock("a").write());
        until("it waits", || eyes.queue("a") == 2).await;
        reader.release().await.unwrap();
        beside.release().await.unwrap();
        let writer = soon(waits).await.unwrap().unwrap();
        let both = multi.clone();
        let waits = tokio::spawn(async move { both.lock().await });
        until("they wait", || one.waiting() == 1).await;
        let reader = soon(writer.downgrade()).await.unwrap();
        reader.release().await.unwrap();
        soon(waits).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(eyes.ask::<usize>(&[b"ZCARD", &queue]), 2, "in round {round}");
    }
    for node in [&one, &other] {
        soon(node.idle()).await;
        assert_eq!((node.keys(), node.waiting()), (0, 0));
    }
    assert_eq!(eyes.left_behind().len(), 1, "{:?}", eyes.left_behind());
}

/// Redis 6.2 grants locks without the replicas that it was told to want, Redis 7 refuses them.
#[tokio::test]
async fn replicas_that_bound_no_script_are_warned_of() {
    let server =
        RedisServer::with_args(&["--maxmemory-policy", "noeviction", "--min-replicas-to-write", "1"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let version: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut server.client())
        .unwrap();
    let is_old = version.contains("redis_version:6.");
    let locks = locks(&server.url(), ms(10_000)).await;
    if is_old {
        let told = watch.until("server_warning").await;
        tells(&told.text, &["min-replicas-to-write", "6.2", "7.0"]);
        held(&locks, "a").await.release().await.unwrap();
        return;
    }
    let refused = soon(locks.mutex("a").lock()).await.map(drop);
    let text = refused.unwrap_err().to_string();
    tells(&text, &["NOREPLICAS"]);
    assert_eq!(watch.count("server_warning"), 0, "{:#?}", watch.told());
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_of_once() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "volatile-lru"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let locks = locks(&server.url(), ms(10_000)).await;
    let told = watch.until("server_warning").await;
    assert_eq!(told.target, "tenure");
    assert_eq!(told.level, tracing::Level::WARN);
    tells(&told.text, &["volatile-lru", "maxmemory-policy", "noeviction"]);
    held(&locks, "a").await.release().await.unwrap();
    assert_eq!(watch.count("server_warning"), 1, "{:#?}", watch.told());

    let fine = RedisServer::start();
    let watch = Watch::of(format!("127.0.0.1:{}", fine.port()));
    let locks = crate::help::locks(&fine.url(), ms(10_000)).await;
    held(&locks, "a").await.release().await.unwrap();
    assert_eq!(watch.count("server_warning"), 0);
}

/// Somebody set it by hand and forgot it: nobody can know when it ends, and nobody hurries to ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_record_without_end_is_waited_for_calmly() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(4_000);
    let (one, other) = (
        locks(&server.url(), lease).await,
        locks(&server.url(), lease).await,
    );
    let _: String = eyes.text("SET lock:a somebody");
    assert!(one.mutex("a").try_lock().await.unwrap().is_none());
    // Each gives it back itself: which of them stands first is a matter of luck.
    let waiters = [one.mutex("a"), other.mutex("a")]
        .map(|mutex| tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() }));
    until("both wait", || eyes.queue("a") == 2).await;
    // The first two seconds, in which they look often.
    tokio::time::sleep(ms(2_050)).await;
    let calls = |eyes: &mut Eyes| eyes.calls().get("evalsha").copied().unwrap_or(0);
    let (since, before) = (now(), calls(&mut eyes));
    // Two nodes ask every 250 ms: twenty times take 2.25 s.
    let mut asked = 0;
    until("they ask twenty times", || {
        asked = calls(&mut eyes) - before;
        asked >= 20
    })
    .await;
    let took = now() - since;
    assert!(took > ms(1_500), "{asked} in {took:?}");
    assert_eq!(eyes.owner("a").as_deref(), Some("somebody"));
    let _: i64 = eyes.text("DEL lock:a");
    let free = now();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    // A timer, and what a busy machine takes.
    assert!(now() - free < lease, "{:?}", now() - free);
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

#[tokio::test]
async fn lazy_starts_while_redis_is_away() {
    let mut server = RedisServer::start();
    server.kill();
    let locks = Locks::builder()
        .lease(ms(8_000))
        .lazy()
        .redis(&server.url())
        .await
        .unwrap();
    assert!(locks.ping().await.is_err());
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    tells(&error, &["`a`", "unreachable", &server.port().to_string()]);
    assert_eq!((locks.keys(), locks.waiting()), (0, 0));
    server.restart();
    let guard = soon(async {
        loop {
            match locks.mutex("a").lock().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_unreachable(), "{error}"),
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    guard.release().await.unwrap();
    locks.ping().await.unwrap();
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// Restarted while nobody did anything: the first lock after it finds out, and must not fail for it.
#[tokio::test]
async fn a_restart_in_between_goes_unnoticed() {
    let mut server = RedisServer::start();
    let locks = locks(&server.url(), ms(10_000)).await;
    for _ in 0..5 {
        let guard = held(&locks, "a").await;
        let fence = guard.fence();
        guard.release().await.unwrap();
        soon(locks.idle()).await;
        server.restart();
        let guard = soon(locks.mutex("a").lock())
            .await
            .expect("a lock after a restart");
        assert!(guard.fence() > fence, "the clock key is lost, the clock is not");
        soon(guard.release()).await.expect("a release after a restart");
        soon(locks.mutex("b").try_lock())
            .await
            .unwrap()
            .expect("it is free")
            .release()
            .await
            .unwrap();
    }
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// A probe that fails once must not fail for ever: nobody may send a lock to a service that is not ready.
#[tokio::test]
async fn a_probe_finds_a_server_again() {
    let mut server = RedisServer::start();
    let locks = locks(&server.url(), ms(5000)).await;
    locks.ping().await.unwrap();
    server.restart();
    let _ = locks.ping().await;
    locks.ping().await.expect("a probe after a restart");
    // Not broken but silent, as behind a firewall that forgot the connection.
    let proxy = Proxy::start(addr(&server));
    let locks = Locks::builder()
        .request_timeout(ms(2_000))
        .redis(&url(proxy.addr()))
        .await
        .unwrap();
    proxy.set_existing(Direction::Both, Flow::Hold);
    match locks.ping().await {
        Err(Error::Connect { source, .. }) => assert_eq!(*source.kind(), StoreErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
    locks.ping().await.expect("a probe on a connection of its own");
    soon(locks.idle()).await;
}

/// Restarted under a guard: without its data the lease is lost, and told so; with its data it goes on.
#[tokio::test]
async fn a_restart_under_a_guard_loses_the_lease_with_the_data() {
    for keeps_data in [false, true] {
        let args: &[&str] = if keeps_data {
            &["--appendonly", "yes", "--appendfsync", "always"]
        } else {
            &[]
        };
        let mut server = RedisServer::with_args(args);
        let key = format!("restarted {keeps_data}");
        let watch = Watch::of(format!("key={key} "));
        let locks = locks(&server.url(), ms(6_000)).await;
        let other = crate::help::locks(&server.url(), ms(6_000)).await;
        let guard = held(&locks, key.as_str()).await;
        let waiter = tokio::spawn(other.mutex(key.as_str()).lock());
        until("it waits", || {
            other.waiting() == 1 && Eyes::on(&server).queue(&key) == 1
        })
        .await;
        server.restart();
        if keeps_data {
            watch.until("renewed").await;
            assert!(guard.is_held());
            soon(guard.release()).await.unwrap();
        } else {
            soon(guard.lost()).await;
            assert!(!guard.is_held());
            assert!(soon(guard.release()).await.unwrap_err().is_lost());
        }
        soon(waiter).await.unwrap().unwrap().release().await.unwrap();
        soon(locks.idle()).await;
        soon(other.idle()).await;
        Eyes::on(&server).until_empty().await;
    }
}

#[tokio::test]
async fn flushed_scripts_and_killed_clients_are_no_failures() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let other = crate::help::locks(&server.url(), ms(10_000)).await;
    let kept = held(&locks, "kept").await;
    for kind in ["", "normal", "pubsub", "normal", "pubsub", ""] {
        let guard = held(&locks, "a").await;
        let waiter = tokio::spawn(other.mutex("a").lock());
        until("it waits", || eyes.queue("a") == 1).await;
        let _: String = eyes.text("SCRIPT FLUSH");
        if !kind.is_empty() {
            let _: u64 = eyes.text(&format!("CLIENT KILL TYPE {kind}"));
        }
        soon(guard.release()).await.expect("a release");
        let guard = soon(waiter).await.unwrap().expect("a waiter's lock");
        soon(guard.release()).await.expect("a waiter's release");
        soon(locks.mutex("b").lock())
            .await
            .expect("a lock")
            .release()
            .await
            .expect("its release");
    }
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// A connection that is refused again and again, and then is not.
#[tokio::test]
async fn refused_connections_cost_no_lease_that_is_held() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = locks(&url(proxy.addr()), ms(30_000)).await;
    let kept = held(&locks, "kept").await;
    proxy.refuse(true);
    proxy.reset();
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(kept.is_held());
    proxy.refuse(false);
    soon(async {
        while locks.mutex(Key::from("a")).lock().await.is_err() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// The longest there is: refused as an option, or as good as none; and no panic, not even in the background of somebody
/// who dropped everything while the store stood still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_request_timeout_is_no_panic() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let url = server.url();
    let builder = Locks::builder().lease(ms(30_000)).request_timeout(Duration::MAX);
    let built = tokio::spawn(async move { builder.redis(&url).await });
    let locks = match built.await.expect("no panic") {
        Ok(locks) => locks,
        Err(ConnectError::Options(_)) => return,
        Err(other) => panic!("{other}"),
    };
    let watch = Watch::of(locks.node().to_string());
    let waited = soon(locks.mutex("a").lock_timeout(ms(5_000))).await.unwrap();
    soon(waited.release()).await.unwrap();
    soon(locks.ping()).await.unwrap();
    let guard = held(&locks, "a").await;
    server.freeze();
    drop((guard, locks));
    tokio::time::sleep(ms(500)).await;
    server.thaw();
    until("it is free", || eyes.owner("a").is_none()).await;
    until("nothing of it is left", || {
        let clients: String = eyes.text("CLIENT LIST");
        clients.lines().count() == 1
    })
    .await;
    let told = watch.told();
    assert!(
        told.iter().all(|told| told.level != tracing::Level::ERROR),
        "{told:#?}"
    );
}

/// The clock is what fences come from. One that is a list is refused to everybody in the same words, and stays.
#[tokio::test]
async fn a_clock_of_a_wrong_type_is_never_overwritten() {
    use crate::tools::{CLAIM, batch, claim_id, connect, store, tick};
    use tenure::protocol::message::Reply;

    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(30_000)).await;
    let link = connect(&store(&server.url())).await.unwrap();
    let mut told = std::collections::BTreeMap::new();
    let mut tell = |who: &str, kind: String| told.insert(who.to_owned(), kind);
    let kind = |answer: Result<Option<tenure::Guard>, Error>| match answer {
        Err(Error::Store { source, .. }) => format!("{:?}", source.kind()),
        Err(other) => format!("{other:?}"),
        Ok(guard) => format!("{guard:?}"),
    };
    for who in ["one", "who tries", "many", "a tick"] {
        let _: i64 = eyes.text("DEL tenure1:clock");
        let _: i64 = eyes.text("RPUSH tenure1:clock x");
        match who {
            "one" => {
                let answer = soon(locks.mutex("a").lock()).await;
                tell(who, kind(answer.map(Some)));
            }
            "who tries" => {
                let answer = soon(locks.mutex("b").try_lock()).await;
                tell(who, kind(answer));
            }
            "many" => {
                let tasks: Vec<_> = (0..64)
                    .map(|n| tokio::spawn(locks.mutex(format!("many {n}")).lock()))
                    .collect();
                for (n, task) in tasks.into_iter().enumerate() {
                    let answer = soon(task).await.unwrap();
                    tell(&format!("number {n} of many"), kind(answer.map(Some)));
                }
            }
            _ => {
                let request = tick(b"job", claim_id(1, 1), 1, CLAIM);
                let answer = match link.apply(batch(vec![request])).await {
                    Err(failure) => format!("{:?}", failure.error.kind()),
                    Ok(answer) => match &answer.replies[0] {
                        Reply::Refused(refusal) => format!("Refused({refusal:?})"),
                        other => format!("{other:?}"),
                    },
                };
                tell(who, answer);
            }
        }
        let now: String = eyes.text("TYPE tenure1:clock");
        tell(&format!("the clock after {who}"), now);
    }
    let clocks: Vec<_> = told
        .iter()
        .filter(|(who, _)| who.starts_with("the clock"))
        .collect();
    assert!(clocks.iter().all(|(_, kind)| *kind == "list"), "{told:#?}");
    let words: std::collections::BTreeSet<_> = told
        .iter()
        .filter(|(who, _)| !who.starts_with("the clock"))
        .map(|(_, kind)| kind)
        .collect();
    assert!(
        words.len() == 1 && words.first().unwrap().starts_with("Refused("),
        "{told:#?}"
    );
}
