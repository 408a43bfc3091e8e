//! The compiler's notes about types that are no keys: tests/notes/main.rs does not compile, and lists the notes line
//! by line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Returns the features of this binary: with the same features the library is not built again.
fn features() -> String {
    macro_rules! enabled {
        ($($feature:literal)+) => {
            [$(cfg!(feature = $feature).then_some($feature)),+]
        };
    }
    let all = enabled!("default" "redis" "bb8" "rustls" "tower" "scheduler" "chrono" "jiff" "axum" "metrics" "testing");
    all.into_iter().flatten().collect::<Vec<_>>().join(",")
}

/// Returns what rustc says about each line, with all errors of a line together.
fn said() -> BTreeMap<usize, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TERM_COLOR", "never")
        .args([
            "test",
            "--no-run",
            "--test",
            "notes",
            "--no-default-features",
            "--features",
            &features(),
        ])
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap());
    // The variables that cargo sets for this test's package are no settings. A build script that reads them runs
    // again, here and in the next `cargo test`.
    let told_to_us = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told_to_us)) {
        cargo.env_remove(name);
    }
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{told}");
    let mut said = BTreeMap::<usize, String>::new();
    for error in told.split("\nerror[").skip(1) {
        let (_, place) = error
            .split_once("--> tests/notes/main.rs:")
            .unwrap_or_else(|| panic!("{error}"));
        let line = place.split(':').next().unwrap().parse().unwrap();
        said.entry(line).or_default().push_str(error);
    }
    assert!(!said.is_empty(), "{told}");
    said
}

#[test]
fn the_compiler_says_what_a_key_is() {
    let mut said = said();
    let cases = include_str!("../notes/main.rs").lines().enumerate();
    let cases = cases.filter_map(|(at, line)| Some((at + 1, line.split_once(" //~ ")?.1)));
    for (line, note) in cases {
        let error = said
            .remove(&line)
            .unwrap_or_else(|| panic!("line {line} compiles"));
        // The source lines that rustc quotes contain the note, too.
        let error: String = error.lines().filter(|line| !line.contains("//~")).collect();
        assert!(error.contains(note), "line {line}, `{note}`: {error}");
    }
    assert!(said.is_empty(), "unexpected errors: {said:#?}");
}
