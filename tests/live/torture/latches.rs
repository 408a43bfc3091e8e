//! Latches in the torture: each quarter of a second has a name. All nodes set, count down and wait for that latch.
//!
//! A latch is set once per name and life, so at most one call returns that it set the latch, and at most one call returns
//! each number below [`COUNT`]. No waiter is told of zero before [`COUNT`] calls began.

use std::collections::HashMap;
use std::time::Duration;

use tenure::Error;
use tenure::error::{StoreError, StoreErrorKind};
use tokio::time::{sleep, timeout};

use crate::torture::journal::now;
use crate::torture::orders::{Locked, SEMAPHORE};
use crate::torture::referee::{Case, Findings, Tally};
use crate::torture::worker::Worker;

/// The count that a latch is set to.
const COUNT: u32 = 5;
/// Longer than a name is used, unless a process stalls.
pub const LIFE: Duration = Duration::from_secs(4);

/// Returns the name of the current latch. On a cluster all latches are in the slot of the semaphore.
fn name() -> String {
    format!("{{lock:{SEMAPHORE}}}{}", now() / 250_000_000)
}

/// Returns the answer to a count-down without locks: some number, and only zero for every second name. So in every round two
/// calls have the answer of some count-downs, and no call has that of others.
fn pretended(name: &str, rng: &mut fastrand::Rng) -> u32 {
    if name.ends_with(['1', '3', '5', '7', '9']) {
        0
    } else {
        rng.u32(..COUNT)
    }
}

impl Worker {
    /// Sets and counts down.
    pub async fn counts_down(&self, rng: &mut fastrand::Rng) {
        while !*self.stop.borrow() {
            let name = name();
            let latch = self.node.latch(&name).life(LIFE);
            if rng.u32(..4) == 0 {
                let set = async { latch.try_set_count(COUNT).await.map(u32::from) };
                self.calls(&name, "set", set, 1, rng).await;
            }
            self.calls(&name, "down", latch.count_down(), pretended(&name, rng), rng)
                .await;
            sleep(Duration::from_micros(rng.u64(0..20_000))).await;
        }
    }

    /// Waits for zero.
    pub async fn waits_for_zero(&self, rng: &mut fastrand::Rng) {
        while !*self.stop.borrow() {
            let (name, wait) = (name(), Duration::from_millis(rng.u64(1..1_500)));
            let latch = self.node.latch(&name);
            let waits = async { latch.wait_timeout(wait).await.map(u32::from) };
            self.calls(&name, "wait", waits, 1, rng).await;
            sleep(Duration::from_micros(rng.u64(0..20_000))).await;
        }
    }

    /// Makes one of the calls. Some are dropped.
    async fn calls(
        &self,
        name: &str,
        what: &str,
        call: impl Future<Output = Result<u32, Error>>,
        pretended: u32,
        rng: &mut fastrand::Rng,
    ) {
        let says = |answer: &str| {
            self.journal
                .write(now(), format_args!("latch {name} {what} {answer}"));
        };
        says("asked");
        if self.orders.locked == Locked::None {
            sleep(Duration::from_micros(rng.u64(0..500))).await;
            return says(&pretended.to_string());
        }
        let patience = match rng.u32(..200) {
            0 => Duration::from_micros(1 << rng.u32(4..14)),
            _ => Duration::from_secs(3600),
        };
        match timeout(patience, call).await {
            Err(_) => {}
            Ok(Ok(answer)) => says(&answer.to_string()),
            Ok(Err(Error::Unset { .. })) => says("unset"),
            // Some errors promise that nothing was executed.
            Ok(Err(error)) => {
                if matches!(&error, Error::Store { source, .. } if is_not_executed(source)) {
                    says("not");
                }
                self.failed(self.orders.latches_key(), &error);
            }
        }
    }
}

/// Returns whether the error says that nothing was executed.
fn is_not_executed(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Unreachable | StoreErrorKind::Refused(_)
    )
}

/// The journal lines about the latches of one name.
#[derive(Default)]
struct Lived {
    /// When the first latch could have been set, and the time of the last line.
    first: Option<u64>,
    last: u64,
    set: u64,
    /// The number of calls without an answer.
    sets_unknown: u64,
    downs_unknown: u64,
    /// The number of calls that returned each count.
    left: [u64; COUNT as usize],
    /// When the calls to count down began.
    began: Vec<u64>,
    /// When waiters were told of zero.
    zero: Vec<u64>,
}

/// The journal lines about all latches.
#[derive(Default)]
pub struct Latches(HashMap<String, Lived>);

impl Latches {
    /// Reads a line of a journal: a call, or its answer.
    pub fn read(&mut self, at: u64, name: &str, rest: &str) -> Option<()> {
        let (what, answer) = rest.split_once(' ')?;
        let lived = self.0.entry(name.to_owned()).or_default();
        lived.last = lived.last.max(at);
        match (what, answer) {
            ("set", "asked") => {
                lived.first = Some(lived.first.map_or(at, |first| first.min(at)));
                lived.sets_unknown += 1;
            }
            ("set", "not") => lived.sets_unknown -= 1,
            ("set", set) => {
                lived.sets_unknown -= 1;
                lived.set += set.parse::<u64>().ok()?;
            }
            ("down", "asked") => {
                lived.began.push(at);
                lived.downs_unknown += 1;
            }
            ("down", "unset" | "not") => lived.downs_unknown -= 1,
            ("down", left) => {
                lived.downs_unknown -= 1;
                *lived.left.get_mut(left.parse::<usize>().ok()?)? += 1;
            }
            ("wait", "1") => lived.zero.push(at),
            ("wait", _) => {}
            _ => return None,
        }
        Some(())
    }

    pub fn judge(&self, case: &Case, tally: &mut Tally, findings: &mut Findings) {
        for (name, lived) in &self.0 {
            tally.latches += lived.set;
            tally.zeros += lived.zero.len() as u64;
            for zero in &lived.zero {
                let began = lived.began.iter().filter(|began| *began < zero).count();
                if began < COUNT as usize {
                    let text = format!("latch {name}: {began} calls had begun");
                    findings.add("told of zero too early", text);
                }
            }
            // Lost counts stay lost. From a promotion on there may be two latches: that of each master.
            let first = lived.began.iter().chain(&lived.first).min();
            let met = case.promotions.iter().filter(|promotion| {
                lived.last >= promotion.from && first.is_some_and(|first| *first <= promotion.to)
            });
            let copies = met.count() as u64;
            let shown = || {
                let Lived {
                    set,
                    sets_unknown,
                    left,
                    downs_unknown,
                    ..
                } = lived;
                format!("latch {name}: set {set}+{sets_unknown}, left {left:?}+{downs_unknown}")
            };
            // A call at zero returns zero.
            if lived.left[1..]
                .iter()
                .any(|told| *told > lived.set + lived.sets_unknown + copies)
            {
                findings.add("one count-down told to two", shown());
            }
            // No latch expired, so there was only one.
            let life = LIFE.as_nanos() as u64;
            if lived.first.is_none_or(|first| lived.last >= first + life) {
                continue;
            }
            if lived.set > 1 + copies {
                findings.add("latches that were set twice", shown());
            }
            if copies > 0 {
                continue;
            }
            tally.latches_exact += u64::from(lived.downs_unknown == 0);
            // A count-down that began before the set, and was repeated after it, returns zero and did not count.
            let whole = u64::from(!lived.zero.is_empty());
            let missing: u64 = lived.left.iter().map(|told| whole.saturating_sub(*told)).sum();
            if missing > lived.downs_unknown {
                findings.add("count-downs that are missing", shown());
            }
        }
    }
}
