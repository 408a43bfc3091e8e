//! The server's records of one key.

use tenure::protocol::ledger::{LatchRecord, Record, RecordOwner, SharedLease};
use tenure::protocol::message::{ClaimId, GrantNumber, Mode};

/// The server's records of one key.
#[derive(Debug)]
pub(crate) struct KeyRecords {
    pub(crate) record: Option<Record>,
    pub(crate) shares: Vec<SharedLease>,
    pub(crate) waiters: Vec<ClaimId>,
    pub(crate) latch: Option<LatchRecord>,
}

impl KeyRecords {
    /// Returns whether the key has no owner.
    pub(crate) fn is_free(&self) -> bool {
        self.record.is_none() && self.shares.is_empty()
    }

    /// Returns the number of permits in use.
    pub(crate) fn in_use(&self) -> u32 {
        self.shares.iter().map(|share| weight(share.mode)).sum()
    }

    /// Returns the owners and their grants.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (ClaimId, GrantNumber)> {
        let alone = self.record.iter().filter_map(|record| match record.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            _ => None,
        });
        let shares = self.shares.iter().filter(|share| !share.is_revoked);
        alone.chain(shares.map(|share| (share.claim_id, share.number)))
    }

    /// Returns the numbers of the owners' grants, also of revoked ones.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = GrantNumber> {
        let alone = self.record.iter().filter_map(|record| match record.owner {
            RecordOwner::Claim(_, number) | RecordOwner::Revoked(_, number) => Some(number),
            _ => None,
        });
        alone.chain(self.shares.iter().map(|share| share.number))
    }
}

/// Returns the number of permits that a mode wants.
pub(crate) fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits(permits) => permits.weight,
        _ => 0,
    }
}
