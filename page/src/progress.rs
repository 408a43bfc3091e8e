//! What becomes of acts, step by step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use maud::{Markup, html};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::text::shown;

/// The most acts whose steps are kept.
const MAX_ACTS: usize = 100;
/// How long an answer waits for the end of its act. Most acts take a round trip or two.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The steps of an act.
#[derive(Default)]
struct Steps {
    lines: Vec<String>,
    is_over: bool,
}

/// An act that was begun.
#[derive(Default)]
pub(crate) struct Begun {
    steps: Mutex<Steps>,
    ended: Notify,
}

impl Begun {
    /// Notes a step of the act.
    pub(crate) fn say(&self, line: impl Into<String>) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.lines.push(line.into());
    }

    /// Notes what the store does not do.
    pub(crate) fn say_unwritten(&self, error: Option<impl std::fmt::Display>) {
        if let Some(error) = error {
            self.say(shown(format!("The audit list could not be written: {error}")));
        }
    }

    fn end(&self) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.is_over = true;
        drop(steps);
        self.ended.notify_one();
    }

    /// Waits until no further step comes, or for as long as an answer may take.
    pub(crate) async fn end_or_patience(&self) {
        let _ = timeout(PATIENCE, self.ended.notified()).await;
    }
}

/// Notes that no further step comes, also if the act panics.
pub(crate) struct Ending(pub(crate) Arc<Begun>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The latest acts of this process, by the numbers of their forms.
#[derive(Default)]
pub(crate) struct Acts(Mutex<VecDeque<(String, Arc<Begun>)>>);

impl Acts {
    /// Begins the act of a form. `None`: it was begun before.
    pub(crate) fn begin(&self, nonce: &str) -> Option<Arc<Begun>> {
        let mut acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if acts.iter().any(|(of, _)| of == nonce) {
            return None;
        }
        if acts.len() == MAX_ACTS {
            acts.pop_front();
        }
        let begun = Arc::new(Begun::default());
        acts.push_back((nonce.to_owned(), begun.clone()));
        Some(begun)
    }

    fn find(&self, nonce: &str) -> Option<Arc<Begun>> {
        let acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut acts = acts.iter();
        acts.find(|(of, _)| of == nonce).map(|(_, begun)| begun.clone())
    }
}

/// Shows the steps of the act whose form has that number.
pub(crate) fn outcome(acts: &Acts, nonce: &str) -> Markup {
    let begun = acts.find(nonce);
    html! {
        div #outcome role="status" data-live {
            @if let Some(begun) = begun {
                @let steps = begun.steps.lock().unwrap_or_else(PoisonError::into_inner);
                div.outcome #steps {
                    @for line in &steps.lines { p { (line) } }
                    @if !steps.is_over { p { "It goes on: this page shows what becomes of it." } }
                }
            } @else if !nonce.is_empty() {
                div.outcome #steps { p { "The audit list has what became of your act." } }
            }
        }
    }
}
