//! What our own tests are made of. No part of the crate's promises: it changes without notice.

pub mod sim;
