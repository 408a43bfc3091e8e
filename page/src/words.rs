//! The words for what operators see, the same in the page and in the command.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use chrono_tz::Tz;
use tenure::NodeId;
use tenure::inspect::{Mode, NodeEntry, StealEnd, StealStep, Stolen};
use tenure::scheduler::{HistoryEntry, JobActOutcome, JobPlan, JobRun};

use crate::text::{duration, shown};

/// How many digits of a node's id are shown where there is little room.
const SHORT_ID: usize = 8;
/// The fewest digits of a node's id that select it.
const MIN_ID_DIGITS: usize = 8;
/// The text of what is not known, or does not exist.
pub const NONE: &str = "-";

/// The present time, for a reader.
pub fn now() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "judges no lease: times are for a reader"
    )]
    SystemTime::now()
}

/// Returns the text, or the one for what does not exist.
pub fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| NONE.to_owned())
}

/// Says that a server recovers, and for how long.
pub fn recovering(server: &str, left: Duration) -> String {
    shown(format!(
        "{server} may have lost leases, and grants none for {}: holders go on, callers wait",
        duration(left)
    ))
}

/// Returns the name of a node, or the first digits of its id, and its host.
pub fn node(node: &NodeEntry) -> String {
    match &node.presence {
        None => short(node.id),
        Some(told) if told.name.is_empty() => format!("{}@{}", short(node.id), shown(&told.host)),
        Some(told) => format!("{}@{}", shown(&told.name), shown(&told.host)),
    }
}

/// Returns the first digits of an id.
pub fn short(id: NodeId) -> String {
    let mut id = id.to_string();
    id.truncate(SHORT_ID);
    id
}

/// Returns whether the node has this name or host, or an id that begins with it. Names are compared as they are shown, so that
/// each can be typed.
pub fn is_called(node: &NodeEntry, wanted: &str) -> bool {
    let id = node.id.to_string();
    let is_id = wanted.len() >= MIN_ID_DIGITS && id.starts_with(&wanted.to_ascii_lowercase());
    let told = node.presence.as_ref();
    is_id || told.is_some_and(|told| shown(&told.name) == wanted || shown(&told.host) == wanted)
}

/// Returns the words for how a lease is shared.
pub fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Read => "read".to_owned(),
        Mode::Permits(permits) => format!("{} of {} permits", permits.weight, permits.capacity),
        _ => "another mode".to_owned(),
    }
}

/// Returns the word and the sentence for a step of a steal.
pub fn steal_step(step: &StealStep) -> (&'static str, String) {
    match step {
        StealStep::Asked(grace) => ("asked", format!("the holder has {}", duration(*grace))),
        StealStep::Revoked(Some(left)) => (
            "revoked",
            format!("the lease ends in {} at the latest", duration(*left)),
        ),
        StealStep::Revoked(None) => ("revoked", String::new()),
        _ => (
            "not asked",
            "the holder is another library, or its node has no presence or does not listen".to_owned(),
        ),
    }
}

/// Returns the sentence for the end of a steal.
pub fn steal_end(stolen: &Stolen) -> &'static str {
    match stolen.end {
        StealEnd::GivenBack => "given back by its holder",
        StealEnd::HandedOver => "handed over",
        _ => "the revoked lease has ended",
    }
}

/// Returns the sentence for what became of an act about a job; `done` and `unchanged` are those of the act.
pub fn job_act(outcome: &JobActOutcome, [done, unchanged]: [&'static str; 2]) -> &'static str {
    match outcome {
        JobActOutcome::Done { .. } => done,
        JobActOutcome::Unknown => "unknown",
        JobActOutcome::TickUnfinished => {
            "is paused, and a tick has not ended: wait for its end, cancel it, or resume the job"
        }
        JobActOutcome::InFuture => "that tick has not come yet",
        JobActOutcome::OtherTick => "the tick has ended, or another one has begun",
        JobActOutcome::EndedItself => "the run was asked, and its tick has ended",
        _ => unchanged,
    }
}

/// Returns the time zone of a job.
pub fn zone_of(plan: Option<&JobPlan>) -> Tz {
    plan.and_then(|plan| plan.zone.parse().ok()).unwrap_or(Tz::UTC)
}

/// Returns a time in a zone, with its offset: the clocks of a zone may show a time twice.
pub fn date_in(time: SystemTime, zone: Tz) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = i64::try_from(since.as_secs())
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    or_none(time.map(|time| {
        time.with_timezone(&zone)
            .format("%Y-%m-%d %H:%M:%S%:z")
            .to_string()
    }))
}

/// Returns how long a run took, in ms if it was short.
pub fn took(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_millis());
    }
    duration(time)
}

/// Returns the name of the node of a run, or the first digits of its id.
pub fn node_of_run(run: &JobRun) -> String {
    if run.node_name.is_empty() {
        short(run.node)
    } else {
        shown(&*run.node_name)
    }
}

/// The titles of [`history_row`].
pub const HISTORY: [&str; 8] = [
    "TICK", "OUTCOME", "ATTEMPT", "NODE", "BEGAN", "TOOK", "FENCE", "TEXT",
];

/// Returns the row of an entry of a history, with times in a zone.
pub fn history_row(entry: &HistoryEntry, zone: Tz) -> [String; 8] {
    let mut row = [const { String::new() }; 8].map(|_| NONE.to_owned());
    match entry {
        HistoryEntry::Run(run) => {
            return [
                date_in(run.tick, zone),
                run.state.word().to_owned(),
                run.attempt.to_string(),
                node_of_run(run),
                date_in(run.began, zone),
                or_none(run.took.map(took)),
                run.fence.to_string(),
                run_text(run),
            ];
        }
        HistoryEntry::NoRun(none) => {
            row[0] = date_in(none.first, zone);
            row[1] = none.why.word().to_owned();
            if none.count > 1 {
                row[7] = format!("{} ticks until {}", none.count, date_in(none.last, zone));
            }
        }
        HistoryEntry::Act(act) => {
            row[0] = date_in(act.time(), zone);
            row[1] = shown(&act.what);
            let tick = act.tick().map(|tick| format!("{}, ", date_in(tick, zone)));
            row[7] = shown(format!("{}by {}: {}", tick.unwrap_or_default(), act.by, act.why));
        }
        _ => {}
    }
    row
}

/// Returns the text of a run: whether it was triggered, and its error.
fn run_text(run: &JobRun) -> String {
    let text = shown(&*run.text);
    match (run.is_triggered, text.is_empty()) {
        (false, _) => text,
        (true, true) => "triggered".to_owned(),
        (true, false) => format!("triggered: {text}"),
    }
}
