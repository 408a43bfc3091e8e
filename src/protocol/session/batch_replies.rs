//! Handles the server's replies, and batches that have no reply.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{BatchReply, ClaimReply, Executed, Failure, RecoveryCause, Reply};
use crate::protocol::session::connection::{Connection, is_broken};
use crate::protocol::session::in_flight::{InFlight, PendingRequest};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::session::step::{Attempt, BatchId, SessionContext, SessionEffect, SessionEvent};
use crate::protocol::session::{MAX_BATCHES_IN_FLIGHT, Session};
use crate::protocol::step::{Input, ms};
use crate::protocol::time::Instant;

impl Session {
    /// Handles the reply to a batch or an action, or its failure.
    #[inline]
    pub(super) fn replied(
        &mut self,
        id: BatchId,
        reply: Result<BatchReply, Failure>,
        cx: &mut SessionContext<'_>,
    ) {
        let at = self.in_flight.iter().position(|batch| batch.id == id);
        // The batch belongs to a connection that was given up, so its reply has no effect.
        let Some(at) = at else { return };
        let at = if self.plant.is(Flaw::ReplyToAnotherBatch) {
            0
        } else {
            at
        };
        let Some(batch) = self.in_flight.remove(at) else {
            return;
        };
        match reply {
            Ok(reply) if reply.replies.len() == batch.requests.len() => self.answered(batch, reply, cx),
            Ok(_) => {
                let error = StoreError::new(
                    StoreErrorKind::Interrupted,
                    format_args!("the reply from {} does not match the batch", self.options.server),
                );
                let executed = Executed::Unknown;
                self.batch_failed(batch, Failure { executed, error }, cx);
            }
            Err(failure) => self.batch_failed(batch, failure, cx),
        }
    }

    #[inline]
    fn answered(&mut self, batch: InFlight, reply: BatchReply, cx: &mut SessionContext<'_>) {
        self.note_answer(cx.now, batch.connection);
        if reply.time > 0 {
            self.note_server_time(reply.time, batch.sent, cx.now);
        }
        let (mut demoted, mut refused) = (false, false);
        let mut requests = batch.requests;
        let (sent, time, mut replies) = (batch.sent, reply.time, reply.replies);
        let late_after = batch.late_after.max(cx.now);
        for (PendingRequest { tag, name, over, .. }, reply) in requests.drain(..).zip(replies.drain(..)) {
            if let Some(number) = reply.number() {
                self.note_grant(number);
            }
            match &reply {
                Reply::Refused(refusal) => {
                    refused = true;
                    demoted |= *refusal == StoreRefusal::ReadOnly;
                }
                Reply::Late => refused = true,
                Reply::Failed(failure) => {
                    refused |= is_refusal(&failure.error);
                    demoted |= *failure.error.kind() == StoreErrorKind::Refused(StoreRefusal::ReadOnly);
                    if !over {
                        let failed = self.failed_on(batch.connection, (**failure).clone(), late_after);
                        cx.effects.push(SessionEffect::failed(name, tag, failed));
                    }
                    continue;
                }
                Reply::Claim(ClaimReply::Recovering(left)) => self.note_held_back(ms(*left), cx),
                _ => {}
            }
            if !over {
                let input = Input::Answered {
                    tag,
                    sent,
                    time,
                    reply,
                };
                cx.effects.push(SessionEffect::Tell(name, input));
            }
        }
        if !demoted {
            self.backoff.reset();
        }
        if self.spare.len() < MAX_BATCHES_IN_FLIGHT {
            self.spare.push((requests, Vec::new()));
        }
        self.replies = replies;
        for probe in batch.probes {
            cx.effects.push(SessionEffect::Probed(probe, Ok(())));
        }
        if self.options.can_fail {
            cx.event(SessionEvent::Answered { refused, sent });
        }
        if demoted {
            let error = StoreError::refused(StoreRefusal::ReadOnly);
            self.give_up(batch.connection, sent, error, cx);
        }
    }

    /// Notes that a claim is held back. An unconfirmed link does so without a recovery, and has told of a real one.
    fn note_held_back(&mut self, left: Duration, cx: &mut SessionContext<'_>) {
        if !self.is_unconfirmed {
            self.note_recovery(left, RecoveryCause::Number, cx);
        }
    }

    /// Reports a recovery of the server, once.
    pub(super) fn note_recovery(
        &mut self,
        left: Duration,
        cause: RecoveryCause,
        cx: &mut SessionContext<'_>,
    ) {
        if self.recovering_until.is_none_or(|until| until < cx.now) {
            cx.event(SessionEvent::Recovering(left, cause));
        }
        self.recovering_until = self.recovering_until.max(Some(cx.now + left));
    }

    /// Handles a batch that has no reply: the server refused it, or the connection broke.
    pub(super) fn batch_failed(&mut self, batch: InFlight, failure: Failure, cx: &mut SessionContext<'_>) {
        let (connection, sent) = (batch.connection, batch.sent);
        if let Executed::Elsewhere(_) = failure.executed {
            // The server answered, so its connection works.
            self.note_answer(cx.now, connection);
            let failed = self.failed_on(connection, failure, cx.now);
            return self.report_failed(batch, &failed, cx);
        }
        // A server that only refuses is reachable but useless. Its refusals do not count as answers when a caller
        // rides out an outage.
        if is_refusal(&failure.error) {
            self.note_use(cx.now);
        }
        self.note_unanswered(sent);
        let failed = self.failed_on(connection, failure, cx.now);
        self.report_failed(batch, &failed, cx);
        if is_broken(&failed.error) {
            self.give_up(connection, sent, failed.error, cx);
        }
    }

    /// Returns the failure of a request, with what the session knows of the outage.
    pub(super) fn failed_request(&self, failure: Failure, late_after: Instant) -> FailedRequest {
        FailedRequest {
            heard: self.heard,
            away: self.missed.max(self.heard),
            ..FailedRequest::new(failure, late_after)
        }
    }

    /// Returns the failure of a request on this connection. A connection that never answered may break because of its
    /// requests, so they are no bystanders.
    fn failed_on(&self, connection: Attempt, failure: Failure, late_after: Instant) -> FailedRequest {
        let is_unknown = failure.executed == Executed::Unknown && !is_refusal(&failure.error);
        FailedRequest {
            bystander: is_unknown && self.is_proven(connection),
            ..self.failed_request(failure, late_after)
        }
    }

    /// Reports the requests of a batch that still wait for an answer, and its probes.
    pub(super) fn report_failed(
        &mut self,
        batch: InFlight,
        failed: &FailedRequest,
        cx: &mut SessionContext<'_>,
    ) {
        let late_after = batch.late_after.max(cx.now);
        let before = cx.effects.len();
        for PendingRequest { tag, name, .. } in batch.requests.into_iter().filter(|request| !request.over) {
            let failed = FailedRequest {
                late_after,
                ..failed.clone()
            };
            cx.effects.push(SessionEffect::failed(name, tag, failed));
        }
        match cx.effects.len() - before {
            0 => {}
            told if failed.bystander => cx.event(SessionEvent::Bystanders(told)),
            told if failed.may_be_executed() => cx.event(SessionEvent::TimedOut(told)),
            _ => {}
        }
        let probes = batch.probes.into_iter();
        cx.effects
            .extend(probes.map(|probe| SessionEffect::Probed(probe, Err(failed.error.clone()))));
    }

    /// Records that the server answered on this connection.
    pub(super) fn note_answer(&mut self, now: Instant, connection: Attempt) {
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

    /// Records a reading of a remote server's clock. A local store answers before a caller gives up, so its requests
    /// need no bound.
    pub(super) fn note_server_time(&mut self, time: u64, asked: Instant, heard: Instant) {
        if !self.options.remote {
            return;
        }
        let reading = ServerClock::read(time, asked, heard);
        self.clock = Some(match self.clock {
            Some(old) if self.plant.is(Flaw::NotAfterFromOldReading) => old,
            Some(old) => old.younger(reading),
            None => reading,
        });
    }
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Refused(_))
}
