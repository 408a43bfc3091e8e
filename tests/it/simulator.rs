//! The simulator's runs: it explores, it replays, and it finds each planted mistake.
//!
//! `TENURE_SEED` replays one world and prints its history (all of it to the file
//! `TENURE_HISTORY`), `TENURE_SIM_SECONDS` says how long to explore, and
//! `TENURE_SIM_BASE` from which seed.

use std::collections::BTreeMap;
use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tenure::protocol::flaw;
use tenure::protocol::step::Flaw;
use tenure::testing::sim::{Coverage, Run, Setup, Wrong, run};

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

/// Tells what went wrong in `setup` and how to see it again.
fn report(setup: Setup) -> String {
    let again = run(Setup {
        history: true,
        ..setup
    });
    format!(
        "{}\nseed {seed}: TENURE_SEED={seed} cargo test --all-features --test it simulator::replay -- --nocapture",
        again.story(),
        seed = setup.seed
    )
}

#[test]
fn explores() {
    let seconds = Duration::from_secs(env_number("TENURE_SIM_SECONDS").unwrap_or(45));
    let base = env_number("TENURE_SIM_BASE").unwrap_or(1);
    let begin = Instant::now();
    let next = AtomicU64::new(base);
    let total = Mutex::new((0, 0, 0, Coverage::default()));
    let failed: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let goes_on = || {
        // On a slow machine the rare takes longer.
        let is_short = || begin.elapsed() < 10 * seconds && !total.lock().unwrap().3.missing().is_empty();
        failed.lock().unwrap().is_empty() && (begin.elapsed() < seconds || is_short())
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    let setup = Setup {
                        seed: next.fetch_add(1, Ordering::Relaxed),
                        ..Setup::default()
                    };
                    let Run {
                        steps,
                        virtual_ms,
                        coverage,
                        failure,
                        ..
                    } = run(setup);
                    if failure.is_some() {
                        failed.lock().unwrap().insert(setup.seed, report(setup));
                    }
                    let mut total = total.lock().unwrap();
                    total.0 += 1;
                    total.1 += steps;
                    total.2 += virtual_ms;
                    total.3.add(&coverage);
                }
            });
        }
    });
    let (worlds, steps, virtual_ms, coverage) = total.into_inner().unwrap();
    for (text, count) in coverage.table() {
        println!("{count:>12}  {text}");
    }
    let wall = begin.elapsed().as_secs_f64();
    println!(
        "{worlds} worlds from seed {base} in {wall:.1} s: {steps} steps ({:.0} a second), {:.1} virtual hours",
        steps as f64 / wall,
        virtual_ms as f64 / 3.6e6
    );
    if let Some((_, story)) = failed.into_inner().unwrap().pop_first() {
        panic!("{story}");
    }
    let missing = coverage.missing();
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

/// Finds the planted mistake by its harm in one of the seeds, and nothing in any of them without it. The seeds begin
/// close before one that is known to find it; when the engine changes, others will.
#[track_caller]
fn finds(planted: Setup, harm: Wrong, first: u64) {
    let mistaken = |seed| Setup {
        seed,
        only: Some(harm),
        ..planted
    };
    let seeds = first..first + 4_000;
    let found = seeds.clone().find(|seed| run(mistaken(*seed)).failure.is_some());
    let Some(found) = found else {
        panic!("{planted:?} does no harm of kind {harm:?} in {seeds:?}")
    };
    println!(
        "{:?} {:?}: {harm:?} in seed {found}",
        planted.flaw, planted.ledger_flaw
    );
    for seed in first..=found {
        let sound = Setup {
            seed,
            ..Setup::default()
        };
        assert!(run(sound).failure.is_none(), "{}", report(sound));
    }
}

fn engine_flaw(flaw: Flaw) -> Setup {
    Setup {
        flaw: Some(flaw),
        ..Setup::default()
    }
}

fn ledger_flaw(flaw: flaw::Flaw) -> Setup {
    Setup {
        ledger_flaw: Some(flaw),
        ..Setup::default()
    }
}

#[test]
fn finds_a_deadline_counted_from_the_answer() {
    finds(engine_flaw(Flaw::DeadlineFromReply), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_late_renewal_that_revives() {
    finds(engine_flaw(Flaw::LateRenewalRevives), Wrong::Revived, 3);
}

#[test]
fn finds_a_claim_number_used_twice() {
    finds(engine_flaw(Flaw::NumberTwice), Wrong::Unbacked, 83);
}

#[test]
fn finds_t0_of_an_unanswered_refresh() {
    finds(engine_flaw(Flaw::UnansweredRefresh), Wrong::TwoHolders, 138);
}

#[test]
fn finds_a_yield_without_a_fresh_number() {
    finds(engine_flaw(Flaw::YieldKeepsNumber), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_leave_that_does_not_kill_its_number() {
    finds(engine_flaw(Flaw::LeaveKeepsNumber), Wrong::TwoHolders, 156);
}

#[test]
fn finds_a_grant_for_an_unknown_claim_that_is_kept() {
    finds(engine_flaw(Flaw::UnknownKept), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_cancelled_waiter_that_is_forgotten() {
    finds(engine_flaw(Flaw::CancelledForgotten), Wrong::Orphan, 1);
}

#[test]
fn finds_a_hand_off_under_the_old_number() {
    finds(ledger_flaw(flaw::Flaw::NumberKeptOnHandOff), Wrong::Fence, 1);
}

#[test]
fn finds_a_dead_head_that_is_granted() {
    finds(ledger_flaw(flaw::Flaw::DeadHeadGranted), Wrong::DeadGranted, 1);
}

#[test]
fn finds_a_free_key_with_a_queue_left_alone() {
    finds(ledger_flaw(flaw::Flaw::NeverSettled), Wrong::LeftOver, 1);
}

#[test]
fn finds_a_leave_by_anyone() {
    finds(ledger_flaw(flaw::Flaw::LeaveByAnyone), Wrong::TwoHolders, 1);
}

#[test]
fn finds_a_late_claim_that_is_executed() {
    finds(ledger_flaw(flaw::Flaw::LateClaimExecuted), Wrong::Orphan, 1);
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
    finds(ledger_flaw(flaw::Flaw::NoMark), Wrong::TickAgain, 1);
}

#[test]
fn finds_a_mark_by_the_nodes_clock() {
    finds(ledger_flaw(flaw::Flaw::EarlyTickGranted), Wrong::TickEarly, 1);
}

#[test]
fn finds_a_finished_tick_handed_to_its_standby() {
    finds(
        ledger_flaw(flaw::Flaw::FinishedTickHandedOver),
        Wrong::TickAgain,
        1,
    );
}

#[test]
fn finds_a_release_before_the_jobs_future_ended() {
    finds(
        Setup {
            release_early: true,
            ..Setup::default()
        },
        Wrong::TwoRuns,
        306,
    );
}

#[test]
fn finds_a_tick_that_nobody_stands_by_for() {
    finds(ledger_flaw(flaw::Flaw::NoStandby), Wrong::TickDropped, 1);
}

#[test]
fn finds_a_standby_that_is_never_granted() {
    finds(ledger_flaw(flaw::Flaw::StandbyNeverGranted), Wrong::TickAsleep, 1);
}

#[test]
fn finds_a_standby_that_is_never_told() {
    finds(ledger_flaw(flaw::Flaw::StandbyNeverTold), Wrong::TickUntold, 1);
}

#[test]
fn finds_a_tick_run_twice_by_two_claims_of_one_node() {
    finds(ledger_flaw(flaw::Flaw::JobByNode), Wrong::TickAgain, 1);
}

#[test]
fn finds_two_claims_of_one_node_that_run_a_job_at_once() {
    finds(ledger_flaw(flaw::Flaw::JobByNode), Wrong::TwoHolders, 1);
}
