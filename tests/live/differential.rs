//! Random requests through the scripts on a real server and through the ledger: the same replies, pushes and queues.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use tenure::Key;
use tenure::protocol::ledger::{Branch, Forgotten, Job, Ledger, Record, RecordOwner, Saved};
use tenure::protocol::message::{
    Batch, Checkpoint, ClaimNumber, Executed, Grant, GrantNumber, Holder, Kind, LeaseTimes, Mode, Name,
    NodeId, Permits, Push, Question, Reply, Request, Rule, TickTime, Turn, Verb,
};

use tenure::protocol::write::{GuardedWrite, Precondition, WriteBody};
use tenure::store::{Store, WriteAnswer};

use crate::server::RedisServer;
use crate::tools::{CLAIM, Inbox, PATIENCE, batch, connect, holder, store};

mod elections;
mod latches;

const NAMES: usize = 9;
/// As many as a full batch has: for each of these nobody waits, as is usual in a service.
const QUIET: usize = 128;
/// Few, so that much happens to each.
const JOBS: usize = 3;
const NODES: u128 = 5;
/// Leases are minutes long, so that the few seconds of a run decide nothing; ages are sums of parts of a lease that
/// stay away from two thirds and from one.
const LEASES: [u64; 3] = [400_000, 700_000, 1_300_000];
const AGES: [f64; 4] = [0.3, 0.45, 0.8, 1.1];
/// Long, for the same reason, and so are what is added to its age: parts and multiples that stay away from 1, 8 and 600.
const POLL_GAP_MS: u64 = 30_000;
const POLL_GAP_AGES_MS: [u64; 6] = [17_000, 49_000, 290_000, 290_000, 290_000, 20_000_000];
const TOLERANCE_MS: u64 = 5_000;
/// Longer than any lease.
const LONG_MS: u64 = 10_000_000;
const CLOCK: &str = "tenure1:clock";

fn var(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_gives_the_replies_of_the_ledger() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 4_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Lock).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write of another", 20),
            ("write of nobody", 20),
            ("Granted", 20),
            ("Queued", 100),
            ("QueuedBehindForeign", 20),
            ("Busy", 100),
            ("Late", 30),
            ("Gone", 100),
            ("Done", 50),
            ("NotThere", 100),
            ("Refused", 30),
            ("push", 30),
            ("push with others waiting", 10),
            ("settled for another", 5),
            ("asked again", 5),
            ("yield repeated", 5),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("stale passed over", 5),
            ("deaf passed over", 5),
            ("dead removed", 2),
            ("dead left standing", 5),
            ("dead not revived", 0),
            ("shortened", 0),
            ("clock refused", 5),
            ("quiet", 2_000),
            ("among quiet ones", 50),
            ("Apart", 20),
            ("granted together", 5),
            ("granted together past waiters", 0),
            ("granted alone", 5),
            ("late alone", 0),
            ("claimed alone in vain", 20),
            ("left alone", 10),
            ("handed over alone", 0),
            ("handed over alone, by who saw a higher number", 0),
        ],
    )
    .await;
}

/// As the first, with nodes that leave locks free for others now and then, beside nodes that do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_leaves_locks_free_as_the_ledger_does() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 4_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Lock).await;
    run.gaps = &[POLL_GAP_MS, POLL_GAP_MS, POLL_GAP_MS, 0, POLL_GAP_MS / 10];
    run.steps(
        steps,
        &[
            ("passed", 2),
            ("left free", 2),
            ("met left free", 2),
            ("known of being left free", 100),
            ("push", 10),
            ("push with others waiting", 2),
            ("granted alone", 5),
            ("left alone", 10),
        ],
    )
    .await;
}

/// As the first, and half of the claims read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_shares_locks_as_the_ledger_does() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 4_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Lock).await;
    run.gaps = &[0, 0, 0, POLL_GAP_MS];
    run.readers = 50;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write of another", 20),
            ("write of nobody", 20),
            ("Granted", 20),
            ("Queued", 100),
            ("Busy", 50),
            ("Gone", 100),
            ("Done", 50),
            ("push", 20),
            ("push with others waiting", 5),
            ("settled for another", 5),
            ("asked again", 5),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("joined", 10),
            ("not let in beside readers", 5),
            ("several share", 50),
            ("downgraded", 1),
            ("share died", 2),
            ("several pushed at once", 2),
            ("reader was handed a string", 2),
            ("granted together in both modes", 1),
            ("joined together", 5),
            ("apart beside readers", 5),
            ("not let in together", 5),
            ("shared yielded", 1),
            ("stale passed over", 5),
            ("deaf passed over", 5),
            ("dead removed", 1),
            ("left alone", 5),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_jobs_gives_the_replies_of_the_ledger() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 4_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Job).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write of another", 20),
            ("write of nobody", 20),
            ("Won", 50),
            ("Over", 50),
            ("Early", 20),
            ("Overtook", 5),
            ("Report", 20),
            ("open told", 5),
            ("open too old", 2),
            ("other fingerprint", 5),
            ("mark reset", 0),
            ("tick queued", 5),
            ("tick behind", 5),
            ("after a skipped tick", 2),
            ("Behind", 5),
            ("saved", 5),
            ("saved before", 1),
            ("not the owner", 10),
            ("resumed", 1),
            ("loss mended", 2),
            ("Queued", 50),
            ("Busy", 20),
            ("Late", 10),
            ("Gone", 50),
            ("Done", 50),
            ("NotThere", 50),
            ("Refused", 10),
            ("push", 30),
            ("push of a leave", 10),
            ("push of an expiry", 2),
            ("push with others waiting", 10),
            ("taken over", 30),
            ("overtaken", 5),
            ("skipped", 10),
            ("finished late", 5),
            ("finished by another", 5),
            ("standby dropped", 5),
            ("standby told", 5),
            ("stale passed over", 2),
            ("deaf passed over", 5),
            ("dead removed", 1),
            ("clock refused", 2),
            ("forgotten", 0),
            ("in use, not forgotten", 0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_semaphores_gives_the_replies_of_the_ledger() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 4_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Semaphore).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write of another", 20),
            ("write of nobody", 20),
            ("Granted", 50),
            ("Unlike", 10),
            ("InUse", 50),
            ("Queued", 100),
            ("QueuedBehindForeign", 5),
            ("Busy", 50),
            ("Late", 20),
            ("Gone", 50),
            ("Done", 50),
            ("NotThere", 50),
            ("Refused", 5),
            ("push", 20),
            ("push of a leave", 10),
            ("push of an expiry", 2),
            ("push with others waiting", 5),
            ("settled for another", 2),
            ("asked again", 20),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("several share", 100),
            ("share died", 2),
            ("several pushed at once", 1),
            ("stale passed over", 2),
            ("deaf passed over", 2),
            ("dead removed", 1),
            ("joined", 20),
            ("not let in beside others", 5),
            ("left alone", 5),
        ],
    )
    .await;
}

/// What was seen too few times, and how often. A branch that was seldom taken was hardly compared.
fn seldom<'a>(
    seen: &HashMap<&'static str, u64>,
    steps: u64,
    wanted: &[(&'a str, u64)],
) -> Option<(&'a str, u64)> {
    wanted.iter().find_map(|&(what, often)| {
        let count = seen.get(what).copied().unwrap_or(0);
        (steps >= 1000 && count < (often * steps / 1000).max(1)).then_some((what, count))
    })
}

struct Run {
    rng: fastrand::Rng,
    kind: Kind,
    /// From which one is drawn for each batch.
    gaps: &'static [u64],
    names: Vec<Name>,
    /// So many of the names are contended. The others are quiet.
    busy: usize,
    claims: Vec<Vec<(Holder, LeaseTimes)>>,
    /// Which tick each claim is for, for its whole life.
    marks: HashMap<Holder, Option<TickTime>>,
    /// How each claim shares its lease, for its whole life, where that is not exclusive.
    modes: HashMap<Holder, Mode>,
    /// So many claims in a hundred read.
    readers: u8,
    /// What the records of semaphores and elections are called, once they were there.
    records: HashMap<usize, Vec<u8>>,
    next: u64,
    last: u64,
    ledger: Ledger,
    store: tenure::store::redis::RedisStore,
    link: std::sync::Arc<dyn tenure::store::Link>,
    client: redis::Connection,
    inboxes: HashMap<NodeId, Inbox>,
    replies: HashMap<&'static str, u64>,
}

impl Run {
    async fn new(server: &RedisServer, seed: u64, kind: Kind) -> Self {
        let store = store(&server.url());
        let link = connect(&store).await.unwrap();
        let keys: [&[u8]; NAMES] = [
            b"a",
            b"{}",
            b"a}b{c}",
            b"clock",
            b"\x00\xff \n",
            b"{x}",
            b"q:a",
            b"%s%d",
            b"g",
        ];
        let busy = if kind == Kind::Job { JOBS } else { NAMES };
        let mut ledger = Ledger::new();
        // From now on the ledger looks at who listens, as the probe does.
        ledger.listens(NodeId::numbered(u128::MAX), true);
        Run {
            rng: fastrand::Rng::with_seed(seed),
            kind,
            gaps: &[0],
            names: keys
                .map(Key::from)
                .into_iter()
                .take(busy)
                .chain((0..QUIET).map(|n| Key::from(format!("quiet {n}"))))
                .map(|key| Name { kind, key })
                .collect(),
            busy,
            claims: vec![Vec::new(); NAMES + QUIET],
            marks: HashMap::new(),
            modes: HashMap::new(),
            readers: 0,
            records: HashMap::new(),
            next: 1,
            last: 0,
            ledger,
            store,
            link,
            client: server.client(),
            inboxes: HashMap::new(),
            replies: HashMap::new(),
        }
    }

    /// Each of these happens so many times in a thousand of the steps, and once at least: a branch that was seldom taken was
    /// hardly compared. A seed that is short of some when the steps are over gets more, up to twenty times as many: that
    /// a seed falls short by chance is then not to be expected.
    async fn steps(&mut self, steps: u64, wanted: &[(&str, u64)]) {
        let mut taken = 0;
        while taken < steps || (taken < 20 * steps && seldom(&self.replies, steps, wanted).is_some()) {
            self.step(taken).await;
            taken += 1;
            if taken.is_multiple_of(steps) {
                self.begin_again();
            }
        }
        let mut seen: Vec<_> = self.replies.iter().collect();
        seen.sort_unstable();
        println!("{taken} steps: {seen:?}");
        assert_eq!(seldom(&self.replies, steps, wanted), None, "in {taken} steps");
    }

    /// With nothing stored: queues that grew for long make what is rare rarer, and each step slow.
    fn begin_again(&mut self) {
        redis::cmd("FLUSHDB").exec(&mut self.client).unwrap();
        self.ledger = Ledger::new();
        self.ledger.listens(NodeId::numbered(u128::MAX), true);
        for node in self.inboxes.keys() {
            self.ledger.listens(*node, true);
        }
        self.claims.iter_mut().for_each(Vec::clear);
        self.marks.clear();
        self.modes.clear();
    }

    async fn step(&mut self, step: u64) {
        // Few stand by for a tick, and are to be alive when it is their turn.
        let tired = if self.kind == Kind::Job { 88 } else { 92 };
        match self.rng.u8(..100) {
            0..76 => self.batch(step).await,
            80 if self.kind == Kind::Job => self.forget(step).await,
            76..81 => self.listen().await,
            81 if self.kind == Kind::Job && self.rng.bool() => self.advance(),
            81 => self.spoil_clock(step).await,
            at if (82..tired).contains(&at) => self.age(),
            92.. => self.foreign(),
            _ => self.batch(step).await,
        }
    }

    /// What a clock leaves behind that was ahead: a mark, or a skipped tick, that has not come.
    fn advance(&mut self) {
        let at = self.rng.usize(..self.busy);
        let Some(memory) = self.memory(at) else { return };
        let Some(mut job) = self.ledger.job(&self.names[at]).cloned() else {
            return;
        };
        let far = TickTime(self.now() + LONG_MS);
        let field = if self.rng.bool() { "mark" } else { "skipped" };
        match field {
            "mark" => job.mark = Some(far),
            _ => job.skipped = Some(far),
        }
        redis::cmd("HSET")
            .arg(memory)
            .arg(&[field, far.to_string().as_str()])
            .exec(&mut self.client)
            .unwrap();
        self.ledger.set_job(&self.names[at], job);
    }

    fn fresh(&mut self, at: usize) -> (Holder, LeaseTimes) {
        let node = self.rng.u128(1..=NODES);
        let lease_ms = LEASES[self.rng.usize(..LEASES.len())];
        self.next += 1;
        let claim = (
            holder(node, self.next),
            LeaseTimes {
                lease_ms,
                margin_ms: lease_ms / 10,
            },
        );
        let mark = self.tick(at);
        self.marks.insert(claim.0, mark);
        let mode = self.draw_mode();
        self.modes.insert(claim.0, mode);
        self.claims[at].push(claim);
        if self.claims[at].len() > 12 {
            self.claims[at].remove(0);
        }
        claim
    }

    fn draw_mode(&mut self) -> Mode {
        if self.kind == Kind::Semaphore {
            // Seldom as of another number.
            let capacity = [4, 4, 4, 4, 4, 3, 6][self.rng.usize(..7)];
            let weight = [1, 1, 1, 2, 3][self.rng.usize(..5)];
            Mode::Permits(Permits { weight, capacity })
        } else if self.rng.u8(..100) < self.readers {
            Mode::Read
        } else {
            Mode::Exclusive
        }
    }

    /// The tick that was granted last, or one around now.
    fn tick(&mut self, at: usize) -> Option<TickTime> {
        if self.kind != Kind::Job {
            return None;
        }
        let job = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        let mark = job.mark.map_or(0, |mark| mark.0);
        let ms = match self.rng.u8(..20) {
            0..10 if mark > 0 && !(job.done && self.rng.bool()) => mark,
            10 => mark.saturating_sub(1),
            11 => mark + 1,
            12 => job.skipped.map_or(0, |skipped| skipped.0),
            13 => self.now() - self.rng.u64(1..10_000),
            14 => self.now() + self.rng.u64(20..200),
            15 => self.now() + 10_000_000,
            _ => self.now() - 3 + self.rng.u64(..6),
        };
        // A script reads 0 as none.
        Some(TickTime(ms.max(1)))
    }

    fn request(&mut self, at: usize) -> Request {
        let known = self.rng.choice(&self.claims[at]).copied();
        let (mut holder, mut term) = known.unwrap_or_else(|| self.fresh(at));
        // The owner and the head are where things happen.
        let owner = self
            .ledger
            .record(&self.names[at], 0)
            .map(|record| record.owner.clone());
        if let Some(RecordOwner::Claim(owner, _)) = owner
            && self.rng.u8(..4) > 0
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == owner)
        {
            (holder, term) = *claim;
        }
        let now = self.now();
        let shares = self.ledger.shares(&self.names[at], now * 1000);
        let sharing: Vec<Holder> = shares.map(|share| share.holder).collect();
        if let Some(owner) = self.rng.choice(&sharing).filter(|_| self.rng.u8(..3) > 0)
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == *owner)
        {
            (holder, term) = *claim;
        }
        let winner = self.ledger.job(&self.names[at]).and_then(|job| job.winner);
        if self.rng.u8(..6) == 0
            && let Some(claim) = self.claims[at].iter().find(|claim| Some(claim.0) == winner)
        {
            (holder, term) = *claim;
        }
        // The dead are to ask, too: else hardly one does before somebody walks over it.
        let now = self.now();
        let dead = self
            .ledger
            .entries()
            .find(|(name, _, dies)| **name == self.names[at] && *dies < now)
            .and_then(|(_, dead, _)| self.claims[at].iter().find(|claim| claim.0 == dead));
        let is_heartbeat = dead.is_some() && self.rng.u8(..4) == 0;
        if let (Some(claim), true) = (dead, is_heartbeat) {
            (holder, term) = *claim;
        }
        // And the owner of a record that lasts longer than any lease.
        let is_long = self
            .ledger
            .record(&self.names[at], 0)
            .filter(|record| record.expires.is_some_and(|expires| expires > now + LONG_MS / 2))
            .and_then(|record| {
                self.claims[at]
                    .iter()
                    .find(|claim| matches!(record.owner, RecordOwner::Claim(owner, _) if owner == claim.0))
            });
        let is_renewal = is_long.is_some() && self.rng.bool();
        if let (Some(claim), true) = (is_long, is_renewal) {
            (holder, term) = *claim;
        }
        // Whom the questions about a run are about: mostly who owns the job, or did.
        let (mut of, is_winners) = (holder, self.rng.u8(..8) > 0);
        if let Some(claim) = self.claims[at].iter().find(|claim| Some(claim.0) == winner)
            && is_winners
        {
            of = claim.0;
        }
        let owns =
            winner.is_some() && matches!(owner, Some(RecordOwner::Claim(owner, _)) if Some(owner) == winner);
        let is_of_run = self.kind == Kind::Job && owns && self.rng.u8(..10) == 0;
        let is_of_another = self.kind != Kind::Job && self.rng.u8(..12) == 0;
        let verb = match self.rng.u8(..10) {
            _ if is_heartbeat || is_renewal => Verb::Renew,
            what if is_of_another => self.verb_of_another(what, (holder, term), at),
            at if is_of_run => Verb::Ask(match at {
                0..4 => Question::Recall { of },
                _ => Question::Save {
                    of,
                    seq: self.rng.u64(0..4),
                },
            }),
            0..4 => {
                if self.rng.u8(..8) > 0 {
                    (holder, term) = self.fresh(at);
                }
                let patient = if self.kind == Kind::Job { 4 } else { 2 };
                Verb::Claim {
                    wait: self.rng.u8(..5) < patient,
                }
            }
            4..6 => Verb::Renew,
            6 if self.kind == Kind::Job => Verb::Finish {
                well: self.rng.bool(),
            },
            7 if self.kind == Kind::Job && self.rng.u8(..4) > 0 => Verb::Ask(match self.rng.u8(..20) {
                0..4 => Question::Reset,
                8..10 => Question::Verify { of },
                10..13 => Question::Recall { of },
                13.. => Question::Save {
                    of,
                    seq: self.rng.u64(0..4),
                },
                _ => Question::Open {
                    within_ms: [0, 3, 5_000, 1 << 40, u64::MAX][self.rng.usize(..5)],
                    fingerprint: [0, 7, u64::MAX][self.rng.usize(..3)],
                    over: self.marks[&holder].filter(|_| self.rng.bool()),
                },
            }),
            6..9 if self.readers == 0 || self.rng.u8(..3) > 0 => Verb::Leave,
            6 | 7 => self.pass(at, (holder, term), Some(Mode::Read)),
            _ if self.kind == Kind::Semaphore => Verb::Ask(Question::InUse),
            _ => {
                self.next += 1;
                let to = Holder {
                    claim: ClaimNumber(self.next),
                    ..holder
                };
                self.claims[at].push((to, term));
                self.marks.insert(to, self.marks[&holder]);
                let mode = self.draw_mode();
                self.modes.insert(to, mode);
                if sharing.contains(&holder) {
                    self.saw("shared yielded");
                }
                Verb::Yield { to }
            }
        };
        // A yield carries the mode in which the node goes on.
        let of = match verb {
            Verb::Yield { to } | Verb::Pass { to } => to,
            _ => holder,
        };
        // A claim has one length for life.
        if let Verb::Pass { to } = verb
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == to)
        {
            term = claim.1;
        }
        let mark_of = match verb {
            Verb::Ask(question) => question.of().unwrap_or(holder),
            _ => holder,
        };
        Request {
            name: self.names[at].clone(),
            holder,
            term,
            mode: self.modes.get(&of).copied().unwrap_or_default(),
            turn: self.turn(at),
            data: matches!(verb, Verb::Ask(Question::Save { .. })).then(|| self.data()),
            mark: self.marks[&mark_of],
            verb,
        }
    }

    /// What is asked about an owner that is no claim of the asker's.
    fn verb_of_another(&mut self, what: u8, of: (Holder, LeaseTimes), place: usize) -> Verb {
        match what {
            0..2 => Verb::Ask(Question::Extend { of: of.0 }),
            2 => Verb::Ask(Question::Release {
                of: of.0,
                repeats: false,
            }),
            _ => self.pass(place, of, None),
        }
    }

    /// To a fresh number, of any node, or now and then to who has it already. In the mode of its owner, if in no other.
    fn pass(&mut self, at: usize, (holder, term): (Holder, LeaseTimes), mode: Option<Mode>) -> Verb {
        let us = self.now() * 1000;
        let shares = self.ledger.shares(&self.names[at], us);
        let mut owners: Vec<Holder> = shares.map(|share| share.holder).collect();
        if let Some(record) = self.ledger.record(&self.names[at], 0)
            && let RecordOwner::Claim(owner, _) = record.owner
        {
            owners.push(owner);
        }
        owners.retain(|owner| self.claims[at].iter().any(|claim| claim.0 == *owner));
        if let Some(&to) = self.rng.choice(&owners)
            && self.rng.u8(..4) == 0
        {
            return Verb::Pass { to };
        }
        let same = self.modes.get(&holder).copied().unwrap_or_default();
        self.next += 1;
        let to = self::holder(self.rng.u128(1..=NODES), self.next);
        self.claims[at].push((to, term));
        self.marks.insert(to, None);
        let other = self.rng.u8(..8) == 0;
        let mode = mode.unwrap_or_else(|| if other { self.draw_mode() } else { same });
        self.modes.insert(to, mode);
        Verb::Pass { to }
    }

    /// After the tick that was granted last, or another, or as it comes.
    fn turn(&mut self, at: usize) -> Turn {
        if self.kind != Kind::Job {
            return Turn::Skip;
        }
        let job = self.ledger.job(&self.names[at]);
        let of = |tick: Option<TickTime>| tick.map_or(0, |tick| tick.0);
        let (mark, skipped) = job.map_or((0, 0), |job| (of(job.mark), of(job.skipped)));
        match self.rng.u8(..9) {
            0..2 => Turn::Queue,
            2..4 => Turn::After(TickTime(mark)),
            4 => Turn::After(TickTime(mark.saturating_sub(1))),
            5 => Turn::After(TickTime(skipped)),
            _ => Turn::Skip,
        }
    }

    /// Every sign may be in it, and it may be empty.
    fn data(&mut self) -> Checkpoint {
        let texts = ["", ":", "=", "3:x:", "\0\n\r%s", "a longer one"];
        Checkpoint(texts[self.rng.usize(..texts.len())].as_bytes().into())
    }

    /// Claims what is free and leaves what is owned, but for a few in a hundred.
    fn quiet_request(&mut self, at: usize, others: u8) -> Request {
        if self.rng.u8(..100) < others {
            self.saw("among quiet ones");
            let verb = match self.rng.u8(..3) {
                0 => Verb::Renew,
                1 => Verb::Leave,
                _ => CLAIM,
            };
            let request = self.request(at);
            let holder = request.holder;
            // As this claim had them for its whole life, and not whoever it would have been passed to.
            let known = self.claims[at].iter().find(|claim| claim.0 == holder);
            return Request {
                verb,
                term: known.map_or(request.term, |claim| claim.1),
                mode: self.modes.get(&holder).copied().unwrap_or_default(),
                ..request
            };
        }
        let record = self.ledger.record(&self.names[at], 0);
        let owner = record.and_then(|record| match record.owner {
            RecordOwner::Claim(owner, _) => Some(owner),
            _ => None,
        });
        let reader = self.ledger.shares(&self.names[at], 0).next();
        let owner = owner.or(reader.map(|share| share.holder));
        let owner = owner.and_then(|owner| self.claims[at].iter().find(|claim| claim.0 == owner).copied());
        self.saw("quiet");
        let ((holder, term), verb) = match owner {
            Some(owner) => (owner, Verb::Leave),
            None => (self.fresh(at), CLAIM),
        };
        Request {
            name: self.names[at].clone(),
            holder,
            term,
            mode: self.modes.get(&holder).copied().unwrap_or_default(),
            turn: Default::default(),
            data: None,
            mark: None,
            verb,
        }
    }

    /// A claim that goes together with others, by somebody new, or now and then by who claimed the name before.
    fn claim_together(&mut self, at: usize) -> Request {
        let known = self.rng.choice(&self.claims[at]).copied();
        let known = known.filter(|_| self.rng.u8(..16) == 0);
        let (holder, term) = known.unwrap_or_else(|| self.fresh(at));
        // Else hardly ever all can be had. Who is known has a mode for life.
        if known.is_none()
            && self.readers > 0
            && self.ledger.shares(&self.names[at], 0).next().is_some()
            && self.rng.u8(..4) > 0
        {
            self.modes.insert(holder, Mode::Read);
        }
        Request {
            name: self.names[at].clone(),
            holder,
            term,
            mode: self.modes.get(&holder).copied().unwrap_or_default(),
            turn: Default::default(),
            data: None,
            mark: None,
            verb: Verb::Claim { wait: false },
        }
    }

    async fn batch(&mut self, step: u64) {
        let is_quiet = self.kind == Kind::Lock && self.rng.u8(..8) == 0;
        let mut places: Vec<usize> = if is_quiet {
            (self.busy..self.names.len()).collect()
        } else {
            (0..self.busy).collect()
        };
        // Seldom where gaps are what it is about.
        let seldom = match (self.readers, self.gaps.len()) {
            (0, 1) => 6,
            (0, _) => 30,
            _ => 10,
        };
        let is_together = self.kind == Kind::Lock && self.rng.u8(..seldom) == 0;
        if is_together && self.rng.u8(..4) > 0 {
            // Else hardly ever all of them are free.
            let is_free = |at: &usize| self.ledger.record(&self.names[*at], 0).is_none();
            let free: Vec<_> = places.iter().copied().filter(is_free).collect();
            places = if free.is_empty() { places } else { free };
        }
        self.rng.shuffle(&mut places);
        // Who travels alone has words of its own.
        let is_alone = self.rng.u8(..3) == 0;
        places.truncate(match (is_alone, is_quiet) {
            (true, _) => 1,
            _ if is_together && self.readers > 0 => self.rng.usize(2..=4),
            (false, true) => self.rng.usize(1..=QUIET),
            (false, false) => self.rng.usize(1..=8),
        });
        let others = [0, 0, 2, 20][self.rng.usize(..4)];
        let mut requests: Vec<_> = places
            .iter()
            .map(|&at| {
                if is_together {
                    self.claim_together(at)
                } else if is_quiet {
                    self.quiet_request(at, others)
                } else {
                    self.request(at)
                }
            })
            .collect();
        // Else hardly any owner leaves alone with others waiting.
        if let [request] = &mut *requests
            && let Some(RecordOwner::Claim(owner, _)) =
                self.ledger.record(&request.name, 0).map(|record| &record.owner)
            && request.holder == *owner
            && self.kind != Kind::Semaphore
            && matches!(request.verb, Verb::Renew | Verb::Yield { .. })
        {
            request.mode = self.modes.get(owner).copied().unwrap_or_default();
            request.verb = Verb::Leave;
        }
        let not_after = if self.rng.u8(..12) == 0 {
            self.rng.u64(0..1_000_000)
        } else {
            u64::MAX
        };
        // A node may have seen what the server forgot, or nothing yet. Seldom far ahead: the server's clock is to catch up
        // with its numbers.
        let is_ahead = self.rng.u8(..20) < if places.len() == 1 { 10 } else { 1 };
        let ahead = if self.rng.u8(..100) == 0 { 500_000 } else { 3_000 };
        let highest = match self.rng.u8(..20) {
            _ if is_ahead => self.last + self.rng.u64(..ahead),
            0..5 => 0,
            _ => self.last,
        };
        let batch = Batch {
            highest: GrantNumber(highest),
            not_after,
            poll_gap_ms: self.gaps[self.rng.usize(..self.gaps.len())],
            rule: if is_together { Rule::All } else { Rule::Each },
            requests,
        };
        let before = wall_us();
        let real = self.link.apply(batch.clone()).await.unwrap();
        // 0: it was not asked.
        let span = before - 1_000..=wall_us() + 1_000;
        assert!(
            real.time == 0 || span.contains(&real.time),
            "step {step}: {batch:?} at {span:?}, server {real:?}"
        );
        let dead: Vec<Holder> = self
            .ledger
            .entries()
            .filter_map(|(_, holder, dies)| (dies < real.time / 1000).then_some(holder))
            .collect();
        let ends = |ledger: &Ledger, request: &Request| ledger.record(&request.name, 0)?.expires;
        let ended: Vec<_> = batch
            .requests
            .iter()
            .map(|request| ends(&self.ledger, request))
            .collect();
        let mut pushes = Vec::new();
        let mut branches = Vec::new();
        let model = self
            .ledger
            .apply_traced(real.time, &batch, &mut pushes, &mut branches);
        for branch in branches {
            self.saw(match branch {
                Branch::TickTakenOver => "taken over",
                Branch::TickOvertaken => "overtaken",
                Branch::TickSkipped => "skipped",
                Branch::TickFinishedLate => "finished late",
                Branch::TickFinishedByAnother => "finished by another",
                Branch::StandbyDropped => "standby dropped",
                Branch::StandbyEarly => "standby early",
                Branch::StandbyTold => "standby told",
                Branch::OpenTold => "open told",
                Branch::OpenTooOld => "open too old",
                Branch::OtherFingerprint => "other fingerprint",
                Branch::MarkReset => "mark reset",
                Branch::TickQueued => "tick queued",
                Branch::TickBehind => "tick behind",
                Branch::TickAfterSkipped => "after a skipped tick",
                Branch::Saved => "saved",
                Branch::SavedBefore => "saved before",
                Branch::NotOwner => "not the owner",
                Branch::Resumed => "resumed",
                Branch::LossMended => "loss mended",
                Branch::StalePassedOver => "stale passed over",
                Branch::DeafPassedOver => "deaf passed over",
                Branch::DeadRemoved => "dead removed",
                Branch::SettledForAnother => "settled for another",
                Branch::AskedAgain => "asked again",
                Branch::Joined => "joined",
                Branch::JoinRefused if self.kind == Kind::Semaphore => "not let in beside others",
                Branch::JoinRefused => "not let in beside readers",
                Branch::Downgraded => "downgraded",
                Branch::Passed => "passed",
                Branch::PassRepeated => "passed again",
                Branch::PassRefused => "not passed",
                Branch::Lengthened => "lengthened",
                Branch::YieldRepeated => "yield repeated",
                Branch::LeftFree => "left free",
                Branch::MetLeftFree => "met left free",
                _ => continue,
            });
        }
        for ((request, real), model) in batch.requests.iter().zip(&real.replies).zip(&model.replies) {
            assert!(
                same(real, model),
                "step {step}: {request:?} of {} with a gap of {}\nserver {real:?}\nledger {model:?}",
                batch.requests.len(),
                batch.poll_gap_ms
            );
            if let Some(number) = real.number() {
                self.last = self.last.max(number.0);
            }
            self.saw(word(real));
        }
        for ((request, reply), ended) in batch.requests.iter().zip(&real.replies).zip(ended) {
            if request.verb == Verb::Renew && *reply == Reply::Gone && dead.contains(&request.holder) {
                self.saw("dead not revived");
            }
            if request.verb == Verb::Renew && ends(&self.ledger, request) < ended {
                self.saw("shortened");
            }
        }
        if is_together {
            let all = real
                .replies
                .iter()
                .all(|reply| matches!(reply, Reply::Granted(_)));
            if all && real.replies.len() > 1 {
                self.saw("granted together");
            }
            let wants = |mode| batch.requests.iter().any(|request| request.mode == mode);
            if all && wants(Mode::Read) && wants(Mode::Exclusive) {
                self.saw("granted together in both modes");
            }
            let us = real.time;
            for (request, reply) in batch.requests.iter().zip(&real.replies) {
                let shares = self.ledger.shares(&request.name, us).count();
                match reply {
                    _ if request.mode != Mode::Read => {}
                    Reply::Granted(_) if shares > 1 => self.saw("joined together"),
                    Reply::Apart if shares > 0 => self.saw("apart beside readers"),
                    Reply::Busy(_) if shares > 0 => self.saw("not let in together"),
                    _ => {}
                }
            }
            if all
                && batch
                    .requests
                    .iter()
                    .any(|request| !self.ledger.waiters(&request.name).is_empty())
            {
                self.saw("granted together past waiters");
            }
        }
        if let ([request], [reply]) = (&*batch.requests, &*real.replies) {
            self.saw(match (request.verb, reply) {
                (Verb::Claim { .. }, Reply::Granted(_)) => "granted alone",
                (Verb::Claim { .. }, Reply::Late) => "late alone",
                (Verb::Claim { .. }, _) => "claimed alone in vain",
                (Verb::Leave, Reply::Done) if pushes.is_empty() => "left alone",
                (Verb::Leave, Reply::Done) if is_ahead => "handed over alone, by who saw a higher number",
                (Verb::Leave, Reply::Done) => "handed over alone",
                _ => "alone",
            });
        }
        if pushes.iter().skip(1).any(|push| push.name() == pushes[0].name()) {
            self.saw("several pushed at once");
        }
        for push in pushes {
            let Push::Granted(push) = push else {
                panic!("step {step}: nobody watches here: {push:?}")
            };
            let at = batch
                .requests
                .iter()
                .position(|request| request.name == push.name);
            self.saw(match batch.requests[at.expect("it is about one of them")].verb {
                Verb::Leave | Verb::Finish { .. } => "push of a leave",
                Verb::Yield { .. } | Verb::Pass { .. } => "push of a yield",
                _ => "push of an expiry",
            });
            if !self.ledger.waiters(&push.name).is_empty() {
                self.saw("push with others waiting");
            }
            self.last = self.last.max(push.number.0);
            let Some(inbox) = self.inboxes.get_mut(&push.holder.node) else {
                panic!("step {step}: only who listens is chosen: {push:?}")
            };
            let real: Grant = inbox.grant().await;
            assert_eq!(real, push, "step {step}");
            self.saw("push");
        }
        for inbox in self.inboxes.values_mut() {
            assert!(
                inbox.is_empty(),
                "step {step}: a push that the ledger does not know"
            );
        }
        for at in places {
            self.compare(at, real.time / 1000, step);
            self.compare_record(at, step);
            self.compare_memory(at, step);
        }
        self.compare_write(&batch, step).await;
    }

    /// Whether something is written under a lease: of who has it, of any claim, of another grant.
    async fn compare_write(&mut self, batch: &Batch, step: u64) {
        let request = &batch.requests[self.rng.usize(..batch.requests.len())];
        let (name, us) = (request.name.clone(), self.now() * 1000);
        let alone = match self.ledger.record(&name, us).map(|record| &record.owner) {
            Some(RecordOwner::Claim(holder, number)) => Some((*holder, request.mode, *number)),
            _ => None,
        };
        let shares = self.ledger.shares(&name, us);
        let shares = shares.map(|share| (share.holder, share.mode, share.number));
        let mut owners: Vec<_> = alone.into_iter().chain(shares).collect();
        self.rng.shuffle(&mut owners);
        let any = (request.holder, request.mode, GrantNumber(self.last));
        let (mut holder, mode, mut number) = owners.first().copied().unwrap_or(any);
        match self.rng.u8(..4) {
            0 => holder = request.holder,
            1 => number.0 -= u64::from(number.0 > 0),
            _ => {}
        }
        let precondition = Precondition {
            name,
            holder,
            mode,
            number,
        };
        let text = "return 1".to_owned();
        let (keys, args) = (Vec::new(), Vec::new());
        let model = self.ledger.is_current(us, &precondition);
        let written = self.link.write(GuardedWrite {
            precondition,
            body: WriteBody::Script { text, keys, args },
        });
        let real = written.await.unwrap();
        match (real, model) {
            (WriteAnswer::Done(redis::Value::Int(1)), true) => self.saw("write done"),
            (WriteAnswer::NotCurrent, false) if owners.is_empty() => self.saw("write of nobody"),
            (WriteAnswer::NotCurrent, false) => self.saw("write of another"),
            (real, model) => panic!("step {step}: {real:?}, current in the ledger: {model}"),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.replies.entry(what).or_default() += 1;
    }

    /// What is known of a job.
    fn compare_memory(&mut self, at: usize, step: u64) {
        if self.kind != Kind::Job {
            return;
        }
        let real: HashMap<String, String> = match self.memory(at) {
            Some(memory) => redis::cmd("HGETALL").arg(memory).query(&mut self.client).unwrap(),
            None => HashMap::new(),
        };
        let number = |field: &str| real.get(field).map_or(0, |text| text.parse().unwrap());
        let tick = |field: &str| real.get(field).map(|text| TickTime(text.parse().unwrap()));
        let real = Job {
            mark: tick("mark"),
            done: number("done") == 1,
            attempt: number("attempt") as u32,
            winner: real.get("winner").map(|text| text.parse().unwrap()),
            skipped: tick("skipped"),
            passed: real.get("passed").map(|text| {
                let (before, latest) = text.split_once(':').unwrap();
                (
                    TickTime(before.parse().unwrap()),
                    TickTime(latest.parse().unwrap()),
                )
            }),
            fingerprint: number("print"),
            well: tick("well"),
            saved: real.get("saved").map(|text| {
                let numbers: Vec<u64> = text.split(':').map(|part| part.parse().unwrap()).collect();
                Saved {
                    tick: TickTime(numbers[0]),
                    attempt: numbers[1] as u32,
                    seq: numbers[2],
                    data: Checkpoint(real["data"].as_bytes().into()),
                }
            }),
        };
        let model = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        assert_eq!(real, model, "step {step}: what is known of {}", self.names[at]);
    }

    /// A queue in order, the dead included: they stand where they stood until somebody walks over them.
    fn compare(&mut self, at: usize, now: u64, step: u64) {
        let model = self.ledger.waiters(&self.names[at]);
        let left_free = self.ledger.left_free(&self.names[at], now * 1000);
        let Some(queue) = self.queue(at) else {
            assert_eq!(left_free, None, "step {step}: no queue of {}", self.names[at]);
            assert!(
                model.is_empty(),
                "step {step}: no queue on the server, {model:?} in the ledger"
            );
            return;
        };
        let members: Vec<(String, f64)> = redis::cmd("ZRANGE")
            .arg(&queue)
            .arg("0")
            .arg("-1")
            .arg("WITHSCORES")
            .query(&mut self.client)
            .unwrap();
        let known_until = members.iter().find(|(member, _)| member == "c");
        let known_until = known_until
            .map(|(_, score)| *score as u64)
            .filter(|until| *until >= now);
        let model_until = left_free.map(|left| left.known_until);
        assert_eq!(
            known_until, model_until,
            "step {step}: when {} was left free",
            self.names[at]
        );
        if model_until.is_some() {
            self.saw("known of being left free");
        }
        let deaths: HashMap<&str, f64> = members
            .iter()
            .filter_map(|(m, score)| Some((m.strip_prefix('b')?, *score)))
            .collect();
        let arrivals: Vec<&str> = members.iter().filter_map(|(m, _)| m.strip_prefix('a')).collect();
        assert_eq!(
            arrivals.len(),
            deaths.len(),
            "step {step}: each waiter has two members"
        );
        if deaths.values().any(|dies| *dies < now as f64) {
            self.saw("dead left standing");
        }
        let real: Vec<Holder> = arrivals
            .into_iter()
            .map(|entry| {
                entry
                    .splitn(4, ':')
                    .take(3)
                    .collect::<Vec<_>>()
                    .join(":")
                    .parse()
                    .unwrap()
            })
            .collect();
        assert_eq!(real, model, "step {step}: the queue of {}", self.names[at]);
    }

    /// Who shares a key, by which grants and until when. Who is dead may stand there.
    fn compare_shares(&mut self, at: usize, record: &[u8], step: u64) {
        let now = self.now();
        let members: Vec<(String, f64)> = redis::cmd("ZRANGE")
            .arg(record)
            .arg("0")
            .arg("-1")
            .arg("WITHSCORES")
            .query(&mut self.client)
            .unwrap();
        let of = |letter: char| {
            let members = members.iter();
            members.filter_map(move |(member, score)| Some((member.strip_prefix(letter)?, *score as u64)))
        };
        assert_eq!(of('h').count(), of('n').count(), "step {step}: {members:?}");
        let numbers: HashMap<&str, u64> = of('n').collect();
        let model: Vec<_> = self.ledger.shares(&self.names[at], now * 1000).copied().collect();
        // Of semaphores the permits stand behind the holder.
        let holder_of = |text: &str| text[..=text.rfind(':').unwrap()].to_owned();
        let permits: HashMap<String, &str> = of('h').map(|(text, _)| (holder_of(text), text)).collect();
        let weights: HashMap<&str, u64> = of('w').collect();
        let live: HashMap<String, u64> = of('h')
            .filter(|(_, expires)| *expires >= now)
            .map(|(text, expires)| (holder_of(text), expires))
            .collect();
        assert_eq!(
            live.len(),
            model.len(),
            "step {step}: {members:?}, {model:?} in the ledger"
        );
        for share in &model {
            let holder = format!("{}:", share.holder);
            let (expires, number) = (live[&*holder], numbers[&*holder]);
            assert_eq!(number, share.number.0, "step {step}: {members:?}");
            let (ends_in, weight) = match share.mode {
                Mode::Permits(Permits { weight, capacity }) => (format!("{weight}/{capacity}"), weight),
                _ => (String::new(), 1),
            };
            assert_eq!(permits[&holder], format!("{holder}{ends_in}"), "step {step}");
            let heavy = (weight > 1).then_some(8_000_000_000_000_000 + u64::from(weight));
            assert_eq!(weights.get(&*holder).copied(), heavy, "step {step}: {members:?}");
            assert!(
                expires.abs_diff(share.expires) <= TOLERANCE_MS,
                "step {step}: {members:?}, {share:?}"
            );
        }
        if model.len() > 1 {
            self.saw("several share");
        }
        let ttl: i64 = redis::cmd("PTTL").arg(record).query(&mut self.client).unwrap();
        if let Some(last) = model.iter().map(|share| share.expires - now).max() {
            assert!(
                ttl.abs_diff(last as i64) <= TOLERANCE_MS,
                "step {step}: ends in {ttl} ms, {model:?}"
            );
        }
    }

    /// Until when the record is there.
    fn compare_record(&mut self, at: usize, step: u64) {
        let Some(record) = self.record(at) else { return };
        let kind: String = redis::cmd("TYPE").arg(&record).query(&mut self.client).unwrap();
        let us = self.now() * 1000;
        if kind == "zset" || self.ledger.shares(&self.names[at], us).next().is_some() {
            return self.compare_shares(at, &record, step);
        }
        let ttl: i64 = redis::cmd("PTTL").arg(record).query(&mut self.client).unwrap();
        let now = self.now();
        let model = self.ledger.record(&self.names[at], now * 1000);
        let left = model.map_or(-2, |record| {
            record.expires.map_or(-1, |expires| (expires - now) as i64)
        });
        let is_same = match (ttl, left) {
            (0.., 0..) => ttl.abs_diff(left) <= TOLERANCE_MS,
            _ => ttl == left,
        };
        assert!(
            is_same,
            "step {step}: the record of {} ends in {ttl} ms, {left} in the ledger",
            self.names[at]
        );
    }

    /// What is no number is neither believed nor overwritten, whatever is asked.
    async fn spoil_clock(&mut self, step: u64) {
        let clock: Option<String> = redis::cmd("GET").arg(CLOCK).query(&mut self.client).unwrap();
        let () = redis::cmd("DEL").arg(CLOCK).query(&mut self.client).unwrap();
        let bad = ["list", "x", "nan", "1.5", "-1", ""][self.rng.usize(..6)];
        let mut spoil = redis::cmd(if bad == "list" { "RPUSH" } else { "SET" });
        let () = spoil.arg(CLOCK).arg(bad).query(&mut self.client).unwrap();
        let spoiled: Vec<u8> = redis::cmd("DUMP").arg(CLOCK).query(&mut self.client).unwrap();
        let places: Vec<usize> = (0..self.rng.usize(1..=self.busy)).collect();
        let requests = places.iter().map(|&at| self.request(at)).collect();
        let failure = self.link.apply(batch(requests)).await.unwrap_err();
        assert_eq!(failure.executed, Executed::No, "step {step}: {bad}: {failure:?}");
        let after: Vec<u8> = redis::cmd("DUMP").arg(CLOCK).query(&mut self.client).unwrap();
        assert_eq!(spoiled, after, "step {step}: {bad} was overwritten");
        let () = redis::cmd("DEL").arg(CLOCK).query(&mut self.client).unwrap();
        if let Some(clock) = clock {
            let () = redis::cmd("SET")
                .arg(CLOCK)
                .arg(clock)
                .query(&mut self.client)
                .unwrap();
        }
        self.saw("clock refused");
        let now = self.now();
        for at in places {
            self.compare(at, now, step);
            self.compare_record(at, step);
            self.compare_memory(at, step);
        }
    }

    fn full(&self, at: usize) -> Vec<u8> {
        [b"lock:", self.names[at].key.as_bytes()].concat()
    }

    /// The key that ends so, behind a tag.
    fn tagged(&mut self, letter: char, end: &[u8]) -> Option<Vec<u8>> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg(format!("tenure1:{letter}:*"))
            .query(&mut self.client)
            .unwrap();
        keys.into_iter()
            .find(|key| key.ends_with(end) && key.len() == end.len() + "tenure1:q:{0000}".len())
    }

    fn memory(&mut self, at: usize) -> Option<Vec<u8>> {
        let full = self.full(at);
        self.tagged('j', &full)
    }

    /// A job's is known once the job is.
    fn record(&mut self, at: usize) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Job => self.memory(at).map(|mut key| {
                key["tenure1:".len()] = b'o';
                key
            }),
            Kind::Semaphore | Kind::Election => {
                if !self.records.contains_key(&at) {
                    let full = self.full(at);
                    let letter = if self.kind == Kind::Election { 'e' } else { 's' };
                    let found = self.tagged(letter, &full)?;
                    self.records.insert(at, found);
                }
                self.records.get(&at).cloned()
            }
            _ => Some(self.full(at)),
        }
    }

    fn queue(&mut self, at: usize) -> Option<Vec<u8>> {
        let record = self.record(at)?;
        self.tagged('q', &record)
    }

    fn now(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.client).unwrap();
        seconds * 1000 + micros / 1000
    }

    async fn listen(&mut self) {
        let node = NodeId::numbered(self.rng.u128(1..=NODES));
        let leaves = self.kind != Kind::Job || self.rng.u8(..3) == 0;
        if self.inboxes.contains_key(&node) && !leaves {
            return;
        }
        if let Some(inbox) = self.inboxes.remove(&node) {
            drop(inbox);
            let start = Instant::now();
            while self.subscribers(node) > 0 {
                assert!(start.elapsed() < PATIENCE, "the subscription stays");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.ledger.listens(node, false);
        } else {
            self.inboxes
                .insert(node, Inbox::open(&self.store, node).await.unwrap());
            self.ledger.listens(node, true);
        }
    }

    fn subscribers(&mut self, node: NodeId) -> u64 {
        let channel = format!("tenure1:n:{node}");
        let (_, count): (String, u64) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel)
            .query(&mut self.client)
            .unwrap();
        count
    }

    /// A waiter is not heard of for a while, or a key is not left free for a while.
    fn age(&mut self) {
        let at = self.rng.usize(..self.busy);
        if self.gaps.len() > 1 && self.rng.u8(..4) > 0 {
            self.age_left_free();
            return;
        }
        let Some(waiter) = self.rng.choice(self.ledger.waiters(&self.names[at])) else {
            return;
        };
        let Some((_, term)) = self.claims[at].iter().find(|claim| claim.0 == waiter).copied() else {
            return;
        };
        let Some(queue) = self.queue(at) else { return };
        let ms = (term.lease_ms as f64 * AGES[self.rng.usize(..AGES.len())]) as u64;
        let mut member = format!("b{waiter}:{}:{}", term.lease_ms, term.hold_ms());
        if self.kind == Kind::Job {
            member += &format!(":{}", self.marks[&waiter].map_or(0, |mark| mark.0));
        } else {
            match self.modes.get(&waiter) {
                Some(Mode::Read) => member += ":1",
                Some(Mode::Permits(Permits { weight, capacity })) => {
                    member += &format!(":{weight}/{capacity}");
                }
                _ => {}
            }
        }
        let there: Option<f64> = redis::cmd("ZSCORE")
            .arg(&queue)
            .arg(&member)
            .query(&mut self.client)
            .unwrap();
        if there.is_some() {
            let by = -(ms as i64);
            let () = redis::cmd("ZINCRBY")
                .arg(&queue)
                .arg(by)
                .arg(&member)
                .query(&mut self.client)
                .unwrap();
            self.ledger.age(&self.names[at], waiter, ms);
        }
    }

    /// A job is no more.
    async fn forget(&mut self, step: u64) {
        let at = self.rng.usize(..self.busy);
        let now = self.now();
        // Else hardly any is in nobody's use.
        let idle = self.names[..self.busy].iter().position(|name| {
            self.ledger.record(name, now * 1000).is_none() && self.ledger.job(name).is_some()
        });
        let at = if self.rng.bool() { idle.unwrap_or(at) } else { at };
        let real = self.store.forget_job(&self.names[at]).await.unwrap();
        let now = self.now();
        let model = self.ledger.forget_job(&self.names[at], now * 1000);
        assert_eq!(real, model, "step {step}: {} is forgotten", self.names[at]);
        self.saw(match real {
            Forgotten::Done => "forgotten",
            Forgotten::Unknown => "nothing to forget",
            Forgotten::InUse => "in use, not forgotten",
        });
        self.compare_memory(at, step);
    }

    fn age_left_free(&mut self) {
        let now_us = wall_us();
        let known: Vec<usize> = (0..self.busy)
            .filter(|at| self.ledger.left_free(&self.names[*at], now_us).is_some())
            .collect();
        let Some(at) = self.rng.choice(known) else { return };
        let Some(queue) = self.queue(at) else { return };
        let there: Option<f64> = redis::cmd("ZSCORE")
            .arg(&queue)
            .arg("c")
            .query(&mut self.client)
            .unwrap();
        if there.is_none() {
            return;
        }
        let ms = POLL_GAP_AGES_MS[self.rng.usize(..POLL_GAP_AGES_MS.len())];
        let _: f64 = redis::cmd("ZINCRBY")
            .arg(&queue)
            .arg(-(ms as i64))
            .arg("c")
            .query(&mut self.client)
            .unwrap();
        self.ledger.age_left_free(&self.names[at], ms);
    }

    /// One of those who share a key died.
    fn kill_share(&mut self, at: usize, record: &[u8]) {
        let us = self.now() * 1000;
        let shares: Vec<_> = self.ledger.shares(&self.names[at], us).copied().collect();
        let Some(dead) = self.rng.choice(&shares).copied() else {
            return;
        };
        let permits = match dead.mode {
            Mode::Permits(Permits { weight, capacity }) => format!("{weight}/{capacity}"),
            _ => String::new(),
        };
        let _: f64 = redis::cmd("ZINCRBY")
            .arg(record)
            .arg(-(LONG_MS as i64))
            .arg(format!("h{}:{permits}", dead.holder))
            .query(&mut self.client)
            .unwrap();
        self.ledger.age_share(&self.names[at], dead.holder, LONG_MS);
        let left = shares.iter().filter(|share| share.holder != dead.holder);
        if let Some(last) = left.map(|share| share.expires).max() {
            let _: i64 = redis::cmd("PEXPIREAT")
                .arg(record)
                .arg(last)
                .query(&mut self.client)
                .unwrap();
        }
        self.saw("share died");
    }

    /// A node of before the readers hands over to a reader as it does to a writer.
    fn hand_string_to_reader(&mut self, at: usize, record: &[u8]) {
        let (holder, term) = self.fresh(at);
        self.modes.insert(holder, Mode::Read);
        self.last += 1;
        let ms = term.hold_ms();
        let () = redis::cmd("SET")
            .arg(record)
            .arg(format!("{holder}:{}", self.last))
            .arg("PX")
            .arg(ms)
            .query(&mut self.client)
            .unwrap();
        let owned = Record {
            owner: RecordOwner::Claim(holder, GrantNumber(self.last)),
            expires: Some(self.now() + ms),
        };
        self.ledger.overwrite(&self.names[at], Some(owned));
        self.saw("reader was handed a string");
    }

    /// Somebody else's client, or time, gets at a record.
    fn foreign(&mut self) {
        let at = if self.kind == Kind::Lock && self.rng.u8(..4) == 0 {
            self.rng.usize(self.busy..self.names.len())
        } else {
            self.rng.usize(..self.busy)
        };
        let Some(record) = self.record(at) else { return };
        if self.kind == Kind::Semaphore && self.rng.u8(..3) == 0 {
            return self.kill_share(at, &record);
        }
        if self.readers > 0 {
            match self.rng.u8(..3) {
                0 => return self.kill_share(at, &record),
                1 if self.rng.bool() => return self.hand_string_to_reader(at, &record),
                _ => {}
            }
        }
        let state = match self.rng.u8(..28) {
            0..8 => {
                let () = redis::cmd("DEL").arg(&record).query(&mut self.client).unwrap();
                None
            }
            8..12 => {
                let there: bool = redis::cmd("PEXPIRE")
                    .arg(&record)
                    .arg(1)
                    .query(&mut self.client)
                    .unwrap();
                let start = Instant::now();
                while there
                    && redis::cmd("EXISTS")
                        .arg(&record)
                        .query::<bool>(&mut self.client)
                        .unwrap()
                {
                    assert!(start.elapsed() < PATIENCE, "the record does not expire");
                }
                None
            }
            12..15 => {
                let own = self
                    .rng
                    .choice(&self.claims[at])
                    .map(|claim| claim.0.to_string())
                    .unwrap_or_default();
                let value = [own.as_str(), "nan", "", "1e400", "foreign", "5f3b:12:ab:7"]
                    [self.rng.usize(..6)]
                .to_owned();
                let mut set = redis::cmd("SET");
                set.arg(&record).arg(value);
                let ms = self.rng.bool().then(|| self.rng.u64(100_000..200_000));
                let now = self.now();
                if let Some(ms) = ms {
                    set.arg("PX").arg(ms);
                }
                let () = set.query(&mut self.client).unwrap();
                Some(Record {
                    owner: RecordOwner::Foreign,
                    expires: ms.map(|ms| now + ms),
                })
            }
            15 => {
                let () = redis::cmd("DEL").arg(&record).query(&mut self.client).unwrap();
                let () = redis::cmd("RPUSH")
                    .arg(&record)
                    .arg("x")
                    .query(&mut self.client)
                    .unwrap();
                Some(Record {
                    owner: RecordOwner::WrongType,
                    expires: None,
                })
            }
            _ => {
                // As a server's clock does that is stepped back.
                let Some(mut owned) = self.ledger.record(&self.names[at], 0).cloned() else {
                    return;
                };
                let there: bool = redis::cmd("PEXPIRE")
                    .arg(&record)
                    .arg(LONG_MS)
                    .query(&mut self.client)
                    .unwrap();
                if !there {
                    return;
                }
                owned.expires = Some(self.now() + LONG_MS);
                Some(owned)
            }
        };
        self.ledger.overwrite(&self.names[at], state);
    }
}

/// What the server's clock shows, as it runs on this machine.
fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_micros() as u64
}

/// The same but for a few milliseconds.
fn same(real: &Reply, model: &Reply) -> bool {
    match (real, model) {
        (Reply::Queued(a), Reply::Queued(b))
        | (Reply::QueuedBehindForeign(a), Reply::QueuedBehindForeign(b))
        | (Reply::Busy(a), Reply::Busy(b)) => match (a, b) {
            (Some(a), Some(b)) => a.abs_diff(*b) <= TOLERANCE_MS,
            _ => a == b,
        },
        _ => real == model,
    }
}

fn word(reply: &Reply) -> &'static str {
    match reply {
        Reply::Granted(_) => "Granted",
        Reply::Unlike(..) => "Unlike",
        Reply::InUse(_) => "InUse",
        Reply::Won(..) => "Won",
        Reply::Over => "Over",
        Reply::Skipped => "Skipped",
        Reply::Early(_) => "Early",
        Reply::Queued(_) => "Queued",
        Reply::QueuedBehindForeign(_) => "QueuedBehindForeign",
        Reply::Busy(_) => "Busy",
        Reply::Apart => "Apart",
        Reply::Late => "Late",
        Reply::Gone => "Gone",
        Reply::Done => "Done",
        Reply::NotThere => "NotThere",
        Reply::Overtook(..) => "Overtook",
        Reply::Behind { .. } => "Behind",
        Reply::Report(_) => "Report",
        Reply::Latch(_) | Reply::Watching(_) => "of a latch",
        Reply::Leader(_) => "of an election",
        Reply::Refused(_) => "Refused",
    }
}
