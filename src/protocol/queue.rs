//! What waits to be sent to one server, in the order in which it goes.

use std::collections::{HashMap, HashSet, VecDeque};

use foldhash::quality::RandomState;

use crate::protocol::message::{Kind, Name};
use crate::protocol::step::{Class, Outgoing};

/// So many names are sooner compared with each other than hashed.
const FEW: usize = 8;

/// Requests by class: owners' renewals first, then leaves and yields, waiters' renewals, claims. First in, first out per
/// class and name; the names of a class take turns, so that a thousand requests for one key hold up no other key.
///
/// A batch names a key once, as a store may read all of its keys before it treats the first, and is of one kind.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    kinds: [[Line; Class::ALL.len()]; Kind::ALL.len()],
    len: usize,
    /// Planted: whatever came first goes first.
    unsorted: bool,
    /// The kind of the last batch: where both kinds have something as urgent, they take turns.
    last: usize,
}

/// The requests of one class.
#[derive(Debug, Default)]
struct Line {
    /// The first of each name.
    first: VecDeque<Outgoing>,
    /// Every name in `first`, with what waits behind it.
    behind: HashMap<Name, VecDeque<Outgoing>, RandomState>,
}

impl Queue {
    /// With the mistake planted that a request's class is not looked at.
    pub(crate) fn with_plant(unsorted: bool) -> Self {
        Queue {
            unsorted,
            ..Queue::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        self.len += 1;
        let class = if self.unsorted { 0 } else { outgoing.class as usize };
        self.kinds[outgoing.request.name.kind as usize][class].push(outgoing);
    }

    /// The next batch, of at most `most` requests, into an empty `taken`.
    pub(crate) fn take(&mut self, most: usize, taken: &mut Vec<Outgoing>) {
        let Some(kind) = self.most_urgent() else { return };
        self.last = kind;
        let mut names = Names::default();
        for line in &mut self.kinds[kind] {
            line.take(most, taken, &mut names);
        }
        self.len -= taken.len();
    }

    /// All renewals: whoever sent them tries again by itself.
    pub(crate) fn take_renewals(&mut self) -> Vec<Outgoing> {
        let classes = [Class::OwnerRenewal, Class::WaiterRenewal];
        let mut taken = Vec::new();
        for lines in &mut self.kinds {
            for class in classes {
                taken.extend(std::mem::take(&mut lines[class as usize]).into_requests());
            }
        }
        self.len -= taken.len();
        taken
    }

    /// Everything, when there is no server to send it to.
    pub(crate) fn take_all(&mut self) -> Vec<Outgoing> {
        self.len = 0;
        let lines = self.kinds.iter_mut().flatten().map(std::mem::take);
        lines.flat_map(Line::into_requests).collect()
    }

    fn most_urgent(&self) -> Option<usize> {
        let class = |kind: usize| self.kinds[kind].iter().position(|line| !line.first.is_empty());
        let turn = |kind: usize| kind == self.last;
        (0..self.kinds.len())
            .filter_map(|kind| Some((class(kind)?, turn(kind), kind)))
            .min()
            .map(|(_, _, kind)| kind)
    }
}

impl Line {
    /// All of it, in order per name.
    fn into_requests(mut self) -> Vec<Outgoing> {
        let mut all = Vec::with_capacity(self.first.len());
        for outgoing in self.first {
            let rest = self.behind.remove(&outgoing.request.name);
            all.push(outgoing);
            all.extend(rest.into_iter().flatten());
        }
        all
    }

    fn push(&mut self, outgoing: Outgoing) {
        match self.behind.get_mut(&outgoing.request.name) {
            Some(behind) => behind.push_back(outgoing),
            None => {
                self.behind.insert(outgoing.request.name.clone(), VecDeque::new());
                self.first.push_back(outgoing);
            }
        }
    }

    fn take(&mut self, most: usize, taken: &mut Vec<Outgoing>, names: &mut Names) {
        // Only names of other classes can be in the batch already, so this many are skipped at the most.
        let others = taken.len();
        let mut skipped = Vec::new();
        for _ in 0..self.first.len() {
            if taken.len() == most {
                break;
            }
            let Some(outgoing) = self.first.pop_front() else {
                break;
            };
            if others > 0 && names.contains(&taken[..others], &outgoing.request.name) {
                skipped.push(outgoing);
                continue;
            }
            let name = &outgoing.request.name;
            match self.behind.get_mut(name).and_then(VecDeque::pop_front) {
                Some(next) => self.first.push_back(next),
                None => drop(self.behind.remove(name)),
            }
            taken.push(outgoing);
        }
        for outgoing in skipped.into_iter().rev() {
            self.first.push_front(outgoing);
        }
    }
}

/// The names that a batch has from other classes.
#[derive(Default)]
struct Names {
    hashed: HashSet<Name, RandomState>,
    upto: usize,
}

impl Names {
    fn contains(&mut self, taken: &[Outgoing], name: &Name) -> bool {
        if taken.len() <= FEW {
            return taken.iter().any(|other| other.request.name == *name);
        }
        let new = taken[self.upto..].iter().map(|other| other.request.name.clone());
        self.hashed.extend(new);
        self.upto = taken.len();
        self.hashed.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::Key;
    use crate::protocol::message::{ClaimNumber, Holder, LeaseTimes, Mode, NodeId, Request, Verb};
    use crate::protocol::step::Tag;

    fn outgoing(name: Name, claim: u64, class: Class) -> Outgoing {
        let holder = Holder {
            node: NodeId::numbered(1),
            claim: ClaimNumber(claim),
            nonce: 0,
        };
        Outgoing {
            tag: Tag {
                claim: ClaimNumber(claim),
                seq: 1,
            },
            request: Request {
                name,
                holder,
                term: LeaseTimes {
                    lease_ms: 1000,
                    margin_ms: 250,
                },
                mode: Mode::Exclusive,
                mark: None,
                verb: Verb::Renew,
            },
            lease: Duration::from_secs(1),
            class,
        }
    }

    fn lock(key: &str) -> Name {
        Name::lock(Key::from(key))
    }

    fn take(queue: &mut Queue, most: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        queue.take(most, &mut taken);
        claims(&taken)
    }

    fn claims(taken: &[Outgoing]) -> Vec<u64> {
        taken.iter().map(|outgoing| outgoing.tag.claim.0).collect()
    }

    #[test]
    fn owners_renewals_pass_everything() {
        let mut queue = Queue::default();
        for claim in 0..1000 {
            queue.push(outgoing(lock("hot"), claim, Class::Claim));
        }
        queue.push(outgoing(lock("a"), 2000, Class::WaiterRenewal));
        queue.push(outgoing(lock("b"), 2001, Class::Leave));
        queue.push(outgoing(lock("hot"), 2002, Class::OwnerRenewal));
        assert_eq!(take(&mut queue, 128), [2002, 2001, 2000]);
        assert_eq!(take(&mut queue, 128), [0]);
        assert_eq!(take(&mut queue, 128), [1]);
    }

    #[test]
    fn a_leave_goes_before_the_claim_that_follows_it_and_a_name_travels_once() {
        let mut queue = Queue::default();
        for (n, key) in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
            .iter()
            .enumerate()
        {
            queue.push(outgoing(lock(key), n as u64, Class::Leave));
            queue.push(outgoing(lock(key), 100 + n as u64, Class::Claim));
        }
        queue.push(outgoing(lock("z"), 200, Class::Claim));
        assert_eq!(take(&mut queue, 128), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 200]);
        assert_eq!(take(&mut queue, 4), [100, 101, 102, 103]);
        assert_eq!(take(&mut queue, 128), [104, 105, 106, 107, 108, 109]);
        assert!(queue.is_empty() && take(&mut queue, 128).is_empty());
    }

    #[test]
    fn names_take_turns_and_each_is_first_in_first_out() {
        let mut queue = Queue::default();
        for claim in [1, 2, 3] {
            queue.push(outgoing(lock("hot"), claim, Class::Claim));
        }
        for claim in [10, 11] {
            queue.push(outgoing(lock("cool"), claim, Class::Claim));
        }
        assert_eq!(take(&mut queue, 1), [1]);
        assert_eq!(take(&mut queue, 2), [10, 2]);
        assert_eq!(take(&mut queue, 9), [11, 3]);
    }

    #[test]
    fn kinds_travel_apart_and_take_turns() {
        let mut queue = Queue::default();
        let job = |claim| outgoing(Name::job(Key::from("nightly")), claim, Class::Claim);
        queue.push(outgoing(lock("a"), 1, Class::Claim));
        queue.push(job(2));
        queue.push(outgoing(lock("b"), 3, Class::Claim));
        queue.push(job(4));
        assert_eq!(take(&mut queue, 1), [2]);
        assert_eq!(take(&mut queue, 1), [1]);
        assert_eq!(take(&mut queue, 9), [4]);
        assert_eq!(take(&mut queue, 9), [3]);
    }

    #[test]
    fn all_of_it_is_given_back_in_order_per_name() {
        let mut queue = Queue::default();
        for claim in [1, 2, 3] {
            queue.push(outgoing(lock("hot"), claim, Class::Claim));
        }
        queue.push(outgoing(lock("a"), 4, Class::OwnerRenewal));
        assert_eq!(claims(&queue.take_all()), [4, 1, 2, 3]);
        assert!(queue.is_empty());
        queue.push(outgoing(lock("hot"), 5, Class::Claim));
        assert_eq!(take(&mut queue, 9), [5]);
    }
}
