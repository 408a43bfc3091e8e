//! The page on its own: a token, or the machine's own users.

use std::collections::BTreeMap;

use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use tenure::Locks;
use tenure_page::{Access, loopback_only, paths, router, with_token};

use crate::tools::{Browser, FORM, encoded};

const TOKEN: &str = "a token of the team; 27+ä";

fn with_a_token() -> Browser {
    let locks = Locks::memory();
    Browser::new(with_token(router(&locks, |_| Access::Read), TOKEN))
}

#[tokio::test]
async fn without_the_token_no_path_tells_anything() {
    let mut browser = with_a_token();
    browser.cookies.insert("tenure_token".to_owned(), "00".repeat(32));
    for path in paths() {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(
            answer
                .texts("form[action=login] label")
                .contains(&"Token".to_owned())
        );
    }
    for token in ["", "a token of the team", "a token of the team; 27+ä "] {
        let request = browser.request(Method::GET, "/leases");
        let request = request.header(AUTHORIZATION, format!("Bearer {token}").as_bytes());
        let answer = browser.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{token}");
    }
}

#[tokio::test]
async fn a_program_sends_the_token_with_each_request() {
    let mut browser = with_a_token();
    let request = browser.request(Method::GET, "/leases");
    let request = request.header(AUTHORIZATION, format!("Bearer {TOKEN}").as_bytes());
    let answer = browser.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        browser.get("/leases").await.status,
        StatusCode::UNAUTHORIZED,
        "no cookie was set"
    );
}

#[tokio::test]
async fn a_browser_is_asked_for_the_token_once() {
    let mut browser = with_a_token();
    let fields = |token: &str| BTreeMap::from([("token".to_owned(), token.to_owned())]);
    let wrong = browser.post("/login", &fields("another")).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    assert_eq!(wrong.texts("#wrong"), ["That is not the token."]);
    let request = browser
        .request(Method::POST, "/login")
        .header("sec-fetch-site", "cross-site");
    let request = request
        .header(CONTENT_TYPE, FORM)
        .body(encoded(&fields(TOKEN)))
        .unwrap();
    assert_eq!(
        browser.send(request).await.status,
        StatusCode::UNAUTHORIZED,
        "a form of another site"
    );
    let answer = browser.post("/login", &fields(TOKEN)).await;
    browser.follow(&answer).await;
    let cookie = &browser.cookies["tenure_token"];
    assert!(
        !cookie.contains("team"),
        "the cookie has the token itself: {cookie}"
    );
    browser.open("/nodes").await;
}

#[tokio::test]
async fn a_name_that_leads_here_from_elsewhere_is_refused() {
    let locks = Locks::memory();
    let mut browser = Browser::new(loopback_only(router(&locks, |_| Access::Read)));
    for (host, status) in [
        ("127.0.0.1:7070", StatusCode::OK),
        ("127.8.9.1", StatusCode::OK),
        ("localhost:7070", StatusCode::OK),
        ("LOCALHOST", StatusCode::OK),
        ("[::1]:7070", StatusCode::OK),
        ("evil.example:7070", StatusCode::FORBIDDEN),
        ("localhost.evil.example", StatusCode::FORBIDDEN),
        ("127.0.0.1.evil.example", StatusCode::FORBIDDEN),
        ("127.0.0.1@evil.example", StatusCode::FORBIDDEN),
        ("0.0.0.0:7070", StatusCode::FORBIDDEN),
        ("", StatusCode::FORBIDDEN),
    ] {
        let request = Request::get("/leases")
            .header(HOST, host)
            .body(Body::empty())
            .unwrap();
        assert_eq!(browser.send(request).await.status, status, "{host}");
    }
    let request = Request::get("/leases").body(Body::empty()).unwrap();
    assert_eq!(
        browser.send(request).await.status,
        StatusCode::FORBIDDEN,
        "no host"
    );
}
