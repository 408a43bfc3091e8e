//! The encoding of script calls.

use redis::Cmd;

use crate::protocol::message::{
    Batch, Call, ClaimId, Kind, LookData, Mode, Request, Rule, Verb, Version, WhenBehind, append_number,
};
use crate::store::redis::format::{encoded, encoded_start};
use crate::store::redis::names::{self, Names};
use crate::store::redis::script::{ALONE, LuaScript, MAX_EXACT_INTEGER, SCRIPTS, VOTE};

/// The number of words of a request; `lua/open.lua` lists them.
const WORDS_PER_REQUEST: usize = 6;

/// Returns the script that applies a batch. A batch has names of one kind only.
pub(super) fn script_of(batch: &Batch) -> &'static LuaScript {
    &SCRIPTS[batch.kind().unwrap_or(Kind::Lock) as usize]
}

/// Returns the call that applies a batch.
pub(super) fn batch(batch: &Batch, names: &Names, probe: bool) -> Cmd {
    let requests = &batch.requests;
    let has_memories = matches!(batch.kind(), Some(Kind::Job | Kind::Election));
    debug_assert!(requests.iter().all(|r| r.name.kind == requests[0].name.kind));
    let keys = requests.len() * if has_memories { 3 } else { 2 } + 2;
    let data = |r: &Request| r.data.as_ref().map_or(0, |data| data.0.len());
    let bytes = requests.iter().map(|r| 2 * names.length(&r.name) + 160 + data(r));
    let bytes = bytes.sum();
    let words = WORDS_PER_REQUEST * requests.len() + 4;
    let mut call = CommandText::new(script_of(batch), keys, words, bytes);
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
        if batch.is_unconfirmed {
            word.push(b'u');
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
pub(super) fn votes(batch: &Batch, names: &Names) -> Cmd {
    let requests = &batch.requests;
    let words = WORDS_PER_REQUEST * requests.len() + 2;
    let bytes = requests.iter().map(|r| names.length(&r.name) + 160).sum();
    let mut call = CommandText::new(&VOTE, 2 * requests.len() + 1, words, bytes);
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
pub(super) fn alone(request: &Request, names: &Names) -> Cmd {
    let mut call = CommandText::new(&ALONE, 1, 4, names.length(&request.name) + 100);
    call.put(|word| names.push_record(&request.name, word));
    call.cmd.arg(match request.verb {
        Verb::Leave => "l",
        Verb::Assert { .. } => "a",
        _ => "r",
    });
    call.put(|word| push_holder(&request.claim_id, word));
    call.put_number(request.term.hold_ms());
    call.put(|word| push_share(request.mode, word));
    call.cmd
}

/// Returns the call that makes the memory of an election live as long as the lease that the request renews with its record alone.
pub(super) fn memory_alone(request: &Request, names: &Names) -> Option<Cmd> {
    let renews = matches!(request.verb, Verb::Renew { .. }) && request.name.kind == Kind::Election;
    renews.then(|| {
        let mut call = CommandText::new(&ALONE, 1, 4, names.length(&request.name) + 100);
        call.put(|word| names.push_memory(&request.name, word));
        call.cmd.arg("m").arg("");
        call.put_number(request.term.hold_ms());
        call.cmd.arg("");
        call.cmd
    })
}

/// A script call under construction, with buffers for its words.
struct CommandText {
    cmd: Cmd,
    word: Vec<u8>,
    tick: Vec<u8>,
    to: Vec<u8>,
}

impl CommandText {
    /// Begins the call of a script with so many keys and other words, which have about so many bytes.
    fn new(script: &LuaScript, keys: usize, words: usize, bytes: usize) -> Self {
        let mut cmd = Cmd::with_capacity(keys + words + 3, bytes + 200);
        cmd.arg("EVALSHA").arg(&*script.sha).arg(keys);
        CommandText {
            cmd,
            word: Vec::with_capacity(128),
            tick: Vec::with_capacity(64),
            to: Vec::new(),
        }
    }

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
            Verb::Call(call) => call.claim_id(),
            _ => None,
        };
        if self.tick.is_empty() {
            let mark = request.mark.map_or(0, |mark| mark.0.min(MAX_EXACT_INTEGER));
            match request.mode {
                _ if request.name.kind == Kind::Job => append_number(&mut self.tick, mark),
                mode => push_mode(mode, &mut self.tick),
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
            to.extend(request.may_keep.then_some(b'0'));
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
        Verb::Finish { result } if request.name.kind == Kind::Job => {
            let text = encoded_start(value);
            to.extend_from_slice(result.outcome.word().as_bytes());
            to.push(b':');
            push_parts(&[result.took_ms, result.retries.into()], text.as_bytes(), to);
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
        Call::Open { fingerprint, over } => {
            let over = over.map_or(0, |over| over.0.min(MAX_EXACT_INTEGER));
            let LookData { name, plan } = LookData::read(request.data.as_ref());
            push_parts(
                &[fingerprint, over],
                encoded_start(name.as_bytes()).as_bytes(),
                to,
            );
            to.push(b' ');
            to.extend_from_slice(encoded(plan.as_bytes()).as_bytes());
            "o"
        }
        Call::Withdraw => "x",
        Call::Reset => "z",
        Call::Ending { number } => {
            append_number(to, number.0);
            "k"
        }
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

/// Appends the word of a request that says how its lease is shared.
pub(super) fn push_mode(mode: Mode, word: &mut Vec<u8>) {
    match mode {
        Mode::Permits(_) => push_share(mode, word),
        Mode::Exclusive | Mode::Read => append_number(word, (mode == Mode::Read).into()),
    }
}

/// Appends what follows the holder in the name of its share: the weight and the capacity of permits.
pub(super) fn push_share(mode: Mode, word: &mut Vec<u8>) {
    if let Mode::Permits(permits) = mode {
        append_number(word, permits.weight.into());
        word.push(b'/');
        append_number(word, permits.capacity.into());
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{
        ClaimNumber, GrantNumber, LeaseTimes, Name, NodeId, Payload, Rule, RunOutcome, RunResult, TickTime,
    };

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
            may_keep: false,
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
            is_unconfirmed: false,
            recovery_ms: 9_000,
            rule: Rule::Each,
            requests,
        };
        let packed = super::batch(&batch, &Names::new(b"lock:"), true).get_packed_command();
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
            Verb::Finish {
                result: RunResult::of(RunOutcome::Failed),
            },
        )]);
        assert_eq!(job[2], "5");
        assert_eq!(job[12], "f");
        assert_eq!(job[16..], ["7", "failed:0:0:"]);
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
}
