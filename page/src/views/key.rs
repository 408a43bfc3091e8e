//! A key: its holders and waiters of each kind, its time line, and what operators did about it.

use axum::response::Response;
use maud::{Markup, html};
use tenure::inspect::{Entry, HolderEntry, Kind, WaiterEntry};
use tenure::{Error, Key};

use crate::layout::{Tab, fact, name, time};
use crate::links::{id, link_to, steal_foreign_link, steal_link};
use crate::text::{hex, shown};
use crate::views::audit::audit_table;
use crate::views::{failures, no_key};
use crate::visit::{Shown, Visit};
use crate::{progress, words};

pub(crate) async fn page(visit: Visit) -> Response {
    match visit.query.key() {
        Some(key) => visit.answer(Tab::Leases, look(&visit, &key).await),
        None => no_key(),
    }
}

async fn look(visit: &Visit, key: &Key) -> Result<Shown, Error> {
    let app = &visit.app;
    let seen = app.looks.key(&app.locks, key).await?;
    let audit = app.looks.audit(&app.locks).await?;
    let acts: Vec<_> = audit.iter().filter(|act| act.key == *key).collect();
    let (page, tracks) = &*seen;
    let mut notices = visit.notices().await;
    notices.extend(failures(page));
    let body = html! {
        (progress::outcome(&app.acts, visit.query.get("done")))
        div #entries data-live {
            @for entry in &page.entries { (section(visit, entry)) }
            @if page.entries.is_empty() {
                p #free { "The key is free: it is neither held, waited for nor set." }
            }
        }
        (tracks.markup())
        h2 { "Acts" }
        (audit_table("What operators did about this key, the latest first", &acts))
    };
    Ok(Shown {
        title: name(key.as_bytes()),
        tab: Tab::Leases,
        notices,
        body,
        lines: visit.lines(&page.entries),
        next: None,
    })
}

/// Returns all that is known of a key as one kind.
fn section(visit: &Visit, entry: &Entry) -> Markup {
    let k = hex(entry.key.as_bytes());
    let of = id(&[entry.kind.word().as_bytes(), entry.server.as_bytes()]);
    html! {
        section id=(of) aria-labelledby=(format!("{of}-h")) {
            h2 id=(format!("{of}-h")) { (capital_kind(entry.kind)) " on " (shown(&*entry.server)) }
            dl {
                (fact("State", html! { (entry.state.word().replace('_', " ")) }))
                @if let Some(permits) = entry.permits { (fact("Permits", html! { (permits.in_use) " of " (permits.capacity) " in use" })) }
                @if let Some(count) = entry.count { (fact("Count-downs left", html! { (count) })) }
                @if let Some(digest) = &entry.foreign { (fact("Value", html! { (shown(&**digest)) " (SHA-1)" })) }
                (fact("Holders", html! { (entry.holder_count) }))
                (fact("Waiting", html! { (entry.waiter_count) }))
                @if entry.kind == Kind::Job { (fact("Job", html! { a href=(link_to("job", &entry.key)) { "what it did" } })) }
            }
            @if visit.can_steal() && let Some(link) = steal_foreign_link(&k, entry) {
                p { a.act href=(link) { "Take the lease…" } }
            }
            @for holder in &entry.holders {
                h3 { "Held by " (words::node(&holder.node)) }
                (holder_facts(holder))
                @if visit.can_steal() && let Some(link) = steal_link(&k, entry, holder) {
                    p { a.act href=(link) { "Take the lease" span.quiet { " of " (words::node(&holder.node)) } "…" } }
                }
            }
            (more(entry.holder_count, entry.holders.len(), "holders"))
            @if !entry.waiters.is_empty() {
                h3 { "Queue, in its order" }
                ol { @for waiter in &entry.waiters { li { (waiter_text(waiter)) } } }
                (more(entry.waiter_count, entry.waiters.len(), "waiters"))
            }
        }
    }
}

fn capital_kind(kind: Kind) -> String {
    crate::order::capital(kind.word())
}

fn more(all: u64, listed: usize, what: &str) -> Markup {
    let more = all.saturating_sub(listed as u64);
    html! { @if more > 0 { p { "and " (more) " more " (what) } } }
}

/// Returns all that is known of a holder.
pub(crate) fn holder_facts(holder: &HolderEntry) -> Markup {
    let told = holder.node.presence.as_ref();
    html! {
        dl {
            (fact("Node", html! { (holder.node.id) ", " (if holder.node.is_alive { "alive" } else { "not alive" }) }))
            @if let Some(told) = told { (fact("Process", html! { (shown(&told.host)) ", pid " (told.pid) })) }
            (fact("Claim", html! { (holder.claim) ", " (words::mode(holder.mode)) }))
            @if let (Some(number), Some(fence)) = (holder.number, holder.fence) {
                (fact("Grant", html! { "number " (number) ", fence " (fence) }))
            }
            @if let Some(since) = holder.since { (fact("Since", time(since, true))) }
            @if holder.is_revoked { (fact("Revoked", html! { "yes: it ends when its holder was told" })) }
            @if holder.remaining.is_none() { (fact("End", html! { "none" })) }
            @for note in &holder.notes {
                // The callers of a node hand a lease on to each other: the fence tells which of them wrote the note.
                @let label = if holder.fence == Some(note.fence) { "Note".to_owned() } else { format!("Note of fence {}", note.fence) };
                (fact(&label, html! { (shown(&*note.text)) }))
            }
        }
    }
}

fn waiter_text(waiter: &WaiterEntry) -> Markup {
    html! {
        (words::node(&waiter.node))
        @if let Some(claim) = waiter.claim { ", claim " (claim) ", " (words::mode(waiter.mode)) }
        @if waiter.is_dead { ", gave no sign of life for a lease" }
    }
}
