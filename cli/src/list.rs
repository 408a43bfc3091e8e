//! `tenure ls`: lists keys, once or again and again.

use std::collections::HashSet;
use std::time::Duration;

use tenure::Locks;
use tenure::inspect::{Entry, Page};

use crate::args::{ListArgs, OutputArgs};
use crate::failure::Failure;
use crate::table::View;
use crate::terminal;
use crate::text;

/// Lists the keys that are asked for. A watch ends with Ctrl-C.
pub(crate) async fn run(locks: &Locks, wanted: &ListArgs, output: &OutputArgs) -> Result<(), Failure> {
    let Some(period) = wanted.watch else {
        return list(locks, wanted, output).await;
    };
    tokio::select! {
        ended = watch(locks, wanted, output, period) => ended,
        signal = tokio::signal::ctrl_c() => Ok(signal?),
    }
}

async fn watch(
    locks: &Locks,
    wanted: &ListArgs,
    output: &OutputArgs,
    period: Duration,
) -> Result<(), Failure> {
    let mut has_listed = false;
    loop {
        match list(locks, wanted, output).await {
            Ok(()) => has_listed = true,
            // An outage ends, and the operator wants to see when. A store that never answered may be the wrong one.
            Err(Failure::Store(text)) if has_listed => terminal::warn(&text),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(period).await;
    }
}

async fn list(locks: &Locks, wanted: &ListArgs, output: &OutputArgs) -> Result<(), Failure> {
    let prefix = output.bytes(&wanted.key_prefix)?;
    // After a failover the connections of an earlier inspection lead to the old master.
    let inspection = locks.inspect();
    let mut listing = Listing::new(wanted);
    let view = View::with_notes(output.is_hex, wanted.has_notes);
    let mut rows = Vec::new();
    let mut from = None;
    loop {
        let page = inspection.list(&prefix, from).await?;
        from = page.next.clone();
        terminal::warn_of(&page.failures);
        let mut lines = String::new();
        for entry in listing.select(page) {
            if output.is_json {
                lines += &text::json(serde_json::to_string(&entry))?;
            } else {
                rows.push(view.row(&entry));
            }
        }
        terminal::print(&lines)?;
        if from.is_none() || listing.is_cut {
            break;
        }
    }
    if !output.is_json {
        let table = view.keys(rows);
        if wanted.watch.is_some() {
            terminal::replace(&table)?;
        } else {
            terminal::print(&table)?;
        }
    }
    // After the table, which takes the place of everything that a terminal shows.
    crate::warn_of_recovery(&inspection).await?;
    if listing.is_cut {
        let limit = wanted.limit();
        terminal::warn(&format!("there are more keys than {limit}: --limit 0 lists all"));
    }
    Ok(())
}

/// Which entries were listed.
struct Listing<'a> {
    wanted: &'a ListArgs,
    /// What was listed: SCAN may return a key twice.
    seen: HashSet<(&'static str, tenure::Key, std::sync::Arc<str>)>,
    /// There are more entries than the limit allows.
    is_cut: bool,
}

impl<'a> Listing<'a> {
    fn new(wanted: &'a ListArgs) -> Self {
        Listing {
            wanted,
            seen: HashSet::new(),
            is_cut: false,
        }
    }

    /// Returns the entries of a page that are asked for, are new and are within the limit.
    fn select(&mut self, page: Page) -> Vec<Entry> {
        let mut selected = page.entries;
        selected.retain(|entry| self.wanted.wants(entry) && self.is_next(entry));
        selected
    }

    fn is_next(&mut self, entry: &Entry) -> bool {
        // Each master of a quorum has an entry of its own.
        let name = (entry.kind.word(), entry.key.clone(), entry.server.clone());
        if self.seen.contains(&name) {
            return false;
        }
        if self.seen.len() == self.wanted.limit() {
            self.is_cut = true;
            return false;
        }
        self.seen.insert(name)
    }
}
