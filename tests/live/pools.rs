//! Locks beside a pool of the user's.

use tenure::Error;

use crate::server::RedisServer;

/// Nothing is checked out of it, and what the pool's users see is where the locks are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_and_its_client_lead_to_one_place() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(1).build(manager).await.unwrap();
    let _taken = pool.get().await.unwrap();
    let client = |url: String| redis::Client::open(url).unwrap();
    let locks = crate::help::builder()
        .pool(pool.clone(), client(server.url()))
        .await
        .unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let elsewhere = [other.url(), format!("redis://127.0.0.1:{}/3", server.port())];
    for url in elsewhere {
        let error = crate::help::builder()
            .pool(pool.clone(), client(url))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("another server or database"), "{text}");
    }
    // The server is not asked.
    let lazy = crate::help::builder()
        .lazy()
        .pool(pool.clone(), client(other.url()));
    lazy.await.unwrap();
}
