//! The inspection. The driver's thread does their input and output, so that any runtime may ask.

use std::fmt;
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use crate::driver::driver;
use crate::driver::handle::Handle;
use crate::driver::node::Node;
use crate::error::{Error, OptionsError, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::protocol::finding::Finding;
#[cfg(feature = "scheduler")]
use crate::protocol::job_act::{JobActReply, JobActRequest};
use crate::protocol::steal::{AuditEntry, StealReply, StealRequest};
use crate::protocol::view::{InspectAnswer, InspectQuery};
#[cfg(feature = "scheduler")]
use crate::protocol::view::{JobAnswer, JobQuery};
use crate::store::{self, BoxFuture};

/// Reads what the store of a node keeps.
#[derive(Clone)]
pub(crate) struct Inspector {
    node: Arc<Node>,
    inspector: Option<Arc<dyn store::Inspect>>,
}

impl Node {
    pub(crate) fn inspector(self: &Arc<Self>) -> Inspector {
        Inspector {
            node: self.clone(),
            inspector: self.servers.store.inspector(),
        }
    }
}

impl Inspector {
    pub(crate) async fn read(&self, query: InspectQuery) -> Result<InspectAnswer, StoreError> {
        self.answer(self.inspector()?.read(query)).await
    }

    #[cfg(feature = "scheduler")]
    pub(crate) async fn jobs(&self, query: JobQuery) -> Result<JobAnswer, StoreError> {
        self.answer(self.inspector()?.jobs(query)).await
    }

    /// Returns the servers that recover, and for how many milliseconds.
    pub(crate) async fn recovering(&self) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        let recovering = self.inspector()?.recovering();
        self.answer(Box::pin(async { Ok(recovering.await) })).await
    }

    /// Checks each server, without a change.
    pub(crate) async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        self.answer(self.inspector()?.check()).await
    }

    /// Starts a node of its own for a trial of the locks. `None`: the store has no servers.
    pub(crate) fn start_trial(&self) -> Result<Option<Handle>, OptionsError> {
        let node = &self.node;
        let Some(store) = node.servers.store.for_trial() else {
            return Ok(None);
        };
        let started = driver::start(store, node.options.for_trial(), node.clock.clone())?;
        Ok(Some(Handle::new(started)))
    }

    /// Returns why pushes do not arrive.
    pub(crate) async fn try_push(&self, key: Key) -> Result<(), StoreError> {
        self.answer(self.inspector()?.try_push(key)).await
    }

    /// Returns a right that the user lacks.
    pub(crate) async fn try_rights(&self, key: Key) -> Result<(), StoreError> {
        self.answer(self.inspector()?.try_rights(key)).await
    }

    /// Removes what a trial has left of a key.
    pub(crate) async fn remove(&self, key: Key) -> Result<(), StoreError> {
        self.answer(self.inspector()?.remove(key)).await
    }

    /// Executes a step of a steal, and returns the server's date in microseconds since 1970, too.
    pub(crate) async fn steal(&self, steal: StealRequest) -> Result<(StealReply, u64), StoreError> {
        self.answer(self.inspector()?.steal(steal)).await
    }

    #[cfg(feature = "scheduler")]
    pub(crate) async fn act_on_job(&self, request: JobActRequest) -> Result<(JobActReply, u64), StoreError> {
        self.answer(self.inspector()?.act_on_job(request)).await
    }

    pub(crate) async fn note(&self, entry: AuditEntry) -> Result<(), StoreError> {
        self.answer(self.inspector()?.note(entry)).await
    }

    pub(crate) async fn audit(&self) -> Result<Vec<AuditEntry>, StoreError> {
        self.answer(self.inspector()?.audit()).await
    }

    /// Returns the error of a question that the store did not answer.
    pub(crate) fn unavailable(&self, source: StoreError) -> Error {
        Error::Connect {
            store: self.node.servers.text().to_string(),
            source,
        }
    }

    /// Returns whether every node of the store is in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.node.servers.immediate().is_some()
    }

    fn inspector(&self) -> Result<&dyn store::Inspect, StoreError> {
        let text = format_args!("this store shows nothing to operators");
        self.inspector
            .as_deref()
            .ok_or_else(|| StoreError::unsupported(text))
    }

    /// Waits for an answer of the store, on the driver's thread.
    async fn answer<T: Send + 'static>(
        &self,
        answer: BoxFuture<'static, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let driver = self.node.runtime.get();
        match driver.filter(|_| !self.is_local()) {
            // A caller that leaves ends its read.
            Some(driver) => AbortOnDropHandle::new(driver.spawn(answer))
                .await
                .unwrap_or_else(|_| {
                    let text = "the driver has ended";
                    Err(StoreError::new(StoreErrorKind::Unreachable, text))
                }),
            None => answer.await,
        }
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inspector").field(&self.inspector).finish()
    }
}
