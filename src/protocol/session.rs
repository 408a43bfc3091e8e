//! One server: what is queued for it, the batches under way to it, their deadlines, its connection and its inbox.
//!
//! Sans-I/O, as the key machine is. Requests are left here with [`Session::queue`]; [`Session::step`] sends what can be
//! sent and does what is due; [`Session::handle`] takes in what happened. All three append [`SessionEffect`]s for whoever does
//! the input and output.
//!
//! Group commit: what is asked while the driver is at work travels in its next batch, as a database commits its log.
//! There is no timer, so nothing waits when the server is idle. A fixed number of batches may be under way.
//!
//! A request that has no reply is reported as [`Unanswered`]; only the key machine decides whether to ask again or to
//! tell its caller.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::connection::{Connection, next_attempt};
use crate::protocol::flaw::{Flaw, Plant, Sound};
use crate::protocol::in_flight::{InFlight, Pending};
use crate::protocol::inbox::Inbox;
use crate::protocol::message::{Batch, GrantNumber, Reply, Request, Unanswered, Verb};
use crate::protocol::queue::Queue;
use crate::protocol::server_clock::ServerClock;
use crate::protocol::session_step::{
    Attempt, BatchId, PAUSE, Probe, SILENCE, SessionEffect, SessionEvent, SessionInput, SessionOptions,
};
use crate::protocol::step::Outgoing;
use crate::protocol::time::Instant;

/// Requests per batch: about half a millisecond of a Redis server's time.
const REQUESTS: usize = 128;
/// Batches under way. Fixed: what a batch does must not depend on what was measured at run time.
pub(super) const BATCHES: usize = 16;
/// A request is given this long at least.
const SHORTEST: Duration = Duration::from_millis(100);
/// A lease shorter than this does not decide over the connection that all share.
const LONG: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Session<P: Plant = Sound> {
    pub(super) options: SessionOptions,
    pub(super) queue: Queue,
    pub(super) probes: Vec<Probe>,
    pub(super) connection: Connection,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) clock: Option<ServerClock>,
    /// The highest grant number that the server was seen to give.
    pub(super) highest: GrantNumber,
    /// When it last answered.
    pub(super) heard: Option<Instant>,
    /// Why the last connection was lost, or could not be opened, until the next one opens.
    pub(super) lost: Option<StoreError>,
    /// The last attempt to connect failed.
    pub(super) unreachable: bool,
    pub(super) pause: Duration,
    pub(super) inbox: Inbox,
    pub(super) ids: u64,
    pub(super) jitter: fastrand::Rng,
    pub(super) plant: P,
    /// Empty, with room, for the next batches.
    pub(super) taken: Vec<Outgoing>,
    pub(super) spare: Vec<(Vec<Pending>, Vec<Request>)>,
    pub(super) replies: Vec<Reply>,
    /// Only for planted mistakes: a connection that was to be given up.
    pub(super) predecessor: Option<Attempt>,
}

impl Session {
    /// One that has not connected yet.
    pub fn new(options: SessionOptions) -> Self {
        Session::with_plant(options, Sound)
    }
}

impl<P: Plant> Session<P> {
    /// One with a mistake planted.
    pub fn with_plant(options: SessionOptions, plant: P) -> Self {
        let jitter = fastrand::Rng::with_seed(options.seed);
        Session {
            inbox: Inbox::new(&options),
            queue: Queue::with_plant(plant.planted(Flaw::RenewalBehindQueue)),
            probes: Vec::new(),
            connection: Connection::Closed {
                since: Instant::default(),
                until: Instant::default(),
            },
            in_flight: VecDeque::new(),
            clock: None,
            highest: GrantNumber::default(),
            heard: None,
            lost: None,
            unreachable: false,
            pause: PAUSE.0,
            ids: 0,
            jitter,
            plant,
            taken: Vec::new(),
            spare: Vec::new(),
            replies: Vec::new(),
            predecessor: None,
            options,
        }
    }

    /// Leaves a request to be sent with the next [`step`](Self::step). Whoever would wait wants to be told by a push.
    pub fn queue(&mut self, outgoing: Outgoing) {
        if let Verb::Claim { wait: true } = outgoing.request.verb {
            self.inbox.want(Instant::default());
        }
        self.queue.push(outgoing);
    }

    /// A grant of this number was seen, which may have come by a push.
    pub fn saw(&mut self, number: GrantNumber) {
        self.highest = self.highest.max(number);
    }

    /// Nothing waits to be sent, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.probes.is_empty()
            && self.in_flight.iter().all(|batch| batch.requests.is_empty())
    }

    /// Room for the replies to a batch.
    pub fn room(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// Takes a batch back whose store is done with it, so that the next one need not allocate.
    pub fn recycle(&mut self, batch: Batch) {
        let Batch { mut requests, .. } = batch;
        requests.clear();
        match self.spare.last_mut() {
            Some((_, spare)) if spare.capacity() == 0 => *spare = requests,
            _ => {}
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: SessionInput, effects: &mut Vec<SessionEffect>) {
        match input {
            SessionInput::Connected { attempt, time } => self.connected(now, attempt, time, effects),
            SessionInput::ConnectFailed { attempt, error } => {
                self.connect_failed(now, attempt, error, effects)
            }
            SessionInput::Replied { batch, reply } => self.replied(now, batch, reply, effects),
            SessionInput::Probed(probe) => self.probes.push(probe),
            SessionInput::InboxWanted => self.inbox.want(now),
            SessionInput::InboxOpened(attempt) => {
                if self.inbox.opened(now, attempt, effects) {
                    self.retry_now(now);
                }
            }
            SessionInput::InboxHeard(attempt) => self.inbox.heard(now, attempt, effects),
            SessionInput::InboxFailed(attempt, error) => {
                let pause = self.inbox_pause();
                if self.inbox.failed(now, attempt, error, pause, effects) {
                    self.ask_for_a_sign(now, effects);
                }
            }
        }
    }

    /// Sends what can be sent, and does what is due.
    pub fn step(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        self.look_at_deadlines(now, effects);
        let pause = self.inbox_pause();
        let ids = &mut self.ids;
        if self.inbox.step(now, || next_attempt(ids), pause, effects) {
            self.ask_for_a_sign(now, effects);
        }
        match self.connection {
            Connection::Closed { until, .. } if self.is_wanted() => {
                if until <= now {
                    self.connect(now, effects);
                } else if self.is_down(now) {
                    self.tell_down(now, effects);
                }
            }
            Connection::Open { used, .. } => {
                self.send_all(now, effects);
                if self.options.remote && self.in_flight.is_empty() && now.since(used) >= SILENCE {
                    self.ask_for_a_sign(now, effects);
                }
            }
            _ => {}
        }
    }

    /// When [`step`](Self::step) has something to do next, if nothing happens.
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
                (self.options.remote && self.in_flight.is_empty()).then(|| used + SILENCE)
            }
        };
        let batches = self.in_flight.iter();
        let batches = batches.map(|batch| batch.deadline.map_or(batch.gives_up, |at| at.min(batch.gives_up)));
        batches.chain(connection).chain(self.inbox.next_due()).min()
    }

    // What is sent.

    pub(super) fn send_all(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        while let Connection::Open { attempt, .. } = self.connection
            && self.is_wanted()
            && self.in_flight.len() < BATCHES
        {
            let connection = match self.predecessor {
                Some(old) if self.ids.is_multiple_of(2) => old,
                _ => attempt,
            };
            let (mut taken, probes) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.probes));
            self.queue.take(REQUESTS, &mut taken);
            self.send(now, connection, &mut taken, probes, effects);
            self.taken = taken;
        }
    }

    pub(super) fn send(
        &mut self,
        now: Instant,
        connection: Attempt,
        outgoing: &mut Vec<Outgoing>,
        probes: Vec<Probe>,
        effects: &mut Vec<SessionEffect>,
    ) {
        self.ids += 1;
        let id = BatchId(self.ids);
        let timeout = self.options.request_timeout;
        let mut gives_up = now + timeout;
        let mut latest = now + SHORTEST;
        let mut deadline: Option<Instant> = None;
        let (mut pending, mut requests) = self.spare.pop().unwrap_or_default();
        pending.reserve(outgoing.len());
        requests.reserve(outgoing.len());
        for Outgoing {
            tag, request, lease, ..
        } in outgoing.drain(..)
        {
            let at = now + (lease / 4).clamp(SHORTEST, timeout.max(SHORTEST));
            if lease >= LONG {
                gives_up = gives_up.min(at);
            }
            latest = latest.max(at);
            deadline = Some(deadline.map_or(at, |earliest| earliest.min(at)));
            pending.push(Pending {
                tag,
                name: request.name.clone(),
                deadline: at,
                over: false,
            });
            requests.push(request);
        }
        // A batch has one not-after: that of the request which is waited for longest, but no longer than its connection.
        let (not_after, late_after) = match &self.clock {
            Some(clock) => clock.bounds(latest.min(gives_up)),
            None => (u64::MAX, latest + timeout),
        };
        let late_after = if self.plant.planted(Flaw::LateAfterTooEarly) {
            now
        } else {
            late_after
        };
        if !requests.is_empty() {
            effects.push(SessionEffect::Event(SessionEvent::Sent(requests.len())));
        }
        self.in_flight.push_back(InFlight {
            id,
            connection,
            sent: now,
            late_after,
            gives_up,
            deadline,
            requests: pending,
            probes,
        });
        self.used(now);
        effects.push(SessionEffect::Send {
            connection,
            id,
            batch: Batch {
                highest: self.highest,
                not_after,
                requests,
            },
        });
    }

    pub(super) fn used(&mut self, now: Instant) {
        if let Connection::Open { used, .. } = &mut self.connection {
            *used = now;
        }
    }

    // What time brings.

    pub(super) fn look_at_deadlines(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        if let Connection::Opening { attempt, began } = self.connection
            && now.since(began) >= self.options.request_timeout
        {
            effects.push(SessionEffect::Close(attempt));
            let error = self.timed_out(StoreErrorKind::Unreachable, "no connection to");
            self.connect_failed(now, attempt, error, effects);
        }
        // One whose connection is overdue is told with all others of that connection.
        let overdue = self.in_flight.iter().find(|batch| batch.gives_up <= now);
        if let Some((connection, sent)) = overdue.map(|batch| (batch.connection, batch.sent)) {
            let error = self.timed_out(StoreErrorKind::TimedOut, "no reply of");
            self.give_up(now, connection, sent, error, effects);
        }
        let mut told = Vec::new();
        for batch in &mut self.in_flight {
            if batch.deadline.is_some_and(|deadline| deadline <= now) {
                batch.expire(now, &mut told);
            }
        }
        if !told.is_empty() {
            effects.push(SessionEffect::Event(SessionEvent::TimedOut(told.len())));
        }
        for (tag, name, late_after) in told {
            let error = self.error(StoreErrorKind::TimedOut, "no reply in time of");
            let input = self.unanswered(tag, Unanswered::Unknown, late_after, error);
            effects.push(SessionEffect::Tell(name, input));
        }
    }
}
