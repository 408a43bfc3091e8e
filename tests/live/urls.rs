//! `Locks::connect` on real servers: each form of a URL leads to its store, with user, password, database and options.

use tenure::{Error, Recovery};

use crate::bad_input::tells;
use crate::deployment::{Deployment, NAME};
use crate::help::{Eyes, held, ms, soon, until};
use crate::server::RedisServer;

/// Returns the hosts of these servers, as a URL lists them.
fn hosts<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> String {
    let hosts = servers
        .into_iter()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    Vec::from_iter(hosts).join(",")
}

/// A password that every place of a URL must survive. No test shows it.
const PASSWORD: &str = "p@s:s/w%rd";
/// As a URL has it.
const ENCODED: &str = "p%40s%3As%2Fw%25rd";

async fn is_used(url: &str, record: &str, server: &RedisServer, password: Option<&str>) {
    let locks = soon(crate::help::connect(url))
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"));
    let guard = held(&locks, "a").await;
    let mut client = server.client();
    if let Some(password) = password {
        redis::cmd("AUTH").arg(password).exec(&mut client).unwrap();
    }
    let database = record.split_once(' ').map_or("0", |(database, _)| database);
    redis::cmd("SELECT").arg(database).exec(&mut client).unwrap();
    let record = record.split_once(' ').map_or(record, |(_, record)| record);
    let there: bool = redis::cmd("EXISTS").arg(record).query(&mut client).unwrap();
    assert!(there, "{url}: {record}");
    soon(guard.release()).await.unwrap();
    soon(locks.shutdown()).await;
}

#[tokio::test]
async fn a_url_leads_to_one_server_with_its_database_and_prefix() {
    let server = RedisServer::with_args(&["--requirepass", PASSWORD, "--unixsocket", "socket"]);
    let at = format!("127.0.0.1:{}", server.port());
    let password = Some(PASSWORD);
    is_used(&format!("redis://:{ENCODED}@{at}"), "lock:a", &server, password).await;
    let url = format!("redis://default:{ENCODED}@{at}/3?prefix=shop%3A&protocol=resp3");
    is_used(&url, "3 shop:a", &server, password).await;
    let url = format!("redis://:{ENCODED}@{at}?recovery=always&longest=1s&lag=0s");
    let builder = crate::help::builder()
        .lease(ms(1_000))
        .recovery(Recovery::OnEvidence);
    let locks = soon(builder.connect(&url)).await.unwrap();
    let mut client = server.client();
    redis::cmd("AUTH").arg(PASSWORD).exec(&mut client).unwrap();
    let longest: String = redis::cmd("GET")
        .arg("tenure1:longest")
        .query(&mut client)
        .unwrap();
    assert!(longest.contains("1000"), "{longest}");
    drop(locks);
}

#[tokio::test]
async fn a_url_leads_to_a_socket_and_to_an_ipv6_address() {
    let server = RedisServer::with_args(&["--bind", "127.0.0.1", "::1"]);
    is_used(
        &format!("redis://[::1]:{}/", server.port()),
        "lock:a",
        &server,
        None,
    )
    .await;
    let path = std::env::temp_dir().join(format!("tenure-url-{}.sock", std::process::id()));
    let path = path.display().to_string();
    let server = RedisServer::with_args(&["--unixsocket", &path]);
    is_used(&format!("unix://{path}?db=2&prefix=a:"), "2 a:a", &server, None).await;
}

/// The Sentinels and their master have passwords of their own, and one Sentinel of three is enough to find the master.
#[tokio::test]
async fn a_url_leads_to_the_master_behind_sentinels() {
    let master = RedisServer::with_args(&["--requirepass", PASSWORD]);
    let monitor = format!("sentinel monitor shop 127.0.0.1 {} 1", master.port());
    let sentinel = RedisServer::sentinel_with(&[&monitor, "requirepass of-the-sentinel"]);
    let url = |password| {
        format!(
            "redis+sentinel://:{ENCODED}@{},127.0.0.1:1,[::1]:1/shop/1?sentinel_password={password}&recovery=evidence",
            hosts([&sentinel])
        )
    };
    let locks = soon(crate::help::connect(&url("of-the-sentinel"))).await.unwrap();
    soon(locks.ping()).await.unwrap();
    let error = soon(crate::help::connect(&url("not-right"))).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    tells(&error, &["password"]);
    assert!(!format!("{error} {error:?}").contains("not-right"), "{error:?}");
}

/// A process that starts while two of three Sentinels are dead finds the master. Where servers recover after each promotion it
/// grants nothing, because the third Sentinel may be cut off. A process that runs goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_sentinels_may_die_while_a_process_runs() {
    let mut deployment = tokio::task::spawn_blocking(Deployment::start).await.unwrap();
    let url = format!("redis+sentinel://{}/{NAME}", hosts(&deployment.sentinels));
    let always = format!("{url}?longest=1s&lag=0s");
    let evidence = format!("{url}?recovery=evidence");
    let connect = |url: &str| {
        let (url, builder) = (url.to_owned(), crate::help::builder().lease(ms(1_000)));
        async move { soon(builder.connect(&url)).await.unwrap() }
    };
    let running = connect(&always).await;
    drop(held(&running, "a").await);
    deployment.sentinels[0].kill();
    deployment.sentinels[1].kill();
    drop(held(&running, "a").await);
    let starting = connect(&always).await;
    let error = soon(starting.mutex("a").lock_timeout(ms(500))).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    drop(held(&connect(&evidence).await, "a").await);
}

#[tokio::test]
async fn a_url_leads_to_a_quorum() {
    let masters = [(); 3].map(|()| RedisServer::with_args(&["--requirepass", PASSWORD]));
    let url = format!(
        "redis+quorum://:{ENCODED}@{}/0?longest=1s&prefix=q:",
        hosts(&masters)
    );
    let builder = crate::help::builder()
        .lease(ms(1_000))
        .request_timeout(ms(10_000));
    let locks = soon(builder.connect(&url)).await.unwrap();
    let guard = held(&locks, "a").await;
    let holders = masters.iter().filter(|master| {
        let mut client = master.client();
        redis::cmd("AUTH").arg(PASSWORD).exec(&mut client).unwrap();
        redis::cmd("EXISTS")
            .arg("q:a")
            .query::<bool>(&mut client)
            .unwrap()
    });
    assert!(holders.count() >= 2);
    soon(guard.release()).await.unwrap();
}

/// Waits until a server has this number of connections of processes, each with this user and this database.
async fn until_connected(server: &RedisServer, count: usize, user: &str, database: u8) {
    let mut eyes = Eyes::on(server);
    let (user, database) = (format!(" user={user} "), format!(" db={database} "));
    let is_connected = || {
        let clients: String = eyes.text("CLIENT LIST");
        let is_other = |client: &&str| client.contains(" cmd=client") || client.contains(" name=sentinel-");
        let clients = clients.lines().filter(|client| !is_other(client));
        let clients = Vec::from_iter(clients);
        let is_alike = |client: &&str| client.contains(&user) && client.contains(&database);
        clients.len() == count && clients.iter().all(is_alike)
    };
    let what = format!("{count} connections with{user}and{database}");
    until(&what, is_connected).await;
}

/// Lets these users in, beside the default user without a password.
fn add_users<const N: usize>(server: &RedisServer, users: [&str; N]) {
    for user in users {
        Eyes::on(server).text::<()>(&format!("ACL SETUSER {user} on >secret ~* &* +@all"));
    }
}

/// The addresses are those that the Sentinels and the list of masters give. The inbox has the user and the database, too.
#[tokio::test]
async fn each_address_is_used_with_the_user_and_the_database() {
    // A busy machine does not answer within less.
    let patient = || crate::help::builder().request_timeout(ms(10_000));
    let master = RedisServer::start();
    add_users(&master, ["shop"]);
    let sentinel = RedisServer::sentinel(NAME, master.port());
    let at = hosts([&sentinel]);
    let url = format!("redis+sentinel://shop:secret@{at}/{NAME}/2?recovery=evidence");
    let locks = soon(patient().connect(&url)).await.unwrap();
    until_connected(&master, 2, "shop", 2).await;
    drop(locks);

    let masters = [(); 3].map(|()| RedisServer::start());
    for master in &masters {
        add_users(master, ["shop", "first", "second", "third"]);
    }
    let url = format!("redis+quorum://shop:secret@{}/2", hosts(&masters));
    let locks = soon(patient().connect(&url)).await.unwrap();
    for master in &masters {
        until_connected(master, 1, "shop", 2).await;
    }
    drop(locks);

    // The client of each master has its own.
    let of_each = [("first", 3), ("second", 4), ("third", 5)];
    let clients = masters.iter().zip(of_each).map(|(master, (user, database))| {
        let url = format!("redis://{user}:secret@{}/{database}", hosts([master]));
        redis::Client::open(url).unwrap()
    });
    let of_clients = patient().quorum(clients.collect(), ms(10_000));
    let _locks = soon(of_clients).await.unwrap();
    for (master, (user, database)) in masters.iter().zip(of_each) {
        until_connected(master, 1, user, database).await;
    }
}

#[tokio::test]
async fn a_url_leads_to_a_cluster() {
    let cluster = crate::cluster::Cluster::start(3, 0);
    let urls = cluster.urls();
    let first = urls[0].trim_start_matches("redis://");
    let url = format!("redis+cluster://127.0.0.1:1,{first}");
    let locks = soon(crate::help::connect(&url)).await.unwrap();
    for key in ["a", "b", "c"] {
        soon(held(&locks, key).await.release()).await.unwrap();
    }
    let is_used = |at| {
        Eyes::on(cluster.server(at))
            .text::<String>("INFO commandstats")
            .contains("evalsha")
    };
    assert!((0..3).any(is_used));
}
