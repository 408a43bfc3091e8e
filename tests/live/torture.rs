//! The torture: node processes on a real Redis, faults of every kind, and a referee that reads the journals of the nodes.
//!
//! Tasks read, write, or downgrade from writer to reader. Other tasks acquire permits of a semaphore, campaign in an
//! election or observe it, and set latches, count them down and wait. Four variants run one after the other:
//!
//! * *Without pauses* no fault lets a holder lose its lease, so a counter that is not atomic must be exact.
//! * *With pauses* holders lose leases, and are stopped between their check and their write. A register that refuses old
//!   fences must end at the number of writes that it accepted.
//! * *Without locks* every task acts as a holder of the keys that it asks for. The same checks must fail, or they check
//!   nothing.
//! * *Readers without locks*: only readers act so.
//!
//! `failovers.rs` has another variant, behind Sentinels, `clusters.rs` has two, on a cluster, and `quorums.rs` has one, on a
//! quorum of masters.
//!
//! `TENURE_TORTURE_SECONDS` is the length of the first two variants together, in rounds of at most a minute. `TENURE_SEED`
//! replays the schedule of faults of the first round.

mod clusters;
mod ears;
mod elections;
mod events;
mod failovers;
mod faults;
mod journal;
mod latches;
mod neighbours;
mod notes;
mod operator;
mod orders;
mod permits;
mod promotions;
mod quiet;
mod quorums;
mod referee;
mod register;
mod travel;
mod worker;

use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::help::Canary;
use crate::server::RedisServer;
use faults::{Fault, Faults, Nodes, WITH_PAUSES, WITHOUT_PAUSES};
use journal::now;
use operator::Operator;
use orders::{Locked, Orders, count, counter, name};
use referee::{Case, Findings, Tally, judge};

const NODES: usize = 4;
const KEYS: usize = 3;
/// The longest round. Journals are read at its end.
const ROUND: Duration = Duration::from_secs(60);

/// How late a process may note what happened, besides the stalls of this machine.
const LATENESS: Duration = Duration::from_millis(500);

/// Runs one torture at a time: concurrent ones would stall each other.
static TURN: Mutex<()> = Mutex::new(());

struct Variant {
    title: &'static str,
    locked: Locked,
    lease: Duration,
    faults: &'static [Fault],
    counter: bool,
    register: bool,
}

#[test]
fn torture_without_pauses() {
    let variant = Variant {
        title: "without pauses",
        locked: Locked::All,
        lease: Duration::from_secs(2),
        faults: WITHOUT_PAUSES,
        counter: true,
        register: false,
    };
    variant.rounds(asked().unwrap_or(Duration::from_secs(50)) / 2);
}

#[test]
fn torture_with_pauses() {
    let variant = Variant {
        title: "with pauses",
        locked: Locked::All,
        lease: Duration::from_secs(1),
        faults: WITH_PAUSES,
        counter: false,
        register: true,
    };
    variant.rounds(asked().unwrap_or(Duration::from_secs(50)) / 2);
}

/// The locks are switched off: every check must notice.
#[test]
fn torture_without_locks_is_noticed() {
    must_notice(
        "without locks",
        Locked::None,
        &[
            "two guards held at one instant",
            "a reader beside a writer",
            "what was read changed",
            "a fence that was there before",
            "a fence that does not grow",
            "a counter that is off",
            "refused by the register while held",
            "more permits than there are",
            "written when the lease was over",
            "a note that is off",
            "an observer goes back",
            "proclaimed by another",
            "told of zero too early",
            "one count-down told to two",
            "latches that were set twice",
            "count-downs that are missing",
        ],
    );
}

/// Only writers lock.
#[test]
fn torture_with_readers_without_locks_is_noticed() {
    let noticed = ["a reader beside a writer", "what was read changed"];
    let found = must_notice("readers without locks", Locked::Writers, &noticed);
    for fine in ["two guards held at one instant", "a counter that is off"] {
        assert!(!found.has(fine), "writers exclude each other:\n{found}");
    }
}

fn must_notice(title: &'static str, locked: Locked, noticed: &[&str]) -> Findings {
    let variant = Variant {
        title,
        locked,
        lease: Duration::from_secs(1),
        faults: &[],
        counter: true,
        register: locked == Locked::None,
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Findings::default();
    // A machine that stalled for most of a round gets another round.
    for round in 0..3 {
        let seed = seed().unwrap_or(1) + round;
        let (summary, findings) = variant.round(seed, Duration::from_secs(2));
        println!("{summary}");
        found.append(findings);
        if noticed.iter().all(|what| found.has(what)) {
            return found;
        }
    }
    panic!("not all of {noticed:?} were noticed:\n{found}");
}

fn asked() -> Option<Duration> {
    let seconds = std::env::var("TENURE_TORTURE_SECONDS").ok()?;
    Some(Duration::from_secs(
        seconds.parse().expect("TENURE_TORTURE_SECONDS is a number"),
    ))
}

fn seed() -> Option<u64> {
    let seed = std::env::var("TENURE_SEED").ok()?;
    Some(seed.parse().expect("TENURE_SEED is a number"))
}

impl Variant {
    /// Returns how long dead nodes may delay live ones: two leases, the margin and a timer.
    fn bound(&self) -> Duration {
        let margin = (self.lease / 10).max(Duration::from_millis(250));
        2 * self.lease + margin + self.lease / 3
    }

    fn rounds(&self, span: Duration) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let first = seed().unwrap_or_else(|| fastrand::u64(..1_000_000_000));
        let start = Instant::now();
        for round in 0.. {
            let left = span.saturating_sub(start.elapsed());
            if round > 0 && left < Duration::from_secs(10) {
                break;
            }
            let (summary, findings) = self.round(first + round, left.min(ROUND));
            println!("{summary}");
            assert!(
                findings.is_empty(),
                "torture {}, TENURE_SEED={}\n{findings}",
                self.title,
                first + round
            );
        }
    }

    fn round(&self, seed: u64, span: Duration) -> (String, Findings) {
        let dir = std::env::temp_dir().join(format!("tenure-torture-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the journals");
        let (canary, server) = (Canary::start(), RedisServer::start());
        let register = self.register.then(RedisServer::start);
        let orders = Orders {
            register: register.as_ref().map(RedisServer::url),
            counters: self.counter.then(|| dir.clone()),
            ..Orders::counting(&dir, seed, KEYS, self.lease, self.locked)
        };
        let mut nodes = Nodes::start(orders, dir.clone(), Some(&server), NODES);
        let mut findings = Findings::default();
        if !nodes.ready(Duration::from_secs(20)) {
            findings.add("worker", "not ready within 20 s".into());
        }
        let operator = (self.locked == Locked::All).then(|| Operator::start(&server, &dir));
        let began = now();
        let mut faults = Faults::new(&server, self.faults, seed, self.lease, self.bound());
        if self.faults.is_empty() {
            sleep(span);
        }
        faults.rage(&mut nodes, span);
        if self.locked == Locked::All {
            // All faults have ended: every caller gets its lock.
            sleep(self.bound() + canary.worst());
        }
        let run = (began, now());
        for text in nodes.finish(Duration::from_secs(30)) {
            findings.add("worker", text);
        }
        let seen = operator.map(Operator::finish);
        for fault in faults.missing() {
            findings.add("a fault that did not happen", format!("{fault:?}"));
        }
        if self.locked == Locked::All {
            self.leftovers(&server, &canary, &mut findings);
        }
        let stall = canary.worst();
        let counters = (0..KEYS).map(|key| count(&counter(&dir, key)));
        let case = Case {
            journals: nodes.journals.clone(),
            keys: KEYS,
            exclusive: (0..KEYS).chain([nodes.orders.election_key()]).collect(),
            run,
            troubles: std::mem::take(&mut faults.troubles),
            bound: self.bound() + 2 * stall + Duration::from_millis(250),
            promotions: Vec::new(),
            bare: Vec::new(),
            lateness: LATENESS + 2 * stall,
            harmless_stall: self.lease / 4,
            stalls: Vec::new(),
            lease: self.lease,
            losses: self.faults.contains(&Fault::Stop) || stall > self.lease / 4,
            counters: self.counter.then(|| counters.collect()),
            notes: (0..KEYS).map(|key| notes::written(&server, key)).collect(),
        };
        let (tally, found) = judge(&case);
        findings.append(found);
        if !self.faults.is_empty() && [tally.shared, tally.downgrades, tally.looks].contains(&0) {
            let text = format!(
                "{} shared, {} downgraded, {} read twice",
                tally.shared, tally.downgrades, tally.looks
            );
            findings.add("readers that did not happen", text);
        }
        if !self.faults.is_empty() && !tally.events.contains_key("quiet") {
            findings.add("gauges that were not compared", String::new());
        }
        let travelled = ["adopted", "gone"].map(|event| tally.events.contains_key(event));
        if !self.faults.is_empty() && travelled.contains(&false) {
            findings.add("leases that did not travel, or not twice", String::new());
        }
        if !self.faults.is_empty() && !tally.events.contains_key("neighbour") {
            findings.add("a second `Locks` that was never shut down", String::new());
        }
        let rest = [tally.notes, tally.latches_exact, tally.zeros, tally.leaders_seen];
        if !self.faults.is_empty() && rest.contains(&0) {
            let text = format!("notes, exact latches, zeros and leaders: {rest:?}");
            findings.add("primitives that were not used", text);
        }
        if let Some(register) = &register {
            self.registered(register, &tally, &mut findings);
        }
        let summary = self.summary(seed, began, &tally, &faults, stall, &nodes);
        if let Some(seen) = seen {
            seen.search(&dir, &[&summary, &findings.to_string()], &mut findings);
        }
        if self.locked == Locked::All && !findings.is_empty() {
            findings.add("where to look", dir.display().to_string());
        } else {
            let _ = std::fs::remove_dir_all(&dir);
        }
        (summary, findings)
    }

    /// Checks that only the clock and the writes of holders are left in Redis.
    fn leftovers(&self, server: &RedisServer, canary: &Canary, findings: &mut Findings) {
        self.leftovers_on(&[server], canary, findings);
    }

    /// Checks that only clocks and the writes of holders are left on the servers.
    fn leftovers_on(&self, servers: &[&RedisServer], canary: &Canary, findings: &mut Findings) {
        let (end, life) = (Instant::now() + self.bound(), latches::LIFE);
        let mut clients: Vec<_> = servers.iter().map(|server| server.client()).collect();
        loop {
            let keys = clients.iter_mut().flat_map(|client| {
                let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(client).expect("the keys");
                keys
            });
            let stays = [
                "tenure1:clock",
                "tenure1:run",
                "tenure1:longest",
                "tenure1:masters",
            ];
            let prefixes = ["tenure1:clock:{", "tenure1:epoch:", "tenure1:i:", notes::PREFIX];
            let is_left = |key: &String| {
                !stays.contains(&&**key) && !prefixes.iter().any(|prefix| key.starts_with(prefix))
            };
            let left: Vec<_> = keys.filter(is_left).collect();
            if left.is_empty() {
                return;
            }
            // Only latches still have a life before them.
            let is_of_latches = left.iter().all(|key| key.contains("tenure1:l:"));
            let life = if is_of_latches { life } else { Duration::ZERO };
            if Instant::now() > end + life + canary.worst() {
                return findings.add("left in Redis", format!("{left:?}"));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Checks that the register's values are the numbers of accepted writes. The journals have nearly all of these writes.
    fn registered(&self, register: &RedisServer, tally: &Tally, findings: &mut Findings) {
        let mut client = register.client();
        let mut sum = 0;
        for key in 0..KEYS {
            let fields: (Option<u64>, Option<u64>) = redis::cmd("HMGET")
                .arg(name(key))
                .arg(&["value", "accepted"])
                .query(&mut client)
                .expect("the register");
            let (value, accepted) = (fields.0.unwrap_or_default(), fields.1.unwrap_or_default());
            if value != accepted {
                findings.add(
                    "a register that is off",
                    format!("key {key}: {value} after {accepted} accepted writes"),
                );
            }
            sum += accepted;
        }
        // A writer may be killed between its write and the journal line.
        if !(tally.accepted..=tally.accepted + tally.unanswered).contains(&sum) {
            findings.add(
                "a register that is off",
                format!("{sum} accepted, {} of them known", tally.accepted),
            );
        }
    }

    fn summary(
        &self,
        seed: u64,
        began: u64,
        tally: &Tally,
        faults: &Faults<'_>,
        stall: Duration,
        nodes: &Nodes,
    ) -> String {
        let late = nodes
            .nodes
            .iter()
            .map(|node| node.proxy().counts().late.iter().sum::<u64>());
        let (late, processes) = (late.sum::<u64>(), nodes.journals.len());
        let took = Duration::from_nanos(now() - began).as_secs();
        let Tally {
            cycles,
            grants,
            hand_overs,
            lost,
            ..
        } = tally;
        format!(
            "torture {}: TENURE_SEED={seed}, {took} s, {processes} processes\n\
             \x20 {cycles} cycles, {grants} grants, {hand_overs} hand-overs between processes, {lost} lost\n\
             \x20 {} to read, {} beside another process, {} of them had written, {} read twice, up to {} permits at once\n\
             \x20 {} noted under the lease, {} refused, {} unanswered; {} latches ({} names with every answer), {} told of zero; \
             {} leaders seen\n\
             \x20 {} increments ({} killed half-way, {} too slow), {} writes accepted, {} refused\n\
             \x20 misses {:?}\n\x20 errors {:?}\n\x20 events {:?}\n\x20 faults {faults}; {} bytes late\n\
             \x20 largest stall {stall:?}, worst recovery {:?} (bound {:?} and twice the stall)",
            self.title,
            tally.reads,
            tally.shared,
            tally.downgrades,
            tally.looks,
            tally.most_permits,
            tally.notes,
            tally.notes_refused,
            tally.notes_unanswered,
            tally.latches,
            tally.latches_exact,
            tally.zeros,
            tally.leaders_seen,
            tally.increments,
            tally.ambiguous,
            tally.overruns,
            tally.accepted,
            tally.refused,
            tally.misses,
            tally.errors,
            tally.events,
            late,
            tally.worst_recovery,
            self.bound() + Duration::from_millis(250),
        )
    }
}
