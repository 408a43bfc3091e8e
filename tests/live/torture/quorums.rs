//! The torture on a quorum of five masters: the nodes reach them without proxies, while masters are killed and start again
//! empty.
//!
//! Two of the five at a time have no vote, and so the other three can grant: no lease may be lost that is on all of the three,
//! and no two seconds may pass without a grant. A lease that the two gave together with one or two others needs a renewal that
//! reaches the rest, where a rival's claim may have the record at that moment. Three other faults explain that a lease is lost,
//! but never two holders, a fence that does not grow, or a counter that is off:
//!
//! * *In a row*: the next two are killed as soon as the two before them vote, when no renewal may have reached these.
//! * *Freeze*: two masters are stopped, and continue. Rivals keep records on other masters while they wait for these two.
//! * *Majority*: three to five are killed at once, while a process with a long holding is stopped, which continues before
//!   its lease ends. Until three vote again, no grant is expected.
//!
//! Left out is what a quorum does not serve: readers, permits, the election, latches, transfers and guarded writes.
//!
//! `TENURE_QUORUM_SECONDS` is the length of the run, 40 by default.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::help::{Canary, ms};
use crate::masters::Masters;
use crate::torture::faults::Nodes;
use crate::torture::journal::now;
use crate::torture::orders::{LONG, Locked, Orders, count, counter, name};
use crate::torture::promotions::Promotion;
use crate::torture::referee::{BareMajority, Case, Findings, Scope, Tally, Trouble, judge};
use crate::torture::{KEYS, LATENESS, NODES, TURN, Variant, seed};

const MASTERS: usize = 5;
/// The length of a run in seconds.
const SECONDS: u64 = 40;
/// The longest time without a grant while a majority can vote.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The way in which masters lose their votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Two are killed. Others are killed when both vote again, and have the record of each lease.
    Kill,
    /// Two are killed, and then two others as soon as the first two vote again.
    InARow,
    /// Two are stopped, and continue.
    Freeze,
    /// A majority is killed, while a holder is stopped, mostly. The holder continues before its lease ends.
    Majority,
}

/// A holding that has lasted this long probably goes on.
const LONG_HOLDING: Duration = ms(100);
/// Mostly a long holding begins earlier.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

const FAULTS: [Fault; 8] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::InARow,
    Fault::Freeze,
    Fault::Majority,
    Fault::Majority,
];

#[test]
fn torture_on_a_quorum() {
    let variant = Variant {
        title: "on a quorum",
        locked: Locked::All,
        // The recovery of a master is as long.
        lease: Duration::from_secs(1),
        faults: &[],
        counter: true,
        register: false,
    };
    let span = std::env::var("TENURE_QUORUM_SECONDS").ok();
    let span = span.map_or(SECONDS, |span| {
        span.parse().expect("TENURE_QUORUM_SECONDS is a number")
    });
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed().unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("torture {}: TENURE_SEED={seed}", variant.title);
    let (summary, findings) = variant.on_quorum(seed, Duration::from_secs(span));
    println!("{summary}");
    assert!(findings.is_empty(), "TENURE_SEED={seed}\n{findings}");
}

impl Variant {
    /// Runs the nodes through the faults of the masters, and judges them.
    fn on_quorum(&self, seed: u64, span: Duration) -> (String, Findings) {
        let dir = std::env::temp_dir().join(format!("tenure-quorum-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the journals");
        let canary = Canary::start();
        let mut scene = Scene::start(seed, self.lease);
        let orders = Orders {
            quorum: scene.masters.urls(),
            ..Orders::counting(&dir, seed, KEYS, self.lease, self.locked)
        };
        let mut nodes = Nodes::start(orders, dir.clone(), None, NODES);
        let mut findings = Findings::default();
        if !nodes.ready(Duration::from_secs(20)) {
            findings.add("worker", "not ready within 20 s".into());
        }
        // The first use of a master is a recovery, too.
        scene.masters.until_votes(&scene.masters.all());
        let began = now();
        scene.explains_losses(scene.began);
        scene.rage(&nodes, span);
        // Every caller gets its lock.
        sleep(self.bound() + canary.worst());
        let run = (began, now());
        for text in nodes.finish(Duration::from_secs(60)) {
            findings.add("worker", text);
        }
        let masters: Vec<_> = scene.masters.0.iter().collect();
        self.leftovers_on(&masters, &canary, &mut findings);
        let stall = canary.worst();
        let counters = (0..KEYS).map(|key| count(&counter(&dir, key)));
        let case = Case {
            journals: nodes.journals.clone(),
            keys: KEYS,
            exclusive: (0..KEYS).collect(),
            run,
            troubles: std::mem::take(&mut scene.outages),
            bound: self.bound() + 2 * stall + ms(250),
            harmless_stall: self.lease / 4,
            stalls: Vec::new(),
            lease: self.lease,
            losses: stall > self.lease / 4,
            promotions: std::mem::take(&mut scene.explained),
            bare: std::mem::take(&mut scene.bare),
            lateness: LATENESS + 2 * stall,
            counters: Some(counters.collect()),
            notes: vec![Vec::new(); KEYS],
        };
        let (tally, found) = judge(&case);
        findings.append(found);
        let pauses = pauses(&case);
        for (pause, since) in pauses
            .iter()
            .filter(|(pause, _)| *pause > LONGEST_PAUSE + 2 * stall)
        {
            let text = format!("none for {pause:?} since {since:?}");
            findings.add("no grant although a majority can vote", text);
        }
        if !tally.events.contains_key("neighbour") {
            findings.add("a second `Locks` that was never shut down", String::new());
        }
        let summary = self.quorum_summary(&scene, &case, &tally, &pauses, stall);
        if findings.is_empty() {
            let _ = std::fs::remove_dir_all(&dir);
        } else {
            findings.add("where to look", dir.display().to_string());
        }
        (summary, findings)
    }

    fn quorum_summary(
        &self,
        scene: &Scene,
        case: &Case,
        tally: &Tally,
        pauses: &[(Duration, Duration)],
        stall: Duration,
    ) -> String {
        format!(
            "torture {}: {} s, {} processes\n\
             \x20 {} grants, {} hand-overs between processes, {} kills, faults {:?} ({} holders stopped), {} lost, \
             longest pause with a majority {:?}\n\
             \x20 {} increments\n\x20 misses {:?}\n\x20 errors {:?}\n\x20 events {:?}\n\
             \x20 largest stall {stall:?}, worst recovery {:?} (bound {:?})",
            self.title,
            Duration::from_nanos(case.run.1 - case.run.0).as_secs(),
            case.journals.len(),
            tally.grants,
            tally.hand_overs,
            scene.kills,
            scene.counts,
            scene.stopped,
            tally.lost,
            pauses.iter().max().expect("the whole run is one"),
            tally.increments,
            tally.misses,
            tally.errors,
            tally.events,
            tally.worst_recovery,
            case.bound,
        )
    }
}

/// Returns the times without a grant while a majority could vote, and when each began.
fn pauses(case: &Case) -> Vec<(Duration, Duration)> {
    let texts = case
        .journals
        .iter()
        .map(|(_, path)| std::fs::read_to_string(path));
    let texts: Vec<String> = texts.collect::<Result<_, _>>().expect("the journals");
    let lines = texts.iter().flat_map(|text| text.lines());
    let grants = lines.filter_map(|line| line.split_once(" granted ")?.0.parse().ok());
    let grants = grants.map(|at: u64| (at, at));
    // Between the end of one of these and the begin of the next a grant is missing.
    let outages = case.troubles.iter().map(|trouble| (trouble.from, trouble.to));
    let (began, ended) = case.run;
    let mut spans: Vec<_> = grants
        .chain(outages)
        .chain([(began, began), (ended, ended)])
        .collect();
    spans.sort_unstable();
    let mut last = began;
    let mut pauses = Vec::new();
    for (from, to) in spans
        .into_iter()
        .filter(|(from, _)| (began..=ended).contains(from))
    {
        let pause = Duration::from_nanos(from.saturating_sub(last));
        pauses.push((pause, Duration::from_nanos(last - began)));
        last = last.max(to);
    }
    pauses
}

struct Scene {
    masters: Masters,
    lease: Duration,
    rng: fastrand::Rng,
    /// When the masters were started.
    began: u64,
    counts: BTreeMap<Fault, u64>,
    kills: usize,
    /// How often a holder was stopped, so that it did not renew its lease when masters had lost it.
    stopped: usize,
    /// When no majority could vote.
    outages: Vec<Trouble>,
    /// When a lease may be lost.
    explained: Vec<Promotion>,
    /// When a lease on a key may be lost, after two masters were killed.
    bare: Vec<BareMajority>,
}

impl Scene {
    fn start(seed: u64, lease: Duration) -> Scene {
        Scene {
            began: now(),
            masters: Masters::start(MASTERS),
            lease,
            rng: fastrand::Rng::with_seed(seed),
            counts: BTreeMap::new(),
            kills: 0,
            stopped: 0,
            outages: Vec::new(),
            explained: Vec::new(),
            bare: Vec::new(),
        }
    }

    /// Causes faults for that long, and until each kind has happened.
    fn rage(&mut self, nodes: &Nodes, span: Duration) {
        let end = Instant::now() + span;
        let mut deck = Vec::new();
        while Instant::now() < end || FAULTS.iter().any(|fault| !self.counts.contains_key(fault)) {
            if deck.is_empty() {
                deck = FAULTS.to_vec();
                self.rng.shuffle(&mut deck);
            }
            let fault = deck.pop().expect("just filled");
            let mut masters: Vec<usize> = (0..MASTERS).collect();
            self.rng.shuffle(&mut masters);
            self.cause(fault, &masters, nodes);
            *self.counts.entry(fault).or_default() += 1;
            // Sometimes the next fault follows at once.
            let quiet = self.rng.u64(..4_000).saturating_sub(1_500);
            sleep(ms(quiet));
        }
    }

    /// Waits until a holding probably goes on. Returns its owner. Sometimes there is no such holding.
    fn until_held_for_long(&self) -> Option<String> {
        let record = format!("lock:{}", name(LONG));
        let end = Instant::now() + LONGEST_WAIT;
        while Instant::now() < end {
            let owner = self.masters.owner_by_majority(&record);
            sleep(LONG_HOLDING);
            if owner.is_some() && owner == self.masters.owner_by_majority(&record) {
                return owner;
            }
        }
        None
    }

    /// Causes a fault of the first of these masters.
    fn cause(&mut self, fault: Fault, masters: &[usize], nodes: &Nodes) {
        let owner = match fault {
            Fault::InARow | Fault::Majority => self.until_held_for_long(),
            Fault::Kill | Fault::Freeze => None,
        };
        let from = now();
        match fault {
            Fault::Kill => {
                let dead = ms(self.rng.u64(..5_000).saturating_sub(2_500));
                self.kill(&masters[..2], dead);
                self.until_on_all(from, &masters[2..]);
                sleep(dead);
                self.restart(&masters[..2]);
                self.masters.until_votes(&masters[..2]);
            }
            Fault::InARow => {
                for pair in [&masters[..2], &masters[2..4]] {
                    self.kill_and_restart(pair, Duration::ZERO);
                    self.masters.until_votes(pair);
                }
            }
            Fault::Freeze => {
                let span = self.lease.mul_f64(0.25 + 2.0 * self.rng.f64());
                masters[..2].iter().for_each(|at| self.masters.0[*at].freeze());
                sleep(span);
                masters[..2].iter().for_each(|at| self.masters.0[*at].thaw());
            }
            Fault::Majority => {
                let many = self.rng.usize(self.masters.majority()..=MASTERS);
                let dead = self.rng.u64(..3_000).saturating_sub(2_000);
                let holder = owner.and_then(|owner| nodes.owner(&owner));
                self.stopped += usize::from(holder.is_some());
                holder.inspect(|node| nodes.stop(*node));
                self.kill_and_restart(&masters[..many], ms(dead));
                // The lease was renewed at most a third of it before, so it goes on for another moment.
                let since = Duration::from_nanos(now() - from);
                sleep((self.lease / 2).saturating_sub(since));
                holder.inspect(|node| nodes.resume(*node));
                self.masters.until_votes(&masters[..many]);
                let scope = Scope::All;
                let to = now();
                self.outages.push(Trouble { from, to, scope });
            }
        }
        if fault != Fault::Kill {
            self.explains_losses(from);
        }
        for key in 0..KEYS {
            let record = format!("lock:{}", name(key));
            self.masters.until_renewed(&record, masters);
        }
    }

    /// Kills masters, and starts them again empty.
    fn kill_and_restart(&mut self, masters: &[usize], dead: Duration) {
        self.kill(masters, dead);
        sleep(dead);
        self.restart(masters);
    }

    fn kill(&mut self, masters: &[usize], dead: Duration) {
        for at in masters {
            self.masters.0[*at].kill();
            // Sometimes a claim is between the two.
            sleep(dead.mul_f64(0.2 * self.rng.f64()));
        }
        self.kills += masters.len();
    }

    fn restart(&mut self, masters: &[usize]) {
        masters.iter().for_each(|at| self.masters.0[*at].restart());
    }

    /// Waits until each key is seen with one owner on all of these masters, or on none: every lease that another master gave,
    /// too, is on all of them or is over.
    fn until_on_all(&mut self, from: u64, masters: &[usize]) {
        for key in 0..KEYS {
            let record = format!("lock:{}", name(key));
            let end = Instant::now() + 2 * self.lease;
            let owners = || masters.iter().map(|at| self.masters.owner(*at, &record));
            while !owners().is_sorted_by(PartialEq::eq) && Instant::now() < end {
                sleep(ms(1));
            }
            let to = now();
            self.bare.push(BareMajority { key, from, to });
        }
    }

    /// Notes that the faults since then explain a loss until now.
    fn explains_losses(&mut self, from: u64) {
        let (unreplicated, to) = (from, now());
        self.explained.push(Promotion {
            unreplicated,
            from,
            to,
        });
    }
}
