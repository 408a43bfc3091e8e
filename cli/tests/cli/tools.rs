//! What the tests share: the command, its answers, nodes, and conditions.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::{Builder, Locks};

use crate::server::RedisServer;

/// Longer than any step takes. Only a failed test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the command ended, and what it wrote.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Returns the command with these arguments, in an environment that names no store.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(args).stdin(Stdio::null());
    for variable in ["TENURE_URL", "TENURE_PREFIX"] {
        command.env_remove(variable);
    }
    command
}

/// Runs the command.
pub fn run(args: &[&str]) -> Answer {
    answer(&mut command(args))
}

/// Runs the command on that server.
pub fn run_on(server: &RedisServer, args: &[&str]) -> Answer {
    run(&[args, &["--url", &server.url()]].concat())
}

pub fn answer(command: &mut Command) -> Answer {
    let output = command.output().expect("the command runs");
    Answer {
        code: output.status.code().expect("no signal ended the command"),
        out: String::from_utf8(output.stdout).expect("the command writes UTF-8"),
        err: String::from_utf8(output.stderr).expect("the command writes UTF-8"),
    }
}

impl Answer {
    /// Returns what was written, after a success without a warning.
    pub fn well(self) -> String {
        assert!(self.code == 0 && self.err.is_empty(), "{self:?}");
        self.out
    }

    /// Checks the exit code and the words of a refusal. What is refused was shown before.
    pub fn refuses_after_a_table(&self, code: i32, words: &str) {
        assert!(self.code == code && self.err.contains(words), "{self:?}");
    }

    /// Checks the exit code and the words of a refusal, and that it shows no password.
    pub fn refuses(&self, code: i32, words: &str) {
        assert!(self.code == code && self.out.is_empty(), "{self:?}");
        assert!(
            self.err.contains(words) && !self.err.contains("hunter2"),
            "{self:?}"
        );
    }
}

/// Returns the cells of the table's rows, without the header. Two spaces separate two cells.
pub fn rows(table: &str) -> Vec<Vec<&str>> {
    let cells = table.lines().skip(1).map(|line| line.split("  ").map(str::trim));
    cells
        .map(|row| row.filter(|cell| !cell.is_empty()).collect())
        .collect()
}

/// Returns the second cells of the rows, sorted: the keys, or the names of nodes.
pub fn second(table: &str) -> Vec<&str> {
    let mut cells: Vec<&str> = rows(table).into_iter().map(|row| row[1]).collect();
    cells.sort_unstable();
    cells
}

/// Runs a Python program on the text, and returns what it prints.
pub fn python(program: &str, input: &str) -> String {
    let mut child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("apt-get install python3");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "Python does not take {input:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a node with this name.
pub async fn node(server: &RedisServer, name: &str) -> Locks {
    let builder: Builder = Locks::builder().node_name(name).request_timeout(PATIENCE);
    builder.connect(&server.url()).await.unwrap()
}

/// Polls until the condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let look = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, look).await;
    assert!(ended.is_ok(), "timed out waiting until {what}");
}

/// Waits until so many nodes have told of themselves.
pub async fn until_told(locks: &Locks, count: usize) {
    until("the nodes told of themselves", async || {
        locks.inspect().nodes().await.unwrap().len() == count
    })
    .await;
}
