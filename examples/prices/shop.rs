//! The price list of the shop, and its pages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::BoxError;
#[cfg(feature = "redis")]
use crate::stage::replicas::data::connect;

/// Prices by name. A read returns the current value and takes no lock.
#[derive(Clone)]
pub(crate) struct Shop {
    prices: Prices,
    pages: Arc<Pages>,
}

#[derive(Clone)]
enum Prices {
    Memory(Arc<Mutex<[i64; 2]>>),
    /// With the prefix of the keys.
    #[cfg(feature = "redis")]
    Redis(redis::aio::MultiplexedConnection, String),
}

/// Counts the pages that are rendered at the same time.
#[derive(Default)]
struct Pages {
    current: AtomicUsize,
    highest: AtomicUsize,
}

impl Shop {
    /// Opens the price list in the Redis at `url` under keys with `prefix`, or in this process's memory.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub(crate) async fn open(url: Option<&str>, prefix: &str) -> Result<Shop, BoxError> {
        let prices = match url {
            None => Prices::Memory(Arc::default()),
            #[cfg(feature = "redis")]
            Some(url) => Prices::Redis(connect(url).await?, prefix.to_owned()),
            #[cfg(not(feature = "redis"))]
            Some(_) => return Err("TENURE_URL needs the feature `redis`".into()),
        };
        let pages = Arc::default();
        Ok(Shop { prices, pages })
    }

    pub(crate) async fn price(&self, name: &str) -> Result<i64, BoxError> {
        match &self.prices {
            Prices::Memory(prices) => {
                let prices = prices.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(prices[usize::from(name == "pair")])
            }
            #[cfg(feature = "redis")]
            Prices::Redis(connection, prefix) => {
                let mut get = redis::cmd("GET");
                get.arg(format!("{prefix}{name}"));
                Ok(get.query_async(&mut connection.clone()).await?)
            }
        }
    }

    pub(crate) async fn set_price(&self, name: &str, price: i64) -> Result<(), BoxError> {
        match &self.prices {
            Prices::Memory(prices) => {
                prices.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(name == "pair")] = price;
            }
            #[cfg(feature = "redis")]
            Prices::Redis(connection, prefix) => {
                let mut set = redis::cmd("SET");
                set.arg(format!("{prefix}{name}")).arg(price).arg("EX").arg(60);
                set.exec_async(&mut connection.clone()).await?;
            }
        }
        Ok(())
    }

    /// Takes the time to render the rest of a page.
    pub(crate) async fn render(&self) {
        let current = 1 + self.pages.current.fetch_add(1, Ordering::SeqCst);
        self.pages.highest.fetch_max(current, Ordering::SeqCst);
        self.pause().await;
        self.pages.current.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the largest number of pages that were rendered at the same time since the last call.
    pub(crate) fn take_highest(&self) -> usize {
        self.pages.highest.swap(0, Ordering::SeqCst)
    }

    /// Takes the time between the two writes of a change.
    pub(crate) async fn pause(&self) {
        sleep(Duration::from_millis(2)).await;
    }

    /// Takes the time to announce a price, and returns the price at its end.
    pub(crate) async fn announce(&self) -> Result<i64, BoxError> {
        sleep(Duration::from_millis(20)).await;
        self.price("shoe").await
    }
}
