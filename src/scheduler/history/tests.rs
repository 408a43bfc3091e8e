use super::*;
use crate::protocol::ledger::{Expression, JobRecord};
use crate::protocol::message::{GrantNumber, OperatorAct, RunEnding};

/// What the clock of the grant numbers showed at the beginning of the day. It may be another one than the date.
const CLOCK: u64 = 5_000_000;
/// A Thursday, at 00:00:00 UTC, in seconds.
const DAY: u64 = 1_700_092_800;

/// A job that is due each second, first seen at the beginning of that day.
fn view(now: u64, mark: Option<u64>, runs: &[RunRecord]) -> JobView {
    JobView {
        key: "job".into(),
        record: JobRecord {
            mark: mark.map(|at| TickTime((DAY + at) * 1_000)),
            attempt: 1,
            run_count: runs.len() as u64,
            runs: runs.iter().cloned().collect(),
            plan: Some("UTC:every 1 s".into()),
            expression: Some(Expression {
                fingerprint: 1,
                since_ms: DAY * 1_000,
            }),
            ..JobRecord::default()
        },
        owners: Vec::new(),
        now_ms: (DAY + now) * 1_000,
        now_us: now * 1_000_000 + CLOCK,
    }
}

/// A run of the tick at that second, which took so long, or has no end.
fn run(tick: u64, took_ms: Option<u64>) -> RunRecord {
    RunRecord {
        tick: TickTime((DAY + tick) * 1_000),
        attempt: 1,
        number: GrantNumber(tick * 1_000_000 + CLOCK + 1_000),
        node: NodeId::numbered(1),
        name: "web-1".into(),
        ending: took_ms.map(|took_ms| RunEnding {
            result: RunResult {
                took_ms,
                ..RunResult::of(RunOutcome::Done)
            },
            text: "".into(),
        }),
    }
}

/// Returns a short text for each entry: the second of a run and its state, or the seconds without a run and why.
fn texts(history: &JobHistory) -> Vec<String> {
    let second = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap().as_secs() - DAY;
    let entries = history.entries.iter();
    let text = |entry: &HistoryEntry| match entry {
        HistoryEntry::Run(run) => format!("{} {}", second(run.tick), run.state.word()),
        HistoryEntry::NoRun(none) => {
            assert_eq!(none.count as u64, second(none.last) - second(none.first) + 1);
            format!("{}-{} {}", second(none.first), second(none.last), none.why.word())
        }
        HistoryEntry::Act(act) => act.what.clone(),
    };
    entries.map(text).collect()
}

fn history(view: &JobView) -> Vec<String> {
    texts(&JobHistory::new(view, UNIX_EPOCH, &[]))
}

#[test]
fn a_tick_without_a_run_is_skipped_missing_or_pending() {
    // The first run lasts into the ticks 2 and 3. Then no node has the job, until the run of tick 9.
    let mut of = view(16, Some(9), &[run(1, Some(2_500)), run(9, Some(10))]);
    let expected = [
        "0-0 none",
        "1 done",
        "2-3 skipped",
        "4-8 none",
        "9 done",
        "10-11 none",
        "12-16 pending",
    ];
    assert_eq!(history(&of), expected);
    // The store knows that tick 10 was skipped.
    of.record.skipped = Some(TickTime((DAY + 10) * 1_000));
    of.record.passed = Some((TickTime((DAY + 1) * 1_000), TickTime((DAY + 9) * 1_000)));
    assert_eq!(history(&of)[2..5], expected[2..5]);
    assert_eq!(
        history(&of)[5..],
        ["10-10 skipped", "11-11 none", "12-16 pending"]
    );
    let began = JobHistory::new(&of, UNIX_EPOCH, &[])
        .entries
        .into_iter()
        .find_map(|entry| match entry {
            HistoryEntry::Run(run) => Some((run.began, run.fence)),
            _ => None,
        });
    let (at, number) = ((DAY + 1) * 1_000_000 + 1_000, of.record.runs[0].number);
    assert_eq!(
        began,
        Some((UNIX_EPOCH + Duration::from_micros(at), Fence::new(number, 0)))
    );
}

#[test]
fn ticks_during_a_run_that_was_handed_over_may_still_run() {
    let mut handed_over = run(1, Some(1_500));
    if let Some(ending) = &mut handed_over.ending {
        ending.result.outcome = RunOutcome::HandedOver;
    }
    let mut of = view(20, Some(1), &[handed_over]);
    assert_eq!(history(&of), ["0-0 none", "1 handed_over", "2-20 pending"]);
    of.record.done = true;
    assert_eq!(history(&of)[2..], ["2-2 skipped", "3-15 none", "16-20 pending"]);
}

#[test]
fn an_outage_after_a_lost_run_is_no_run() {
    let of = view(30, Some(30), &[run(1, None), run(30, Some(1))]);
    assert_eq!(history(&of), ["0-0 none", "1 lost", "2-29 none", "30 done"]);
}

#[test]
fn ticks_after_a_run_that_goes_on_may_still_run() {
    let runs = [run(1, Some(10)), run(2, None)];
    let mut of = view(30, Some(2), &runs);
    of.owners = vec![runs[1].number];
    assert_eq!(history(&of), ["0-0 none", "1 done", "2 running", "3-30 pending"]);
    of.owners.clear();
    assert_eq!(
        history(&of),
        ["0-0 none", "1 done", "2 lost", "3-25 none", "26-30 pending"]
    );
}

#[test]
fn a_lost_run_lasts_until_the_next_grant_at_most() {
    let again = RunRecord {
        attempt: 2,
        number: GrantNumber(5_000_000 + CLOCK),
        ..run(1, Some(2_000))
    };
    let of = view(8, Some(8), &[run(1, None), again, run(8, Some(1))]);
    assert_eq!(
        history(&of),
        [
            "0-0 none",
            "1 lost",
            "2-4 skipped",
            "1 done",
            "5-7 skipped",
            "8 done"
        ]
    );
}

#[test]
fn nothing_is_said_of_ticks_that_are_not_known() {
    let of = view(9, Some(9), &[run(9, Some(1))]);
    let since = time(TickTime((DAY + 7) * 1_000));
    assert_eq!(texts(&JobHistory::new(&of, since, &[])), ["7-8 none", "9 done"]);
    let mut full = of.clone();
    full.record.run_count = 101;
    assert_eq!(history(&full), ["9 done"]);
    for plan in [
        "",
        "UTC",
        "Moon:every 1 s",
        "UTC:every 0 s",
        "UTC:every x s",
        "UTC:* *",
    ] {
        let mut unread = of.clone();
        unread.record.plan = Some(plan.into());
        assert_eq!(history(&unread), ["9 done"], "{plan}");
    }
    let mut unseen = of;
    unseen.record.expression = None;
    assert_eq!(history(&unseen), ["9 done"]);
}

#[test]
fn at_most_ten_thousand_ticks_are_examined() {
    let of = view(86_400, None, &[]);
    let history = JobHistory::new(&of, UNIX_EPOCH, &[]);
    assert!(history.is_cut);
    assert_eq!(texts(&history), ["76401-86395 none", "86396-86400 pending"]);
}

#[test]
fn a_plan_is_read_as_it_was_told() {
    let berlin = Schedule::in_zone("0 30 2 * * *", chrono_tz::Tz::Europe__Berlin).unwrap();
    assert_eq!(berlin.plan(), "Europe/Berlin:0 30 2 * * *");
    for schedule in [berlin, Schedule::every(Duration::from_secs(90)).unwrap()] {
        let (read, _) = Schedule::of_plan(&schedule.plan()).unwrap();
        assert_eq!(read.plan(), schedule.plan());
        assert_eq!(read.fingerprint("a"), schedule.fingerprint("a"));
    }
    let long = format!("{} * * * * *", vec!["1"; 600].join(","));
    assert_eq!(Schedule::in_zone(&long, chrono_tz::Tz::UTC).unwrap().plan(), "");
}

#[test]
fn ticks_of_a_pause_are_paused_and_acts_are_entries() {
    let act = |at: u64, what: &str, key: &str| AuditEntry {
        time_ms: (DAY + at) * 1_000 + 500,
        by: "ann".to_owned(),
        what: what.to_owned(),
        kind: Some(Kind::Job),
        key: key.into(),
        number: String::new(),
        why: "INC-7".to_owned(),
    };
    let mut of = view(20, Some(1), &[run(1, Some(10))]);
    of.record.skipped = Some(TickTime((DAY + 8) * 1_000));
    of.record.paused = Some(Arc::new(OperatorAct {
        since_ms: (DAY + 17) * 1_000,
        by: "ann".into(),
        why: "".into(),
    }));
    let acts = [
        act(17, "paused", "job"),
        act(9, "resumed", "other"),
        // A steal of the lease of a run ends no pause.
        act(5, "revoked", "job"),
        act(8, "resumed", "job"),
        act(2, "paused", "job"),
    ];
    let history = JobHistory::new(&of, UNIX_EPOCH, &acts);
    let without: Vec<_> = history
        .entries
        .iter()
        .filter_map(|entry| match entry {
            HistoryEntry::NoRun(none) => Some((none.count, none.why)),
            HistoryEntry::Act(act) if act.what == "revoked" => None,
            HistoryEntry::Act(act) => Some((
                0,
                if act.what == "paused" {
                    WhyNoRun::Paused
                } else {
                    WhyNoRun::None
                },
            )),
            HistoryEntry::Run(_) => None,
        })
        .collect();
    use WhyNoRun::{None as No, Paused};
    // A tick that came less than a second before the pause was not claimed in time.
    let expected = [
        (1, No),
        (0, Paused),
        (7, Paused),
        (0, No),
        (7, No),
        (0, Paused),
        (5, Paused),
    ];
    assert_eq!(without, expected);
}
