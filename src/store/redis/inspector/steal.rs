//! A step of a steal on Redis, and the audit list.

use redis::{Pipeline, Value};

use crate::error::{StoreError, StoreRefusal};
use crate::key::Key;
use crate::protocol::message::{ClaimId, Kind, NodeId};
use crate::protocol::primitive::Primitive;
use crate::protocol::steal::{AuditEntry, MAX_AUDIT, StealAct, StealReply, StealRequest, StealTarget};
use crate::store::redis::decode::{self, malformed, result};
use crate::store::redis::inspector::answers::{is_refused_with, read};
use crate::store::redis::inspector::connections::Connections;
use crate::store::redis::link::is_master_of_quorum;
use crate::store::redis::script::{LuaScript, REVOKE};
use crate::store::redis::slots::note_moved;
use crate::store::redis::{encode, format, names};
use crate::store::{ServerId, StoreKind};

/// The number of entries that one command reads. An entry has at most 2,300 bytes.
const AUDIT_PAGE: usize = 25;

/// Takes leases from their holders, and keeps the audit list.
pub(super) struct Stealer<'a> {
    pub(super) connections: &'a Connections,
}

impl Stealer<'_> {
    /// Executes a step of a steal. Returns the server's date in microseconds, too.
    pub(super) async fn steal(&self, steal: &StealRequest) -> Result<(StealReply, u64), StoreError> {
        let kind = match self.connections.config.topology.masters() {
            Some(_) => StoreKind::Quorum,
            None => StoreKind::Redis,
        };
        kind.refusal(Primitive::Steal).map_or(Ok(()), Err)?;
        let names = &self.connections.config.names;
        let server = self.server_of(names.slot(&steal.name)).await?;
        self.connections.check_reign(server).await?;
        let answer = self.run(server, &REVOKE, self.revoke_call(steal)).await?;
        let (mut time, reply): (u64, String) = read(Ok(answer))?;
        if reply == "M" {
            return Err(StoreError::unsupported(is_master_of_quorum(
                &self.connections.config,
            )));
        }
        let reply = steal_reply(&reply).ok_or_else(|| malformed("the script's answer to a steal").error)?;
        if let (StealAct::HandOver, StealReply::Done(claim)) = (&steal.act, &reply) {
            let batch = steal.leave(*claim);
            let call = encode::batch(&batch, names, self.connections.config.probe);
            self.connections.check_reign(server).await?;
            let answer = self.run(server, encode::script_of(&batch), call).await?;
            time = decode::batch(answer, &batch.requests)
                .map_err(|failure| failure.error)?
                .time;
        }
        Ok((reply, time))
    }

    fn revoke_call(&self, steal: &StealRequest) -> redis::Cmd {
        let names = &self.connections.config.names;
        let (mut record, mut recovering, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        names.push_record(&steal.name, &mut record);
        names.push_recovering(names.slot(&steal.name), &mut recovering);
        names.push_memory(&steal.name, &mut memory);
        let (mut number, mut which) = (String::new(), Vec::new());
        match &steal.target {
            StealTarget::Grant(of, mode) => {
                number = of.to_string();
                encode::push_share(*mode, &mut which);
            }
            StealTarget::RevokedShare(node, claim, _) => which = format!("{node}:{claim}:").into(),
            StealTarget::Foreign(digest) => which = digest.as_bytes().into(),
        }
        let mut words = Vec::new();
        encode::push_mode(steal.target.mode(), &mut words);
        let act = match &steal.act {
            StealAct::Ask(asking) => {
                let (by, why) = (asking.by.as_bytes(), asking.why.as_bytes());
                let (by, why) = (format::encoded_start(by), format::encoded_start(why));
                words = format!("{} {by} {why}", asking.grace_ms).into();
                "a"
            }
            StealAct::Revoke => "r",
            StealAct::HandOver => "h",
        };
        words.push(b' ');
        let mut call = redis::cmd("EVALSHA");
        let masters = self
            .connections
            .config
            .topology
            .cluster()
            .is_none()
            .then_some(names::MASTERS);
        call.arg(&*REVOKE.sha)
            .arg(3 + usize::from(masters.is_some()))
            .arg(record)
            .arg(recovering)
            .arg(memory)
            .arg(masters);
        call.arg(act).arg(steal.name.kind.word()).arg(number).arg(which);
        call.arg(u8::from(steal.tells)).arg(words);
        call
    }

    /// Loads a script and calls it.
    pub(super) async fn run(
        &self,
        server: ServerId,
        script: &LuaScript,
        call: redis::Cmd,
    ) -> Result<Value, StoreError> {
        let mut pipe = redis::pipe();
        pipe.add_command(script.load_command()).add_command(call);
        self.last_answer(server, &pipe).await
    }

    /// Returns the last answer, which is that of the only command with a key. A server that does not serve its slot did not execute
    /// it, and the server that it names is asked.
    pub(super) async fn last_answer(&self, server: ServerId, pipe: &Pipeline) -> Result<Value, StoreError> {
        let answered = self.connections.ask(server, pipe).await?;
        let Some(new) = self.moved_to(server, &answered) else {
            return last_of(answered);
        };
        last_of(self.connections.ask(new, pipe).await?)
    }

    /// Returns the server that the answers name instead of this one.
    fn moved_to(&self, server: ServerId, answers: &[Value]) -> Option<ServerId> {
        let config = &self.connections.config;
        let cluster = config.topology.cluster()?;
        let asked = config.at(cluster.address(server)?).ok()?;
        let error = result(answers.last()?.clone()).err()?;
        note_moved(cluster, &asked, &error)
    }

    /// Appends to the audit list.
    pub(super) async fn note(&self, record: &AuditEntry) -> Result<(), StoreError> {
        let list = self.connections.config.names.audit();
        let server = self
            .server_of(self.connections.config.names.slot_of_key(&list))
            .await?;
        // One by one: if the list moves between them, the entry is not written twice.
        let (mut push, mut trim) = (redis::pipe(), redis::pipe());
        push.cmd("LPUSH").arg(&list).arg(audit_text(record));
        trim.cmd("LTRIM").arg(&list).arg(0).arg(MAX_AUDIT - 1);
        self.last_answer(server, &push).await?;
        self.last_answer(server, &trim).await.map(drop)
    }

    /// Returns the audit list, the latest entry first.
    pub(super) async fn audit(&self) -> Result<Vec<AuditEntry>, StoreError> {
        let list = self.connections.config.names.audit();
        let slot = self.connections.config.names.slot_of_key(&list);
        let mut found = Vec::new();
        for from in (0..MAX_AUDIT).step_by(AUDIT_PAGE) {
            let server = self.server_of(slot).await?;
            let mut pipe = redis::pipe();
            pipe.cmd("LRANGE").arg(&list).arg(from).arg(from + AUDIT_PAGE - 1);
            let texts: Vec<Vec<u8>> = read(Ok(self.last_answer(server, &pipe).await?))?;
            found.extend(texts.iter().map(|text| read_audit(text)));
            if texts.len() < AUDIT_PAGE {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the server of a slot.
    pub(super) async fn server_of(&self, slot: u16) -> Result<ServerId, StoreError> {
        let Some(cluster) = self.connections.config.topology.cluster() else {
            return Ok(ServerId(0));
        };
        cluster.read(&self.connections.config).await?;
        Ok(cluster.server(slot))
    }
}

/// Returns the last answer, or the first refusal.
fn last_of(answers: Vec<Value>) -> Result<Value, StoreError> {
    let mut last = Value::Nil;
    for answer in answers {
        if let Value::ServerError(error) = &answer
            && is_refused_with(&answer, &["ASK", "TRYAGAIN"])
        {
            // The script needs all keys of the name at one server.
            let text = format!("its slot is on its way to another server; the server said: {error}");
            return Err(StoreError::refused(StoreRefusal::Unready(text)));
        }
        last = read(result(answer))?;
    }
    Ok(last)
}

fn steal_reply(text: &str) -> Option<StealReply> {
    Some(match text {
        "" => StealReply::Done(None),
        "X" => StealReply::Changed,
        "F" => StealReply::Endless,
        text if text.starts_with('R') => StealReply::Recovering(text[1..].parse().ok()?),
        holder => {
            let mut parts = holder.split(':');
            let (node, claim, nonce) = (parts.next()?, parts.next()?, parts.next()?);
            StealReply::Done(Some(ClaimId {
                node: node.parse::<NodeId>().ok()?,
                claim: claim.parse().ok()?,
                nonce: u64::from_str_radix(nonce, 16).ok()?,
            }))
        }
    })
}

fn audit_text(record: &AuditEntry) -> String {
    let time = record.time_ms;
    let (by, why) = (
        format::encoded_start(record.by.as_bytes()),
        format::encoded_start(record.why.as_bytes()),
    );
    let (key, kind) = (
        format::encoded(record.key.as_bytes()),
        record.kind.map_or("", Kind::word),
    );
    let (what, number) = (&record.what, &record.number);
    format!("time={time}&by={by}&what={what}&kind={kind}&key={key}&number={number}&why={why}")
}

/// Reads an entry of the list. Unknown fields are ignored, missing ones are empty.
fn read_audit(text: &[u8]) -> AuditEntry {
    let mut record = AuditEntry {
        time_ms: 0,
        by: String::new(),
        what: String::new(),
        kind: None,
        key: Key::from(""),
        number: String::new(),
        why: String::new(),
    };
    for (field, value) in format::fields(&String::from_utf8_lossy(text)) {
        let text = String::from_utf8_lossy(&value).into_owned();
        match field {
            "time" => record.time_ms = text.parse().unwrap_or_default(),
            "by" => record.by = text,
            "what" => record.what = text,
            "kind" => record.kind = text.parse().ok(),
            "key" => record.key = Key::from(&value[..]),
            "number" => record.number = text,
            "why" => record.why = text,
            _ => {}
        }
    }
    record
}
