//! The accounts. Each stores the largest fence that has written it, and refuses smaller ones. So it refuses a writer that slept
//! through its lease. It accepts every write without a fence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tenure::Fence;

use crate::BoxError;
#[cfg(feature = "redis")]
use crate::stage::replicas::data::connect;

#[derive(Clone)]
pub(crate) enum Ledger {
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
    /// Opens the accounts in the Redis at `url`, or in this process's memory.
    pub(crate) async fn open(url: Option<&str>) -> Result<Ledger, BoxError> {
        match url {
            None => Ok(Ledger::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => Ok(Ledger::Redis(connect(url).await?)),
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    pub(crate) async fn read(&self, id: u64) -> Result<i64, BoxError> {
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

    pub(crate) async fn write(&self, id: u64, balance: i64, fence: Option<Fence>) -> Result<(), BoxError> {
        let is_written = match self {
            Ledger::Memory(accounts) => {
                let mut accounts = accounts.lock().unwrap();
                let account = accounts.entry(id).or_default();
                let fence = fence.map_or(account.1, Fence::get);
                let is_current = fence >= account.1;
                if is_current {
                    *account = (balance, fence);
                }
                is_current
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
        if is_written {
            Ok(())
        } else {
            Err("refused: the account was written under a newer fence".into())
        }
    }
}

/// The error of a handler. Its response is 500.
pub(crate) struct LedgerError(BoxError);

impl From<BoxError> for LedgerError {
    fn from(error: BoxError) -> Self {
        LedgerError(error)
    }
}

impl IntoResponse for LedgerError {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", self.0)).into_response()
    }
}
