//! Laws of ownership: only the owner changes its record.

use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::message::{Call, ClaimId, ClaimReply, Reply, Request, Verb};

use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::PERMITS;
use crate::world::records::KeyRecords;

/// Returns the claim whose lease a request is about.
pub(crate) fn claim_of(request: &Request) -> ClaimId {
    match request.verb {
        Verb::Call(call) => call.claim_id().unwrap_or(request.claim_id),
        _ => request.claim_id,
    }
}

/// Returns whether a request ends the lease that it is about.
pub(crate) fn ends_lease(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Leave
            | Verb::Finish { .. }
            | Verb::Yield { .. }
            | Verb::Pass { .. }
            | Verb::Call(Call::Release { .. })
    )
}

/// Returns whether a request gives the lease up that it is about. Nothing else ends a revoked lease early.
fn leaves(verb: Verb) -> bool {
    ends_lease(verb) && !matches!(verb, Verb::Yield { .. } | Verb::Pass { .. })
}

impl World {
    /// Checks that shares end only by their holders, and last for one lease.
    pub(crate) fn watch_shares(
        &mut self,
        key: usize,
        request: &Request,
        before: &KeyRecords,
        after: &KeyRecords,
    ) {
        let is_extension = matches!(request.verb, Verb::Call(Call::Extend { .. }));
        let full = self.server_us() / 1000 + request.term.hold_ms();
        for share in &before.shares {
            // A repeated pass extends the lease of the new owner.
            let passed = matches!(request.verb, Verb::Pass { to, .. } if to == share.claim_id);
            let is_its = share.claim_id == claim_of(request) || passed;
            let full = if is_extension {
                full.max(share.expires)
            } else {
                full
            };
            let fair = match after.shares.iter().find(|after| after.claim_id == share.claim_id) {
                Some(after) => *after == *share || is_its && after.expires == full && !share.is_revoked,
                None if share.is_revoked => is_its && leaves(request.verb),
                None => is_its && ends_lease(request.verb),
            };
            if !fair {
                self.report(Violation::ChangedByNonOwner, Some(key), || {
                    format!("{:?} of {} ended {share:?}", request.verb, request.claim_id)
                });
            }
        }
        if after.in_use() > PERMITS {
            self.report(Violation::TooManyPermits, Some(key), || {
                format!("the server has {:?}", after.shares)
            });
        }
        if after.record.is_some() && !after.shares.is_empty() {
            self.report(Violation::TwoHolders, Some(key), || {
                format!("the server has {after:?}")
            });
        }
    }

    /// Checks that the owner of a write lease can always continue as a reader.
    pub(crate) fn watch_downgrade(
        &mut self,
        key: usize,
        request: &Request,
        reply: &Reply,
        before: &KeyRecords,
    ) {
        let is_owner =
            before.record.is_some() && before.grants().any(|(claim_id, _)| claim_id == request.claim_id);
        let is_done = matches!(
            reply,
            Reply::Claim(ClaimReply::Granted(_) | ClaimReply::Recovering(_)) | Reply::Late
        );
        if matches!(request.verb, Verb::Pass { .. }) && is_owner && !is_done {
            self.report(Violation::WriterBetween, Some(key), || {
                format!("{} was the owner and was told {reply:?}", request.claim_id)
            });
        }
    }

    /// Checks that a record changes only by its owner.
    pub(crate) fn watch_owner(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let Some(before) = before else { return };
        let fair = match before.owner {
            RecordOwner::Claim(claim_id, _) if after.is_some_and(|after| after.owner == before.owner) => {
                let (old, new) = (before.expires, after.and_then(|after| after.expires));
                // The owner may renew to the full lease, even if that is earlier because the clock went back.
                let full = self.server_us() / 1000 + request.term.hold_ms();
                let is_extension = matches!(request.verb, Verb::Call(Call::Extend { .. }));
                let full = if is_extension {
                    Some(full).max(old)
                } else {
                    Some(full)
                };
                let passed = matches!(request.verb, Verb::Pass { to, .. } if to == claim_id);
                old == new || (claim_id == claim_of(request) || passed) && new == full
            }
            RecordOwner::Claim(claim_id, _) => claim_id == claim_of(request) && ends_lease(request.verb),
            RecordOwner::Revoked(claim_id, _) => {
                after == Some(before) || claim_id == claim_of(request) && leaves(request.verb)
            }
            _ => after == Some(before),
        };
        if !fair {
            self.report(Violation::ChangedByNonOwner, Some(key), || {
                format!(
                    "{:?} of {} made {after:?} of {before:?}",
                    request.verb, request.claim_id
                )
            });
        }
    }
}
