//! Code that does not compile. The text behind `//~` is a part of the compiler's message for the line;
//! tests/it/layer_notes.rs compares it.

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use http::request::Parts;
use tenure::middleware::{KeySource, keys};
use tenure::{Key, LockLayer, Locks};

struct AccountId(#[allow(dead_code)] u64);

fn main() {
    let locks = Locks::memory();

    // Types that are no key source.
    LockLayer::new(&locks, 42); //~ a key source is one of `tenure::middleware::keys`, or a closure
    LockLayer::new(&locks, "account:42"); //~ a tuple such as `("account", 42)`

    // Closures over the request's head.
    LockLayer::by(&locks, |_: &Parts| 1.5); //~ a key is an integer, `bool`, `uuid::Uuid`, `String`
    LockLayer::by(&locks, |_: &Parts| AccountId(42)); //~ a key is an integer, `bool`, `uuid::Uuid`, `String`
    LockLayer::by(&locks, |_: &Parts| Some(AccountId(42))); //~ a key is an integer, `bool`, `uuid::Uuid`, `String`
    LockLayer::by(&locks, |_: &Parts| ("account", AccountId(42))); //~ a type of yours is one if it implements `KeyPart`
    LockLayer::by(&locks, |_: &Parts| (1.5, 2)); //~ parts of a key are integers, `bool`, `char`, `uuid::Uuid` and text
    LockLayer::by(&locks, |_: &Parts| Ok::<AccountId, StatusCode>(AccountId(42))); //~ a key is an integer, `bool`
    LockLayer::by(&locks, |_: &Parts| Err::<u64, u64>(42)); //~ the trait bound `u64: IntoResponse` is not satisfied
    LockLayer::new(&locks, |_: &Parts| AccountId(42)); //~ a key is an integer, `bool`, `uuid::Uuid`, `String`

    // Closures over extractors.
    LockLayer::from_extractors(&locks, |Json(id): Json<u64>| ("account", id)); //~ makes a key in `LockLayer::from_request`, behind a `BufferBody`
    LockLayer::from_extractors(&locks, |Path(_): Path<u64>, Json(id): Json<u64>| id); //~ an extractor that reads the body, `Json` or `Form` for one
    LockLayer::from_extractors(&locks, |Path(id): Path<u64>| AccountId(id)); //~ that returns a key: an integer, `bool`, `Uuid`
    LockLayer::from_extractors(&locks, |State(id): State<u64>| id); //~ go into `LockLayer::from_extractors_with_state`
    LockLayer::from_extractors(&locks, |id: u64| id); //~ with one to eight arguments that have types

    // Closures over a request with its body.
    LockLayer::from_request(&locks, |Json(id): Json<u64>, Path(_): Path<u64>| id); //~ only the last extractor may read the body
    LockLayer::from_request(&locks, |Path(_): Path<u64>, Json(id): Json<u64>| AccountId(id)); //~ that returns a key: an integer
    LockLayer::from_request(&locks, |State(id): State<u64>| id); //~ and `LockLayer::from_request_with_state`

    // Several keys.
    LockLayer::by(&locks, |_: &Parts| [1.5, 2.5]); //~ an array is several keys
    LockLayer::by(&locks, |_: &Parts| [AccountId(42)]); //~ an array is several keys
    LockLayer::by(&locks, |_: &Parts| *b"bytes"); //~ for one key of these bytes use `tenure::Key::from(&bytes[..])`
    LockLayer::by(&locks, |_: &Parts| Some([7_u8])); //~ for one key of these bytes
    LockLayer::by(&locks, |_: &Parts| vec![1_u64]); //~ an array of the former or a `Vec<MultiKey>`

    // Ready-made sources.
    LockLayer::new(&locks, keys::extension(|id: &u64| AccountId(*id))); //~ a key is an integer, `bool`, `uuid::Uuid`, `String`
    LockLayer::new(&locks, keys::fixed("a").per(42)); //~ a key source is one of `tenure::middleware::keys`
    let _ = Key::from(("account", AccountId(42))); //~ parts of a key are integers, `bool`, `char`, `uuid::Uuid` and text
}
