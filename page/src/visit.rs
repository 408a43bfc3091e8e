//! A request as the views see it, and what all requests share.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, ETAG, IF_NONE_MATCH, LINK, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tenure::{Error, Key, Locks};

use crate::access::Access;
use crate::layout::{Tab, layout};
use crate::looks::Looks;
use crate::progress::{Acts, outcome};
use crate::text::{hex, shown, unhex, unshown};

/// How long a holder has to end by itself, if the form does not say it.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// The most seconds that a holder has.
pub(crate) const MAX_GRACE: u64 = 3600;

/// What all requests share.
pub(crate) struct App {
    pub(crate) locks: Locks,
    pub(crate) looks: Looks,
    pub(crate) acts: Arc<Acts>,
}

impl App {
    pub(crate) fn new(locks: &Locks) -> App {
        App {
            locks: locks.clone(),
            looks: Looks::default(),
            acts: Arc::default(),
        }
    }
}

/// A request: its parameters and who sent it.
pub(crate) struct Visit {
    pub(crate) app: Arc<App>,
    pub(crate) access: Access,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    pub(crate) wants_json: bool,
}

impl FromRequestParts<Arc<App>> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Visit, Infallible> {
        let access = parts.extensions.get().cloned().unwrap_or(Access::None);
        let accept = parts.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        let is_json = |accept: &str| accept.contains("json") && !accept.contains("html");
        Ok(Visit {
            app: app.clone(),
            access,
            query: Query::new(parts.uri.query().unwrap_or_default()),
            wants_json: accept.is_some_and(is_json),
            headers: std::mem::take(&mut parts.headers),
        })
    }
}

/// The parameters of a request.
pub(crate) struct Query {
    text: String,
    pairs: Vec<(String, String)>,
}

impl Query {
    pub(crate) fn new(text: &str) -> Query {
        Query {
            text: text.to_owned(),
            pairs: form_urlencoded::parse(text.as_bytes()).into_owned().collect(),
        }
    }

    /// Returns the parameters as they were sent.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns a parameter without the white space around it, or an empty text.
    pub(crate) fn get(&self, name: &str) -> &str {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value.trim())
    }

    /// Returns the key that the parameter `k` has as hexadecimal digits.
    pub(crate) fn key(&self) -> Option<Key> {
        unhex(self.get("k").as_bytes()).map(Key::from)
    }

    /// Returns the time that a parameter has in milliseconds since 1970.
    pub(crate) fn time(&self, name: &str) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.get(name).parse().ok()?))
    }

    /// Returns how long a holder has, as the form has it in seconds. `None`: it has something else.
    pub(crate) fn grace(&self) -> Option<Duration> {
        match self.get("grace") {
            "" => Some(GRACE),
            text => Some(Duration::from_secs(
                text.parse().ok().filter(|seconds| *seconds <= MAX_GRACE)?,
            )),
        }
    }

    /// Returns a parameter in the form in which names are shown.
    pub(crate) fn shown(&self, name: &str) -> String {
        shown(self.bytes(name))
    }

    /// Returns bytes that are written as they are shown.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        unshown(self.get(name))
    }
}

/// What a view shows.
pub(crate) struct Shown {
    pub(crate) title: String,
    pub(crate) tab: Tab,
    /// What a reader must know about all of it.
    pub(crate) notices: Vec<String>,
    pub(crate) body: Markup,
    /// The lines of `--json`, if JSON is asked for.
    pub(crate) lines: Vec<String>,
    /// The link to the next page.
    pub(crate) next: Option<String>,
}

impl Visit {
    /// Returns the values as lines of `--json`, if JSON is asked for.
    pub(crate) fn lines<T: Serialize>(&self, values: impl IntoIterator<Item = T>) -> Vec<String> {
        if !self.wants_json {
            return Vec::new();
        }
        let lines = values.into_iter().map(|value| serde_json::to_string(&value));
        lines
            .map(|line| line.unwrap_or_else(|error| error.to_string()))
            .collect()
    }

    /// Answers with what a view shows, or says why the store does not tell it.
    pub(crate) fn answer(&self, tab: Tab, shown: Result<Shown, Error>) -> Response {
        match shown {
            Ok(shown) if self.wants_json => self.json(&shown),
            Ok(shown) => self.page(&shown),
            Err(error) => self.unavailable(tab, &error),
        }
    }

    fn json(&self, shown: &Shown) -> Response {
        let body: String = shown.lines.iter().map(|line| format!("{line}\n")).collect();
        let mut response = ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response();
        let next = shown.next.as_ref().map(|next| format!("<{next}>; rel=\"next\""));
        if let Some(next) = next.and_then(|next| next.parse().ok()) {
            response.headers_mut().insert(LINK, next);
        }
        response
    }

    fn page(&self, shown: &Shown) -> Response {
        let body = layout(&shown.title, Some(shown.tab), &shown.notices, true, &shown.body).into_string();
        let tag = format!("\"{}\"", hex(&Sha256::digest(&body)[..16]));
        if is_known(&self.headers, &tag) {
            return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
        }
        let headers = [(CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (ETAG, tag)];
        (headers, body).into_response()
    }

    /// Says with the store's words that it does not answer. The page asks again by itself.
    pub(crate) fn unavailable(&self, tab: Tab, error: &Error) -> Response {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        if self.wants_json {
            let body = serde_json::json!({ "error": error.to_string() }).to_string();
            return (status, [(CONTENT_TYPE, "application/json")], body).into_response();
        }
        let notices = [format!("The store does not answer: {}", shown(error.to_string()))];
        let body = html! {
            // An act that the store did not answer has its words here.
            (outcome(&self.app.acts, self.query.get("done")))
            p { "Nothing is known at present. This page asks again every two seconds." }
        };
        let page = layout("No answer", Some(tab), &notices, true, &body);
        (status, [(RETRY_AFTER, "2")], page).into_response()
    }

    /// Returns what a reader must know about all that the store shows.
    pub(crate) async fn notices(&self) -> Vec<String> {
        let inspection = self.app.locks.inspect();
        let mut notices = Vec::new();
        if inspection.is_quorum() {
            notices.push(
                "A quorum: each master has rows of its own, and a lease counts if most masters have it. Jobs and steals need one server."
                    .to_owned(),
            );
        }
        if let Ok(servers) = self.app.looks.recovering(&self.app.locks).await {
            let servers = servers.iter();
            notices.extend(servers.map(|(server, left)| crate::words::recovering(server, round_up(*left))));
        }
        notices
    }

    /// Returns the name of the operator. `None`: the request may only look.
    pub(crate) fn operator(&self) -> Option<&str> {
        match &self.access {
            Access::Operate(name) => Some(name),
            Access::Read | Access::None => None,
        }
    }

    /// Returns whether a view offers to take leases. A quorum has no steals.
    pub(crate) fn can_steal(&self) -> bool {
        self.operator().is_some() && !self.app.locks.inspect().is_quorum()
    }
}

/// Returns the time as a multiple of 10 s: a screen reader reads a notice again when its text changes.
fn round_up(time: Duration) -> Duration {
    const STEP: u64 = 10;
    Duration::from_secs((time.as_secs() / STEP + 1) * STEP)
}

/// Returns whether the request names this tag as one that it knows. A proxy that compresses makes a tag weak (`W/`), and RFC 9110,
/// section 13.1.2, compares it all the same.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let fields = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut known = fields.flat_map(|field| field.split(',')).map(str::trim);
    known.any(|known| known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Returns the values of the cookies with this name. A browser sends one of each path that has it.
pub(crate) fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let fields = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let pairs = fields
        .flat_map(|field| field.split(';'))
        .filter_map(|pair| pair.split_once('='));
    pairs
        .filter(move |(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}
