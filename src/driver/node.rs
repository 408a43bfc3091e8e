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
use crate::driver::events::{DriverEvent, EventSink};
use crate::driver::outage::Failed;
use crate::driver::pulse::Pulse;
use crate::driver::servers::Servers;
use crate::driver::waiter::{Told, Waiter, Wake, lock};
use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::observe::Label;
use crate::options::Options;
use crate::protocol::key::context::Seed;
use crate::protocol::key::shard::Shard;
use crate::protocol::message::{Holder, LeaseTimes, Name, NodeId};
use crate::protocol::session::step::SessionInput;
use crate::protocol::step::{
    AcquireError, AcquireOptions, CallOptions, Effect, InboxState, Input, Outgoing, Rules, Ticket,
};
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
    due: AtomicU64,
}

impl Cell {
    /// Notes when the shard has something to do next, whose lock its caller has.
    pub(super) fn note_due(&self, shard: &Shard) -> u64 {
        let due = shard.next_due().map_or(u64::MAX, Instant::as_nanos);
        // To look is cheap, to store is not.
        if self.due.load(Ordering::Relaxed) != due {
            self.due.store(due, Ordering::SeqCst);
        }
        due
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
    calls: HashMap<Ticket, oneshot::Sender<Told>, RandomState>,
}

impl Waiters {
    /// Tells the caller of a call when nothing is locked any more.
    fn tell(&mut self, ticket: Ticket, told: Told, wakes: &mut Vec<Wake>) {
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
    told: Vec<(Name, Effect)>,
    /// Wakers may run foreign code.
    wakes: Vec<Wake>,
    /// Something waits to be sent.
    sends: bool,
}

/// What is to be seen to after a step, or after several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Followup {
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
        kept.unwrap_or_default()
    }

    /// Tells and wakes when nothing is locked, and keeps the room for the next step. Returns whether something waits to be sent.
    pub(super) fn finish(mut self: Box<Self>, node: &Arc<Node>) -> bool {
        if !self.told.is_empty() {
            self.told
                .drain(..)
                .for_each(|(name, effect)| node.tell(&name, &effect));
        }
        if !self.wakes.is_empty() {
            self.wakes.drain(..).for_each(Wake::wake);
        }
        let sends = std::mem::take(&mut self.sends);
        if self.told.capacity() <= KEPT && self.wakes.capacity() <= KEPT {
            let _ = AFTERMATH.try_with(|kept| kept.replace(Some(self)));
        }
        sends
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

    /// Enters a caller, and says when. What is decided comes to its waiter.
    pub(crate) fn join_line(
        self: &Arc<Self>,
        name: &Name,
        options: AcquireOptions,
    ) -> (Ticket, Arc<Waiter>, Instant) {
        self.note_entry(options.term);
        self.enter(name, |ticket| Input::Lock(ticket, options))
    }

    /// Enters a caller that waits for an answer, and says when.
    pub(crate) fn call(
        self: &Arc<Self>,
        name: &Name,
        options: CallOptions,
    ) -> (Ticket, oneshot::Receiver<Told>, Instant) {
        self.note_entry(options.term);
        let (tell, answer) = oneshot::channel();
        let (ticket, now) = self.enter_with(name, |waiters, ticket| {
            waiters.calls.insert(ticket, tell);
            Input::Call(ticket, options)
        });
        (ticket, answer, now)
    }

    /// A holder that writes goes on as a reader under another ticket.
    pub(crate) fn downgrade(self: &Arc<Self>, name: &Name, from: Ticket) -> (Ticket, Arc<Waiter>, Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.enter(name, |ticket| Input::Downgrade(from, ticket))
    }

    /// A holder gives its lease to whoever is told of it, and has that under another ticket until it is handed out.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        name: &Name,
        from: Ticket,
        term: LeaseTimes,
    ) -> (Ticket, Arc<Waiter>, Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.enter(name, |ticket| Input::Transfer(from, ticket, term))
    }

    /// Enters a caller for the lease of that owner.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        name: &Name,
        options: AcquireOptions,
        from: Holder,
    ) -> (Ticket, Arc<Waiter>, Instant) {
        self.note_entry(options.term);
        self.enter(name, |ticket| Input::Adopt(ticket, options, from))
    }

    /// Others of this process read by the lease of this holder. If not, none will.
    pub(crate) fn reads_with_others(&self, name: &Name, ticket: Ticket) -> bool {
        lock(&self.cell(name).keys).shard.reads_with_others(name, ticket)
    }

    fn enter(
        self: &Arc<Self>,
        name: &Name,
        input: impl FnOnce(Ticket) -> Input,
    ) -> (Ticket, Arc<Waiter>, Instant) {
        let waiter = Arc::new(Waiter::default());
        let (ticket, now) = self.enter_with(name, |waiters, ticket| {
            waiters.locks.insert(ticket, waiter.clone());
            input(ticket)
        });
        (ticket, waiter, now)
    }

    fn enter_with(
        self: &Arc<Self>,
        name: &Name,
        input: impl FnOnce(&mut Waiters, Ticket) -> Input,
    ) -> (Ticket, Instant) {
        let cell = self.cell(name);
        let mut keys = lock(&cell.keys);
        let ticket = keys.shard.issue();
        let input = input(&mut keys.waiters, ticket);
        let now = self.clock.now();
        (ticket, self.run(cell, keys, now, name, input))
    }

    /// A caller enters.
    pub(super) fn note_entry(&self, term: LeaseTimes) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
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

    pub(crate) fn release(self: &Arc<Self>, name: &Name, ticket: Ticket, finished: Option<bool>) {
        let input = match finished {
            Some(well) => Input::Finish(ticket, well),
            None => Input::Release(ticket),
        };
        self.drive(name, input);
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

    /// Tells the key machine what happened to `name`.
    pub(crate) fn drive(self: &Arc<Self>, name: &Name, input: Input) {
        let cell = self.cell(name);
        let keys = lock(&cell.keys);
        self.run(cell, keys, self.clock.now(), name, input);
    }

    /// The same, with the clock as it was read for this.
    pub(crate) fn drive_at(self: &Arc<Self>, now: Instant, name: &Name, input: Input) {
        let cell = self.cell(name);
        self.run(cell, lock(&cell.keys), now, name, input);
    }

    /// Takes a step, sees to what follows, and says when.
    fn run(
        self: &Arc<Self>,
        cell: &Cell,
        keys: MutexGuard<'_, Keys>,
        now: Instant,
        name: &Name,
        input: Input,
    ) -> Instant {
        let (now, followup) = self.step_key(cell, keys, now, name, input);
        self.follow_up(now, followup);
        now
    }

    /// Takes a step of several keys, one after the other, and only then sees to what follows: what they have to send
    /// travels together.
    pub(crate) fn drive_each<'a>(self: &Arc<Self>, inputs: impl IntoIterator<Item = (&'a Name, Input)>) {
        let mut all: Option<(Instant, Followup)> = None;
        for (name, input) in inputs {
            let cell = self.cell(name);
            let (now, next) = self.step_key(cell, lock(&cell.keys), self.clock.now(), name, input);
            let before = all.map_or(next, |(_, before)| before);
            let followup = Followup {
                sends: before.sends | next.sends,
                due: before.due.min(next.due),
                is_empty: before.is_empty | next.is_empty,
            };
            all = Some((now, followup));
        }
        if let Some((now, followup)) = all {
            self.follow_up(now, followup);
        }
    }

    fn step_key(
        self: &Arc<Self>,
        cell: &Cell,
        mut keys: MutexGuard<'_, Keys>,
        now: Instant,
        name: &Name,
        input: Input,
    ) -> (Instant, Followup) {
        let now = keys.not_before(now);
        let cancelled = match input {
            Input::Cancel(ticket) => Some(ticket),
            _ => None,
        };
        let mut after = Aftermath::take();
        let Keys { shard, waiters, .. } = &mut *keys;
        for effect in shard.handle(now, name, input).iter() {
            self.carry_out(waiters, name, effect, &mut after);
        }
        // After the step, which may find that the lease was lost: that comes first, and is the cause.
        if let Some(ticket) = cancelled {
            match waiters.locks.remove(&ticket) {
                Some(waiter) => waiter.end(LostCause::Released, &mut after.wakes),
                None => waiters.tell(ticket, Err(AcquireError::Closed), &mut after.wakes),
            }
        }
        (now, self.finish(cell, keys, after))
    }

    /// Ends steps of a shard: unlocks it, then does what may run foreign code.
    fn finish(self: &Arc<Self>, cell: &Cell, keys: MutexGuard<'_, Keys>, after: Box<Aftermath>) -> Followup {
        let due = cell.note_due(&keys.shard);
        let is_empty = keys.shard.is_empty();
        drop(keys);
        let sends = after.finish(self);
        Followup { sends, due, is_empty }
    }

    /// Has what waits sent, and is there when something is due.
    pub(super) fn follow_up(self: &Arc<Self>, now: Instant, followup: Followup) {
        if followup.sends && self.servers.at_once().is_some() {
            self.exchange(now);
        } else if followup.sends {
            self.alarm.ring();
        } else {
            self.alarm.expect(followup.due);
        }
        if followup.is_empty {
            self.note_idle();
        }
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
        let is_told = match effect {
            Effect::Send(outgoing) => {
                after.sends = true;
                self.queue(outgoing);
                false
            }
            Effect::Granted(ticket, fence) => {
                // A number that is handed on was heard of with its first holder.
                if fence.is_first() {
                    // Here, and not when a push arrives: only the key machine knows a forged one.
                    lock(&self.servers.of(name).session).saw(fence.number());
                }
                if let Some(waiter) = waiters.locks.get(ticket) {
                    waiter.decide(Ok(*fence), wakes);
                }
                false
            }
            Effect::Denied(ticket, error @ AcquireError::Kept(..)) => {
                if let Some(waiter) = waiters.locks.get(ticket) {
                    waiter.decide(Err(error.clone()), wakes);
                }
                true
            }
            Effect::Denied(ticket, error) => {
                match waiters.locks.remove(ticket) {
                    Some(waiter) => waiter.decide(Err(error.clone()), wakes),
                    None => waiters.tell(*ticket, Err(error.clone()), wakes),
                }
                matches!(error, AcquireError::Store(_))
            }
            Effect::Answered(ticket, answer) => {
                waiters.tell(*ticket, Ok(answer.clone()), wakes);
                false
            }
            Effect::Overdue(ticket) => {
                if let Some(waiter) = waiters.locks.get(ticket) {
                    waiter.overdue(wakes);
                }
                false
            }
            Effect::Lost(ticket, cause) => {
                if let Some(waiter) = waiters.locks.get(ticket) {
                    waiter.end(*cause, wakes);
                }
                true
            }
            Effect::Released(ticket, outcome) => {
                if let Some(waiter) = waiters.locks.remove(ticket) {
                    waiter.settle(outcome.clone(), wakes);
                }
                false
            }
            Effect::PushMissed | Effect::Event(_) => true,
        };
        if is_told {
            after.told.push((name.clone(), effect.clone()));
        }
    }

    /// What nobody's own thread tells. Others are heard of where their caller runs on.
    fn tell(self: &Arc<Self>, name: &Name, effect: &Effect) {
        match effect {
            Effect::PushMissed => {
                self.feed(self.servers.of(name), SessionInput::PushMissed);
                self.alarm.ring();
            }
            Effect::Event(event) => self.events.key_event(name, event),
            Effect::Lost(_, cause) => {
                if matches!(cause, LostCause::Deadline | LostCause::Gone) {
                    self.servers.of(name).outage.lost_lease();
                }
                let is_by_deadline = *cause == LostCause::Deadline;
                self.events.push(DriverEvent::Lost {
                    name: name.clone(),
                    cause: *cause,
                    paused: is_by_deadline.then(|| self.pause_until_now()).flatten(),
                });
            }
            Effect::Denied(_, AcquireError::Store(error) | AcquireError::Kept(_, error)) => {
                self.failed(self.servers.of(name), Failed::Caller, error);
            }
            _ => {}
        }
    }

    /// Does what is due in every shard.
    pub(crate) fn wake(self: &Arc<Self>, now: Instant) {
        for cell in &self.shards {
            while cell.due.load(Ordering::SeqCst) <= now.as_nanos() {
                let mut keys = lock(&cell.keys);
                let now = keys.not_before(now);
                let mut after = Aftermath::take();
                let Keys { shard, waiters, .. } = &mut *keys;
                let is_woken = match shard.wake_next(now) {
                    Some((name, effects)) => {
                        for effect in effects.iter() {
                            self.carry_out(waiters, &name, effect, &mut after);
                        }
                        true
                    }
                    None => false,
                };
                let followup = self.finish(cell, keys, after);
                if !is_woken {
                    break;
                }
                self.follow_up(now, followup);
            }
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

    /// Takes a step of every key, shard by shard: no caller waits for all of them.
    fn each(self: &Arc<Self>, step: impl Fn(&mut Shard, Instant, &mut dyn FnMut(&Name, &Effect))) {
        for cell in &self.shards {
            let mut keys = lock(&cell.keys);
            let now = keys.now(&self.clock);
            let mut after = Aftermath::take();
            let Keys { shard, waiters, .. } = &mut *keys;
            step(shard, now, &mut |name, effect| {
                self.carry_out(waiters, name, effect, &mut after);
            });
            let followup = self.finish(cell, keys, after);
            if followup.sends && self.servers.at_once().is_some() {
                self.exchange(now);
            }
        }
        self.alarm.ring();
        self.note_idle();
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
