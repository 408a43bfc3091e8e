//! `Debug` of public values shows their subject, and no internals.

use tenure::Locks;

use crate::help::ms;

/// The output is key and lease, within a line or two, also beside a thousand other keys.
#[tokio::test]
async fn a_mutex_shows_its_key_and_its_lease() {
    let locks = Locks::memory();
    let mut guards = Vec::new();
    for n in 0..1_000 {
        guards.push(locks.mutex(n.to_string()).lock().await.unwrap());
    }
    let text = format!("{:?}", locks.mutex("stock:7").lease(ms(7_000)));
    assert!(text.len() < 500, "{} bytes: {:.500}", text.len(), text);
    assert!(text.contains("stock:7") && text.contains("7s"), "{text}");
}

/// Task dumps show the future of a lock, so its output is as short.
#[tokio::test]
async fn a_lock_shows_its_key() {
    let text = format!("{:?}", Locks::memory().mutex("stock:7").lock());
    assert!(text.len() < 500, "{} bytes: {:.500}", text.len(), text);
    assert!(text.contains("stock:7"), "{text}");
}
