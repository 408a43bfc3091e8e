//! The form that takes a lease, and the steal that it begins.

use maud::{Markup, html};
use tenure::inspect::{Entry, HolderEntry, Kind, StealError};
use tenure::{Error, Key};

use crate::layout::name;
use crate::order::{Described, Order, capital, grace_field};
use crate::progress::Begun;
use crate::text::shown;
use crate::views::key::holder_facts;
use crate::visit::{GRACE, Query, Visit};
use crate::words;

/// Returns the lease that the link names, as it is now. `None`: it changed hands.
async fn find(
    locks: &tenure::Locks,
    key: &Key,
    query: &Query,
) -> Result<Option<(Entry, Option<HolderEntry>)>, Error> {
    let (kind, seen) = (query.get("kind").parse::<Kind>().ok(), query.get("seen"));
    let page = locks.inspect().show(key).await?;
    let mut entries = page.entries.into_iter();
    let Some(entry) = entries.find(|entry| Some(entry.kind) == kind) else {
        return Ok(None);
    };
    if entry.foreign.as_deref() == Some(seen) {
        return Ok(Some((entry, None)));
    }
    let number = seen.parse::<u64>().ok();
    let holder = entry
        .holders
        .iter()
        .find(|holder| holder.number.is_some() && holder.number == number);
    let holder = holder.cloned();
    Ok(holder.map(|holder| (entry, Some(holder))))
}

/// Returns what a steal does. `None`: the lease changed hands.
pub(crate) async fn describe(visit: &Visit, key: &Key) -> Result<Option<Described>, Error> {
    let Some((entry, holder)) = find(&visit.app.locks, key, &visit.query).await? else {
        return Ok(None);
    };
    let loses = match &holder {
        Some(holder) => {
            html! { (words::node(&holder.node)) " loses the lease with the number " (visit.query.get("seen")) ":" }
        }
        None => html! { "A client of another library loses its record:" },
    };
    let next = entry.waiters.first().map(|waiter| words::node(&waiter.node));
    let text = html! {
        p { strong { (loses) } }
        @if let Some(holder) = &holder { (holder_facts(holder)) }
        p {
            @if let Some(next) = next { "Waiting: " (entry.waiter_count) ". Next comes " (next) "." } @else { "No node waits for it." }
        }
        p { "Its holder is asked for it, and after the grace the lease is revoked. The next holder comes when this one was told, or when its lease "
            "has ended: so no two hold the key at once." }
    };
    Ok(Some(Described {
        title: format!("Take the lease of {}", name(key.as_bytes())),
        text,
        fields: html! { (grace_field()) (now_field()) },
        button: "Take the lease",
    }))
}

fn now_field() -> Markup {
    html! {
        p { label { input type="checkbox" name="now" value="yes";
            " Hand it over at once, although its holder may be at work: only for a node that is surely dead" } }
    }
}

/// Takes the lease that the form showed, and no other one.
pub(crate) async fn perform(order: &Order, begun: &Begun) {
    let found = find(&order.app.locks, &order.key, &order.query).await;
    let (entry, holder) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return begun.say("It changed hands since you looked: nothing was done."),
        Err(error) => return begun.say(shown(format!("Nothing was done: {error}"))),
    };
    let inspection = order.app.locks.inspect();
    let steal = inspection
        .steal(&entry)
        .by(&*order.by)
        .why(&*order.why)
        .grace(order.form.grace().unwrap_or(GRACE));
    let steal = match holder.and_then(|holder| holder.number) {
        Some(number) => steal.number(number),
        None => steal,
    };
    let steal = if order.form.get("now") == "yes" {
        steal.now()
    } else {
        steal
    };
    let report = |step| {
        let (word, sentence) = words::steal_step(&step);
        begun.say(match sentence.is_empty() {
            true => format!("{}.", capital(word)),
            false => format!("{}: {sentence}.", capital(word)),
        });
    };
    match steal.run(report).await {
        Ok(stolen) => {
            begun.say(format!("{}.", capital(words::steal_end(&stolen))));
            begun.say_unwritten(stolen.unwritten);
        }
        Err(StealError::Changed { .. }) => begun.say("It changed hands since you looked: nothing was done."),
        Err(error) => begun.say(shown(error.to_string())),
    }
}
