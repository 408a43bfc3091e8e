//! The connections of an inspection, one to each server that it reads.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind};
use crate::store::ServerId;
use crate::store::redis::cluster;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, connect, failure, too_slow};
use crate::store::redis::inspector::answers::unreadable;
use crate::store::redis::link::greet;

/// Connections that open at their first use.
pub(super) struct Connections {
    pub(super) config: Arc<Config>,
    open: Mutex<HashMap<ServerId, MultiplexedConnection>>,
}

impl Connections {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Connections {
            config,
            open: Mutex::default(),
        }
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
        let config = &self.config;
        let asking = async {
            let mut connection = self.connection(server).await?;
            let answers = connection.send_packed_commands(pipe, 0, pipe.len()).await;
            answers.map_err(|error| failure(error).error)
        };
        let late = |_| StoreError::new(StoreErrorKind::TimedOut, too_slow(config));
        let answered = timeout(config.timeout, asking)
            .await
            .map_err(late)
            .and_then(|answered| answered);
        if answered.is_err() {
            self.open.lock().await.remove(&server);
        }
        answered
    }

    async fn connection(&self, server: ServerId) -> Result<MultiplexedConnection, StoreError> {
        if let Some(open) = self.open.lock().await.get(&server) {
            return Ok(open.clone());
        }
        let config = &self.config;
        let (server_at, at) = match (&config.cluster, &config.sentinels) {
            (Some(cluster), _) => cluster::server_at(cluster, config, server).await?,
            (None, Some(sentinels)) => {
                let located = sentinels.watch(config.timeout).locate().await?;
                let at = config.at(located).map_err(|error| cannot_open(config, error))?;
                (server, Arc::new(at))
            }
            (None, None) => (server, config.master(server)),
        };
        let mut opened = connect(&at).await?;
        // A node of a cluster would show its own slots only, and a replica an older state.
        greet(&at, &mut opened, &mut Vec::new()).await?;
        if let Some(cluster) = &config.cluster {
            cluster.check(server_at, &at, &mut opened).await?;
        }
        self.open.lock().await.insert(server, opened.clone());
        Ok(opened)
    }
}
