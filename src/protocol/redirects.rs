//! Requests that a server did not execute because it does not serve their name, and when they are asked for again.

use std::time::Duration;

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{ClaimReply, Executed, LeaveReply, Redirect, Reply, Request};
use crate::protocol::time::Instant;

/// The bounds of the first pause before a request is asked for again while its name is on its way to another server.
const FIRST_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(60));
/// The bounds of the longest such pause.
const LONGEST_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));

/// When a redirected request is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskAgain {
    AtOnce,
    /// After a pause within these bounds.
    AfterPause((Duration, Duration)),
}

/// The redirections of one key since the last answer about it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Redirects {
    /// When the first of them came; `None` after an answer.
    since: Option<Instant>,
    /// Set after a redirection to a known server. Two servers may name each other, so the next one is not followed at
    /// once.
    has_moved: bool,
}

impl Redirects {
    /// Notes why a request has no answer. Returns when it is asked for again if this is no failure: it is one only after
    /// the key was redirected for a third of a lease. The first `MOVED` is followed even then.
    pub(crate) fn note(&mut self, now: Instant, lease: Duration, executed: Executed) -> Option<AskAgain> {
        let Executed::Elsewhere(redirect) = executed else {
            return None;
        };
        let since = *self.since.get_or_insert(now);
        // The end of a move that took longer is no failure either.
        if redirect == Redirect::Moved && !std::mem::replace(&mut self.has_moved, true) {
            return Some(AskAgain::AtOnce);
        }
        if now < since + lease / 3 {
            return Some(AskAgain::AfterPause(pauses(now.since(since))));
        }
        // The next caller has a third of a lease of its own.
        self.end();
        None
    }

    /// Notes an answer.
    pub(crate) fn end(&mut self) {
        *self = Redirects::default();
    }
}

/// Returns the bounds of the pause of a request whose key has been redirected for this long.
///
/// Each call of a key asks again by itself, and a slot may be on its way for seconds. So the pause grows with the time,
/// up to that of a waiter that expects no push.
fn pauses(redirected_for: Duration) -> (Duration, Duration) {
    let grown = redirected_for / 4;
    let shortest = grown.clamp(FIRST_PAUSES.0, LONGEST_PAUSES.0);
    (shortest, grown.clamp(FIRST_PAUSES.1, LONGEST_PAUSES.1))
}

/// What a server of a cluster says instead of executing a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotRefusal {
    /// Another server serves the slot (`MOVED`).
    Moved,
    /// The slot is on its way, and the names are not here (`ASK`).
    Ask,
    /// The slot is on its way, and some of the names are not here (`TRYAGAIN`).
    TryAgain,
    /// No server serves the slot (`CLUSTERDOWN`).
    Down,
}

/// A server of a slot that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The server that the slot leaves.
    Source,
    /// The server that the slot moves to.
    Target,
}

/// What happens to a request whose script was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The request was not executed, and its machine is told so.
    Report(Redirect),
    /// The request is executed with its record alone.
    Alone(Side),
}

/// Returns what happens to a request whose script a server refused.
///
/// Scripts need several names of a key. While a slot is on its way some of them are missing, and every lease of the slot
/// would end if it could not be renewed. So an owner's renewal or leave falls back to its record alone, at the source and
/// then at the target.
pub fn after_script(request: &Request, said: SlotRefusal) -> Fallback {
    match said {
        SlotRefusal::Moved => Fallback::Report(Redirect::Moved),
        SlotRefusal::Ask | SlotRefusal::TryAgain if request.needs_record_only() => {
            Fallback::Alone(Side::Source)
        }
        SlotRefusal::Ask | SlotRefusal::TryAgain | SlotRefusal::Down => Fallback::Report(Redirect::Pending),
    }
}

/// Returns what happens to a request that a server refused to execute with its record alone.
pub fn after_alone(at: Side, said: SlotRefusal) -> Fallback {
    match (at, said) {
        (_, SlotRefusal::Moved) => Fallback::Report(Redirect::Moved),
        (Side::Source, SlotRefusal::Ask) => Fallback::Alone(Side::Target),
        _ => Fallback::Report(Redirect::Pending),
    }
}

/// Returns whether a reply to a request that was executed with its record alone is believed. If not, the request counts as
/// not executed.
///
/// The source may lack the record because the target has it. And a leave may be that of a waiter, which has no record.
pub fn is_believed(at: Side, reply: &Reply, plant: Plant) -> bool {
    match reply {
        Reply::Claim(ClaimReply::Gone) => at == Side::Target || plant.is(Flaw::GoneBelievedFromSource),
        Reply::Leave(LeaveReply::NotThere) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_is_a_failure_after_a_third_of_a_lease() {
        let (begin, lease) = (Instant::from_nanos(5), Duration::from_secs(3));
        let [moved, pending] = [Redirect::Moved, Redirect::Pending].map(Executed::Elsewhere);
        let after = |from, to| AskAgain::AfterPause((Duration::from_millis(from), Duration::from_millis(to)));
        let mut redirects = Redirects::default();
        let mut note =
            |after, executed| redirects.note(begin + Duration::from_millis(after), lease, executed);
        assert_eq!(note(0, pending), Some(after(20, 60)));
        // The pause grows, up to a limit.
        assert_eq!(note(160, pending), Some(after(40, 60)));
        assert_eq!(note(600, pending), Some(after(100, 150)));
        assert_eq!(note(996, pending), Some(after(100, 249)));
        assert_eq!(note(1_000, pending), None);
        // The next caller waits again.
        assert_eq!(note(1_001, pending), Some(after(20, 60)));
        // The move ends.
        assert_eq!(note(2_500, moved), Some(AskAgain::AtOnce));
        assert_eq!(note(2_501, moved), None);
        // After an answer, two servers name each other.
        redirects.end();
        let mut note =
            |after, executed| redirects.note(begin + Duration::from_millis(after), lease, executed);
        assert_eq!(note(5_000, moved), Some(AskAgain::AtOnce));
        assert_eq!(note(5_001, moved), Some(after(20, 60)));
        assert_eq!(note(6_000, moved), None);
    }
}
