//! The network and the server.

mod actions;
mod connections;
mod inbox;
mod server;
mod transport;
