//! Latches, through their script and through the ledger: the same replies, pushes and records.

use std::collections::HashMap;
use std::sync::Arc;

use tenure::Key;
use tenure::protocol::ledger::{Branch, Ledger, Record, RecordOwner};
use tenure::protocol::message::{
    Batch, Call, CallAnswer, CallReply, CallTime, GrantNumber, LatchReport, LeaseTimes, Name, NodeId,
    Payload, Reply, Request, Rule, Verb, Version,
};
use tenure::store::{Link, Store};

use super::steps::Steps;
use super::views::Views;
use super::{AGES_MS, CLOCK, LEASES, NODES, TOLERANCE_MS, at_once, cmd};
use crate::server::RedisServer;
use crate::tools::{Inbox, claim_id, connect, store};

/// Lifetimes. They are minutes long, so that the few seconds of a run change no reply.
pub(super) const LIVES: [u64; 3] = [40_000_000, 70_000_000, 130_000_000];
const KEYS: [&[u8]; 5] = [b"a", b"a}b{c}", b"\x00\xff \n", b"clock", b"%s%d"];
/// Few, so that many are repeated.
const IDS: [&[u8]; 6] = [b"", b"1", b"2:3:x", b"\x00\n%d", b"left", b"a longer one"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_latches_gives_the_replies_of_the_ledger() {
    let mut steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed).await;
    let wanted = [
        ("Set", 100),
        ("Left", 200),
        ("Left(0)", 200),
        ("Unset", 50),
        ("SetMeanwhile", 20),
        ("Over", 50),
        ("Uncertain", 10),
        ("Watching", 50),
        ("Late", 5),
        ("Refused", 20),
        ("set before", 20),
        ("set once", 50),
        ("counted before", 20),
        ("lost", 5),
        ("recovery by the clock", 0),
        ("push", 20),
        ("several pushed at once", 5),
        ("watcher died", 5),
        ("latch died", 5),
    ];
    let views = Views::of(&*run.store);
    while let Some(step) = steps.next(&run.seen, &wanted) {
        run.step(step).await;
        views.compare(&run.ledger, step).await;
    }
}

struct Run {
    rng: fastrand::Rng,
    names: Vec<Name>,
    /// The keys of the records, known once they have existed.
    records: HashMap<usize, Vec<u8>>,
    claims: u64,
    ledger: Ledger,
    store: Arc<dyn Store>,
    link: std::sync::Arc<dyn Link>,
    client: redis::Connection,
    inboxes: HashMap<NodeId, Inbox>,
    seen: HashMap<&'static str, u64>,
}

impl Run {
    async fn new(server: &RedisServer, seed: u64) -> Self {
        let store = store(&server.url());
        Run {
            rng: fastrand::Rng::with_seed(seed),
            names: KEYS.map(|key| Name::latch(Key::from(key))).into(),
            records: HashMap::new(),
            claims: 0,
            ledger: Ledger::new(),
            link: connect(&store).await.unwrap(),
            store,
            client: server.client(),
            inboxes: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    async fn step(&mut self, step: u64) {
        match self.rng.u8(..100) {
            0..86 => self.batch(step).await,
            86..92 => self.listen().await,
            92..97 => self.age(),
            _ => self.foreign(),
        }
    }

    /// Returns a call time around the current generation or the one before.
    fn called(&mut self, generation: u64) -> CallTime {
        let around = [
            0,
            generation.saturating_sub(100_000),
            generation.saturating_sub(1),
            generation,
            generation + 1,
            u64::MAX,
        ];
        let since = around[self.rng.usize(..6)];
        let of = match self.rng.u8(..8) {
            0 => Some(generation),
            1 => Some(generation.saturating_sub(1)),
            2 => Some(generation + 1),
            _ => None,
        };
        CallTime {
            since,
            until: since.max(around[self.rng.usize(..6)]),
            repeats: self.rng.bool(),
            of: of.map(|of| Version(of.max(1))),
        }
    }

    fn request(&mut self, at: usize, now_us: u64) -> Request {
        let latch = self.ledger.latch(&self.names[at], now_us);
        let generation = latch.map_or(1, |latch| latch.generation.0);
        let called = self.called(generation);
        let call = match self.rng.u8(..16) {
            0..5 => Call::SetCount {
                count: self.rng.u32(1..=3),
                life_ms: LIVES[self.rng.usize(..LIVES.len())],
            },
            5..11 => Call::CountDown { called },
            11 => Call::Count,
            _ => Call::Zero {
                of: match self.rng.u8(..8) {
                    0 | 1 => Some(Version(generation.saturating_sub(1).max(1))),
                    2 => Some(Version(generation + 1)),
                    3 | 4 => Some(Version(generation)),
                    _ => None,
                },
            },
        };
        let has_id = matches!(call, Call::SetCount { .. } | Call::CountDown { .. });
        let id = IDS[self.rng.usize(..IDS.len())];
        let lease_ms = LEASES[self.rng.usize(..LEASES.len())];
        self.claims += 1;
        Request {
            name: self.names[at].clone(),
            claim_id: claim_id(self.rng.u128(1..=NODES), self.claims),
            term: LeaseTimes {
                lease_ms,
                margin_ms: lease_ms / 10,
            },
            mode: Default::default(),
            when_behind: Default::default(),
            may_keep: false,
            data: has_id.then(|| Payload(id.into())),
            mark: None,
            verb: Verb::Call(call),
        }
    }

    async fn batch(&mut self, step: u64) {
        let mut places: Vec<usize> = (0..KEYS.len()).collect();
        self.rng.shuffle(&mut places);
        places.truncate(self.rng.usize(1..=3));
        let now_us = self.now() * 1000;
        let requests: Vec<_> = places.iter().map(|&at| self.request(at, now_us)).collect();
        let batch = Batch {
            highest: GrantNumber(if self.rng.u8(..50) == 0 {
                now_us + self.rng.u64(..3_000)
            } else {
                0
            }),
            not_after: if self.rng.u8(..20) == 0 { 1 } else { u64::MAX },
            poll_gap_ms: 0,
            is_unconfirmed: self.rng.u8(..8) == 0,
            recovery_ms: 60_000_000,
            rule: Rule::Each,
            requests,
        };
        let real = self.link.apply(batch.clone()).await.unwrap();
        let mut pushes = Vec::new();
        let model = self.ledger.apply(real.time, &batch, &mut pushes);
        for ((request, real), model) in batch.requests.iter().zip(&real.replies).zip(&model.replies) {
            assert_eq!(real, model, "step {step}: {request:?}, server and ledger");
            self.saw(word(real));
        }
        for branch in self.ledger.branches().to_vec() {
            self.saw(match branch {
                Branch::LatchSetBefore => "set before",
                Branch::LatchSetOnce => "set once",
                Branch::LatchCountedBefore => "counted before",
                Branch::LatchLost => "lost",
                Branch::RecoveryByClock => "recovery by the clock",
                _ => continue,
            });
        }
        if pushes.windows(2).any(|two| two[0].name() == two[1].name()) {
            self.saw("several pushed at once");
        }
        for push in pushes {
            if let Some(inbox) = self.inboxes.get_mut(&push.node()) {
                assert_eq!(inbox.news().await, *push.name(), "step {step}");
                self.saw("push");
            }
        }
        for inbox in self.inboxes.values_mut() {
            assert!(inbox.is_empty(), "step {step}: a push that is not in the ledger");
        }
        for at in places {
            self.compare(at, step);
        }
        let clock: Option<u64> = redis::cmd("GET").arg(CLOCK).query(&mut self.client).unwrap();
        let last = self.ledger.last_number().0;
        assert_eq!(clock.unwrap_or_default(), last, "step {step}: the clock");
    }

    /// Compares the record and the watchers.
    fn compare(&mut self, at: usize, step: u64) {
        let Some(record) = self.record(at) else { return };
        let kind: String = redis::cmd("TYPE").arg(&record).query(&mut self.client).unwrap();
        let is_wrong = self.ledger.record(&self.names[at], 0).is_some();
        type Fields = HashMap<Vec<u8>, Vec<u8>>;
        let fields: Fields = if kind == "hash" && !is_wrong {
            let mut all = redis::cmd("HGETALL");
            all.arg(&record).query(&mut self.client).unwrap()
        } else {
            HashMap::new()
        };
        let watching = self.watchers(&record);
        let (now, (ttl,)): (u64, (i64,)) = at_once(&mut self.client, [cmd("PTTL", &[&record])]);
        let latch = self.ledger.latch(&self.names[at], now * 1000);
        let model: HashMap<Vec<u8>, Vec<u8>> = latch.map_or_else(HashMap::new, |latch| {
            let known: [(&[u8], String); 2] = [
                (b"gen", latch.generation.to_string()),
                (b"left", latch.left.to_string()),
            ];
            let known = known.map(|(field, text)| (field.to_vec(), text.into_bytes()));
            let counted = latch.counted.iter();
            let counted = counted.map(|(id, left)| ([b"i", &**id].concat(), left.to_string().into_bytes()));
            let by = (b"by".to_vec(), latch.setter.to_vec());
            known.into_iter().chain(counted).chain([by]).collect()
        });
        assert_eq!(fields, model, "step {step}: {}", self.names[at]);
        if let Some(latch) = latch {
            let left = latch.expires - now;
            assert!(
                ttl.abs_diff(left as i64) <= TOLERANCE_MS,
                "step {step}: {ttl} {left}"
            );
        }
        let model: HashMap<String, u64> = self
            .ledger
            .watchers(&self.names[at], now * 1000)
            .map(|(node, expires)| (node.to_string(), expires))
            .collect();
        let live: HashMap<_, _> = watching.into_iter().filter(|(_, until)| *until >= now).collect();
        assert_eq!(live.len(), model.len(), "step {step}: {live:?} {model:?}");
        for (node, expires) in model {
            assert!(
                live[&node].abs_diff(expires) <= TOLERANCE_MS,
                "step {step}: {node}"
            );
        }
    }

    fn watchers(&mut self, record: &[u8]) -> Vec<(String, u64)> {
        let Some(queue) = self.tagged('q', record) else {
            return Vec::new();
        };
        let members: Vec<(String, f64)> = redis::cmd("ZRANGE")
            .arg(queue)
            .arg("0")
            .arg("-1")
            .arg("WITHSCORES")
            .query(&mut self.client)
            .unwrap();
        let members = members.into_iter();
        members.map(|(node, until)| (node, until as u64)).collect()
    }

    fn tagged(&mut self, letter: char, end: &[u8]) -> Option<Vec<u8>> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg(format!("tenure1:{letter}:*"))
            .query(&mut self.client)
            .unwrap();
        keys.into_iter()
            .find(|key| key.ends_with(end) && key.len() == end.len() + "tenure1:q:{0000}".len())
    }

    fn record(&mut self, at: usize) -> Option<Vec<u8>> {
        if !self.records.contains_key(&at) {
            let full = [b"lock:", self.names[at].key.as_bytes()].concat();
            let found = self.tagged('l', &full)?;
            self.records.insert(at, found);
        }
        self.records.get(&at).cloned()
    }

    fn now(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.client).unwrap();
        seconds * 1000 + micros / 1000
    }

    async fn listen(&mut self) {
        let node = NodeId::numbered(self.rng.u128(1..=NODES));
        if self.inboxes.remove(&node).is_none() {
            let inbox = Inbox::open(&self.store, node).await.unwrap();
            self.inboxes.insert(node, inbox);
        }
    }

    /// Ages a latch and its watchers.
    fn age(&mut self) {
        let at = self.rng.usize(..KEYS.len());
        let Some(record) = self.record(at) else { return };
        let ms = AGES_MS[self.rng.usize(..AGES_MS.len())];
        for (node, _) in self.watchers(&record) {
            let queue = self.tagged('q', &record).unwrap();
            let _: f64 = redis::cmd("ZINCRBY")
                .arg(queue)
                .arg(-(ms as i64))
                .arg(node)
                .query(&mut self.client)
                .unwrap();
        }
        let (now, (ttl,)): (u64, (i64,)) = at_once(&mut self.client, [cmd("PTTL", &[&record])]);
        let us = now * 1000;
        if self.ledger.latch(&self.names[at], us).is_some() && ttl > 0 {
            let mut expire = redis::cmd("PEXPIRE");
            expire.arg(&record).arg(ttl - ms as i64);
            let () = expire.query(&mut self.client).unwrap();
        }
        let count = |ledger: &Ledger, name| ledger.watchers(name, us).count();
        let before = count(&self.ledger, &self.names[at]);
        let was_set = self.ledger.latch(&self.names[at], us).is_some();
        self.ledger.age_rest(&self.names[at], ms);
        if count(&self.ledger, &self.names[at]) < before {
            self.saw("watcher died");
        }
        if was_set && self.ledger.latch(&self.names[at], us).is_none() {
            self.saw("latch died");
        }
    }

    /// Changes a record, as a foreign client does.
    fn foreign(&mut self) {
        let at = self.rng.usize(..KEYS.len());
        let Some(record) = self.record(at) else { return };
        let () = redis::cmd("DEL").arg(&record).query(&mut self.client).unwrap();
        let wrong: [&[&str]; 4] = [&[], &["SET", "x"], &["RPUSH", "x"], &["HSET", "field", "x"]];
        // Mostly the record is removed: no other events follow for a value that is not a latch.
        let wrong = wrong[self.rng.usize(..12).saturating_sub(8)];
        let Some((command, words)) = wrong.split_first() else {
            return self.ledger.overwrite(&self.names[at], None);
        };
        let mut put = redis::cmd(command);
        put.arg(&record).arg(words).exec(&mut self.client).unwrap();
        let wrong = Record {
            owner: RecordOwner::WrongType,
            expires: None,
            may_keep: false,
        };
        self.ledger.overwrite(&self.names[at], Some(wrong));
    }
}

fn word(reply: &Reply) -> &'static str {
    let answer = match reply {
        Reply::Call(CallReply::Answer(CallAnswer::Latch(report))) => report,
        Reply::Call(CallReply::Watching(_)) => return "Watching",
        Reply::Late => return "Late",
        Reply::Refused(_) => return "Refused",
        other => panic!("no answer to a question about a latch: {other:?}"),
    };
    match answer {
        LatchReport::Set => "Set",
        LatchReport::Left(0) => "Left(0)",
        LatchReport::Left(_) => "Left",
        LatchReport::Unset => "Unset",
        LatchReport::SetMeanwhile(_) => "SetMeanwhile",
        LatchReport::Over => "Over",
        LatchReport::Uncertain => "Uncertain",
    }
}
