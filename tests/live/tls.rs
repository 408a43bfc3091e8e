//! `rediss://` with certificates that the test creates.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Error, Locks};

use crate::help::{Eyes, HOUR, Other, held, ms, soon, until};
use crate::server::{RedisServer, ReservedPort};

/// A private certificate authority with its files: `ca.pem`, and the keys and certificates of `server` and `client`.
struct Authority {
    dir: PathBuf,
}

impl Authority {
    fn new() -> Authority {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let n = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tenure-tls-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(
            &dir,
            &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=tenure-tests"),
        );
        std::fs::write(dir.join("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
        for who in ["server", "client"] {
            openssl(
                &dir,
                &format!("req {key} -keyout {who}.key -out {who}.csr -subj /CN={who}"),
            );
            openssl(
                &dir,
                &format!(
                    "x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {who}.pem"
                ),
            );
        }
        Authority { dir }
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    /// The options of a server with this TLS port.
    fn options(&self, port: u16, asks_for_certificates: bool) -> [(&'static str, String); 5] {
        let asks = if asks_for_certificates { "yes" } else { "no" };
        [
            ("tls-port", port.to_string()),
            ("tls-cert-file", self.path("server.pem")),
            ("tls-key-file", self.path("server.key")),
            ("tls-ca-cert-file", self.path("ca.pem")),
            ("tls-auth-clients", asks.to_owned()),
        ]
    }

    /// Returns a client that trusts only this authority, with or without its own certificate.
    fn client(&self, url: String, certified: bool) -> redis::Client {
        redis::Client::build_with_tls(url, self.certificates(certified)).unwrap()
    }

    /// Returns the certificate of the authority, with or without one of a client.
    fn certificates(&self, certified: bool) -> redis::TlsCertificates {
        let read = |file: &str| std::fs::read(self.path(file)).unwrap();
        let client_tls = certified.then(|| redis::ClientTlsConfig {
            client_cert: read("client.pem"),
            client_key: read("client.key"),
        });
        redis::TlsCertificates {
            client_tls,
            root_cert: Some(read("ca.pem")),
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn openssl(dir: &Path, line: &str) {
    let mut command = Command::new("openssl");
    command
        .args(line.split(' '))
        .current_dir(dir)
        .stdin(Stdio::null());
    let output = command.output().expect("apt-get install openssl");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {line}: {said}");
}

/// A server with a TLS port beside the plain port.
struct TlsServer {
    plain: RedisServer,
    port: ReservedPort,
    authority: Authority,
}

impl TlsServer {
    /// Starts the server. Clients need a certificate of the authority if `asks_for_certificates`.
    fn start(asks_for_certificates: bool) -> TlsServer {
        let authority = Authority::new();
        let port = ReservedPort::new();
        let options = authority.options(port.get(), asks_for_certificates);
        let args: Vec<_> = options
            .iter()
            .flat_map(|(name, value)| [format!("--{name}"), value.clone()])
            .collect();
        let plain = RedisServer::with_args(&args.iter().map(String::as_str).collect::<Vec<_>>());
        TlsServer {
            plain,
            port,
            authority,
        }
    }

    fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}/", self.port.get())
    }

    /// Returns a client that trusts only the authority, with or without its own certificate.
    fn client(&self, certified: bool) -> redis::Client {
        self.authority.client(self.url(), certified)
    }
}

/// Connects, and retries if a busy machine takes too long: the answer of a Sentinel is awaited for 500 ms.
async fn connect_at_last(connect: impl AsyncFn() -> Result<Locks, Error>) -> Locks {
    soon(async {
        loop {
            match connect().await {
                Ok(locks) => return locks,
                Err(error) => println!("{error}"),
            }
        }
    })
    .await
}

/// Waits until a process listens for pushed grants.
async fn until_inbox(server: &RedisServer) {
    let mut eyes = Eyes::on(server);
    until("the inbox is open", || {
        !eyes.text::<Vec<String>>("PUBSUB CHANNELS tenure1:*").is_empty()
    })
    .await;
}

/// A process that trusts the authority like those of its system needs only the URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_is_enough_where_the_authority_is_trusted() {
    let server = TlsServer::start(false);
    let mut eyes = Eyes::on(&server.plain);
    let play = |role| {
        let mut command = Other::command(role, &server.url(), "a", ms(30_000));
        command.env("SSL_CERT_FILE", server.authority.path("ca.pem"));
        Other::runs(command)
    };
    let mut claim_id = play("holds");
    claim_id.hears("holds");
    assert!(eyes.owner("a").is_some());
    let mut waiter = play("waits");
    waiter.hears("waits");
    until("the caller waits", || eyes.queue("a") == 1).await;
    claim_id.nod();
    claim_id.hears("released");
    waiter.hears("holds");
}

/// redis-rs reads certificates from files before each connection. An unreadable file, here a pipe without a writer, does not
/// stop the thread that renews: its timers continue, and one of them ends the attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_certificate_files_stop_no_timer() {
    let server = TlsServer::start(false);
    let pipe = server.authority.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = Other::command("cannot connect", &server.url(), "a", ms(30_000));
    command.env("SSL_CERT_FILE", &pipe);
    assert_eq!(Other::runs(command).hears("refused"), "true");
}

/// A server with an untrusted certificate gives an error with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_certificate_is_an_error() {
    let server = TlsServer::start(false);
    let error = soon(crate::help::connect(&server.url()))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("certificate"), "{error}");
}

/// The error of a TLS connection to a plain port says what to check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_a_plain_port_is_an_error() {
    let server = RedisServer::start();
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    let error = soon(crate::help::connect(&url)).await.unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
}

/// The error of a plain connection to a TLS port says what to check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_connection_to_a_tls_port_is_an_error() {
    let server = TlsServer::start(false);
    let url = format!("redis://127.0.0.1:{}/", server.port.get());
    let error = soon(crate::help::connect(&url)).await.unwrap_err().to_string();
    assert!(error.contains("TLS") && error.contains("rediss://"), "{error}");
}

/// A client brings the settings that a URL cannot express, here its own authority. Commands and pushed grants use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_brings_an_authority() {
    let server = TlsServer::start(false);
    let mut eyes = Eyes::on(&server.plain);
    let one = crate::help::builder().client(server.client(false)).await.unwrap();
    // A timer takes an hour or more.
    let other = crate::help::builder()
        .lease(12 * HOUR)
        .client(server.client(false));
    let other = other.await.unwrap();
    until_inbox(&server.plain).await;
    let guard = held(&one, "a").await;
    let waiter = tokio::spawn(other.mutex("a").lock());
    until("the caller waits", || eyes.queue("a") == 1).await;
    soon(guard.release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    eyes.until_empty().await;
}

/// A client brings a certificate if the server asks for one. Without a certificate there is an error at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_brings_a_certificate() {
    let server = TlsServer::start(true);
    let locks = crate::help::builder().client(server.client(true)).await.unwrap();
    held(&locks, "a").await.release().await.unwrap();
    let error = soon(crate::help::builder().client(server.client(false)))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}

/// Sentinels, their master, and the masters of a quorum ask for a certificate of a private authority. The connections have what the
/// client for the servers has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authority_and_the_certificate_of_a_client_hold_for_sentinels_and_a_quorum() {
    let server = TlsServer::start(true);
    let reserved = ReservedPort::new();
    let port = reserved.get();
    let options = server.authority.options(port, true);
    let mut lines: Vec<_> = options
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    lines.push("tls-replication yes".into());
    lines.push(format!("sentinel monitor shop 127.0.0.1 {} 1", server.port.get()));
    let _sentinel = RedisServer::sentinel_with(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let sentinel = format!("rediss://127.0.0.1:{port}");
    let recovers = tenure::Recovery::OnEvidence;
    let builder = || crate::help::builder().recovery(recovers);
    let locks =
        connect_at_last(async || builder().sentinel("shop", [&sentinel], server.client(true)).await).await;
    held(&locks, "a").await.release().await.unwrap();
    until_inbox(&server.plain).await;
    // Without the certificate the Sentinel refuses the connection.
    let refused = builder().sentinel("shop", [&sentinel], server.client(false));
    assert!(matches!(soon(refused).await, Err(Error::Connect { .. })));
    // The same by a URL.
    let url = format!("rediss+sentinel://127.0.0.1:{port}/shop");
    let with = |certified| builder().tls(server.authority.certificates(certified));
    let locks = connect_at_last(async || with(true).connect(&url).await).await;
    held(&locks, "b").await.release().await.unwrap();
    assert!(matches!(
        soon(with(false).connect(&url)).await,
        Err(Error::Connect { .. })
    ));

    let masters = [
        TlsServer::start(true),
        TlsServer::start(true),
        TlsServer::start(true),
    ];
    let clients = masters.iter().map(|master| master.client(true)).collect();
    let locks = crate::help::builder()
        .lease(ms(1_000))
        .quorum(clients, ms(1_000))
        .await
        .unwrap();
    held(&locks, "a").await.release().await.unwrap();
}

/// One authority holds for each master of a quorum that a URL names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authority_of_a_builder_holds_for_a_quorum() {
    let (authority, reserved) = (Authority::new(), [(); 3].map(|()| ReservedPort::new()));
    let ports = reserved.each_ref().map(ReservedPort::get);
    let masters = ports.map(|port| {
        let options = authority.options(port, true).into_iter();
        let args: Vec<_> = options
            .flat_map(|(name, value)| [format!("--{name}"), value])
            .collect();
        RedisServer::with_args(&args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let url = format!("rediss+quorum://{hosts}?longest=1s");
    let builder = || crate::help::builder().lease(ms(1_000));
    let locks = soon(builder().tls(authority.certificates(true)).connect(&url))
        .await
        .unwrap();
    held(&locks, "a").await.release().await.unwrap();
    let error = soon(builder().tls(authority.certificates(false)).connect(&url)).await;
    assert!(matches!(error, Err(Error::Connect { .. })));
    drop(masters);
}

/// Certificates that would have no effect are refused.
#[tokio::test]
async fn certificates_without_effect_are_refused() {
    let authority = Authority::new();
    let builder = || crate::help::builder().lazy().tls(authority.certificates(false));
    for url in ["redis://one", "redis+cluster://one", "memory://"] {
        let error = builder().connect(url).await.unwrap_err();
        assert!(
            matches!(error, Error::Options(_)) && error.to_string().contains("`Builder::tls`"),
            "{error}"
        );
    }
    let client = redis::Client::open("redis://one").unwrap();
    let error = builder().client(client).await.unwrap_err();
    assert!(error.to_string().contains("`Builder::tls`"), "{error}");
}

/// A cluster asks for a certificate of a private authority, and its connections have that of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authority_and_the_certificate_of_a_client_hold_for_a_cluster() {
    let (authority, reserved) = (Authority::new(), ReservedPort::new());
    let port = reserved.get();
    let mut args = vec![
        "--cluster-enabled".to_owned(),
        "yes".into(),
        "--tls-cluster".into(),
        "yes".into(),
    ];
    for (name, value) in authority.options(port, true) {
        args.extend([format!("--{name}"), value]);
    }
    let server = RedisServer::with_args(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut eyes = Eyes::on(&server);
    eyes.text::<()>("CLUSTER ADDSLOTSRANGE 0 16383");
    until("the cluster serves", || {
        eyes.text::<String>("CLUSTER INFO").contains("cluster_state:ok")
    })
    .await;
    let url = format!("rediss://127.0.0.1:{port}");
    let client = |certified| authority.client(url.clone(), certified);
    let locks = connect_at_last(async || crate::help::builder().cluster([&url], client(true)).await).await;
    held(&locks, "a").await.release().await.unwrap();
    until_inbox(&server).await;
    let of_cluster = format!("rediss+cluster://127.0.0.1:{port}");
    let builder = || crate::help::builder().tls(authority.certificates(true));
    let locks = connect_at_last(async || builder().connect(&of_cluster).await).await;
    held(&locks, "b").await.release().await.unwrap();
    assert!(
        soon(crate::help::builder().cluster([&url], client(false)))
            .await
            .is_err()
    );
    // A URL cannot ask for less than the client, or for other users.
    for other in [
        format!("redis://127.0.0.1:{port}"),
        format!("rediss://u:hunter2@127.0.0.1:{port}"),
    ] {
        let error = crate::help::builder()
            .cluster([&other], client(true))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
