//! The script: one text for every verb and kind. It gives the replies of the [ledger](crate::protocol::ledger), by
//! functions of the same names.

use std::sync::LazyLock;

/// In the order in which they are run: what is plain is done in the first two.
const FILES: [(&str, &str); 11] = [
    ("open", include_str!("lua/open.lua")),
    ("plain", include_str!("lua/plain.lua")),
    ("record", include_str!("lua/record.lua")),
    ("queue", include_str!("lua/queue.lua")),
    ("job", include_str!("lua/job.lua")),
    ("claim", include_str!("lua/claim.lua")),
    ("renew", include_str!("lua/renew.lua")),
    ("leave", include_str!("lua/leave.lua")),
    ("finish", include_str!("lua/finish.lua")),
    ("yield", include_str!("lua/yield.lua")),
    ("batch", include_str!("lua/batch.lua")),
];

/// A script and the name by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The whole text.
    pub(super) text: String,
    /// Its SHA-1, in hexadecimal.
    pub(super) sha: String,
}

/// The script that applies a batch.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    let mut text = String::new();
    // Redis hangs up on whoever sends more than 16 kB in one word before it has said who it is.
    for line in FILES
        .iter()
        .flat_map(|(_, file)| file.lines())
        .map(str::trim_start)
    {
        if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
    let sha = redis::Script::new(&text).get_hash().to_owned();
    Script { text, sha }
});

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `KEYS[…]` and `ARGV[…]` as they are written in a text.
    fn used<'a>(text: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in text {
            for (at, word) in line.match_indices("KEYS[").chain(line.match_indices("ARGV[")) {
                if let Some(length) = line[at..].find(']') {
                    let index: String = line[at + word.len()..at + length].split_whitespace().collect();
                    found.insert(format!("{word}{index}]"));
                }
            }
        }
        found
    }

    #[test]
    fn headers_name_what_the_bodies_use() {
        for (name, file) in FILES {
            let is_header = |line: &&str| line.starts_with("--");
            assert!(
                file.starts_with(&format!("-- {name}: ")),
                "{name}: the header starts with the name"
            );
            let header: Vec<_> = file.lines().take_while(is_header).collect();
            assert!(
                header.iter().any(|line| line.starts_with("-- returns")),
                "{name}: says what it returns"
            );
            let body = used(file.lines().skip(header.len()));
            let told = used(header.iter().copied());
            // Verbs hand the reading of some of their words to the helpers in queue.lua, so a header may name more
            // than its body, except for the words of the request.
            for word in &body {
                assert!(
                    told.contains(word),
                    "{name}: the body uses {word}, the header does not say so"
                );
            }
            let words = told.iter().filter(|word| word.starts_with("ARGV["));
            for word in words {
                assert!(
                    body.contains(word),
                    "{name}: the header names {word}, the body does not use it"
                );
            }
        }
    }

    #[test]
    fn a_server_takes_the_script_from_whoever_comes() {
        assert!(SCRIPT.text.len() < 16_000, "{} bytes", SCRIPT.text.len());
    }
}
