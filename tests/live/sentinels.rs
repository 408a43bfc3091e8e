//! What users get wrong with Sentinels and with recoveries: a clear error each.

use std::net::TcpListener;
use std::time::Duration;

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Recovery};

use crate::bad_input::{options, refused, tells};
use crate::help::{Eyes, behind_sentinels, held, ms, soon};
use crate::server::{RedisServer, ReservedPort};
use crate::store::{acl, rights_in};
use crate::support::events::Watch;

const NAME: &str = "stock-db";

const fn always(longest: Duration) -> Recovery {
    let lag = ms(3_000);
    Recovery::Always { longest, lag }
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_refused() {
    let master = RedisServer::start();
    let sentinel = RedisServer::sentinel(NAME, master.port());
    let (text, error) = refused(behind_sentinels("stock", [sentinel.url()]).await);
    assert!(matches!(error.kind(), StoreErrorKind::Refused(_)), "{error:?}");
    let port = sentinel.port().to_string();
    tells(&text, &["knows no master `stock`", &port]);
    // Without an address there is nothing to try, so the Sentinels that are away are named, too.
    let closed = ReservedPort::new();
    let (text, error) = refused(behind_sentinels("stock", [sentinel.url(), closed.url()]).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    tells(&text, &["knows no master `stock`", "onnection refused"]);
    // A name that is right for one Sentinel is enough, and the other is reported.
    let stranger = RedisServer::sentinel("another", master.port());
    let watch = Watch::of(format!("127.0.0.1:{} knows no master", stranger.port()));
    let locks = behind_sentinels(NAME, [stranger.url(), sentinel.url()]).await;
    soon(locks.unwrap().ping()).await.unwrap();
    watch.until("server_warning").await;
}

#[tokio::test]
async fn a_plain_redis_among_the_sentinels_is_named() {
    let (master, plain) = (RedisServer::start(), RedisServer::start());
    let sentinel = RedisServer::sentinel(NAME, master.port());
    let (text, error) = refused(behind_sentinels(NAME, [plain.url()]).await);
    let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    assert_eq!(error.kind(), &kind, "{text}");
    let port = plain.port().to_string();
    tells(&text, &["is no Sentinel", "`redis://…`", &port]);
    let watch = Watch::of(format!("127.0.0.1:{port} is no Sentinel"));
    let locks = behind_sentinels(NAME, [plain.url(), sentinel.url()]).await;
    soon(locks.unwrap().ping()).await.unwrap();
    watch.until("server_warning").await;
}

#[tokio::test]
async fn unreachable_sentinels_are_an_outage_at_the_start_only() {
    let master = RedisServer::start();
    // This one accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}/", silent.local_addr().unwrap());
    let closed = ReservedPort::new();
    let sentinels = [closed.url(), silent];
    let (text, error) = refused(behind_sentinels(NAME, &sentinels).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable, "{text}");
    let words = [
        &*format!("no Sentinel tells where the master `{NAME}` is"),
        "onnection refused",
        "is silent",
    ];
    tells(&text, &words);
    // A lazy node starts, and says the same to its callers.
    let like = redis::Client::open(master.url()).unwrap();
    let lazy = crate::help::builder().lazy().sentinel(NAME, &sentinels, like);
    let lazy = lazy.await.unwrap();
    let error: Error = soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    tells(&error, &words);
    // A node that knows the master goes on without Sentinels, also on a new connection.
    let mut sentinel = RedisServer::sentinel(NAME, master.port());
    let builder = crate::help::builder().recovery(Recovery::OnEvidence);
    let like = redis::Client::open(master.url()).unwrap();
    let locks = builder.sentinel(NAME, [sentinel.url()], like).await.unwrap();
    let guard = held(&locks, "a").await;
    sentinel.kill();
    let mut eyes = Eyes::on(&master);
    let killed: usize = eyes.text("CLIENT KILL TYPE normal");
    assert!(killed > 0);
    // What was in flight is interrupted.
    soon(async { while locks.ping().await.is_err() {} }).await;
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_told_of_the_sentinel_or_of_the_master() {
    let master = RedisServer::with_args(&["--requirepass", "of-the-master"]);
    let monitor = format!("sentinel monitor {NAME} 127.0.0.1 {} 1", master.port());
    let sentinel = RedisServer::sentinel_with(&[&monitor, "requirepass of-the-sentinel"]);
    let at = |password: &str, server: &RedisServer| {
        let user = if password.is_empty() { "" } else { ":" };
        let at = if password.is_empty() { "" } else { "@" };
        format!("redis://{user}{password}{at}127.0.0.1:{}/", server.port())
    };
    let connect = async |of_sentinel: &str, of_master: &str| {
        let like = redis::Client::open(at(of_master, &master)).unwrap();
        let builder = crate::help::builder().recovery(Recovery::OnEvidence);
        builder.sentinel(NAME, [at(of_sentinel, &sentinel)], like).await
    };
    let (of_sentinel, of_master) = (format!(":{}", sentinel.port()), format!(":{}", master.port()));
    for (passwords, refusal, words) in [
        (
            ["", "of-the-master"],
            StoreRefusal::NoAuth,
            ["the Sentinel at", &*of_sentinel, "NOAUTH"],
        ),
        (
            ["hunter2", "of-the-master"],
            StoreRefusal::WrongPassword,
            ["the Sentinel at", &*of_sentinel, "WRONGPASS"],
        ),
        (
            ["of-the-sentinel", ""],
            StoreRefusal::NoAuth,
            ["client for the master", &*of_master, "NOAUTH"],
        ),
        (
            ["of-the-sentinel", "hunter2"],
            StoreRefusal::WrongPassword,
            ["client for the master", &*of_master, "WRONGPASS"],
        ),
    ] {
        let (text, error) = refused(connect(passwords[0], passwords[1]).await);
        assert_eq!(error.kind(), &StoreErrorKind::Refused(refusal), "{text}");
        tells(&text, &words);
        for password in ["hunter2", "of-the-sentinel", "of-the-master"] {
            assert!(
                !text.contains(password) && !format!("{error:?}").contains(password),
                "{text}"
            );
        }
    }
    let locks = connect("of-the-sentinel", "of-the-master").await.unwrap();
    soon(locks.ping()).await.unwrap();
}

#[tokio::test]
async fn processes_with_different_longest_leases_are_refused() {
    let server = RedisServer::start();
    let connect = async |longest: Option<u64>| {
        let recovery = longest.map_or(Recovery::OnEvidence, |longest| always(ms(longest)));
        let builder = crate::help::builder().lease(ms(1_000)).recovery(recovery);
        builder.connect(&server.url()).await
    };
    let first = connect(Some(10_000)).await.unwrap();
    let (text, error) = refused(connect(Some(20_000)).await);
    let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
    assert_eq!(error.kind(), &kind, "{text}");
    tells(
        &text,
        &[
            "longest lease",
            "20s",
            "10s",
            "equal values",
            "DEL tenure1:longest",
        ],
    );
    // The refused process changed nothing, and others may come.
    soon(connect(Some(10_000)).await.unwrap().ping()).await.unwrap();
    soon(connect(None).await.unwrap().ping()).await.unwrap();
    // A longer lease is refused where it is asked for.
    let longer = ms(10_001);
    let words = ["at most 10s", "10.001s", "`longest` of `Recovery::Always`"];
    for mutex in [first.mutex("a").lease(longer), first.mutex("a").fixed(longer)] {
        tells(&soon(mutex.lock()).await.map(drop).unwrap_err(), &words);
    }
    let builder = crate::help::builder().lease(longer).recovery(always(ms(10_000)));
    tells(&options(builder.connect(&server.url()).await), &words);
}

#[tokio::test]
async fn a_user_without_the_right_to_info_is_refused_if_the_server_always_recovers() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let _: String = eyes.text("ACL SETUSER app on >secret ~* &* +@all -info");
    let url = format!("redis://app:secret@127.0.0.1:{}/", server.port());
    let builder = crate::help::builder().lease(ms(1_000));
    let (text, error) = refused(builder.recovery(always(ms(1_000))).connect(&url).await);
    let kind = StoreErrorKind::Refused(StoreRefusal::NoPermission);
    assert_eq!(error.kind(), &kind, "{text}");
    tells(&text, &["`Recovery::Always`", "allow +info"]);
    assert!(eyes.left_behind().is_empty());
    // On evidence the right is not needed.
    let locks = crate::help::connect(&url).await.unwrap();
    held(&locks, "a").await.release().await.unwrap();
    let _: String = eyes.text("ACL SETUSER app +info");
    let builder = crate::help::builder().lease(ms(1_000));
    let locks = builder.recovery(always(ms(1_000))).connect(&url).await;
    soon(locks.unwrap().ping()).await.unwrap();
}

/// The rights of the guide are enough for a link that a Sentinel confirms, and for the recovery of a new reign.
#[tokio::test]
async fn the_documented_users_are_enough_with_a_sentinel() {
    let master = RedisServer::start();
    let _: String = Eyes::on(&master).text(&format!("ACL SETUSER app on >secret {}", acl()));
    let sentinel = RedisServer::sentinel(NAME, master.port());
    let rights = rights_in(include_str!("../../docs/sentinel.md"), "tenure");
    let user = format!("ACL SETUSER app on >secret {rights}");
    let _: String = Eyes::on(&sentinel).text(&user);
    let url = |server: &RedisServer| format!("redis://app:secret@127.0.0.1:{}/", server.port());
    let builder = crate::help::builder()
        .lease(ms(1_000))
        .recovery(always(ms(1_000)));
    let like = redis::Client::open(url(&master)).unwrap();
    let locks = builder.sentinel(NAME, [url(&sentinel)], like).await.unwrap();
    soon(locks.ping()).await.unwrap();
    let mut eyes = Eyes::on(&master);
    assert_eq!(eyes.text::<String>(&format!("GET tenure1:epoch:{NAME}")), "0");
    for server in [&master, &sentinel] {
        let denied: Vec<redis::Value> = Eyes::on(server).text("ACL LOG");
        let mut denied = denied.iter().map(|entry| format!("{entry:?}"));
        // Except for the names of the connection and of the library.
        let is_name = |entry: &String| entry.contains(r#"'"object"'), bulk-string('"client"#);
        assert_eq!(denied.find(|entry| !is_name(entry)), None);
    }
}
