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

impl Refusals {
    /// Tells what was counted, if anything was.
    fn tell(&mut self) -> Option<(u64, Option<String>)> {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return None;
        }
        self.told = Some(Instant::now());
        Some((count, self.route.take()))
    }
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
        let told = refusals.tell();
        drop(refusals);
        tell(told);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.clone().tell_the_rest().with_current_subscriber());
        }
    }

    async fn tell_the_rest(self) {
        loop {
            sleep(PAUSE).await;
            let told = lock(&self.0).tell();
            if told.is_none() {
                return;
            }
            tell(told);
        }
    }
}

/// Nothing is locked: a subscriber may do anything.
fn tell(told: Option<(u64, Option<String>)>) {
    if let Some((count, route)) = told {
        observe::refused_busy(count, route.as_deref());
    }
}
