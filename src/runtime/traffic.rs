//! How busy a connection is and how far its server, and what follows from it: how many batches may be under way,
//! whether a request waits for company, and whether its caller waits awake.
//!
//! Pure: what happened is told to it. The figures were found with `cargo bench --bench redis`.

use std::time::Duration;

/// Batches under way per connection, at the most.
const SLOTS: usize = 16;
/// And so many at least, so that neither side sleeps while the other works: with one at a time the wake-ups on both
/// sides were most of a round trip on loopback.
const BUSY: usize = 4;
/// Up to so many requests at once each travel in a batch of their own. Company would make each cheaper, but one has to
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
/// But only where a processor is idle. Where none is, whoever spins keeps the server from answering: round trips doubled
/// beside a single busy process on a machine of two processors. So it is tried: for this many batches of a lone caller,
/// and for as many without. Of many callers the batches count for less, as together they take as long.
const TRIAL: u32 = 128 * ALONE as u32;
/// And what was better is done for so many.
const TERM: u32 = 16 * TRIAL;
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
    spinning: Spinning,
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

    /// A batch is no longer under way. `trip` is how long its answer took, and whether it met another claim.
    pub(crate) fn arrived(&mut self, requests: usize, trip: Option<(Duration, bool)>) {
        self.batches -= 1;
        self.requests -= requests;
        let Some((trip, is_shared)) = trip else { return };
        self.shared = if is_shared {
            SHARED
        } else {
            self.shared.saturating_sub(1)
        };
        if self.may_pay() {
            self.spinning.saw(trip, self.demand.share());
        }
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
        age < SPIN && self.may_pay() && self.spinning.pays()
    }

    /// Where many ask, whoever spins keeps the others from their work.
    fn may_pay(&self) -> bool {
        let is_near = !self.trip.is_zero() && self.trip < SPIN;
        is_near && !self.is_serial && self.shared == 0 && self.demand.is_small()
    }

    fn travels_alone(&self) -> bool {
        self.demand.is_small() && (!self.is_serial || self.trip >= SPIN)
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

/// Finds out whether spinning makes round trips shorter: tries both in turn and keeps to what was better, until it
/// tries again.
#[derive(Debug, Default)]
struct Spinning {
    /// Batches since the last trial began, by their share.
    batches: u32,
    awake: Duration,
    asleep: Duration,
}

impl Spinning {
    fn saw(&mut self, trip: Duration, share: u32) {
        // What took longer waited for something else.
        let trip = trip.min(4 * SPIN) * share;
        match self.batches {
            0..TRIAL => self.awake += trip,
            n if n < 2 * TRIAL => self.asleep += trip,
            _ => {}
        }
        self.batches += share;
        if self.batches >= 2 * TRIAL + TERM {
            *self = Spinning::default();
        }
    }

    /// It costs a processor, so next to nothing is not enough.
    fn pays(&self) -> bool {
        match self.batches {
            0..TRIAL => true,
            n if n < 2 * TRIAL => false,
            _ => self.awake * 32 < self.asleep * 31,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_micros(60);
    const FAR: Duration = Duration::from_millis(2);

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
            (0..batches).for_each(|_| traffic.arrived(size, Some((trip, false))));
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
        (0..3).for_each(|_| many.departed(25));
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
        traffic.arrived(1, Some((NEAR, true)));
        for _ in 0..SHARED {
            assert!(!traffic.is_due(Duration::ZERO));
            traffic.departed(1);
            traffic.arrived(1, Some((NEAR, false)));
        }
        assert!(traffic.is_due(Duration::ZERO));
    }

    /// Round trips on a server that is waited for awake and asleep; how many of the last thousand were spun for.
    fn spun(awake: Duration, asleep: Duration) -> usize {
        let mut traffic = traffic(1, 1, NEAR);
        traffic.spinning = Spinning::default();
        let mut spun = 0;
        let trials = 2 * TRIAL / ALONE as u32;
        for n in 0..trials + 1_000 {
            traffic.departed(1);
            let spins = traffic.is_due(Duration::ZERO);
            spun += usize::from(n >= trials && spins);
            traffic.arrived(1, Some((if spins { awake } else { asleep }, false)));
        }
        spun
    }

    #[test]
    fn who_spins_in_vain_stops() {
        let us = Duration::from_micros;
        assert_eq!(spun(us(40), us(70)), 1_000);
        assert_eq!(spun(us(70), us(40)), 0, "somebody else needs the processor");
        assert_eq!(spun(us(69), us(70)), 0, "not worth a processor");
    }

    #[test]
    fn what_did_not_pay_is_tried_again() {
        let mut spinning = Spinning::default();
        let mut round = |awake, asleep| {
            (0..TRIAL).for_each(|_| spinning.saw(awake, 1));
            (0..TRIAL).for_each(|_| spinning.saw(asleep, 1));
            let pays = spinning.pays();
            (0..TERM).for_each(|_| spinning.saw(FAR, 1));
            pays
        };
        assert!(!round(NEAR, NEAR));
        assert!(round(NEAR, 2 * NEAR));
        assert!(!round(2 * NEAR, NEAR));
    }

    #[test]
    fn one_slow_answer_does_not_make_a_wire_long() {
        let mut near = traffic(1, 1, NEAR);
        near.departed(1);
        near.arrived(1, Some((FAR, false)));
        assert!(near.is_due(Duration::ZERO));
        for _ in 0..200 {
            near.departed(1);
            near.arrived(1, Some((FAR, false)));
        }
        assert!(!near.is_due(Duration::ZERO), "the server moved away");
    }
}
