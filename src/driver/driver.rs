//! The thread that does all input and output: it steps the sessions, owns every connection, and keeps the timers.
//!
//! Each [`Locks`](crate::Locks) has one such thread, with a small tokio runtime of its own. If a user's runtime
//! blocks or ends, no lease is lost or left behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::driver::clock::Clock;
use crate::driver::inbox;
use crate::driver::node::Node;
use crate::driver::presence;
use crate::driver::servers::{OpenConnection, Server};
use crate::driver::waiter::lock;
use crate::error::{OptionsError, StoreError, StoreErrorKind};
use crate::observe;
use crate::options::Options;
use crate::protocol::message::{BatchReply, Executed, Failure, Name};
use crate::protocol::session::step::{Attempt, BatchId, InboxEffect, SessionEffect, SessionInput};
use crate::protocol::time::Instant;
use crate::protocol::write::{Action, Precondition};
use crate::store::{BoxFuture, Link, Store};

/// The interval between two steps of an abandoned node that still has work to do.
const ABANDONED_STEP_INTERVAL: Duration = Duration::from_millis(50);
/// The pause after a panic, because the panic may repeat.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// How often the driver lets tasks read replies before it acts on a timer.
const READS_BEFORE_TIMER: usize = 3;

/// Creates a node and starts its driver. The driver ends when the node is abandoned and has no work left.
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
        // The timers of this task are those of the simulation.
        tokio::spawn(process.task(async move { drive(&driven).await }));
        observe::describe();
        node.events.push(None);
        return Ok(node);
    }
    let failed = |error: std::io::Error| OptionsError(format!("cannot start the driver's thread: {error}"));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    // The cell is empty until here.
    let _ = node.runtime.set(runtime.handle().clone());
    if node.options.presence {
        runtime.spawn(presence::keep(node.clone()));
    }
    let driven = node.clone();
    // The thread gets the runtime when it has started. Without a thread the runtime is shut down here: a drop would wait for
    // blocking tasks, which tokio forbids in async code.
    let (sender, receiver) = mpsc::channel::<Runtime>();
    let spawned = std::thread::Builder::new()
        .name("tenure-driver".into())
        .spawn(move || {
            let Ok(runtime) = receiver.recv() else {
                return;
            };
            if let Some(watching) = watch_map(&driven) {
                runtime.spawn(watching);
            }
            // A panic in this crate must not silently end the renewals of all other leases.
            while catch_unwind(AssertUnwindSafe(|| runtime.block_on(drive(&driven)))).is_err() {
                driven.events.push(observe::driver_failed());
                runtime.block_on(async { tokio::time::sleep(RESTART_PAUSE).await });
            }
            if let Some(store) = driven.servers.immediate() {
                store.listen(driven.id, None);
            }
            driven
                .servers
                .all()
                .for_each(|server| *lock(&server.io) = Default::default());
            // The connections close with the runtime. No task of this crate blocks.
            runtime.shutdown_background();
        });
    if let Err(error) = spawned {
        runtime.shutdown_background();
        return Err(failed(error));
    }
    // The thread waits for it.
    let _ = sender.send(runtime);
    if node.servers.immediate().is_some() {
        // A store that answers at once needs no waiting. From the beginning, a push finds its node.
        node.tell_inbox(SessionInput::InboxWanted);
        node.exchange(node.clock.now());
    }
    observe::describe();
    // The event thread sets the gauges.
    node.events.push(None);
    Ok(node)
}

/// Returns the task that keeps the store's map of names up to date, if names may move.
fn watch_map(node: &Arc<Node>) -> Option<BoxFuture<'static, ()>> {
    let weak = Arc::downgrade(node);
    let changed = move || {
        if let Some(node) = weak.upgrade() {
            node.map_changed();
        }
    };
    node.servers.store.watch_map(Arc::new(changed))
}

async fn drive(node: &Arc<Node>) {
    let mut gone_since = None;
    loop {
        let now = node.clock.now();
        node.note_awake(now);
        node.step_all(now);
        if node.is_abandoned() {
            if gone_since.is_none() {
                node.leave_kept();
            }
            let since = *gone_since.get_or_insert(now);
            if node.is_idle() || now.since(since) > node.longest_hold() {
                node.pulse.expect_awake(None);
                return;
            }
        }
        let look = gone_since.map(|_| now + ABANDONED_STEP_INTERVAL);
        if sleep(node, look).await {
            // Replies that can be read arrived before the timer.
            for _ in 0..READS_BEFORE_TIMER {
                yield_now().await;
            }
        }
    }
}

/// Sleeps until there is work to do. Returns whether a timer ended the sleep.
async fn sleep(node: &Node, look: Option<Instant>) -> bool {
    let earliest = || node.next_due().into_iter().chain(look).min();
    let planned = &node.alarm.planned;
    planned.store(earliest().map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
    // Compares again: a timer that was set before the store above may have been compared with the old value.
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
    /// Does what is due in all shards and sessions, and sends all queued requests.
    fn step_all(self: &Arc<Self>, now: Instant) {
        self.wake(now);
        if self.servers.immediate().is_some() {
            return self.exchange(now);
        }
        for server in self.servers.all() {
            self.step(server);
        }
    }

    /// Does what is due in the session of a server, and sends its queued requests.
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

    /// Has queued requests for names that moved to other servers asked for again.
    fn map_changed(self: &Arc<Self>) {
        for server in self.servers.all() {
            let (mut effects, now) = (Vec::new(), self.clock.now());
            let is_moved = |name: &Name| !self.servers.serves(server, name);
            lock(&server.session).release_moved(now, is_moved, &mut effects);
            self.perform_all(server, &mut effects, now);
            self.note_left(server);
        }
        self.alarm.ring();
    }

    /// Feeds an input to a session, and performs the effects.
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

    /// Feeds an input to a session, and then steps the session. The driver may sleep meanwhile until a planned time.
    /// It is woken if something is due earlier now, such as requests that gather behind this reply.
    pub(super) fn feed_and_step(self: &Arc<Self>, server: &Arc<Server>, input: SessionInput) {
        self.feed(server, input);
        self.step(server);
        let due = lock(&server.session).next_due();
        if let Some(due) = due {
            self.alarm.expect(due.as_nanos());
        }
    }

    /// Performs an effect of a session, at `now`. If one effect panics, the others are still performed.
    pub(crate) fn perform(self: &Arc<Self>, server: &Arc<Server>, effect: SessionEffect, now: Instant) {
        let done = catch_unwind(AssertUnwindSafe(|| match effect {
            SessionEffect::Tell(name, input) => {
                self.note_failed_input(server, &input);
                self.drive_answer(now, &name, input);
            }
            SessionEffect::Send {
                connection,
                id,
                batch,
            } => {
                self.events.note_batch(batch.requests.len());
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
            SessionEffect::Reachable {
                is_elsewhere,
                former,
                clock,
            } => self.reachable(server, is_elsewhere, former, clock),
            SessionEffect::TellInbox(input) => self.tell_inbox(input),
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => inbox::open(self, server, attempt),
            SessionEffect::Inbox(InboxEffect::Ping(attempt)) => {
                let io = lock(&server.io);
                let _ = io.inboxes.get(&attempt).map(|inbox| inbox.pings.send(()));
            }
            SessionEffect::Inbox(InboxEffect::Seek { inbox, connection }) => {
                self.seek_inbox(server, inbox, connection);
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
        let highest = lock(&server.session).highest();
        let connecting = self.servers.store.connect(server.id, highest);
        let (node, to) = (self.clone(), server.clone());
        let task = tokio::spawn(async move {
            // Connecting runs foreign code: a pool's customizer, a TLS provider.
            let opened = inbox::catch_panic("connecting", connecting).await;
            lock(&to.io).connecting.remove(&attempt);
            let input = match opened {
                Ok(link) => {
                    for text in link.warnings().to_vec() {
                        node.events.push(observe::server_warning(text));
                    }
                    node.note_run(&to, link.run_id());
                    let opened = link.opened();
                    let batches = JoinSet::new();
                    lock(&to.io)
                        .connections
                        .insert(attempt, OpenConnection { link, batches });
                    SessionInput::Connected { attempt, opened }
                }
                Err(error) => SessionInput::ConnectFailed { attempt, error },
            };
            node.feed_and_step(&to, input);
            // Only now: the session knows no connection before its input.
            node.watch_end(&to, attempt);
        });
        lock(&server.io).connecting.insert(attempt, task.abort_handle());
    }

    /// Asks the server of a connection whether it has the subscription of an inbox.
    fn seek_inbox(self: &Arc<Self>, server: &Arc<Server>, inbox: Attempt, connection: Attempt) {
        let mut io = lock(&server.io);
        let channel = io.inboxes.get(&inbox).and_then(|inbox| inbox.own_channel.clone());
        let Some(open) = io.connections.get_mut(&connection) else {
            return;
        };
        let asked = channel.map(|channel| open.link.has_subscriber(channel));
        let (node, to) = (self.clone(), server.clone());
        open.batches.spawn(async move {
            let is_there = match asked {
                Some(asked) => asked.await,
                None => None,
            };
            let input = SessionInput::InboxSought {
                inbox,
                connection,
                is_there,
            };
            node.feed_and_step(&to, input);
        });
    }

    /// Tells the session when this connection ends by itself.
    fn watch_end(self: &Arc<Self>, server: &Arc<Server>, attempt: Attempt) {
        let mut io = lock(&server.io);
        let Some(open) = io.connections.get_mut(&attempt) else {
            return;
        };
        let (node, to) = (Arc::downgrade(self), server.clone());
        let warned = node.clone();
        let warn = move |text| {
            if let Some(node) = warned.upgrade() {
                node.events.push(observe::server_warning(text));
            }
        };
        let ended = open.link.ended(Arc::new(warn));
        open.batches.spawn(async move {
            ended.await;
            if let Some(node) = node.upgrade() {
                node.feed_and_step(&to, SessionInput::ConnectionEnded(attempt));
            }
        });
    }

    /// Sends an action, unless a lease that the action needs has ended: the action may have waited for a connection.
    fn act(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: Attempt,
        id: BatchId,
        (name, action): (Name, Action),
    ) {
        if let Action::Write(write) = &action {
            let is_over =
                |lease: &Precondition| !self.look(&lease.name, |shard, now| shard.holds(now, lease));
            let leases = write.leases.iter().enumerate();
            let over: Vec<usize> = leases
                .filter_map(|(at, lease)| is_over(lease).then_some(at))
                .collect();
            if !over.is_empty() {
                return self.feed(server, SessionInput::LeasesOver(id, over));
            }
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
            node.feed_and_step(&to, SessionInput::Replied { batch: id, reply });
        });
    }
}
