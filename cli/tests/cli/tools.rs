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

/// Returns the command, which begins with no signal ignored. A shell ignores some for what it starts in the background.
pub fn with_signals(args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_tenure")]);
    command.args(args).stdin(Stdio::null());
    command.env_remove("TENURE_URL").env_remove("TENURE_PREFIX");
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

/// The fence of the holder of `noted`.
pub const FENCE: u64 = 1_700_000_000_000_000 << 10;

/// Lets a node that does not run hold the key `noted` by its claim 7, and tell these notes: claim, fence and text.
pub fn with_notes(server: &RedisServer, notes: &[(u64, u64, &[u8])]) {
    const NODE: &str = "0123456789abcdef0123456789abcdef";
    let mut presence = "name=web-1&host=vm".to_owned();
    for (claim, fence, text) in notes {
        presence += &format!("&note={claim}:{fence}:");
        presence.extend(text.iter().map(|byte| format!("%{byte:02x}")));
    }
    let record = format!("{NODE}:7:00ff:{}", FENCE >> 10);
    let mut set = redis::pipe();
    set.cmd("SET").arg(&["lock:noted", &record, "PX", "600000"]);
    set.cmd("SET").arg(&[&format!("tenure1:i:{NODE}"), &presence]);
    set.exec(&mut server.client()).unwrap();
}

/// Runs the command at a terminal and answers its question. Returns the exit code and what the terminal showed.
pub fn at_a_terminal(args: &[&str], says: &str) -> (i32, String) {
    const PROGRAM: &str = "import json, os, pty, sys\n\
        words, says = json.load(sys.stdin)\n\
        child, terminal = pty.fork()\n\
        if child == 0: os.execv(words[0], words)\n\
        shown = b''\n\
        while True:\n\
        \x20   try: more = os.read(terminal, 4096)\n\
        \x20   except OSError: break\n\
        \x20   if not more: break\n\
        \x20   shown += more\n\
        \x20   if says and b'[y/N] ' in shown:\n\
        \x20       os.write(terminal, says.encode())\n\
        \x20       says = ''\n\
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n\
        print(json.dumps([code, shown.decode()]))";
    let words = [&[env!("CARGO_BIN_EXE_tenure")], args].concat();
    let input = serde_json::to_string(&(words, says)).unwrap();
    serde_json::from_str(&python(PROGRAM, &input)).unwrap()
}
