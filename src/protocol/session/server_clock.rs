//! An estimate of a server's clock: until when a claim may be executed, and when it surely is no longer executed.

use std::time::Duration;

use crate::protocol::time::Instant;

/// One reading of the server's clock: it showed `time` at some moment between two local instants.
///
/// A claim carries a *not-after* in server time. A stalled server that reads the claim after its sender gave up
/// therefore ignores it. A claim without an answer is left once more when that instant has surely passed. Both bounds
/// allow for clock rates that differ by 2 %.
#[derive(Debug, Clone, Copy)]
pub struct ServerClock {
    time: u64,
    asked: Instant,
    heard: Instant,
}

impl ServerClock {
    /// Creates a reading: the server's clock showed `time` (in µs) between the local instants `asked` and `heard`.
    pub fn read(time: u64, asked: Instant, heard: Instant) -> Self {
        ServerClock { time, asked, heard }
    }

    /// Returns the later of two readings.
    pub fn younger(self, other: ServerClock) -> ServerClock {
        if other.asked >= self.asked { other } else { self }
    }

    /// Returns two bounds for a claim that is given up at `deadline`. The first is its not-after: the latest time (in
    /// µs) that the server's clock can show at `deadline`. The second is the local instant from which that time has
    /// surely passed on the server.
    pub fn bounds(&self, deadline: Instant) -> (u64, Instant) {
        let ahead = deadline.since(self.asked);
        let until = ahead + ahead / 50;
        let not_after = self
            .time
            .saturating_add(u64::try_from(until.as_micros()).unwrap_or(u64::MAX))
            .saturating_add(1);
        // The clock was read at `heard` at the latest, and it may run slower than the local clock.
        let late_after = self.heard + (until + until / 40) + Duration::from_micros(2);
        (not_after, late_after)
    }

    /// Returns a guess of the time (in µs) that the server's clock shows at `now`, which is not before the reading.
    pub(crate) fn guess(&self, now: Instant) -> u64 {
        let since = u64::try_from(now.since(self.asked).as_micros()).unwrap_or(u64::MAX);
        self.time.saturating_add(since)
    }

    /// Returns the earliest and the latest time (in µs) that the server's clock can show at a local instant.
    pub fn at(&self, instant: Instant) -> (u64, u64) {
        let (since_asked, since_heard) = (instant.since(self.asked), instant.since(self.heard));
        let (before_asked, before_heard) = (self.asked.since(instant), self.heard.since(instant));
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        // The clock was read at `heard` at the latest, and it may run slower or faster than the local clock.
        let earliest = self.time.saturating_add(us(since_heard - since_heard / 50));
        let earliest = earliest.saturating_sub(us(before_heard + before_heard / 40) + 2);
        let latest = self.time.saturating_add(us(since_asked + since_asked / 40) + 2);
        let latest = latest.saturating_sub(us(before_asked - before_asked / 40));
        (earliest, latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const ASKED: u64 = 700 * SECOND;
    const HEARD: u64 = ASKED + 300_000_000;

    /// Returns what a server's clock shows when the local clock shows `nanos`. It runs at `rate` thousandths of the
    /// local rate.
    fn server_us(nanos: u64, rate: u64) -> u64 {
        nanos / 1000 * rate / 1000
    }

    /// Returns readings that were requested at 700 s and answered 300 ms later. The servers' clocks run at several
    /// rates and are read after several delays. Each reading comes with its rate and the instant of reading.
    fn readings() -> impl Iterator<Item = (u64, u64, ServerClock)> {
        let rates = [980, 990, 1000, 1010, 1020].into_iter();
        let delays = rates.flat_map(|rate| [0, 5_000_000, 300_000_000].map(|delay| (rate, ASKED + delay)));
        delays.map(|(rate, read)| {
            let (asked, heard) = (Instant::from_nanos(ASKED), Instant::from_nanos(HEARD));
            (rate, read, ServerClock::read(server_us(read, rate), asked, heard))
        })
    }

    #[test]
    fn an_instant_lies_between_its_bounds() {
        for (rate, read, clock) in readings() {
            for instant in [0, 600, 699, 700, 701, 760, 4300].map(|at| at * SECOND) {
                let (since, until) = clock.at(Instant::from_nanos(instant));
                let time = server_us(instant, rate);
                assert!((since..=until).contains(&time), "{rate} {read} {instant}");
                let apart = instant.abs_diff(read) / 1000 / 16 + 310_000;
                assert!(until - since <= apart, "{rate} {read} {instant}");
            }
            // A latch that was set before the answer is older than each call after it.
            let (since, _) = clock.at(Instant::from_nanos(HEARD));
            assert!(since + 2 >= server_us(read, rate));
        }
    }

    #[test]
    fn a_claim_is_executed_before_it_is_given_up_and_never_after_it_counts_as_late() {
        for (rate, read, clock) in readings() {
            for age in [0, 1, 2, 60, 3600] {
                let deadline = HEARD + age * SECOND;
                let (not_after, late_after) = clock.bounds(Instant::from_nanos(deadline));
                assert!(
                    server_us(deadline, rate) <= not_after,
                    "refused before its deadline: {rate} {age}"
                );
                assert!(
                    server_us(late_after.as_nanos(), rate) > not_after,
                    "executed after it counted as late: {rate} {read} {age}"
                );
            }
        }
    }
}
