//! What a layer notes on the lease of a request: nothing of it but the trace id is chosen by the client.

use http::request::Parts;
use http::{HeaderMap, Method};

use crate::middleware::route::route;
use crate::primitives::held::Held;
use crate::protocol::message::start_within;
use crate::protocol::view::MAX_NOTE;

/// Notes the request on a holding.
pub(super) fn note(held: &Held, parts: &Parts) {
    if held.tells_notes() {
        held.note(&text(parts));
    }
}

/// Returns `POST /accounts/{id} trace 4bf92f3577b34da6a3ce929d0e0e4736`. A long route is cut, and the trace id stays.
fn text(parts: &Parts) -> String {
    let mut text = String::with_capacity(MAX_NOTE);
    text += method(&parts.method);
    let trace = trace_id(&parts.headers);
    if let Some(route) = route(parts) {
        let left = MAX_NOTE - text.len() - 1 - trace.map_or(0, |id| TRACE.len() + id.len());
        text.push(' ');
        text += start_within(route, left);
    }
    if let Some(id) = trace {
        text += TRACE;
        text += id;
    }
    text
}

/// The word before the trace id.
const TRACE: &str = " trace ";

/// Returns the method if it is known. The client could write anything else there.
fn method(method: &Method) -> &str {
    const KNOWN: [&str; 10] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY",
    ];
    let known = KNOWN.iter().find(|known| **known == method.as_str());
    known.copied().unwrap_or("other")
}

/// Returns the trace id of the only `traceparent`, if all of that header is valid: W3C Trace Context, section 3.2.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all("traceparent").iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    // Later versions may append fields to the four of version 00.
    let mut fields = value.to_str().ok()?.splitn(5, '-');
    let mut field = |digits| fields.next().filter(|field| is_hex(field, digits));
    let (version, trace, parent) = (field(2)?, field(32)?, field(16)?);
    field(2)?;
    let has_more = fields.next().is_some();
    let is_version = version != "ff" && !(version == "00" && has_more);
    let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    (is_version && !is_zero(trace) && !is_zero(parent)).then_some(trace)
}

/// Returns whether the field is this number of digits in lower case.
fn is_hex(field: &str, digits: usize) -> bool {
    field.len() == digits
        && field
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn parts(method: &str, traceparent: &[&str]) -> Parts {
        let mut request = Request::builder().method(method).uri("/secret?secret=1");
        for value in traceparent {
            request = request.header("traceparent", HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_valid_traceparent_is_noted() {
        for rest in ["00f067aa0ba902b7-01", "00f067aa0ba902b7-00"] {
            let noted = text(&parts("POST", &[&format!("00-{TRACE_ID}-{rest}")]));
            assert_eq!(noted, format!("POST trace {TRACE_ID}"));
        }
        // A later version begins as version 00 does.
        for later in ["01-ID-00f067aa0ba902b7-09", "cc-ID-00f067aa0ba902b7-01-what-ever"] {
            let noted = text(&parts("GET", &[&later.replace("ID", TRACE_ID)]));
            assert_eq!(noted, format!("GET trace {TRACE_ID}"), "{later}");
        }
    }

    #[test]
    fn nothing_of_an_invalid_traceparent_is_noted() {
        let zeros = "0".repeat(32);
        for invalid in [
            "",
            "secret",
            "00-ID-00f067aa0ba902b7-01-",
            "00-ID-00f067aa0ba902b7-01-more",
            "00-ID-00f067aa0ba902b7-0",
            "00-ID-00f067aa0ba902b7",
            "00-ID-00f067aa0ba902b7-011",
            "00-ID-0000000000000000-01",
            "00-ID-00F067AA0BA902B7-01",
            "00-IDa-00f067aa0ba902b7-01",
            "00-ID -00f067aa0ba902b7-01",
            "ff-ID-00f067aa0ba902b7-01",
            "0-ID-00f067aa0ba902b7-01",
            "cc-ID-00f067aa0ba902b7-01.more",
            "00-ID-00f067aa0ba902b7-\u{fc}",
            &format!("00-{zeros}-00f067aa0ba902b7-01"),
            &format!("00-{}-00f067aa0ba902b7-01", TRACE_ID.to_uppercase()),
        ] {
            assert_eq!(
                text(&parts("GET", &[&invalid.replace("ID", TRACE_ID)])),
                "GET",
                "{invalid}"
            );
        }
        let valid = format!("00-{TRACE_ID}-00f067aa0ba902b7-01");
        assert_eq!(
            text(&parts("GET", &[&valid, &valid])),
            "GET",
            "it must be the only one"
        );
    }

    #[test]
    fn a_method_that_a_client_made_up_is_not_noted() {
        for (method, noted) in [("QUERY", "QUERY"), ("get", "other"), ("SECRET", "other")] {
            assert_eq!(text(&parts(method, &[])), noted);
        }
    }
}
