//! How a row of the table of events becomes a function, and an event of the background as a value.

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

/// An event that waits in a queue until the event thread emits it.
pub(crate) struct Event {
    emit: Box<dyn FnOnce(&Label) + Send>,
    /// The event reports a loss that is trouble. Such an event is kept when the queue has no room for other events.
    pub(crate) is_loss: bool,
}

impl Event {
    pub(super) fn new(emit: impl FnOnce(&Label) + Send + 'static) -> Event {
        Event {
            emit: Box::new(emit),
            is_loss: false,
        }
    }

    /// Marks the event as a loss.
    pub(crate) fn loss(self) -> Event {
        Event {
            is_loss: true,
            ..self
        }
    }

    /// Emits the event, which runs the subscriber.
    pub(crate) fn emit(self, of: &Label) {
        (self.emit)(of);
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

/// Makes from a table of events the list `EVENTS`, its documentation, and a function for each event.
///
/// A section begins with the subject of its events, which gives them their first parameters and fields (see `function!`).
/// Then it says when they are emitted. `now`: the function emits the event on the thread of its caller. `later`: the
/// function returns `Some(Event)` for the event thread, or `None` if the level is off.
///
/// A row has this form, where the parts in `«»` are optional. Fields and text are as for `tracing`:
///
/// ```text
/// /// What happened.
/// LEVEL «(OTHER_LEVEL if condition)» name(parameters):
///     «[fields]» "text" «(argument of the text)»«, counts expression»«, unless condition»;
/// ```
///
/// `counts` feeds a metric, also if `unless` suppresses the event. `unless` needs a section with `now`.
macro_rules! events {
    ($($subject:tt $when:ident {$(
        $(#[doc = $doc:literal])+
        $level:ident $(($other:ident if $condition:expr))* $event:ident($($parameter:ident: $type:ty),*):
            $([$($field:tt)+])? $text:literal $(($argument:expr))?
            $(, counts $counter:expr)? $(, unless $skip:expr)?;
    )+})+) => {
        /// Every value of the field `event`.
        ///
        /// | event | level | what happened |
        /// |---|---|---|
        $($(
            #[doc = concat!(
                "| `", stringify!($event), "` | ", stringify!($level), $(", ", stringify!($other),)* " |", $($doc,)+ " |"
            )]
        )+)+
        pub const EVENTS: &[&str] = &[$($(stringify!($event)),+),+];

        $($(
            function! {
                $subject $when $event($($parameter: $type),*) [$($other if $condition),* => $level]
                    [$($($field)+,)? $text $(, $argument)?] {$($counter;)? $(if $skip { return })?}
            }
        )+)+
    };
}

/// Makes the function of one event. Each subject has an arm, with its parameters and its fields.
macro_rules! function {
    (($name:ident: &Name) now $($row:tt)+) => {
        function! {
            @now [of: &Label, $name: &Name,]
            [node_name = of.name(), kind = $name.kind.word(), key = %$name.key,] $($row)+
        }
    };
    (($name:ident: &Name) later $($row:tt)+) => {
        function! {
            @later of [$name: &Name,] [let $name = $name.clone();]
            [node_name = of.name(), kind = $name.kind.word(), key = %$name.key,] $($row)+
        }
    };
    (($job:ident: &Key) now $($row:tt)+) => {
        #[cfg(feature = "scheduler")]
        function! { @now [of: &Label, $job: &Key,] [node_name = of.name(), %$job,] $($row)+ }
    };
    (node now $($row:tt)+) => {
        function! { @now [of: &Label,] [node = %of.node, node_name = of.name(),] $($row)+ }
    };
    (node later $($row:tt)+) => {
        function! { @later of [] [] [node = %of.node, node_name = of.name(),] $($row)+ }
    };
    (request now $($row:tt)+) => {
        #[cfg(feature = "tower")]
        function! { @now [] [] $($row)+ }
    };
    (route now $($row:tt)+) => {
        #[cfg(feature = "axum")]
        function! { @now [] [] $($row)+ }
    };
    (process now $($row:tt)+) => {
        function! { @now [] [] $($row)+ }
    };

    (@now [$($subject:tt)*] $about:tt
        $event:ident($($parameter:ident: $type:ty),*) $levels:tt $body:tt {$($first:tt)*}) => {
        pub(crate) fn $event($($subject)* $($parameter: $type),*) {
            $($first)*
            emit!($levels $event $about $body);
        }
    };
    (@later $of:ident [$($subject:tt)*] [$($keep:tt)*] $about:tt
        $event:ident($($parameter:ident: $type:ty),*) $levels:tt $body:tt {$($first:tt)*}) => {
        pub(crate) fn $event($($subject)* $($parameter: $type),*) -> Option<Event> {
            $($first)*
            is_on(level!($levels)).then(|| {
                $($keep)*
                Event::new(move |$of| emit!($levels $event $about $body))
            })
        }
    };
}

/// Returns the level of an event.
macro_rules! level {
    ([$($other:ident if $condition:expr),* => $level:ident]) => {
        $(if $condition { tracing::Level::$other } else)* { tracing::Level::$level }
    };
}

/// Emits an event. Each level of the event has a callsite of its own, so that the callsites are static.
macro_rules! emit {
    ([$($other:ident if $condition:expr),* => $level:ident] $event:ident $about:tt $body:tt) => {
        $(if $condition { emit!(@at $other $event $about $body) } else)* { emit!(@at $level $event $about $body) }
    };
    (@at $level:ident $event:ident [$($about:tt)*] [$($body:tt)*]) => {
        tracing::event!(target: "tenure", tracing::Level::$level, event = stringify!($event), $($about)* $($body)*)
    };
}

pub(super) use {emit, events, function, level};
