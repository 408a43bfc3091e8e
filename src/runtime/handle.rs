//! What users' values hold on to: when the last of them is gone, the keeper finishes and ends.

use std::sync::Arc;

use crate::options::Options;
use crate::runtime::node::Node;

/// A share in a node.
#[derive(Debug, Clone)]
pub(crate) struct Handle(Arc<Owner>);

#[derive(Debug)]
struct Owner(Arc<Node>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Handle {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Handle(Arc::new(Owner(node)))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0.0
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.0.options
    }
}
