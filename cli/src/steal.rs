//! Taking a lease from its holder, and what was taken before.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use serde_json::json;
use tenure::inspect::{Entry, Kind, State, Steal, StealEnd, StealError, StealStep, Stolen};
use tenure::{Key, Locks};

use crate::NO;
use crate::args::{OutputArgs, StealArgs};
use crate::failure::Failure;
use crate::table::View;
use crate::terminal::{print, tell, warn};
use crate::text::{self, shown};
use crate::words;

pub(crate) async fn run(locks: &Locks, wanted: &StealArgs, output: &OutputArgs) -> Result<ExitCode, Failure> {
    let view = View::new(output.is_hex);
    let Some(entry) = find(locks, wanted, output).await? else {
        let key = view.key(&output.key(&wanted.key)?);
        warn(&match wanted.number {
            Some(number) => format!(
                "`{key}` has no listed holder with the number {number}: `tenure show` prints the numbers; a share that is \
                 revoked has none, and is handed over by --now alone"
            ),
            None => format!("`{key}` has no holder"),
        });
        return Ok(ExitCode::from(NO));
    };
    tell(&match output.is_json {
        true => text::json(serde_json::to_string(&entry))?,
        false => view.details(&entry),
    });
    let key = view.key(&entry.key);
    let what = match wanted.is_now {
        true => format!("Hand over the lease of `{key}` at once? Its holder may be at work."),
        false => format!("Take the lease of `{key}`?"),
    };
    if !wanted.operator.confirms(&what)? {
        return Ok(ExitCode::from(NO));
    }
    let report = |step| tell(&step_text(&step, output.is_json));
    match steal(locks, wanted, &entry).run(report).await {
        Ok(stolen) => {
            tell(&end_text(&stolen, &view, output.is_json)?);
            if let Some(error) = &stolen.unwritten {
                warn(&shown(format!("the audit list could not be written: {error}")));
            }
            if let Some(error) = &stolen.unread {
                warn(&shown(format!("the key could not be read afterwards: {error}")));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(StealError::Store(error)) => Err(error.into()),
        Err(StealError::SeveralHolders { .. }) => Err(Failure::Usage(
            "there are several holders: choose one with --number, which `tenure show` prints".to_owned(),
        )),
        Err(error) => {
            warn(&shown(error.to_string()));
            Ok(ExitCode::from(NO))
        }
    }
}

/// Returns the entry of the key whose lease is meant.
async fn find(locks: &Locks, wanted: &StealArgs, output: &OutputArgs) -> Result<Option<Entry>, Failure> {
    let key = output.key(&wanted.key)?;
    let entries = locks.inspect().show(&key).await?.entries.into_iter();
    let is_held = |entry: &Entry| entry.kind != Kind::Latch && entry.state != State::WaitedFor;
    let is_meant = |entry: &Entry| {
        let mut holders = entry.holders.iter();
        wanted
            .number
            .is_none_or(|number| holders.any(|holder| holder.number == Some(number)))
            && wanted.kind.is_none_or(|kind| kind == entry.kind)
    };
    let mut found: Vec<Entry> = entries
        .filter(|entry| is_held(entry) && is_meant(entry))
        .collect();
    if found.len() > 1 {
        let kinds: Vec<_> = found.iter().map(|entry| entry.kind.word()).collect();
        let kinds = kinds.join(", ");
        return Err(Failure::Usage(format!(
            "the key has several kinds ({kinds}): choose one with --kind"
        )));
    }
    Ok(found.pop())
}

fn steal(locks: &Locks, wanted: &StealArgs, entry: &Entry) -> Steal {
    let steal = locks.inspect().steal(entry).grace(wanted.grace);
    let steal = steal.by(wanted.operator.by()).why(wanted.operator.why.clone());
    let steal = match wanted.number {
        Some(number) => steal.number(number),
        None => steal,
    };
    if wanted.is_now { steal.now() } else { steal }
}

fn step_text(step: &StealStep, is_json: bool) -> String {
    let ms = |left: std::time::Duration| left.as_millis() as u64;
    if is_json {
        let object = match step {
            StealStep::Asked(grace) => json!({ "step": "asked", "grace_ms": ms(*grace) }),
            StealStep::Revoked(left) => json!({ "step": "revoked", "left_ms": left.map(ms) }),
            _ => json!({ "step": "not_asked" }),
        };
        return format!("{object}\n");
    }
    let (word, sentence) = words::steal_step(step);
    format!(
        "{}\n",
        format_args!("{word:<9} {sentence}").to_string().trim_end()
    )
}

fn end_text(stolen: &Stolen, view: &View, is_json: bool) -> io::Result<String> {
    let word = match stolen.end {
        StealEnd::GivenBack => "given_back",
        StealEnd::HandedOver => "handed_over",
        _ => "ended",
    };
    if is_json {
        let object = json!({ "step": word, "now": stolen.entry, "is_read": stolen.unread.is_none() });
        return text::json(Ok(object.to_string()));
    }
    let now = match &stolen.entry {
        None if stolen.unread.is_some() => "state     not known\n".to_owned(),
        None => "state     free\n".to_owned(),
        Some(entry) => view.details(entry),
    };
    Ok(format!("done      {}; now:\n{now}", words::steal_end(stolen)))
}

/// Prints the audit list.
pub(crate) async fn audit(locks: &Locks, output: &OutputArgs) -> Result<(), Failure> {
    let entries = locks.inspect().audit().await?;
    if !output.is_json {
        return Ok(print(&View::new(output.is_hex).audit(&entries))?);
    }
    for entry in &entries {
        print(&text::json(serde_json::to_string(entry))?)?;
    }
    Ok(())
}

impl OutputArgs {
    fn key(&self, text: &OsStr) -> Result<Key, Failure> {
        Ok(Key::from(self.bytes(text)?))
    }
}
