//! Watching: who waits for news of a key, and wants no lease of it.
//!
//! All of this process who ask the same share one question to the store. It is asked at once for whoever comes, then at an
//! interval, a third of a lease, until the store has something else to say than
//! [`Watching`](crate::protocol::message::Reply::Watching). The store pushes when there is news, which makes us look at once;
//! nothing depends on that.

use std::collections::BTreeMap;
use std::mem;

use crate::error::StoreError;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claim::Claimant;
use crate::protocol::key::context::StepContext;
use crate::protocol::key::failing::Failing;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::key::line::Caller;
use crate::protocol::key::renewal::LONGEST_RETRY;
use crate::protocol::key::watch::Watch;
use crate::protocol::message::{ClaimNumber, GrantNumber, Question, Reply, Unanswered};
use crate::protocol::step::{AcquireError, Effect, InboxState, KeyEvent, LockOptions, Ticket, ms};
use crate::protocol::time::Instant;

impl<P: Plant> KeyState<P> {
    /// Somebody wants news.
    pub(crate) fn watch(&mut self, cx: &mut StepContext<'_>, caller: Caller, question: Question) {
        let (watching, options) = (self.watching(), caller.options);
        let denial = if watching >= options.limit {
            Some(AcquireError::QueueFull { waiting: watching })
        } else {
            options.node_is_full.then_some(AcquireError::NodeFull)
        };
        match denial {
            Some(denial) => cx.effects.push(Effect::Denied(caller.ticket, denial)),
            None => {
                let third = cx.now + caller.lease() / 3;
                let watch = self.watch_of(question, None);
                watch.callers.insert(caller.ticket, caller);
                // The others may have longer leases.
                watch.look_by(third);
            }
        }
    }

    /// How many do.
    fn watching(&self) -> usize {
        self.watches.iter().map(|watch| watch.callers.len()).sum()
    }

    /// Those who ask that; when there are none, as new ones that are due then.
    fn watch_of(&mut self, question: Question, due: Option<Instant>) -> &mut Watch {
        let mut watches = self.watches.iter();
        let at = watches.position(|watch| watch.question == question);
        let at = at.unwrap_or_else(|| {
            self.watches.push(Watch::new(question, due));
            self.watches.len() - 1
        });
        &mut self.watches[at]
    }

    /// Somebody wants no news any more. False when there is nobody of that ticket.
    pub(crate) fn unwatch(&mut self, ticket: Ticket) -> bool {
        let mut watches = self.watches.iter_mut();
        watches.any(|watch| watch.callers.remove(&ticket).is_some())
    }

    /// Asks for those who wait for no moment and no answer. Those whom nobody wants any more are forgotten; what is under way
    /// for them is answered, and means nothing then.
    pub(crate) fn look_for_watchers(&mut self, cx: &mut StepContext<'_>) {
        self.watches.retain(|watch| !watch.callers.is_empty());
        for at in 0..self.watches.len() {
            let watch = &self.watches[at];
            if watch.asking.is_none()
                && watch.due.is_none()
                && let Some(term) = watch.term()
            {
                let question = watch.question;
                let number = self.claim(cx, Claimant::Watch(question), &LockOptions::new(term), false);
                self.watches[at].asking = Some(number);
            }
        }
    }

    /// When somebody looks next.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let asleep = self.watches.iter().filter(|watch| watch.asking.is_none());
        asleep.filter_map(|watch| watch.due).min()
    }

    /// What is due is looked at.
    pub(crate) fn wake_watchers(&mut self, now: Instant) {
        for watch in &mut self.watches {
            watch.due = watch.due.filter(|due| now < *due);
        }
    }

    /// There is news, or there may be.
    pub(crate) fn look_at_news(&mut self) {
        self.watches.iter_mut().for_each(Watch::look_now);
    }

    /// Whether news is pushed has changed, or some of it may have been missed.
    pub(crate) fn watch_inbox(&mut self, state: InboxState) {
        if state == InboxState::Confirmed {
            self.look_at_news();
        }
    }

    /// The store can be reached again.
    pub(crate) fn watch_reachable(&mut self) {
        let retries = self.watches.iter_mut().filter(|watch| watch.retries);
        retries.for_each(Watch::look_now);
    }

    /// Gives up all of them.
    pub(crate) fn close_watches(&mut self, cx: &mut StepContext<'_>) {
        for watch in mem::take(&mut self.watches) {
            let denied = watch.callers.into_keys();
            let closed = denied.map(|ticket| Effect::Denied(ticket, AcquireError::Closed));
            cx.effects.extend(closed);
        }
    }

    /// The answer to a question that was sent at `sent`. It is none to who came after that.
    pub(crate) fn looked(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        sent: Instant,
        reply: Reply,
    ) {
        self.claims.end(number);
        let believes_all = self.plant.planted(Flaw::OldLookBelieved);
        let Some(watch) = self.watch_asked_by(number) else {
            return;
        };
        (watch.failed_looks, watch.retries) = (0, false);
        let came_after = |caller: &Caller| caller.entered > sent && !believes_all;
        if let Reply::Watching(version) = reply {
            return self.nothing_new(cx, number, version, came_after);
        }
        watch.asking = None;
        let callers = mem::take(&mut watch.callers);
        let (later, told): (BTreeMap<_, _>, _) =
            callers.into_iter().partition(|(_, caller)| came_after(caller));
        watch.callers = later;
        watch.look_now();
        let answer = AcquireError::answer(reply);
        let denied = told.into_keys();
        cx.effects
            .extend(denied.map(|ticket| Effect::Denied(ticket, answer.clone())));
    }

    /// Whoever asked knows from now on what it waits to see changed, and asks with those who know the same.
    fn nothing_new(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        version: GrantNumber,
        came_after: impl Fn(&Caller) -> bool,
    ) {
        // That was told for sure: whoever gives up waiting has not waited in vain.
        self.taken = Some(cx.now);
        let push_alone = self.plant.planted(Flaw::WatchedByPushAlone);
        let Some(watch) = self.watch_asked_by(number) else {
            return;
        };
        watch.asking = None;
        let lease = ms(watch.term().map_or(0, |term| term.lease_ms));
        let mut next = cx.now + cx.source.jittered(lease / 3);
        if push_alone {
            next = Instant::from_nanos(u64::MAX);
        }
        let is_news = mem::take(&mut watch.look_again);
        let due = (!is_news).then_some(next);
        let knowing = watch.question.knowing(version);
        if knowing == watch.question {
            watch.due = due;
            return;
        }
        let callers = mem::take(&mut watch.callers);
        let (later, heard): (BTreeMap<_, _>, _) =
            callers.into_iter().partition(|(_, caller)| came_after(caller));
        watch.callers = later;
        watch.due = None;
        let known = self.watch_of(knowing, due);
        known.callers.extend(heard);
        if is_news {
            known.look_now();
        } else {
            known.look_by(next);
        }
    }

    fn watch_asked_by(&mut self, number: ClaimNumber) -> Option<&mut Watch> {
        let mut watches = self.watches.iter_mut();
        watches.find(|watch| watch.asking == Some(number))
    }

    /// A question came to nothing: whoever may still be answered in time has it asked again, the first time at once.
    pub(crate) fn look_failed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failing: &Failing) {
        let now = cx.now;
        let Some(watch) = self.watch_asked_by(number) else {
            return;
        };
        let lease = ms(watch.term().map_or(0, |term| term.lease_ms));
        watch.asking = None;
        watch.look_now();
        if failing.is_bystander(now, lease) {
            return;
        }
        watch.failed_looks += 1;
        let failed_looks = watch.failed_looks;
        watch.callers.retain(|ticket, caller| {
            let stays = failing.keeps_waiting(caller, failed_looks, now);
            if !stays {
                let error: StoreError = failing.told.clone();
                cx.effects
                    .push(Effect::Denied(*ticket, AcquireError::Store(error)));
            }
            stays
        });
        let is_first = failed_looks <= 1 && failing.why != Unanswered::Down && !failing.is_refused();
        if is_first || watch.callers.is_empty() {
            return;
        }
        let pause = (lease / 16).min(LONGEST_RETRY);
        watch.due = Some(now + cx.source.jittered(pause));
        watch.retries = true;
        let error = failing.error.clone();
        cx.event(KeyEvent::WaitFailed { error });
    }

    /// For whom a claim asks that is for those who watch.
    pub(crate) fn is_watched_by(&self, number: ClaimNumber) -> bool {
        self.watches.iter().any(|watch| watch.asking == Some(number))
    }
}
