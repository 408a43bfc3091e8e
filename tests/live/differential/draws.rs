//! The requests to the script and the ledger, drawn at random. Rare cases are made more likely.

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{
    Call, ClaimId, ClaimNumber, GrantNumber, Kind, LeaseTimes, LookData, Mode, Payload, Permits, Request,
    RunOutcome, RunRecord, RunResult, TickTime, Verb, WhenBehind,
};

use super::{LEASES, LONG_MS, NODES, Run, cmd};
use crate::tools::{CLAIM, claim_id};

impl Run {
    /// Writes what a fast clock leaves: a mark, or a skipped tick, in the future.
    pub(super) fn advance(&mut self) {
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

    pub(super) fn fresh(&mut self, at: usize) -> (ClaimId, LeaseTimes) {
        let node = self.rng.u128(1..=NODES);
        let lease_ms = LEASES[self.rng.usize(..LEASES.len())];
        self.next += 1;
        let claim = (
            claim_id(node, self.next),
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

    pub(super) fn draw_mode(&mut self) -> Mode {
        if self.kind == Kind::Semaphore {
            // A different capacity is rare.
            let capacity = [4, 4, 4, 4, 4, 3, 6][self.rng.usize(..7)];
            let weight = [1, 1, 1, 2, 3][self.rng.usize(..5)];
            Mode::Permits(Permits { weight, capacity })
        } else if self.rng.u8(..100) < self.readers {
            Mode::Read
        } else {
            Mode::Exclusive
        }
    }

    /// Returns the tick that was granted last, or a tick around now.
    pub(super) fn tick(&mut self, at: usize) -> Option<TickTime> {
        if self.kind != Kind::Job {
            return None;
        }
        let job = self.ledger.job(&self.names[at]).cloned().unwrap_or_default();
        let mark = job.mark.map_or(0, |mark| mark.0);
        if let Some(wanted) = job.wanted.filter(|_| self.rng.bool()) {
            return Some(wanted.tick);
        }
        if self.rng.u8(..40) == 0 {
            return Some(TickTime(mark).triggered());
        }
        let ms = match self.rng.u8(..20) {
            0..10 if mark > 0 && !(job.done && self.rng.bool()) => mark,
            10 => mark.saturating_sub(1),
            11 => mark + 1,
            12 => job.skipped.map_or(0, |skipped| skipped.0),
            13 => self.now() - self.rng.u64(1..10_000),
            14 => self.now() + self.rng.u64(20..200),
            15 => self.now() + LONG_MS,
            _ => self.now() - 3 + self.rng.u64(..6),
        };
        // A script reads 0 as no tick.
        Some(TickTime(ms.max(1)))
    }

    pub(super) fn request(&mut self, at: usize) -> Request {
        let known = self.rng.choice(&self.claims[at]).copied();
        let (mut claim_id, mut term) = known.unwrap_or_else(|| self.fresh(at));
        // Most changes concern the owner and the head of the queue.
        let owner = self
            .ledger
            .record(&self.names[at], 0)
            .map(|record| record.owner.clone());
        if let Some(RecordOwner::Claim(owner, _) | RecordOwner::Revoked(owner, _)) = owner
            && self.rng.u8(..4) > 0
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == owner)
        {
            (claim_id, term) = *claim;
        }
        let now = self.now();
        let shares = self.ledger.shares(&self.names[at], now * 1000);
        let sharing: Vec<ClaimId> = shares.map(|share| share.claim_id).collect();
        if let Some(owner) = self.rng.choice(&sharing).filter(|_| self.rng.u8(..3) > 0)
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == *owner)
        {
            (claim_id, term) = *claim;
        }
        let lost = self.lost_owner(at);
        if let Some(claim) = lost {
            (claim_id, term) = claim;
        }
        let winner = self.ledger.job(&self.names[at]).and_then(|job| job.winner);
        if lost.is_none()
            && self.rng.u8(..6) == 0
            && let Some(claim) = self.claims[at].iter().find(|claim| Some(claim.0) == winner)
        {
            (claim_id, term) = *claim;
        }
        // Expired claims must ask, too. Otherwise a search almost always removes them first.
        let now = self.now();
        let dead = self
            .ledger
            .entries()
            .find(|(name, _, dies)| **name == self.names[at] && *dies < now)
            .and_then(|(_, dead, _)| self.claims[at].iter().find(|claim| claim.0 == dead));
        let is_heartbeat = lost.is_none() && dead.is_some() && self.rng.u8(..4) == 0;
        if let (Some(claim), true) = (dead, is_heartbeat) {
            (claim_id, term) = *claim;
        }
        // The owner of a record that lasts longer than any lease must ask, too.
        let is_long = self
            .ledger
            .record(&self.names[at], 0)
            .filter(|record| record.expires.is_some_and(|expires| expires > now + LONG_MS / 2))
            .and_then(|record| {
                self.claims[at]
                    .iter()
                    .find(|claim| matches!(record.owner, RecordOwner::Claim(owner, _) if owner == claim.0))
            });
        let is_renewal = lost.is_none() && is_long.is_some() && self.rng.bool();
        if let (Some(claim), true) = (is_long, is_renewal) {
            (claim_id, term) = *claim;
        }
        // The questions about a run mostly concern the current or the last owner of the job.
        let (mut of, is_winners) = (claim_id, self.rng.u8(..8) > 0);
        if let Some(claim) = self.claims[at].iter().find(|claim| Some(claim.0) == winner)
            && is_winners
        {
            of = claim.0;
        }
        let owns =
            winner.is_some() && matches!(owner, Some(RecordOwner::Claim(owner, _)) if Some(owner) == winner);
        let is_of_run = self.kind == Kind::Job && owns && self.rng.u8(..10) == 0;
        let is_of_another = self.kind != Kind::Job && self.rng.u8(..12) == 0;
        // A server that came back with a copy from before a grant still has its claim in the queue.
        let waiting = self.ledger.waiters(&self.names[at]);
        let asserts_from_queue = lost.is_none() && self.recovers() && self.rng.u8(..8) == 0;
        if let Some(claim_id) = self.rng.choice(&waiting).filter(|_| asserts_from_queue)
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == *claim_id)
        {
            return self.assertion(at, *claim);
        }
        let verb = match self.rng.u8(..10) {
            _ if lost.is_some() || is_heartbeat || is_renewal => self.renewal(claim_id),
            what if is_of_another => self.verb_of_another(what, (claim_id, term), at),
            at if is_of_run => Verb::Call(match at {
                0..4 => Call::Recall { of },
                _ => Call::Save {
                    of,
                    seq: self.rng.u64(0..4),
                },
            }),
            0..4 => {
                if self.rng.u8(..8) > 0 {
                    (claim_id, term) = self.fresh(at);
                }
                let patient = if self.kind == Kind::Job { 4 } else { 2 };
                Verb::Claim {
                    wait: self.rng.u8(..5) < patient,
                }
            }
            4..6 => self.renewal(claim_id),
            6 if self.kind == Kind::Job => Verb::Finish {
                result: self.result(),
            },
            7 if self.kind == Kind::Job && self.rng.u8(..4) > 0 => Verb::Call(match self.rng.u8(..20) {
                0..4 => Call::Reset,
                7 => Call::Withdraw,
                4 => Call::Ending {
                    number: self.run_number(at),
                },
                8..10 => Call::Verify { of },
                10..13 => Call::Recall { of },
                13.. => Call::Save {
                    of,
                    seq: self.rng.u64(0..4),
                },
                _ => Call::Open {
                    fingerprint: [0, 7, u64::MAX][self.rng.usize(..3)],
                    over: self.marks[&claim_id].filter(|_| self.rng.bool()),
                },
            }),
            6..9 if self.readers == 0 || self.rng.u8(..3) > 0 => Verb::Leave,
            6 | 7 => self.pass(at, (claim_id, term), Some(Mode::Read)),
            _ if self.kind == Kind::Semaphore => Verb::Call(Call::InUse),
            _ => {
                self.next += 1;
                let to = ClaimId {
                    claim: ClaimNumber(self.next),
                    ..claim_id
                };
                self.claims[at].push((to, term));
                self.marks.insert(to, self.marks[&claim_id]);
                let mode = self.draw_mode();
                self.modes.insert(to, mode);
                if sharing.contains(&claim_id) {
                    self.saw("shared yielded");
                }
                Verb::Yield { to }
            }
        };
        // A yield carries the mode in which the node goes on.
        let of = match verb {
            Verb::Yield { to } | Verb::Pass { to, .. } => to,
            _ => claim_id,
        };
        // A claim has one lease length for its whole life.
        if let Verb::Pass { to, .. } = verb
            && let Some(claim) = self.claims[at].iter().find(|claim| claim.0 == to)
        {
            term = claim.1;
        }
        let mark_of = match verb {
            Verb::Call(call) => call.claim_id().unwrap_or(claim_id),
            _ => claim_id,
        };
        Request {
            name: self.names[at].clone(),
            claim_id,
            term,
            mode: self.modes.get(&of).copied().unwrap_or_default(),
            when_behind: self.turn(at),
            may_keep: self.may_keep(),
            data: match verb {
                Verb::Call(Call::Save { .. }) => Some(self.data()),
                Verb::Call(Call::Open { .. }) => Some(self.look()),
                Verb::Finish { .. } => Some(self.data()).filter(|text| !text.0.is_empty()),
                _ => None,
            },
            mark: self.marks[&mark_of],
            verb,
        }
    }

    /// Returns the renewal of a claim that had a recent grant, as its node remembers.
    fn assertion(&mut self, at: usize, claim: (ClaimId, LeaseTimes)) -> Request {
        let number = Some(self.earlier_number());
        Request {
            mark: self.marks[&claim.0],
            ..self.plain(at, claim, Verb::Renew { number })
        }
    }

    /// Returns a verb about an owner that is not a claim of the caller.
    pub(super) fn verb_of_another(&mut self, what: u8, of: (ClaimId, LeaseTimes), place: usize) -> Verb {
        match what {
            0..2 => Verb::Call(Call::Extend { of: of.0 }),
            2 => Verb::Call(Call::Release {
                of: of.0,
                repeats: false,
            }),
            _ => self.pass(place, of, None),
        }
    }

    /// Passes the lease to a new claim of any node, or sometimes to an owner. Without `mode`, the owner's mode is used.
    pub(super) fn pass(
        &mut self,
        at: usize,
        (claim_id, term): (ClaimId, LeaseTimes),
        mode: Option<Mode>,
    ) -> Verb {
        let us = self.now() * 1000;
        let shares = self.ledger.shares(&self.names[at], us);
        let mut owners: Vec<ClaimId> = shares.map(|share| share.claim_id).collect();
        if let Some(record) = self.ledger.record(&self.names[at], 0)
            && let RecordOwner::Claim(owner, _) = record.owner
        {
            owners.push(owner);
        }
        owners.retain(|owner| self.claims[at].iter().any(|claim| claim.0 == *owner));
        if let Some(&to) = self.rng.choice(&owners)
            && self.rng.u8(..4) == 0
        {
            let adopts = self.rng.bool();
            return Verb::Pass { to, adopts };
        }
        let same = self.modes.get(&claim_id).copied().unwrap_or_default();
        self.next += 1;
        let to = self::claim_id(self.rng.u128(1..=NODES), self.next);
        self.claims[at].push((to, term));
        self.marks.insert(to, None);
        let other = self.rng.u8(..8) == 0;
        let mode = mode.unwrap_or_else(|| if other { self.draw_mode() } else { same });
        self.modes.insert(to, mode);
        let adopts = self.rng.bool();
        Verb::Pass { to, adopts }
    }

    /// Returns what a claim does when it is behind: it waits, skips, or runs after the last granted tick or another one.
    pub(super) fn turn(&mut self, at: usize) -> WhenBehind {
        if self.kind != Kind::Job {
            return WhenBehind::Skip;
        }
        let job = self.ledger.job(&self.names[at]);
        let of = |tick: Option<TickTime>| tick.map_or(0, |tick| tick.0);
        let (mark, skipped) = job.map_or((0, 0), |job| (of(job.mark), of(job.skipped)));
        match self.rng.u8(..9) {
            0..2 => WhenBehind::Queue,
            2..4 => WhenBehind::After(TickTime(mark)),
            4 => WhenBehind::After(TickTime(mark.saturating_sub(1))),
            5 => WhenBehind::After(TickTime(skipped)),
            _ => WhenBehind::Skip,
        }
    }

    /// Returns the number of one of the job's runs, or of none.
    fn run_number(&mut self, at: usize) -> GrantNumber {
        let runs = self
            .ledger
            .job(&self.names[at])
            .map_or(Vec::new(), |job| job.runs.iter().collect());
        let run = runs.get(self.rng.usize(..=runs.len()));
        run.map_or(GrantNumber(7), |run| run.number)
    }

    /// Returns how a run ends: most of the runs of a tick end it.
    fn result(&mut self) -> RunResult {
        use RunOutcome::{Done, Failed, GivenUp, HandedOver, Missed, Panicked, TimedOut};
        let outcomes = [
            Done, Done, Failed, Panicked, TimedOut, GivenUp, Missed, HandedOver, HandedOver,
        ];
        RunResult {
            outcome: outcomes[self.rng.usize(..outcomes.len())],
            took_ms: [0, 7, u64::MAX][self.rng.usize(..3)],
            retries: self.rng.u32(..3),
        }
    }

    /// Returns what a node tells with a look.
    fn look(&mut self) -> Payload {
        let name = ["", "web 1", "a:b%20\0\n", "Größe"][self.rng.usize(..4)];
        let plan = ["", "Europe/Berlin:0 */5 * * * *", "UTC:every 5 s"][self.rng.usize(..3)];
        LookData { name, plan }.payload()
    }

    /// Writes 97 runs before the runs of a job, so that its history is soon full.
    pub(super) fn lengthen(&mut self) {
        let at = self.rng.usize(..self.busy);
        let Some(memory) = self.memory(at) else { return };
        let Some(mut job) = self.ledger.job(&self.names[at]).cloned() else {
            return;
        };
        if !(1..50).contains(&job.run_count) {
            return;
        }
        let mut fields: Vec<(String, String)> = cmd("HGETALL", &[&memory]).query(&mut self.client).unwrap();
        fields.retain(|(field, _)| {
            let digits = field.strip_prefix(['h', 'e']);
            field == "runs" || digits.is_some_and(|digits| digits.parse::<u64>().is_ok())
        });
        let (mut hdel, mut hset) = (redis::cmd("HDEL"), redis::cmd("HSET"));
        hdel.arg(&memory);
        hset.arg(&memory);
        for (field, text) in fields {
            hdel.arg(&field);
            let (run, rest) = text.split_once(':').unwrap();
            let run = run.parse::<u64>().unwrap() + 97;
            let letter = &field[..1];
            let moved = format!("{letter}{}", run % 100);
            let moved = if field == "runs" { field } else { moved };
            hset.arg(moved).arg(format!("{run}:{rest}"));
        }
        hdel.exec(&mut self.client).unwrap();
        let node = job.runs[0].node;
        // The oldest runs have left the history.
        let first = (job.run_count + 97).saturating_sub(99).max(1);
        for run in (first..=97).rev() {
            hset.arg(format!("h{run}"))
                .arg(format!("{run}:1:1:{run}:{node}:"));
            job.runs.push_front(RunRecord {
                tick: TickTime(1),
                attempt: 1,
                number: GrantNumber(run),
                node,
                name: "".into(),
                ending: None,
            });
        }
        hset.exec(&mut self.client).unwrap();
        job.run_count += 97;
        self.ledger.set_job(&self.names[at], job);
    }

    /// Writes what a node leaves that is gone: its last look is too long ago.
    pub(super) fn abandon(&mut self) {
        let at = self.rng.usize(..self.busy);
        let Some(memory) = self.memory(at) else { return };
        let Some(mut job) = self.ledger.job(&self.names[at]).cloned() else {
            return;
        };
        let Some((node, told)) = job.nodes.iter_mut().next() else {
            return;
        };
        told.until_ms = 1;
        let (field, text) = (format!("w{node}"), format!("1:{}", &*told.name));
        let encoded = text
            .replace('%', "%25")
            .replace(' ', "%20")
            .replace('\0', "%00")
            .replace('\n', "%0A");
        let hset = redis::cmd("HSET")
            .arg(memory)
            .arg(field)
            .arg(encoded)
            .exec(&mut self.client);
        hset.unwrap();
        self.ledger.set_job(&self.names[at], job);
    }

    /// Returns a payload with any bytes, or an empty one.
    pub(super) fn data(&mut self) -> Payload {
        let texts = ["", ":", "=", "3:x:", "\0\n\r%s", "a longer one"];
        Payload(texts[self.rng.usize(..texts.len())].as_bytes().into())
    }

    /// Claims a free name or leaves an owned one, except for a few percent of other requests.
    pub(super) fn quiet_request(&mut self, at: usize, others: u8) -> Request {
        if self.rng.u8(..100) < others {
            self.saw("among quiet ones");
            let verb = match self.rng.u8(..3) {
                0 => Verb::HEARTBEAT,
                1 => Verb::Leave,
                _ => CLAIM,
            };
            let request = self.request(at);
            let claim_id = request.claim_id;
            // The values of this claim itself, not of the claim that the lease was passed to.
            let known = self.claims[at].iter().find(|claim| claim.0 == claim_id);
            return Request {
                verb,
                term: known.map_or(request.term, |claim| claim.1),
                mode: self.modes.get(&claim_id).copied().unwrap_or_default(),
                ..request
            };
        }
        let record = self.ledger.record(&self.names[at], 0);
        let owner = record.and_then(|record| match record.owner {
            RecordOwner::Claim(owner, _) => Some(owner),
            _ => None,
        });
        let reader = self.ledger.shares(&self.names[at], 0).next();
        let owner = owner.or(reader.map(|share| share.claim_id));
        let owner = owner.and_then(|owner| self.claims[at].iter().find(|claim| claim.0 == owner).copied());
        self.saw("quiet");
        let ((claim_id, term), verb) = match owner {
            Some(owner) => (owner, Verb::Leave),
            None => (self.fresh(at), CLAIM),
        };
        self.plain(at, (claim_id, term), verb)
    }

    /// Returns whether the record of a granted claim gets the mark.
    fn may_keep(&mut self) -> bool {
        self.kind == Kind::Lock && self.rng.bool()
    }

    /// Returns a request without a job, in the mode that the claim has for its whole life.
    fn plain(&mut self, at: usize, (claim_id, term): (ClaimId, LeaseTimes), verb: Verb) -> Request {
        Request {
            name: self.names[at].clone(),
            claim_id,
            term,
            mode: self.modes.get(&claim_id).copied().unwrap_or_default(),
            when_behind: Default::default(),
            may_keep: self.may_keep(),
            data: None,
            mark: None,
            verb,
        }
    }

    /// Returns a claim for a multi-lock: a new claim, or sometimes one that claimed the name before.
    pub(super) fn claim_together(&mut self, at: usize) -> Request {
        let known = self.rng.choice(&self.claims[at]).copied();
        let known = known.filter(|_| self.rng.u8(..16) == 0);
        let (claim_id, term) = known.unwrap_or_else(|| self.fresh(at));
        // Otherwise all names are almost never available at once. A known claim has one mode for its whole life.
        if known.is_none()
            && self.readers > 0
            && self.ledger.shares(&self.names[at], 0).next().is_some()
            && self.rng.u8(..4) > 0
        {
            self.modes.insert(claim_id, Mode::Read);
        }
        self.plain(at, (claim_id, term), CLAIM)
    }
}
