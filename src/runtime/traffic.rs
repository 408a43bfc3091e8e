//! How busy a connection is and how far its server, and what follows from it: how many batches may be under way,
//! whether a request waits for company, and whether its caller waits awake.
//!
//! Pure: what happened is told to it. The figures were found with `cargo bench --bench redis`.

use std::time::Duration;

/// Batches under way per connection, at the most.
const SLOTS: usize = 16;
/// And so many at least, so that neither side sleeps while the other works: with one at a time the wake-ups on both
/// sides were most of a round trip on loopback.
const BUSY: usize = 6;
/// Up to so many requests at once each may travel in a batch of their own. Company makes each cheaper, but one has to
/// wait for it, and both sides fall asleep in turn. Not where both share one processor: there cheaper is faster.
const ALONE: usize = 16;
/// A request waits for company about this long at the most: so many batches are under way that one of them comes
/// back this often. On a network of two milliseconds that is all of them.
const COMPANY: Duration = Duration::from_micros(100);
/// What answers within this is no server but memory, and company is not worth waiting for.
const AT_ONCE: Duration = Duration::from_micros(10);
/// An answer that can be expected within this long need not be slept for. To fall asleep and be woken costs that much on
/// both sides where processors are virtual (30 µs until the other side ran, measured), and whoever spins for as long as
/// a sleep costs spends at most twice what was needed (Karlin, Li, Manasse, Owicki, SOSP 1991).
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// But only where a processor is idle. Where none is, whoever spins keeps the server from answering, round trips doubled
/// beside a single busy process on a machine of two processors, and company is worth the wait. So each [`Way`] is tried,
/// for this many requests of a lone caller. Of many callers they count for less, as together they take as long.
const TRIAL: u32 = 128 * ALONE as u32;
/// And what was best is done for so many. For twice as many each time that it is best again, since trying the others
/// costs.
const TERM: u32 = 16 * TRIAL;
const LONGEST_TERM: u32 = 8 * TERM;
/// For so many batches after one that met another claim nobody spins: who hands a key to and fro with a process on the
/// same machine needs the processor for that process.
const SHARED: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// This process has one processor, and a server on the same machine takes turns with it.
    is_serial: bool,
    batches: usize,
    /// In the batches under way.
    requests: usize,
    demand: Demand,
    /// The shortest round trip lately.
    trip: Duration,
    /// For so many batches more nobody spins.
    shared: u32,
    trial: Trial,
}

/// How an answer arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trip {
    /// From the sending to the answer.
    pub(crate) took: Duration,
    /// How long its requests had waited to be sent, in the mean.
    pub(crate) waited: Duration,
    /// It met a claim of another process.
    pub(crate) is_shared: bool,
}

/// How few requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In company, and their callers sleep: the cheapest.
    Together,
    /// Each for itself.
    Alone,
    /// And a caller waits awake, if the server is near.
    Awake,
}

impl Traffic {
    pub(crate) fn new(processors: usize) -> Self {
        Traffic {
            is_serial: processors < 2,
            ..Traffic::default()
        }
    }

    /// One request more waits, and so many with it.
    pub(crate) fn wanted(&mut self, waiting: usize) {
        self.demand.saw(waiting + self.requests);
    }

    pub(crate) fn departed(&mut self, requests: usize) {
        self.batches += 1;
        self.requests += requests;
    }

    /// A batch is no longer under way, and if it was answered it arrived like this.
    pub(crate) fn arrived(&mut self, requests: usize, trip: Option<Trip>) {
        self.batches -= 1;
        self.requests -= requests;
        let Some(trip) = trip else { return };
        self.shared = if trip.is_shared {
            SHARED
        } else {
            self.shared.saturating_sub(1)
        };
        if self.has_ways() {
            // What took longer waited for something else.
            let time = (trip.waited + trip.took).min(4 * self.trip.max(SPIN));
            self.trial.saw(time, requests, self.demand.share());
        }
        let trip = trip.took;
        // The shorter at once and the longer slowly: what is looked for is the wire, not the queue.
        let longer = trip.saturating_sub(self.trip);
        self.trip = if self.trip.is_zero() {
            trip
        } else {
            trip.min(self.trip + longer / 64)
        };
    }

    /// Whether one more batch may be under way. A full one has all the company there is.
    pub(crate) fn is_free(&self, is_full: bool) -> bool {
        let slots = if self.trip < AT_ONCE || self.travels_alone() || is_full {
            SLOTS
        } else {
            let by_trip = self.trip.as_nanos() / COMPANY.as_nanos();
            by_trip.clamp(BUSY as u128, SLOTS as u128) as usize
        };
        self.batches < slots
    }

    /// Whether a request is better sent with those that are about to come. Alone it waits for nobody.
    pub(crate) fn gathers(&self) -> bool {
        self.batches > 0 && !self.travels_alone()
    }

    /// Whether the answer to what was sent so long ago is worth waiting for awake.
    pub(crate) fn is_due(&self, age: Duration) -> bool {
        age < SPIN && self.trip < SPIN && self.has_ways() && self.trial.way() == Way::Awake
    }

    /// Many always travel together, and to memory there is no way. Whoever meets other processes at a key leaves the
    /// processor to them.
    fn has_ways(&self) -> bool {
        self.trip >= AT_ONCE && !self.is_serial && self.shared == 0 && self.demand.is_small()
    }

    fn travels_alone(&self) -> bool {
        let is_together = self.has_ways() && self.trial.way() == Way::Together;
        self.demand.is_small() && !is_together && (!self.is_serial || self.trip >= SPIN)
    }
}

/// How many requests there are at once lately, waiting and under way. In sixty-fourths: it rises at once and falls
/// slowly, as a batch that comes back takes all of its requests along.
#[derive(Debug, Default)]
struct Demand(usize);

impl Demand {
    fn saw(&mut self, requests: usize) {
        let now = 64 * requests;
        self.0 = now.max(self.0 - self.0.saturating_sub(now).div_ceil(64));
    }

    fn is_small(&self) -> bool {
        self.0 <= 64 * ALONE
    }

    /// What one request is of all, in parts of [`ALONE`].
    fn share(&self) -> u32 {
        (64 * ALONE / self.0.max(64)).max(1) as u32
    }
}

/// Finds out which way is the shortest: tries each in turn and keeps to what was best, until it tries again.
#[derive(Debug, Default)]
struct Trial {
    /// How long requests took by each way, by their share.
    times: [Duration; 3],
    /// Requests since the trial began, by their share.
    requests: u32,
    /// What was best before, and for how long it was done.
    before: Option<(Way, u32)>,
}

impl Trial {
    const WAYS: [Way; 3] = [Way::Awake, Way::Alone, Way::Together];

    /// So many requests took so long, each.
    fn saw(&mut self, time: Duration, requests: usize, share: u32) {
        let weight = share * requests as u32;
        if let Some(sum) = self.times.get_mut((self.requests / TRIAL) as usize) {
            *sum += time * weight;
        }
        self.requests += weight;
        let term = self.term();
        if self.requests >= 3 * TRIAL + term {
            *self = Trial {
                before: Some((self.way(), term)),
                ..Trial::default()
            };
        }
    }

    fn term(&self) -> u32 {
        match self.before {
            Some((way, term)) if way == self.way() => (2 * term).min(LONGEST_TERM),
            _ => TERM,
        }
    }

    fn way(&self) -> Way {
        if let Some(way) = Self::WAYS.get((self.requests / TRIAL) as usize) {
            return *way;
        }
        // What is dearer must be shorter by more than next to nothing.
        let [awake, alone, together] = self.times;
        let is_worth = |dearer: Duration, cheaper: Duration| dearer * 32 < cheaper * 31;
        if is_worth(awake, alone.min(together)) {
            Way::Awake
        } else if is_worth(alone, together) {
            Way::Alone
        } else {
            Way::Together
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_micros(60);
    const FAR: Duration = Duration::from_millis(2);

    fn trip_of(took: Duration) -> Trip {
        Trip {
            took,
            waited: Duration::ZERO,
            is_shared: false,
        }
    }

    /// So many tasks that ask, each again when it is answered, in batches of `size`.
    fn traffic(tasks: usize, size: usize, trip: Duration) -> Traffic {
        traffic_on(2, tasks, size, trip)
    }

    fn traffic_on(processors: usize, tasks: usize, size: usize, trip: Duration) -> Traffic {
        let mut traffic = Traffic::new(processors);
        for _ in 0..20 {
            for waiting in 1..=tasks {
                traffic.wanted(waiting);
            }
            let batches = tasks.div_ceil(size);
            (0..batches).for_each(|_| traffic.departed(size));
            (0..batches).for_each(|_| traffic.arrived(size, Some(trip_of(trip))));
        }
        traffic
    }

    #[test]
    fn few_travel_alone_and_many_in_company() {
        let mut few = traffic(10, 1, NEAR);
        few.departed(1);
        assert!(!few.gathers());
        (0..9).for_each(|_| few.departed(1));
        assert!(few.is_free(false), "each of them has a batch");
        let mut many = traffic(100, 25, NEAR);
        assert!(!many.gathers(), "the first waits for nobody");
        many.departed(25);
        assert!(many.gathers());
        (1..BUSY).for_each(|_| many.departed(25));
        assert!(!many.is_free(false), "the others wait for company");
        assert!(many.is_free(true), "which a full batch has");
    }

    #[test]
    fn a_lull_does_not_part_who_travel_together() {
        let mut many = traffic(100, 25, NEAR);
        many.departed(1);
        for _ in 0..20 {
            many.wanted(1);
        }
        assert!(
            many.gathers(),
            "a batch came back, and its tasks are about to ask again"
        );
        for _ in 0..1_000 {
            many.wanted(1);
        }
        assert!(!many.gathers(), "they are gone for good");
    }

    #[test]
    fn on_a_long_wire_all_slots_are_used() {
        let mut many = traffic(1_000, 100, FAR);
        (0..SLOTS - 1).for_each(|_| many.departed(100));
        assert!(many.is_free(false));
        many.departed(100);
        assert!(!many.is_free(true), "but no more than those");
    }

    #[test]
    fn only_a_near_server_is_waited_for_awake_and_not_for_long() {
        let at_once = Duration::ZERO;
        assert!(!Traffic::default().is_due(at_once), "nobody knows how far it is");
        assert!(traffic(1, 1, NEAR).is_due(at_once), "it is tried");
        assert!(!traffic(1, 1, NEAR).is_due(SPIN), "it takes longer than expected");
        assert!(!traffic(1, 1, FAR).is_due(at_once));
        assert!(!traffic(100, 25, NEAR).is_due(at_once));
    }

    #[test]
    fn who_shares_a_processor_with_the_server_leaves_it_to_the_server() {
        let mut one = traffic_on(1, 10, 1, NEAR);
        assert!(!one.is_due(Duration::ZERO));
        one.departed(1);
        assert!(one.gathers());
        let mut far = traffic_on(1, 10, 1, FAR);
        far.departed(1);
        assert!(!far.gathers(), "that server has a processor of its own");
    }

    #[test]
    fn who_shares_a_key_with_another_process_leaves_it_the_processor() {
        let mut traffic = traffic(1, 1, NEAR);
        traffic.departed(1);
        traffic.arrived(
            1,
            Some(Trip {
                is_shared: true,
                ..trip_of(NEAR)
            }),
        );
        for _ in 0..SHARED {
            assert!(!traffic.is_due(Duration::ZERO));
            traffic.departed(1);
            traffic.arrived(1, Some(trip_of(NEAR)));
        }
        assert!(traffic.is_due(Duration::ZERO));
    }

    /// What is done after a trial of so many tasks, in which the ways took so long.
    fn found(tasks: usize, awake: Duration, alone: Duration, together: Trip) -> Way {
        let mut traffic = traffic(tasks, 1, NEAR);
        traffic.trial = Trial::default();
        let share = traffic.demand.share() as usize;
        for _ in 0..3 * TRIAL as usize / share {
            let way = traffic.trial.way();
            traffic.departed(1);
            assert_eq!(traffic.is_due(Duration::ZERO), way == Way::Awake);
            assert_eq!(traffic.gathers(), way == Way::Together);
            let trip = match way {
                Way::Awake => trip_of(awake),
                Way::Alone => trip_of(alone),
                Way::Together => together,
            };
            traffic.arrived(1, Some(trip));
        }
        let way = traffic.trial.way();
        for _ in 0..TERM as usize / share - 1 {
            traffic.departed(1);
            traffic.arrived(1, Some(trip_of(NEAR)));
            assert_eq!(traffic.trial.way(), way);
        }
        way
    }

    #[test]
    fn who_spins_in_vain_stops() {
        let us = Duration::from_micros;
        let found = |awake, alone| found(1, awake, alone, trip_of(alone));
        assert_eq!(found(us(40), us(70)), Way::Awake);
        assert_ne!(
            found(us(70), us(40)),
            Way::Awake,
            "somebody else needs the processor"
        );
        assert_ne!(found(us(69), us(70)), Way::Awake, "not worth a processor");
    }

    #[test]
    fn few_travel_together_where_that_is_shorter() {
        let us = Duration::from_micros;
        let together = |waited, took| Trip {
            waited: us(waited),
            ..trip_of(us(took))
        };
        assert_eq!(found(10, us(70), us(60), together(10, 30)), Way::Together);
        assert_eq!(found(10, us(70), us(60), together(40, 30)), Way::Alone);
        assert_eq!(found(10, us(30), us(60), together(10, 30)), Way::Awake);
        assert_eq!(found(10, us(60), us(60), together(30, 30)), Way::Together);
    }

    #[test]
    fn what_was_not_best_is_tried_again() {
        let mut trial = Trial::default();
        let mut round = |awake, alone| {
            (0..TRIAL).for_each(|_| trial.saw(awake, 1, 1));
            (0..TRIAL).for_each(|_| trial.saw(alone, 1, 1));
            (0..TRIAL).for_each(|_| trial.saw(FAR, 1, 1));
            let way = trial.way();
            (0..TERM).for_each(|_| trial.saw(FAR, 1, 1));
            way
        };
        assert_eq!(round(NEAR, NEAR), Way::Alone);
        assert_eq!(round(NEAR, 2 * NEAR), Way::Awake);
        assert_eq!(round(2 * NEAR, NEAR), Way::Alone);
    }

    #[test]
    fn what_is_best_again_is_done_for_longer() {
        let mut trial = Trial::default();
        let mut trials = |awake| {
            for time in [awake, 2 * NEAR, 2 * NEAR] {
                (0..TRIAL).for_each(|_| trial.saw(time, 1, 1));
            }
            let mut term = 0;
            while trial.requests > 0 {
                trial.saw(FAR, 1, 1);
                term += 1;
            }
            term
        };
        assert_eq!(trials(NEAR), TERM);
        assert_eq!(trials(NEAR), 2 * TERM);
        (0..10).for_each(|_| assert!(trials(NEAR) <= LONGEST_TERM));
        assert_eq!(trials(NEAR), LONGEST_TERM);
        assert_eq!(trials(3 * NEAR), TERM, "another is best now");
    }

    #[test]
    fn one_slow_answer_does_not_make_a_wire_long() {
        let mut near = traffic(1, 1, NEAR);
        near.departed(1);
        near.arrived(1, Some(trip_of(FAR)));
        assert!(near.is_due(Duration::ZERO));
        for _ in 0..200 {
            near.departed(1);
            near.arrived(1, Some(trip_of(FAR)));
        }
        assert!(!near.is_due(Duration::ZERO), "the server moved away");
    }
}
