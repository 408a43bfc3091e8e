//! What the processes of a server agree on: the longest lease, and the masters of a quorum. The server keeps it while one of them is
//! connected, and for a recovery and a minute longer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::store::redis::config::Config;
use crate::store::redis::decode::text;
use crate::store::redis::names;
use crate::store::redis::run::RunPolicy;

/// How often a connected process refreshes its contracts.
const REFRESH: Duration = Duration::from_secs(20);
/// How long a contract lives beyond a recovery. When it ends, no process was connected for longer than any lease lasts.
const CONTRACT_RESERVE_MS: u64 = 60_000;

/// Returns how long the server keeps a contract that no process refreshes, in milliseconds.
pub(super) fn contract_lives(policy: Option<RunPolicy>) -> u64 {
    let recovery = policy.map_or(Duration::ZERO, |policy| policy.recovery);
    recovery.as_millis() as u64 + CONTRACT_RESERVE_MS
}

/// Refreshes what this process has agreed on with the others, as long as the link is open: the longest lease, and the list of
/// masters. Resolves if the server has another contract.
pub(super) async fn keep_contracts(store: Arc<Config>, mut connection: MultiplexedConnection) {
    let policy = store.run_policy.filter(|policy| policy.longest.is_some());
    let longest = policy.map(|policy| (names::LONGEST, policy.contract()));
    let masters = store.topology.masters().filter(|_| store.run_policy.is_some());
    let masters = masters.map(|masters| (names::MASTERS, masters.contract(store.run_policy)));
    let contracts: Vec<_> = longest.into_iter().chain(masters).collect();
    if contracts.is_empty() || store.topology.cluster().is_some() {
        return pending().await;
    }
    let lives = contract_lives(store.run_policy);
    loop {
        sleep(REFRESH).await;
        for (key, own) in &contracts {
            let mut leave = redis::pipe();
            leave.cmd("SET").arg(key).arg(own).arg("NX").arg("PX").arg(lives);
            leave.cmd("GET").arg(key);
            // A connection without answers is noticed by its requests.
            let Ok(answers) = connection.send_packed_commands(&leave, 0, 2).await else {
                continue;
            };
            let recorded = answers.into_iter().nth(1).and_then(text);
            if recorded.as_ref().is_some_and(|recorded| recorded != own) {
                return;
            }
            let mut refresh = redis::cmd("PEXPIRE");
            let _ = connection.send_packed_command(refresh.arg(key).arg(lives)).await;
        }
    }
}
