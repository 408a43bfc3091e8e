//! Looks at the store, which all viewers share.
//!
//! A look is begun by a request only, so without a viewer there is none. What was seen is served for a second to all who look at the
//! same. A look goes on in a task of its own: a viewer that leaves does not make the next one begin another look.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tenure::inspect::{AuditEntry, Cursor, NodeEntry, Page};
use tenure::scheduler::{JobEntry, JobHistory};
use tenure::{Error, Key, Locks};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::track::Tracks;
use crate::words::now;

/// How long a look is served. A visible page asks again after twice this time.
const FRESH: Duration = Duration::from_secs(1);
/// How long the audit list is served, if it could be read: it is read in up to 40 round trips. An act of this page ends this time.
const FRESH_AUDIT: Duration = Duration::from_secs(5);
/// How long a look is kept that no viewer asks for. A hidden page that becomes visible finds its time line.
const KEPT: Duration = Duration::from_secs(120);
/// The most looks of a kind.
const MAX_LOOKS: usize = 100;

/// What was seen, and when.
struct Look<T> {
    at: Instant,
    seen: Result<Arc<T>, Error>,
}

type Slot<T> = Arc<AsyncMutex<Option<Look<T>>>>;

/// The looks of one kind.
struct Shared<K, T>(Mutex<HashMap<K, (Instant, Slot<T>)>>);

impl<K, T> Default for Shared<K, T> {
    fn default() -> Self {
        Shared(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone, T: Send + Sync + 'static> Shared<K, T> {
    /// Returns what was seen of `key`. If that is older than `fresh`, `read` looks again, and gets what was seen before.
    async fn get<R>(
        &self,
        key: K,
        fresh: Duration,
        read: impl FnOnce(Option<Arc<T>>) -> R,
    ) -> Result<Arc<T>, Error>
    where
        R: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let mut slot = self.slot(key).lock_owned().await;
        // A view that failed comes back as soon as the others.
        let fresh_of = |look: &Look<T>| if look.seen.is_ok() { fresh } else { FRESH };
        if let Some(look) = slot.as_ref().filter(|look| look.at.elapsed() < fresh_of(look)) {
            return look.seen.clone();
        }
        let before = slot.as_ref().and_then(|look| look.seen.clone().ok());
        let reading = read(before);
        let look = tokio::spawn(async move {
            let seen = reading.await.map(Arc::new);
            let at = Instant::now();
            *slot = Some(Look {
                at,
                seen: seen.clone(),
            });
            seen
        });
        match look.await {
            Ok(seen) => seen,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and the request with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn slot(&self, key: K) -> Slot<T> {
        let now = Instant::now();
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, (used, _)| now.duration_since(*used) < KEPT);
        if slots.len() >= MAX_LOOKS && !slots.contains_key(&key) {
            let oldest = slots.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| slots.remove(&key));
        }
        let slot = slots.entry(key).or_insert_with(|| (now, Slot::default()));
        slot.0 = now;
        slot.1.clone()
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The servers that recover, and for how long.
type Recovering = Vec<(Arc<str>, Duration)>;
/// A job with its history since that many days.
type JobLook = Option<(JobEntry, JobHistory)>;

/// What was seen of the store.
#[derive(Default)]
pub(crate) struct Looks {
    leases: Shared<(Vec<u8>, String), Page>,
    keys: Shared<Key, (Page, Tracks)>,
    nodes: Shared<(), Vec<NodeEntry>>,
    jobs: Shared<Vec<u8>, Vec<JobEntry>>,
    job: Shared<(Key, u64), JobLook>,
    audit: Shared<(), Vec<AuditEntry>>,
    recovering: Shared<(), Recovering>,
}

impl Looks {
    /// Looks at a page of the keys that begin so.
    pub(crate) async fn leases(
        &self,
        locks: &Locks,
        prefix: Vec<u8>,
        from: Option<Cursor>,
    ) -> Result<Arc<Page>, Error> {
        let name = (
            prefix.clone(),
            from.as_ref().map(Cursor::to_string).unwrap_or_default(),
        );
        let inspection = locks.inspect();
        let read = |_| async move { inspection.list(prefix, from).await };
        self.leases.get(name, FRESH, read).await
    }

    /// Looks at a key, and notes since when which claims hold it and wait for it.
    pub(crate) async fn key(&self, locks: &Locks, key: &Key) -> Result<Arc<(Page, Tracks)>, Error> {
        let (inspection, name) = (locks.inspect(), key.clone());
        let read = |before: Option<Arc<(Page, Tracks)>>| async move {
            let page = inspection.show(name).await?;
            let mut tracks = before.map(|seen| seen.1.clone()).unwrap_or_default();
            tracks.note(&page, now());
            Ok((page, tracks))
        };
        self.keys.get(key.clone(), FRESH, read).await
    }

    pub(crate) async fn nodes(&self, locks: &Locks) -> Result<Arc<Vec<NodeEntry>>, Error> {
        let inspection = locks.inspect();
        let read = |_| async move { inspection.nodes().await };
        self.nodes.get((), FRESH, read).await
    }

    pub(crate) async fn jobs(&self, locks: &Locks, prefix: Vec<u8>) -> Result<Arc<Vec<JobEntry>>, Error> {
        let (jobs, name) = (locks.jobs(), prefix.clone());
        let read = |_| async move { jobs.list(prefix).await };
        self.jobs.get(name, FRESH, read).await
    }

    /// Looks at a job, and at what it did within that many days.
    pub(crate) async fn job(&self, locks: &Locks, name: &Key, days: u64) -> Result<Arc<JobLook>, Error> {
        let (jobs, name) = (locks.jobs(), name.clone());
        let since = now().checked_sub(Duration::from_secs(days * 86_400));
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let key = (name.clone(), days);
        let read = |_| async move {
            let Some(entry) = jobs.show(&name).await? else {
                return Ok(None);
            };
            let history = jobs.history(name, since).await?;
            Ok(history.map(|history| (entry, history)))
        };
        self.job.get(key, FRESH, read).await
    }

    pub(crate) async fn audit(&self, locks: &Locks) -> Result<Arc<Vec<AuditEntry>>, Error> {
        let inspection = locks.inspect();
        let read = |_| async move { inspection.audit().await };
        self.audit.get((), FRESH_AUDIT, read).await
    }

    pub(crate) async fn recovering(&self, locks: &Locks) -> Result<Arc<Recovering>, Error> {
        let inspection = locks.inspect();
        let read = |_| async move { inspection.recovering().await };
        self.recovering.get((), FRESH, read).await
    }

    /// Forgets what an act may have changed. The time lines of keys stay.
    pub(crate) fn forget(&self) {
        self.job.forget();
        self.jobs.forget();
        self.audit.forget();
    }
}

#[cfg(test)]
mod tests {
    use tenure::Locks;

    use super::*;

    /// The audit list is served for longer than the rest, but not its failure.
    #[tokio::test]
    async fn a_look_that_failed_is_looked_again_as_soon_as_the_others() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let closed = Locks::memory();
        closed.shutdown().await;
        let error = closed.mutex("a").lock().await.expect_err("it is closed");
        let looks = Shared::<(), u8>::default();
        looks
            .get((), HOUR, |_| async move { Err(error) })
            .await
            .expect_err("it failed");
        let comes_back = async {
            while looks.get((), HOUR, |_| async { Ok(7) }).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), comes_back)
            .await
            .expect("it is looked again");
    }
}
