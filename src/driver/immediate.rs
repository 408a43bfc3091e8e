//! Stores that answer at once: the caller's own thread asks them, through the same session.
//!
//! When a call returns, the store knows all that the call had to say: a guard that was dropped is released. A push
//! goes to the inbox of its node, and the outermost call of a thread handles every node that got a push. If pushes
//! were handled in place, one hand-over would lead to the next, from node to node, on one stack.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::driver::inbox;
use crate::driver::node::Node;
use crate::driver::waiter::lock;
use crate::protocol::message::BatchReply;
use crate::protocol::session::Session;
use crate::protocol::session::step::{InboxEffect, Opened, SessionEffect, SessionInput};
use crate::protocol::time::Instant;
use crate::store::{Immediate, ServerId, Sink};

/// The rounds that a caller makes for other nodes, at most. Then the drivers of these nodes take over.
const MAX_ROUNDS: usize = 16;

/// The buffers of an exchange. A thread keeps them for its next exchange, so that exchanges need not allocate.
#[derive(Default)]
struct ExchangeBuffers {
    effects: Vec<SessionEffect>,
    deferred: Vec<SessionEffect>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Box<ExchangeBuffers>>> = const { RefCell::new(None) };
    /// Set while this thread runs an exchange.
    static IS_EXCHANGING: Cell<bool> = const { Cell::new(false) };
    /// Set when other nodes wait for this thread.
    static HAS_WAITING_NODES: Cell<bool> = const { Cell::new(false) };
    /// The nodes that wait for this thread.
    static WAITING_NODES: RefCell<Vec<Arc<Node>>> = const { RefCell::new(Vec::new()) };
}

impl Node {
    /// Sends all queued requests at `now`, and handles everything that follows.
    pub(crate) fn exchange(self: &Arc<Self>, now: Instant) {
        if IS_EXCHANGING.replace(true) {
            return self.leave_to_outermost();
        }
        let _end = ExchangeEnd;
        self.exchange_once(now);
        for _ in 1..MAX_ROUNDS {
            let nodes = take_waiting_nodes();
            if nodes.is_empty() {
                return;
            }
            nodes.iter().for_each(|node| node.exchange_once(node.clock.now()));
        }
    }

    /// Leaves this node to the outermost call of this thread, or to its driver, if the thread is ending.
    fn leave_to_outermost(self: &Arc<Self>) {
        let is_left = WAITING_NODES.try_with(|nodes| {
            let mut nodes = nodes.borrow_mut();
            if !nodes.iter().any(|node| Arc::ptr_eq(node, self)) {
                nodes.push(self.clone());
            }
        });
        match is_left {
            Ok(()) => HAS_WAITING_NODES.set(true),
            Err(_) => self.alarm.ring(),
        }
    }

    /// Handles what was pushed, and sends the queued requests to the store.
    fn exchange_once(self: &Arc<Self>, now: Instant) {
        let Some(store) = self.servers.immediate() else {
            return;
        };
        if self.has_pushed.load(Ordering::Acquire) {
            self.has_pushed.store(false, Ordering::SeqCst);
            let pushed = std::mem::take(&mut *lock(&self.pushed));
            for (name, input) in pushed {
                self.drive(&name, input);
            }
        }
        let server = self.servers.get(ServerId(0));
        let mut scratch = SCRATCH.try_with(RefCell::take).ok().flatten().unwrap_or_default();
        let now = self.run_session(store, &mut lock(&server.session), now, &mut scratch);
        for effect in scratch.deferred.drain(..) {
            self.perform(server, effect, now);
        }
        let _ = SCRATCH.try_with(|kept| kept.replace(Some(scratch)));
    }

    /// Has the store execute everything that the session sends. Other effects are left in `scratch`. Returns the time
    /// of the last answer.
    fn run_session(
        self: &Arc<Self>,
        store: &dyn Immediate,
        session: &mut Session,
        mut now: Instant,
        scratch: &mut ExchangeBuffers,
    ) -> Instant {
        let ExchangeBuffers { effects, deferred } = scratch;
        loop {
            session.step(now, effects);
            if effects.is_empty() {
                return now;
            }
            // A sent batch is answered in this loop, so that nothing is left to do after it.
            let mut is_over = true;
            for effect in effects.drain(..) {
                is_over &= matches!(effect, SessionEffect::Send { .. });
                let input = match effect {
                    SessionEffect::Connect(attempt) => {
                        let opened = Opened {
                            time: store.time(),
                            ..Opened::default()
                        };
                        SessionInput::Connected { attempt, opened }
                    }
                    SessionEffect::Inbox(InboxEffect::Open(attempt)) => {
                        store.listen(self.id, Some(self.sink()));
                        let address = Arc::default();
                        SessionInput::InboxOpened { attempt, address }
                    }
                    SessionEffect::Send { id, batch, .. } => {
                        self.events.note_batch(batch.requests.len());
                        let reply = Ok(store.apply(&batch, session.take_reply_buffer()));
                        // The step was not later than the sending, and what follows is not earlier than the answer.
                        now = self.clock.now();
                        session.handle(now, SessionInput::Replied { batch: id, reply }, deferred);
                        session.recycle(batch);
                        continue;
                    }
                    SessionEffect::Act { id, name, action, .. } => {
                        let reply = Ok(BatchReply::of_action(store.act(&name, &action)));
                        SessionInput::Replied { batch: id, reply }
                    }
                    other => {
                        deferred.push(other);
                        continue;
                    }
                };
                session.handle(now, input, deferred);
            }
            if is_over && session.is_idle() {
                return now;
            }
        }
    }

    /// Returns the sink for grants and news for this node. It runs on the thread that pushes.
    fn sink(self: &Arc<Self>) -> Sink {
        let node: Weak<Node> = Arc::downgrade(self);
        Arc::new(move |event| {
            let Some(node) = node.upgrade() else { return };
            if let Some(pushed) = inbox::key_input(&node, event) {
                lock(&node.pushed).push(pushed);
                node.has_pushed.store(true, Ordering::Release);
                if IS_EXCHANGING.get() {
                    node.leave_to_outermost();
                } else {
                    node.alarm.ring();
                }
            }
        })
    }
}

/// Takes the nodes that were left to the outermost call.
fn take_waiting_nodes() -> Vec<Arc<Node>> {
    // A look at the flag is cheaper than a take.
    if !HAS_WAITING_NODES.replace(false) {
        return Vec::new();
    }
    WAITING_NODES.try_with(RefCell::take).unwrap_or_default()
}

/// Ends the outermost call, also when a step panics.
struct ExchangeEnd;

impl Drop for ExchangeEnd {
    fn drop(&mut self) {
        IS_EXCHANGING.set(false);
        // The drivers handle the nodes that are left.
        take_waiting_nodes().iter().for_each(|node| node.alarm.ring());
    }
}
