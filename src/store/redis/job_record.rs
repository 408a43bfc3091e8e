//! Reads the memory of a job, whose fields `lua/job.lua` lists.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use crate::protocol::ledger::{CheckpointRecord, Expression, JobRecord};
use crate::protocol::message::{
    GrantNumber, JobNode, MAX_RUNS, NodeId, Payload, RunEnding, RunRecord, RunResult, TickTime,
};
use crate::store::redis::format;

/// Reads the fields of the hash. A field that cannot be read counts as missing: another version may have written it.
pub(crate) fn read(fields: HashMap<Vec<u8>, Vec<u8>>) -> JobRecord {
    let fields = fields.into_iter();
    let named = fields.filter_map(|(field, value)| Some((String::from_utf8(field).ok()?, value)));
    let mut fields: HashMap<String, Vec<u8>> = named.collect();
    let data = fields.remove("data");
    let of = Fields(&fields);
    let (run_count, _) = of
        .numbers::<2>("runs")
        .map_or((0, 0), |[count, tick]| (count, tick));
    let first = run_count.saturating_sub(MAX_RUNS as u64) + 1;
    JobRecord {
        mark: of.word("mark").map(TickTime),
        done: of.text("done") == Some("1"),
        attempt: of.word("attempt").unwrap_or_default(),
        winner: of.word("winner"),
        skipped: of.word("skipped").map(TickTime),
        passed: of
            .numbers("passed")
            .map(|[before, latest]| (TickTime(before), TickTime(latest))),
        expression: of.numbers("print").map(expression),
        former: of
            .numbers("former")
            .map(|[fingerprint, since, until]| (expression([fingerprint, since]), until)),
        well: of.word("well").map(TickTime),
        saved: of
            .numbers("saved")
            .zip(data)
            .and_then(|([tick, attempt, seq], data)| {
                Some(CheckpointRecord {
                    tick: TickTime(tick),
                    attempt: attempt.try_into().ok()?,
                    seq,
                    data: Payload(data.into()),
                })
            }),
        paused: of
            .0
            .get("paused")
            .map(|text| Arc::new(format::act(&String::from_utf8_lossy(text)))),
        resumed_ms: of.word("resumed"),
        wanted: of.text("wanted").and_then(format::wanted).map(Arc::new),
        run_count,
        runs: (first..=run_count).filter_map(|run| of.run(run)).collect(),
        nodes: fields.keys().filter_map(|field| of.node(field)).collect(),
        plan: of.text("plan").map(decoded),
    }
}

fn expression([fingerprint, since_ms]: [u64; 2]) -> Expression {
    Expression {
        fingerprint,
        since_ms,
    }
}

fn decoded(text: &str) -> Arc<str> {
    percent_decode_str(text).decode_utf8_lossy().into()
}

struct Fields<'a>(&'a HashMap<String, Vec<u8>>);

impl Fields<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        std::str::from_utf8(self.0.get(field)?).ok()
    }

    fn word<T: FromStr>(&self, field: &str) -> Option<T> {
        self.text(field)?.parse().ok()
    }

    /// Reads a field that has so many numbers, with a colon between them.
    fn numbers<const N: usize>(&self, field: &str) -> Option<[u64; N]> {
        let parts = self.text(field)?.split(':').map(|part| part.parse().ok());
        parts.collect::<Option<Vec<u64>>>()?.try_into().ok()
    }

    /// Reads the parts of a field behind the number of its run. `None`: the field is that of another run.
    fn parts<const N: usize>(&self, letter: char, run: u64) -> Option<[&str; N]> {
        let text = self.text(&format!("{letter}{}", run % MAX_RUNS as u64))?;
        let (of, parts) = text.split_once(':')?;
        let is_of_run = of.parse() == Ok(run);
        let parts: Vec<&str> = parts.splitn(N, ':').collect();
        parts.try_into().ok().filter(|_| is_of_run)
    }

    fn run(&self, run: u64) -> Option<RunRecord> {
        let [tick, attempt, number, node, name] = self.parts('h', run)?;
        Some(RunRecord {
            tick: TickTime(tick.parse().ok()?),
            attempt: attempt.parse().ok()?,
            number: GrantNumber(number.parse().ok()?),
            node: node.parse().ok()?,
            name: decoded(name),
            ending: self.ending(run),
        })
    }

    fn ending(&self, run: u64) -> Option<RunEnding> {
        let [outcome, took_ms, retries, text] = self.parts('e', run)?;
        Some(RunEnding {
            result: RunResult {
                outcome: outcome.parse().ok()?,
                took_ms: took_ms.parse().ok()?,
                retries: retries.parse().ok()?,
            },
            text: decoded(text),
        })
    }

    fn node(&self, field: &str) -> Option<(NodeId, JobNode)> {
        let node = field.strip_prefix('w').filter(|node| node.len() == 32)?;
        let (until, name) = self.text(field)?.split_once(':')?;
        let node_of_job = JobNode {
            name: decoded(name),
            until_ms: until.parse().ok()?,
        };
        Some((node.parse().ok()?, node_of_job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::RunOutcome;

    fn record(fields: &[(&str, &str)]) -> JobRecord {
        let fields = fields
            .iter()
            .map(|(field, text)| (field.as_bytes().to_vec(), text.as_bytes().to_vec()));
        read(fields.collect())
    }

    #[test]
    fn a_run_is_read_with_its_own_end_only() {
        let node = "0123456789abcdef0123456789abcdef";
        let run = |run: u64| format!("{run}:1000:2:17:{node}:web%201:b");
        let fields = [
            ("runs", "101:0"),
            ("h1", &*run(101)),
            ("e1", "1:failed:5:0:of%20an%20earlier run"),
            ("h0", &*run(100)),
            ("e0", "100:timed_out:7:3:no%0Arates: x"),
            ("h2", &*run(1)),
            ("h3", "3:x"),
        ];
        let runs = record(&fields).runs;
        assert_eq!(runs.len(), 2);
        let ended = runs[0].ending.as_ref().unwrap();
        assert_eq!(
            (ended.result.outcome, ended.result.took_ms),
            (RunOutcome::TimedOut, 7)
        );
        assert_eq!((ended.result.retries, &*ended.text), (3, "no\nrates: x"));
        assert_eq!((&*runs[1].name, &runs[1].ending), ("web 1:b", &None));
    }

    #[test]
    fn fields_of_other_versions_are_left_out() {
        let fields = [
            ("runs", "18446744073709551616:1"),
            ("mark", "soon"),
            ("attempt", "-1"),
            ("wide", "1:a"),
            ("w0123456789abcdef0123456789abcdeg", "1:a"),
            ("saved", "1:2:3"),
            ("print", "1"),
        ];
        assert_eq!(record(&fields), JobRecord::default());
        assert_eq!(record(&[("runs", "18446744073709551615:1")]).runs.len(), 0);
    }
}
