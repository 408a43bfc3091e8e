//! Group commit: where many ask, what is asked while batches are under way travels in the next one.
//!
//! As a database commits its log: no timer, no latency when idle. Few travel as is quickest. On the callers' side there is
//! no courier task, which would cost two more wake-ups per request; the caller who finds a free slot sends for all who
//! queued, and polls its batch along with itself. A batch belongs to the courier, callers only help to poll it: one
//! whose caller is gone or asleep is finished by the keeper, and when its deadline passes the connection is given up.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::driver::events::DriverEvent;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::{BatchReply, Executed, Failure, Name, Request};
use crate::protocol::step::Outgoing;
use crate::protocol::time::Instant;
use crate::runtime::carriage::{Carriage, finish_all, is_broken};
use crate::runtime::node::{Node, Side};
use crate::runtime::server::Server;
use crate::runtime::slot::{Slot, lock};
use crate::runtime::traffic::{SPIN, Traffic, Trip};
use crate::store::{BoxFuture, Link, ServerId};

/// Requests per batch: about half a millisecond of a Redis server's time.
const CAP: usize = 128;
/// So many names are sooner compared with each other than hashed.
const FEW: usize = 16;
/// A batch is given this long at least; leases too short to save by then do not count.
const SHORTEST: Duration = Duration::from_millis(100);
/// After a failed attempt to connect, others within this time share its error.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// What waits or is under way on the callers' side for longer is looked after by the keeper.
const UNATTENDED: Duration = Duration::from_millis(10);

/// One connection to one server, and what waits to be sent on it.
#[derive(Debug)]
pub(crate) struct Courier {
    pub(crate) side: Side,
    pub(crate) route: ServerId,
    pub(crate) server: Arc<Server>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Item>,
    /// A caller is about to send for all. Should it fall asleep, the keeper does.
    gathers: bool,
    under_way: Vec<Arc<Carriage>>,
    traffic: Traffic,
    /// Until when a caller may spin. One is enough: whatever arrives, it keeps the runtime awake.
    spins_until: Option<Instant>,
    link: LinkState,
    generation: u64,
    refused: Option<(Instant, StoreError)>,
}

impl State {
    /// Whether one more batch may be under way.
    fn is_free(&self) -> bool {
        self.traffic.is_free(self.waiting.len() >= CAP)
    }

    /// How many of those that wait fit into one batch. It names a key once: a store may read all of its keys before it
    /// treats the first. And its keys are of one kind: a store may have other rules for another.
    fn load(&self) -> usize {
        let most = self.waiting.len().min(CAP);
        let all = || self.waiting.iter().map(|item| &item.outgoing.request.name);
        let kind = all().next().map(|name| name.kind);
        let names = || all().take(most).take_while(|name| Some(name.kind) == kind);
        if most <= FEW {
            let is_new = |(at, name): &(usize, &Name)| names().take(*at).all(|before| before != *name);
            return names().enumerate().take_while(is_new).count();
        }
        let mut seen = HashSet::with_capacity(most);
        names().take_while(|name| seen.insert(*name)).count()
    }
}

#[derive(Debug, Default)]
enum LinkState {
    #[default]
    None,
    Opening(Verdict),
    Open(Open),
}

/// Whether an attempt to connect succeeded, once that is known.
type Verdict = watch::Receiver<Option<Result<(), StoreError>>>;

#[derive(Debug, Clone)]
struct Open {
    link: Arc<dyn Link>,
    /// The runtime that drives it still runs.
    alive: Arc<AtomicBool>,
    /// Dropped with the last of this: then nobody needs to know any more.
    _wanted: watch::Sender<()>,
}

impl Open {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Item {
    outgoing: Outgoing,
    since: Instant,
    /// Who can be woken to send it.
    slot: Option<Arc<Slot>>,
}

/// See [`Courier::turn`].
pub(crate) enum Turn {
    Wait,
    /// Give way once, then send.
    Gather,
    Send,
}

impl Courier {
    pub(crate) fn new(side: Side, route: ServerId, server: Arc<Server>) -> Self {
        Courier {
            side,
            route,
            server,
            state: Mutex::new(State {
                traffic: Traffic::new(available_parallelism().map_or(1, usize::from)),
                ..State::default()
            }),
        }
    }

    pub(crate) fn take(&self, outgoing: Outgoing, since: Instant, slot: Option<Arc<Slot>>) {
        let mut state = lock(&self.state);
        state.waiting.push_back(Item {
            outgoing,
            since,
            slot,
        });
        let waiting = state.waiting.len();
        state.traffic.wanted(waiting);
    }

    /// What a caller does whose request waits.
    ///
    /// Where many ask, and while batches are under way, one caller lets every task that can run go first, and sends for
    /// all of them: the answers that woke it woke others, and what they ask for travels along. Where few ask, that
    /// is done if it is quicker than each sending for itself.
    pub(crate) fn turn(&self, may_gather: bool) -> Turn {
        let mut state = lock(&self.state);
        if state.waiting.is_empty() || state.gathers || !state.is_free() {
            Turn::Wait
        } else if may_gather && state.traffic.gathers() {
            state.gathers = true;
            Turn::Gather
        } else {
            Turn::Send
        }
    }

    /// Whether a caller looks for its answer once more before it sleeps. `spins`: it did before.
    pub(crate) fn may_spin(&self, carriage: &Carriage, now: Instant, spins: bool) -> bool {
        let mut state = lock(&self.state);
        if !state.traffic.is_due(now.since(carriage.since)) {
            return false;
        }
        // One that is not polled any more keeps nobody else from it.
        let is_free = state.spins_until.is_none_or(|until| until <= now);
        if is_free {
            state.spins_until = Some(now + SPIN);
        }
        spins || is_free
    }

    pub(crate) fn stopped_spinning(&self) {
        lock(&self.state).spins_until = None;
    }

    /// Who was to send for all does not.
    pub(crate) fn gave_up_gathering(self: &Arc<Self>, node: &Arc<Node>) {
        lock(&self.state).gathers = false;
        self.pass_on(node);
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.waiting.is_empty() && state.under_way.is_empty()
    }

    /// Puts what waits into a batch, if a slot is free. Whoever gets it must poll it, or hand it to the keeper.
    pub(crate) fn depart(self: &Arc<Self>, node: &Arc<Node>) -> Option<Arc<Carriage>> {
        let mut state = lock(&self.state);
        state.gathers = false;
        if state.waiting.is_empty() || !state.is_free() {
            return None;
        }
        let now = node.clock.now();
        let load = state.load();
        let mut requests = Vec::with_capacity(load);
        let mut cargo = Vec::with_capacity(load);
        let mut patience = node.options.request_timeout;
        let mut waited = Duration::ZERO;
        for item in state.waiting.drain(..load) {
            waited += now.since(item.since);
            patience = patience.min((item.outgoing.lease_left / 4).max(SHORTEST));
            cargo.push((item.outgoing.tag, item.outgoing.request.name.clone()));
            requests.push(item.outgoing.request);
        }
        // What waits behind hopes for this batch's slot.
        for item in state.waiting.iter().take(CAP) {
            patience = patience.min((item.outgoing.lease_left / 4).max(SHORTEST));
        }
        let deadline = now + patience;
        let link = match &state.link {
            LinkState::Open(open) if open.is_alive() => Some(open.link.clone()),
            _ => None,
        };
        let generation = if link.is_some() { state.generation } else { 0 };
        let waited = waited / load.max(1) as u32;
        let carriage = Carriage::new(self, node, cargo, generation, now, waited, deadline);
        let carriage = Arc::new(carriage);
        // Held until there is something to poll: whoever gives the connection up in between waits for it.
        let mut sending = lock(&carriage.sending);
        state.traffic.departed(load);
        state.under_way.push(carriage.clone());
        // A store in memory applies at once, and its pushes may come back to this courier.
        drop(state);
        *sending = Some(match link {
            Some(link) => carriage.send(&*link, requests),
            // It is held by the carriage, so it must not hold the carriage.
            None => Box::pin(self.clone().connect_and_send(
                node.clone(),
                Arc::downgrade(&carriage),
                requests,
            )),
        });
        drop(sending);
        node.events.departed(load);
        Some(carriage)
    }

    async fn connect_and_send(
        self: Arc<Self>,
        node: Arc<Node>,
        carriage: Weak<Carriage>,
        requests: Vec<Request>,
    ) -> Result<BatchReply, Failure> {
        let (link, generation) = self.link(&node).await.map_err(|error| Failure {
            executed: Executed::No,
            error,
        })?;
        let sending = match carriage.upgrade() {
            Some(carriage) => {
                carriage.goes_by(generation);
                carriage.send(&*link, requests)
            }
            // Nobody would hear of the answer.
            None => {
                return Err(Failure {
                    executed: Executed::No,
                    error: StoreError::new(StoreErrorKind::Interrupted, "nobody waits for the batch"),
                });
            }
        };
        sending.await
    }

    /// The connection, opened if need be. It lives on the runtime of whoever comes first; when that ends, the next
    /// one to come opens another.
    pub(crate) async fn link(self: &Arc<Self>, node: &Arc<Node>) -> Result<(Arc<dyn Link>, u64), StoreError> {
        loop {
            let mut opening = {
                let mut state = lock(&self.state);
                match &state.link {
                    LinkState::Open(open) if open.is_alive() => {
                        return Ok((open.link.clone(), state.generation));
                    }
                    LinkState::Opening(opening) => opening.clone(),
                    _ => {
                        if let Some((at, error)) = &state.refused
                            && node.clock.now().since(*at) < CONNECT_PAUSE
                        {
                            return Err(error.clone());
                        }
                        match self.open(node, &mut state)? {
                            Some(opening) => opening,
                            None => continue,
                        }
                    }
                }
            };
            let verdict = opening
                .wait_for(Option::is_some)
                .await
                .map(|verdict| verdict.clone());
            match verdict {
                Ok(Some(Err(error))) => return Err(error),
                Ok(_) => {}
                // The runtime that was opening it ended. So the next one tries.
                Err(_) => {
                    let mut state = lock(&self.state);
                    if matches!(&state.link, LinkState::Opening(o) if o.has_changed().is_err()) {
                        state.link = LinkState::None;
                    }
                }
            }
        }
    }

    /// Asks for a sign of life. A connection that gives none is given up as after a batch: where nothing is locked
    /// before the probe succeeds, nobody else would find out.
    pub(crate) async fn ping(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), StoreError> {
        let patience = node.options.request_timeout;
        let asked = AtomicU64::new(0);
        let answer = tokio::time::timeout(patience, async {
            let (link, generation) = self.link(node).await?;
            asked.store(generation, Ordering::Relaxed);
            let deadline = node.clock.now() + patience;
            let (batch, _) = self.server.batch(deadline, Vec::new(), patience);
            link.apply(batch).await.map_err(|failure| failure.error)
        });
        let error = match answer.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => StoreError::new(
                StoreErrorKind::TimedOut,
                format_args!("no answer within {patience:?}"),
            ),
        };
        if is_broken(&error) {
            match asked.into_inner() {
                0 => self.open_anew(),
                generation => finish_all(self.give_up(node, generation, &error)),
            }
        }
        Err(error)
    }

    /// Begins to connect. `None`: it is open already.
    fn open(self: &Arc<Self>, node: &Arc<Node>, state: &mut State) -> Result<Option<Verdict>, StoreError> {
        let began = node.clock.now();
        let mut connecting = node.store.connect(self.route);
        // A store in memory is there at once, and needs no runtime.
        if let Poll::Ready(link) = step(&mut connecting, &mut Context::from_waker(Waker::noop())) {
            let open = link.map(|link| Open {
                link,
                alive: Arc::new(AtomicBool::new(true)),
                _wanted: watch::Sender::new(()),
            });
            self.opened(node, state, began, open)?;
            return Ok(None);
        }
        let runtime = Handle::try_current().map_err(|_| {
            StoreError::new(
                StoreErrorKind::Unreachable,
                "no tokio runtime to open a connection on",
            )
        })?;
        let (tell, opening) = watch::channel(None);
        let (courier, node) = (self.clone(), node.clone());
        runtime.spawn(async move {
            let link = poll_fn(|cx| step(&mut connecting, cx)).await;
            // Dropped with the runtime that drives the connection.
            let canary = Canary(Arc::new(AtomicBool::new(true)));
            let (wanted, mut unwanted) = watch::channel(());
            let open = link.map(|link| Open {
                link,
                alive: canary.0.clone(),
                _wanted: wanted,
            });
            let verdict = courier.opened(&node, &mut lock(&courier.state), began, open);
            drop((courier, node));
            tell.send_replace(Some(verdict));
            while unwanted.changed().await.is_ok() {}
        });
        state.link = LinkState::Opening(opening.clone());
        Ok(Some(opening))
    }

    fn opened(
        &self,
        node: &Node,
        state: &mut State,
        began: Instant,
        open: Result<Open, StoreError>,
    ) -> Result<(), StoreError> {
        let now = node.clock.now();
        match open {
            Ok(open) => {
                self.server.heard_time(open.link.time(), began, now);
                for text in open.link.warnings() {
                    let text = text.clone();
                    node.events.push(DriverEvent::ServerWarning { text });
                }
                let took = now.since(began);
                node.events.push(DriverEvent::Connected { took });
                state.generation += 1;
                state.refused = None;
                state.link = LinkState::Open(open);
                Ok(())
            }
            Err(error) => {
                let told = error.clone();
                node.events.push(DriverEvent::ConnectionLost { error: told });
                state.refused = Some((now, error.clone()));
                state.link = LinkState::None;
                Err(error)
            }
        }
    }

    /// A batch is no longer under way, and if it was answered it arrived like this.
    pub(crate) fn arrived(&self, carriage: &Carriage, trip: Option<Trip>) {
        let mut state = lock(&self.state);
        let it = |other: &Arc<Carriage>| std::ptr::eq(&**other, carriage);
        if let Some(at) = state.under_way.iter().position(it) {
            state.under_way.swap_remove(at);
            state.traffic.arrived(carriage.load, trip);
        }
    }

    /// The runtime that opens the connection takes too long, or stands still: whoever comes next opens another.
    pub(crate) fn open_anew(&self) {
        let mut state = lock(&self.state);
        if matches!(state.link, LinkState::Opening(_)) {
            state.link = LinkState::None;
        }
    }

    /// Never used beside its successor: whatever is under way on it fails with it.
    pub(crate) fn give_up(&self, node: &Node, generation: u64, error: &StoreError) -> Vec<Arc<Carriage>> {
        let mut state = lock(&self.state);
        if state.generation != generation || matches!(state.link, LinkState::None | LinkState::Opening(_)) {
            return Vec::new();
        }
        let error = error.clone();
        node.events.push(DriverEvent::ConnectionLost { error });
        state.link = LinkState::None;
        let on_it = |c: &&Arc<Carriage>| c.generation() == generation;
        state.under_way.iter().filter(on_it).cloned().collect()
    }

    /// What the keeper does for the callers' side: gives up what is overdue and sends what nobody sends. True when
    /// there is something to look after.
    pub(crate) fn look_after(self: &Arc<Self>, node: &Arc<Node>, now: Instant) -> bool {
        // Answers may be there, unread by a caller that is asleep.
        let (overdue, asleep): (Vec<_>, Vec<_>) = {
            let state = lock(&self.state);
            let old = |c: &&Arc<Carriage>| c.since + UNATTENDED <= now;
            state
                .under_way
                .iter()
                .filter(old)
                .cloned()
                .partition(|c| c.deadline <= now)
        };
        overdue.iter().for_each(Carriage::finish);
        asleep.iter().for_each(|carriage| carriage.help());
        loop {
            let is_unattended = {
                let state = lock(&self.state);
                state
                    .waiting
                    .front()
                    .is_some_and(|item| item.since + UNATTENDED <= now)
            };
            match is_unattended.then(|| self.depart(node)).flatten() {
                Some(carriage) => node.keeper.adopt(carriage),
                None => break,
            }
        }
        !self.is_idle()
    }

    /// The next moment at which `look_after` has something to do, at the latest.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let overdue = state.under_way.iter().map(|carriage| carriage.deadline);
        let unsent = state.waiting.front().map(|item| item.since + UNATTENDED);
        overdue.chain(unsent.filter(|_| state.is_free())).min()
    }

    /// A slot is free: somebody has to send what waits.
    pub(crate) fn pass_on(self: &Arc<Self>, node: &Arc<Node>) {
        if self.side == Side::Keeper {
            return node.keeper.notify();
        }
        let first = lock(&self.state).waiting.front().map(|item| item.slot.clone());
        match first {
            None => {}
            Some(Some(slot)) if slot.nudge() => {}
            Some(_) => {
                if let Some(carriage) = self.depart(node) {
                    node.keeper.adopt(carriage);
                }
            }
        }
    }
}

/// Takes a step towards a connection. On a runtime without drivers for sockets and timers tokio panics, and whoever
/// comes next would only meet the same.
fn step(
    connecting: &mut BoxFuture<'static, Result<Arc<dyn Link>, StoreError>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Arc<dyn Link>, StoreError>> {
    let polled = catch_unwind(AssertUnwindSafe(|| connecting.as_mut().poll(cx)));
    polled.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("it does not say why");
        Poll::Ready(Err(StoreError::new(
            StoreErrorKind::Unreachable,
            format_args!("connecting panicked: {text}"),
        )))
    })
}

/// Tells that the runtime which drives a connection is gone.
struct Canary(Arc<AtomicBool>);

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::thread::{park_timeout, spawn};

    use super::*;
    use crate::key::Key;
    use crate::options::Options;
    use crate::protocol::message::{Batch, NodeId};
    use crate::protocol::step::AcquireOptions;
    use crate::runtime::clock::Clock;
    use crate::store::memory::MemoryStore;
    use crate::store::{Abilities, Sink, Store, sealed};

    /// Does what it is asked, and does not answer.
    #[derive(Debug, Clone)]
    struct Mute {
        store: MemoryStore,
    }

    impl sealed::Sealed for Mute {}

    impl Store for Mute {
        fn abilities(&self) -> Abilities {
            self.store.abilities()
        }

        fn route(&self, name: &Name) -> ServerId {
            self.store.route(name)
        }

        fn connect(&self, _: ServerId) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
            Box::pin(ready(Ok(Arc::new(self.clone()) as Arc<dyn Link>)))
        }

        fn inbox(&self, _: NodeId, _: Sink) -> BoxFuture<'static, StoreError> {
            Box::pin(pending())
        }
    }

    impl Link for Mute {
        fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>> {
            drop(self.store.apply(batch));
            Box::pin(pending())
        }

        fn time(&self) -> u64 {
            self.store.time()
        }
    }

    fn node(store: &Mute) -> Arc<Node> {
        Node::start(Arc::new(store.clone()), Options::default(), Clock::new()).unwrap()
    }

    /// A caller that tries to lock and has not sent anything yet.
    fn enter(node: &Arc<Node>, key: &str) -> Arc<Courier> {
        let name = Name::lock(Key::from(key));
        let term = node.options.term(node.options.lease).unwrap();
        let want = AcquireOptions {
            term,
            wait: false,
            fixed: false,
            mark: crate::protocol::message::NO_TICK,
            limit: 1,
        };
        node.enter(&name, want);
        node.courier(&name, Side::Callers)
    }

    /// A caller's batch that departed and is not polled yet.
    fn departed() -> (Mute, Arc<Node>, Arc<Courier>, Arc<Carriage>) {
        let store = Mute {
            store: MemoryStore::new(),
        };
        let node = node(&store);
        let courier = enter(&node, "a");
        let carriage = courier.depart(&node).expect("a batch");
        (store, node, courier, carriage)
    }

    #[test]
    fn one_spins_and_keeps_nobody_else_from_it_for_long() {
        let (_, node, courier, carriage) = departed();
        {
            let traffic = &mut lock(&courier.state).traffic;
            *traffic = Traffic::new(2);
            traffic.departed(1);
            traffic.departed(1);
            traffic.arrived(
                1,
                Some(Trip {
                    took: SPIN / 2,
                    waited: Duration::ZERO,
                    is_shared: false,
                }),
            );
        }
        let sent = carriage.since;
        assert!(courier.may_spin(&carriage, sent, false), "the first");
        assert!(courier.may_spin(&carriage, sent, true), "and on");
        assert!(!courier.may_spin(&carriage, sent, false), "another meanwhile");
        assert!(!courier.may_spin(&carriage, sent + SPIN, true), "long enough");
        courier.stopped_spinning();
        assert!(courier.may_spin(&carriage, sent, false), "the next");
        let later = Carriage::new(
            &courier,
            &node,
            Vec::new(),
            0,
            sent + SPIN,
            Duration::ZERO,
            sent + SHORTEST,
        );
        assert!(
            courier.may_spin(&later, sent + SPIN, false),
            "one that is polled no more does not keep it"
        );
        carriage.finish();
        node.abandon();
    }

    #[test]
    fn what_is_sent_while_its_time_runs_out_is_not_taken_for_unsent() {
        let (store, node, courier, carriage) = departed();
        // It is about to connect when the keeper finds it overdue.
        let stop = lock(&courier.state);
        let caller = spawn({
            let carriage = carriage.clone();
            move || carriage.poll(&mut Context::from_waker(Waker::noop()))
        });
        while carriage.sending.try_lock().is_ok() {
            park_timeout(Duration::from_millis(1));
        }
        let keeper = spawn({
            let carriage = carriage.clone();
            move || carriage.finish()
        });
        park_timeout(Duration::from_millis(50));
        drop(stop);
        let _ = caller.join().unwrap();
        keeper.join().unwrap();
        assert_eq!(store.store.len(), 1, "the claim was executed");
        assert_eq!(node.keys(), 1, "so its answer is asked for, and it is left");
        node.abandon();
    }
}
