//! Records what the crate emits through `tracing`, from every thread.
//!
//! There is one subscriber for the whole binary. It records only while a [`Watch`] lives. A watch keeps only events
//! that contain its word (a key, a node), so that parallel tests do not see each other's events.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};

/// One event.
#[derive(Debug, Clone)]
pub struct Told {
    pub target: &'static str,
    pub level: Level,
    /// The field `event`; empty when there is none.
    pub event: String,
    /// Every field as `name=value`, the message too.
    pub text: String,
}

/// Keeps the events that contain its word.
#[derive(Debug)]
pub struct Watch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    word: String,
    told: Mutex<Vec<Told>>,
    changed: watch::Sender<()>,
}

static WATCHES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

impl Watch {
    /// Records events with `word` in one of their fields.
    pub fn of(word: impl Into<String>) -> Watch {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            tracing::subscriber::set_global_default(Ears).expect("no other subscriber is set");
            // Another thread may have emitted its first event before this line, which disabled that event for good.
            tracing::callsite::rebuild_interest_cache();
        });
        let inner = Arc::new(Inner {
            word: word.into(),
            told: Mutex::default(),
            changed: watch::Sender::new(()),
        });
        lock(&WATCHES).push(Arc::downgrade(&inner));
        ACTIVE.fetch_add(1, Ordering::SeqCst);
        Watch { inner }
    }

    /// Returns the events of everything that has happened so far.
    pub fn told(&self) -> Vec<Told> {
        tenure::testing::flush_events();
        lock(&self.inner.told).clone()
    }

    /// Returns how often an event was emitted so far.
    pub fn count(&self, event: &str) -> usize {
        self.told().iter().filter(|told| told.event == event).count()
    }

    /// Waits up to a minute for the event, and returns the first one.
    pub async fn until(&self, event: &str) -> Told {
        match tokio::time::timeout(std::time::Duration::from_secs(60), self.whenever(event)).await {
            Ok(told) => told,
            Err(_) => panic!("timed out waiting for `{event}`: {:#?}", self.told()),
        }
    }

    /// Waits for an event that may never come, without a limit.
    pub async fn whenever(&self, event: &str) -> Told {
        let mut changed = self.inner.changed.subscribe();
        loop {
            if let Some(told) = self.told().into_iter().find(|told| told.event == event) {
                return told;
            }
            changed.changed().await.expect("the sender is alive");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Ears;

impl Subscriber for Ears {
    /// Watches come and go, so each event is checked every time. A cached answer from a moment without a watch
    /// disables the event for good.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ACTIVE.load(Ordering::Relaxed) > 0 && metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let told = Told::from(event);
        let watches: Vec<_> = {
            let mut watches = lock(&WATCHES);
            watches.retain(|watch| watch.strong_count() > 0);
            watches.iter().filter_map(Weak::upgrade).collect()
        };
        for watch in watches {
            if told.text.contains(&watch.word) {
                lock(&watch.told).push(told.clone());
                watch.changed.send_replace(());
            }
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl From<&tracing::Event<'_>> for Told {
    fn from(event: &tracing::Event<'_>) -> Told {
        let mut fields = Fields::default();
        event.record(&mut fields);
        Told {
            target: event.metadata().target(),
            level: *event.metadata().level(),
            event: fields.event,
            text: fields.text,
        }
    }
}

/// A subscriber that handles each event of the crate on the emitting thread, as a user's subscriber may do.
pub struct Each<F>(pub F);

impl<F: Fn(&Told) + Send + Sync + 'static> Subscriber for Each<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        (self.0)(&Told::from(event));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    event: String,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.text, "{}={value:?} ", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "event" {
            value.clone_into(&mut self.event);
        }
        let _ = write!(self.text, "{}={value} ", field.name());
    }
}
