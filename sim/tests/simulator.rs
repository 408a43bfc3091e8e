//! The simulator's runs: it explores, it replays, and it finds each planted mistake.
//!
//! `TENURE_SEED` replays one world and prints its history (all of it to the file
//! `TENURE_HISTORY`), `TENURE_SIM_SECONDS` says how long to explore, and
//! `TENURE_SIM_BASE` from which seed.

// Tests play the outside world: they may look at its clock.
#![allow(clippy::disallowed_methods)]

use std::env;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tenure::protocol::flaw::Flaw;
use tenure_sim::explore::{Limits, explore};
use tenure_sim::{Setup, Wrong, run};

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

/// How to see a world again.
fn again(seed: u64) -> String {
    format!("seed {seed}: TENURE_SEED={seed} cargo test -p tenure-sim replay -- --nocapture")
}

#[test]
fn explores() {
    let begin = Instant::now();
    let found = explore(&Limits {
        // From where the rarest of all comes soon: a standby of a tick that is brought back.
        from: env_number("TENURE_SIM_BASE").unwrap_or(6_001),
        time: Some(Duration::from_secs(
            env_number("TENURE_SIM_SECONDS").unwrap_or(45),
        )),
        threads: available_parallelism().map_or(2, usize::from),
        // On a slow machine the rare takes longer.
        until_covered: true,
        ..Limits::default()
    });
    println!("{}", found.table(begin.elapsed()));
    if let Some((seed, story)) = found.failure {
        panic!("{story}\n{}", again(seed));
    }
    let missing = found.coverage.missing();
    assert!(missing.is_empty(), "never happened: {missing:?}");
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

/// Finds the planted mistake by its harm in one of the seeds, and nothing in any of the last of them without it. The
/// seeds begin close before one that is known to find it; when the machines change, others will.
#[track_caller]
fn finds(planted: Setup, harm: Wrong, first: u64) {
    let mistaken = |seed| Setup {
        seed,
        only: Some(harm),
        ..planted
    };
    let seeds = first..first + 2_000;
    let found = seeds.clone().find(|seed| run(mistaken(*seed)).failure.is_some());
    let Some(found) = found else {
        panic!("{planted:?} does no harm of kind {harm:?} in {seeds:?}")
    };
    println!("{:?}: {harm:?} in seed {found}", planted.flaw);
    for seed in first.max(found.saturating_sub(20))..=found {
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
    finds(with(Flaw::DeadlineFromReply), Wrong::TwoHolders, 1_905);
}

#[test]
fn finds_a_late_renewal_that_revives() {
    finds(with(Flaw::LateRenewalRevives), Wrong::Revived, 44);
}

#[test]
fn finds_a_claim_number_used_twice() {
    finds(with(Flaw::NumberTwice), Wrong::Unbacked, 270);
}

#[test]
fn finds_t0_of_an_unanswered_refresh() {
    finds(with(Flaw::UnansweredRefresh), Wrong::TwoHolders, 1430);
}

#[test]
fn finds_a_yield_without_a_fresh_number() {
    finds(with(Flaw::YieldKeepsNumber), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_leave_that_does_not_kill_its_number() {
    finds(with(Flaw::LeaveKeepsNumber), Wrong::Asleep, 1);
}

#[test]
fn finds_a_grant_for_an_unknown_claim_that_is_kept() {
    finds(with(Flaw::UnknownKept), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_lease_that_is_renewed_for_longer_than_it_may_be_held() {
    finds(with(Flaw::OverdueRenewed), Wrong::HeldTooLong, 1);
}

#[test]
fn finds_a_fixed_lease_that_is_renewed_without_its_caller() {
    finds(with(Flaw::FixedLeaseRenewedAlone), Wrong::HeldTooLong, 1);
}

#[test]
fn finds_a_lease_of_ones_own_that_is_handed_on() {
    finds(with(Flaw::SoloHandedOn), Wrong::Shared, 1);
}

#[test]
fn finds_a_cancelled_waiter_that_is_forgotten() {
    finds(with(Flaw::CancelledForgotten), Wrong::Orphan, 1);
}

#[test]
fn finds_a_hand_off_under_the_old_number() {
    finds(with(Flaw::NumberKeptOnHandOff), Wrong::Fence, 1);
}

#[test]
fn finds_a_dead_head_that_is_granted() {
    finds(with(Flaw::DeadHeadGranted), Wrong::DeadGranted, 1);
}

#[test]
fn finds_a_free_key_with_a_queue_left_alone() {
    finds(with(Flaw::NeverSettled), Wrong::LeftOver, 1);
}

#[test]
fn finds_a_lock_that_is_left_free_for_ever() {
    finds(with(Flaw::LeftFreeForEver), Wrong::Asleep, 1);
}

#[test]
fn finds_a_lock_that_is_never_left_free() {
    finds(with(Flaw::NeverLeftFree), Wrong::NeverFree, 1);
}

#[test]
fn finds_a_reader_that_joins_past_a_writer() {
    finds(with(Flaw::ReaderJoinsPastWriter), Wrong::Passed, 1);
}

#[test]
fn finds_a_downgrade_that_lets_a_writer_between() {
    finds(with(Flaw::DowngradeLetsGo), Wrong::Between, 1);
}

#[test]
fn finds_a_downgrade_that_gives_a_valid_lease_up() {
    finds(with(Flaw::DowngradeGivesUp), Wrong::GivenUp, 1);
}

#[test]
fn finds_a_refusal_reported_for_an_executed_call() {
    finds(with(Flaw::RefusalBelieved), Wrong::ToldRefused, 1);
}

#[test]
fn finds_a_lease_that_is_adopted_twice() {
    finds(with(Flaw::AdoptedTwice), Wrong::AdoptedTwice, 1);
}

#[test]
fn finds_an_adopted_lease_with_the_fence_of_before() {
    finds(with(Flaw::AdoptKeepsNumber), Wrong::Fence, 1);
}

#[test]
fn finds_an_extension_that_shortens() {
    finds(with(Flaw::ExtendShortens), Wrong::NotTheOwner, 1);
}

#[test]
fn finds_a_leave_by_anyone() {
    finds(with(Flaw::LeaveByAnyone), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_late_claim_that_is_executed() {
    finds(with(Flaw::LateClaimExecuted), Wrong::Orphan, 1);
}

#[test]
fn finds_a_margin_of_nothing() {
    finds(
        Setup {
            no_margin: true,
            ..Setup::default()
        },
        Wrong::TwoHolders,
        1,
    );
}

#[test]
fn finds_a_job_without_a_mark() {
    finds(with(Flaw::NoMark), Wrong::TickAgain, 1);
}

#[test]
fn finds_a_mark_by_the_nodes_clock() {
    finds(with(Flaw::EarlyTickGranted), Wrong::TickEarly, 1);
}

#[test]
fn finds_a_finished_tick_handed_to_its_standby() {
    finds(with(Flaw::FinishedTickHandedOver), Wrong::TickAgain, 1);
}

#[test]
fn finds_a_release_before_the_jobs_future_ended() {
    finds(
        Setup {
            release_early: true,
            ..Setup::default()
        },
        Wrong::TwoRuns,
        400,
    );
}

#[test]
fn finds_a_tick_that_nobody_stands_by_for() {
    finds(with(Flaw::NoStandby), Wrong::TickDropped, 1);
}

#[test]
fn finds_a_standby_that_is_never_granted() {
    finds(with(Flaw::StandbyNeverGranted), Wrong::TickAsleep, 1);
}

#[test]
fn finds_a_tick_that_was_run_and_is_called_skipped() {
    finds(with(Flaw::RunTickCalledSkipped), Wrong::TickDropped, 1);
}

#[test]
fn finds_a_standby_that_is_never_told() {
    finds(with(Flaw::StandbyNeverTold), Wrong::TickUntold, 1);
}

#[test]
fn finds_an_open_tick_that_nobody_is_told_of() {
    finds(with(Flaw::OpenTickUntold), Wrong::TickAbandoned, 1);
}

#[test]
fn finds_a_store_that_lost_what_it_acknowledged_and_is_believed() {
    finds(with(Flaw::LossBelieved), Wrong::LossBelieved, 1);
}

#[test]
fn finds_a_permit_that_is_given_back_twice() {
    finds(with(Flaw::PermitReleasedTwice), Wrong::TooMany, 1);
}

#[test]
fn finds_a_permit_that_is_renewed_after_it_ended() {
    finds(with(Flaw::EndedPermitRenewed), Wrong::TooMany, 1);
}

#[test]
fn finds_a_permit_that_is_handed_on_to_who_wants_many() {
    finds(with(Flaw::PermitHandedToMany), Wrong::TooMany, 1);
}

#[test]
fn finds_a_tick_run_twice_by_two_claims_of_one_node() {
    finds(with(Flaw::JobByNode), Wrong::TickAgain, 1);
}

#[test]
fn finds_two_claims_of_one_node_that_run_a_job_at_once() {
    finds(with(Flaw::JobByNode), Wrong::TwoHolders, 1);
}

#[test]
fn finds_claims_that_go_together_and_are_half_granted() {
    finds(with(Flaw::HalfGranted), Wrong::Half, 1);
}

#[test]
fn finds_a_reader_of_several_keys_that_passes_a_writer() {
    finds(with(Flaw::TogetherPastWriter), Wrong::Half, 1);
}

#[test]
fn finds_a_reader_of_several_keys_that_is_kept_from_other_readers() {
    finds(with(Flaw::TogetherAsWriter), Wrong::Half, 1);
}

#[test]
fn finds_a_tick_that_is_skipped_instead_of_queued() {
    finds(with(Flaw::QueuedTickSkipped), Wrong::TickDropped, 1);
}

#[test]
fn finds_a_tick_that_is_passed_over() {
    finds(with(Flaw::EarlierTickPassedOver), Wrong::TickPassedOver, 1);
}

#[test]
fn finds_a_job_that_stands_still_behind_a_tick_that_was_skipped() {
    finds(with(Flaw::SkippedTickAwaited), Wrong::TickAsleep, 540);
}

#[test]
fn finds_a_checkpoint_of_a_run_that_was_lost() {
    finds(with(Flaw::CheckpointOfLoser), Wrong::CheckpointKept, 1);
}

#[test]
fn finds_a_checkpoint_that_outlives_its_tick() {
    finds(with(Flaw::CheckpointOutlivesTick), Wrong::CheckpointOfAnother, 1);
}

#[test]
fn finds_a_write_under_a_lease_that_is_over() {
    finds(with(Flaw::WriteUnchecked), Wrong::WriteOrder, 1);
}

#[test]
fn finds_a_write_under_several_leases_that_checks_the_first() {
    finds(with(Flaw::FirstLeaseChecked), Wrong::WriteOrder, 1);
}

#[test]
fn finds_a_lease_that_is_handed_on_with_a_write_under_way() {
    finds(with(Flaw::HandedOnUnanswered), Wrong::WriteOrder, 1);
}

#[test]
fn finds_a_write_that_is_not_counted() {
    finds(with(Flaw::UncountedWrite), Wrong::WriteOrder, 1);
}

#[test]
fn finds_a_repeated_call_with_a_fresh_id() {
    finds(with(Flaw::RepeatedUnderFreshId), Wrong::NotCounted, 1);
}

#[test]
fn finds_a_save_that_is_sent_after_the_leave_of_its_claim() {
    finds(with(Flaw::SavedAfterLeave), Wrong::LeftBefore, 1);
}

#[test]
fn finds_an_answer_that_is_given_to_another_call() {
    finds(with(Flaw::AnswerToAnotherCall), Wrong::NotCounted, 1);
}

#[test]
fn finds_a_watch_that_is_lost_with_its_connection() {
    finds(with(Flaw::WatchLostWithConnection), Wrong::PastZero, 1);
}

#[test]
fn finds_a_call_that_is_sent_again_as_its_sender_read_its_clock_before_the_caller_came() {
    finds(with(Flaw::SenderClockBelieved), Wrong::SentAgain, 1);
}

#[test]
fn finds_a_count_down_that_counts_again() {
    finds(with(Flaw::CountedAgain), Wrong::CountedTwice, 1);
}

#[test]
fn finds_a_count_down_that_counts_in_the_next_generation() {
    finds(with(Flaw::CountedLate), Wrong::CountedLate, 1);
}

#[test]
fn finds_a_latch_that_is_set_again_at_zero() {
    finds(with(Flaw::LatchSetAgain), Wrong::SetTwice, 1);
}

#[test]
fn finds_a_waiter_that_waits_for_the_push_alone() {
    finds(with(Flaw::WatchedByPushAlone), Wrong::PastZero, 1);
}

#[test]
fn finds_a_waiter_that_is_told_what_was_before_it_came() {
    finds(with(Flaw::OldLookBelieved), Wrong::BeforeZero, 1);
}

#[test]
fn finds_what_is_told_of_the_next_leader() {
    finds(
        with(Flaw::ProclaimedOutlivesLeader),
        Wrong::ProclaimedByAnother,
        1,
    );
}

#[test]
fn finds_a_value_of_a_queued_candidate_that_is_forgotten() {
    finds(with(Flaw::QueuedValueForgotten), Wrong::LeaderWithoutValue, 1);
}

#[test]
fn finds_something_proclaimed_that_replaces_something_later() {
    finds(with(Flaw::ProclaimedLate), Wrong::ToldBack, 1);
}

#[test]
fn finds_an_observer_that_waits_for_the_push_alone() {
    finds(with(Flaw::WatchedByPushAlone), Wrong::LeaderUntold, 1);
}

#[test]
fn finds_who_lost_and_claims_again_at_once() {
    finds(with(Flaw::NeverRests), Wrong::Restless, 1);
}

#[test]
fn finds_effects_that_a_step_left_for_the_next() {
    finds(with(Flaw::EffectsLeft), Wrong::Outcome, 1);
}

#[test]
fn finds_a_guard_of_a_lease_that_was_lost_before_it_was_taken_up() {
    finds(with(Flaw::LostGrantReturned), Wrong::Outcome, 1);
}

#[test]
fn finds_a_silent_inbox_that_is_not_suspected() {
    finds(with(Flaw::SilentInboxTrusted), Wrong::Unheard, 1);
}

// Of the session, and of the link under it.

#[test]
fn finds_a_not_after_by_an_old_reading_of_the_clock() {
    finds(with(Flaw::NotAfterFromOldReading), Wrong::DeniedInCalm, 10);
}

#[test]
fn finds_a_claim_that_counts_as_late_too_early() {
    finds(with(Flaw::LateAfterTooEarly), Wrong::Orphan, 835);
}

#[test]
fn finds_a_connection_used_beside_its_successor() {
    finds(with(Flaw::ConnectionBesideSuccessor), Wrong::Beside, 1);
}

#[test]
fn finds_a_reply_credited_to_another_batch() {
    finds(with(Flaw::ReplyToAnotherBatch), Wrong::TwoHolders, 12);
}

#[test]
fn finds_a_renewal_behind_a_full_queue() {
    finds(with(Flaw::RenewalBehindQueue), Wrong::LostInCalm, 5);
}

#[test]
fn finds_a_claim_that_overtakes_a_leave() {
    finds(with(Flaw::ClaimBeforeLeave), Wrong::Overtaken, 1);
}

#[test]
fn finds_a_request_that_is_forgotten_with_its_connection() {
    finds(with(Flaw::ForgottenWithConnection), Wrong::Unanswered, 1);
}

#[test]
fn finds_a_reload_without_a_bound() {
    finds(with(Flaw::ReloadWithoutBound), Wrong::Orphan, 1_240);
}
