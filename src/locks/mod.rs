//! The entry point of the crate: [`Locks`] on one store, and its [`Builder`].

pub use self::builder::Builder;
pub use self::entry::Locks;

mod builder;
mod entry;
mod url;
