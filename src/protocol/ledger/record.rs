//! The state that a store keeps of a key: the record or the shares, the queue, the record of a job or a latch, and
//! the watchers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{
    ClaimId, GrantNumber, JobNode, LeaseTimes, MAX_RUNS, Mode, NodeId, OperatorAct, Payload, RunOutcome,
    RunRecord, TickTime, Version, WantedRun,
};

/// The state of one key. The store keeps none for a key whose state is empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyRecord {
    /// The exclusive owner's record.
    pub(crate) record: Option<Record>,
    /// The leases that share the key, in order of their grants. Empty while there is a record.
    pub(crate) shares: Vec<SharedLease>,
    pub(crate) queue: VecDeque<QueueEntry>,
    pub(crate) left_free: Option<LeftFree>,
    /// The record of a latch, which has no owner.
    pub(crate) latch: Option<Box<LatchRecord>>,
    /// The last value that a leader of the election proclaimed. It may be a previous leader's.
    pub(crate) proclaimed: Option<Box<Proclaimed>>,
    /// The values of the candidates that wait in the queue: each is proclaimed when its candidate becomes the leader.
    pub(crate) candidate_values: Vec<(ClaimId, Payload)>,
    /// The nodes to tell when the watched value changes.
    pub(crate) watchers: Vec<Watcher>,
}

impl KeyRecord {
    /// Returns the claim that owns the key alone, and the number of the grant.
    pub(crate) fn owner(&self) -> Option<(ClaimId, GrantNumber)> {
        self.record.as_ref()?.claim()
    }

    /// Removes the claim's lease on the key, exclusive or shared.
    pub(crate) fn end(&mut self, claim_id: ClaimId) {
        self.record = None;
        self.shares.retain(|share| share.claim_id != claim_id);
    }

    /// Returns whether nothing of the state still counts at `now`.
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

/// When a lock was last left free for clients that poll.
///
/// A lock that is handed from one claim to the next is never free, so a client that polls never gets it. The lock is
/// therefore left free for one gap after it was handed over for eight gaps: at 100 ms about once a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftFree {
    /// When this state is forgotten, in milliseconds: 600 gaps after the lock was last left free, or else after the
    /// first hand-over. The gap is that of the node that wrote it.
    pub known_until: u64,
}

impl LeftFree {
    /// Shortest time that a lock is handed over before it is left free, in gaps.
    const MIN_GAPS_BETWEEN: u64 = 8;
    /// How long the state is kept, in gaps: longer than most locks are held.
    const MAX_GAPS_KNOWN: u64 = 600;

    /// Returns the end of the time in which no waiter is granted the lock. A value in the past means that the lock
    /// was never free since then.
    pub(crate) fn until(self, gap: u64) -> u64 {
        self.known_until.saturating_sub(Self::MAX_GAPS_KNOWN * gap)
    }

    /// Returns whether the lock is left free at `now`, and the state to keep. `gives`: its owner gives it away in
    /// this step.
    pub(crate) fn check(known: Option<Self>, now: u64, gap: u64, gives: bool) -> (bool, Option<Self>) {
        let new = |until| {
            let known_until = until + Self::MAX_GAPS_KNOWN * gap;
            Some(LeftFree { known_until })
        };
        let valid = known
            .filter(|left| now <= left.known_until)
            .map(|left| left.until(gap));
        // A value too far ahead was written before the clock was set back.
        match valid.filter(|until| *until <= now + gap) {
            Some(until) if now < until => (true, known),
            Some(until) if gives && now - until >= Self::MIN_GAPS_BETWEEN * gap => (true, new(now + gap)),
            None if gives => (false, new(now)),
            _ => (false, known),
        }
    }
}

/// The record of a key: its owner, and when it ends on the server's clock (in ms). Without an end it stays until a
/// client deletes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The owner.
    pub owner: RecordOwner,
    /// The last millisecond in which the record exists. `None`: it does not expire.
    pub expires: Option<u64>,
    /// The mark: the owner may keep the lease without a holder.
    pub may_keep: bool,
}

impl Record {
    /// Returns the claim that owns the record, and the number of the grant.
    pub(crate) fn claim(&self) -> Option<(ClaimId, GrantNumber)> {
        match self.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            RecordOwner::Revoked(..)
            | RecordOwner::Foreign
            | RecordOwner::RevokedForeign
            | RecordOwner::WrongType => None,
        }
    }

    /// Returns the number of the grant, also of a lease that was revoked.
    pub(crate) fn number(&self) -> Option<GrantNumber> {
        match self.owner {
            RecordOwner::Claim(_, number) | RecordOwner::Revoked(_, number) => Some(number),
            RecordOwner::Foreign | RecordOwner::RevokedForeign | RecordOwner::WrongType => None,
        }
    }
}

impl RecordOwner {
    /// Revokes the lease of the owner.
    pub(crate) fn revoke(&mut self) {
        match self {
            RecordOwner::Claim(claim, number) => *self = RecordOwner::Revoked(*claim, *number),
            RecordOwner::Foreign => *self = RecordOwner::RevokedForeign,
            RecordOwner::Revoked(..) | RecordOwner::RevokedForeign | RecordOwner::WrongType => {}
        }
    }

    /// Returns whether waiters are not told of the end: the owner does not know the queue, or may not leave.
    pub(crate) fn is_unannounced(&self) -> bool {
        matches!(
            self,
            RecordOwner::Foreign | RecordOwner::RevokedForeign | RecordOwner::Revoked(..)
        )
    }
}

/// A lease on a key that other claims may hold at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLease {
    /// The claim that holds it.
    pub claim_id: ClaimId,
    /// The mode: reading, or permits.
    pub mode: Mode,
    /// The number of the grant.
    pub number: GrantNumber,
    /// The last millisecond in which it exists, on the server's clock.
    pub expires: u64,
    /// An operator revoked it. It counts until it ends or its claim leaves.
    pub is_revoked: bool,
}

/// The owner of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOwner {
    /// A claim, under a grant number.
    Claim(ClaimId, GrantNumber),
    /// A claim whose lease an operator revoked. Only its own leave ends the record early.
    Revoked(ClaimId, GrantNumber),
    /// A client that uses the same record with another protocol.
    Foreign,
    /// Such a client, whose record an operator revoked: its value is another one, so the client can no longer renew it.
    RevokedForeign,
    /// A value that is no lock.
    WrongType,
}

/// The record of a job. The mark only grows, except by a reset. A tick that was run therefore never runs again,
/// however late, skewed or restarted the node is that claims it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// The tick that was granted last.
    pub mark: Option<TickTime>,
    /// Set when that tick was run to its end.
    pub done: bool,
    /// How often that tick was granted.
    pub attempt: u32,
    /// The claim that was granted a tick last, also a triggered one. `None` after its tick was cancelled.
    pub winner: Option<ClaimId>,
    /// The latest tick that came while an earlier one was running. It never runs.
    pub skipped: Option<TickTime>,
    /// Two ticks that were granted one after the other, with no granted tick between them. Before the first grant
    /// stands tick 0.
    pub passed: Option<(TickTime, TickTime)>,
    /// The expression of the latest call that named one.
    pub expression: Option<Expression>,
    /// The expression before it, and when the present one replaced it, in ms.
    pub former: Option<(Expression, u64)>,
    /// The latest tick that was run to its end and succeeded.
    pub well: Option<TickTime>,
    /// The latest checkpoint of a run, for the next run of its tick.
    pub saved: Option<CheckpointRecord>,
    /// The pause, while an operator has paused the job.
    pub paused: Option<Arc<OperatorAct>>,
    /// When the latest pause ended, in ms.
    pub resumed_ms: Option<u64>,
    /// The run that an operator wants, until a run of its tick ends or the tick is cancelled. Its tick does not
    /// belong to the schedule: it changes neither the mark nor what belongs to it, and is not judged by them.
    pub wanted: Option<Arc<WantedRun>>,
    /// How often a tick was granted.
    pub run_count: u64,
    /// The latest runs, oldest first; at most [`MAX_RUNS`].
    pub runs: VecDeque<RunRecord>,
    /// The nodes that have the job, as far as their looks told.
    pub nodes: BTreeMap<NodeId, JobNode>,
    /// When the job is due, as the latest look told: `<zone>:<expression>`.
    pub plan: Option<Arc<str>>,
}

/// An expression of a job, as the store knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expression {
    /// The fingerprint of service and expression.
    pub fingerprint: u64,
    /// When the store first saw it, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// A checkpoint that a run saved for the next run of its tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// The tick.
    pub tick: TickTime,
    /// The attempt at the tick that saved it.
    pub attempt: u32,
    /// The sequence number within that attempt.
    pub seq: u64,
    /// The data.
    pub data: Payload,
}

impl JobRecord {
    /// Returns whether the tick may still be granted.
    pub(crate) fn is_open(&self, mark: Option<TickTime>, now_ms: u64, plant: Plant) -> bool {
        match mark {
            Some(tick) if tick.is_triggered() && !plant.is(Flaw::TriggerJudgedByMark) => {
                self.wanted_run(mark).is_some_and(|wanted| wanted.is_open(now_ms))
            }
            _ => mark > self.mark && mark > self.skipped || mark == self.mark && !self.done,
        }
    }

    /// Returns the run that is wanted of this tick.
    pub(crate) fn wanted_run(&self, mark: Option<TickTime>) -> Option<&WantedRun> {
        let wanted = self.wanted.as_deref();
        wanted.filter(|wanted| Some(wanted.tick) == mark)
    }

    /// Returns whether an operator cancelled the run that has the grant of this number.
    pub(crate) fn was_cancelled(&self, number: GrantNumber) -> bool {
        let run = self.runs.iter().rfind(|run| run.number == number);
        let ending = run.and_then(|run| run.ending.as_ref());
        ending.is_some_and(|ending| ending.result.outcome == RunOutcome::Cancelled)
    }

    /// Returns whether the tick was begun by the schedule and has not ended.
    pub(crate) fn is_begun(&self) -> bool {
        self.attempt > 0 && !self.done
    }

    /// Returns whether the tick is triggered, and waits for the end of the latest tick of the schedule.
    pub(crate) fn is_behind_tick(&self, mark: Option<TickTime>) -> bool {
        mark.is_some_and(TickTime::is_triggered) && self.is_begun()
    }

    /// Returns how often this tick was granted, if it is the latest one of the schedule or is wanted.
    pub(crate) fn attempt_at(&self, mark: Option<TickTime>) -> u32 {
        let wanted = self.wanted_run(mark);
        let is_mark = mark == self.mark;
        wanted.map_or(if is_mark { self.attempt } else { 0 }, |wanted| wanted.attempt)
    }

    /// Returns whether a triggered run has the grant of this number. It may have ended, or be cancelled.
    pub(crate) fn is_triggered_run(&self, number: GrantNumber) -> bool {
        let latest = self.runs.back();
        latest.is_some_and(|run| run.tick.is_triggered() && run.number == number)
    }

    /// Returns the tick after which the next one may run, for a job that runs every tick in order. A skipped tick
    /// never runs, so it counts as ended once the granted one has ended.
    pub(crate) fn latest(&self) -> Option<TickTime> {
        let skipped = self.skipped.filter(|_| self.done);
        self.mark.and(self.mark.max(skipped))
    }

    /// Returns the tick that was granted before the latest one, if that is known.
    pub(crate) fn after(&self) -> Option<TickTime> {
        let passed = self.passed.filter(|(_, latest)| Some(*latest) == self.mark);
        passed.map(|(before, _)| before)
    }

    /// Returns whether the tick was skipped: it came while an earlier one was running, and was never granted. Nothing
    /// is known of ticks before the latest two grants.
    pub(crate) fn is_skipped(&self, mark: Option<TickTime>) -> bool {
        let is_between = self.after().is_some_and(|before| mark > Some(before)) && mark < self.mark;
        mark <= self.skipped && (mark > self.mark || is_between)
    }

    /// Returns whether a reset moved the tick into the future. No claim waits for it until its time comes.
    pub(crate) fn is_brought_back(&self, mark: Option<TickTime>, now_ms: u64) -> bool {
        let is_ahead = |mark: TickTime| !mark.is_triggered() && mark.0 > now_ms;
        mark != self.mark && mark.is_some_and(is_ahead)
    }

    /// Notes that no tick before this one runs, unless it was granted.
    pub(crate) fn pass_over_before(&mut self, mark: Option<TickTime>) {
        let before = TickTime(mark.map_or(0, |mark| mark.0.saturating_sub(1)));
        self.skipped = self.skipped.max(Some(before).filter(|before| before.0 > 0));
    }

    /// Adds the run that a grant begins.
    pub(crate) fn begin_run(&mut self, run: RunRecord) {
        self.run_count += 1;
        self.runs.push_back(run);
        if self.runs.len() > MAX_RUNS {
            self.runs.pop_front();
        }
    }

    /// Returns the latest run, if it is for this tick and its end is not known.
    pub(crate) fn open_run(&mut self, mark: Option<TickTime>) -> Option<&mut RunRecord> {
        let latest = self.runs.back_mut();
        latest.filter(|run| Some(run.tick) == mark && run.ending.is_none())
    }

    /// Returns the unfinished tick that never runs again if the given tick is granted.
    pub(crate) fn overtaken_by(&self, mark: Option<TickTime>) -> Option<TickTime> {
        self.mark.filter(|_| self.mark != mark && self.is_begun())
    }

    /// Returns how far the mark lies ahead of `now_ms`, in milliseconds. No tick before the mark is run.
    pub fn ahead_ms(&self, now_ms: u64) -> u64 {
        let latest = self.mark.max(self.skipped).map_or(0, |mark| mark.0);
        latest.saturating_sub(now_ms)
    }

    /// Sets the mark to `now_ms`: every tick up to this moment is over, and no later one is.
    pub(crate) fn reset(&mut self, now_ms: u64) {
        let now = TickTime(now_ms);
        (self.mark, self.done) = (Some(now), true);
        self.skipped = self.skipped.map(|skipped| skipped.min(now));
        self.well = self.well.map(|well| well.min(now));
    }

    /// Returns the tick that was granted and is unfinished, if its time has come.
    pub(crate) fn unfinished(&self, now_ms: u64) -> Option<TickTime> {
        self.mark.filter(|mark| self.is_begun() && mark.0 <= now_ms)
    }
}

/// The record of a latch that is set. It stays until its life ends, also at zero, and is not set again before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatchRecord {
    /// The number of this life; it grows from life to life.
    pub generation: Version,
    /// The id of the call that set it.
    pub setter: Arc<[u8]>,
    /// How many count-downs are left.
    pub left: u32,
    /// The ids of the calls that counted in this generation, each with the count that it left.
    pub counted: HashMap<Arc<[u8]>, u32>,
    /// The last millisecond of its life.
    pub expires: u64,
}

/// A value that a leader proclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proclaimed {
    /// The grant by which the leader led.
    pub number: GrantNumber,
    /// The version of the value; it grows.
    pub version: Version,
    /// The sequence number within the leadership.
    pub seq: u64,
    /// The value.
    pub value: Payload,
}

/// A node to tell when the watched value changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) node: NodeId,
    /// The last millisecond of its watch.
    pub(crate) expires: u64,
}

/// A waiter: its claim and its terms. It dies one lease after its last heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct QueueEntry {
    pub(crate) claim_id: ClaimId,
    pub(crate) term: LeaseTimes,
    pub(crate) mode: Mode,
    pub(crate) mark: Option<TickTime>,
    pub(crate) dies: u64,
}

impl QueueEntry {
    /// Returns the same entry for another claim.
    pub(crate) fn under(self, claim_id: ClaimId) -> Self {
        QueueEntry { claim_id, ..self }
    }

    /// Records a heartbeat at `now`.
    pub(crate) fn hear(&mut self, now: u64) {
        self.dies = now + self.term.lease_ms;
    }

    /// Returns whether the last heartbeat is at most two thirds of a lease old.
    pub(crate) fn is_fresh(&self, now: u64) -> bool {
        now + self.term.lease_ms / 3 <= self.dies
    }
}

/// Returns whether a key has expired. As in Redis, it still exists in the millisecond in which it expires.
pub(crate) fn is_past(expires: Option<u64>, now: u64) -> bool {
    expires.is_some_and(|at| now > at)
}

/// The result of a search for the next owner of a free key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// The first live waiter got the key alone.
    Granted,
    /// No live waiter is left, and no claim got the key alone.
    NoWaiter,
    /// A live waiter is left that cannot share the key with its present holders.
    Waits,
    /// A live waiter is left, but the lock is left free for clients that poll.
    LeftFree,
}
