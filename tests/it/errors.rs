//! Errors where services meet them: at the first `?`, and as the result of a handler.

#[cfg(any(feature = "redis", feature = "axum"))]
use tenure::Error;

/// The start of a service, with one kind of error.
#[cfg(feature = "redis")]
async fn starts(url: &str) -> Result<tenure::Guard, Error> {
    let locks = tenure::Locks::connect(url).await?;
    locks.mutex("a").lock().await
}

/// The error of a failed connection is an error like any other: `?` takes it, and it keeps its cause.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_failure_to_connect_is_a_tenure_error() {
    let bad = crate::help::soon(starts("http://127.0.0.1/")).await.unwrap_err();
    assert!(matches!(bad, Error::Options(_)), "{bad:?}");
    // The port is bound, so that no other process gets it, but no socket listens.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = closed.local_addr().unwrap();
    let watch = crate::support::events::Watch::of(addr.to_string());
    let away = crate::help::soon(starts(&format!("redis://user:hunter2@{addr}/")))
        .await
        .unwrap_err();
    assert!(away.is_unreachable(), "{away:?}");
    let text = away.to_string();
    assert!(
        text.contains(&addr.to_string()) && !text.contains("hunter2"),
        "{text}"
    );
    // No `Locks` exist that will report a recovery.
    let failing = watch.until("store_failing").await.text;
    assert!(!failing.contains("store_recovered"), "{failing}");
}

/// A handler returns a tenure error with `?`, and the response is that of the layer.
#[cfg(feature = "axum")]
#[tokio::test]
async fn an_error_is_a_response() {
    use axum::http::{StatusCode, header};
    use axum::response::IntoResponse;
    use tenure::Locks;

    use crate::help::{ms, poll_once};

    let locks = Locks::builder().max_waiters_per_key(1).memory().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut waiting = Box::pin(locks.mutex("a").lock());
    assert!(poll_once(&mut waiting).await.is_none());
    let busy = locks.mutex("a").lock_timeout(ms(0)).await.unwrap_err();
    let full = locks.mutex("a").lock().await.unwrap_err();
    let empty = locks.mutex("").lock().await.unwrap_err();
    let short = locks.mutex("b").lease(ms(1)).lock().await.unwrap_err();
    drop((waiting, guard));
    locks.shutdown().await;
    let closed = locks.mutex("a").lock().await.unwrap_err();
    for (error, status, retry) in [
        (busy, StatusCode::TOO_MANY_REQUESTS, true),
        (full, StatusCode::TOO_MANY_REQUESTS, true),
        (empty, StatusCode::BAD_REQUEST, false),
        (short, StatusCode::INTERNAL_SERVER_ERROR, false),
        (closed, StatusCode::SERVICE_UNAVAILABLE, true),
    ] {
        let text = error.to_string();
        let response = Err::<(), Error>(error).into_response();
        assert_eq!(response.status(), status, "{text}");
        assert_eq!(
            response.headers().contains_key(header::RETRY_AFTER),
            retry,
            "{text}"
        );
    }
}
