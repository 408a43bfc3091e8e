//! An operator that lists, shows and prints the locks all through a run, and the search for nonces in everything that the run
//! printed. The nonce of an owner is the secret of a transfer.
//!
//! The nonces are those that the server had while the operator looked. Nearly all claims of tasks are shorter than a look, so
//! these are a sample, of every kind of record and queue.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tenure::Locks;

use crate::server::RedisServer;
use crate::torture::referee::Findings;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// The names of the files with journals, with panics of the nodes, and with the looks of the operator.
const PRINTED: [&str; 3] = ["node-", "words-", "operator"];
/// The digits of a nonce in a record.
const DIGITS: usize = 16;

/// A thread that looks until it is told to end.
pub struct Operator {
    end: mpsc::Sender<()>,
    thread: JoinHandle<Seen>,
}

/// What an operator saw.
#[derive(Default)]
pub struct Seen {
    nonces: HashSet<u64>,
    /// The looks that showed a holder.
    looks: u64,
}

impl Operator {
    /// Looks at this server, and prints into a file of this directory.
    pub fn start(server: &RedisServer, dir: &Path) -> Self {
        let (url, path) = (server.url(), dir.join("operator"));
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut output = File::create(path).expect("a file");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let locks = crate::help::builder().presence(false).lazy().connect(&url);
            let locks = runtime.block_on(locks).expect("locks");
            let mut seen = Seen::default();
            while ended.try_recv() != Err(TryRecvError::Disconnected) {
                // Servers are away and connections end, as for the nodes.
                let _ = seen.sample(&url);
                let text = runtime.block_on(look(&locks));
                seen.looks += u64::from(text.contains("HolderEntry"));
                output.write_all(text.as_bytes()).expect("the output is writable");
                let _ = seen.sample(&url);
                thread::sleep(PAUSE);
            }
            seen
        });
        Operator { end, thread }
    }

    pub fn finish(self) -> Seen {
        drop(self.end);
        self.thread.join().expect("the operator looks to the end")
    }
}

/// Returns what an operator prints of all keys and nodes, and the errors.
async fn look(locks: &Locks) -> String {
    let inspection = locks.inspect();
    let (mut text, mut from) = (String::new(), None);
    loop {
        let page = inspection.list("torture", from).await;
        let _ = writeln!(text, "{page:?}");
        let Ok(page) = page else { break };
        for entry in page.entries {
            print_json(&mut text, &entry);
            let shown = inspection.show(entry.key).await;
            let _ = writeln!(
                text,
                "{shown:?} {:?}",
                shown.as_ref().err().map(ToString::to_string)
            );
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let nodes = inspection.nodes().await;
    let _ = writeln!(text, "{nodes:?} {inspection:?} {locks:?}");
    for node in nodes.into_iter().flatten() {
        print_json(&mut text, &node);
    }
    text
}

#[cfg(feature = "serde")]
fn print_json(text: &mut String, entry: &impl serde::Serialize) {
    let _ = writeln!(text, "{}", serde_json::to_string(entry).expect("it has a form"));
}

#[cfg(not(feature = "serde"))]
fn print_json<T>(_: &mut String, _: &T) {}

impl Seen {
    /// Adds the nonces of all records and queues that the server has now.
    fn sample(&mut self, url: &str) -> redis::RedisResult<()> {
        let mut client = redis::Client::open(url)?.get_connection()?;
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*torture*").query(&mut client)?;
        for key in keys {
            let owner: redis::RedisResult<Option<String>> = redis::cmd("GET").arg(&key).query(&mut client);
            let texts: Vec<String> = match owner {
                Ok(owner) => owner.into_iter().collect(),
                // A latch has neither.
                Err(_) => {
                    let members = redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query(&mut client);
                    members.unwrap_or_default()
                }
            };
            let nonces = texts.iter().filter_map(|text| text.split(':').nth(2));
            self.nonces
                .extend(nonces.filter_map(|nonce| u64::from_str_radix(nonce, 16).ok()));
        }
        Ok(())
    }

    /// Searches what the run printed: the files of the directory, and these texts.
    pub fn search(&self, dir: &Path, texts: &[&str], findings: &mut Findings) {
        if self.nonces.is_empty() || self.looks == 0 {
            let text = format!("{} looks, {} nonces", self.looks, self.nonces.len());
            return findings.add("an operator that saw nothing", text);
        }
        let mut length = 0;
        let mut search = |place: &str, text: &str| {
            length += text.len();
            for line in text.lines().filter(|line| self.has_nonce(line)) {
                findings.add("a nonce in the output", format!("{place}: {line}"));
            }
        };
        for file in fs::read_dir(dir).expect("the directory") {
            let path = file.expect("a file").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Other files are transfers on their way, which carry a nonce, and counters.
            if PRINTED.iter().any(|printed| name.starts_with(printed)) {
                let text = fs::read(&path).expect("a file");
                search(&name, &String::from_utf8_lossy(&text));
            }
        }
        for text in texts {
            search("the summary", text);
        }
        println!(
            "  {} looks of an operator; {} nonces were searched for in {length} bytes of output",
            self.looks,
            self.nonces.len()
        );
    }

    /// Returns whether a line has a nonce in hexadecimal or in decimal digits.
    fn has_nonce(&self, line: &str) -> bool {
        let is_nonce = |nonce| self.nonces.contains(&nonce);
        let has = |digits: &str| {
            let in_hex = |digits: &str| u64::from_str_radix(digits, 16).is_ok_and(is_nonce);
            let parts = 0..(digits.len() + 1).saturating_sub(DIGITS);
            digits.parse().is_ok_and(is_nonce)
                || in_hex(digits)
                || parts.into_iter().any(|at| in_hex(&digits[at..at + DIGITS]))
        };
        // One nonce of 16^6 has fewer digits without its zeros.
        let tokens = line.split(|c: char| !c.is_ascii_hexdigit());
        tokens.filter(|token| token.len() >= DIGITS - 6).any(has)
    }
}
