//! One lock for all.

use std::future::{Future, ready};

use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::KeySource;

/// One lock for all requests: the key is `key`, that of [`Locks::mutex`](crate::Locks::mutex).
pub fn fixed(key: impl Into<Key>) -> Fixed {
    Fixed { key: key.into() }
}

/// One lock for all requests. Made by [`fixed`].
#[derive(Debug, Clone)]
pub struct Fixed {
    key: Key,
}

impl KeySource for Fixed {
    type Key = Key;

    fn key(&self, _: &mut Parts) -> impl Future<Output = Key> + Send {
        ready(self.key.clone())
    }
}
