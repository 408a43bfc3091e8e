//! Random requests of a quorum to one master, and to a ledger for each slot: the same replies, records, clocks and
//! recoveries.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisResult;
use tenure::Key;
use tenure::error::StoreRefusal;
use tenure::protocol::ledger::{Branch, Ledger, Record, RecordOwner};
use tenure::protocol::message::{
    Batch, ClaimId, ClaimReply, GrantNumber, LeaseTimes, LeaveReply, Name, Push, Reply, Request, Verb,
};
use tenure::store::{Link, ServerId, Store};
use tenure::testing::quorum_store;

use super::steps::Steps;
use super::{LEASES, LONG_MS, NODES, TOLERANCE_MS, same, wall_us};
use crate::server::RedisServer;
use crate::tools::{PATIENCE, batch, claim_id};

const RECOVERING: &str = "tenure1:recovering";
const RECOVERIES_MS: [u64; 3] = [60_000_000, 130_000_000, 290_000_000];
/// The number of contended names.
const BUSY: usize = 16;
/// A full batch has as many requests.
const QUIET: usize = 128;
/// Names that begin alike and have one hash tag share a slot.
const GROUPS: usize = 12;

struct Run {
    rng: fastrand::Rng,
    names: Vec<Name>,
    slots: Vec<u16>,
    /// The claims of each name.
    claims: Vec<Vec<(ClaimId, LeaseTimes)>>,
    /// The numbers of the latest grants.
    numbers: HashMap<ClaimId, u64>,
    next: u64,
    ledgers: BTreeMap<u16, Ledger>,
    /// The names of the clocks that have existed.
    clocks: HashMap<u16, Vec<u8>>,
    /// The key of the recovery has no end.
    is_endless: bool,
    store: Arc<dyn Store>,
    link: Arc<dyn Link>,
    client: redis::Connection,
    seen: HashMap<&'static str, u64>,
}

/// A clock that is no number while a batch is executed.
struct Spoiled {
    slot: u16,
    clock: Vec<u8>,
    before: Option<String>,
    dump: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_votes_gives_the_replies_of_the_ledger() {
    let mut steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed).await;
    let wanted = [
        ("granted as proposed", 200),
        ("granted above the proposal", 100),
        ("granted the number after the clock's", 20),
        ("granted the server's time", 20),
        ("proposed what the clock says", 20),
        ("number raised by an owner", 50),
        ("number not raised by an owner", 50),
        ("number raised for another's key", 20),
        ("number raised late", 2),
        ("restored", 100),
        ("restored late", 5),
        ("proposed late", 20),
        ("proposed by the owner", 20),
        ("busy", 200),
        ("busy by a foreign value", 20),
        ("busy without an end", 10),
        ("wrong type", 20),
        ("done", 100),
        ("not there", 100),
        ("vote held back", 100),
        ("vote of an owner held back", 20),
        ("left while recovering", 20),
        ("recovery without an end", 5),
        ("recovery begun", 2),
        ("recovery ended", 2),
        ("clock refused", 30),
        ("left beside a bad clock", 5),
        ("late beside a bad clock", 0),
        ("clock lost", 5),
        ("record lost", 10),
        ("record expired", 2),
        ("record aged", 5),
        ("one slot granted several", 50),
        ("several slots", 200),
        ("alone", 200),
        ("full batch", 1),
    ];
    while let Some(step) = steps.next(&run.seen, &wanted) {
        match run.rng.u8(..100) {
            0..3 => run.begin_or_end_recovery(),
            3..7 => run.lose_clock(),
            7..20 => run.meddle(),
            _ => run.batch(step).await,
        }
        if step.is_multiple_of(steps.least / 4) {
            run.begin_again();
        }
    }
}

impl Run {
    async fn new(server: &RedisServer, seed: u64) -> Self {
        // A majority agrees on the masters. After that the others are never asked.
        let other = RedisServer::start();
        let urls = [&*server.url(), &other.url(), "redis://127.0.0.1:1/"];
        let store = quorum_store(&urls, PATIENCE).unwrap();
        let (link, agreed) = tokio::join!(store.connect(ServerId(0), None), store.connect(ServerId(1), None));
        let link = link.unwrap();
        agreed.unwrap();
        let awkward: [&[u8]; BUSY - GROUPS] = [b"{}", b"a}b{c}", b"\x00\xff \n", b"%s%d"];
        let names = awkward.map(Key::from).into_iter();
        let names = names.chain((0..GROUPS).map(|n| Key::from(format!("{{x{}}}:{n}", n % 3))));
        // Some of the quiet names have a slot of their own.
        let quiet = |n: usize| match n % 4 {
            0 => format!("quiet {n}"),
            of => format!("{{y{of}}}quiet {n}"),
        };
        let names = names.chain((0..QUIET).map(|n| Key::from(quiet(n))));
        let names: Vec<_> = names.map(Name::lock).collect();
        let slots: Vec<_> = names.iter().map(|name| store.slot(name)).collect();
        Run {
            rng: fastrand::Rng::with_seed(seed),
            claims: vec![Vec::new(); names.len()],
            numbers: HashMap::new(),
            next: 1,
            ledgers: slots.iter().map(|slot| (*slot, Ledger::new())).collect(),
            clocks: HashMap::new(),
            is_endless: false,
            client: server.client(),
            seen: HashMap::new(),
            names,
            slots,
            store,
            link,
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut cmd = redis::Cmd::new();
        words.iter().for_each(|word| {
            cmd.arg(*word);
        });
        cmd.query(&mut self.client).unwrap()
    }

    fn record_key(&self, at: usize) -> Vec<u8> {
        [b"lock:", self.names[at].key.as_bytes()].concat()
    }

    fn ledger(&mut self, at: usize) -> &mut Ledger {
        self.ledgers.get_mut(&self.slots[at]).unwrap()
    }

    fn record(&self, at: usize) -> Option<&Record> {
        self.ledgers[&self.slots[at]].record(&self.names[at], wall_us())
    }

    fn owner(&self, at: usize) -> Option<(ClaimId, GrantNumber)> {
        match self.record(at)?.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            _ => None,
        }
    }

    /// Clears the server. Otherwise each clock is soon ahead of the time.
    fn begin_again(&mut self) {
        self.ask::<()>(&[b"FLUSHDB"]);
        self.ledgers
            .values_mut()
            .for_each(|ledger| *ledger = Ledger::new());
        self.claims.iter_mut().for_each(Vec::clear);
        self.numbers.clear();
        self.is_endless = false;
    }

    /// The master has one recovery for all slots.
    fn recovers(&self) -> bool {
        let any = self.ledgers.values().next().unwrap();
        self.is_endless || any.recovering(wall_us()).is_some()
    }

    fn begin_or_end_recovery(&mut self) {
        if self.recovers() {
            self.ask::<()>(&[b"DEL", RECOVERING.as_bytes()]);
            self.ledgers.values_mut().for_each(Ledger::end_recovery);
            self.is_endless = false;
            return self.saw("recovery ended");
        }
        // Votes are compared most of the time.
        if self.rng.u8(..3) > 0 {
            return;
        }
        self.saw("recovery begun");
        if self.rng.u8(..4) == 0 {
            self.ask::<()>(&[b"SET", RECOVERING.as_bytes(), b"1"]);
            self.is_endless = true;
            return;
        }
        let ms = RECOVERIES_MS[self.rng.usize(..RECOVERIES_MS.len())];
        let text = ms.to_string();
        self.ask::<()>(&[b"SET", RECOVERING.as_bytes(), b"1", b"PX", text.as_bytes()]);
        let us = wall_us();
        for ledger in self.ledgers.values_mut() {
            ledger.begin_recovery(us, ms);
        }
    }

    /// Deletes a clock, or sets the clock back.
    fn lose_clock(&mut self) {
        let at = self.rng.usize(..BUSY);
        let slot = self.slots[at];
        let Some(clock) = self.clocks.get(&slot).cloned() else {
            return;
        };
        let last = self.ledgers[&slot].last_number().0;
        let back = match self.rng.bool() {
            true => 0,
            false => last.saturating_sub(self.rng.u64(1..2_000)),
        };
        if back == 0 {
            self.ask::<()>(&[b"DEL", &clock]);
        } else {
            self.ask::<()>(&[b"SET", &clock, back.to_string().as_bytes()]);
        }
        self.ledger(at).set_last(GrantNumber(back));
        self.saw("clock lost");
    }

    /// Changes a record, as another client, an expiry or a loss does.
    fn meddle(&mut self) {
        let at = match self.rng.u8(..4) {
            0 => self.rng.usize(BUSY..self.names.len()),
            _ => self.rng.usize(..BUSY),
        };
        let key = self.record_key(at);
        let known = self.record(at).cloned();
        let state = match self.rng.u8(..12) {
            0..5 => {
                self.ask::<()>(&[b"DEL", &key]);
                if known.is_some() {
                    self.saw("record lost");
                }
                None
            }
            5 => {
                let is_there: bool = self.ask(&[b"PEXPIRE", &key, b"1"]);
                let start = Instant::now();
                while self.ask::<bool>(&[b"EXISTS", &key]) {
                    assert!(start.elapsed() < PATIENCE, "the record does not expire");
                    std::thread::sleep(Duration::from_micros(200));
                }
                if is_there {
                    self.saw("record expired");
                }
                None
            }
            6..8 => {
                let own = self.rng.choice(&self.claims[at]);
                let own = own.map(|claim| claim.0.to_string()).unwrap_or_default();
                let values = [own.as_str(), "nan", "", "foreign", "5f3b:12:ab:7"];
                let value = values[self.rng.usize(..values.len())];
                let ms = self.rng.bool().then(|| self.rng.u64(10_000_000..20_000_000));
                let (now, ends) = (wall_us() / 1000, ms.unwrap_or_default().to_string());
                let words: [&[u8]; 5] = [b"SET", &key, value.as_bytes(), b"PX", ends.as_bytes()];
                self.ask::<()>(&words[..if ms.is_some() { 5 } else { 3 }]);
                Some(Record {
                    owner: RecordOwner::Foreign,
                    expires: ms.map(|ms| now + ms),
                    may_keep: false,
                })
            }
            8 => {
                self.ask::<()>(&[b"DEL", &key]);
                self.ask::<()>(&[b"RPUSH", &key, b"x"]);
                Some(Record {
                    owner: RecordOwner::WrongType,
                    expires: None,
                    may_keep: false,
                })
            }
            of => {
                // A part of the lease is over, or the clock of the server was set back.
                let Some(mut record) = known else { return };
                let ms = if of == 9 {
                    LONG_MS
                } else {
                    self.rng.u64(5_000_000..9_000_000)
                };
                self.ask::<()>(&[b"PEXPIRE", &key, ms.to_string().as_bytes()]);
                record.expires = Some(wall_us() / 1000 + ms);
                self.saw("record aged");
                Some(record)
            }
        };
        let name = self.names[at].clone();
        self.ledger(at).overwrite(&name, state);
    }

    fn fresh(&mut self, at: usize) -> (ClaimId, LeaseTimes) {
        let lease_ms = LEASES[self.rng.usize(..LEASES.len())];
        self.next += 1;
        let margin_ms = lease_ms / 10;
        let term = LeaseTimes { lease_ms, margin_ms };
        let claim = (claim_id(self.rng.u128(1..=NODES), self.next), term);
        self.claims[at].push(claim);
        if self.claims[at].len() > 5 {
            self.claims[at].remove(0);
        }
        claim
    }

    fn request(&mut self, at: usize) -> Request {
        let owner = self.owner(at).map(|(owner, _)| owner);
        let mut claims = self.claims[at].iter();
        let owner = claims.find(|claim| Some(claim.0) == owner).copied();
        let known = self.rng.choice(&self.claims[at]).copied();
        let (is_owner, (claim_id, term)) = match (owner, known, self.rng.u8(..8)) {
            (Some(owner), _, 0..4) => (true, owner),
            (_, Some(known), 4..6) => (Some(known) == owner, known),
            _ => (false, self.fresh(at)),
        };
        let verb = match (self.rng.u8(..10), is_owner) {
            (0, true) | (0..6, false) => Verb::Propose {
                number: self.draw_proposal(at),
            },
            (0..7, true) | (6..8, false) => Verb::Restore {
                number: self.draw_number(at, claim_id),
            },
            _ => Verb::Leave,
        };
        Request {
            name: self.names[at].clone(),
            claim_id,
            term,
            mode: Default::default(),
            when_behind: Default::default(),
            may_keep: false,
            data: None,
            mark: None,
            verb,
        }
    }

    /// Returns the number that a claim proposes: none, or one below, at or above the clock.
    fn draw_proposal(&mut self, at: usize) -> GrantNumber {
        let last = self.ledger(at).last_number().0;
        GrantNumber(match self.rng.u8(..8) {
            0 => 0,
            1 => last,
            2 => last.saturating_sub(self.rng.u64(..2_000)),
            3 => last + 1,
            4 => last + self.rng.u64(1..3_000),
            5 => wall_us() - self.rng.u64(..2_000),
            _ => wall_us() + self.rng.u64(..2_000),
        })
    }

    /// Returns the number that a renewal carries: the number of the claim's grant, or another.
    fn draw_number(&mut self, at: usize, claim_id: ClaimId) -> GrantNumber {
        let last = self.ledger(at).last_number().0;
        let known = self.numbers.get(&claim_id).copied();
        GrantNumber(match (self.rng.u8(..6), known) {
            (0..2, Some(number)) => number,
            (2, _) => last.max(1),
            (3, _) => last.saturating_sub(self.rng.u64(..2_000)).max(1),
            _ => last + self.rng.u64(1..2_000),
        })
    }

    /// Writes what is no number into the clock of a name, at times.
    fn spoil_clock(&mut self, at: usize) -> Option<Spoiled> {
        let slot = self.slots[at];
        let clock = self.clocks.get(&slot).filter(|_| self.rng.u8(..20) == 0)?.clone();
        let before = self.ask(&[b"GET", &clock]);
        self.ask::<()>(&[b"DEL", &clock]);
        let bad = ["list", "x", "nan", "1.5", "-1", "", "9007199254740991"][self.rng.usize(..7)];
        let write: &[u8] = if bad == "list" { b"RPUSH" } else { b"SET" };
        self.ask::<()>(&[write, &clock, bad.as_bytes()]);
        Some(Spoiled {
            slot,
            dump: self.ask(&[b"DUMP", &clock]),
            clock,
            before,
        })
    }

    fn draw_batch(&mut self) -> (Vec<usize>, Batch) {
        let is_quiet = self.rng.u8(..8) == 0;
        let mut places: Vec<usize> = match is_quiet {
            true => (BUSY..self.names.len()).collect(),
            false => (0..BUSY).collect(),
        };
        self.rng.shuffle(&mut places);
        places.truncate(match self.rng.u8(..6) {
            0..2 => 1,
            2 if is_quiet => QUIET,
            _ if is_quiet => self.rng.usize(1..=QUIET),
            _ => self.rng.usize(1..=BUSY),
        });
        let requests = places.iter().map(|at| self.request(*at)).collect();
        let not_after = match self.rng.u8(..10) {
            0 => self.rng.u64(0..1_000_000),
            1 => wall_us() + 1_000_000_000,
            _ => u64::MAX,
        };
        let drawn = Batch {
            not_after,
            recovery_ms: RECOVERIES_MS[self.rng.usize(..RECOVERIES_MS.len())],
            ..batch(requests)
        };
        (places, drawn)
    }

    async fn batch(&mut self, step: u64) {
        let (places, drawn) = self.draw_batch();
        let spoiled = self.spoil_clock(places[0]);
        let before = wall_us();
        let real = self.link.apply(drawn.clone()).await.unwrap();
        let span = before - 1_000..=wall_us() + 1_000;
        assert!(
            span.contains(&real.time),
            "step {step}: {} at {span:?}",
            real.time
        );
        if self.is_endless {
            for ledger in self.ledgers.values_mut() {
                ledger.end_recovery();
                ledger.begin_recovery(real.time, drawn.recovery_ms);
            }
            self.saw("recovery without an end");
        }
        let mut by_slot: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, at) in places.iter().enumerate() {
            by_slot.entry(self.slots[*at]).or_default().push(index);
        }
        for indices in by_slot.values() {
            let mut granted = 0;
            for index in indices {
                let (at, request) = (places[*index], &drawn.requests[*index]);
                let one = Batch {
                    requests: vec![request.clone()],
                    ..drawn.clone()
                };
                let is_spoiled = spoiled.as_ref().is_some_and(|of| of.slot == self.slots[at]);
                let was = self.note_before(at);
                let expected = self.model(at, real.time, &one, is_spoiled);
                let reply = &real.replies[*index];
                let is_equal = match (&expected, reply) {
                    (Some(expected), reply) => same(reply, expected),
                    (None, Reply::Refused(StoreRefusal::Other(text))) => text.contains("is no grant number"),
                    (None, _) => false,
                };
                assert!(
                    is_equal,
                    "step {step}: {request:?} of {} at {}, the clock at {}, the record {:?}\nserver {reply:?}\nledger {expected:?}",
                    places.len(),
                    real.time,
                    was.last,
                    was.record,
                );
                granted += u64::from(reply.number().is_some());
                self.note(&was, request, reply, (real.time, is_spoiled));
            }
            if granted > 1 {
                self.saw("one slot granted several");
            }
        }
        self.saw(match (places.len(), by_slot.len()) {
            (1, _) => "alone",
            (QUIET, _) => "full batch",
            (_, 1) => "one slot",
            _ => "several slots",
        });
        if let Some(spoiled) = spoiled {
            let dump: Vec<u8> = self.ask(&[b"DUMP", &spoiled.clock]);
            assert_eq!(dump, spoiled.dump, "step {step}: a bad clock was overwritten");
            self.ask::<()>(&[b"DEL", &spoiled.clock]);
            if let Some(before) = spoiled.before {
                self.ask::<()>(&[b"SET", &spoiled.clock, before.as_bytes()]);
            }
        }
        self.compare(&places, step);
    }

    /// Returns the ledger's reply; `None` if the master must refuse the request for its bad clock.
    fn model(&mut self, at: usize, time: u64, one: &Batch, is_spoiled: bool) -> Option<Reply> {
        let verb = one.requests[0].verb;
        if is_spoiled && verb != Verb::Leave {
            let mut ledger = self.ledger(at).clone();
            let reply = ledger.apply(time, one, &mut Vec::new()).replies.remove(0);
            let is_refused_before = match &reply {
                Reply::Claim(ClaimReply::Recovering(_)) | Reply::Refused(_) => true,
                Reply::Late => verb.creates(),
                _ => false,
            };
            return is_refused_before.then_some(reply);
        }
        let mut pushes = Vec::<Push>::new();
        let applied = self.ledger(at).apply(time, one, &mut pushes);
        assert!(pushes.is_empty(), "no claim waits: {pushes:?}");
        for branch in self.ledger(at).branches().to_vec() {
            self.saw(match branch {
                Branch::Restored => "restored",
                Branch::RestoredLate => "restored late",
                Branch::VoteHeldBack => "vote held back",
                Branch::LateRefused => "proposed late",
                other => panic!("{other:?} on a quorum"),
            });
        }
        applied.replies.into_iter().next()
    }

    fn note_before(&self, at: usize) -> Before {
        Before {
            last: self.ledgers[&self.slots[at]].last_number().0,
            record: self.record(at).cloned(),
            recovers: self.recovers(),
        }
    }

    /// Counts what a request met.
    fn note(&mut self, was: &Before, request: &Request, reply: &Reply, (time, is_spoiled): (u64, bool)) {
        if let Some(number) = reply.number() {
            self.numbers.insert(request.claim_id, number.0);
        }
        let owner = was.record.as_ref().map(|record| &record.owner);
        let owns = matches!(owner, Some(RecordOwner::Claim(owner, _)) if *owner == request.claim_id);
        let what = match (request.verb, reply) {
            (Verb::Leave, Reply::Leave(LeaveReply::Left)) if is_spoiled => "left beside a bad clock",
            (_, Reply::Late) if is_spoiled => "late beside a bad clock",
            (_, Reply::Refused(StoreRefusal::Other(_))) => "clock refused",
            (_, Reply::Refused(_)) => "wrong type",
            (Verb::Propose { number }, Reply::Claim(ClaimReply::Granted(grant))) => {
                let given = grant.number;
                if number.0 == was.last && number.0 > 0 {
                    self.saw("proposed what the clock says");
                }
                match number.0 {
                    0 if given.0 == time => "granted the server's time",
                    0 => "granted the number after the clock's",
                    _ if given == number => "granted as proposed",
                    _ => "granted above the proposal",
                }
            }
            (Verb::Restore { number }, Reply::Claim(ClaimReply::Granted(_))) if owns => {
                match number.0 > was.last {
                    true => "number raised by an owner",
                    false => "number not raised by an owner",
                }
            }
            (Verb::Restore { number }, Reply::Late) if number.0 > was.last => "number raised late",
            (_, Reply::Claim(ClaimReply::Recovering(_))) if owns => "vote of an owner held back",
            (verb, Reply::Claim(ClaimReply::Busy(left))) => {
                if matches!(verb, Verb::Restore { number } if number.0 > was.last) {
                    self.saw("number raised for another's key");
                }
                if left.is_none() {
                    self.saw("busy without an end");
                }
                if owner == Some(&RecordOwner::Foreign) {
                    self.saw("busy by a foreign value");
                }
                if owns {
                    self.saw("proposed by the owner");
                }
                "busy"
            }
            (_, Reply::Leave(LeaveReply::Left)) => {
                if was.recovers {
                    self.saw("left while recovering");
                }
                "done"
            }
            (_, Reply::Leave(LeaveReply::NotThere)) => "not there",
            _ => return,
        };
        self.saw(what);
    }

    /// Compares the records, and the clocks of their slots, and the recovery.
    fn compare(&mut self, places: &[usize], step: u64) {
        if places
            .iter()
            .any(|at| !self.clocks.contains_key(&self.slots[*at]))
        {
            let clocks: Vec<Vec<u8>> = self.ask(&[b"KEYS", b"tenure1:clock:*"]);
            for clock in clocks {
                self.clocks.insert(self.store.slot_of_key(&clock), clock);
            }
        }
        let mut pipe = redis::pipe();
        pipe.atomic().ignore_errors().cmd("TIME");
        for at in places {
            let key = self.record_key(*at);
            pipe.cmd("TYPE")
                .arg(&key)
                .cmd("GET")
                .arg(&key)
                .cmd("PTTL")
                .arg(&key);
            // A slot without a clock has a name that does not exist.
            let clock = self.clocks.get(&self.slots[*at]);
            pipe.cmd("GET").arg(clock.map_or(&b"none"[..], |clock| clock));
        }
        pipe.cmd("PTTL").arg(RECOVERING);
        let mut answers: std::vec::IntoIter<RedisResult<redis::Value>> = pipe
            .query::<Vec<RedisResult<redis::Value>>>(&mut self.client)
            .unwrap()
            .into_iter();
        let mut next = || answers.next().unwrap().unwrap_or(redis::Value::Nil);
        let (seconds, micros): (u64, u64) = redis::from_redis_value(next()).unwrap();
        let now = seconds * 1000 + micros / 1000;
        let is_near = |real: i64, model: Option<u64>| match model {
            Some(ends) => real >= 0 && real.abs_diff(ends as i64 - now as i64) <= TOLERANCE_MS,
            None => real == -1,
        };
        for at in places {
            let (kind, value, ttl, clock) = (next(), next(), next(), next());
            let kind: String = redis::from_redis_value(kind).unwrap();
            let value: Option<Vec<u8>> = redis::from_redis_value(value).unwrap();
            let ttl: i64 = redis::from_redis_value(ttl).unwrap();
            let clock: Option<u64> = redis::from_redis_value(clock).unwrap();
            let (name, ledger) = (&self.names[*at], &self.ledgers[&self.slots[*at]]);
            let record = ledger.record(name, now * 1000);
            let is_same = match record.map(|record| &record.owner) {
                None => kind == "none",
                Some(RecordOwner::WrongType) => kind == "list",
                Some(RecordOwner::Foreign) => kind == "string",
                Some(RecordOwner::Claim(claim_id, number)) => {
                    value == Some(format!("{claim_id}:{number}").into_bytes())
                }
                Some(RecordOwner::Revoked(..) | RecordOwner::RevokedForeign) => false,
            };
            let is_same = is_same && record.is_none_or(|record| is_near(ttl, record.expires));
            assert!(
                is_same,
                "step {step}: the record of {name}: a {kind} {value:?} for {ttl} ms, {record:?} in the ledger at {now}"
            );
            let last = ledger.last_number().0;
            assert_eq!(
                clock.unwrap_or_default(),
                last,
                "step {step}: the clock of {name}"
            );
        }
        let ttl: i64 = redis::from_redis_value(next()).unwrap();
        let any = self.ledgers.values().next().unwrap();
        let left = any.recovering(now * 1000);
        let is_same = match left {
            _ if self.is_endless => ttl == -1,
            Some(left) => is_near(ttl, Some(now + left)),
            None => ttl == -2,
        };
        assert!(
            is_same,
            "step {step}: the master recovers for {ttl} ms, the ledger for {left:?}"
        );
    }
}

/// What a request found.
struct Before {
    last: u64,
    record: Option<Record>,
    recovers: bool,
}
