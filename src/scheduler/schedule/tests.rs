//! Tests that expressions are read as the scheduler reads them, and zones as Python's zoneinfo does.

use tokio_cron_scheduler::Job as CronJob;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{Datelike, NaiveDate};

use super::*;
use crate::protocol::ledger::Ledger;
use crate::protocol::message::{
    Batch, ClaimId, ClaimNumber, ClaimReply, GrantNumber, GrantReply, LeaseTimes, LeaveReply, Mode, Name,
    NodeId, Reply, Request, Rule, RunOutcome, RunResult, Verb,
};

/// Common expressions, and expressions that other crons read differently.
const PATTERNS: &[&str] = &[
    "* * * * * *",
    "*/5 * * * * *",
    "1/10 * * * * *",
    "0 0 0 * * *",
    "0 30 1 * * *",
    "0 0 0 13 * FRI",
    "0 0 12 * * MON-FRI",
    "0 0,30 8-18 * * *",
    "0 0 0 L * *",
    "0 0 0 29 2 *",
    "0 0 9 * * 1#1",
    "0 0 0 1 1 *",
    "59 59 23 31 12 *",
    "0 0 0 * * 7",
    "0 0 0 15W * *",
];

#[test]
fn a_tick_has_a_date_in_its_zone() {
    let tick = TickTime(1_796_770_800_000);
    let berlin = Schedule::in_zone("0 0 0 * * *", Tz::Europe__Berlin).unwrap();
    assert_eq!(berlin.date(tick), "2026-12-09T00:00:00+01:00");
    let every = Schedule::every(Duration::from_secs(60)).unwrap();
    assert_eq!(every.date(tick), "2026-12-08T23:00:00Z");
}

#[test]
fn an_expression_is_read_as_the_scheduler_reads_it() {
    let mut read = 0;
    for pattern in PATTERNS {
        let job = CronJob::new_async(*pattern, |_, _| Box::pin(async {}));
        let Ok(mut job) = job else {
            panic!("`{pattern}` is refused by tokio-cron-scheduler")
        };
        let expected = job.job_data().unwrap().schedule().unwrap();
        let parsed = parse_cron(expected.pattern.as_str()).unwrap();
        let mut at = DateTime::<Utc>::from_timestamp(1_793_000_000, 0).unwrap();
        for _ in 0..20 {
            let next = expected.find_next_occurrence(&at, false).unwrap();
            assert_eq!(
                parsed.find_next_occurrence(&at, false).unwrap(),
                next,
                "`{pattern}` after {at}"
            );
            // At the second of the tick, and one second later, the latest tick is the one that fired.
            for later in [0, 1] {
                let seen = next + chrono::Duration::seconds(later);
                let found = parsed.find_previous_occurrence(&seen, true).unwrap();
                let exact = parsed.is_time_matching(&seen).unwrap();
                assert_eq!(found, if exact { seen } else { next }, "`{pattern}` at {seen}");
            }
            at = next;
        }
        read += 1;
    }
    assert!(read >= 10, "{read}");
}

/// Made by `tests/zones/expected.py`.
const EXPECTED: &str = include_str!("../zones.csv");

/// Returns for each zone and local time the instants of a year, in seconds, by local date.
fn expected() -> BTreeMap<(&'static str, &'static str), BTreeMap<NaiveDate, i64>> {
    let mut all = BTreeMap::<_, BTreeMap<_, _>>::new();
    for line in EXPECTED.lines() {
        let words: Vec<&str> = line.split(',').collect();
        let [zone, time, first, last, offset] = words[..] else {
            panic!("{line}");
        };
        let days = all.entry((zone, time)).or_default();
        let (mut day, last): (NaiveDate, NaiveDate) = (first.parse().unwrap(), last.parse().unwrap());
        while day <= last {
            if let Ok(offset) = offset.parse::<i64>() {
                let midnight = day.and_hms_opt(0, 0, 0).unwrap().and_utc().timestamp();
                days.insert(day, midnight + offset);
            }
            day = day.succ_opt().unwrap();
        }
    }
    all
}

fn daily(zone: &str, time: &str) -> Schedule {
    let (hour, minute) = time.split_once(':').unwrap();
    let (hour, minute): (u32, u32) = (hour.parse().unwrap(), minute.parse().unwrap());
    Schedule::in_zone(&format!("0 {minute} {hour} * * *"), zone.parse::<Tz>().unwrap()).unwrap()
}

fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap())
}

#[test]
fn daily_jobs_run_once_on_each_local_date_of_a_year() {
    let all = expected();
    assert_eq!(all.len(), 20);
    for ((zone, time), days) in all {
        let schedule = daily(zone, time);
        let (first, last) = (*days.values().next().unwrap(), *days.values().last().unwrap());
        let (mut now, mut found) = (at(first - 1), Vec::new());
        while now < at(last) {
            now += schedule.until_next(now).unwrap();
            found.push(now.duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed());
            assert_eq!(
                schedule.latest(now).unwrap(),
                TickTime(found.last().unwrap().cast_unsigned() * 1000)
            );
        }
        let wanted: Vec<i64> = days.values().copied().collect();
        assert_eq!(found, wanted, "{zone} at {time}");
    }
}

/// A node that checks its clock once a minute.
struct SimulatedNode {
    claim_id: ClaimId,
    from: i64,
    seen: Option<TickTime>,
}

impl SimulatedNode {
    fn new(n: u128, from: i64) -> SimulatedNode {
        let claim_id = ClaimId {
            node: NodeId::numbered(n),
            claim: ClaimNumber(1),
            nonce: 1,
        };
        SimulatedNode {
            claim_id,
            from,
            seen: None,
        }
    }

    /// Claims the latest tick, and runs it to its end if the node wins it. A new node treats earlier ticks as seen.
    fn look(&mut self, schedule: &Schedule, now: i64, ledger: &mut Ledger) -> Option<TickTime> {
        let tick = (now >= self.from).then(|| schedule.latest(at(now)).unwrap())?;
        let before = self.seen.replace(tick);
        if before.is_none() || before == Some(tick) {
            return None;
        }
        self.claim_id.claim.0 += 1;
        let mut ask = |verb| {
            let request = Request {
                name: Name::job("daily".into()),
                claim_id: self.claim_id,
                term: LeaseTimes {
                    lease_ms: 30_000,
                    margin_ms: 3_000,
                },
                mode: Mode::Exclusive,
                when_behind: Default::default(),
                may_keep: false,
                data: None,
                mark: Some(tick),
                verb,
            };
            let batch = Batch {
                poll_gap_ms: 0,
                is_unconfirmed: false,
                recovery_ms: 1_000,
                rule: Rule::Each,
                highest: GrantNumber(0),
                not_after: u64::MAX,
                requests: vec![request],
            };
            ledger
                .apply(now.cast_unsigned() * 1_000_000, &batch, &mut Vec::new())
                .replies
                .remove(0)
        };
        let won = matches!(
            ask(Verb::Claim { wait: true }),
            Reply::Claim(ClaimReply::Granted(GrantReply { attempt: 1, .. }))
        );
        won.then(|| {
            assert_eq!(
                ask(Verb::Finish {
                    result: RunResult::of(RunOutcome::Done),
                }),
                LeaveReply::Left.into()
            )
        });
        won.then_some(tick)
    }
}

/// The clock advances by five minutes per step, on nodes that were started before and after each change of the clocks.
#[test]
fn each_midnight_of_a_year_runs_once_on_old_and_new_nodes() {
    // Each zone has its own thread, because this test is slow.
    std::thread::scope(|scope| {
        for ((zone, time), days) in expected().into_iter().filter(|((_, time), _)| *time == "00:00") {
            scope.spawn(move || each_midnight_runs_once(zone, &daily(zone, time), &days));
        }
    });
}

fn each_midnight_runs_once(zone: &str, schedule: &Schedule, days: &BTreeMap<NaiveDate, i64>) {
    let (first, last) = (*days.values().next().unwrap(), *days.values().last().unwrap());
    let late = first + (last - first) / 5 * 3;
    let mut nodes = [SimulatedNode::new(1, first - 3_600), SimulatedNode::new(2, late)];
    let (mut ledger, mut run) = (Ledger::new(), Vec::new());
    for now in (first - 3_600..=last + 3_600).step_by(300) {
        run.extend(
            nodes
                .iter_mut()
                .filter_map(|node| node.look(schedule, now, &mut ledger)),
        );
    }
    let run: Vec<i64> = run.iter().map(|tick| (tick.0 / 1000).cast_signed()).collect();
    let wanted: Vec<i64> = days.values().copied().collect();
    assert_eq!(run, wanted, "{zone}");
    let tz: Tz = zone.parse().unwrap();
    let local = run
        .iter()
        .map(|at| DateTime::from_timestamp(*at, 0).unwrap().with_timezone(&tz));
    let dates: BTreeSet<NaiveDate> = local.map(|at| at.date_naive()).collect();
    assert_eq!(dates.len(), run.len(), "the job ran once on each local date");
    assert!(
        dates
            .iter()
            .all(|date| date.year() == dates.first().unwrap().year())
    );
}

#[test]
fn wildcards_skip_a_gap_and_run_in_both_passes() {
    let schedule = Schedule::in_zone("0 */30 * * * *", chrono_tz::Europe::London).unwrap();
    let count = |from: &str, hours: u64| {
        let mut now = SystemTime::from(from.parse::<DateTime<Utc>>().unwrap());
        let (end, mut count) = (now + Duration::from_secs(hours * 3_600), 0);
        loop {
            now += schedule.until_next(now).unwrap();
            if now > end {
                return count;
            }
            count += 1;
        }
    };
    // These days have 23 and 25 hours.
    assert_eq!(count("2026-03-28T23:59:59Z", 23), 46);
    assert_eq!(count("2026-10-24T22:59:59Z", 25), 50);
}

#[test]
fn ticks_of_a_period_are_counted_from_the_epoch() {
    let schedule = Schedule::every(Duration::from_secs(7)).unwrap();
    assert_eq!(schedule.latest(at(700)).unwrap(), TickTime(700_000));
    assert_eq!(schedule.latest(at(706)).unwrap(), TickTime(700_000));
    assert_eq!(schedule.until_next(at(706)), Some(Duration::from_secs(1)));
    for bad in [
        Duration::ZERO,
        Duration::from_millis(999),
        Duration::from_millis(1_500),
    ] {
        assert!(Schedule::every(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_fingerprint_depends_on_service_expression_and_zone() {
    let schedule = Schedule::in_zone("0 0 0 * * *", Tz::UTC).unwrap();
    let again = Schedule::in_zone("0 0 0 * * *", Tz::UTC).unwrap();
    assert_eq!(schedule.fingerprint("books"), again.fingerprint("books"));
    let others = [
        schedule.fingerprint("stock"),
        schedule.fingerprint(""),
        Schedule::in_zone("0 0 1 * * *", Tz::UTC)
            .unwrap()
            .fingerprint("books"),
        daily("Europe/London", "00:00").fingerprint("books"),
    ];
    assert!(!others.contains(&schedule.fingerprint("books")));
}
