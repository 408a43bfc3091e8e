//! stub
pub use self::body::ResponseBody;
#[cfg(feature = "axum")]
pub use self::extract::{ExtractorFn, FromExtractors, LeaseMissing};
pub use self::future::ResponseFuture;
pub use self::key::{IntoLockKey, KeySource, LockKey};
pub use self::layer::{LockLayer, OnLost};
pub use self::refusal::Refused;
pub use self::service::LockService;

mod body;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod key;
mod layer;
mod refusal;
mod service;
