//! Elections, through their script and through the ledger: leaders, candidates, watchers and proclaimed values. Beside
//! records and queues, the memory of each election and the news for each node are compared.

use std::collections::{HashMap, VecDeque};

use tenure::protocol::ledger::{Branch, Proclaimed, RecordOwner};
use tenure::protocol::message::{
    Batch, Call, CallAnswer, CallReply, ClaimId, ClaimReply, GrantNumber, InboxEvent, Kind, LeaderReport,
    LeaseTimes, NodeId, Payload, Push, Reply, Request, Rule, Verb, Version,
};

use super::steps::Steps;
use super::views::Views;
use super::{AGES_MS, LEASES, LONG_MS, NODES, TOLERANCE_MS, at_once, cmd, word};
use crate::server::RedisServer;
use crate::tools::claim_id;

/// Few, so that each election has many events.
const ELECTIONS: usize = 5;
/// The steps until all is cleared: otherwise nearly all values are foreign, and queues are long.
const EPOCH: u64 = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_elections_gives_the_replies_of_the_ledger() {
    let mut steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed).await;
    let wanted = [
        ("Granted", 50),
        ("Queued", 50),
        ("QueuedBehindForeign", 3),
        ("Busy", 30),
        ("Late", 10),
        ("Gone", 50),
        ("Done", 80),
        ("NotThere", 20),
        ("Refused", 1),
        ("no leader", 5),
        ("leads", 10),
        ("leads and proclaimed", 8),
        ("watches a leader", 40),
        ("watches without a leader", 10),
        ("watches a proclaimed value", 20),
        ("proclaimed", 40),
        ("proclaimed before", 8),
        ("proclaimed by the winner", 30),
        ("proclaimed by a winner that waited", 5),
        ("proclaimed by the next candidate", 1),
        ("not the leader", 50),
        ("asked again", 20),
        ("settled for another", 2),
        ("stale passed over", 5),
        ("deaf passed over", 50),
        ("dead removed", 2),
        ("clock refused", 3),
        ("grant pushed", 20),
        ("news", 20),
        ("grant and news at once", 5),
        ("several told", 15),
        ("several watch", 100),
        ("news of a leave", 3),
        ("news of a proclaimed value", 20),
        ("leader aged", 5),
        ("watcher died", 2),
        ("memory removed", 2),
        ("Recovering", 20),
        ("recovery begun", 1),
        ("recovery by the clock", 2),
        ("recovery by an owner", 1),
        ("recovery by an owner, unconfirmed", 0),
        ("claim held back, unconfirmed", 10),
        ("waiter held back, unconfirmed", 2),
        ("owner renewed, unconfirmed", 2),
        ("left, unconfirmed", 2),
        ("claim held back", 10),
        ("waiter held back", 2),
        ("holder without its number", 0),
        ("left while recovering", 1),
        ("asserted", 2),
        ("revoked", 3),
        ("Revoked", 1),
        ("handed over by an operator", 1),
        ("asserted from the queue", 1),
        ("leads with its value while recovering", 0),
        ("late assertion", 0),
        ("news of an assertion", 0),
    ];
    let views = Views::of(&*run.base.store);
    while let Some(step) = steps.next(&run.base.replies, &wanted) {
        run.step(step).await;
        views.compare(&run.base.ledger, step).await;
        if step.is_multiple_of(EPOCH) {
            run.base.begin_again();
        }
    }
}

/// Every second claim campaigns with a value. All its requests carry the value.
fn value_of(claim_id: ClaimId) -> Option<Payload> {
    let values: [&[u8]; 3] = [b"0:", b"3:x:\0\n\xff=", b"4:node=:10:20:30"];
    let number = claim_id.claim.0 as usize;
    number
        .is_multiple_of(2)
        .then(|| Payload(values[number % values.len()].into()))
}

struct Run {
    /// The comparison of records and queues, which are like those of locks.
    base: super::Run,
    /// The reported versions of each election, the latest last.
    versions: [VecDeque<Version>; ELECTIONS],
}

impl Run {
    async fn new(server: &RedisServer, seed: u64) -> Self {
        let mut base = super::Run::new(server, seed, Kind::Election).await;
        base.busy = ELECTIONS;
        Run {
            base,
            versions: Default::default(),
        }
    }

    async fn step(&mut self, step: u64) {
        self.forget_ended();
        if self.base.lose_or_recover() {
            return;
        }
        match self.base.rng.u8(..100) {
            0..76 => self.batch(step).await,
            76..81 => self.base.listen().await,
            81 => self.base.spoil_clock(step).await,
            82..86 => self.base.age(),
            86..91 => self.age(),
            91 => self.forget(),
            98.. => self.base.steal(step).await,
            _ => self.base.foreign(),
        }
    }

    fn owner(&self, at: usize) -> Option<(ClaimId, GrantNumber)> {
        match self.base.ledger.record(&self.base.names[at], 0)?.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            _ => None,
        }
    }

    fn proclaimed(&self, at: usize) -> Option<Proclaimed> {
        self.base.ledger.proclaimed(&self.base.names[at], 0).cloned()
    }

    /// Returns a known claim, mostly the leader, or a new one.
    fn claim(&mut self, at: usize) -> (ClaimId, LeaseTimes) {
        let leads = self.owner(at).map(|(claim_id, _)| claim_id);
        let claims = &self.base.claims[at];
        let leader = claims.iter().find(|claim| Some(claim.0) == leads).copied();
        let rng = &mut self.base.rng;
        let known = if rng.u8(..3) > 0 {
            leader.or_else(|| rng.choice(claims).copied())
        } else {
            rng.choice(claims).copied()
        };
        known.unwrap_or_else(|| self.base.fresh(at))
    }

    /// Returns an expired claim that is still in the queue, if any. Otherwise such claims almost never ask.
    fn dead(&mut self, at: usize) -> Option<(ClaimId, LeaseTimes)> {
        let now = self.base.now();
        let name = &self.base.names[at];
        let mut entries = self.base.ledger.entries();
        let (_, dead, _) = entries.find(|(of, _, dies)| *of == name && *dies < now)?;
        self.base.claims[at].iter().find(|claim| claim.0 == dead).copied()
    }

    fn request(&mut self, at: usize) -> Request {
        let (mut claim_id, mut term) = self.claim(at);
        if let Some(dead) = self.dead(at)
            && self.base.rng.u8(..4) == 0
        {
            (claim_id, term) = dead;
        }
        let lost = self.base.lost_owner(at);
        if let Some(claim) = lost {
            (claim_id, term) = claim;
        }
        let mut data = None;
        let verb = match self.base.rng.u8(..20) {
            _ if lost.is_some() => {
                data = value_of(claim_id);
                self.base.renewal(claim_id)
            }
            0..6 => {
                if self.base.rng.u8(..8) > 0 {
                    (claim_id, term) = self.base.fresh(at);
                }
                data = value_of(claim_id);
                let wait = self.base.rng.u8(..3) > 0;
                Verb::Claim { wait }
            }
            6..9 => {
                data = value_of(claim_id);
                self.base.renewal(claim_id)
            }
            9 | 10 => Verb::Leave,
            call => {
                // The caller has no claim.
                let (of, known) = (claim_id, term);
                (claim_id, term) = self.asker();
                Verb::Call(match call {
                    11 => {
                        // A claim has one lease length for its whole life.
                        term = known;
                        let repeats = self.base.rng.bool();
                        Call::Release { of, repeats }
                    }
                    12..16 => Call::Leader {
                        known: self.known(at),
                    },
                    _ => {
                        data = Some(self.said());
                        let of = self.next(at).unwrap_or(of);
                        Call::Proclaim {
                            of,
                            seq: self.seq(at),
                        }
                    }
                })
            }
        };
        Request {
            name: self.base.names[at].clone(),
            claim_id,
            term,
            mode: Default::default(),
            when_behind: Default::default(),
            may_keep: false,
            data,
            mark: None,
            verb,
        }
    }

    /// Returns, sometimes, the first candidate of an election without a leader. Otherwise the next leader almost never proclaims.
    fn next(&mut self, at: usize) -> Option<ClaimId> {
        let name = &self.base.names[at];
        let is_free = self.base.ledger.record(name, 0).is_none();
        let first = self.base.ledger.waiters(name).first().copied();
        first.filter(|_| is_free && self.base.rng.bool())
    }

    fn asker(&mut self) -> (ClaimId, LeaseTimes) {
        self.base.next += 1;
        let lease_ms = LEASES[self.base.rng.usize(..LEASES.len())];
        let term = LeaseTimes {
            lease_ms,
            margin_ms: lease_ms / 10,
        };
        (claim_id(self.base.rng.u128(1..=NODES), self.base.next), term)
    }

    /// Returns the version that the caller knows: mostly the current one.
    fn known(&mut self, at: usize) -> Option<Version> {
        let number = self.owner(at).map(|(_, number)| Version(number.0));
        let version = self.proclaimed(at).map(|proclaimed| proclaimed.version);
        let old = self.base.rng.choice(&self.versions[at]).copied();
        match self.base.rng.u8(..10) {
            0 => None,
            1 => Some(Version(0)),
            2 => number,
            3 => old,
            _ => Some(version.or(number).unwrap_or(Version(0))),
        }
    }

    /// Returns the next sequence number, the same one again, or an earlier one.
    fn seq(&mut self, at: usize) -> u64 {
        let kept = self.proclaimed(at).map_or(0, |proclaimed| proclaimed.seq);
        match self.base.rng.u8(..8) {
            0 => 0,
            1 => kept.saturating_sub(1),
            2 => kept,
            3 => self.base.rng.u64(..12),
            _ => kept + 1,
        }
    }

    fn said(&mut self) -> Payload {
        if self.base.rng.bool() {
            return self.base.data();
        }
        let length = self.base.rng.usize(..20);
        let bytes = (0..length).map(|_| self.base.rng.u8(..));
        Payload(bytes.collect())
    }

    async fn batch(&mut self, step: u64) {
        let mut places: Vec<usize> = (0..ELECTIONS).collect();
        self.base.rng.shuffle(&mut places);
        places.truncate(self.base.rng.usize(1..=4));
        // Drawn before the requests, which take the lost owners.
        let (highest, is_unconfirmed) = (self.base.draw_highest(), self.base.draw_is_unconfirmed());
        let requests: Vec<_> = places.iter().map(|&at| self.request(at)).collect();
        let batch = Batch {
            highest,
            not_after: if self.base.rng.u8(..12) == 0 { 1 } else { u64::MAX },
            poll_gap_ms: 0,
            is_unconfirmed,
            recovery_ms: self.base.draw_recovery_ms(),
            rule: Rule::Each,
            requests,
        };
        let real = self.base.link.apply(batch.clone()).await;
        let real = real.unwrap_or_else(|failure| panic!("step {step}: {batch:?}: {failure:?}"));
        let queued = self.base.queued(&batch);
        let mut pushes = Vec::new();
        let ledger = &mut self.base.ledger;
        let model = ledger.apply(real.time, &batch, &mut pushes);
        let replies = real.replies.iter().zip(&model.replies);
        for ((at, request), (real, model)) in places.iter().zip(&batch.requests).zip(replies) {
            assert!(
                super::comparing::same(real, model),
                "step {step}: {request:?}\nserver {real:?}\nledger {model:?}"
            );
            self.note(*at, request, real);
            if let (Verb::Call(Call::Proclaim { of, seq }), Some(CallAnswer::Owned(true))) =
                (request.verb, real.answer())
            {
                let kept = self.proclaimed(*at);
                assert!(
                    kept.is_some_and(|kept| kept.seq >= seq),
                    "step {step}: the value is not proclaimed"
                );
                let was_next = |push: &Push| matches!(push, Push::Granted(grant) if grant.claim_id == of);
                if pushes.iter().any(was_next) {
                    self.base.saw("proclaimed by the next candidate");
                }
            }
        }
        self.base.note_replies(&batch, &real.replies, &queued);
        for branch in self.base.ledger.branches().to_vec() {
            self.base.saw(match branch {
                Branch::RecoveryByClock => "recovery by the clock",
                Branch::RecoveryByOwner if batch.is_unconfirmed => "recovery by an owner, unconfirmed",
                Branch::RecoveryByOwner => "recovery by an owner",
                Branch::Asserted => "asserted",
                Branch::AssertionLate => "late assertion",
                Branch::ClaimHeldBack => "claim held back",
                Branch::LeaderWatched => "watched",
                Branch::Proclaimed => "proclaimed",
                Branch::ProclaimedBefore => "proclaimed before",
                Branch::ProclaimedByWinner => "proclaimed by the winner",
                Branch::ProclaimRefused => "not the leader",
                Branch::StalePassedOver => "stale passed over",
                Branch::DeafPassedOver => "deaf passed over",
                Branch::DeadRemoved => "dead removed",
                Branch::SettledForAnother => "settled for another",
                Branch::AskedAgain => "asked again",
                _ => continue,
            });
        }
        let granted = pushes.iter().filter_map(|push| match push {
            Push::Granted(grant) => Some((grant.name.clone(), grant.number)),
            _ => None,
        });
        let granted: HashMap<_, _> = granted.collect();
        for push in &pushes {
            if let Push::Granted(grant) = push {
                self.base.note_grant(grant.claim_id, grant.number);
            }
        }
        self.compare_pushes(&batch, pushes, step).await;
        for at in places {
            let number = granted.get(&self.base.names[at]);
            let proclaimed = self.proclaimed(at).filter(|proclaimed| proclaimed.seq == 0);
            if number.is_some() && proclaimed.map(|proclaimed| proclaimed.number) == number.copied() {
                self.base.saw("proclaimed by a winner that waited");
            }
            self.base.compare(at, step);
            self.base.compare_record(at, step);
            self.compare_memory(at, step);
        }
        self.base.compare_server(step);
    }

    /// Counts the reply.
    fn note(&mut self, at: usize, request: &Request, reply: &Reply) {
        if let (Verb::Renew { number: Some(number) }, Some(_)) = (request.verb, reply.number())
            && self
                .proclaimed(at)
                .is_some_and(|proclaimed| proclaimed.number == number)
            && self.base.recovers()
        {
            self.base.saw("leads with its value while recovering");
        }
        let version = match reply {
            Reply::Claim(ClaimReply::Granted(grant)) => Some(Version(grant.number.0)),
            Reply::Call(CallReply::Answer(CallAnswer::Leader(Some(report)))) => Some(report.version),
            _ => None,
        };
        let versions = &mut self.versions[at];
        versions.extend(version);
        if versions.len() > 8 {
            versions.pop_front();
        }
        let says = self.proclaimed(at).is_some();
        self.base.saw(match reply {
            Reply::Call(CallReply::Answer(CallAnswer::Leader(leader))) => match leader {
                None => "no leader",
                Some(LeaderReport { value: None, .. }) => "leads",
                Some(_) => "leads and proclaimed",
            },
            Reply::Call(CallReply::Watching(Version(0))) => "watches without a leader",
            Reply::Call(CallReply::Watching(_)) if says => "watches a proclaimed value",
            Reply::Call(CallReply::Watching(_)) => "watches a leader",
            other => word(other),
        });
    }

    /// Checks that each inbox gets its pushes, in order.
    async fn compare_pushes(&mut self, batch: &Batch, pushes: Vec<Push>, step: u64) {
        for push in &pushes {
            let request = batch.requests.iter().find(|request| request.name == *push.name());
            let verb = request.expect("a push is for a name of the batch").verb;
            self.base.saw(match (push, verb) {
                (Push::Granted(_), _) => "grant pushed",
                (Push::Changed(..), Verb::Leave) => "news of a leave",
                (Push::Changed(..), Verb::Call(Call::Proclaim { .. })) => "news of a proclaimed value",
                (Push::Changed(..), Verb::Renew { number: Some(_) }) => "news of an assertion",
                (Push::Changed(..), _) => "news of an act",
                (Push::Asked(..) | Push::Revoked(..) | Push::Recalled(..), _) => "another push",
            });
        }
        for two in pushes.windows(2).filter(|two| two[0].name() == two[1].name()) {
            self.base.saw(match (&two[0], &two[1]) {
                (Push::Granted(_), Push::Changed(..)) => "grant and news at once",
                (Push::Changed(..), Push::Changed(..)) => "several told",
                other => panic!("step {step}: {other:?}"),
            });
        }
        for push in pushes {
            let (node, is_news) = (push.node(), matches!(push, Push::Changed(..)));
            let Some(inbox) = self.base.inboxes.get_mut(&node) else {
                assert!(
                    is_news,
                    "step {step}: a push to a node that does not listen: {push:?}"
                );
                continue;
            };
            let told = inbox.push().await;
            assert_eq!(told, Some(InboxEvent::Pushed(push)), "step {step}: to {node}");
            if is_news {
                self.base.saw("news");
            }
        }
        for inbox in self.base.inboxes.values_mut() {
            assert!(inbox.is_empty(), "step {step}: a push that is not in the ledger");
        }
    }

    /// Compares the proclaimed value, the watchers, and the end of the memory.
    fn compare_memory(&mut self, at: usize, step: u64) {
        let Some(memory) = self.memory(at) else {
            let now = self.base.now();
            let watchers = self.base.ledger.watchers(&self.base.names[at], now * 1000);
            assert_eq!(
                (watchers.count(), self.proclaimed(at)),
                (0, None),
                "step {step}: there is no memory"
            );
            return;
        };
        type Fields = HashMap<String, Vec<u8>>;
        let asked = [cmd("HGETALL", &[&memory]), cmd("PTTL", &[&memory])];
        let (now, (fields, left)): (u64, (Fields, i64)) = at_once(&mut self.base.client, asked);
        let number = |field: &[u8]| std::str::from_utf8(field).unwrap().parse::<u64>().unwrap();
        let leads = self.owner(at).map(|(_, number)| number.0);
        let is_of_leader = |fields: &&HashMap<String, Vec<u8>>| {
            fields.contains_key("said") && Some(number(&fields["number"])) == leads
        };
        let real = Some(&fields).filter(is_of_leader).map(|fields| Proclaimed {
            number: GrantNumber(number(&fields["number"])),
            version: Version(number(&fields["version"])),
            seq: number(&fields["seq"]),
            value: Payload(fields["said"].as_slice().into()),
        });
        let model = self.proclaimed(at);
        assert_eq!(real, model, "step {step}: the proclaimed value");
        let is_old = leads.is_some() && real.is_none() && fields.contains_key("number");
        assert!(
            !is_old,
            "step {step}: the value of an earlier leader is still there"
        );

        let live: HashMap<NodeId, u64> = fields
            .iter()
            .filter_map(|(field, until)| Some((field.strip_prefix('w')?.parse().unwrap(), number(until))))
            .filter(|(_, until)| *until >= now)
            .collect();
        let watchers = self.base.ledger.watchers(&self.base.names[at], now * 1000);
        let watchers: HashMap<NodeId, u64> = watchers.collect();
        assert_eq!(live, watchers, "step {step}: the watchers");
        if live.len() > 1 {
            self.base.saw("several watch");
        }

        let longest = LONG_MS as i64;
        assert!(
            (1..=longest).contains(&left),
            "step {step}: the memory ends in {left} ms"
        );
        let ends = now + left as u64 + TOLERANCE_MS;
        let last = watchers.values().max();
        assert!(
            last.is_none_or(|until| *until <= ends),
            "step {step}: the memory ends before a watcher"
        );
        // A record that was made to last is renewed before it ends.
        let record = self.base.ledger.record(&self.base.names[at], now * 1000);
        let until = record
            .and_then(|record| record.expires)
            .filter(|_| model.is_some());
        let until = until.filter(|until| *until < now + LONG_MS / 2);
        assert!(
            until.is_none_or(|until| until <= ends),
            "step {step}: the memory ends in {left} ms, before the leader: {record:?}"
        );
    }

    fn memory(&mut self, at: usize) -> Option<Vec<u8>> {
        let full = self.base.full(at);
        self.base.tagged('v', &full)
    }

    /// Returns the rest of a key's life, in milliseconds.
    fn left(&mut self, key: &[u8]) -> i64 {
        redis::cmd("PTTL").arg(key).query(&mut self.base.client).unwrap()
    }

    fn shorten(&mut self, key: &[u8], to: i64) {
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(key).arg(to).exec(&mut self.base.client).unwrap();
    }

    /// Ages the watchers and the leader, or only the watchers: otherwise watchers almost never expire.
    fn age(&mut self) {
        let at = self.base.rng.usize(..ELECTIONS);
        let (Some(memory), Some(record)) = (self.memory(at), self.base.record(at)) else {
            return;
        };
        // The value of a candidate lives as long as the candidate, and candidates do not age here.
        let mut fields = redis::cmd("HKEYS");
        let fields: Vec<String> = fields.arg(&memory).query(&mut self.base.client).unwrap();
        if fields.iter().any(|field| field.starts_with('c')) {
            return;
        }
        let alone = self.base.rng.bool();
        let ms = AGES_MS[self.base.rng.usize(..AGES_MS.len())] * if alone { 2 } else { 1 };
        let (known, leads) = (self.left(&memory), self.left(&record));
        // Another step tests records that end, and records that were made to last.
        let ends = |left: i64| (0..=ms as i64).contains(&left);
        if !alone && (ends(known) || ends(leads) || leads > LONG_MS as i64 / 2) {
            return;
        }
        for watcher in fields.iter().filter(|field| field.starts_with('w')) {
            redis::cmd("HINCRBY")
                .arg(&memory)
                .arg(watcher)
                .arg(-(ms as i64))
                .exec(&mut self.base.client)
                .unwrap();
        }
        let us = self.base.now() * 1000;
        let name = self.base.names[at].clone();
        let before = self.base.ledger.watchers(&name, us).count();
        self.base.ledger.age_rest(&name, ms);
        if self.base.ledger.watchers(&name, us).count() < before {
            self.base.saw("watcher died");
        }
        if alone {
            return;
        }
        self.shorten(&memory, known - ms as i64);
        if let Some(mut owned) = self.base.ledger.record(&name, us).cloned()
            && let Some(expires) = &mut owned.expires
        {
            *expires -= ms;
            self.base.ledger.overwrite(&name, Some(owned));
            self.shorten(&record, leads - ms as i64);
            self.base.saw("leader aged");
        }
    }

    /// Removes the memory of each election that the ledger has forgotten. The server forgets it a little later.
    fn forget_ended(&mut self) {
        let us = self.base.now() * 1000;
        for at in 0..ELECTIONS {
            let (ledger, name) = (&self.base.ledger, &self.base.names[at]);
            let is_known = ledger.record(name, us).is_some()
                || !ledger.waiters(name).is_empty()
                || ledger.watchers(name, us).next().is_some();
            if !is_known && let Some(memory) = self.memory(at) {
                redis::cmd("DEL").arg(memory).exec(&mut self.base.client).unwrap();
                self.base.ledger.forget_watchers(&self.base.names[at]);
            }
        }
    }

    /// Removes the memory, as a foreign client does.
    fn forget(&mut self) {
        let at = self.base.rng.usize(..ELECTIONS);
        let Some(memory) = self.memory(at) else { return };
        redis::cmd("DEL").arg(memory).exec(&mut self.base.client).unwrap();
        self.base.ledger.forget_watchers(&self.base.names[at]);
        self.base.saw("memory removed");
    }
}
