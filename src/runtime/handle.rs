//! What users' values hold on to: when the last of them is gone, the keeper finishes and ends.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::options::Options;
use crate::runtime::node::Node;

/// A share in a node.
#[derive(Debug, Clone)]
pub(crate) struct Handle(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    node: Arc<Node>,
    /// What a front door keeps per node, so that no floor below needs to know it.
    #[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
    attached: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.node.abandon();
    }
}

impl Handle {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Handle(Arc::new(Owner {
            node,
            attached: OnceLock::new(),
        }))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// What the scheduler's door keeps with this node.
    #[cfg(feature = "scheduler")]
    pub(crate) fn attached<T: Default + Any + Send + Sync>(&self) -> Arc<T> {
        let attached = self.0.attached.get_or_init(|| Arc::new(T::default()));
        attached.clone().downcast().unwrap_or_default()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.node.options
    }
}
