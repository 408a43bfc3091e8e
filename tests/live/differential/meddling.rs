//! Events between batches: time passes, nodes subscribe and die, and a user changes records by hand.

use std::time::{Duration, Instant};

use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::message::{
    CallAnswer, Executed, GrantNumber, Kind, LinkRequest, Mode, NodeId, Permits,
};
use tenure::protocol::write::Action;
use tenure::testing::compare_run;

use super::{AGES, CLOCK, LONG_MS, NODES, POLL_GAP_AGES_MS, Run, wall_us};
use crate::tools::{Inbox, PATIENCE, batch};

impl Run {
    /// Spoils the clock: a value that is not a number is neither used nor overwritten by any request.
    pub(super) async fn spoil_clock(&mut self, step: u64) {
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
        let (run, number) = ("another run", Some(GrantNumber(self.last)));
        let link = LinkRequest {
            run,
            number,
            epoch: Some(9),
            recovery_ms: 1_000,
        };
        let refused = compare_run(&mut self.client, &link, None).unwrap_err();
        assert!(
            refused.to_string().contains("is no grant number"),
            "step {step}: {bad}: {refused}"
        );
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
        for at in places {
            self.compare(at, step);
            self.compare_record(at, step);
            self.compare_memory(at, step);
        }
    }

    pub(super) async fn listen(&mut self) {
        let node = NodeId::numbered(self.rng.u128(1..=NODES));
        let leaves = self.kind != Kind::Job || self.rng.u8(..3) == 0;
        if self.inboxes.contains_key(&node) && !leaves {
            return;
        }
        if let Some(inbox) = self.inboxes.remove(&node) {
            drop(inbox);
            let start = Instant::now();
            while self.subscribers(node) > 0 {
                assert!(start.elapsed() < PATIENCE, "the subscription does not end");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.ledger.set_listening(node, false);
        } else {
            self.inboxes
                .insert(node, Inbox::open(&self.store, node).await.unwrap());
            self.ledger.set_listening(node, true);
        }
    }

    pub(super) fn subscribers(&mut self, node: NodeId) -> u64 {
        let channel = format!("tenure1:n:{node}");
        let (_, count): (String, u64) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel)
            .query(&mut self.client)
            .unwrap();
        count
    }

    /// Ages a waiter without a sign of life, or the time since a key was left free.
    pub(super) fn age(&mut self) {
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
        // The claim of a revoked share that claims again has both, and the ledger would age both. No node does that.
        let us = self.now() * 1000;
        if self
            .ledger
            .shares(&self.names[at], us)
            .any(|share| share.claim_id == waiter)
        {
            return;
        }
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

    /// Forgets a job.
    pub(super) async fn forget(&mut self, step: u64) {
        let at = self.rng.usize(..self.busy);
        let now = self.now();
        // Otherwise almost every job is in use.
        let idle = self.names[..self.busy].iter().position(|name| {
            self.ledger.record(name, now * 1000).is_none() && self.ledger.job(name).is_some()
        });
        let at = if self.rng.bool() { idle.unwrap_or(at) } else { at };
        let name = self.names[at].clone();
        let real = self.link.act(name, Action::ForgetJob).await.unwrap();
        let now = self.now();
        let model = self.ledger.act(&self.names[at], &Action::ForgetJob, now * 1000);
        assert_eq!(real, model, "step {step}: {} is forgotten", self.names[at]);
        self.saw(match real.answer() {
            Some(CallAnswer::Owned(true)) => "forgotten",
            Some(CallAnswer::Owned(false)) => "nothing to forget",
            _ => "in use, not forgotten",
        });
        self.compare_memory(at, step);
    }

    pub(super) fn age_left_free(&mut self) {
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
        self.ledger.age_rest(&self.names[at], ms);
    }

    /// Expires one of the claims that share a key.
    pub(super) fn kill_share(&mut self, at: usize, record: &[u8]) {
        let us = self.now() * 1000;
        let shares: Vec<_> = self.ledger.shares(&self.names[at], us).copied().collect();
        let Some(dead) = self.rng.choice(&shares).copied() else {
            return;
        };
        // As in `age`: the ledger ages both.
        if self.ledger.waiters(&self.names[at]).contains(&dead.claim_id) {
            return;
        }
        let permits = match dead.mode {
            Mode::Permits(Permits { weight, capacity }) => format!("{weight}/{capacity}"),
            _ => String::new(),
        };
        let _: f64 = redis::cmd("ZINCRBY")
            .arg(record)
            .arg(-(LONG_MS as i64))
            .arg(format!("h{}:{permits}", dead.claim_id))
            .query(&mut self.client)
            .unwrap();
        self.ledger.age(&self.names[at], dead.claim_id, LONG_MS);
        let left = shares.iter().filter(|share| share.claim_id != dead.claim_id);
        if let Some(last) = left.map(|share| share.expires).max() {
            let _: i64 = redis::cmd("PEXPIREAT")
                .arg(record)
                .arg(last)
                .query(&mut self.client)
                .unwrap();
        }
        self.saw("share died");
    }

    /// Changes a record, as a foreign client or an expiry does.
    pub(super) fn foreign(&mut self) {
        let at = if self.kind == Kind::Lock && self.rng.u8(..4) == 0 {
            self.rng.usize(self.busy..self.names.len())
        } else {
            self.rng.usize(..self.busy)
        };
        let Some(record) = self.record(at) else { return };
        let is_shared = self.kind == Kind::Semaphore || self.readers > 0;
        if is_shared && self.rng.u8(..3) == 0 {
            return self.kill_share(at, &record);
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
                let ms = self.rng.bool().then(|| self.rng.u64(10_000_000..20_000_000));
                let now = self.now();
                if let Some(ms) = ms {
                    set.arg("PX").arg(ms);
                }
                let () = set.query(&mut self.client).unwrap();
                Some(Record {
                    owner: RecordOwner::Foreign,
                    expires: ms.map(|ms| now + ms),
                    may_keep: false,
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
                    may_keep: false,
                })
            }
            _ => {
                // A server's clock that is stepped back makes a record last longer.
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
