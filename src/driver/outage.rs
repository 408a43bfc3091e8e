//! When a server fails, and when it is back: told once each, and what happens in between is counted.
//!
//! Two thousand leases that cannot be renewed are one outage. Each of them is told, too, but only to who listens at the
//! level of debugging.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::time::Instant;

/// A server that answers some requests and refuses others is back when it has refused none for so long. So is one that
/// fails again as soon after it was back.
const CALM: Duration = Duration::from_secs(5);

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A connection was given up, or could not be opened.
    Connection,
    /// A request was refused, or got no answer.
    Request,
    /// A caller was told that the store did not do it.
    Caller,
}

/// What happened meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) requests_failed: u64,
    pub(crate) callers_refused: u64,
    pub(crate) leases_lost: u64,
}

/// The failing of one server, as one node sees it.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Read before every request: nearly always there is none.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    on: Option<On>,
    /// When the last one was over.
    over: Option<Instant>,
    /// Since when the inbox is away, if that was told for itself.
    inbox_away: Option<Instant>,
}

#[derive(Debug)]
struct On {
    since: Instant,
    failed: Instant,
    /// When it answered first since it failed last.
    answered: Option<Instant>,
    /// It began right after the last one.
    is_again: bool,
    /// A connection was lost: the next one that answers ends it.
    by_connection: bool,
    cost: Cost,
}

impl Outage {
    /// True when it begins with this.
    pub(crate) fn failed(&self, now: Instant, what: Failed, error: &StoreError) -> bool {
        let mut state = self.lock();
        let over = state.over;
        let Some(on) = &mut state.on else {
            // The loss of its connection is told with that, and one that was closed while nobody used it is no trouble.
            let is_told_elsewhere = matches!(
                error.kind(),
                StoreErrorKind::Interrupted | StoreErrorKind::Unreachable
            );
            if what == Failed::Request && is_told_elsewhere {
                return false;
            }
            let is_again = over.is_some_and(|over| now.since(over) < CALM);
            let mut on = On {
                since: now,
                failed: now,
                answered: None,
                is_again,
                by_connection: false,
                cost: Cost::default(),
            };
            on.count(what);
            state.on = Some(on);
            self.is_on.store(true, Ordering::Release);
            return true;
        };
        (on.failed, on.answered) = (now, None);
        on.count(what);
        false
    }

    /// A lease was lost.
    pub(crate) fn lost_lease(&self) {
        if self.is_on()
            && let Some(on) = &mut self.lock().on
        {
            on.cost.leases_lost += 1;
        }
    }

    /// A batch was answered, and nothing of it was refused. If it is over with that: how long it was, and its cost.
    pub(crate) fn answered(&self, now: Instant) -> Option<(Duration, Cost)> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.lock();
        let on = state.on.as_mut()?;
        let answered = *on.answered.get_or_insert(now);
        if (on.is_again || !on.by_connection) && now.since(on.failed) < CALM {
            return None;
        }
        let told = (answered.since(on.since), on.cost);
        (state.on, state.over) = (None, Some(now));
        self.is_on.store(false, Ordering::Release);
        Some(told)
    }

    /// The inbox is away. True when that is news: nothing was told that explains it.
    pub(crate) fn inbox_lost(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_news = state.on.is_none() && state.inbox_away.is_none();
        if is_news {
            state.inbox_away = Some(now);
        }
        is_news
    }

    /// It is open. For how long it was away, if that was told.
    pub(crate) fn inbox_open(&self, now: Instant) -> Option<Duration> {
        let since = self.lock().inbox_away.take();
        since.map(|since| now.since(since))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }
}

impl On {
    fn count(&mut self, what: Failed) {
        match what {
            Failed::Connection => self.by_connection = true,
            Failed::Request => self.cost.requests_failed += 1,
            Failed::Caller => self.cost.callers_refused += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn error(kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, "it fails")
    }

    #[test]
    fn an_outage_begins_once_and_says_what_it_cost() {
        let outage = Outage::default();
        let error = error(StoreErrorKind::TimedOut);
        assert_eq!(outage.answered(at(0)), None);
        outage.lost_lease();
        assert!(outage.failed(at(10), Failed::Connection, &error));
        for _ in 0..3 {
            assert!(!outage.failed(at(20), Failed::Request, &error));
        }
        assert!(!outage.failed(at(30), Failed::Caller, &error));
        outage.lost_lease();
        let cost = Cost {
            requests_failed: 3,
            callers_refused: 1,
            leases_lost: 1,
        };
        let away = Duration::from_millis(1_490);
        assert_eq!(outage.answered(at(1_500)), Some((away, cost)));
        assert_eq!(outage.answered(at(1_501)), None);
    }

    #[test]
    fn a_server_that_answers_and_refuses_in_turn_is_one_outage() {
        use crate::error::StoreRefusal::OutOfMemory;
        let outage = Outage::default();
        let error = StoreError::refused(OutOfMemory);
        assert!(outage.failed(at(0), Failed::Request, &error));
        for n in 1..100 {
            assert_eq!(outage.answered(at(n * 1_000)), None);
            assert!(!outage.failed(at(n * 1_000 + 1), Failed::Caller, &error));
        }
        assert_eq!(outage.answered(at(100_000)), None);
        let (away, cost) = outage.answered(at(104_001)).unwrap();
        assert_eq!((away, cost.callers_refused), (Duration::from_secs(100), 99));
    }

    #[test]
    fn connections_that_open_and_break_in_turn_are_two_outages_at_the_most() {
        let outage = Outage::default();
        let error = error(StoreErrorKind::Interrupted);
        let mut begun = 0;
        for n in 0..100 {
            begun += u32::from(outage.failed(at(n * 1_000), Failed::Connection, &error));
            outage.answered(at(n * 1_000 + 500));
        }
        assert_eq!(begun, 2);
    }

    #[test]
    fn a_request_on_a_connection_that_was_closed_begins_none() {
        let outage = Outage::default();
        assert!(!outage.failed(at(0), Failed::Request, &error(StoreErrorKind::Interrupted)));
        assert!(outage.failed(at(0), Failed::Request, &error(StoreErrorKind::TimedOut)));
    }

    #[test]
    fn an_inbox_is_told_unless_an_outage_explains_it() {
        let outage = Outage::default();
        assert!(outage.inbox_lost(at(0)));
        assert!(!outage.inbox_lost(at(1)));
        assert_eq!(outage.inbox_open(at(5)), Some(Duration::from_millis(5)));
        assert!(outage.failed(at(10), Failed::Connection, &error(StoreErrorKind::Interrupted)));
        assert!(!outage.inbox_lost(at(11)));
        assert_eq!(outage.inbox_open(at(12)), None);
        assert!(!outage.inbox_lost(at(13)));
        assert!(outage.answered(at(14)).is_some());
        // It did not come back with the server.
        assert!(outage.inbox_lost(at(15)));
    }
}
