//! The encoding of script calls, and the decoding of replies and pushes.

use std::fmt::Display;
use std::str::FromStr;

use redis::{Cmd, RedisError, RedisResult, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::options::LONGEST_LEASE;
use crate::protocol::message::{
    Batch, BatchReply, Call, ClaimId, Executed, Failure, Grant, GrantNumber, JobReport, Kind, LatchReport,
    LeaderReport, Mode, NodeId, Payload, Permits, Push, Reply, Request, Rule, TickTime, Verb, Version,
    WhenBehind, append_number,
};
use crate::store::redis::names::{self, Names};
use crate::store::redis::script::{ALONE, LuaScript, SCRIPTS, VOTE};

/// The number of words of a request; `lua/open.lua` lists them.
const WORDS_PER_REQUEST: usize = 6;

/// The largest power of two up to which a number in Lua represents every integer.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// Returns the script that applies a batch. A batch has names of one kind only.
pub(super) fn script_of(batch: &Batch) -> &'static LuaScript {
    &SCRIPTS[batch.kind().unwrap_or(Kind::Lock) as usize]
}

/// Returns the call that applies a batch.
pub(super) fn encode(batch: &Batch, names: &Names, probe: bool) -> Cmd {
    let requests = &batch.requests;
    let has_memories = matches!(batch.kind(), Some(Kind::Job | Kind::Election));
    debug_assert!(requests.iter().all(|r| r.name.kind == requests[0].name.kind));
    let keys = requests.len() * if has_memories { 3 } else { 2 } + 2;
    let data = |r: &Request| r.data.as_ref().map_or(0, |data| data.0.len());
    let bytes: usize = requests
        .iter()
        .map(|r| 2 * names.length(&r.name) + 160 + data(r))
        .sum();
    let mut call = CommandText {
        cmd: Cmd::with_capacity(keys + WORDS_PER_REQUEST * requests.len() + 7, bytes + 200),
        word: Vec::with_capacity(128),
        tick: Vec::with_capacity(64),
        to: Vec::new(),
    };
    call.cmd.arg("EVALSHA").arg(&*script_of(batch).sha).arg(keys);
    for request in requests {
        call.put(|word| names.push_record(&request.name, word));
    }
    let slot = requests.first().map_or(0, |first| names.slot(&first.name));
    call.put(|word| names.push_clock(slot, word));
    call.put(|word| names.push_recovering(slot, word));
    for request in requests {
        call.put(|word| names.push_queue(&request.name, word));
    }
    if has_memories {
        for request in requests {
            call.put(|word| names.push_memory(&request.name, word));
        }
    }
    call.put_number(batch.highest.0);
    call.put_number(not_after(batch));
    call.put(|word| {
        if probe {
            word.push(b'p');
        }
        if batch.rule == Rule::AllOrNone {
            word.push(b'a');
        }
        if batch.poll_gap_ms > 0 && batch.kind().is_none_or(|kind| kind == Kind::Lock) {
            append_number(word, batch.poll_gap_ms);
        }
    });
    // A key of Redis cannot live for 0 ms.
    call.put_number(batch.recovery_ms.max(1));
    for request in requests {
        call.put_request(request);
    }
    call.cmd
}

/// Returns the not-after of a batch; 0 stands for no limit.
fn not_after(batch: &Batch) -> u64 {
    match batch.not_after {
        u64::MAX => 0,
        not_after => not_after.max(1),
    }
}

/// Returns the call that applies a batch at a master of a quorum.
pub(super) fn encode_votes(batch: &Batch, names: &Names) -> Cmd {
    let requests = &batch.requests;
    let mut call = CommandText {
        cmd: Cmd::new(),
        word: Vec::with_capacity(128),
        tick: Vec::with_capacity(64),
        to: Vec::new(),
    };
    call.cmd
        .arg("EVALSHA")
        .arg(&*VOTE.sha)
        .arg(2 * requests.len() + 1);
    for request in requests {
        call.put(|word| names.push_record(&request.name, word));
    }
    call.cmd.arg(names::RECOVERING);
    for request in requests {
        call.put(|word| names.push_clock(names.slot(&request.name), word));
    }
    call.put_number(not_after(batch));
    // A key of Redis cannot live for 0 ms.
    call.put_number(batch.recovery_ms.max(1));
    for request in requests {
        call.put_request(request);
    }
    call.cmd
}

/// Returns the call that executes a request with its record alone.
pub(super) fn encode_alone(request: &Request, names: &Names) -> Cmd {
    let mut call = CommandText {
        cmd: Cmd::new(),
        word: Vec::with_capacity(128),
        tick: Vec::new(),
        to: Vec::new(),
    };
    call.cmd.arg("EVALSHA").arg(&*ALONE.sha).arg(1);
    call.put(|word| names.push_record(&request.name, word));
    call.cmd.arg(match request.verb {
        Verb::Leave => "l",
        Verb::Assert { .. } => "a",
        _ => "r",
    });
    call.put(|word| push_holder(&request.claim_id, word));
    call.put_number(request.term.hold_ms());
    call.put(|word| match request.mode {
        Mode::Permits(permits) => push_permits(permits, word),
        Mode::Exclusive | Mode::Read => {}
    });
    call.cmd
}

/// A script call under construction, with buffers for its words.
struct CommandText {
    cmd: Cmd,
    word: Vec<u8>,
    tick: Vec<u8>,
    to: Vec<u8>,
}

impl CommandText {
    /// Adds one word, which `push` writes.
    fn put(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        self.word.clear();
        push(&mut self.word);
        self.cmd.arg(&self.word);
    }

    fn put_number(&mut self, number: u64) {
        self.put(|word| append_number(word, number));
    }

    /// Adds the words of a request: as many as [`WORDS_PER_REQUEST`]. A new field also needs `lua/open.lua`.
    fn put_request(&mut self, request: &Request) {
        self.tick.clear();
        self.to.clear();
        let letter = push_verb(request, &mut self.tick, &mut self.to);
        let of = match request.verb {
            Verb::Call(call) => call.of(),
            _ => None,
        };
        if self.tick.is_empty() {
            let mark = request.mark.map_or(0, |mark| mark.0.min(MAX_EXACT_INTEGER));
            match request.mode {
                _ if request.name.kind == Kind::Job => append_number(&mut self.tick, mark),
                Mode::Permits(permits) => push_permits(permits, &mut self.tick),
                mode => append_number(&mut self.tick, (mode == Mode::Read).into()),
            }
        }
        self.cmd.arg(letter);
        self.put(|word| push_holder(&of.unwrap_or(request.claim_id), word));
        self.put_number(request.term.lease_ms);
        self.put_number(request.term.hold_ms());
        self.cmd.arg(&self.tick).arg(&self.to);
    }
}

/// Returns the letter of a verb, and appends its other words. If `tick` stays empty, the mode or the mark of the request
/// fills it.
fn push_verb(request: &Request, tick: &mut Vec<u8>, to: &mut Vec<u8>) -> &'static str {
    // The value of a candidate, which the store keeps while the candidate waits.
    let value = request.data.as_ref().map_or(&[][..], |data| &data.0);
    match request.verb {
        Verb::Claim { wait } => {
            match request.when_behind {
                WhenBehind::Skip => {}
                WhenBehind::Queue => to.push(b'q'),
                WhenBehind::After(tick) => append_number(to, tick.0.min(MAX_EXACT_INTEGER)),
            }
            to.extend_from_slice(value);
            if wait { "w" } else { "c" }
        }
        Verb::Renew { number } => {
            to.extend((!value.is_empty()).then_some(b'v'));
            if let Some(number) = number {
                append_number(to, number.0);
            }
            "r"
        }
        Verb::Assert { number } => {
            to.push(b'a');
            append_number(to, number.0);
            "r"
        }
        Verb::Propose { number } => {
            append_number(to, number.0);
            "k"
        }
        Verb::Restore { number } => {
            append_number(to, number.0);
            "b"
        }
        Verb::Finish { well } if request.name.kind == Kind::Job => {
            to.extend_from_slice(if well { b"well" } else { b"" });
            "f"
        }
        Verb::Leave | Verb::Finish { .. } => "l",
        Verb::Yield { to: next } => {
            push_holder(&next, to);
            "y"
        }
        Verb::Pass { to: next, adopts } => {
            push_holder(&next, to);
            if adopts { "a" } else { "p" }
        }
        Verb::Call(call) => push_call(call, request, tick, to),
    }
}

/// Returns the letter of a call, and appends its other words.
fn push_call(call: Call, request: &Request, tick: &mut Vec<u8>, to: &mut Vec<u8>) -> &'static str {
    let number_of = |generation: Option<Version>| generation.map_or(0, |number| number.0);
    let data = request.data.as_ref().map_or(&[][..], |data| &data.0);
    match call {
        Call::Open {
            within_ms,
            fingerprint,
            over,
        } => {
            append_number(tick, within_ms.min(MAX_EXACT_INTEGER));
            push_parts(&[fingerprint], b"", to);
            append_number(to, over.map_or(0, |over| over.0.min(MAX_EXACT_INTEGER)));
            "o"
        }
        Call::Reset => "z",
        Call::Verify { .. } => "v",
        Call::Recall { .. } => "m",
        Call::Save { seq, .. } => {
            push_parts(&[seq], data, to);
            "s"
        }
        Call::Extend { .. } => "e",
        Call::Release { .. } => "l",
        Call::InUse | Call::Count => "u",
        Call::SetCount { count, life_ms } => {
            push_parts(&[count.into(), life_ms], data, to);
            "t"
        }
        Call::CountDown { called } => {
            let numbers = [called.since, called.until, number_of(called.of)];
            push_parts(&numbers.map(|number| number.min(MAX_EXACT_INTEGER)), b"", tick);
            append_number(tick, called.repeats.into());
            to.extend_from_slice(data);
            "n"
        }
        Call::Zero { of } => {
            append_number(tick, number_of(of));
            "h"
        }
        Call::Leader { known } => {
            append_number(tick, number_of(known));
            to.extend(known.map(|_| b'w'));
            "g"
        }
        Call::Proclaim { seq, .. } => {
            push_parts(&[seq], data, to);
            "i"
        }
    }
}

/// Appends the weight and the capacity of a semaphore's share.
fn push_permits(permits: Permits, word: &mut Vec<u8>) {
    append_number(word, permits.weight.into());
    word.push(b'/');
    append_number(word, permits.capacity.into());
}

fn push_holder(claim_id: &ClaimId, word: &mut Vec<u8>) {
    claim_id.append_to(word);
    word.push(b':');
}

/// Appends each number with a colon behind it, then the bytes.
fn push_parts(numbers: &[u64], bytes: &[u8], word: &mut Vec<u8>) {
    for number in numbers {
        append_number(word, *number);
        word.push(b':');
    }
    word.extend_from_slice(bytes);
}

/// Decodes the answer of the script to a batch.
pub(super) fn decode(value: Value, requests: usize) -> Result<BatchReply, Failure> {
    let Value::Array(values) = value else {
        return Err(malformed("the script's answer is not a list"));
    };
    let mut values = values.into_iter();
    let Some(Value::Int(time)) = values.next() else {
        return Err(malformed("the script's answer has no time"));
    };
    let mut replies = Vec::with_capacity(requests);
    for value in values {
        let reply = decode_reply(&value).ok_or_else(|| unreadable(&value))?;
        if reply == Reply::Refused(StoreRefusal::ReadOnly) {
            // The server refused every write of the batch. It is not a master, so its other replies mean nothing.
            return Err(Failure {
                executed: Executed::No,
                error: StoreError::refused(StoreRefusal::ReadOnly),
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

/// Decodes the reply to one request, or returns `None` if it is unknown. The files in `lua/` list the replies.
pub(super) fn decode_reply(value: &Value) -> Option<Reply> {
    let text = match value {
        Value::Int(0) => return Some(Reply::Done),
        Value::Int(number) if *number > 0 => {
            return Some(Reply::Granted(GrantNumber(number.unsigned_abs())));
        }
        Value::BulkString(text) => text,
        _ => return None,
    };
    let (letter, rest) = text.split_first()?;
    match letter {
        b'E' => return Some(Reply::Refused(refusal(&String::from_utf8_lossy(rest)))),
        b'T' if rest.is_empty() => return Some(Reply::Leader(None)),
        b'T' => return decode_leader(rest).map(|report| Reply::Leader(Some(report))),
        b'U' => return decode_report(rest).map(|report| Reply::Report(Box::new(report))),
        _ => {}
    }
    let rest = std::str::from_utf8(rest).ok()?;
    let (first, second) = rest.split_once(':').unwrap_or((rest, ""));
    Some(match letter {
        b'Q' => match second.parse() {
            Ok(node) => Reply::QueuedBehind(optional_number(first)?, node),
            Err(_) => Reply::Queued(optional_number(first)?),
        },
        b'P' => Reply::QueuedBehindForeign(optional_number(first)?),
        b'R' => Reply::Recovering(first.parse().ok()?),
        b'B' => Reply::Busy(optional_number(first)?),
        b'W' => Reply::Won(first.parse().ok()?, second.parse().ok()?),
        b'A' => Reply::GroupRefused,
        b'O' => Reply::Over,
        b'S' => Reply::Skipped,
        b'V' => Reply::Overtook(first.parse().ok()?, second.parse().ok()?),
        b'J' => Reply::EarlierTickDue {
            latest: first.parse().ok()?,
            is_open: second == "1",
        },
        b'G' => Reply::CapacityDiffers(first.parse().ok()?, second.parse().ok()?),
        b'I' => Reply::InUse(optional_number(first)?),
        b'F' => Reply::Early(first.parse().ok()?),
        b'L' => Reply::Late,
        b'X' => Reply::Gone,
        b'N' => Reply::NotThere,
        b'Y' => Reply::Latch(LatchReport::Set),
        b'D' => Reply::Latch(LatchReport::Left(first.parse().ok()?)),
        b'K' => Reply::Latch(LatchReport::Unset),
        b'M' => Reply::Latch(LatchReport::SetMeanwhile(first.parse().ok()?)),
        b'C' => Reply::Latch(LatchReport::Uncertain),
        b'Z' => Reply::Latch(LatchReport::Over),
        b'H' => Reply::Watching(first.parse().ok()?),
        _ => return None,
    })
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
fn decode_leader(text: &[u8]) -> Option<LeaderReport> {
    let mut parts = text.splitn(4, |byte| *byte == b':');
    Some(LeaderReport {
        number: next_part(&mut parts)?,
        version: next_part(&mut parts)?,
        node: next_part(&mut parts)?,
        value: bytes(parts.next()),
    })
}

/// Decodes the report on a job, as `lua/ask.lua` lists the parts: seven numbers, three numbers that the store keeps as
/// text, and the bytes that the runs of a tick have saved.
fn decode_report(text: &[u8]) -> Option<JobReport> {
    let mut parts = text.splitn(11, |byte| *byte == b':');
    let mut numbers = [0; 7];
    for number in &mut numbers {
        *number = next_part(&mut parts)?;
    }
    let [open, ahead_ms, differs, now_ms, lost, owns, mark] = numbers;
    let mut kept = || next_part(&mut parts).filter(|number: &u64| *number <= MAX_EXACT_INTEGER);
    let (well, before, latest) = (kept(), kept(), kept());
    let tick = |ms: u64| (ms > 0).then_some(TickTime(ms));
    Some(JobReport {
        open: tick(open),
        ahead_ms,
        differs: differs > 0,
        now_ms,
        lost: lost > 0,
        owns: owns > 0,
        mark: tick(mark),
        well: well.and_then(tick),
        after: before
            .filter(|_| latest == tick(mark).map(|tick| tick.0))
            .map(TickTime),
        saved: bytes(parts.next()),
    })
}

/// Returns the error for an answer that cannot be understood. The server may have executed the request.
pub(super) fn malformed(why: impl Display) -> Failure {
    Failure {
        executed: Executed::Unknown,
        error: StoreError::new(StoreErrorKind::Interrupted, why),
    }
}

/// Returns the code and the text of a server's error, or `None` if the error is not from the server.
pub(super) fn error_text(error: &RedisError) -> Option<String> {
    let code = error.code()?;
    Some(format!("{code} {}", error.detail().unwrap_or_default()))
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
pub(super) fn decode_push(payload: &[u8], node: NodeId, names: &Names) -> Option<Push> {
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
    let (first, kind_of) = (word()?, |text: &str| text.parse::<Kind>().ok());
    let is_news = first == "changed";
    let kind = kind_of(if is_news { word()? } else { first })?;
    if is_news || kind == Kind::Latch {
        return Some(Push::Changed(node, names.name(kind, rest)?));
    }
    let claim = word()?.parse().ok()?;
    let nonce = u64::from_str_radix(word()?, 16).ok()?;
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
        claim_id: ClaimId { node, claim, nonce },
        number,
        lease_ms,
        attempt,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{ClaimNumber, LeaseTimes, Name, Rule};

    fn request(name: Name, verb: Verb) -> Request {
        Request {
            name,
            claim_id: ClaimId {
                node: NodeId::numbered(1),
                claim: ClaimNumber(2),
                nonce: 3,
            },
            term: LeaseTimes {
                lease_ms: 1000,
                margin_ms: 250,
            },
            mode: Default::default(),
            when_behind: Default::default(),
            data: None,
            mark: Some(TickTime(7)),
            verb,
        }
    }

    /// Returns the words of a call, without the protocol's framing.
    fn words(requests: Vec<Request>) -> Vec<String> {
        let batch = Batch {
            highest: GrantNumber(17),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            recovery_ms: 9_000,
            rule: Rule::Each,
            requests,
        };
        let packed = encode(&batch, &Names::new(b"lock:"), true).get_packed_command();
        let text = String::from_utf8(packed).unwrap();
        text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn calls_of_one_and_of_two_requests_have_the_same_form() {
        let lock = |key: &str, verb| request(Name::lock(Key::from(key)), verb);
        let one = words(vec![lock("a", Verb::Leave)]);
        let claim_id = "00000000000000000000000000000001:2:0000000000000003:";
        assert_eq!(one[2..6], ["4", "lock:a", "tenure1:clock", "tenure1:recovering"]);
        assert_eq!(
            one[7..],
            ["17", "0", "p", "9000", "l", claim_id, "1000", "1250", "0", ""],
            "{one:?}"
        );
        let to = ClaimId {
            node: NodeId::numbered(1),
            claim: ClaimNumber(4),
            nonce: 5,
        };
        let two = words(vec![lock("a", Verb::Leave), lock("b", Verb::Yield { to })]);
        assert_eq!(two[2], "6");
        assert_eq!(two[9..19], one[7..]);
        assert_eq!(two.len(), one.len() + 2 + WORDS_PER_REQUEST);
        assert_eq!(two.last().unwrap(), &format!("{to}:"));
        let job = words(vec![request(
            Name::job(Key::from("a")),
            Verb::Finish { well: false },
        )]);
        assert_eq!(job[2], "5");
        assert_eq!(job[12], "f");
        assert_eq!(job[16], "7");
    }

    #[test]
    fn an_owner_names_its_grant_and_a_candidate_its_value() {
        let (owner, waiter) = (
            Verb::Renew {
                number: Some(GrantNumber(5)),
            },
            Verb::HEARTBEAT,
        );
        let value = Some(Payload(b"x"[..].into()));
        for (verb, data, to) in [
            (waiter, None, ""),
            (owner, None, "5"),
            (waiter, value.clone(), "v"),
            (owner, value, "v5"),
        ] {
            let renewal = Request {
                data,
                ..request(Name::election(Key::from("a")), verb)
            };
            assert_eq!(words(vec![renewal]).last().unwrap(), to);
        }
        let fixed = Verb::Assert {
            number: GrantNumber(5),
        };
        let assertion = request(Name::lock(Key::from("a")), fixed);
        assert_eq!(words(vec![assertion]).last().unwrap(), "a5");
    }

    #[test]
    fn lua_reads_as_many_words_per_request() {
        for script in &SCRIPTS {
            assert!(
                script
                    .text
                    .contains(&format!("local words, at = {WORDS_PER_REQUEST}, 4\n"))
            );
        }
    }

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
        let decoded = |text: &str| decode_push(text.as_bytes(), node, &names);
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
