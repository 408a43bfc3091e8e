//! Random requests through the scripts on a real server and through the ledger: the same replies, pushes and queues.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use tenure::Key;
use tenure::protocol::ledger::{Branch, Ledger, RecordOwner};
use tenure::protocol::message::{
    Batch, CallAnswer, CallReply, ClaimId, ClaimReply, Grant, GrantNumber, GrantReply, Kind, LeaseTimes,
    LeaveReply, Mode, Name, NodeId, Push, QueueOwner, Reply, Request, Rule, TickRefusal, TickTime, Verb,
};
use tenure::store::Store;

use crate::server::RedisServer;
use crate::tools::{Inbox, connect, store};

mod comparing;
mod draws;
mod elections;
mod latches;
mod links;
mod losses;
mod meddling;
mod slots;
mod steals;
mod steps;
mod views;
mod votes;

use comparing::same;
use steps::Steps;
use views::Views;

const NAMES: usize = 9;
/// The number of names without waiters, as is usual in a service. A full batch has as many requests.
const QUIET: usize = 128;
/// Few, so that each job has many events.
const JOBS: usize = 3;
const NODES: u128 = 5;
/// Leases are hours long, so that the seconds of a run change no reply, also on a machine that stalls. No sum of the ages is near two thirds of
/// a lease or a whole lease.
const LEASES: [u64; 3] = [40_000_000, 70_000_000, 130_000_000];
const AGES: [f64; 4] = [0.3, 0.45, 0.8, 1.1];
/// What ages watchers, leaders and latches: [`no_sum_of_ages_is_near_a_moment_that_decides`].
const AGES_MS: [u64; 3] = [16_700_000, 33_300_000, 50_000_000];
/// The gap is long for the same reason. The ages are parts and multiples of the gap that are not near 1, 8 or 600.
const POLL_GAP_MS: u64 = 3_000_000;
const POLL_GAP_AGES_MS: [u64; 6] = [
    1_700_000,
    4_900_000,
    29_000_000,
    29_000_000,
    29_000_000,
    2_000_000_000,
];
const TOLERANCE_MS: u64 = 500_000;
/// Longer than any lease.
const LONG_MS: u64 = 1_000_000_000;
const CLOCK: &str = "tenure1:clock";

/// Ages add up. If a sum were near a moment at which replies change, a slow run would cross it.
#[test]
fn no_sum_of_ages_is_near_a_moment_that_decides() {
    /// Longer than any run.
    const ROOM_MS: u64 = 3_000_000;
    let of_leases = LEASES
        .into_iter()
        .flat_map(|lease| [lease / 3, lease * 2 / 3, lease, lease * 11 / 10]);
    let of_latches = latches::LIVES.into_iter();
    let moments: Vec<u64> = of_leases.chain(of_latches).chain(losses::RECOVERIES_MS).collect();
    let last = moments.iter().max().unwrap() + ROOM_MS;
    let mut sums = std::collections::BTreeSet::from(AGES_MS);
    while let Some(next) = sums
        .iter()
        .flat_map(|sum| AGES_MS.map(|age| sum + age))
        .find(|next| *next <= last && !sums.contains(next))
    {
        sums.insert(next);
    }
    assert!(sums.len() > 30, "{sums:?}");
    for moment in moments {
        let near = sums.range(moment.saturating_sub(ROOM_MS)..=moment + ROOM_MS);
        assert_eq!(near.collect::<Vec<_>>(), [&0; 0], "near {moment}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_gives_the_replies_of_the_ledger() {
    let steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Lock).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write under two leases done", 20),
            ("write refused by its second lease", 20),
            ("write refused, another owner", 20),
            ("write refused, no owner", 20),
            ("Granted", 20),
            ("Queued", 100),
            ("QueuedBehindForeign", 20),
            ("Busy", 100),
            ("Late", 30),
            ("Gone", 100),
            ("Done", 50),
            ("NotThere", 100),
            ("Refused", 30),
            ("recalled", 20),
            ("push of a recall", 10),
            ("push", 30),
            ("push with others waiting", 10),
            ("settled for another", 5),
            ("asked again", 5),
            ("yield repeated", 5),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("revoked", 5),
            ("Revoked", 2),
            ("handed over by an operator", 2),
            ("foreign record revoked", 1),
            ("not stolen, another lease", 1),
            ("not stolen, endless", 1),
            ("asked for", 1),
            ("push of a steal", 1),
            ("stale passed over", 5),
            ("deaf passed over", 5),
            ("dead removed", 2),
            ("dead left standing", 5),
            ("dead not revived", 0),
            ("shortened", 0),
            ("clock refused", 5),
            ("quiet", 2_000),
            ("among quiet ones", 50),
            ("Apart", 20),
            ("granted together", 5),
            ("granted together past waiters", 0),
            ("granted alone", 5),
            ("late alone", 0),
            ("claimed alone without a grant", 20),
            ("left alone", 10),
            ("handed over alone", 0),
            ("recovery begun", 1),
            ("recovery by the clock", 2),
            ("recovery by an owner", 1),
            ("recovery by an owner, unconfirmed", 0),
            ("claim held back, unconfirmed", 10),
            ("waiter held back, unconfirmed", 2),
            ("owner renewed, unconfirmed", 2),
            ("left, unconfirmed", 2),
            ("claim held back", 10),
            ("held back alone", 1),
            ("left while recovering", 1),
            ("waiter held back", 2),
            ("holder without its number", 0),
            ("asserted", 2),
            ("asserted from the queue", 0),
            ("not asserted over others", 1),
            ("late assertion", 0),
            ("adoption held back", 0),
            ("group held back", 1),
            ("yielded while recovering", 0),
            ("passed while recovering", 0),
        ],
    )
    .await;
}

/// Compares locks with nodes that leave locks free for others at times, beside nodes that do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_leaves_locks_free_as_the_ledger_does() {
    let steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Lock).await;
    run.gaps = &[POLL_GAP_MS, POLL_GAP_MS, POLL_GAP_MS, 0, POLL_GAP_MS / 10];
    run.steps(
        steps,
        &[
            ("passed", 2),
            ("left free", 2),
            ("met left free", 2),
            ("known of being left free", 100),
            ("push", 10),
            ("push with others waiting", 2),
            ("granted alone", 5),
            ("left alone", 10),
            ("asserted", 1),
            ("claim held back", 10),
            ("yielded while recovering", 0),
        ],
    )
    .await;
}

/// Compares locks where half of the claims read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_shares_locks_as_the_ledger_does() {
    let steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Lock).await;
    run.gaps = &[0, 0, 0, POLL_GAP_MS];
    run.readers = 50;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write under two leases done", 20),
            ("write refused by its second lease", 20),
            ("write refused, another owner", 20),
            ("write refused, no owner", 20),
            ("Granted", 20),
            ("Queued", 100),
            ("Busy", 50),
            ("Gone", 100),
            ("Done", 50),
            ("push", 20),
            ("push with others waiting", 5),
            ("settled for another", 5),
            ("asked again", 5),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("revoked", 3),
            ("Revoked", 1),
            ("handed over by an operator", 1),
            ("joined", 10),
            ("not let in beside readers", 5),
            ("several share", 50),
            ("downgraded", 1),
            ("share died", 2),
            ("several pushed at once", 2),
            ("granted together in both modes", 1),
            ("joined together", 5),
            ("apart beside readers", 5),
            ("not let in together", 5),
            ("shared yielded", 1),
            ("stale passed over", 5),
            ("deaf passed over", 5),
            ("dead removed", 1),
            ("left alone", 5),
            ("recovery begun", 1),
            ("recovery by the clock", 2),
            ("recovery by an owner", 1),
            ("recovery by an owner, unconfirmed", 0),
            ("claim held back, unconfirmed", 10),
            ("waiter held back, unconfirmed", 2),
            ("owner renewed, unconfirmed", 2),
            ("left, unconfirmed", 2),
            ("claim held back", 10),
            ("held back alone", 1),
            ("left while recovering", 1),
            ("waiter held back", 2),
            ("holder without its number", 0),
            ("asserted", 2),
            ("asserted from the queue", 0),
            ("not asserted over others", 1),
            ("late assertion", 0),
            ("adoption held back", 0),
            ("group held back", 1),
            ("yielded while recovering", 0),
            ("yield held back", 0),
            ("passed while recovering", 0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_jobs_gives_the_replies_of_the_ledger() {
    let steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Job).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write under two leases done", 20),
            ("write refused by its second lease", 20),
            ("write refused, another owner", 20),
            ("write refused, no owner", 20),
            ("Won", 50),
            ("Over", 50),
            ("Early", 20),
            ("Overtook", 5),
            ("Report", 20),
            ("open told", 5),
            ("other fingerprint", 5),
            ("expression returned", 2),
            ("mark reset", 0),
            ("tick queued", 5),
            ("tick behind", 5),
            ("after a skipped tick", 2),
            ("Behind", 5),
            ("saved", 5),
            ("saved before", 1),
            ("not the owner", 10),
            ("resumed", 1),
            ("loss mended", 2),
            ("Queued", 50),
            ("Busy", 20),
            ("Late", 10),
            ("Gone", 50),
            ("Done", 50),
            ("NotThere", 50),
            ("Refused", 10),
            ("push", 30),
            ("push of a leave", 10),
            ("push of an expiry", 2),
            ("push with others waiting", 10),
            ("taken over", 30),
            ("overtaken", 5),
            ("skipped", 10),
            ("revoked", 1),
            ("handed over by an operator", 1),
            ("finished late", 5),
            ("finished by another", 5),
            ("handed over", 2),
            ("paused by an operator", 2),
            ("resumed by an operator", 1),
            ("triggered by an operator", 5),
            ("not triggered for a future time", 1),
            ("not triggered twice", 1),
            ("run cancelled", 1),
            ("tick cancelled", 1),
            ("not cancelled, another tick", 1),
            ("trigger behind a tick", 2),
            ("tick behind a trigger", 1),
            ("trigger granted", 5),
            ("trigger finished", 1),
            ("end of a run told", 1),
            ("tick paused", 5),
            ("standby paused", 1),
            ("run ended before", 5),
            ("run ended after a reset", 0),
            ("oldest run forgotten", 10),
            ("gone node forgotten", 1),
            ("standby dropped", 5),
            ("standby told", 5),
            ("stale passed over", 2),
            ("deaf passed over", 5),
            ("dead removed", 1),
            ("clock refused", 2),
            ("forgotten", 0),
            ("in use, not forgotten", 0),
            ("recovery begun", 1),
            ("recovery by the clock", 2),
            ("recovery by an owner", 1),
            ("recovery by an owner, unconfirmed", 0),
            ("claim held back, unconfirmed", 10),
            ("waiter held back, unconfirmed", 2),
            ("owner renewed, unconfirmed", 2),
            ("left, unconfirmed", 2),
            ("claim held back", 10),
            ("held back alone", 1),
            ("left while recovering", 1),
            ("tick not asserted", 1),
            ("yielded while recovering", 0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_semaphores_gives_the_replies_of_the_ledger() {
    let steps = Steps::begin();
    let server = RedisServer::start();
    let mut run = Run::new(&server, steps.seed, Kind::Semaphore).await;
    run.steps(
        steps,
        &[
            ("write done", 50),
            ("write under two leases done", 20),
            ("write refused by its second lease", 20),
            ("write refused, another owner", 20),
            ("write refused, no owner", 20),
            ("Granted", 50),
            ("Unlike", 10),
            ("InUse", 50),
            ("Queued", 100),
            ("QueuedBehindForeign", 5),
            ("Busy", 50),
            ("Late", 20),
            ("Gone", 50),
            ("Done", 50),
            ("NotThere", 50),
            ("Refused", 5),
            ("push", 20),
            ("push of a leave", 10),
            ("push of an expiry", 2),
            ("push with others waiting", 5),
            ("settled for another", 2),
            ("asked again", 20),
            ("passed", 2),
            ("passed again", 1),
            ("not passed", 2),
            ("lengthened", 1),
            ("revoked", 3),
            ("Revoked", 1),
            ("handed over by an operator", 1),
            ("revoked share handed over", 1),
            ("several share", 100),
            ("share died", 2),
            ("several pushed at once", 1),
            ("stale passed over", 2),
            ("deaf passed over", 2),
            ("dead removed", 1),
            ("joined", 20),
            ("not let in beside others", 5),
            ("left alone", 5),
            ("recovery begun", 1),
            ("recovery by the clock", 2),
            ("recovery by an owner", 1),
            ("recovery by an owner, unconfirmed", 0),
            ("claim held back, unconfirmed", 10),
            ("waiter held back, unconfirmed", 2),
            ("owner renewed, unconfirmed", 2),
            ("left, unconfirmed", 2),
            ("claim held back", 10),
            ("held back alone", 1),
            ("left while recovering", 1),
            ("waiter held back", 2),
            ("holder without its number", 0),
            ("asserted", 2),
            ("asserted from the queue", 0),
            ("not asserted over others", 1),
            ("late assertion", 0),
            ("adoption held back", 0),
            ("passed while recovering", 0),
        ],
    )
    .await;
}

struct Run {
    rng: fastrand::Rng,
    kind: Kind,
    /// The poll gaps, one of which is drawn for each batch.
    gaps: &'static [u64],
    names: Vec<Name>,
    /// The number of contended names. The other names are quiet.
    busy: usize,
    claims: Vec<Vec<(ClaimId, LeaseTimes)>>,
    /// The tick of each claim, for its whole life.
    marks: HashMap<ClaimId, Option<TickTime>>,
    /// The mode of each claim, for its whole life; none: exclusive.
    modes: HashMap<ClaimId, Mode>,
    /// The share of claims that read, in percent.
    readers: u8,
    /// The keys of the records of semaphores and elections, known once they have existed.
    records: HashMap<usize, Vec<u8>>,
    next: u64,
    /// The highest number of a grant.
    last: u64,
    /// The number of each claim's latest grant.
    numbers: HashMap<ClaimId, GrantNumber>,
    /// Owners that the server has lost, with their places.
    lost: Vec<(usize, ClaimId)>,
    ledger: Ledger,
    store: Arc<dyn Store>,
    link: std::sync::Arc<dyn tenure::store::Link>,
    client: redis::Connection,
    inboxes: HashMap<NodeId, Inbox>,
    replies: HashMap<&'static str, u64>,
}

impl Run {
    async fn new(server: &RedisServer, seed: u64, kind: Kind) -> Self {
        let store = store(&server.url());
        let link = connect(&store).await.unwrap();
        let keys: [&[u8]; NAMES] = [
            b"a",
            b"{}",
            b"a}b{c}",
            b"clock",
            b"\x00\xff \n",
            b"{x}",
            b"q:a",
            b"%s%d",
            b"g",
        ];
        let busy = if kind == Kind::Job { JOBS } else { NAMES };
        let mut ledger = Ledger::new();
        // From now on the ledger considers which nodes listen, as the script does.
        ledger.set_listening(NodeId::numbered(u128::MAX), true);
        Run {
            rng: fastrand::Rng::with_seed(seed),
            kind,
            gaps: &[0],
            names: keys
                .map(Key::from)
                .into_iter()
                .take(busy)
                .chain((0..QUIET).map(|n| Key::from(format!("quiet {n}"))))
                .map(|key| Name { kind, key })
                .collect(),
            busy,
            claims: vec![Vec::new(); NAMES + QUIET],
            marks: HashMap::new(),
            modes: HashMap::new(),
            readers: 0,
            records: HashMap::new(),
            next: 1,
            last: 0,
            numbers: HashMap::new(),
            lost: Vec::new(),
            ledger,
            store,
            link,
            client: server.client(),
            inboxes: HashMap::new(),
            replies: HashMap::new(),
        }
    }

    async fn steps(&mut self, mut steps: Steps, wanted: &[(&str, u64)]) {
        let views = Views::of(&*self.store);
        while let Some(step) = steps.next(&self.replies, wanted) {
            self.step(step).await;
            views.compare(&self.ledger, step).await;
            if step.is_multiple_of(steps.least) {
                self.begin_again();
            }
        }
    }

    /// Clears the store: long queues make rare events rarer, and each step slow.
    fn begin_again(&mut self) {
        redis::cmd("FLUSHDB").exec(&mut self.client).unwrap();
        self.ledger = Ledger::new();
        self.ledger.set_listening(NodeId::numbered(u128::MAX), true);
        for node in self.inboxes.keys() {
            self.ledger.set_listening(*node, true);
        }
        self.claims.iter_mut().for_each(Vec::clear);
        self.marks.clear();
        self.modes.clear();
        self.last = 0;
        self.numbers.clear();
        self.lost.clear();
    }

    async fn step(&mut self, step: u64) {
        if self.lose_or_recover() {
            return;
        }
        // Few claims wait for a tick, and they must be alive when they are next.
        let tired = if self.kind == Kind::Job { 88 } else { 92 };
        match self.rng.u8(..100) {
            0..74 => self.batch(step).await,
            74..76 => self.steal(step).await,
            80 if self.kind == Kind::Job => self.forget(step).await,
            76..81 => self.listen().await,
            81 if self.kind == Kind::Job && self.rng.bool() => self.advance(),
            92 if self.kind == Kind::Job => self.abandon(),
            90 | 94 if self.kind == Kind::Job => self.act_on_job(step).await,
            93 if self.kind == Kind::Job => self.lengthen(),
            81 => self.spoil_clock(step).await,
            at if (82..tired).contains(&at) => self.age(),
            92..98 => self.foreign(),
            98.. => self.steal(step).await,
            _ => self.batch(step).await,
        }
    }

    async fn batch(&mut self, step: u64) {
        let is_quiet = self.kind == Kind::Lock && self.rng.u8(..8) == 0;
        let mut places: Vec<usize> = if is_quiet {
            (self.busy..self.names.len()).collect()
        } else {
            (0..self.busy).collect()
        };
        // Rare in the comparison of poll gaps.
        let seldom = match (self.readers, self.gaps.len()) {
            (0, 1) => 6,
            (0, _) => 30,
            _ => 10,
        };
        let is_together = self.kind == Kind::Lock && self.rng.u8(..seldom) == 0;
        if is_together && self.rng.u8(..4) > 0 {
            // Otherwise all names are almost never free at once.
            let is_free = |at: &usize| self.ledger.record(&self.names[*at], 0).is_none();
            let free: Vec<_> = places.iter().copied().filter(is_free).collect();
            places = if free.is_empty() { places } else { free };
        }
        self.rng.shuffle(&mut places);
        // Otherwise another claim mostly has the key before the owner shows that its lease was lost.
        let lost = self
            .lost
            .first()
            .and_then(|(lost, _)| places.iter().position(|at| at == lost));
        if let Some(place) = lost.filter(|_| self.rng.bool()) {
            places.swap(0, place);
        }
        // A single request has its own encoding.
        let is_alone = self.rng.u8(..3) == 0;
        places.truncate(match (is_alone, is_quiet) {
            (true, _) => 1,
            _ if is_together && self.readers > 0 => self.rng.usize(2..=4),
            (false, true) => self.rng.usize(1..=QUIET),
            (false, false) => self.rng.usize(1..=8),
        });
        let others = [0, 0, 2, 20][self.rng.usize(..4)];
        // Drawn before the requests, which take the lost owners.
        let (highest, is_unconfirmed) = (self.draw_highest(), self.draw_is_unconfirmed());
        let mut requests: Vec<_> = places
            .iter()
            .map(|&at| {
                if is_together {
                    self.claim_together(at)
                } else if is_quiet {
                    self.quiet_request(at, others)
                } else {
                    self.request(at)
                }
            })
            .collect();
        // Otherwise an owner almost never leaves in a single request while others wait.
        if let [request] = &mut *requests
            && let Some(RecordOwner::Claim(owner, _)) =
                self.ledger.record(&request.name, 0).map(|record| &record.owner)
            && request.claim_id == *owner
            && self.kind != Kind::Semaphore
            && matches!(request.verb, Verb::Renew { .. } | Verb::Yield { .. })
        {
            request.mode = self.modes.get(owner).copied().unwrap_or_default();
            request.verb = Verb::Leave;
        }
        let not_after = if self.rng.u8(..12) == 0 {
            self.rng.u64(0..1_000_000)
        } else {
            u64::MAX
        };
        let batch = Batch {
            highest,
            not_after,
            poll_gap_ms: self.gaps[self.rng.usize(..self.gaps.len())],
            is_unconfirmed,
            recovery_ms: self.draw_recovery_ms(),
            rule: if is_together { Rule::AllOrNone } else { Rule::Each },
            requests,
        };
        let before = wall_us();
        let real = self.link.apply(batch.clone()).await.unwrap();
        // 0: the server's clock was not read.
        let span = before - 1_000..=wall_us() + 1_000;
        assert!(
            real.time == 0 || span.contains(&real.time),
            "step {step}: {batch:?} at {span:?}, server {real:?}"
        );
        let dead: Vec<ClaimId> = self
            .ledger
            .entries()
            .filter_map(|(_, claim_id, dies)| (dies < real.time / 1000).then_some(claim_id))
            .collect();
        let ends = |ledger: &Ledger, request: &Request| ledger.record(&request.name, 0)?.expires;
        let ended: Vec<_> = batch
            .requests
            .iter()
            .map(|request| ends(&self.ledger, request))
            .collect();
        let queued = self.queued(&batch);
        let mut pushes = Vec::new();
        let model = self.ledger.apply(real.time, &batch, &mut pushes);
        for branch in self.ledger.branches().to_vec() {
            self.saw(match branch {
                Branch::TickTakenOver => "taken over",
                Branch::TickOvertaken => "overtaken",
                Branch::TickSkipped => "skipped",
                Branch::TickFinishedLate => "finished late",
                Branch::TickFinishedByAnother => "finished by another",
                Branch::TickHandedOver => "handed over",
                Branch::TickPaused => "tick paused",
                Branch::TriggerBehindTick => "trigger behind a tick",
                Branch::TickBehindTrigger => "tick behind a trigger",
                Branch::TriggerGranted => "trigger granted",
                Branch::TriggerFinished => "trigger finished",
                Branch::EndingTold => "end of a run told",
                Branch::StandbyPaused => "standby paused",
                Branch::RunEndedBefore => "run ended before",
                Branch::ResetRunEnded => "run ended after a reset",
                Branch::GoneNodeForgotten => "gone node forgotten",
                Branch::StandbyDropped => "standby dropped",
                Branch::StandbyEarly => "standby early",
                Branch::StandbyTold => "standby told",
                Branch::OpenTold => "open told",
                Branch::OtherFingerprint => "other fingerprint",
                Branch::ExpressionReturned => "expression returned",
                Branch::MarkReset => "mark reset",
                Branch::TickQueued => "tick queued",
                Branch::TickBehind => "tick behind",
                Branch::TickAfterSkipped => "after a skipped tick",
                Branch::Saved => "saved",
                Branch::SavedBefore => "saved before",
                Branch::NotOwner => "not the owner",
                Branch::Resumed => "resumed",
                Branch::LossMended => "loss mended",
                Branch::StalePassedOver => "stale passed over",
                Branch::DeafPassedOver => "deaf passed over",
                Branch::DeadRemoved => "dead removed",
                Branch::SettledForAnother => "settled for another",
                Branch::AskedAgain => "asked again",
                Branch::Joined => "joined",
                Branch::JoinRefused if self.kind == Kind::Semaphore => "not let in beside others",
                Branch::JoinRefused => "not let in beside readers",
                Branch::Downgraded => "downgraded",
                Branch::Passed => "passed",
                Branch::PassRepeated => "passed again",
                Branch::PassRefused => "not passed",
                Branch::Lengthened => "lengthened",
                Branch::YieldRepeated => "yield repeated",
                Branch::Recalled => "recalled",
                Branch::LeftFree => "left free",
                Branch::MetLeftFree => "met left free",
                Branch::RecoveryByClock => "recovery by the clock",
                Branch::RecoveryByOwner if batch.is_unconfirmed => "recovery by an owner, unconfirmed",
                Branch::RecoveryByOwner => "recovery by an owner",
                Branch::Asserted => "asserted",
                Branch::AssertionLate => "late assertion",
                Branch::ClaimHeldBack if is_together => "group held back",
                Branch::ClaimHeldBack => "claim held back",
                Branch::AdoptionHeldBack => "adoption held back",
                _ => continue,
            });
        }
        for ((request, real), model) in batch.requests.iter().zip(&real.replies).zip(&model.replies) {
            assert!(
                same(real, model),
                "step {step}: {request:?} of {} with a gap of {}\nserver {real:?}\nledger {model:?}",
                batch.requests.len(),
                batch.poll_gap_ms
            );
            self.saw(word(real));
        }
        self.note_replies(&batch, &real.replies, &queued);
        for ((request, reply), ended) in batch.requests.iter().zip(&real.replies).zip(ended) {
            if request.verb.is_renewal()
                && *reply == Reply::Claim(ClaimReply::Gone)
                && dead.contains(&request.claim_id)
            {
                self.saw("dead not revived");
            }
            if request.verb.is_renewal() && ends(&self.ledger, request) < ended {
                self.saw("shortened");
            }
        }
        if is_together {
            let all = real.replies.iter().all(|reply| word(reply) == "Granted");
            if all && real.replies.len() > 1 {
                self.saw("granted together");
            }
            let wants = |mode| batch.requests.iter().any(|request| request.mode == mode);
            if all && wants(Mode::Read) && wants(Mode::Exclusive) {
                self.saw("granted together in both modes");
            }
            let us = real.time;
            for (request, reply) in batch.requests.iter().zip(&real.replies) {
                let shares = self.ledger.shares(&request.name, us).count();
                match word(reply) {
                    _ if request.mode != Mode::Read => {}
                    "Granted" if shares > 1 => self.saw("joined together"),
                    "Apart" if shares > 0 => self.saw("apart beside readers"),
                    "Busy" if shares > 0 => self.saw("not let in together"),
                    _ => {}
                }
            }
            if all
                && batch
                    .requests
                    .iter()
                    .any(|request| !self.ledger.waiters(&request.name).is_empty())
            {
                self.saw("granted together past waiters");
            }
        }
        if let ([request], [reply]) = (&*batch.requests, &*real.replies) {
            self.saw(match (request.verb, word(reply)) {
                (Verb::Claim { .. }, "Granted") => "granted alone",
                (Verb::Claim { .. }, "Late") => "late alone",
                (Verb::Claim { .. }, _) => "claimed alone without a grant",
                (Verb::Leave, "Done") if pushes.is_empty() => "left alone",
                (Verb::Leave, "Done") => "handed over alone",
                _ => "alone",
            });
        }
        if pushes.iter().skip(1).any(|push| push.name() == pushes[0].name()) {
            self.saw("several pushed at once");
        }
        for push in pushes {
            let push = match push {
                Push::Granted(push) => push,
                Push::Recalled(..) => {
                    if let Some(inbox) = self.inboxes.get_mut(&push.node()) {
                        let told = inbox.push().await;
                        assert_eq!(
                            told,
                            Some(tenure::protocol::message::InboxEvent::Pushed(push)),
                            "step {step}"
                        );
                        self.saw("push of a recall");
                    }
                    continue;
                }
                _ => panic!("step {step}: a push to a watcher, but there is none: {push:?}"),
            };
            let at = batch
                .requests
                .iter()
                .position(|request| request.name == push.name);
            self.saw(
                match batch.requests[at.expect("a push is for a name of the batch")].verb {
                    Verb::Leave | Verb::Finish { .. } => "push of a leave",
                    Verb::Yield { .. } | Verb::Pass { .. } => "push of a yield",
                    _ => "push of an expiry",
                },
            );
            if !self.ledger.waiters(&push.name).is_empty() {
                self.saw("push with others waiting");
            }
            self.note_grant(push.claim_id, push.number);
            let Some(inbox) = self.inboxes.get_mut(&push.claim_id.node) else {
                panic!("step {step}: a push to a node that does not listen: {push:?}")
            };
            let real: Grant = inbox.grant().await;
            assert_eq!(real, push, "step {step}");
            self.saw("push");
        }
        for inbox in self.inboxes.values_mut() {
            assert!(inbox.is_empty(), "step {step}: a push that is not in the ledger");
        }
        for at in places {
            self.compare(at, step);
            self.compare_record(at, step);
            self.compare_memory(at, step);
        }
        self.compare_server(step);
        self.compare_write(&batch, step).await;
    }

    fn saw(&mut self, what: &'static str) {
        *self.replies.entry(what).or_default() += 1;
    }

    fn full(&self, at: usize) -> Vec<u8> {
        [b"lock:", self.names[at].key.as_bytes()].concat()
    }

    /// Returns the key with this end after its tag.
    fn tagged(&mut self, letter: char, end: &[u8]) -> Option<Vec<u8>> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg(format!("tenure1:{letter}:*"))
            .query(&mut self.client)
            .unwrap();
        keys.into_iter()
            .find(|key| key.ends_with(end) && key.len() == end.len() + "tenure1:q:{0000}".len())
    }

    fn memory(&mut self, at: usize) -> Option<Vec<u8>> {
        let full = self.full(at);
        self.tagged('j', &full)
    }

    /// Returns the key of the record. A job's record has a key once the job exists.
    fn record(&mut self, at: usize) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Job => self.memory(at).map(|mut key| {
                key["tenure1:".len()] = b'o';
                key
            }),
            Kind::Semaphore | Kind::Election => {
                if !self.records.contains_key(&at) {
                    let full = self.full(at);
                    let letter = if self.kind == Kind::Election { 'e' } else { 's' };
                    let found = self
                        .tagged(letter, &full)
                        .or_else(|| self.queued_record(letter, &full))?;
                    self.records.insert(at, found);
                }
                self.records.get(&at).cloned()
            }
            _ => Some(self.full(at)),
        }
    }

    /// Returns the key of a record that has a queue: while the server recovers, a record may never have existed.
    fn queued_record(&mut self, letter: char, full: &[u8]) -> Option<Vec<u8>> {
        let mut keys = redis::cmd("KEYS");
        let pattern = format!("tenure1:q:*tenure1:{letter}:*");
        let keys: Vec<Vec<u8>> = keys.arg(pattern).query(&mut self.client).unwrap();
        let tag = "tenure1:q:{0000}".len();
        let mut records = keys.into_iter().map(|key| key[tag..].to_vec());
        records.find(|record| record.ends_with(full) && record.len() == full.len() + tag)
    }

    fn queue(&mut self, at: usize) -> Option<Vec<u8>> {
        let record = self.record(at)?;
        self.tagged('q', &record)
    }

    fn now(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.client).unwrap();
        seconds * 1000 + micros / 1000
    }
}

/// Asks the server all of this at one moment, and returns that moment in ms and the answers.
fn at_once<T: redis::FromRedisValue>(
    client: &mut redis::Connection,
    commands: impl IntoIterator<Item = redis::Cmd>,
) -> (u64, T) {
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("TIME");
    for command in commands {
        pipe.add_command(command);
    }
    let mut answers: Vec<redis::Value> = pipe.query(client).unwrap();
    let others = redis::Value::Array(answers.split_off(1));
    let (seconds, micros): (u64, u64) = redis::from_redis_value(answers.remove(0)).unwrap();
    (
        seconds * 1000 + micros / 1000,
        redis::from_redis_value(others).unwrap(),
    )
}

/// Returns the command with its arguments.
fn cmd(name: &str, args: &[&[u8]]) -> redis::Cmd {
    let mut command = redis::cmd(name);
    command.arg(args);
    command
}

/// Returns the reading of the server's clock, which is this machine's clock.
fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_micros() as u64
}

fn word(reply: &Reply) -> &'static str {
    match reply {
        Reply::Claim(ClaimReply::Granted(grant)) => match grant {
            GrantReply {
                overtook: Some(_), ..
            } => "Overtook",
            GrantReply { attempt: 1.., .. } => "Won",
            GrantReply {
                other_capacity: Some(_),
                ..
            } => "Unlike",
            _ => "Granted",
        },
        Reply::Claim(ClaimReply::Queued(_, QueueOwner::Foreign)) => "QueuedBehindForeign",
        Reply::Claim(ClaimReply::Queued(..)) => "Queued",
        Reply::Claim(ClaimReply::Recovering(_)) => "Recovering",
        Reply::Claim(ClaimReply::Busy(_)) => "Busy",
        Reply::Claim(ClaimReply::GroupRefused) => "Apart",
        Reply::Claim(ClaimReply::Tick(TickRefusal::Over)) => "Over",
        Reply::Claim(ClaimReply::Tick(TickRefusal::Skipped)) => "Skipped",
        Reply::Claim(ClaimReply::Tick(TickRefusal::Paused)) => "Paused",
        Reply::Claim(ClaimReply::Tick(TickRefusal::Early(_))) => "Early",
        Reply::Claim(ClaimReply::Tick(TickRefusal::EarlierTickDue { .. })) => "Behind",
        Reply::Claim(ClaimReply::Revoked) => "Revoked",
        Reply::Claim(ClaimReply::Gone) => "Gone",
        Reply::Leave(LeaveReply::Left) => "Done",
        Reply::Leave(LeaveReply::NotThere) => "NotThere",
        Reply::Call(CallReply::Watching(_)) => "of a latch",
        Reply::Call(CallReply::Answer(answer)) => match answer {
            CallAnswer::Owned(true) => "Done",
            CallAnswer::Owned(false) => "NotThere",
            CallAnswer::InUse(_) => "InUse",
            CallAnswer::Report(_) => "Report",
            CallAnswer::Latch(_) => "of a latch",
            CallAnswer::Leader(_) => "of an election",
            CallAnswer::Written(_) => "of a write",
        },
        Reply::Late => "Late",
        Reply::Refused(_) => "Refused",
        Reply::Failed(_) => "Failed",
    }
}
