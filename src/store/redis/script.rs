//! The scripts, one for each kind of keys, made of the same files: every verb gives the replies of the
//! [ledger](crate::protocol::ledger), by functions of the same names. A batch is all of one kind.

use std::sync::LazyLock;

/// What locks do without, jobs, semaphores, and elections.
const NOT_OF_LOCKS: [&str; 8] = [
    "alone", "job", "finish", "ask", "permits", "used", "elect", "latch",
];
const NOT_OF_JOBS: [&str; 9] = [
    "lone", "share", "pass", "extend", "all", "permits", "used", "elect", "latch",
];
const NOT_OF_SEMAPHORES: [&str; 9] = [
    "plain", "share", "job", "finish", "yield", "ask", "all", "elect", "latch",
];
const NOT_OF_ELECTIONS: [&str; 13] = [
    "plain", "lone", "share", "permits", "job", "finish", "yield", "pass", "extend", "ask", "used", "all",
    "latch",
];
/// All that latches have.
const OF_LATCHES: [&str; 2] = ["open", "latch"];

/// In the order in which they are run: what is plain is done in the first of them.
const FILES: [(&str, &str); 23] = [
    ("open", include_str!("lua/open.lua")),
    ("latch", include_str!("lua/latch.lua")),
    ("plain", include_str!("lua/plain.lua")),
    ("lone", include_str!("lua/lone.lua")),
    ("verbs", include_str!("lua/verbs.lua")),
    ("share", include_str!("lua/share.lua")),
    ("alone", include_str!("lua/alone.lua")),
    ("permits", include_str!("lua/permits.lua")),
    ("record", include_str!("lua/record.lua")),
    ("queue", include_str!("lua/queue.lua")),
    ("job", include_str!("lua/job.lua")),
    ("claim", include_str!("lua/claim.lua")),
    ("renew", include_str!("lua/renew.lua")),
    ("leave", include_str!("lua/leave.lua")),
    ("finish", include_str!("lua/finish.lua")),
    ("yield", include_str!("lua/yield.lua")),
    ("pass", include_str!("lua/pass.lua")),
    ("extend", include_str!("lua/extend.lua")),
    ("ask", include_str!("lua/ask.lua")),
    ("used", include_str!("lua/used.lua")),
    ("elect", include_str!("lua/elect.lua")),
    ("all", include_str!("lua/all.lua")),
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

/// The script that applies a batch about locks.
pub(super) static LOCKS: LazyLock<Script> = LazyLock::new(|| without(&NOT_OF_LOCKS));
/// The script that applies a batch about jobs.
pub(super) static JOBS: LazyLock<Script> = LazyLock::new(|| without(&NOT_OF_JOBS));
/// The script that applies a batch about semaphores.
pub(super) static SEMAPHORES: LazyLock<Script> = LazyLock::new(|| without(&NOT_OF_SEMAPHORES));
/// The script that applies a batch about elections.
pub(super) static ELECTIONS: LazyLock<Script> = LazyLock::new(|| without(&NOT_OF_ELECTIONS));
/// The script that applies a batch about latches.
pub(super) static LATCHES: LazyLock<Script> = LazyLock::new(|| of_files(|name| OF_LATCHES.contains(&name)));

impl Script {
    pub(super) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }
}

fn without(others: &[&str]) -> Script {
    of_files(|name| !others.contains(&name))
}

fn of_files(is_in: impl Fn(&str) -> bool) -> Script {
    let files = FILES.iter().filter(|(name, _)| is_in(name));
    Script::new(files.map(|(_, file)| code_of(file)).collect())
}

/// A file without its comments, and without the spaces that mean nothing. Redis hangs up on whoever sends more than 16 kB in
/// one word before it has said who it is.
pub(super) fn code_of(file: &str) -> String {
    let mut text = String::new();
    for line in file.lines().map(str::trim_start) {
        if !line.is_empty() && !line.starts_with("--") {
            push_code(line, &mut text);
            // A name may follow a bracket or a sign at once; a bracket would be taken for the arguments of a call.
            if text.ends_with(is_word) {
                text.push('\n');
            }
        }
    }
    text
}

fn is_word(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || sign == '_'
}

/// Appends a line without the spaces that mean nothing.
fn push_code(line: &str, text: &mut String) {
    let (mut before, mut is_quoted) = (' ', false);
    let mut signs = line.chars().peekable();
    while let Some(sign) = signs.next() {
        is_quoted ^= sign == '\'';
        let after = signs.peek().copied().unwrap_or(' ');
        // Two words are two, two minus signs are no comment, and a number and two dots are no number.
        let parts = is_word(before) && is_word(after)
            || before == '-' && after == '-'
            || before.is_ascii_digit() && after == '.';
        if sign != ' ' || is_quoted || parts {
            text.push(sign);
            before = sign;
        }
    }
}

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
        let others = [
            ("forget", include_str!("lua/forget.lua")),
            ("write", include_str!("lua/write.lua")),
            ("commands", include_str!("lua/commands.lua")),
            ("globals", include_str!("lua/globals.lua")),
        ];
        for (name, file) in FILES.into_iter().chain(others) {
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
    fn only_spaces_that_mean_nothing_are_left_out() {
        for (line, code) in [
            ("local a, b = n + 1, 'a  b' .. c", "local a,b=n+1,'a  b'..c"),
            (
                "if not a and b[1] == -1 then return 2 .. x - -y end",
                "if not a and b[1]==-1 then return 2 ..x- -y end",
            ),
        ] {
            let mut text = String::new();
            push_code(line, &mut text);
            assert_eq!(text, code);
        }
    }

    #[test]
    fn lines_may_be_joined() {
        for (name, file) in FILES {
            for line in file
                .lines()
                .map(str::trim_start)
                .filter(|line| !line.starts_with("--"))
            {
                assert!(
                    !line.contains("-- "),
                    "{name}: a comment has a line of its own: {line}"
                );
                assert!(
                    !line.starts_with('('),
                    "{name}: a line begins with a name: {line}"
                );
            }
        }
    }

    #[test]
    fn a_server_takes_the_script_from_whoever_comes() {
        for script in [&LOCKS, &JOBS, &SEMAPHORES, &ELECTIONS, &LATCHES] {
            println!("{} bytes", script.text.len());
            assert!(script.text.len() < 16_000, "{} bytes", script.text.len());
        }
    }
}
