//! What the laws remember of ticks.

use std::collections::{BTreeSet, HashMap, HashSet};

use tenure::protocol::ledger::{CheckpointRecord, JobRecord};
use tenure::protocol::message::{ClaimId, ClaimNumber, GrantNumber, NodeId, TickTime};

/// What the laws remember of jobs.
#[derive(Debug, Default)]
pub(crate) struct TickMemory {
    /// The state of each tick.
    pub(crate) ticks: HashMap<(usize, Option<TickTime>), TickState>,
    /// The latest granted tick of each job.
    pub(crate) latest: HashMap<usize, Option<TickTime>>,
    /// The latest skipped tick of each job.
    pub(crate) skipped: HashMap<usize, Option<TickTime>>,
    /// Runs that go on after their guard was released, and until when.
    pub(crate) early_releases: Vec<(usize, u64)>,
    /// Since when each pursued tick is not run.
    pub(crate) idle: HashMap<(usize, Option<TickTime>), u64>,
    /// Since when each caller (slot, life, index) has stood by for a tick that is over.
    pub(crate) untold: HashMap<(usize, u32, usize), u64>,
    /// The tick whose run was killed in a calm.
    pub(crate) killed: Option<(usize, Option<TickTime>)>,
    /// When a process may next be killed in a calm.
    pub(crate) next_kill: u64,
    /// The checkpoint that is kept of each job.
    pub(crate) kept: HashMap<usize, Option<CheckpointRecord>>,
    /// When a run of each tick was first told that its checkpoint is kept.
    pub(crate) saved: HashMap<(usize, Option<TickTime>), u64>,
    /// When each run first asked for a checkpoint.
    pub(crate) recalls: HashMap<ClaimId, u64>,
    /// The tick that was begun and is not pursued, and since when.
    pub(crate) abandoned: Option<(Option<TickTime>, u64)>,
    /// The latest tick of each job that was granted or skipped before its mark was reset.
    before_reset: HashMap<usize, Option<TickTime>>,
    /// The fingerprint of the latest question about each job, and since when the store knows it.
    pub(crate) expression: HashMap<usize, (u64, u64)>,
    /// When each fingerprint (key, fingerprint) was asked for, in ms of the store's clock.
    pub(crate) asked: HashMap<(usize, u64), BTreeSet<u64>>,
    /// The claims of ticks that wait, by what their nodes sent last.
    pub(crate) waiting: HashSet<(NodeId, ClaimNumber)>,
    /// Those of them that heard of a recovery.
    pub(crate) held_back: HashSet<(NodeId, ClaimNumber)>,
    /// What was known of each job after the latest request about it: its latest winner and its runs.
    pub(crate) history: HashMap<usize, JobRecord>,
    /// The ticks that the latest resume of each job passed over: after the first, and up to the second.
    pub(crate) passed_over: HashMap<usize, (Option<TickTime>, TickTime)>,
    /// The run that operators want of each job.
    pub(crate) wanted: HashMap<usize, Option<Wanted>>,
    /// The ticks that were triggered once. A late answer may say that such a tick is over.
    pub(crate) over_triggers: HashSet<(usize, TickTime)>,
    /// The latest grant before each tick was cancelled. A run that was granted before may begin.
    pub(crate) cancelled: HashMap<(usize, Option<TickTime>), GrantNumber>,
    /// Since when a wanted run is not pursued.
    pub(crate) unpursued: Option<u64>,
    /// Whether a mark was reset.
    pub(crate) reset: bool,
    /// The latest grant before the server was told of a finished tick that it had forgotten. A tick granted
    /// before that may run.
    pub(crate) mended: HashMap<usize, GrantNumber>,
}

/// A run that an operator wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The triggered tick.
    pub(crate) tick: TickTime,
    /// Whether it was granted since the trigger.
    pub(crate) is_granted: bool,
}

/// The state of one tick. Claims are compared, not nodes: one node may win a tick twice.
#[derive(Debug, Default)]
pub(crate) struct TickState {
    /// The number of grants.
    pub(crate) attempt: u32,
    /// The latest winner.
    pub(crate) winner: Option<ClaimId>,
    /// The winners since the store last lost data. What an earlier winner finished may be lost with it.
    pub(crate) winners: Vec<ClaimId>,
    /// Whether the store knows that the tick ended well, or the node that ran it was told so.
    pub(crate) ended: bool,
}

impl TickMemory {
    /// Takes over what the server knows from a backup.
    pub(crate) fn restored(&mut self, key: usize, job: &JobRecord) {
        let tick = TickState {
            attempt: job.attempt,
            winner: job.winner,
            winners: Vec::new(),
            ended: job.done,
        };
        self.ticks.insert((key, job.mark), tick);
        self.latest.insert(key, job.mark);
        self.skipped.insert(key, job.skipped);
        self.kept.insert(key, job.saved.clone());
        self.history.insert(key, job.clone());
        self.note_wanted(key, job);
        self.saved.retain(|(of, _), _| *of != key);
    }

    /// Takes over the run that is wanted of a job.
    pub(crate) fn note_wanted(&mut self, key: usize, job: &JobRecord) {
        let wanted = job.wanted.as_ref().map(|wanted| Wanted {
            tick: wanted.tick,
            is_granted: wanted.attempt > 0,
        });
        let tick = wanted.map(|wanted| wanted.tick);
        self.saved.remove(&(key, tick));
        self.over_triggers.extend(tick.map(|tick| (key, tick)));
        self.wanted.insert(key, wanted);
    }

    /// Follows a reset of the job's mark.
    pub(crate) fn reset(&mut self, key: usize, job: &JobRecord) {
        self.reset = true;
        let latest = self.latest.get(&key).copied().flatten();
        let skipped = self.skipped.get(&key).copied().flatten();
        let before = self.before_reset.entry(key).or_default();
        *before = latest.max(skipped).max(*before);
        self.ticks.retain(|(of, mark), _| *of != key || *mark < job.mark);
        self.saved.retain(|(of, mark), _| *of != key || *mark < job.mark);
        let over = TickState {
            attempt: job.attempt,
            winner: job.winner,
            winners: Vec::new(),
            ended: true,
        };
        self.ticks.insert((key, job.mark), over);
        self.latest.insert(key, job.mark);
        self.skipped.insert(key, job.skipped);
    }
}

impl TickMemory {
    /// Returns whether the tick may have been over before a mark was reset, which may have brought it back.
    pub(crate) fn was_over_before_reset(&self, key: usize, mark: Option<TickTime>) -> bool {
        self.before_reset.get(&key).is_some_and(|latest| mark <= *latest)
    }
}

/// Returns whether a claim of the tick waits for the end of a pause, or for that of a tick of the schedule.
pub(crate) fn is_held_up(job: &JobRecord, mark: Option<TickTime>) -> bool {
    match mark.is_some_and(TickTime::is_triggered) {
        true => job.attempt > 0 && !job.done,
        false => job.paused.is_some(),
    }
}

/// Returns whether the store will not grant the tick any more.
pub(crate) fn is_over(job: &JobRecord, mark: Option<TickTime>) -> bool {
    if mark.is_some_and(TickTime::is_triggered) {
        return job.wanted.as_ref().map(|wanted| wanted.tick) != mark;
    }
    mark < job.mark || mark == job.mark && job.done || mark > job.mark && mark <= job.skipped
}
