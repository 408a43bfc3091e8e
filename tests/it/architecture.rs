//! Imports run downwards only. Reads every file under `src/` and fails with the file, the line and the arrow.
//!
//! Each floor lists what it may import; a file that is on no floor fails too, so that the map cannot go stale.
//! Comments and strings do not count.

use std::fs;
use std::path::{Path, PathBuf};

/// A floor and the floors it may import, from bottom to top. A floor may always import itself.
const FLOORS: &[(&str, &str)] = &[
    ("key", ""),
    ("error", "key"),
    ("protocol", "key error"),
    ("options", "key error protocol"),
    ("observe", "key error protocol"),
    ("store", "key error protocol options observe"),
    ("driver", "key error protocol options observe store"),
    ("runtime", "key error protocol options observe store driver"),
    (
        "testing",
        "key error protocol options observe store driver runtime",
    ),
    ("primitives", "key error protocol options observe runtime"),
    (
        "locks",
        "key error protocol options observe store runtime primitives",
    ),
    (
        "middleware",
        "key error protocol options observe runtime primitives locks",
    ),
    (
        "scheduler",
        "key error protocol options observe runtime primitives locks",
    ),
    (
        "lib",
        "key error protocol options observe store driver runtime testing primitives locks middleware scheduler",
    ),
];

/// Pairs that never meet, whatever becomes of the lists above.
const NEVER: &[(&str, &str)] = &[("primitives", "store"), ("middleware", "store")];

/// What is pure: no runtime and no clock in here. Time is an argument.
const PURE: &[&str] = &["protocol/"];

#[test]
fn imports_run_downwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    assert!(
        files.iter().any(|file| file.ends_with("lib.rs")),
        "no sources under {}",
        src.display()
    );
    files.sort();
    let faults: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let path = file
                .strip_prefix(&src)
                .unwrap()
                .to_str()
                .unwrap()
                .replace('\\', "/");
            check(&path, &fs::read_to_string(file).unwrap())
        })
        .collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_map_itself_runs_downwards() {
    for (at, (floor, below)) in FLOORS.iter().enumerate() {
        for import in below.split_whitespace() {
            assert!(
                FLOORS[..at].iter().any(|(name, _)| *name == import),
                "{floor} -> {import} runs up"
            );
            assert!(
                !NEVER.contains(&(*floor, import)),
                "{floor} -> {import} is both allowed and forbidden"
            );
        }
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// What is wrong with one file; `path` is below `src/`.
fn check(path: &str, source: &str) -> Vec<String> {
    let floor = path.split('/').next().unwrap().trim_end_matches(".rs");
    let Some((_, allowed)) = FLOORS.iter().find(|(name, _)| *name == floor) else {
        return vec![format!(
            "src/{path}: is on no floor; give `{floor}` one in tests/it/architecture.rs"
        )];
    };
    let tokens = tokens(source);
    let mut faults = Vec::new();
    for (line, import) in imports(path, &tokens) {
        let fault = if !FLOORS.iter().any(|(name, _)| *name == import && *name != "lib") {
            format!("imports `{import}` from lib.rs: import from the file that defines it")
        } else if NEVER.contains(&(floor, &import)) {
            format!("{floor} -> {import} must never meet")
        } else if import != floor && !allowed.split_whitespace().any(|name| name == import) {
            format!("{floor} -> {import} runs up")
        } else {
            continue;
        };
        faults.push(format!("src/{path}:{line}: {fault}"));
    }
    if PURE
        .iter()
        .any(|pure| path == *pure || (pure.ends_with('/') && path.starts_with(pure)))
    {
        faults
            .extend(impure(&tokens).map(|(line, what)| format!("src/{path}:{line}: {what} in a pure file")));
    }
    faults
}

/// Runtimes and clocks that the tokens mention.
fn impure<'a>(tokens: &'a [Token]) -> impl Iterator<Item = (usize, String)> + 'a {
    let mut using_std = false;
    tokens.iter().enumerate().filter_map(move |(at, token)| {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| &tokens[at].text);
        match token.text.as_str() {
            "use" => using_std = tokens[at + 1..].iter().find(|next| next.text != "::")?.text == "std",
            ";" => using_std = false,
            "Instant" if using_std || (before(1) == "::" && before(2) == "time") => {
                return Some((token.line, "std::time::Instant".to_owned()));
            }
            "*" if before(1) == "::" && before(2) == "time" => {
                return Some((token.line, "time::*".to_owned()));
            }
            // rustix is where the runtime reads its clock.
            "SystemTime" | "tokio" | "tokio_util" | "rustix" => {
                return Some((token.line, token.text.clone()));
            }
            _ => {}
        }
        None
    })
}

/// The first step below the crate's root of every path that starts there, by `crate::` or by a climb of `super::`.
fn imports(path: &str, tokens: &[Token]) -> Vec<(usize, String)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    // How deep this file's module is, and the depth of braces at which each inline module in it was opened.
    let is_parent = path == "lib.rs" || path.ends_with("/mod.rs");
    let depth = if path == "lib.rs" {
        0
    } else {
        path.split('/').count() - usize::from(is_parent)
    };
    let (mut braces, mut inline) = (0_usize, Vec::new());
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let line = tokens[at].line;
        match text(at) {
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
            }
            "mod" if text(at + 2) == "{" => {
                inline.push(braces);
                braces += 1;
                at += 2;
            }
            "crate" if text(at + 1) == "as" => found.push((line, "crate as ".to_owned() + text(at + 2))),
            "crate" | "super" if text(at + 1) == "::" => {
                let mut climbed = if text(at) == "crate" { usize::MAX } else { 1 };
                at += 2;
                while text(at) == "super" && text(at + 1) == "::" {
                    climbed = climbed.saturating_add(1);
                    at += 2;
                }
                if climbed >= depth + inline.len() {
                    // In lib.rs itself that is no import.
                    if path != "lib.rs" || FLOORS.iter().any(|(name, _)| *name == text(at)) {
                        found.push((line, text(at).to_owned()));
                    }
                }
                continue; // `{` must still be counted.
            }
            _ => {}
        }
        at += 1;
    }
    found
}

#[derive(Debug)]
struct Token {
    line: usize,
    text: String,
}

/// Names, `::` and single marks of Rust source; no comments, strings or characters.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < chars.len() {
        let start = at;
        let mut keep = false;
        match chars[at] {
            '/' if get(at + 1) == '/' => {
                while at < chars.len() && chars[at] != '\n' {
                    at += 1;
                }
            }
            '/' if get(at + 1) == '*' => {
                let mut nested = 0;
                while at < chars.len() {
                    match (chars[at], get(at + 1)) {
                        ('/', '*') => (nested, at) = (nested + 1, at + 2),
                        ('*', '/') => (nested, at) = (nested - 1, at + 2),
                        _ => at += 1,
                    }
                    if nested == 0 {
                        break;
                    }
                }
            }
            '"' => {
                at += 1;
                while at < chars.len() && chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            // A character, or a lifetime.
            '\'' if get(at + 1) == '\\' => {
                at += 3;
                while at < chars.len() && chars[at] != '\'' {
                    at += 1;
                }
                at += 1;
            }
            '\'' if get(at + 2) == '\'' => at += 3,
            '\'' => at += 1,
            ':' if get(at + 1) == ':' => (keep, at) = (true, at + 2),
            c if is_name(c) => {
                while is_name(get(at)) {
                    at += 1;
                }
                let name: String = chars[start..at].iter().collect();
                let marks = (at..chars.len()).take_while(|&at| chars[at] == '#').count();
                keep = true;
                if matches!(name.as_str(), "r" | "br" | "cr") && get(at + marks) == '"' {
                    // A raw string ends with a quote and as many marks as it began with.
                    keep = false;
                    at += marks + 1;
                    while at < chars.len() && !(chars[at] == '"' && (1..=marks).all(|i| get(at + i) == '#')) {
                        at += 1;
                    }
                    at += 1 + marks;
                }
            }
            c => (keep, at) = (!c.is_whitespace(), at + 1),
        }
        at = at.min(chars.len());
        if keep {
            found.push(Token {
                line,
                text: chars[start..at].iter().collect(),
            });
        }
        line += chars[start..at].iter().filter(|&&c| c == '\n').count();
    }
    found
}

#[test]
fn arrows_down_are_fine() {
    for (path, source) in [
        ("key.rs", "use std::fmt;"),
        ("error.rs", "use crate::key::Key;"),
        (
            "store/redis/link.rs",
            "use crate::store::{Link, Store};\nuse super::inbox;\nuse super::super::ledger;",
        ),
        (
            "runtime/node.rs",
            "use crate::protocol::step::Engine; use crate::store::Store; use tokio::sync::Notify;",
        ),
        (
            "locks.rs",
            "use crate::primitives::mutex::Mutex; use crate::store::memory::MemoryStore;",
        ),
        (
            "middleware/layer.rs",
            "use crate::locks::Locks;\nuse crate::primitives::guard::Guard;",
        ),
        (
            "testing/sim.rs",
            "use crate::protocol::step::Engine;\nuse crate::protocol::ledger::Ledger;",
        ),
        (
            "lib.rs",
            "pub use crate::locks::Locks; mod key; pub use key::Key;",
        ),
        (
            "engine/mod.rs",
            "pub(crate) mod queue; use std::time::Duration; use self::queue::Queue;",
        ),
        (
            "engine/mod.rs",
            "mod tests { use super::*; use super::queue::Queue; }",
        ),
        ("key.rs", "#[cfg(test)]\nmod tests {\n    use super::*;\n}"),
    ] {
        assert_eq!(check(path, source), Vec::<String>::new(), "{path}: {source}");
    }
}

#[test]
fn comments_and_strings_do_not_count() {
    let source = r###"
        //! [`Locks`](crate::locks::Locks)
        /* use crate::locks::Locks; /* tokio */ still tokio */
        /// tokio::spawn, crate::Locks
        fn f<'a>(_: &'a str) -> char { let _ = "crate::locks \" tokio"; let _ = r#"tokio "crate::Locks"#; '"' }
        fn g() -> char { '\'' } // SystemTime
    "###;
    assert_eq!(check("engine/shard.rs", source), Vec::<String>::new());
}

#[test]
fn arrows_up_are_found() {
    for (path, source, arrow) in [
        (
            "key.rs",
            "use crate::error::Error;",
            "src/key.rs:1: key -> error runs up",
        ),
        (
            "claim.rs",
            "\n\nuse crate::{\n    locks::Locks};",
            "src/claim.rs:3: imports `{` from lib.rs",
        ),
        ("store/mod.rs", "use crate::Key;", "imports `Key` from lib.rs"),
        ("store/mod.rs", "use super::Key;", "imports `Key` from lib.rs"),
        ("store/mod.rs", "use super::{Key};", "imports `{` from lib.rs"),
        (
            "store/mod.rs",
            "use super::runtime::Node;",
            "store -> runtime runs up",
        ),
        (
            "store/redis/link.rs",
            "fn f() { super::super::super::locks::f() }",
            "store -> locks runs up",
        ),
        (
            "store/memory.rs",
            "fn f() -> crate::locks::Locks { todo!() }",
            "store -> locks runs up",
        ),
        ("store/memory.rs", "use crate::*;", "imports `*` from lib.rs"),
        (
            "store/memory.rs",
            "use crate as tenure;",
            "imports `crate as tenure` from lib.rs",
        ),
        (
            "options.rs",
            "use crate::observe::Event;",
            "options -> observe runs up",
        ),
        (
            "runtime/node.rs",
            "use {std::fmt, crate::primitives::mutex::Mutex};",
            "runtime -> primitives runs up",
        ),
        (
            "primitives/mutex.rs",
            "use crate::locks::Locks;",
            "primitives -> locks runs up",
        ),
        (
            "testing/laws.rs",
            "use crate::primitives::mutex::Mutex;",
            "testing -> primitives runs up",
        ),
        (
            "locks.rs",
            "use crate::middleware::LockLayer;",
            "locks -> middleware runs up",
        ),
        (
            "locks.rs",
            "mod tests { use super::super::middleware::LockLayer; }",
            "locks -> middleware runs up",
        ),
        (
            "locks.rs",
            "mod a { fn f() {} } use super::middleware::LockLayer;",
            "locks -> middleware runs up",
        ),
        (
            "runtime/node.rs",
            r#"const S: &str = r"\"; use crate::locks::Locks;"#,
            "runtime -> locks runs up",
        ),
    ] {
        assert_fault(path, source, arrow);
    }
}

#[test]
fn some_never_meet() {
    for (path, source, arrow) in [
        (
            "primitives/mutex.rs",
            "use crate::store::Store;",
            "primitives -> store must never meet",
        ),
        (
            "middleware/service.rs",
            "use crate::store::Store;",
            "middleware -> store must never meet",
        ),
        (
            "middleware/service.rs",
            "use crate::protocol::step::Engine;",
            "middleware -> engine must never meet",
        ),
        (
            "engine/shard.rs",
            "use crate::runtime::node::Node;",
            "engine -> runtime must never meet",
        ),
        (
            "engine/shard.rs",
            "use crate::protocol::ledger::Ledger;",
            "engine -> store must never meet",
        ),
    ] {
        assert_fault(path, source, arrow);
    }
}

#[test]
fn a_file_without_a_floor_is_found() {
    assert_fault("util.rs", "", "src/util.rs: is on no floor");
    assert_fault("helpers/mod.rs", "", "is on no floor");
}

#[test]
fn clocks_and_runtimes_are_found_in_pure_files() {
    for path in ["engine/shard.rs", "engine/mod.rs", "store/ledger.rs"] {
        for (source, what) in [
            ("use tokio::sync::Notify;", "tokio in a pure file"),
            (
                "use tokio_util::sync::CancellationToken;",
                "tokio_util in a pure file",
            ),
            (
                "use std::time::{Duration, Instant};",
                "std::time::Instant in a pure file",
            ),
            (
                "use std::{fmt, time::{Instant}};",
                "std::time::Instant in a pure file",
            ),
            ("use std::time::*;", "time::* in a pure file"),
            (
                "use std::time;\nfn f() { time::Instant::now(); }",
                ":2: std::time::Instant in a pure file",
            ),
            (
                "fn f() { std::time::SystemTime::now(); }",
                "SystemTime in a pure file",
            ),
        ] {
            assert_fault(path, source, what);
        }
        assert!(check(path, "use crate::protocol::message::Instant;").is_empty());
    }
    assert!(check("runtime/clock.rs", "use tokio::time::Instant;").is_empty());
}

#[track_caller]
fn assert_fault(path: &str, source: &str, fault: &str) {
    let faults = check(path, source);
    assert!(
        faults.len() == 1 && faults[0].contains(fault),
        "{path}: {source}\n{faults:?}, not {fault:?}"
    );
}
