//! What operators did.

use axum::response::Response;
use maud::{Markup, html};
use tenure::Error;
use tenure::inspect::{AuditEntry, Kind};

use crate::layout::{Tab, brief, table, time};
use crate::links::{id, link_to};
use crate::text::shown;
use crate::visit::{Shown, Visit};
use crate::words::or_none;

pub(crate) async fn page(visit: Visit) -> Response {
    visit.answer(Tab::Audit, look(&visit).await)
}

async fn look(visit: &Visit) -> Result<Shown, Error> {
    let audit = visit.app.looks.audit(&visit.app.locks).await?;
    let acts: Vec<&AuditEntry> = audit.iter().collect();
    Ok(Shown {
        title: "Audit".to_owned(),
        tab: Tab::Audit,
        notices: visit.notices().await,
        body: audit_table("What operators did, the latest first: at most 1,000 acts", &acts),
        lines: visit.lines(&*audit),
        next: None,
    })
}

/// Returns the table of these acts.
pub(crate) fn audit_table(caption: &str, acts: &[&AuditEntry]) -> Markup {
    let header = ["TIME", "BY", "WHAT", "KIND", "KEY", "NUMBER", "WHY"];
    let rows: Vec<_> = acts.iter().map(|act| row(act)).collect();
    table("audit", caption, &header, &rows)
}

fn row(act: &AuditEntry) -> (String, Vec<Markup>) {
    let view = if act.kind == Some(Kind::Job) { "job" } else { "key" };
    let cells = vec![
        time(act.time(), false),
        html! { (shown(&act.by)) },
        html! { (shown(act.what.replace('_', " "))) },
        html! { (or_none(act.kind.map(|kind| kind.word().to_owned()))) },
        html! { a href=(link_to(view, &act.key)) { (brief(&act.key)) } },
        html! { (or_none(Some(shown(&act.number)).filter(|number| !number.is_empty()))) },
        html! { (or_none(Some(shown(&act.why)).filter(|why| !why.is_empty()))) },
    ];
    let time = act.time_ms.to_string();
    let name = [
        time.as_bytes(),
        act.what.as_bytes(),
        act.key.as_bytes(),
        act.number.as_bytes(),
        act.by.as_bytes(),
    ];
    (id(&name), cells)
}
