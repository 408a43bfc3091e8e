//! Reads for operators. The driver's thread does their input and output, so that any runtime may ask.

use std::fmt;
use std::sync::Arc;

use crate::driver::node::Node;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::view::{ReadPage, Reading};
use crate::store;

/// Reads what the store of a node keeps.
#[derive(Clone)]
pub(crate) struct Reader {
    node: Arc<Node>,
    reader: Option<Arc<dyn store::Reader>>,
}

impl Node {
    pub(crate) fn reader(self: &Arc<Self>) -> Reader {
        Reader {
            node: self.clone(),
            reader: self.servers.store.reader(),
        }
    }
}

impl Reader {
    pub(crate) async fn read(&self, reading: Reading) -> Result<ReadPage, StoreError> {
        let Some(reader) = &self.reader else {
            return Err(StoreError::unsupported(format_args!(
                "this store shows nothing to operators"
            )));
        };
        let answer = reader.read(reading);
        let driver = self.node.runtime.get();
        match driver.filter(|_| self.node.servers.immediate().is_none()) {
            Some(driver) => driver.spawn(answer).await.unwrap_or_else(|_| {
                let text = "the driver has ended";
                Err(StoreError::new(StoreErrorKind::Unreachable, text))
            }),
            None => answer.await,
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reader").field(&self.reader).finish()
    }
}
