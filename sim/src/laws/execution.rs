//! Laws of execution at the server.

use tenure::protocol::message::{Batch, ClaimId, ClaimReply, GrantNumber, Push, Reply, Request, Verb};

use crate::laws::ownership::{claim_of, ends_lease};
use crate::violation::Violation;
use crate::world::World;
use crate::world::records::KeyRecords;

impl World {
    /// Checks the effects of a batch: only owners change records, each number is granted once, grants go to
    /// live waiters, and their nodes still options them.
    pub(crate) fn watch_execution(
        &mut self,
        batch: &Batch,
        replies: &[Reply],
        before: &[KeyRecords],
        pushes: &[Push],
    ) {
        let us = self.server_us();
        let now = us / 1000;
        for ((request, reply), before) in batch.requests.iter().zip(replies).zip(before) {
            let key = self.key_index(&request.name);
            let after = self.key_records(&request.name);
            self.watch_owner(key, request, before.record.as_ref(), after.record.as_ref());
            self.watch_shares(key, request, before, &after);
            let is_alone = batch
                .requests
                .iter()
                .filter(|other| other.name == request.name)
                .count()
                == 1;
            if is_alone && matches!(request.verb, Verb::Assert { .. }) {
                self.watch_assertion_of_known(key, request, before, &after);
            }
            self.watch_downgrade(key, request, reply, before);
            self.watch_latch(key, request, before.latch.as_ref(), after.latch.as_ref());
            self.watch_election(key, request, reply);
            self.watch_tick(key, request, reply, !before.is_free() || !after.is_free());
            self.watch_left_free(key, request, before.record.as_ref(), after.record.as_ref());
            // A copy was executed; the original may be refused. A yield or pass of a revoked lease does nothing.
            let is_refused = matches!(
                reply,
                Reply::Refused(_) | Reply::Late | Reply::Claim(ClaimReply::Revoked)
            );
            let is_done = !is_refused && !self.memory.is_copy;
            let has_lease = after.grants().any(|(claim_id, _)| claim_id == request.claim_id);
            if matches!(reply, Reply::Claim(ClaimReply::Gone | ClaimReply::Revoked)) && !has_lease {
                self.memory.told_gone.insert(request.claim_id);
            }
            if ends_lease(request.verb) && is_done {
                let ended = claim_of(request);
                self.memory.ended.insert(ended);
                self.memory.ended_at.insert((self.at, ended));
                let ender = match request.verb {
                    Verb::Pass { to, .. } => to.node,
                    _ => request.claim_id.node,
                };
                if ender != ended.node {
                    self.memory.ended_by_another.insert(ended);
                }
            }
            if !before.is_free() || !after.is_free() {
                self.memory.free_since[key] = None;
            }
            let to = match request.verb {
                Verb::Yield { to } | Verb::Pass { to, .. } => to,
                _ => request.claim_id,
            };
            for (claim_id, number) in after.grants() {
                if before.grants().all(|earlier| earlier != (claim_id, number)) {
                    self.inherit_exemption((request.claim_id, before), (claim_id == to).then_some(number));
                    self.watch_new_owner(key, (claim_id, number), to, pushes);
                    let is_asserted = matches!(request.verb, Verb::Restore { .. })
                        || [Verb::Renew { number: Some(number) }, Verb::Assert { number }]
                            .contains(&request.verb);
                    if is_asserted {
                        self.watch_assertion(key, claim_id);
                    } else {
                        self.watch_queue_order(key, (claim_id, request), before, &after);
                    }
                }
            }
            let is_queued = matches!(
                reply,
                Reply::Claim(ClaimReply::Queued(..) | ClaimReply::Recovering(_))
            );
            if is_queued || reply.number().is_some() {
                self.memory.last_heard.insert(to, (now, request.term));
                // A repeated pass creates nothing.
                if before.grants().all(|(owner, _)| owner != to) {
                    self.watch_forgotten_claim(key, request, to);
                }
            }
        }
    }

    /// Checks that an assertion leaves a record that is there: its owner may have extended the lease since it sent the assertion.
    fn watch_assertion_of_known(
        &mut self,
        key: usize,
        request: &Request,
        before: &KeyRecords,
        after: &KeyRecords,
    ) {
        if let (Some(before), Some(after)) = (&before.record, &after.record)
            && before.owner == after.owner
            && before.expires != after.expires
        {
            let text = format!("{request:?} made {after:?} of {before:?}");
            self.report(Violation::AssertionChangedEnd, Some(key), || text);
        }
    }

    /// Exempts the grant of a lease that is passed on, if the lease was exempt before. A holder whose record a stranger took
    /// may assert its lease at a server that came back empty, and then pass it on.
    fn inherit_exemption(&mut self, (from, before): (ClaimId, &KeyRecords), passed: Option<GrantNumber>) {
        let mut grants = before.grants();
        let is_exempt = grants.any(|(claim_id, number)| claim_id == from && self.is_exempt_grant(number));
        self.memory.exempt_grants.extend(passed.filter(|_| is_exempt));
    }

    /// Checks that a number is granted once, to a live waiter that is told.
    pub(crate) fn watch_new_owner(
        &mut self,
        key: usize,
        (claim_id, number): (ClaimId, GrantNumber),
        to: ClaimId,
        pushes: &[Push],
    ) {
        let now = self.server_us() / 1000;
        self.memory.highest = self.memory.highest.max(number);
        let earlier = self.memory.granted.insert(claim_id, number);
        // A server that lost the grant may grant the claim again. So may one whose record a stranger deleted: an earlier
        // batch of the node, still on its way, asserts the lease before the grant and passes it on once more.
        let is_lost = self.is_after_loss() || self.is_quorum();
        if earlier.is_some_and(|earlier| earlier != number && !self.is_exempt_grant(earlier)) && !is_lost {
            self.report(Violation::ClaimNumberReused, Some(key), || {
                format!("claim {claim_id} is granted again")
            });
        }
        if claim_id == to {
            return;
        }
        let heard = self.memory.last_heard.get(&claim_id).copied();
        let is_stale = heard.is_none_or(|(at, term)| now.saturating_sub(at) > term.stale_ms());
        if is_stale && !is_lost {
            self.report(Violation::DeadWaiterGranted, Some(key), || {
                format!("{claim_id} was last heard at {heard:?}")
            });
        }
        let is_told = |push: &Push| matches!(push, Push::Granted(grant) if grant.claim_id == claim_id && grant.number == number);
        if !pushes.iter().any(is_told) {
            self.report(Violation::WrongAnswer, Some(key), || {
                format!("{claim_id} is not told of its grant")
            });
        }
    }

    /// Checks that no claim is executed after its node forgot it.
    pub(crate) fn watch_forgotten_claim(&mut self, key: usize, request: &Request, to: ClaimId) {
        let Some(&(slot, life)) = self.slots.get(&to.node) else {
            return;
        };
        // A pass without an answer is repeated at the successor of a master, and the lease may be given away there before the
        // former master, whose writes are lost, executes the first try.
        let is_of_former = self.profile.failover_lag.is_some() && self.at != self.master;
        let is_repeated = is_of_former && matches!(request.verb, Verb::Pass { .. });
        if request.verb.creates()
            && !is_repeated
            && self.is_alive(slot, life)
            && !self.memory.stepped_back
            && !self.memory.is_copy
            && !self.nodes[slot].shard.knows_claim(&request.name, to)
        {
            self.report(Violation::OrphanRecord, Some(key), || {
                format!("{to} was executed after its node had forgotten it")
            });
        }
    }

    /// Notes a lease that is asserted after it was left.
    fn watch_assertion(&mut self, key: usize, claim_id: ClaimId) {
        // A leave ends the lease at one master of a quorum. A master that executes neither the leave nor its
        // repeat keeps the record until it ends by itself.
        let has_ended = match self.is_quorum() {
            true => self.memory.ended_at.contains(&(self.at, claim_id)),
            false => self.memory.ended.contains(&claim_id),
        };
        // The node does not know of a copy, which is refused after its not-after. A clock that goes back executes what its
        // node takes for too late. And the node of a transfer is not told when another node adopts or releases it.
        let is_unknown = self.memory.is_copy || self.memory.ended_by_another.contains(&claim_id);
        if has_ended && !is_unknown && !self.memory.stepped_back {
            self.memory.asserted_after_end.insert((self.at, key, claim_id));
        }
        if self.key_records(&self.keys[key]).waiters.contains(&claim_id) {
            self.report(Violation::OwnerQueued, Some(key), || {
                format!("{claim_id} asserted its lease, and still waits")
            });
        }
    }
}
