//! A connection for commands: the checks when it opens, and the sending of batches and actions.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use crate::error::{StoreError, StoreErrorKind, StoreRefusal, Trouble};
use crate::protocol::message::{
    Batch, BatchReply, CallAnswer, Executed, Failure, GrantNumber, LinkReply, LinkRequest, Name, NodeId,
    Reply, WriteAnswer,
};
use crate::protocol::sentinels::Reign;
use crate::protocol::session::step::{Opened, Place};
use crate::protocol::view::Presence;
use crate::protocol::write::Action;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{answered, ask, ask_all, cannot_open, connect, failure, too_slow};
use crate::store::redis::decode::{error_text, result, text};
use crate::store::redis::greeting::{check_info, greet, run_id, run_of};
use crate::store::redis::masters::Masters;
use crate::store::redis::run::{Comparison, RunPolicy};
use crate::store::redis::script::{LuaScript, VOTE};
use crate::store::redis::sentinel::SentinelWatch;
use crate::store::redis::slots::{self, SlotBatch};
use crate::store::redis::write::{self, ActionCall};
use crate::store::redis::{contract, decode, encode, format, map_answer, names, run};
use crate::store::{BoxFuture, Link, WarnSink};

/// A connection to a master.
///
/// If a batch fails with [`StoreRefusal::ReadOnly`], the server is no longer a master. It executed nothing, and its later
/// answers mean nothing, so the link must be dropped.
pub(super) struct RedisLink {
    connection: MultiplexedConnection,
    store: Arc<Config>,
    opened: Opened,
    run_id: Option<String>,
    warnings: Vec<String>,
    /// Asks the Sentinels where the master is and in which reign, until the link has ended.
    watch: Mutex<Option<(SentinelWatch, Reign)>>,
}

/// The pause before a server is asked again for the subscription of an inbox, after an error that passes.
const SEEK_PAUSE: Duration = Duration::from_secs(1);
/// How long a server keeps what a node told of itself, in milliseconds.
const PRESENCE_MS: u64 = 60_000;

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLink")
            .field("server", &self.store.address())
            .finish_non_exhaustive()
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        if let Some(masters) = self.store.topology.masters() {
            masters.ended(&self.store.client);
        }
    }
}

impl RedisLink {
    /// Connects and checks the server, both within the store's connect timeout.
    ///
    /// `highest`: the highest grant number that the node has seen, if the server has one clock.
    pub(super) async fn open(store: Arc<Config>, highest: Option<GrantNumber>) -> Result<Self, StoreError> {
        // The session's own timeout ends a little later, and its error cannot give advice about TLS.
        let timeout = store.timeout - store.timeout / 10;
        let Some(sentinels) = store.topology.sentinels() else {
            let opened = tokio::time::timeout(timeout, Self::open_unbounded(&store, highest, None)).await;
            let opened = opened.unwrap_or_else(|_| Err(too_slow(&store)));
            if let (Err(_), Some(masters)) = (&opened, store.topology.masters()) {
                masters.was_not_opened(&store.client);
            }
            return opened;
        };
        let mut watch = sentinels.watch(store.timeout);
        let located = watch.locate().await?;
        let master = Arc::new(store.at(located).map_err(|error| cannot_open(&store, error))?);
        // The Sentinels had a quarter of the time.
        let timeout = timeout - store.timeout / 4;
        let opening = Self::open_unbounded(&master, highest, Some(watch));
        let opened = tokio::time::timeout(timeout, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(too_slow(&master)));
        opened.map_err(|error| {
            sentinels.note_link_failed();
            refused_by_master(&master, error)
        })
    }

    async fn open_unbounded(
        store: &Arc<Config>,
        highest: Option<GrantNumber>,
        mut watch: Option<SentinelWatch>,
    ) -> Result<Self, StoreError> {
        let mut connection = connect(store).await?;
        let mut warnings = Vec::new();
        let (time, [server, replication]) = greet(store, &mut connection, &mut warnings).await?;
        let (reign, too_few) = match &mut watch {
            Some(watch) => reign(store, watch).await?,
            None => (Reign::Ignored, None),
        };

        let [memory, recorded] = prepare(store, &mut connection).await?;
        let run_id = run_id(&server);
        let run: Arc<str> = run_of(run_id.as_deref(), &replication).unwrap_or_default().into();
        check_info(store, [server, memory, replication], &mut warnings)?;
        let node_id = node_id(store, &recorded, &mut warnings)?;
        let [recorded, list] = recorded_texts(recorded);
        match store.topology.masters() {
            Some(masters) => join(masters, store, &mut connection, (list, run_id.as_deref())).await?,
            None => warnings.extend(list.map(|_| is_master_of_quorum(store))),
        }
        let epoch = reign.epoch();
        let comparison = Comparison {
            link: LinkRequest {
                run: &run,
                epoch,
                number: highest,
                recovery_ms: 0,
            },
            master: watch.as_ref().map(SentinelWatch::name),
            recorded,
        };
        let link = match store.topology.cluster() {
            Some(_) => LinkReply::default(),
            None => compare_run(store, &mut connection, comparison).await?,
        };
        let refusals = watch.as_mut().map(|watch| std::mem::take(&mut watch.refusals));
        warnings.extend(refusals.into_iter().flatten());
        let mut warnings = store.warned.new_warnings(warnings);
        warnings.extend(too_few.filter(|_| watch.as_ref().is_some_and(SentinelWatch::may_warn)));
        let address = store.address().to_string().into();
        let opened = Opened {
            time,
            place: Place {
                address,
                run,
                epoch,
                node_id,
            },
            link,
            is_unconfirmed: reign == Reign::Unconfirmed,
        };
        Ok(RedisLink {
            connection,
            store: store.clone(),
            opened,
            run_id,
            warnings,
            watch: Mutex::new(watch.map(|watch| (watch, reign))),
        })
    }
}

/// Loads the scripts and names the connection. Returns the section `memory` of INFO, and what is recorded in the server: its run
/// and a list of masters, or the node id of a server of a cluster.
async fn prepare(store: &Config, connection: &mut MultiplexedConnection) -> Result<[Value; 2], StoreError> {
    let mut questions = redis::pipe();
    for script in store.scripts() {
        questions.add_command(script.load_command());
    }
    questions.cmd("INFO").arg("memory");
    // On a cluster the key of the run would be in one slot, and a slot that moved looks like a promotion.
    match store.topology.cluster() {
        Some(_) => questions.cmd("CLUSTER").arg("MYID"),
        None => questions.cmd("MGET").arg(names::RUN).arg(names::MASTERS),
    };
    // The name is for operators. A Redis user that may not set it can still use the store.
    questions
        .cmd("CLIENT")
        .arg("SETNAME")
        .arg(&*store.connection_name);
    let mut loaded = ask(store, connection, &questions).await?;
    let answers = loaded.split_off(loaded.len().saturating_sub(3));
    let [memory, recorded, _] = answered(answers)?;
    for loaded in loaded {
        result(loaded).map_err(|error| cannot_open(store, error))?;
    }
    Ok([memory, recorded])
}

/// Asks the Sentinels in which reign the server is the master. A node that recovers on evidence only does not ask.
async fn reign(store: &Config, watch: &mut SentinelWatch) -> Result<(Reign, Option<String>), StoreError> {
    match (store.tcp_address(), store.run_policy) {
        (Some(address), Some(RunPolicy { longest: Some(_), .. })) => watch.confirm(&address).await,
        _ => Ok((Reign::Ignored, None)),
    }
}

/// Begins a recovery if another run or reign was recorded in the server, or none, or if the node has seen a number that the
/// server did not give.
///
/// A node that recovers on evidence only asks for this if a run was recorded, by a node that always recovers. Each node
/// asks before its first request, so no node grants at a server that lost writes.
pub(super) async fn compare_run(
    store: &Config,
    connection: &mut MultiplexedConnection,
    comparison: Comparison<'_>,
) -> Result<LinkReply, StoreError> {
    let Some(policy) = store.run_policy else {
        return Ok(LinkReply::default());
    };
    let Comparison { link, recorded, .. } = &comparison;
    let is_equal = |recorded: &String| recorded == link.run && link.epoch.is_none();
    if policy.longest.is_none() && recorded.as_ref().is_none_or(is_equal) {
        return Ok(LinkReply::default());
    }
    if link.run.is_empty() {
        let refusal = StoreErrorKind::Refused(StoreRefusal::NoPermission);
        let address = store.address();
        let why = format_args!(
            "{address} does not tell its run, by which `Recovery::Always` and a quorum know a restart or a promotion: allow +info"
        );
        return Err(StoreError::new(refusal, why));
    }
    let questions = run::compare(&comparison, policy);
    let answers: [Value; 2] = ask_all(store, connection, &questions).await?;
    let answer = second_answer(answers.into()).map_err(|error| cannot_open(store, error))?;
    let Some((longest, reply)) = run::read(answer) else {
        return Err(decode::malformed("the answer about the run is not a list of four").error);
    };
    let contradiction = policy.contradiction(&longest);
    contradiction.map_or(Ok(reply), |why| Err(StoreError::unsupported(why)))
}

/// Compares the contract of a quorum with the one that a master keeps, and leaves it with a master that keeps none.
async fn join(
    masters: &Masters,
    store: &Config,
    connection: &mut MultiplexedConnection,
    (recorded, run_id): (Option<String>, Option<&str>),
) -> Result<(), StoreError> {
    // A trial is in no contract.
    if store.run_policy.is_none() {
        return Ok(());
    }
    let contract = masters.contract(store.run_policy);
    masters.compare(&store.client, &contract, recorded.as_deref(), run_id)?;
    let lives = contract::contract_lives(store.run_policy);
    if recorded.is_some() {
        let mut refresh = redis::pipe();
        refresh.cmd("PEXPIRE").arg(names::MASTERS).arg(lives);
        return ask(store, connection, &refresh).await.map(drop);
    }
    if !masters.agree_within(store.timeout / 2).await? {
        let address = store.address();
        let text = format_args!("{address} answers, and too few of the other masters do");
        return Err(StoreError::new(StoreErrorKind::Unreachable, text));
    }
    let mut questions = redis::pipe();
    let set = questions.cmd("SET").arg(names::MASTERS).arg(&contract);
    set.arg("NX").arg("PX").arg(lives);
    questions.cmd("GET").arg(names::MASTERS);
    let [left, recorded] = ask_all(store, connection, &questions).await?;
    result(left).map_err(|error| cannot_open(store, error))?;
    masters.compare(&store.client, &contract, text(recorded).as_deref(), run_id)
}

/// Returns the node id that a server of a cluster answered, and adds a warning if a right is missing.
fn node_id(store: &Config, answer: &Value, warnings: &mut Vec<String>) -> Result<Arc<str>, StoreError> {
    let Some(cluster) = store.topology.cluster() else {
        return Ok(Arc::default());
    };
    let name = map_answer::name(result(answer.clone())).map_err(|error| cannot_open(store, error))?;
    if name.is_empty() || cluster.hides_epoch.load(Ordering::Relaxed) {
        warnings.push(
            "the user may not ask the servers of the cluster for CLUSTER MYID and CLUSTER INFO: a server of another \
             cluster, or one that was cut off, may be believed; allow +cluster|info +cluster|myid"
                .to_owned(),
        );
    }
    Ok(name)
}

/// Returns the run and the list of masters that are recorded in a server. A user that may not read these keys has no right for
/// them in the scripts either.
pub(super) fn recorded_texts(answer: Value) -> [Option<String>; 2] {
    match result(answer) {
        Ok(Value::Array(values)) => <[Value; 2]>::try_from(values).unwrap_or_default().map(text),
        _ => [None, None],
    }
}

/// Returns the warning of a client that uses one master of a quorum alone.
pub(super) fn is_master_of_quorum(store: &Config) -> String {
    format!(
        "{} is a master of a quorum: locks on it alone do not exclude those of the quorum. Name all its masters, in `redis+quorum://…`; or \
         `DEL {}`, if there is no quorum any more",
        store.address(),
        names::MASTERS
    )
}

impl Link for RedisLink {
    fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>> {
        let mut connection = self.connection.clone();
        if let Some(cluster) = self.store.topology.cluster() {
            let store = self.store.clone();
            let sent = SlotBatch {
                connection,
                store,
                cluster: cluster.clone(),
            };
            return Box::pin(sent.apply(batch));
        }
        let (script, call) = if self.store.topology.masters().is_none() {
            let call = encode::batch(&batch, &self.store.names, self.store.probe);
            (encode::script_of(&batch), call)
        } else {
            (&*VOTE, encode::votes(&batch, &self.store.names))
        };
        Box::pin(async move {
            let answer = send(&mut connection, script, call).await?;
            decode::batch(answer.map_err(failure)?, &batch.requests)
        })
    }

    fn act(&self, name: Name, action: Action) -> BoxFuture<'static, Result<Reply, Failure>> {
        let mut connection = self.connection.clone();
        let ActionCall { script, call } = write::encode(&name, &action, &self.store.names);
        let store = self.store.clone();
        Box::pin(async move {
            match (
                send(&mut connection, &script, call).await?,
                store.topology.cluster(),
            ) {
                (Ok(answer), _) => write::decode(&action, answer),
                (Err(error), Some(cluster)) if is_of_slot(&error) => {
                    Err(slots::action_failure(cluster, &store, error))
                }
                (Err(error), _) => failed_action(&action, error),
            }
        })
    }

    fn tell(&self, node: NodeId, presence: Option<Presence>) -> BoxFuture<'static, Result<(), StoreError>> {
        let (mut connection, store) = (self.connection.clone(), self.store.clone());
        Box::pin(async move {
            let key = names::presence(node);
            // On a cluster the key is in a slot of its own.
            let cluster = store.topology.cluster();
            let elsewhere = cluster.and_then(|cluster| {
                let slot = store.names.slot_of_key(key.as_bytes());
                Some((cluster, cluster.address(cluster.server(slot))?))
            });
            if let Some((cluster, address)) = &elsewhere {
                connection = cluster.connection(&store, address).await?;
            }
            let command = match presence {
                Some(presence) => {
                    let mut set = redis::cmd("SET");
                    set.arg(key)
                        .arg(format::presence(&presence))
                        .arg("PX")
                        .arg(PRESENCE_MS);
                    set
                }
                None => {
                    let mut del = redis::cmd("DEL");
                    del.arg(key);
                    del
                }
            };
            let answer = connection.send_packed_command(&command).await.and_then(result);
            if let (Err(error), Some((cluster, address))) = (&answer, &elsewhere) {
                cluster.note_error(address, error).await;
                cluster.want_reading();
            }
            answer.map(drop).map_err(|error| failure(error).error)
        })
    }

    fn has_subscriber(&self, channel: Arc<str>) -> BoxFuture<'static, Option<bool>> {
        let mut connection = self.connection.clone();
        Box::pin(async move {
            let mut ask = redis::cmd("PUBSUB");
            ask.arg("NUMSUB").arg(&*channel);
            loop {
                match connection.send_packed_command(&ask).await.and_then(result) {
                    Ok(answer) => {
                        let (_, subscribers): (String, u64) = redis::from_redis_value(answer).ok()?;
                        return Some(subscribers > 0);
                    }
                    Err(error) => match failure(error).error.trouble() {
                        Trouble::Passing => tokio::time::sleep(SEEK_PAUSE).await,
                        _ => return None,
                    },
                }
            }
        })
    }

    fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    fn opened(&self) -> Opened {
        self.opened.clone()
    }

    fn ended(&self, warn: WarnSink) -> BoxFuture<'static, ()> {
        let contradicted = contract::keep_contracts(self.store.clone(), self.connection.clone());
        let masters = self.store.topology.masters().cloned();
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        let address = self.store.tcp_address();
        Box::pin(async move {
            let refused = async {
                match (masters, watch.zip(address)) {
                    (Some(masters), _) => masters.refused().await,
                    (None, Some(((watch, reign), address))) => watch.ended(address, reign, warn).await,
                    (None, None) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = contradicted => {}
                () = refused => {}
            }
        })
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Calls a script by its hash. If the server does not have the script, loads it and calls it again.
async fn send(
    connection: &mut MultiplexedConnection,
    script: &LuaScript,
    call: Cmd,
) -> Result<RedisResult<Value>, Failure> {
    let answer = connection.send_packed_command(&call).await.and_then(result);
    // The server was restarted, failed over or flushed its scripts. It executed nothing, so this call is not a retry.
    if !answer
        .as_ref()
        .is_err_and(|error| error.code() == Some("NOSCRIPT"))
    {
        return Ok(answer);
    }
    let mut reload = Pipeline::with_capacity(2);
    reload.add_command(script.load_command()).add_command(call);
    let answers = connection.send_packed_commands(&reload, 0, 2).await;
    Ok(second_answer(answers.map_err(failure)?))
}

/// Returns the answer to a call that followed its script. If the server refused the script, returns that refusal.
fn second_answer(answers: Vec<Value>) -> RedisResult<Value> {
    let [loaded, answer] = <[Value; 2]>::try_from(answers).unwrap_or_default();
    match (result(loaded), result(answer)) {
        (Err(refused), Err(error)) if error.code() == Some("NOSCRIPT") => Err(refused),
        (_, answer) => answer,
    }
}

/// Returns whether the error says that a slot is elsewhere.
fn is_of_slot(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"))
}

/// Returns the reply to an action that the server answered with an error.
///
/// Unless the error means "not executed", the write is answered: its script was stopped halfway, or could not be
/// compiled. Its effects so far stay, and no more follow.
fn failed_action(action: &Action, error: RedisError) -> Result<Reply, Failure> {
    let said = error_text(&error);
    let failure = failure(error);
    match (action, said) {
        (Action::Write(_), Some(said)) if failure.executed == Executed::Unknown => {
            Ok(CallAnswer::Written(WriteAnswer::Failed(said)).into())
        }
        _ => Err(failure),
    }
}

/// Returns an error that says that the master refused, and not a Sentinel.
fn refused_by_master(store: &Config, error: StoreError) -> StoreError {
    let what = match error.kind() {
        StoreErrorKind::Refused(StoreRefusal::NoAuth | StoreRefusal::WrongPassword) => {
            "with the user and password of the client for the master"
        }
        StoreErrorKind::Refused(StoreRefusal::ReadOnly) => "which the Sentinels call the master",
        _ => return error,
    };
    error.within(format_args!("at {}, {what}", store.address()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answers to a script and to the batch behind it.
    fn answers(texts: [&str; 2]) -> Vec<Value> {
        let parse = |text: &str| redis::parse_redis_value(format!("{text}\r\n").as_bytes()).unwrap();
        texts.map(parse).into()
    }

    #[test]
    fn a_script_that_the_server_drops_at_once_is_an_interruption() {
        let error = second_answer(answers(["+loaded", "-NOSCRIPT No matching script."])).unwrap_err();
        let failure = failure(error);
        assert_eq!(failure.executed, Executed::No);
        assert_eq!(failure.error.kind(), &StoreErrorKind::Interrupted);
    }

    #[test]
    fn a_refused_script_reports_the_refusal() {
        let missing = "-NOSCRIPT No matching script.";
        for (said, refusal) in [
            ("-NOPERM no permission", StoreRefusal::NoPermission),
            ("-OOM command not allowed", StoreRefusal::OutOfMemory),
        ] {
            let failure = failure(second_answer(answers([said, missing])).unwrap_err());
            assert_eq!(failure.executed, Executed::No);
            assert_eq!(failure.error.kind(), &StoreErrorKind::Refused(refusal));
        }
        // Another connection loaded the script.
        let answer = second_answer(answers(["-NOPERM no permission", ":1"]));
        assert_eq!(answer.unwrap(), Value::Int(1));
    }
}
