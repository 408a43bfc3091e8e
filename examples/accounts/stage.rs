//! Two replicas and a hundred withdrawals, then a late writer, and what came of it.

#[path = "../replicas/mod.rs"]
pub(crate) mod replicas;

use std::fmt;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::routing::post;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tenure::Locks;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::ledger::Ledger;
use crate::{Answer, BoxError, Withdrawal, pay_out, service};
use replicas::store::Store;

const RACY: u64 = 1;
const GUARDED: u64 = 2;
const OPENED_WITH: i64 = 1_000;
const WITHDRAWALS: i64 = 100;

/// Returns a withdrawal that no layer protects.
fn racy_route(ledger: Ledger) -> Router {
    Router::new()
        .route("/racy/{id}/withdraw/{amount}", post(withdraw_without_lock))
        .with_state(ledger)
}

async fn withdraw_without_lock(State(ledger): State<Ledger>, path: Withdrawal) -> Answer {
    pay_out(&ledger, path, None).await
}

struct World {
    store: Store,
    ledger: Ledger,
}

impl World {
    async fn new() -> Result<World, BoxError> {
        let store = Store::from_env();
        let ledger = Ledger::open(store.data_url()).await?;
        Ok(World { store, ledger })
    }

    /// Returns the `Locks` of one replica. Each replica has its own, as each process has.
    async fn locks(&self) -> Result<Locks, BoxError> {
        Ok(Locks::connect(self.store.url()).await?)
    }

    async fn replica(&self) -> Result<SocketAddr, BoxError> {
        let service = service(&self.locks().await?, self.ledger.clone());
        let service = service.merge(racy_route(self.ledger.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, service).await });
        Ok(address)
    }

    async fn open_accounts(&self) -> Result<(), BoxError> {
        self.ledger.write(RACY, OPENED_WITH, None).await?;
        self.ledger.write(GUARDED, OPENED_WITH, None).await
    }
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let world = World::new().await?;
    match std::env::args().nth(1).as_deref() {
        None => show(&world).await,
        Some("--serve") => serve(&world, 2).await,
        Some("--replica") if !world.store.is_memory() && world.store.data_url().is_some() => {
            serve(&world, 1).await
        }
        Some("--replica") => Err("two processes share nothing but a Redis: set TENURE_URL=redis://…".into()),
        Some(other) => Err(format!("`{other}` is neither --serve nor --replica").into()),
    }
}

async fn serve(world: &World, replicas: usize) -> Result<(), BoxError> {
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

async fn show(world: &World) -> Result<(), BoxError> {
    world.open_accounts().await?;
    let replicas = [world.replica().await?, world.replica().await?];
    let place = world.store.place_of("accounts", "locks");
    println!("Two replicas, {place}: {WITHDRAWALS} withdrawals of 10 at once from {OPENED_WITH}.\n");

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
    let outcome = match &late {
        Ok(()) => "got through".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("a late writer      {outcome}");

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
async fn storm(world: &World, replicas: [SocketAddr; 2], route: &str, id: u64) -> Result<Books, BoxError> {
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

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Books { paid, left } = self;
        write!(f, "{paid:>4} paid out, the books say {left:>4} left: ")?;
        match paid + left - OPENED_WITH {
            0 => f.write_str("exact"),
            gone => write!(f, "{gone} lost"),
        }
    }
}
