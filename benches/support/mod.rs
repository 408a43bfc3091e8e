//! Shared parts of the benches: pairs of windows, the peer on plain redis-rs, tables and JSON.

// Each binary uses only some of these items.
#![allow(dead_code)]
#![allow(unreachable_pub)]

pub mod masters;
pub mod scenes;
#[path = "../../tests/live/server.rs"]
pub mod server;
pub mod wire;

use std::fmt::Write as _;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd};

/// Returns whether this is a smoke run for CI, whose figures are meaningless.
pub fn is_quick() -> bool {
    std::env::var_os("TENURE_BENCH_QUICK").is_some_and(|value| value != "0")
}

/// Returns whether `cargo bench` runs this program. `cargo test --benches` runs it without optimization.
pub fn is_wanted() -> bool {
    let wanted = std::env::args().any(|arg| arg == "--bench");
    if !wanted {
        println!("benches run by `cargo bench`");
    }
    wanted
}

/// Returns whether the command line asks for this bench. Without a name it asks for all of them.
pub fn asks_for(name: &str) -> bool {
    let mut words = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .peekable();
    words.peek().is_none() || words.any(|word| name.contains(&word))
}

pub fn pairs() -> usize {
    if is_quick() { 1 } else { 11 }
}

/// Returns how long one side runs before the other side runs.
pub fn window() -> Duration {
    Duration::from_millis(if is_quick() { 40 } else { 400 })
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// Returns the cycles per second of `tasks` tasks that each repeat `cycle` for a window.
pub async fn rate<C, F>(tasks: usize, window: Duration, cycle: impl Fn(usize) -> C) -> f64
where
    C: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (stop, done, mut cycle) = (stop.clone(), done.clone(), cycle(task));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    cycle().await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(window).await;
    stop.store(true, Ordering::Relaxed);
    // Cycles that end after the window do not count.
    let (done, elapsed) = (done.load(Ordering::Relaxed), start.elapsed());
    for task in tasks {
        task.await.expect("a task of the bench");
    }
    done as f64 / elapsed.as_secs_f64()
}

/// The peer: `SET NX PX` and a script that compares and deletes, on one multiplexed connection. It is the minimal lock on
/// Redis, without a fence, renewal, queue or deadline.
#[derive(Clone)]
pub struct Raw {
    connection: MultiplexedConnection,
    sha: String,
}

const DELETE_IF_EQUAL: &str =
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

impl Raw {
    pub async fn connect(url: &str) -> Raw {
        let client = Client::open(url).expect("a good URL");
        // tenure's own connections have the same setting.
        let info = client.get_connection_info();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.clone().set_tcp_settings(tcp)).expect("good settings");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("the server is there");
        let mut load = redis::cmd("SCRIPT");
        let sha = load.arg("LOAD").arg(DELETE_IF_EQUAL).query_async(&mut connection);
        let sha = sha.await.expect("a good script");
        Raw { connection, sha }
    }

    pub async fn run<T: redis::FromRedisValue>(&mut self, command: &Cmd) -> T {
        command
            .query_async(&mut self.connection)
            .await
            .expect("an answer")
    }

    pub async fn lock_and_release(&mut self, key: &str, token: &str) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(10_000);
        self.run::<()>(&set).await;
        let gone: i64 = self.release(key, token).await;
        assert_eq!(gone, 1, "{key} still has its token");
    }

    pub async fn release(&mut self, key: &str, token: &str) -> i64 {
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(&self.sha).arg(1).arg(key).arg(token);
        self.run(&delete).await
    }

    pub async fn forget_stats(&mut self) {
        let mut reset = redis::cmd("CONFIG");
        self.run::<()>(reset.arg("RESETSTAT")).await;
    }

    /// Returns the median round trip of `times` PINGs in a row.
    pub async fn ping(&mut self, times: usize) -> Duration {
        let mut trips = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            self.run::<()>(&redis::cmd("PING")).await;
            trips.push(start.elapsed().as_secs_f64());
        }
        Duration::from_secs_f64(median(trips))
    }

    /// Returns the calls and the server's microseconds of the `wanted` commands since `forget_stats`.
    pub async fn stats(&mut self, wanted: impl Fn(&str) -> bool) -> (f64, f64) {
        let commands = self.commands().await;
        let wanted = commands.iter().filter(|(name, ..)| wanted(name));
        wanted.fold((0.0, 0.0), |sum, (_, calls, micros)| {
            (sum.0 + calls, sum.1 + micros)
        })
    }

    /// Returns the calls and the microseconds of each command, including commands that scripts call.
    pub async fn commands(&mut self) -> Vec<(String, f64, f64)> {
        let text: String = self.run(redis::cmd("INFO").arg("commandstats")).await;
        let field = |line: &str, name: &str| -> f64 {
            let value = line.split([':', ',']).find_map(|field| field.strip_prefix(name));
            value.and_then(|value| value.parse().ok()).unwrap_or_default()
        };
        let command = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            Some((name.to_owned(), field(rest, "calls="), field(rest, "usec=")))
        };
        text.lines().filter_map(command).collect()
    }
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Without a bound.
    None,
}

/// The figures of a bench, printed as a table and written as JSON.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    section: String,
    json: Vec<String>,
}

impl Report {
    pub fn new(name: &'static str) -> Self {
        println!(
            "{name}{}",
            if is_quick() {
                " (quick: the figures mean nothing)"
            } else {
                ""
            }
        );
        Report {
            name,
            section: String::new(),
            json: Vec::new(),
        }
    }

    pub fn section(&mut self, title: &str) {
        println!("\n{title}");
        title.clone_into(&mut self.section);
    }

    /// Adds a line to the table. `values` are further figures of the line.
    pub fn line(&mut self, what: &str, figure: f64, target: Target, values: &[(&str, f64)]) {
        let (text, is_met) = match target {
            Target::AtLeast(target) => (format!("at least {target}"), Some(figure >= target)),
            Target::AtMost(target) => (format!("at most {target}"), Some(figure <= target)),
            Target::None => (String::new(), None),
        };
        let verdict = match is_met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let mut line = format!("  {what:<46} {:>9}  {text:<13} {verdict:<6}", short(figure));
        let section = &self.section;
        let mut json = format!("{{\"section\": \"{section}\", \"what\": \"{what}\", \"figure\": {figure:.4}");
        if let Some(is_met) = is_met {
            let _ = write!(json, ", \"target\": \"{text}\", \"met\": {is_met}");
        }
        for (name, value) in values {
            let _ = write!(line, "  {name} {}", short(*value));
            let _ = write!(json, ", \"{name}\": {value:.4}");
        }
        println!("{}", line.trim_end());
        json.push('}');
        self.json.push(json);
    }

    /// Writes `target/bench/<name>.json`.
    pub fn write(self, target_tmpdir: &str) {
        let directory = Path::new(target_tmpdir)
            .parent()
            .expect("a target directory")
            .join("bench");
        let path = directory.join(format!("{}.json", self.name));
        let text = format!(
            "{{\"bench\": \"{}\", \"quick\": {}, \"pairs\": {}, \"figures\": [\n  {}\n]}}\n",
            self.name,
            is_quick(),
            pairs(),
            self.json.join(",\n  ")
        );
        std::fs::create_dir_all(&directory).expect("a directory for the figures");
        std::fs::write(&path, text).expect("a file for the figures");
        println!("\nwritten to {}", path.display());
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
