//! The outages of a server: when one begins, when it ends, and what it costs.
//!
//! The connection and the inbox of a server break together. The first loss that is noticed begins one outage, which
//! ends when both work again. If the inbox is lost while its connection still answers, the loss has an event of its
//! own.
//!
//! Two thousand leases that cannot be renewed are one outage. Each of them has its own event at level DEBUG.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::events::Counted;
use crate::driver::throttle::Throttle;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::observe::StoreRecovery;
use crate::protocol::step::InboxState;
use crate::protocol::time::Instant;

/// A server that answers some requests and refuses others counts as back when nothing was refused for this time. The
/// same time applies to a server that fails again this soon after its return.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A connection was given up, or could not be opened.
    Connection,
    /// A request was refused, or got no answer.
    Request,
    /// A caller got an error of the store.
    Caller,
}

/// The outages of one server, as one node sees them: of its connection and its inbox together.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Set during an outage, and while an inbox is in doubt. Read before every request; rarely set.
    is_on: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    ongoing: Option<OngoingOutage>,
    /// When the latest outage ended.
    ended_at: Option<Instant>,
    inbox: InboxHistory,
    /// The id of the server's run that answered last, if the server gives one.
    run_id: Option<Box<str>>,
    /// The reports of refusals that are no outage.
    refusals: Throttle,
}

/// What happened to the inbox.
#[derive(Debug, Default)]
struct InboxHistory {
    is_open: bool,
    /// Set if grants may not be pushed now.
    is_awaited: bool,
    /// Set when the inbox was lost, until the next answer or failure of the connection shows whether the server
    /// failed too.
    doubt: Option<InboxDoubt>,
    /// Since when the inbox is away, if its loss had an event of its own.
    away: Option<Instant>,
    /// Counts the inbox as lost until it is open.
    counted: Option<Counted>,
}

#[derive(Debug)]
struct InboxDoubt {
    since: Instant,
    error: StoreError,
    /// How long the inbox was away, if it is open again.
    lasted: Option<Duration>,
}

/// What the loss of an inbox means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboxLoss {
    /// The loss was reported, or an outage explains it.
    Explained,
    /// The connection decides.
    Doubted {
        /// Set if the session asks the connection, if there is one, for a sign of life.
        is_asked: bool,
    },
    /// The inbox failed, and the server is well.
    Alone,
}

/// What an answer of the server ends.
#[derive(Debug, Clone)]
pub(crate) enum OutageEnd {
    /// The outage.
    Outage(StoreRecovery),
    /// The doubt: only the inbox was lost, for this reason. The duration is that of the loss, if the inbox is open
    /// again.
    InboxOnly(StoreError, Option<Duration>),
}

#[derive(Debug)]
struct OngoingOutage {
    since: Instant,
    failed: Instant,
    /// When the server first answered after its latest failure.
    answered: Option<Instant>,
    /// Set if the outage began right after the previous one.
    is_again: bool,
    /// Set if a connection was lost: the next connection that answers ends the outage.
    by_connection: bool,
    /// Set if the report of the outage said that the server refuses this user.
    is_user_refused: bool,
    /// What is reported when the outage ends. Its length is known then.
    recovery: StoreRecovery,
    /// Counts the outage until it ends.
    counted: Option<Counted>,
}

impl Outage {
    /// Notes a failure. Returns whether it is reported, and why the inbox was lost, if that was in doubt. An outage is reported when
    /// it begins, and when it turns out that the server refuses this user: before, there was only a broken connection.
    pub(crate) fn failed(
        &self,
        now: Instant,
        what: FailureKind,
        error: &StoreError,
    ) -> (bool, Option<StoreError>) {
        use StoreRefusal::{NoAuth, NoPermission, WrongPassword};
        let refuses_user = matches!(
            error.kind(),
            StoreErrorKind::Refused(NoAuth | NoPermission | WrongPassword)
        );
        let mut state = lock(&self.state);
        if let Some(outage) = &mut state.ongoing {
            (outage.failed, outage.answered) = (now, None);
            outage.count(what);
            let is_news = refuses_user && !outage.is_user_refused;
            outage.is_user_refused |= refuses_user;
            return (is_news, None);
        }
        // The loss of the connection is reported by itself, and a connection that closed while it was idle is no
        // trouble.
        let is_reported_elsewhere = matches!(
            error.kind(),
            StoreErrorKind::Interrupted | StoreErrorKind::Unreachable
        );
        if what == FailureKind::Request && is_reported_elsewhere {
            return (false, None);
        }
        let doubt = state.inbox.doubt.take();
        let mut outage = OngoingOutage {
            since: doubt.as_ref().map_or(now, |doubt| doubt.since),
            failed: now,
            answered: None,
            is_again: state
                .ended_at
                .is_some_and(|ended_at| now.since(ended_at) < RECOVERY_TIME),
            by_connection: false,
            is_user_refused: refuses_user,
            recovery: StoreRecovery::default(),
            counted: None,
        };
        outage.count(what);
        state.ongoing = Some(outage);
        state.inbox.away = None;
        self.is_on.store(true, Ordering::Release);
        (true, doubt.map(|doubt| doubt.error))
    }

    /// Counts the outage, if it goes on, until it ends.
    pub(crate) fn count_outage(&self, counted: Counted) {
        if let Some(outage) = &mut lock(&self.state).ongoing {
            outage.counted = Some(counted);
        }
    }

    /// Counts the inbox as lost until it is open, if it is not.
    pub(crate) fn count_lost_inbox(&self, counted: Counted) {
        let inbox = &mut lock(&self.state).inbox;
        if !inbox.is_open {
            inbox.counted.get_or_insert(counted);
        }
    }

    /// Ends the counts. No caller needs this server any more.
    pub(crate) fn end_counts(&self) {
        let mut state = lock(&self.state);
        state.inbox.counted = None;
        if let Some(outage) = &mut state.ongoing {
            outage.counted = None;
        }
    }

    /// Counts a lost lease.
    pub(crate) fn lost_lease(&self) {
        if self.is_on()
            && let Some(outage) = &mut lock(&self.state).ongoing
        {
            outage.recovery.leases_lost += 1;
        }
    }

    /// Notes that a batch was answered, which was sent at `sent`, and that no request in it was refused.
    pub(crate) fn answered(&self, now: Instant, sent: Instant) -> Option<OutageEnd> {
        if !self.is_on() {
            return None;
        }
        let mut state = lock(&self.state);
        if let Some(outage) = &mut state.ongoing {
            outage.answered.get_or_insert(now);
            return self.end(&mut state, now);
        }
        // An earlier batch may have been answered by a server that has failed since.
        let doubt = state.inbox.doubt.take_if(|doubt| sent >= doubt.since)?;
        state.inbox.away = doubt.lasted.is_none().then_some(doubt.since);
        self.is_on.store(false, Ordering::Release);
        Some(OutageEnd::InboxOnly(doubt.error, doubt.lasted))
    }

    /// Ends the outage if the connection answers and the inbox is open again.
    fn end(&self, state: &mut OutageState, now: Instant) -> Option<OutageEnd> {
        let outage = state.ongoing.as_ref()?;
        let answered = outage.answered?;
        let is_young = (outage.is_again || !outage.by_connection) && now.since(outage.failed) < RECOVERY_TIME;
        if is_young || state.inbox.is_awaited && now.since(answered) < RECOVERY_TIME {
            return None;
        }
        let away = answered.since(outage.since);
        let recovery = StoreRecovery {
            away,
            ..outage.recovery
        };
        Some(self.close(state, now, recovery))
    }

    fn close(&self, state: &mut OutageState, now: Instant, recovery: StoreRecovery) -> OutageEnd {
        (state.ongoing, state.ended_at) = (None, Some(now));
        self.is_on.store(false, Ordering::Release);
        OutageEnd::Outage(recovery)
    }

    /// Ends the outage of a server that answers for no name any more.
    pub(crate) fn left(&self, now: Instant) -> Option<OutageEnd> {
        if !self.is_on() {
            return None;
        }
        let mut state = lock(&self.state);
        let outage = state.ongoing.as_ref()?;
        let recovery = StoreRecovery {
            away: now.since(outage.since),
            has_left: true,
            ..outage.recovery
        };
        Some(self.close(&mut state, now, recovery))
    }

    /// Notes that the inbox is lost, or was not opened. If `is_decided`, the connection need not be asked what that
    /// means.
    pub(crate) fn inbox_lost(&self, now: Instant, error: &StoreError, is_decided: bool) -> InboxLoss {
        let mut state = lock(&self.state);
        let was_open = std::mem::take(&mut state.inbox.is_open);
        let InboxHistory { doubt, away, .. } = &state.inbox;
        if state.ongoing.is_some() || doubt.is_some() || away.is_some() {
            return InboxLoss::Explained;
        }
        if is_decided {
            state.inbox.away = Some(now);
            return InboxLoss::Alone;
        }
        state.inbox.doubt = Some(InboxDoubt {
            since: now,
            error: error.clone(),
            lasted: None,
        });
        self.is_on.store(true, Ordering::Release);
        InboxLoss::Doubted { is_asked: was_open }
    }

    /// Notes that the inbox is open. Returns how long it was away, if its loss was reported; `None` while the loss is
    /// in doubt.
    pub(crate) fn inbox_open(&self, now: Instant) -> Option<Option<Duration>> {
        let mut state = lock(&self.state);
        state.inbox.is_open = true;
        state.inbox.counted = None;
        if let Some(doubt) = &mut state.inbox.doubt {
            doubt.lasted = Some(now.since(doubt.since));
            return None;
        }
        Some(state.inbox.away.take().map(|since| now.since(since)))
    }

    /// Notes whether grants are pushed.
    pub(crate) fn inbox_state(&self, now: Instant, inbox: InboxState) -> Option<OutageEnd> {
        let mut state = lock(&self.state);
        state.inbox.is_awaited = inbox == InboxState::Unconfirmed;
        if state.inbox.is_awaited {
            return None;
        }
        self.end(&mut state, now)
    }

    /// Returns whether the inbox was lost, and the connection has not yet shown what that means.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_on() && lock(&self.state).inbox.doubt.is_some()
    }

    /// Notes which run of the server answers. Returns whether the run is another one, and no outage reports that.
    pub(crate) fn is_changed(&self, run_id: &str) -> bool {
        let mut state = lock(&self.state);
        let was = state.run_id.replace(run_id.into());
        if was.is_none_or(|was| *was == *run_id) {
            return false;
        }
        if let Some(outage) = &mut state.ongoing {
            outage.recovery.is_another = true;
            return false;
        }
        // The change of the run explains the loss of the inbox.
        state.inbox.doubt = None;
        self.is_on.store(false, Ordering::Release);
        true
    }

    /// Returns whether no refusal that is no outage was reported within a minute, and notes that one is reported now.
    pub(crate) fn is_refusal_news(&self, now: Instant) -> bool {
        lock(&self.state).refusals.allow(now)
    }

    /// Returns whether the server fails, or its inbox is in doubt.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }
}

impl OngoingOutage {
    fn count(&mut self, what: FailureKind) {
        match what {
            FailureKind::Connection => self.by_connection = true,
            FailureKind::Request => self.recovery.requests_failed += 1,
            FailureKind::Caller => self.recovery.callers_refused += 1,
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

    /// Returns whether an outage begins with the failure.
    fn begins(outage: &Outage, ms: u64, what: FailureKind, kind: StoreErrorKind) -> bool {
        outage.failed(at(ms), what, &error(kind)).0
    }

    /// Returns the recovery that the answer to a batch of this moment completes.
    fn answered(outage: &Outage, ms: u64) -> Option<StoreRecovery> {
        match outage.answered(at(ms), at(ms)) {
            Some(OutageEnd::Outage(recovery)) => Some(recovery),
            Some(OutageEnd::InboxOnly(error, _)) => panic!("{error}"),
            None => None,
        }
    }

    #[test]
    fn an_outage_begins_once_and_says_what_it_cost() {
        let outage = Outage::default();
        assert_eq!(answered(&outage, 0), None);
        outage.lost_lease();
        assert!(begins(&outage, 10, FailureKind::Connection, TimedOut));
        for _ in 0..3 {
            assert!(!begins(&outage, 20, FailureKind::Request, TimedOut));
        }
        assert!(!begins(&outage, 30, FailureKind::Caller, TimedOut));
        outage.lost_lease();
        let recovery = StoreRecovery {
            away: Duration::from_millis(1_490),
            is_another: false,
            has_left: false,
            requests_failed: 3,
            callers_refused: 1,
            leases_lost: 1,
        };
        assert_eq!(answered(&outage, 1_500), Some(recovery));
        assert_eq!(answered(&outage, 1_501), None);
    }

    /// An outage begins by a broken connection, and the next one shows why.
    #[test]
    fn a_wrong_password_is_reported_once_although_the_outage_began_before() {
        use crate::error::StoreRefusal::{OutOfMemory, WrongPassword};
        let outage = Outage::default();
        assert!(begins(&outage, 0, FailureKind::Connection, Interrupted));
        assert!(!begins(
            &outage,
            10,
            FailureKind::Connection,
            Refused(OutOfMemory)
        ));
        assert!(begins(
            &outage,
            20,
            FailureKind::Connection,
            Refused(WrongPassword)
        ));
        assert!(!begins(
            &outage,
            30,
            FailureKind::Connection,
            Refused(WrongPassword)
        ));
        assert!(!begins(&outage, 40, FailureKind::Connection, Interrupted));
        assert!(!begins(
            &outage,
            50,
            FailureKind::Connection,
            Refused(WrongPassword)
        ));
    }

    #[test]
    fn the_outage_of_a_server_that_left_the_map_is_over() {
        let outage = Outage::default();
        assert!(outage.left(at(0)).is_none());
        assert!(begins(&outage, 10, FailureKind::Connection, TimedOut));
        let Some(OutageEnd::Outage(recovery)) = outage.left(at(300)) else {
            panic!("the outage goes on");
        };
        assert!(recovery.has_left && !outage.is_on());
        assert_eq!(recovery.away, Duration::from_millis(290));
        assert!(outage.left(at(301)).is_none());
    }

    #[test]
    fn a_server_that_answers_and_refuses_in_turn_is_one_outage() {
        use crate::error::StoreRefusal::OutOfMemory;
        let (outage, kind) = (Outage::default(), Refused(OutOfMemory));
        assert!(begins(&outage, 0, FailureKind::Request, kind.clone()));
        for n in 1..100 {
            assert_eq!(answered(&outage, n * 1_000), None);
            assert!(!begins(&outage, n * 1_000 + 1, FailureKind::Caller, kind.clone()));
        }
        assert_eq!(answered(&outage, 100_000), None);
        let StoreRecovery {
            away,
            callers_refused,
            ..
        } = answered(&outage, 104_001).unwrap();
        assert_eq!((away, callers_refused), (Duration::from_secs(100), 99));
    }

    #[test]
    fn connections_that_open_and_break_in_turn_are_at_most_two_outages() {
        let outage = Outage::default();
        let mut begun = 0;
        for n in 0..100 {
            begun += u32::from(begins(&outage, n * 1_000, FailureKind::Connection, Interrupted));
            answered(&outage, n * 1_000 + 500);
        }
        assert_eq!(begun, 2);
    }

    #[test]
    fn a_request_on_a_closed_connection_begins_no_outage() {
        let outage = Outage::default();
        assert!(!begins(&outage, 0, FailureKind::Request, Interrupted));
        assert!(begins(&outage, 0, FailureKind::Request, TimedOut));
    }

    /// The connection decides what the loss of the inbox means.
    #[test]
    fn an_inbox_that_is_lost_alone_is_reported_when_the_connection_answers() {
        let outage = Outage::default();
        outage.inbox_open(at(0));
        let loss = |ms| outage.inbox_lost(at(ms), &error(Interrupted), false);
        assert_eq!(loss(10), InboxLoss::Doubted { is_asked: true });
        assert!(outage.inbox_state(at(10), InboxState::Unconfirmed).is_none());
        assert_eq!(loss(11), InboxLoss::Explained);
        // The batch was sent before: the server may have failed since.
        assert!(outage.answered(at(12), at(9)).is_none());
        assert!(matches!(
            outage.answered(at(13), at(10)),
            Some(OutageEnd::InboxOnly(..))
        ));
        assert!(outage.answered(at(14), at(14)).is_none());
        assert_eq!(loss(15), InboxLoss::Explained);
        let away = |ms| Some(Duration::from_millis(ms));
        assert_eq!(outage.inbox_open(at(20)), Some(away(10)));
        assert_eq!(loss(30), InboxLoss::Doubted { is_asked: true });
        // The inbox is open again before the connection decides.
        assert_eq!(outage.inbox_open(at(35)), None);
        match outage.answered(at(36), at(30)) {
            Some(OutageEnd::InboxOnly(_, lasted)) => assert_eq!(lasted, away(5)),
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
        let (begins, inbox) = outage.failed(at(12), FailureKind::Connection, &error(Interrupted));
        assert!(begins && inbox.is_some());
        assert!(!outage.is_changed("first") && !outage.is_changed("second"));
        assert_eq!(answered(&outage, 100), None);
        assert_eq!(outage.inbox_open(at(150)), Some(None));
        match outage.inbox_state(at(150), InboxState::Confirmed) {
            Some(OutageEnd::Outage(StoreRecovery { away, is_another, .. })) => {
                assert_eq!((away, is_another), (Duration::from_millis(90), true));
            }
            other => panic!("{other:?}"),
        }
        // An outage waits no longer than this for an inbox.
        assert!(
            outage
                .failed(at(9_000), FailureKind::Connection, &error(Interrupted))
                .0
        );
        outage.inbox_state(at(9_000), InboxState::Unconfirmed);
        assert_eq!(answered(&outage, 9_100), None);
        assert!(answered(&outage, 14_100).is_some());
    }

    #[test]
    fn another_run_of_the_server_is_reported_unless_an_outage_reports_it() {
        let outage = Outage::default();
        assert!(!outage.is_changed("one") && !outage.is_changed("one"));
        assert!(outage.is_changed("other"));
        assert!(!outage.is_changed("other"));
        assert!(begins(&outage, 0, FailureKind::Connection, Interrupted));
        assert!(!outage.is_changed("third"));
    }
}
