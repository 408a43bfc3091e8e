//! The scripts: one text for every verb, one for locks and one for jobs, the words they are called with, and what
//! they answer.

use std::fmt::Display;
use std::sync::LazyLock;

use redis::{Cmd, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::options::LONGEST_LEASE;
use crate::protocol::message::{
    Batch, BatchReply, Executed, Failure, Grant, Holder, Kind, LeaseTimes, NodeId, Reply, Request, TickTime,
    Verb, append_number,
};
use crate::store::redis::names::{CLOCK, Names};

/// What every text below uses. Locals are sooner found than globals.
const LOCALS: &str = "local KEYS, ARGV, call, pcall = KEYS, ARGV, redis.call, redis.pcall\n";
const LONE: &str = include_str!("lua/lone.lua");
const OPEN: &str = include_str!("lua/open.lua");
const PLAIN: &str = include_str!("lua/plain.lua");
/// Reached only when a request is not one of the two plain cases.
const RULES: [&str; 5] = [
    include_str!("lua/queue.lua"),
    include_str!("lua/claim.lua"),
    include_str!("lua/renew.lua"),
    include_str!("lua/leave.lua"),
    include_str!("lua/yield.lua"),
];
const BATCH: &str = include_str!("lua/batch.lua");
/// What jobs have of their own. They share the rest.
const JOB: [&str; 4] = [
    include_str!("lua/job.lua"),
    include_str!("lua/job_claim.lua"),
    include_str!("lua/job_finish.lua"),
    include_str!("lua/job_batch.lua"),
];

/// A script and the name by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The whole text.
    pub(super) text: String,
    /// Its SHA-1, in hexadecimal.
    pub(super) sha: String,
}

impl Script {
    fn new(source: &str) -> Self {
        let mut text = String::with_capacity(source.len());
        // Redis hangs up on whoever sends more than 16 kB in one word before it has said who it is.
        for line in source.lines().map(str::trim_start) {
            if !line.is_empty() && !line.starts_with("--") {
                text.push_str(line);
                text.push('\n');
            }
        }
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }
}

/// The script for locks.
static LOCKS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        "{LOCALS}{LONE}local n = (#KEYS - 1) / 2\n{OPEN}{PLAIN}{}{BATCH}",
        RULES.concat()
    ))
});

/// The script for jobs. They are few, and it is only loaded with the other so that no tick waits for it.
static JOBS: LazyLock<Script> = LazyLock::new(|| {
    let [queue, _, rest @ ..] = RULES;
    let [job, verbs @ ..] = JOB;
    Script::new(&format!(
        "{LOCALS}local n = (#KEYS - 1) / 3\n{OPEN}{queue}{job}{}{}",
        rest.concat(),
        verbs.concat()
    ))
});

/// Every script that a server is to know.
pub(super) fn scripts() -> [&'static Script; 2] {
    [&LOCKS, &JOBS]
}

/// The script that applies a batch, which is all of one kind.
pub(super) fn script(batch: &Batch) -> &'static Script {
    match kind(batch) {
        Kind::Lock => &LOCKS,
        Kind::Job => &JOBS,
    }
}

fn kind(batch: &Batch) -> Kind {
    batch
        .requests
        .first()
        .map_or(Kind::Lock, |request| request.name.kind)
}

/// Up to here Lua counts in ones.
const EXACT: TickTime = 1 << 53;

/// The call that applies a batch.
pub(super) fn encode(batch: &Batch, names: &Names, probe: bool) -> Cmd {
    let requests = &batch.requests;
    let kind = kind(batch);
    debug_assert!(requests.iter().all(|request| request.name.kind == kind));
    if let ([request], Kind::Lock) = (&**requests, kind)
        && matches!(request.verb, Verb::Claim { .. } | Verb::Leave | Verb::Finish)
    {
        return encode_lone(batch, request, names, probe);
    }
    let keys = if kind == Kind::Job { 3 } else { 2 };
    let bytes: usize = requests.iter().map(|r| 2 * names.length(&r.name) + 160).sum();
    let mut call = Call::new(
        script(batch),
        keys * requests.len() + 1,
        4 * requests.len(),
        bytes,
    );
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
    if kind == Kind::Job {
        for request in requests {
            call.put(|word| names.push_memory(&request.name, word));
        }
    }
    let counts = requests.iter().any(|request| request.verb != Verb::Renew);
    let flags = match (probe, counts) {
        (false, false) => "",
        (false, true) => "q",
        (true, false) => "p",
        (true, true) => "pq",
    };
    call.cmd.arg(batch.highest).arg(not_after(batch)).arg(flags);
    // Nearly always all have the same terms, which are then written once.
    let common = requests.first().map(|request| request.term);
    let letter = |request: &Request| {
        let letter = match request.verb {
            Verb::Claim { wait: false } => b'c',
            Verb::Claim { wait: true } => b'w',
            Verb::Renew => b'r',
            Verb::Finish if kind == Kind::Job => b'f',
            Verb::Leave | Verb::Finish => b'l',
            Verb::Yield { .. } => b'y',
        };
        if Some(request.term) == common {
            letter
        } else {
            letter.to_ascii_uppercase()
        }
    };
    call.put(|word| word.extend(requests.iter().map(letter)));
    call.cmd
        .arg(common.map_or(0, |term| term.lease_ms))
        .arg(common.map_or(0, LeaseTimes::hold_ms));
    for request in requests {
        call.put_holder(&request.holder);
    }
    for request in requests {
        if kind == Kind::Job {
            call.cmd.arg(request.mark.min(EXACT));
        }
        if Some(request.term) != common {
            call.cmd.arg(request.term.lease_ms).arg(request.term.hold_ms());
        }
        if let Verb::Yield { to } = &request.verb {
            call.put_holder(to);
        }
    }
    call.cmd
}

/// As the scripts have it: 0 for none.
fn not_after(batch: &Batch) -> u64 {
    match batch.not_after {
        u64::MAX => 0,
        not_after => not_after.max(1),
    }
}

/// A claim or a leave that travels alone, as lone.lua has it: every word costs on both sides.
fn encode_lone(batch: &Batch, request: &Request, names: &Names, probe: bool) -> Cmd {
    let bytes = 2 * names.length(&request.name) + 160;
    let mut call = Call::new(&LOCKS, 3, 6, bytes);
    let mut record = Vec::with_capacity(64);
    names.push_record(&request.name, &mut record);
    call.cmd.arg(&record).arg(CLOCK);
    call.put(|word| names.push_queue(&record, word));
    call.put_holder(&request.holder);
    let (lease, hold) = (request.term.lease_ms, request.term.hold_ms());
    let flags: &[u8] = if probe { b"pq" } else { b"q" };
    if let Verb::Claim { wait } = request.verb {
        call.cmd.arg(hold).arg(not_after(batch)).arg(batch.highest);
        call.put(|word| {
            word.push(if wait { b'w' } else { b'c' });
            word.extend_from_slice(flags);
            append_number(word, lease);
        });
    } else {
        call.put(|word| {
            append_number(word, batch.highest);
            word.push(b' ');
            word.extend_from_slice(flags);
            for ms in [lease, hold] {
                word.push(b' ');
                append_number(word, ms);
            }
        });
    }
    call.cmd
}

/// A call of a script, on its way to be written.
struct Call {
    cmd: Cmd,
    word: Vec<u8>,
}

impl Call {
    fn new(script: &Script, keys: usize, words: usize, bytes: usize) -> Self {
        let mut cmd = Cmd::with_capacity(words + 11, bytes + 160);
        cmd.arg("EVALSHA").arg(&*script.sha).arg(keys);
        Call {
            cmd,
            word: Vec::with_capacity(128),
        }
    }

    /// One word more, as `push` makes it.
    fn put(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        self.word.clear();
        push(&mut self.word);
        self.cmd.arg(&self.word);
    }

    fn put_holder(&mut self, holder: &Holder) {
        self.put(|word| {
            holder.append_to(word);
            word.push(b':');
        });
    }
}

/// What the script answered.
pub(super) fn decode(value: Value, requests: usize) -> Result<BatchReply, Failure> {
    let values = match value {
        Value::Array(values) => values,
        Value::Int(number) if number >= 0 && requests == 1 => {
            let time = number.unsigned_abs();
            let reply = if time == 0 {
                Reply::Done
            } else {
                Reply::Granted(time)
            };
            return Ok(BatchReply {
                time,
                replies: vec![reply],
            });
        }
        _ => {
            return Err(malformed(
                "the script's answer is neither a list nor a number for one",
            ));
        }
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
        b'W' => {
            let (number, attempt) = rest
                .split_once(':')
                .ok_or_else(|| malformed("a reply of the script has no attempt"))?;
            Reply::Won(number.parse().map_err(bad)?, attempt.parse().map_err(bad)?)
        }
        b'O' => Reply::Over,
        b'F' => Reply::Early(rest.parse().map_err(bad)?),
        b'L' => Reply::Late,
        b'X' => Reply::Gone,
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

/// Reads a push to `node`: `1 lock <claim> <nonce> <number> <lease> <record>`, or
/// `1 job <claim> <nonce> <number> <lease> <attempt> <record>`. `None` when it is none of these formats.
pub(super) fn decode_push(payload: &[u8], node: NodeId, names: &Names) -> Option<Grant> {
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
    let word_of_kind = word()?;
    let kind = [Kind::Lock, Kind::Job]
        .into_iter()
        .find(|kind| kind.word() == word_of_kind)?;
    let claim = word()?.parse().ok()?;
    let nonce = u64::from_str_radix(word()?, 16).ok()?;
    let number = word()?.parse().ok()?;
    let lease_ms = word()?
        .parse()
        .ok()
        .filter(|ms| *ms <= LONGEST_LEASE.as_millis() as u64)?;
    let attempt = match kind {
        Kind::Lock => 0,
        Kind::Job => word()?.parse().ok()?,
    };
    Some(Grant {
        name: names.name(kind, rest)?,
        holder: Holder { node, claim, nonce },
        number,
        lease_ms,
        attempt,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::key::Key;
    use crate::protocol::message::Name;

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
        let files = RULES.into_iter().chain(JOB).chain([OPEN, PLAIN, BATCH, LONE]);
        for (file, name) in files.zip([
            "queue",
            "claim",
            "renew",
            "leave",
            "yield",
            "job",
            "job_claim",
            "job_finish",
            "job_batch",
            "open",
            "plain",
            "batch",
            "lone",
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
            let words = told.iter().filter(|word| word.starts_with("ARGV["));
            for word in words {
                assert!(
                    body.contains(word),
                    "{name}: the header names {word}, the body does not use it"
                );
            }
        }
    }

    #[test]
    fn a_server_takes_the_scripts_from_whoever_comes() {
        for script in scripts() {
            assert!(script.text.len() < 16_000, "{} bytes", script.text.len());
        }
        assert_ne!(LOCKS.sha, JOBS.sha);
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
        assert_eq!(grant.attempt, 0);
        let grant = push("1 job 3 ff 17 1000 2 tenure1:o:{0abc}lock:a b").unwrap();
        assert_eq!(
            (grant.name, grant.attempt, grant.number),
            (Name::job(Key::from("a b")), 2, 17)
        );
        for other in [
            "",
            "1 job 3 ff 17 1000 tenure1:o:{0abc}lock:a",
            "1 job 3 ff 17 1000 2 lock:a",
            "1 job 3 ff 17 1000 2 tenure1:o:{0abc}lock:",
            "1 job 3 ff 17 1000 2 tenure1:o:{0a",
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
