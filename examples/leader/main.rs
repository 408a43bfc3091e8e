//! Three processes can relay the outbox; the leader of an election does. The first leader is killed while it works. Another
//! process takes over when the lease of 2 s has expired. That leader shuts down, and hands over at once. An observer that is
//! no candidate sees each leader.
//!
//!     cargo run --example leader                                  # in memory: in one process, so no relay is killed
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example leader    # three processes; the first leader is killed
//!
//! `stage.rs` has the relays, the kill and the observer.

mod stage;

use std::error::Error;
use std::time::Duration;

use tenure::{Election, Fence, Lease, Locks};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;

/// Short, so that a takeover is quick to watch. The default of 10 s suits most services.
const LEASE: Duration = Duration::from_secs(2);

async fn connect(url: &str, node_name: &str) -> Result<Locks, tenure::Error> {
    let builder = Locks::builder().lease(LEASE).node_name(node_name);
    builder.connect(url).await
}

fn election(locks: &Locks) -> Election {
    locks.election("outbox-relay")
}

/// Sends the messages of the outbox while this node leads, and campaigns while it does not.
async fn relay(locks: Locks, send: impl Fn(Fence) + Clone) -> Result<(), tenure::Error> {
    let election = election(&locks);
    let work = |lease: Lease| {
        let (election, send) = (election.clone(), send.clone());
        async move {
            // The address at which other processes reach the leader. The work does not depend on it.
            let _ = election.proclaim("10.0.0.7:8080").await;
            loop {
                // The receiver refuses a fence that is smaller than one it has seen.
                send(lease.fence());
                sleep(Duration::from_millis(100)).await;
            }
        }
    };
    election.lead(work).await
}

/// Runs one process: works until SIGTERM, then hands over.
async fn run(url: &str, node_name: &str, send: impl Fn(Fence) + Clone) -> Result<(), BoxError> {
    let locks = connect(url, node_name).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = relay(locks.clone(), send) => ended?,
        _ = terminate.recv() => {}
    }
    locks.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
