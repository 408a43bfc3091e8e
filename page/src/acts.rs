//! The acts of an operator: a page that shows what an act does, a form, and what became of it.
//!
//! # The way of one act
//!
//! 1. A link leads to a form, which shows what it is about (`acts.rs` `form`, `steal.rs` `describe`, `job_acts.rs` `describe`).
//! 2. The form is sent. Its origin is checked (`access.rs` `check`), then its token (`form.rs` `is_valid`).
//! 3. The act is done in a task of its own, because it may take the grace of a holder (`steal.rs` `perform`, `job_acts.rs`
//!    `perform`). A form that a process gets twice acts once: its number names the act (`progress.rs` `begin`).
//! 4. The answer leads to the key or the job, which shows the steps of the act as they happen (`progress.rs` `outcome`).

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::StatusCode;
use http::header::{LOCATION, SET_COOKIE};
use maud::{Markup, html};

use crate::form::{self, Ticket};
use crate::job_acts::{self, JobAct};
use crate::layout::{Tab, layout, plain};
use crate::links::link;
use crate::order::{Described, Order};
use crate::progress::Ending;
use crate::steal;
use crate::text::shown;
use crate::views::no_key;
use crate::visit::{App, MAX_GRACE, Query, Visit};

/// An act of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Steal,
    OfJob(JobAct),
}

impl Act {
    /// Returns the path of the act.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Act::Steal => "steal",
            Act::OfJob(act) => act.word(),
        }
    }

    fn tab(self) -> Tab {
        if self == Act::Steal {
            Tab::Leases
        } else {
            Tab::Jobs
        }
    }

    /// Returns the view that shows what became of the act.
    fn view(self) -> &'static str {
        if self == Act::Steal { "key" } else { "job" }
    }
}

/// Returns what answers the path of an act.
pub(crate) fn route(act: Act) -> MethodRouter<Arc<App>> {
    let shows = move |visit: Visit| async move { form(act, visit).await };
    let acts = move |visit: Visit, body: Bytes| async move { post(act, visit, body).await };
    get(shows).post(acts)
}

async fn form(act: Act, visit: Visit) -> Response {
    let Some(operator) = visit.operator() else {
        let text = "You may look, but not act.";
        return (StatusCode::FORBIDDEN, plain("No access", text)).into_response();
    };
    let Some(key) = visit.query.key() else {
        return no_key();
    };
    let described = match act {
        Act::Steal => steal::describe(&visit, &key).await,
        Act::OfJob(act) => job_acts::describe(act, &visit, &key).await,
    };
    let described = match described {
        Ok(Some(described)) => described,
        Ok(None) => return changed(act, &visit),
        Err(error) => return visit.unavailable(act.tab(), &error),
    };
    let action = format!("{}?{}", act.path(), visit.query.text());
    let ticket = form::issue(&visit, operator, &action);
    let back = link(act.view(), &[("k", visit.query.get("k"))]);
    let body = confirmation(&described, operator, (&action, &back), &ticket);
    let page = layout(
        &described.title,
        Some(act.tab()),
        &visit.notices().await,
        false,
        &body,
    );
    let mut response = page.into_response();
    if let Some(cookie) = ticket.cookie.and_then(|cookie| cookie.parse().ok()) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

fn confirmation(
    described: &Described,
    operator: &str,
    (action, back): (&str, &str),
    ticket: &Ticket,
) -> Markup {
    // A region of its own: a page that stood here while the store was away loads the form when the store is back.
    html! { div #confirmation data-live { div #form {
        (described.text)
        form method="post" action=(action) autocomplete="off" {
            input type="hidden" name="nonce" value=(ticket.nonce);
            input type="hidden" name="token" value=(ticket.token);
            (described.fields)
            p {
                label for="why" { "Reason, which is kept in the audit list and told to those concerned" }
                input #why name="why" type="text" required maxlength="500";
            }
            p { "You act as " strong { (shown(operator)) } "." }
            p.buttons { button type="submit" { (described.button) } " " a href=(back) { "Back, nothing is done" } }
        }
    } } }
}

async fn post(act: Act, visit: Visit, body: Bytes) -> Response {
    let form = Query::new(&String::from_utf8_lossy(&body));
    let (Some(operator), Some(key)) = (visit.operator(), visit.query.key()) else {
        return no_key();
    };
    let action = format!("{}?{}", act.path(), visit.query.text());
    if !form::is_valid(&visit, operator, &action, &form) {
        let text = "The form is of another browser, another operator or another act, or was changed: nothing was done.";
        return (StatusCode::FORBIDDEN, plain("Refused", text)).into_response();
    }
    let (nonce, why) = (form.get("nonce").to_owned(), form.get("why").to_owned());
    if why.is_empty() {
        let text = "A reason is needed: go back and give one. Nothing was done.";
        return (StatusCode::BAD_REQUEST, plain("No reason", text)).into_response();
    }
    if form.grace().is_none() {
        let text =
            format!("The holder has 0 to {MAX_GRACE} seconds: go back and give a number. Nothing was done.");
        return (StatusCode::BAD_REQUEST, plain("No grace", &text)).into_response();
    }
    let k = visit.query.get("k").to_owned();
    let to = link(act.view(), &[("k", &k), ("done", &nonce)]);
    if let Some(begun) = visit.app.acts.begin(&nonce) {
        let order = Order {
            app: visit.app.clone(),
            key,
            by: operator.to_owned(),
            why,
            query: visit.query,
            form,
        };
        let ending = Ending(begun.clone());
        tokio::spawn(async move {
            match act {
                Act::Steal => steal::perform(&order, &ending.0).await,
                Act::OfJob(act) => job_acts::perform(act, &order, &ending.0).await,
            }
            order.app.looks.forget();
        });
        begun.end_or_patience().await;
    }
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}

/// Says that what was shown is gone.
fn changed(act: Act, visit: &Visit) -> Response {
    let view = link(act.view(), &[("k", visit.query.get("k"))]);
    let body = html! {
        p { "It changed hands since you looked, or is over: nothing was done." }
        p { a href=(view) { "Look again" } }
    };
    let page = layout("Changed hands", Some(act.tab()), &[], false, &body);
    (StatusCode::CONFLICT, page).into_response()
}
