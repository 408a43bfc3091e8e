//! The rows about policies. Each holds whichever of three replicas fires first.

use tenure::scheduler::{Misfire, Overlap, Retry};
use tokio::runtime::Builder;

use super::*;

const MINUTELY: &str = "0 * * * * *";
const EACH_FIVE_MINUTES: &str = "0 */5 * * * *";
/// 2026-10-01T12:00:00Z.
const NOON: u64 = 1_790_856_000;
const BEFORE_NOON: &str = "2026-10-01T11:59:30Z";

/// Runs the check in three worlds. In each world another replica fires first.
fn whichever_fires_first(check: impl AsyncFn(&'static str)) {
    for first in ["a", "b", "c"] {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(check(first));
    }
}

impl Service {
    /// Starts three replicas. The first one looks well before the others.
    async fn three_led_by(&self, sim: &Simulation, first: &'static str) -> HashMap<&'static str, Replica> {
        let mut replicas = HashMap::new();
        for who in ["a", "b", "c"] {
            let phase = Duration::from_millis(if who == first { 1 } else { 300 });
            let replica = self.start_on(sim.replica(who).phase(phase), who).await;
            replicas.insert(who, replica);
        }
        replicas
    }

    /// Returns the minutes after noon of the ticks that were begun, in that order.
    fn minutes(&self) -> Vec<u64> {
        let begun = self.log.of("begins");
        begun.iter().map(|line| (line.tick - NOON) / 60).collect()
    }
}

/// Returns how a tick ended on each replica that has finished with it.
fn outcomes(told: &Watch, tick: u64) -> Vec<String> {
    let of_tick = format!("tick_ms={tick}000 ");
    let told = told.told();
    let ends = told
        .iter()
        .filter(|told| told.event == "tick" && told.text.contains(&of_tick));
    let words = ends.flat_map(|told| told.text.split_whitespace().map(str::to_owned));
    let mut outcomes: Vec<_> = words
        .filter_map(|word| word.strip_prefix("outcome=").map(str::to_owned))
        .collect();
    outcomes.sort_unstable();
    outcomes
}

// A tick comes while an earlier one is run.

#[test]
fn a_tick_comes_while_an_earlier_one_is_run_and_is_to_be_skipped() {
    whichever_fires_first(async |first| {
        let told = Watch::of("job=to-be-skipped ");
        let sim = Simulation::at(BEFORE_NOON);
        let mut service = Service::new("to-be-skipped", MINUTELY, secs(90));
        service.set = |job| job.overlap(Overlap::Skip);
        let _replicas = service.three_led_by(&sim, first).await;
        sim.run_for(secs(9 * 60)).await;
        assert_eq!(service.minutes(), [0, 2, 4, 6, 8]);
        assert_eq!(service.log.of("begins")[0].who, first);
        for minute in [1, 3, 5, 7] {
            assert_eq!(outcomes(&told, NOON + minute * 60), ["skipped"; 3], "{minute}");
        }
        for minute in [0, 2, 4, 6] {
            assert_eq!(
                outcomes(&told, NOON + minute * 60),
                ["done", "elsewhere", "elsewhere"],
                "{minute}"
            );
        }
    });
}

#[test]
fn a_tick_comes_while_an_earlier_one_is_run_and_is_to_wait() {
    whichever_fires_first(async |first| {
        let told = Watch::of("job=to-wait ");
        let sim = Simulation::at(BEFORE_NOON);
        let mut service = Service::new("to-wait", MINUTELY, secs(125));
        service.set = |job| job.overlap(Overlap::QueueOne);
        let _replicas = service.three_led_by(&sim, first).await;
        sim.run_for(secs(10 * 60)).await;
        // The next run begins five seconds after its tick replaced the previous one: no other replica knows that yet.
        assert_eq!(service.minutes(), [0, 2, 4, 6, 8]);
        let (begins, ends) = (service.log.of("begins"), service.log.of("ends"));
        assert_eq!(begins[0].who, first);
        for (end, begin) in ends.iter().zip(&begins[1..]) {
            assert!(
                begin.at >= end.at && begin.at < end.at + secs(1),
                "{end:?} {begin:?}"
            );
        }
        for minute in [1, 3, 5, 7] {
            assert_eq!(
                outcomes(&told, NOON + minute * 60),
                ["skipped"; 3],
                "the tick of {minute} was replaced: {:#?}",
                told.told()
            );
        }
        for minute in [0, 2, 4, 6] {
            let of_tick = outcomes(&told, NOON + minute * 60);
            assert_eq!(of_tick, ["done", "elsewhere", "elsewhere"], "{minute}");
        }
    });
}

// Ticks are missed.

/// The ticks of 12:05, 12:10 and 12:15 cannot be begun until 12:17, as the store is away or no replica lives. Checks
/// the ticks begun until 12:21, after the tick of noon.
fn missed(set: fn(LeasedJob) -> LeasedJob, (away, gone): (&[u64], &[u64])) {
    whichever_fires_first(async |first| {
        for is_store_away in [true, false] {
            let sim = Simulation::at(BEFORE_NOON);
            let mut service = Service::new("missed", EACH_FIVE_MINUTES, secs(2));
            service.set = set;
            let mut replicas = service.three_led_by(&sim, first).await;
            sim.run_until("2026-10-01T12:04:00Z").await;
            assert_eq!(service.log.one("ends").who, first);
            if is_store_away {
                sim.store().go_away();
            } else {
                replicas.drain().for_each(|(_, replica)| replica.crash());
            }
            sim.run_until("2026-10-01T12:17:00Z").await;
            assert_eq!(service.log.of("begins").len(), 1, "no replica can begin a tick");
            if is_store_away {
                sim.store().come_back();
            } else {
                replicas = service.three_led_by(&sim, first).await;
            }
            sim.run_until("2026-10-01T12:21:00Z").await;
            let mut expected = vec![(0, false)];
            let made_up = if is_store_away { away } else { gone };
            expected.extend(made_up.iter().map(|minute| (*minute, true)));
            expected.push((20, false));
            let begins = service.log.of("begins");
            let begun: Vec<_> = begins
                .iter()
                .map(|line| ((line.tick - NOON) / 60, line.is_catch_up))
                .collect();
            assert_eq!(
                begun, expected,
                "the store is away: {is_store_away}, {first} fires first"
            );
            let ends = service.log.of("ends");
            let is_apart = |(end, next): (&Line, &Line)| end.at <= next.at && end.tick < next.tick;
            assert!(
                ends.iter().zip(&begins[1..]).all(is_apart),
                "one at a time: {begins:?}"
            );
            replicas.drain().for_each(|(_, replica)| replica.crash());
        }
    });
}

#[test]
fn ticks_are_missed_and_are_to_be_skipped() {
    missed(|job| job.misfire(Misfire::Skip), (&[], &[]));
}

#[test]
fn ticks_are_missed_and_the_newest_is_to_be_run() {
    missed(
        |job| job.misfire(Misfire::RunOnce { within: secs(900) }),
        (&[15], &[15]),
    );
    // The tick is two minutes old.
    missed(
        |job| job.misfire(Misfire::RunOnce { within: secs(100) }),
        (&[], &[]),
    );
}

#[test]
fn ticks_are_missed_and_all_are_to_be_run() {
    const fn all(within: u64, at_most: u32) -> Misfire {
        Misfire::RunAll {
            within: secs(within),
            at_most,
        }
    }
    missed(|job| job.misfire(all(3_600, 9)), (&[5, 10, 15], &[5, 10, 15]));
    // When the store was away, some replica pursued the tick of 12:05, and no later tick had come by then.
    missed(|job| job.misfire(all(3_600, 2)), (&[5, 10, 15], &[10, 15]));
    // The tick of 12:10 is seven minutes old.
    missed(|job| job.misfire(all(500, 9)), (&[10, 15], &[10, 15]));
}

/// A deploy at 12:08 moves the job from each half hour to five minutes after it, and is taken back at 13:10.
async fn moved(set: fn(LeasedJob) -> LeasedJob, made_up: &[u64]) {
    let sim = Simulation::at(BEFORE_NOON);
    let mut old = Service::new("moved", "0 0,30 * * * *", secs(0));
    old.set = set;
    let mut new = old.clone();
    new.expression = "0 5,35 * * * *";
    let before = old.start(&sim, "old").await;
    sim.run_until("2026-10-01T12:08:00Z").await;
    before.crash();
    let mut replicas = new.three(&sim).await;
    sim.run_until("2026-10-01T12:34:00Z").await;
    assert_eq!(old.minutes(), [0], "12:05 was never scheduled");
    // All replicas are away at 12:35 and 13:05. These ticks were scheduled.
    replicas.drain().for_each(|(_, replica)| replica.crash());
    sim.run_until("2026-10-01T13:06:00Z").await;
    let replicas = new.three(&sim).await;
    sim.run_until("2026-10-01T13:10:00Z").await;
    let begun = [&[0], made_up].concat();
    assert_eq!(old.minutes(), begun);
    // The former expression was out of use at 12:30 and 13:00.
    replicas.into_values().for_each(Replica::crash);
    let _old = old.start(&sim, "old").await;
    sim.run_until("2026-10-01T13:29:00Z").await;
    assert_eq!(old.minutes(), begun);
}

#[tokio::test(start_paused = true)]
async fn a_changed_expression_catches_up_no_tick_from_before_it() {
    moved(|job| job.misfire(Misfire::RunOnce { within: secs(3_600) }), &[65]).await;
    moved(
        |job| {
            job.misfire(Misfire::RunAll {
                within: secs(3 * 3_600),
                at_most: 9,
            })
        },
        &[35, 65],
    )
    .await;
}

/// Replicas of both releases live, and one crashes. Its expression stays in use.
#[tokio::test(start_paused = true)]
async fn a_slow_deploy_forgets_no_expression() {
    let sim = Simulation::at(BEFORE_NOON);
    let mut old = Service::new("both-live", "0 0,10 * * * *", secs(0));
    old.set = |job| job.misfire(Misfire::RunOnce { within: secs(3_600) });
    let mut new = old.clone();
    new.expression = "0 5,15 * * * *";
    let before = old.start(&sim, "old").await;
    sim.run_until("2026-10-01T12:06:00Z").await;
    let _new = new.start(&sim, "new").await;
    sim.run_until("2026-10-01T12:09:50Z").await;
    before.crash();
    sim.run_until("2026-10-01T12:10:10Z").await;
    let _again = old.start(&sim, "old").await;
    sim.run_until("2026-10-01T12:14:00Z").await;
    assert_eq!(
        old.minutes(),
        [0, 10],
        "the replica that crashed had scheduled 12:10"
    );
}

/// Returns how often the tick of 12:05 is begun. It may run once within 20 s, but cannot be begun until `late_ms`
/// after its time.
async fn begun_so_late(ahead: &[(&'static str, i64)], is_store_away: bool, late_ms: u64) -> usize {
    let sim = Simulation::at(BEFORE_NOON);
    let mut service = Service::new("late", EACH_FIVE_MINUTES, secs(0));
    service.set = |job| job.misfire(Misfire::RunOnce { within: secs(20) });
    let start = async || {
        let mut replicas = Vec::new();
        for (who, ahead_ms) in ahead {
            replicas.push(service.start_ahead(&sim, who, *ahead_ms).await);
        }
        replicas
    };
    let mut replicas = start().await;
    sim.run_until("2026-10-01T12:04:30Z").await;
    service.log.one("ends");
    if is_store_away {
        sim.store().go_away();
    } else {
        replicas.drain(..).for_each(Replica::crash);
    }
    sim.run_for(secs(30) + Duration::from_millis(late_ms)).await;
    if is_store_away {
        sim.store().come_back();
    } else {
        replicas = start().await;
    }
    sim.run_until("2026-10-01T12:08:00Z").await;
    replicas.drain(..).for_each(Replica::crash);
    let begun = service.log.of("begins");
    assert!(begun.len() <= 2, "twice: {begun:?}");
    begun.len() - 1
}

#[tokio::test(start_paused = true)]
async fn ticks_are_missed_and_clocks_are_off() {
    let (ahead, behind) = (("a", 2_000), ("b", -2_000));
    for ahead in [&[ahead, behind, ("c", 0)][..], &[ahead], &[behind]] {
        // The tick is young enough by the store's clock, but not by that of the node that is ahead. A node that finds
        // the store away looks again a few seconds later.
        assert_eq!(begun_so_late(ahead, true, 14_000).await, 1, "{ahead:?}");
        assert_eq!(begun_so_late(ahead, false, 18_500).await, 1, "{ahead:?}");
        // The tick is too old by the store's clock.
        for late_ms in [20_050, 20_300, 20_600] {
            for is_store_away in [true, false] {
                let begun = begun_so_late(ahead, is_store_away, late_ms).await;
                assert_eq!(begun, 0, "{ahead:?} {is_store_away} {late_ms}");
            }
        }
    }
}

// The owner dies.

#[test]
fn the_owner_dies_again_and_again() {
    whichever_fires_first(async |first| {
        let told = Watch::of("job=dies-again ");
        let sim = Simulation::at("2026-10-01T23:59:30Z");
        let mut service = Service::new("dies-again", MIDNIGHT, secs(100_000));
        service.set = |job| job.attempts(3);
        let mut replicas = service.three_led_by(&sim, first).await;
        for (attempt, new) in ["d", "e", "f"].into_iter().enumerate() {
            sim.run_for(secs(60)).await;
            let begins = service.log.of("begins");
            assert_eq!(begins.len(), attempt + 1, "{begins:?}");
            // An orchestrator starts another replica in its place.
            replicas.remove(begins[attempt].who).expect("it runs").crash();
            replicas.insert(new, service.start(&sim, new).await);
        }
        sim.run_for(secs(3_600)).await;
        let begins = service.log.of("begins");
        let attempts: Vec<_> = begins.iter().map(|line| line.attempt).collect();
        assert_eq!((begins[0].who, attempts), (first, vec![1, 2, 3]), "{begins:?}");
        assert!(begins.windows(2).all(|two| two[0].fence < two[1].fence));
        assert_eq!(told.count("tick_given_up"), 1);
        let of_tick = outcomes(&told, begins[0].tick);
        let given_up = of_tick.iter().filter(|outcome| *outcome == "given_up").count();
        assert_eq!(given_up, 1, "{of_tick:?}");
    });
}

#[test]
fn the_owner_dies_and_its_tick_is_not_to_be_run_again() {
    whichever_fires_first(async |first| {
        let sim = Simulation::at("2026-10-01T23:59:30Z");
        let mut service = Service::new("dies-once", MIDNIGHT, secs(600));
        service.set = |job| job.attempts(1);
        let mut replicas = service.three_led_by(&sim, first).await;
        sim.run_for(secs(60)).await;
        let owner = service.log.one("begins");
        assert_eq!(owner.who, first);
        replicas.remove(first).expect("it runs").crash();
        sim.run_for(secs(7_200)).await;
        service.log.one("begins");
        sim.run_for(secs(86_400)).await;
        let next = service.log.one("ends");
        assert_eq!(
            (next.tick, next.attempt),
            (owner.tick + 86_400, 1),
            "the next tick is run as usual"
        );
    });
}

// The job fails, or lasts too long.

fn tries_three_times(job: LeasedJob) -> LeasedJob {
    job.retry(Retry::times(2).pauses(secs(4), secs(60)))
}

#[test]
fn a_job_fails_and_is_to_be_tried_again() {
    whichever_fires_first(async |first| {
        // The job succeeds at last, or never.
        for (fails, outcome) in [(2, "done"), (9, "failed")] {
            let told = Watch::of("job=tried-again ");
            let sim = Simulation::at("2026-10-01T23:59:30Z");
            let mut service = Service::new("tried-again", MIDNIGHT, secs(1));
            (service.set, service.fails) = (tries_three_times, fails);
            let mut replicas = service.three_led_by(&sim, first).await;
            sim.run_for(secs(7_200)).await;
            let begins = service.log.of("begins");
            let one = &begins[0];
            assert_eq!((begins.len(), one.who), (3, first), "{begins:?}");
            let is_same = |line: &Line| (line.who, line.attempt, line.fence) == (one.who, 1, one.fence);
            assert!(begins.iter().all(is_same), "{begins:?}");
            // Pauses are up to twice as long, by chance; and each run lasts a second.
            for (two, pause) in begins.windows(2).zip([secs(4), secs(8)]) {
                let paused = two[1].at - two[0].at - secs(1);
                assert!((pause..=2 * pause).contains(&paused), "{paused:?}, not {pause:?}");
            }
            let mut expected = [outcome, "elsewhere", "elsewhere"];
            expected.sort_unstable();
            assert_eq!(outcomes(&told, one.tick), expected);
            replicas.drain().for_each(|(_, replica)| replica.crash());
        }
    });
}

#[test]
fn the_owner_dies_between_two_tries() {
    whichever_fires_first(async |first| {
        let sim = Simulation::at("2026-10-01T23:59:30Z");
        let mut service = Service::new("between-tries", MIDNIGHT, secs(1));
        (service.set, service.fails) = (tries_three_times, 2);
        let mut replicas = service.three_led_by(&sim, first).await;
        sim.run_for(secs(33)).await;
        let failed = service.log.one("fails");
        replicas.remove(first).expect("it runs").crash();
        sim.run_for(secs(3_600)).await;
        let ran = service.log.one("ends");
        assert_eq!((failed.who, ran.tick, ran.attempt), (first, failed.tick, 2));
        assert!(ran.who != first && ran.fence > failed.fence, "{ran:?}");
        assert_eq!(
            service.log.of("fails").len(),
            3,
            "two of the failures are its own"
        );
    });
}

#[test]
fn a_job_lasts_longer_than_its_timeout() {
    whichever_fires_first(async |first| {
        let told = Watch::of("job=too-long ");
        let sim = Simulation::at(BEFORE_NOON);
        let mut service = Service::new("too-long", EACH_FIVE_MINUTES, secs(200));
        service.set = |job| job.timeout(secs(45));
        let _replicas = service.three_led_by(&sim, first).await;
        sim.run_for(secs(600)).await;
        assert_eq!(service.minutes(), [0, 5]);
        let (begins, dropped) = (service.log.of("begins"), service.log.of("dropped"));
        for (begin, drop) in begins.iter().zip(&dropped) {
            assert_eq!((begin.who, begin.attempt), (first, 1));
            assert_eq!((drop.who, drop.at), (first, begin.at + secs(45)));
            assert_eq!(
                outcomes(&told, begin.tick),
                ["elsewhere", "elsewhere", "timed_out"]
            );
        }
        assert_eq!((dropped.len(), service.log.of("ends").len()), (2, 0));
    });
}
