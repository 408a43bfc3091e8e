//! The network and the server.

mod actions;
mod connections;
mod inbox;
mod masters;
mod server;
mod transport;
