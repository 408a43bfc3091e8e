//! What the pages show.

pub(crate) mod audit;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod key;
pub(crate) mod leases;
pub(crate) mod nodes;

use axum::extract::OriginalUri;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION};

use maud::{Markup, html};
use tenure::inspect::Page;

use crate::layout::plain;
use crate::text::shown;

/// The most rows of a page of a list.
pub(crate) const ROWS: usize = 100;

/// Returns the place of the link to the next page of a list.
pub(crate) fn next_page(next: Option<&str>, text: &str) -> Markup {
    html! {
        p #more data-live { @if let Some(next) = next { a #next href=(next) { (text) } } }
    }
}

/// Leads to the first view. Links are relative, so a path without a slash at its end keeps its last part.
pub(crate) async fn start(OriginalUri(uri): OriginalUri) -> Response {
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let to = match last {
        "" => "leases".to_owned(),
        // `./` in front: a colon in the first part would be read as a scheme.
        last => format!("./{last}/leases"),
    };
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}

/// Answers paths that are none of the page.
pub(crate) async fn other(uri: OriginalUri, request: axum::extract::Request) -> Response {
    // A nested router has no route for its own path with a slash.
    if matches!(request.uri().path(), "" | "/") {
        return start(uri).await;
    }
    let (status, text) = (StatusCode::NOT_FOUND, "There is no such page.");
    // The links of a page are relative, and of a deeper path they lead to nothing.
    if request.uri().path().matches('/').count() > 1 {
        return (status, text).into_response();
    }
    (status, plain("Not found", text)).into_response()
}

pub(crate) async fn css() -> Response {
    (
        [(CONTENT_TYPE, "text/css; charset=utf-8")],
        include_str!("../page.css"),
    )
        .into_response()
}

pub(crate) async fn script() -> Response {
    let kind = "text/javascript; charset=utf-8";
    ([(CONTENT_TYPE, kind)], include_str!("../page.js")).into_response()
}

pub(crate) async fn icon() -> Response {
    ([(CONTENT_TYPE, "image/svg+xml")], include_str!("../icon.svg")).into_response()
}

/// Says which masters of a quorum do not answer, with their words.
pub(crate) fn failures(page: &Page) -> Vec<String> {
    let failures = page.failures.iter();
    failures
        .map(|(server, error)| {
            shown(format!(
                "{server} does not answer, and its rows are missing: {error}"
            ))
        })
        .collect()
}

/// Answers a link without a key.
pub(crate) fn no_key() -> Response {
    let text = "The link names no key: it is to have the hexadecimal digits of one.";
    (StatusCode::BAD_REQUEST, plain("No key", text)).into_response()
}
