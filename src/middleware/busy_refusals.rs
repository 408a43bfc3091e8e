//! Requests that are refused because others have their key: told once a minute, however many they are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tracing::instrument::WithSubscriber;

use crate::driver::waiter::lock;
use crate::observe;

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Counts what is refused by one layer. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct BusyRefusals(Arc<Mutex<BusyRefusalCount>>);

#[derive(Debug, Default)]
struct BusyRefusalCount {
    /// Since it was told last.
    count: u64,
    /// That of the latest request.
    route: Option<String>,
    told: Option<Instant>,
}

impl BusyRefusals {
    /// A request was refused. The first is told at once, and what follows within a minute when that is over.
    pub(super) fn count_refusal(&self, route: Option<&str>) {
        let mut refusals = lock(&self.0);
        refusals.count += 1;
        refusals.route = route.map(str::to_owned);
        if refusals.told.is_some_and(|told| told.elapsed() < REPORT_INTERVAL) {
            return;
        }
        refusals.told = Some(Instant::now());
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

    /// Tells what was counted. Returns whether anything was.
    fn report(&self) -> bool {
        let mut refusals = lock(&self.0);
        let count = std::mem::take(&mut refusals.count);
        if count == 0 {
            return false;
        }
        refusals.told = Some(Instant::now());
        let route = refusals.route.take();
        // Nothing is locked while it is told: a subscriber may do anything.
        drop(refusals);
        observe::refused_busy(count, route.as_deref());
        true
    }
}
