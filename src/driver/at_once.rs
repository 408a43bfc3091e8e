//! A store that answers at once is asked by the caller's own thread, through the same session.
//!
//! When a call returns, what it had to tell the store was told: a guard that was dropped is given back. A push goes to
//! the inbox of its node, and the outermost call of a thread sees to every node that got one: done in place, one hand-over
//! would lead to the next, from node to node, on one stack.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::driver::node::Node;
use crate::driver::waiter::lock;
use crate::protocol::message::InboxEvent;
use crate::protocol::session::Session;
use crate::protocol::session_step::{InboxEffect, SessionEffect, SessionInput};
use crate::protocol::step::Input;
use crate::protocol::time::Instant;
use crate::store::{AtOnce, ServerId, Sink};

/// So many rounds a caller makes for others; then their drivers take over.
const ROUNDS: usize = 16;

/// The nodes that this thread has to see to.
#[derive(Default)]
struct Work {
    is_under_way: bool,
    nodes: Vec<Arc<Node>>,
}

/// What an exchange leads to. A thread keeps one for its next, so that exchanges need not allocate.
#[derive(Default)]
struct Scratch {
    effects: Vec<SessionEffect>,
    told: Vec<SessionEffect>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static WORK: RefCell<Work> = RefCell::default();
}

impl Node {
    /// Sends what waits to be sent, and sees to all that follows from it.
    pub(crate) fn exchange(self: &Arc<Self>) {
        let is_outermost = WORK.try_with(|work| {
            let mut work = work.borrow_mut();
            if work.is_under_way {
                if !work.nodes.iter().any(|node| Arc::ptr_eq(node, self)) {
                    work.nodes.push(self.clone());
                }
                return false;
            }
            work.is_under_way = true;
            true
        });
        match is_outermost {
            Ok(true) => {}
            Ok(false) => return,
            // The thread is ending.
            Err(_) => return self.alarm.ring(),
        }
        // Also when a step panics.
        let _end = End;
        self.exchange_once();
        for _ in 1..ROUNDS {
            let nodes = WORK.with(|work| std::mem::take(&mut work.borrow_mut().nodes));
            if nodes.is_empty() {
                return;
            }
            nodes.iter().for_each(|node| node.exchange_once());
        }
        let rest = WORK.with(|work| std::mem::take(&mut work.borrow_mut().nodes));
        rest.iter().for_each(|node| node.alarm.ring());
    }

    /// Takes in what was pushed, and asks the store what waits to be asked.
    fn exchange_once(self: &Arc<Self>) {
        let Some(store) = self.servers.at_once() else {
            return;
        };
        let grants = std::mem::take(&mut *lock(&self.pushed));
        for grant in grants {
            let name = grant.name.clone();
            self.drive(&name, Input::Pushed(grant));
        }
        let server = self.servers.get(ServerId(0));
        let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        let now = self.clock.now();
        self.ask(store, &mut lock(&server.session), now, &mut scratch);
        for effect in scratch.told.drain(..) {
            self.perform(&server, effect);
        }
        let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
    }

    /// Has the store do everything that the session wants done, which leaves what is to be told.
    fn ask(self: &Arc<Self>, store: &dyn AtOnce, session: &mut Session, now: Instant, scratch: &mut Scratch) {
        let Scratch { effects, told } = scratch;
        loop {
            session.step(now, effects);
            if effects.is_empty() {
                return;
            }
            for effect in effects.drain(..) {
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
                        let reply = Ok(store.apply(&batch, session.room()));
                        session.handle(now, SessionInput::Replied { batch: id, reply }, told);
                        session.recycle(batch);
                        continue;
                    }
                    other => {
                        told.push(other);
                        continue;
                    }
                };
                session.handle(now, input, told);
            }
        }
    }

    /// Where grants for this node are pushed to: on the thread of whoever hands over.
    fn sink(self: &Arc<Self>) -> Sink {
        let node: Weak<Node> = Arc::downgrade(self);
        Arc::new(move |event| {
            if let (Some(node), InboxEvent::Granted(grant)) = (node.upgrade(), event) {
                lock(&node.pushed).push(grant);
                let noted = WORK.try_with(|work| match work.try_borrow_mut() {
                    Ok(mut work) if work.is_under_way => {
                        work.nodes.push(node.clone());
                        true
                    }
                    _ => false,
                });
                if noted != Ok(true) {
                    node.alarm.ring();
                }
            }
        })
    }
}

/// Ends the outermost call.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let _ = WORK.try_with(|work| *work.borrow_mut() = Work::default());
    }
}
