//! What a session makes of what its server answers, and of what it does not.

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{BatchReply, Executed, Failure, Reply, Unanswered};
use crate::protocol::session::connection::{Connection, is_broken};
use crate::protocol::session::in_flight::InFlight;
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::session::step::{Attempt, BatchId, SessionEffect, SessionEvent};
use crate::protocol::session::{BATCHES, Session};
use crate::protocol::step::{Input, Tag};
use crate::protocol::time::Instant;

impl<P: Plant> Session<P> {
    #[inline]
    pub(super) fn replied(
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

    #[inline]
    pub(super) fn answered(
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
        let (mut demoted, mut refused) = (false, false);
        let mut requests = batch.requests;
        let (time, mut replies) = (reply.time, reply.replies);
        for (request, reply) in requests.drain(..).zip(replies.drain(..)) {
            if let Some(number) = reply.number() {
                self.saw(number);
            }
            match &reply {
                Reply::Refused(refusal) => {
                    refused = true;
                    demoted |= *refusal == StoreRefusal::ReadOnly;
                }
                Reply::Late => refused = true,
                _ => {}
            }
            if !request.over {
                let (tag, sent) = (request.tag, batch.sent);
                effects.push(SessionEffect::Tell(
                    request.name,
                    Input::Answered {
                        tag,
                        sent,
                        time,
                        reply,
                    },
                ));
            }
        }
        if !demoted {
            self.backoff.reset();
        }
        if self.spare.len() < BATCHES {
            self.spare.push((requests, Vec::new()));
        }
        self.replies = replies;
        for probe in batch.probes {
            effects.push(SessionEffect::Probed(probe, Ok(())));
        }
        if self.options.can_fail {
            let sent = batch.sent;
            effects.push(SessionEvent::Answered { refused, sent }.into());
        }
        if demoted {
            let error = StoreError::refused(StoreRefusal::ReadOnly);
            self.give_up(now, batch.connection, batch.sent, error, effects);
        }
    }

    /// A whole batch has no reply: the server refused it, or the connection broke.
    pub(super) fn batch_failed(
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
        self.miss(batch.sent);
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

    pub(super) fn tell_unanswered(
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

    pub(super) fn unanswered(
        &self,
        tag: Tag,
        why: Unanswered,
        late_after: Instant,
        error: StoreError,
    ) -> Input {
        Input::Failed {
            tag,
            why,
            late_after,
            heard: self.heard,
            away: self.missed.max(self.heard),
            error,
        }
    }

    pub(super) fn hear(&mut self, now: Instant, connection: Attempt) {
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

    /// A store at hand has answered before anybody gives up: what is asked of it needs no bound.
    pub(super) fn hear_time(&mut self, time: u64, asked: Instant, heard: Instant) {
        if !self.options.remote {
            return;
        }
        let reading = ServerClock::read(time, asked, heard);
        self.clock = Some(match self.clock {
            Some(old) if self.plant.planted(Flaw::NotAfterFromOldReading) => old,
            Some(old) => old.younger(reading),
            None => reading,
        });
    }
}
