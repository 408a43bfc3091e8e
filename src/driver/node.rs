//! One process's part in the protocol: its keys in shards, a session per server, and who waits for what.
//!
//! Every thread may take a step of a key. What a step wants sent is left with the session of its server; the driver sends
//! it, except where a store answers at once. Lock order: a shard, then a session, then a store; nothing of a user's
//! runs under any of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::quality::RandomState;
use tokio::sync::{Notify, oneshot, watch};

use crate::driver::clock::Clock;
use crate::driver::events::EventSink;
use crate::driver::outage::Failed;
use crate::driver::pulse::Pulse;
use crate::driver::servers::Servers;
use crate::driver::waiter::{Told, Waiter, Wake, lock};
use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::observe::Label;
use crate::options::Options;
use crate::protocol::key::context::Seed;
use crate::protocol::key::shard::Shard;
use crate::protocol::message::{LeaseTimes, Name, NodeId};
use crate::protocol::session::step::SessionInput;
use crate::protocol::step::{AcquireError, Effect, InboxState, Input, Outgoing, Rules, Ticket};
use crate::protocol::time::Instant;
use crate::store::Store;

/// More than there are cores that would contend for one.
const SHARDS: u64 = 16;
/// A thread keeps room for so many effects that are told later, and for so many wakers.
const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) events: EventSink,
    pub(crate) servers: Servers,
    pub(crate) alarm: Alarm,
    pub(crate) pulse: Pulse,
    fork: forkguard::Guard,
    hasher: RandomState,
    pub(super) shards: Vec<Cell>,
    pub(super) waiting: AtomicUsize,
    abandoned: AtomicBool,
    pub(super) idle: Notify,
    inbox: watch::Sender<InboxState>,
    pub(super) longest_ms: AtomicU64,
    /// What a store in memory pushed, until somebody takes it in.
    pub(crate) pushed: Mutex<Vec<(Name, Input)>>,
    /// There may be some.
    pub(crate) is_pushed: AtomicBool,
}

/// A shard, and who waits for it.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) keys: Mutex<Keys>,
    /// When the shard has something to do next, in nanoseconds.
    pub(super) due: AtomicU64,
}

impl Cell {
    /// Unlocks the shard after its steps, and notes what is left to do.
    pub(super) fn unlock(&self, keys: MutexGuard<'_, Keys>, after: &mut Aftermath) {
        let due = keys.shard.next_due().map_or(u64::MAX, Instant::as_nanos);
        // To look is cheap, to store is not.
        if self.due.load(Ordering::Relaxed) != due {
            self.due.store(due, Ordering::SeqCst);
        }
        after.due = after.due.min(due);
        after.is_empty |= keys.shard.is_empty();
    }
}

#[derive(Debug)]
pub(super) struct Keys {
    pub(super) shard: Shard,
    /// When its latest step was, or its latest answer to a holder.
    latest: Instant,
    pub(super) waiters: Waiters,
}

/// The callers that wait for something, or hold.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// For a lease, or with one.
    pub(super) locks: HashMap<Ticket, Arc<Waiter>, RandomState>,
    /// For the answer to a call.
    pub(super) calls: HashMap<Ticket, oneshot::Sender<Told>, RandomState>,
}

impl Waiters {
    fn tell_lock(&self, ticket: Ticket, tell: impl FnOnce(&Waiter)) {
        if let Some(waiter) = self.locks.get(&ticket) {
            tell(waiter);
        }
    }

    /// Tells the caller of a call when nothing is locked any more.
    pub(super) fn tell(&mut self, ticket: Ticket, told: Told, wakes: &mut Vec<Wake>) {
        let caller = self.calls.remove(&ticket);
        wakes.extend(caller.map(|caller| Wake::Call(caller, told)));
    }
}

impl Keys {
    /// No step is earlier than the one before it, or than what somebody was told: who heard that a lease is over must not
    /// see it held by an answer of before.
    pub(super) fn not_before(&mut self, now: Instant) -> Instant {
        self.latest = now.max(self.latest);
        self.latest
    }

    /// For somebody who asks.
    pub(super) fn now(&mut self, clock: &Clock) -> Instant {
        self.not_before(clock.now())
    }
}

/// A caller that entered: its ticket, where it waits, and since when.
pub(crate) type Entered = (Ticket, Arc<Waiter>, Instant);

/// Wakes the driver.
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(crate) notify: Notify,
    /// When it looks up next at the latest, in nanoseconds.
    pub(crate) planned: AtomicU64,
}

impl Alarm {
    /// Something is to be done now.
    pub(crate) fn ring(&self) {
        self.notify.notify_one();
    }

    /// Something is to be done at `due`. The planned wake-up only moves earlier.
    pub(crate) fn expect(&self, due: u64) {
        if due < self.planned.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}

/// What steps lead to that is done when nothing is locked. A thread keeps one for its next step, so that steps need not
/// allocate.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    pub(super) told: Vec<(Name, Effect)>,
    /// Wakers may run foreign code.
    pub(super) wakes: Vec<Wake>,
    /// Claims that are granted together or not at all: they are left with the session when all of them are known.
    pub(super) together: Option<Vec<Outgoing>>,
    /// When the latest step was.
    pub(super) now: Instant,
    /// Something waits to be sent.
    pub(super) sends: bool,
    /// When a shard has something to do next, in nanoseconds.
    pub(super) due: u64,
    /// A shard has nothing more to do.
    pub(super) is_empty: bool,
}

thread_local! {
    static AFTERMATH: RefCell<Option<Box<Aftermath>>> = const { RefCell::new(None) };
}

impl Aftermath {
    /// One that is empty. Foreign code may step again while this one is in use, and a thread may be ending.
    pub(super) fn take() -> Box<Aftermath> {
        let kept = AFTERMATH.try_with(RefCell::take).ok().flatten();
        let mut after: Box<Aftermath> = kept.unwrap_or_default();
        (after.sends, after.due, after.is_empty) = (false, u64::MAX, false);
        after
    }

    /// Keeps the room for the next step of this thread.
    pub(super) fn keep(self: Box<Self>) {
        if self.told.capacity() <= KEPT && self.wakes.capacity() <= KEPT {
            let _ = AFTERMATH.try_with(|kept| kept.replace(Some(self)));
        }
    }
}

impl Node {
    pub(crate) fn new(store: Arc<dyn Store>, options: Options, clock: Clock) -> Arc<Node> {
        let abilities = store.abilities();
        let rules = Rules {
            burst: options.burst,
            burst_time: options.burst_time,
            long_hold: options.long_hold,
            queues: abilities.queues,
            final_push: abilities.final_push,
        };
        let id = NodeId::random();
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        let id = clock.process().map_or(id, |process| process.node());
        // From the operating system: a nonce that can be guessed lets others forge a grant.
        let drawn = uuid::Uuid::new_v4().as_u64_pair();
        let nonce_key = options.seed.map_or(drawn, |seed| (seed, !seed));
        let shards = (0..SHARDS).map(|index| {
            let jitter = nonce_key.0.wrapping_add(index);
            let seed = Seed { nonce_key, jitter };
            Cell {
                keys: Mutex::new(Keys {
                    shard: Shard::new(id, index, SHARDS, seed, rules),
                    latest: Instant::default(),
                    waiters: Waiters::default(),
                }),
                due: AtomicU64::new(u64::MAX),
            }
        });
        Arc::new(Node {
            id,
            clock,
            events: EventSink::capture(Label::new(id, options.node_name.as_deref())),
            servers: Servers::new(store, &options, nonce_key.1),
            alarm: Alarm {
                notify: Notify::new(),
                planned: AtomicU64::new(u64::MAX),
            },
            pulse: Pulse::default(),
            fork: forkguard::new(),
            hasher: RandomState::default(),
            shards: shards.collect(),
            waiting: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            idle: Notify::new(),
            inbox: watch::Sender::new(InboxState::Unconfirmed),
            longest_ms: AtomicU64::new(0),
            pushed: Mutex::default(),
            is_pushed: AtomicBool::new(false),
            options,
        })
    }

    /// A fork copies the node's identity but not its driver, and inherits mutexes that others had locked.
    pub(crate) fn is_forked(&self) -> bool {
        // A copy, as a guard tells it once.
        self.fork.clone().detected_fork()
    }

    // What callers do.

    /// Others of this process read by the lease of this holder. If not, none will.
    pub(crate) fn reads_with_others(&self, name: &Name, ticket: Ticket) -> bool {
        lock(&self.cell(name).keys).shard.reads_with_others(name, ticket)
    }

    /// Enters a caller whose claim has these lengths, and says when. What is decided comes to its waiter.
    pub(crate) fn enter(
        self: &Arc<Self>,
        name: &Name,
        term: LeaseTimes,
        input: impl FnOnce(Ticket) -> Input,
    ) -> Entered {
        self.note_entry(term);
        self.in_shard(name, |keys, after| self.enter_shard(keys, name, input, after))
    }

    /// A caller enters that asks for no lease.
    pub(crate) fn note_caller(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A caller enters.
    pub(crate) fn note_entry(&self, term: LeaseTimes) {
        self.note_caller();
        let hold_ms = term.hold_ms();
        if self.longest_ms.load(Ordering::Relaxed) < hold_ms {
            self.longest_ms.fetch_max(hold_ms, Ordering::Relaxed);
        }
    }

    /// A caller that entered waits no more: it has its answer, or left.
    pub(crate) fn answered(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A caller takes up what it was granted, at `now` or when its shard took a step after that. Its waiter is told until
    /// when it is held at least.
    ///
    /// # Errors
    /// Why there is no guard: the lease ended before it was taken up.
    pub(crate) fn take_up(
        self: &Arc<Self>,
        name: &Name,
        ticket: Ticket,
        waiter: &Waiter,
        now: Instant,
    ) -> Result<(), LostCause> {
        let mut keys = lock(&self.cell(name).keys);
        let now = keys.not_before(now);
        if let Some(deadline) = keys.shard.take_up(now, name, ticket) {
            waiter.note_deadline(deadline);
            return Ok(());
        }
        drop(keys);
        let cause = waiter.over().unwrap_or(LostCause::Unfetched);
        self.cancel(name, ticket);
        Err(cause)
    }

    /// Nobody is interested in this ticket any more, waiting or holding.
    pub(crate) fn cancel(self: &Arc<Self>, name: &Name, ticket: Ticket) {
        self.drive(name, Input::Cancel(ticket));
    }

    /// Asks some server for a sign of life.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        let server = self.servers.of_any();
        let (probed, answer) = server.probe();
        self.feed(server, probed);
        self.alarm.ring();
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "the driver has ended",
            ))
        })
    }

    /// A caller is about to give up: asks the servers for a sign of life, so that the caller is told what kept it.
    pub(crate) fn look_for_life(self: &Arc<Self>) {
        for server in self.servers.all() {
            self.feed(server, SessionInput::SignWanted);
        }
        self.alarm.ring();
    }

    /// Somebody may wait: grants must be pushed here.
    #[cfg(feature = "redis")]
    pub(crate) fn want_inbox(self: &Arc<Self>) {
        self.feed(self.servers.of_any(), SessionInput::InboxWanted);
        self.alarm.ring();
    }

    // Steps of keys.

    pub(super) fn shard_of(&self, name: &Name) -> usize {
        (self.hasher.hash_one(name) % SHARDS) as usize
    }

    pub(super) fn cell(&self, name: &Name) -> &Cell {
        &self.shards[self.shard_of(name)]
    }

    /// Leaves a request with the session of its server.
    fn queue(&self, outgoing: &Outgoing) {
        let server = self.servers.of(&outgoing.request.name);
        lock(&server.session).queue(outgoing);
    }

    /// Carries one effect out while its shard is locked. What may run foreign code is left in `after`.
    pub(super) fn carry_out(
        &self,
        waiters: &mut Waiters,
        name: &Name,
        effect: &Effect,
        after: &mut Aftermath,
    ) {
        let wakes = &mut after.wakes;
        match effect {
            Effect::Send(outgoing) => {
                after.sends = true;
                match &mut after.together {
                    Some(claims) => claims.push(outgoing.clone()),
                    None => self.queue(outgoing),
                }
            }
            Effect::Act(action) => {
                after.sends = true;
                lock(&self.servers.of(&action.name).session).queue_action(action.clone());
            }
            Effect::Granted(ticket, fence) => {
                // A number that is handed on was heard of with its first holder.
                if fence.is_first() {
                    // Here, and not when a push arrives: only the key machine knows a forged one.
                    lock(&self.servers.of(name).session).saw(fence.number());
                }
                waiters.tell_lock(*ticket, |waiter| waiter.decide(Ok(*fence), wakes));
            }
            Effect::Denied(ticket, error @ AcquireError::Kept(..)) => {
                waiters.tell_lock(*ticket, |waiter| waiter.decide(Err(error.clone()), wakes));
            }
            Effect::Denied(ticket, error) => match waiters.locks.remove(ticket) {
                Some(waiter) => waiter.decide(Err(error.clone()), wakes),
                None => waiters.tell(*ticket, Err(error.clone()), wakes),
            },
            Effect::Answered(ticket, answer) => waiters.tell(*ticket, Ok(answer.clone()), wakes),
            Effect::Overdue(ticket) => waiters.tell_lock(*ticket, |waiter| waiter.overdue(wakes)),
            Effect::Lost(ticket, cause) => waiters.tell_lock(*ticket, |waiter| waiter.end(*cause, wakes)),
            Effect::Released(ticket, outcome) => {
                if let Some(waiter) = waiters.locks.remove(ticket) {
                    waiter.settle(outcome.clone(), wakes);
                }
            }
            Effect::WriteEnded(..) | Effect::PushMissed | Effect::Event(_) => {}
        }
        let is_told = matches!(
            effect,
            Effect::Lost(..)
                | Effect::Denied(_, AcquireError::Store(_) | AcquireError::Kept(..))
                | Effect::WriteEnded(..)
                | Effect::PushMissed
                | Effect::Event(_)
        );
        if is_told {
            after.told.push((name.clone(), effect.clone()));
        }
    }

    /// What nobody's own thread tells. Others are heard of where their caller runs on.
    pub(super) fn tell(self: &Arc<Self>, name: &Name, effect: &Effect) {
        match effect {
            Effect::PushMissed => {
                self.feed(self.servers.of(name), SessionInput::PushMissed);
                self.alarm.ring();
            }
            Effect::WriteEnded(lease, is_refused) => {
                self.drive(&lease.name, Input::WriteEnded(lease.clone(), *is_refused));
            }
            Effect::Event(event) => self.events.push_key_event(name, event),
            Effect::Lost(_, cause) => {
                if matches!(cause, LostCause::Deadline | LostCause::Gone) {
                    self.servers.of(name).outage.lost_lease();
                }
                let is_by_deadline = *cause == LostCause::Deadline;
                let paused = is_by_deadline.then(|| self.pause_until_now()).flatten();
                self.events.push_loss(name, *cause, paused);
            }
            Effect::Denied(_, AcquireError::Store(error) | AcquireError::Kept(_, error)) => {
                self.failed(self.servers.of(name), Failed::Caller, error);
            }
            _ => {}
        }
    }

    /// When a key has something to do next.
    pub(crate) fn next_key_due(&self) -> Option<Instant> {
        let shards = self.shards.iter().map(|cell| cell.due.load(Ordering::SeqCst));
        let due = shards.min().filter(|due| *due < u64::MAX);
        due.map(Instant::from_nanos)
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        let shards = self.next_key_due();
        let sessions = self.servers.all();
        let sessions = sessions.filter_map(|server| lock(&server.session).next_due());
        sessions.chain(shards).min()
    }

    /// Whether grants are pushed has changed.
    pub(crate) fn inbox_state(self: &Arc<Self>, state: InboxState) {
        self.each(|shard, now, perform| shard.inbox(now, state, perform));
        self.inbox.send_replace(state);
    }

    /// A connection opened: whatever waits to be told can be told.
    pub(crate) fn reachable(self: &Arc<Self>) {
        self.each(|shard, now, perform| shard.reachable(now, perform));
    }

    /// Tells whether grants are pushed to this node.
    #[cfg(feature = "redis")]
    pub(crate) fn inbox(&self) -> watch::Receiver<InboxState> {
        self.inbox.subscribe()
    }

    // The end.

    /// Gives up everything that is held and waited for.
    pub(crate) fn close(self: &Arc<Self>) {
        self.each(|shard, now, perform| shard.close(now, perform));
    }

    /// No handle is left: the driver finishes what is under way and ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.alarm.ring();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn note_idle(&self) {
        self.idle.notify_waiters();
    }
}
