//! The texts in records, shares, queues and presences, as operators and tests read them. `lua/` writes them.

use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::protocol::message::{
    ClaimNumber, Fence, GrantNumber, Kind, MAX_RUN_TEXT, Mode, NodeId, OperatorAct, Permits, TickTime,
    WantedRun, start_within,
};
use crate::protocol::view::{MAX_NOTE, MAX_NOTES, NoteView, Presence};

/// The bytes that a presence has as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':');
/// The number of bytes of a foreign value that identify it.
const MAX_DIGESTED: usize = 512;
/// What stands before the value of a record that an operator revoked.
pub(super) const REVOKED: &[u8] = b"!";

/// The owner of a record, `<node>:<claim>:<nonce>:<grant number>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) node: NodeId,
    pub(super) claim: ClaimNumber,
    pub(super) number: GrantNumber,
    /// The mark, see `lua/open.lua`.
    pub(super) may_keep: bool,
}

/// A member of a zset that names a claim: `a<holder>:…` of a queue, `h<holder>…` of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) node: NodeId,
    pub(super) claim: ClaimNumber,
    pub(super) mode: Mode,
    /// The text of the claim, `<node>:<claim>:<nonce>:`. It has the nonce.
    pub(super) holder: &'a str,
    /// The whole member.
    pub(super) member: &'a str,
}

/// Reads the value of a record. `None`: another client wrote it.
pub(super) fn owner(value: &[u8]) -> Option<Owner> {
    let (node, claim, number) = claim(std::str::from_utf8(value).ok()?)?;
    Some(Owner {
        node,
        claim,
        number: GrantNumber(decimal(number)?),
        may_keep: number.starts_with('0'),
    })
}

/// Reads a share of a record of this kind.
pub(super) fn share(member: &[u8], kind: Kind) -> Option<Member<'_>> {
    let member = std::str::from_utf8(member).ok()?;
    let text = member.strip_prefix('h')?;
    let (node, claim, rest) = claim(text)?;
    let mode = match kind {
        Kind::Semaphore => permits(rest)?,
        _ if rest.is_empty() => Mode::Read,
        _ => return None,
    };
    Some(Member {
        node,
        claim,
        mode,
        holder: &text[..text.len() - rest.len()],
        member,
    })
}

/// Reads the place of a waiter in a queue of this kind: `a<holder>:<lease>:<hold>`, and `:<tick>` or `:<mode>`.
pub(super) fn waiter(member: &[u8], kind: Kind) -> Option<Member<'_>> {
    let member = std::str::from_utf8(member).ok()?;
    let text = member.strip_prefix('a')?;
    let (node, claim, rest) = claim(text)?;
    let mut terms = rest.splitn(3, ':');
    let (_lease, _hold) = (decimal::<u64>(terms.next()?)?, decimal::<u64>(terms.next()?)?);
    let mode = mode(kind, terms.next())?;
    Some(Member {
        node,
        claim,
        mode,
        holder: &text[..text.len() - rest.len()],
        member,
    })
}

/// Reads `<node>:<claim>:<nonce>:` and returns what follows.
fn claim(text: &str) -> Option<(NodeId, ClaimNumber, &str)> {
    let mut parts = text.splitn(4, ':');
    let (node, claim, nonce, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_node = node.len() == 32 && node.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(nonce, 16).ok()?;
    Some((
        node.parse().ok().filter(|_| is_node)?,
        ClaimNumber(decimal(claim)?),
        rest,
    ))
}

/// Reads the word of a request that says how its lease is shared.
pub(super) fn mode(kind: Kind, word: Option<&str>) -> Option<Mode> {
    match (kind, word) {
        (Kind::Semaphore, Some(of)) => permits(of),
        (Kind::Lock, Some("1")) => Some(Mode::Read),
        _ => Some(Mode::Exclusive),
    }
}

fn permits(text: &str) -> Option<Mode> {
    let (weight, capacity) = text.split_once('/')?;
    Some(Mode::Permits(Permits {
        weight: decimal(weight)?,
        capacity: decimal(capacity)?,
    }))
}

/// Reads digits only: `parse` also takes a sign.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    text.parse()
        .ok()
        .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Identifies the value of a foreign client, by the first 12 digits of the SHA-1 of its first 512 bytes. The value may be a secret of that client: with
/// it, the lock could be released.
pub(super) fn digest(value: &[u8]) -> Arc<str> {
    let value = &value[..value.len().min(MAX_DIGESTED)];
    let hex = sha1_smol::Sha1::from(value).digest().to_string();
    hex[..12].into()
}

/// Writes a presence as `field=value&…`.
pub(super) fn presence(presence: &Presence) -> String {
    let numbers = [
        presence.pid.into(),
        presence.started_ms,
        presence.keys,
        presence.waiting,
    ];
    let [pid, started, keys, waiting] = numbers.map(|number: u64| number.to_string());
    let fields: [(&str, &[u8]); 9] = [
        ("name", presence.name.as_bytes()),
        ("host", presence.host.as_bytes()),
        ("pid", pid.as_bytes()),
        ("started", started.as_bytes()),
        ("version", presence.version.as_bytes()),
        ("service", presence.service.as_bytes()),
        ("prefix", &presence.prefix),
        ("keys", keys.as_bytes()),
        ("waiting", waiting.as_bytes()),
    ];
    let fields = fields.map(|(field, value)| format!("{field}={}", encoded_start(value)));
    let mut text = fields.join("&");
    for note in &presence.notes {
        let words = format!("{}:{}:{}", note.claim.0, note.fence.get(), note.text);
        text += "&note=";
        text += &encoded(words.as_bytes());
    }
    text
}

/// Encodes a value for a field or for a word of a push.
pub(super) fn encoded(value: &[u8]) -> String {
    percent_encode(value, PLAIN).to_string()
}

/// Encodes a value, and keeps only its beginning if it is long. No character of UTF-8 is cut.
pub(super) fn encoded_start(value: &[u8]) -> String {
    let mut text = String::new();
    for char in value.chunk_by(|_, next| next & 0xc0 == 0x80).map(encoded) {
        if text.len() + char.len() > MAX_RUN_TEXT {
            break;
        }
        text.push_str(&char);
    }
    text
}

/// Reads an act of an operator: `<since> <by> <why>`. A pause whose text is malformed is still a pause: the scripts grant no tick
/// while it is there.
pub(super) fn act(text: &str) -> OperatorAct {
    let mut words = text.splitn(3, ' ');
    let since_ms = words
        .next()
        .and_then(|since| since.parse().ok())
        .unwrap_or_default();
    let mut word = || {
        percent_decode_str(words.next().unwrap_or_default())
            .decode_utf8_lossy()
            .into()
    };
    OperatorAct {
        since_ms,
        by: word(),
        why: word(),
    }
}

/// Reads a run that is wanted: `<tick>:<attempt> <since> <by> <why>`.
pub(super) fn wanted(text: &str) -> Option<WantedRun> {
    let (run, rest) = text.split_once(' ')?;
    let (tick, attempt) = run.split_once(':')?;
    Some(WantedRun {
        tick: TickTime(decimal(tick)?),
        attempt: decimal(attempt)?,
        act: act(rest),
    })
}

/// Returns the fields of a text, each with the bytes of its value. A field without `=` is empty.
pub(super) fn fields(text: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    text.split('&').map(|field| {
        let (field, value) = field.split_once('=').unwrap_or((field, ""));
        (field, percent_decode_str(value).collect())
    })
}

/// Reads a presence. Unknown fields are ignored, missing ones are empty: other versions have other fields.
pub(super) fn read_presence(text: &[u8]) -> Presence {
    let mut presence = Presence::default();
    for (field, value) in fields(&String::from_utf8_lossy(text)) {
        let text = String::from_utf8_lossy(&value).into_owned();
        match field {
            "name" => presence.name = text,
            "host" => presence.host = text,
            "pid" => presence.pid = text.parse().unwrap_or_default(),
            "started" => presence.started_ms = text.parse().unwrap_or_default(),
            "version" => presence.version = text,
            "service" => presence.service = text,
            "prefix" => presence.prefix = value,
            "keys" => presence.keys = text.parse().unwrap_or_default(),
            "waiting" => presence.waiting = text.parse().unwrap_or_default(),
            "note" if presence.notes.len() < MAX_NOTES => presence.notes.extend(read_note(&text)),
            _ => {}
        }
    }
    presence
}

/// Reads a note: `<claim>:<fence>:<text>`.
fn read_note(text: &str) -> Option<NoteView> {
    let mut words = text.splitn(3, ':');
    let (claim, fence): (u64, u64) = (decimal(words.next()?)?, decimal(words.next()?)?);
    Some(NoteView {
        claim: ClaimNumber(claim),
        fence: Fence::new(GrantNumber(fence / Fence::LOCAL), fence % Fence::LOCAL),
        text: start_within(words.next()?, MAX_NOTE).into(),
    })
}

/// Returns a text with each character escaped that has a meaning in a pattern of Redis.
pub(super) fn escape_pattern(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if b"*?[]\\^-".contains(&byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_a_script_writes_is_read_and_nothing_else() {
        let owner = |text: &str| super::owner(text.as_bytes()).map(|owner| (owner.claim.0, owner.number.0));
        assert_eq!(owner(&format!("{NODE}:7:00ff:1700")), Some((7, 1700)));
        for foreign in [
            "abc",
            "",
            NODE,
            &format!("{NODE}:7:00ff:"),
            &format!("{NODE}:7:00ff:+1"),
            &format!("{NODE}:7:xyz:1"),
            &format!("{NODE}:7:00ff:1:2"),
            &format!("!{NODE}:7:00ff:1"),
            "01234567-89ab-cdef-0123-456789abcdef:7:00ff:1",
        ] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
        let mode = |kind, text: &str| share(text.as_bytes(), kind).map(|share| share.mode);
        let (weight, capacity) = (2, 5);
        let permits = Mode::Permits(Permits { weight, capacity });
        assert_eq!(mode(Kind::Lock, &format!("h{NODE}:7:00ff:")), Some(Mode::Read));
        assert_eq!(
            mode(Kind::Semaphore, &format!("h{NODE}:7:00ff:2/5")),
            Some(permits)
        );
        assert_eq!(mode(Kind::Lock, &format!("h{NODE}:7:00ff:2/5")), None);
        let mode =
            |kind, rest: &str| waiter(format!("a{NODE}:7:00ff:{rest}").as_bytes(), kind).map(|of| of.mode);
        assert_eq!(mode(Kind::Lock, "1000:1250"), Some(Mode::Exclusive));
        assert_eq!(mode(Kind::Lock, "1000:1250:1"), Some(Mode::Read));
        assert_eq!(mode(Kind::Job, "1000:1250:1700000000000"), Some(Mode::Exclusive));
        assert_eq!(mode(Kind::Semaphore, "1000:1250:2/5"), Some(permits));
        assert_eq!(mode(Kind::Lock, "1000"), None);
    }

    #[test]
    fn a_presence_is_read_as_it_was_written_and_by_other_versions() {
        let told = Presence {
            name: "web 1&host=x=%\n".to_owned(),
            host: "Zürich".to_owned(),
            pid: 7,
            started_ms: 1_700_000_000_000,
            version: "0.1.0".to_owned(),
            service: String::new(),
            prefix: b"lock:\xff".to_vec(),
            keys: 3,
            waiting: 4,
            notes: Vec::new(),
        };
        let text = presence(&told);
        assert!(text.is_ascii(), "{text}");
        assert_eq!(read_presence(text.as_bytes()), told);
        assert_eq!(read_presence(format!("zone=b&{text}&new").as_bytes()), told);
        assert_eq!(read_presence(b"\xff&pid=x&&=").pid, 0);
        assert!(
            text.ends_with("&keys=3&waiting=4"),
            "nothing more without notes: {text}"
        );
        let name = "ü".repeat(1_000);
        let text = presence(&Presence { name, ..told });
        assert!(text.len() < 1_000, "{text}");
        let read = read_presence(text.as_bytes()).name;
        assert!(read.len() > 80 && read.chars().all(|char| char == 'ü'), "{read}");
    }

    #[test]
    fn notes_are_read_as_they_were_written_and_have_bounds() {
        let note = |claim, text: &str| NoteView {
            claim: ClaimNumber(claim),
            fence: Fence::new(GrantNumber(1_700_000_000_000_000), 3),
            text: text.into(),
        };
        let every: String = ('\0'..='\u{7f}').chain(['&', 'ü', '\u{202e}']).collect();
        let notes = vec![note(7, "POST /a:b trace 1"), note(8, &every), note(u64::MAX, "")];
        let told = Presence {
            notes,
            ..Presence::default()
        };
        let text = presence(&told);
        assert!(text.is_ascii(), "{text}");
        assert_eq!(read_presence(text.as_bytes()), told);
        // The largest presence is read whole.
        let full = note(u64::MAX, &"\u{1b}".repeat(MAX_NOTE));
        let long = "ü".repeat(1_000);
        let full = Presence {
            name: long.clone(),
            host: long.clone(),
            version: long.clone(),
            service: long.clone(),
            prefix: long.into(),
            notes: vec![full; MAX_NOTES],
            ..told
        };
        let size = presence(&full).len();
        assert!(size < 16_383, "{size}");
        // Any client may write anything.
        let hostile = format!("note=1:2:{}&", "ü".repeat(1_000)).repeat(1_000);
        let read = read_presence(hostile.as_bytes()).notes;
        assert!(read.len() == MAX_NOTES && read.iter().all(|note| note.text.len() == MAX_NOTE));
        let foreign = "note=&note=x&note=1:2&note=:1:x&note=-1:1:x&note=1:+1:x&note=99999999999999999999:1:x";
        assert_eq!(read_presence(foreign.as_bytes()).notes, []);
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        let mut pattern = Vec::new();
        escape_pattern(br"a*b?[c-d]\e^", &mut pattern);
        assert_eq!(pattern, br"a\*b\?\[c\-d\]\\e\^");
    }
}
