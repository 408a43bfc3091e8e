//! The nodes that told of themselves within the last minute.

use axum::response::Response;
use maud::{Markup, html};
use tenure::Error;
use tenure::inspect::NodeEntry;

use crate::layout::{Tab, table, time_or_none};
use crate::links::{id, link};
use crate::text::shown;
use crate::visit::{Shown, Visit};
use crate::words::{NONE, short};

pub(crate) async fn page(visit: Visit) -> Response {
    visit.answer(Tab::Nodes, look(&visit).await)
}

async fn look(visit: &Visit) -> Result<Shown, Error> {
    let nodes = visit.app.looks.nodes(&visit.app.locks).await?;
    let header = [
        "NODE", "NAME", "HOST", "PID", "SERVICE", "VERSION", "STARTED", "KEYS", "WAITING", "PREFIX",
    ];
    let rows: Vec<_> = nodes.iter().map(row).collect();
    Ok(Shown {
        title: "Nodes".to_owned(),
        tab: Tab::Nodes,
        notices: visit.notices().await,
        body: table(
            "nodes",
            "Nodes that told of themselves within the last minute",
            &header,
            &rows,
        ),
        lines: visit.lines(&*nodes),
        next: None,
    })
}

fn row(node: &NodeEntry) -> (String, Vec<Markup>) {
    let text = |text: &str| match text {
        "" => html! { (NONE) },
        text => html! { (shown(text)) },
    };
    let told = node.presence.as_ref();
    let cell = |read: &dyn Fn(&tenure::inspect::PresenceEntry) -> Markup| told.map_or(html! { (NONE) }, read);
    let leases = link("leases", &[("node", &node.id.to_string())]);
    let cells = vec![
        html! { a href=(leases) { (short(node.id)) } },
        cell(&|told| text(&told.name)),
        cell(&|told| text(&told.host)),
        cell(&|told| html! { (told.pid) }),
        cell(&|told| text(&told.service)),
        cell(&|told| text(&told.version)),
        time_or_none(told.map(|told| told.started), true),
        cell(&|told| html! { (told.key_count) }),
        cell(&|told| html! { (told.waiter_count) }),
        cell(&|told| html! { (shown(told.prefix.as_bytes())) }),
    ];
    (id(&[node.id.to_string().as_bytes()]), cells)
}
