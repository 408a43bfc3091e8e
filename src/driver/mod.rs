//! All that is tokio, and the one thread that tells what happens in the background.

pub(crate) mod events;
