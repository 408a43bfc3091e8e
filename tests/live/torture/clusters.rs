//! The torture on a cluster: the nodes reach its servers without proxies, while the slots of their keys move to and fro,
//! and then masters are killed.
//!
//! * *With moves* no lease may be lost, every caller gets its lock after a move, and the counter that is not atomic must
//!   be exact. Slots move at once, or stay half moved for up to two leases, with their keys at the source or at the target.
//!   Replicas are not promoted. Only a server or a process that is too slow for three round trips in a quarter of a lease
//!   explains a loss.
//! * *With kills* slots move, too, and now and then the master of the key with long holdings is killed. The node timeout is
//!   longer than a lease and its margin, so every earlier lease has ended when the replica is promoted. Leases, notes,
//!   latch counts and proclaimed values may be lost with a master. The rest is judged as in all variants.
//!
//! The lists of guarded writes are in the slots of their locks, and the latches are in the slot of the semaphore and the
//! election. They move with these. Left out are faults of connections, because a proxy cannot be between a node and a
//! cluster, whose servers announce their own addresses. The locks that `neighbours.rs` uses alone stay where they are.
//!
//! `TENURE_CLUSTER_SECONDS` is the length of both variants together, with a kill every 20 s in the second half. Without it
//! there is one kill.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, SlotMove};
use crate::deployment::query;
use crate::help::{Canary, ms};
use crate::torture::faults::Nodes;
use crate::torture::journal::now;
use crate::torture::orders::{LONG, Locked, Orders, SEMAPHORE, count, counter, name};
use crate::torture::promotions::Promotion;
use crate::torture::referee::{Case, Findings, Scope, Tally, Trouble, judge};
use crate::torture::{KEYS, LATENESS, NODES, TURN, Variant, notes, seed};

/// The time from one kill to the next.
const PACE: Duration = Duration::from_secs(20);

/// The way in which a slot moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    /// At once.
    Whole,
    /// It stays half moved for a while, with its keys at the source.
    HalfAtSource,
    /// It stays half moved for a while, with its keys at the target.
    HalfAtTarget,
}

const MOVES: [Move; 3] = [Move::Whole, Move::HalfAtSource, Move::HalfAtTarget];

#[test]
fn torture_on_a_cluster() {
    let variant = |title, lease| Variant {
        title,
        locked: Locked::All,
        lease,
        faults: &[],
        counter: true,
        register: false,
    };
    let span = std::env::var("TENURE_CLUSTER_SECONDS").ok();
    let span = span.map(|span| {
        let seconds: u64 = span.parse().expect("TENURE_CLUSTER_SECONDS is a number");
        Duration::from_secs(seconds) / 2
    });
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed().unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let mut scene = Scene::start(seed);
    scene
        .cluster
        .tell_all(&["CONFIG", "SET", "cluster-node-timeout", "15000"]);
    scene
        .cluster
        .tell_all(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    let moves = variant("on a cluster, with moves", Duration::from_secs(2));
    moves.on_cluster(&mut scene, seed, |scene, _| {
        scene.moves(span.unwrap_or(Duration::from_secs(9)));
    });
    scene.forget();
    scene
        .cluster
        .tell_all(&["CONFIG", "SET", "cluster-node-timeout", "2000"]);
    scene
        .cluster
        .tell_all(&["CONFIG", "SET", "cluster-replica-no-failover", "no"]);
    let kills = variant("on a cluster, with kills", Duration::from_secs(1));
    kills.on_cluster(&mut scene, seed + 1, |scene, lease| {
        let start = Instant::now();
        for n in 1.. {
            scene.moves(ms(1_500));
            let killed = scene.kill(lease);
            scene.moves(ms(1_500));
            let Some(span) = span else { return };
            scene.cluster.rejoin(killed);
            if start.elapsed() + PACE / 2 >= span {
                return;
            }
            scene.moves((PACE * n).saturating_sub(start.elapsed()));
        }
    });
}

impl Variant {
    /// Runs the nodes through what happens to the cluster, and judges them.
    fn on_cluster(&self, scene: &mut Scene, seed: u64, happens: impl FnOnce(&mut Scene, Duration)) {
        let dir = std::env::temp_dir().join(format!("tenure-cluster-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the journals");
        let mut canary = Canary::start();
        (0..scene.cluster.size()).for_each(|at| canary.watch(scene.cluster.server(at)));
        let orders = Orders {
            cluster: scene.cluster.urls(),
            ..Orders::counting(&dir, seed, KEYS, self.lease, self.locked)
        };
        let mut nodes = Nodes::start(orders, dir.clone(), None, NODES);
        let mut findings = Findings::default();
        if !nodes.ready(Duration::from_secs(20)) {
            findings.add("worker", "not ready within 20 s".into());
        }
        let began = now();
        scene.lease = self.lease;
        happens(scene, self.lease);
        // Every caller gets its lock.
        sleep(self.bound() + canary.worst());
        let run = (began, now());
        for text in nodes.finish(Duration::from_secs(60)) {
            findings.add("worker", text);
        }
        let cluster = &scene.cluster;
        let masters: Vec<_> = cluster
            .masters()
            .into_iter()
            .map(|at| cluster.server(at))
            .collect();
        self.leftovers_on(&masters, &canary, &mut findings);
        let (stall, slowest) = (canary.worst(), canary.slowest_answer());
        // A renewal needs up to three round trips while its slot moves, in a quarter of its lease.
        let harmless_stall = self.lease / 12;
        let counters = (0..KEYS).map(|key| count(&counter(&dir, key)));
        let promotions = std::mem::take(&mut scene.promotions);
        let case = Case {
            journals: nodes.journals.clone(),
            keys: KEYS,
            exclusive: (0..KEYS).chain([nodes.orders.election_key()]).collect(),
            run,
            troubles: std::mem::take(&mut scene.troubles),
            bound: self.bound() + 2 * stall + ms(250),
            losses: !promotions.is_empty(),
            harmless_stall,
            stalls: canary.stalls(harmless_stall),
            lease: self.lease,
            promotions,
            bare: Vec::new(),
            lateness: LATENESS + 2 * stall,
            counters: Some(counters.collect()),
            notes: (0..KEYS).map(|key| scene.notes(key)).collect(),
        };
        let (tally, found) = judge(&case);
        findings.append(found);
        let moves = std::mem::take(&mut scene.count);
        let used = [
            tally.shared,
            tally.downgrades,
            tally.looks,
            tally.notes,
            tally.zeros,
            tally.leaders_seen,
        ];
        if used.contains(&0) || MOVES.iter().any(|kind| !moves.contains_key(kind)) {
            let text = format!("{used:?} {moves:?}");
            findings.add(
                "primitives that were not used, or moves that did not happen",
                text,
            );
        }
        println!(
            "{}",
            self.cluster_summary(seed, &case, &tally, &moves, [stall, slowest])
        );
        if findings.is_empty() {
            let _ = std::fs::remove_dir_all(&dir);
        } else {
            findings.add("where to look", dir.display().to_string());
        }
        assert!(
            findings.is_empty(),
            "torture {}, TENURE_SEED={seed}\n{findings}",
            self.title
        );
    }

    fn cluster_summary(
        &self,
        seed: u64,
        case: &Case,
        tally: &Tally,
        moves: &BTreeMap<Move, u64>,
        [stall, slowest]: [Duration; 2],
    ) -> String {
        let span = |(from, to): &(u64, u64)| Duration::from_nanos(to - from);
        format!(
            "torture {}: TENURE_SEED={seed}, {} s, {} processes\n\
             \x20 {} grants, {} hand-overs between processes, moves {moves:?}, promotions after {:?}, {} lost, \
             longest pause {:?}\n\
             \x20 {} increments, {} shared, {} downgraded, {} noted, {} latches, {} told of zero, {} leaders seen\n\
             \x20 misses {:?}\n\x20 errors {:?}\n\x20 events {:?}\n\
             \x20 largest stall {stall:?}, slowest answer {slowest:?}, worst recovery {:?} (bound {:?})",
            self.title,
            span(&case.run).as_secs(),
            case.journals.len(),
            tally.grants,
            tally.hand_overs,
            case.promotions
                .iter()
                .map(|promotion| span(&(promotion.from, promotion.to)))
                .collect::<Vec<_>>(),
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
            case.bound,
        )
    }
}

struct Scene {
    cluster: Cluster,
    /// The slots of the torture's keys: each with the key whose guards are judged.
    slots: Vec<(usize, u16)>,
    rng: fastrand::Rng,
    lease: Duration,
    count: BTreeMap<Move, u64>,
    troubles: Vec<Trouble>,
    promotions: Vec<Promotion>,
}

impl Scene {
    fn start(seed: u64) -> Scene {
        // Slots of live masters are served while a master is dead.
        let cluster = Cluster::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
        let slot = |record: String| -> u16 {
            query(cluster.server(0), &["CLUSTER", "KEYSLOT", &record]).expect("a slot")
        };
        // The permits, the election and the latches share the last slot.
        let locks = (0..KEYS).map(|key| (key, slot(format!("lock:{}", name(key)))));
        let slots = locks
            .chain([(KEYS + 1, slot(format!("lock:{SEMAPHORE}")))])
            .collect();
        Scene {
            cluster,
            slots,
            rng: fastrand::Rng::with_seed(seed),
            lease: Duration::ZERO,
            count: BTreeMap::new(),
            troubles: Vec::new(),
            promotions: Vec::new(),
        }
    }

    fn slot(&self, key: usize) -> u16 {
        self.slots.iter().find(|(of, _)| *of == key).expect("a slot").1
    }

    /// Moves slots for that long, and until each way to move has happened.
    fn moves(&mut self, span: Duration) {
        let end = Instant::now() + span;
        let mut ways = Vec::new();
        while Instant::now() < end || MOVES.iter().any(|way| !self.count.contains_key(way)) {
            if ways.is_empty() {
                ways = [&MOVES[..], &[Move::Whole; 3]].concat();
                self.rng.shuffle(&mut ways);
            }
            let way = ways.pop().expect("just filled");
            let (key, slot) = self.slots[self.rng.usize(..self.slots.len())];
            let owner = self.cluster.master_of_slot(slot);
            let mut others = self.cluster.masters();
            others.retain(|at| *at != owner);
            let to = others[self.rng.usize(..others.len())];
            // Mostly less than half a lease.
            let stay = self.lease.mul_f64(2.0 * self.rng.f64().powi(2));
            self.move_slot(key, way, slot, to, stay);
            sleep(ms(self.rng.u64(..100)));
        }
    }

    fn move_slot(&mut self, key: usize, way: Move, slot: u16, to: usize, stay: Duration) {
        let from = now();
        let moving: SlotMove = self.cluster.begin_move(slot, to);
        match way {
            Move::Whole => self.cluster.migrate_all(moving),
            Move::HalfAtSource => {
                sleep(stay);
                self.cluster.migrate_all(moving);
            }
            Move::HalfAtTarget => {
                self.cluster.migrate_all(moving);
                sleep(stay);
            }
        }
        self.cluster.end_move(moving);
        self.trouble(from, key);
        *self.count.entry(way).or_default() += 1;
    }

    /// Notes that the slot of a key was not served until now.
    fn trouble(&mut self, from: u64, key: usize) {
        let scope = Scope::Slot(key);
        self.troubles.push(Trouble {
            from,
            to: now(),
            scope,
        });
    }

    /// Kills the master of the key with long holdings, and waits until its replica is promoted. Returns the killed server.
    fn kill(&mut self, lease: Duration) -> usize {
        self.cluster.settle();
        let victim = self.cluster.master_of_slot(self.slot(LONG));
        let lost: Vec<usize> = self
            .slots
            .iter()
            .filter(|(_, slot)| self.cluster.master_of_slot(*slot) == victim)
            .map(|(key, _)| *key)
            .collect();
        let from = now();
        self.cluster.kill(victim);
        self.cluster.promoted(victim);
        let to = now();
        let margin = (lease / 10).max(ms(250));
        assert!(
            Duration::from_nanos(to - from) > lease + margin,
            "promoted too early"
        );
        // A kill comes at any time, and replication takes a moment.
        self.promotions.push(Promotion {
            unreplicated: from.saturating_sub(1_000_000_000),
            from,
            to,
        });
        lost.into_iter().for_each(|key| self.trouble(from, key));
        victim
    }

    /// Returns the fences that holders of a key noted.
    fn notes(&self, key: usize) -> Vec<u64> {
        let owner = self.cluster.master_of_slot(self.slot(key));
        notes::written(self.cluster.server(owner), key)
    }

    /// Removes what holders have noted.
    fn forget(&self) {
        for key in 0..KEYS {
            let owner = self.cluster.master_of_slot(self.slot(key));
            let _: u64 = query(self.cluster.server(owner), &["DEL", &notes::list(key)]).expect("a list");
        }
    }
}
