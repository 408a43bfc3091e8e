//! The server executes batches with the ledger as it ships.

use tenure::error::StoreRefusal;
use tenure::protocol::message::{Batch, BatchReply, ClaimReply, Push, Reply, Rule, Verb};

use crate::coverage::Case;
use crate::world::World;
use crate::world::signal::Signal;

impl World {
    /// Returns why the server refuses one request of a batch.
    pub(crate) fn refusal_of_one(&mut self) -> Option<StoreRefusal> {
        if self.server.read_only > self.now {
            self.cover(Case::ReadOnly);
            return Some(StoreRefusal::ReadOnly);
        }
        if self.server.refuses <= self.now || self.rng.bool() {
            return None;
        }
        self.cover(Case::ServerRefused);
        Some(if self.rng.bool() {
            StoreRefusal::OutOfMemory
        } else {
            StoreRefusal::NoPermission
        })
    }

    /// Executes a batch with the ledger, and raises the signal for the laws.
    pub(crate) fn execute(&mut self, effective: &mut Batch) -> BatchReply {
        let now_us = self.server_us();
        let mut refused = Vec::new();
        for (at, request) in effective.requests.iter_mut().enumerate() {
            if let (false, Verb::Claim { wait }) = (self.profile.rules.queues, &mut request.verb) {
                *wait = false;
            }
            if let Some(refusal) = self.refusal_of_one() {
                refused.push((at, refusal));
            }
        }
        // The first write decides whether a script may write.
        if let (Rule::AllOrNone, Some((_, refusal))) = (effective.rule, refused.first().cloned()) {
            refused = (0..effective.requests.len())
                .map(|at| (at, refusal.clone()))
                .collect();
        }
        for (at, _) in refused.iter().rev() {
            effective.requests.remove(*at);
        }
        self.memory.is_unconfirmed = effective.is_unconfirmed;
        let before = self.records_of_batch(effective);
        let knows_number = effective.highest > self.server.ledger.last_number();
        let recovers = self.server.ledger.recovering(now_us);
        let mut pushes = std::mem::take(&mut self.server.pushes);
        let mut answer = self.server.ledger.apply(now_us, effective, &mut pushes);
        let is_grant = |push: &Push| matches!(push, Push::Granted(_));
        let grants =
            answer.replies.iter().any(|reply| reply.number().is_some()) || pushes.iter().any(is_grant);
        let recovers_longer = self.server.ledger.recovering(now_us) > recovers;
        self.note_evidence(knows_number || recovers_longer, grants);
        self.cover_branches();
        for (request, reply) in effective.requests.iter().zip(&answer.replies) {
            self.log.mix(match (reply.number(), reply) {
                (Some(number), _) => number.0,
                (None, Reply::Claim(ClaimReply::Queued(..))) => 1,
                (None, Reply::Claim(ClaimReply::Busy(_))) => 2,
                (None, _) => 3,
            });
            let key = self.key_index(&request.name);
            let slot = self.slots.get(&request.claim_id.node).map(|(slot, _)| *slot);
            self.note(None, Some(key), || {
                format!(
                    "server: {:?} {} of node {slot:?} -> {reply:?}",
                    request.verb, request.claim_id.claim
                )
            });
        }
        self.raise(Signal::Executed {
            batch: effective,
            replies: &answer.replies,
            before: &before,
            pushes: &pushes,
        });
        for push in pushes.drain(..) {
            self.push(push);
        }
        self.server.pushes = pushes;
        for request in &effective.requests {
            let key = self.key_index(&request.name);
            self.raise(Signal::KeyChanged { key });
        }
        for (at, refusal) in refused {
            answer.replies.insert(at, Reply::Refused(refusal));
        }
        answer
    }
}
