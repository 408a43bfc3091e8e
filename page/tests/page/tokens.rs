//! The page on its own: a token, or the machine's own users.

use std::collections::BTreeMap;

use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, ORIGIN};
use http::{Method, Request, StatusCode};
use tenure::Locks;
use tenure_page::{Access, loopback_only, paths, router, with_token};

use crate::tools::{Browser, FORM, encoded};

const TOKEN: &str = "a token of the team; 27+ä";

fn with_a_token() -> Browser {
    opened_by(TOKEN)
}

fn opened_by(token: &str) -> Browser {
    let locks = Locks::memory();
    Browser::new(with_token(router(&locks, |_| Access::Read), token))
}

/// Returns the name and the value of the cookie that the token gives.
async fn cookie_of(token: &str) -> (String, String) {
    let mut browser = opened_by(token);
    let fields = BTreeMap::from([("token".to_owned(), token.to_owned())]);
    browser.post("/login", &fields).await;
    browser.cookies.pop_first().expect("a cookie")
}

#[tokio::test]
async fn without_the_token_no_path_tells_anything() {
    let mut browser = with_a_token();
    browser.cookies.insert(cookie_of(TOKEN).await.0, "00".repeat(32));
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
    let (_, cookie) = browser.cookies.first_key_value().expect("a cookie");
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

/// Browsers send the cookies of a host to each of its ports.
#[tokio::test]
async fn two_pages_of_a_host_with_tokens_of_their_own_are_open_at_once() {
    let tokens = [TOKEN, "the token of the staging store"];
    let cookies = BTreeMap::from([cookie_of(tokens[0]).await, cookie_of(tokens[1]).await]);
    for token in tokens {
        let mut browser = opened_by(token);
        browser.cookies = cookies.clone();
        browser.open("/leases").await;
    }
}

/// A browser sends the cookie of the longer path first, and it may be an old one.
#[tokio::test]
async fn an_old_cookie_beside_the_right_one_does_no_harm() {
    let (name, value) = cookie_of(TOKEN).await;
    let cookies = format!("{name}=old; {name}={value}");
    let request = Request::get("/leases").header(COOKIE, cookies);
    let answer = with_a_token().send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
#[should_panic(expected = "at least 16 characters")]
async fn an_empty_token_opens_nothing() {
    opened_by("");
}

/// HTTP/2 has no `Host`: the authority is part of the URI.
#[tokio::test]
async fn the_host_of_http_2_is_known() {
    let locks = Locks::memory();
    let mut browser = Browser::new(loopback_only(router(&locks, |_| {
        Access::Operate("mia".to_owned())
    })));
    for (host, status) in [
        ("localhost:7070", StatusCode::OK),
        ("evil.example", StatusCode::FORBIDDEN),
    ] {
        let request = Request::get(format!("http://{host}/leases"));
        let answer = browser.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{host}");
    }
    for (origin, words) in [
        ("http://localhost:7070", "another browser"),
        ("http://evil.example", "did not come from this page"),
    ] {
        let request = Request::post("http://localhost:7070/pause?k=61").header(ORIGIN, origin);
        let answer = browser.send(request.body(Body::empty()).unwrap()).await;
        assert!(answer.body.contains(words), "{origin}: {}", answer.body);
    }
}
