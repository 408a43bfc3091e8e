//! What the ledger shows of its keys to an operator. Looking changes nothing: no key is settled or swept.

use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::record::{KeyRecord, Record, RecordOwner, SharedLease, Watcher, is_past};
use crate::protocol::message::{Mode, Name};
use crate::protocol::view::{
    HolderView, JobAnswer, JobQuery, JobView, KeyView, MAX_LISTED, PAGE, Position, RecordView, WaiterView,
};

/// Returns a page of the names whose keys begin with a prefix, in their order, and where the next page begins.
pub(crate) fn page_of<'a>(
    names: impl Iterator<Item = &'a Name>,
    prefix: &[u8],
    from: Option<&Position>,
) -> (Vec<Name>, Option<Position>) {
    let is_next = |name: &&Name| !matches!(from, Some(Position::After(last)) if *name <= last);
    let names = names.filter(|name| name.key.as_bytes().starts_with(prefix));
    let mut names: Vec<Name> = names.filter(is_next).cloned().collect();
    names.sort();
    let is_last = names.len() <= PAGE;
    names.truncate(PAGE);
    let next = names.last().filter(|_| !is_last).cloned().map(Position::After);
    (names, next)
}

impl Ledger {
    /// Returns every name with state, in no order.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.states.keys()
    }

    /// Returns what is kept of the jobs that are asked for, at `now_us` and at this date.
    pub fn view_jobs(&self, query: JobQuery, now_us: u64, date_ms: u64) -> JobAnswer {
        let (names, next) = match query {
            JobQuery::One(key) => (vec![Name::job(key)], None),
            JobQuery::Page(prefix, from) => page_of(self.jobs.keys(), &prefix, from.as_ref()),
        };
        let view = |name: &Name| {
            let owner = self.record(name, now_us).and_then(Record::number);
            Some(JobView {
                key: name.key.clone(),
                record: self.jobs.get(name)?.clone(),
                owners: owner.into_iter().collect(),
                now_ms: date_ms,
                now_us,
            })
        };
        JobAnswer {
            jobs: names.iter().filter_map(view).collect(),
            next,
        }
    }

    /// Returns what is kept of a name at `now_us`, or `None` if it has neither a record nor a waiter.
    pub fn view(&self, name: &Name, now_us: u64) -> Option<KeyView> {
        let now = now_us / 1000;
        let state = self.states.get(name)?;
        let left_ms = |expires: u64| expires.saturating_sub(now);
        let record = state
            .record
            .as_ref()
            .filter(|record| !is_past(record.expires, now));
        let latch = state.latch.as_ref().filter(|latch| now <= latch.expires);
        let (record, ends) = match (record, latch) {
            (Some(record), _) => (owned(record, now), record.expires),
            (None, Some(latch)) => (RecordView::Latch { left: latch.left }, Some(latch.expires)),
            (None, None) => shared(state, now),
        };
        let is_latch = matches!(record, RecordView::Latch { .. });
        let live = |watcher: &&Watcher| is_latch && now <= watcher.expires;
        let mut watchers: Vec<_> = state.watchers.iter().filter(live).collect();
        watchers.sort_by_key(|watcher| (watcher.expires, watcher.node));
        let watchers = watchers.into_iter().map(|watcher| WaiterView {
            node: watcher.node,
            claim: None,
            mode: Mode::Exclusive,
            is_dead: false,
        });
        let waiters = state.queue.iter().map(|entry| WaiterView {
            node: entry.claim_id.node,
            claim: Some(entry.claim_id.claim),
            mode: entry.mode,
            is_dead: entry.dies < now,
        });
        let waiters = waiters.chain(watchers);
        let waiting = waiters.clone().count() as u64;
        let is_known = record != RecordView::Free || waiting > 0;
        is_known.then(|| KeyView {
            name: name.clone(),
            record,
            left_ms: ends.map(left_ms),
            waiting,
            waiters: waiters.take(MAX_LISTED).collect(),
        })
    }
}

fn owned(record: &Record, now: u64) -> RecordView {
    let is_revoked = matches!(
        record.owner,
        RecordOwner::Revoked(..) | RecordOwner::RevokedForeign
    );
    match record.owner {
        RecordOwner::Claim(claim_id, number) | RecordOwner::Revoked(claim_id, number) => {
            RecordView::Owned(HolderView {
                node: claim_id.node,
                claim: claim_id.claim,
                mode: Mode::Exclusive,
                number: Some(number),
                left_ms: record.expires.map(|expires| expires.saturating_sub(now)),
                is_revoked,
                may_keep: record.may_keep,
            })
        }
        RecordOwner::Foreign | RecordOwner::RevokedForeign | RecordOwner::WrongType => RecordView::Foreign {
            digest: None,
            is_revoked,
        },
    }
}

/// Returns the shares that are not over, and when the last of them ends.
fn shared(state: &KeyRecord, now: u64) -> (RecordView, Option<u64>) {
    let live = state.shares.iter().filter(|share| now <= share.expires);
    let mut live: Vec<&SharedLease> = live.collect();
    live.sort_by_key(|share| (share.expires, share.claim_id.to_string()));
    let Some(last) = live.last() else {
        return (RecordView::Free, None);
    };
    let holders = live.iter().take(MAX_LISTED).map(|share| HolderView {
        node: share.claim_id.node,
        claim: share.claim_id.claim,
        mode: share.mode,
        number: (!share.is_revoked).then_some(share.number),
        left_ms: Some(share.expires.saturating_sub(now)),
        is_revoked: share.is_revoked,
        may_keep: false,
    });
    let record = RecordView::Shared {
        count: live.len() as u64,
        in_use: live.iter().map(|share| share.mode.weight()).sum(),
        holders: holders.collect(),
    };
    (record, Some(last.expires))
}
