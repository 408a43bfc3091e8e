//! A batch under way: polled by callers along with themselves, finished by the keeper when they do not, and taken apart
//! when its answer is there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::message::{BatchReply, Executed, Failure, Name, Reply, Request, Unanswered};
use crate::protocol::step::{Input, Tag};
use crate::protocol::time::Instant;
use crate::runtime::courier::Courier;
use crate::runtime::node::Node;
use crate::runtime::slot::lock;
use crate::runtime::traffic::Trip;
use crate::store::{BoxFuture, Link};

/// What a store does with a batch.
type Sending = BoxFuture<'static, Result<BatchReply, Failure>>;

/// A batch under way.
pub(crate) struct Carriage {
    courier: Arc<Courier>,
    node: Arc<Node>,
    /// `None` when it is over, and before there is anything to poll.
    pub(super) sending: Mutex<Option<Sending>>,
    cargo: Mutex<Vec<(Tag, Name)>>,
    /// How many requests it carries.
    pub(crate) load: usize,
    /// Read before the first byte was written; 0 before that.
    sent: AtomicU64,
    /// From when on the server refuses its claims as late.
    late_after: AtomicU64,
    /// Of the connection that it was handed to.
    generation: AtomicU64,
    pub(crate) since: Instant,
    /// How long its requests had waited by then, in the mean.
    waited: Duration,
    pub(crate) deadline: Instant,
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl std::fmt::Debug for Carriage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carriage")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Carriage {
    /// Loaded, and with nothing to poll yet.
    pub(crate) fn new(
        courier: &Arc<Courier>,
        node: &Arc<Node>,
        cargo: Vec<(Tag, Name)>,
        generation: u64,
        since: Instant,
        waited: Duration,
        deadline: Instant,
    ) -> Self {
        Carriage {
            courier: courier.clone(),
            node: node.clone(),
            sending: Mutex::new(None),
            load: cargo.len(),
            cargo: Mutex::new(cargo),
            sent: AtomicU64::new(0),
            late_after: AtomicU64::new(0),
            generation: AtomicU64::new(generation),
            since,
            waited,
            deadline,
            done: AtomicBool::new(false),
            waker: Mutex::new(None),
        }
    }

    /// It is handed to this connection.
    pub(crate) fn goes_by(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn send(&self, link: &dyn Link, requests: Vec<Request>) -> Sending {
        let patience = self.node.options.request_timeout;
        let (batch, late_after) = self.courier.server.batch(self.deadline, requests, patience);
        self.late_after.store(late_after.as_nanos(), Ordering::Release);
        let now = self.node.clock.now();
        self.sent.store(now.as_nanos(), Ordering::Release);
        link.apply(batch)
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.done.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let polled = {
            let mut sending = lock(&self.sending);
            let Some(future) = sending.as_mut() else {
                return Poll::Ready(());
            };
            let polled = future.as_mut().poll(cx);
            if polled.is_ready() {
                *sending = None;
            }
            polled
        };
        match polled {
            Poll::Ready(result) => {
                self.arrive(result);
                Poll::Ready(())
            }
            Poll::Pending => {
                let mut waker = lock(&self.waker);
                match &mut *waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                // It may have been finished by the keeper since.
                if self.done.load(Ordering::Acquire) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }
        }
    }

    /// Polls it for a caller that may be asleep, and leaves that caller to be woken.
    pub(crate) fn help(&self) {
        let Some(waker) = lock(&self.waker).clone() else {
            return;
        };
        // A connection whose runtime ended may panic when it is touched; then the deadline decides.
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll(&mut Context::from_waker(&waker))));
        if matches!(polled, Ok(Poll::Ready(()))) {
            waker.wake();
        }
    }

    /// Its time is up. The answer may be there, unread by a caller that is asleep; else the connection is given up.
    pub(crate) fn finish(self: &Arc<Self>) {
        let future = lock(&self.sending).take();
        let Some(mut future) = future else { return };
        // Asked when nobody polls it any more: the last one who did may have sent it.
        let sent = self.sent.load(Ordering::Acquire) != 0;
        let timed_out = || StoreError::new(StoreErrorKind::TimedOut, "no answer in time");
        let mut result = None;
        if sent {
            // A connection whose runtime ended may panic when it is touched.
            let mut cx = Context::from_waker(Waker::noop());
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
            if let Ok(Poll::Ready(ready)) = polled {
                result = Some(ready);
            }
        }
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        if !sent {
            self.courier.open_anew();
        }
        match result {
            Some(result) => self.arrive(result),
            None => {
                let executed = if sent { Executed::Unknown } else { Executed::No };
                self.arrive(Err(Failure {
                    executed,
                    error: timed_out(),
                }));
            }
        }
        // Whoever polled it finds it done. One who polls it right now needs no waking, which would cost a turn.
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn arrive(&self, result: Result<BatchReply, Failure>) {
        let node = &self.node;
        let now = node.clock.now();
        let sent = Instant::from_nanos(self.sent.load(Ordering::Acquire));
        let generation = self.generation();
        let cargo = std::mem::take(&mut *lock(&self.cargo));
        self.done.store(true, Ordering::Release);
        let trip = result.as_ref().ok().map(|answer| {
            let is_shared = |reply: &Reply| matches!(reply, Reply::Queued(_) | Reply::Busy(_));
            Trip {
                took: now.since(sent),
                waited: self.waited,
                is_shared: answer.replies.iter().any(is_shared),
            }
        });
        self.courier.arrived(self, trip);
        let on = self.courier.side;
        match result {
            Ok(answer) if answer.replies.len() == cargo.len() => {
                if answer.time > 0 {
                    self.courier.server.heard_time(answer.time, sent, now);
                }
                let demoted = answer.replies.contains(&Reply::Refused(StoreRefusal::ReadOnly));
                for ((tag, name), reply) in cargo.into_iter().zip(answer.replies) {
                    if let Reply::Granted(number) | Reply::Won(number, _) = reply {
                        self.courier.server.heard_number(number);
                    }
                    node.drive(&name, Input::Answered { tag, sent, reply }, on);
                }
                if demoted {
                    self.abandon(generation, &StoreError::refused(StoreRefusal::ReadOnly));
                }
            }
            other => {
                let failure = other.err().unwrap_or_else(|| Failure {
                    executed: Executed::Unknown,
                    error: StoreError::new(StoreErrorKind::Interrupted, "the answer does not fit the batch"),
                });
                if is_broken(&failure.error) {
                    self.abandon(generation, &failure.error);
                }
                let late_after = Instant::from_nanos(self.late_after.load(Ordering::Acquire)).max(now);
                let why = match (failure.executed, failure.error.kind()) {
                    (Executed::No, StoreErrorKind::Unreachable) => Unanswered::Down,
                    (Executed::No, _) => Unanswered::No,
                    (Executed::Unknown, StoreErrorKind::Interrupted) => Unanswered::Bystander,
                    (Executed::Unknown, _) => Unanswered::Unknown,
                };
                let heard = self.courier.server.heard();
                for (tag, name) in cargo {
                    let error = failure.error.clone();
                    node.drive(
                        &name,
                        Input::Failed {
                            tag,
                            why,
                            late_after,
                            heard,
                            error,
                        },
                        on,
                    );
                }
            }
        }
        self.courier.pass_on(node);
        node.note_idle();
    }

    fn abandon(&self, generation: u64, error: &StoreError) {
        finish_all(self.courier.give_up(&self.node, generation, error));
    }
}

pub(crate) fn finish_all(carriages: Vec<Arc<Carriage>>) {
    carriages.iter().for_each(Carriage::finish);
}

/// After this a connection is of no more use.
pub(crate) fn is_broken(error: &StoreError) -> bool {
    match error.kind() {
        StoreErrorKind::Refused(refusal) => matches!(refusal, StoreRefusal::ReadOnly | StoreRefusal::NoAuth),
        _ => true,
    }
}
