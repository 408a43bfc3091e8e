//! A reading of a cluster's map: which servers are asked, and which of their answers counts.

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};

use crate::protocol::cluster::map::ClusterMap;
use crate::protocol::cluster::{Address, ClusterNodeId, ClusterServer, MapAnswer};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::time::Instant;

/// How many servers a reading asks at once, if it knows a map.
const WITNESSES: usize = 3;

/// A reading of the map.
///
/// With a known map it asks two masters of the map and a URL, and another server for each that tells nothing that counts.
/// The URLs find a cluster of which all servers have moved. Without a known map it asks all URLs.
#[derive(Debug)]
pub struct MapReading {
    /// The node ids of the known map. Empty: none is known.
    known: HashSet<ClusterNodeId>,
    /// The servers that were not asked yet.
    waiting: VecDeque<Address>,
    /// The number of servers that were asked and have not answered.
    open: usize,
    answers: Vec<(Address, MapAnswer)>,
    plant: Plant,
}

/// Why an answer does not count, or not beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The server knows no server of any slot: it was removed from its cluster, or belongs to none.
    NoSlots,
    /// The answer names no server of the known map.
    Stranger,
    /// The server believes that its cluster serves nothing.
    Failed,
}

/// Why a reading decided nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undecided {
    /// No answer counts.
    NoAnswer,
    /// The URLs lead to two clusters, as many to one as to the other.
    TwoClusters([Vec<Address>; 2]),
}

impl MapReading {
    /// Begins a reading. A map of which no server has answered for a minute is forgotten first.
    pub fn begin(
        map: &mut ClusterMap,
        now: Instant,
        urls: &[Address],
        rng: &mut fastrand::Rng,
        plant: Plant,
    ) -> Self {
        map.begin_reading(now);
        let known = map.names();
        let waiting = match known.is_empty() {
            true => urls.to_vec(),
            false => drawn(map, urls, rng),
        };
        let mut listed = HashSet::new();
        let waiting = waiting
            .into_iter()
            .filter(|address| listed.insert(address.clone()));
        MapReading {
            known,
            waiting: waiting.collect(),
            open: 0,
            answers: Vec::new(),
            plant,
        }
    }

    /// Returns the next server to ask, if one must be asked now.
    pub fn next_server(&mut self) -> Option<Address> {
        let enough = match self.known.is_empty() {
            _ if self.plant.is(Flaw::OneWitnessBelieved) => 1,
            true => usize::MAX,
            false => WITNESSES,
        };
        if self.open + self.count() >= enough {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.open += 1;
        Some(next)
    }

    /// Notes what a server told; `None` if it did not answer. Returns why that does not count.
    pub fn answered(&mut self, from: Address, answer: Option<MapAnswer>) -> Option<Doubt> {
        self.open -= 1;
        let answer = answer?;
        let doubt = self.doubt(&answer);
        self.answers.push((from, answer));
        doubt
    }

    /// Returns how many answers are beyond doubt.
    pub fn count(&self) -> usize {
        let answers = self.answers.iter();
        answers.filter(|(_, answer)| self.doubt(answer).is_none()).count()
    }

    fn doubt(&self, answer: &MapAnswer) -> Option<Doubt> {
        let shares =
            |member: &ClusterServer| self.known.contains(&member.node_id) || member.node_id.is_empty();
        if answer.ranges.is_empty() {
            Some(Doubt::NoSlots)
        } else if self.plant.is(Flaw::OneWitnessBelieved) {
            None
        } else if !self.known.is_empty() && !answer.members().any(shares) {
            Some(Doubt::Stranger)
        } else {
            answer.has_failed.then_some(Doubt::Failed)
        }
    }

    /// Ends the reading, and takes over the answer that counts. Returns whether the map has changed.
    ///
    /// # Errors
    ///
    /// Returns why no answer counts. The map stays as it is.
    pub fn decide(&self, now: Instant, map: &mut ClusterMap) -> Result<bool, Undecided> {
        match self.decided(map) {
            Ok(answer) => Ok(map.take(now, answer)),
            Err(undecided) => {
                map.note_unanswered(now);
                Err(undecided)
            }
        }
    }

    /// Returns the answer that counts: of the cluster nearest to the known map, under the highest epoch, then with the
    /// same owners as most others, then at the addresses that most others name, then the known map.
    fn decided(&self, map: &ClusterMap) -> Result<&MapAnswer, Undecided> {
        let counts = |doubt| matches!(doubt, None | Some(Doubt::Failed));
        let answers = self
            .answers
            .iter()
            .filter(|(_, answer)| counts(self.doubt(answer)));
        let is_well = |(_, answer): &&(_, MapAnswer)| !answer.has_failed;
        let is_any_well = answers.clone().any(|answer| is_well(&answer));
        let answers = match self.known.is_empty() {
            true => largest(clusters(answers))?,
            false => self.nearest(clusters(answers)),
        };
        let has_well = answers.iter().any(is_well);
        // One of the clusters serves nothing, and the other may be a strange one.
        if is_any_well && !has_well && !self.known.is_empty() {
            return Err(Undecided::NoAnswer);
        }
        let answers = answers.into_iter().filter(|answer| is_well(answer) || !has_well);
        let answers: Vec<_> = answers.map(|(_, answer)| answer).collect();
        let highest = answers.iter().filter_map(|answer| answer.epoch).max();
        // An unknown epoch counts as equal.
        let newest = answers
            .iter()
            .filter(|answer| answer.epoch.is_none_or(|epoch| Some(epoch) == highest));
        let newest: Vec<_> = newest.collect();
        let votes =
            |is_same: &dyn Fn(&MapAnswer) -> bool| newest.iter().filter(|other| is_same(other)).count();
        let best = newest.iter().enumerate().max_by_key(|(at, answer)| {
            let owners = votes(&|other| has_same_owners(answer, other));
            let addresses = votes(&|other| answer.ranges == other.ranges);
            (owners, addresses, map.agrees(answer), Reverse(*at))
        });
        best.map(|(_, answer)| **answer).ok_or(Undecided::NoAnswer)
    }

    /// Returns the answers of the cluster with most servers of the known map, then of most answers; of all such.
    ///
    /// Epochs of two clusters cannot be compared. A server that left for another cluster keeps its node id.
    fn nearest<'a>(&self, clusters: Vec<AnswerGroup<'a>>) -> Answers<'a> {
        let rank = |(names, answers): &AnswerGroup<'_>| {
            let known = names.iter().filter(|name| self.known.contains(**name));
            (known.count(), answers.len())
        };
        let highest = clusters.iter().map(rank).max();
        let nearest = clusters
            .into_iter()
            .filter(|cluster| Some(rank(cluster)) == highest);
        nearest.flat_map(|(_, answers)| answers).collect()
    }
}

/// Returns the servers to ask, the first of them first: two masters and a URL, then the others in turns, at last the replicas.
fn drawn(map: &ClusterMap, urls: &[Address], rng: &mut fastrand::Rng) -> Vec<Address> {
    let masters = map.masters().into_iter().filter_map(|id| map.member(id));
    let mut masters: Vec<_> = masters.map(|member| member.address.clone()).collect();
    let mut urls = urls.to_vec();
    rng.shuffle(&mut masters);
    rng.shuffle(&mut urls);
    let (mut masters, mut urls) = (masters.into_iter(), urls.into_iter());
    let mut drawn = Vec::from_iter(masters.next());
    while masters.len() + urls.len() > 0 {
        drawn.extend(masters.next());
        drawn.extend(urls.next());
    }
    drawn.extend(map.members().map(|member| member.address.clone()));
    drawn
}

fn has_same_owners(one: &MapAnswer, other: &MapAnswer) -> bool {
    let owners = |answer: &MapAnswer| -> Vec<_> {
        let ranges = answer.ranges.iter();
        ranges
            .map(|range| (range.first, range.last, range.master.node_id.clone()))
            .collect()
    };
    owners(one) == owners(other)
}

/// The answers of one cluster.
type Answers<'a> = Vec<&'a (Address, MapAnswer)>;

/// The node ids that the answers of one cluster name, and the answers.
type AnswerGroup<'a> = (HashSet<&'a ClusterNodeId>, Answers<'a>);

/// Returns the answers by cluster. Answers that name the same server are of one cluster.
fn clusters<'a>(answers: impl Iterator<Item = &'a (Address, MapAnswer)>) -> Vec<AnswerGroup<'a>> {
    let mut clusters: Vec<AnswerGroup<'_>> = Vec::new();
    for told in answers {
        let mut names: HashSet<_> = told.1.members().map(|member| &member.node_id).collect();
        let mut joined = vec![told];
        let (same, others) = clusters.into_iter().partition(|(of, _)| !of.is_disjoint(&names));
        clusters = others;
        let same: Vec<_> = same;
        for (of, answers) in same {
            names.extend(of);
            joined.extend(answers);
        }
        clusters.push((names, joined));
    }
    clusters
}

/// Returns the cluster of most answers.
fn largest(clusters: Vec<AnswerGroup<'_>>) -> Result<Answers<'_>, Undecided> {
    let mut clusters: Vec<_> = clusters.into_iter().map(|(_, answers)| answers).collect();
    clusters.sort_by_key(|answers| Reverse(answers.len()));
    if let [first, second, ..] = &clusters[..]
        && first.len() == second.len()
    {
        let addresses = |answers: &Answers<'_>| answers.iter().map(|(from, _)| from.clone()).collect();
        return Err(Undecided::TwoClusters([addresses(first), addresses(second)]));
    }
    clusters.into_iter().next().ok_or(Undecided::NoAnswer)
}
