//! Keys and nodes as lines for a reader.

use std::fmt::{Display, Write};
use std::time::SystemTime;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use tenure::Key;
use tenure::inspect::{AuditEntry, Entry, HolderEntry, NodeEntry, WaiterEntry};

use crate::text::{age, date, duration, hex, shown};
use crate::words::{NONE, mode, node as name, now, or_none, short};

/// Between two lines of a holder or waiter, of which no line should be longer than a terminal of 80 columns.
const BREAK: &str = "\n    ";

/// How values are shown, and the time that ages are counted from.
pub(crate) struct View {
    is_hex: bool,
    has_notes: bool,
    now: SystemTime,
}

impl View {
    /// Creates a view of this moment.
    pub(crate) fn new(is_hex: bool) -> View {
        View::with_notes(is_hex, false)
    }

    /// Creates a view of this moment. `has_notes`: its tables of keys have a column for notes.
    pub(crate) fn with_notes(is_hex: bool, has_notes: bool) -> View {
        View {
            is_hex,
            has_notes,
            now: now(),
        }
    }

    /// Returns the time that ages are counted from.
    pub(crate) fn now(&self) -> SystemTime {
        self.now
    }

    /// Returns the text of a key.
    pub(crate) fn key(&self, key: &Key) -> String {
        if self.is_hex {
            hex(key.as_bytes())
        } else {
            shown(key.as_bytes())
        }
    }

    /// Returns the table of these rows.
    pub(crate) fn keys(&self, rows: Vec<[String; 8]>) -> String {
        let header = ["KIND", "KEY", "STATE", "NODE", "SINCE", "LEFT", "WAITING", "NOTE"];
        if self.has_notes {
            return table(header, rows);
        }
        let [header @ .., _] = header;
        let rows = rows.into_iter().map(|[row @ .., _]| row);
        table::<7>(header, rows.collect())
    }

    /// Returns the row of a key. Of several holders it shows the one that has held the key for the longest time.
    pub(crate) fn row(&self, entry: &Entry) -> [String; 8] {
        let holders = entry.holders.iter();
        let oldest = holders.min_by_key(|holder| (holder.since.is_none(), holder.since));
        let node = oldest.map(|holder| match entry.holder_count {
            0 | 1 => name(&holder.node),
            several => format!("{} +{}", name(&holder.node), several - 1),
        });
        [
            entry.kind.word().to_owned(),
            self.key(&entry.key),
            entry.state.word().to_owned(),
            or_none(node),
            or_none(oldest.and_then(|holder| Some(age(holder.since?, self.now)))),
            or_none(entry.remaining.map(duration)),
            entry.waiter_count.to_string(),
            or_none(oldest.and_then(|holder| Some(shown(&*holder.notes.first()?.text)))),
        ]
    }

    /// Returns the table of nodes.
    pub(crate) fn nodes(&self, nodes: &[NodeEntry]) -> String {
        let header = [
            "NODE", "NAME", "HOST", "PID", "SERVICE", "VERSION", "STARTED", "KEYS", "WAITING", "PREFIX",
        ];
        table(header, nodes.iter().map(|node| self.node_row(node)).collect())
    }

    fn node_row(&self, node: &NodeEntry) -> [String; 10] {
        let mut row = [const { String::new() }; 10];
        row[0] = short(node.id);
        if let Some(told) = &node.presence {
            row[1] = shown(&told.name);
            row[2] = shown(&told.host);
            row[3] = told.pid.to_string();
            row[4] = shown(&told.service);
            row[5] = shown(&told.version);
            row[6] = age(told.started, self.now);
            row[7] = told.key_count.to_string();
            row[8] = told.waiter_count.to_string();
            row[9] = self.key(&told.prefix);
        }
        row.map(|cell| if cell.is_empty() { NONE.to_owned() } else { cell })
    }

    /// Returns all that is known of a key, in lines.
    pub(crate) fn details(&self, entry: &Entry) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: &dyn Display| {
            let _ = writeln!(text, "{label:<9} {value}");
        };
        line("kind", &entry.kind.word());
        line("key", &self.key(&entry.key));
        line("state", &entry.state.word());
        line("server", &shown(&*entry.server));
        line("left", &or_none(entry.remaining.map(duration)));
        if let Some(permits) = entry.permits {
            line(
                "permits",
                &format_args!("{} of {} in use", permits.in_use, permits.capacity),
            );
        }
        if let Some(count) = entry.count {
            line("count", &format_args!("{count} count-downs left"));
        }
        if let Some(digest) = &entry.foreign {
            line("value", &format_args!("{} (SHA-1)", shown(&**digest)));
        }
        line("holders", &entry.holder_count);
        let holders: Vec<String> = entry.holders.iter().map(|holder| self.holder(holder)).collect();
        list(&mut text, &holders, entry.holder_count);
        let _ = writeln!(text, "{:<9} {}", "waiting", entry.waiter_count);
        let waiters: Vec<String> = entry.waiters.iter().map(waiter).collect();
        list(&mut text, &waiters, entry.waiter_count);
        text
    }

    /// Returns the table of the audit list.
    pub(crate) fn audit(&self, entries: &[AuditEntry]) -> String {
        let row = |entry: &AuditEntry| {
            [
                date(entry.time()),
                shown(&entry.by),
                shown(&entry.what),
                or_none(entry.kind.map(|kind| kind.word().to_owned())),
                self.key(&entry.key),
                shown(&entry.number),
                shown(&entry.why),
            ]
        };
        let header = ["TIME", "BY", "WHAT", "KIND", "KEY", "NUMBER", "WHY"];
        table(header, entries.iter().map(row).collect())
    }

    /// Returns the lines of a holder. A revoked share of a key has neither a number nor a time.
    fn holder(&self, holder: &HolderEntry) -> String {
        let mut text = node(&holder.node);
        let _ = write!(text, "{BREAK}claim {}, {}", holder.claim, mode(holder.mode));
        if let (Some(number), Some(fence)) = (holder.number, holder.fence) {
            let _ = write!(text, "{BREAK}number {number}, fence {fence}");
        }
        let left = match holder.remaining {
            Some(left) => format!("{} left", duration(left)),
            None => "no end".to_owned(),
        };
        let since = holder
            .since
            .map(|since| format!("since {} ({}), ", date(since), age(since, self.now)));
        let revoked = if holder.is_revoked { "revoked, " } else { "" };
        let _ = write!(text, "{BREAK}{}{revoked}{left}", since.unwrap_or_default());
        for note in &holder.notes {
            // The callers of a node hand a lease on to each other: the fence tells which of them wrote the note.
            let _ = match holder.fence == Some(note.fence) {
                true => write!(text, "{BREAK}note: {}", shown(&*note.text)),
                false => write!(
                    text,
                    "{BREAK}note of fence {}: {}",
                    note.fence,
                    shown(&*note.text)
                ),
            };
        }
        text
    }
}

fn waiter(waiter: &WaiterEntry) -> String {
    let mut text = node(&waiter.node);
    if let Some(claim) = waiter.claim {
        let _ = write!(text, "{BREAK}claim {claim}, {}", mode(waiter.mode));
    }
    if waiter.is_dead {
        text += ", gave no sign of life for a lease";
    }
    text
}

/// Appends the items as lines, and how many more there are.
fn list(text: &mut String, items: &[String], count: u64) {
    for item in items {
        let _ = writeln!(text, "  {item}");
    }
    let more = count.saturating_sub(items.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}

/// Returns all that identifies a node: name, host, id and process.
fn node(node: &NodeEntry) -> String {
    let is_alive = if node.is_alive { "alive" } else { "not alive" };
    let mut text = format!("{}, {is_alive}{BREAK}node {}", name(node), node.id);
    if let Some(told) = &node.presence {
        let _ = write!(text, ", pid {}", told.pid);
    }
    text
}

/// Returns the table of these rows.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}
