//! However a claim is answered, it asks again after a pause.

use crate::help::{Eyes, held, locks, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;

/// Whoever overhears a waiter's nonce can push it a grant that the store knows nothing of. It is confirmed, and the store
/// says that the claim still waits: again and again, but not as fast as the wire carries it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_grant_makes_no_storm() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    let guard = held(&one, "a").await;
    // A lease of fixed length is confirmed before it begins.
    let waiting = tokio::spawn(other.mutex("a").fixed(ms(60_000)).lock());
    until("it waits", || eyes.queue("a") == 1).await;
    let channel = format!("tenure1:n:{}", other.node_id());
    let listeners = format!("PUBSUB NUMSUB {channel}");
    until("it listens", || eyes.text::<(String, u64)>(&listeners).1 == 1).await;
    let queues: Vec<String> = eyes.text("KEYS tenure1:q:*");
    let entries: Vec<String> = eyes.text(&format!("ZRANGE {} 0 0", queues[0]));
    let parts: Vec<&str> = entries[0].split(':').collect();
    let (claim, nonce) = (parts[1], parts[2]);
    let push = format!("1 lock {claim} {nonce} {} 60000 lock:a", 1u64 << 40);
    let calls = |eyes: &mut Eyes| eyes.calls().get("evalsha").copied().unwrap_or(0);
    let before = calls(&mut eyes);
    let heard: i64 = eyes.ask(&[b"PUBLISH", channel.as_bytes(), push.as_bytes()]);
    assert_eq!(heard, 1);
    until("it is confirmed", || calls(&mut eyes) > before).await;
    let before = calls(&mut eyes);
    tokio::time::sleep(ms(2_000)).await;
    let asked = calls(&mut eyes) - before;
    assert!(asked <= 200, "{asked} requests in two seconds");
    assert!(!waiting.is_finished());
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Each client that may publish can send pushes of an unknown format.
#[tokio::test]
async fn pushes_of_an_unknown_format_are_reported_once_a_minute() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let other = locks(&server.url(), ms(60_000)).await;
    let locks = locks(&server.url(), ms(60_000)).await;
    let watch = Watch::of(locks.node_id().to_string());
    let channel = format!("tenure1:n:{}", locks.node_id());
    let listeners = format!("PUBSUB NUMSUB {channel}");
    until("it listens", || eyes.text::<(String, u64)>(&listeners).1 == 1).await;
    for _ in 0..100 {
        let heard: i64 = eyes.ask(&[b"PUBLISH", channel.as_bytes(), b"9 of a later release"]);
        assert_eq!(heard, 1);
    }
    let told = watch.until("unknown_pushes").await;
    assert!(told.text.contains("count=1 "), "{told:?}");
    // A later push to the same subscription shows that all of them were handled.
    let guard = held(&other, "a").await;
    let waiter = tokio::spawn(locks.mutex("a").lock());
    until("it waits", || eyes.queue("a") == 1).await;
    soon(guard.release()).await.unwrap();
    soon(soon(waiter).await.unwrap().unwrap().release())
        .await
        .unwrap();
    assert_eq!(watch.count("unknown_pushes"), 1);
    assert_eq!(watch.count("server_warning"), 0);
}
