//! An act: what it does, as its form shows it, and the order that the form becomes.

use std::sync::Arc;

use maud::{Markup, html};
use tenure::Key;

use crate::visit::{App, GRACE, MAX_GRACE, Query};

/// What an act does, as its form shows it.
pub(crate) struct Described {
    pub(crate) title: String,
    pub(crate) text: Markup,
    /// Further fields.
    pub(crate) fields: Markup,
    pub(crate) button: &'static str,
}

/// An act that was confirmed.
pub(crate) struct Order {
    pub(crate) app: Arc<App>,
    pub(crate) key: Key,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) query: Query,
    pub(crate) form: Query,
}

/// The field for how long a holder has.
pub(crate) fn grace_field() -> Markup {
    html! {
        p {
            label for="grace" { "Seconds for the holder to end by itself" }
            input #grace name="grace" type="number" min="0" max=(MAX_GRACE) value=(GRACE.as_secs()) required;
        }
    }
}

/// Returns the sentence with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}
