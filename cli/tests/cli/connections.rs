//! Stores other than a plain server: behind Sentinels, a cluster, TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::server::{RedisServer, ReservedPort};
use crate::tools::{run, second, until};

fn set(server: &RedisServer, key: &str) {
    redis::cmd("SET")
        .arg(&[key, "abc"])
        .exec(&mut server.client())
        .unwrap();
}

#[test]
fn a_master_is_found_behind_sentinels() {
    let master = RedisServer::start();
    set(&master, "lock:a");
    let sentinel = RedisServer::sentinel("db", master.port());
    let url = |name| {
        format!(
            "redis+sentinel://127.0.0.1:{},127.0.0.1:1/{name}",
            sentinel.port()
        )
    };
    assert_eq!(second(&run(&["ls", "--url", &url("db")]).well()), ["a"]);
    run(&["ls", "--url", &url("other")]).refuses(3, "`other`");
}

/// The URL of the services is enough, although no lease of theirs is as long as one by default.
#[test]
fn the_longest_lease_of_the_services_may_be_short() {
    let server = RedisServer::start();
    set(&server, "lock:a");
    let url = format!("{}?recovery=always&longest=3s&lag=100ms", server.url());
    assert_eq!(second(&run(&["ls", "--url", &url]).well()), ["a"]);
}

#[test]
fn a_master_may_have_a_password_that_its_sentinels_do_not_have() {
    let master = RedisServer::start();
    set(&master, "lock:a");
    let secure = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "hunter2"])
        .exec(&mut master.client());
    secure.unwrap();
    let sentinel = RedisServer::sentinel("db", master.port());
    let url = |user| format!("redis+sentinel://{user}127.0.0.1:{}/db", sentinel.port());
    run(&["ls", "--url", &url("")]).refuses(3, "NOAUTH");
    let table = run(&["ls", "--url", &url(":hunter2@")]).well();
    assert_eq!(second(&table), ["a"]);
}

/// Starts a cluster of so many masters.
pub async fn cluster(masters: usize) -> Vec<RedisServer> {
    let start = || RedisServer::with_args(&["--cluster-enabled", "yes"]);
    let servers: Vec<_> = std::iter::repeat_with(start).take(masters).collect();
    for (at, server) in servers.iter().enumerate() {
        let slots: Vec<usize> = (at * 16_384 / masters..(at + 1) * 16_384 / masters).collect();
        let mut client = server.client();
        let added = redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut client);
        added.unwrap();
        let epoch = redis::cmd("CLUSTER")
            .arg("SET-CONFIG-EPOCH")
            .arg(at + 1)
            .exec(&mut client);
        epoch.unwrap();
        let first = servers[0].port().to_string();
        let met = redis::cmd("CLUSTER")
            .arg(&["MEET", "127.0.0.1", &first])
            .exec(&mut client);
        met.unwrap();
    }
    until("each server knows all slots and servers", async || {
        servers.iter().all(|server| {
            let info: String = redis::cmd("CLUSTER")
                .arg("INFO")
                .query(&mut server.client())
                .unwrap();
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{masters}\r"))
        })
    })
    .await;
    servers
}

#[tokio::test]
async fn a_cluster_is_listed() {
    let server = cluster(1).await.remove(0);
    set(&server, "lock:a");
    let url = server.url().replace("redis://", "redis+cluster://");
    assert_eq!(second(&run(&["ls", "--url", &url]).well()), ["a"]);
    // The prefix of the URL comes before that of the command.
    let args = [
        "ls",
        "--prefix",
        "other:",
        "--url",
        &format!("{url}?prefix=lock:"),
    ];
    assert_eq!(second(&run(&args).well()), ["a"]);
}

/// The files of a certificate authority, and of a certificate for server and client.
struct Files(PathBuf);

impl Files {
    fn new() -> Files {
        let files = Files(std::env::temp_dir().join(format!("tenure-cli-tls-{}", std::process::id())));
        std::fs::create_dir_all(&files.0).unwrap();
        std::fs::write(files.0.join("ext"), "subjectAltName=IP:127.0.0.1\n").unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for line in [
            &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=tenure-tests"),
            &format!("req {key} -keyout own.key -out own.csr -subj /CN=own"),
            "x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out own.pem",
        ] {
            openssl(&files.0, line);
        }
        files
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn openssl(dir: &Path, line: &str) {
    let mut command = Command::new("openssl");
    let command = command
        .args(line.split(' '))
        .current_dir(dir)
        .stdin(Stdio::null());
    let output = command.output().expect("apt-get install openssl");
    assert!(output.status.success(), "openssl {line}: {output:?}");
}

#[test]
fn certificates_come_from_files() {
    let files = Files::new();
    let (ca, cert, key) = (files.path("ca.pem"), files.path("own.pem"), files.path("own.key"));
    let reserved = ReservedPort::new();
    let port = reserved.get().to_string();
    let server = RedisServer::with_args(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ]);
    set(&server, "lock:a");
    let url = format!("rediss://127.0.0.1:{port}/");
    let args = ["ls", "--url", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
    assert_eq!(second(&run(&args).well()), ["a"]);
    // The server asks for a certificate, and the system does not trust its authority.
    assert_eq!(run(&args[..5]).code, 3);
    assert_eq!(run(&args[..3]).code, 3);
}
