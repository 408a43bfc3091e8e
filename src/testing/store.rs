//! The store of a simulation: the ledger behind connections that a test breaks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};

use crate::driver::process::{Process, World};
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::ledger::Ledger;
use crate::protocol::message::{
    Batch, BatchReply, Executed, Failure, InboxEvent, Kind, Name, NodeId, Reply, Verb,
};
use crate::protocol::write::Action;
use crate::store::{Abilities, BoxFuture, Inbox, Link, Ping, ServerId, Sink, Store, sealed};

/// What plays the Redis of a [`Simulation`](crate::testing::Simulation). It answers at once, and does what a test says:
/// it is away, comes back empty or with an older copy of its data, and has a wall clock of its own.
#[derive(Clone)]
pub struct SimulatedStore {
    world: Arc<World>,
    server: Arc<Mutex<Server>>,
    /// Grows with each start of it.
    state: watch::Sender<State>,
}

/// What [`SimulatedStore::copy`] made.
#[derive(Debug, Clone)]
pub struct StoreCopy(Ledger);

#[derive(Debug, Default)]
struct Server {
    ledger: Ledger,
    inboxes: HashMap<NodeId, mpsc::UnboundedSender<InboxEvent>>,
    ahead_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// How often it was started.
    life: u64,
    away: bool,
}

impl SimulatedStore {
    pub(crate) fn new(world: Arc<World>) -> SimulatedStore {
        SimulatedStore {
            world,
            server: Arc::default(),
            state: watch::Sender::new(State { life: 1, away: false }),
        }
    }

    /// It cannot be reached until [`come_back`](Self::come_back). What it knows it keeps.
    ///
    /// Each replica tries to reconnect all the time, as with Redis, after pauses of at most a second. So an hour of this costs a
    /// replica about 5,000 attempts, a quarter of a second of real time in a debug build, where a quiet hour costs nothing.
    pub fn go_away(&self) {
        self.set(|state| state.away = true);
    }

    /// It can be reached again.
    pub fn come_back(&self) {
        self.set(|state| state.away = false);
    }

    /// It is restarted, and knows nothing any more.
    pub fn restart_empty(&self) {
        self.restart_from(&StoreCopy(Ledger::new()));
    }

    /// What it knows now, as a backup or a replica has it.
    pub fn copy(&self) -> StoreCopy {
        let server = lock(&self.server);
        let mut ledger = server.ledger.clone();
        // Who listens is not among it.
        for node in server.inboxes.keys() {
            ledger.set_listening(*node, false);
        }
        StoreCopy(ledger)
    }

    /// It is restarted with what it knew then: whatever it has acknowledged since is lost.
    pub fn restart_from(&self, copy: &StoreCopy) {
        let mut server = lock(&self.server);
        server.ledger = copy.0.clone();
        server.inboxes.clear();
        drop(server);
        self.set(|_| {});
    }

    /// Its wall clock shows so many milliseconds more than the simulation's, or less.
    pub fn set_clock_ahead_ms(&self, ahead_ms: i64) {
        lock(&self.server).ahead_ms = ahead_ms;
        self.world.note_news();
    }

    /// Every connection breaks.
    fn set(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(|state| {
            state.life += 1;
            change(state);
        });
        self.world.note_news();
    }

    /// This store as a process knows it.
    pub(crate) fn for_process(&self, process: &Arc<Process>) -> impl Store {
        Reached {
            store: self.clone(),
            process: process.clone(),
        }
    }

    fn now_us(&self) -> u64 {
        self.world.monotonic().as_micros() as u64
    }

    fn apply(&self, batch: &Batch) -> BatchReply {
        let mut pushes = Vec::new();
        let mut server = lock(&self.server);
        if batch.kind() == Some(Kind::Job) {
            let date = self.world.date().duration_since(std::time::UNIX_EPOCH);
            let date_ms = date.unwrap_or_default().as_millis() as u64;
            let date_ms = date_ms.saturating_add_signed(server.ahead_ms);
            server.ledger.set_date(date_ms);
        }
        let reply = server.ledger.apply(self.now_us(), batch, &mut pushes);
        for push in pushes {
            if let Some(inbox) = server.inboxes.get(&push.node()) {
                let _ = inbox.send(InboxEvent::Pushed(push));
            }
        }
        drop(server);
        let asks = |verb| matches!(verb, Verb::Call(_) | Verb::Renew);
        let is_watched = matches!(batch.kind(), Some(Kind::Latch | Kind::Election));
        if is_watched || !batch.requests.iter().all(|request| asks(request.verb)) {
            self.world.note_news();
        }
        reply
    }
}

impl fmt::Debug for SimulatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedStore")
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

fn away() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the simulated store is away")
}

/// The store, as one process reaches it.
#[derive(Debug, Clone)]
struct Reached {
    store: SimulatedStore,
    process: Arc<Process>,
}

impl Reached {
    /// A connection of now, if there is one to be had.
    fn open(self) -> Result<Open, StoreError> {
        let state = *self.store.state.borrow();
        if state.away {
            return Err(away());
        }
        Ok(Open { to: self, state })
    }
}

impl sealed::Sealed for Reached {}

impl Store for Reached {
    fn abilities(&self) -> Abilities {
        Abilities::OF_THE_LEDGER
    }

    fn server(&self, _: &Name) -> ServerId {
        ServerId(0)
    }

    fn describe(&self, _: ServerId) -> String {
        "simulated".into()
    }

    fn connect(&self, _: ServerId) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
        let reached = self.clone();
        Box::pin(async move {
            reached.process.running().await;
            let link: Arc<dyn Link> = Arc::new(reached.open()?);
            Ok(link)
        })
    }

    fn inbox(&self, _: ServerId, node: NodeId, sink: Sink) -> BoxFuture<'static, Result<Inbox, StoreError>> {
        let reached = self.clone();
        Box::pin(async move {
            reached.process.running().await;
            let open = reached.open()?;
            let (sender, events) = mpsc::unbounded_channel();
            let mut server = lock(&open.to.store.server);
            server.inboxes.insert(node, sender);
            server.ledger.set_listening(node, true);
            drop(server);
            let mut pushed = Pushed {
                store: open.to.store.clone(),
                node,
                events,
            };
            let (pings, served) = (open.clone(), open);
            let serve = async move {
                let process = &served.to.process;
                let (broken, died) = (served.broken(), process.dead());
                tokio::pin!(broken, died);
                loop {
                    let event = tokio::select! {
                        () = &mut broken => break,
                        () = &mut died => break,
                        event = pushed.events.recv() => event,
                    };
                    let Some(event) = event else { break };
                    tokio::select! {
                        () = &mut died => break,
                        // A process that is stopped reads nothing.
                        () = process.running() => sink(event),
                    }
                }
                drop(pushed);
                away()
            };
            Ok(Inbox {
                pings: Box::new(pings),
                ended: Box::pin(serve),
            })
        })
    }
}

/// What is pushed to an inbox that is open. Its end closes that.
struct Pushed {
    store: SimulatedStore,
    node: NodeId,
    events: mpsc::UnboundedReceiver<InboxEvent>,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.events.close();
        let mut server = lock(&self.store.server);
        // One that was opened since has a channel of its own.
        let inbox = server.inboxes.get(&self.node);
        if inbox.is_none_or(mpsc::UnboundedSender::is_closed) {
            server.inboxes.remove(&self.node);
            server.ledger.set_listening(self.node, false);
        }
    }
}

/// A connection.
#[derive(Debug, Clone)]
struct Open {
    to: Reached,
    state: State,
}

impl Open {
    async fn broken(&self) {
        let mut state = self.to.store.state.subscribe();
        let _ = state.wait_for(|state| *state != self.state).await;
    }

    fn is_broken(&self) -> bool {
        *self.to.store.state.borrow() != self.state
    }

    async fn reach<T>(self, ask: impl FnOnce(&SimulatedStore) -> T) -> Result<T, Failure> {
        // What a dead process has not sent it never sends, and a stopped one later.
        self.to.process.running().await;
        if self.is_broken() {
            return Err(Failure {
                executed: Executed::No,
                error: away(),
            });
        }
        Ok(ask(&self.to.store))
    }
}

impl Link for Open {
    fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>> {
        Box::pin(self.clone().reach(move |store| store.apply(&batch)))
    }

    fn act(&self, name: Name, action: Action) -> BoxFuture<'static, Result<Reply, Failure>> {
        Box::pin(self.clone().reach(move |store| {
            let now_us = store.now_us();
            lock(&store.server).ledger.act(&name, &action, now_us)
        }))
    }

    fn time(&self) -> u64 {
        self.to.store.now_us()
    }
}

impl Ping for Open {
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        let broken = self.is_broken();
        Box::pin(async move {
            self.to.process.running().await;
            if broken { Err(away()) } else { Ok(()) }
        })
    }
}
