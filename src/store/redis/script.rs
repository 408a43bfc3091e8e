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

    /// The header and the body.
    fn parts(file: &'static str) -> (Vec<&'static str>, impl Iterator<Item = &'static str>) {
        let header: Vec<_> = file.lines().take_while(|line| line.starts_with("--")).collect();
        let body = file.lines().skip(header.len());
        (header, body)
    }

    #[test]
    fn headers_name_what_the_bodies_use() {
        let mut everywhere: BTreeSet<String> = (1..=6).map(|word| format!("ARGV[at+{word}]")).collect();
        everywhere.extend(FILES.into_iter().flat_map(|(_, file)| used(parts(file).1)));
        for (name, file) in FILES {
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

    #[test]
    fn a_server_takes_the_script_from_whoever_comes() {
        assert!(SCRIPT.text.len() < 16_000, "{} bytes", SCRIPT.text.len());
    }
}
