//! The session with one server: queued requests, batches in flight, deadlines, the connection and the inbox.
//!
//! The session does no I/O, like the key machine. [`Session::queue`] takes a request. [`Session::step`] sends what it
//! can and handles what is due. [`Session::handle`] processes an input. All three append [`SessionEffect`]s for the
//! driver, which does the I/O.
//!
//! Group commit: requests that arrive while the driver works travel in its next batch, as a database commits its log.
//! The number of batches in flight is fixed. No timer delays a batch, except for requests about jobs: they wait while
//! another batch about jobs is in flight, and for a fixed time after it was sent. Owners' renewals do not wait, and
//! neither do requests that fill a batch.
//!
//! A request without a reply is reported as a `FailedRequest`. Only the key machine decides whether to retry it or to
//! report an error to its caller.
//!
//! # The way of one silence
//!
//! 1. A connection that breaks or does not answer is given up. The inbox is replaced in the same step if it has shown no sign of
//!    life since the failed request was sent (`protocol/session/reconnect.rs` `give_up`, `protocol/session/inbox.rs`
//!    `connection_lost`).
//! 2. A subscription can be silent while commands still work. A waiter notices this when the answer to its renewal says that the
//!    waiter became the owner some time ago (`protocol/claim/answers.rs` `note_missed_push`). The waiter knows the age of the
//!    grant, because the number of a grant is the time of the server's clock at the grant.
//! 3. The session then pings the inbox, at the earliest a second after its last sign of life (`driver/node.rs` `handle_effect`,
//!    `protocol/session/inbox.rs` `missed_push`, `suspect`). Until the inbox answers, waiting claims renew often.
//! 4. If a caller already waits when an outage begins, it waits through the outage for up to one lease
//!    (`protocol/failed_request.rs` `keeps_waiting`). The outage starts when the first request without an answer was sent
//!    (`protocol/session/reconnect.rs` `note_unanswered`).
//! 5. Shortly before a wait ends, the session pings the server, unless it has heard from the server lately
//!    (`primitives/within.rs` `within`, `driver/node.rs` `request_signs_of_life`).
//! 6. The caller gets `Busy` only if the server is not silent (`driver/lookups.rs` `why_waiting`, `protocol/session/reconnect.rs`
//!    `is_silent`).
//!
//! # The way of one failover
//!
//! 1. While a link is open, the Sentinels are asked once a second where the master is, and under which epoch (`store/redis/sentinel.rs`
//!    `ended`, `ask`). Answers, epochs and the last decision give the next decision (`protocol/sentinels.rs` `decide`).
//! 2. Another address or another epoch ends the link, and the session gives the connection up (`protocol/sentinels.rs` `ends`,
//!    `store/redis/link.rs` `ended`, `driver/driver.rs` `watch_end`, `protocol/session/reconnect.rs` `connection_ended`).
//! 3. The next link asks the Sentinels, and connects to the master that they name (`store/redis/link.rs` `open`,
//!    `store/redis/sentinel.rs` `locate`, `store/redis/config.rs` `at`). It refuses a replica (`store/redis/greeting.rs` `check_role`).
//! 4. After the server's first answer the link asks the Sentinels again. It is confirmed if a majority answers under the highest epoch
//!    (`store/redis/sentinel.rs` `confirm`, `protocol/sentinels.rs` `reign`, whose file says why). On a link that is not confirmed
//!    nothing is granted (`protocol/ledger/recovery.rs` `held_back`).
//! 5. Before its first request, the link compares the run of the server, the epoch and the highest grant number of the node with the
//!    recorded ones. A difference begins a recovery, which raises the clock above all earlier reigns (`protocol/ledger/recovery.rs`
//!    `link`, `store/redis/link.rs` `compare_run`, `store/redis/run.rs` `compare`, `store/redis/lua/run.lua`).
//! 6. The session reports whether the connection leads to another server, run or reign than the last one
//!    (`protocol/session/reconnect.rs` `connected`, `protocol/session/step.rs` `is_elsewhere`). Then every held lease is renewed at once
//!    (`driver/node.rs` `reachable`, `protocol/key/shard.rs` `reachable`).
//! 7. Within the lag after the begin of the recovery a renewal does not move a deadline, because the former master may still grant the key
//!    (`protocol/session/reconnect.rs` `note_link`, `protocol/context.rs` `beside_former_master`, `protocol/claim/timers.rs`
//!    `schedule_renewal_after_former_master`).
//! 8. The connection asks its server for the subscription of the inbox. An inbox at another server is opened again: the new master sees
//!    no subscriber of an inbox that was left behind, and passes over the waiters of its node (`protocol/session/reconnect.rs`
//!    `seek_inbox`, `inbox_sought`, `protocol/session/inbox.rs` `sought`).

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{
    Batch, Call, Executed, Failure, GrantNumber, Kind, Reply, Request, Rule, Verb,
};
use crate::protocol::session::backoff::{Backoff, part_of_pause};
use crate::protocol::session::connection::{Connection, next_attempt};
use crate::protocol::session::in_flight::{InFlight, PendingRequest};
use crate::protocol::session::inbox::InboxLink;
use crate::protocol::session::queue::{BatchLimits, RequestQueue};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::session::step::{
    Attempt, BatchId, MAX_SILENCE, Place, Probe, SessionContext, SessionEffect, SessionEvent, SessionInput,
    SessionOptions, SessionRole,
};
use crate::protocol::step::{Class, Outgoing, OutgoingAction};
use crate::protocol::time::Instant;

pub(crate) mod actions;
pub(crate) mod backoff;
pub(crate) mod batch_replies;
pub(crate) mod connection;
pub(crate) mod in_flight;
pub(crate) mod inbox;
pub(crate) mod queue;
pub(crate) mod reconnect;
pub mod server_clock;
pub mod step;

/// Most requests in a batch: about half a millisecond of a Redis server's time.
const MAX_BATCH_REQUESTS: usize = 128;
/// Most batches in flight. The number is fixed, because the content of a batch must not depend on run-time
/// measurements.
const MAX_BATCHES_IN_FLIGHT: usize = 16;
/// Shortest time from one batch about jobs to the next. The gap is short beside the half second between two looks of
/// a scheduler, and beside every lease.
const MIN_JOB_BATCH_GAP: Duration = Duration::from_millis(20);
/// Shortest time that a request may wait for its answer.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// A server without an answer for this long counts as silent.
const SILENT_AFTER: Duration = Duration::from_millis(200);
/// Shortest lease whose missing answer gives up the connection early. All requests share the connection, so a shorter
/// lease does not decide about it.
const MIN_LEASE_TO_GIVE_UP: Duration = Duration::from_secs(2);

/// Returns how long a request waits for its answer: a quarter of its lease, within bounds.
fn answer_timeout(lease: Duration, timeout: Duration) -> Duration {
    (lease / 4).clamp(MIN_ANSWER_TIMEOUT, timeout.max(MIN_ANSWER_TIMEOUT))
}

/// The state of the session with one server; see the module.
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    queue: RequestQueue,
    probes: Vec<Probe>,
    actions: VecDeque<OutgoingAction>,
    connection: Connection,
    in_flight: VecDeque<InFlight>,
    /// The latest reading of a remote server's clock.
    clock: Option<ServerClock>,
    /// When the last batch about jobs was sent.
    jobs_sent_at: Option<Instant>,
    /// The highest grant number that this node has seen from the server.
    highest: GrantNumber,
    /// When the server last answered.
    heard: Option<Instant>,
    /// When the first unanswered request since `heard` was sent. A value before `heard` is stale: nothing is
    /// unanswered.
    missed: Option<Instant>,
    /// Where the last connection leads. `None` before the first connection.
    place: Option<Place>,
    /// Set if too few Sentinels confirmed the last connection.
    is_unconfirmed: bool,
    /// When a connection last opened after another one was lost.
    reopened_at: Option<Instant>,
    /// Why the last connection was lost or did not open. Cleared when a connection opens.
    lost: Option<StoreError>,
    /// The end of the server's latest recovery.
    recovering_until: Option<Instant>,
    /// Set when the last attempt to connect failed.
    unreachable: bool,
    backoff: Backoff,
    inbox: InboxLink,
    /// The last number of a batch or an attempt.
    ids: u64,
    jitter: fastrand::Rng,
    plant: Plant,
    /// Empty buffers with capacity, for the next batches.
    spare: Vec<(Vec<PendingRequest>, Vec<Request>)>,
    replies: Vec<Reply>,
    /// Set when a caller is about to give up: the next step sends a ping.
    wants_ping: bool,
    /// Set while the inbox of another session is needed, and that session was not told yet.
    wants_inbox: bool,
    /// Set when the session with the inbox was told that the inbox is needed.
    has_wanted_inbox: bool,
    /// Only for planted mistakes: a connection that must no longer be used.
    predecessor: Option<Attempt>,
}

impl Session {
    /// Creates a session that has not connected yet.
    pub fn new(options: SessionOptions) -> Self {
        Session::with_plant(options, Plant::NONE)
    }
}

impl Session {
    /// Creates a session with a planted mistake.
    pub fn with_plant(options: SessionOptions, plant: Plant) -> Self {
        let jitter = fastrand::Rng::with_seed(options.seed);
        Session {
            inbox: InboxLink::new(&options),
            queue: RequestQueue::with_plant(plant),
            probes: Vec::new(),
            actions: VecDeque::new(),
            connection: Connection::Closed {
                since: Instant::default(),
                until: Instant::default(),
            },
            in_flight: VecDeque::new(),
            clock: None,
            jobs_sent_at: None,
            highest: GrantNumber::default(),
            heard: None,
            missed: None,
            place: None,
            is_unconfirmed: false,
            reopened_at: None,
            lost: None,
            recovering_until: None,
            unreachable: false,
            backoff: Backoff::default(),
            ids: 0,
            jitter,
            plant,
            spare: Vec::new(),
            replies: Vec::new(),
            wants_ping: false,
            wants_inbox: false,
            has_wanted_inbox: false,
            predecessor: None,
            options,
        }
    }

    /// Queues a request, which the next [`step`](Self::step) sends. A request that may wait also opens the inbox, so
    /// that its answer can be pushed. A look for open ticks does so, too: the node is told when an operator acts on its job.
    #[inline]
    pub fn queue(&mut self, outgoing: &Outgoing) {
        let waits = match outgoing.request.verb {
            Verb::Claim { wait } => wait,
            Verb::Call(call) => call.is_watched() || matches!(call, Call::Open { .. }),
            _ => false,
        };
        if waits {
            match self.options.role {
                SessionRole::Member => self.wants_inbox |= !self.has_wanted_inbox,
                SessionRole::Only | SessionRole::Inbox => self.inbox.want(Instant::default()),
            }
        }
        self.queue.push(outgoing);
    }

    /// Queues claims of one kind that are granted together or not at all. They travel in a batch of their own, so
    /// they must fit into one. A leave of a lease that was kept until then travels alone, before the group.
    pub fn queue_together(&mut self, mut claims: Vec<Outgoing>) {
        let is_claim = |outgoing: &Outgoing| outgoing.class == Class::Claim;
        if !claims.iter().all(is_claim) {
            claims
                .iter()
                .filter(|outgoing| !is_claim(outgoing))
                .for_each(|leave| self.queue(leave));
            claims.retain(is_claim);
        }
        debug_assert!(claims.len() <= MAX_BATCH_REQUESTS, "a group fits into one batch");
        self.queue.push_together(claims);
    }

    /// Records the number of a grant that this node has seen, for example in a push.
    pub fn note_grant(&mut self, number: GrantNumber) {
        self.highest = self.highest.max(number);
    }

    /// Returns the highest grant number that this node has seen, for a link that opens. `None` if each slot has a clock.
    pub fn highest(&self) -> Option<GrantNumber> {
        (self.options.role == SessionRole::Only).then_some(self.highest)
    }

    /// Returns whether nothing is queued and no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.probes.is_empty()
            && self.actions.is_empty()
            && self.in_flight.iter().all(|batch| batch.requests.is_empty())
    }

    /// Takes the empty buffer for the replies to a batch.
    pub fn take_reply_buffer(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// Takes back a batch that the store has finished, so that the next batch needs no allocation.
    pub fn recycle(&mut self, batch: Batch) {
        let Batch { mut requests, .. } = batch;
        requests.clear();
        match self.spare.last_mut() {
            Some((_, spare)) if spare.capacity() == 0 => *spare = requests,
            _ => {}
        }
    }

    /// Processes an input.
    pub fn handle(&mut self, now: Instant, input: SessionInput, effects: &mut Vec<SessionEffect>) {
        let cx = &mut SessionContext { now, effects };
        match input {
            SessionInput::Connected { attempt, opened } => self.connected(attempt, opened, cx),
            SessionInput::ConnectFailed { attempt, error } => self.connect_failed(attempt, error, cx),
            SessionInput::ConnectionEnded(attempt) => self.connection_ended(attempt, cx),
            SessionInput::Replied { batch, reply } => self.replied(batch, reply, cx),
            SessionInput::LeasesOver(batch, places) => self.not_sent(batch, &places, cx),
            SessionInput::Probed(probe) => self.probes.push(probe),
            SessionInput::InboxWanted => self.inbox.want(now),
            SessionInput::InboxOpened { attempt, address } => {
                if self.inbox.opened(attempt, address, cx) {
                    self.retry_now(now);
                    self.seek_inbox(cx);
                }
            }
            SessionInput::InboxSought {
                inbox,
                connection,
                is_there,
            } => self.inbox_sought(inbox, connection, is_there, cx),
            SessionInput::SignWanted => {
                let is_young = self.heard.is_some_and(|heard| now.since(heard) < SILENT_AFTER);
                // Callers send this input from their own threads, and only the driver sends requests.
                self.wants_ping = self.in_flight.is_empty() && !is_young;
            }
            SessionInput::PushMissed => self.inbox.missed_push(cx),
            SessionInput::InboxDoubted => self.inbox.suspect(cx),
            SessionInput::InboxRetried => self.inbox.retry_now(now),
            SessionInput::InboxHeard(attempt) => self.inbox.heard(attempt, cx),
            SessionInput::InboxFailed(attempt, error) => {
                let part = part_of_pause(&mut self.jitter);
                if self.inbox.failed(attempt, error, part, cx) {
                    self.ping(cx);
                }
            }
        }
    }

    /// Sends what can be sent, and handles what is due.
    pub fn step(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        let cx = &mut SessionContext { now, effects };
        if std::mem::take(&mut self.wants_inbox) {
            self.has_wanted_inbox = true;
            cx.effects
                .push(SessionEffect::TellInbox(SessionInput::InboxWanted));
        }
        self.check_deadlines(cx);
        let (ids, jitter) = (&mut self.ids, &mut self.jitter);
        let is_dead = self
            .inbox
            .step(|| next_attempt(ids), || part_of_pause(jitter), cx);
        let wants_ping = std::mem::take(&mut self.wants_ping) && self.in_flight.is_empty();
        if is_dead || wants_ping {
            self.ping(cx);
        }
        match self.connection {
            Connection::Closed { until, .. } if self.is_wanted() => {
                if until <= now {
                    self.connect(cx);
                } else if self.is_down(now) {
                    self.report_down(cx);
                }
            }
            Connection::Open { used, .. } => {
                self.send_all(cx);
                if !self.actions.is_empty() {
                    self.send_actions(cx);
                }
                if self.options.remote && self.in_flight.is_empty() && now.since(used) >= MAX_SILENCE {
                    self.ping(cx);
                }
            }
            _ => {}
        }
    }

    /// Returns when [`step`](Self::step) is next due if no input arrives.
    pub fn next_due(&self) -> Option<Instant> {
        let connection = match self.connection {
            Connection::Closed { until, .. } if self.is_wanted() => {
                let heard = self.heard.filter(|_| self.unreachable);
                let down = heard.map(|heard| heard + self.options.request_timeout);
                Some(down.map_or(until, |down| until.min(down)))
            }
            Connection::Closed { .. } => None,
            Connection::Opening { began, .. } => Some(began + self.options.request_timeout),
            Connection::Open { used, .. } => {
                (self.options.remote && self.in_flight.is_empty()).then(|| used + MAX_SILENCE)
            }
        };
        let batches = self.in_flight.iter();
        let batches = batches.map(|batch| {
            batch
                .deadline
                .map_or(batch.gives_up_at, |at| at.min(batch.gives_up_at))
        });
        let job_gap = self.jobs_sent_at.and_then(|sent| self.job_gap_ends(sent));
        let actions = if self.actions.is_empty() {
            None
        } else {
            self.next_action_due()
        };
        let timers = connection.into_iter().chain(job_gap);
        let timers = timers.chain(actions);
        batches.chain(timers).chain(self.inbox.next_due()).min()
    }

    // Sending.

    /// Returns how many batches are in flight.
    fn batches_in_flight(&self) -> usize {
        self.in_flight.iter().filter(|batch| !batch.is_action).count()
    }

    /// Returns the least urgent class of job requests that may be sent now, or `None` if all may be sent.
    ///
    /// Many jobs are due in the same moment, and each claims when its own timer fires. While a batch about jobs is in
    /// flight, other requests about jobs therefore wait until its answer arrives or is overdue, and then travel
    /// together. Only owners' renewals do not wait.
    ///
    /// A nearby server answers before many requests have gathered, so the next batch also waits for a minimum gap.
    /// Calls of a running job do not wait for the gap, because such a run sends one call after the other.
    fn job_cutoff(&self, now: Instant, sent: Instant) -> Option<Class> {
        if self.in_flight.iter().any(InFlight::is_of_jobs) {
            return Some(Class::OwnerRenewal);
        }
        let is_young = self.options.remote && now.since(sent) < MIN_JOB_BATCH_GAP;
        is_young.then_some(Class::Call)
    }

    /// Returns when the gap between batches about jobs ends, if a request waits for nothing else.
    fn job_gap_ends(&self, sent: Instant) -> Option<Instant> {
        let is_open = matches!(self.connection, Connection::Open { .. });
        let waits = self.queue.has_jobs() && !self.in_flight.iter().any(InFlight::is_of_jobs);
        let is_next =
            self.options.remote && is_open && waits && self.batches_in_flight() < MAX_BATCHES_IN_FLIGHT;
        is_next.then(|| sent + MIN_JOB_BATCH_GAP)
    }

    fn send_all(&mut self, cx: &mut SessionContext<'_>) {
        while let Connection::Open { attempt, .. } = self.connection
            && self.batches_in_flight() < MAX_BATCHES_IN_FLIGHT
        {
            // Without an earlier batch about jobs there is no gap.
            let job_cutoff = self.jobs_sent_at.and_then(|sent| self.job_cutoff(cx.now, sent));
            let limits = BatchLimits {
                max_requests: MAX_BATCH_REQUESTS,
                job_cutoff,
            };
            if self.probes.is_empty() && !self.queue.is_ready(limits) {
                break;
            }
            let connection = match self.predecessor {
                Some(old) if self.ids.is_multiple_of(2) => old,
                _ => attempt,
            };
            self.send(connection, Some(limits), cx);
        }
    }

    /// Sends one batch: the next requests within the limits, and the probes. Without limits the batch is empty.
    fn send(&mut self, connection: Attempt, limits: Option<BatchLimits>, cx: &mut SessionContext<'_>) {
        self.ids += 1;
        let (id, now, timeout) = (BatchId(self.ids), cx.now, self.options.request_timeout);
        let mut gives_up_at = now + timeout;
        let (mut latest, mut deadline) = (now + MIN_ANSWER_TIMEOUT, None::<Instant>);
        let (mut pending, mut requests) = self.spare.pop().unwrap_or_default();
        let note = |outgoing: &Outgoing| {
            let at = now + answer_timeout(outgoing.lease, timeout);
            if outgoing.lease >= MIN_LEASE_TO_GIVE_UP {
                gives_up_at = gives_up_at.min(at);
            }
            latest = latest.max(at);
            deadline = Some(deadline.map_or(at, |earliest| earliest.min(at)));
            pending.push(PendingRequest {
                tag: outgoing.tag,
                name: outgoing.request.name.clone(),
                called: outgoing.called,
                deadline: at,
                over: false,
            });
        };
        let (mut rule, mut probes) = (Rule::Each, Vec::new());
        if let Some(limits) = limits {
            rule = self.queue.take(limits, &mut requests, note);
            probes = std::mem::take(&mut self.probes);
        }
        match requests.first().map(|first| first.name.kind) {
            Some(Kind::Job) => self.jobs_sent_at = Some(now),
            Some(Kind::Latch) => self.set_call_times(&mut requests, &pending),
            _ => {}
        }
        // A batch has one not-after: the latest deadline of its requests, but no later than its connection is given
        // up.
        let bounds = self.clock.map(|clock| clock.bounds(latest.min(gives_up_at)));
        let (not_after, late_after) = bounds.unwrap_or((u64::MAX, latest + timeout));
        let is_too_early = self.plant.is(Flaw::LateAfterTooEarly);
        self.in_flight.push_back(InFlight {
            id,
            connection,
            sent: now,
            late_after: if is_too_early { now } else { late_after },
            gives_up_at,
            deadline,
            requests: pending,
            probes,
            is_action: false,
        });
        self.note_use(now);
        let batch = Batch {
            highest: self.highest().unwrap_or_default(),
            not_after,
            poll_gap_ms: self.options.poll_gap.as_millis() as u64,
            recovery_ms: self.options.recovery.as_millis() as u64,
            is_unconfirmed: self.is_unconfirmed,
            rule,
            requests,
        };
        cx.effects.push(SessionEffect::Send {
            connection,
            id,
            batch,
        });
    }

    /// Adds to count-downs when they were called, by the server's clock. For a repeated call the margin widens the
    /// range, to allow for small steps of that clock: an earlier request may have been executed before such a step.
    fn set_call_times(&self, requests: &mut [Request], pending: &[PendingRequest]) {
        for (request, pending) in requests.iter_mut().zip(pending) {
            let Verb::Call(call) = &mut request.verb else {
                continue;
            };
            let Some(called) = call.called() else { continue };
            let (since, until) = match &self.clock {
                Some(clock) => clock.at(pending.called),
                None if self.options.remote => (0, u64::MAX),
                // A local store answers at once, so nothing is late.
                None => (u64::MAX, u64::MAX),
            };
            let slack = u64::from(called.repeats) * 1000 * request.term.margin_ms;
            called.since = since.saturating_sub(slack);
            called.until = until.saturating_add(slack);
        }
    }

    fn note_use(&mut self, now: Instant) {
        if let Connection::Open { used, .. } = &mut self.connection {
            *used = now;
        }
    }

    // Deadlines.

    fn check_deadlines(&mut self, cx: &mut SessionContext<'_>) {
        let now = cx.now;
        if let Connection::Opening { attempt, began } = self.connection
            && now.since(began) >= self.options.request_timeout
        {
            cx.effects.push(SessionEffect::Close(attempt));
            let waited = self.options.request_timeout;
            let error = self.timed_out(StoreErrorKind::Unreachable, "no connection to", waited);
            self.connect_failed(attempt, error, cx);
        }
        if !self.actions.is_empty() {
            self.expire_actions(cx);
        }
        if self.in_flight.is_empty() {
            return;
        }
        // Giving up a connection reports all of its requests, not only the overdue batch.
        let overdue = self.in_flight.iter().find(|batch| batch.gives_up_at <= now);
        if let Some((connection, sent)) = overdue.map(|batch| (batch.connection, batch.sent)) {
            let error = self.timed_out(StoreErrorKind::TimedOut, "no reply from", now.since(sent));
            self.give_up(connection, sent, error, cx);
        }
        let is_missed = |batch: &&InFlight| batch.deadline.is_some_and(|deadline| deadline <= now);
        let Some(missed) = self.in_flight.iter().find(is_missed).map(|batch| batch.sent) else {
            return;
        };
        self.note_unanswered(missed);
        let (executed, before) = (Executed::Unknown, cx.effects.len());
        let error = self.error(StoreErrorKind::TimedOut, "no reply in time from");
        let failed = self.failed_request(Failure { executed, error }, now);
        for batch in self.in_flight.iter_mut().filter(|batch| is_missed(&&**batch)) {
            batch.expire(now, &failed, cx.effects);
        }
        let expired = cx.effects.len() - before;
        if expired > 0 {
            // Before the failures.
            cx.effects.insert(before, SessionEvent::TimedOut(expired).into());
        }
    }
}
