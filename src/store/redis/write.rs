//! Actions: the script, the call and the answer of each. A script that checks the leases first encloses a guarded write.

use redis::{Cmd, Value};

use crate::protocol::message::{CallAnswer, ClaimReply, Failure, Name, Reply, WriteAnswer};
use crate::protocol::write::{Action, GuardedWrite, WriteBody};
use crate::store::redis::decode::malformed;
use crate::store::redis::encode::push_share;
use crate::store::redis::names::Names;
use crate::store::redis::script::LuaScript;

const CHECK: &str = include_str!("lua/write.lua");
const COMMANDS: &str = include_str!("lua/commands.lua");
const GLOBALS: &str = include_str!("lua/globals.lua");
const FORGET: &str = include_str!("lua/forget.lua");

/// An action that is ready to send: its script, and the call of that script.
pub(super) struct ActionCall {
    pub(super) script: LuaScript,
    pub(super) call: Cmd,
}

pub(super) fn encode(name: &Name, action: &Action, names: &Names) -> ActionCall {
    match action {
        Action::Write(write) => encode_write(write, names),
        Action::ForgetJob => encode_forget(name, names),
    }
}

/// Decodes the answer of an action's script.
pub(super) fn decode(action: &Action, answer: Value) -> Result<Reply, Failure> {
    match action {
        Action::Write(_) => Ok(CallAnswer::Written(decode_write(answer)?).into()),
        Action::ForgetJob => Ok(match answer {
            Value::Int(deleted) => CallAnswer::Owned(deleted > 0).into(),
            _ => ClaimReply::Busy(None).into(),
        }),
    }
}

fn encode_forget(name: &Name, names: &Names) -> ActionCall {
    let (mut record, mut queue, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    names.push_record(name, &mut record);
    names.push_queue(name, &mut queue);
    names.push_memory(name, &mut memory);
    let script = LuaScript::new(FORGET.to_owned());
    let mut call = Cmd::new();
    call.arg("EVALSHA").arg(&*script.sha).arg(3);
    call.arg(record).arg(queue).arg(memory);
    ActionCall { script, call }
}

/// Returns the code that checks the given number of leases before the write.
fn check_of(leases: usize) -> String {
    format!("local n={leases}\n{CHECK}")
}

/// Returns the script around code of this crate that executes commands.
fn wrap(body: &str, leases: usize) -> LuaScript {
    LuaScript::new(format!(
        "local why,body=nil,function(KEYS,ARGV)\n{body}\nend\n{}",
        check_of(leases)
    ))
}

/// Returns the script around a script of the caller, which it contains as a string.
///
/// Nothing in the string can end the function around it. A syntax error becomes an ordinary answer: a server's error that
/// quotes the script may not be valid UTF-8, which would end the connection. The string stands before the check, so that
/// it sees no local variable of the check. It stands on the first line, so that errors name lines of the caller's text.
fn wrap_text(text: &str, leases: usize) -> LuaScript {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' | ..b' ' | 0x7f.. => format!("\\{byte:03}"),
        _ => char::from(byte).to_string(),
    };
    let quoted: String = text.bytes().map(escape).collect();
    LuaScript::new(format!(
        "local body,why=loadstring(\"local KEYS,ARGV=... {quoted}\",'@user_script')\n{GLOBALS}{}",
        check_of(leases)
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
        let mut share = Vec::new();
        push_share(lease.mode, &mut share);
        call.arg(format!("{}:", lease.claim_id));
        call.arg(lease.number.0).arg(share);
    }
    for arg in args {
        call.arg(arg);
    }
    ActionCall { script, call }
}

/// Decodes the answer of the script around a write.
fn decode_write(answer: Value) -> Result<WriteAnswer, Failure> {
    let Value::Array(parts) = answer else {
        return Err(malformed("the answer to a write is not a list"));
    };
    if let [Value::Int(0), positions @ ..] = &*parts
        && !positions.is_empty()
    {
        let position = |value: &Value| match value {
            Value::Int(position) => usize::try_from(*position).ok()?.checked_sub(1),
            _ => None,
        };
        let positions: Option<Vec<usize>> = positions.iter().map(position).collect();
        let unknown = || malformed("a write was refused for a lease that it does not have");
        return positions.map(WriteAnswer::NotCurrent).ok_or_else(unknown);
    }
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(Value::Int(1)), reply) => Ok(WriteAnswer::Done(Box::new(reply.unwrap_or_default()))),
        (Some(Value::Int(2)), Some(Value::BulkString(said))) if said.is_empty() => {
            Ok(WriteAnswer::Failed("an error without text".to_owned()))
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
    use crate::protocol::message::{ClaimId, ClaimNumber, GrantNumber, Mode, NodeId, Permits};
    use crate::protocol::write::Precondition;

    #[test]
    fn keys_and_arguments_of_the_caller_follow_those_of_the_leases() {
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
        let holder = format!("{claim_id}:");
        assert_eq!(words[..3], ["EVALSHA", &*script.sha, "4"]);
        assert!(
            words[3].starts_with("tenure1:s:{") && words[5].starts_with("tenure1:q:{"),
            "{words:?}"
        );
        assert_eq!((words[4], words[6]), ("lock:b", "stock"));
        let of_leases = [&*holder, "17", "2/3", &*holder, "18", ""];
        assert_eq!(words[7..13], of_leases);
        assert_eq!(words[13..], ["2", "DECR", "stock", "1", "PING"]);
    }
}
