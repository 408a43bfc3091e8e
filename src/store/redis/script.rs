//! The scripts: one for each kind of name, composed of shared files. A batch contains names of one kind only.
//!
//! Each verb gives the replies of the [ledger](crate::protocol::ledger); its main functions have the ledger's names.
//!
//! The server gets the text with its comments. Redis limits the length of its input only before a client has
//! authenticated (redis#9588). A script is loaded after the server answered ROLE, so after authentication.

use std::sync::LazyLock;

use redis::Cmd;

use crate::protocol::message::Kind;

/// The largest power of two up to which a number in Lua represents every integer.
pub(super) const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// A script and the hash by which a server knows it.
#[derive(Debug)]
pub(super) struct LuaScript {
    /// The whole text of the script.
    pub(super) text: String,
    /// The SHA-1 of the text, in hexadecimal.
    pub(super) sha: String,
}

/// Composes the script of a kind from files of the folder `lua`, in the order of their execution.
macro_rules! script {
    ($kind:literal, $($file:literal)+) => {
        LazyLock::new(|| {
            let kind = concat!("local kind = '", $kind, "'\n");
            LuaScript::new([kind, $(include_str!(concat!("lua/", $file, ".lua"))),+].concat())
        })
    };
}

/// The script that applies a batch, for each kind in the order of [`Kind::ALL`].
pub(super) static SCRIPTS: [LazyLock<LuaScript>; Kind::ALL.len()] = [
    script!(
        "lock",
        "open" "plain" "verbs" "weighted" "record" "queue" "claim" "assertion" "renew" "leave" "yield" "pass" "extend"
        "all" "batch"
    ),
    script!(
        "job",
        "open" "verbs" "weighted" "record" "queue" "job" "claim" "assertion" "renew" "leave" "finish" "yield" "ask"
        "batch"
    ),
    script!(
        "semaphore",
        "open" "verbs" "weighted" "record" "queue" "claim" "assertion" "renew" "leave" "pass" "extend" "used" "batch"
    ),
    script!("latch", "open" "latch"),
    script!(
        "election",
        "open" "verbs" "weighted" "record" "queue" "claim" "assertion" "renew" "leave" "elect" "batch"
    ),
];

/// The script that executes a request with its record alone.
pub(super) static ALONE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(include_str!("lua/alone.lua").to_owned()));

/// The script that applies a batch at a master of a quorum.
pub(super) static VOTE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(include_str!("lua/vote.lua").to_owned()));

/// The script that takes a lease from its holder for an operator.
pub(super) static REVOKE: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(concat!(include_str!("lua/revoked.lua"), include_str!("lua/revoke.lua")).to_owned())
});

/// The script that executes an act of an operator about a job.
pub(super) static JOB_ACT: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(concat!(include_str!("lua/revoked.lua"), include_str!("lua/job_act.lua")).to_owned())
});

impl LuaScript {
    pub(super) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        LuaScript { text, sha }
    }

    /// Returns the command that loads the script.
    pub(super) fn load_command(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&*self.text);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Returns each `KEYS[…]` and `ARGV[…]` in a text, without spaces.
    fn used<'a>(text: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in text {
            for (at, word) in line.match_indices("KEYS[").chain(line.match_indices("ARGV[")) {
                if let Some(length) = line[at..].find(']') {
                    let index: String = line[at + word.len()..at + length].split_whitespace().collect();
                    found.insert(format!("{word}{index}]"));
                }
            }
            if line.contains("unpack(ARGV, at + 1, at + 6)") {
                found.insert("ARGV[at+1..at+6]".to_owned());
            }
        }
        found
    }

    /// Returns the name and the text of each file in the folder `lua`.
    fn files() -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/lua");
        let paths = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let named = |path: std::path::PathBuf| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        };
        paths.map(named).collect()
    }

    /// Returns the header and the body of a file.
    fn parts(file: &str) -> (Vec<&str>, impl Iterator<Item = &str>) {
        let header: Vec<_> = file.lines().take_while(|line| line.starts_with("--")).collect();
        let body = file.lines().skip(header.len());
        (header, body)
    }

    #[test]
    fn headers_name_what_the_bodies_use() {
        let mut everywhere: BTreeSet<String> = (1..=6).map(|word| format!("ARGV[at+{word}]")).collect();
        let files = files();
        everywhere.extend(files.iter().flat_map(|(_, file)| used(parts(file).1)));
        for (name, file) in &files {
            let (header, body) = parts(file);
            assert!(
                header[0].starts_with(&format!("-- {name}: ")),
                "{name}: the header starts with the name"
            );
            assert!(
                header.iter().any(|line| line.starts_with("-- returns")),
                "{name}: the header says what the script returns"
            );
            let (body, named) = (used(body), used(header.into_iter()));
            // The header of `open` lists the words for all files. A header may name a key that only a function of
            // another file reads.
            let used_by_all = if name == "open" { &everywhere } else { &body };
            for word in &body {
                assert!(
                    named.contains(word),
                    "{name}: the body uses {word}, which the header does not name"
                );
            }
            for word in named.iter().filter(|word| word.starts_with("ARGV[")) {
                assert!(
                    used_by_all.contains(word),
                    "{name}: the header names {word}, which the body does not use"
                );
            }
        }
    }
}
