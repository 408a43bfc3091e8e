//! Quiet points of the torture: the tasks of a node stop where they are, and its gauges must equal what its journal has.
//!
//! A task stops before it begins with a key, or while it holds one. Tasks that wait for a grant go on until they have it. So
//! what is held and what waits comes to rest, and neither is zero then.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::support::meter::Meter;
use crate::torture::journal::now;
use crate::torture::orders::Locked;
use crate::torture::worker::Worker;

/// Longer than each release and each answer takes, also in an outage. Only a wrong gauge waits for it.
const PATIENCE: Duration = Duration::from_secs(12);

/// The kinds that are compared.
const KINDS: [&str; 2] = ["lock", "semaphore"];

/// What a node holds and waits for by its journal, and whether its tasks are stopped.
#[derive(Debug)]
pub struct Quiet {
    stopped: watch::Sender<bool>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counts {
    /// The kind of each grant without an end.
    granted: HashMap<u64, &'static str>,
    /// By gauge and kind.
    others: HashMap<(&'static str, &'static str), usize>,
    /// How often a count changed.
    changes: u64,
}

/// Counts one until it is dropped.
pub struct Counting<'a> {
    quiet: &'a Quiet,
    of: (&'static str, &'static str),
}

impl Default for Quiet {
    fn default() -> Self {
        Quiet {
            stopped: watch::Sender::new(false),
            counts: Mutex::default(),
        }
    }
}

impl Quiet {
    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        let mut counts = self.counts.lock().expect("no count panics");
        counts.changes += 1;
        change(&mut counts)
    }

    /// Counts a grant in the journal.
    pub fn granted(&self, id: u64, kind: &'static str) {
        self.change(|counts| counts.granted.insert(id, kind));
    }

    /// Counts the end of a grant in the journal.
    pub fn ending(&self, id: u64) {
        self.change(|counts| counts.granted.remove(&id));
    }

    /// Counts a caller that waits.
    pub fn waits(&self, kind: &'static str) -> Counting<'_> {
        self.counting(("tenure_waiting", kind))
    }

    /// Counts a guard that the journal does not have.
    pub fn holds(&self, kind: &'static str) -> Counting<'_> {
        self.counting(("tenure_held", kind))
    }

    fn counting(&self, of: (&'static str, &'static str)) -> Counting<'_> {
        self.change(|counts| *counts.others.entry(of).or_default() += 1);
        Counting { quiet: self, of }
    }

    /// Waits while the tasks of the node are to stop.
    pub async fn pass(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as this.
        let _ = stopped.wait_for(|stopped| !*stopped).await;
    }

    fn counts(&self) -> Counts {
        self.counts.lock().expect("no count panics").clone()
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.quiet.change(|counts| {
            *counts.others.get_mut(&self.of).expect("it was counted") -= 1;
        });
    }
}

impl Counts {
    fn expected(&self, gauge: &'static str, kind: &'static str) -> usize {
        let granted = self.granted.values().filter(|of| **of == kind).count();
        let granted = if gauge == "tenure_held" { granted } else { 0 };
        granted + self.others.get(&(gauge, kind)).copied().unwrap_or(0)
    }

    /// Returns each gauge with its value and the expected one.
    fn beside(&self, gauges: &Meter) -> Vec<(String, usize, usize)> {
        let names = ["tenure_held", "tenure_waiting"];
        let compared = names.iter().flat_map(|gauge| {
            KINDS.map(|kind| {
                let series = format!("{gauge}{{kind={kind}}}");
                let value = gauges.gauge(&series).unwrap_or_default();
                (series, value as usize, self.expected(gauge, kind))
            })
        });
        compared.collect()
    }
}

impl Worker {
    /// Compares the gauges with the journal, again and again.
    pub async fn keep_comparing_gauges(&self, gauges: &Meter, rng: &mut fastrand::Rng) {
        let mut stop = self.stop.clone();
        while !*self.stop.borrow() && self.orders.locked == Locked::All {
            let pause = Duration::from_millis(rng.u64(1_000..3_000));
            let _ = timeout(pause, stop.wait_for(|stop| *stop)).await;
            self.quiet.stopped.send_replace(true);
            self.compare_gauges(gauges).await;
            self.quiet.stopped.send_replace(false);
        }
    }

    /// Waits for a moment at which the gauges equal the journal.
    async fn compare_gauges(&self, gauges: &Meter) {
        let end = Instant::now() + PATIENCE;
        loop {
            let before = self.quiet.counts();
            let found = before.beside(gauges);
            let is_equal = found.iter().all(|(_, value, expected)| value == expected);
            if is_equal && self.quiet.counts() == before {
                let are_any = |gauge| {
                    found
                        .iter()
                        .any(|(series, value, _)| series.starts_with(gauge) && *value > 0)
                };
                if are_any("tenure_held") && are_any("tenure_waiting") {
                    self.journal.write(now(), format_args!("event quiet"));
                }
                return;
            }
            if *self.stop.borrow() {
                return;
            }
            if Instant::now() > end {
                let line = format_args!("broken gauges, each with the journal's count: {found:?}");
                return self.journal.write(now(), line);
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}
