//! What the script is called with and what it answers: words out, replies in. Also what it publishes.

use std::fmt::Display;

use redis::{Cmd, RedisError, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::options::LONGEST_LEASE;
use crate::protocol::message::{
    Batch, BatchReply, Checkpoint, Executed, Failure, Grant, GrantNumber, Holder, InboxEvent, JobReport,
    Kind, LatchReport, LeaderReport, Mode, NodeId, Permits, Question, Reply, Request, Rule, TickTime, Turn,
    Verb, append_number,
};
use crate::store::redis::names::{CLOCK, Names};
use crate::store::redis::script::{ELECTIONS, JOBS, LATCHES, LOCKS, SEMAPHORES, Script};

/// How many words a request has, as `lua/open.lua` lists them.
const WORDS: usize = 6;

/// Up to here Lua counts in ones.
const EXACT: u64 = 1 << 53;

/// The script that applies a batch, which is all of one kind.
pub(super) fn script_of(batch: &Batch) -> &'static Script {
    match batch.kind() {
        Some(Kind::Job) => &JOBS,
        Some(Kind::Semaphore) => &SEMAPHORES,
        Some(Kind::Latch) => &LATCHES,
        Some(Kind::Election) => &ELECTIONS,
        Some(Kind::Lock) | None => &LOCKS,
    }
}

/// The call that applies a batch.
pub(super) fn encode(batch: &Batch, names: &Names, probe: bool) -> Cmd {
    let requests = &batch.requests;
    let has_memories = matches!(batch.kind(), Some(Kind::Job | Kind::Election));
    debug_assert!(requests.iter().all(|r| r.name.kind == requests[0].name.kind));
    let keys = requests.len() * if has_memories { 3 } else { 2 } + 1;
    let data = |r: &Request| r.data.as_ref().map_or(0, |data| data.0.len());
    let bytes: usize = requests
        .iter()
        .map(|r| 2 * names.length(&r.name) + 160 + data(r))
        .sum();
    let mut call = Call {
        cmd: Cmd::with_capacity(keys + WORDS * requests.len() + 6, bytes + 160),
        word: Vec::with_capacity(128),
    };
    call.cmd.arg("EVALSHA").arg(&*script_of(batch).sha).arg(keys);
    for request in requests {
        call.put(|word| names.push_record(&request.name, word));
    }
    call.cmd.arg(CLOCK);
    let mut record = Vec::with_capacity(64);
    for request in requests {
        record.clear();
        names.push_record(&request.name, &mut record);
        call.put(|word| names.push_queue(&record, word));
    }
    if has_memories {
        for request in requests {
            call.put(|word| names.push_memory(&request.name, word));
        }
    }
    // 0 for none.
    let not_after = match batch.not_after {
        u64::MAX => 0,
        not_after => not_after.max(1),
    };
    call.put_number(batch.highest.0);
    call.put_number(not_after);
    call.put(|word| {
        if probe {
            word.push(b'p');
        }
        if batch.rule == Rule::All {
            word.push(b'a');
        }
        if batch.poll_gap_ms > 0 && batch.kind().is_none_or(|kind| kind == Kind::Lock) {
            append_number(word, batch.poll_gap_ms);
        }
    });
    for request in requests {
        call.put_request(request);
    }
    call.cmd
}

/// A call of the script, on its way to be written.
struct Call {
    cmd: Cmd,
    word: Vec<u8>,
}

impl Call {
    /// One word more, as `push` makes it.
    fn put(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        self.word.clear();
        push(&mut self.word);
        self.cmd.arg(&self.word);
    }

    fn put_number(&mut self, number: u64) {
        self.put(|word| append_number(word, number));
    }

    fn put_holder(&mut self, holder: &Holder) {
        self.put(|word| {
            holder.append_to(word);
            word.push(b':');
        });
    }

    /// As many words as [`WORDS`] says. A new field is one more here, there and in `lua/open.lua`.
    fn put_request(&mut self, request: &Request) {
        let is_job = request.name.kind == Kind::Job;
        self.cmd.arg(match request.verb {
            Verb::Claim { wait: false } => "c",
            Verb::Claim { wait: true } => "w",
            Verb::Renew => "r",
            Verb::Finish { .. } if is_job => "f",
            Verb::Leave | Verb::Finish { .. } | Verb::Ask(Question::Release { .. }) => "l",
            Verb::Yield { .. } => "y",
            Verb::Pass { .. } => "p",
            Verb::Ask(Question::Open { .. }) => "o",
            Verb::Ask(Question::Reset) => "z",
            Verb::Ask(Question::Verify { .. }) => "v",
            Verb::Ask(Question::Recall { .. }) => "m",
            Verb::Ask(Question::Save { .. }) => "s",
            Verb::Ask(Question::Extend { .. }) => "e",
            Verb::Ask(Question::InUse | Question::Count) => "u",
            Verb::Ask(Question::SetCount { .. }) => "t",
            Verb::Ask(Question::CountDown { .. }) => "n",
            Verb::Ask(Question::Zero { .. }) => "h",
            Verb::Ask(Question::Leader { .. }) => "g",
            Verb::Ask(Question::Proclaim { .. }) => "i",
        });
        let of = match request.verb {
            Verb::Ask(question) => question.of(),
            _ => None,
        };
        self.put_holder(&of.unwrap_or(request.holder));
        self.put_number(request.term.lease_ms);
        self.put_number(request.term.hold_ms());
        self.put_tick(request);
        self.put_to(request);
    }

    /// Which tick it is about, which generation of a latch, or how its lease is shared.
    fn put_tick(&mut self, request: &Request) {
        let generation = |of: Option<GrantNumber>| of.map_or(0, |number| number.0);
        match request.verb {
            Verb::Ask(Question::CountDown { called }) => {
                return self.put(|word| {
                    for number in [called.since, called.until, generation(called.of)] {
                        append_number(word, number.min(EXACT));
                        word.push(b':');
                    }
                    append_number(word, called.repeats.into());
                });
            }
            Verb::Ask(Question::Zero { of } | Question::Leader { known: of }) => {
                return self.put_number(generation(of));
            }
            _ => {}
        }
        match (request.name.kind, request.mode) {
            (Kind::Job, _) => self.put_number(match (request.verb, request.mark) {
                (Verb::Ask(Question::Open { within_ms, .. }), _) => within_ms.min(EXACT),
                (_, mark) => mark.map_or(0, |TickTime(ms)| ms.min(EXACT)),
            }),
            (_, Mode::Permits(Permits { weight, capacity })) => self.put(|word| {
                append_number(word, weight.into());
                word.push(b'/');
                append_number(word, capacity.into());
            }),
            (_, mode) => self.put_number(u64::from(mode == Mode::Read)),
        }
    }

    /// Who goes on with it, or what else the verb needs.
    fn put_to(&mut self, request: &Request) {
        let is_job = request.name.kind == Kind::Job;
        match &request.verb {
            Verb::Yield { to } | Verb::Pass { to } => self.put_holder(to),
            Verb::Ask(Question::Open {
                fingerprint, over, ..
            }) => {
                let over = over.map_or(0, |over| over.0.min(EXACT));
                self.cmd.arg(format_args!("{fingerprint}:{over}").to_string());
            }
            Verb::Ask(Question::Save { seq, .. } | Question::Proclaim { seq, .. }) => self.put(|word| {
                append_number(word, *seq);
                word.push(b':');
                word.extend_from_slice(request.data.as_ref().map_or(&[], |data| &data.0));
            }),
            Verb::Ask(Question::SetCount { count, life_ms }) => self.put(|word| {
                append_number(word, (*count).into());
                word.push(b':');
                append_number(word, *life_ms);
                word.push(b':');
                word.extend_from_slice(request.data.as_ref().map_or(&[], |data| &data.0));
            }),
            Verb::Ask(Question::Leader { known: Some(_) }) => drop(self.cmd.arg("w")),
            Verb::Ask(Question::CountDown { .. }) => {
                self.cmd
                    .arg(request.data.as_ref().map_or(&[][..], |data| &data.0));
            }
            Verb::Claim { .. } if is_job => match request.turn {
                Turn::Skip => drop(self.cmd.arg("")),
                Turn::Queue => drop(self.cmd.arg("q")),
                Turn::After(TickTime(ms)) => self.put_number(ms.min(EXACT)),
            },
            Verb::Finish { well: true } if is_job => drop(self.cmd.arg("well")),
            _ => drop(self.cmd.arg("")),
        }
    }
}

/// What the script answered.
pub(super) fn decode(value: Value, requests: usize) -> Result<BatchReply, Failure> {
    let Value::Array(values) = value else {
        return Err(malformed("the script's answer is no list"));
    };
    let mut values = values.into_iter();
    let Some(Value::Int(time)) = values.next() else {
        return Err(malformed("the script's answer has no time"));
    };
    let mut replies = Vec::with_capacity(requests);
    for value in values {
        let reply = decode_reply(value)?;
        if reply == Reply::Refused(StoreRefusal::ReadOnly) {
            // Every write of the batch was refused, and its other answers come from a server that is no master.
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

fn decode_reply(value: Value) -> Result<Reply, Failure> {
    let text = match value {
        Value::Int(0) => return Ok(Reply::Done),
        Value::Int(number) if number > 0 => return Ok(Reply::Granted(GrantNumber(number.unsigned_abs()))),
        Value::BulkString(text) => text,
        _ => return Err(malformed("a reply of the script is neither a number nor a text")),
    };
    let (letter, rest) = text
        .split_first()
        .ok_or_else(|| malformed("a reply of the script is empty"))?;
    if let b'U' | b'T' = letter {
        return decode_bytes(*letter, rest);
    }
    let rest = String::from_utf8_lossy(rest);
    let (ends, node) = rest.split_once(':').unwrap_or((&rest, ""));
    let left = || (!ends.is_empty()).then(|| ends.parse()).transpose();
    let two = |what: &str| {
        let parts = rest.split_once(':');
        parts.ok_or_else(|| malformed(format_args!("a reply of the script does not tell {what}")))
    };
    let bad = |_| malformed("a reply of the script has a bad number");
    Ok(match letter {
        b'Q' => queued(left().map_err(bad)?, node),
        b'P' => Reply::QueuedBehindForeign(left().map_err(bad)?),
        b'B' => Reply::Busy(left().map_err(bad)?),
        b'W' => {
            let (number, attempt) = two("the attempt")?;
            Reply::Won(number.parse().map_err(bad)?, attempt.parse().map_err(bad)?)
        }
        b'A' => Reply::Apart,
        b'O' => Reply::Over,
        b'S' => Reply::Skipped,
        b'V' => {
            let (number, tick) = two("the tick")?;
            Reply::Overtook(number.parse().map_err(bad)?, tick.parse().map_err(bad)?)
        }
        b'J' => {
            let (latest, is_open) = two("whether a tick has ended")?;
            Reply::Behind {
                latest: latest.parse().map_err(bad)?,
                is_open: is_open == "1",
            }
        }
        b'G' => {
            let (number, capacity) = two("the number of permits")?;
            Reply::Unlike(number.parse().map_err(bad)?, capacity.parse().map_err(bad)?)
        }
        b'I' if rest.is_empty() => Reply::InUse(None),
        b'I' => Reply::InUse(Some(rest.parse().map_err(bad)?)),
        b'F' => Reply::Early(rest.parse().map_err(bad)?),
        b'L' => Reply::Late,
        b'X' => Reply::Gone,
        b'N' => Reply::NotThere,
        b'E' => Reply::Refused(refusal(&rest)),
        letter => return decode_latch(*letter, &rest),
    })
}

/// Queued behind the owner of that node, if it is one that owns alone.
fn queued(left: Option<u64>, node: &str) -> Reply {
    let behind = node.parse().map(|node| Reply::QueuedBehind(left, node));
    behind.unwrap_or(Reply::Queued(left))
}

/// What is told of a latch, as `lua/latch.lua` lists it.
fn decode_latch(letter: u8, rest: &str) -> Result<Reply, Failure> {
    let bad = |_| malformed("a reply about a latch has a bad number");
    Ok(Reply::Latch(match letter {
        b'Y' => LatchReport::Set,
        b'D' => LatchReport::Left(rest.parse().map_err(bad)?),
        b'K' => LatchReport::Unset,
        b'M' => LatchReport::SetMeanwhile(rest.parse().map_err(bad)?),
        b'C' => LatchReport::Uncertain,
        b'Z' => LatchReport::Over,
        b'H' => return Ok(Reply::Watching(rest.parse().map_err(bad)?)),
        _ => return Err(malformed("a reply of the script is unknown")),
    }))
}

/// What holds bytes of the caller's.
fn decode_bytes(letter: u8, rest: &[u8]) -> Result<Reply, Failure> {
    match letter {
        b'T' => decode_leader(rest).map(Reply::Leader),
        _ => decode_report(rest).map(|report| Reply::Report(Box::new(report))),
    }
}

/// Who leads, as `lua/elect.lua` lists it.
fn decode_leader(text: &[u8]) -> Result<Option<LeaderReport>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let read = || {
        let mut parts = text.splitn(4, |byte| *byte == b':');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let (number, version, node) = (word()?, word()?, word()?);
        let said = parts.next().and_then(|rest| rest.strip_prefix(b"="));
        Some(LeaderReport {
            node: node.parse().ok()?,
            number: number.parse().ok()?,
            version: version.parse().ok()?,
            said: said.map(|said| Checkpoint(said.into())),
        })
    };
    let report = read().ok_or_else(|| malformed("a reply of the script does not tell who leads"));
    report.map(Some)
}

/// Seven numbers, as `lua/ask.lua` lists them, each with a colon behind it; three that the store keeps as text, and what
/// the runs of a tick have left.
fn decode_report(text: &[u8]) -> Result<JobReport, Failure> {
    let mut parts = text.splitn(11, |byte| *byte == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
    let mut numbers = [0; 7];
    for each in &mut numbers {
        *each = number().ok_or_else(|| malformed("a report on a job is not seven numbers"))?;
    }
    let [open, ahead_ms, differs, now_ms, lost, owns, mark] = numbers;
    let mut kept = || number().filter(|number: &u64| *number <= EXACT);
    let (well, before, latest) = (kept(), kept(), kept());
    let tick = |ms: u64| (ms > 0).then_some(TickTime(ms));
    let data = parts.next().and_then(|rest| rest.strip_prefix(b"="));
    Ok(JobReport {
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
        saved: data.map(|data| Checkpoint(data.into())),
    })
}

/// A server whose answers make no sense has perhaps done what was asked.
pub(super) fn malformed(why: impl Display) -> Failure {
    Failure {
        executed: Executed::Unknown,
        error: StoreError::new(StoreErrorKind::Interrupted, why),
    }
}

/// A server's error as it came: code and text.
pub(super) fn said(error: &RedisError) -> Option<String> {
    let code = error.code()?;
    Some(format!("{code} {}", error.detail().unwrap_or_default()))
}

/// A text of the server's.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Sorts an error text of a server's. What Redis 6.2 tells a script begins with the script's line and a dash:
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
        // What Redis 7 says inside of a script.
        _ if text.contains("The user executing the script can't") => StoreRefusal::NoPermission,
        _ => StoreRefusal::Other(text.to_owned()),
    }
}

/// Reads a push to `node`: `1 lock <claim> <nonce> <number> <lease> <record>`, the same of a semaphore, or
/// of an election, or `1 job <claim> <nonce> <number> <lease> <attempt> <record>`, or `1 latch <record>` or
/// `1 changed election <record>`, which has changed. `None` when it is none of these formats.
pub(super) fn decode_push(payload: &[u8], node: NodeId, names: &Names) -> Option<InboxEvent> {
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
        return names.name(kind, rest).map(InboxEvent::Changed);
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
    Some(InboxEvent::Granted(Grant {
        name: names.name(kind, rest)?,
        holder: Holder { node, claim, nonce },
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
            holder: Holder {
                node: NodeId::numbered(1),
                claim: ClaimNumber(2),
                nonce: 3,
            },
            term: LeaseTimes {
                lease_ms: 1000,
                margin_ms: 250,
            },
            mode: Default::default(),
            turn: Default::default(),
            data: None,
            mark: Some(TickTime(7)),
            verb,
        }
    }

    /// The words of a call, without those of the protocol.
    fn words(requests: Vec<Request>) -> Vec<String> {
        let batch = Batch {
            highest: GrantNumber(17),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            rule: Rule::Each,
            requests,
        };
        let packed = encode(&batch, &Names::new(b"lock:"), true).get_packed_command();
        let text = String::from_utf8(packed).unwrap();
        text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn one_request_and_many_are_the_same_call() {
        let lock = |key: &str, verb| request(Name::lock(Key::from(key)), verb);
        let one = words(vec![lock("a", Verb::Leave)]);
        let holder = "00000000000000000000000000000001:2:0000000000000003:";
        assert_eq!(one[2..4], ["3", "lock:a"]);
        assert_eq!(
            one[6..],
            ["17", "0", "p", "l", holder, "1000", "1250", "0", ""],
            "{one:?}"
        );
        let to = Holder {
            node: NodeId::numbered(1),
            claim: ClaimNumber(4),
            nonce: 5,
        };
        let two = words(vec![lock("a", Verb::Leave), lock("b", Verb::Yield { to })]);
        assert_eq!(two[2], "5");
        assert_eq!(two[8..17], one[6..]);
        assert_eq!(two.len(), one.len() + 2 + WORDS);
        assert_eq!(two.last().unwrap(), &format!("{to}:"));
        let job = words(vec![request(
            Name::job(Key::from("a")),
            Verb::Finish { well: false },
        )]);
        assert_eq!(job[2], "4");
        assert_eq!(job[10], "f");
        assert_eq!(job[14], "7");
    }

    #[test]
    fn lua_has_as_many_words() {
        for script in [&LOCKS, &JOBS, &SEMAPHORES, &ELECTIONS, &LATCHES] {
            assert!(script.text.contains(&format!("local words, at = {WORDS}, 3\n")));
        }
    }

    #[test]
    fn a_refusal_is_known_by_what_any_server_says() {
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
    fn a_push_of_another_format_is_no_grant() {
        let node = NodeId::numbered(7);
        let names = Names::new(b"lock:");
        let decoded = |text: &str| decode_push(text.as_bytes(), node, &names);
        let push = |text: &str| match decoded(text) {
            Some(InboxEvent::Granted(grant)) => Some(grant),
            other => {
                assert_eq!(other, None, "{text}");
                None
            }
        };
        let news = decoded("1 latch tenure1:l:{0abc}lock:a b");
        assert_eq!(news, Some(InboxEvent::Changed(Name::latch(Key::from("a b")))));
        let grant = push("1 lock 3 00000000000000ff 17 1000 lock:a b").unwrap();
        assert_eq!(grant.name.key, Key::from("a b"));
        assert_eq!(
            (
                grant.holder.claim,
                grant.holder.nonce,
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
