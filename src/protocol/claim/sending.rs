//! The requests of a claim.

use crate::error::StoreError;
use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::claim::{Claim, Origin, Phase, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{ClaimId, Kind, Payload, Request, Verb, WhenBehind};
use crate::protocol::step::{Class, Outgoing, Tag};

impl Claim {
    /// Sends a request. An answer to an earlier request is ignored from now on. `is_asked_for`: a caller asked for the renewal
    /// of a fixed lease. `data`: the value of a candidate.
    pub(crate) fn ask(
        &mut self,
        cx: &mut StepContext<'_>,
        kind: RequestKind,
        is_asked_for: bool,
        data: Option<Payload>,
    ) {
        // A fixed lease is lengthened for its caller only.
        let asserts = self.terms.is_fixed && self.held().is_some() && !is_asked_for;
        // The outcome of a pass is found out by a repeat, because a pass is executed only once.
        let kind = match kind {
            RequestKind::Renew if self.pass().is_some() => RequestKind::Pass,
            RequestKind::Renew if asserts => RequestKind::Assert,
            kind => kind,
        };
        // The lease of a job is never asserted.
        if kind == RequestKind::Leave && self.is_renewing() && cx.name.kind != Kind::Job {
            self.late.note_overtakable(self.exchange.seq());
        }
        let seq = self.exchange.begin(kind);
        let (verb, class) = self.verb_and_class(kind);
        let mut term = self.terms.times;
        if let (RequestKind::Assert, Some(held)) = (kind, self.held()) {
            term.lease_ms = (held.deadline().since(cx.now).as_millis() as u64 + 1).min(term.lease_ms);
        }
        let request = Request {
            mark: self.terms.tick.map(|tick| tick.mark),
            when_behind: self.terms.tick.map_or(WhenBehind::Skip, |tick| tick.turn),
            may_keep: self.take_mark(kind),
            name: cx.name.clone(),
            claim_id: self.request_claim_id(kind),
            term,
            mode: self.terms.mode,
            verb,
            data: data.or_else(|| self.text_of_ending(kind)),
        };
        let tag = Tag {
            claim: self.claim_id.claim,
            seq,
            master: 0,
        };
        if cx.shard.plant.is(Flaw::UnansweredRefresh)
            && let Phase::Queued { t0, .. } = &mut self.phase
        {
            *t0 = cx.now;
        }
        cx.send(Outgoing {
            tag,
            request,
            lease: self.lease(),
            class,
            called: cx.now,
        });
    }

    /// Returns whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.exchange.is_idle()
    }

    /// Ends the request in flight if it has this number.
    pub(crate) fn take_in_flight(&mut self, seq: u32) -> Option<RequestKind> {
        self.exchange.take(seq)
    }

    /// Returns the number of requests so far.
    pub(crate) fn seq(&self) -> u32 {
        self.exchange.seq()
    }

    /// Returns why the first of the unanswered requests has no answer.
    pub(crate) fn unanswered(&self) -> Option<&StoreError> {
        self.exchange.unanswered()
    }

    /// Returns the verb and the class of a request of this kind.
    #[inline]
    fn verb_and_class(&self, kind: RequestKind) -> (Verb, Class) {
        let to = self.claim_id;
        match kind {
            RequestKind::Claim { wait } => (Verb::Claim { wait }, Class::Claim),
            RequestKind::Renew | RequestKind::Assert => {
                let number = self.held().map(HeldLease::number);
                let owns = number.is_some() || matches!(self.phase, Phase::Confirming { .. });
                let class = if owns {
                    Class::OwnerRenewal
                } else {
                    Class::WaiterRenewal
                };
                match number {
                    Some(number) if kind == RequestKind::Assert => (Verb::Assert { number }, class),
                    _ => (Verb::Renew { number }, class),
                }
            }
            RequestKind::Leave => {
                let finish = self.ending().map(|ending| Verb::Finish {
                    result: ending.result,
                });
                (finish.unwrap_or(Verb::Leave), Class::Leave)
            }
            RequestKind::Yield => (Verb::Yield { to }, Class::Leave),
            RequestKind::Pass => {
                let adopts = self.pass().is_some_and(|pass| pass.local.is_none());
                (Verb::Pass { to, adopts }, Class::Leave)
            }
        }
    }

    /// Returns the text of the error with which the run of the tick ended, for the request that tells it.
    fn text_of_ending(&self, kind: RequestKind) -> Option<Payload> {
        let ending = self.ending().filter(|_| kind == RequestKind::Leave)?;
        (!ending.text.is_empty()).then(|| Payload(ending.text.as_bytes().into()))
    }

    /// Returns the claim that the request is about.
    #[inline]
    fn request_claim_id(&self, kind: RequestKind) -> ClaimId {
        match &self.origin {
            Some(Origin::Yield(yielded)) if kind == RequestKind::Yield => yielded.from,
            Some(Origin::Pass(pass)) if kind == RequestKind::Pass => pass.from,
            _ => self.claim_id,
        }
    }
}
