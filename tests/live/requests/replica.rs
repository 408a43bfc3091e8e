//! A replica of the service: this test binary as a process of its own.

use std::io::BufRead;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use tenure::middleware::{BufferBody, keys};
use tenure::{LockLayer, Locks};
use tokio::net::TcpListener;

use crate::help::{Other, locks, ms};
use crate::requests::ledger::Ledger;
use crate::requests::orders::{MAX_TRANSFER, Order, Transfer};

const URL: &str = "TENURE_REPLICA_URL";
const LAYERS: &str = "TENURE_REPLICA_LAYERS";
const ADDR: &str = "TENURE_REPLICA_ADDR";

const LEASE: Duration = ms(3_000);
/// Shorter than a lease: some who wait for what a killed replica holds are told that they waited too long.
const WAIT: Duration = ms(2_000);

/// What is around the handler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layers {
    /// One attempt at a time that is done to its end, and one order at a time at an account.
    Both,
    /// The same, but who leaves has its handler dropped.
    NoCompletion,
    /// As `Both`, but a transfer locks only the account that pays.
    OneAccount,
    None,
}

/// Not a test but the body of a replica.
#[test]
fn plays_a_role() {
    let Ok(url) = std::env::var(URL) else { return };
    let layers = match std::env::var(LAYERS).unwrap().as_str() {
        "Both" => Layers::Both,
        "NoCompletion" => Layers::NoCompletion,
        "OneAccount" => Layers::OneAccount,
        _ => Layers::None,
    };
    let addr: SocketAddr = std::env::var(ADDR).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let locks = locks(&url, LEASE).await;
        let app = app(&locks, Ledger::connect(&url).await, layers);
        let listener = TcpListener::bind(addr).await.unwrap();
        println!("@listens {}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        loop {
            let heard = tokio::task::spawn_blocking(|| {
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line).map(|_| line)
            });
            match heard.await.unwrap().unwrap().trim() {
                "drain" => {
                    locks.shutdown().await;
                    println!("@drained");
                }
                // The tests have ended.
                _ => return,
            }
        }
    });
}

fn app(locks: &Locks, ledger: Ledger, layers: Layers) -> Router {
    let mut withdrawals = Router::new().route("/accounts/{id}/withdraw", post(withdraw));
    let mut transfers = Router::new().route("/transfers", post(transfer));
    if layers != Layers::None {
        let account = keys::path_param::<u64>("id").named("account");
        let payer = |Json((from, _, _)): Json<Transfer>| ("account", from);
        let accounts = |Json((from, to, _)): Json<Transfer>| [("account", from), ("account", to)];
        let attempts = LockLayer::new(locks, keys::idempotency_key()).wait(WAIT);
        let attempts = attempts.run_to_completion(layers != Layers::NoCompletion);
        withdrawals = withdrawals
            .route_layer(LockLayer::new(locks, account).wait(WAIT))
            .route_layer(attempts.clone());
        transfers = match layers {
            Layers::OneAccount => transfers.route_layer(LockLayer::from_request(locks, payer).wait(WAIT)),
            _ => transfers.route_layer(LockLayer::from_request(locks, accounts).wait(WAIT)),
        };
        transfers = transfers.route_layer(attempts);
    }
    // A client that sends slowly holds neither an attempt nor an account.
    let transfers = transfers.route_layer(BufferBody::new(MAX_TRANSFER));
    withdrawals.merge(transfers).with_state(ledger)
}

async fn withdraw(State(ledger): State<Ledger>, Path(account): Path<u64>, headers: HeaderMap) -> String {
    carry_out(ledger, Order::Withdrawal { account }, &headers).await
}

async fn transfer(
    State(ledger): State<Ledger>,
    headers: HeaderMap,
    Json((from, to, amount)): Json<Transfer>,
) -> String {
    carry_out(ledger, Order::Transfer { from, to, amount }, &headers).await
}

async fn carry_out(ledger: Ledger, order: Order, headers: &HeaderMap) -> String {
    let attempt = headers["idempotency-key"].to_str().unwrap().to_owned();
    // What a database was sent it carries out, whether or not somebody waits for it.
    let statement = tokio::spawn(async move { ledger.carry_out(order, &attempt).await });
    format!("{} left", statement.await.unwrap())
}

/// One that runs.
pub struct Replica {
    process: Other,
    addr: SocketAddr,
    url: String,
    layers: Layers,
}

impl Replica {
    pub fn start(url: &str, layers: Layers) -> Replica {
        let (process, addr) = spawn(url, layers, SocketAddr::from(([127, 0, 0, 1], 0)));
        Replica {
            process,
            addr,
            url: url.to_owned(),
            layers,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// With SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// It goes on to answer, and takes no more locks.
    pub fn drain(&mut self) {
        self.process.tells("drain");
    }

    /// At the same address.
    pub fn restart(&mut self) {
        (self.process, _) = spawn(&self.url, self.layers, self.addr);
    }
}

fn spawn(url: &str, layers: Layers, addr: SocketAddr) -> (Other, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "requests::replica::plays_a_role",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(URL, url)
        .env(LAYERS, format!("{layers:?}"))
        .env(ADDR, addr.to_string());
    let mut process = Other::runs(command);
    let addr = process.hears("listens").parse().unwrap();
    (process, addr)
}
