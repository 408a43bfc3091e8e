//! The store of a simulation: a ledger behind connections that a test can break.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};

use crate::driver::process::{Process, World};
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::job_act::{JobActReply, JobActRequest};
use crate::protocol::ledger::Ledger;
use crate::protocol::message::{
    Batch, BatchReply, CallAnswer, Executed, Failure, GrantNumber, InboxEvent, Kind, Name, NodeId, Push,
    Reply, Verb,
};
use crate::protocol::session::step::Opened;
use crate::protocol::steal::{AuditEntry, MAX_AUDIT, StealReply, StealRequest};
use crate::protocol::view::{InspectAnswer, InspectQuery, JobAnswer, JobQuery};
use crate::protocol::write::Action;
use crate::store::{Abilities, BoxFuture, Inbox, Inspect, Link, Ping, ServerId, Sink, Store, sealed};

/// The Redis of a [`Simulation`](crate::testing::Simulation). It answers at once. A test can make it unavailable, restart it
/// empty or with an older copy of its data, and set its wall clock.
///
/// Its keys have no prefix: replicas with two prefixes exclude each other here.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # use std::time::Duration;
/// use tenure::scheduler::JobError;
/// use tenure::testing::Simulation;
///
/// let sim = Simulation::at("2026-10-22T12:00:00Z");
/// let replica = sim.replica("a").start(async |_, _| Ok::<(), JobError>(())).await;
/// sim.store().go_away();
/// let error = replica.locks().mutex("import").lock().await.unwrap_err();
/// assert!(error.is_unreachable());
/// sim.store().come_back();
/// # }
/// ```
#[derive(Clone)]
pub struct SimulatedStore {
    world: Arc<World>,
    server: Arc<Mutex<SimulatedServer>>,
    /// Changes when the connections break.
    state: watch::Sender<ServerState>,
}

/// A copy of the data of a [`SimulatedStore`], made by [`SimulatedStore::copy`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # use std::time::Duration;
/// use tenure::scheduler::JobError;
/// use tenure::testing::Simulation;
///
/// let sim = Simulation::at("2026-10-22T12:00:00Z");
/// let replica = sim.replica("a").start(async |_, _| Ok::<(), JobError>(())).await;
/// let backup = sim.store().copy();
/// replica.locks().latch("import").try_set_count(2).await.unwrap();
/// sim.store().restart_from(&backup); // the latch is lost
/// assert!(replica.locks().latch("import").count().await.is_err());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StoreCopy(Ledger);

#[derive(Debug, Default)]
struct SimulatedServer {
    ledger: Ledger,
    inboxes: HashMap<NodeId, mpsc::UnboundedSender<InboxEvent>>,
    audit: VecDeque<AuditEntry>,
    ahead_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServerState {
    /// How often the connections broke.
    life: u64,
    away: bool,
}

impl SimulatedServer {
    fn push(&self, pushes: Vec<Push>) {
        for push in pushes {
            if let Some(inbox) = self.inboxes.get(&push.node()) {
                let _ = inbox.send(InboxEvent::Pushed(push));
            }
        }
    }
}

impl SimulatedStore {
    pub(crate) fn new(world: Arc<World>) -> SimulatedStore {
        SimulatedStore {
            world,
            server: Arc::default(),
            state: watch::Sender::new(ServerState { life: 1, away: false }),
        }
    }

    /// Makes the store unavailable until [`come_back`](Self::come_back). It keeps its data.
    ///
    /// Each replica tries to reconnect, as with Redis, after pauses of at most 1 s. So one simulated hour costs a replica about
    /// 5,000 attempts, which is 0.25 s of real time in a debug build. An hour with the store available costs nothing.
    pub fn go_away(&self) {
        self.set(|state| state.away = true);
    }

    /// Makes the store available again.
    pub fn come_back(&self) {
        self.set(|state| state.away = false);
    }

    /// Restarts the store without its data.
    pub fn restart_empty(&self) {
        self.restart_from(&StoreCopy(Ledger::new()));
    }

    /// Returns a copy of the data, like a backup or the data of a Redis replica.
    pub fn copy(&self) -> StoreCopy {
        let server = lock(&self.server);
        let mut ledger = server.ledger.clone();
        // Subscriptions are no data.
        for node in server.inboxes.keys() {
            ledger.set_listening(*node, false);
        }
        StoreCopy(ledger)
    }

    /// Restarts the store with an earlier copy of its data. Everything that it acknowledged since then is lost.
    pub fn restart_from(&self, copy: &StoreCopy) {
        let mut server = lock(&self.server);
        server.ledger = copy.0.clone();
        server.inboxes.clear();
        drop(server);
        self.set(|_| {});
    }

    /// Sets the wall clock of the store `ahead_ms` milliseconds ahead of the simulation's clock, or behind it.
    pub fn set_clock_ahead_ms(&self, ahead_ms: i64) {
        lock(&self.server).ahead_ms = ahead_ms;
        self.world.note_news();
    }

    /// Changes the state, and breaks every connection.
    fn set(&self, change: impl FnOnce(&mut ServerState)) {
        self.state.send_modify(|state| {
            state.life += 1;
            change(state);
        });
        self.world.note_news();
    }

    /// Returns the store as one process reaches it.
    pub(crate) fn for_process(&self, process: &Arc<Process>) -> impl Store {
        Reached {
            store: self.clone(),
            process: process.clone(),
        }
    }

    fn now_us(&self) -> u64 {
        self.world.monotonic().as_micros() as u64
    }

    /// Returns what the wall clock of the server shows, in milliseconds.
    fn date_ms(&self, server: &SimulatedServer) -> u64 {
        let date = self.world.date().duration_since(std::time::UNIX_EPOCH);
        let date_ms = date.unwrap_or_default().as_millis() as u64;
        date_ms.saturating_add_signed(server.ahead_ms)
    }

    fn apply(&self, batch: &Batch) -> BatchReply {
        let mut pushes = Vec::new();
        let mut server = lock(&self.server);
        if batch.kind() == Some(Kind::Job) {
            let date_ms = self.date_ms(&server);
            server.ledger.set_date(date_ms);
        }
        let reply = server.ledger.apply(self.now_us(), batch, &mut pushes);
        server.push(pushes);
        drop(server);
        let asks = |verb| matches!(verb, Verb::Call(_) | Verb::Renew { .. });
        let is_watched = matches!(batch.kind(), Some(Kind::Latch | Kind::Election));
        // The other expression's processes ask again, too.
        let differs =
            |reply: &Reply| matches!(reply.answer(), Some(CallAnswer::Report(report)) if report.differs);
        let is_news = !batch.requests.iter().all(|request| asks(request.verb));
        if is_watched || is_news || reply.replies.iter().any(differs) {
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
    /// Opens a connection, if the store is available.
    fn open(self) -> Result<Open, StoreError> {
        let state = *self.store.state.borrow();
        if state.away {
            return Err(away());
        }
        Ok(Open { to: self, state })
    }

    /// Asks the server itself, beside the connections.
    fn look<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&SimulatedStore, &mut SimulatedServer) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let reached = self.clone();
        Box::pin(async move {
            reached.process.running().await;
            let store = reached.open()?.to.store;
            Ok(ask(&store, &mut lock(&store.server)))
        })
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

    fn inspector(&self) -> Option<Arc<dyn Inspect>> {
        Some(Arc::new(self.clone()))
    }

    fn connect(
        &self,
        _: ServerId,
        _: Option<GrantNumber>,
    ) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
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
                        // A process that is stopped reads no event.
                        () = process.running() => sink(event),
                    }
                }
                drop(pushed);
                away()
            };
            Ok(Inbox {
                address: Arc::default(),
                own_channel: None,
                pings: Box::new(pings),
                ended: Box::pin(serve),
            })
        })
    }
}

/// Shows its jobs and what operators did about them, and nothing else.
impl Inspect for Reached {
    fn read(&self, _: InspectQuery) -> BoxFuture<'static, Result<InspectAnswer, StoreError>> {
        shows_jobs_only()
    }

    fn jobs(&self, query: JobQuery) -> BoxFuture<'static, Result<JobAnswer, StoreError>> {
        self.look(|store, server| {
            let date_ms = store.date_ms(server);
            let mut answer = server.ledger.view_jobs(query, store.now_us(), date_ms);
            // While nothing happens, replicas ask nothing. Those that live have their jobs nevertheless.
            let nodes = answer.jobs.iter_mut().flat_map(|job| &mut job.record.nodes);
            for (_, told) in nodes.filter(|(node, _)| server.inboxes.contains_key(node)) {
                told.until_ms = date_ms;
            }
            answer
        })
    }

    fn recovering(&self) -> BoxFuture<'static, Vec<(Arc<str>, u64)>> {
        Box::pin(ready(Vec::new()))
    }

    /// Only jobs are shown, so a steal can only ask for the lease of a tick.
    fn steal(&self, steal: StealRequest) -> BoxFuture<'static, Result<(StealReply, u64), StoreError>> {
        self.look(move |store, server| {
            let mut pushes = Vec::new();
            let reply = server.ledger.steal(store.now_us(), &steal, &mut pushes);
            server.push(pushes);
            (reply, 1_000 * store.date_ms(server))
        })
    }

    fn act_on_job(
        &self,
        request: JobActRequest,
    ) -> BoxFuture<'static, Result<(JobActReply, u64), StoreError>> {
        self.look(move |store, server| {
            let (date_ms, mut pushes) = (store.date_ms(server), Vec::new());
            let now = (store.now_us(), date_ms);
            let reply = server.ledger.act_on_job(&request, now, &mut pushes);
            // While nothing happens, replicas ask nothing. So each that lives is told, whenever it looked last.
            pushes.retain(|push| matches!(push, Push::Revoked(..)));
            let live = server.inboxes.keys();
            pushes.extend(live.map(|node| Push::Changed(*node, request.name.clone())));
            server.push(pushes);
            store.world.note_news();
            (reply, 1_000 * date_ms)
        })
    }

    fn note(&self, entry: AuditEntry) -> BoxFuture<'static, Result<(), StoreError>> {
        self.look(|_, server| {
            server.audit.push_front(entry);
            server.audit.truncate(MAX_AUDIT);
        })
    }

    fn audit(&self) -> BoxFuture<'static, Result<Vec<AuditEntry>, StoreError>> {
        self.look(|_, server| server.audit.iter().cloned().collect())
    }
}

fn shows_jobs_only<T: Send + 'static>() -> BoxFuture<'static, Result<T, StoreError>> {
    let text = format_args!("the simulated store shows jobs to operators, and nothing else");
    Box::pin(ready(Err(StoreError::unsupported(text))))
}

/// The events that are pushed to an open inbox. Dropping it closes the inbox.
struct Pushed {
    store: SimulatedStore,
    node: NodeId,
    events: mpsc::UnboundedReceiver<InboxEvent>,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.events.close();
        let mut server = lock(&self.store.server);
        // An inbox that was opened since then has another channel.
        let inbox = server.inboxes.get(&self.node);
        if inbox.is_none_or(mpsc::UnboundedSender::is_closed) {
            server.inboxes.remove(&self.node);
            server.ledger.set_listening(self.node, false);
        }
    }
}

/// A connection of one process to the store.
#[derive(Debug, Clone)]
struct Open {
    to: Reached,
    state: ServerState,
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
        // A dead process never sends this request, and a stopped process sends it later.
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
            let mut server = lock(&store.server);
            let date_ms = store.date_ms(&server);
            server.ledger.set_date(date_ms);
            server.ledger.act(&name, &action, store.now_us())
        }))
    }

    fn opened(&self) -> Opened {
        Opened {
            time: self.to.store.now_us(),
            ..Opened::default()
        }
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
