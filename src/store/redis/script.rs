//! The script: one text for every verb, the words it is called with, and what it answers.

use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, Value};

use crate::claim::{
    Answer, Batch, Executed, Failure, Grant, Holder, Kind, Name, NodeId, Reply, Request, Verb,
};
use crate::error::{Refusal, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::options::LONGEST_LEASE;

const LONE: &str = include_str!("lua/lone.lua");
const OPEN: &str = include_str!("lua/open.lua");
/// Made only when a request is not one of the two plain cases: closures cost as much as calls.
const RULES: [&str; 5] = [
    include_str!("lua/queue.lua"),
    include_str!("lua/claim.lua"),
    include_str!("lua/renew.lua"),
    include_str!("lua/leave.lua"),
    include_str!("lua/yield.lua"),
];
const BATCH: &str = include_str!("lua/batch.lua");

/// The format of names and pushes.
const FORMAT: &str = "tenure1";
/// Where a server keeps the last grant number.
const CLOCK: &str = "tenure1:clock";

/// A script and the name by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The whole text.
    pub(super) text: String,
    /// Its SHA-1, in hexadecimal.
    pub(super) sha: String,
}

/// The one script.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    let text = format!(
        "{LONE}{OPEN}local function rules()\n{}return claim, renew, leave, yield\nend\n{BATCH}",
        RULES.concat()
    );
    let sha = redis::Script::new(&text).get_hash().to_owned();
    Script { text, sha }
});

/// How keys are called in Redis.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: Box<[u8]>,
}

impl Names {
    /// Records begin with `prefix`.
    pub(super) fn new(prefix: &[u8]) -> Self {
        Names {
            prefix: prefix.into(),
        }
    }

    fn append_record(&self, name: &Name, text: &mut Vec<u8>) {
        match name.kind {
            Kind::Lock => {
                text.extend_from_slice(&self.prefix);
                text.extend_from_slice(name.key.as_bytes());
            }
        }
    }

    /// The name of a queue is the name of the record behind a tag that brings it to the record's slot: the record
    /// itself cannot be the tag, as it may hold braces.
    fn write_queue(&self, record: &[u8], mut out: impl Write) -> std::io::Result<()> {
        out.write_all(FORMAT.as_bytes())?;
        out.write_all(b":q:{")?;
        out.write_all(tag(slot(record)))?;
        out.write_all(b"}")?;
        out.write_all(record)
    }

    /// The key whose record this is.
    fn key(&self, record: &[u8]) -> Option<Key> {
        record
            .strip_prefix(&*self.prefix)
            .filter(|key| !key.is_empty())
            .map(Key::from)
    }
}

/// The slot of a key by the rules of Redis Cluster: of what stands in the first braces, if anything does.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let inner = &key[open + 1..];
        let length = inner.iter().position(|&b| b == b'}')?;
        (length > 0).then(|| &inner[..length])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS as u16
}

const SLOTS: usize = 16384;

/// A short text that hashes to `slot`, the same in every process and release: it is part of names.
pub(super) fn tag(slot: u16) -> &'static [u8] {
    static TAGS: LazyLock<Vec<[u8; 4]>> = LazyLock::new(|| {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut tags = vec![[0; 4]; SLOTS];
        let mut missing = SLOTS;
        for n in 0..DIGITS.len().pow(4) {
            let text = [36 * 36 * 36, 36 * 36, 36, 1].map(|unit| DIGITS[n / unit % 36]);
            let tag = &mut tags[self::slot(&text) as usize];
            if tag[0] == 0 {
                *tag = text;
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags
    });
    &TAGS[slot as usize % SLOTS]
}

/// The channel on which a node is told of its grants.
pub(super) fn channel(node: NodeId) -> String {
    format!("{FORMAT}:n:{node}")
}

/// The call that applies a batch.
pub(super) fn encode(batch: &Batch, names: &Names, probe: bool) -> Cmd {
    let requests = &batch.requests;
    let bytes: usize = requests
        .iter()
        .map(|r| 2 * (names.prefix.len() + r.name.key.as_bytes().len()) + 160)
        .sum();
    let mut cmd = Cmd::with_capacity(7 * requests.len() + 8, bytes + 160);
    cmd.arg("EVALSHA").arg(&*SCRIPT.sha).arg(2 * requests.len() + 1);
    let mut word = Vec::with_capacity(128);
    for request in requests {
        word.clear();
        names.append_record(&request.name, &mut word);
        cmd.arg(&word);
    }
    cmd.arg(CLOCK);
    for request in requests {
        word.clear();
        names.append_record(&request.name, &mut word);
        // Writing into a command's buffer cannot fail.
        let _ = names.write_queue(&word, cmd.writer_for_next_arg());
    }
    let not_after = match batch.not_after {
        u64::MAX => 0,
        not_after => not_after.max(1),
    };
    let counts = requests.iter().any(|request| request.verb != Verb::Renew);
    let flags = match (probe, counts) {
        (false, false) => "",
        (false, true) => "q",
        (true, false) => "p",
        (true, true) => "pq",
    };
    cmd.arg(batch.highest).arg(not_after).arg(flags);
    for Request {
        holder, term, verb, ..
    } in requests
    {
        let letter = match verb {
            Verb::Claim { wait: false } => "c",
            Verb::Claim { wait: true } => "w",
            Verb::Renew => "r",
            Verb::Leave => "l",
            Verb::Yield { .. } => "y",
        };
        let mut put_holder = |cmd: &mut Cmd, holder: &Holder| {
            word.clear();
            holder.append_to(&mut word);
            word.push(b':');
            cmd.arg(&word);
        };
        cmd.arg(letter);
        put_holder(&mut cmd, holder);
        cmd.arg(term.lease_ms).arg(term.hold_ms());
        if let Verb::Yield { to } = verb {
            put_holder(&mut cmd, to);
        }
    }
    cmd
}

/// What the script answered.
pub(super) fn decode(value: Value, requests: usize) -> Result<Answer, Failure> {
    let Value::Array(values) = value else {
        return Err(malformed("the script's answer is not a list"));
    };
    let mut values = values.into_iter();
    let Some(Value::Int(time)) = values.next() else {
        return Err(malformed("the script's answer has no time"));
    };
    let mut replies = Vec::with_capacity(requests);
    for value in values {
        let reply = decode_reply(value)?;
        if reply == Reply::Refused(Refusal::ReadOnly) {
            // Every write of the batch was refused, and its other answers come from a server that is no master.
            return Err(Failure {
                executed: Executed::No,
                error: StoreError::refused(Refusal::ReadOnly),
            });
        }
        replies.push(reply);
    }
    if replies.len() != requests {
        return Err(malformed(format_args!(
            "the script answered {} of {requests} requests",
            replies.len()
        )));
    }
    Ok(Answer {
        time: time.unsigned_abs(),
        replies,
    })
}

fn decode_reply(value: Value) -> Result<Reply, Failure> {
    let text = match value {
        Value::Int(number) if number > 0 => return Ok(Reply::Granted(number.unsigned_abs())),
        Value::BulkString(text) => text,
        _ => return Err(malformed("a reply of the script is neither a number nor a text")),
    };
    let (letter, rest) = text
        .split_first()
        .ok_or_else(|| malformed("a reply of the script is empty"))?;
    let rest = String::from_utf8_lossy(rest);
    let left = || {
        if rest.is_empty() {
            Ok(None)
        } else {
            rest.parse().map(Some)
        }
    };
    let bad = |_| malformed("a reply of the script has a bad number");
    Ok(match letter {
        b'Q' => Reply::Queued(left().map_err(bad)?),
        b'B' => Reply::Busy(left().map_err(bad)?),
        b'L' => Reply::Late,
        b'X' => Reply::Gone,
        b'D' => Reply::Done,
        b'N' => Reply::NotThere,
        b'E' => Reply::Refused(refusal(&rest)),
        _ => return Err(malformed("a reply of the script is unknown")),
    })
}

/// A server whose answers make no sense has perhaps done what was asked.
pub(super) fn malformed(why: impl Display) -> Failure {
    Failure {
        executed: Executed::Unknown,
        error: StoreError::new(StoreErrorKind::Interrupted, why),
    }
}

/// Sorts an error text of a server's. Redis 6.2 leaves the dash in front of some.
pub(super) fn refusal(text: &str) -> Refusal {
    let text = text.trim_start_matches('-').trim_end();
    match text.split(' ').next().unwrap_or_default() {
        "WRONGTYPE" => Refusal::WrongType,
        "OOM" => Refusal::OutOfMemory,
        "READONLY" => Refusal::ReadOnly,
        "LOADING" => Refusal::Loading,
        "BUSY" => Refusal::Busy,
        "MISCONF" => Refusal::Misconfigured,
        "NOREPLICAS" => Refusal::NoReplicas,
        "NOAUTH" => Refusal::NoAuth,
        "WRONGPASS" => Refusal::WrongPassword,
        "NOPERM" => Refusal::NoPermission,
        // What Redis 7 says inside of a script.
        _ if text.contains("The user executing the script can't") => Refusal::NoPermission,
        _ => Refusal::Other(text.to_owned()),
    }
}

/// Reads a push to `node`: `1 lock <claim> <nonce> <number> <lease> <record>`. `None` when it is none of this format.
pub(super) fn decode_push(payload: &[u8], node: NodeId, names: &Names) -> Option<Grant> {
    let mut parts = payload.splitn(7, |&b| b == b' ');
    let mut word = || std::str::from_utf8(parts.next()?).ok();
    if word()? != "1" || word()? != Kind::Lock.word() {
        return None;
    }
    let claim = word()?.parse().ok()?;
    let nonce = u64::from_str_radix(word()?, 16).ok()?;
    let number = word()?.parse().ok()?;
    let lease_ms = word()?
        .parse()
        .ok()
        .filter(|ms| *ms <= LONGEST_LEASE.as_millis() as u64)?;
    let name = Name::lock(names.key(parts.next()?)?);
    Some(Grant {
        name,
        holder: Holder { node, claim, nonce },
        number,
        lease_ms,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_slot_has_a_tag_that_hashes_to_it() {
        for n in 0..SLOTS as u16 {
            assert_ne!(tag(n)[0], 0, "slot {n}");
            assert_eq!(slot(tag(n)), n);
        }
        // As Redis says: CLUSTER KEYSLOT.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"{}foo"), slot(b"x{}foo".strip_prefix(b"x").unwrap()));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn a_queue_lies_in_the_slot_of_its_record() {
        let names = Names::new(b"lock:");
        for key in [
            &b"a"[..],
            b"{}",
            b"a}b{c}",
            b"}{",
            b"{x}{y}",
            b"\x00\xff\n",
            b"clock",
            b"{",
        ] {
            let record = [b"lock:", key].concat();
            let mut queue = Vec::new();
            names.write_queue(&record, &mut queue).unwrap();
            assert_eq!(slot(&queue), slot(&record), "{key:?}");
        }
    }

    /// `KEYS[…]` and `ARGV[…]` as they are written in a text.
    fn used<'a>(text: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in text {
            for (at, word) in line.match_indices("KEYS[").chain(line.match_indices("ARGV[")) {
                if let Some(length) = line[at..].find(']') {
                    let index: String = line[at + word.len()..at + length].split_whitespace().collect();
                    found.insert(format!("{word}{index}]"));
                }
            }
        }
        found
    }

    #[test]
    fn headers_name_what_the_bodies_use() {
        let files = RULES.into_iter().chain([OPEN, BATCH, LONE]);
        for (file, name) in files.zip([
            "queue", "claim", "renew", "leave", "yield", "open", "batch", "lone",
        ]) {
            let is_header = |line: &&str| line.starts_with("--");
            assert!(
                file.starts_with(&format!("-- {name}: ")),
                "{name}: the header starts with the name"
            );
            let header: Vec<_> = file.lines().take_while(is_header).collect();
            assert!(
                header.iter().any(|line| line.starts_with("-- returns")),
                "{name}: says what it returns"
            );
            let body = used(file.lines().skip(header.len()));
            let told = used(header.iter().copied());
            // Verbs hand the reading of some of their words to the helpers in queue.lua, so a header may name more
            // than its body, except for the words of the request.
            for word in &body {
                assert!(
                    told.contains(word),
                    "{name}: the body uses {word}, the header does not say so"
                );
            }
            // The verb itself was read by the loop in batch.lua.
            let words = told
                .iter()
                .filter(|word| word.starts_with("ARGV[") && *word != "ARGV[at]");
            for word in words {
                assert!(
                    body.contains(word),
                    "{name}: the header names {word}, the body does not use it"
                );
            }
        }
    }

    #[test]
    fn a_push_of_another_format_is_no_grant() {
        let node = NodeId::numbered(7);
        let names = Names::new(b"lock:");
        let push = |text: &str| decode_push(text.as_bytes(), node, &names);
        let grant = push("1 lock 3 00000000000000ff 17 1000 lock:a b").unwrap();
        assert_eq!(grant.name.key, Key::from("a b"));
        assert_eq!(
            (
                grant.holder.claim,
                grant.holder.nonce,
                grant.number,
                grant.lease_ms
            ),
            (3, 255, 17, 1000)
        );
        for other in [
            "",
            "2 lock 3 ff 17 1000 lock:a",
            "1 latch 3 ff 17 1000 lock:a",
            "1 lock 3 ff 17 1000",
            "1 lock 3 ff 17 1000 lock:",
            "1 lock 3 ff 17 1000 other:a",
            "1 lock x ff 17 1000 lock:a",
            "1 lock 3 ff 17 -1 lock:a",
            "1 lock 3 ff 17 18446744073709551615 lock:a",
        ] {
            assert_eq!(push(other), None, "{other}");
        }
    }
}
