//! Comparisons after a batch, beside its replies: records, queues, the memory of jobs, and guarded writes.

use std::collections::HashMap;

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{
    Batch, CallAnswer, ClaimId, ClaimReply, GrantNumber, Kind, MAX_RUNS, Mode, Permits, Reply, WriteAnswer,
};
use tenure::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};
use tenure::testing::read_job;

use super::{Run, TOLERANCE_MS, at_once, cmd};

impl Run {
    /// Compares a write under one lease or two, and which of the leases refuses the write.
    pub(super) async fn compare_write(&mut self, batch: &Batch, step: u64) {
        let (mut leases, mut owned) = (Vec::new(), Vec::new());
        for _ in 0..self.rng.usize(1..=2) {
            let (lease, is_owned) = self.lease_to_write_under(batch);
            leases.push(lease);
            owned.push(is_owned);
        }
        let us = self.now() * 1000;
        let model = self.ledger.not_current(us, &leases);
        let text = "return 1".to_owned();
        let (keys, args) = (Vec::new(), Vec::new());
        let name = leases[0].name.clone();
        let write = GuardedWrite {
            leases: leases.into(),
            body: WriteBody::Script { text, keys, args },
        };
        let written = self.link.act(name, Action::Write(write.into()));
        let Some(CallAnswer::Written(real)) = written.await.unwrap().answer().cloned() else {
            panic!("step {step}: no answer to a write");
        };
        match real {
            WriteAnswer::Done(reply) if model.is_empty() && *reply == redis::Value::Int(1) => {
                self.saw(match owned.len() {
                    1 => "write done",
                    _ => "write under two leases done",
                })
            }
            WriteAnswer::NotCurrent(places) if !places.is_empty() && places == model => {
                self.saw(match (&*owned, &*places) {
                    ([_, _], [1]) => "write refused by its second lease",
                    _ if owned[places[0]] => "write refused, another owner",
                    _ => "write refused, no owner",
                });
            }
            real => panic!("step {step}: {real:?}, not current in the ledger: {model:?}"),
        }
    }

    /// Returns a lease of its owner, of any claim, or of another grant; and whether any claim has it.
    fn lease_to_write_under(&mut self, batch: &Batch) -> (Precondition, bool) {
        let request = &batch.requests[self.rng.usize(..batch.requests.len())];
        let (name, us) = (request.name.clone(), self.now() * 1000);
        let alone = match self.ledger.record(&name, us).map(|record| &record.owner) {
            Some(RecordOwner::Claim(claim_id, number) | RecordOwner::Revoked(claim_id, number)) => {
                Some((*claim_id, request.mode, *number))
            }
            _ => None,
        };
        let shares = self.ledger.shares(&name, us);
        let shares = shares.map(|share| (share.claim_id, share.mode, share.number));
        let mut owners: Vec<_> = alone.into_iter().chain(shares).collect();
        self.rng.shuffle(&mut owners);
        let any = (request.claim_id, request.mode, GrantNumber(self.last));
        let (mut claim_id, mode, mut number) = owners.first().copied().unwrap_or(any);
        match self.rng.u8(..4) {
            0 => claim_id = request.claim_id,
            1 => number.0 -= u64::from(number.0 > 0),
            _ => {}
        }
        let precondition = Precondition {
            name,
            claim_id,
            mode,
            number,
        };
        (precondition, !owners.is_empty())
    }

    /// Compares the memory of a job.
    pub(super) fn compare_memory(&mut self, at: usize, step: u64) {
        if self.kind != Kind::Job {
            return;
        }
        let real: HashMap<Vec<u8>, Vec<u8>> = match self.memory(at) {
            Some(memory) => redis::cmd("HGETALL").arg(memory).query(&mut self.client).unwrap(),
            None => HashMap::new(),
        };
        let real = read_job(real);
        let model = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        if model.run_count > MAX_RUNS as u64 && model.runs.back().is_some_and(|run| run.ending.is_some()) {
            self.saw("oldest run forgotten");
        }
        assert_eq!(real, model, "step {step}: the memory of {}", self.names[at]);
    }

    /// Compares a queue in order. Expired entries keep their places until a search removes them.
    pub(super) fn compare(&mut self, at: usize, step: u64) {
        let model = self.ledger.waiters(&self.names[at]);
        let Some(queue) = self.queue(at) else {
            let now = self.now();
            let left_free = self.ledger.left_free(&self.names[at], now * 1000);
            assert_eq!(left_free, None, "step {step}: {} has no queue", self.names[at]);
            assert!(
                model.is_empty(),
                "step {step}: no queue on the server, {model:?} in the ledger"
            );
            return;
        };
        let all = cmd("ZRANGE", &[&queue, b"0", b"-1", b"WITHSCORES"]);
        let (now, (members,)): (u64, (Vec<(String, f64)>,)) = at_once(&mut self.client, [all]);
        let left_free = self.ledger.left_free(&self.names[at], now * 1000);
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
        let real: Vec<ClaimId> = arrivals
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

    /// Compares the shares of a key: claims, grant numbers and ends. Expired shares may still be listed.
    pub(super) fn compare_shares(&mut self, at: usize, record: &[u8], step: u64) {
        let asked = [
            cmd("ZRANGE", &[record, b"0", b"-1", b"WITHSCORES"]),
            cmd("PTTL", &[record]),
        ];
        let (now, (members, ttl)): (u64, (Vec<(String, f64)>, i64)) = at_once(&mut self.client, asked);
        let of = |letter: char| {
            let members = members.iter();
            members.filter_map(move |(member, score)| Some((member.strip_prefix(letter)?, *score as u64)))
        };
        let numbers: HashMap<&str, u64> = of('n').collect();
        let model: Vec<_> = self.ledger.shares(&self.names[at], now * 1000).copied().collect();
        // In a semaphore the permits follow the holder.
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
            let claim_id = format!("{}:", share.claim_id);
            let (expires, number) = (live[&*claim_id], numbers.get(&*claim_id).copied());
            let known = (!share.is_revoked).then_some(share.number.0);
            assert_eq!(number, known, "step {step}: {members:?}");
            let (ends_in, weight) = match share.mode {
                Mode::Permits(Permits { weight, capacity }) => (format!("{weight}/{capacity}"), weight),
                _ => (String::new(), 1),
            };
            assert_eq!(permits[&claim_id], format!("{claim_id}{ends_in}"), "step {step}");
            let heavy = (weight > 1).then_some(8_000_000_000_000_000 + u64::from(weight));
            assert_eq!(
                weights.get(&*claim_id).copied(),
                heavy,
                "step {step}: {members:?}"
            );
            assert!(
                expires.abs_diff(share.expires) <= TOLERANCE_MS,
                "step {step}: {members:?}, {share:?}"
            );
        }
        if model.len() > 1 {
            self.saw("several share");
        }
        if let Some(last) = model.iter().map(|share| share.expires - now).max() {
            assert!(
                ttl.abs_diff(last as i64) <= TOLERANCE_MS,
                "step {step}: ends in {ttl} ms, {model:?}"
            );
        }
    }

    /// Compares when the record ends.
    pub(super) fn compare_record(&mut self, at: usize, step: u64) {
        let Some(record) = self.record(at) else { return };
        let kind: String = redis::cmd("TYPE").arg(&record).query(&mut self.client).unwrap();
        let us = self.now() * 1000;
        if kind == "zset" || self.ledger.shares(&self.names[at], us).next().is_some() {
            return self.compare_shares(at, &record, step);
        }
        let (now, (ttl,)): (u64, (i64,)) = at_once(&mut self.client, [cmd("PTTL", &[&record])]);
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
        let marked =
            model.filter(|record| matches!(record.owner, RecordOwner::Claim(..) | RecordOwner::Revoked(..)));
        let marked = marked.map(|record| record.may_keep);
        if let Some(may_keep) = marked {
            // The record may end meanwhile.
            let text: Option<String> = redis::cmd("GET").arg(&record).query(&mut self.client).unwrap();
            let is_marked = text.map(|text| {
                text.rsplit(':')
                    .next()
                    .is_some_and(|number| number.starts_with('0'))
            });
            assert!(
                is_marked != Some(!may_keep),
                "step {step}: the mark of {}",
                self.names[at]
            );
        }
    }
}

/// Returns whether the replies are equal, except for a few milliseconds.
pub(super) fn same(real: &Reply, model: &Reply) -> bool {
    let (Reply::Claim(of_real), Reply::Claim(of_model)) = (real, model) else {
        return real == model;
    };
    let are_near = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= TOLERANCE_MS,
        _ => a == b,
    };
    match (of_real, of_model) {
        (ClaimReply::Queued(a, of), ClaimReply::Queued(b, other)) => of == other && are_near(*a, *b),
        (ClaimReply::Busy(a), ClaimReply::Busy(b)) => are_near(*a, *b),
        (ClaimReply::Recovering(a), ClaimReply::Recovering(b)) => is_near(*a, *b),
        _ => real == model,
    }
}

/// Returns whether two rests of a recovery are equal, except for a few milliseconds. A pause is shorter, and exact.
pub(super) fn is_near(real: u64, model: u64) -> bool {
    real == model || real.min(model) > TOLERANCE_MS && real.abs_diff(model) <= TOLERANCE_MS
}
