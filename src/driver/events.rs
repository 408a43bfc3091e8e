//! stand-in
use crate::error::LostCause;
use crate::protocol::message::{Name, NodeId};
use crate::protocol::session_step::SessionEvent;
use crate::protocol::step::KeyEvent;

#[derive(Debug, Clone)]
pub(crate) struct EventSink {
    node: NodeId,
}

impl EventSink {
    pub(crate) fn capture(node: NodeId) -> Self {
        EventSink { node }
    }
    pub(crate) fn key_event(&self, _name: &Name, _event: &KeyEvent) {}
    pub(crate) fn lost(&self, _name: &Name, _cause: LostCause) {}
    pub(crate) fn session_event(&self, _event: SessionEvent) {
        let _ = self.node;
    }
    pub(crate) fn driver_failed(&self) {}
}
