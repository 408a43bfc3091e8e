//! Judges a run by its journals.
//!
//! **Two guards held at one instant.** `is_held` returns true from the grant on until it returns false, and then never
//! true again. So a guard was surely held over the whole interval *[when its grant was logged, when the clock was read
//! **before** the last call of `is_held` that returned true]*, and surely over no more: a process may be stopped after it
//! read the clock, in the call or after it, and its observation is then old. Both ends are inside the real holding. So two
//! overlapping intervals of one key prove two guards held at one instant, wherever processes were stopped. A `release`
//! that returns that exclusivity held to the call counts as such a check just before it. A guard whose `is_held` never
//! returned true has no interval.
//!
//! **Readers.** Their intervals may overlap only each other. For a downgraded writer, the reader's interval begins at the end
//! of the writer's, because no other task may write in between. The first and the last value that a reader read must be the
//! same if a later check returned true.
//!
//! **Fences.** If the intervals of two guards are disjoint, the earlier one was granted first: otherwise the other could not
//! have been held meanwhile. Two readers are exempt, because the readers of a process share a grant. Guards without an
//! interval have no known order, but no two share a fence.
//!
//! **Recovery.** Every live node always has a task that wants each key, and a candidate in the election. The time from the
//! last sign of a holder, or from the last fault of a single node, to the next grant must not exceed the bound. Times when
//! no node could reach the server do not count, nor times when the slot of the key was half moved or without a master.
//!
//! **Promotions** explain lost leases, refusals, lost values of a leader and lost writes, each only while it can cause
//! them. They never explain two guards at one instant, a fence that does not grow or a counter that is off.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::torture::elections::Seen;
use crate::torture::latches::Latches;
use crate::torture::notes::{self, Notes};
use crate::torture::orders::PERMITS;
use crate::torture::promotions::Promotion;

/// The facts about a run besides its journals.
#[derive(Clone)]
pub struct Case {
    /// The names of processes, and their journals.
    pub journals: Vec<(String, PathBuf)>,
    pub keys: usize,
    /// The number of keys whose guards exclude each other. The election is in addition to these.
    pub exclusive: Vec<usize>,
    /// When the processes could work, and when they were told to stop.
    pub run: (u64, u64),
    pub troubles: Vec<Trouble>,
    pub promotions: Vec<Promotion>,
    pub bare: Vec<BareMajority>,
    /// How late a process may note what happened.
    pub lateness: Duration,
    /// The bound of a recovery.
    pub bound: Duration,
    /// Whether a holder may lose its lease.
    pub losses: bool,
    /// The longest stall of a process or a server that costs no lease.
    pub harmless_stall: Duration,
    /// When each longer stall of a server began and ended.
    pub stalls: Vec<(u64, u64)>,
    pub lease: Duration,
    /// The values of the counters at the end.
    pub counters: Option<Vec<u64>>,
    /// For each key the fences that holders noted, in their order.
    pub notes: Vec<Vec<u64>>,
}

/// The time after masters of a quorum were killed until a lease on this key was seen on all others. A lease that the dead gave
/// together with one or two others has no majority until its renewal reaches the rest.
#[derive(Debug, Clone, Copy)]
pub struct BareMajority {
    pub key: usize,
    pub from: u64,
    pub to: u64,
}

/// A fault, with its begin and end.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub from: u64,
    pub to: u64,
    pub scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A single node is dead, stopped or cut off.
    Node,
    /// The server answers no node.
    All,
    /// The slot of this key is on its way to another server, or has no master.
    Slot(usize),
    /// No lasting effect.
    Passing,
}

/// The findings, by the broken rule. An empty list is a pass.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<&'static str, Vec<String>>);

impl Findings {
    pub fn add(&mut self, what: &'static str, text: String) {
        self.0.entry(what).or_default().push(text);
    }

    pub fn has(&self, what: &str) -> bool {
        self.0.contains_key(what)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the broken rules.
    pub fn rules(&self) -> Vec<&'static str> {
        self.0.keys().copied().collect()
    }

    pub fn append(&mut self, other: Findings) {
        for (what, mut texts) in other.0 {
            self.0.entry(what).or_default().append(&mut texts);
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, texts) in &self.0 {
            writeln!(f, "{what}: {} times", texts.len())?;
            for text in texts.iter().take(5) {
                writeln!(f, "    {text}")?;
            }
        }
        Ok(())
    }
}

/// The counts of events.
#[derive(Debug, Default)]
pub struct Tally {
    /// The largest number of permits held at one instant.
    pub most_permits: u32,
    pub cycles: u64,
    pub grants: u64,
    /// The guards that read.
    pub reads: u64,
    /// Readers that were granted while another process already read.
    pub shared: u64,
    /// Writers that became readers.
    pub downgrades: u64,
    /// Values that readers read twice under a lease held throughout.
    pub looks: u64,
    pub hand_overs: u64,
    pub lost: u64,
    pub increments: u64,
    pub ambiguous: u64,
    pub overruns: u64,
    pub accepted: u64,
    pub refused: u64,
    /// Writes to the register without an answer in the journal.
    pub unanswered: u64,
    /// Guarded writes.
    pub notes: u64,
    pub notes_refused: u64,
    pub notes_unanswered: u64,
    /// How often a latch was set, and how often a waiter was told of zero.
    pub latches: u64,
    pub zeros: u64,
    /// Names of latches whose calls all have known answers.
    pub latches_exact: u64,
    /// The leaders that observers saw.
    pub leaders_seen: u64,
    pub worst_recovery: Duration,
    /// The longest time without a grant of any key.
    pub longest_pause: Duration,
    pub misses: BTreeMap<String, u64>,
    pub errors: BTreeMap<String, u64>,
    pub events: BTreeMap<String, u64>,
}

/// One guard.
#[derive(Debug, Default, Clone)]
pub struct Hold {
    process: usize,
    id: u64,
    key: usize,
    pub fence: u64,
    pub reads: bool,
    /// The number of permits of a semaphore.
    pub permits: u32,
    pub granted: u64,
    /// The end of the known interval.
    pub held_to: Option<u64>,
    /// When `is_held` had returned false.
    over: Option<u64>,
    ending: Option<u64>,
    last_sign: u64,
    about: bool,
    wrote: bool,
    overrun: bool,
    asked: bool,
    pub notes: Notes,
    /// The first and the last value that a reader read, and when.
    saw: Option<(u64, i64, i64)>,
    was_writer: bool,
}

pub fn judge(case: &Case) -> (Tally, Findings) {
    let (mut tally, mut findings) = (Tally::default(), Findings::default());
    let (mut holds, mut latches) = (Vec::new(), Latches::default());
    let texts = case
        .journals
        .iter()
        .map(|(_, path)| std::fs::read_to_string(path).unwrap_or_default());
    let texts: Vec<String> = texts.collect();
    let mut stalls = case.stalls.clone();
    stalls.extend(texts.iter().flat_map(|text| stalls_of(text, case.harmless_stall)));
    let case = &Case {
        stalls,
        ..case.clone()
    };
    for (process, ((label, _), text)) in case.journals.iter().zip(&texts).enumerate() {
        holds.extend(read(
            process,
            label,
            text,
            case,
            &mut latches,
            &mut tally,
            &mut findings,
        ));
    }
    latches.judge(case, &mut tally, &mut findings);
    tally.grants = holds.len() as u64;
    let count = |f: fn(&Hold) -> bool| holds.iter().filter(|hold| f(hold)).count() as u64;
    tally.reads = count(|hold| hold.reads);
    tally.downgrades = count(|hold| hold.was_writer);
    tally.cycles = tally.grants + tally.misses.values().sum::<u64>() + tally.errors.values().sum::<u64>();
    holds.sort_by_key(|hold| hold.granted);
    let pauses = holds.windows(2).map(|pair| pair[1].granted - pair[0].granted);
    tally.longest_pause = Duration::from_nanos(pauses.max().unwrap_or_default());
    for key in case.exclusive.iter().copied() {
        let of_key: Vec<&Hold> = holds.iter().filter(|hold| hold.key == key).collect();
        exclusion(case, &of_key, &mut tally, &mut findings);
        recovery(case, key, &of_key, &mut tally, &mut findings);
    }
    for key in 0..case.keys {
        let of_key: Vec<&Hold> = holds.iter().filter(|hold| hold.key == key).collect();
        looks(case, &of_key, &mut tally, &mut findings);
        notes::judge(case, key, &of_key, &mut tally, &mut findings);
        if let Some(counters) = &case.counters {
            exactness(key, counters[key], &of_key, &mut tally, &mut findings);
        }
    }
    let of_permits: Vec<&Hold> = holds.iter().filter(|hold| hold.permits > 0).collect();
    capacity(case, &of_permits, &mut tally, &mut findings);
    (tally, findings)
}

/// Returns the begin and end of each stall that a process noted, and that was longer than this.
fn stalls_of(text: &str, harmless: Duration) -> impl Iterator<Item = (u64, u64)> {
    let noted = text.lines().filter_map(|line| {
        let (at, took) = line.split_once(" event stalled ")?;
        let (to, took) = (at.parse::<u64>().ok()?, took.parse().ok()?);
        Some((to, Duration::from_millis(took)))
    });
    let long = noted.filter(move |(_, took)| *took > harmless);
    long.map(|(to, took)| (to.saturating_sub(took.as_nanos() as u64), to))
}

fn read(
    process: usize,
    label: &str,
    text: &str,
    case: &Case,
    latches: &mut Latches,
    tally: &mut Tally,
    findings: &mut Findings,
) -> impl Iterator<Item = Hold> {
    let mut holds: HashMap<u64, Hold> = HashMap::new();
    let mut seen = Seen::default();
    // A line that was cut off does not count.
    for line in text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
    {
        let mut words = line.splitn(4, ' ');
        let (Some(at), Some(what)) = (words.next().and_then(|at| at.parse::<u64>().ok()), words.next())
        else {
            findings.add("journal", format!("{label}: {line}"));
            continue;
        };
        let (first, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match what {
            "ready" => continue,
            "miss" => {
                *tally.misses.entry(rest.into()).or_default() += 1;
                continue;
            }
            "error" => {
                *tally.errors.entry(rest.into()).or_default() += 1;
                if !case.is_explained(at, rest) && !is_of_cluster(case, rest) {
                    findings.add("an error that nothing explains", format!("{label}: {line}"));
                }
                continue;
            }
            "event" => {
                *tally.events.entry(first.into()).or_default() += 1;
                if first == "forged_grant" {
                    findings.add("an event that nothing explains", format!("{label}: {line}"));
                }
                if first == "gone_early" && !case.is_lost_transfer(at, rest.parse().expect("a time")) {
                    let what = "a lease that was sent once is gone in its time";
                    findings.add(what, format!("{label}: {line}"));
                }
                continue;
            }
            "leader" => {
                let fence = first.parse().expect("a fence");
                tally.leaders_seen += u64::from(fence > 0);
                for what in seen.read(case, at, fence, rest) {
                    findings.add(what, format!("{label}: {line}"));
                }
                continue;
            }
            "latch" => {
                if latches.read(at, first, rest).is_none() {
                    findings.add("journal", format!("{label}: {line}"));
                }
                continue;
            }
            "broken" => {
                findings.add("worker", format!("{label}: {line}"));
                continue;
            }
            "end" => {
                if first != "idle" {
                    findings.add("left in the process", format!("{label}: {line}"));
                }
                continue;
            }
            _ => {}
        }
        let id: u64 = first.parse().expect("a number of a guard");
        if what == "granted" {
            let [key, fence, mode] = rest.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a key, a fence and a mode: {line}");
            };
            holds.insert(
                id,
                Hold {
                    process,
                    id,
                    key: key.parse().expect("a key"),
                    fence: fence.parse().expect("a fence"),
                    reads: mode == "read",
                    permits: mode
                        .strip_prefix("permits:")
                        .map_or(0, |many| many.parse().expect("a number")),
                    granted: at,
                    last_sign: at,
                    ..Hold::default()
                },
            );
            continue;
        }
        if what == "downgraded" {
            // The writer was held just before the downgrade, because a downgrade needs a held writer.
            let from = holds[&id].ending.max(holds[&id].held_to);
            let to = rest.parse().expect("a number of a guard");
            let reader: &mut Hold = holds.get_mut(&to).expect("the reader's grant comes first");
            reader.was_writer = true;
            if let Some(from) = from {
                reader.granted = from.min(reader.granted);
            }
            continue;
        }
        let hold = holds.get_mut(&id).expect("a guard begins with its grant");
        hold.last_sign = hold.last_sign.max(at);
        match (what, rest) {
            ("check", "1") => {
                if hold.over.is_some_and(|over| over < at) {
                    findings.add("a lost guard came back", format!("{label}: {line}"));
                }
                hold.held_to = hold.held_to.max(Some(at.max(hold.granted)));
            }
            ("check", _) => hold.over = Some(hold.over.map_or(at, |over| over.min(at))),
            ("ending", _) => hold.ending = Some(at),
            ("released", "kept" | "told") => {
                if hold.over < hold.ending && hold.over.is_some() {
                    findings.add("a lost guard was released as held", format!("{label}: {line}"));
                }
                hold.held_to = hold.ending.max(hold.held_to);
            }
            ("released", _) => {}
            ("lost", cause) => {
                tally.lost += 1;
                if cause == "never" {
                    findings.add(
                        "is not held, but lost() does not fire",
                        format!("{label}: {line}"),
                    );
                } else if cause == "Unfetched" {
                    findings.add(
                        "a guard that was lost before it was returned",
                        format!("{label}: {line}"),
                    );
                } else if !case.losses
                    && !matches!(cause, "Ended" | "Shutdown")
                    && !case.is_of_promotion(hold.over.unwrap_or(at))
                    && !case.is_of_stall(hold.over.unwrap_or(at))
                    && !case.had_bare_majority(hold.key, hold.over.unwrap_or(at))
                {
                    findings.add("lost, but nothing stood still", format!("{label}: {line}"));
                }
            }
            ("about", _) => hold.about = true,
            ("wrote", rest) => {
                hold.wrote = true;
                hold.overrun = rest.ends_with(" 1");
            }
            ("saw", seen) => {
                let (first, last) = seen.split_once(' ').expect("two values");
                let value = |text: &str| text.parse().expect("a value");
                hold.saw = Some((at, value(first), value(last)));
            }
            ("note", word) => hold.notes.read(word, case.may_be_lost(at)),
            ("asked", _) => hold.asked = true,
            ("accepted", _) => {
                tally.accepted += 1;
                hold.asked = false;
            }
            ("refused", is_held) => {
                tally.refused += 1;
                hold.asked = false;
                if is_held == "1" {
                    findings.add("refused by the register while held", format!("{label}: {line}"));
                }
            }
            _ => findings.add("journal", format!("{label}: {line}")),
        }
    }
    tally.unanswered += holds.values().filter(|hold| hold.asked).count() as u64;
    holds.into_values()
}

/// Returns whether an error is explained by a slot that moves, or by a master that is dead.
fn is_of_cluster(case: &Case, error: &str) -> bool {
    let has = |codes: &[&str]| codes.iter().any(|code| error.contains(code));
    let moves = case
        .troubles
        .iter()
        .any(|trouble| matches!(trouble.scope, Scope::Slot(_)));
    moves && has(&["TRYAGAIN", "ASK", "MOVED", "on its way"])
        || !case.promotions.is_empty() && has(&["CLUSTERDOWN", "not served"])
}

pub fn show(case: &Case, hold: &Hold) -> String {
    let from = Duration::from_nanos(hold.granted.saturating_sub(case.run.0));
    let to = Duration::from_nanos(hold.held_to.unwrap_or_default().saturating_sub(case.run.0));
    let label = &case.journals[hold.process].0;
    let mode = match (hold.permits, hold.reads) {
        (0, true) => "reads".to_owned(),
        (0, false) => "writes".to_owned(),
        (many, _) => format!("holds {many}"),
    };
    format!(
        "key {} {label}#{} {mode} fence {} held {from:?} to {to:?}",
        hold.key, hold.id, hold.fence
    )
}

/// Of the holds so far: the one with the latest end, and the one with the largest fence.
#[derive(Default)]
struct Before<'a> {
    latest: Option<&'a Hold>,
    greatest: Option<&'a Hold>,
}

impl<'a> Before<'a> {
    fn add(&mut self, hold: &'a Hold) {
        if self.latest.is_none_or(|before| before.held_to < hold.held_to) {
            self.latest = Some(hold);
        }
        if self.greatest.is_none_or(|before| before.fence < hold.fence) {
            self.greatest = Some(hold);
        }
    }
}

fn exclusion(case: &Case, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    let mut fences = HashSet::new();
    for hold in holds {
        if !fences.insert(hold.fence) {
            findings.add("a fence that was there before", show(case, hold));
        }
    }
    let (mut all, mut writers, mut readers) = (Before::default(), Before::default(), Before::default());
    for hold in holds.iter().copied().filter(|hold| hold.held_to.is_some()) {
        if let Some(before) = all.latest {
            tally.hand_overs += u64::from(before.process != hold.process);
        }
        let overlaps = |before: &&Hold| hold.granted < before.held_to.unwrap_or_default();
        let excluded = if hold.reads { &writers } else { &all };
        if let Some(before) = excluded.latest.filter(overlaps) {
            let what = if hold.reads || before.reads {
                "a reader beside a writer"
            } else {
                "two guards held at one instant"
            };
            let text = format!("{} | {}", show(case, before), show(case, hold));
            findings.add(what, text);
        } else if let Some(before) = excluded.greatest.filter(|before| hold.fence <= before.fence) {
            let text = format!("{} | {}", show(case, before), show(case, hold));
            findings.add("a fence that does not grow", text);
        }
        all.add(hold);
        if hold.reads {
            let beside = readers.latest.filter(overlaps);
            tally.shared += u64::from(beside.is_some_and(|before| before.process != hold.process));
            readers.add(hold);
        } else {
            writers.add(hold);
        }
    }
}

/// Checks that at no instant more permits are held than there are. Guards with overlapping known intervals were held at
/// one instant.
fn capacity(case: &Case, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    let mut fences = HashSet::new();
    let mut held: Vec<&Hold> = Vec::new();
    for hold in holds.iter().copied() {
        if !fences.insert(hold.fence) {
            findings.add("a fence that was there before", show(case, hold));
        }
        let Some(_) = hold.held_to else { continue };
        held.retain(|before| hold.granted < before.held_to.unwrap_or_default());
        held.push(hold);
        let permits: u32 = held.iter().map(|hold| hold.permits).sum();
        tally.most_permits = tally.most_permits.max(permits);
        if permits > PERMITS {
            let texts: Vec<String> = held.iter().map(|hold| show(case, hold)).collect();
            findings.add("more permits than there are", texts.join(" | "));
        }
    }
}

/// Checks that no value is written while a reader reads it.
fn looks(case: &Case, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    // Writers whose write may have come too late, because this machine stalled.
    let is_exact = !holds.iter().any(|hold| hold.overrun);
    for hold in holds {
        let Some((at, first, last)) = hold.saw else {
            continue;
        };
        if !is_exact || hold.held_to.is_none_or(|held_to| held_to < at) {
            continue;
        }
        tally.looks += 1;
        if first != last {
            let text = format!("{first}, then {last}: {}", show(case, hold));
            findings.add("what was read changed", text);
        }
    }
}

fn recovery(case: &Case, key: usize, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    let (began, ended) = case.run;
    let grants = holds.iter().map(|hold| hold.granted);
    let mut sign = began;
    // The guards with a sign of life after the latest grant. There may be several readers.
    let mut present: Vec<&Hold> = Vec::new();
    for (at, granted) in grants.enumerate().chain([(holds.len(), ended)]) {
        if let Some(last) = at.checked_sub(1).map(|last| holds[last]) {
            sign = sign.max(last.granted);
            present.push(last);
            present.retain(|hold| {
                // The line of its release may come after the next grant.
                let signs = [Some(hold.last_sign), hold.ending, hold.held_to];
                let before = signs.into_iter().flatten().filter(|sign| *sign <= granted);
                sign = sign.max(before.max().unwrap_or(0));
                hold.last_sign > granted
            });
        }
        let within = |time: u64| (sign < time && time < granted).then_some(time);
        let of_node = case.troubles.iter().filter(|t| t.scope == Scope::Node);
        let from = of_node
            .flat_map(|trouble| [within(trouble.from), within(trouble.to)])
            .flatten()
            .max();
        let from = from.unwrap_or(sign);
        let waited = granted.saturating_sub(from);
        let blocked: u64 = case
            .troubles
            .iter()
            .filter(|trouble| [Scope::All, Scope::Slot(key)].contains(&trouble.scope))
            .map(|trouble| trouble.to.min(granted).saturating_sub(trouble.from.max(from)))
            .sum();
        let took = Duration::from_nanos(waited.saturating_sub(blocked));
        tally.worst_recovery = tally.worst_recovery.max(took);
        if took > case.bound {
            let since = Duration::from_nanos(from.saturating_sub(began));
            let text = format!(
                "key {key}: no caller got it for {took:?} since {since:?}, the bound is {:?}",
                case.bound
            );
            findings.add("not free again in time", text);
        }
    }
}

fn exactness(key: usize, value: u64, holds: &[&Hold], tally: &mut Tally, findings: &mut Findings) {
    let count = |f: fn(&Hold) -> bool| holds.iter().filter(|hold| f(hold)).count() as u64;
    let done = count(|hold| hold.wrote);
    // A writer may be killed between its write and the journal line.
    let ambiguous = count(|hold| hold.about && !hold.wrote);
    let overruns = count(|hold| hold.overrun);
    tally.increments += done;
    tally.ambiguous += ambiguous;
    tally.overruns += overruns;
    if overruns == 0 && !(done..=done + ambiguous).contains(&value) {
        findings.add(
            "a counter that is off",
            format!("key {key}: {value} after {done} increments and {ambiguous} that may have been"),
        );
    }
}
