//! What there is per server: its session, its connections, and who asked it for a sign of life.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::driver::outage::Outage;
use crate::driver::waiter::lock;
use crate::error::StoreError;
use crate::key::Key;
use crate::options::Options;
use crate::protocol::message::Name;
use crate::protocol::session::Session;
use crate::protocol::session::step::{Attempt, Probe, SessionInput, SessionOptions};
use crate::store::{Immediate, Link, ServerId, Store};

/// Every server that was ever asked for, in the order of the first question.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) store: Arc<dyn Store>,
    timeout: Duration,
    poll_gap: Duration,
    seed: u64,
    list: Place,
}

/// One server, and the next that was asked for. Nothing is ever taken out, so nobody who looks waits for another.
#[derive(Debug, Default)]
struct Place {
    server: OnceLock<Arc<Server>>,
    next: OnceLock<Box<Place>>,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) session: Mutex<Session>,
    pub(crate) io: Mutex<Io>,
    /// As errors and events name it.
    pub(crate) text: Arc<str>,
    pub(crate) outage: Outage,
    probes: Mutex<HashMap<Probe, oneshot::Sender<Result<(), StoreError>>>>,
}

/// What the session's attempts came to. Only the driver touches it.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// Attempts to connect under way.
    pub(crate) connecting: HashMap<Attempt, AbortHandle>,
    pub(crate) connections: HashMap<Attempt, Connection>,
    pub(crate) inboxes: HashMap<Attempt, OpenInbox>,
}

/// A connection, and what is sent on it. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) batches: JoinSet<()>,
}

/// An inbox that is open or opening, and how it is asked for a sign of life.
#[derive(Debug)]
pub(crate) struct OpenInbox {
    pub(crate) task: AbortHandle,
    pub(crate) pings: mpsc::UnboundedSender<()>,
}

impl Drop for OpenInbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Servers {
    pub(crate) fn new(store: Arc<dyn Store>, options: &Options, seed: u64) -> Self {
        Servers {
            store,
            timeout: options.request_timeout,
            poll_gap: options.poll_gap,
            seed,
            list: Place::default(),
        }
    }

    /// The store answers at once: whoever asks it does so itself.
    pub(crate) fn immediate(&self) -> Option<&dyn Immediate> {
        self.store.immediate()
    }

    /// The server that answers for `name`.
    pub(crate) fn of(&self, name: &Name) -> &Arc<Server> {
        self.get(self.store.server(name))
    }

    /// The server that answers for all of these names, if one server does.
    pub(crate) fn of_all<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Option<&Arc<Server>> {
        let mut names = names.into_iter();
        let server = self.of(names.next()?);
        let is_same = |name| self.store.server(name) == server.id;
        names.all(is_same).then_some(server)
    }

    /// A server, to speak to the store as such.
    pub(crate) fn of_any(&self) -> &Arc<Server> {
        self.of(&Name::lock(Key::from("")))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        let places = std::iter::successors(Some(&self.list), |place| Some(place.next.get()?));
        places.filter_map(|place| place.server.get())
    }

    pub(crate) fn get(&self, id: ServerId) -> &Arc<Server> {
        let mut place = &self.list;
        loop {
            let server = place.server.get_or_init(|| Arc::new(self.make(id)));
            if server.id == id {
                return server;
            }
            place = place.next.get_or_init(Box::default);
        }
    }

    fn make(&self, id: ServerId) -> Server {
        let text: Arc<str> = self.store.describe(id).into();
        let session = Session::new(SessionOptions {
            request_timeout: self.timeout,
            server: text.clone(),
            remote: self.store.abilities().remote,
            can_fail: self.immediate().is_none(),
            poll_gap: self.poll_gap,
            seed: self.seed.wrapping_add(u64::from(id.0)),
        });
        Server {
            id,
            session: Mutex::new(session),
            io: Mutex::default(),
            text,
            outage: Outage::default(),
            probes: Mutex::default(),
        }
    }
}

impl Server {
    /// Asks for a sign of life. The driver has to be woken afterwards.
    pub(crate) fn probe(&self) -> (SessionInput, oneshot::Receiver<Result<(), StoreError>>) {
        let (tell, answer) = oneshot::channel();
        let mut probes = lock(&self.probes);
        // Those who gave up waiting are forgotten.
        probes.retain(|_, tell| !tell.is_closed());
        let probe = Probe(probes.keys().map(|probe| probe.0).max().unwrap_or(0) + 1);
        probes.insert(probe, tell);
        (SessionInput::Probed(probe), answer)
    }

    pub(crate) fn probed(&self, probe: Probe, answer: Result<(), StoreError>) {
        if let Some(tell) = lock(&self.probes).remove(&probe) {
            let _ = tell.send(answer);
        }
    }
}
