//! Reads for operators. The driver's thread does their input and output, so that any runtime may ask.

use std::fmt;
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use crate::driver::node::Node;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::view::{InspectAnswer, InspectQuery};
use crate::store;

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
        let Some(inspector) = &self.inspector else {
            return Err(StoreError::unsupported(format_args!(
                "this store shows nothing to operators"
            )));
        };
        let answer = inspector.read(query);
        let driver = self.node.runtime.get();
        match driver.filter(|_| self.node.servers.immediate().is_none()) {
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
