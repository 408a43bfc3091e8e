//! What the replacement of a master explains, in the journals of a run with Sentinels.
//!
//! A promotion explains lost leases and writes, refusals and going back, each only while it can cause them. It never
//! explains two guards at one instant, a fence that does not grow, or a counter that is off.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::torture::referee::{BareMajority, Case, Findings, judge};

/// A replica took the place of its master. The first use of a server counts, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    /// When the first write was made that the new master may lack.
    pub unreplicated: u64,
    /// When the old master was killed, or told to step down.
    pub from: u64,
    /// When the new master granted.
    pub to: u64,
}

impl Case {
    fn lateness_ns(&self) -> u64 {
        self.lateness.as_nanos() as u64
    }

    /// Returns the promotions that may explain what a process noted at this time.
    pub fn promotions_at(&self, at: u64) -> impl Iterator<Item = &Promotion> {
        let is_noted = move |from, to| from <= at && at < to + self.lateness_ns();
        let promotions = self.promotions.iter();
        promotions.filter(move |promotion| is_noted(promotion.from, promotion.to))
    }

    /// Returns whether a promotion may explain what a process noted at this time.
    pub fn is_of_promotion(&self, at: u64) -> bool {
        self.promotions_at(at).next().is_some()
    }

    /// Returns whether a stall may explain a loss at this time: the renewals of a lease failed or were late, and so may be those
    /// after it, because connections are opened again.
    pub fn is_of_stall(&self, at: u64) -> bool {
        let later = 2 * self.lease.as_nanos() as u64;
        let mut stalls = self.stalls.iter();
        stalls.any(|(from, to)| *from <= at && at < to + later)
    }

    /// Returns whether a lease on the key may have had no majority at this time.
    pub fn had_bare_majority(&self, key: usize, at: u64) -> bool {
        let is_then = |bare: &BareMajority| bare.from <= at && at < bare.to + self.lateness_ns();
        self.bare.iter().any(|bare| bare.key == key && is_then(bare))
    }

    /// Returns whether a write may be lost that was noted as done at this time.
    pub fn may_be_lost(&self, at: u64) -> bool {
        let mut promotions = self.promotions.iter();
        promotions.any(|promotion| promotion.unreplicated <= at && at < promotion.to + self.lateness_ns())
    }

    /// Returns whether a transfer may be gone at this time because the new master lacks it.
    pub fn is_lost_transfer(&self, at: u64, sent: u64) -> bool {
        let sent_by = sent + self.lateness_ns();
        self.promotions_at(at)
            .any(|promotion| promotion.unreplicated <= sent_by)
    }

    /// Returns whether an error needs no fault of a node.
    pub fn is_explained(&self, at: u64, error: &str) -> bool {
        match error {
            "refused ReadOnly" => self.losses || self.is_of_promotion(at),
            "refused Recovering" => self.is_of_promotion(at),
            // A replica that stalls has this effect at any time. The command of a guarded write may fail, too.
            "refused NoReplicas" | "refused Loading" | "failed NOREPLICAS" => !self.promotions.is_empty(),
            error => {
                let faults = ["unexpected", "refused", "failed"];
                !faults.iter().any(|fault| error.starts_with(fault))
            }
        }
    }
}

const SECOND: u64 = 1_000_000_000;

/// Judges lines that begin with a time in seconds. A promotion lasts from 40 to 50 s, and writes since 38 s may be lost. The
/// counter of the key is 0.
fn found<L: AsRef<str>>(lines: &[L]) -> Findings {
    static JOURNALS: AtomicUsize = AtomicUsize::new(0);
    let number = JOURNALS.fetch_add(1, Ordering::Relaxed);
    let name = format!("tenure-promotions-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let line = |line: &L| {
        let (at, rest) = line.as_ref().split_once(' ').unwrap();
        format!("{} {rest}\n", at.parse::<u64>().unwrap() * SECOND)
    };
    std::fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
    let case = Case {
        journals: vec![("0.0".into(), path.clone())],
        keys: 2,
        exclusive: vec![0, 1],
        run: (0, 100 * SECOND),
        troubles: Vec::new(),
        promotions: vec![Promotion {
            unreplicated: 38 * SECOND,
            from: 40 * SECOND,
            to: 50 * SECOND,
        }],
        bare: vec![BareMajority {
            key: 0,
            from: 60 * SECOND,
            to: 65 * SECOND,
        }],
        lateness: Duration::from_secs(1),
        bound: Duration::from_secs(100),
        losses: false,
        harmless_stall: Duration::from_millis(500),
        stalls: vec![(70 * SECOND, 71 * SECOND)],
        lease: Duration::from_secs(2),
        counters: Some(vec![0, 0]),
        notes: vec![Vec::new(), Vec::new()],
    };
    let (_, findings) = judge(&case);
    std::fs::remove_file(path).unwrap();
    findings
}

/// Checks that the lines break the rule, and only that rule.
#[track_caller]
fn breaks(rule: &'static str, lines: &[impl AsRef<str>]) {
    let found = found(lines);
    assert_eq!(found.rules(), [rule], "{found}");
}

#[track_caller]
fn is_fine(lines: &[impl AsRef<str>]) {
    let found = found(lines);
    assert!(found.is_empty(), "{found}");
}

#[test]
fn a_promotion_explains_refusals_until_the_new_master_grants() {
    let rule = "an error that nothing explains";
    breaks(rule, &["39 error 0 refused Recovering"]);
    is_fine(&["40 error 0 refused Recovering", "50 error 0 refused ReadOnly"]);
    breaks(rule, &["51 error 0 refused Recovering"]);
    breaks(rule, &["51 error 0 refused ReadOnly"]);
    breaks(rule, &["45 error 0 refused OutOfMemory"]);
}

#[test]
fn a_promotion_explains_a_loss_that_begins_meanwhile() {
    let rule = "lost, but nothing stood still";
    let granted = "30 granted 0 0 7 write";
    breaks(rule, &[granted, "39 check 0 0", "45 lost 0 Expired"]);
    is_fine(&[granted, "45 check 0 0", "60 lost 0 Expired"]);
    breaks(rule, &[granted, "52 check 0 0", "52 lost 0 Expired"]);
}

#[test]
fn a_process_that_stood_still_explains_a_loss() {
    let lost = ["30 granted 0 0 7 write", "36 check 0 0", "36 lost 0 Deadline"];
    breaks("lost, but nothing stood still", &lost);
    let with = |stall| [&lost[..], &[stall]].concat();
    let rule = "lost, but nothing stood still";
    breaks(rule, &with("37 event stalled 500"));
    is_fine(&with("37 event stalled 1001"));
    is_fine(&with("36 event stalled 501"));
    breaks(rule, &with("32 event stalled 9000"));
    // The loss was before the stall.
    breaks(rule, &with("37 event stalled 501"));
}

#[test]
fn a_server_that_stood_still_explains_a_loss() {
    let lost = |at: &str| {
        [
            "68 granted 0 0 7 write".to_owned(),
            format!("{at} check 0 0"),
            format!("{at} lost 0 Deadline"),
        ]
    };
    let rule = "lost, but nothing stood still";
    breaks(rule, &lost("69"));
    is_fine(&lost("70"));
    is_fine(&lost("74"));
    breaks(rule, &lost("75"));
}

#[test]
fn killed_masters_explain_a_loss_of_the_key_that_they_shared() {
    let rule = "lost, but nothing stood still";
    let lost = |key: &str, over: &str| {
        [
            format!("55 granted 0 {key} 7 write"),
            format!("{over} check 0 0"),
            "70 lost 0 Deadline".to_owned(),
        ]
    };
    is_fine(&lost("0", "62"));
    breaks(rule, &lost("1", "62"));
    breaks(rule, &lost("0", "59"));
    breaks(rule, &lost("0", "66"));
}

/// A task that stops for long while it holds a key, and whose release is noted after the next grant, keeps no caller waiting.
#[test]
fn a_holder_has_the_key_until_it_gives_it_back() {
    let lines = |ending: &str| {
        [
            "1 granted 0 0 7 write",
            ending,
            "104 granted 1 0 8 write",
            "105 released 0 kept",
        ]
        .map(str::to_owned)
    };
    is_fine(&lines("103 ending 0 release"));
    breaks("not free again in time", &lines("2 ending 0 release"));
}

#[test]
fn a_promotion_explains_a_lost_write_that_no_replica_had() {
    let rule = "a note that is off";
    let noted = |done| ["30 granted 0 0 7 write", "30 note 0 asked", done];
    breaks(rule, &noted("37 note 0 done"));
    is_fine(&noted("38 note 0 done"));
    breaks(rule, &noted("51 note 0 done"));
}

#[test]
fn a_promotion_explains_a_lost_transfer_that_no_replica_had() {
    let rule = "a lease that was sent once is gone in its time";
    let sent = |second: u64| format!("45 event gone_early {}", second * SECOND);
    breaks(rule, &[&sent(36)]);
    is_fine(&[&sent(38)]);
    breaks(rule, &[&format!("51 event gone_early {}", 45 * SECOND)]);
}

#[test]
fn a_promotion_explains_that_an_observer_goes_back_once() {
    let rule = "an observer goes back";
    breaks(rule, &["30 leader 7 7", "39 leader 6 6"]);
    is_fine(&["30 leader 7 7", "45 leader 6 6", "46 leader 7 none"]);
    breaks(rule, &["30 leader 7 7", "45 leader 6 6", "46 leader 5 5"]);
    breaks("proclaimed by another", &["45 leader 7 6"]);
}

#[test]
fn a_promotion_explains_one_more_latch() {
    let rule = "one count-down told to two";
    let told = |times: &[u64]| {
        let line = |at: &u64, rest| format!("{at} latch 1 {rest}");
        let set = ["set asked", "set 1"].map(|rest| line(&times[0], rest));
        let down = times
            .iter()
            .flat_map(|at| ["down asked", "down 3"].map(|rest| line(at, rest)));
        set.into_iter().chain(down).collect::<Vec<_>>()
    };
    breaks(rule, &told(&[30, 31]));
    is_fine(&told(&[39, 40]));
    breaks(rule, &told(&[39, 40, 41]));
}

#[test]
fn a_promotion_never_explains_two_holders_a_fence_or_a_counter() {
    let first = ["42 granted 0 0 7 write", "44 check 0 1"];
    let both = [&first[..], &["43 granted 1 0 8 write", "45 check 1 1"]].concat();
    breaks("two guards held at one instant", &both);
    let older = [&first[..], &["45 granted 1 0 6 write", "46 check 1 1"]].concat();
    breaks("a fence that does not grow", &older);
    breaks(
        "a counter that is off",
        &["42 granted 0 0 7 write", "44 about 0 1", "44 wrote 0 1 0"],
    );
}
