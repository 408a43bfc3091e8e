//! Runs a test in its own process: its process-wide settings affect no other test, and a hanging test is ended.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Names the test that the process is for.
const ALONE: &str = "TENURE_ALONE";
/// What the process prints at its end.
const DONE: &str = "@alone: done";
/// Longer than any test takes; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `body` in a new process of this binary, which runs only `test` (its path without the crate).
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|alone| alone == test) {
        body();
        println!("{DONE}");
        return;
    }
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ALONE, test)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this binary once more");
    let (out, err) = (
        reads(child.stdout.take().expect("piped")),
        reads(child.stderr.take().expect("piped")),
    );
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child runs") {
            break Some(status);
        }
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().expect("read"), err.join().expect("read"));
    let status = status.unwrap_or_else(|| panic!("it hung:\n{out}\n{err}"));
    assert!(
        status.success() && out.contains(DONE),
        "{status}, and was {test} run?\n{out}\n{err}"
    );
}

/// Reads everything while the child runs: a full pipe stops the child.
fn reads(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
