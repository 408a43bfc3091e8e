//! What users get wrong, and what servers are set up to: a clear error each, and nothing lost or left behind.

use crate::help::{Eyes, HOUR, behind_sentinels, held, locks, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use std::time::Duration;
use tenure::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use tenure::{Error, Locks};

/// Every word stands in the text.
#[track_caller]
pub(crate) fn tells(error: &impl std::fmt::Display, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(text.len() < 700, "{text}");
}

pub(crate) fn options(result: Result<Locks, Error>) -> OptionsError {
    match result {
        Err(Error::Options(error)) => error,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn refused(result: Result<Locks, Error>) -> (String, StoreError) {
    match result {
        Err(ref error @ Error::Connect { ref source, .. }) => (error.to_string(), source.clone()),
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
    assert_eq!(one.key_count(), keys.len());
    let mut waiters = Vec::new();
    for key in &keys {
        assert!(
            other.mutex(key.clone()).try_lock().await.unwrap().is_none(),
            "{key:?}"
        );
        let record = [b"lock:", &key[..]].concat();
        let owner: Option<String> = eyes.ask(&[b"GET", &record]);
        assert!(
            owner.is_some_and(|owner| owner.starts_with(&one.node_id().to_string())),
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
        let error = options(crate::help::builder().lease(lease).connect(nowhere).await);
        tells(&error, &["lease", "400ms", "30 days", &format!("{lease:?}")]);
    }
    for prefix in ["", "t", "tenur", "tenure", "tenure1:q:", &"x".repeat(129)] {
        let error = options(crate::help::builder().prefix(prefix).connect(nowhere).await);
        tells(&error, &["prefix", "tenure"]);
    }
    for burst in [0, 1024, u32::MAX] {
        let error = options(crate::help::builder().burst(burst, ms(20)).connect(nowhere).await);
        tells(&error, &["burst", "1 to 1023", &burst.to_string()]);
    }
    let error = options(
        crate::help::builder()
            .margin(Duration::MAX)
            .connect(nowhere)
            .await,
    );
    tells(&error, &["margin"]);
    for limitless in [
        crate::help::builder().max_waiters_per_key(0),
        crate::help::builder().max_waiters_per_node(0),
        crate::help::builder().max_key(0),
    ] {
        tells(&options(limitless.connect(nowhere).await), &["limit", "zero"]);
    }
    for timeout in [Duration::ZERO, Duration::MAX] {
        let error = options(
            crate::help::builder()
                .request_timeout(timeout)
                .connect(nowhere)
                .await,
        );
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
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
}

/// Large numbers are numbers.
#[tokio::test]
async fn options_at_their_bounds_work() {
    let server = RedisServer::start();
    let locks = crate::help::builder()
        .lease(Duration::from_secs(30 * 24 * 3600))
        .margin(Duration::ZERO)
        .burst(1023, Duration::MAX)
        .request_timeout(Duration::from_secs(24 * 3600))
        .max_waiters_per_key(usize::MAX)
        .max_waiters_per_node(1)
        .max_key(usize::MAX)
        .prefix([0xff; 128])
        .connect(&server.url())
        .await
        .unwrap();
    let guard = held(&locks, vec![b'x'; 10 * 1024]).await;
    assert!(soon(locks.mutex("a").lock_timeout(Duration::MAX)).await.is_ok());
    guard.release().await.unwrap();
    let locks = crate::help::builder()
        .lease(ms(400))
        .connect(&server.url())
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
        match crate::help::connect(url).await {
            Err(error @ Error::Options(_)) => tells(&error, &["URL"]),
            other => panic!("{url}: {other:?}"),
        }
    }
    let error = crate::help::connect("http://me:hunter2@localhost/")
        .await
        .unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

/// Connections live on a thread of our own, so that a runtime without input, output and timers will do.
#[test]
fn a_runtime_without_io_and_timers_will_do() {
    let server = RedisServer::start();
    for host in ["127.0.0.1", "localhost"] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let url = format!("redis://{host}:{}", server.port());
        let locks = runtime
            .block_on(crate::help::builder().lazy().connect(&url))
            .unwrap();
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
    // A port without a listener is not waited for.
    let patient = crate::help::builder().request_timeout(HOUR);
    let (text, error) = refused(soon(patient.connect("redis://me:hunter2@127.0.0.1:1/")).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable);
    tells(&text, &["127.0.0.1:1", "unreachable"]);
    assert!(!format!("{text} {error:?}").contains("hunter2"));
    // One that listens and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let connect = crate::help::builder()
        .request_timeout(ms(200))
        .connect(&url(address))
        .await;
    let (text, error) = refused(connect);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &[&address.to_string(), "200ms"]);
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_told() {
    let server = RedisServer::with_args(&["--requirepass", "hunter2"]);
    let port = server.port();
    let (text, error) = refused(crate::help::connect(&server.url()).await);
    assert_eq!(
        error.kind(),
        &StoreErrorKind::Refused(StoreRefusal::NoAuth),
        "{text}"
    );
    tells(&text, &[&port.to_string(), "password", "URL"]);
    let (text, error) = refused(crate::help::connect(&format!("redis://:swordfish@127.0.0.1:{port}/")).await);
    assert_eq!(
        error.kind(),
        &StoreErrorKind::Refused(StoreRefusal::WrongPassword),
        "{text}"
    );
    tells(&text, &[&port.to_string(), "password", "URL"]);
    assert!(!format!("{text} {error:?}").contains("swordfish"), "{error:?}");

    // The same when it is found out later.
    let lazy = crate::help::builder()
        .lazy()
        .connect(&server.url())
        .await
        .unwrap();
    let error = soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err();
    match &error {
        Error::Store { source, .. } => {
            assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::NoAuth));
        }
        other => panic!("{other:?}"),
    }
    tells(&error, &["`a`", "password"]);
    assert!(!error.is_unreachable());

    let locks = crate::help::connect(&format!("redis://:hunter2@127.0.0.1:{port}/"))
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
        let (text, error) =
            refused(crate::help::connect(&format!("redis://app:secret@127.0.0.1:{port}/")).await);
        let kind = StoreErrorKind::Refused(StoreRefusal::NoPermission);
        assert_eq!(error.kind(), &kind, "{text}");
        tells(&text, &["NOPERM", "docs/redis.md", &format!("'{command}'")]);
    }
    // A script is refused without the name of its command. It must not tell the user to delete the clock, which it cannot read.
    let rule = format!("ACL SETUSER app on >secret {} -get", crate::store::acl());
    let _: String = Eyes::on(&server).text(&rule);
    let locks = crate::help::connect(&format!("redis://app:secret@127.0.0.1:{port}/")).await;
    let error = match locks {
        Ok(locks) => soon(locks.mutex("a").lock()).await.map(drop).unwrap_err(),
        Err(error) => error,
    };
    tells(&error, &["docs/redis.md"]);
    assert!(!error.to_string().contains("delete it"), "{error}");
    // Later, too.
    let _: String = Eyes::on(&server).text("ACL SETUSER app +@all");
    let url = format!("redis://app:secret@127.0.0.1:{port}/");
    let locks = crate::help::connect(&url).await.unwrap();
    let _: String = Eyes::on(&server).text("ACL SETUSER app -evalsha");
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    tells(&error, &["`a`", "NOPERM", "'evalsha'"]);
    let error = soon(locks.ping()).await.unwrap_err();
    tells(&error, &["NOPERM", "'evalsha'", &port.to_string()]);
}

/// Some managed servers do not know ROLE.
#[tokio::test]
async fn a_server_without_role_is_asked_for_info() {
    let without_role: [&str; 3] = ["--rename-command", "ROLE", ""];
    let master = RedisServer::with_args(&without_role);
    held(&locks(&master.url(), ms(10_000)).await, "a")
        .await
        .release()
        .await
        .unwrap();
    let replica = RedisServer::with_args(&without_role);
    Eyes::on(&replica).text::<()>(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let (_, error) = refused(crate::help::connect(&replica.url()).await);
    assert_eq!(error.kind(), &StoreErrorKind::Refused(StoreRefusal::ReadOnly));
}

#[tokio::test]
async fn a_user_without_the_right_to_role_is_told_the_role_by_info() {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    Eyes::on(&replica).text::<()>(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let url = |server: &RedisServer| {
        let rule = format!("ACL SETUSER app on >secret {} -role", crate::store::acl());
        Eyes::on(server).text::<()>(&rule);
        server.url().replace("redis://", "redis://app:secret@")
    };
    let watch = Watch::of(format!("127.0.0.1:{}", master.port()));
    drop(held(&locks(&url(&master), ms(10_000)).await, "a").await);
    assert_eq!(watch.count("server_warning"), 0, "{:#?}", watch.told());
    let (_, error) = refused(crate::help::connect(&url(&replica)).await);
    assert_eq!(error.kind(), &StoreErrorKind::Refused(StoreRefusal::ReadOnly));
}

/// Neither ROLE nor INFO: the server does not know them, or the user lacks the rights.
#[tokio::test]
async fn a_server_that_tells_no_role_is_used_with_a_warning() {
    let unknown = ["--rename-command", "ROLE", "", "--rename-command", "INFO", ""];
    for (args, denied) in [(&unknown[..], ""), (&[], "-role -info")] {
        let server = RedisServer::with_args(args);
        let rule = format!("ACL SETUSER app on >secret ~* &* +@all {denied}");
        Eyes::on(&server).text::<()>(rule.trim_end());
        let watch = Watch::of(format!("127.0.0.1:{} does not tell its role", server.port()));
        let url = server.url().replace("redis://", "redis://app:secret@");
        let locks = locks(&url, ms(10_000)).await;
        held(&locks, "a").await.release().await.unwrap();
        let told = watch.until("server_warning").await;
        assert_eq!(told.level, tracing::Level::WARN);
        tells(&told.text, &["a replica", "+role", "+info"]);
    }
}

/// A node of a cluster takes connections, and each lock would fail by its slot.
#[tokio::test]
async fn a_cluster_is_refused_as_a_server() {
    let server = RedisServer::with_args(&["--cluster-enabled", "yes"]);
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut all: Vec<&[u8]> = vec![b"CLUSTER", b"ADDSLOTS"];
    all.extend(slots.iter().map(String::as_bytes));
    let _: String = Eyes::on(&server).ask(&all);
    let words = ["Redis Cluster", "`redis+cluster://", &server.port().to_string()];
    for prefix in ["lock:", "a:", "b:", "c:"] {
        let builder = crate::help::builder().prefix(prefix);
        let (text, error) = refused(builder.connect(&server.url()).await);
        let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
        assert_eq!(error.kind(), &kind, "{text}");
        tells(&text, &words);
    }
    let lazy = crate::help::builder()
        .lazy()
        .connect(&server.url())
        .await
        .unwrap();
    let unready: Error = soon(lazy.ping()).await.unwrap_err();
    tells(&unready, &words);
    tells(&soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err(), &words);
    assert!(!unready.is_unreachable(), "{unready:?}");
}

#[tokio::test]
async fn a_sentinel_is_refused_as_a_server_and_its_master_is_found() {
    let (master, name) = (RedisServer::start(), "orders-db");
    let sentinel = RedisServer::sentinel(name, master.port());
    let (text, error) = refused(crate::help::connect(&sentinel.url()).await);
    let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    assert_eq!(error.kind(), &kind, "{text}");
    let call = format!("`redis+sentinel://127.0.0.1:{},…/{name}`", sentinel.port());
    tells(&text, &["is a Sentinel", &call, &sentinel.port().to_string()]);
    let lazy = crate::help::builder()
        .lazy()
        .connect(&sentinel.url())
        .await
        .unwrap();
    tells(&soon(lazy.ping()).await.unwrap_err(), &["is a Sentinel", &call]);
    let locks = behind_sentinels(name, [sentinel.url()]).await.unwrap();
    // A lock waits for a recovery, because the server is used for the first time.
    soon(locks.ping()).await.unwrap();
}
