//! Relative links, and ids of HTML. A key is in hexadecimal digits in them.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tenure::Key;
use tenure::inspect::{Entry, HolderEntry};
use tenure::scheduler::{ActEntry, TickEntry};

use crate::text::hex;

/// Returns a relative link with these parameters.
pub(crate) fn link(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// Returns the link to the view of a key, or of a job.
pub(crate) fn link_to(path: &str, key: &Key) -> String {
    link(path, &[("k", &hex(key.as_bytes()))])
}

/// Returns an id of HTML for these parts.
pub(crate) fn id(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("r{}", hex(&hash.finalize()[..12]))
}

/// Returns the parameter for a time.
pub(crate) fn ms(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis()
        .to_string()
}

/// Returns the link that cancels a tick.
pub(crate) fn cancel_link(k: &str, tick: &TickEntry) -> String {
    let since = tick.since.map(ms).unwrap_or_default();
    let triggered = if tick.is_triggered { "yes" } else { "" };
    let parameters = [
        ("k", k),
        ("tick", &ms(tick.tick)),
        ("triggered", triggered),
        ("since", &since),
    ];
    link("cancel", &parameters)
}

/// Returns the link that ends this pause of a job.
pub(crate) fn resume_link(k: &str, pause: &ActEntry) -> String {
    link("resume", &[("k", k), ("since", &ms(pause.since))])
}

/// Returns the link that takes the lease of a holder. `None`: its lease has no number. The command takes it.
pub(crate) fn steal_link(k: &str, entry: &Entry, holder: &HolderEntry) -> Option<String> {
    let number = holder.number?.to_string();
    Some(link(
        "steal",
        &[("k", k), ("kind", entry.kind.word()), ("seen", &number)],
    ))
}

/// Returns the link that takes the record of a foreign client.
pub(crate) fn steal_foreign_link(k: &str, entry: &Entry) -> Option<String> {
    let digest = entry.foreign.as_deref()?;
    Some(link(
        "steal",
        &[("k", k), ("kind", entry.kind.word()), ("seen", digest)],
    ))
}
