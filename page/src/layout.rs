//! What all pages have: their head, the links to the views, notices, and the parts of which views are made.

use std::time::SystemTime;

use maud::{DOCTYPE, Markup, html};
use tenure::Key;

use crate::links::id;
use crate::text::{date, shown};

/// How many bytes of a key a list shows.
const MAX_KEY: usize = 128;

/// A view that each page links to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Leases,
    Nodes,
    Jobs,
    Audit,
}

const TABS: [(Tab, &str, &str); 4] = [
    (Tab::Leases, "leases", "Leases"),
    (Tab::Nodes, "nodes", "Nodes"),
    (Tab::Jobs, "jobs", "Jobs"),
    (Tab::Audit, "audit", "Audit"),
];

/// Returns a page. The script asks again for one that is live.
pub(crate) fn layout(
    title: &str,
    tab: Option<Tab>,
    notices: &[String],
    is_live: bool,
    body: &Markup,
) -> Markup {
    let head = html! {
        @if !is_live { (needs_origin()) }
        link rel="icon" href="icon.svg";
        link rel="stylesheet" href="page.css";
        script src="page.js" defer {}
    };
    let body = html! {
        body data-interval=[is_live.then_some("2000")] {
            a.skip href="#main" { "Skip to the content" }
            header {
                nav aria-label="Views" {
                    @for (of, path, name) in TABS {
                        a href=(path) aria-current=[(tab == Some(of)).then_some("page")] { (name) }
                    }
                }
            }
            main #main tabindex="-1" {
                h1 { (title) }
                div #notices role="status" data-live {
                    @for notice in notices {
                        p.notice id=(id(&[notice.as_bytes()])) { (notice) }
                    }
                }
                p #connection role="status" {}
                p #changes.quiet role="status" {}
                (body)
            }
        }
    };
    document(title, &head, &body)
}

/// With the policy of the header a browser tells no origin of a form, and then plain HTTP has nothing to judge it by.
fn needs_origin() -> Markup {
    html! { meta name="referrer" content="same-origin"; }
}

fn document(title: &str, head: &Markup, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) " · tenure" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                (head)
            }
            (body)
        }
    }
}

/// Returns a page with a sentence.
pub(crate) fn plain(title: &str, text: &str) -> Markup {
    layout(title, None, &[], false, &html! { p { (text) } })
}

/// Returns a page without files and links, for requests that get none.
pub(crate) fn bare(title: &str, body: &Markup) -> Markup {
    let head = html! {
        meta name="color-scheme" content="light dark";
        (needs_origin())
    };
    document(title, &head, &html! { body { main { h1 { (title) } (body) } } })
}

/// A table whose rows the script exchanges. `id` is unique in the page.
pub(crate) fn table(id: &str, caption: &str, header: &[&str], rows: &[(String, Vec<Markup>)]) -> Markup {
    html! {
        // On narrow screens the rows are blocks, which takes the roles of a table from the elements.
        table role="table" aria-describedby=(format!("{id}-empty")) {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" { @for title in header { th role="columnheader" scope="col" { (title) } } }
            }
            tbody role="rowgroup" id=(id) data-live {
                @for (id, cells) in rows {
                    tr role="row" id=(id) {
                        @for (cell, title) in cells.iter().zip(header) {
                            td role="cell" data-title=(title) { (cell) }
                        }
                    }
                }
            }
        }
        p.empty id=(format!("{id}-empty")) data-live { @if rows.is_empty() { span id=(format!("{id}-none")) { "None." } } }
    }
}

/// Returns a fact of a list of facts.
pub(crate) fn fact(label: &str, value: Markup) -> Markup {
    html! { div { dt { (label) } dd { (value) } } }
}

/// Returns a time in UTC. The script adds that of the browser's zone, and how long ago it was if `has_age`.
pub(crate) fn time(time: SystemTime, has_age: bool) -> Markup {
    let text = date(time);
    html! { time datetime=(text) data-age[has_age] { (text.replace('T', " ").replace('Z', " UTC")) } }
}

/// Returns a time, or the text for none.
pub(crate) fn time_or_none(at: Option<SystemTime>, has_age: bool) -> Markup {
    match at {
        Some(at) => time(at, has_age),
        None => html! { (crate::words::NONE) },
    }
}

/// Returns the text of a key for a list, where a long one is cut.
pub(crate) fn brief(key: &Key) -> String {
    let bytes = key.as_bytes();
    if bytes.len() <= MAX_KEY {
        return name(bytes);
    }
    format!("{}… ({} bytes)", shown(&bytes[..MAX_KEY]), bytes.len())
}

/// Returns the text of a name. A link needs a text, so an empty name has one.
pub(crate) fn name(bytes: impl AsRef<[u8]>) -> String {
    match bytes.as_ref() {
        [] => "(empty)".to_owned(),
        bytes => shown(bytes),
    }
}
