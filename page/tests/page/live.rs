//! The page in a service: one look for all viewers, and the end of a server.

use std::time::Duration;

use axum::Router;
use tenure::Locks;
use tenure_page::{Access, router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_cron_scheduler::JobScheduler;

#[path = "../../../tests/it/shutdown/recipe.rs"]
mod recipe;

/// Ten browsers keep their connections open. The service that `docs/operations.md` shows ends beside them, long before its grace.
#[tokio::test]
async fn open_pages_do_not_hold_up_the_end_of_a_service() {
    let locks = Locks::memory();
    let app = Router::new().nest("/ops/tenure", router(&locks, |_| Access::Read));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (signal, sigterm) = oneshot::channel::<()>();
    let (grace, scheduler) = (Duration::from_secs(600), JobScheduler::new().await.unwrap());
    let service = recipe::serve(listener, app, sigterm, grace, locks, scheduler);
    let pages = async {
        let mut pages = Vec::new();
        for _ in 0..10 {
            let mut page = TcpStream::connect(address).await.unwrap();
            let request = b"GET /ops/tenure/leases HTTP/1.1\r\nhost: a\r\n\r\n";
            page.write_all(request).await.unwrap();
            let mut begin = [0; 15];
            page.read_exact(&mut begin).await.unwrap();
            assert_eq!(&begin, b"HTTP/1.1 200 OK");
            pages.push(page);
        }
        signal.send(()).unwrap();
        pages
    };
    let both = async { tokio::join!(service, pages) };
    let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
    let (ended, pages) = ended.expect("the service ends beside open connections");
    ended.unwrap();
    assert_eq!(pages.len(), 10);
}
