//! Three processes on one Redis have a job each second, and must not miss a tick while one after the other is killed.
//!
//! `TENURE_RUN_ALL_SECONDS=120` makes the run long. Run it so from time to time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::Tick;
use tenure::scheduler::Misfire;
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

use crate::help::{Other, PATIENCE, ms};
use crate::server::RedisServer;
use crate::support::events::Watch;

const LEASE: Duration = ms(3_000);
const WITHIN: Duration = Duration::from_secs(90);

fn span() -> Duration {
    let seconds = std::env::var("TENURE_RUN_ALL_SECONDS");
    let seconds = seconds.map_or(12, |seconds| seconds.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Prints a line by one write, so that a kill leaves no half lines.
fn say(what: &str, tick: u64, attempt: u32, fence: u64) {
    println!("@{what} {tick} {attempt} {fence}");
}

/// Not a test: the entry point of the process that [`worker`] starts.
#[test]
fn is_a_replica() {
    let Ok(url) = std::env::var("TENURE_RUN_ALL_URL") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let watch = Watch::of("job=each second ");
        let locks = crate::help::builder()
            .request_timeout(ms(2_000))
            .connect(&url)
            .await
            .unwrap();
        let latest: Arc<Mutex<BTreeMap<u64, (u32, u64)>>> = Arc::default();
        let of_job = latest.clone();
        let work = move |tick: Tick| {
            let latest = of_job.clone();
            async move {
                let (at, attempt, fence) = (tick.nominal_unix(), tick.attempt(), tick.fence().get());
                latest.lock().unwrap().insert(at, (attempt, fence));
                say("start", at, attempt, fence);
                sleep(ms(fastrand::u64(20..300))).await;
                say("end", at, attempt, fence);
            }
        };
        let all = Misfire::RunAll {
            within: WITHIN,
            at_most: 1_000,
        };
        let job = locks
            .cron("each second", "* * * * * *")
            .lease(LEASE)
            .misfire(all)
            .run(work)
            .unwrap();
        let scheduler = JobScheduler::new().await.unwrap();
        locks.add_job(&scheduler, job).await.unwrap();
        scheduler.start().await.unwrap();
        say("ready", 0, 0, 0);
        // The runs that the store acknowledged.
        let mut seen = 0;
        loop {
            let told = watch.told();
            for (at, event) in told.iter().enumerate().skip(seen) {
                let (_, text) = event.text.split_once("tick_ms=").unwrap_or_default();
                let tick = text
                    .split(' ')
                    .next()
                    .unwrap_or_default()
                    .parse::<u64>()
                    .unwrap_or_default()
                    / 1_000;
                let of_it = format!("tick_ms={tick}000 ");
                let is_untold = told[..at]
                    .iter()
                    .any(|event| event.event == "tick_untold" && event.text.contains(&of_it));
                if event.event == "tick" && event.text.contains("outcome=done") && !is_untold {
                    let (attempt, fence) = latest.lock().unwrap()[&tick];
                    say("told", tick, attempt, fence);
                }
            }
            seen = told.len();
            sleep(ms(5)).await;
        }
    });
}

#[derive(Debug, Clone)]
struct Line {
    who: usize,
    what: String,
    tick: u64,
    attempt: u32,
    fence: u64,
    at: Duration,
}

type Heard = Arc<Mutex<Vec<Line>>>;

/// Another process with a scheduler.
fn worker(who: usize, url: &str, heard: &Heard) -> Other {
    let mut command = Other::door("run_all::is_a_replica");
    command.env("TENURE_RUN_ALL_URL", url);
    let heard = heard.clone();
    Other::runs(command).told_to(move |words| {
        if let [what, tick, attempt, fence] = *words {
            heard.lock().unwrap().push(Line {
                who,
                what: what.to_owned(),
                tick: tick.parse().unwrap(),
                attempt: attempt.parse().unwrap(),
                fence: fence.parse().unwrap(),
                at: wall(),
            });
        }
    })
}

fn of(heard: &Heard, what: &str) -> Vec<Line> {
    let lines = heard.lock().unwrap();
    lines.iter().filter(|line| line.what == what).cloned().collect()
}

fn until(heard: &Heard, what: &str, so: impl Fn(&[Line]) -> bool) {
    let began = Instant::now();
    loop {
        let lines = heard.lock().unwrap().clone();
        if so(&lines) {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "timed out waiting for: {what}: {lines:#?}"
        );
        std::thread::sleep(ms(20));
    }
}

#[test]
fn a_job_that_runs_all_ticks_misses_none_while_replicas_are_killed() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let mut workers = Vec::new();
    for who in 0..3 {
        std::thread::sleep(ms(fastrand::u64(0..500)));
        workers.push(worker(who, &server.url(), &heard));
    }
    until(&heard, "a run", |lines| {
        lines.iter().any(|line| line.what == "end")
    });
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < span() {
        std::thread::sleep(ms(fastrand::u64(200..4_000)));
        let mut who = fastrand::usize(..3);
        if fastrand::bool() {
            // In the middle of a run.
            let seen = heard.lock().unwrap().len();
            let is_begun = |lines: &[Line]| lines[seen..].iter().any(|line| line.what == "start");
            until(&heard, "a run begins", is_begun);
            let lines = heard.lock().unwrap();
            who = lines[seen..]
                .iter()
                .find(|line| line.what == "start")
                .unwrap()
                .who;
        }
        workers[who].kill();
        kills += 1;
        std::thread::sleep(ms(fastrand::u64(0..2_000)));
        let ready = of(&heard, "ready").len();
        workers[who] = worker(who, &server.url(), &heard);
        until(&heard, "the killed replica is back", |lines| {
            lines.iter().filter(|line| line.what == "ready").count() > ready
        });
    }
    // All due ticks are run.
    let last = wall().as_secs();
    until(&heard, "the last tick", |lines| {
        lines.iter().any(|line| line.what == "told" && line.tick >= last)
    });
    drop(workers);
    judge(&heard, last, kills);
}

/// Checks the runs in the order of their fences: first runs, repeated runs with their reasons, and no missing tick.
fn judge(heard: &Heard, last: u64, kills: u32) {
    let (mut starts, ends, told) = (of(heard, "start"), of(heard, "end"), of(heard, "told"));
    starts.sort_by_key(|line| line.fence);
    let first = starts[0].tick;
    for two in starts.windows(2) {
        assert!(two[0].fence < two[1].fence, "a duplicate fence: {two:?}");
        let again = two[1].tick == two[0].tick && two[1].attempt > two[0].attempt;
        assert!(again || two[1].tick == two[0].tick + 1, "out of order: {two:?}");
    }
    let has = |lines: &[Line], run: &Line| lines.iter().any(|line| line.fence == run.fence);
    let (mut once, mut cut_short, mut unacknowledged, mut unheard, mut latest) = (0, 0, 0, 0, Duration::ZERO);
    for tick in first..=last {
        let runs: Vec<_> = starts.iter().filter(|line| line.tick == tick).collect();
        let Some((kept, before)) = runs.split_last() else {
            panic!("{tick} of {first}..={last} is missing");
        };
        // The next tick is granted only after the store was told of the end of this one.
        assert!(
            has(&ends, kept),
            "{kept:?} did not end, but the next tick was run"
        );
        unheard += usize::from(!has(&told, kept));
        for run in before {
            assert!(
                !has(&told, run),
                "a tick was acknowledged, but run again: {runs:?}"
            );
            *(if has(&ends, run) {
                &mut unacknowledged
            } else {
                &mut cut_short
            }) += 1;
        }
        once += usize::from(before.is_empty());
        latest = latest.max(kept.at.saturating_sub(Duration::from_secs(tick)));
    }
    let mut by = [0; 3];
    starts.iter().for_each(|line| by[line.who] += 1);
    for (what, count) in [
        ("seconds with a tick", (last + 1 - first).to_string()),
        ("replicas killed (-9) and started again", kills.to_string()),
        (
            "ticks with exactly one acknowledged finish",
            (last + 1 - first).to_string(),
        ),
        ("  of them run once", once.to_string()),
        (
            "  killed between the acknowledgement and saying so",
            unheard.to_string(),
        ),
        ("runs cut short by a kill, and run again", cut_short.to_string()),
        (
            "runs to the end that were not acknowledged, and run again",
            unacknowledged.to_string(),
        ),
        ("ticks missing", "0".to_owned()),
        ("acknowledged ticks that were run again", "0".to_owned()),
        ("runs by each replica", format!("{by:?}")),
        (
            "latest begin of a last run after its tick",
            format!("{latest:.1?}"),
        ),
    ] {
        println!("| {what:60} | {count:>18} |");
    }
}
