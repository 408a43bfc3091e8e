//! Requests that are refused because other requests hold their key. One event a minute reports their number.

use std::mem::take;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tracing::instrument::WithSubscriber;

use crate::driver::waiter::lock;
use crate::observe;

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Counts the busy refusals of one layer. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct BusyRefusals(Arc<Mutex<BusyRefusalCount>>);

#[derive(Debug, Default)]
struct BusyRefusalCount {
    /// The number of refusals since the last report.
    count: u64,
    /// How many of them waited, or would have waited if the queue had not been full.
    in_vain: u64,
    /// The route of the latest refusal.
    route: Option<String>,
    reported_at: Option<Instant>,
}

impl BusyRefusals {
    /// Counts a refusal. The first one is reported at once. Later ones are reported together, one minute after the
    /// last report.
    pub(super) fn count_refusal(&self, may_wait: bool, route: Option<&str>) {
        let mut refusals = lock(&self.0);
        refusals.count += 1;
        refusals.in_vain += u64::from(may_wait);
        refusals.route = route.map(str::to_owned);
        if refusals
            .reported_at
            .is_some_and(|at| at.elapsed() < REPORT_INTERVAL)
        {
            return;
        }
        refusals.reported_at = Some(Instant::now());
        drop(refusals);
        self.report();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.clone().report_every_interval().with_current_subscriber());
        }
    }

    async fn report_every_interval(self) {
        sleep(REPORT_INTERVAL).await;
        while self.report() {
            sleep(REPORT_INTERVAL).await;
        }
    }

    /// Reports what was counted. Returns whether there was anything to report.
    fn report(&self) -> bool {
        let mut refusals = lock(&self.0);
        let (count, in_vain) = (take(&mut refusals.count), take(&mut refusals.in_vain));
        if count == 0 {
            return false;
        }
        refusals.reported_at = Some(Instant::now());
        let route = refusals.route.take();
        // The lock is released before the report, because a subscriber may run any code.
        drop(refusals);
        observe::refused_busy(count, in_vain, route.as_deref());
        true
    }
}
