//! Tests judge order, counts and states, and never how fast the machine was.

use std::collections::BTreeMap;
use std::path::Path;

/// What measures time.
const CLOCKS: [&str; 3] = ["elapsed()", "now() - ", "server_time"];

/// No slow machine makes it fail.
const LOWER_BOUND: &str = "a time that must have passed at least";
/// A passing test does not come to its end.
const PATIENCE: &str = "ends a test that hangs";
/// Nothing is judged by it.
const PRINTED: &str = "printed, or noted with an event";
/// The time comes from outside of the test.
const SPAN: &str = "lasts as long as it was told to";
const TORTURE: &str = "the torture: spans, stalls and bounds of its own";
/// Nothing passes.
const MOMENT: &str = "computes a moment";
/// The bound of a count, by the time that the count took.
const RATE: &str = "a longer time allows more";
/// How often each file below `tests` may measure time, and why.
const ALLOWED: &[(&str, usize, &str)] = &[
    ("it/event_table.rs", 3, PRINTED),
    ("it/key_machine.rs", 1, PATIENCE),
    ("it/metrics.rs", 2, LOWER_BOUND),
    ("it/nonce.rs", 1, MOMENT),
    ("it/notes.rs", 1, MOMENT),
    ("it/proxy.rs", 1, LOWER_BOUND),
    ("it/recovery.rs", 1, LOWER_BOUND),
    ("it/simulations.rs", 3, PRINTED),
    ("it/ticks.rs", 2, LOWER_BOUND),
    ("it/ticks_removal.rs", 1, LOWER_BOUND),
    ("live/clocks.rs", 1, PRINTED),
    ("live/cluster.rs", 1, MOMENT),
    ("live/clusters_failover.rs", 3, RATE),
    ("live/differential/draws.rs", 2, MOMENT),
    ("live/differential/meddling.rs", 2, PATIENCE),
    ("live/differential/votes.rs", 1, PATIENCE),
    ("live/elections.rs", 1, RATE),
    ("live/events.rs", 3, LOWER_BOUND),
    ("live/failovers.rs", 1, PRINTED),
    ("live/foreign_values.rs", 1, LOWER_BOUND),
    ("live/inspect/costs.rs", 2, RATE),
    ("live/inspect/notes.rs", 4, RATE),
    ("live/interop.rs", 3, RATE),
    ("live/interop/pairs.rs", 2, PRINTED),
    ("live/interop/pairs_on_masters.rs", 1, PRINTED),
    ("live/interop/rslock/src/main.rs", 2, SPAN),
    ("live/leaders.rs", 3, SPAN),
    ("live/loss.rs", 1, LOWER_BOUND),
    ("live/many_ticks.rs", 1, PRINTED),
    ("live/multi.rs", 1, PRINTED),
    ("live/outages.rs", 1, PATIENCE),
    ("live/quiet.rs", 1, RATE),
    ("live/quorums_clocks.rs", 2, PATIENCE),
    ("live/quorums_faults.rs", 1, PRINTED),
    ("live/requests.rs", 3, SPAN),
    ("live/run_all.rs", 2, SPAN),
    ("live/runtimes.rs", 4, PATIENCE),
    ("live/scenarios.rs", 1, RATE),
    ("live/server.rs", 1, PATIENCE),
    ("live/stage.rs", 2, PRINTED),
    ("live/store.rs", 3, PATIENCE),
    ("live/ticks.rs", 8, SPAN),
    ("live/torture.rs", 2, TORTURE),
    ("live/torture/clusters.rs", 2, TORTURE),
    ("live/torture/failovers.rs", 3, TORTURE),
    ("live/torture/faults.rs", 1, TORTURE),
    ("live/torture/quorums.rs", 1, TORTURE),
    ("live/torture/travel.rs", 1, TORTURE),
    ("live/torture/worker.rs", 3, TORTURE),
    ("live/writes.rs", 2, PATIENCE),
    ("live/writes_of_several.rs", 2, PATIENCE),
    ("support/alone.rs", 1, PATIENCE),
    ("support/inspect.rs", 1, MOMENT),
];

/// Adds the lines of each file that measure time.
fn measured(folder: &Path, root: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.strip_prefix(root).unwrap().to_str().unwrap();
        let file = file.replace(std::path::MAIN_SEPARATOR, "/");
        if path.is_dir() {
            measured(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && file != "it/clockless.rs" {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(str::trim);
            let lines = lines.filter(|line| CLOCKS.iter().any(|clock| line.contains(clock)));
            let lines: Vec<_> = lines.map(str::to_owned).collect();
            if !lines.is_empty() {
                found.insert(file, lines);
            }
        }
    }
}

#[test]
fn no_test_measures_time_without_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut found = BTreeMap::new();
    measured(&root, &root, &mut found);
    let allowed: BTreeMap<_, _> = ALLOWED.iter().map(|(file, count, _)| (*file, *count)).collect();
    assert_eq!(allowed.len(), ALLOWED.len(), "a file is named twice");
    for (file, lines) in &found {
        let most = allowed.get(&**file).copied().unwrap_or(0);
        assert_eq!(lines.len(), most, "{file} measures time: {lines:#?}");
    }
    let gone: Vec<_> = allowed
        .keys()
        .filter(|file| !found.contains_key(**file))
        .collect();
    assert!(gone.is_empty(), "these measure none: {gone:?}");
}
