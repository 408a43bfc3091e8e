//! What the Sentinels of a master answer: where the master is, and whether a link to it is confirmed.
//!
//! # Reigns
//!
//! The Sentinels count promotions by an *epoch*. A *reign* is the time of one master under one epoch. A master that was cut off
//! and is promoted again was never demoted, so its data shows nothing of the reign between. Only the Sentinels' epoch and the
//! nodes know of that reign. So a node that opens a link asks the Sentinels **again** after the server's first answer, and the
//! link is confirmed under epoch e if
//!
//! * e is the highest epoch that a Sentinel answers,
//! * a majority of all Sentinels answers under e,
//! * and the decision names the address of the link.
//!
//! Why this finds every reign that granted:
//!
//! 1. The first grant of a reign b comes a whole recovery after the first link of b was confirmed. So a majority knew b before
//!    any grant of b. A Sentinel's epoch never falls, so each later question to a majority gives b or more.
//! 2. Sentinel promotes a server and kills its clients' connections in one MULTI. So a link that was open before the question
//!    belongs to the reign of the answer, or it is dead. That is why the question comes after the connection, and after the
//!    server's first answer: the kernel of a stopped server accepts connections that no kill ends.
//! 3. A reign that was too short to grant may only have moved renewals. There the voters know its epoch: a Sentinel sends hello
//!    before it asks for votes.
//! 4. The votes are counted by epoch and not by address, so that two spellings of one address do not split them.
//!
//! Each weaker rule was broken by a random model: a question before the connection, one witness, and a majority of answers of
//! which the highest epoch counts.

use crate::protocol::flaw::{Flaw, Plant};

/// The answer of a Sentinel. `A` is an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelAnswer<A> {
    /// Where the master is.
    pub address: A,
    /// The epoch of the Sentinel's configuration, read before the address.
    pub epoch: u64,
    /// The number of other Sentinels that this one knows.
    pub others: usize,
}

/// What a node knows of a master: the last decision, and what the next one depends on.
#[derive(Debug)]
pub struct KnownMaster<A> {
    /// Where the master is. `None` until a Sentinel has answered.
    address: Option<A>,
    /// The highest epoch that a Sentinel has given.
    highest_epoch: u64,
    /// Where the last link leads, or should have led.
    linked: Option<A>,
    /// Set if the last link could not be opened.
    is_link_failed: bool,
}

/// A decision about a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMaster<A> {
    /// Where the master is.
    pub address: A,
    /// The highest epoch that was answered. `None` if no answer counted: then the master stays where it was.
    pub epoch: Option<u64>,
    /// The number of Sentinels that answered under that epoch.
    pub votes: usize,
    /// The number of Sentinels: the listed ones, or more if a Sentinel knows more.
    pub sentinels: usize,
}

impl<A> NamedMaster<A> {
    /// Returns how many Sentinels must answer under one epoch.
    pub fn majority(&self) -> usize {
        self.sentinels / 2 + 1
    }

    /// Returns the reign of a link to the named address that asks now.
    pub fn reign(&self, plant: Plant) -> Reign {
        let is_confirmed = self.votes >= self.majority() || plant.is(Flaw::OneSentinelBelieved);
        let epoch = self.epoch.filter(|_| is_confirmed);
        epoch.map_or(Reign::Unconfirmed, Reign::Confirmed)
    }

    /// Returns whether a link to the named address, which was opened in `reign`, ends: another reign has begun, or the link can
    /// be confirmed now.
    pub fn ends(&self, reign: Reign, plant: Plant) -> bool {
        match reign {
            Reign::Ignored => false,
            Reign::Unconfirmed => self.reign(plant) != Reign::Unconfirmed,
            Reign::Confirmed(epoch) => self.epoch.is_some_and(|named| named != epoch),
        }
    }
}

/// The reign in which a link was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reign {
    /// The node does not ask: there are no Sentinels, or it recovers on evidence only.
    #[default]
    Ignored,
    /// Too few Sentinels answer under the highest epoch.
    Unconfirmed,
    /// A majority answers under this epoch.
    Confirmed(u64),
}

impl Reign {
    /// Returns the epoch under which a link was confirmed.
    pub fn epoch(self) -> Option<u64> {
        match self {
            Reign::Confirmed(epoch) => Some(epoch),
            Reign::Ignored | Reign::Unconfirmed => None,
        }
    }
}

impl<A> Default for KnownMaster<A> {
    fn default() -> Self {
        KnownMaster {
            address: None,
            highest_epoch: 0,
            linked: None,
            is_link_failed: false,
        }
    }
}

/// Returns whether a majority has answered with one address under one epoch, the highest so far. The other answers would change
/// nothing: a majority that answers under e knows no later reign, and each reign that granted is known to a majority.
pub fn has_majority<A: PartialEq>(answers: &[SentinelAnswer<A>], listed: usize) -> bool {
    let Some(highest) = answers.iter().max_by_key(|answer| answer.epoch) else {
        return false;
    };
    let is_equal =
        |answer: &&SentinelAnswer<A>| (answer.epoch, &answer.address) == (highest.epoch, &highest.address);
    2 * answers.iter().filter(is_equal).count() > sentinels(answers, listed)
}

/// Returns the number of Sentinels: the listed ones, or more if a Sentinel knows more.
fn sentinels<A>(answers: &[SentinelAnswer<A>], listed: usize) -> usize {
    let known = answers.iter().map(|answer| answer.others + 1).max();
    listed.max(known.unwrap_or_default())
}

impl<A: Clone + Ord> KnownMaster<A> {
    /// Returns where the master is, by the last decision.
    pub fn address(&self) -> Option<&A> {
        self.address.as_ref()
    }

    /// Notes where a link begins to open.
    pub fn note_link(&mut self, address: A) {
        (self.linked, self.is_link_failed) = (Some(address), false);
    }

    /// Notes that the link could not be opened.
    pub fn note_link_failed(&mut self) {
        self.is_link_failed = true;
    }

    /// Decides where the master is. `listed` is the number of Sentinels in the list, of which some may not have answered.
    ///
    /// The highest epoch wins. An epoch below the highest that was ever given counts only if a majority gives it with
    /// one address: Sentinels that are all set up anew begin at zero again. At equal epochs more answers win. Then the address
    /// of the last link wins, unless that link failed: two Sentinels may name one server by two addresses. Without an answer
    /// that counts, the master stays where it was.
    pub fn decide(&mut self, answers: &[SentinelAnswer<A>], listed: usize) -> Option<NamedMaster<A>> {
        let sentinels = sentinels(answers, listed);
        let key = |answer: &SentinelAnswer<A>| (answer.address.clone(), answer.epoch);
        let votes = |answer| answers.iter().filter(|other| key(other) == key(answer)).count();
        let counting = answers
            .iter()
            .filter(|answer| answer.epoch >= self.highest_epoch || 2 * votes(*answer) > sentinels);
        let decided = counting.max_by_key(|answer| {
            let is_linked = self.linked.as_ref() == Some(&answer.address);
            let is_preferred = is_linked != self.is_link_failed;
            (answer.epoch, votes(*answer), is_preferred, &answer.address)
        });
        if let Some(decided) = decided {
            self.highest_epoch = self.highest_epoch.max(decided.epoch);
            self.address = Some(decided.address.clone());
        }
        let highest = decided.and(answers.iter().map(|answer| answer.epoch).max());
        Some(NamedMaster {
            address: self.address.clone()?,
            epoch: highest,
            votes: answers
                .iter()
                .filter(|answer| Some(answer.epoch) == highest)
                .count(),
            sentinels,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flaw::Plant;

    fn answer((address, epoch): (&'static str, u64)) -> SentinelAnswer<&'static str> {
        SentinelAnswer {
            address,
            epoch,
            others: 0,
        }
    }

    /// Returns a node that knows a master at `a` under epoch 3, with a link there.
    fn linked_to_a() -> KnownMaster<&'static str> {
        KnownMaster {
            linked: Some("a"),
            address: Some("a"),
            highest_epoch: 3,
            is_link_failed: false,
        }
    }

    fn name<const N: usize>(answers: [(&'static str, u64); N], listed: usize) -> NamedMaster<&'static str> {
        linked_to_a().decide(&answers.map(answer), listed).unwrap()
    }

    fn decide<const N: usize>(answers: [(&'static str, u64); N], listed: usize) -> (&'static str, u64) {
        let mut known = linked_to_a();
        let decided = known.decide(&answers.map(answer), listed).unwrap().address;
        (decided, known.highest_epoch)
    }

    #[test]
    fn a_higher_epoch_wins_against_more_answers() {
        assert_eq!(decide([("a", 3), ("a", 3), ("b", 4)], 3), ("b", 4));
        assert_eq!(decide([("a", 4), ("b", 3), ("b", 3)], 3), ("a", 4));
    }

    #[test]
    fn at_equal_epochs_more_answers_win_and_then_the_linked_address() {
        assert_eq!(decide([("b", 3), ("a", 3), ("a", 3)], 3).0, "a");
        assert_eq!(decide([("a", 3), ("b", 3), ("b", 3)], 3).0, "b");
        for answers in [[("a", 3), ("b", 3)], [("b", 3), ("a", 3)], [("a", 4), ("b", 4)]] {
            assert_eq!(decide(answers, 3).0, "a");
            let mut known = linked_to_a();
            known.note_link_failed();
            assert_eq!(known.decide(&answers.map(answer), 3).unwrap().address, "b");
            // The next link is at `b`, and stays there.
            known.note_link("b");
            assert_eq!(known.decide(&answers.map(answer), 3).unwrap().address, "b");
        }
    }

    #[test]
    fn a_single_answer_under_the_same_epoch_counts() {
        assert_eq!(decide([("b", 3)], 3), ("b", 3));
    }

    #[test]
    fn a_lower_epoch_counts_only_if_a_majority_of_the_list_gives_it() {
        // Of three Sentinels two were set up anew.
        assert_eq!(decide([("b", 0), ("b", 0)], 3), ("b", 3));
        assert_eq!(decide([("b", 2)], 3), ("a", 3));
        // Half of the list is no majority, and answers that differ make none.
        assert_eq!(decide([("b", 0), ("b", 0)], 4).0, "a");
        assert_eq!(decide([("b", 0), ("c", 0)], 3).0, "a");
        assert_eq!(decide([("b", 0), ("b", 1)], 3).0, "a");
        // A higher epoch wins against a majority under a lower one.
        assert_eq!(decide([("b", 2), ("b", 2), ("c", 3)], 3).0, "c");
    }

    #[test]
    fn without_an_answer_the_master_stays_where_it_was() {
        assert_eq!(decide([], 3), ("a", 3));
        assert_eq!(name([], 3).epoch, None);
        let mut known = KnownMaster::default();
        assert_eq!(known.decide(&[], 3), None);
        // Before the first answer every epoch counts.
        let found = known.decide(&[answer(("a", 0))], 3).unwrap();
        assert_eq!((found.address, found.reign(Plant::NONE).epoch()), ("a", None));
    }

    #[test]
    fn a_link_is_confirmed_by_a_majority_under_the_highest_epoch() {
        assert_eq!(name([("a", 3), ("a", 3)], 3).reign(Plant::NONE).epoch(), Some(3));
        // Two spellings of one address.
        assert_eq!(name([("a", 3), ("b", 3)], 3).reign(Plant::NONE).epoch(), Some(3));
        // One witness, silent Sentinels, and a majority that differs.
        assert_eq!(name([("a", 3)], 3).reign(Plant::NONE).epoch(), None);
        assert_eq!(name([("a", 3), ("a", 3)], 4).reign(Plant::NONE).epoch(), None);
        assert_eq!(
            name([("a", 3), ("a", 3), ("a", 4)], 3).reign(Plant::NONE).epoch(),
            None
        );
        // All Sentinels were replaced.
        assert_eq!(name([("a", 0), ("a", 0)], 3).reign(Plant::NONE).epoch(), Some(0));
        assert_eq!(name([], 3).reign(Plant::NONE).epoch(), None);
        for (answers, is_enough) in [([("a", 3), ("a", 3)], true), ([("a", 3), ("a", 4)], false)] {
            assert_eq!(has_majority(&answers.map(answer), 3), is_enough);
        }
    }

    #[test]
    fn sentinels_that_are_not_listed_count_in_the_whole() {
        let mut answer = answer(("a", 3));
        let mut known = linked_to_a();
        assert_eq!(
            known
                .decide(&[answer.clone()], 1)
                .unwrap()
                .reign(Plant::NONE)
                .epoch(),
            Some(3)
        );
        answer.others = 2;
        let named = known.decide(&[answer], 1).unwrap();
        assert_eq!(
            (named.votes, named.majority(), named.reign(Plant::NONE).epoch()),
            (1, 2, None)
        );
    }
}
