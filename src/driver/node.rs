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
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::{Notify, watch};

use crate::driver::clock::Clock;
use crate::driver::events::EventSink;
use crate::driver::outage::Failed;
use crate::driver::servers::Servers;
use crate::driver::waiter::{Waiter, Wake, lock};
use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::observe::Label;
use crate::options::Options;
use crate::protocol::context::Seed;
use crate::protocol::message::{Grant, Name, NodeId};
#[cfg(feature = "redis")]
use crate::protocol::session_step::SessionInput;
use crate::protocol::shard::Shard;
use crate::protocol::step::{AcquireError, AcquireOptions, Effect, InboxState, Input, Rules, Ticket};
use crate::protocol::time::Instant;
use crate::store::Store;

/// More than there are cores that would contend for one.
const SHARDS: u64 = 16;
/// For so many effects a thread keeps room.
const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) events: EventSink,
    pub(crate) servers: Servers,
    pub(crate) alarm: Alarm,
    pid: u32,
    hasher: RandomState,
    shards: Vec<Cell>,
    waiting: AtomicUsize,
    abandoned: AtomicBool,
    idle: Notify,
    inbox: watch::Sender<InboxState>,
    longest_ms: AtomicU64,
    /// Grants that a store in memory pushed, until somebody takes them in.
    pub(crate) pushed: Mutex<Vec<Grant>>,
}

/// A shard, and who waits for it.
#[derive(Debug)]
struct Cell {
    keys: Mutex<Keys>,
    /// When the shard has something to do next, in nanoseconds.
    due: AtomicU64,
}

#[derive(Debug)]
struct Keys {
    shard: Shard,
    waiters: HashMap<Ticket, Arc<Waiter>, RandomState>,
}

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
    fn expect(&self, due: u64) {
        if due < self.planned.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}

/// What a step leads to. A thread keeps one for its next step, so that steps need not allocate.
#[derive(Debug, Default)]
struct Step {
    effects: Vec<Effect>,
    /// Who is woken when nothing is locked, as that may run foreign code.
    wakes: Vec<Wake>,
}

thread_local! {
    static STEP: RefCell<Step> = RefCell::default();
}

impl Step {
    /// One that is empty. Foreign code may step again while this one is in use, and a thread may be ending.
    fn take() -> Step {
        STEP.try_with(RefCell::take).unwrap_or_default()
    }

    fn put_back(mut self) {
        self.effects.clear();
        self.effects.shrink_to(KEPT);
        self.wakes.shrink_to(KEPT);
        let _ = STEP.try_with(|step| step.replace(self));
    }
}

impl Node {
    pub(crate) fn new(store: Arc<dyn Store>, options: Options, clock: Clock) -> Arc<Node> {
        let abilities = store.abilities();
        let rules = Rules {
            burst: options.burst,
            burst_time: options.burst_time,
            queues: abilities.queues,
            final_push: abilities.final_push,
        };
        let id = NodeId::random();
        // From the operating system: a nonce that can be guessed lets others forge a grant.
        let drawn = uuid::Uuid::new_v4().as_u64_pair();
        let nonce_key = options.seed.map_or(drawn, |seed| (seed, !seed));
        let shards = (0..SHARDS).map(|index| {
            let jitter = nonce_key.0.wrapping_add(index);
            let seed = Seed { nonce_key, jitter };
            Cell {
                keys: Mutex::new(Keys {
                    shard: Shard::new(id, index, SHARDS, seed, rules),
                    waiters: HashMap::default(),
                }),
                due: AtomicU64::new(u64::MAX),
            }
        });
        Arc::new(Node {
            id,
            clock,
            events: EventSink::capture(Label::new(id, options.node_name.as_deref())),
            servers: Servers::new(store, options.request_timeout, nonce_key.1),
            alarm: Alarm {
                notify: Notify::new(),
                planned: AtomicU64::new(u64::MAX),
            },
            pid: std::process::id(),
            hasher: RandomState::default(),
            shards: shards.collect(),
            waiting: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            idle: Notify::new(),
            inbox: watch::Sender::new(InboxState::Unconfirmed),
            longest_ms: AtomicU64::new(0),
            pushed: Mutex::default(),
            options,
        })
    }

    /// A fork copies the node's identity but not its driver, and inherits mutexes that others had locked.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    // What callers do.

    /// Enters a caller, and says when. What is decided comes to its waiter.
    pub(crate) fn enter(
        self: &Arc<Self>,
        name: &Name,
        options: AcquireOptions,
    ) -> (Ticket, Arc<Waiter>, Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.longest_ms
            .fetch_max(options.term.hold_ms(), Ordering::Relaxed);
        let waiter = Arc::new(Waiter::default());
        let cell = self.cell(name);
        let mut keys = lock(&cell.keys);
        let ticket = keys.shard.issue();
        keys.waiters.insert(ticket, waiter.clone());
        let now = self.run(cell, keys, name, Input::Lock(ticket, options));
        (ticket, waiter, now)
    }

    /// A caller that entered waits no more: it has its answer, or left.
    pub(crate) fn answered(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A caller took up what it was granted.
    pub(crate) fn fetched(&self, name: &Name, ticket: Ticket) {
        let mut keys = lock(&self.cell(name).keys);
        // It leads to nothing, now.
        keys.shard
            .handle(self.clock.now(), name, Input::Fetched(ticket), &mut Vec::new());
    }

    /// How many callers wait in this process.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Nobody is interested in this ticket any more, waiting or holding.
    pub(crate) fn cancel(self: &Arc<Self>, name: &Name, ticket: Ticket) {
        let cell = self.cell(name);
        let keys = lock(&cell.keys);
        // In the map until the step is over, which may find that the lease was lost: that comes first, and is the cause.
        let waiter = keys.waiters.get(&ticket).cloned();
        self.run(cell, keys, name, Input::Cancel(ticket));
        lock(&cell.keys).waiters.remove(&ticket);
        if let Some(wake) = waiter.and_then(|waiter| waiter.end(LostCause::Released)) {
            wake.wake();
        }
    }

    pub(crate) fn release(self: &Arc<Self>, name: &Name, ticket: Ticket, finished: bool) {
        let input = if finished {
            Input::Finish(ticket)
        } else {
            Input::Release(ticket)
        };
        self.drive(name, input);
    }

    pub(crate) fn attempt(&self, name: &Name, ticket: Ticket) -> u32 {
        lock(&self.cell(name).keys).shard.attempt(name, ticket)
    }

    pub(crate) fn remaining(&self, name: &Name, ticket: Ticket) -> Option<Duration> {
        // The parent holds it; its child never did.
        if self.is_forked() {
            return None;
        }
        let keys = lock(&self.cell(name).keys);
        keys.shard.remaining(self.clock.now(), name, ticket)
    }

    /// Asks some server for a sign of life.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        let server = self.servers.of_any();
        let (probed, answer) = server.probe();
        self.feed(&server, probed);
        self.alarm.ring();
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "the driver has ended",
            ))
        })
    }

    /// Somebody may wait: grants must be pushed here.
    #[cfg(feature = "redis")]
    pub(crate) fn want_inbox(self: &Arc<Self>) {
        self.feed(&self.servers.of_any(), SessionInput::InboxWanted);
        self.alarm.ring();
    }

    // Steps of keys.

    fn cell(&self, name: &Name) -> &Cell {
        &self.shards[(self.hasher.hash_one(name) % SHARDS) as usize]
    }

    /// Tells the key machine what happened to `name`.
    pub(crate) fn drive(self: &Arc<Self>, name: &Name, input: Input) {
        let cell = self.cell(name);
        self.run(cell, lock(&cell.keys), name, input);
    }

    /// Takes a step, and says when.
    fn run(
        self: &Arc<Self>,
        cell: &Cell,
        mut keys: MutexGuard<'_, Keys>,
        name: &Name,
        input: Input,
    ) -> Instant {
        // Read behind the lock: a step is never earlier than the one before it.
        let now = self.clock.now();
        let mut step = Step::take();
        keys.shard.handle(now, name, input, &mut step.effects);
        self.carry_out(cell, keys, step, name);
        now
    }

    /// Carries effects out. What may run foreign code is done when nothing is locked.
    fn carry_out(self: &Arc<Self>, cell: &Cell, mut keys: MutexGuard<'_, Keys>, mut step: Step, name: &Name) {
        let Step { effects, wakes } = &mut step;
        let mut sends = false;
        effects.retain(|effect| {
            sends |= matches!(effect, Effect::Send(_));
            self.settle(&mut keys.waiters, effect, name, wakes)
        });
        let due = keys.shard.next_due().map_or(u64::MAX, Instant::as_nanos);
        cell.due.store(due, Ordering::SeqCst);
        let is_empty = keys.shard.is_empty();
        drop(keys);
        effects.drain(..).for_each(|effect| self.tell(name, &effect));
        wakes.drain(..).for_each(Wake::wake);
        step.put_back();
        if sends && self.servers.at_once().is_some() {
            self.exchange();
        } else if sends {
            self.alarm.ring();
        } else {
            self.alarm.expect(due);
        }
        if is_empty {
            self.note_idle();
        }
    }

    /// Does what is to be done with an effect while its shard is locked. True when something is to be told afterwards.
    fn settle(
        &self,
        waiters: &mut HashMap<Ticket, Arc<Waiter>, RandomState>,
        effect: &Effect,
        name: &Name,
        wakes: &mut Vec<Wake>,
    ) -> bool {
        match effect {
            Effect::Send(outgoing) => {
                let server = self.servers.of(&outgoing.request.name);
                lock(&server.session).queue(outgoing.clone());
            }
            Effect::Granted(ticket, fence) => {
                // A number that is handed on was heard of with its first holder.
                if fence.is_first() {
                    // Here, and not when a push arrives: only the key machine knows a forged one.
                    lock(&self.servers.of(name).session).saw(fence.number());
                }
                wakes.extend(waiters.get(ticket).and_then(|waiter| waiter.decide(Ok(*fence))));
            }
            Effect::Denied(ticket, error) => {
                let waiter = waiters.remove(ticket);
                wakes.extend(waiter.and_then(|waiter| waiter.decide(Err(error.clone()))));
                return matches!(error, AcquireError::Store(_));
            }
            Effect::Lost(ticket, cause) => {
                wakes.extend(waiters.get(ticket).and_then(|waiter| waiter.end(*cause)));
                return true;
            }
            Effect::Released(ticket, outcome) => {
                if let Some(waiter) = waiters.remove(ticket) {
                    wakes.extend(waiter.settle(outcome.clone()).into_iter().flatten());
                }
            }
            Effect::Event(_) => return true,
        }
        false
    }

    /// What nobody's own thread tells. Others are heard of where their caller runs on.
    fn tell(&self, name: &Name, effect: &Effect) {
        match effect {
            Effect::Event(event) => self.events.key_event(name, event),
            Effect::Lost(_, cause) => {
                if matches!(cause, LostCause::Deadline | LostCause::Gone) {
                    self.servers.of(name).outage.lost_lease();
                }
                self.events.lost(name, *cause);
            }
            Effect::Denied(_, AcquireError::Store(error)) => {
                self.failed(&self.servers.of(name), Failed::Caller, error);
            }
            _ => {}
        }
    }

    /// Does what is due in every shard.
    pub(crate) fn wake(self: &Arc<Self>, now: Instant) {
        for cell in &self.shards {
            while cell.due.load(Ordering::SeqCst) <= now.as_nanos() {
                let mut keys = lock(&cell.keys);
                let mut step = Step::take();
                match keys.shard.wake_next(now, &mut step.effects) {
                    Some(name) => self.carry_out(cell, keys, step, &name),
                    None => {
                        step.put_back();
                        let due = keys.shard.next_due().map_or(u64::MAX, Instant::as_nanos);
                        cell.due.store(due, Ordering::SeqCst);
                        break;
                    }
                }
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        let shards = self.shards.iter().map(|cell| cell.due.load(Ordering::SeqCst));
        let shards = shards
            .min()
            .filter(|due| *due < u64::MAX)
            .map(Instant::from_nanos);
        let sessions = self.servers.all();
        let sessions = sessions
            .iter()
            .filter_map(|server| lock(&server.session).next_due());
        sessions.chain(shards).min()
    }

    /// Takes a step of every key, shard by shard, so that nobody waits for all of them.
    fn each(
        self: &Arc<Self>,
        change: impl Fn(&mut Shard, Instant, &mut Vec<Effect>, &mut dyn FnMut(&Name, &[Effect])),
    ) {
        for cell in &self.shards {
            let mut keys = lock(&cell.keys);
            let Keys { shard, waiters } = &mut *keys;
            let mut step = Step::take();
            let Step { effects, wakes } = &mut step;
            let mut told: Vec<(Name, Effect)> = Vec::new();
            let mut sends = false;
            change(shard, self.clock.now(), effects, &mut |name, effects| {
                for effect in effects {
                    sends |= matches!(effect, Effect::Send(_));
                    if self.settle(waiters, effect, name, wakes) {
                        told.push((name.clone(), effect.clone()));
                    }
                }
            });
            let due = keys.shard.next_due().map_or(u64::MAX, Instant::as_nanos);
            cell.due.store(due, Ordering::SeqCst);
            drop(keys);
            for (name, effect) in told {
                self.tell(&name, &effect);
            }
            wakes.drain(..).for_each(Wake::wake);
            step.put_back();
            if sends && self.servers.at_once().is_some() {
                self.exchange();
            }
        }
        self.alarm.ring();
        self.note_idle();
    }

    /// Whether grants are pushed has changed.
    pub(crate) fn inbox_state(self: &Arc<Self>, state: InboxState) {
        self.each(|shard, now, effects, told| shard.inbox(now, state, effects, told));
        self.inbox.send_replace(state);
    }

    /// A connection opened: whatever waits to be told can be told.
    pub(crate) fn reachable(self: &Arc<Self>) {
        self.each(|shard, now, effects, told| shard.reachable(now, effects, told));
    }

    /// Tells whether grants are pushed to this node.
    #[cfg(feature = "redis")]
    pub(crate) fn inbox(&self) -> watch::Receiver<InboxState> {
        self.inbox.subscribe()
    }

    // The end.

    /// Gives up everything that is held and waited for.
    pub(crate) fn close(self: &Arc<Self>) {
        self.each(|shard, now, effects, told| shard.close(now, effects, told));
    }

    /// No handle is left: the driver finishes what is under way and ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.alarm.ring();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// After this long nothing that was held here can still be held.
    pub(crate) fn longest_hold(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed)) + self.options.request_timeout
    }

    /// Nothing is held, waited for or under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.shards.iter().all(|cell| lock(&cell.keys).shard.is_empty())
            && self
                .servers
                .all()
                .iter()
                .all(|server| lock(&server.session).is_idle())
    }

    pub(crate) fn note_idle(&self) {
        self.idle.notify_waiters();
    }

    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// How many keys have any state in this process.
    pub(crate) fn keys(&self) -> usize {
        self.shards.iter().map(|cell| lock(&cell.keys).shard.len()).sum()
    }

    /// Somebody has the key for sure, as was heard since then; else what kept the store from saying so.
    pub(crate) fn why_waiting(&self, name: &Name, since: Instant) -> Result<(), Option<StoreError>> {
        let keys = lock(&self.cell(name).keys);
        if keys.shard.told_taken(self.clock.now(), name, since) {
            Ok(())
        } else {
            Err(keys.shard.last_error(name))
        }
    }
}
