//! The thread that does all input and output: it steps the sessions, owns every connection, and keeps the timers.
//!
//! One per [`Locks`](crate::Locks), with a small tokio runtime of its own. A runtime of the user's may block or end; it can
//! neither lose a lease nor leave one behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::driver::clock::Clock;
use crate::driver::inbox;
use crate::driver::node::Node;
use crate::driver::servers::{Connection, Server};
use crate::driver::waiter::lock;
use crate::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use crate::observe;
use crate::options::Options;
use crate::protocol::message::{BatchReply, Executed, Failure, Name};
use crate::protocol::session::step::{Attempt, BatchId, InboxEffect, SessionEffect, SessionInput};
use crate::protocol::time::Instant;
use crate::protocol::write::Action;
use crate::store::{BoxFuture, Link, Store};

/// While a node that nobody holds on to has something left to do, it is looked at this often.
const LAST_LOOKS: Duration = Duration::from_millis(50);
/// The pause after a panic, which may come again.
const RESTART: Duration = Duration::from_millis(100);
/// So often replies that can be read are read before a timer counts.
const READS: usize = 3;

/// A node and its driver. The driver ends when the node is abandoned and nothing is left to do.
pub(crate) fn start(
    store: Arc<dyn Store>,
    options: Options,
    clock: Clock,
) -> Result<Arc<Node>, OptionsError> {
    options.check()?;
    let node = Node::new(store, options, clock);
    #[cfg(all(feature = "scheduler", feature = "testing"))]
    if let Some(process) = node.clock.process() {
        let driven = node.clone();
        // Its timers are those of the simulation.
        tokio::spawn(process.task(async move { drive(&driven).await }));
        observe::describe();
        return Ok(node);
    }
    let failed = |error: std::io::Error| OptionsError(format!("cannot start the driver's thread: {error}"));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let driven = node.clone();
    std::thread::Builder::new()
        .name("tenure-driver".into())
        .spawn(move || {
            // A fault of ours must not end the renewals of everybody else without a word.
            while catch_unwind(AssertUnwindSafe(|| runtime.block_on(drive(&driven)))).is_err() {
                driven.events.push(observe::driver_failed());
                runtime.block_on(async { tokio::time::sleep(RESTART).await });
            }
            driven
                .servers
                .all()
                .for_each(|server| *lock(&server.io) = Default::default());
            // Connections are closed with it; nothing of ours blocks.
            runtime.shutdown_background();
        })
        .map_err(failed)?;
    if node.servers.immediate().is_some() {
        // There is nothing to wait for, and a push finds its node from the beginning.
        let server = node.servers.of_any();
        node.feed(server, SessionInput::InboxWanted);
        node.exchange(node.clock.now());
    }
    observe::describe();
    Ok(node)
}

async fn drive(node: &Arc<Node>) {
    let mut gone_since = None;
    loop {
        let now = node.clock.now();
        node.note_awake(now);
        node.turn(now);
        if node.is_abandoned() {
            let since = *gone_since.get_or_insert(now);
            if node.is_idle() || now.since(since) > node.longest_hold() {
                node.pulse.expect_awake(None);
                return;
            }
        }
        let look = gone_since.map(|_| now + LAST_LOOKS);
        if sleep(node, look).await {
            // What can be read was there before the timer.
            for _ in 0..READS {
                yield_now().await;
            }
        }
    }
}

/// Sleeps until something is to be done. True when it is for a timer.
async fn sleep(node: &Node, look: Option<Instant>) -> bool {
    let earliest = || node.next_due().into_iter().chain(look).min();
    let planned = &node.alarm.planned;
    planned.store(earliest().map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
    // A timer that was set before that was stored may have been compared with the old value.
    let now = node.clock.now();
    match earliest().map(|next| next.since(now)) {
        Some(pause) if pause.is_zero() => {
            yield_now().await;
            true
        }
        pause => match node.note_asleep(now, pause) {
            Some(pause) => timeout(pause, node.alarm.notify.notified()).await.is_err(),
            None => {
                node.alarm.notify.notified().await;
                false
            }
        },
    }
}

impl Node {
    /// Does what is due, and sends what waits to be sent.
    fn turn(self: &Arc<Self>, now: Instant) {
        self.wake(now);
        if self.servers.immediate().is_some() {
            return self.exchange(now);
        }
        for server in self.servers.all() {
            self.step(server);
        }
    }

    /// Sends what waits to be sent to a server, and does what is due there.
    fn step(self: &Arc<Self>, server: &Arc<Server>) {
        let mut effects = Vec::new();
        loop {
            let now = self.clock.now();
            lock(&server.session).step(now, &mut effects);
            if effects.is_empty() {
                break;
            }
            self.perform_all(server, &mut effects, now);
        }
        self.note_idle();
    }

    /// Tells a session what happened.
    pub(crate) fn feed(self: &Arc<Self>, server: &Arc<Server>, input: SessionInput) {
        let mut effects = Vec::new();
        let now = self.clock.now();
        lock(&server.session).handle(now, input, &mut effects);
        self.perform_all(server, &mut effects, now);
    }

    fn perform_all(self: &Arc<Self>, server: &Arc<Server>, effects: &mut Vec<SessionEffect>, now: Instant) {
        for effect in effects.drain(..) {
            self.perform(server, effect, now);
        }
    }

    /// The same, and sends what follows from it. The driver sleeps meanwhile, until a time that it chose before: it is woken
    /// when something is due sooner now, such as what still gathers behind this reply.
    pub(super) fn happened(self: &Arc<Self>, server: &Arc<Server>, input: SessionInput) {
        self.feed(server, input);
        self.step(server);
        let due = lock(&server.session).next_due();
        if let Some(due) = due {
            self.alarm.expect(due.as_nanos());
        }
    }

    /// Does what a session wants done, at `now`. One that panics does not keep the rest from being done.
    pub(crate) fn perform(self: &Arc<Self>, server: &Arc<Server>, effect: SessionEffect, now: Instant) {
        let done = catch_unwind(AssertUnwindSafe(|| match effect {
            SessionEffect::Tell(name, input) => {
                self.note_failure(server, &input);
                self.drive_at(now, &name, input);
            }
            SessionEffect::Send {
                connection,
                id,
                batch,
            } => {
                self.events.sent(batch.requests.len());
                self.send(server, connection, id, |link| link.apply(batch));
            }
            SessionEffect::Act {
                connection,
                id,
                name,
                action,
            } => self.act(server, connection, id, (name, action)),
            SessionEffect::Connect(attempt) => self.connect(server, attempt),
            SessionEffect::Close(attempt) => {
                let mut io = lock(&server.io);
                let connecting = io.connecting.remove(&attempt);
                let connection = io.connections.remove(&attempt);
                drop(io);
                connecting.inspect(tokio::task::AbortHandle::abort);
                drop(connection);
            }
            SessionEffect::Reachable => self.reachable(),
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => inbox::open(self, server, attempt),
            SessionEffect::Inbox(InboxEffect::Ping(attempt)) => {
                let io = lock(&server.io);
                let _ = io.inboxes.get(&attempt).map(|inbox| inbox.pings.send(()));
            }
            SessionEffect::Inbox(InboxEffect::Close(attempt)) => {
                let closed = lock(&server.io).inboxes.remove(&attempt);
                drop(closed);
            }
            SessionEffect::InboxState(state) => {
                self.note_inbox(server, state);
                self.inbox_state(state);
            }
            SessionEffect::Probed(probe, answer) => server.probed(probe, answer),
            SessionEffect::Event(event) => self.session_event(server, event, now),
        }));
        if done.is_err() {
            self.events.push(observe::driver_failed());
        }
    }

    fn connect(self: &Arc<Self>, server: &Arc<Server>, attempt: Attempt) {
        let connecting = self.servers.store.connect(server.id);
        let (node, to) = (self.clone(), server.clone());
        let task = tokio::spawn(async move {
            // Connecting runs foreign code: a pool's customizer, a TLS provider.
            let opened = inbox::caught("connecting", connecting).await;
            lock(&to.io).connecting.remove(&attempt);
            let input = match opened {
                Ok(link) => {
                    for text in link.warnings().to_vec() {
                        node.events.push(observe::server_warning(text));
                    }
                    node.note_run(&to, link.run_id());
                    let time = link.time();
                    let batches = JoinSet::new();
                    lock(&to.io)
                        .connections
                        .insert(attempt, Connection { link, batches });
                    SessionInput::Connected { attempt, time }
                }
                Err(error) => SessionInput::ConnectFailed { attempt, error },
            };
            node.happened(&to, input);
        });
        lock(&server.io).connecting.insert(attempt, task.abort_handle());
    }

    /// Sends an action, unless a lease that it needs is over: it may have waited for a connection.
    fn act(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: Attempt,
        id: BatchId,
        (name, action): (Name, Action),
    ) {
        if let Action::Write(write) = &action
            && !write
                .leases
                .iter()
                .all(|lease| self.look(&lease.name, |shard, now| shard.holds(now, lease)))
        {
            let error = StoreError::refused(StoreRefusal::Other("the lease is over".into()));
            return self.not_sent(server, id, error);
        }
        self.send(server, connection, id, |link| {
            let reply = link.act(name, action);
            Box::pin(async move { Ok(BatchReply::of_action(reply.await?)) })
        });
    }

    fn not_sent(self: &Arc<Self>, server: &Arc<Server>, id: BatchId, error: StoreError) {
        let reply = Err(Failure {
            executed: Executed::No,
            error,
        });
        self.feed(server, SessionInput::Replied { batch: id, reply });
    }

    fn send(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: Attempt,
        id: BatchId,
        send: impl FnOnce(&dyn Link) -> BoxFuture<'static, Result<BatchReply, Failure>>,
    ) {
        let mut io = lock(&server.io);
        let Some(open) = io.connections.get_mut(&connection) else {
            drop(io);
            let error = StoreError::new(StoreErrorKind::Interrupted, "the connection is closed");
            return self.not_sent(server, id, error);
        };
        while open.batches.try_join_next().is_some() {}
        let reply = send(&*open.link);
        let (node, to) = (self.clone(), server.clone());
        open.batches.spawn(async move {
            let reply = reply.await;
            node.happened(&to, SessionInput::Replied { batch: id, reply });
        });
    }
}
