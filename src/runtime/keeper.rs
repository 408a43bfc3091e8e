//! The thread that keeps what is held: renewals, deadlines, the inbox, and what nobody else sends.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::driver::events::DriverEvent;
use crate::error::{OptionsError, StoreError, StoreErrorKind};
use crate::protocol::message::InboxEvent;
use crate::protocol::step::Input;
use crate::protocol::time::Instant;
use crate::runtime::carriage::Carriage;
use crate::runtime::node::{Node, Side};
use crate::runtime::slot::lock;
use crate::store::Sink;

/// While callers send, the keeper looks after their batches this often.
const TICK: Duration = Duration::from_millis(50);
/// And for so long after the last of them, so that a busy caller need not wake it each time.
const LINGER: Duration = Duration::from_secs(1);
/// The pause after a panic, which may come again.
const RESTART: Duration = Duration::from_secs(1);
/// The pauses before a broken inbox is opened again.
const REOPEN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What other threads share with the keeper's.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    notify: Notify,
    /// When it looks up next at the latest, in nanoseconds.
    planned: AtomicU64,
    /// When a caller last sent something.
    active: AtomicU64,
    adopted: Mutex<Vec<Arc<Carriage>>>,
    inbox: Notify,
    inbox_wanted: AtomicBool,
    /// A runtime of the user's that can serve the inbox.
    home: Mutex<Option<Handle>>,
}

impl Keeper {
    /// Something is to be done now.
    pub(crate) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Something is to be done at `due`.
    pub(crate) fn expect(&self, due: Instant) {
        if due.as_nanos() < self.planned.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }

    /// A caller sends something: its batch must be looked after.
    pub(crate) fn watch(&self, now: Instant) {
        self.active.store(now.as_nanos(), Ordering::Relaxed);
        self.expect(now + TICK);
    }

    /// Takes over a batch that nobody polls.
    pub(crate) fn adopt(&self, carriage: Arc<Carriage>) {
        lock(&self.adopted).push(carriage);
        self.notify.notify_one();
    }

    /// Somebody may wait: grants must be pushed here.
    ///
    /// Served on the runtime of those who wait, a push wakes its caller without a detour over the keeper's thread. One
    /// that runs on a single thread may stand still between two calls, so it is not asked.
    pub(crate) fn want_inbox(&self) {
        if self.inbox_wanted.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current()
            && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            *lock(&self.home) = Some(runtime);
        }
        if !self.inbox_wanted.swap(true, Ordering::Relaxed) {
            self.inbox.notify_one();
        }
    }
}

/// Starts the keeper of `node`. It ends when the node is abandoned and nothing is left to do.
pub(crate) fn start(node: Arc<Node>) -> Result<(), OptionsError> {
    let failed = |error: std::io::Error| OptionsError(format!("cannot start the keeper's thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    std::thread::Builder::new()
        .name("tenure-keeper".into())
        .spawn(move || {
            // A fault of ours must not end the renewals of everybody else without a word.
            while catch_unwind(AssertUnwindSafe(|| runtime.block_on(keep(node.clone())))).is_err() {
                node.events.push(DriverEvent::DriverFailed);
                runtime.block_on(tokio::time::sleep(RESTART));
            }
            // Connections are closed with it; nothing of ours blocks.
            runtime.shutdown_background();
        })
        .map_err(failed)?;
    Ok(())
}

async fn keep(node: Arc<Node>) {
    // Ended with this, also by a panic: the next one serves its own.
    let _inbox = AbortOnDropHandle::new(tokio::spawn(serve_inbox(Arc::downgrade(&node))));
    let keeper = node.keeper.clone();
    let mut gone_since = None;
    loop {
        let now = node.clock.now();
        // Whoever adds a timer from here on compares it with this.
        keeper.planned.store((now + TICK).as_nanos(), Ordering::SeqCst);
        for carriage in std::mem::take(&mut *lock(&keeper.adopted)) {
            carry(carriage);
        }
        node.wake(now);
        let callers_busy = node.look_after_callers(now);
        while let Some(carriage) = node.depart(Side::Keeper) {
            carry(carriage);
        }
        if node.is_abandoned() {
            let since = *gone_since.get_or_insert(now);
            if node.is_idle() || now.since(since) > node.longest_hold() {
                break;
            }
        }
        let lingers = now.since(Instant::from_nanos(keeper.active.load(Ordering::Relaxed))) < LINGER;
        let tick = (callers_busy || lingers || gone_since.is_some()).then(|| now + TICK);
        let earliest = |due: Option<Instant>| due.into_iter().chain(tick).min();
        let mut next = earliest(node.next_due());
        keeper
            .planned
            .store(next.map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
        // A timer that was set before that was stored may have been compared with the old value.
        next = earliest(node.next_due());
        let pause = next.map(|next| next.since(node.clock.now()));
        match pause {
            Some(pause) if pause.is_zero() => tokio::task::yield_now().await,
            Some(pause) => {
                let _ = tokio::time::timeout(pause, keeper.notify.notified()).await;
            }
            None => keeper.notify.notified().await,
        }
    }
}

fn carry(carriage: Arc<Carriage>) {
    tokio::spawn(async move {
        poll_fn(|cx| carriage.poll(cx)).await;
    });
}

/// Keeps the inbox open, for ever, once somebody wants it.
async fn serve_inbox(node: Weak<Node>) {
    let (store, id, keeper) = match node.upgrade() {
        Some(node) => (node.store.clone(), node.id, node.keeper.clone()),
        None => return,
    };
    if !keeper.inbox_wanted.load(Ordering::Relaxed) {
        keeper.inbox.notified().await;
    }
    let mut pause = REOPEN.0;
    loop {
        let began = tokio::time::Instant::now();
        let opened = Arc::new(AtomicU64::new(0));
        let sink: Sink = {
            let (node, opened) = (node.clone(), opened.clone());
            Arc::new(move |note| {
                let Some(node) = node.upgrade() else { return };
                match note {
                    InboxEvent::Open => {
                        opened.store(1, Ordering::Relaxed);
                        node.events.push(DriverEvent::InboxOpen);
                        node.inbox_opened();
                    }
                    InboxEvent::Warning(text) => node.events.push(DriverEvent::ServerWarning { text }),
                    InboxEvent::Granted(grant) => {
                        let name = grant.name.clone();
                        node.drive(&name, Input::Pushed(grant), Side::Keeper);
                    }
                }
            })
        };
        let home = lock(&keeper.home).clone().unwrap_or_else(Handle::current);
        let error = match AbortOnDropHandle::new(home.spawn(store.inbox(id, sink))).await {
            Ok(error) => error,
            // That runtime ended. This one does not, as long as there is anything to keep.
            Err(error) => {
                *lock(&keeper.home) = None;
                StoreError::new(StoreErrorKind::Interrupted, error)
            }
        };
        if let Some(node) = node.upgrade() {
            node.events.push(DriverEvent::InboxLost { error });
            node.inbox_lost();
        }
        // One that opens and breaks at once is no better than one that does not open.
        if opened.load(Ordering::Relaxed) == 1 && began.elapsed() > REOPEN.1 {
            pause = REOPEN.0;
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() * 0.5)).await;
        pause = (2 * pause).min(REOPEN.1);
    }
}
