//! Requests that are executed with the record of their key alone, because other names of the key are on another server.

use crate::error::StoreRefusal;
use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::record::{Record, RecordOwner};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{Batch, ClaimReply, GrantNumber, LeaveReply, Reply, Request, Rule, Verb};

impl Ledger {
    /// Executes a request that [needs its record only](Request::needs_record_only).
    ///
    /// An owner's lease is extended or released. Nothing is created, no key is handed over, and nothing of the clock is
    /// read or written. So the request needs no not-after, and its reply shows no loss of a grant.
    pub fn apply_alone(&mut self, now_us: u64, request: &Request) -> Reply {
        let batch = Batch {
            highest: GrantNumber::default(),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            is_unconfirmed: false,
            recovery_ms: 0,
            rule: Rule::Each,
            requests: Vec::new(),
        };
        let mut unused = Vec::new();
        self.branches.begin_step();
        self.transact(now_us, &batch, request, &mut unused, |transaction| {
            transaction.execute_alone(request)
        })
    }
}

impl Transaction<'_> {
    fn execute_alone(&mut self, request: &Request) -> Reply {
        let claim_id = request.claim_id;
        if self.plant.is(Flaw::AloneCreates)
            && let Verb::Renew { number: Some(number) } = request.verb
            && self.is_free()
        {
            self.state.record = Some(Record {
                owner: RecordOwner::Claim(claim_id, number),
                expires: None,
                may_keep: false,
            });
            self.extend(claim_id, request.term);
        }
        if self.is_of_wrong_type() {
            return Reply::Refused(StoreRefusal::WrongType);
        }
        let owned = self.owned_by(claim_id);
        match (request.verb, owned) {
            (Verb::Leave, Some(_)) => {
                self.state.end(claim_id);
                LeaveReply::Left.into()
            }
            (Verb::Leave, None) if self.is_revoked(claim_id) => {
                self.state.end(claim_id);
                LeaveReply::Left.into()
            }
            (Verb::Leave, None) => LeaveReply::NotThere.into(),
            (Verb::Renew { .. }, Some(number)) => {
                self.extend(claim_id, request.term);
                ClaimReply::granted(number).into()
            }
            (_, Some(number)) => ClaimReply::granted(number).into(),
            (_, None) if self.is_revoked(claim_id) => ClaimReply::Revoked.into(),
            (_, None) => ClaimReply::Gone.into(),
        }
    }
}
