//! The scripts, one for each kind of keys, made of the same files: every verb gives the replies of the
//! [ledger](crate::protocol::ledger), by functions of the same names. A batch is all of one kind.
//!
//! A server gets the text as it is written, comments included. Redis limits the length of what it reads only before a client has
//! authenticated (redis#9588), and a script is loaded after the server answered ROLE.

use std::sync::LazyLock;

use crate::protocol::message::Kind;

/// A script and the name by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The whole text.
    pub(super) text: String,
    /// Its SHA-1, in hexadecimal.
    pub(super) sha: String,
}

/// Makes the script of a kind from files of the folder `lua`, in the order in which they are run.
macro_rules! script {
    ($kind:literal, $($file:literal)+) => {
        LazyLock::new(|| {
            let kind = concat!("local kind = '", $kind, "'\n");
            Script::new([kind, $(include_str!(concat!("lua/", $file, ".lua"))),+].concat())
        })
    };
}

/// The script that applies a batch of each kind, in the order of [`Kind::ALL`].
pub(super) static SCRIPTS: [LazyLock<Script>; Kind::ALL.len()] = [
    script!(
        "lock",
        "open" "plain" "verbs" "weighted" "record" "queue" "claim" "renew" "leave" "yield" "pass" "extend" "all" "batch"
    ),
    script!(
        "job",
        "open" "verbs" "weighted" "record" "queue" "job" "claim" "renew" "leave" "finish" "yield" "ask" "batch"
    ),
    script!(
        "semaphore",
        "open" "verbs" "weighted" "record" "queue" "claim" "renew" "leave" "pass" "extend" "used" "batch"
    ),
    script!("latch", "open" "latch"),
    script!(
        "election",
        "open" "verbs" "weighted" "record" "queue" "claim" "renew" "leave" "elect" "batch"
    ),
];

impl Script {
    pub(super) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// `KEYS[…]` and `ARGV[…]` as they are written in a text, spaces left out.
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

    /// The files of the folder `lua`, each with its name.
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

    /// The header and the body.
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
                "{name}: says what it returns"
            );
            let (body, told) = (used(body), used(header.into_iter()));
            // The first file names what stands where for all of them, and a header may name a key that a function of
            // another file reads.
            let whole = if name == "open" { &everywhere } else { &body };
            for word in &body {
                assert!(
                    told.contains(word),
                    "{name}: the body uses {word}, the header does not say so"
                );
            }
            for word in told.iter().filter(|word| word.starts_with("ARGV[")) {
                assert!(
                    whole.contains(word),
                    "{name}: the header names {word}, the body does not use it"
                );
            }
        }
    }
}
