//! What a browser shows without access, and how it gets access.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Redirect};
use axum::routing::get;
use tenure_page::{Access, loopback_only, router, with_token};
use tokio::net::TcpListener;

use crate::browser::Browser;
use crate::server::RedisServer;
use crate::stage::node;

/// Serves a page on a free port.
async fn serve(page: axum::Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, page).await.unwrap() });
    format!("http://127.0.0.1:{port}/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_asked_for_and_opens_the_page() {
    let server = RedisServer::start();
    let page = router(&node(&server, "page").await, |_| {
        Access::Operate("mia".to_owned())
    });
    let url = serve(with_token(page, "0123456789abcdef")).await;
    let browser = Browser::start().await;
    browser.goto(&format!("{url}leases")).await;
    for theme in ["light", "dark"] {
        browser.theme(theme).await;
        browser.has_no_axe_violation("the form for the token").await;
        browser.shoot(&format!("token-{theme}")).await;
    }
    browser.fill("#token", "fedcba9876543210").await;
    browser.click("button").await;
    browser.until_text("That is not the token.").await;
    browser.has_no_axe_violation("a wrong token").await;
    browser.fill("#token", "0123456789abcdef").await;
    browser.click("button").await;
    browser.until_text_of("h1", "Leases").await;
    browser.console_has_failed_requests_only().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_look_is_offered_no_act() {
    let server = RedisServer::start();
    let locks = node(&server, "page").await;
    let _guard = locks.mutex("account:42").lock().await.unwrap();
    let url = serve(router(&locks, |_| Access::Read)).await;
    let browser = Browser::start().await;
    browser.goto(&format!("{url}leases")).await;
    browser.click("td a").await;
    browser.until_text("Held by").await;
    assert_eq!(
        browser
            .run("return document.querySelectorAll('.act, main form').length")
            .await,
        0
    );
    browser.has_empty_console("a reader").await;
    browser.goto(&format!("{url}steal?k=61&kind=lock&seen=1")).await;
    browser.until_text("You may look, but not act.").await;
    browser.has_no_axe_violation("a refusal").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_access_there_is_a_sentence_and_no_file() {
    let server = RedisServer::start();
    let locks = node(&server, "page").await;
    let none = serve(router(&locks, |_| Access::None)).await;
    let own = serve(loopback_only(router(&locks, |_| Access::Read))).await;
    let browser = Browser::start().await;
    browser.goto(&format!("{none}leases")).await;
    browser.until_text("You have no access to this page.").await;
    browser.has_no_axe_violation("no access").await;
    browser.console_has_failed_requests_only().await;
    browser.goto(&own.replace("127.0.0.1", "evil.localhost")).await;
    browser.until_text("This page is for its own machine").await;
    browser.has_no_axe_violation("another host").await;
    browser.console_has_failed_requests_only().await;
}

/// A service whose session has ended leads to its login, or shows it at the same place. What was seen last is not current then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ended_is_told() {
    let server = RedisServer::start();
    let locks = node(&server, "page").await;
    let _guard = locks.mutex("account:42").lock().await.unwrap();
    for is_redirect in [true, false] {
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = ended.clone();
        let login = from_fn(move |request: Request, next: Next| {
            let has_ended = has_ended.load(Ordering::SeqCst) && request.uri().path() != "/login";
            async move {
                match has_ended {
                    true if is_redirect => Redirect::to("/login").into_response(),
                    true => Html("<h1>Log in</h1>").into_response(),
                    false => next.run(request).await,
                }
            }
        });
        let page =
            router(&locks, |_| Access::Read).route("/login", get(|| async { Html("<h1>Log in</h1>") }));
        let url = serve(page.layer(login)).await;
        let browser = Browser::start().await;
        browser.goto(&format!("{url}leases")).await;
        browser.until_text("account:42").await;
        ended.store(true, Ordering::SeqCst);
        browser
            .until_text("it gives no access any more: reload the page")
            .await;
        browser.until_text("account:42").await;
    }
}
