//! Requests that are refused because others have their key: told once a minute, however many they are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tracing::instrument::WithSubscriber;

use crate::driver::waiter::lock;
use crate::observe;

const PAUSE: Duration = Duration::from_secs(60);

/// Counts what is refused by one layer. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Crowd(Arc<Mutex<Refusals>>);

#[derive(Debug, Default)]
struct Refusals {
    /// Since it was told last.
    count: u64,
    /// That of the latest request.
    route: Option<String>,
    told: Option<Instant>,
}

impl Crowd {
    /// A request was refused. The first is told at once, and what follows within a minute when that is over.
    pub(super) fn note(&self, route: Option<&str>) {
        let mut refusals = lock(&self.0);
        refusals.count += 1;
        refusals.route = route.map(str::to_owned);
        if refusals.told.is_some_and(|told| told.elapsed() < PAUSE) {
            return;
        }
        refusals.told = Some(Instant::now());
        drop(refusals);
        self.tell();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.clone().tell_the_rest().with_current_subscriber());
        }
    }

    async fn tell_the_rest(self) {
        sleep(PAUSE).await;
        while self.tell() {
            sleep(PAUSE).await;
        }
    }

    /// Tells what was counted. Returns whether anything was.
    fn tell(&self) -> bool {
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
