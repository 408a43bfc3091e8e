//! A store that answers at once is asked by the caller's own thread, through the same session.
//!
//! When a call returns, what it had to tell the store was told: a guard that was dropped is given back. A push goes to
//! the inbox of its node, and the outermost call of a thread sees to every node that got one: done in place, one hand-over
//! would lead to the next, from node to node, on one stack.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::driver::inbox;
use crate::driver::node::Node;
use crate::driver::waiter::lock;
use crate::protocol::message::BatchReply;
use crate::protocol::session::Session;
use crate::protocol::session::step::{InboxEffect, SessionEffect, SessionInput};
use crate::protocol::time::Instant;
use crate::store::{Immediate, ServerId, Sink};

/// So many rounds a caller makes for others; then their drivers take over.
const ROUNDS: usize = 16;

/// What an exchange leads to. A thread keeps one for its next, so that exchanges need not allocate.
#[derive(Default)]
struct Scratch {
    effects: Vec<SessionEffect>,
    told: Vec<SessionEffect>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Box<Scratch>>> = const { RefCell::new(None) };
    /// This thread is in an exchange.
    static IS_UNDER_WAY: Cell<bool> = const { Cell::new(false) };
    /// It has to see to other nodes.
    static IS_OWING: Cell<bool> = const { Cell::new(false) };
    /// Which.
    static NODES: RefCell<Vec<Arc<Node>>> = const { RefCell::new(Vec::new()) };
}

impl Node {
    /// Sends what waits to be sent at `now`, and sees to all that follows from it.
    pub(crate) fn exchange(self: &Arc<Self>, now: Instant) {
        if IS_UNDER_WAY.replace(true) {
            return self.leave_to_outermost();
        }
        let _end = End;
        self.exchange_once(now);
        for _ in 1..ROUNDS {
            let nodes = left();
            if nodes.is_empty() {
                return;
            }
            nodes.iter().for_each(|node| node.exchange_once(node.clock.now()));
        }
    }

    /// The outermost call of this thread sees to this node, or its driver, if the thread is ending.
    fn leave_to_outermost(self: &Arc<Self>) {
        let is_left = NODES.try_with(|nodes| {
            let mut nodes = nodes.borrow_mut();
            if !nodes.iter().any(|node| Arc::ptr_eq(node, self)) {
                nodes.push(self.clone());
            }
        });
        match is_left {
            Ok(()) => IS_OWING.set(true),
            Err(_) => self.alarm.ring(),
        }
    }

    /// Takes in what was pushed, and asks the store what waits to be asked.
    fn exchange_once(self: &Arc<Self>, now: Instant) {
        let Some(store) = self.servers.immediate() else {
            return;
        };
        if self.is_pushed.load(Ordering::Acquire) {
            self.is_pushed.store(false, Ordering::SeqCst);
            let pushed = std::mem::take(&mut *lock(&self.pushed));
            for (name, input) in pushed {
                self.drive(&name, input);
            }
        }
        let server = self.servers.get(ServerId(0));
        let mut scratch = SCRATCH.try_with(RefCell::take).ok().flatten().unwrap_or_default();
        let now = self.ask(store, &mut lock(&server.session), now, &mut scratch);
        for effect in scratch.told.drain(..) {
            self.perform(server, effect, now);
        }
        let _ = SCRATCH.try_with(|kept| kept.replace(Some(scratch)));
    }

    /// Has the store do everything that the session wants done, which leaves what is to be told. Says when that was.
    fn ask(
        self: &Arc<Self>,
        store: &dyn Immediate,
        session: &mut Session,
        mut now: Instant,
        scratch: &mut Scratch,
    ) -> Instant {
        let Scratch { effects, told } = scratch;
        loop {
            session.step(now, effects);
            if effects.is_empty() {
                return now;
            }
            // What is sent is answered here and now: after that nothing is left to do.
            let mut is_over = true;
            for effect in effects.drain(..) {
                is_over &= matches!(effect, SessionEffect::Send { .. });
                let input = match effect {
                    SessionEffect::Connect(attempt) => {
                        let time = store.time();
                        SessionInput::Connected { attempt, time }
                    }
                    SessionEffect::Inbox(InboxEffect::Open(attempt)) => {
                        store.listen(self.id, Some(self.sink()));
                        SessionInput::InboxOpened(attempt)
                    }
                    SessionEffect::Send { id, batch, .. } => {
                        self.events.sent(batch.requests.len());
                        let reply = Ok(store.apply(&batch, session.take_reply_buffer()));
                        // The step was never later than the sending; what follows is never earlier than the answer.
                        now = self.clock.now();
                        session.handle(now, SessionInput::Replied { batch: id, reply }, told);
                        session.recycle(batch);
                        continue;
                    }
                    SessionEffect::Act { id, name, action, .. } => {
                        let reply = Ok(BatchReply::of_action(store.act(&name, &action)));
                        SessionInput::Replied { batch: id, reply }
                    }
                    other => {
                        told.push(other);
                        continue;
                    }
                };
                session.handle(now, input, told);
            }
            if is_over && session.is_idle() {
                return now;
            }
        }
    }

    /// Where grants and news for this node are pushed to: on the thread of whoever makes them.
    fn sink(self: &Arc<Self>) -> Sink {
        let node: Weak<Node> = Arc::downgrade(self);
        Arc::new(move |event| {
            if let (Some(node), Ok(pushed)) = (node.upgrade(), inbox::told(event)) {
                lock(&node.pushed).push(pushed);
                node.is_pushed.store(true, Ordering::Release);
                if IS_UNDER_WAY.get() {
                    node.leave_to_outermost();
                } else {
                    node.alarm.ring();
                }
            }
        })
    }
}

/// What was left to the outermost call.
fn left() -> Vec<Arc<Node>> {
    // To look is cheap, to take is not.
    if !IS_OWING.replace(false) {
        return Vec::new();
    }
    NODES.try_with(RefCell::take).unwrap_or_default()
}

/// Ends the outermost call, also when a step panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        IS_UNDER_WAY.set(false);
        // What is left then is left to the drivers.
        left().iter().for_each(|node| node.alarm.ring());
    }
}
