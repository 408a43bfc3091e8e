//! Batches on a cluster: a pipeline of one script call for each slot, and what follows if a server refuses a slot.
//!
//! A request is never sent to another server, except with its record alone while its slot is on its way: another server
//! would not know the order of the session, and the not-after is in the time of this one.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::flaw::Plant;
use crate::protocol::message::{Batch, BatchReply, Executed, Failure, Redirect, Reply, Request, Verb};
use crate::protocol::redirects::{Fallback, Side, SlotRefusal, after_alone, after_script, is_believed};
use crate::store::ServerId;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{failure, read_time};
use crate::store::redis::decode::{self, result};
use crate::store::redis::encode;
use crate::store::redis::script::ALONE;
use crate::store::redis::sentinel::Address;
use crate::store::redis::slot_map::Cluster;

/// The requests of a batch whose names share a slot.
struct Part {
    /// The places of the requests in the batch.
    places: Vec<usize>,
    batch: Batch,
}

/// A request that is executed with its record alone.
struct Alone {
    place: usize,
    request: Request,
    /// Where the slot is on its way to; known when the source said so.
    target: Option<Address>,
}

/// A batch that is sent to a server of a cluster.
#[derive(Clone)]
pub(super) struct SlotBatch {
    pub(super) connection: MultiplexedConnection,
    pub(super) store: Arc<Config>,
    pub(super) cluster: Arc<Cluster>,
}

impl SlotBatch {
    /// Sends a batch, and returns a reply for each request.
    pub(super) async fn apply(mut self, batch: Batch) -> Result<BatchReply, Failure> {
        if batch.requests.is_empty() {
            return self.ping().await;
        }
        let count = batch.requests.len();
        let parts = self.split(batch);
        let answers = self.call(&parts).await?;
        let (mut time, mut replies) = (0, Vec::new());
        replies.resize(count, None);
        let mut alone = Vec::new();
        for (part, answer) in parts.into_iter().zip(answers) {
            match answer.map_err(|error| self.refusal(error)) {
                Ok(answer) => match decode::batch(answer, &part.batch.requests) {
                    Ok(reply) => {
                        time = reply.time.max(time);
                        for (place, reply) in part.places.into_iter().zip(reply.replies) {
                            replies[place] = Some(reply);
                        }
                    }
                    Err(failure) => fill(&mut replies, &part.places, &failure),
                },
                Err((Some((said, target)), error)) => {
                    for (place, request) in part.places.into_iter().zip(part.batch.requests) {
                        match after_script(&request, said) {
                            Fallback::Report(redirect) => {
                                replies[place] = Some(elsewhere(redirect, &error));
                            }
                            Fallback::Alone(_) => alone.push(Alone {
                                place,
                                request,
                                target: target.clone(),
                            }),
                        }
                    }
                }
                Err((None, error)) => fill(&mut replies, &part.places, &error),
            }
        }
        if !alone.is_empty() {
            self.apply_alone(alone, &mut replies).await?;
        }
        let replies: Option<Vec<Reply>> = replies.into_iter().collect();
        let replies = replies.ok_or_else(|| decode::malformed("a request of the batch has no answer"))?;
        Ok(BatchReply { time, replies })
    }

    /// Asks for the time. An empty batch has no slot.
    async fn ping(&mut self) -> Result<BatchReply, Failure> {
        let answer = self.connection.send_packed_command(&redis::cmd("TIME")).await;
        let time = answer.and_then(result);
        let time = read_time(time).map_err(failure)?;
        Ok(BatchReply {
            time,
            replies: Vec::new(),
        })
    }

    /// Splits a batch into parts of one slot each, in the order of their first requests.
    fn split(&self, mut batch: Batch) -> Vec<Part> {
        let mut parts: Vec<(u16, Part)> = Vec::new();
        for (place, request) in std::mem::take(&mut batch.requests).into_iter().enumerate() {
            let slot = self.store.names.slot(&request.name);
            let at = parts.iter().position(|(of, _)| *of == slot);
            let at = at.unwrap_or_else(|| {
                let part = Part {
                    places: Vec::new(),
                    batch: batch.clone(),
                };
                parts.push((slot, part));
                parts.len() - 1
            });
            parts[at].1.places.push(place);
            parts[at].1.batch.requests.push(request);
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    /// Calls the script of each part in one write. A part whose script the server did not have is called again, after
    /// the script was loaded.
    async fn call(&mut self, parts: &[Part]) -> Result<Vec<RedisResult<Value>>, Failure> {
        let store = self.store.clone();
        let encode = |part: &Part| encode::batch(&part.batch, &store.names, store.probe);
        let calls: Vec<Cmd> = parts.iter().map(encode).collect();
        let mut answers = self.send(&calls).await?;
        let is_unknown = |answer: &RedisResult<Value>| {
            let error = answer.as_ref().err();
            error.is_some_and(|error| error.code() == Some("NOSCRIPT"))
        };
        let missing: Vec<usize> = (0..answers.len())
            .filter(|at| is_unknown(&answers[*at]))
            .collect();
        if missing.is_empty() {
            return Ok(answers);
        }
        let mut again = Vec::with_capacity(2 * missing.len());
        for at in &missing {
            again.push(encode::script_of(&parts[*at].batch).load_command());
            again.push(encode(&parts[*at]));
        }
        let answered = self.send(&again).await?;
        for (at, answer) in missing.into_iter().zip(answered.into_iter().skip(1).step_by(2)) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    async fn send(&mut self, calls: &[Cmd]) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.clone());
        }
        let answers = self
            .connection
            .send_packed_commands(&pipeline, 0, calls.len())
            .await;
        Ok(answers.map_err(failure)?.into_iter().map(result).collect())
    }

    /// Executes requests with their records alone: here, and then at the server that a slot is on its way to.
    async fn apply_alone(&mut self, alone: Vec<Alone>, replies: &mut [Option<Reply>]) -> Result<(), Failure> {
        let names = &self.store.names;
        let memories = alone
            .iter()
            .filter_map(|alone| encode::memory_alone(&alone.request, names));
        let memories: Vec<Cmd> = memories.collect();
        let mut calls = Vec::with_capacity(alone.len() + memories.len() + 1);
        calls.push(ALONE.load_command());
        calls.extend(alone.iter().map(|alone| encode::alone(&alone.request, names)));
        calls.extend(memories.iter().cloned());
        let mut answers = self.send(&calls).await?.into_iter().skip(1);
        let mut at_targets: BTreeMap<Address, Vec<Alone>> = BTreeMap::new();
        for (alone, answer) in alone.into_iter().zip(answers.by_ref()) {
            let place = alone.place;
            let reply = match answer.map_err(|error| self.refusal(error)) {
                Ok(answer) => believed(Side::Source, &answer, alone.request.verb),
                Err((Some((said, target)), error)) => match after_alone(Side::Source, said) {
                    Fallback::Report(redirect) => elsewhere(redirect, &error),
                    Fallback::Alone(_) => match target.or_else(|| alone.target.clone()) {
                        Some(target) => {
                            at_targets.entry(target).or_default().push(alone);
                            continue;
                        }
                        None => elsewhere(Redirect::Pending, &error),
                    },
                },
                Err((None, error)) => Reply::Failed(Box::new(error)),
            };
            replies[place] = Some(reply);
        }
        self.keep_memories(memories, answers);
        for (target, alone) in at_targets {
            for (alone, reply) in alone.iter().zip(self.apply_at(&target, &alone).await) {
                replies[alone.place] = Some(reply);
            }
        }
        Ok(())
    }

    /// Keeps what leaders proclaimed as long as their leases, at the target if the source does not have it. No reply waits for a
    /// target: it may hang, and the records may be at the source. After a failure the next renewal tries again.
    fn keep_memories(&self, memories: Vec<Cmd>, answers: impl Iterator<Item = RedisResult<Value>>) {
        let mut at_targets: BTreeMap<Address, Vec<Cmd>> = BTreeMap::new();
        for (call, answer) in memories.into_iter().zip(answers) {
            if let Err(error) = answer
                && let (Some((SlotRefusal::Ask, Some(target))), _) = self.refusal(error)
            {
                at_targets.entry(target).or_default().push(call);
            }
        }
        for (target, calls) in at_targets {
            let batch = self.clone();
            tokio::spawn(async move {
                let _ = timeout(batch.store.timeout, batch.ask_target(&target, &calls)).await;
            });
        }
    }

    /// Executes requests with their records alone at the server that their slot is on its way to.
    async fn apply_at(&self, target: &Address, alone: &[Alone]) -> Vec<Reply> {
        let calls = alone
            .iter()
            .map(|alone| encode::alone(&alone.request, &self.store.names));
        let answers = self.ask_target(target, &calls.collect::<Vec<_>>()).await;
        // A renewal that may have been executed does no harm, and a leave is repeated.
        let failed = |error| {
            Reply::Failed(Box::new(Failure {
                executed: Executed::Unknown,
                error,
            }))
        };
        match answers {
            Ok(answers) => {
                let reply = |(alone, answer): (&Alone, RedisResult<Value>)| match answer {
                    Ok(answer) => believed(Side::Target, &answer, alone.request.verb),
                    Err(error) => failed(interrupted(target, error)),
                };
                alone.iter().zip(answers).map(reply).collect()
            }
            Err(error) => alone.iter().map(|_| failed(error.clone())).collect(),
        }
    }

    /// Executes scripts of one key at the server that a slot is moving to.
    async fn ask_target(
        &self,
        address: &Address,
        calls: &[Cmd],
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let mut connection = self.cluster.connection(&self.store, address).await?;
        let count = 1 + 2 * calls.len();
        let mut pipeline = Pipeline::with_capacity(count);
        // SCRIPT LOAD ends what ASKING begins, so it comes first.
        pipeline.add_command(ALONE.load_command());
        for call in calls {
            pipeline.cmd("ASKING");
            pipeline.add_command(call.clone());
        }
        match connection.send_packed_commands(&pipeline, 0, count).await {
            Ok(answers) => Ok(answers.into_iter().skip(2).step_by(2).map(result).collect()),
            Err(error) => {
                self.cluster.note_error(address, &error).await;
                Err(interrupted(address, error))
            }
        }
    }

    /// Returns what a server's error says of a slot, with the server that it names, and the error as a failure.
    fn refusal(&self, error: RedisError) -> (Option<(SlotRefusal, Option<Address>)>, Failure) {
        let said = match error.code() {
            Some("MOVED") => SlotRefusal::Moved,
            Some("ASK") => SlotRefusal::Ask,
            Some("TRYAGAIN") => SlotRefusal::TryAgain,
            Some("CLUSTERDOWN") => SlotRefusal::Down,
            _ => return (None, failure(error)),
        };
        let named = error
            .detail()
            .and_then(|detail| read_redirect(detail, &self.store));
        match (said, &named) {
            (SlotRefusal::Moved, Some((slot, address))) => self.cluster.correct(*slot, address),
            (SlotRefusal::Down, _) => self.cluster.want_reading(),
            _ => {}
        }
        let target = named.map(|(_, address)| address);
        let is_moving = matches!(said, SlotRefusal::Ask | SlotRefusal::TryAgain);
        let mut failure = failure(error);
        if is_moving {
            let text = format!(
                "its slot is on its way to another server; the server said: {}",
                failure.error
            );
            failure.error = StoreError::refused(StoreRefusal::Unready(text));
        }
        (Some((said, target)), failure)
    }
}

/// Returns the error of a request at the server that its slot is moving to.
fn interrupted((host, port): &Address, error: RedisError) -> StoreError {
    StoreError::new(
        StoreErrorKind::Interrupted,
        format_args!("{host}:{port}: {error}"),
    )
    .with_source(error)
}

/// Returns what the error of a call on a cluster means for an action: it was not executed if the slot is elsewhere.
pub(super) fn action_failure(cluster: &Cluster, store: &Config, error: RedisError) -> Failure {
    let redirect = match error.code() {
        Some("MOVED") => Redirect::Moved,
        Some("ASK" | "TRYAGAIN" | "CLUSTERDOWN") => Redirect::Pending,
        _ => return failure(error),
    };
    note_moved(cluster, store, &error);
    Failure {
        executed: Executed::Elsewhere(redirect),
        ..failure(error)
    }
}

/// Corrects the map after an error that names the new server of a slot, and returns that server.
pub(super) fn note_moved(cluster: &Cluster, asked: &Config, error: &RedisError) -> Option<ServerId> {
    let detail = error.detail().filter(|_| error.code() == Some("MOVED"))?;
    let (slot, address) = read_redirect(detail, asked)?;
    cluster.correct(slot, &address);
    Some(cluster.server(slot))
}

/// Returns the reply to a request that a server executed with its record alone.
fn believed(at: Side, answer: &Value, to: Verb) -> Reply {
    match decode::reply(answer, to) {
        Some(reply) if is_believed(at, &reply, Plant::NONE) => reply,
        Some(_) => {
            let failure = decode::malformed("the slot of the key is on its way to another server");
            elsewhere(Redirect::Pending, &failure)
        }
        None => Reply::Failed(Box::new(decode::malformed(
            "the answer of a script cannot be read",
        ))),
    }
}

/// Returns the reply to a request that was not executed because of its slot.
fn elsewhere(redirect: Redirect, why: &Failure) -> Reply {
    Reply::Failed(Box::new(Failure {
        executed: Executed::Elsewhere(redirect),
        error: why.error.clone(),
    }))
}

fn fill(replies: &mut [Option<Reply>], places: &[usize], failure: &Failure) {
    for place in places {
        replies[*place] = Some(Reply::Failed(Box::new(failure.clone())));
    }
}

/// Reads `<slot> <host>:<port>`, which `MOVED` and `ASK` say. Without a host the server means the one that was asked.
fn read_redirect(detail: &str, asked: &Config) -> Option<(u16, Address)> {
    let (slot, address) = detail.trim().split_once(' ')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    let own = match asked.address() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host.as_str(),
        _ => "",
    };
    let host = if host.is_empty() || host == "?" { own } else { host };
    Some((slot.parse().ok()?, (host.to_owned(), port.parse().ok()?)))
}
