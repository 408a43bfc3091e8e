//! The simulator's runs: it meets every case, replays worlds, and finds each planted mistake.
//!
//! `TENURE_SEED` replays one world and prints its story; `TENURE_HISTORY` names a file for the whole history.
//! `TENURE_SIM_BASE` is the first seed that is explored. `TENURE_SIM_SECONDS` explores for so many seconds more.

// Tests may read the real clock.
#![allow(clippy::disallowed_methods)]

use std::env;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tenure::protocol::flaw::Flaw;
use tenure_sim::explore::{Exploration, Limits, explore};
use tenure_sim::{Setup, Violation, run};

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}

/// Returns the command that replays a world.
fn again(seed: u64) -> String {
    format!("seed {seed}: TENURE_SEED={seed} cargo test -p tenure-sim replay -- --nocapture")
}

/// Seeds of worlds that reset a tick with a standby in the queue: one world in 29,000 did.
const RARE_SEEDS: [u64; 1] = [35_607];
/// The number of worlds that are always explored: about 35 seconds on two idle cores.
const MIN_WORLDS: u64 = 1_200;
/// The number of worlds in which every case must be met. The time plays no part, so a slow machine meets the same cases.
const MAX_WORLDS: u64 = 20_000;

#[test]
fn explores() {
    let from = env_number("TENURE_SIM_BASE").unwrap_or(6_001);
    let limits = Limits {
        first: RARE_SEEDS.to_vec(),
        from,
        worlds: Some(MAX_WORLDS),
        enough: Some(MIN_WORLDS),
        threads: available_parallelism().map_or(2, usize::from),
        ..Limits::default()
    };
    let found = explore_without_failure(&limits);
    let missing = found.coverage.missing();
    assert!(missing.is_empty(), "never met: {missing:?}");
    if let Some(seconds) = env_number("TENURE_SIM_SECONDS") {
        explore_without_failure(&Limits {
            first: Vec::new(),
            from: from + found.worlds,
            worlds: None,
            time: Some(Duration::from_secs(seconds)),
            enough: None,
            ..limits
        });
    }
}

/// Seeds of worlds that violated a law once: with code of that time, each a fault of the code or of the law. The tests of
/// `tests/it` and of the laws rebuild what these worlds showed, because a change of the machines changes the worlds.
const FAILED_SEEDS: [u64; 34] = [
    1_094_275_965_846,
    961_729_131_060,
    692_776_112_942,
    747_961_403_830,
    933_464_234_752,
    214_688_167_160,
    437_184_269_118,
    415_243_442_529,
    734_034_544_266,
    792_984_448_366,
    684_528_255_138,
    421_076_025_933,
    13_582,
    49_423,
    181_790_559_207,
    131_018_566_182,
    131_761_788_343,
    335_476_581_384,
    688_275_423_960,
    77_004_958,
    77_010_281,
    52_004_102,
    240_003_377,
    555_001_788,
    315_243_102,
    812_346_737,
    710_615_342_615,
    1_070_615_343_673,
    1_070_615_345_523,
    449_734_357_779,
    176_124_168_678,
    319_197_333_327,
    515_095_124_553,
    61_879_440_540,
];

#[test]
fn worlds_that_failed_once_are_sound() {
    explore_without_failure(&Limits {
        first: FAILED_SEEDS.to_vec(),
        worlds: Some(FAILED_SEEDS.len() as u64),
        threads: available_parallelism().map_or(2, usize::from),
        ..Limits::default()
    });
}

#[track_caller]
fn explore_without_failure(limits: &Limits) -> Exploration {
    let begin = Instant::now();
    let found = explore(limits);
    println!("{}", found.table(begin.elapsed()));
    if let Some((seed, story)) = &found.failure {
        panic!("{story}\n{}", again(*seed));
    }
    found
}

#[test]
fn replay() {
    let seed = env_number("TENURE_SEED").unwrap_or(1);
    let run = run(Setup {
        seed,
        history: true,
        ..Setup::default()
    });
    if let Ok(path) = env::var("TENURE_HISTORY") {
        let lines: Vec<_> = run.history.iter().map(|line| line.text.as_str()).collect();
        std::fs::write(path, lines.join("\n")).expect("the history can be written");
    }
    if env::var("TENURE_SEED").is_ok() {
        println!("{}", run.story());
    }
    assert!(run.failure.is_none(), "{:?}", run.failure);
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 1..=40 {
        let setup = Setup {
            seed,
            ..Setup::default()
        };
        let (one, other) = (run(setup), run(setup));
        assert_eq!((one.hash, one.steps), (other.hash, other.steps), "seed {seed}");
        let written = run(Setup {
            history: true,
            ..setup
        });
        assert_eq!(
            one.hash, written.hash,
            "writing a history changed the world of seed {seed}"
        );
    }
}

/// Worlds in which the master fails over, as the first seed and the step. Mistakes that show only there are sought there.
const FAILOVERS: (u64, u64) = (6, 8);
/// Worlds with a cluster.
const CLUSTERS: (u64, u64) = (1, 8);
/// Worlds in which the server comes back empty again and again.
const FORGETFUL: (u64, u64) = (12, 16);

/// Asserts that one of 2,000 seeds finds the planted mistake by its harm, and that the last 20 of those worlds are sound without
/// it. `first` lies shortly before a seed that is known to find it. When the key machines change, other seeds will find it.
#[track_caller]
fn finds(planted: Setup, harm: Violation, first: u64) {
    finds_among(planted, harm, first, (0, 1));
}

/// As [`finds`], among the worlds of one kind.
#[track_caller]
fn finds_among(planted: Setup, harm: Violation, first: u64, (class, step): (u64, u64)) {
    let mistaken = |seed| Setup {
        seed,
        only: Some(harm),
        ..planted
    };
    let first = first / step * step + class;
    let seeds = (first..first + 2_000 * step).step_by(step as usize);
    let found = seeds.clone().find(|seed| run(mistaken(*seed)).failure.is_some());
    let Some(found) = found else {
        panic!("{planted:?} does no harm of kind {harm:?} in {seeds:?}")
    };
    println!("{:?}: {harm:?} in seed {found}", planted.flaw);
    let before = found.saturating_sub(20 * step);
    for seed in seeds.filter(|seed| (before..=found).contains(seed)) {
        let sound = run(Setup {
            seed,
            ..Setup::default()
        });
        assert!(sound.failure.is_none(), "{:?}\n{}", sound.failure, again(seed));
    }
}

fn with(flaw: Flaw) -> Setup {
    Setup {
        flaw: Some(flaw),
        ..Setup::default()
    }
}

#[test]
fn finds_a_deadline_counted_from_the_answer() {
    finds(with(Flaw::DeadlineFromReply), Violation::TwoHolders, 1_930);
}

#[test]
fn finds_a_late_renewal_that_revives() {
    finds(with(Flaw::LateRenewalRevives), Violation::LostLeaseRevived, 44);
}

#[test]
fn finds_a_claim_number_used_twice() {
    finds(with(Flaw::NumberTwice), Violation::RecordOfAnother, 675);
}

#[test]
fn finds_a_holder_that_goes_on_after_a_pass_without_an_answer() {
    finds(with(Flaw::ResumedUnanswered), Violation::RecordOfAnother, 600);
}

#[test]
fn finds_a_caller_whose_claim_ended_and_that_is_forgotten() {
    finds(with(Flaw::EndedForgotten), Violation::WaiterAsleep, 1);
}

#[test]
fn finds_t0_of_an_unanswered_renewal() {
    finds(with(Flaw::UnansweredRefresh), Violation::TwoHolders, 1_550);
}

#[test]
fn finds_a_yield_without_a_fresh_number() {
    finds(with(Flaw::YieldKeepsNumber), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_leave_that_does_not_kill_its_number() {
    finds(with(Flaw::LeaveKeepsNumber), Violation::WaiterAsleep, 1);
}

#[test]
fn finds_a_grant_for_an_unknown_claim_that_is_kept() {
    finds(with(Flaw::UnknownKept), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_lease_that_is_renewed_after_its_longest_hold() {
    finds(with(Flaw::OverdueRenewed), Violation::HeldTooLong, 1);
}

#[test]
fn finds_a_fixed_lease_that_is_renewed_without_its_caller() {
    finds(with(Flaw::FixedLeaseRenewedAlone), Violation::HeldTooLong, 210);
}

#[test]
fn finds_a_solo_lease_that_is_handed_on() {
    finds(with(Flaw::SoloHandedOn), Violation::SoloLeaseShared, 1);
}

#[test]
fn finds_a_cancelled_waiter_that_is_forgotten() {
    finds(with(Flaw::CancelledForgotten), Violation::OrphanRecord, 1);
}

#[test]
fn finds_a_hand_off_under_the_old_number() {
    finds(with(Flaw::NumberKeptOnHandOff), Violation::FenceOrder, 1);
}

/// Worlds in which nodes keep leases.
const KEEPS: (u64, u64) = (7, 20);

#[test]
fn finds_a_recall_that_is_ignored() {
    finds_among(with(Flaw::RecallIgnored), Violation::KeptTooLong, 1, KEEPS);
}

#[test]
fn finds_a_recall_before_its_answer_that_is_forgotten() {
    finds_among(with(Flaw::EarlyRecallForgotten), Violation::KeptTooLong, 1, KEEPS);
}

#[test]
fn finds_a_lease_from_the_queue_that_is_kept() {
    finds_among(with(Flaw::KeptAfterPush), Violation::KeptTooLong, 1, KEEPS);
}

#[test]
fn finds_a_lease_that_is_kept_without_a_confirmed_inbox() {
    finds_among(with(Flaw::KeptUnconfirmed), Violation::KeptTooLong, 1, KEEPS);
}

#[test]
fn finds_a_lease_that_is_kept_with_a_write_unanswered() {
    finds_among(
        with(Flaw::KeptUnanswered),
        Violation::WriteOrder,
        113_000,
        (67, 160),
    );
}

#[test]
fn finds_a_kept_lease_that_is_used_after_its_leave() {
    finds_among(
        with(Flaw::KeptUsedAfterLeave),
        Violation::RecordOfAnother,
        1,
        KEEPS,
    );
}

#[test]
fn finds_a_lease_that_is_kept_past_its_renewal() {
    finds_among(with(Flaw::KeptPastRenewal), Violation::KeptTooLong, 1, KEEPS);
}

#[test]
fn finds_a_kept_lease_whose_holders_have_one_fence() {
    finds_among(with(Flaw::KeptIndexTwice), Violation::FenceOrder, 1, KEEPS);
}

#[test]
fn finds_a_dead_head_that_is_granted() {
    finds(with(Flaw::DeadHeadGranted), Violation::DeadWaiterGranted, 1);
}

#[test]
fn finds_a_free_key_whose_queue_is_not_settled() {
    finds(with(Flaw::NeverSettled), Violation::LeftOver, 1);
}

#[test]
fn finds_a_lock_that_is_left_free_for_ever() {
    finds(with(Flaw::LeftFreeForEver), Violation::WaiterAsleep, 1);
}

#[test]
fn finds_a_lock_that_is_never_left_free() {
    finds(with(Flaw::NeverLeftFree), Violation::NeverLeftFree, 1);
}

#[test]
fn finds_a_reader_that_joins_past_a_writer() {
    finds(with(Flaw::ReaderJoinsPastWriter), Violation::QueueJumped, 1);
}

#[test]
fn finds_a_downgrade_that_lets_a_writer_in_between() {
    finds(with(Flaw::DowngradeLetsGo), Violation::WriterBetween, 1);
}

#[test]
fn finds_a_downgrade_that_gives_a_valid_lease_up() {
    finds(
        with(Flaw::DowngradeGivesUp),
        Violation::ValidLeaseReportedGone,
        210,
    );
}

#[test]
fn finds_a_refusal_reported_for_an_executed_call() {
    finds(
        with(Flaw::RefusalBelieved),
        Violation::ExecutedCallReportedRefused,
        280,
    );
}

#[test]
fn finds_a_revoked_lease_that_is_renewed() {
    finds(with(Flaw::RevokedRenewed), Violation::ChangedByNonOwner, 1);
}

#[test]
fn finds_a_revoked_lease_that_is_asserted() {
    finds_among(
        with(Flaw::RevokedAsserted),
        Violation::ChangedByNonOwner,
        250,
        FORGETFUL,
    );
}

#[test]
fn finds_a_revoked_lease_that_is_free_before_its_end() {
    finds(with(Flaw::RevokedFreed), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_revoked_lease_that_the_leave_of_another_claim_frees() {
    finds(with(Flaw::RevokedLeftByAnother), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_revoked_lease_that_is_adopted() {
    finds(with(Flaw::RevokedAdopted), Violation::ChangedByNonOwner, 1);
}

#[test]
fn finds_a_lease_that_is_adopted_twice() {
    finds(with(Flaw::AdoptedTwice), Violation::AdoptedTwice, 1);
}

#[test]
fn finds_an_adopted_lease_with_the_earlier_fence() {
    finds(with(Flaw::AdoptKeepsNumber), Violation::FenceOrder, 1);
}

#[test]
fn finds_an_extension_that_shortens() {
    finds(with(Flaw::ExtendShortens), Violation::ChangedByNonOwner, 1);
}

#[test]
fn finds_a_leave_by_another_claim() {
    finds(with(Flaw::LeaveByAnyone), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_late_claim_that_is_executed() {
    finds(with(Flaw::LateClaimExecuted), Violation::OrphanRecord, 1);
}

#[test]
fn finds_a_missing_margin() {
    finds(
        Setup {
            no_margin: true,
            ..Setup::default()
        },
        Violation::TwoHolders,
        1,
    );
}

#[test]
fn finds_a_job_without_a_mark() {
    finds(with(Flaw::NoMark), Violation::TickRunAgain, 1);
}

#[test]
fn finds_a_mark_by_the_nodes_clock() {
    finds(with(Flaw::EarlyTickGranted), Violation::TickEarly, 1);
}

#[test]
fn finds_a_finished_tick_handed_to_its_standby() {
    finds(with(Flaw::FinishedTickHandedOver), Violation::TickRunAgain, 1);
}

#[test]
fn finds_a_release_before_the_jobs_future_ended() {
    finds(
        Setup {
            release_early: true,
            ..Setup::default()
        },
        Violation::TwoRuns,
        400,
    );
}

#[test]
fn finds_a_tick_without_standbys() {
    finds(with(Flaw::NoStandby), Violation::TickGivenUp, 1);
}

#[test]
fn finds_a_standby_that_is_never_granted() {
    finds(with(Flaw::StandbyNeverGranted), Violation::TickNotRun, 1);
}

#[test]
fn finds_a_run_tick_that_is_reported_as_skipped() {
    finds(with(Flaw::RunTickCalledSkipped), Violation::TickGivenUp, 1);
}

#[test]
fn finds_a_standby_that_is_never_told() {
    finds(with(Flaw::StandbyNeverTold), Violation::StandbyNotTold, 1);
}

#[test]
fn finds_an_open_tick_that_is_not_reported() {
    finds(with(Flaw::OpenTickUntold), Violation::TickAbandoned, 1);
}

#[test]
fn finds_a_tick_that_waits_for_a_recovery() {
    finds(with(Flaw::TickWaitsForRecovery), Violation::TickKeptInRecovery, 1);
}

#[test]
fn finds_an_expression_that_is_always_new() {
    finds(with(Flaw::FirstSeenRenewed), Violation::FirstSeenMoved, 1);
}

#[test]
fn finds_a_standby_that_is_granted_in_a_pause() {
    finds(with(Flaw::PausedStandbyGranted), Violation::PausedTickGranted, 1);
}

#[test]
fn finds_a_tick_of_a_pause_that_runs_after_it() {
    finds(with(Flaw::PausedTickResumed), Violation::PausedTickGranted, 1);
}

#[test]
fn finds_a_trigger_that_is_judged_by_the_mark() {
    finds(with(Flaw::TriggerJudgedByMark), Violation::TriggerRunAgain, 1);
}

#[test]
fn finds_a_trigger_that_runs_again_after_its_end() {
    finds(with(Flaw::TriggerOutlivesRun), Violation::TriggerRunAgain, 1);
}

#[test]
fn finds_a_tick_that_is_skipped_for_a_trigger() {
    finds(
        with(Flaw::TickSkippedForTrigger),
        Violation::TickSkippedForTrigger,
        1,
    );
}

#[test]
fn finds_a_cancelled_tick_that_is_granted_again() {
    finds(with(Flaw::CancelledTickOpen), Violation::TickRunAgain, 1);
}

#[test]
fn finds_a_run_that_another_claim_ends() {
    finds(with(Flaw::RunEndedByAnother), Violation::HistoryWrong, 1);
}

#[test]
fn finds_a_run_that_is_ended_twice() {
    finds(with(Flaw::RunEndedTwice), Violation::HistoryWrong, 1);
}

#[test]
fn finds_a_lost_acknowledged_tick_that_is_not_mended() {
    finds(with(Flaw::LossBelieved), Violation::LossNotMended, 960);
}

#[test]
fn finds_a_permit_that_is_released_twice() {
    finds(with(Flaw::PermitReleasedTwice), Violation::TooManyPermits, 1);
}

#[test]
fn finds_a_permit_that_is_renewed_after_it_ended() {
    finds(with(Flaw::EndedPermitRenewed), Violation::TooManyPermits, 100);
}

#[test]
fn finds_a_permit_that_is_handed_to_a_caller_of_many() {
    finds(with(Flaw::PermitHandedToMany), Violation::TooManyPermits, 1);
}

#[test]
fn finds_a_tick_run_twice_by_two_claims_of_one_node() {
    finds(with(Flaw::JobByNode), Violation::TickRunAgain, 1);
}

#[test]
fn finds_two_claims_of_one_node_that_run_a_job_at_once() {
    finds(with(Flaw::JobByNode), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_group_of_claims_that_is_half_granted() {
    finds(with(Flaw::HalfGranted), Violation::GroupSplit, 1);
}

#[test]
fn finds_a_reader_of_several_keys_that_passes_a_writer() {
    finds(with(Flaw::TogetherPastWriter), Violation::GroupSplit, 1);
}

#[test]
fn finds_a_reader_of_several_keys_that_does_not_join_readers() {
    finds(with(Flaw::TogetherAsWriter), Violation::GroupSplit, 1);
}

#[test]
fn finds_a_tick_that_is_skipped_instead_of_queued() {
    finds(with(Flaw::QueuedTickSkipped), Violation::TickGivenUp, 1);
}

#[test]
fn finds_a_tick_that_is_passed_over() {
    finds(with(Flaw::EarlierTickPassedOver), Violation::TickPassedOver, 130);
}

#[test]
fn finds_a_job_that_waits_for_a_skipped_tick() {
    finds(with(Flaw::SkippedTickAwaited), Violation::TickNotRun, 890);
}

#[test]
fn finds_a_checkpoint_of_a_run_that_was_lost() {
    finds(with(Flaw::CheckpointOfLoser), Violation::CheckpointOfNonOwner, 1);
}

#[test]
fn finds_a_checkpoint_that_is_not_kept() {
    finds(with(Flaw::CheckpointNotKept), Violation::CheckpointForgotten, 1);
}

#[test]
fn finds_a_checkpoint_that_outlives_its_tick() {
    finds(
        with(Flaw::CheckpointOutlivesTick),
        Violation::CheckpointOfAnotherTick,
        1,
    );
}

#[test]
fn finds_a_write_under_an_expired_lease() {
    finds(with(Flaw::WriteUnchecked), Violation::WriteOrder, 1);
}

#[test]
fn finds_a_write_that_checks_only_its_first_lease() {
    finds(with(Flaw::FirstLeaseChecked), Violation::WriteOrder, 1);
}

#[test]
fn finds_a_lease_that_is_handed_on_with_a_write_in_flight() {
    finds(with(Flaw::HandedOnUnanswered), Violation::WriteOrder, 1);
}

#[test]
fn finds_a_write_that_is_not_counted() {
    finds(with(Flaw::UncountedWrite), Violation::WriteOrder, 1);
}

#[test]
fn finds_a_repeated_call_with_a_fresh_id() {
    finds(with(Flaw::RepeatedUnderFreshId), Violation::NotCounted, 930);
}

#[test]
fn finds_a_save_that_is_sent_after_the_leave_of_its_claim() {
    finds(with(Flaw::SavedAfterLeave), Violation::CallOvertaken, 1);
}

#[test]
fn finds_an_answer_that_is_given_to_another_call() {
    finds(with(Flaw::AnswerToAnotherCall), Violation::NotCounted, 1);
}

#[test]
fn finds_a_watch_that_is_lost_with_its_connection() {
    finds(with(Flaw::WatchLostWithConnection), Violation::ZeroNotTold, 1);
}

#[test]
fn finds_a_call_repeated_after_an_old_clock_reading() {
    finds(with(Flaw::SenderClockBelieved), Violation::SentAgain, 1);
}

#[test]
fn finds_a_count_down_that_counts_again() {
    finds(with(Flaw::CountedAgain), Violation::CountedTwice, 215);
}

#[test]
fn finds_a_count_down_that_counts_in_the_next_generation() {
    finds(with(Flaw::CountedLate), Violation::CountedLate, 1);
}

#[test]
fn finds_a_latch_that_is_set_again_at_zero() {
    finds(with(Flaw::LatchSetAgain), Violation::LatchSetTwice, 1);
}

#[test]
fn finds_a_waiter_that_waits_for_the_push_alone() {
    finds(with(Flaw::WatchedByPushAlone), Violation::ZeroNotTold, 1);
}

#[test]
fn finds_a_waiter_that_is_told_of_an_earlier_zero() {
    finds(with(Flaw::OldLookBelieved), Violation::ZeroToldTooEarly, 1);
}

#[test]
fn finds_a_proclamation_that_outlives_its_leader() {
    finds(
        with(Flaw::ProclaimedOutlivesLeader),
        Violation::ProclaimedByAnother,
        1,
    );
}

#[test]
fn finds_a_value_of_a_queued_candidate_that_is_forgotten() {
    finds(with(Flaw::QueuedValueForgotten), Violation::LeaderWithoutValue, 1);
}

#[test]
fn finds_a_proclamation_that_replaces_a_later_one() {
    finds(with(Flaw::ProclaimedLate), Violation::LeaderNewsOutOfOrder, 1);
}

#[test]
fn finds_an_observer_that_waits_for_the_push_alone() {
    finds(with(Flaw::WatchedByPushAlone), Violation::LeaderNotTold, 1);
}

#[test]
fn finds_a_candidate_that_does_not_rest() {
    finds(with(Flaw::NeverRests), Violation::RestIgnored, 1);
}

#[test]
fn finds_effects_that_a_step_leaves_for_the_next() {
    finds(with(Flaw::EffectsLeft), Violation::WrongAnswer, 1);
}

#[test]
fn finds_a_guard_of_a_grant_that_was_lost() {
    finds(with(Flaw::LostGrantReturned), Violation::WrongAnswer, 1);
}

#[test]
fn finds_a_silent_inbox_that_is_not_suspected() {
    finds(with(Flaw::SilentInboxTrusted), Violation::SilentInboxTrusted, 1);
}

// Mistakes of a server that lost grants, and of its nodes.

#[test]
fn finds_a_recovering_server_that_grants() {
    finds(with(Flaw::RecoveringGrants), Violation::TwoHolders, 15);
}

#[test]
fn finds_a_recovery_that_is_shorter_than_the_longest_lease() {
    finds(with(Flaw::RecoveryTooShort), Violation::TwoHolders, 280);
}

#[test]
fn finds_a_loss_whose_evidence_is_ignored() {
    finds(with(Flaw::EvidenceIgnored), Violation::TwoHolders, 80);
}

#[test]
fn finds_a_reign_of_another_server_that_is_not_noticed() {
    finds(with(Flaw::EpochNotCompared), Violation::TwoHolders, 2_490);
}

#[test]
fn finds_a_grant_on_a_link_that_is_not_confirmed() {
    finds(with(Flaw::UnconfirmedGrants), Violation::TwoHolders, 1_430);
}

#[test]
fn finds_a_link_that_one_sentinel_confirms() {
    finds(with(Flaw::OneSentinelBelieved), Violation::TwoHolders, 1_480);
}

#[test]
fn finds_a_link_for_which_the_sentinels_are_asked_before_it_opens() {
    finds_among(
        with(Flaw::SentinelsAskedBefore),
        Violation::TwoHolders,
        92_500,
        FAILOVERS,
    );
}

#[test]
fn finds_a_recovery_that_leaves_the_clock_behind() {
    finds(with(Flaw::ClockNotRaised), Violation::RecoveryRepeated, 1_270);
}

#[test]
fn finds_a_deadline_that_moves_beside_a_former_master() {
    finds_among(
        with(Flaw::RenewedBesideFormerMaster),
        Violation::TwoHolders,
        167_800,
        FAILOVERS,
    );
}

#[test]
fn finds_an_assertion_after_its_not_after() {
    finds_among(
        with(Flaw::AssertedLate),
        Violation::OrphanRecord,
        4_100,
        FAILOVERS,
    );
}

#[test]
fn finds_an_assertion_that_takes_the_record_of_another_owner() {
    finds_among(
        with(Flaw::AssertedOverOwner),
        Violation::TwoHolders,
        36_000,
        FAILOVERS,
    );
}

#[test]
fn finds_an_assertion_that_leaves_its_claim_in_the_queue() {
    finds(with(Flaw::AssertionStaysQueued), Violation::OwnerQueued, 2_630);
}

#[test]
fn finds_an_assertion_that_is_executed_after_its_leave() {
    finds_among(
        with(Flaw::AssertedAfterLeave),
        Violation::OrphanRecord,
        455_200,
        FAILOVERS,
    );
}

#[test]
fn finds_an_assertion_that_shortens_a_fixed_lease() {
    finds(with(Flaw::AssertionShortens), Violation::AssertionChangedEnd, 830);
}

#[test]
fn finds_a_transfer_that_is_adopted_again_at_a_server_that_recovers() {
    finds_among(
        with(Flaw::AdoptedWhileRecovering),
        Violation::AdoptedTwice,
        1_600,
        FAILOVERS,
    );
}

#[test]
fn finds_an_inbox_that_stays_at_the_former_master() {
    finds(with(Flaw::InboxLeftBehind), Violation::InboxLeftBehind, 1);
}

#[test]
fn finds_an_inbox_that_is_compared_by_its_address() {
    finds(
        with(Flaw::InboxComparedByAddress),
        Violation::InboxLeftBehind,
        1_680,
    );
}

#[test]
fn finds_two_holders_if_the_former_master_takes_writes_for_too_long() {
    finds(
        Setup {
            late_demotion: true,
            ..Setup::default()
        },
        Violation::TwoHolders,
        95,
    );
}

#[test]
fn finds_two_holders_after_a_failover_without_a_recovery() {
    finds(
        Setup {
            no_recovery: true,
            ..Setup::default()
        },
        Violation::TwoHolders,
        410,
    );
}

// Mistakes of the session and of the link.

#[test]
fn finds_a_not_after_from_an_old_clock_reading() {
    finds(with(Flaw::NotAfterFromOldReading), Violation::DeniedInCalm, 10);
}

#[test]
fn finds_a_claim_that_is_treated_as_late_too_early() {
    finds(with(Flaw::LateAfterTooEarly), Violation::OrphanRecord, 905);
}

#[test]
fn finds_an_old_connection_used_beside_its_successor() {
    finds(
        with(Flaw::ConnectionBesideSuccessor),
        Violation::OldConnectionUsed,
        1,
    );
}

#[test]
fn finds_a_reply_credited_to_another_batch() {
    finds(with(Flaw::ReplyToAnotherBatch), Violation::TwoHolders, 210);
}

#[test]
fn finds_a_renewal_behind_a_full_queue() {
    finds(with(Flaw::RenewalBehindQueue), Violation::LostInCalm, 5);
}

#[test]
fn finds_a_claim_that_overtakes_a_leave() {
    finds(with(Flaw::ClaimBeforeLeave), Violation::LeaveOvertaken, 1);
}

#[test]
fn finds_a_run_that_is_given_up_by_a_closing() {
    finds(with(Flaw::RunGivenUpAtClose), Violation::WrongAnswer, 1);
}

#[test]
fn finds_a_request_that_is_forgotten_with_its_connection() {
    finds(with(Flaw::ForgottenWithConnection), Violation::Unanswered, 1);
}

#[test]
fn finds_a_reload_without_a_bound() {
    finds(with(Flaw::ReloadWithoutBound), Violation::OrphanRecord, 1_420);
}

// Mistakes of a node with several servers, and of a slot that moves.

#[test]
fn finds_a_lost_inbox_that_is_not_reported_by_another_session() {
    finds(with(Flaw::InboxNotTold), Violation::LostInboxTrusted, 1);
}

#[test]
fn finds_an_unsent_request_that_is_forgotten_when_the_map_changes() {
    finds(with(Flaw::ForgottenWithMove), Violation::Unanswered, 1);
}

#[test]
fn finds_a_clock_that_stays_behind_when_its_slot_moves() {
    finds(with(Flaw::ClockLeftBehind), Violation::FenceOrder, 1_680);
}

#[test]
fn finds_a_redirection_that_is_taken_for_gone() {
    finds(with(Flaw::RedirectTakenForGone), Violation::LostInCalm, 45);
}

#[test]
fn finds_gone_that_is_believed_from_the_server_that_a_slot_leaves() {
    finds_among(
        with(Flaw::GoneBelievedFromSource),
        Violation::ValidLeaseReportedGone,
        2_800,
        CLUSTERS,
    );
}

#[test]
fn finds_a_renewal_with_the_record_alone_that_creates() {
    finds_among(with(Flaw::AloneCreates), Violation::OrphanRecord, 7_900, CLUSTERS);
}

#[test]
fn finds_a_redirected_claim_with_the_not_after_of_the_first_server() {
    finds(with(Flaw::ForwardedByLink), Violation::OrphanRecord, 1_460);
}

#[test]
fn finds_one_witness_that_is_believed_though_it_belongs_to_another_cluster() {
    finds(with(Flaw::OneWitnessBelieved), Violation::TwoHolders, 1);
}

#[test]
fn finds_a_server_of_another_cluster_that_is_used_at_the_address_of_a_known_one() {
    finds(with(Flaw::StrangerUsed), Violation::TwoHolders, 1);
}

// Mistakes of a quorum and its masters.

#[test]
fn finds_a_minority_that_is_enough_for_a_grant() {
    finds(with(Flaw::MinorityEnough), Violation::RecordOfAnother, 1);
}

#[test]
fn finds_a_lease_that_counts_from_the_youngest_vote() {
    finds(with(Flaw::YoungestVote), Violation::RecordOfAnother, 5_300);
}

#[test]
fn finds_a_master_that_votes_although_it_may_have_lost_records() {
    finds(with(Flaw::RecoveringVotes), Violation::TwoHolders, 3_705);
}

#[test]
fn finds_a_fence_that_a_majority_has_not_reached() {
    finds(with(Flaw::NoSecondTrip), Violation::FenceOrder, 200);
}

#[test]
fn finds_a_claim_that_is_left_only_where_it_was_granted() {
    finds(with(Flaw::LeftWhereGrantedOnly), Violation::OrphanRecord, 1);
}
