//! User and password of the servers, asked of the service before each connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use crate::store::BoxFuture;

/// Why a service has no credentials.
type BoxedError = Box<dyn Error + Send + Sync>;

/// User and password, when the service has given them.
type GivenCredentials = BoxFuture<'static, Result<(String, String), BoxedError>>;

/// A function of the service that gives user and password.
#[derive(Clone)]
pub(crate) struct Credentials(Arc<dyn Fn() -> GivenCredentials + Send + Sync>);

impl Credentials {
    pub(crate) fn new<F, Fut, E>(hook: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(String, String), E>> + Send + 'static,
        E: Into<BoxedError>,
    {
        Credentials(Arc::new(move || {
            let given = hook();
            Box::pin(async { given.await.map_err(Into::into) })
        }))
    }
}

impl Credentials {
    /// Asks for user and password. Returns why there are none.
    pub(super) async fn ask(&self) -> Result<(String, String), String> {
        let hook = self.0.clone();
        // A task of its own, because foreign code may panic. The task ends with the attempt to connect.
        match AbortOnDropHandle::new(tokio::spawn(async move { hook().await })).await {
            Ok(given) => given.map_err(|error| error.to_string()),
            Err(_) => Err("the function that gives them panicked".to_owned()),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}
