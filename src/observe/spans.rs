//! The spans: that of a caller that waits for a lock, and that of a try of a run. Each has the target `tenure`.

use tracing::field::Empty;
use tracing::{Level, Span};

use crate::observe::event::is_on;
use crate::observe::foreign_code::catch_foreign_panic;
use crate::protocol::message::Name;
#[cfg(feature = "scheduler")]
use crate::protocol::message::TickTime;

/// The span `lock`, at level DEBUG, from the first poll that waits to the answer. It is a child of the span of the caller, and is
/// entered nowhere. A panic of the subscriber is caught.
#[derive(Default)]
pub(crate) struct WaitSpan(Option<Box<Span>>);

impl WaitSpan {
    /// Begins the span of a caller that waits here, if its level is on.
    #[inline]
    pub(crate) fn begin(&mut self, name: &Name) {
        if is_on(Level::DEBUG) {
            self.0 = begun(name);
        }
    }

    /// Ends the span with the outcome of the wait, in the word of the metrics.
    #[inline]
    pub(crate) fn end(&mut self, outcome: impl FnOnce() -> &'static str) {
        if let Some(span) = self.0.take() {
            ended(span, Some(outcome()));
        }
    }
}

impl Drop for WaitSpan {
    #[inline]
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            ended(span, None);
        }
    }
}

// Few programs have these spans on, so their code is kept out of each wait.
#[cold]
fn begun(name: &Name) -> Option<Box<Span>> {
    let mut begun = None;
    catch_foreign_panic(|| {
        let span = tracing::debug_span!(
            target: "tenure",
            "lock",
            kind = name.kind.word(),
            key = %name.key,
            outcome = Empty,
        );
        begun = (!span.is_disabled()).then(|| Box::new(span));
    });
    begun
}

#[cold]
fn ended(span: Box<Span>, outcome: Option<&'static str>) {
    catch_foreign_panic(|| {
        if let Some(outcome) = outcome {
            span.record("outcome", outcome);
        }
    });
    catch_foreign_panic(|| drop(span));
}

/// Returns the span `tick`, at level INFO, for one try of a run.
#[cfg(feature = "scheduler")]
pub(crate) fn tick_span(
    job: &crate::key::Key,
    (mark, attempt, retry): (TickTime, u32, u32),
    fence: u64,
) -> Span {
    let tick = super::events::date(mark);
    tracing::info_span!(target: "tenure", "tick", %job, tick, attempt, retry, fence)
}
