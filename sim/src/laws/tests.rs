//! Worlds by hand, for laws that must not accuse a node of what a server, its clock or the wire did.

use std::sync::Arc;

use tenure::error::{LostCause, StoreRefusal};
use tenure::protocol::ledger::{CheckpointRecord, JobRecord, Record, RecordOwner};
use tenure::protocol::message::{
    Batch, Call, ClaimId, ClaimNumber, ClaimReply, Fence, GrantNumber, JobReport, LeaderReport, LeaseTimes,
    LeaveReply, Mode, Name, NodeId, OperatorAct, Payload, QueueOwner, Reply, Request, Rule, RunOutcome,
    RunRecord, RunResult, TickTime, Verb, Version, WantedRun, WhenBehind,
};
use tenure::protocol::session::step::Attempt;
use tenure::protocol::step::{AcquireError, CallOptions, LockOptions, WhyDenied};

use crate::callers::elections::{NOT_YET_GRANTED, Proclamation};
use crate::setup::Setup;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::TakeUp;
use crate::world::election_memory::Observer;
use crate::world::inbox::MissedPushes;
use crate::world::records::KeyRecords;

const TERM: LeaseTimes = LeaseTimes {
    lease_ms: 400,
    margin_ms: 250,
};

/// Returns a world with one node and no events.
fn world(seed: u64) -> World {
    let setup = Setup {
        seed,
        ..Setup::default()
    };
    let mut world = World::new(setup, |_, _| {});
    let node = world.new_node(0, 0);
    world.nodes.push(node);
    world
}

fn request(name: Name, claim_id: ClaimId, verb: Verb) -> Request {
    Request {
        name,
        claim_id,
        term: TERM,
        mode: Mode::Exclusive,
        when_behind: WhenBehind::Skip,
        may_keep: false,
        data: None,
        mark: None,
        verb,
    }
}

/// Returns a claim of the only node.
fn claim_of(world: &World) -> ClaimId {
    ClaimId {
        node: world.nodes[0].id,
        claim: ClaimNumber(1),
        nonce: 0,
    }
}

/// Returns a run that the claim began.
fn begun(claim_id: ClaimId, tick: TickTime) -> RunRecord {
    RunRecord {
        tick,
        attempt: 1,
        number: GrantNumber(7),
        node: claim_id.node,
        name: "".into(),
        ending: None,
    }
}

fn found(world: &World) -> Option<Violation> {
    world.failure.as_ref().map(|failure| failure.violation)
}

/// A world in which a holder gave its lease up for a transfer. Returns the claim of the lease.
struct Transfer {
    world: World,
    of: ClaimId,
    to: usize,
}

impl Transfer {
    fn new() -> Self {
        let mut world = world(6);
        // The law of the pass accuses such a server, too.
        world.setup.only = Some(Violation::ValidLeaseReportedGone);
        let of = claim_of(&world);
        let (_, holder) = world.new_caller(0, 0, LockOptions::new(TERM), TakeUp::Done);
        world.nodes[0].callers[holder].claim = Some(of);
        let (_, to) = world.new_caller(0, 0, LockOptions::new(TERM), TakeUp::Pending);
        world.nodes[0].callers[to].before = Some(holder);
        let mut transfer = Transfer { world, of, to };
        transfer.has_record(true);
        transfer
    }

    /// Gives or takes the server at hand the record of the lease.
    fn has_record(&mut self, has: bool) {
        self.is_owned(has.then_some((self.of, 7)));
    }

    /// The server at hand has a record of this claim and grant.
    fn is_owned(&mut self, by: Option<(ClaimId, u64)>) {
        let record = by.map(|(claim_id, number)| Record {
            owner: RecordOwner::Claim(claim_id, GrantNumber(number)),
            expires: None,
            may_keep: false,
        });
        self.world.server.ledger.overwrite(&self.world.keys[0], record);
    }

    /// The server answers the pass with "gone".
    fn is_answered_gone(&mut self) {
        let claim = ClaimNumber(2);
        let to = ClaimId { claim, ..self.of };
        let before = self.world.key_records(&self.world.keys[0]);
        self.is_executed(Verb::Pass { to, adopts: false }, ClaimReply::Gone.into(), before);
    }

    /// A request of the lease was executed, before which the key had these records.
    fn is_executed(&mut self, verb: Verb, reply: Reply, before: KeyRecords) {
        let request = request(self.world.keys[0].clone(), self.of, verb);
        let batch = Batch {
            highest: GrantNumber(7),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            is_unconfirmed: false,
            recovery_ms: 0,
            rule: Rule::Each,
            requests: vec![request],
        };
        self.world.watch_execution(&batch, &[reply], &[before], &[]);
    }

    /// The caller of the transfer is told that the lease is gone.
    fn is_denied(&mut self) -> Option<Violation> {
        let gone = WhyDenied::Error(AcquireError::Lost(LostCause::Gone));
        self.world.watch_gone(0, self.to, &gone);
        found(&self.world)
    }
}

/// A client deleted the record at a master, whose replica was promoted before it learned of that.
#[test]
fn a_lease_that_a_former_master_had_lost_is_gone_although_the_promoted_one_has_it() {
    let mut transfer = Transfer::new();
    transfer.has_record(false);
    transfer.is_answered_gone();
    transfer.has_record(true);
    assert_eq!(transfer.is_denied(), None);

    // The server had the record, or was never asked.
    let wrong = Some(Violation::ValidLeaseReportedGone);
    let mut transfer = Transfer::new();
    transfer.is_answered_gone();
    assert_eq!(transfer.is_denied(), wrong);
    assert_eq!(Transfer::new().is_denied(), wrong);
}

/// The renewal was sent before the leave, and given up. Its server executes it late, because its clock went back.
#[test]
fn a_renewal_in_time_by_a_clock_that_went_back_is_no_fault_of_its_node() {
    let is_accused = |stepped_back: bool| {
        let mut renewal = Transfer::new();
        renewal.world.memory.ended.insert(renewal.of);
        renewal.world.memory.stepped_back = stepped_back;
        renewal.has_record(false);
        let before = renewal.world.key_records(&renewal.world.keys[0]);
        renewal.has_record(true);
        let number = GrantNumber(7);
        let verb = Verb::Renew { number: Some(number) };
        renewal.is_executed(verb, ClaimReply::granted(number).into(), before);
        !renewal.world.memory.asserted_after_end.is_empty()
    };
    assert!(!is_accused(true));
    assert!(is_accused(false));
}

/// A release that yields finds its lease revoked, and the leave that follows is refused. Its caller is told of the refusal.
#[test]
fn a_yield_of_a_revoked_lease_is_no_end() {
    let is_ended = |reply: Reply| {
        let mut release = Transfer::new();
        let claim = ClaimNumber(2);
        let to = ClaimId { claim, ..release.of };
        let before = release.world.key_records(&release.world.keys[0]);
        release.is_executed(Verb::Yield { to }, reply, before);
        release.world.memory.ended.contains(&release.of)
    };
    assert!(!is_ended(ClaimReply::Revoked.into()));
    assert!(is_ended(ClaimReply::Queued(None, QueueOwner::Shared).into()));
}

/// A stranger took the record, and its holder asserted the lease at a server that came back empty.
#[test]
fn a_lease_of_which_nothing_is_promised_stays_so_when_it_is_passed_on() {
    let is_exempt = |was_exempt: bool| {
        let mut pass = Transfer::new();
        if was_exempt {
            pass.world.exempt(0);
        }
        let claim = ClaimNumber(2);
        let to = ClaimId { claim, ..pass.of };
        let before = pass.world.key_records(&pass.world.keys[0]);
        pass.is_owned(Some((to, 8)));
        let verb = Verb::Pass { to, adopts: false };
        pass.is_executed(verb, ClaimReply::granted(GrantNumber(8)).into(), before);
        pass.world.is_exempt_grant(GrantNumber(8))
    };
    assert!(is_exempt(true));
    assert!(!is_exempt(false));
}

/// The run begins when its replica was promoted, whose clock is a second behind.
#[test]
fn a_run_is_judged_by_the_clock_of_the_server_that_granted_it() {
    let run = |granted_after_ms: u64| {
        let mut world = world(3);
        let key = world.jobs().start;
        let us = world.server_us();
        let options = LockOptions {
            mark: Some(TickTime(us / 1000 + 500)),
            ..LockOptions::new(TERM)
        };
        let (_, caller) = world.new_caller(0, key, options, TakeUp::Done);
        let number = GrantNumber(us + granted_after_ms * 1000);
        world.watch_run(0, caller, Fence::new(number, 0));
        found(&world)
    };
    assert_eq!(run(500), None);
    assert_eq!(run(499), Some(Violation::TickEarly));
}

/// Every request settles the key first. A run may begin in the step of a reset, which then sets the mark.
#[test]
fn a_run_may_begin_in_the_step_of_a_reset() {
    let begun_by = |verb: Verb| {
        let mut world = world(3);
        let key = world.jobs().start;
        let claim_id = claim_of(&world);
        let run = begun(claim_id, TickTime(1_000));
        let job = JobRecord {
            mark: Some(TickTime(1_500)),
            done: true,
            attempt: 1,
            run_count: 1,
            runs: [run].into(),
            ..JobRecord::default()
        };
        let request = request(world.keys[key].clone(), claim_id, verb);
        let reply = Reply::Leave(LeaveReply::NotThere);
        world.watch_history(key, (&request, &reply), &job);
        found(&world)
    };
    assert_eq!(begun_by(Verb::Call(Call::Reset)), None);
    assert_eq!(begun_by(Verb::Leave), Some(Violation::HistoryWrong));
}

/// A key that has a foreign value refuses the end of a run. The run is then still wanted.
#[test]
fn a_triggered_run_is_wanted_until_its_end_is_executed() {
    let wanted_after = |reply: Reply| {
        let mut world = world(3);
        let key = world.jobs().start;
        let claim_id = claim_of(&world);
        let tick = TickTime(1_000).triggered();
        let act = OperatorAct {
            since_ms: 1_000,
            by: "".into(),
            why: "".into(),
        };
        let run = begun(claim_id, tick);
        let job = JobRecord {
            winner: Some(claim_id),
            wanted: Some(Arc::new(WantedRun {
                tick,
                attempt: 1,
                act,
            })),
            run_count: 1,
            runs: [run].into(),
            ..JobRecord::default()
        };
        world.memory.ticks.note_wanted(key, &job);
        world.memory.ticks.history.insert(key, job.clone());
        let result = RunResult {
            outcome: RunOutcome::Done,
            took_ms: 0,
            retries: 0,
        };
        let request = Request {
            mark: Some(tick),
            ..request(world.keys[key].clone(), claim_id, Verb::Finish { result })
        };
        world.watch_history(key, (&request, &reply), &job);
        found(&world)
    };
    assert_eq!(wanted_after(Reply::Refused(StoreRefusal::WrongType)), None);
    let left = Reply::Leave(LeaveReply::Left);
    assert_eq!(wanted_after(left), Some(Violation::TriggerRunAgain));
}

/// A node that knows the end of a tick from before a loss marks it as over. A run that was granted it meanwhile may still save.
#[test]
fn a_run_may_save_after_its_tick_was_marked_as_over() {
    let saved_with = |mark: TickTime| {
        let mut world = world(3);
        let key = world.jobs().start;
        let of = claim_of(&world);
        let record = Record {
            owner: RecordOwner::Claim(of, GrantNumber(7)),
            expires: None,
            may_keep: false,
        };
        world.server.ledger.overwrite(&world.keys[key], Some(record));
        let tick = TickTime(1_000);
        let job = JobRecord {
            mark: Some(mark),
            done: true,
            saved: Some(CheckpointRecord {
                tick,
                attempt: 1,
                seq: 1,
                data: Payload([].into()),
            }),
            ..JobRecord::default()
        };
        let request = Request {
            mark: Some(tick),
            ..request(world.keys[key].clone(), of, Verb::Call(Call::Save { of, seq: 1 }))
        };
        world.watch_save(key, &request, &job);
        found(&world)
    };
    assert_eq!(saved_with(TickTime(1_000)), None);
    assert_eq!(saved_with(TickTime(1_500)), Some(Violation::CheckpointOfNonOwner));
}

/// The checkpoint of a triggered tick ends with the next grant of another tick, which may overtake the answer to a save.
#[test]
fn a_slow_answer_keeps_no_checkpoint_that_the_next_tick_ended() {
    let recalled_after = |is_overtaken: bool| {
        let mut world = world(3);
        let key = world.jobs().start;
        let of = claim_of(&world);
        let tick = TickTime(1_000).triggered();
        let wanted = WantedRun {
            tick,
            attempt: 1,
            act: OperatorAct {
                since_ms: 0,
                by: "".into(),
                why: "".into(),
            },
        };
        let another = ClaimId { nonce: 1, ..of };
        let job = JobRecord {
            winner: Some(if is_overtaken { another } else { of }),
            wanted: Some(Arc::new(wanted)),
            ..JobRecord::default()
        };
        world.server.ledger.set_job(&world.keys[key], job);
        let report = JobReport {
            owns: true,
            ..JobReport::default()
        };
        for call in [Call::Save { of, seq: 1 }, Call::Recall { of }] {
            world.now += MS;
            world.memory.ticks.recalls.insert(of, world.now);
            let options = CallOptions {
                mark: Some(tick),
                ..CallOptions::new(TERM, call)
            };
            let (_, caller) = world.new_call(0, key, &options);
            world.watch_checkpoint(0, caller, &report);
        }
        found(&world)
    };
    assert_eq!(recalled_after(true), None);
    assert_eq!(recalled_after(false), Some(Violation::CheckpointForgotten));
}

/// An inbox is trusted for a second after its last sign of life, and not for longer once a push was missed.
#[test]
fn a_missed_push_ends_the_trust_in_an_inbox_within_a_second() {
    let trusted = |given: u64| {
        let mut world = world(2);
        world.profile.delay = (MS, MS);
        world.profile.lag = 0;
        world.nodes[0].inbox.silent = Some(MissedPushes::default());
        let mut miss = |given: u64, found: u64| {
            let silent = world.nodes[0].inbox.silent.as_mut().expect("it is silent");
            silent.grants.insert(ClaimNumber(1), given * MS);
            world.now = found * MS;
            world.watch_missed_push(0, 0, ClaimNumber(1), &ClaimReply::granted(GrantNumber(7)).into());
        };
        miss(1_000, 1_500);
        miss(given, given + 600);
        found(&world)
    };
    assert_eq!(trusted(2_700), None);
    assert_eq!(trusted(2_900), Some(Violation::SilentInboxTrusted));
}

/// The answer that tells where an inbox leads is held by a stall, and comes at the end that the stall had, though the faults end
/// earlier.
#[test]
fn an_inbox_may_stay_while_the_answer_about_it_is_held() {
    let watched_after = |held: u64| {
        let mut world = world(2);
        world.profile.failover_lag = Some(0);
        world.connect(0, 0, Attempt(2));
        let conn = &mut world.conns[0];
        (conn.opened, conn.server) = (true, true);
        let inbox = &mut world.nodes[0].inbox;
        (inbox.sub, inbox.open, inbox.to) = (Some(Attempt(1)), true, conn.to + 1);
        conn.stall = held * MS;
        world.inbox_found(0, Attempt(1), false);
        world.end_faults();
        for at in [0, 3_000, 5_200] {
            world.now = at * MS;
            world.watch_inboxes();
        }
        found(&world)
    };
    assert_eq!(watched_after(4_000), None);
    assert_eq!(watched_after(2_000), Some(Violation::InboxLeftBehind));
}

/// A server that forgot its clock gives a number again. What the first leader under this number proclaimed says nothing of the
/// second one.
#[test]
fn a_leader_under_a_number_that_was_given_before_has_its_own_value() {
    let told_after = |values: [Option<u64>; 2]| {
        let seed = (0..).find(|seed| !world(*seed).elections.is_empty());
        let mut world = world(seed.expect("a world with an election"));
        let (key, number) = (world.elections.start, GrantNumber(7));
        let mut report = None;
        for (at, value) in (1..).zip(values) {
            let claim_id = ClaimId {
                node: NodeId::numbered(at),
                claim: ClaimNumber(1),
                nonce: 0,
            };
            let value = value.map(|seq| {
                let node = claim_id.node.to_string();
                let number = NOT_YET_GRANTED;
                Proclamation { number, seq, node }.write()
            });
            let request = Request {
                name: world.keys[key].clone(),
                claim_id,
                term: TERM,
                mode: Mode::Exclusive,
                when_behind: WhenBehind::Skip,
                may_keep: false,
                data: value.clone(),
                mark: None,
                verb: Verb::Claim { wait: true },
            };
            let record = Record {
                owner: RecordOwner::Claim(claim_id, number),
                expires: None,
                may_keep: false,
            };
            world.server.ledger.overwrite(&request.name, Some(record));
            world.watch_election(key, &request, &ClaimReply::granted(number).into());
            report = Some(LeaderReport {
                node: claim_id.node,
                number,
                version: Version(7),
                value,
            });
        }
        world.memory.elections.observers.push(Observer {
            slot: 0,
            life: 0,
            key,
            term: TERM,
            failed: false,
            known: None,
            latest: None,
            asking_caller: None,
            differs: None,
        });
        world.watch_leader_news(0, report.as_ref());
        found(&world)
    };
    assert_eq!(told_after([None, Some(36)]), None);
    assert_eq!(told_after([Some(36), None]), None);
}

/// A renewal is given up after a quarter of the lease, and takes three round trips while its slot is half moved.
#[test]
fn a_lease_shorter_than_twelve_round_trips_may_be_lost_in_a_half_moved_slot() {
    let mut world = world(1);
    let long = LeaseTimes {
        lease_ms: 1_000,
        ..TERM
    };
    world.profile.delay = (4 * MS, 35 * MS);
    assert!(world.renews_in_time(TERM), "no slot moves");
    world.cluster.slots[0].settles_at = 500 * MS;
    assert!(!world.renews_in_time(TERM));
    assert!(world.renews_in_time(long));
    world.profile.delay = (MS, 10 * MS);
    assert!(world.renews_in_time(TERM));
}

/// A lease was passed on at the successor, and the former master then grants its key with a smaller fence.
#[test]
fn a_fence_of_a_former_master_may_be_smaller_than_one_of_its_successor() {
    let is_accused = |was_promoted: bool| {
        let mut world = world(6);
        if was_promoted {
            world.memory.highest = GrantNumber(9);
            world.note_loss();
        }
        world.watch_fence(0, 0, Mode::Exclusive, Fence::new(GrantNumber(9), 0));
        world.watch_fence(0, 0, Mode::Exclusive, Fence::new(GrantNumber(8), 0));
        found(&world) == Some(Violation::FenceOrder)
    };
    assert!(!is_accused(true));
    assert!(is_accused(false));
}
