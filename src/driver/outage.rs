//! When a server fails, and when it is back: told once each, and what happens in between is counted.
//!
//! A connection and an inbox of one server break together. Whichever is noticed first, that is one outage, and it is over
//! when both work again. An inbox that is lost while its connection still answers is told for itself.
//!
//! Two thousand leases that cannot be renewed are one outage. Each of them is told, too, but only to who listens at the
//! level of debugging.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind};
use crate::observe::Recovery;
use crate::protocol::step::InboxState;
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

/// The failing of one server, as one node sees it: its connection and its inbox together.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Read before every request: nearly always there is none, and no inbox is in doubt.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    on: Option<On>,
    /// When the last one was over.
    over: Option<Instant>,
    inbox: InboxStory,
    /// Which run of the server answered last, where it says so.
    run_id: Option<Box<str>>,
}

/// What is told of the inbox.
#[derive(Debug, Default)]
struct InboxStory {
    is_open: bool,
    /// Grants were pushed before, and may not be pushed now.
    is_awaited: bool,
    /// It was lost, and the connection's next answer or failure says whether the server failed with it.
    doubt: Option<Doubt>,
    /// Since when it is away, if that was told for itself.
    away: Option<Instant>,
}

#[derive(Debug)]
struct Doubt {
    since: Instant,
    error: StoreError,
    /// It is open again, for so long it was not.
    lasted: Option<Duration>,
}

/// What the loss of an inbox means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboxLoss {
    /// It was told, or an outage explains it.
    Explained,
    /// The connection decides. `is_asked`: the session asks for a sign of life.
    Doubted {
        /// The session asks the connection for a sign of life, if there is one.
        is_asked: bool,
    },
    /// The inbox failed, and the server is well.
    Alone,
}

/// What an answer of the server puts an end to.
#[derive(Debug, Clone)]
pub(crate) enum Ended {
    /// The outage.
    Outage(Recovery),
    /// The doubt: only the inbox was lost, for this reason. For how long, if it is open again.
    Doubt(StoreError, Option<Duration>),
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
    /// What is told when it is over. Its length is known then.
    recovery: Recovery,
}

impl Outage {
    /// True when it begins with this. Why the inbox was lost, if that was in doubt.
    pub(crate) fn failed(
        &self,
        now: Instant,
        what: Failed,
        error: &StoreError,
    ) -> (bool, Option<StoreError>) {
        let mut state = lock(&self.state);
        if let Some(on) = &mut state.on {
            (on.failed, on.answered) = (now, None);
            on.count(what);
            return (false, None);
        }
        // The loss of its connection is told with that, and one that was closed while it was not used is no trouble.
        let is_told_elsewhere = matches!(
            error.kind(),
            StoreErrorKind::Interrupted | StoreErrorKind::Unreachable
        );
        if what == Failed::Request && is_told_elsewhere {
            return (false, None);
        }
        let doubt = state.inbox.doubt.take();
        let mut on = On {
            since: doubt.as_ref().map_or(now, |doubt| doubt.since),
            failed: now,
            answered: None,
            is_again: state.over.is_some_and(|over| now.since(over) < CALM),
            by_connection: false,
            recovery: Recovery::default(),
        };
        on.count(what);
        state.on = Some(on);
        state.inbox.away = None;
        self.is_on.store(true, Ordering::Release);
        (true, doubt.map(|doubt| doubt.error))
    }

    /// A lease was lost.
    pub(crate) fn lost_lease(&self) {
        if self.is_on()
            && let Some(on) = &mut lock(&self.state).on
        {
            on.recovery.leases_lost += 1;
        }
    }

    /// A batch that was sent at `sent` was answered, and nothing of it was refused.
    pub(crate) fn answered(&self, now: Instant, sent: Instant) -> Option<Ended> {
        if !self.is_on() {
            return None;
        }
        let mut state = lock(&self.state);
        if let Some(on) = &mut state.on {
            on.answered.get_or_insert(now);
            return self.end(&mut state, now);
        }
        // What was sent before may have been answered by a server that is gone since.
        let doubt = state.inbox.doubt.take_if(|doubt| sent >= doubt.since)?;
        state.inbox.away = doubt.lasted.is_none().then_some(doubt.since);
        self.is_on.store(false, Ordering::Release);
        Some(Ended::Doubt(doubt.error, doubt.lasted))
    }

    /// Ends it, when its connection answers and its inbox is open again.
    fn end(&self, state: &mut State, now: Instant) -> Option<Ended> {
        let on = state.on.as_ref()?;
        let answered = on.answered?;
        let is_young = (on.is_again || !on.by_connection) && now.since(on.failed) < CALM;
        if is_young || state.inbox.is_awaited && now.since(answered) < CALM {
            return None;
        }
        let away = answered.since(on.since);
        let recovery = Recovery { away, ..on.recovery };
        (state.on, state.over) = (None, Some(now));
        self.is_on.store(false, Ordering::Release);
        Some(Ended::Outage(recovery))
    }

    /// The inbox is lost, or was not opened. `is_decided`: the connection need not be asked what that means.
    pub(crate) fn inbox_lost(&self, now: Instant, error: &StoreError, is_decided: bool) -> InboxLoss {
        let mut state = lock(&self.state);
        let was_open = std::mem::take(&mut state.inbox.is_open);
        let InboxStory { doubt, away, .. } = &state.inbox;
        if state.on.is_some() || doubt.is_some() || away.is_some() {
            return InboxLoss::Explained;
        }
        if is_decided {
            state.inbox.away = Some(now);
            return InboxLoss::Alone;
        }
        state.inbox.doubt = Some(Doubt {
            since: now,
            error: error.clone(),
            lasted: None,
        });
        self.is_on.store(true, Ordering::Release);
        InboxLoss::Doubted { is_asked: was_open }
    }

    /// The inbox is open. For how long it was away, if that was told. Nothing is told now while that is in doubt.
    pub(crate) fn inbox_open(&self, now: Instant) -> Option<Option<Duration>> {
        let mut state = lock(&self.state);
        state.inbox.is_open = true;
        if let Some(doubt) = &mut state.inbox.doubt {
            doubt.lasted = Some(now.since(doubt.since));
            return None;
        }
        Some(state.inbox.away.take().map(|since| now.since(since)))
    }

    /// Whether grants are pushed has changed.
    pub(crate) fn inbox_state(&self, now: Instant, inbox: InboxState) -> Option<Ended> {
        let mut state = lock(&self.state);
        state.inbox.is_awaited = inbox == InboxState::Unconfirmed;
        if state.inbox.is_awaited {
            return None;
        }
        self.end(&mut state, now)
    }

    /// The inbox was lost, and its connection has not said yet what that means.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_on() && lock(&self.state).inbox.doubt.is_some()
    }

    /// That run of the server answers. True when it is another than before, and no outage is there to tell it.
    pub(crate) fn is_changed(&self, run_id: &str) -> bool {
        let mut state = lock(&self.state);
        let was = state.run_id.replace(run_id.into());
        if was.is_none_or(|was| *was == *run_id) {
            return false;
        }
        if let Some(on) = &mut state.on {
            on.recovery.is_another = true;
            return false;
        }
        // It explains why the inbox was lost.
        state.inbox.doubt = None;
        self.is_on.store(false, Ordering::Release);
        true
    }

    /// It fails, or its inbox is in doubt.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }
}

impl On {
    fn count(&mut self, what: Failed) {
        match what {
            Failed::Connection => self.by_connection = true,
            Failed::Request => self.recovery.requests_failed += 1,
            Failed::Caller => self.recovery.callers_refused += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use StoreErrorKind::{Interrupted, Refused, TimedOut};

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn error(kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, "it fails")
    }

    /// Begins with this, or does not.
    fn begins(outage: &Outage, ms: u64, what: Failed, kind: StoreErrorKind) -> bool {
        outage.failed(at(ms), what, &error(kind)).0
    }

    /// What is over with the answer to what was sent now.
    fn answered(outage: &Outage, ms: u64) -> Option<Recovery> {
        match outage.answered(at(ms), at(ms)) {
            Some(Ended::Outage(recovery)) => Some(recovery),
            Some(Ended::Doubt(error, _)) => panic!("{error}"),
            None => None,
        }
    }

    #[test]
    fn an_outage_begins_once_and_says_what_it_cost() {
        let outage = Outage::default();
        assert_eq!(answered(&outage, 0), None);
        outage.lost_lease();
        assert!(begins(&outage, 10, Failed::Connection, TimedOut));
        for _ in 0..3 {
            assert!(!begins(&outage, 20, Failed::Request, TimedOut));
        }
        assert!(!begins(&outage, 30, Failed::Caller, TimedOut));
        outage.lost_lease();
        let recovery = Recovery {
            away: Duration::from_millis(1_490),
            is_another: false,
            requests_failed: 3,
            callers_refused: 1,
            leases_lost: 1,
        };
        assert_eq!(answered(&outage, 1_500), Some(recovery));
        assert_eq!(answered(&outage, 1_501), None);
    }

    #[test]
    fn a_server_that_answers_and_refuses_in_turn_is_one_outage() {
        use crate::error::StoreRefusal::OutOfMemory;
        let (outage, kind) = (Outage::default(), Refused(OutOfMemory));
        assert!(begins(&outage, 0, Failed::Request, kind.clone()));
        for n in 1..100 {
            assert_eq!(answered(&outage, n * 1_000), None);
            assert!(!begins(&outage, n * 1_000 + 1, Failed::Caller, kind.clone()));
        }
        assert_eq!(answered(&outage, 100_000), None);
        let Recovery {
            away,
            callers_refused,
            ..
        } = answered(&outage, 104_001).unwrap();
        assert_eq!((away, callers_refused), (Duration::from_secs(100), 99));
    }

    #[test]
    fn connections_that_open_and_break_in_turn_are_two_outages_at_the_most() {
        let outage = Outage::default();
        let mut begun = 0;
        for n in 0..100 {
            begun += u32::from(begins(&outage, n * 1_000, Failed::Connection, Interrupted));
            answered(&outage, n * 1_000 + 500);
        }
        assert_eq!(begun, 2);
    }

    #[test]
    fn a_request_on_a_connection_that_was_closed_begins_none() {
        let outage = Outage::default();
        assert!(!begins(&outage, 0, Failed::Request, Interrupted));
        assert!(begins(&outage, 0, Failed::Request, TimedOut));
    }

    /// The connection decides what it means that the inbox is lost.
    #[test]
    fn an_inbox_that_is_lost_alone_is_told_when_the_connection_answers() {
        let outage = Outage::default();
        outage.inbox_open(at(0));
        let loss = |ms| outage.inbox_lost(at(ms), &error(Interrupted), false);
        assert_eq!(loss(10), InboxLoss::Doubted { is_asked: true });
        assert!(outage.inbox_state(at(10), InboxState::Unconfirmed).is_none());
        assert_eq!(loss(11), InboxLoss::Explained);
        // Sent before: the server may have ended since.
        assert!(outage.answered(at(12), at(9)).is_none());
        assert!(matches!(outage.answered(at(13), at(10)), Some(Ended::Doubt(..))));
        assert!(outage.answered(at(14), at(14)).is_none());
        assert_eq!(loss(15), InboxLoss::Explained);
        let away = |ms| Some(Duration::from_millis(ms));
        assert_eq!(outage.inbox_open(at(20)), Some(away(10)));
        assert_eq!(loss(30), InboxLoss::Doubted { is_asked: true });
        // It is open again before that is decided.
        assert_eq!(outage.inbox_open(at(35)), None);
        match outage.answered(at(36), at(30)) {
            Some(Ended::Doubt(_, lasted)) => assert_eq!(lasted, away(5)),
            other => panic!("{other:?}"),
        }
        assert!(!outage.is_on());
        assert_eq!(outage.inbox_open(at(40)), Some(None));
    }

    #[test]
    fn a_server_that_fails_with_its_inbox_is_one_outage_until_both_are_back() {
        let outage = Outage::default();
        outage.inbox_open(at(0));
        outage.inbox_lost(at(10), &error(Interrupted), false);
        outage.inbox_state(at(10), InboxState::Unconfirmed);
        assert!(outage.is_doubted());
        let (begins, inbox) = outage.failed(at(12), Failed::Connection, &error(Interrupted));
        assert!(begins && inbox.is_some());
        assert!(!outage.is_changed("first") && !outage.is_changed("second"));
        assert_eq!(answered(&outage, 100), None);
        assert_eq!(outage.inbox_open(at(150)), Some(None));
        match outage.inbox_state(at(150), InboxState::Confirmed) {
            Some(Ended::Outage(Recovery { away, is_another, .. })) => {
                assert_eq!((away, is_another), (Duration::from_millis(90), true));
            }
            other => panic!("{other:?}"),
        }
        // An inbox that does not come back is waited for no longer than this.
        assert!(
            outage
                .failed(at(9_000), Failed::Connection, &error(Interrupted))
                .0
        );
        outage.inbox_state(at(9_000), InboxState::Unconfirmed);
        assert_eq!(answered(&outage, 9_100), None);
        assert!(answered(&outage, 14_100).is_some());
    }

    #[test]
    fn another_run_of_the_server_is_told_unless_an_outage_tells_it() {
        let outage = Outage::default();
        assert!(!outage.is_changed("one") && !outage.is_changed("one"));
        assert!(outage.is_changed("other"));
        assert!(!outage.is_changed("other"));
        assert!(begins(&outage, 0, Failed::Connection, Interrupted));
        assert!(!outage.is_changed("third"));
    }
}
