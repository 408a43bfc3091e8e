//! The form of entries for machines: one object, dates by RFC 3339, durations in milliseconds, fences as text.

use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::key::Key;
use crate::primitives::inspect::inspection::{Entry, HolderEntry, NodeEntry, WaiterEntry};
use crate::protocol::message::{Mode, Permits};
use crate::protocol::steal::AuditEntry;

#[derive(Serialize)]
struct EntryForm<'a> {
    kind: &'static str,
    #[serde(flatten)]
    key: KeyForm<'a>,
    state: &'static str,
    server: &'a str,
    held_by: u64,
    holders: &'a [HolderEntry],
    waiting: u64,
    waiters: &'a [WaiterEntry],
    permits_in_use: Option<u64>,
    permits: Option<u32>,
    count: Option<u32>,
    left_ms: Option<u64>,
    foreign: Option<&'a str>,
}

/// A key that is not UTF-8 is told in hexadecimal only.
#[derive(Serialize)]
struct KeyForm<'a> {
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
}

#[derive(Serialize)]
struct NodeForm<'a> {
    node: String,
    alive: bool,
    name: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    version: Option<&'a str>,
}

#[derive(Serialize)]
struct HolderForm<'a> {
    #[serde(flatten)]
    node: NodeForm<'a>,
    claim: u64,
    mode: &'static str,
    weight: Option<u32>,
    number: Option<String>,
    fence: Option<String>,
    since: Option<String>,
    revoked: bool,
    left_ms: Option<u64>,
}

#[derive(Serialize)]
struct WaiterForm<'a> {
    #[serde(flatten)]
    node: NodeForm<'a>,
    claim: Option<u64>,
    mode: &'static str,
    weight: Option<u32>,
    dead: bool,
}

#[derive(Serialize)]
struct PresenceForm<'a> {
    #[serde(flatten)]
    node: NodeForm<'a>,
    started: Option<String>,
    service: Option<&'a str>,
    prefix: Option<String>,
    keys: Option<u64>,
    waiting: Option<u64>,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = EntryForm {
            kind: self.kind.word(),
            key: key_form(&self.key),
            state: self.state.word(),
            server: &self.server,
            held_by: self.held_by,
            holders: &self.holders,
            waiting: self.waiting,
            waiters: &self.waiters,
            permits_in_use: self.permits.map(|(in_use, _)| in_use),
            permits: self.permits.map(|(_, permits)| permits),
            count: self.count,
            left_ms: self.left.map(ms),
            foreign: self.foreign.as_deref(),
        };
        form.serialize(serializer)
    }
}

impl Serialize for HolderEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mode, weight) = mode_form(self.mode);
        let form = HolderForm {
            node: node_form(&self.node),
            claim: self.claim,
            mode,
            weight,
            number: self.number.map(|number| number.to_string()),
            fence: self.fence.map(|fence| fence.to_string()),
            since: self.since.map(date),
            revoked: self.is_revoked,
            left_ms: self.left.map(ms),
        };
        form.serialize(serializer)
    }
}

impl Serialize for WaiterEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mode, weight) = mode_form(self.mode);
        let form = WaiterForm {
            node: node_form(&self.node),
            claim: self.claim,
            mode,
            weight,
            dead: self.is_dead,
        };
        form.serialize(serializer)
    }
}

impl Serialize for NodeEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let told = self.presence.as_ref();
        let form = PresenceForm {
            node: node_form(self),
            started: told.map(|told| date(told.started)),
            service: told.map(|told| &*told.service),
            prefix: told.map(|told| told.prefix.to_string()),
            keys: told.map(|told| told.keys),
            waiting: told.map(|told| told.waiting),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct AuditForm<'a> {
    time: String,
    by: &'a str,
    what: &'a str,
    kind: Option<&'static str>,
    #[serde(flatten)]
    key: KeyForm<'a>,
    number: &'a str,
    why: &'a str,
}

impl Serialize for AuditEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = AuditForm {
            time: date(self.time()),
            by: &self.by,
            what: &self.what,
            kind: self.kind.map(|kind| kind.word()),
            key: key_form(&self.key),
            number: &self.number,
            why: &self.why,
        };
        form.serialize(serializer)
    }
}

fn key_form(key: &Key) -> KeyForm<'_> {
    let text = std::str::from_utf8(key.as_bytes()).ok();
    let hex = || key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    KeyForm {
        key: text,
        key_hex: text.is_none().then(hex),
    }
}

fn node_form(node: &NodeEntry) -> NodeForm<'_> {
    let told = node.presence.as_ref();
    NodeForm {
        node: node.id.to_string(),
        alive: node.is_alive,
        name: told.map(|told| &*told.name),
        host: told.map(|told| &*told.host),
        pid: told.map(|told| told.pid),
        version: told.map(|told| &*told.version),
    }
}

fn mode_form(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Read => ("read", None),
        Mode::Permits(Permits { weight, .. }) => ("permits", Some(weight)),
    }
}

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// A node may tell any date. RFC 3339 ends with the year 9999.
fn date(date: SystemTime) -> String {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let date = date.min(SystemTime::UNIX_EPOCH + LAST);
    humantime::format_rfc3339_millis(date).to_string()
}
