//! Nodes: their key machines and sessions as they ship.

mod lifecycle;
mod session;
mod shard;
mod slot_map;
