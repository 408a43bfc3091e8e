//! User and password of the servers, asked of the service before each connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::Client;
use tokio_util::task::AbortOnDropHandle;

use crate::error::{StoreError, StoreErrorKind};
use crate::store::BoxFuture;
use crate::store::redis::config::Config;
use crate::store::redis::connection::cannot_open;

/// Why a service has no credentials.
type Failure = Box<dyn Error + Send + Sync>;

/// A function of the service that gives user and password.
#[derive(Clone)]
pub(crate) struct Credentials(
    Arc<dyn Fn() -> BoxFuture<'static, Result<(String, String), Failure>> + Send + Sync>,
);

impl Credentials {
    pub(crate) fn new<F, Fut, E>(hook: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(String, String), E>> + Send + 'static,
        E: Into<Failure>,
    {
        Credentials(Arc::new(move || {
            let given = hook();
            Box::pin(async { given.await.map_err(Into::into) })
        }))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Returns the client of a server, with the credentials of now.
pub(super) async fn client_of_now(store: &Config) -> Result<Client, StoreError> {
    let Some(Credentials(hook)) = store.credentials.clone() else {
        return Ok(store.client.clone());
    };
    let missing = |why: &dyn fmt::Display| {
        let text = format_args!("no credentials for {}: {why}", store.address());
        StoreError::new(StoreErrorKind::Unreachable, text)
    };
    // A task of its own, because foreign code may panic. The task ends with the attempt to connect.
    let asked = AbortOnDropHandle::new(tokio::spawn(async move { hook().await }));
    let (user, password) = match asked.await {
        Ok(Ok(given)) => given,
        Ok(Err(error)) => return Err(missing(&error)),
        Err(_) => return Err(missing(&"the function that gives them panicked")),
    };
    let info = store.client.get_connection_info().clone();
    let settings = info
        .redis_settings()
        .clone()
        .set_username(user)
        .set_password(password);
    Client::open(info.set_redis_settings(settings)).map_err(|error| cannot_open(store, error))
}
