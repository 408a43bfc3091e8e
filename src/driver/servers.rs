//! The servers of a store: for each its session, its connections, its outages, and the callers that ping it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use uuid::Uuid;

use crate::driver::outage::Outage;
use crate::driver::waiter::lock;
use crate::error::StoreError;
use crate::key::Key;
use crate::options::Options;
use crate::protocol::message::Name;
use crate::protocol::primitive::Primitive;
use crate::protocol::session::Session;
use crate::protocol::session::step::{Attempt, Probe, SessionInput, SessionOptions, SessionRole};
use crate::protocol::step::Outgoing;
use crate::store::{Immediate, Link, ServerId, Store, StoreKind};

/// How many keys are tried to find one of a server. A server with one slot in a thousand is missed once in e^100.
const MAX_FRESH_KEYS: usize = 100_000;

/// Every server that was looked up, in the order of the first lookups.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) store: Arc<dyn Store>,
    kind: StoreKind,
    timeout: Duration,
    poll_gap: Duration,
    recovery: Duration,
    lag: Duration,
    seed: u64,
    list: ServerSlot,
}

/// A server, and the slot of the next one. No server is ever removed, so lookups need no lock.
#[derive(Debug, Default)]
struct ServerSlot {
    server: OnceLock<Arc<Server>>,
    next: OnceLock<Box<ServerSlot>>,
}

/// A server of the store.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) role: SessionRole,
    pub(crate) session: Mutex<Session>,
    pub(crate) io: Mutex<Io>,
    /// The name of the server in errors and events.
    pub(crate) text: Arc<str>,
    pub(crate) outage: Outage,
    probes: Mutex<HashMap<Probe, oneshot::Sender<Result<(), StoreError>>>>,
}

/// The connections and inboxes of the session's attempts. Only the driver uses them.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// The tasks of attempts to connect.
    pub(crate) connecting: HashMap<Attempt, AbortHandle>,
    pub(crate) connections: HashMap<Attempt, OpenConnection>,
    pub(crate) inboxes: HashMap<Attempt, OpenInbox>,
}

/// A connection, and the tasks that wait for its batches and for its end. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) batches: JoinSet<()>,
}

/// An inbox that is open or opening, and the channel that asks for a ping.
#[derive(Debug)]
pub(crate) struct OpenInbox {
    pub(crate) task: AbortHandle,
    pub(crate) pings: mpsc::UnboundedSender<()>,
    /// A channel to which only this inbox is subscribed, once it is open.
    pub(crate) own_channel: Option<Arc<str>>,
}

impl Drop for OpenInbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a key that no process uses.
pub(crate) fn fresh_key() -> Key {
    Key::from(format!("doctor:{}", Uuid::new_v4()))
}

impl Servers {
    pub(crate) fn new(store: Arc<dyn Store>, options: &Options, seed: u64) -> Self {
        Servers {
            kind: StoreKind::of(&*store),
            store,
            timeout: options.request_timeout,
            poll_gap: options.poll_gap,
            recovery: options.recovery_time(),
            lag: options.lag(),
            seed,
            list: ServerSlot::default(),
        }
    }

    /// Returns the store if it answers at once. Then the caller's own thread asks it.
    pub(crate) fn immediate(&self) -> Option<&dyn Immediate> {
        self.store.immediate()
    }

    /// Returns the refusal of a primitive that the store does not serve.
    pub(crate) fn refusal(&self, primitive: Primitive) -> Option<StoreError> {
        self.kind.refusal(primitive)
    }

    /// Returns the server of `name`.
    pub(crate) fn for_name(&self, name: &Name) -> &Arc<Server> {
        self.get(self.store.server(name))
    }

    /// Returns the server of a request.
    pub(crate) fn for_request(&self, outgoing: &Outgoing) -> &Arc<Server> {
        if self.is_quorum() {
            self.get(ServerId(outgoing.tag.master))
        } else {
            self.for_name(&outgoing.request.name)
        }
    }

    /// Returns the server of all these names, if they share a slot. The keys of a quorum are claimed one by one.
    pub(crate) fn for_all<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Option<&Arc<Server>> {
        let mut names = names.into_iter();
        let first = names.next()?;
        let slot = self.store.slot(first);
        let is_same = |name| self.store.slot(name) == slot;
        (names.all(is_same) && !self.is_quorum()).then(|| self.for_name(first))
    }

    /// Returns the server whose failures are those of `name`. One master of a quorum may fail without harm.
    pub(crate) fn alone_for(&self, name: &Name) -> Option<&Arc<Server>> {
        (!self.is_quorum()).then(|| self.for_name(name))
    }

    /// Returns the name of the whole store.
    pub(crate) fn text(&self) -> Arc<str> {
        match self.store.inbox_server() {
            Some(inbox) => self.get(inbox).text.clone(),
            None => {
                let masters = (0..self.store.masters()).map(ServerId);
                let names: Vec<_> = masters.map(|master| &*self.get(master).text).collect();
                names.join(", ").into()
            }
        }
    }

    /// Returns the failure of a store of which some servers failed so. A quorum works without a minority of the masters, but not
    /// with a master that refuses this process: it may belong to another quorum.
    pub(crate) fn failure(&self, failures: Vec<StoreError>) -> Option<StoreError> {
        let masters = usize::from(self.store.masters());
        let refused = failures.iter().find(|error| error.is_unsupported());
        let failed = failures.len();
        match refused.or(failures.first()).cloned()? {
            error if masters == 0 || error.is_unsupported() => Some(error),
            error if failed > masters / 2 => {
                Some(error.within(format_args!("{failed} of {masters} masters do not answer")))
            }
            _ => None,
        }
    }

    /// Returns a key that no process uses, for each server that answers for names, with the server's name.
    pub(crate) fn fresh_keys(&self) -> Vec<(Arc<str>, Key)> {
        if self.is_quorum() {
            return vec![(self.text(), fresh_key())];
        }
        let key_at = |id| {
            let mut keys = std::iter::repeat_with(fresh_key).take(MAX_FRESH_KEYS);
            let key = keys.find(|key| self.store.server(&Name::lock(key.clone())) == id)?;
            Some((self.get(id).text.clone(), key))
        };
        self.store.servers().into_iter().filter_map(key_at).collect()
    }

    /// Returns the server of the inbox.
    pub(crate) fn inbox(&self) -> Option<&Arc<Server>> {
        self.store.inbox_server().map(|id| self.get(id))
    }

    /// Returns whether each of several masters answers for every name.
    pub(crate) fn is_quorum(&self) -> bool {
        self.kind == StoreKind::Quorum
    }

    /// Returns whether a server answers for `name`.
    pub(crate) fn serves(&self, server: &Server, name: &Name) -> bool {
        self.is_quorum() || self.store.server(name) == server.id
    }

    /// Returns whether the store still asks the server. A cluster may have removed it.
    pub(crate) fn is_named(&self, server: &Server) -> bool {
        server.role != SessionRole::Member || self.store.servers().contains(&server.id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        let slots = std::iter::successors(Some(&self.list), |slot| Some(slot.next.get()?));
        slots.filter_map(|slot| slot.server.get())
    }

    pub(crate) fn get(&self, id: ServerId) -> &Arc<Server> {
        let mut slot = &self.list;
        loop {
            let server = slot.server.get_or_init(|| Arc::new(self.make(id)));
            if server.id == id {
                return server;
            }
            slot = slot.next.get_or_init(Box::default);
        }
    }

    fn make(&self, id: ServerId) -> Server {
        let text: Arc<str> = self.store.describe(id).into();
        let role = match self.store.inbox_server() {
            Some(ServerId(0)) => SessionRole::Only,
            Some(inbox) if inbox == id => SessionRole::Inbox,
            _ => SessionRole::Member,
        };
        let session = Session::new(SessionOptions {
            request_timeout: self.timeout,
            server: text.clone(),
            remote: self.store.abilities().remote,
            can_fail: self.immediate().is_none(),
            poll_gap: self.poll_gap,
            recovery: self.recovery,
            lag: self.lag,
            seed: self.seed.wrapping_add(u64::from(id.0)),
            role,
        });
        Server {
            id,
            role,
            session: Mutex::new(session),
            io: Mutex::default(),
            text,
            outage: Outage::default(),
            probes: Mutex::default(),
        }
    }
}

impl Server {
    /// Returns its index among the masters of a quorum.
    pub(crate) fn master(&self) -> usize {
        usize::from(self.id.0)
    }

    /// Asks for a sign of life. The caller must wake the driver afterwards.
    pub(crate) fn probe(&self) -> (SessionInput, oneshot::Receiver<Result<(), StoreError>>) {
        let (tell, answer) = oneshot::channel();
        let mut probes = lock(&self.probes);
        // Callers that stopped waiting are removed.
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
