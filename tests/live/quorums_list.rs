//! The list of a quorum's masters is a contract, and one master that is away is one warning.

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Locks, Recovery};
use tokio::runtime::Runtime;
use tracing::Level;

use crate::bad_input::{options, refused, tells};
use crate::help::{Eyes, ms, quorum, soon, until};
use crate::quorums::{masters, urls};
use crate::server::RedisServer;
use crate::support::alone::alone;
use crate::support::events::Watch;

const UNSUPPORTED: StoreErrorKind = StoreErrorKind::Refused(StoreRefusal::Unsupported);

fn list(servers: &[RedisServer], which: &[usize]) -> Vec<String> {
    which.iter().map(|at| servers[*at].url()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_list_is_refused_by_each_master_that_keeps_one() {
    let servers: Vec<_> = (0..5).map(|_| RedisServer::start()).collect();
    quorum(list(&servers, &[0, 1, 2])).await.unwrap();
    // The order, credentials and a database that is spelled out are no difference.
    let mut same = list(&servers, &[2, 0, 1]);
    same[0] = same[0].replace("redis://", "redis://default:@") + "/0";
    quorum(same).await.unwrap();
    for which in [&[0, 1, 3][..], &[0, 3, 4], &[0, 1, 2, 3, 4]] {
        let (text, error) = refused(quorum(list(&servers, which)).await);
        assert_eq!(error.kind(), &UNSUPPORTED);
        tells(&text, &["tenure1:masters", "`3:", "DEL", "the longest lease"]);
    }
    let mut database = list(&servers, &[0, 1, 2]);
    database[0] += "/1";
    let (text, _) = refused(quorum(database).await);
    tells(&text, &["tenure1:masters", "databases"]);
    let longest = crate::help::builder().quorum(clients(&list(&servers, &[0, 1, 2])), ms(20_000));
    let (text, _) = refused(longest.await);
    tells(&text, &["10000:11000", "20000:22000", "tenure1:longest"]);
}

/// Otherwise one process with a wrong list would stop all others, where a master has lost its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_client_leaves_its_list_nowhere() {
    let mut servers = masters(5).await;
    for server in &servers {
        Eyes::on(server).text::<u8>("DEL tenure1:masters");
    }
    let right = quorum(list(&servers, &[0, 1, 2])).await.unwrap();
    let kept: String = Eyes::on(&servers[1]).text("GET tenure1:masters");
    let wrong = list(&servers, &[0, 1, 3]);
    refused(quorum(&wrong).await);
    let lazy = crate::help::builder().lazy().request_timeout(ms(1_000));
    let lazy = lazy.quorum(clients(&wrong), ms(10_000)).await.unwrap();
    for master in [0, 1] {
        servers[master].restart();
        let error = soon(lazy.mutex("a").lock()).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
        // The right list is there again, as soon as a process with it connects. The first ping may find that the connection broke.
        let is_left =
            || Eyes::on(&servers[master]).text::<Option<String>>("GET tenure1:masters") == Some(kept.clone());
        soon(async {
            while !is_left() {
                right.ping().await.unwrap();
            }
        })
        .await;
        refused(quorum(&wrong).await);
    }
    // A process with a wrong list leaves it if the one master that refuses it is mute for half of its request timeout.
    soon(lazy.shutdown()).await;
    // Two of its masters keep no list, and the one that does answers last.
    servers[0].restart();
    servers[1].freeze();
    let slow = crate::help::builder()
        .request_timeout(ms(20_000))
        .node_name("slow");
    let slow = tokio::spawn(slow.quorum(clients(&wrong), ms(10_000)));
    for master in [0, 3] {
        let mut eyes = Eyes::on(&servers[master]);
        let what = format!("a connection to master {master}");
        until(&what, || eyes.text::<String>("CLIENT LIST").contains("slow")).await;
    }
    servers[1].thaw();
    refused(slow.await.unwrap());
    assert!(!Eyes::on(&servers[0]).text::<bool>("EXISTS tenure1:masters"));
    assert!(!Eyes::on(&servers[3]).text::<bool>("EXISTS tenure1:masters"));
    drop(soon(right.mutex("b").lock_timeout(ms(20_000))).await.unwrap());
}

fn clients(urls: &[String]) -> Vec<redis::Client> {
    urls.iter()
        .map(|url| redis::Client::open(&**url).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_one_master_refuses_uses_none() {
    let servers = masters(5).await;
    // All five keep the list of five. These three then belong to the quorum of the first client alone.
    for server in &servers {
        Eyes::on(server).text::<u8>("DEL tenure1:masters");
    }
    let first = quorum(list(&servers, &[0, 1, 2])).await.unwrap();
    soon(soon(first.mutex("a").lock()).await.unwrap().release())
        .await
        .unwrap();
    servers[2].freeze();
    let builder = crate::help::builder().request_timeout(ms(500)).lease(ms(3_000));
    let second = builder.quorum(clients(&list(&servers, &[2, 3, 4])), ms(10_000));
    let second = second.await.unwrap();
    let held = soon(second.mutex("a").lock()).await.unwrap();
    servers[2].thaw();
    let kind = |error: &Error| match error {
        Error::Store { source, .. } => source.kind().clone(),
        other => panic!("{other:?}"),
    };
    let mutex = second.mutex("b");
    let refused = async {
        loop {
            match mutex.lock().await {
                Err(error) if kind(&error) == UNSUPPORTED => return error,
                _ => {}
            }
        }
    };
    let error = soon(refused).await;
    soon(held.lost()).await;
    tells(&error, &["tenure1:masters", "DEL"]);
    assert!(soon(second.ping()).await.is_err());
    // The operator stops the processes with the other list and corrects it, and the client works again.
    soon(first.shutdown()).await;
    Eyes::on(&servers[2]).text::<u8>("DEL tenure1:masters");
    soon(async { while mutex.lock().await.is_err() {} }).await;
}

/// Returns locks of a process that tells operators nothing of itself.
async fn quiet(servers: &[RedisServer]) -> Locks {
    // A busy machine does not answer within less.
    let builder = crate::help::builder().request_timeout(ms(10_000)).presence(false);
    let locks = builder.quorum(clients(&urls(servers)), ms(10_000));
    locks.await.unwrap()
}

/// Returns for how many milliseconds a master still keeps the longest lease and the list: negative if it keeps none, or for ever.
fn contracts_end_in(server: &RedisServer) -> [i64; 2] {
    ["longest", "masters"].map(|key| Eyes::on(server).text(&format!("PTTL tenure1:{key}")))
}

/// Lets both contracts of a master end after this time.
fn end_contracts_in(server: &RedisServer, ms: u32) {
    for key in ["longest", "masters"] {
        assert!(Eyes::on(server).text::<bool>(&format!("PEXPIRE tenure1:{key} {ms}")));
    }
}

/// A list that no process uses any more refuses other lists for a limited time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contracts_of_a_quorum_end_and_a_process_that_connects_prolongs_them() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let last_longer_than = |limit| {
        let mut lives = servers.iter().flat_map(contracts_end_in);
        lives.all(|left| left > limit)
    };
    drop(quiet(&servers).await);
    assert!(last_longer_than(0));
    servers.iter().for_each(|server| end_contracts_in(server, 30_000));
    drop(quiet(&servers).await);
    assert!(last_longer_than(30_000));
}

/// One master has lost the contracts, and at another one they end soon. The third one then has another list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_process_keeps_the_contracts_of_a_quorum_alive_and_obeys_another_list() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let locks = quiet(&servers).await;
    Eyes::on(&servers[0]).text::<()>("FLUSHALL");
    end_contracts_in(&servers[1], 50_000);
    until("the contracts last longer again", || {
        let mut lives = servers[..2].iter().flat_map(contracts_end_in);
        lives.all(|left| left > 50_000)
    })
    .await;
    Eyes::on(&servers[2]).text::<()>("SET tenure1:masters another");
    let is_refused = async || {
        let error = locks.ping().await.err();
        error.is_some_and(|error| error.to_string().contains("DEL tenure1:masters"))
    };
    soon(async {
        while !is_refused().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_cannot_be_a_quorum_is_refused() {
    let servers = masters(3).await;
    let urls = urls(&servers);
    for count in [0, 1, 2] {
        let error = options(quorum(&urls[..count]).await);
        tells(&error, &["3, 5 or 7 masters", &format!("not {count}")]);
    }
    let error = options(quorum([&*urls[0], &urls[1], &urls[2], "redis://other"]).await);
    tells(&error, &["3, 5 or 7 masters", "not 4"]);
    let error = options(quorum([&urls[0], &urls[1], &urls[0]]).await);
    tells(&error, &["twice", &servers[0].port().to_string()]);
    // A name for the same server.
    let other = urls[0].replace("127.0.0.1", "localhost");
    for server in &servers {
        Eyes::on(server).text::<u8>("DEL tenure1:masters");
    }
    let (text, error) = refused(quorum([&urls[0], &urls[1], &other]).await);
    assert_eq!(error.kind(), &UNSUPPORTED);
    tells(&text, &["are one server", "localhost", "127.0.0.1"]);
    let builder = crate::help::builder().recovery(Recovery::OnEvidence);
    let error = options(builder.quorum(clients(&urls), ms(10_000)).await);
    tells(&error, &["`longest`", "recovery"]);
    let builder = crate::help::builder().poll_gap(ms(100));
    tells(
        &options(builder.quorum(clients(&urls), ms(10_000)).await),
        &["poll gap"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_lease_than_the_longest_is_refused() {
    let servers = masters(3).await;
    let locks = quorum(urls(&servers)).await.unwrap();
    let error = soon(locks.mutex("a").lease(ms(10_001)).lock())
        .await
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error:?}");
    tells(&error, &["10s", "10.001s"]);
    let (servers, lease) = (urls(&servers), ms(20_000));
    let builder = crate::help::builder().lease(lease);
    let error = options(builder.quorum(clients(&servers), ms(10_000)).await);
    tells(&error, &["10s", "20s"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_masters_than_a_majority_are_an_error_at_the_start() {
    let mut servers = masters(3).await;
    let urls = urls(&servers);
    servers.truncate(2);
    quorum(&urls).await.unwrap();
    servers.truncate(1);
    let (text, error) = refused(quorum(&urls).await);
    assert_eq!(error.kind(), &StoreErrorKind::Unreachable);
    tells(
        &text,
        &["the quorum of", "2 of 3 masters do not answer", "refused"],
    );
}

#[test]
fn a_minority_that_is_away_is_one_warning_per_master() {
    alone(
        "quorums_list::a_minority_that_is_away_is_one_warning_per_master",
        || {
            Runtime::new().unwrap().block_on(a_minority_away());
        },
    );
}

async fn a_minority_away() {
    let mut servers = masters(5).await;
    // Long, so that a busy machine makes no other master late.
    let locks = crate::help::builder()
        .request_timeout(ms(2_000))
        .lease(ms(10_000));
    let locks = locks.quorum(clients(&urls(&servers)), ms(10_000)).await.unwrap();
    let kept = soon(locks.mutex("kept").lock()).await.unwrap();
    let watch = Watch::of("");
    servers[1].kill();
    servers[4].freeze();
    for n in 0..100 {
        soon(
            soon(locks.mutex(format!("key {n}")).lock())
                .await
                .unwrap()
                .release(),
        )
        .await
        .unwrap();
    }
    let begins = |port: u16| {
        let told = watch.told();
        let of = told.iter().filter(|told| told.event == "store_failing");
        of.filter(|told| told.text.contains(&format!(":{port}"))).count()
    };
    until("both are noticed", || {
        begins(servers[1].port()) > 0 && begins(servers[4].port()) > 0
    })
    .await;
    soon(kept.renew()).await.unwrap();
    let warnings: Vec<_> = watch
        .told()
        .into_iter()
        .filter(|told| told.level <= Level::WARN)
        .collect();
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    servers[4].thaw();
    servers[1].restart();
    let ends = || {
        let told = watch.told();
        told.iter().filter(|told| told.event == "store_recovered").count()
    };
    let mutex = locks.mutex("again");
    soon(async {
        while ends() < 2 {
            drop(mutex.lock().await);
        }
    })
    .await;
    assert!(kept.is_held());
}

#[test]
fn a_client_of_one_master_alone_is_warned() {
    alone("quorums_list::a_client_of_one_master_alone_is_warned", || {
        Runtime::new().unwrap().block_on(async {
            let servers = masters(3).await;
            quorum(urls(&servers)).await.unwrap();
            let watch = Watch::of("");
            crate::help::connect(&servers[0].url()).await.unwrap();
            let told = watch.told();
            let warned = told.iter().filter(|told| told.level == Level::WARN);
            let warned: Vec<_> = warned.map(|told| &told.text).collect();
            assert_eq!(warned.len(), 1, "{told:?}");
            tells(
                warned[0],
                &[
                    "is a master of a quorum",
                    "redis+quorum://",
                    "DEL tenure1:masters",
                ],
            );
        });
    });
}
