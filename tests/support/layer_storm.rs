//! Requests through stacks of layers in every order, of which one runs its handlers to completion. Timeouts between the layers
//! fire, and clients leave and try again.
//!
//! A handler reads the balance of its account, thinks, and writes. Two at a time on one account lose money. What was done for a
//! request is remembered with the same write, so two at a time for one request do it twice.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use tenure::middleware::keys;
use tenure::{LockLayer, Locks, MultiKey};
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_http::timeout::TimeoutLayer;

const ACCOUNTS: u64 = 3;

/// A layer of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// The lock of the account.
    Account,
    /// The lock of the request and its retries.
    Retries,
    /// The lock of the account beside two locks that are read.
    Several,
}

/// The layers of a stack, the outermost first, and which of them runs its handlers to completion.
type Stack = (Vec<Part>, usize);

/// Returns two layers in each order, and three, and each of them as the one that completes.
fn stacks() -> Vec<Stack> {
    use Part::{Account, Retries, Several};
    let orders = [
        &[Account, Retries][..],
        &[Retries, Account],
        &[Account, Retries, Several],
        &[Account, Several, Retries],
        &[Retries, Account, Several],
        &[Retries, Several, Account],
        &[Several, Account, Retries],
        &[Several, Retries, Account],
    ];
    let each = orders
        .into_iter()
        .flat_map(|order| (0..order.len()).map(|completes| (order.to_vec(), completes)));
    let all: Vec<_> = each.collect();
    assert_eq!(all.len(), 22);
    all
}

#[derive(Default)]
struct Books {
    balances: BTreeMap<u64, i64>,
    /// How often each request was done.
    done: BTreeMap<String, u64>,
}

type Ledger = Arc<Mutex<Books>>;

async fn withdraw(State(ledger): State<Ledger>, Path(account): Path<u64>, headers: HeaderMap) {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let balance = {
        let books = ledger.lock().unwrap();
        if books.done.contains_key(&key) {
            return;
        }
        books.balances.get(&account).copied().unwrap_or(0)
    };
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..4))).await;
    let mut books = ledger.lock().unwrap();
    books.balances.insert(account, balance - 10);
    *books.done.entry(key).or_default() += 1;
}

fn service(locks: &Locks, ledger: &Ledger, (parts, completes): &Stack, pace: u64) -> Router {
    let mut app = Router::new()
        .route("/{account}", post(withdraw))
        .with_state(ledger.clone());
    let wait = Duration::from_millis(300 * pace);
    // Of each two layers, the one inside is added first.
    for (at, part) in parts.iter().enumerate().rev() {
        // Most requests pass in this time, and many do not.
        let limit = Duration::from_millis(fastrand::u64(3..30) * pace);
        app = app.route_layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, limit));
        let completes = at == *completes;
        app = match part {
            Part::Account => {
                let layer = LockLayer::new(locks, keys::path_param::<u64>("account").named("account"));
                app.route_layer(layer.wait(wait).run_to_completion(completes))
            }
            Part::Retries => {
                let layer = LockLayer::new(locks, keys::idempotency_key());
                app.route_layer(layer.wait(wait).run_to_completion(completes))
            }
            Part::Several => {
                let layer = LockLayer::by(locks, |parts| {
                    let account = parts.uri.path().trim_start_matches('/').to_owned();
                    vec![
                        MultiKey::write(("account", account)),
                        MultiKey::read("books"),
                        MultiKey::read("rates"),
                    ]
                });
                app.route_layer(layer.wait(wait).run_to_completion(completes))
            }
        };
    }
    app
}

/// Sends one request until it was answered with success, or three times.
async fn client(replicas: Arc<Vec<[Router; 2]>>, stack: usize, n: usize, pace: u64) -> &'static str {
    let account = fastrand::u64(0..ACCOUNTS);
    let mut last = "left";
    for _ in 0..3 {
        let app = replicas[stack][fastrand::usize(0..2)].clone();
        let request = Request::post(format!("/{account}"))
            .header("idempotency-key", format!("{stack}-{n}"))
            .body(Body::empty())
            .unwrap();
        let patience = Duration::from_millis(fastrand::u64(1..40) * pace);
        match tokio::time::timeout(patience, app.oneshot(request)).await {
            Ok(Ok(answer)) if answer.status().is_success() => return "done",
            Ok(Ok(answer)) if answer.status() == StatusCode::REQUEST_TIMEOUT => last = "timed out",
            Ok(Ok(answer)) if answer.status() == StatusCode::TOO_MANY_REQUESTS => last = "waited too long",
            Ok(answer) => panic!("{answer:?}"),
            Err(_) => last = "left",
        }
    }
    last
}

/// How a request may end for its client.
const ENDS: [&str; 3] = ["done", "timed out", "left"];

/// Runs `requests` requests through each stack, on two replicas, and asserts that the books are right. A machine on which no
/// request is in time gets twice the time.
pub async fn storm(locks: [Locks; 2], requests: usize) {
    let ledger = Ledger::default();
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sent = 0;
    for pace in (0..8).map(|round| 1 << round) {
        run_requests((&locks, &ledger), sent..sent + requests, pace, &mut ends).await;
        sent += requests;
        if ENDS.iter().all(|end| ends.contains_key(end)) {
            break;
        }
    }
    for locks in &locks {
        locks.idle().await;
    }
    let books = ledger.lock().unwrap();
    let done: u64 = books.done.values().sum();
    println!(
        "{} requests: {done} done, for the clients {ends:?}",
        ends.values().sum::<u64>()
    );
    let twice: Vec<_> = books.done.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "done more than once: {twice:?}");
    let sum: i64 = books.balances.values().sum();
    assert_eq!(
        sum,
        -10 * i64::try_from(done).unwrap(),
        "money was lost: {:?}",
        books.balances
    );
    // It was as bad as it was meant to be.
    for end in ENDS {
        assert!(ends.contains_key(end), "{end} never happened: {ends:?}");
    }
}

/// Sends the requests of these numbers through each stack, and counts how they ended.
async fn run_requests(
    (locks, ledger): (&[Locks; 2], &Ledger),
    requests: Range<usize>,
    pace: u64,
    ends: &mut BTreeMap<&'static str, u64>,
) {
    let stacks = stacks();
    let replicas = stacks
        .iter()
        .map(|stack| [0, 1].map(|at: usize| service(&locks[at], ledger, stack, pace)));
    let replicas: Arc<Vec<_>> = Arc::new(replicas.collect());
    for begin in requests.clone().step_by(4) {
        // A few at a time, so that some are served.
        let numbers = begin..(begin + 4).min(requests.end);
        let each = (0..stacks.len()).flat_map(|stack| numbers.clone().map(move |n| (stack, n)));
        let clients: JoinSet<_> = each
            .map(|(stack, n)| client(replicas.clone(), stack, n, pace))
            .collect();
        for end in clients.join_all().await {
            *ends.entry(end).or_default() += 1;
        }
    }
}
