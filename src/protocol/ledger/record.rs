//! What a store keeps of a key: the record or who shares it, the queue, what is known of a job or a latch, and who watches.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::protocol::message::{ClaimId, GrantNumber, LeaseTimes, Mode, NodeId, Payload, TickTime, Version};

/// One key: the record, the queue, and when it was last left free. None there: no state.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Who owns it alone.
    pub(crate) record: Option<Record>,
    /// Who shares it, in order of their grants. Nobody while there is a record.
    pub(crate) shares: Vec<Share>,
    pub(crate) queue: VecDeque<Entry>,
    pub(crate) left_free: Option<LeftFree>,
    /// Of a latch, what stands in for a record.
    pub(crate) latch: Option<Box<LatchRecord>>,
    /// What the leader of an election proclaimed, or one before it.
    pub(crate) proclaimed: Option<Box<Proclaimed>>,
    /// The values of the candidates that wait in the queue: each is proclaimed when its candidate becomes the leader.
    pub(crate) candidate_values: Vec<(ClaimId, Payload)>,
    /// The nodes that are told when what they watch changes.
    pub(crate) watchers: Vec<Watcher>,
}

impl State {
    /// Returns the claim that owns the key alone, and the number of the grant.
    pub(crate) fn owner(&self) -> Option<(ClaimId, GrantNumber)> {
        self.record.as_ref()?.claim()
    }

    /// Ends what this claim has of the key, alone or beside others.
    pub(crate) fn end(&mut self, claim_id: ClaimId) {
        self.record = None;
        self.shares.retain(|share| share.claim_id != claim_id);
    }

    pub(crate) fn is_empty(&self, now: u64) -> bool {
        let record = self.record.as_ref();
        record.is_none_or(|record| is_past(record.expires, now))
            && self.shares.iter().all(|share| now > share.expires)
            && self.queue.is_empty()
            && self.left_free.is_none_or(|left| now > left.known_until)
            && self.latch.as_ref().is_none_or(|latch| now > latch.expires)
            && self.watchers.iter().all(|watcher| now > watcher.expires)
    }
}

/// A key that is handed from one claim to the next is never free, and who only looks now and then never gets it. So it
/// is left free now and then: for one gap after it was handed on for eight, so once a second at 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftFree {
    /// When it was left free, or else first handed on, and 600 gaps of who wrote that. Forgotten after that, in
    /// milliseconds.
    pub known_until: u64,
}

impl LeftFree {
    /// So many gaps are between two.
    const EVERY: u64 = 8;
    /// For so many gaps it is known: longer than most locks are held.
    const KNOWN: u64 = 600;

    /// Until then nobody who waits is granted it. In the past: since then it was never free.
    pub(crate) fn until(self, gap: u64) -> u64 {
        self.known_until.saturating_sub(Self::KNOWN * gap)
    }

    /// Whether the key is left free at `now`, and what is known after that. `gives`: its owner gives it away.
    pub(crate) fn look(known: Option<Self>, now: u64, gap: u64, gives: bool) -> (bool, Option<Self>) {
        let new = |until| {
            let known_until = until + Self::KNOWN * gap;
            Some(LeftFree { known_until })
        };
        let valid = known
            .filter(|left| now <= left.known_until)
            .map(|left| left.until(gap));
        // One that is too far ahead is of before a step of the clock.
        match valid.filter(|until| *until <= now + gap) {
            Some(until) if now < until => (true, known),
            Some(until) if gives && now - until >= Self::EVERY * gap => (true, new(now + gap)),
            None if gives => (false, new(now)),
            _ => (false, known),
        }
    }
}

/// Who owns a key, until when on the server's clock (in ms). `None`: until somebody deletes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The owner.
    pub owner: RecordOwner,
    /// The last millisecond in which the record is there.
    pub expires: Option<u64>,
}

impl Record {
    /// Returns the claim that owns it, and the number of the grant.
    pub(crate) fn claim(&self) -> Option<(ClaimId, GrantNumber)> {
        match self.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            RecordOwner::Foreign | RecordOwner::WrongType => None,
        }
    }
}

/// A lease on a key that others may have leases on at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Whose it is.
    pub claim_id: ClaimId,
    /// To read, or for permits.
    pub mode: Mode,
    /// The grant's number.
    pub number: GrantNumber,
    /// The last millisecond in which it is there, on the server's clock.
    pub expires: u64,
}

impl Share {
    /// So many permits are held by it.
    pub(crate) fn weight(&self) -> u64 {
        match self.mode {
            Mode::Permits(permits) => permits.weight.into(),
            Mode::Exclusive | Mode::Read => 0,
        }
    }
}

/// Who can own a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOwner {
    /// A claim of ours, under a grant number.
    Claim(ClaimId, GrantNumber),
    /// Somebody who uses the same record but not our protocol.
    Foreign,
    /// A value that is no lock at all.
    WrongType,
}

/// The memory of a job. The mark only grows, so a tick that was run is never run again, however late, skewed or
/// restarted the node that asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// The tick that was granted last.
    pub mark: Option<TickTime>,
    /// It was run to its end.
    pub done: bool,
    /// How often it was granted.
    pub attempt: u32,
    /// To whom it was granted last.
    pub winner: Option<ClaimId>,
    /// The latest tick that came while an earlier one was running, and is never run.
    pub skipped: Option<TickTime>,
    /// A tick that was granted, and the one granted next: none between them ever was. The first that is granted comes after
    /// tick 0.
    pub passed: Option<(TickTime, TickTime)>,
    /// Of the service and the expression of whoever asked about it last; 0 when nobody said.
    pub fingerprint: u64,
    /// The latest tick that was run to its end and went well.
    pub well: Option<TickTime>,
    /// What the latest run of a tick has left for the next.
    pub saved: Option<Saved>,
}

/// What a run left for whoever runs its tick again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The tick.
    pub tick: TickTime,
    /// The attempt at it that left this.
    pub attempt: u32,
    /// Which of those that this attempt left.
    pub seq: u64,
    /// What it left.
    pub data: Payload,
}

impl Job {
    /// The tick may still be run.
    pub(crate) fn is_open(&self, mark: Option<TickTime>) -> bool {
        mark > self.mark && mark > self.skipped || mark == self.mark && !self.done
    }

    /// The tick that the next comes after, where none is passed over: what was skipped is never run, so nobody waits for it.
    pub(crate) fn latest(&self) -> Option<TickTime> {
        let skipped = self.skipped.filter(|_| self.done);
        self.mark.and(self.mark.max(skipped))
    }

    /// The tick that was granted before the latest one, if that is known. Nothing is known of what came before.
    pub(crate) fn after(&self) -> Option<TickTime> {
        let passed = self.passed.filter(|(_, latest)| Some(*latest) == self.mark);
        passed.map(|(before, _)| before)
    }

    /// It came while an earlier one was running, and was never granted, nor will be. As far as is known: of what came before
    /// the latest two grants nothing is.
    pub(crate) fn is_skipped(&self, mark: Option<TickTime>) -> bool {
        let is_between = self.after().is_some_and(|before| mark > Some(before)) && mark < self.mark;
        mark <= self.skipped && (mark > self.mark || is_between)
    }

    /// A reset brought it back: nobody stands by for it until its time comes.
    pub(crate) fn is_brought_back(&self, mark: Option<TickTime>, now_ms: u64) -> bool {
        mark != self.mark && mark.is_some_and(|mark| mark.0 > now_ms)
    }

    /// The tick that is never run again when this one is granted.
    pub(crate) fn overtaken_by(&self, mark: Option<TickTime>) -> Option<TickTime> {
        let is_open = self.mark != mark && self.attempt > 0 && !self.done;
        self.mark.filter(|_| is_open)
    }

    /// So far the mark lies ahead of this moment: no tick that comes before it is run.
    pub fn ahead_ms(&self, now_ms: u64) -> u64 {
        let latest = self.mark.max(self.skipped).map_or(0, |mark| mark.0);
        latest.saturating_sub(now_ms)
    }

    /// Everything up to this moment is over, and nothing that comes after it.
    pub(crate) fn reset(&mut self, now_ms: u64) {
        let now = TickTime(now_ms);
        (self.mark, self.done) = (Some(now), true);
        self.skipped = self.skipped.map(|skipped| skipped.min(now));
    }

    /// The tick that was begun and has not ended well, if its time has come.
    pub(crate) fn unfinished(&self, now_ms: u64) -> Option<TickTime> {
        self.mark
            .filter(|mark| self.attempt > 0 && !self.done && mark.0 <= now_ms)
    }
}

/// A latch that is set. It stays until its life is over, at zero too, and is not set again before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatchRecord {
    /// The number of this life, which grows from life to life.
    pub generation: Version,
    /// The id of the call that set it.
    pub setter: Arc<[u8]>,
    /// So many count-downs are left.
    pub left: u32,
    /// The ids of the calls that counted in this generation, and what each of them left.
    pub counted: HashMap<Arc<[u8]>, u32>,
    /// The last millisecond of its life.
    pub expires: u64,
}

/// What a leader proclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proclaimed {
    /// The grant by which it led.
    pub number: GrantNumber,
    /// A number of its own, which grows.
    pub version: Version,
    /// Which of those of this leadership.
    pub seq: u64,
    /// What it is.
    pub said: Payload,
}

/// A node that is told when what it watches changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) node: NodeId,
    /// The last millisecond for which that was asked.
    pub(crate) expires: u64,
}

/// A waiter: its claim, its lengths, and the last millisecond of its life.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) claim_id: ClaimId,
    pub(crate) term: LeaseTimes,
    pub(crate) mode: Mode,
    pub(crate) mark: Option<TickTime>,
    pub(crate) dies: u64,
}

impl Entry {
    /// It was heard of at `now`.
    pub(crate) fn hear(&mut self, now: u64) {
        self.dies = now + self.term.lease_ms;
    }

    /// Heard of within two thirds of its lease.
    pub(crate) fn is_fresh(&self, now: u64) -> bool {
        now + self.term.lease_ms / 3 <= self.dies
    }
}

/// As Redis does: a key is there in the millisecond in which it expires, and gone after it.
pub(crate) fn is_past(expires: Option<u64>, now: u64) -> bool {
    expires.is_some_and(|at| now > at)
}

/// Who has a free key, or a share of it, after a search for its next owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// The first live waiter, alone.
    Granted,
    /// Nobody alone, and no live waiter is left.
    NoWaiter,
    /// Those who share it, if anybody; a live waiter is left, for whom it is not free.
    Waits,
    /// There is one, but the key is left free for others.
    LeftFree,
}
