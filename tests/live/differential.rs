//! Random requests through the scripts on a real server and through the ledger: the same replies, pushes and queues.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use tenure::Key;
use tenure::protocol::ledger::{Branch, Job, Ledger, Record, RecordOwner};
use tenure::protocol::message::{
    Batch, ClaimNumber, Executed, Grant, GrantNumber, Holder, Kind, LeaseTimes, Name, NodeId, Reply, Request,
    TickTime, Verb,
};

use crate::server::RedisServer;
use crate::tools::{CLAIM, Inbox, PATIENCE, batch, connect, holder, store};

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
    for step in 0..steps {
        run.step(step).await;
    }
    run.must_have_seen(
        steps,
        &[
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
            ("stale passed over", 5),
            ("deaf passed over", 5),
            ("dead removed", 2),
            ("dead left standing", 5),
            ("dead not revived", 1),
            ("shortened", 1),
            ("clock refused", 5),
            ("quiet", 2_000),
            ("among quiet ones", 50),
            ("granted alone", 5),
            ("late alone", 1),
            ("claimed alone in vain", 20),
            ("left alone", 10),
            ("handed over alone", 1),
            ("handed over alone, by who saw a higher number", 1),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_jobs_gives_the_replies_of_the_ledger() {
    let seed = var("TENURE_SEED", fastrand::u64(..));
    let steps = var("TENURE_STEPS", 10_000);
    println!("TENURE_SEED={seed} TENURE_STEPS={steps}");
    let server = RedisServer::start();
    let mut run = Run::new(&server, seed, Kind::Job).await;
    for step in 0..steps {
        run.step(step).await;
    }
    run.must_have_seen(
        steps,
        &[
            ("Won", 50),
            ("Over", 50),
            ("Early", 20),
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
            ("clock refused", 5),
        ],
    );
}

struct Run {
    rng: fastrand::Rng,
    kind: Kind,
    names: Vec<Name>,
    /// So many of the names are contended. The others are quiet.
    busy: usize,
    claims: Vec<Vec<(Holder, LeaseTimes)>>,
    /// Which tick each claim is for, for its whole life.
    marks: HashMap<Holder, Option<TickTime>>,
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

    /// Each of these happened so many times in a thousand steps: a branch that was seldom taken was hardly compared.
    fn must_have_seen(&self, steps: u64, wanted: &[(&str, u64)]) {
        let mut seen: Vec<_> = self.replies.iter().collect();
        seen.sort_unstable();
        println!("{seen:?}");
        for (what, often) in wanted {
            let count = self.replies.get(what).copied().unwrap_or(0);
            assert!(
                steps < 1000 || count >= often * steps / 1000,
                "{what}: only {count} times in {steps} steps"
            );
        }
    }

    async fn step(&mut self, step: u64) {
        // Few stand by for a tick, and are to be alive when it is their turn.
        let tired = if self.kind == Kind::Job { 88 } else { 92 };
        match self.rng.u8(..100) {
            0..76 => self.batch(step).await,
            76..81 => self.listen().await,
            81 => self.spoil_clock(step).await,
            at if (82..tired).contains(&at) => self.age(),
            92.. => self.foreign(),
            _ => self.batch(step).await,
        }
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
        self.claims[at].push(claim);
        if self.claims[at].len() > 12 {
            self.claims[at].remove(0);
        }
        claim
    }

    /// The tick that was granted last, or one around now.
    fn tick(&mut self, at: usize) -> Option<TickTime> {
        if self.kind == Kind::Lock {
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
        let verb = match self.rng.u8(..10) {
            _ if is_heartbeat || is_renewal => Verb::Renew,
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
            6 if self.kind == Kind::Job => Verb::Finish,
            6..9 => Verb::Leave,
            _ => {
                self.next += 1;
                let to = Holder {
                    claim: ClaimNumber(self.next),
                    ..holder
                };
                self.claims[at].push((to, term));
                self.marks.insert(to, self.marks[&holder]);
                Verb::Yield { to }
            }
        };
        Request {
            name: self.names[at].clone(),
            holder,
            term,
            mode: Default::default(),
            mark: self.marks[&holder],
            verb,
        }
    }

    /// Claims what is free and leaves what is owned, but for a few in a hundred.
    fn quiet_request(&mut self, at: usize, others: u8) -> Request {
        if self.rng.u8(..100) < others {
            self.saw("among quiet ones");
            return Request {
                verb: match self.rng.u8(..3) {
                    0 => Verb::Renew,
                    1 => Verb::Leave,
                    _ => CLAIM,
                },
                ..self.request(at)
            };
        }
        let record = self.ledger.record(&self.names[at], 0);
        let owner = record.and_then(|record| match record.owner {
            RecordOwner::Claim(owner, _) => self.claims[at].iter().find(|claim| claim.0 == owner).copied(),
            _ => None,
        });
        self.saw("quiet");
        let ((holder, term), verb) = match owner {
            Some(owner) => (owner, Verb::Leave),
            None => (self.fresh(at), CLAIM),
        };
        Request {
            name: self.names[at].clone(),
            holder,
            term,
            mode: Default::default(),
            mark: None,
            verb,
        }
    }

    async fn batch(&mut self, step: u64) {
        let is_quiet = self.kind == Kind::Lock && self.rng.u8(..8) == 0;
        let mut places: Vec<usize> = if is_quiet {
            (self.busy..self.names.len()).collect()
        } else {
            (0..self.busy).collect()
        };
        self.rng.shuffle(&mut places);
        // Who travels alone has words of its own.
        let is_alone = self.rng.u8(..3) == 0;
        places.truncate(match (is_alone, is_quiet) {
            (true, _) => 1,
            (false, true) => self.rng.usize(1..=QUIET),
            (false, false) => self.rng.usize(1..=8),
        });
        let others = [0, 0, 2, 20][self.rng.usize(..4)];
        let mut requests: Vec<_> = places
            .iter()
            .map(|&at| {
                if is_quiet {
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
            && matches!(request.verb, Verb::Renew | Verb::Yield { .. })
        {
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
                Branch::StandbyTold => "standby told",
                Branch::StalePassedOver => "stale passed over",
                Branch::DeafPassedOver => "deaf passed over",
                Branch::DeadRemoved => "dead removed",
                Branch::SettledForAnother => "settled for another",
                Branch::AskedAgain => "asked again",
                Branch::YieldRepeated => "yield repeated",
                _ => continue,
            });
        }
        for ((request, real), model) in batch.requests.iter().zip(&real.replies).zip(&model.replies) {
            assert!(
                same(real, model),
                "step {step}: {request:?}\nserver {real:?}\nledger {model:?}"
            );
            if let Reply::Granted(number) | Reply::Won(number, _) = real {
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
        for push in pushes {
            let at = batch
                .requests
                .iter()
                .position(|request| request.name == push.name);
            self.saw(match batch.requests[at.expect("it is about one of them")].verb {
                Verb::Leave | Verb::Finish => "push of a leave",
                Verb::Yield { .. } => "push of a yield",
                _ => "push of an expiry",
            });
            if !self.ledger.waiters(&push.name).is_empty() {
                self.saw("push with others waiting");
            }
            self.last = self.last.max(push.number.0);
            let inbox = self
                .inboxes
                .get_mut(&push.holder.node)
                .expect("only who listens is chosen");
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
    }

    fn saw(&mut self, what: &'static str) {
        *self.replies.entry(what).or_default() += 1;
    }

    /// What is known of a job.
    fn compare_memory(&mut self, at: usize, step: u64) {
        if self.kind == Kind::Lock {
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
        };
        let model = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        assert_eq!(real, model, "step {step}: what is known of {}", self.names[at]);
    }

    /// A queue in order, the dead included: they stand where they stood until somebody walks over them.
    fn compare(&mut self, at: usize, now: u64, step: u64) {
        let model = self.ledger.waiters(&self.names[at]);
        let Some(queue) = self.queue(at) else {
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

    /// Until when the record is there.
    fn compare_record(&mut self, at: usize, step: u64) {
        let Some(record) = self.record(at) else { return };
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
        let leaves = self.kind == Kind::Lock || self.rng.u8(..3) == 0;
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

    /// A waiter is not heard of for a while.
    fn age(&mut self) {
        let at = self.rng.usize(..self.busy);
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

    /// Somebody else's client, or time, gets at a record.
    fn foreign(&mut self) {
        let at = if self.kind == Kind::Lock && self.rng.u8(..4) == 0 {
            self.rng.usize(self.busy..self.names.len())
        } else {
            self.rng.usize(..self.busy)
        };
        let Some(record) = self.record(at) else { return };
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
        Reply::Won(..) => "Won",
        Reply::Over => "Over",
        Reply::Early(_) => "Early",
        Reply::Queued(_) => "Queued",
        Reply::QueuedBehindForeign(_) => "QueuedBehindForeign",
        Reply::Busy(_) => "Busy",
        Reply::Late => "Late",
        Reply::Gone => "Gone",
        Reply::Done => "Done",
        Reply::NotThere => "NotThere",
        Reply::Refused(_) => "Refused",
    }
}
