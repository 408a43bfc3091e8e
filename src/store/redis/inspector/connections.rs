//! The connections of an inspection, one to each server that it reads.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::{GrantNumber, LinkRequest};
use crate::store::ServerId;
use crate::store::redis::cluster;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, connect, failure, too_slow};
use crate::store::redis::greeting::{greet, run_id, run_of};
use crate::store::redis::inspector::answers::unreadable;
use crate::store::redis::link::{compare_run, is_master_of_quorum, recorded_texts};
use crate::store::redis::names;
use crate::store::redis::run::{Comparison, RunPolicy};
use crate::store::redis::slot_map::Cluster;

/// Connections that open at their first use.
pub(super) struct Connections {
    pub(super) config: Arc<Config>,
    open: Mutex<HashMap<ServerId, InspectorConnection>>,
    /// Whether a server is refused that is no master, or of another kind than the store.
    refuses: bool,
}

/// A connection, and where it leads.
#[derive(Clone)]
struct InspectorConnection {
    connection: MultiplexedConnection,
    at: Arc<Config>,
    /// Set when it was checked that leases may be taken here.
    is_checked: bool,
}

impl Connections {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Connections {
            config,
            open: Mutex::default(),
            refuses: true,
        }
    }

    /// Returns connections that may also lead to servers that cannot be used.
    pub(super) fn to_any(config: Arc<Config>) -> Self {
        Connections {
            refuses: false,
            ..Connections::new(config)
        }
    }

    /// Returns the configuration of the server to which the connection leads.
    pub(super) async fn at(&self, server: ServerId) -> Result<Arc<Config>, StoreError> {
        let opened = timeout(self.config.timeout, self.connection(server)).await;
        Ok(opened
            .unwrap_or_else(|_| Err(too_slow(&self.config_of(server))))?
            .at)
    }

    /// Sends one command to a server, and returns its answer.
    pub(super) async fn ask_one(&self, server: ServerId, pipe: &Pipeline) -> Result<Value, StoreError> {
        let [answer] = self.ask(server, pipe).await?.try_into().map_err(unreadable)?;
        Ok(answer)
    }

    /// Sends the commands to a server, and returns an answer for each.
    pub(super) async fn ask(&self, server: ServerId, pipe: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let asking = async {
            let mut connection = self.connection(server).await?.connection;
            let answers = connection.send_packed_commands(pipe, 0, pipe.len()).await;
            answers.map_err(|error| failure(error).error)
        };
        let answered = timeout(self.config.timeout, asking)
            .await
            .map_err(|_| self.no_answer(server))
            .and_then(|answered| answered);
        if answered.is_err() {
            self.open.lock().await.remove(&server);
        }
        answered
    }

    /// Returns the configuration of a server as far as it is known without a connection. It names the server in an error.
    fn config_of(&self, server: ServerId) -> Arc<Config> {
        let cluster = self.config.topology.cluster();
        let address = cluster.and_then(|cluster| cluster.address(server));
        let at = address.and_then(|address| self.config.at(address).ok());
        at.map_or_else(|| self.config.master(server), Arc::new)
    }

    /// Returns the error of a server that did not answer in time. It may have no connection yet, so it may need advice.
    fn no_answer(&self, server: ServerId) -> StoreError {
        let at = self.config_of(server);
        let (address, deadline, hint) = (at.address(), at.timeout, at.hint(None));
        let text = format_args!("no answer from {address} within {deadline:?}{hint}");
        StoreError::new(StoreErrorKind::TimedOut, text)
    }

    /// Checks before a steal, once for each connection, what a link of a node checks: the Sentinels must confirm the server, and
    /// another run or reign than the recorded one begins a recovery.
    ///
    /// # Errors
    ///
    /// Returns an error if too few Sentinels answer, or if the server is a master of a quorum.
    pub(super) async fn check_reign(&self, server: ServerId) -> Result<(), StoreError> {
        let checking = async {
            let open = self.connection(server).await?;
            if !open.is_checked && self.config.topology.sentinels().is_some() {
                self.compare_reign(open.clone()).await?;
                let is_checked = true;
                let mut known = self.open.lock().await;
                known.insert(server, InspectorConnection { is_checked, ..open });
            }
            Ok(())
        };
        let checked = timeout(self.config.timeout, checking).await;
        let checked = checked.unwrap_or_else(|_| Err(self.no_answer(server)));
        if checked.is_err() {
            self.open.lock().await.remove(&server);
        }
        checked
    }

    async fn compare_reign(&self, open: InspectorConnection) -> Result<(), StoreError> {
        let InspectorConnection {
            mut connection, at, ..
        } = open;
        let mut epoch = None;
        // After the first answer on the connection, as a link does.
        if let (Some(sentinels), Some(address)) = (self.config.topology.sentinels(), at.tcp_address()) {
            let (reign, too_few) = sentinels.watch(self.config.timeout).confirm(&address).await?;
            if let Some(too_few) = too_few {
                return Err(StoreError::new(StoreErrorKind::Unreachable, too_few));
            }
            epoch = reign.epoch();
        }
        let mut questions = redis::pipe();
        questions.cmd("MGET").arg(names::RUN).arg(names::MASTERS);
        questions.cmd("INFO").arg("server");
        questions.cmd("INFO").arg("replication");
        let answers = connection
            .send_packed_commands(&questions, 0, questions.len())
            .await;
        let answers = answers.map_err(|error| failure(error).error)?;
        let [recorded, server, replication] = answers.try_into().map_err(unreadable)?;
        let [recorded, list] = recorded_texts(recorded);
        if list.is_some() {
            return Err(StoreError::unsupported(is_master_of_quorum(&at)));
        }
        let run = run_of(run_id(&server).as_deref(), &replication).unwrap_or_default();
        let comparison = Comparison {
            link: LinkRequest {
                run: &run,
                epoch,
                number: Some(GrantNumber::default()),
                recovery_ms: 0,
            },
            master: self.config.topology.sentinels().map(|sentinels| sentinels.name()),
            recorded,
        };
        // An operator has no longest lease, so the recorded one counts.
        let policy = self.config.run_policy.map(|policy| RunPolicy {
            longest: None,
            ..policy
        });
        let operator = Config {
            run_policy: policy,
            ..(*at).clone()
        };
        compare_run(&operator, &mut connection, comparison)
            .await
            .map(drop)
    }

    /// Opens a connection. A node of a cluster would show its own slots only, and a replica an older state.
    async fn greeted(
        &self,
        at: &Arc<Config>,
        of: Option<(&Arc<Cluster>, ServerId)>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let mut opened = connect(at).await?;
        if self.refuses {
            greet(at, &mut opened, &mut Vec::new()).await?;
        }
        if let Some((cluster, server)) = of {
            cluster.check(server, at, &mut opened).await?;
        }
        Ok(opened)
    }

    async fn connection(&self, server: ServerId) -> Result<InspectorConnection, StoreError> {
        if let Some(open) = self.open.lock().await.get(&server) {
            return Ok(open.clone());
        }
        let config = &self.config;
        let (connection, at) = match (config.topology.cluster(), config.topology.sentinels()) {
            (Some(cluster), _) => {
                let (mut opened, mut failed) = (None, cluster.no_server());
                for (server, at, limit) in cluster::servers_at(cluster, config, server).await? {
                    match timeout(limit, self.greeted(&at, Some((cluster, server)))).await {
                        Ok(Ok(connection)) => {
                            opened = Some((connection, at));
                            break;
                        }
                        Ok(Err(error)) => failed = error,
                        Err(_) => failed = too_slow(&at),
                    }
                }
                opened.ok_or(failed)?
            }
            (None, Some(sentinels)) => {
                let located = sentinels.watch(config.timeout).locate().await?;
                let at = Arc::new(config.at(located).map_err(|error| cannot_open(config, error))?);
                (self.greeted(&at, None).await?, at)
            }
            (None, None) => {
                let at = config.master(server);
                (self.greeted(&at, None).await?, at)
            }
        };
        let open = InspectorConnection {
            connection,
            at,
            is_checked: false,
        };
        self.open.lock().await.insert(server, open.clone());
        Ok(open)
    }
}
