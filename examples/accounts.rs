//! Two replicas of a service, and a hundred withdrawals at once. Without `LockLayer` money is lost; with it, none is.
//!
//! Both runs, in this process's memory, in one second:
//!
//!     cargo run --example accounts
//!
//! With the locks and the accounts on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example accounts
//!
//! With the locks on a Redis Cluster, and the accounts in this process's memory. One of the cluster's servers is enough:
//!
//!     TENURE_URL=redis+cluster://127.0.0.1:7000 cargo run --example accounts
//!
//! Two replicas that run until Ctrl-C, with curl commands to try:
//!
//!     cargo run --example accounts -- --serve
//!
//! One replica. Start it in two terminals for two processes:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example accounts -- --replica

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tenure::middleware::keys;
use tenure::{Fence, Lease, LockLayer, Locks};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const RACY: u64 = 1;
const GUARDED: u64 = 2;
const OPENED_WITH: i64 = 1_000;
const WITHDRAWALS: i64 = 100;

// The service.

fn service(locks: &Locks, ledger: Ledger) -> Router {
    let one_at_a_time =
        LockLayer::new(locks, keys::path_param::<u64>("id").named("account")).wait(Duration::from_secs(30));
    Router::new()
        .route("/accounts/{id}/withdraw/{amount}", post(withdraw))
        .route_layer(one_at_a_time)
        // The layer does not apply to routes that are added after it.
        .route("/racy/{id}/withdraw/{amount}", post(withdraw))
        .route("/accounts/{id}", get(balance))
        .with_state(ledger)
}

/// Reads the balance, pauses and writes the new one. A concurrent withdrawal breaks this.
async fn withdraw(
    State(ledger): State<Ledger>,
    Path((id, amount)): Path<(u64, i64)>,
    lease: Option<Lease>,
) -> Result<Response, Trouble> {
    let balance = ledger.read(id).await?;
    if balance < amount {
        return Ok((StatusCode::CONFLICT, format!("only {balance} left\n")).into_response());
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    ledger
        .write(id, balance - amount, lease.map(|lease| lease.fence()))
        .await?;
    Ok(format!("{amount} paid out, {} left\n", balance - amount).into_response())
}

async fn balance(State(ledger): State<Ledger>, Path(id): Path<u64>) -> Result<String, Trouble> {
    Ok(format!("{}\n", ledger.read(id).await?))
}

/// An error of a handler; its response is 500.
struct Trouble(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Trouble(error.into())
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", self.0)).into_response()
    }
}

// The accounts. Each stores the largest fence that has written it, and refuses smaller ones. So it refuses a writer that
// slept through its lease. It accepts every write without a fence.

#[derive(Clone)]
enum Ledger {
    Memory(Arc<Mutex<HashMap<u64, (i64, u64)>>>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection),
}

/// Fences are larger than a Lua number can hold exactly. Padded with zeros, they compare as text.
#[cfg(feature = "redis")]
const WRITE: &str = r"
    if ARGV[2] ~= '' then
        if ARGV[2] < (redis.call('HGET', KEYS[1], 'fence') or '') then return 0 end
        redis.call('HSET', KEYS[1], 'fence', ARGV[2])
    end
    redis.call('HSET', KEYS[1], 'balance', ARGV[1])
    redis.call('EXPIRE', KEYS[1], 3600)
    return 1";

impl Ledger {
    async fn read(&self, id: u64) -> Result<i64, Box<dyn Error + Send + Sync>> {
        match self {
            Ledger::Memory(accounts) => {
                let accounts = accounts.lock().unwrap();
                Ok(accounts.get(&id).ok_or("no such account")?.0)
            }
            #[cfg(feature = "redis")]
            Ledger::Redis(connection) => {
                let mut read = redis::cmd("HGET");
                let read = read.arg(format!("tenure-example:account:{id}")).arg("balance");
                let balance: Option<i64> = read.query_async(&mut connection.clone()).await?;
                Ok(balance.ok_or("no such account")?)
            }
        }
    }

    async fn write(
        &self,
        id: u64,
        balance: i64,
        fence: Option<Fence>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let written = match self {
            Ledger::Memory(accounts) => {
                let mut accounts = accounts.lock().unwrap();
                let account = accounts.entry(id).or_default();
                let fence = fence.map_or(account.1, Fence::get);
                let fresh = fence >= account.1;
                if fresh {
                    *account = (balance, fence);
                }
                fresh
            }
            #[cfg(feature = "redis")]
            Ledger::Redis(connection) => {
                let fence = fence
                    .map(|fence| format!("{:020}", fence.get()))
                    .unwrap_or_default();
                let write = redis::Script::new(WRITE);
                let mut write = write.key(format!("tenure-example:account:{id}"));
                write
                    .arg(balance)
                    .arg(fence)
                    .invoke_async(&mut connection.clone())
                    .await?
            }
        };
        if written {
            Ok(())
        } else {
            Err("refused: the account was written under a newer fence".into())
        }
    }
}

// The replicas.

struct World {
    url: String,
    ledger: Ledger,
}

impl World {
    async fn new() -> Result<World, Box<dyn Error + Send + Sync>> {
        let url = std::env::var("TENURE_URL").unwrap_or_else(|_| "memory://".to_owned());
        #[cfg(feature = "redis")]
        if url.starts_with("redis:") {
            let client = redis::Client::open(url.as_str())?;
            let ledger = Ledger::Redis(client.get_multiplexed_async_connection().await?);
            return Ok(World { url, ledger });
        }
        // The locks may be on a cluster or on a quorum, which keep no ledger.
        let ledger = Ledger::Memory(Arc::default());
        Ok(World { url, ledger })
    }

    /// Returns the `Locks` of one replica. Each replica has its own, as each process has.
    async fn locks(&self) -> Result<Locks, Box<dyn Error + Send + Sync>> {
        Ok(Locks::connect(&self.url).await?)
    }

    async fn replica(&self) -> Result<SocketAddr, Box<dyn Error + Send + Sync>> {
        let service = service(&self.locks().await?, self.ledger.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, service).await });
        Ok(address)
    }

    async fn open_accounts(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.ledger.write(RACY, OPENED_WITH, None).await?;
        self.ledger.write(GUARDED, OPENED_WITH, None).await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let world = World::new().await?;
    match std::env::args().nth(1).as_deref() {
        None => show(&world).await,
        Some("--serve") => serve(&world, 2).await,
        Some("--replica") if world.url.starts_with("redis:") => serve(&world, 1).await,
        Some("--replica") => Err("two processes share nothing but a Redis: set TENURE_URL=redis://…".into()),
        Some(other) => Err(format!("`{other}` is neither --serve nor --replica").into()),
    }
}

async fn serve(world: &World, replicas: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Another process may have opened the accounts already.
    if world.ledger.read(GUARDED).await.is_err() {
        world.open_accounts().await?;
    }
    for _ in 0..replicas {
        let at = world.replica().await?;
        println!("a replica listens on {at}");
        println!("    curl -X POST http://{at}/accounts/{GUARDED}/withdraw/10    # one at a time");
        println!("    curl -X POST http://{at}/racy/{RACY}/withdraw/10");
        println!("    curl http://{at}/accounts/{GUARDED}");
    }
    println!("Ctrl-C ends it");
    Ok(tokio::signal::ctrl_c().await?)
}

async fn show(world: &World) -> Result<(), Box<dyn Error + Send + Sync>> {
    world.open_accounts().await?;
    let replicas = [world.replica().await?, world.replica().await?];
    let store = match world.url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "redis" => "accounts and locks on Redis".to_owned(),
        "memory" => "accounts and locks in memory".to_owned(),
        scheme => format!("locks on {scheme}"),
    };
    println!("Two replicas, {store}: {WITHDRAWALS} withdrawals of 10 at once from {OPENED_WITH}.\n");

    let lost = storm(world, replicas, "racy", RACY).await?;
    println!("without the layer  {lost}");
    let exact = storm(world, replicas, "accounts", GUARDED).await?;
    println!("with the layer     {exact}");

    // A holder sleeps through its lease and then writes. The lock cannot stop it; the fence check of the account does.
    let mutex = world.locks().await?.mutex(format!("account:{GUARDED}"));
    let sleeper = mutex.with(|lease| async move { lease.fence() }).await?;
    let next = mutex.with(|lease| async move { lease.fence() }).await?;
    world.ledger.write(GUARDED, 0, Some(next)).await?;
    let late = world.ledger.write(GUARDED, OPENED_WITH, Some(sleeper)).await;
    println!(
        "a late writer      {}",
        late.as_ref()
            .err()
            .map_or("got through".into(), ToString::to_string)
    );

    if exact.is_exact() && late.is_err() {
        Ok(())
    } else {
        Err("money was lost under the lock".into())
    }
}

/// The result of many withdrawals at once.
struct Books {
    paid: i64,
    left: i64,
}

/// Sends all withdrawals at once, to both replicas in turn.
async fn storm(
    world: &World,
    replicas: [SocketAddr; 2],
    route: &str,
    id: u64,
) -> Result<Books, Box<dyn Error + Send + Sync>> {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let mut answers = JoinSet::new();
    for replica in replicas.iter().cycle().take(WITHDRAWALS as usize) {
        let request =
            Request::post(format!("http://{replica}/{route}/{id}/withdraw/10")).body(Body::empty())?;
        answers.spawn(client.request(request));
    }
    let mut paid = 0;
    while let Some(answer) = answers.join_next().await {
        if answer??.status().is_success() {
            paid += 10;
        }
    }
    Ok(Books {
        paid,
        left: world.ledger.read(id).await?,
    })
}

impl Books {
    fn is_exact(&self) -> bool {
        self.paid + self.left == OPENED_WITH && self.paid == 10 * WITHDRAWALS
    }
}

impl std::fmt::Display for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Books { paid, left } = self;
        write!(f, "{paid:>4} paid out, the books say {left:>4} left: ")?;
        match paid + left - OPENED_WITH {
            0 => f.write_str("exact"),
            gone => write!(f, "{gone} lost"),
        }
    }
}
