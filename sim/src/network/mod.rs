//! The network and the server.

mod actions;
mod cluster_link;
mod connections;
mod inbox;
mod masters;
mod server;
mod transport;
