//! The events and errors of the crate, as words for the journal of a worker.

use std::fmt;
use std::sync::Arc;

use tenure::Error;
use tenure::error::StoreErrorKind;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::torture::journal::{Journal, now};

pub fn kind(error: &Error) -> String {
    match error {
        Error::Lost { cause, .. } => format!("lost {cause:?}"),
        Error::Store { source, .. } => match source.kind() {
            StoreErrorKind::Refused(refusal) => format!("refused {refusal:?}"),
            kind => format!("{kind:?}").to_lowercase(),
        },
        Error::QueueFull { .. } => "queue full".into(),
        Error::Busy { .. } => "busy".into(),
        Error::Unset { .. } => "unset".into(),
        Error::Failed { message, .. } => {
            let code = message.split(' ').next().unwrap_or_default();
            format!("failed {code}")
        }
        Error::Uncertain { .. } => "uncertain".into(),
        other => format!("unexpected {other:?}"),
    }
}

/// Writes the events of the crate into the journal, except for the most frequent ones.
pub struct Events(pub Arc<Journal>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure" && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.event != "denied" {
            let Line { event, rest } = line;
            self.0.write(now(), format_args!("event {event}{rest}"));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line {
    event: String,
    rest: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => self.event = value.into(),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !matches!(field.name(), "message" | "node") {
            let text = format!(" {}={value:?}", field.name());
            self.rest.push_str(&text.replace('\n', " "));
        }
    }
}
