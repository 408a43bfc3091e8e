//! Which request may do what, and the headers of each answer.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY};
use http::header::{HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use maud::html;

use crate::layout::{bare, plain};

/// What a request may do. There is no default.
///
/// ```
/// use tenure_page::Access;
///
/// let access = Access::Operate("mia".to_owned()); // "mia" is in the audit list
/// assert_ne!(access, Access::Read);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Nothing, not even the files.
    None,
    /// It may look.
    Read,
    /// It may look and act, under this name.
    Operate(String),
}

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What each answer has.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; \
             base-uri 'none'; frame-ancestors 'none'",
        ),
    ),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

/// Adds the headers that each answer has.
pub(crate) fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}

/// Asks for the access of a request, and passes the request on with it.
pub(crate) async fn check<F>(access: Arc<F>, request: Request, next: Next) -> Response
where
    F: Fn(&Parts) -> Access,
{
    let (mut parts, body) = request.into_parts();
    let access = access(&parts);
    let is_act = !matches!(parts.method, Method::GET | Method::HEAD);
    let refusal = match &access {
        Access::None => Some(bare(
            "No access",
            &html! { p { "You have no access to this page." } },
        )),
        Access::Read if is_act => {
            let text = "You may look, but not act: nothing was done.";
            Some(plain("No access", text))
        }
        Access::Operate(_) if is_act && !is_own(&parts.headers, &parts.uri) => {
            let text = "The form did not come from this page: nothing was done.";
            Some(plain("No access", text))
        }
        _ => None,
    };
    with_headers(match refusal {
        Some(page) => (StatusCode::FORBIDDEN, page).into_response(),
        None => {
            parts.extensions.insert(access);
            next.run(Request::from_parts(parts, body)).await
        }
    })
}

/// Returns whether the request comes from a page of this origin. A browser tells that by `Sec-Fetch-Site`, which no page can set, and
/// on plain HTTP by `Origin`.
pub(crate) fn is_own(headers: &HeaderMap, uri: &Uri) -> bool {
    if let Some(site) = headers.get(SITE) {
        return site == "same-origin";
    }
    let (Some(origin), Some(host)) = (text(headers, &ORIGIN), host(headers, uri)) else {
        return false;
    };
    let origin = origin.split_once("://").map(|(_, host)| host);
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

/// Returns the host that the request names. HTTP/2 has it in `:authority`, which is part of the URI (RFC 9113, section 8.3.1).
pub(crate) fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    match headers.contains_key(HOST) {
        true => text(headers, &HOST),
        false => uri.authority().map(|host| host.as_str()),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
