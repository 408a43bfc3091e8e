//! The decoding of replies, errors and pushes.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use redis::{RedisError, RedisResult, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::options::LONGEST_LEASE;
use crate::protocol::message::{
    Asking, BatchReply, CallAnswer, CallReply, ClaimId, ClaimReply, Executed, Failure, Grant, GrantNumber,
    GrantReply, JobReport, Kind, LatchReport, LeaderReport, LeaveReply, NodeId, Payload, Push, QueueOwner,
    Reply, Request, TickRefusal, TickTime, Verb, Version,
};
use crate::protocol::step::ms;
use crate::store::redis::format;
use crate::store::redis::names::Names;
use crate::store::redis::script::MAX_EXACT_INTEGER;

/// Decodes the answer of the script to a batch.
pub(super) fn batch(value: Value, requests: &[Request]) -> Result<BatchReply, Failure> {
    let Value::Array(values) = value else {
        return Err(malformed("the script's answer is not a list"));
    };
    let mut values = values.into_iter();
    let Some(Value::Int(time)) = values.next() else {
        return Err(malformed("the script's answer has no time"));
    };
    if values.len() != requests.len() {
        return Err(malformed(format_args!(
            "the script answered {} of {} requests",
            values.len(),
            requests.len()
        )));
    }
    let mut replies = Vec::with_capacity(requests.len());
    for (value, request) in values.zip(requests) {
        let reply = reply(&value, request.verb).ok_or_else(|| unreadable(&value))?;
        if reply == Reply::Refused(StoreRefusal::ReadOnly) {
            // The server refused every write of the batch. It is not a master, so its other replies mean nothing.
            return Err(Failure {
                executed: Executed::No,
                error: StoreError::refused(StoreRefusal::ReadOnly),
            });
        }
        replies.push(reply);
    }
    Ok(BatchReply {
        time: time.unsigned_abs(),
        replies,
    })
}

/// Returns the error for an unknown reply. It names the letter only, because the rest may be the caller's data.
fn unreadable(value: &Value) -> Failure {
    let letter = match value {
        Value::BulkString(text) => text.first().map(|letter| char::from(*letter)),
        _ => None,
    };
    malformed(format_args!(
        "a reply of the script cannot be read (letter: {letter:?})"
    ))
}

/// Decodes the reply to one request, or returns `None` if it is unknown, or no reply to this verb. The files in `lua/` list the
/// replies.
pub(super) fn reply(value: &Value, to: Verb) -> Option<Reply> {
    let reply = match value {
        Value::BulkString(text) if text.starts_with(b"E") => {
            return Some(Reply::Refused(refusal(&String::from_utf8_lossy(&text[1..]))));
        }
        Value::BulkString(text) if text == b"L" => return Some(Reply::Late),
        value => match to {
            Verb::Leave | Verb::Finish { .. } => leave_reply(value)?.into(),
            Verb::Call(_) => call_reply(value)?.into(),
            _ => claim_reply(value)?.into(),
        },
    };
    Some(reply)
}

/// Splits a text into its letter and what follows.
fn letter(value: &Value) -> Option<(u8, &[u8])> {
    match value {
        Value::BulkString(text) => text.split_first().map(|(letter, rest)| (*letter, rest)),
        _ => None,
    }
}

fn claim_reply(value: &Value) -> Option<ClaimReply> {
    if let Value::Int(number) = value {
        return (*number > 0).then(|| ClaimReply::granted(GrantNumber(number.unsigned_abs())));
    }
    let (letter, rest) = letter(value)?;
    let rest = std::str::from_utf8(rest).ok()?;
    let (first, second) = rest.split_once(':').unwrap_or((rest, ""));
    Some(match letter {
        b'Q' => {
            let owner = second.parse().map_or(QueueOwner::Shared, QueueOwner::Node);
            ClaimReply::Queued(optional_number(first)?, owner)
        }
        b'P' => ClaimReply::Queued(optional_number(first)?, QueueOwner::Foreign),
        b'R' => ClaimReply::Recovering(first.parse().ok()?),
        b'B' => ClaimReply::Busy(optional_number(first)?),
        b'W' | b'V' | b'G' => {
            let mut grant = GrantReply::new(first.parse().ok()?);
            match letter {
                b'W' => grant.attempt = second.parse().ok()?,
                b'V' => (grant.attempt, grant.overtook) = (1, Some(second.parse().ok()?)),
                _ => grant.other_capacity = Some(second.parse().ok()?),
            }
            ClaimReply::Granted(grant)
        }
        b'A' => ClaimReply::GroupRefused,
        b'O' => ClaimReply::Tick(TickRefusal::Over),
        b'S' => ClaimReply::Tick(TickRefusal::Skipped),
        b'H' => ClaimReply::Tick(TickRefusal::Paused),
        b'F' => ClaimReply::Tick(TickRefusal::Early(ms(first.parse().ok()?))),
        b'J' => ClaimReply::Tick(TickRefusal::EarlierTickDue {
            latest: first.parse().ok()?,
            is_open: second == "1",
        }),
        b'X' => ClaimReply::Gone,
        b'!' => ClaimReply::Revoked,
        _ => return None,
    })
}

fn leave_reply(value: &Value) -> Option<LeaveReply> {
    match (value, letter(value)) {
        (Value::Int(0), _) => Some(LeaveReply::Left),
        (_, Some((b'N', []))) => Some(LeaveReply::NotThere),
        _ => None,
    }
}

fn call_reply(value: &Value) -> Option<CallReply> {
    if let Value::Int(0) = value {
        return Some(CallReply::Answer(CallAnswer::Owned(true)));
    }
    let (letter, rest) = letter(value)?;
    let text = std::str::from_utf8(rest);
    let version = || text.ok()?.parse().ok().map(Version);
    Some(CallReply::Answer(match letter {
        b'T' if rest.is_empty() => CallAnswer::Leader(None),
        b'T' => CallAnswer::Leader(Some(leader(rest)?)),
        b'U' => CallAnswer::Report(Box::new(report(rest)?)),
        b'I' => CallAnswer::InUse(optional_number(text.ok()?)?),
        b'N' | b'X' => CallAnswer::Owned(false),
        b'Y' => CallAnswer::Latch(LatchReport::Set),
        b'D' => CallAnswer::Latch(LatchReport::Left(text.ok()?.parse().ok()?)),
        b'K' => CallAnswer::Latch(LatchReport::Unset),
        b'M' => CallAnswer::Latch(LatchReport::SetMeanwhile(version()?)),
        b'C' => CallAnswer::Latch(LatchReport::Uncertain),
        b'Z' => CallAnswer::Latch(LatchReport::Over),
        b'H' => return Some(CallReply::Watching(version()?)),
        _ => return None,
    }))
}

/// Reads a number, or an empty text as no number.
fn optional_number(text: &str) -> Option<Option<u64>> {
    match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    }
}

/// Reads the next part of a reply.
fn next_part<'a, T: FromStr>(parts: &mut impl Iterator<Item = &'a [u8]>) -> Option<T> {
    std::str::from_utf8(parts.next()?).ok()?.parse().ok()
}

/// Reads the caller's bytes: the last part of a reply, if there are any.
fn bytes(part: Option<&[u8]>) -> Option<Payload> {
    part?.strip_prefix(b"=").map(|bytes| Payload(bytes.into()))
}

/// Decodes the leader, as `lua/elect.lua` lists the parts.
fn leader(text: &[u8]) -> Option<LeaderReport> {
    let mut parts = text.splitn(4, |byte| *byte == b':');
    Some(LeaderReport {
        number: next_part(&mut parts)?,
        version: next_part(&mut parts)?,
        node: next_part(&mut parts)?,
        value: bytes(parts.next()),
    })
}

/// Decodes the report on a job, as `lua/ask.lua` lists the parts: seven numbers, four numbers that the store keeps as
/// text, and the bytes that the runs of a tick have saved.
fn report(text: &[u8]) -> Option<JobReport> {
    let mut parts = text.splitn(12, |byte| *byte == b':');
    let mut numbers = [0; 7];
    for number in &mut numbers {
        *number = next_part(&mut parts)?;
    }
    let [open, ahead_ms, differs, now_ms, lost, owns, mark] = numbers;
    let mut kept = || next_part(&mut parts).filter(|number: &u64| *number <= MAX_EXACT_INTEGER);
    let (well, before, latest, since) = (kept(), kept(), kept(), kept());
    let tick = |ms: u64| (ms > 0).then_some(TickTime(ms));
    let rest = parts.next();
    let acts = rest.and_then(|rest| Some(String::from_utf8_lossy(rest.strip_prefix(b"!")?)));
    let mut acts = acts.iter().flat_map(|acts| acts.split('!'));
    let mut act = || acts.next().filter(|act| !act.is_empty());
    Some(JobReport {
        resumed_ms: act().and_then(|resumed| resumed.parse().ok()),
        paused: act().map(|pause| Arc::new(format::act(pause))),
        wanted: act().and_then(format::wanted).map(Arc::new),
        open: tick(open),
        ahead_ms,
        differs: differs > 0,
        now_ms,
        since_ms: since.unwrap_or(0),
        lost: lost > 0,
        owns: owns > 0,
        is_cancelled: rest == Some(b"~"),
        mark: tick(mark),
        well: well.and_then(tick),
        after: before
            .filter(|_| latest == tick(mark).map(|tick| tick.0))
            .map(TickTime),
        saved: bytes(rest),
    })
}

/// Returns the error for an answer that cannot be understood. The server may have executed the request.
pub(super) fn malformed(why: impl Display) -> Failure {
    Failure {
        executed: Executed::Unknown,
        error: StoreError::new(StoreErrorKind::Interrupted, why),
    }
}

/// What stands before the arguments of a command that a server does not know. A password may be among them: `HELLO 3 AUTH user
/// password`.
const ARGUMENTS: &str = ", with args beginning with";

/// Returns the code and the text of a server's error, or `None` if the error is not from the server. The text repeats no arguments.
pub(super) fn error_text(error: &RedisError) -> Option<String> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split_once(ARGUMENTS).map_or(detail, |(words, _)| words);
    Some(format!("{code} {detail}"))
}

/// Returns whether the text of a server's error repeats the arguments of the command.
pub(super) fn repeats_arguments(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains(ARGUMENTS))
}

/// Converts a server's error that redis-rs returns as a value.
pub(super) fn result(value: Value) -> RedisResult<Value> {
    match value {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

/// Returns a text that the server sent, or `None` if the value is not a text.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Returns a field of an answer to INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Returns the refusal that an error text of the server means.
///
/// In Redis 6.2 an error inside a script begins with the script's line and a dash:
/// `@user_script: 19: -OOM command not allowed …`.
pub(super) fn refusal(text: &str) -> StoreRefusal {
    let inside = text
        .strip_prefix("@user_script: ")
        .and_then(|rest| rest.split_once(": "));
    let text = inside.map_or(text, |(_, rest)| rest);
    let text = text.trim_start_matches('-').trim_end();
    match text.split(' ').next().unwrap_or_default() {
        "WRONGTYPE" => StoreRefusal::WrongType,
        "OOM" => StoreRefusal::OutOfMemory,
        "READONLY" => StoreRefusal::ReadOnly,
        "LOADING" => StoreRefusal::Loading,
        "BUSY" => StoreRefusal::Busy,
        "MISCONF" => StoreRefusal::Misconfigured,
        "NOREPLICAS" => StoreRefusal::NoReplicas,
        "NOAUTH" => StoreRefusal::NoAuth,
        "WRONGPASS" => StoreRefusal::WrongPassword,
        "NOPERM" => StoreRefusal::NoPermission,
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => StoreRefusal::Unready(text.to_owned()),
        _ if text.starts_with("ERR max number of clients") => StoreRefusal::Unready(text.to_owned()),
        // The text of Redis 7 inside a script.
        _ if text.contains("The user executing the script can't") => StoreRefusal::NoPermission,
        _ => StoreRefusal::Other(text.to_owned()),
    }
}

/// Decodes a push to `node`, or returns `None` if its format is unknown.
///
/// * `1 <kind> <claim> <nonce> <number> <lease> <record>`: a grant of a lock, a semaphore or an election.
/// * `1 job <claim> <nonce> <number> <lease> <attempt> <record>`: a grant of a tick.
/// * `1 latch <record>` and `1 changed election <record>`: the record has changed.
/// * `1 asked <kind> <claim> <nonce> <grace ms> <by> <why> <record>`: an operator asks for a lease.
/// * `1 revoked <kind> <claim> <nonce> <mode> <record>`: an operator revoked a lease. The mode is a word of the batch script.
/// * `1 recalled <kind> <claim> <nonce> <record>`: another claim wants the key of a lease that may be kept.
pub(super) fn push(payload: &[u8], node: NodeId, names: &Names) -> Option<Push> {
    let mut rest = payload;
    let mut word = || {
        let end = rest.iter().position(|&b| b == b' ')?;
        let word = std::str::from_utf8(&rest[..end]).ok();
        rest = &rest[end + 1..];
        word
    };
    if word()? != "1" {
        return None;
    }
    let first = word()?;
    let news = matches!(first, "changed" | "asked" | "revoked" | "recalled").then_some(first);
    let kind: Kind = (if news.is_some() { word()? } else { first }).parse().ok()?;
    if news == Some("changed") || kind == Kind::Latch {
        return Some(Push::Changed(node, names.name(kind, rest)?));
    }
    let claim = word()?.parse().ok()?;
    let nonce = u64::from_str_radix(word()?, 16).ok()?;
    let claim_id = ClaimId { node, claim, nonce };
    match news {
        Some("asked") => {
            let (grace_ms, by, why) = (word()?.parse().ok()?, word()?, word()?);
            let text = |word: &str| percent_decode_str(word).decode_utf8_lossy().into_owned();
            let (by, why) = (text(by), text(why));
            let asking = Arc::new(Asking { grace_ms, by, why });
            return Some(Push::Asked(names.name(kind, rest)?, claim_id, asking));
        }
        Some("recalled") => return Some(Push::Recalled(names.name(kind, rest)?, claim_id)),
        Some(_) => {
            let mode = format::mode(kind, Some(word()?))?;
            return Some(Push::Revoked(names.name(kind, rest)?, claim_id, mode));
        }
        None => {}
    }
    let number = word()?.parse().ok()?;
    let lease_ms = word()?
        .parse()
        .ok()
        .filter(|ms| *ms <= LONGEST_LEASE.as_millis() as u64)?;
    let attempt = match kind {
        Kind::Job => word()?.parse().ok()?,
        _ => 0,
    };
    Some(Push::Granted(Grant {
        name: names.name(kind, rest)?,
        claim_id,
        number,
        lease_ms,
        attempt,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{ClaimNumber, Name};

    #[test]
    fn a_refusal_is_recognized_in_the_text_of_each_redis_version() {
        for (text, kind) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                StoreRefusal::OutOfMemory,
            ),
            (
                "@user_script: 19: -OOM command not allowed when used memory > 'maxmemory'.\r\n",
                StoreRefusal::OutOfMemory,
            ),
            (
                "@user_script: 129: -READONLY You can't write against a read only replica.\r\n",
                StoreRefusal::ReadOnly,
            ),
            (
                "-MISCONF Redis is configured to save RDB snapshots",
                StoreRefusal::Misconfigured,
            ),
            (
                "@user_script: 7: The user executing the script can't run this command or subcommand",
                StoreRefusal::NoPermission,
            ),
            ("WRONGTYPE the record is not a string", StoreRefusal::WrongType),
            (
                "CLUSTERDOWN The cluster is down",
                StoreRefusal::Unready("CLUSTERDOWN The cluster is down".to_owned()),
            ),
            (
                "-ERR max number of clients reached",
                StoreRefusal::Unready("ERR max number of clients reached".to_owned()),
            ),
            (
                "@user_script: none",
                StoreRefusal::Other("@user_script: none".to_owned()),
            ),
        ] {
            assert_eq!(refusal(text), kind, "{text}");
        }
    }

    #[test]
    fn a_push_of_an_unknown_format_is_ignored() {
        let node = NodeId::numbered(7);
        let names = Names::new(b"lock:");
        let decoded = |text: &str| super::push(text.as_bytes(), node, &names);
        let push = |text: &str| match decoded(text) {
            Some(Push::Granted(grant)) => Some(grant),
            other => {
                assert_eq!(other, None, "{text}");
                None
            }
        };
        let news = decoded("1 latch tenure1:l:{0abc}lock:a b");
        assert_eq!(news, Some(Push::Changed(node, Name::latch(Key::from("a b")))));
        let grant = push("1 lock 3 00000000000000ff 17 1000 lock:a b").unwrap();
        assert_eq!(grant.name.key, Key::from("a b"));
        assert_eq!(
            (
                grant.claim_id.claim,
                grant.claim_id.nonce,
                grant.number,
                grant.lease_ms
            ),
            (ClaimNumber(3), 255, GrantNumber(17), 1000)
        );
        assert_eq!(grant.attempt, 0);
        let grant = push("1 job 3 ff 17 1000 2 tenure1:o:{0abc}lock:a b").unwrap();
        assert_eq!(
            (grant.name, grant.attempt, grant.number),
            (Name::job(Key::from("a b")), 2, GrantNumber(17))
        );
        for other in [
            "",
            "1 job 3 ff 17 1000 tenure1:o:{0abc}lock:a",
            "1 job 3 ff 17 1000 2 lock:a",
            "1 job 3 ff 17 1000 2 tenure1:o:{0abc}lock:",
            "1 job 3 ff 17 1000 2 tenure1:o:{0a",
            "2 lock 3 ff 17 1000 lock:a",
            "1 latch 3 ff 17 1000 lock:a",
            "1 latch tenure1:s:{0abc}lock:a",
            "1 latch tenure1:l:{0abc}lock:",
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
