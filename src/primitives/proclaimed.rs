//! What the store keeps of a leader: the name of its node, and the value that it proclaimed.

use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::protocol::message::Payload;

/// The largest value of a leader, in bytes.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// Checks the value in `payload`, which [`encode`] returned.
///
/// # Errors
/// A value that is too long.
pub(crate) fn check(key: &Key, payload: &Payload) -> Result<(), Error> {
    let length = decode(&payload.0)
        .and_then(|(_, value)| value)
        .map_or(0, <[u8]>::len);
    if length <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::Options(OptionsError(format!(
        "election `{key}` takes a value of at most {MAX_VALUE_BYTES} bytes, not {length}"
    ))))
}

/// Encodes a node's name and its value for the store: `<length of the name>:<name>`, then nothing, or `=` and the value.
pub(crate) fn encode(name: &str, value: Option<&[u8]>) -> Payload {
    let mut payload = format!("{}:{name}", name.len()).into_bytes();
    if let Some(value) = value {
        payload.push(b'=');
        payload.extend_from_slice(value);
    }
    Payload(payload.into())
}

/// Decodes the name and the value. Returns `None` for bytes in another format.
pub(crate) fn decode(payload: &[u8]) -> Option<(&str, Option<&[u8]>)> {
    let colon = payload.iter().position(|byte| *byte == b':')?;
    let length: usize = std::str::from_utf8(&payload[..colon]).ok()?.parse().ok()?;
    let (name, rest) = payload[colon + 1..].split_at_checked(length)?;
    Some((std::str::from_utf8(name).ok()?, rest.strip_prefix(b"=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_payload_is_decoded_and_other_bytes_are_not() {
        for (name, value) in [
            ("", None),
            ("web-1", None),
            ("a:=b", Some(&b"10.0.0.7:80"[..])),
            ("Zürich", Some(b"")),
            ("", Some(b"\0\xff=:\n")),
        ] {
            assert_eq!(decode(&encode(name, value).0), Some((name, value)));
        }
        for bad in [
            &b""[..],
            b"x",
            b":",
            b"9:short",
            b"-1:a",
            b"2:\xff\xff",
            b"99999999999999999999:a",
        ] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
