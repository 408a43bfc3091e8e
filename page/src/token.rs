//! A page on its own, without the authentication of a service: a token, or the machine's own users only.

use std::sync::Arc;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, LOCATION, SET_COOKIE};
use http::{Method, StatusCode};
use maud::{Markup, html};
use sha2::Sha256;

use crate::access::{host, is_own, with_headers};
use crate::layout::bare;
use crate::text::{hex, unhex};
use crate::visit::{Query, cookies};

const COOKIE: &str = "tenure_token";
/// The fewest bytes of a token.
const MIN_TOKEN: usize = 16;
/// How many bytes of a code tell the cookies of different tokens apart.
const NAME_BYTES: usize = 4;
/// The path of the form that asks for the token.
const LOGIN: &str = "/login";
/// The largest form that asks for the token, in bytes.
const MAX_FORM: usize = 8 * 1024;

/// Lets those requests through that have the token, as `Authorization: Bearer` or by a cookie. A browser is asked for it once, at
/// `login`; the cookie, which ends with the browser, has a code of the token and not the token itself.
///
/// A token is a secret of at least 16 random characters: attempts are not counted.
///
/// # Panics
/// If the token is shorter: an empty one, such as that of a variable that is not set, opens the page to all.
pub fn with_token(router: Router, token: &str) -> Router {
    assert!(
        token.len() >= MIN_TOKEN,
        "a token has at least {MIN_TOKEN} characters, not {}",
        token.len()
    );
    let token: Arc<[u8]> = token.as_bytes().into();
    router.layer(from_fn(move |request, next| check(token.clone(), request, next)))
}

/// Lets those requests through that name this machine by a loopback address or as `localhost`. A page of another site that leads its
/// own name to 127.0.0.1 (DNS rebinding) has another `Host`.
pub fn loopback_only(router: Router) -> Router {
    router.layer(from_fn(async |request: Request, next: Next| {
        if is_loopback(host(request.headers(), request.uri())) {
            return next.run(request).await;
        }
        let text = "This page is for its own machine: open it as 127.0.0.1 or localhost.";
        with_headers((StatusCode::FORBIDDEN, bare("No access", &html! { p { (text) } })).into_response())
    }))
}

fn is_loopback(host: Option<&str>) -> bool {
    let Some(Ok(host)) = host.map(str::parse::<http::uri::Authority>) else {
        return false;
    };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Returns a code of what has the token.
fn code(token: &[u8], what: &[u8]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(token).expect("a key of any length");
    code.update(what);
    code
}

/// Returns whether two texts are equal, in a time that tells nothing of where they differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let other = code(b"compare", other).finalize().into_bytes();
    code(b"compare", one).verify_slice(&other).is_ok()
}

/// Returns the name of the cookie. Pages on different ports of a host share its cookies (RFC 6265, section 8.5), so each token has a
/// name of its own.
fn cookie_name(token: &[u8]) -> String {
    let code = code(token, b"name").finalize().into_bytes();
    format!("{COOKIE}_{}", hex(&code[..NAME_BYTES]))
}

/// Returns whether the value is that of the cookie.
fn is_cookie(token: &[u8], value: &str) -> bool {
    let value = unhex(value.as_bytes());
    value.is_some_and(|value| code(token, COOKIE.as_bytes()).verify_slice(&value).is_ok())
}

async fn check(token: Arc<[u8]>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let name = cookie_name(&token);
    let has_cookie = cookies(headers, &name).any(|value| is_cookie(&token, value));
    if has_cookie || bearer.is_some_and(|bearer| is_equal(bearer, &token)) {
        return next.run(request).await;
    }
    let is_login = request.method() == Method::POST && request.uri().path().ends_with(LOGIN);
    let is_own = is_own(headers, request.uri());
    let body = match is_login && is_own {
        true => to_bytes(request.into_body(), MAX_FORM).await.unwrap_or_default(),
        false => Bytes::new(),
    };
    let given = Query::new(&String::from_utf8_lossy(&body))
        .get("token")
        .to_owned();
    if is_equal(given.as_bytes(), &token) {
        let value = hex(&code(&token, COOKIE.as_bytes()).finalize().into_bytes());
        let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict");
        let headers = [(LOCATION, "leases".to_owned()), (SET_COOKIE, cookie)];
        return with_headers((StatusCode::SEE_OTHER, headers).into_response());
    }
    with_headers((StatusCode::UNAUTHORIZED, form(is_login)).into_response())
}

fn form(was_wrong: bool) -> Markup {
    let body = html! {
        @if was_wrong { p #wrong role="alert" { "That is not the token." } }
        form method="post" action="login" {
            // A password manager wants a name to keep the token under.
            input type="text" name="username" value="tenure" autocomplete="username" hidden;
            p { label for="token" { "Token" } input #token name="token" type="password" required autocomplete="current-password"; }
            p { button type="submit" { "Open the page" } }
        }
    };
    bare("Token", &body)
}
