//! One process's part in the protocol: the engine's shards, the couriers, the keeper.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::{Notify, watch};

use crate::driver::events::EventSink;
use crate::error::{LostCause, OptionsError};
use crate::observe;
use crate::options::Options;
use crate::protocol::context::Seed;
use crate::protocol::message::{Fence, Name, NodeId};
use crate::protocol::shard::Shard;
use crate::protocol::step::{AcquireError, AcquireOptions, Effect, Input, Outcome, Rules, Ticket};
use crate::protocol::time::Instant;
use crate::runtime::carriage::Carriage;
use crate::runtime::clock::Clock;
use crate::runtime::courier::Courier;
use crate::runtime::keeper::{self, Keeper};
use crate::runtime::server::Server;
use crate::runtime::slot::{Slot, Wake, lock};
use crate::store::{ServerId, Store};

/// More than there are cores that would contend for one.
const SHARDS: u64 = 16;

/// For so many effects a thread keeps room.
const KEPT: usize = 64;

/// Who sends: the callers themselves, or the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Callers,
    Keeper,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) events: EventSink,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keeper: Arc<Keeper>,
    pid: u32,
    hasher: RandomState,
    shards: Vec<Mutex<Cell>>,
    lanes: RwLock<Vec<Arc<Lane>>>,
    waiting: AtomicUsize,
    abandoned: AtomicBool,
    idle: Notify,
    inbox: watch::Sender<bool>,
    longest_ms: AtomicU64,
}

/// A shard, and who waits for it.
#[derive(Debug)]
struct Cell {
    shard: Shard,
    slots: HashMap<Ticket, Arc<Slot>, RandomState>,
}

/// What a step of the engine leads to. A thread keeps one for its next step, so that steps need not allocate.
#[derive(Debug, Default)]
struct Step {
    effects: Vec<Effect>,
    /// Who is woken when the engine is unlocked, as that may run foreign code.
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

/// What there is per server.
#[derive(Debug)]
struct Lane {
    route: ServerId,
    callers: Arc<Courier>,
    keeper: Arc<Courier>,
    server: Arc<Server>,
}

impl Lane {
    fn new(route: ServerId) -> Self {
        let server = Arc::<Server>::default();
        let courier = |side| Arc::new(Courier::new(side, route, server.clone()));
        Lane {
            route,
            callers: courier(Side::Callers),
            keeper: courier(Side::Keeper),
            server,
        }
    }

    fn courier(&self, side: Side) -> &Arc<Courier> {
        match side {
            Side::Callers => &self.callers,
            Side::Keeper => &self.keeper,
        }
    }
}

impl Node {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        options: Options,
        clock: Clock,
    ) -> Result<Arc<Node>, OptionsError> {
        options.check()?;
        let abilities = store.abilities();
        let rules = Rules {
            burst: options.burst,
            burst_time: options.burst_time,
            queues: abilities.queues,
            final_push: abilities.final_push,
            ..Rules::default()
        };
        let id = NodeId::random();
        // From the operating system: a nonce that can be guessed lets others forge a grant.
        let drawn = uuid::Uuid::new_v4().as_u64_pair();
        let nonce_key = options.seed.map_or(drawn, |seed| (seed, !seed));
        let seed = |index| Seed {
            nonce_key,
            jitter: nonce_key.0.wrapping_add(index),
        };
        let shards = (0..SHARDS).map(|index| {
            Mutex::new(Cell {
                shard: Shard::new(id, index, SHARDS, seed(index), rules),
                slots: HashMap::default(),
            })
        });
        let node = Arc::new(Node {
            id,
            events: EventSink::capture(id),
            clock,
            store,
            keeper: Arc::default(),
            pid: std::process::id(),
            hasher: RandomState::default(),
            shards: shards.collect(),
            lanes: RwLock::default(),
            waiting: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            idle: Notify::new(),
            inbox: watch::Sender::new(false),
            longest_ms: AtomicU64::new(0),
            options,
        });
        keeper::start(node.clone())?;
        observe::describe();
        Ok(node)
    }

    /// A fork copies the node's identity but not its keeper.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    // What callers do.

    /// Enters a caller, and says when. Its outcome comes to the slot.
    pub(crate) fn enter(&self, name: &Name, want: AcquireOptions) -> (Ticket, Arc<Slot>, Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.longest_ms.fetch_max(want.term.hold_ms(), Ordering::Relaxed);
        let slot = Arc::new(Slot::default());
        let mut cell = lock(self.cell(name));
        let ticket = cell.shard.issue();
        cell.slots.insert(ticket, slot.clone());
        let now = self.run(cell, name, Input::Lock(ticket, want), Side::Callers);
        (ticket, slot, now)
    }

    /// A caller that entered waits no more: it has its answer, or left.
    pub(crate) fn answered(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many callers wait in this process.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Nobody is interested in this ticket any more, waiting or holding.
    pub(crate) fn cancel(&self, name: &Name, ticket: Ticket) {
        let mut cell = lock(self.cell(name));
        let slot = cell.slots.remove(&ticket);
        self.run(cell, name, Input::Cancel(ticket), Side::Keeper);
        if let Some(wake) = slot.and_then(|slot| slot.end(LostCause::Released)) {
            wake.wake();
        }
    }

    pub(crate) fn release(&self, name: &Name, ticket: Ticket, finished: bool) {
        let input = if finished {
            Input::Finish(ticket)
        } else {
            Input::Release(ticket)
        };
        self.drive(name, input, Side::Callers);
    }

    pub(crate) fn attempt(&self, name: &Name, ticket: Ticket) -> u32 {
        lock(self.cell(name)).shard.attempt(name, ticket)
    }

    pub(crate) fn remaining(&self, name: &Name, ticket: Ticket) -> Option<Duration> {
        // The parent holds it; its child never did.
        if self.is_forked() {
            return None;
        }
        lock(self.cell(name))
            .shard
            .remaining(self.clock.now(), name, ticket)
    }

    // Driving the engine.

    fn cell(&self, name: &Name) -> &Mutex<Cell> {
        &self.shards[(self.hasher.hash_one(name) % SHARDS) as usize]
    }

    pub(crate) fn drive(&self, name: &Name, input: Input, on: Side) {
        self.run(lock(self.cell(name)), name, input, on);
    }

    /// Takes a step, and says when.
    fn run(&self, mut cell: std::sync::MutexGuard<'_, Cell>, name: &Name, input: Input, on: Side) -> Instant {
        // Read behind the lock: a step is never earlier than the one before it.
        let now = self.clock.now();
        let mut step = Step::take();
        cell.shard.handle(now, name, input, &mut step.effects);
        self.carry_out(now, cell, step, Some(name), on);
        now
    }

    /// Carries effects out. What may run foreign code is done when the engine is unlocked.
    fn carry_out(
        &self,
        now: Instant,
        mut cell: std::sync::MutexGuard<'_, Cell>,
        mut step: Step,
        name: Option<&Name>,
        on: Side,
    ) {
        let Step { effects, wakes } = &mut step;
        let mut to_keeper = false;
        for effect in &*effects {
            match effect {
                Effect::Send(outgoing) => {
                    let route = self.store.route(&outgoing.request.name);
                    let caller = outgoing
                        .caller
                        .and_then(|ticket| cell.slots.get(&ticket))
                        .cloned();
                    let by_callers = on == Side::Callers && caller.is_some() && !self.options.keeper_only;
                    to_keeper |= !by_callers;
                    let side = if by_callers { Side::Callers } else { Side::Keeper };
                    self.lane(route, |lane| {
                        lane.courier(side).take(outgoing.clone(), now, caller);
                    });
                }
                Effect::Granted(ticket, fence) => {
                    wakes.extend(cell.slots.get(ticket).and_then(|slot| slot.decide(Ok(*fence))));
                    // A number that is handed on was heard of with its first holder.
                    if let (Some(name), true) = (name, fence.is_first()) {
                        // Here, and not when a push arrives: only the engine knows a forged one.
                        self.lane(self.store.route(name), |lane| {
                            lane.server.heard_number(fence.number());
                        });
                    }
                }
                Effect::Denied(ticket, denial) => {
                    let slot = cell.slots.remove(ticket);
                    wakes.extend(slot.and_then(|slot| slot.decide(Err(denial.clone()))));
                }
                Effect::Lost(ticket, cause) => {
                    wakes.extend(cell.slots.get(ticket).and_then(|slot| slot.end(*cause)));
                }
                Effect::Released(ticket, outcome) => {
                    if let Some(slot) = cell.slots.remove(ticket) {
                        wakes.extend(slot.settle(outcome.clone()).into_iter().flatten());
                    }
                }
                Effect::Event(_) => {}
            }
        }
        let due = cell.shard.next_due();
        let is_empty = cell.shard.is_empty();
        drop(cell);
        // All is told before anybody runs on because of it.
        if let Some(name) = name {
            effects.iter().for_each(|effect| tell(&self.events, name, effect));
        }
        wakes.drain(..).for_each(Wake::wake);
        step.put_back();
        if to_keeper {
            self.keeper.notify();
        } else if let Some(due) = due {
            self.keeper.expect(due);
        }
        if is_empty {
            self.note_idle();
        }
    }

    // What the keeper does.

    /// Does what is due in every shard.
    pub(crate) fn wake(&self, now: Instant) {
        for cell in &self.shards {
            loop {
                let mut cell = lock(cell);
                let mut step = Step::take();
                let Some(name) = cell.shard.wake_next(now, &mut step.effects) else {
                    step.put_back();
                    break;
                };
                self.carry_out(now, cell, step, Some(&name), Side::Keeper);
            }
        }
    }

    pub(crate) fn inbox_opened(&self) {
        for cell in &self.shards {
            let mut cell = lock(cell);
            let mut step = Step::take();
            let now = self.clock.now();
            cell.shard.opened(now, &mut step.effects, |name, effects| {
                effects.iter().for_each(|effect| tell(&self.events, name, effect));
            });
            self.carry_out(now, cell, step, None, Side::Keeper);
        }
        self.inbox.send_replace(true);
    }

    pub(crate) fn inbox_lost(&self) {
        self.inbox.send_replace(false);
    }

    /// Tells whether grants are pushed to this node.
    #[cfg(feature = "redis")]
    pub(crate) fn inbox(&self) -> watch::Receiver<bool> {
        self.inbox.subscribe()
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        let shards = self
            .shards
            .iter()
            .filter_map(|cell| lock(cell).shard.next_due())
            .min();
        let lanes = self.lanes();
        let couriers = lanes
            .iter()
            .flat_map(|lane| [lane.callers.next_due(), lane.keeper.next_due()]);
        couriers.flatten().chain(shards).min()
    }

    /// True when there is something to look after.
    pub(crate) fn look_after_callers(self: &Arc<Self>, now: Instant) -> bool {
        let mut busy = false;
        for lane in self.lanes() {
            busy |= lane.callers.look_after(self, now);
            lane.keeper.look_after(self, now);
        }
        busy
    }

    /// A batch of what waits on that side, if there is any.
    pub(crate) fn depart(self: &Arc<Self>, side: Side) -> Option<Arc<Carriage>> {
        self.lanes()
            .iter()
            .find_map(|lane| lane.courier(side).depart(self))
    }

    // Per server.

    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Looks at what there is for a server.
    fn lane<T>(&self, route: ServerId, look: impl FnOnce(&Lane) -> T) -> T {
        let of_route = |lane: &&Arc<Lane>| lane.route == route;
        if let Some(lane) = self
            .lanes
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .iter()
            .find(of_route)
        {
            return look(lane);
        }
        let lane = {
            let mut lanes = self
                .lanes
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let known = lanes.iter().find(of_route).cloned();
            known.unwrap_or_else(|| {
                let lane = Arc::new(Lane::new(route));
                lanes.push(lane.clone());
                lane
            })
        };
        look(&lane)
    }

    /// The courier of a side of the server that answers for `name`.
    pub(crate) fn courier(&self, name: &Name, side: Side) -> Arc<Courier> {
        self.lane(self.store.route(name), |lane| lane.courier(side).clone())
    }

    // The end.

    /// Gives up everything that is held and waited for.
    pub(crate) fn close(&self) {
        for cell in &self.shards {
            let mut cell = lock(cell);
            let mut step = Step::take();
            let now = self.clock.now();
            cell.shard.close(now, &mut step.effects, |name, effects| {
                effects.iter().for_each(|effect| tell(&self.events, name, effect));
            });
            self.carry_out(now, cell, step, None, Side::Keeper);
        }
    }

    /// No handle is left: the keeper finishes what is under way and ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.keeper.notify();
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
        self.shards.iter().all(|cell| lock(cell).shard.is_empty())
            && self
                .lanes()
                .iter()
                .all(|lane| lane.callers.is_idle() && lane.keeper.is_idle())
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
        self.shards.iter().map(|cell| lock(cell).shard.len()).sum()
    }

    /// The fence of a holder, if it still holds.
    #[allow(dead_code)]
    pub(crate) fn fence(&self, name: &Name, ticket: Ticket) -> Option<Fence> {
        lock(self.cell(name)).shard.fence(self.clock.now(), name, ticket)
    }
}

fn tell(events: &EventSink, name: &Name, effect: &Effect) {
    match effect {
        Effect::Denied(_, AcquireError::Store(error)) => observe::denied_by_store(name, error),
        Effect::Denied(_, denial) => observe::denied(name, denial),
        Effect::Lost(_, cause) => events.lost(name, *cause),
        Effect::Released(_, Outcome::Kept) => observe::released(name),
        // Found only now. Any other loss was told when it happened.
        Effect::Released(_, Outcome::Lost(LostCause::Gone)) => events.lost(name, LostCause::Gone),
        Effect::Released(_, Outcome::Lost(_)) => {}
        Effect::Released(_, Outcome::Failed(error)) => observe::release_failed(name, error),
        Effect::Event(event) => events.key_event(name, event),
        Effect::Granted(_, fence) => observe::granted(name, *fence),
        Effect::Send(_) => {}
    }
}
