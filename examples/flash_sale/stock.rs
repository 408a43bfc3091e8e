//! The database of the shop.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::BoxError;
#[cfg(feature = "redis")]
use crate::stage::replicas::data::connect;

/// The number of items left. Like any database it lets two writers overwrite each other's work.
#[derive(Clone)]
pub(crate) enum Stock {
    Memory(Arc<AtomicI64>),
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection, String),
}

impl Stock {
    /// Opens the stock in the Redis at `url` under keys with `prefix`, or in this process's memory.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub(crate) async fn open(url: Option<&str>, prefix: &str) -> Result<Stock, BoxError> {
        match url {
            None => Ok(Stock::Memory(Arc::default())),
            #[cfg(feature = "redis")]
            Some(url) => Ok(Stock::Redis(connect(url).await?, format!("{prefix}stock"))),
            #[cfg(not(feature = "redis"))]
            Some(_) => Err("TENURE_URL needs the feature `redis`".into()),
        }
    }

    pub(crate) async fn read(&self) -> Result<i64, BoxError> {
        match self {
            Stock::Memory(stock) => Ok(stock.load(Ordering::SeqCst)),
            #[cfg(feature = "redis")]
            Stock::Redis(connection, key) => {
                let mut get = redis::cmd("GET");
                Ok(get.arg(key).query_async(&mut connection.clone()).await?)
            }
        }
    }

    pub(crate) async fn write(&self, left: i64) -> Result<(), BoxError> {
        match self {
            Stock::Memory(stock) => stock.store(left, Ordering::SeqCst),
            #[cfg(feature = "redis")]
            Stock::Redis(connection, key) => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(left).arg("EX").arg(60);
                set.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }
}
