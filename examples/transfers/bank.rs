//! The database of the bank.

use std::sync::{Arc, Mutex, PoisonError};

use tenure::Fence;

use crate::BoxError;
#[cfg(feature = "redis")]
use crate::stage::replicas::data::connect;

pub(crate) const ACCOUNTS: usize = 4;

/// Accounts, each with the fence of its last write. Like any database it lets two writers overwrite each other's work,
/// unless they send their fences.
#[derive(Clone)]
pub(crate) enum Bank {
    Memory(Arc<Mutex<[(i64, u64); ACCOUNTS]>>),
    /// With the prefix of the keys.
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection, String),
}

/// Writes both accounts in one step, or neither. Compares fences as texts of equal length: Lua numbers are exact up to 2^53.
#[cfg(feature = "redis")]
const WRITE: &str = "
for i = 1, 2 do
  local fence = redis.call('HGET', KEYS[i], 'fence')
  if fence and fence > ARGV[i] then return 0 end
end
for i = 1, 2 do
  redis.call('HSET', KEYS[i], 'balance', ARGV[i + 2], 'fence', ARGV[i])
end
return 1";

impl Bank {
    /// Opens the bank in the Redis at `url` under keys with `prefix`, or in this process's memory.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub(crate) async fn open(url: Option<&str>, prefix: &str) -> Result<Bank, BoxError> {
        match url {
            None => Ok(Bank::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => Ok(Bank::Redis(connect(url).await?, format!("{prefix}bank:account:"))),
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    /// Opens an account with this balance and no fence.
    pub(crate) async fn open_account(&self, account: usize, balance: i64) -> Result<(), BoxError> {
        match self {
            Bank::Memory(accounts) => {
                accounts.lock().unwrap_or_else(PoisonError::into_inner)[account] = (balance, 0);
            }
            #[cfg(feature = "redis")]
            Bank::Redis(connection, prefix) => {
                let record = format!("{prefix}{account}");
                let mut open = redis::pipe();
                open.cmd("DEL").arg(&record);
                open.cmd("HSET").arg(&record).arg("balance").arg(balance);
                open.cmd("EXPIRE").arg(&record).arg(60);
                open.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn read(&self, account: usize) -> Result<i64, BoxError> {
        match self {
            Bank::Memory(accounts) => Ok(accounts.lock().unwrap_or_else(PoisonError::into_inner)[account].0),
            #[cfg(feature = "redis")]
            Bank::Redis(connection, prefix) => {
                let mut get = redis::cmd("HGET");
                get.arg(format!("{prefix}{account}")).arg("balance");
                Ok(get.query_async(&mut connection.clone()).await?)
            }
        }
    }

    /// Writes both accounts or neither. Returns `false` if one of them was written under a later fence. A write without a
    /// fence counts as the earliest.
    pub(crate) async fn write(
        &self,
        accounts: [usize; 2],
        balances: [i64; 2],
        fences: [Option<Fence>; 2],
    ) -> Result<bool, BoxError> {
        let fences = fences.map(|fence| fence.map_or(0, Fence::get));
        match self {
            Bank::Memory(all) => {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                let is_late = (0..2).any(|at| all[accounts[at]].1 > fences[at]);
                if !is_late {
                    (0..2).for_each(|at| all[accounts[at]] = (balances[at], fences[at]));
                }
                Ok(!is_late)
            }
            #[cfg(feature = "redis")]
            Bank::Redis(connection, prefix) => {
                let mut write = redis::cmd("EVAL");
                write.arg(WRITE).arg(2);
                write.arg(&accounts.map(|account| format!("{prefix}{account}")));
                write
                    .arg(&fences.map(|fence| format!("{fence:020}")))
                    .arg(&balances);
                Ok(write.query_async(&mut connection.clone()).await?)
            }
        }
    }
}
