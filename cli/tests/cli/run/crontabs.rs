//! Two machines with one crontab, whose clocks differ by 300 ms.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::run::run_with;
use crate::server::RedisServer;

/// Writes when it began and when it ended, with its fence.
const LINE: &str = "import os, sys, time\n\
    now = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)\n\
    began = now()\n\
    time.sleep(0.05)\n\
    line = '%d %d %s\\n' % (began, now(), os.environ['TENURE_FENCE'])\n\
    os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), line.encode())";

/// `TENURE_CRON_SECONDS`, or 20.
fn seconds() -> u64 {
    let seconds = std::env::var("TENURE_CRON_SECONDS").ok();
    seconds.map_or(20, |seconds| {
        seconds.parse().expect("TENURE_CRON_SECONDS is a number")
    })
}

#[test]
fn two_crontabs_never_run_a_line_twice_at_once() {
    let server = RedisServer::start();
    let lines = std::env::temp_dir().join(format!("tenure-crontabs-{}", std::process::id()));
    let _ = std::fs::remove_file(&lines);
    std::thread::scope(|scope| {
        for late in [0, 300] {
            let (server, lines) = (&server, &lines);
            scope.spawn(move || {
                let mut runs = Vec::new();
                for _ in 0..seconds() {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                    let ms = (now - Duration::from_millis(late)).subsec_millis();
                    sleep(Duration::from_millis(1_000 - u64::from(ms)));
                    let args = [
                        "line",
                        "--try",
                        "--at-least",
                        "600ms",
                        "--",
                        "python3",
                        "-c",
                        LINE,
                    ];
                    let mut run = run_with(server, &args);
                    runs.push(run.arg(lines).stdout(Stdio::null()).spawn().unwrap());
                }
                for mut run in runs {
                    let code = run.wait().unwrap().code();
                    assert!(code == Some(0) || code == Some(124), "{code:?}");
                }
            });
        }
    });
    let text = std::fs::read_to_string(&lines).unwrap();
    std::fs::remove_file(&lines).unwrap();
    let numbers = |line: &str| {
        line.split(' ')
            .map(|number| number.parse().unwrap())
            .collect::<Vec<u64>>()
    };
    let ran: Vec<Vec<u64>> = text.lines().map(numbers).collect();
    for pair in ran.windows(2) {
        assert!(pair[0][1] < pair[1][0], "two overlap: {pair:?}");
        // A fence has the time of its grant in µs, by the server's clock, and a thousand places for each.
        let apart = (pair[1][2] / 1_024).saturating_sub(pair[0][2] / 1_024);
        assert!(apart >= 600_000, "granted again after {apart} µs: {pair:?}");
    }
    // On a quiet machine each second runs once.
    println!("{} of {} seconds ran", ran.len(), seconds());
    assert!(!ran.is_empty());
}
