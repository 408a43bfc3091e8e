//! What an answer tells of its lock, where a layer was told to.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::protocol::message::Fence;

/// Which headers a layer adds.
#[derive(Debug, Clone, Default)]
pub(super) struct Headers {
    pub(super) server_timing: bool,
    pub(super) fence: Option<HeaderName>,
}

impl Headers {
    /// Adds them to an answer. Others may have written a `Server-Timing` of their own, which stays.
    pub(super) fn add(&self, to: &mut HeaderMap, waited: Duration, fence: Option<Fence>) {
        if self.server_timing {
            let text = format!("lock;dur={:.3}", waited.as_secs_f64() * 1e3);
            if let Ok(value) = HeaderValue::try_from(text) {
                to.append(HeaderName::from_static("server-timing"), value);
            }
        }
        if let (Some(name), Some(fence)) = (&self.fence, fence) {
            to.insert(name.clone(), HeaderValue::from(fence.get()));
        }
    }
}
