//! The page in a service: one look for all viewers, and the end of a server.

use std::future::IntoFuture;
use std::time::Duration;

use axum::Router;
use tenure::Locks;
use tenure_page::{Access, router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Ten browsers keep their connections open. The server that `docs/operations.md` shows ends beside them.
#[tokio::test]
async fn open_pages_do_not_hold_up_the_end_of_a_server() {
    let locks = Locks::memory();
    let app = Router::new().nest("/tenure", router(&locks, |_| Access::Read));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let server = tokio::spawn(
        axum::serve(listener, app)
            .with_graceful_shutdown(stopped)
            .into_future(),
    );
    let mut pages = Vec::new();
    for _ in 0..10 {
        let mut page = TcpStream::connect(address).await.unwrap();
        page.write_all(b"GET /tenure/leases HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut begin = [0; 15];
        page.read_exact(&mut begin).await.unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
        pages.push(page);
    }
    stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), server).await;
    ended
        .expect("the server ends beside open connections")
        .unwrap()
        .unwrap();
    drop(pages);
}
