//! The list of keys that are held, waited for or set.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use tenure::Error;
use tenure::inspect::{Cursor, Entry, Kind, Page};

use crate::layout::{Tab, brief, table, time_or_none};
use crate::links::{id, link, link_to};
use crate::text::shown;
use crate::views::{ROWS, failures, next_page};
use crate::visit::{Shown, Visit};
use crate::words::{self, is_called};

pub(crate) async fn page(visit: Visit) -> Response {
    visit.answer(Tab::Leases, look(&visit).await)
}

async fn look(visit: &Visit) -> Result<Shown, Error> {
    let query = &visit.query;
    let from = query.get("from").parse::<Cursor>().ok();
    let page = visit
        .app
        .looks
        .leases(&visit.app.locks, query.bytes("q"), from)
        .await?;
    let node = query.shown("node");
    let found = found(&page, query.get("kind").parse().ok(), &node);
    let skip: usize = query.get("skip").parse().unwrap_or(0);
    let shown: Vec<&Entry> = found.iter().skip(skip).take(ROWS).copied().collect();
    let next = if found.len() > skip.saturating_add(ROWS) {
        Some((query.get("from").to_owned(), (skip + ROWS).to_string()))
    } else {
        page.next.as_ref().map(|next| (next.to_string(), String::new()))
    };
    let next = next.map(|(from, skip)| {
        let of_form = ["q", "kind", "node"].map(|name| (name, query.get(name)));
        link(
            "leases",
            &[&of_form[..], &[("from", &from), ("skip", &skip)]].concat(),
        )
    });
    let mut notices = visit.notices().await;
    notices.extend(failures(&page));
    Ok(Shown {
        title: "Leases".to_owned(),
        tab: Tab::Leases,
        notices,
        body: body(visit, &shown, next.as_deref()),
        lines: visit.lines(&shown),
        next,
    })
}

/// Returns the keys of this kind and this node, in their order. `SCAN` may return a key twice.
fn found<'a>(page: &'a Page, kind: Option<Kind>, node: &str) -> Vec<&'a Entry> {
    let is_of = |entry: &&Entry| {
        let holders = entry.holders.iter().map(|holder| &holder.node);
        let mut nodes = holders.chain(entry.waiters.iter().map(|waiter| &waiter.node));
        kind.is_none_or(|kind| kind == entry.kind)
            && (node.is_empty() || nodes.any(|found| is_called(found, node)))
    };
    let entries = page.entries.iter().filter(is_of);
    let named = entries.map(|entry| ((entry.key.clone(), entry.kind, entry.server.clone()), entry));
    named.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn body(visit: &Visit, entries: &[&Entry], next: Option<&str>) -> Markup {
    let header = [
        "KEY", "KIND", "STATE", "NODE", "SINCE", "WAITING", "NOTE", "SERVER",
    ];
    let rows: Vec<_> = entries.iter().map(|entry| row(entry)).collect();
    let query = &visit.query;
    html! {
        form.search method="get" action="leases" role="search" {
            p { label for="q" { "Keys that begin with" } input #q name="q" type="search" value=(query.shown("q")); }
            p {
                label for="kind" { "Kind" }
                select #kind name="kind" {
                    option value="" { "all" }
                    @for kind in Kind::ALL {
                        option value=(kind.word()) selected[query.get("kind") == kind.word()] { (kind.word()) }
                    }
                }
            }
            p { label for="node" { "Node: a name, a host or 8 digits of an id" } input #node name="node" value=(query.shown("node")); }
            p { button type="submit" { "Search" } }
        }
        (table("leases", "Keys that are held, waited for or set", &header, &rows))
        (next_page(next, if entries.is_empty() { "Search on: nothing is found so far" } else { "Next page" }))
    }
}

fn row(entry: &Entry) -> (String, Vec<Markup>) {
    let holders = entry.holders.iter();
    let oldest = holders.min_by_key(|holder| (holder.since.is_none(), holder.since));
    let node = oldest.map(|holder| match entry.holder_count {
        0 | 1 => words::node(&holder.node),
        several => format!("{} +{}", words::node(&holder.node), several - 1),
    });
    let note = oldest.and_then(|holder| Some(shown(&*holder.notes.first()?.text)));
    let cells = vec![
        html! { a href=(link_to("key", &entry.key)) { (brief(&entry.key)) } },
        html! { (entry.kind.word()) },
        html! { (entry.state.word().replace('_', " ")) },
        html! { (words::or_none(node)) },
        time_or_none(oldest.and_then(|holder| holder.since), true),
        html! { (entry.waiter_count) },
        html! { (words::or_none(note)) },
        html! { (shown(&*entry.server)) },
    ];
    let name = [
        entry.key.as_bytes(),
        entry.kind.word().as_bytes(),
        entry.server.as_bytes(),
    ];
    (id(&name), cells)
}
