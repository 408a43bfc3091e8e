//! Events of the background as values: each waits in a queue until the event thread tells it.

use std::fmt;
use std::sync::Arc;

use tracing::Level;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::protocol::message::NodeId;

/// The node that an event is about.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    pub(crate) node: NodeId,
    /// The name that an operator gave the node.
    name: Option<Arc<str>>,
}

impl Label {
    pub(crate) fn new(node: NodeId, name: Option<&str>) -> Label {
        let name = name.map(Arc::from);
        Label { node, name }
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// An event that a subscriber may listen to, and that is not told yet.
pub(crate) struct Event {
    tell: Box<dyn FnOnce(&Label) + Send>,
    /// A loss that is trouble is told also when there is no room for other events.
    pub(crate) is_loss: bool,
}

impl Event {
    pub(super) fn new(tell: impl FnOnce(&Label) + Send + 'static) -> Event {
        Event {
            tell: Box::new(tell),
            is_loss: false,
        }
    }

    pub(super) fn loss(self) -> Event {
        Event {
            is_loss: true,
            ..self
        }
    }

    /// Runs the subscriber.
    pub(crate) fn tell(self, of: &Label) {
        (self.tell)(of);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

/// Returns whether a subscriber may listen. The macros of `tracing` read the same atomic before they ask a subscriber.
pub(super) fn is_on(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Makes an event about a key, with its fields and text as for `tracing`. `None` if its level is off.
macro_rules! key_event {
    ($name:expr, $level:ident: event = $event:literal, $($fields:tt)+) => {
        is_on(Level::$level).then(|| {
            let name = $name.clone();
            Event::new(move |of| {
                tracing::event!(target: "tenure", Level::$level, event = $event, node_name = of.name(), kind = name.kind.word(), key = %name.key, $($fields)+)
            })
        })
    };
}

/// Makes an event about a node, with its fields and text as for `tracing`. `None` if its level is off.
macro_rules! node_event {
    ($level:ident: event = $event:literal, $($fields:tt)+) => {
        is_on(Level::$level).then(|| {
            Event::new(move |of| {
                tracing::event!(target: "tenure", Level::$level, event = $event, node = %of.node, node_name = of.name(), $($fields)+)
            })
        })
    };
}

/// Tells an event now, at a level that depends on what happened.
#[cfg(any(feature = "tower", feature = "scheduler"))]
macro_rules! event_at {
    ($level:ident: $($event:tt)+) => {
        match $level {
            Level::ERROR => tracing::event!(target: "tenure", Level::ERROR, $($event)+),
            Level::WARN => tracing::event!(target: "tenure", Level::WARN, $($event)+),
            Level::INFO => tracing::event!(target: "tenure", Level::INFO, $($event)+),
            _ => tracing::event!(target: "tenure", Level::DEBUG, $($event)+),
        }
    };
}

#[cfg(any(feature = "tower", feature = "scheduler"))]
pub(super) use event_at;
pub(super) use {key_event, node_event};
