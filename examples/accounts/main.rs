//! Two replicas of a bank, and a hundred withdrawals at once. Without `LockLayer` money is lost; with it, none is.
//!
//!     cargo run --example accounts                                  # in memory
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example accounts    # the locks and the accounts on a Redis
//!
//! `-- --serve` runs two replicas until Ctrl-C, with curl commands to try. `-- --replica` runs one on a Redis: start it in two
//! terminals. On a cluster (`redis+cluster://127.0.0.1:7000`) the accounts stay in memory. `stage.rs` has the replicas and the
//! withdrawals, `ledger.rs` is the database.

mod ledger;
mod stage;

use std::error::Error;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Router, http::StatusCode};
use ledger::{Ledger, LedgerError};
use tenure::middleware::keys;
use tenure::{Fence, Lease, LockLayer, Locks};
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;
type Withdrawal = Path<(u64, i64)>;
type Answer = Result<(StatusCode, String), LedgerError>;

/// Returns the service of one replica. All replicas together serve one withdrawal of an account at a time.
fn service(locks: &Locks, ledger: Ledger) -> Router {
    let one_at_a_time = LockLayer::new(locks, keys::path_param::<u64>("id").named("account"));
    Router::new()
        .route("/accounts/{id}/withdraw/{amount}", post(withdraw))
        .route_layer(one_at_a_time.wait(Duration::from_secs(30)))
        // The layer does not apply to routes that are added after it.
        .route("/accounts/{id}", get(balance))
        .with_state(ledger)
}

async fn withdraw(State(ledger): State<Ledger>, lease: Lease, path: Withdrawal) -> Answer {
    pay_out(&ledger, path, Some(lease.fence())).await
}

/// Reads the balance, pauses and writes the new one. A concurrent withdrawal breaks this.
async fn pay_out(ledger: &Ledger, Path((id, amount)): Withdrawal, fence: Option<Fence>) -> Answer {
    let balance = ledger.read(id).await?;
    if balance < amount {
        return Ok((StatusCode::CONFLICT, format!("only {balance} left\n")));
    }
    sleep(Duration::from_millis(2)).await;
    let left = balance - amount;
    ledger.write(id, left, fence).await?;
    Ok((StatusCode::OK, format!("{amount} paid out, {left} left\n")))
}

async fn balance(State(ledger): State<Ledger>, Path(id): Path<u64>) -> Answer {
    Ok((StatusCode::OK, format!("{}\n", ledger.read(id).await?)))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
