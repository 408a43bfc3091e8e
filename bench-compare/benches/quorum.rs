//! Compares the round trips of tenure on a quorum of masters with those of rslock 0.10 and of node-redlock 5, which waits for all
//! masters that it asks, as rslock does. Each uses the same masters behind the same wires.
//!
//! `cargo bench --manifest-path bench-compare/Cargo.toml --bench quorum`. Run `./test` first: it fetches node-redlock.
#![allow(clippy::type_complexity, clippy::disallowed_methods)]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rslock::LockManager;
use support::masters::{self, Masters};
use support::{Report, Target, wire};

const TTL: Duration = Duration::from_secs(10);

fn main() {
    wire::serve_if_asked();
    if !support::is_wanted() {
        return;
    }
    let mut report = Report::new("quorum");
    support::runtime().block_on(async {
        let three = masters::tenure(&mut report).await;
        rslock(&three).await.report(&mut report, "rslock, three masters", Target::None);
        match Redlock::start(&three) {
            Some(mut redlock) => {
                let trips = three.trips(async |key| redlock.cycle(&key)).await;
                trips.report(&mut report, "node-redlock, three masters", Target::None);
                three.mute_one();
                let trips = three.trips(async |key| redlock.cycle(&key)).await;
                trips.report(&mut report, "node-redlock, one master mute", Target::None);
                three.unmute();
            }
            None => println!("  node-redlock is not there: run ./test first, which fetches it"),
        }
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

async fn rslock(masters: &Masters) -> masters::Trips {
    let manager = LockManager::new(masters.urls());
    let cycle = async |key: String| {
        let start = Instant::now();
        let lock = manager.lock(&*format!("rslock:{key}"), TTL).await.expect("a lock");
        let taken = start.elapsed();
        let start = Instant::now();
        manager.unlock(&lock).await;
        [taken, start.elapsed()]
    };
    masters.trips(cycle).await
}

/// A process with node-redlock. It measures its locks itself.
struct Redlock {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Redlock {
    fn start(masters: &Masters) -> Option<Redlock> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let modules = root.join("../target/tmp/node/node_modules");
        if !modules.is_dir() {
            return None;
        }
        let mut command = Command::new("node");
        command.arg(root.join("redlock.cjs")).args(masters.urls()).env("NODE_PATH", modules);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        Some(Redlock {
            input: process.stdin.take()?,
            output: BufReader::new(process.stdout.take()?),
            process,
        })
    }

    fn cycle(&mut self, key: &str) -> [Duration; 2] {
        writeln!(self.input, "redlock:{key}").expect("node reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("node answers");
        let mut words = line.split_whitespace().map(|word| word.parse().expect("seconds"));
        [(); 2].map(|()| Duration::from_secs_f64(words.next().expect("two times")))
    }
}

impl Drop for Redlock {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}
