//! The torture behind Sentinels: the nodes reach their servers without proxies, and masters are replaced.
//!
//! The referee judges all leases as in the other variants: no two holders, growing fences, exact counters. What else may
//! differ after a failover is in `promotions.rs`. After each failover two processes must hand over by push again, and in a
//! run nodes must assert leases that a new master lacks.
//!
//! Masters also return: a master is stopped, its successor grants and is killed, and the Sentinels promote the first again.
//! It was never demoted, so nothing at that server shows that there was another reign. A process that knows nothing starts
//! then. It must be told that the server recovers because of the Sentinels' epoch.
//!
//! `TENURE_FAILOVER_SECONDS` is the length of the run, with a failover every 20 s. Without it there are six: `kill -9` of a
//! master whose last grants no replica has, `SENTINEL FAILOVER`, and two masters that are stopped and return. `TENURE_SEED`
//! replays what the nodes draw.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::deployment::{Deployment, eventually, info, query};
use crate::help::{Canary, ms};
use crate::server::RedisServer;
use crate::torture::ears::{Ears, publish_keys};
use crate::torture::faults::{Nodes, holder, node_id};
use crate::torture::journal::now;
use crate::torture::orders::{Locked, Orders, count, counter};
use crate::torture::promotions::Promotion;
use crate::torture::referee::{Case, Findings, Scope, Tally, Trouble, judge};
use crate::torture::{KEYS, LATENESS, NODES, TURN, Variant, notes, seed};

/// The time from one failover to the next.
const PACE: Duration = Duration::from_secs(20);
/// Sentinels promote no replica that has lacked its master for 10 s. Mostly a long holding begins much earlier.
const LONGEST_CUT: Duration = Duration::from_secs(4);
/// A replica that was silent for two seconds does not count, and without a replica the master takes no writes.
const MAX_LAG: Duration = Duration::from_secs(2);
/// From the last answer of a master until a Sentinel tells of the next, if the first vote succeeds.
const LONGEST_SWITCH: Duration = Duration::from_secs(8);
/// From then until the next master grants: the recovery of 11.8 s, after the nodes have asked the Sentinels.
const LONGEST_RECOVERY: Duration = Duration::from_secs(15);
/// So many batches of the nodes contain claims of all their tasks.
const ENOUGH_SCRIPTS: u64 = 20;
/// The number of failovers in a run without a length: two masters return.
const LEAST_FAILOVERS: u32 = 6;
/// The same, if no lease is asserted.
const MOST_FAILOVERS: u32 = 8;
/// A holding that has lasted this long probably goes on.
const LONG_HOLDING: Duration = ms(200);

/// The way in which a master is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failover {
    /// `kill -9` of the master, with grants that no replica has. Mostly one of them is held for long, by a process that is
    /// stopped until the other nodes have asked the new master, and for half a lease at least.
    KillUnreplicated,
    /// `SENTINEL FAILOVER`.
    Planned,
    /// `kill -9` of the master.
    Kill,
    /// The process of the master is stopped.
    Stop,
    /// `kill -9` of the successor of a master that was stopped, which goes on and is promoted again.
    Return,
}

const FAILOVERS: [Failover; 7] = [
    Failover::KillUnreplicated,
    Failover::Stop,
    Failover::Return,
    Failover::Planned,
    Failover::Stop,
    Failover::Return,
    Failover::Kill,
];

#[test]
fn torture_with_failovers() {
    let variant = Variant {
        title: "with failovers",
        locked: Locked::All,
        // Leases outlive the election of a master, and its first replica.
        lease: Duration::from_secs(8),
        faults: &[],
        counter: true,
        register: false,
    };
    let span = std::env::var("TENURE_FAILOVER_SECONDS").ok();
    let span = span.map(|span| span.parse().expect("TENURE_FAILOVER_SECONDS is a number"));
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed().unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("torture {}: TENURE_SEED={seed}", variant.title);
    let (summary, findings) = variant.with_failovers(seed, span.map(Duration::from_secs));
    println!("{summary}");
    assert!(findings.is_empty(), "TENURE_SEED={seed}\n{summary}\n{findings}");
}

impl Variant {
    /// Runs the nodes through failovers, and judges the run.
    fn with_failovers(&self, seed: u64, span: Option<Duration>) -> (String, Findings) {
        let dir = std::env::temp_dir().join(format!("tenure-failovers-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the journals");
        let (canary, mut findings) = (Canary::start(), Findings::default());
        let mut scene = Scene::start(self, seed, &dir);
        if !scene.nodes.ready(Duration::from_secs(20)) {
            findings.add("worker", "not ready within 20 s".into());
        }
        scene.first_use();
        let began = now();
        scene.fail_over_repeatedly(span);
        let run = (began, now());
        for text in scene.nodes.finish(Duration::from_secs(60)) {
            findings.add("worker", text);
        }
        let last = &scene.deployment.servers[scene.deployment.master()];
        self.leftovers(last, &canary, &mut findings);
        let stall = canary.worst();
        scene.note_unplanned(stall);
        let case = self.case(&scene, run, stall);
        let (tally, found) = judge(&case);
        findings.append(found);
        let used = [
            tally.shared,
            tally.downgrades,
            tally.looks,
            tally.notes,
            tally.zeros,
            tally.leaders_seen,
        ];
        if used.contains(&0) {
            findings.add("primitives that were not used", format!("{used:?}"));
        }
        if scene.asserted() == 0 {
            findings.add("no lease was asserted", String::new());
        }
        for causes in scene.causes_of_returns() {
            if causes.iter().any(|cause| cause != "epoch") {
                findings.add(
                    "a master returned and not because of the epoch",
                    format!("{causes:?}"),
                );
            }
        }
        let summary = scene.summary(self, &case, &tally, stall);
        if findings.is_empty() {
            let _ = std::fs::remove_dir_all(&dir);
        } else {
            findings.add("where to look", dir.display().to_string());
        }
        (summary, findings)
    }

    fn case(&self, scene: &Scene, run: (u64, u64), stall: Duration) -> Case {
        let orders = &scene.nodes.orders;
        let counters = orders.counters.as_ref().expect("counters");
        let counters = (0..KEYS).map(|key| count(&counter(counters, key)));
        let last = &scene.deployment.servers[scene.deployment.master()];
        let trouble = |promotion: &Promotion| Trouble {
            from: promotion.from,
            to: promotion.to,
            scope: Scope::All,
        };
        Case {
            journals: scene.nodes.journals.clone(),
            keys: KEYS,
            exclusive: (0..KEYS).chain([orders.election_key()]).collect(),
            run,
            troubles: scene.promotions.iter().map(trouble).collect(),
            promotions: scene.promotions.clone(),
            bare: Vec::new(),
            lateness: LATENESS + 2 * stall,
            bound: self.bound() + 2 * stall + ms(250),
            harmless_stall: self.lease / 4,
            stalls: Vec::new(),
            lease: self.lease,
            losses: stall > self.lease / 4,
            counters: Some(counters.collect()),
            notes: (0..KEYS).map(|key| notes::written(last, key)).collect(),
        }
    }
}

struct Scene {
    // The nodes end before their servers.
    nodes: Nodes,
    ears: Ears,
    deployment: Deployment,
    /// The master that is stopped, and the first write that it lacks.
    stopped: Option<(usize, u64)>,
    promotions: Vec<Promotion>,
    /// The number of promotions that the test did not cause.
    unplanned: u32,
    reports: Vec<Report>,
}

/// What happened at a failover.
struct Report {
    failover: Failover,
    /// From its begin until the Sentinels agree on the new master, and until that grants.
    promoted: Duration,
    granting: Duration,
    /// Records that nodes wrote again.
    asserted: usize,
    /// Grants that were pushed after that, until two processes had one.
    pushes: usize,
    /// Why the server recovered, as a process was told that knew nothing.
    causes: Vec<String>,
}

impl Scene {
    /// Starts the servers and the nodes.
    fn start(variant: &Variant, seed: u64, dir: &Path) -> Scene {
        let deployment = Deployment::of_two_masters();
        deployment.servers.iter().for_each(publish_keys);
        let orders = Orders {
            sentinels: deployment.urls(),
            ..Orders::counting(dir, seed, KEYS, variant.lease, variant.locked)
        };
        Scene {
            ears: Ears::on(deployment.servers.iter().chain(&deployment.sentinels)),
            nodes: Nodes::start(orders, dir.to_owned(), None, NODES),
            deployment,
            stopped: None,
            promotions: Vec::new(),
            unplanned: 0,
            reports: Vec::new(),
        }
    }

    /// Waits until the nodes use the first master. The first use of a server is a recovery, too.
    fn first_use(&mut self) {
        let from = now();
        self.until_granting();
        let to = now();
        self.promotions.push(Promotion {
            unreplicated: from,
            from,
            to,
        });
        self.until_pushed(to);
    }

    /// Replaces masters for this span, or six times. More failovers follow if no lease was asserted: an election with a second
    /// vote outlasts all leases.
    fn fail_over_repeatedly(&mut self, span: Option<Duration>) {
        let start = Instant::now();
        for n in 0.. {
            let is_over = match span {
                Some(span) => start.elapsed() >= span,
                None => n >= LEAST_FAILOVERS && self.asserted() > 0 || n == MOST_FAILOVERS,
            };
            if is_over && self.stopped.is_none() {
                return;
            }
            if span.is_some() {
                let next = start + PACE * n;
                sleep(next.saturating_duration_since(Instant::now()));
            }
            self.fail_over(FAILOVERS[n as usize % FAILOVERS.len()]);
        }
    }

    fn fail_over(&mut self, failover: Failover) {
        let returning = self.stopped.take();
        if returning.is_none() {
            self.deployment.settle();
        }
        let unreplicated = now() - MAX_LAG.as_nanos() as u64;
        let held_by = match failover {
            Failover::KillUnreplicated => self.hold_unreplicated(),
            Failover::Planned | Failover::Kill | Failover::Stop | Failover::Return => None,
        };
        // A server that is stopped does not say how many scripts it ran.
        let held_by = held_by.map(|node| (node, self.scripts()));
        let from = now();
        let since = || Duration::from_nanos(now() - from);
        let old = match failover {
            Failover::KillUnreplicated | Failover::Kill => self.deployment.kill_master(),
            Failover::Planned => self.deployment.fail_over(),
            Failover::Stop => self.deployment.stop_master(),
            Failover::Return => self
                .deployment
                .return_master(returning.expect("a master is stopped").0),
        };
        if failover == Failover::KillUnreplicated {
            self.deployment.heal_replication();
        }
        self.deployment.promoted(old);
        let promoted = since();
        if let Some((node, before)) = held_by {
            self.until_asked(&before);
            // The lease was renewed at most a third of it before the kill, so it goes on for another moment.
            sleep((self.nodes.orders.lease / 2).saturating_sub(since()));
            self.nodes.resume(node);
        }
        let causes = match failover {
            Failover::Return => self.causes_told_to_another_node(),
            _ => Vec::new(),
        };
        let new = self.until_granting();
        let granting = since();
        let to = now();
        self.promotions.push(Promotion {
            // A master that returns lacks all that was written since it was stopped.
            unreplicated: returning.map_or(unreplicated, |(_, since)| since),
            from,
            to,
        });
        let asserted = self.ears.asserted(new, from, to);
        let pushes = self.until_pushed(to);
        self.reports.push(Report {
            failover,
            promoted,
            granting,
            asserted,
            pushes,
            causes,
        });
        match failover {
            Failover::Planned => {}
            Failover::Stop => self.stopped = Some((old, unreplicated)),
            Failover::KillUnreplicated | Failover::Kill | Failover::Return => {
                self.deployment.rejoin(old);
                publish_keys(&self.deployment.servers[old]);
            }
        }
    }

    /// Kills a node, and starts another in its place, which knows nothing. Returns why the server recovers, as the new node
    /// is told.
    fn causes_told_to_another_node(&mut self) -> Vec<String> {
        let journal = self.nodes.replace(self.promotions.len() % NODES);
        eventually("the node is told of the recovery", || {
            let text = std::fs::read_to_string(&journal).ok()?;
            let told = text
                .lines()
                .filter(|line| line.contains(" event server_recovering "));
            let causes =
                told.filter_map(|line| Some(line.split_once("why=\"")?.1.trim_end_matches('"').to_owned()));
            let causes: Vec<String> = causes.collect();
            (!causes.is_empty()).then_some(causes)
        })
    }

    /// Returns why the server recovered, for each master that returned.
    fn causes_of_returns(&self) -> Vec<&[String]> {
        let returns = self
            .reports
            .iter()
            .filter(|report| report.failover == Failover::Return);
        returns.map(|report| &*report.causes).collect()
    }

    /// Stops replication, waits until a holding that no replica knows probably goes on, and stops the process that holds.
    /// Returns which node that is. Sometimes there is no such holding, or a neighbour has it.
    fn hold_unreplicated(&self) -> Option<usize> {
        self.deployment.cut_replication();
        let server = &self.deployment.servers[self.deployment.master()];
        let (known, end) = (holder(server), Instant::now() + LONGEST_CUT);
        let node = eventually("a holding that no replica knows", || {
            let holds = holder(server).filter(|holder| known.as_ref() != Some(holder));
            sleep(LONG_HOLDING);
            let holds = holds.filter(|holds| holder(server).as_ref() == Some(holds));
            let node = holds.and_then(|holds| self.nodes.owner(&holds));
            (node.is_some() || Instant::now() > end).then_some(node)
        })?;
        self.nodes.stop(node);
        Some(node)
    }

    /// Returns how many scripts each server has run. Replicas run none.
    fn scripts(&self) -> Vec<u64> {
        let servers = self.deployment.servers.iter();
        servers
            .map(|server| scripts(server).unwrap_or_default())
            .collect()
    }

    /// Waits until other nodes have asked the new master for what the stopped node holds.
    fn until_asked(&self, before: &[u64]) {
        eventually("the nodes use the new master", || {
            let master = self.deployment.agreed()?;
            let scripts = scripts(&self.deployment.servers[master])?;
            (scripts >= before[master] + ENOUGH_SCRIPTS).then_some(())
        });
    }

    /// Notes the promotions that the test did not cause. If this machine stalls, Sentinels take a master for dead.
    fn note_unplanned(&mut self, stall: Duration) {
        let ns = |span: Duration| span.as_nanos() as u64;
        for at in self.ears.switches() {
            let is_known = |known: &Promotion| known.from <= at && at < known.to + ns(LATENESS + 2 * stall);
            if self.promotions.iter().any(is_known) {
                continue;
            }
            let from = at.saturating_sub(ns(LONGEST_SWITCH));
            self.unplanned += 1;
            self.promotions.push(Promotion {
                unreplicated: from - ns(MAX_LAG),
                from,
                to: at + ns(LONGEST_RECOVERY),
            });
        }
        self.promotions.sort_by_key(|promotion| promotion.from);
    }

    fn asserted(&self) -> usize {
        self.reports.iter().map(|report| report.asserted).sum()
    }

    /// Waits until a node has compared the runs of the master, and its recovery is over. Returns that server.
    fn until_granting(&self) -> usize {
        eventually("the server grants", || {
            let master = self.deployment.agreed()?;
            let server = &self.deployment.servers[master];
            let run = format!("{}:{}", info(server, "run_id"), info(server, "master_replid"));
            let recorded = query::<Option<String>>(server, &["GET", "tenure1:run"]).ok()??;
            let recovers = query::<u8>(server, &["EXISTS", "tenure1:recovering"]).ok()?;
            (recorded == run && recovers == 0).then_some(master)
        })
    }

    /// Waits until two of the processes are told of grants by the master. Returns the number of all such messages.
    fn until_pushed(&mut self, since: u64) -> usize {
        let nodes: BTreeSet<String> = self
            .nodes
            .journals
            .iter()
            .filter_map(|(_, path)| node_id(path))
            .collect();
        eventually("two processes hand over by push", || {
            let pushes = self.ears.pushes(self.deployment.agreed()?, since);
            let told: BTreeSet<&String> = pushes.iter().filter(|node| nodes.contains(*node)).collect();
            (told.len() >= 2).then_some(pushes.len())
        })
    }

    fn summary(&self, variant: &Variant, case: &Case, tally: &Tally, stall: Duration) -> String {
        let reports = self.reports.iter().map(|report| {
            let Report {
                failover,
                promoted,
                granting,
                asserted,
                pushes,
                causes,
            } = report;
            format!(
                "\n\x20 {failover:?}: promoted after {promoted:?}, granting after {granting:?} {causes:?}; {asserted} \
                 asserted, then {pushes} grants pushed"
            )
        });
        let (seed, asserted, run) = (self.nodes.orders.seed, self.asserted(), case.run);
        format!(
            "torture {}: TENURE_SEED={seed}, {} s, {} processes{}\n\
             \x20 {} grants, {} hand-overs between processes, {asserted} assertions, \
             {} lost, longest pause {:?}\n\
             \x20 {} increments, {} shared, {} downgraded, {} noted, {} latches, {} told of zero, {} leaders seen\n\
             \x20 misses {:?}\n\x20 errors {:?}\n\x20 events {:?}\n\
             \x20 largest stall {stall:?}, worst recovery {:?}, {} other promotions",
            variant.title,
            Duration::from_nanos(run.1 - run.0).as_secs(),
            self.nodes.journals.len(),
            reports.collect::<String>(),
            tally.grants,
            tally.hand_overs,
            tally.lost,
            tally.longest_pause,
            tally.increments,
            tally.shared,
            tally.downgrades,
            tally.notes,
            tally.latches,
            tally.zeros,
            tally.leaders_seen,
            tally.misses,
            tally.errors,
            tally.events,
            tally.worst_recovery,
            self.unplanned,
        )
    }
}

/// Returns how many scripts the server has run. Replicas run none.
fn scripts(server: &RedisServer) -> Option<u64> {
    let stats: String = query(server, &["INFO", "commandstats"]).ok()?;
    let calls = stats.split_once("cmdstat_evalsha:calls=")?.1;
    calls.split(',').next()?.parse().ok()
}
