//! What locks cost on a quorum of masters, each behind a wire of 0.25 ms each way.
//!
//! `cargo bench --bench quorum` runs all sections. `-- trips` and `-- contention` run one section. `bench-compare` prints the round
//! trips beside those of rslock and node-redlock.
#![allow(clippy::type_complexity, clippy::disallowed_methods)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Client;
use support::masters::{self, Masters};
use support::{Report, Target, wire};
use tenure::Locks;

const MASTERS: usize = 3;
/// The longest lease of all clients of the masters.
const LONGEST: Duration = Duration::from_secs(10);

fn main() {
    wire::serve_if_asked();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, urls, tasks] = words.as_slice()
        && word == "contend"
    {
        let tasks = tasks.parse().expect("a number of tasks");
        return support::runtime().block_on(contend(urls, tasks));
    }
    if !support::is_wanted() {
        return;
    }
    let mut report = Report::new("quorum");
    support::runtime().block_on(async {
        if support::asks_for("trips") {
            masters::tenure(&mut report).await;
        }
        if support::asks_for("contention") {
            contention(&mut report).await;
        }
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

fn clients(urls: &[impl AsRef<str>]) -> Vec<Client> {
    urls.iter()
        .map(|url| Client::open(url.as_ref()).expect("a good URL"))
        .collect()
}

// Contention: processes that want one key all the time.

const PROCESSES: usize = 8;
/// How long a task holds the key.
const HOLD: Duration = Duration::from_millis(5);

fn contention_time() -> Duration {
    Duration::from_secs(if support::is_quick() { 2 } else { 20 })
}

/// Contends for the key with so many tasks after a line on standard input. Writes the number of grants and the longest wait in
/// milliseconds.
async fn contend(urls: &str, tasks: usize) {
    let urls: Vec<&str> = urls.split(',').collect();
    let builder = Locks::builder().burst(1, Duration::ZERO);
    let locks = builder.quorum(clients(&urls), LONGEST).await;
    let locks = locks.expect("the masters");
    println!("ready");
    std::io::stdin().lines().next();
    let end = Instant::now() + contention_time();
    let (grants, longest) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (mutex, grants, longest) = (locks.mutex("contended"), grants.clone(), longest.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    let start = Instant::now();
                    let guard = mutex.lock().await.expect("a lock");
                    longest.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
                    grants.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(HOLD).await;
                    guard.release().await.expect("still held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task of the bench");
    }
    let [grants, longest] = [grants, longest].map(|number| number.load(Ordering::Relaxed));
    println!("{grants} {longest}");
}

/// A process that contends. It is killed when dropped.
struct Contender {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
}

impl Contender {
    fn start(urls: &str, tasks: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["contend", urls, &tasks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let mut contender = Contender { process, output };
        assert_eq!(contender.line(), "ready");
        contender
    }

    fn go(&mut self) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input).expect("the child reads its input");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.expect("a line from the child");
        line.trim().to_owned()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn contention(report: &mut Report) {
    let seconds = contention_time().as_secs();
    report.section(&format!(
        "{PROCESSES} processes on one key of {MASTERS} masters for {seconds} s, burst 1, holds of 5 ms. Rounds with leaves: EVALSHA \
         / masters / grants; claim rounds: (EVALSHA - DEL) / masters / grants"
    ));
    for tasks in [1, 2] {
        let mut masters = Masters::start(MASTERS).await;
        let urls = masters.urls().join(",");
        let mut contenders: Vec<Contender> = (0..PROCESSES).map(|_| Contender::start(&urls, tasks)).collect();
        masters.forget_stats().await;
        contenders.iter_mut().for_each(Contender::go);
        let ends = contenders.iter_mut().map(|contender| {
            let line = contender.line();
            let (grants, longest) = line.split_once(' ').expect("two numbers");
            let number = |text: &str| text.parse::<f64>().expect("a number");
            (number(grants), number(longest))
        });
        let (grants, waits): (Vec<f64>, Vec<f64>) = ends.unzip();
        let (calls, left) = (masters.calls("evalsha").await, masters.calls("del").await);
        report_contention(report, tasks, &grants, &waits, [calls, left]);
    }
}

/// Reports a run. A call of a master's script is a claim or a leave, because nothing else is wanted of one key at a time, and a
/// hold is too short for a renewal. A leave deletes the record; a master without the record is not asked to leave.
fn report_contention(
    report: &mut Report,
    tasks: usize,
    grants: &[f64],
    waits: &[f64],
    [calls, left]: [f64; 2],
) {
    let all: f64 = grants.iter().sum();
    let of = format!("{tasks} of each process");
    let names: Vec<String> = (1..=grants.len()).map(|n| format!("process {n}")).collect();
    let values: Vec<(&str, f64)> = names
        .iter()
        .map(String::as_str)
        .zip(grants.iter().copied())
        .collect();
    let fewest = grants.iter().copied().fold(f64::MAX, f64::min);
    let longest = waits.iter().copied().fold(0.0, f64::max);
    report.line(
        &format!("fewest grants of a process, tasks: {of}"),
        fewest,
        Target::AtLeast(1.0),
        &values,
    );
    report.line(&format!("grants, tasks: {of}"), all, Target::None, &[]);
    report.line(
        &format!("longest wait, ms, tasks: {of}"),
        longest,
        Target::None,
        &[],
    );
    let rounds = |calls: f64| calls / MASTERS as f64 / all;
    report.line(
        &format!("claim rounds per grant, tasks: {of}"),
        rounds(calls - left),
        Target::None,
        &[("with leaves", rounds(calls))],
    );
}
