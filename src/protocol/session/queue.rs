//! The requests that wait to be sent to one server, in sending order.

use std::collections::{HashMap, HashSet, VecDeque};

use foldhash::quality::RandomState;
use strum::EnumCount;

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{Kind, Name, Request, Rule};
use crate::protocol::step::{Class, Outgoing};

/// Most names that are compared one by one; a longer list is hashed.
const MAX_COMPARED_NAMES: usize = 8;

/// The value of `filled` when no class of any kind has requests.
const NO_REQUESTS: [u8; Kind::ALL.len()] = [0; Kind::ALL.len()];

/// Queued requests, sorted by kind, class and name.
///
/// The order of classes is: owners' renewals, calls of running jobs, leaves and yields, waiters' renewals, claims.
/// Requests of one class and name are first in, first out. The names of a class take turns, so a thousand requests
/// for one key do not delay other keys.
///
/// A batch has requests of one kind and at most one request per name. The reason: a store may read all keys before it
/// executes the first request.
///
/// Claims that are granted together travel in a batch of their own. Such groups take turns with other batches, and
/// follow the leaves of their keys.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    kinds: [[ClassQueue; Class::COUNT]; Kind::ALL.len()],
    /// For each kind, one bit per class that has requests; the lowest bit is the most urgent class. The bits make the
    /// checks before and after each batch fast. `push`, `take`, `take_renewals` and `take_all` update them.
    filled: [u8; Kind::ALL.len()],
    /// Groups of claims that are granted together.
    groups: VecDeque<Vec<Outgoing>>,
    /// Set when the last batch was a group.
    was_group: bool,
    /// Planted mistake: requests are sent in the order of their arrival.
    unsorted: bool,
    /// Planted mistake: claims and leaves have exchanged their classes.
    leaves_last: bool,
    /// The kind of the last batch. Kinds whose requests are equally urgent take turns.
    last: usize,
}

/// What a batch may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    /// Most requests in the batch.
    pub(crate) max_requests: usize,
    /// Job requests less urgent than this class wait, unless they fill a batch. `None`: no request waits.
    pub(crate) job_cutoff: Option<Class>,
}

/// The requests of one class.
#[derive(Debug, Default)]
struct ClassQueue {
    /// The first request of each name.
    first: VecDeque<Outgoing>,
    /// The later requests of each name. If `first` has more than [`MAX_COMPARED_NAMES`] names, every one of them has
    /// an entry here, which may be empty.
    behind: HashMap<Name, VecDeque<Outgoing>, RandomState>,
}

impl RequestQueue {
    /// Creates an empty queue with a planted mistake.
    pub(crate) fn with_plant(plant: Plant) -> Self {
        RequestQueue {
            unsorted: plant.is(Flaw::RenewalBehindQueue),
            leaves_last: plant.is(Flaw::ClaimBeforeLeave),
            ..RequestQueue::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == NO_REQUESTS && self.groups.is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, outgoing: &Outgoing) {
        let class = match outgoing.class {
            _ if self.unsorted => Class::OwnerRenewal,
            Class::Leave if self.leaves_last => Class::Claim,
            Class::Claim if self.leaves_last => Class::Leave,
            class => class,
        };
        let kind = outgoing.request.name.kind as usize;
        self.filled[kind] |= 1 << class as usize;
        self.kinds[kind][class as usize].push(outgoing);
    }

    pub(crate) fn push_together(&mut self, claims: Vec<Outgoing>) {
        self.groups.push_back(claims);
    }

    /// Takes the next group if it goes before all other requests.
    fn next_group(&mut self, limits: BatchLimits) -> Option<Vec<Outgoing>> {
        let group = self.groups.front()?;
        let leaves = |outgoing: &Outgoing| {
            let name = &outgoing.request.name;
            self.kinds[name.kind as usize][Class::Leave as usize].contains(name)
        };
        let is_urgent = self
            .filled
            .iter()
            .any(|filled| filled & 1 << Class::OwnerRenewal as usize != 0);
        // Job requests that must wait do not hold back a group.
        let has_others = self.most_urgent(limits).is_some();
        self.was_group = !has_others || !self.was_group && !is_urgent && !group.iter().any(leaves);
        self.was_group.then(|| self.groups.pop_front())?
    }

    /// Returns whether a batch can be sent.
    pub(crate) fn is_ready(&self, limits: BatchLimits) -> bool {
        !self.groups.is_empty() || self.most_urgent(limits).is_some()
    }

    /// Returns whether a request about a job is queued.
    pub(crate) fn has_jobs(&self) -> bool {
        self.filled[Kind::Job as usize] != 0
    }

    /// Moves the next batch into `requests`, which must be empty, and returns its rule. Calls `note` with each
    /// request first.
    #[inline]
    pub(crate) fn take(
        &mut self,
        limits: BatchLimits,
        requests: &mut Vec<Request>,
        mut note: impl FnMut(&Outgoing),
    ) -> Rule {
        if !self.groups.is_empty()
            && let Some(group) = self.next_group(limits)
        {
            group.iter().for_each(note);
            requests.extend(group.into_iter().map(|outgoing| outgoing.request));
            return Rule::AllOrNone;
        }
        let Some(kind) = self.most_urgent(limits) else {
            return Rule::Each;
        };
        self.last = kind;
        let mut filled = self.filled[kind];
        while filled != 0 {
            let class = filled.trailing_zeros();
            let class_queue = &mut self.kinds[kind][class as usize];
            class_queue.take(limits.max_requests, requests, &mut note);
            if class_queue.first.is_empty() {
                self.filled[kind] &= !(1 << class);
            }
            filled &= filled - 1;
        }
        Rule::Each
    }

    /// Removes all renewals. The claims that sent them retry by themselves.
    pub(crate) fn take_renewals(&mut self) -> Vec<Outgoing> {
        let classes = [Class::OwnerRenewal, Class::WaiterRenewal];
        let mut taken = Vec::new();
        for (class_queues, filled) in self.kinds.iter_mut().zip(&mut self.filled) {
            for class in classes {
                taken.extend(std::mem::take(&mut class_queues[class as usize]).into_requests());
                *filled &= !(1 << class as usize);
            }
        }
        taken
    }

    /// Removes all requests for names that the server no longer serves. A group goes as a whole.
    pub(crate) fn take_moved(&mut self, is_moved: impl Fn(&Name) -> bool) -> Vec<Outgoing> {
        let mut taken = Vec::new();
        for (class_queues, filled) in self.kinds.iter_mut().zip(&mut self.filled) {
            for (class, class_queue) in class_queues.iter_mut().enumerate() {
                let all = std::mem::take(class_queue).into_requests();
                let (moved, kept): (Vec<_>, Vec<_>) = all
                    .into_iter()
                    .partition(|outgoing| is_moved(&outgoing.request.name));
                kept.iter().for_each(|outgoing| class_queue.push(outgoing));
                if class_queue.first.is_empty() {
                    *filled &= !(1 << class);
                }
                taken.extend(moved);
            }
        }
        let groups = std::mem::take(&mut self.groups).into_iter();
        let has_moved = |group: &Vec<Outgoing>| group.iter().any(|claim| is_moved(&claim.request.name));
        let (moved, kept): (VecDeque<_>, VecDeque<_>) = groups.partition(has_moved);
        self.groups = kept;
        taken.extend(moved.into_iter().flatten());
        taken
    }

    /// Removes all requests, when the server is down.
    pub(crate) fn take_all(&mut self) -> Vec<Outgoing> {
        self.filled = Default::default();
        let class_queues = self.kinds.iter_mut().flatten().map(std::mem::take);
        let groups = std::mem::take(&mut self.groups).into_iter().flatten();
        class_queues
            .flat_map(ClassQueue::into_requests)
            .chain(groups)
            .collect()
    }

    fn most_urgent(&self, limits: BatchLimits) -> Option<usize> {
        // A fast path: this is called after each batch of a store that answers at once.
        if self.filled == NO_REQUESTS {
            return None;
        }
        let is_held = |kind: usize, class: usize| {
            let waits = limits.job_cutoff.is_some_and(|urgent| class > urgent as usize);
            let ready = || {
                self.kinds[kind]
                    .iter()
                    .map(|class_queue| class_queue.first.len())
                    .sum()
            };
            waits && kind == Kind::Job as usize && limits.max_requests > ready()
        };
        let mut best = None;
        for (kind, filled) in self.filled.iter().enumerate().filter(|(_, filled)| **filled != 0) {
            let class = filled.trailing_zeros() as usize;
            let rank = (class, kind == self.last, kind);
            if best.is_none_or(|best| rank < best) && !is_held(kind, class) {
                best = Some(rank);
            }
        }
        best.map(|(.., kind)| kind)
    }
}

impl ClassQueue {
    /// Returns all requests, in order per name.
    fn into_requests(mut self) -> Vec<Outgoing> {
        let mut all = Vec::with_capacity(self.first.len());
        for outgoing in self.first {
            let rest = self.behind.remove(&outgoing.request.name);
            all.push(outgoing);
            all.extend(rest.into_iter().flatten());
        }
        all
    }

    #[inline]
    fn push(&mut self, outgoing: &Outgoing) {
        let name = &outgoing.request.name;
        if self.contains(name) {
            let behind = self.behind.entry(name.clone()).or_default();
            behind.push_back(outgoing.clone());
        } else {
            self.first.push_back(outgoing.clone());
            self.index_last();
        }
    }

    fn contains(&self, name: &Name) -> bool {
        if self.first.len() > MAX_COMPARED_NAMES {
            self.behind.contains_key(name)
        } else {
            self.first.iter().any(|other| other.request.name == *name)
        }
    }

    /// Indexes the name of the request that was just appended to `first`.
    fn index_last(&mut self) {
        let missing = match self.first.len() {
            ..=MAX_COMPARED_NAMES => 0,
            length if length == MAX_COMPARED_NAMES + 1 => length,
            _ => 1,
        };
        for outgoing in self.first.iter().rev().take(missing) {
            self.behind.entry(outgoing.request.name.clone()).or_default();
        }
    }

    /// Appends the next request of this name, whose first request was just taken.
    fn follow(&mut self, name: &Name) {
        match self.behind.get_mut(name).map(VecDeque::pop_front) {
            Some(Some(next)) => self.first.push_back(next),
            Some(None) => drop(self.behind.remove(name)),
            None => {}
        }
    }

    #[inline]
    fn take(&mut self, max_requests: usize, requests: &mut Vec<Request>, note: &mut impl FnMut(&Outgoing)) {
        // A name can only be in the batch already from another class, so at most this many requests are skipped.
        let others = requests.len();
        let names = requests.iter().map(|other| other.name.clone());
        let hashed = (others > MAX_COMPARED_NAMES).then(|| names.collect::<HashSet<_, RandomState>>());
        let is_named = |requests: &[Request], name: &Name| match &hashed {
            Some(names) => names.contains(name),
            None => requests[..others].iter().any(|other| other.name == *name),
        };
        let mut skipped = Vec::new();
        for _ in 0..self.first.len() {
            if requests.len() == max_requests {
                break;
            }
            let Some(first) = self.first.pop_front() else {
                break;
            };
            if is_named(requests, &first.request.name) {
                skipped.push(first);
                continue;
            }
            note(&first);
            self.follow(&first.request.name);
            requests.push(first.request);
        }
        while let Some(outgoing) = skipped.pop() {
            self.first.push_front(outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{ClaimId, ClaimNumber, LeaseTimes, Mode, NodeId, Verb};
    use crate::protocol::step::Tag;

    fn outgoing(name: Name, claim: u64, class: Class) -> Outgoing {
        let claim_id = ClaimId {
            node: NodeId::numbered(1),
            claim: ClaimNumber(claim),
            nonce: 0,
        };
        Outgoing {
            tag: Tag {
                claim: ClaimNumber(claim),
                seq: 1,
                master: 0,
            },
            request: Request {
                name,
                claim_id,
                term: LeaseTimes {
                    lease_ms: 1000,
                    margin_ms: 250,
                },
                mode: Mode::Exclusive,
                when_behind: Default::default(),
                may_keep: false,
                data: None,
                mark: None,
                verb: Verb::HEARTBEAT,
            },
            lease: Duration::from_secs(1),
            class,
            called: Default::default(),
        }
    }

    fn lock(key: &str) -> Name {
        Name::lock(Key::from(key))
    }

    fn limits(max_requests: usize, job_cutoff: Option<Class>) -> BatchLimits {
        BatchLimits {
            max_requests,
            job_cutoff,
        }
    }

    fn take(queue: &mut RequestQueue, max_requests: usize) -> Vec<u64> {
        let (mut requests, mut claims) = (Vec::new(), Vec::new());
        queue.take(limits(max_requests, None), &mut requests, |outgoing| {
            claims.push(outgoing.tag.claim.0)
        });
        let sent = requests.iter().map(|request| request.claim_id.claim.0);
        assert_eq!(sent.collect::<Vec<_>>(), claims);
        claims
    }

    fn claims(taken: &[Outgoing]) -> Vec<u64> {
        taken.iter().map(|outgoing| outgoing.tag.claim.0).collect()
    }

    #[test]
    fn owners_renewals_are_sent_first() {
        let mut queue = RequestQueue::default();
        for claim in 0..1000 {
            queue.push(&outgoing(lock("hot"), claim, Class::Claim));
        }
        queue.push(&outgoing(lock("a"), 2000, Class::WaiterRenewal));
        queue.push(&outgoing(lock("b"), 2001, Class::Leave));
        queue.push(&outgoing(lock("hot"), 2002, Class::OwnerRenewal));
        assert_eq!(take(&mut queue, 128), [2002, 2001, 2000]);
        assert_eq!(take(&mut queue, 128), [0]);
        assert_eq!(take(&mut queue, 128), [1]);
    }

    #[test]
    fn a_leave_is_sent_before_a_later_claim_and_a_batch_has_a_name_once() {
        let mut queue = RequestQueue::default();
        for (n, key) in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
            .iter()
            .enumerate()
        {
            queue.push(&outgoing(lock(key), n as u64, Class::Leave));
            queue.push(&outgoing(lock(key), 100 + n as u64, Class::Claim));
        }
        queue.push(&outgoing(lock("z"), 200, Class::Claim));
        assert_eq!(take(&mut queue, 128), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 200]);
        assert_eq!(take(&mut queue, 4), [100, 101, 102, 103]);
        assert_eq!(take(&mut queue, 128), [104, 105, 106, 107, 108, 109]);
        assert!(queue.is_empty() && take(&mut queue, 128).is_empty());
    }

    #[test]
    fn names_take_turns_and_each_is_first_in_first_out() {
        let mut queue = RequestQueue::default();
        for claim in [1, 2, 3] {
            queue.push(&outgoing(lock("hot"), claim, Class::Claim));
        }
        for claim in [10, 11] {
            queue.push(&outgoing(lock("cool"), claim, Class::Claim));
        }
        assert_eq!(take(&mut queue, 1), [1]);
        assert_eq!(take(&mut queue, 2), [10, 2]);
        assert_eq!(take(&mut queue, 9), [11, 3]);
    }

    #[test]
    fn kinds_have_batches_of_their_own_and_take_turns() {
        let mut queue = RequestQueue::default();
        let job = |claim| outgoing(Name::job(Key::from("nightly")), claim, Class::Claim);
        queue.push(&outgoing(lock("a"), 1, Class::Claim));
        queue.push(&job(2));
        queue.push(&outgoing(lock("b"), 3, Class::Claim));
        queue.push(&job(4));
        assert_eq!(take(&mut queue, 1), [2]);
        assert_eq!(take(&mut queue, 1), [1]);
        assert_eq!(take(&mut queue, 9), [4]);
        assert_eq!(take(&mut queue, 9), [3]);
    }

    #[test]
    fn a_group_has_a_batch_of_its_own_takes_turns_and_follows_leaves() {
        let mut queue = RequestQueue::default();
        let group = |claims: &[(u64, &str)]| {
            let claims = claims.iter();
            claims
                .map(|(claim, key)| outgoing(lock(key), *claim, Class::Claim))
                .collect()
        };
        queue.push_together(group(&[(1, "a"), (2, "b")]));
        queue.push_together(group(&[(3, "c"), (4, "d")]));
        queue.push(&outgoing(lock("b"), 10, Class::Leave));
        queue.push(&outgoing(lock("e"), 11, Class::Claim));
        assert_eq!(take(&mut queue, 1), [10], "the leave goes before the group");
        assert_eq!(take(&mut queue, 128), [1, 2]);
        assert_eq!(take(&mut queue, 128), [11], "single claims have their turn");
        assert_eq!(take(&mut queue, 128), [3, 4]);
        assert!(queue.is_empty());
        queue.push_together(group(&[(5, "a")]));
        queue.push(&outgoing(lock("z"), 12, Class::OwnerRenewal));
        assert_eq!(take(&mut queue, 128), [12], "a renewal goes first");
        assert_eq!(claims(&queue.take_all()), [5]);
        assert!(queue.is_empty());
    }

    #[test]
    fn job_requests_wait_except_renewals_and_full_batches() {
        let mut queue = RequestQueue::default();
        let job = |n: u64, class| outgoing(Name::job(Key::from(format!("job {n}"))), n, class);
        queue.push(&job(1, Class::Claim));
        queue.push(&job(2, Class::Leave));
        let (answer, more) = (Some(Class::OwnerRenewal), Some(Class::Call));
        assert!(!queue.is_ready(limits(4, more)) && queue.is_ready(limits(4, None)));
        queue.push(&job(3, Class::Claim));
        assert!(!queue.is_ready(limits(4, more)) && queue.is_ready(limits(3, more)));
        queue.push(&outgoing(lock("a"), 9, Class::Claim));
        let mut requests = Vec::new();
        queue.take(limits(8, answer), &mut requests, |_| {});
        assert_eq!(requests[0].claim_id.claim.0, 9, "a claim of a lock does not wait");
        assert!(!queue.is_ready(limits(8, answer)) && queue.has_jobs());
        queue.push(&job(5, Class::Call));
        assert!(!queue.is_ready(limits(8, answer)) && queue.is_ready(limits(8, more)));
        queue.push(&job(4, Class::OwnerRenewal));
        assert!(queue.is_ready(limits(8, answer)));
        assert_eq!(
            take(&mut queue, 8),
            [4, 5, 2, 1, 3],
            "waiting requests go with the renewal"
        );
        assert!(!queue.has_jobs());
    }

    #[test]
    fn a_group_follows_a_group_when_only_job_requests_wait() {
        let (mut queue, job_cutoff) = (RequestQueue::default(), Some(Class::OwnerRenewal));
        for claim in [1, 2] {
            queue.push_together(vec![outgoing(lock("a"), claim, Class::Claim)]);
        }
        queue.push(&outgoing(Name::job(Key::from("nightly")), 3, Class::Claim));
        for claim in [1, 2] {
            let mut requests = Vec::new();
            assert!(queue.is_ready(limits(8, job_cutoff)));
            queue.take(limits(8, job_cutoff), &mut requests, |_| {});
            assert_eq!(requests.len(), 1);
            assert_eq!(requests[0].claim_id.claim.0, claim);
        }
        assert!(!queue.is_ready(limits(8, job_cutoff)));
        assert_eq!(take(&mut queue, 8), [3]);
    }

    #[test]
    fn take_all_keeps_the_order_per_name() {
        let mut queue = RequestQueue::default();
        for claim in [1, 2, 3] {
            queue.push(&outgoing(lock("hot"), claim, Class::Claim));
        }
        queue.push(&outgoing(lock("a"), 4, Class::OwnerRenewal));
        assert_eq!(claims(&queue.take_all()), [4, 1, 2, 3]);
        assert!(queue.is_empty());
        queue.push(&outgoing(lock("hot"), 5, Class::Claim));
        assert_eq!(take(&mut queue, 9), [5]);
    }
}
