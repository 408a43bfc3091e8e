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

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::connection::{Connection, is_broken, next_attempt};
use crate::protocol::flaw::{Flaw, Plant, Sound};
use crate::protocol::in_flight::{InFlight, Pending};
use crate::protocol::inbox::Inbox;
use crate::protocol::message::{
    Batch, BatchReply, Executed, Failure, GrantNumber, Reply, Request, Unanswered, Verb,
};
use crate::protocol::queue::Queue;
use crate::protocol::server_clock::ServerClock;
use crate::protocol::session_step::{
    Attempt, BatchId, PAUSE, Probe, SILENCE, SessionEffect, SessionEvent, SessionInput, SessionOptions,
};
use crate::protocol::step::{Input, Outgoing, Tag};
use crate::protocol::time::Instant;

/// Requests per batch: about half a millisecond of a Redis server's time.
const REQUESTS: usize = 128;
/// Batches under way. Fixed: what a batch does must not depend on what was measured at run time.
const BATCHES: usize = 16;
/// A request is given this long at least.
const SHORTEST: Duration = Duration::from_millis(100);
/// A lease shorter than this does not decide over the connection that all share.
const LONG: Duration = Duration::from_secs(2);
/// A connection that was not used for so long may have been closed for that by the server, or by what is on the way.
const IDLE: Duration = Duration::from_millis(900);
/// See the module.
#[derive(Debug)]
pub struct Session<P: Plant = Sound> {
    options: SessionOptions,
    queue: Queue,
    probes: Vec<Probe>,
    connection: Connection,
    in_flight: VecDeque<InFlight>,
    clock: Option<ServerClock>,
    /// The highest grant number that the server was seen to give.
    highest: GrantNumber,
    /// When it last answered.
    heard: Option<Instant>,
    /// Why the last connection was lost, or could not be opened, until the next one opens.
    lost: Option<StoreError>,
    /// The last attempt to connect failed.
    unreachable: bool,
    pause: Duration,
    inbox: Inbox,
    ids: u64,
    jitter: fastrand::Rng,
    plant: P,
    /// Empty, with room, for the next batches.
    taken: Vec<Outgoing>,
    spare: Vec<(Vec<Pending>, Vec<Request>)>,
    replies: Vec<Reply>,
    /// Only for planted mistakes: a connection that was to be given up.
    predecessor: Option<Attempt>,
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

    // The connection.

    fn is_wanted(&self) -> bool {
        !self.queue.is_empty() || !self.probes.is_empty()
    }

    /// The last attempt failed, and nothing was heard for as long as a request may take. What the server itself says
    /// for good, a wrong password, needs no second opinion.
    fn is_down(&self, now: Instant) -> bool {
        let Some(error) = self.lost.as_ref().filter(|_| self.unreachable) else {
            return false;
        };
        is_for_good(error)
            || self
                .heard
                .is_none_or(|heard| now.since(heard) >= self.options.request_timeout)
    }

    fn connect(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        let attempt = next_attempt(&mut self.ids);
        self.connection = Connection::Opening { attempt, began: now };
        effects.push(SessionEffect::Connect(attempt));
    }

    fn connected(&mut self, now: Instant, attempt: Attempt, time: u64, effects: &mut Vec<SessionEffect>) {
        let began = match self.connection {
            Connection::Opening { attempt: ours, began } if ours == attempt => began,
            // Of an attempt that was given up.
            _ => return effects.push(SessionEffect::Close(attempt)),
        };
        self.hear_time(time, began, now);
        self.heard = Some(now);
        (self.lost, self.unreachable) = (None, false);
        self.connection = Connection::Open {
            attempt,
            proven: false,
            used: now,
        };
        self.inbox.retry_now(now);
        effects.push(SessionEffect::Event(SessionEvent::Connected(now.since(began))));
        effects.push(SessionEffect::Reachable);
    }

    fn connect_failed(
        &mut self,
        now: Instant,
        attempt: Attempt,
        error: StoreError,
        effects: &mut Vec<SessionEffect>,
    ) {
        // A late error of an old attempt says nothing of its successor.
        if !matches!(self.connection, Connection::Opening { attempt: ours, .. } if ours == attempt) {
            return;
        }
        self.unreachable = true;
        self.close(now, error, false, effects);
        if self.is_down(now) {
            self.tell_down(now, effects);
        } else {
            // Whoever keeps something knows that it was not kept yet, and tries again. Others wait until it is certain.
            for outgoing in self.queue.take_renewals() {
                let input = self.unanswered(outgoing.tag, Unanswered::No, now, self.lost_error());
                effects.push(SessionEffect::Tell(outgoing.request.name, input));
            }
        }
        self.fail_probes(effects);
    }

    /// Closed, and not to be opened again before a pause that doubles.
    fn close(&mut self, now: Instant, error: StoreError, idle: bool, effects: &mut Vec<SessionEffect>) {
        let pause = self.pause.mul_f64(0.5 + self.jitter.f64() / 2.0);
        self.pause = (2 * self.pause).min(PAUSE.1);
        self.connection = Connection::Closed {
            since: now,
            until: now + pause,
        };
        let lost = error.clone();
        effects.push(SessionEvent::ConnectionLost { error: lost, idle }.into());
        self.lost = Some(error);
    }

    /// The inbox opened, so this can be tried, too: but not twice in a moment, as each may open and break in turn.
    fn retry_now(&mut self, now: Instant) {
        if let Connection::Closed { since, until } = &mut self.connection {
            *until = (*until).min(now.max(*since + PAUSE.0));
        }
    }

    /// Nothing is sent to a server that is down.
    fn tell_down(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        let queued = self.queue.take_all();
        if !queued.is_empty() {
            effects.push(SessionEffect::Event(SessionEvent::Down(queued.len())));
        }
        for outgoing in queued {
            let input = self.unanswered(outgoing.tag, Unanswered::Down, now, self.lost_error());
            effects.push(SessionEffect::Tell(outgoing.request.name, input));
        }
        self.fail_probes(effects);
    }

    fn fail_probes(&mut self, effects: &mut Vec<SessionEffect>) {
        let error = self.lost_error();
        let failed = |probe| SessionEffect::Probed(probe, Err(error.clone()));
        effects.extend(self.probes.drain(..).map(failed));
    }

    fn lost_error(&self) -> StoreError {
        self.lost
            .clone()
            .unwrap_or_else(|| self.error(StoreErrorKind::Unreachable, "no connection to"))
    }

    fn error(&self, kind: StoreErrorKind, what: &str) -> StoreError {
        StoreError::new(kind, format_args!("{what} {}", self.options.server))
    }

    fn timed_out(&self, kind: StoreErrorKind, what: &str) -> StoreError {
        let (server, timeout) = (&self.options.server, self.options.request_timeout);
        StoreError::new(kind, format_args!("{what} {server} within {timeout:?}"))
    }

    /// A sign of life: an empty batch. Whoever is silent is given up as after a request.
    fn ask_for_a_sign(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        if let Connection::Open { attempt, .. } = self.connection
            && self.options.remote
        {
            self.send(now, attempt, &mut Vec::new(), Vec::new(), effects);
        }
    }

    fn inbox_pause(&mut self) -> f64 {
        0.5 + self.jitter.f64() / 2.0
    }

    // What is sent.

    fn send_all(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
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

    fn send(
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

    fn used(&mut self, now: Instant) {
        if let Connection::Open { used, .. } = &mut self.connection {
            *used = now;
        }
    }

    // What is answered.

    fn replied(
        &mut self,
        now: Instant,
        id: BatchId,
        reply: Result<BatchReply, Failure>,
        effects: &mut Vec<SessionEffect>,
    ) {
        let at = self.in_flight.iter().position(|batch| batch.id == id);
        // Of a connection that was given up: it decides nothing.
        let Some(at) = at else { return };
        let at = if self.plant.planted(Flaw::ReplyToAnotherBatch) {
            0
        } else {
            at
        };
        let Some(batch) = self.in_flight.remove(at) else {
            return;
        };
        match reply {
            Ok(reply) if reply.replies.len() == batch.requests.len() => {
                self.answered(now, batch, reply, effects)
            }
            Ok(_) => {
                let error = StoreError::new(
                    StoreErrorKind::Interrupted,
                    format_args!("the reply of {} does not fit the batch", self.options.server),
                );
                let executed = Executed::Unknown;
                self.batch_failed(now, batch, Failure { executed, error }, effects);
            }
            Err(failure) => self.batch_failed(now, batch, failure, effects),
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        batch: InFlight,
        reply: BatchReply,
        effects: &mut Vec<SessionEffect>,
    ) {
        self.hear(now, batch.connection);
        if reply.time > 0 {
            self.hear_time(reply.time, batch.sent, now);
        }
        let demoted = reply.replies.contains(&Reply::Refused(StoreRefusal::ReadOnly));
        if !demoted {
            self.pause = PAUSE.0;
        }
        let refused = |reply: &Reply| matches!(reply, Reply::Refused(_) | Reply::Late);
        let refused = reply.replies.iter().any(refused);
        let mut requests = batch.requests;
        let mut replies = reply.replies;
        for (request, reply) in requests.drain(..).zip(replies.drain(..)) {
            if let Reply::Granted(number) | Reply::Won(number, _) = reply {
                self.saw(number);
            }
            if !request.over {
                let (tag, sent) = (request.tag, batch.sent);
                effects.push(SessionEffect::Tell(
                    request.name,
                    Input::Answered { tag, sent, reply },
                ));
            }
        }
        if self.spare.len() < BATCHES {
            self.spare.push((requests, Vec::new()));
        }
        self.replies = replies;
        effects.extend(
            batch
                .probes
                .into_iter()
                .map(|probe| SessionEffect::Probed(probe, Ok(()))),
        );
        if self.options.remote {
            effects.push(SessionEvent::Answered { refused }.into());
        }
        if demoted {
            let error = StoreError::refused(StoreRefusal::ReadOnly);
            self.give_up(now, batch.connection, batch.sent, error, effects);
        }
    }

    /// A whole batch has no reply: the server refused it, or the connection broke.
    fn batch_failed(
        &mut self,
        now: Instant,
        batch: InFlight,
        failure: Failure,
        effects: &mut Vec<SessionEffect>,
    ) {
        let Failure { executed, error } = failure;
        let refused = matches!(error.kind(), StoreErrorKind::Refused(_));
        // A server that only refuses is there, and of no use: nobody rides that out as if it had answered.
        if refused {
            self.used(now);
        }
        // Nobody is excused by a connection that never answered: it may break for what they ask.
        let why = match executed {
            Executed::No => Unanswered::No,
            Executed::Unknown if !refused && self.is_proven(batch.connection) => Unanswered::Bystander,
            Executed::Unknown => Unanswered::Unknown,
        };
        let (connection, sent) = (batch.connection, batch.sent);
        self.tell_unanswered(now, batch, why, &error, effects);
        if is_broken(&error) {
            self.give_up(now, connection, sent, error, effects);
        }
    }

    /// Never used beside its successor: whatever is under way on it is told so. `sent`: when that was which found it
    /// broken.
    fn give_up(
        &mut self,
        now: Instant,
        connection: Attempt,
        sent: Instant,
        error: StoreError,
        effects: &mut Vec<SessionEffect>,
    ) {
        if !matches!(self.connection, Connection::Open { attempt, .. } if attempt == connection) {
            return;
        }
        let excused = self.is_proven(connection);
        if self.plant.planted(Flaw::ConnectionBesideSuccessor) {
            self.predecessor = Some(connection);
        } else {
            effects.push(SessionEffect::Close(connection));
        }
        let idle = *error.kind() == StoreErrorKind::Interrupted && self.was_idle_before(sent);
        self.close(now, error.clone(), idle, effects);
        // It did its work until now. One that refuses everything did not.
        if excused
            && !matches!(error.kind(), StoreErrorKind::Refused(_))
            && let Connection::Closed { until, .. } = &mut self.connection
        {
            *until = now;
        }
        let under_way = std::mem::take(&mut self.in_flight);
        if self.plant.planted(Flaw::ForgottenWithConnection) {
            return;
        }
        for batch in under_way {
            let overdue = batch.gives_up <= now;
            let why = match excused {
                true if !overdue => Unanswered::Bystander,
                _ => Unanswered::Unknown,
            };
            self.tell_unanswered(now, batch, why, &error, effects);
        }
        // Silence of one puts the other under suspicion.
        self.inbox.suspect(now, effects);
    }

    fn tell_unanswered(
        &mut self,
        now: Instant,
        batch: InFlight,
        why: Unanswered,
        error: &StoreError,
        effects: &mut Vec<SessionEffect>,
    ) {
        let late_after = batch.late_after.max(now);
        let told = batch.requests.into_iter().filter(|request| !request.over);
        let before = effects.len();
        for request in told {
            let input = self.unanswered(request.tag, why, late_after, error.clone());
            effects.push(SessionEffect::Tell(request.name, input));
        }
        let told = effects.len() - before;
        match why {
            Unanswered::Bystander if told > 0 => effects.push(SessionEvent::Bystanders(told).into()),
            Unanswered::Unknown if told > 0 => effects.push(SessionEvent::TimedOut(told).into()),
            _ => {}
        }
        for probe in batch.probes {
            effects.push(SessionEffect::Probed(probe, Err(error.clone())));
        }
    }

    fn unanswered(&self, tag: Tag, why: Unanswered, late_after: Instant, error: StoreError) -> Input {
        Input::Failed {
            tag,
            why,
            late_after,
            heard: self.heard,
            error,
        }
    }

    /// Nothing was under way for a while before what was sent then and what is still under way.
    fn was_idle_before(&self, sent: Instant) -> bool {
        let first = self
            .in_flight
            .iter()
            .map(|batch| batch.sent)
            .fold(sent, Instant::min);
        self.heard.is_some_and(|heard| first.since(heard) >= IDLE)
    }

    fn is_proven(&self, connection: Attempt) -> bool {
        matches!(self.connection, Connection::Open { attempt, proven: true, .. } if attempt == connection)
    }

    fn hear(&mut self, now: Instant, connection: Attempt) {
        self.heard = Some(now);
        if let Connection::Open {
            attempt,
            proven,
            used,
        } = &mut self.connection
            && *attempt == connection
        {
            (*proven, *used) = (true, now);
        }
    }

    fn hear_time(&mut self, time: u64, asked: Instant, heard: Instant) {
        let reading = ServerClock::read(time, asked, heard);
        self.clock = Some(match self.clock {
            Some(old) if self.plant.planted(Flaw::NotAfterFromOldReading) => old,
            Some(old) => old.younger(reading),
            None => reading,
        });
    }

    // What time brings.

    fn look_at_deadlines(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
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

/// No other connection will fare better. What the server calls by no name that is known here may pass.
fn is_for_good(error: &StoreError) -> bool {
    use StoreRefusal::{NoAuth, NoPermission, Unsupported, WrongPassword};
    match error.kind() {
        StoreErrorKind::Refused(refusal) => {
            matches!(refusal, NoAuth | NoPermission | Unsupported | WrongPassword)
        }
        _ => false,
    }
}
