//! Actions: the script of each, its call and its answer. What is written under leases is wrapped in a script that looks at those
//! first.

use redis::{Cmd, Value};

use crate::protocol::message::{Failure, Mode, Name, Permits, Reply, WriteAnswer};
use crate::protocol::write::{Action, GuardedWrite, WriteBody};
use crate::store::redis::codec::malformed;
use crate::store::redis::names::Names;
use crate::store::redis::script::Script;

const CHECK: &str = include_str!("lua/write.lua");
const COMMANDS: &str = include_str!("lua/commands.lua");
const GLOBALS: &str = include_str!("lua/globals.lua");
const FORGET: &str = include_str!("lua/forget.lua");

/// An action on its way: the script, and the call of it.
pub(super) struct ActionCall {
    pub(super) script: Script,
    pub(super) call: Cmd,
}

pub(super) fn encode(name: &Name, action: &Action, names: &Names) -> ActionCall {
    match action {
        Action::Write(write) => encode_write(write, names),
        Action::ForgetJob => encode_forget(name, names),
    }
}

/// What the script of an action answered.
pub(super) fn decode(action: &Action, answer: Value) -> Result<Reply, Failure> {
    match action {
        Action::Write(_) => Ok(Reply::Written(decode_write(answer)?)),
        Action::ForgetJob => Ok(match answer {
            Value::Int(0) => Reply::NotThere,
            Value::Int(_) => Reply::Done,
            _ => Reply::Busy(None),
        }),
    }
}

fn encode_forget(name: &Name, names: &Names) -> ActionCall {
    let (mut record, mut queue, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    names.push_record(name, &mut record);
    names.push_queue(name, &mut queue);
    names.push_memory(name, &mut memory);
    let script = Script::new(FORGET.to_owned());
    let mut call = Cmd::new();
    call.arg("EVALSHA").arg(&*script.sha).arg(3);
    call.arg(record).arg(queue).arg(memory);
    ActionCall { script, call }
}

/// What is checked first, for so many leases.
fn check(leases: usize) -> String {
    format!("local n={leases}\n{CHECK}")
}

/// The code of ours that does commands.
fn wrap(body: &str, leases: usize) -> Script {
    Script::new(format!(
        "local why,body=nil,function(KEYS,ARGV)\n{body}\nend\n{}",
        check(leases)
    ))
}

/// The caller's code is a text in the script, so that nothing in it ends the function that it is, and what is wrong with it is an
/// answer like others: an error of the server's that quotes it may be no text, which would end the connection. It stands first, so
/// that it sees nothing of ours, and on the first line, so that an error names the line of the caller's text.
fn wrap_text(text: &str, leases: usize) -> Script {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' | ..b' ' | 0x7f.. => format!("\\{byte:03}"),
        _ => char::from(byte).to_string(),
    };
    let quoted: String = text.bytes().map(escape).collect();
    Script::new(format!(
        "local body,why=loadstring(\"local KEYS,ARGV=... {quoted}\",'@user_script')\n{GLOBALS}{}",
        check(leases)
    ))
}

fn encode_write(write: &GuardedWrite, names: &Names) -> ActionCall {
    let GuardedWrite { leases, body } = write;
    let mut counts = Vec::new();
    let (script, keys, args): (_, _, Vec<&[u8]>) = match body {
        WriteBody::Script { text, keys, args } => (
            wrap_text(text, leases.len()),
            keys,
            args.iter().map(Vec::as_slice).collect(),
        ),
        WriteBody::Commands { keys, commands } => {
            counts.extend(
                commands
                    .iter()
                    .map(|command| command.len().to_string().into_bytes()),
            );
            let words = commands
                .iter()
                .zip(&counts)
                .flat_map(|(command, count)| std::iter::once(count).chain(command).map(Vec::as_slice));
            (wrap(COMMANDS, leases.len()), keys, words.collect())
        }
    };
    let mut call = Cmd::new();
    let own_keys = leases.len() + 1;
    call.arg("EVALSHA").arg(&*script.sha).arg(own_keys + keys.len());
    for lease in leases.iter() {
        let mut record = Vec::new();
        names.push_record(&lease.name, &mut record);
        call.arg(record);
    }
    let mut queue = Vec::new();
    if let Some(first) = leases.first() {
        names.push_queue(&first.name, &mut queue);
    }
    call.arg(queue);
    for key in keys {
        call.arg(key);
    }
    for lease in leases.iter() {
        let share = match lease.mode {
            Mode::Permits(Permits { weight, capacity }) => format!("{weight}/{capacity}"),
            Mode::Exclusive | Mode::Read => String::new(),
        };
        call.arg(format!("{}:", lease.claim_id));
        call.arg(lease.number.0).arg(share);
    }
    for arg in args {
        call.arg(arg);
    }
    ActionCall { script, call }
}

/// What the script around a write answered.
fn decode_write(answer: Value) -> Result<WriteAnswer, Failure> {
    let Value::Array(parts) = answer else {
        return Err(malformed("the answer to a write is no list"));
    };
    if let [Value::Int(0), places @ ..] = &*parts
        && !places.is_empty()
    {
        let place = |value: &Value| match value {
            Value::Int(place) => usize::try_from(*place).ok()?.checked_sub(1),
            _ => None,
        };
        let places: Option<Vec<usize>> = places.iter().map(place).collect();
        let unknown = || malformed("a write was refused for a lease that it does not have");
        return places.map(WriteAnswer::NotCurrent).ok_or_else(unknown);
    }
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(Value::Int(1)), reply) => Ok(WriteAnswer::Done(Box::new(reply.unwrap_or_default()))),
        (Some(Value::Int(2)), Some(Value::BulkString(said))) if said.is_empty() => {
            Ok(WriteAnswer::Failed("an error without words".to_owned()))
        }
        (Some(Value::Int(2)), Some(Value::BulkString(said))) => {
            Ok(WriteAnswer::Failed(String::from_utf8_lossy(&said).into_owned()))
        }
        _ => Err(malformed("the answer to a write is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{ClaimId, ClaimNumber, GrantNumber, Name, NodeId};
    use crate::protocol::write::Precondition;

    #[test]
    fn keys_and_arguments_of_the_caller_stand_behind_those_of_the_leases() {
        let claim_id = ClaimId {
            node: NodeId::numbered(1),
            claim: ClaimNumber(2),
            nonce: 3,
        };
        let bytes = |words: &[&str]| {
            words
                .iter()
                .map(|word| word.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let lease = |name, mode, number| Precondition {
            name,
            claim_id,
            mode,
            number: GrantNumber(number),
        };
        let write = GuardedWrite {
            leases: [
                lease(
                    Name::semaphore(Key::from("a")),
                    Mode::Permits(Permits {
                        weight: 2,
                        capacity: 3,
                    }),
                    17,
                ),
                lease(Name::lock(Key::from("b")), Mode::Read, 18),
            ]
            .into(),
            body: WriteBody::Commands {
                keys: bytes(&["stock"]),
                commands: vec![bytes(&["DECR", "stock"]), bytes(&["PING"])],
            },
        };
        let ActionCall { script, call } = encode_write(&write, &Names::new(b"lock:"));
        let packed = String::from_utf8(call.get_packed_command()).unwrap();
        let words: Vec<&str> = packed.split("\r\n").skip(2).step_by(2).collect();
        let ours = format!("{claim_id}:");
        assert_eq!(words[..3], ["EVALSHA", &*script.sha, "4"]);
        assert!(
            words[3].starts_with("tenure1:s:{") && words[5].starts_with("tenure1:q:{"),
            "{words:?}"
        );
        assert_eq!((words[4], words[6]), ("lock:b", "stock"));
        let of_leases = [&*ours, "17", "2/3", &*ours, "18", ""];
        assert_eq!(words[7..13], of_leases);
        assert_eq!(words[13..], ["2", "DECR", "stock", "1", "PING"]);
    }
}
