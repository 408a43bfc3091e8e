//! What an operator does about a lease of another holder: ask for it, revoke it, or hand it over at once.
//!
//! A revoked lease is not free. Its claim can no longer be renewed, passed on or written under, and the record keeps its
//! end. So the next holder comes only after the old one was told and left, or after its lease has ended.

use std::sync::Arc;

use crate::key::Key;
use crate::protocol::message::{
    Asking, Batch, ClaimId, ClaimNumber, GrantNumber, Kind, LeaseTimes, Mode, Name, NodeId, Request, Rule,
    Verb,
};

/// One step of a steal.
#[derive(Debug, Clone)]
pub struct StealRequest {
    /// The name of the lease.
    pub name: Name,
    /// The lease.
    pub target: StealTarget,
    /// What is done.
    pub act: StealAct,
    /// The holder's node gets a push. A node without a presence gets none.
    pub tells: bool,
}

/// The lease that is stolen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StealTarget {
    /// A lease under this grant.
    Grant(GrantNumber, Mode),
    /// A share that is revoked already, and has no number any more.
    RevokedShare(NodeId, ClaimNumber, Mode),
    /// The record of a foreign client, by 12 hexadecimal digits of the SHA-1 of its value.
    Foreign(Arc<str>),
}

/// What is done about the lease.
#[derive(Debug, Clone)]
pub enum StealAct {
    /// Asks the holder to give it back.
    Ask(Arc<Asking>),
    /// Revokes it.
    Revoke,
    /// Revokes it as the first half of a hand-over. The [leave](StealRequest::leave) that follows gives it to the next waiter,
    /// although the holder may believe that it has it. Refused while the server recovers.
    HandOver,
}

impl StealAct {
    /// The word for an act that takes nothing.
    pub(crate) const ASKED: &str = "asked";
}

/// The reply of a store to a step of a steal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StealReply {
    /// It was done. The claim of the lease; `None` for a foreign record.
    Done(Option<ClaimId>),
    /// Nothing was done: the lease is over, or is another one.
    Changed,
    /// Nothing was done: the record has no end, so a revoked lease would exclude others for ever.
    Endless,
    /// Nothing was done: the server recovers for this many milliseconds.
    Recovering(u64),
}

/// What an operator did by a steal.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for act in tenure::block_on(locks.inspect().audit())? {
///     println!("{:?}: {} {} {}, because of {}", act.time(), act.by, act.what, act.key, act.why);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AuditEntry {
    /// When it was done, by the server's clock, in milliseconds since 1970.
    pub time_ms: u64,
    /// The operator, as the steal was told.
    pub by: String,
    /// What was done: `asked`, `revoked` or `handed_over`; about a job `paused`, `resumed`, `resumed_to_catch_up`,
    /// `triggered` or `cancelled`.
    pub what: String,
    /// The kind of the key. `None`: a kind that this version does not know.
    pub kind: Option<Kind>,
    /// The key.
    pub key: Key,
    /// The number of the grant, or `<node>:<claim>` of a share that was revoked before, or the digits that identify the value of a
    /// foreign client. For an act about a tick: its nominal time, in milliseconds since 1970.
    pub number: String,
    /// The reason.
    pub why: String,
}

/// The most entries of the audit list.
pub(crate) const MAX_AUDIT: usize = 1_000;

impl StealTarget {
    /// Returns how the lease is shared.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            StealTarget::Grant(_, mode) | StealTarget::RevokedShare(_, _, mode) => *mode,
            StealTarget::Foreign(_) => Mode::Exclusive,
        }
    }

    /// Returns the text that identifies the lease to operators.
    pub(crate) fn number(&self) -> String {
        match self {
            StealTarget::Grant(number, _) => number.to_string(),
            StealTarget::RevokedShare(node, claim, _) => format!("{node}:{claim}"),
            StealTarget::Foreign(digest) => digest.to_string(),
        }
    }
}

impl StealRequest {
    /// Returns the entry for the audit list.
    pub(crate) fn audit(&self, time_ms: u64, asking: &Asking) -> AuditEntry {
        let what = match self.act {
            StealAct::Ask(_) => StealAct::ASKED,
            StealAct::Revoke => "revoked",
            StealAct::HandOver => "handed_over",
        };
        AuditEntry {
            time_ms,
            by: asking.by.clone(),
            what: what.to_owned(),
            kind: Some(self.name.kind),
            key: self.name.key.clone(),
            number: self.target.number(),
            why: asking.why.clone(),
        }
    }

    /// Returns the request that settles the key after a hand-over: the leave of the revoked claim, or of none.
    pub fn leave(&self, claim: Option<ClaimId>) -> Batch {
        let none = ClaimId {
            node: NodeId::numbered(0),
            claim: ClaimNumber(0),
            nonce: 0,
        };
        let term = LeaseTimes {
            lease_ms: 1,
            margin_ms: 0,
        };
        Batch {
            highest: GrantNumber::default(),
            not_after: u64::MAX,
            poll_gap_ms: 0,
            is_unconfirmed: false,
            recovery_ms: 1,
            rule: Rule::Each,
            requests: vec![Request {
                name: self.name.clone(),
                claim_id: claim.unwrap_or(none),
                term,
                mode: self.target.mode(),
                mark: None,
                when_behind: Default::default(),
                may_keep: false,
                verb: Verb::Leave,
                data: None,
            }],
        }
    }
}
