//! One process's part in the protocol: its keys in shards, a session per server, and the callers that wait.
//!
//! Every thread may take a step of a key. The requests of a step are left with the session of their server. The
//! driver sends them, except for a store that answers at once. Lock order: a shard, then a session, then a store. No
//! code of a user runs under any of these locks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Poll;

use foldhash::quality::RandomState;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use crate::driver::clock::Clock;
use crate::driver::events::EventSink;
#[cfg(feature = "scheduler")]
use crate::driver::jobs::JobNews;
use crate::driver::outage::FailureKind;
use crate::driver::presence_state::PresenceState;
use crate::driver::pulse::Pulse;
use crate::driver::servers::{Server, Servers};
use crate::driver::throttle::Throttle;
use crate::driver::waiter::{CallResult, Waiter, Wake, lock};
use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::observe::Label;
use crate::options::Options;
use crate::protocol::context::Seed;
use crate::protocol::key::shard::Shard;
use crate::protocol::message::{LeaseTimes, Name, NodeId};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::session::step::{SessionInput, SessionRole};
use crate::protocol::step::{
    AcquireError, Effect, FormerMaster, InboxState, Input, Outgoing, Rules, Ticket, WhyDenied,
};
use crate::protocol::time::Instant;
use crate::store::Store;

/// The number of shards: more than the cores that may contend for one.
const SHARDS: u64 = 16;
/// How often a ping asks, because an answer may show other servers.
const MAX_PING_ROUNDS: usize = 3;
/// A thread keeps buffers with room for at most this many effects, and this many wakers.
const MAX_KEPT_EFFECTS: usize = 64;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) events: EventSink,
    pub(crate) servers: Servers,
    pub(crate) alarm: Alarm,
    pub(crate) pulse: Pulse,
    pub(crate) presence: PresenceState,
    /// The runtime of the driver. A simulation has none.
    pub(crate) runtime: OnceLock<Handle>,
    fork: forkguard::Guard,
    hasher: RandomState,
    pub(super) shards: Vec<ShardCell>,
    pub(super) waiting: AtomicUsize,
    abandoned: AtomicBool,
    /// Set when the caller of the builder gets its `Locks`.
    is_built: AtomicBool,
    /// The pushes of an unknown format since the latest report.
    unknown_pushes: Mutex<(u64, Throttle)>,
    pub(super) idle: Notify,
    inbox: watch::Sender<InboxState>,
    pub(super) longest_ms: AtomicU64,
    /// What a store in memory pushed, until a thread handles it.
    pub(crate) pushed: Mutex<Vec<(Name, Input)>>,
    /// Set when `pushed` may have entries.
    pub(crate) has_pushed: AtomicBool,
    #[cfg(feature = "scheduler")]
    pub(crate) job_news: JobNews,
}

/// A shard, and the callers that wait for it.
#[derive(Debug)]
pub(super) struct ShardCell {
    pub(super) keys: Mutex<LockedKeys>,
    /// When the shard is next due, in nanoseconds.
    pub(super) due: AtomicU64,
}

impl ShardCell {
    /// Unlocks the shard after its steps, and notes when it is next due.
    pub(super) fn unlock(&self, keys: MutexGuard<'_, LockedKeys>, after: &mut FollowUp) {
        let due = keys.shard.next_due().map_or(u64::MAX, Instant::as_nanos);
        // A load is cheaper than a store.
        if self.due.load(Ordering::Relaxed) != due {
            self.due.store(due, Ordering::SeqCst);
        }
        after.due = after.due.min(due);
        after.is_empty |= keys.shard.is_empty();
    }
}

#[derive(Debug)]
pub(super) struct LockedKeys {
    pub(super) shard: Shard,
    /// The time of the latest step, or of the latest answer to a holder.
    latest: Instant,
    pub(super) waiters: Waiters,
}

/// The callers that wait or hold.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The callers that wait for a lease or hold one.
    pub(super) locks: HashMap<Ticket, Arc<Waiter>, RandomState>,
    /// The callers that wait for the answer to a call.
    pub(super) calls: HashMap<Ticket, oneshot::Sender<CallResult>, RandomState>,
}

impl Waiters {
    /// Calls `act` with the waiter of a caller that asked for a lease, if the caller is still there.
    fn with_lock_waiter(&self, ticket: Ticket, act: impl FnOnce(&Waiter)) {
        if let Some(waiter) = self.locks.get(&ticket) {
            act(waiter);
        }
    }

    /// Answers a call. The caller is woken when nothing is locked.
    pub(super) fn answer_call(&mut self, ticket: Ticket, result: CallResult, wakes: &mut Vec<Wake>) {
        let caller = self.calls.remove(&ticket);
        wakes.extend(caller.map(|caller| Wake::Call(caller, result)));
    }
}

impl LockedKeys {
    /// Returns `now`, but no time earlier than the latest step or answer. After a caller heard that a lease is over,
    /// no older time may show the lease as held.
    pub(super) fn not_before(&mut self, now: Instant) -> Instant {
        self.latest = now.max(self.latest);
        self.latest
    }

    /// Returns the current time for a caller.
    pub(super) fn now(&mut self, clock: &Clock) -> Instant {
        self.not_before(clock.now())
    }
}

/// A caller that entered: its ticket, its waiter, and the time when it entered.
pub(crate) type EnteredCaller = (Ticket, Arc<Waiter>, Instant);

/// Wakes the driver.
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(crate) notify: Notify,
    /// When the driver wakes at the latest, in nanoseconds.
    pub(crate) planned: AtomicU64,
}

impl Alarm {
    /// Wakes the driver for work that is due now.
    pub(crate) fn ring(&self) {
        self.notify.notify_one();
    }

    /// Wakes the driver if `due` is before its planned wake-up. That time only moves earlier.
    pub(crate) fn expect(&self, due: u64) {
        if due < self.planned.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}

/// The work that steps leave for when nothing is locked. A thread keeps one for its next step, so that steps need not
/// allocate.
#[derive(Debug, Default)]
pub(super) struct FollowUp {
    pub(super) effects: Vec<(Name, Effect)>,
    /// Wakers, which may run foreign code.
    pub(super) wakes: Vec<Wake>,
    /// The claims that are granted together or not at all. They go to the session when all of them are known.
    pub(super) together: Option<Vec<Outgoing>>,
    /// The time of the latest step.
    pub(super) now: Instant,
    /// Set if a request is queued.
    pub(super) has_requests: bool,
    /// When a shard is next due, in nanoseconds.
    pub(super) due: u64,
    /// Set if a shard has become empty.
    pub(super) is_empty: bool,
}

thread_local! {
    static FOLLOW_UP: RefCell<Option<Box<FollowUp>>> = const { RefCell::new(None) };
}

impl FollowUp {
    /// Returns an empty value. The kept one may be missing: foreign code may step again while it is in use, and a
    /// thread may be ending.
    pub(super) fn take() -> Box<FollowUp> {
        let kept = FOLLOW_UP.try_with(RefCell::take).ok().flatten();
        let mut after: Box<FollowUp> = kept.unwrap_or_default();
        (after.has_requests, after.due, after.is_empty) = (false, u64::MAX, false);
        after
    }

    /// Keeps the buffers for the next step of this thread.
    pub(super) fn keep(self: Box<Self>) {
        if self.effects.capacity() <= MAX_KEPT_EFFECTS && self.wakes.capacity() <= MAX_KEPT_EFFECTS {
            let _ = FOLLOW_UP.try_with(|kept| kept.replace(Some(self)));
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
            masters: usize::from(store.masters()),
        };
        let id = NodeId::random();
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        let id = clock.process().map_or(id, |process| process.node());
        // Drawn from the operating system: a nonce that can be guessed lets other programs forge a grant.
        let drawn = uuid::Uuid::new_v4().as_u64_pair();
        let nonce_key = options.seed.map_or(drawn, |seed| (seed, !seed));
        let shards = (0..SHARDS).map(|index| {
            let jitter = nonce_key.0.wrapping_add(index);
            let seed = Seed { nonce_key, jitter };
            ShardCell {
                keys: Mutex::new(LockedKeys {
                    shard: Shard::new(id, index, SHARDS, seed, rules),
                    latest: Instant::default(),
                    waiters: Waiters::default(),
                }),
                due: AtomicU64::new(u64::MAX),
            }
        });
        Arc::new(Node {
            id,
            presence: PresenceState::new(clock.wall()),
            clock,
            events: EventSink::capture(Label::new(id, options.node_name.as_deref())),
            servers: Servers::new(store, &options, nonce_key.1),
            alarm: Alarm {
                notify: Notify::new(),
                planned: AtomicU64::new(u64::MAX),
            },
            pulse: Pulse::default(),
            runtime: OnceLock::new(),
            fork: forkguard::new(),
            hasher: RandomState::default(),
            shards: shards.collect(),
            waiting: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            is_built: AtomicBool::new(false),
            unknown_pushes: Mutex::default(),
            idle: Notify::new(),
            inbox: watch::Sender::new(InboxState::Unconfirmed),
            longest_ms: AtomicU64::new(0),
            pushed: Mutex::default(),
            has_pushed: AtomicBool::new(false),
            #[cfg(feature = "scheduler")]
            job_news: JobNews::default(),
            options,
        })
    }

    /// Returns whether this process is a forked child. A fork copies the node's identity but not its driver, and
    /// inherits mutexes that other threads had locked.
    pub(crate) fn is_forked(&self) -> bool {
        // A clone, because a guard reports a fork only once.
        self.fork.clone().detected_fork()
    }

    // The operations of callers.

    /// Returns whether other callers of this process read by the lease of this holder. If not, no caller will.
    pub(crate) fn reads_with_others(&self, name: &Name, ticket: Ticket) -> bool {
        lock(&self.cell(name).keys).shard.reads_with_others(name, ticket)
    }

    /// Enters a caller whose claim has these lengths. Its waiter gets the decision.
    pub(crate) fn enter(
        self: &Arc<Self>,
        name: &Name,
        term: LeaseTimes,
        input: impl FnOnce(Ticket) -> Input,
    ) -> EnteredCaller {
        self.note_entry(term);
        self.in_shard(name, |keys, after| self.enter_shard(keys, name, input, after))
    }

    /// Counts a caller that asks for no lease.
    pub(crate) fn note_caller(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a caller, and notes the longest lease that callers of this node asked for.
    pub(crate) fn note_entry(&self, term: LeaseTimes) {
        self.note_caller();
        let hold_ms = term.hold_ms();
        if self.longest_ms.load(Ordering::Relaxed) < hold_ms {
            self.longest_ms.fetch_max(hold_ms, Ordering::Relaxed);
            self.presence.wanted.notify_one();
        }
    }

    /// Counts a caller that waits no longer: it has its answer, or left.
    pub(crate) fn answered(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes up the lease that a caller was granted, at `now`, or at the time of its shard's latest step if that is
    /// later. Tells the waiter until when the lease is held at least.
    ///
    /// # Errors
    /// The cause of the loss, if the lease ended before the caller took it up.
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

    /// Abandons a ticket, which waits or holds.
    pub(crate) fn cancel(self: &Arc<Self>, name: &Name, ticket: Ticket) {
        self.drive(name, Input::Cancel(ticket));
    }

    /// Asks every server that answers for names for a sign of life, all at once. The error is that of the first server
    /// without one. Of a quorum, a majority of the masters is enough, and the others are waited for only if `all` is set.
    pub(crate) async fn ping(self: &Arc<Self>, all: bool) -> Result<(), StoreError> {
        // The first answer may show which servers there are.
        let mut asked = Vec::new();
        for _ in 0..MAX_PING_ROUNDS {
            let masters = self.servers.store.servers();
            if masters == asked {
                break;
            }
            let answers = masters.iter().map(|id| {
                let server = self.servers.get(*id);
                let (probed, answer) = server.probe();
                self.feed(server, probed);
                answer
            });
            let mut answers: Vec<_> = answers.collect();
            self.alarm.ring();
            let minority = usize::from(self.servers.store.masters() / 2);
            let (mut failures, spare) = (Vec::new(), if all { 0 } else { minority });
            poll_fn(|cx| {
                answers.retain_mut(|answer| match Pin::new(answer).poll(cx) {
                    Poll::Ready(answer) => {
                        let ended = || StoreError::new(StoreErrorKind::Unreachable, "the driver has ended");
                        failures.extend(answer.unwrap_or_else(|_| Err(ended())).err());
                        false
                    }
                    Poll::Pending => true,
                });
                match answers.len() + failures.len() <= spare || answers.is_empty() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            self.servers.failure(failures).map_or(Ok(()), Err)?;
            asked = masters;
        }
        Ok(())
    }

    /// Asks the servers for a sign of life before a caller gives up, so that the caller learns the reason of its
    /// wait.
    pub(crate) fn request_signs_of_life(self: &Arc<Self>) {
        for server in self
            .servers
            .all()
            .filter(|server| server.role != SessionRole::Inbox)
        {
            self.feed(server, SessionInput::SignWanted);
        }
        self.alarm.ring();
    }

    /// Opens the inbox, through which grants are pushed: a caller may wait soon.
    #[cfg(feature = "redis")]
    pub(crate) fn want_inbox(self: &Arc<Self>) {
        self.tell_inbox(SessionInput::InboxWanted);
    }

    /// Passes an input to the session with the inbox. A quorum has none.
    pub(crate) fn tell_inbox(self: &Arc<Self>, input: SessionInput) {
        if let Some(inbox) = self.servers.inbox() {
            self.feed(inbox, input);
            self.alarm.ring();
        }
    }

    // Steps of keys.

    pub(super) fn shard_of(&self, name: &Name) -> usize {
        (self.hasher.hash_one(name) % SHARDS) as usize
    }

    pub(super) fn cell(&self, name: &Name) -> &ShardCell {
        &self.shards[self.shard_of(name)]
    }

    /// Leaves a request with the session of its server.
    fn queue(&self, outgoing: &Outgoing) {
        lock(&self.servers.for_request(outgoing).session).queue(outgoing);
    }

    /// Carries out an effect while its shard is locked. Work that may run foreign code is left in `after`.
    pub(super) fn carry_out(
        &self,
        waiters: &mut Waiters,
        name: &Name,
        effect: &Effect,
        after: &mut FollowUp,
    ) {
        let wakes = &mut after.wakes;
        match effect {
            Effect::Send(outgoing) => {
                after.has_requests = true;
                match &mut after.together {
                    Some(claims) => claims.push(outgoing.clone()),
                    None => self.queue(outgoing),
                }
            }
            Effect::Act(action) => {
                after.has_requests = true;
                lock(&self.servers.for_name(&action.name).session).queue_action(action.clone());
            }
            Effect::Granted(ticket, fence) => {
                // A lease that is handed on has the number of its first grant, which was noted then.
                if fence.is_first() {
                    // Noted here, and not when a push arrives: only the key machine can tell a forged grant.
                    lock(&self.servers.for_name(name).session).note_grant(fence.number());
                }
                waiters.with_lock_waiter(*ticket, |waiter| waiter.decide(Ok(*fence), wakes));
            }
            Effect::Denied(ticket, denial @ WhyDenied::StillHeld(..)) => {
                waiters.with_lock_waiter(*ticket, |waiter| waiter.decide(Err(denial.clone()), wakes));
            }
            Effect::Denied(ticket, denial) => match (waiters.locks.remove(ticket), denial) {
                (Some(waiter), denial) => waiter.decide(Err(denial.clone()), wakes),
                (None, WhyDenied::Error(error)) => waiters.answer_call(*ticket, Err(error.clone()), wakes),
                (None, _) => {}
            },
            Effect::Answered(ticket, answer) => waiters.answer_call(*ticket, Ok(answer.clone()), wakes),
            Effect::Asked(ticket, asking, until) => {
                waiters.with_lock_waiter(*ticket, |waiter| waiter.mark_asked(asking, *until, wakes));
            }
            Effect::Overdue(ticket) => waiters.with_lock_waiter(*ticket, |waiter| waiter.mark_overdue(wakes)),
            Effect::Lost(ticket, cause) => {
                waiters.with_lock_waiter(*ticket, |waiter| waiter.end(*cause, wakes))
            }
            Effect::Released(ticket, outcome) => {
                if let Some(waiter) = waiters.locks.remove(ticket) {
                    waiter.settle(outcome.clone(), wakes);
                }
            }
            Effect::WriteEnded(..) | Effect::PushMissed | Effect::Event(_) => {}
        }
        let is_reported = matches!(
            effect,
            Effect::Lost(..)
                | Effect::Denied(
                    _,
                    WhyDenied::Error(AcquireError::Store(_)) | WhyDenied::StillHeld(..)
                )
                | Effect::WriteEnded(..)
                | Effect::PushMissed
                | Effect::Event(_)
        );
        if is_reported {
            after.effects.push((name.clone(), effect.clone()));
        }
    }

    /// Handles an effect that no caller's own thread reports.
    pub(super) fn handle_effect(self: &Arc<Self>, name: &Name, effect: &Effect) {
        match effect {
            Effect::PushMissed => self.tell_inbox(SessionInput::PushMissed),
            Effect::WriteEnded(lease, is_refused) => {
                self.drive(&lease.name, Input::WriteEnded(lease.clone(), *is_refused));
            }
            Effect::Event(event) => self.events.push_key_event(name, event),
            Effect::Lost(_, cause) => {
                if matches!(cause, LostCause::Deadline | LostCause::Gone) {
                    self.servers
                        .alone_for(name)
                        .inspect(|server| server.outage.lost_lease());
                }
                let is_by_deadline = *cause == LostCause::Deadline;
                let paused = is_by_deadline.then(|| self.pause_until_now()).flatten();
                self.events.push_loss(name, *cause, paused);
            }
            Effect::Denied(
                _,
                WhyDenied::Error(AcquireError::Store(error)) | WhyDenied::StillHeld(_, error),
            ) => {
                if let Some(server) = self.servers.alone_for(name) {
                    self.note_server_failure(server, FailureKind::Caller, error);
                }
            }
            _ => {}
        }
    }

    /// Returns when a key is next due.
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

    /// Notes whether grants are pushed.
    pub(crate) fn inbox_state(self: &Arc<Self>, state: InboxState) {
        self.step_every_key(|shard, now, perform| shard.inbox(now, state, perform));
        self.inbox.send_replace(state);
    }

    /// Notes that a connection to a server opened, so that queued releases can be sent.
    pub(crate) fn reachable(
        self: &Arc<Self>,
        server: &Server,
        is_elsewhere: bool,
        former: FormerMaster,
        clock: Option<ServerClock>,
    ) {
        let is_served = |name: &Name| self.servers.serves(server, name);
        self.step_every_key(|shard, now, perform| {
            clock.inspect(|clock| shard.note_clock(server.master(), *clock));
            shard.note_former_master(former);
            shard.reachable(now, is_elsewhere, is_served, perform);
        });
    }

    /// Returns a watch on whether grants are pushed to this node.
    pub(crate) fn inbox(&self) -> watch::Receiver<InboxState> {
        self.inbox.subscribe()
    }

    // The end.

    /// Gives up everything that callers hold and wait for, except for the ticks of runs that go on.
    pub(crate) fn close(self: &Arc<Self>, runs_go_on: bool) {
        self.presence.is_over.store(true, Ordering::SeqCst);
        self.step_every_key(|shard, now, perform| shard.close(now, runs_go_on, perform));
    }

    /// Returns whether it gave everything up, and grants nothing any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.presence.is_over.load(Ordering::SeqCst)
    }

    /// Notes that no handle is left: the driver finishes its work and ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.alarm.ring();
    }

    /// Notes that the caller of the builder gets its `Locks`.
    pub(crate) fn note_built(&self) {
        self.is_built.store(true, Ordering::Release);
    }

    pub(crate) fn is_built(&self) -> bool {
        self.is_built.load(Ordering::Acquire)
    }

    /// Counts a push of an unknown format. Returns how many to report now.
    pub(crate) fn count_unknown_push(&self) -> Option<u64> {
        let now = self.clock.now();
        let mut pushes = lock(&self.unknown_pushes);
        let (count, reports) = &mut *pushes;
        *count += 1;
        reports.allow(now).then(|| std::mem::take(count))
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn note_idle(&self) {
        self.idle.notify_waiters();
    }
}
