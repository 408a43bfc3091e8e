//! A server that lost grants: records and numbers disappear, recoveries begin and end, and owners assert their leases.

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{
    Batch, ClaimId, ClaimReply, GrantNumber, Kind, LeaseTimes, LeaveReply, Reply, Request, Verb,
};

use super::{CLOCK, Run, TOLERANCE_MS, at_once, cmd, wall_us};

pub(super) const RECOVERING: &str = "tenure1:recovering";
/// The lengths of recoveries. They do not end by themselves during a run, and differ by more than the tolerance.
pub(super) const RECOVERIES_MS: [u64; 3] = [60_000_000, 130_000_000, 290_000_000];

impl Run {
    pub(super) fn draw_recovery_ms(&mut self) -> u64 {
        RECOVERIES_MS[self.rng.usize(..RECOVERIES_MS.len())]
    }

    pub(super) fn recovers(&mut self) -> bool {
        let us = self.now() * 1000;
        self.ledger.recovering(us).is_some()
    }

    /// Sometimes ends a recovery, begins one, or loses numbers and leases. Returns whether it did.
    pub(super) fn lose_or_recover(&mut self) -> bool {
        let recovers = self.recovers();
        let is_due = self.rng.u8(..if recovers { 16 } else { 50 }) == 0;
        match self.rng.u8(..8) {
            _ if !is_due => {}
            0 => self.begin_recovery(),
            _ if recovers => self.end_recovery(),
            1 => self.lose_numbers(0),
            _ => self.lose_lease(),
        }
        is_due
    }

    fn begin_recovery(&mut self) {
        let ms = self.draw_recovery_ms();
        let us = self.now() * 1000;
        if self.ledger.recovering(us).is_some_and(|left| left >= ms) {
            return;
        }
        let mut set = redis::cmd("SET");
        set.arg(RECOVERING).arg(1).arg("PX").arg(ms);
        set.exec(&mut self.client).unwrap();
        self.ledger.begin_recovery(us, ms);
        self.saw("recovery begun");
    }

    pub(super) fn end_recovery(&mut self) {
        redis::cmd("DEL").arg(RECOVERING).exec(&mut self.client).unwrap();
        self.ledger.end_recovery();
        self.lost.clear();
        self.saw("recovery ended");
    }

    /// Sets the clock back to `last`, or deletes it.
    fn lose_numbers(&mut self, last: u64) {
        if last == 0 {
            redis::cmd("DEL").arg(CLOCK).exec(&mut self.client).unwrap();
        } else {
            let mut set = redis::cmd("SET");
            set.arg(CLOCK).arg(last).exec(&mut self.client).unwrap();
        }
        self.ledger.set_last(GrantNumber(last));
        self.saw("numbers lost");
    }

    /// Loses the owners of one key, and mostly their numbers.
    fn lose_lease(&mut self) {
        let owned = |at: &usize| !self.owners(*at).is_empty();
        let owned: Vec<usize> = (0..self.busy).filter(owned).collect();
        let Some(at) = self.rng.choice(owned) else { return };
        let Some(record) = self.record(at) else { return };
        let owners = self.owners(at);
        redis::cmd("DEL").arg(&record).exec(&mut self.client).unwrap();
        self.ledger.overwrite(&self.names[at], None);
        let first = owners
            .iter()
            .map(|(_, number)| number.0)
            .min()
            .unwrap_or_default();
        self.lost.extend(owners.iter().map(|(owner, _)| (at, *owner)));
        match self.rng.u8(..6) {
            0 => {}
            1 => self.lose_numbers(0),
            2 => self.lose_numbers(first),
            _ => self.lose_numbers(first - 1),
        }
        self.saw("lease lost by the server");
    }

    /// Returns the claims that own or share a key, and their numbers.
    fn owners(&self, at: usize) -> Vec<(ClaimId, GrantNumber)> {
        let name = &self.names[at];
        let alone = match self.ledger.record(name, 0).map(|record| &record.owner) {
            Some(RecordOwner::Claim(owner, number)) => Some((*owner, *number)),
            _ => None,
        };
        let shares = self.ledger.shares(name, 0);
        let shares = shares.map(|share| (share.claim_id, share.number));
        alone.into_iter().chain(shares).collect()
    }

    /// Returns, sometimes, an owner whose lease the server has lost.
    pub(super) fn lost_owner(&mut self, at: usize) -> Option<(ClaimId, LeaseTimes)> {
        let place = self.lost.iter().position(|(of, _)| *of == at)?;
        if self.rng.u8(..4) == 0 {
            return None;
        }
        let (_, owner) = self.lost.swap_remove(place);
        self.claims[at].iter().find(|claim| claim.0 == owner).copied()
    }

    /// Returns the renewal of a claim: mostly with the number of its grant. A claim that the server does not know as an
    /// owner may name a number, too: the server came back with a copy from before the grant.
    pub(super) fn renewal(&mut self, claim_id: ClaimId) -> Verb {
        let known = self.numbers.get(&claim_id).copied();
        let number = match self.rng.u8(..200) {
            0..16 => None,
            16..40 => Some(self.earlier_number()),
            40 => Some(GrantNumber(self.last + self.rng.u64(1..1_000))),
            _ => known,
        };
        match number.filter(|_| self.last > 0) {
            // The store does not know which leases are fixed.
            Some(number) if self.rng.u8(..6) == 0 => Verb::Assert { number },
            number => Verb::Renew { number },
        }
    }

    /// Returns a number from shortly before the last. Before the first grant it is a time, as the number of each grant is: the
    /// end of a share must be smaller.
    pub(super) fn earlier_number(&mut self) -> GrantNumber {
        let last = if self.last == 0 { wall_us() } else { self.last };
        GrantNumber(last - self.rng.u64(..1_000))
    }

    /// Returns the highest number that the sender of a batch knows: mostly one that is no evidence of a loss.
    pub(super) fn draw_highest(&mut self) -> GrantNumber {
        // A node is seldom far ahead: the server's clock must catch up with its numbers.
        let ahead = if self.rng.u8(..10) == 0 { 500_000 } else { 3_000 };
        let is_blind = !self.lost.is_empty() && self.rng.u8(..4) > 0;
        GrantNumber(match self.rng.u8(..100) {
            0 => self.last + self.rng.u64(..ahead),
            1..25 => 0,
            _ if is_blind => 0,
            _ => self.last,
        })
    }

    /// Returns whether too few Sentinels confirmed the link of a batch: often if an owner may show a loss, which is rare.
    pub(super) fn draw_is_unconfirmed(&mut self) -> bool {
        self.rng.u8(..if self.lost.is_empty() { 8 } else { 2 }) == 0
    }

    /// Returns whether each claim of the batch waits.
    pub(super) fn queued(&self, batch: &Batch) -> Vec<bool> {
        let waits = |request: &Request| self.ledger.waiters(&request.name).contains(&request.claim_id);
        batch.requests.iter().map(waits).collect()
    }

    /// Remembers the numbers of grants, and counts what happens while the server recovers. `queued`: which claims waited
    /// before the batch.
    pub(super) fn note_replies(&mut self, batch: &Batch, replies: &[Reply], queued: &[bool]) {
        let recovers = self.recovers();
        for ((request, reply), was_queued) in batch.requests.iter().zip(replies).zip(queued) {
            let of = match request.verb {
                Verb::Yield { to } | Verb::Pass { to, .. } => to,
                _ => request.claim_id,
            };
            if let Some(number) = reply.number() {
                self.note_grant(of, number);
            }
            let is_granted = reply.number().is_some();
            let what = match (request.verb, reply) {
                _ if batch.is_unconfirmed && !recovers => self.note_unconfirmed(request, reply),
                _ if !recovers => continue,
                (Verb::Claim { .. }, Reply::Claim(ClaimReply::Recovering(_)))
                    if batch.requests.len() == 1 =>
                {
                    "held back alone"
                }
                (Verb::Claim { .. }, _) if is_granted => "owner claims again",
                (Verb::Renew { number: Some(_) }, _) if is_granted && *was_queued => {
                    "asserted from the queue"
                }
                (Verb::Renew { number: Some(_) }, Reply::Claim(ClaimReply::Gone))
                    if request.name.kind == Kind::Job =>
                {
                    "tick not asserted"
                }
                (Verb::Renew { number: Some(_) }, Reply::Claim(ClaimReply::Gone)) => {
                    "not asserted over others"
                }
                (Verb::Renew { number: None }, Reply::Claim(ClaimReply::Recovering(_))) if !was_queued => {
                    "holder without its number"
                }
                (Verb::Renew { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "waiter held back",
                (Verb::Yield { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "yield held back",
                (Verb::Yield { .. }, _) if is_granted => "yielded while recovering",
                (Verb::Pass { .. }, _) if is_granted => "passed while recovering",
                (Verb::Leave, Reply::Leave(LeaveReply::Left)) if !was_queued => "left while recovering",
                _ => continue,
            };
            self.saw(what);
        }
    }

    /// Returns what a request met that came on an unconfirmed link, while the server did not recover.
    fn note_unconfirmed(&self, request: &Request, reply: &Reply) -> &'static str {
        let is_granted = reply.number().is_some();
        match (request.verb, reply) {
            (Verb::Claim { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "claim held back, unconfirmed",
            (Verb::Renew { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "waiter held back, unconfirmed",
            (Verb::Yield { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "yield held back, unconfirmed",
            (Verb::Pass { .. }, Reply::Claim(ClaimReply::Recovering(_))) => "adoption held back, unconfirmed",
            (Verb::Renew { .. }, _) if is_granted => "owner renewed, unconfirmed",
            (Verb::Yield { .. }, _) if is_granted => "yielded, unconfirmed",
            (Verb::Pass { .. }, _) if is_granted => "passed, unconfirmed",
            (Verb::Leave | Verb::Finish { .. }, Reply::Leave(LeaveReply::Left)) => "left, unconfirmed",
            _ => "unconfirmed",
        }
    }

    pub(super) fn note_grant(&mut self, claim_id: ClaimId, number: GrantNumber) {
        self.numbers.insert(claim_id, number);
        self.last = self.last.max(number.0);
    }

    /// Compares what the server knows beside its keys: the last number, and the rest of a recovery.
    pub(super) fn compare_server(&mut self, step: u64) {
        let clock: Option<u64> = redis::cmd("GET").arg(CLOCK).query(&mut self.client).unwrap();
        let last = self.ledger.last_number().0;
        assert_eq!(clock.unwrap_or_default(), last, "step {step}: the clock");
        let (now, (real,)): (u64, (i64,)) =
            at_once(&mut self.client, [cmd("PTTL", &[RECOVERING.as_bytes()])]);
        let model = self.ledger.recovering(now * 1000).map_or(-2, |left| left as i64);
        let is_same = if real < 0 {
            real == model
        } else {
            model >= 0 && real.abs_diff(model) <= TOLERANCE_MS
        };
        assert!(
            is_same,
            "step {step}: the server recovers for {real} ms, the ledger for {model} ms"
        );
    }
}
