//! Leader election across every process that uses the store.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;

use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::call::CallFuture;
use crate::primitives::denial::unless_busy;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::proclaimed;
use crate::primitives::target::Target;
use crate::protocol::message::{Call, CallAnswer, ClaimId, Fence, LeaderReport, NodeId, Payload, Version};
use crate::protocol::step::LockOptions;

/// An election of one leader among several processes, while the others stand by: "one process relays the outbox". Made by
/// [`Locks::election`](crate::Locks::election); cheap to make and to clone.
///
/// [`lead`](Self::lead) does the whole loop: it waits until this process leads, works while it leads, and waits again after a
/// loss. It ends when the work ends: a service that must continue calls it in a loop. Candidates wait in the order in which
/// they came, and a push wakes the next one. Leaders have the guarantees of lock holders: a leader learns that it leads no
/// more before another process can lead, and its writes can carry its [fence](Lease::fence).
///
/// If a leader is killed, another process leads after the [lease](Self::lease), the [margin](crate::Builder::margin) and a timer
/// of a third of a lease: about 8 to 14 s later with the default lease of 10 s.
///
/// Any process may ask for the leader ([`leader`](Self::leader)) and follow the leadership ([`observe`](Self::observe)), also
/// one that is never a candidate. A leader may [proclaim](Self::proclaim) a value, such as its address.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let election = locks.election("outbox-relay");
/// let relayed = election
///     .lead(|lease| async move {
///         // … relay what is in the outbox, until there is a reason to stop …
///         lease.fence()
///     })
///     .await?;
/// # assert!(relayed.get() > 0); Ok(()) }
/// ```
///
/// The behaviour follows etcd's `concurrency.Election` and Kubernetes' `leaderelection`.
#[derive(Clone)]
#[must_use = "an election does nothing until a process campaigns, asks or observes"]
pub struct Election {
    /// The election, whose candidates each have a place of its own in the store's queue.
    target: Target,
    /// Whether the work of a leader continues after a loss.
    runs_to_completion: bool,
    /// What a candidate proclaims when it wins.
    value: Option<Arc<[u8]>>,
}

impl Election {
    pub(crate) fn new(target: Target) -> Self {
        Election {
            // The next leader of this process needs a fence of its own, which observers see.
            target: target.fair(),
            runs_to_completion: false,
            value: None,
        }
    }

    /// Sets the length of the leases of leaders, instead of the default of these locks. Observers and candidates look at the
    /// store each third of it.
    pub fn lease(self, lease: Duration) -> Self {
        let target = self.target.lease(lease);
        Election { target, ..self }
    }

    /// Limits how many candidates of this process may wait, as [`Mutex::max_waiters`](crate::Mutex::max_waiters). Observers
    /// are not limited by it.
    pub fn max_waiters(self, limit: usize) -> Self {
        let target = self.target.max_waiters(limit);
        Election { target, ..self }
    }

    /// Limits how long a process leads without a new election, as [`Mutex::max_hold`](crate::Mutex::max_hold).
    ///
    /// When the limit is over, [`Lease::overdue`] resolves, and the leader has the rest of its lease to come to an end. Then
    /// the next candidate leads. [`lead`](Self::lead) drops the work at that moment and campaigns again.
    pub fn max_hold(self, max: Duration) -> Self {
        let target = self.target.max_hold(max);
        Election { target, ..self }
    }

    /// Sets whether the work of [`lead`](Self::lead) continues after a loss, instead of being dropped: `false` by default.
    ///
    /// Work that continues learns of the loss by [`lost`](Lease::lost) of its lease, and ends by itself. Until then another
    /// process may lead beside it.
    pub fn run_to_completion(mut self, completes: bool) -> Self {
        self.runs_to_completion = completes;
        self
    }

    /// Has candidates of this handle proclaim a value, at most 64 KiB of any bytes, in the step in which they win: the address
    /// of this process, or its version. No observer sees the leadership without it. [`proclaim`](Self::proclaim) replaces it
    /// later.
    ///
    /// A candidate that waits leaves its value with the store, which forgets it when the candidate gives up or is not heard of
    /// for one lease. With a value that is too long each candidate is refused, with [`Error::Options`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let election = locks.election("outbox-relay").value("10.0.0.7:8080");
    /// let guard = election.campaign().await?;
    /// let leader = election.leader().await?.expect("this process leads");
    /// assert_eq!(leader.value(), Some(&b"10.0.0.7:8080"[..]));
    /// # guard.release().await }
    /// ```
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.value = Some(value.as_ref().into());
        self
    }

    /// Returns the key of the election.
    pub fn key(&self) -> &Key {
        self.target.key()
    }

    /// Waits until this process leads. It leads while the guard lives and is held.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// To resign, [release](Guard::release) the guard: the next candidate leads after one round trip.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. A leadership that was won meanwhile is released.
    #[doc(alias = "blocking_campaign")]
    pub fn campaign(&self) -> Acquire {
        self.candidate(self.target.options)
    }

    /// Leads if no process leads and no candidate waits, else returns `None`.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Option<Guard>, Error> {
        let options = LockOptions {
            wait: false,
            ..self.target.options
        };
        unless_busy(self.candidate(options).await)
    }

    /// Waits for at most `wait` until this process leads. With zero it tries once.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout): [`Error::Busy`] if another process leads when the wait ends.
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn campaign_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.campaign().within(wait).await
    }

    /// Waits until this process leads, and runs the work while it leads.
    ///
    /// If the leadership is lost before the work is done, the work is dropped, unless it [runs to
    /// completion](Self::run_to_completion). Then this campaigns again, after a pause of about a third of a
    /// lease: a leader that loses its lease again and again leaves time to other candidates.
    ///
    /// When the work ends, this resigns, returns the result of the work, also an `Err`, and does not campaign again. `work` is
    /// called each time that this process leads, so it clones what it needs. A service that must continue has a loop:
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tenure::{Error, Lease, Locks};
    ///
    /// async fn relay(lease: Lease, outbox: String) -> Result<(), std::io::Error> {
    ///     println!("{outbox}, fence {}", lease.fence());
    ///     Ok(())
    /// }
    ///
    /// async fn relays(locks: Locks, outbox: String) {
    ///     let election = locks.election("outbox-relay");
    ///     loop {
    ///         let work = |lease: Lease| {
    ///             let outbox = outbox.clone();
    ///             async move { relay(lease, outbox).await }
    ///         };
    ///         match election.lead(work).await {
    ///             Ok(Ok(())) => {}
    ///             Ok(Err(error)) => eprintln!("{error}"),
    ///             Err(Error::Closed { .. }) => return,
    ///             Err(error) => eprintln!("{error}"),
    ///         }
    ///         tokio::time::sleep(Duration::from_secs(1)).await;
    ///     }
    /// }
    /// # fn spawns(locks: Locks) { tokio::spawn(relays(locks, String::new())); }
    /// ```
    ///
    /// The future borrows the election. To spawn it without such a function:
    /// `tokio::spawn(async move { election.lead(work).await })`.
    ///
    /// An unavailable store does not end it: it continues when the store is back. The [events](crate::observe#events) report the outage.
    ///
    /// # Errors
    /// [`Error::Lost`] if the work was done, but this process may not have led until then. [`Error::Closed`] after
    /// [`Locks::shutdown`](crate::Locks::shutdown). Other errors as of [`Mutex::lock`](crate::Mutex::lock), except those of an
    /// unavailable store.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then resigns, in the background. For "until SIGTERM" use it in a
    /// `tokio::select!`, and then await [`Locks::shutdown`](crate::Locks::shutdown).
    pub async fn lead<T, Fut>(&self, mut work: impl FnMut(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        let mut options = self.target.options;
        loop {
            let guard = match self.candidate(options).await {
                // This process never led, or the leader is not known.
                Err(error) if error.is_unreachable() || error.is_lost() => {
                    options.rests = true;
                    continue;
                }
                answer => answer?,
            };
            let work = work(guard.lease());
            let done = if self.runs_to_completion {
                let done = guard.scope(work).await;
                guard.is_held().then_some(done)
            } else {
                // Work that ends at the moment of the loss counts as lost.
                guard.run(work).await.ok()
            };
            if let Some(done) = done {
                return match guard.release().await {
                    // This process led until then. If the store is not told, the lease ends by itself.
                    Ok(()) | Err(Error::Store { .. }) => Ok(done),
                    Err(error) => Err(error),
                };
            }
            options.rests = true;
        }
    }

    /// Publishes `value`, at most 64 KiB of any bytes, for as long as this node leads: its address, or its version.
    ///
    /// Observers and callers of [`leader`](Self::leader) see the latest value of the current leader, and no value of an earlier
    /// leader. Takes one round trip.
    ///
    /// # Errors
    /// [`Error::Lost`] if this node does not lead. [`Error::Options`] for a longer value. [`Error::Store`] if the store did not
    /// answer: the value may have been published. [`Error::Closed`] as of a lock; if [`shutdown`](crate::Locks::shutdown) is
    /// called meanwhile, the value may have been published. [`Error::Key`] as of a lock.
    ///
    /// # Cancel safety
    /// If the future is dropped, the value may be published or not.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let data = self.encode_value(Some(value.as_ref()));
        proclaimed::check(self.key(), &data)?;
        let lost = || Error::Lost {
            key: self.key().clone(),
            cause: LostCause::Gone,
        };
        self.target.handle.not_forked(self.key())?;
        let of = self.claim().ok_or_else(lost)?;
        if self.proclaim_call(of, data)?.await? {
            Ok(())
        } else {
            Err(lost())
        }
    }

    /// Asks the store for the leader; `None` if no process leads. Another process may lead when the answer arrives. Takes one
    /// round trip.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Store`] and [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let report = self.leader_call(None, false)?.await?;
        Ok(report.map(Leader::new))
    }

    /// Returns a stream of leaders: first the current one, then each new leader and each newly proclaimed value.
    ///
    /// The stream yields the latest state: changes between two polls are skipped. The store pushes each change. The stream also
    /// asks the store each third of a lease, because a push may be lost. So it also notices that a leader was killed, after the
    /// lease of that leader has ended. All observers of a process share one request. Nothing is asked while no caller waits for
    /// the [next](Observer::next) leader.
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            known: None,
            has_failed: false,
            is_closed: false,
            in_flight: None,
        }
    }

    /// Returns whether this node leads at this moment, by this or another handle. Takes no round trip. Returns `false` before
    /// another process can lead.
    pub fn is_leader(&self) -> bool {
        self.claim().is_some()
    }

    /// Returns the claim by which this node leads.
    fn claim(&self) -> Option<ClaimId> {
        self.target.handle.node().held_alone(&self.target.name)
    }

    /// Returns a candidate of this process.
    fn candidate(&self, options: LockOptions) -> Acquire {
        let target = &self.target;
        let mut candidate = Acquire::new(&target.handle, &target.name, options);
        if self.value.is_some() || target.handle.options().node_name.is_some() {
            candidate.set_value(self.encode_value(self.value.as_deref()));
        }
        candidate
    }

    fn proclaim_call(&self, of: ClaimId, data: Payload) -> Result<CallFuture<bool>, Error> {
        /// Orders the proclaims of this process.
        static SEQ: AtomicU64 = AtomicU64::new(1);
        let seq = SEQ.fetch_add(1, Ordering::Relaxed);
        let (target, call) = (&self.target, Call::Proclaim { of, seq });
        target.ask(call, |call| call.data = Some(data), CallAnswer::try_as_owned)
    }

    /// Returns what the store keeps of this node: its name, and a value.
    fn encode_value(&self, value: Option<&[u8]>) -> Payload {
        let node_name = self.target.handle.options().node_name.as_deref();
        proclaimed::encode(node_name.unwrap_or_default(), value)
    }

    fn leader_call(
        &self,
        known: Option<Version>,
        pauses: bool,
    ) -> Result<CallFuture<Option<LeaderReport>>, Error> {
        let (target, call) = (&self.target, Call::Leader { known });
        target.ask(call, |call| call.rests = pauses, CallAnswer::try_as_leader)
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("key", self.key())
            .field("lease", &self.target.options.lease())
            .field("run_to_completion", &self.runs_to_completion)
            .finish_non_exhaustive()
    }
}

/// The leader of an election, as the store reported it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let election = locks.election("outbox-relay");
/// let guard = election.campaign().await?;
/// if let Some(leader) = election.leader().await? {
///     let name = leader.node_name().unwrap_or("a node without a name");
///     println!("{name} ({}) leads with fence {}", leader.node_id(), leader.fence());
///     assert_eq!(leader.node_id(), locks.node_id());
/// }
/// # guard.release().await }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    node: NodeId,
    name: Option<String>,
    fence: Fence,
    value: Option<Vec<u8>>,
}

impl Leader {
    fn new(report: LeaderReport) -> Self {
        let decoded = report
            .value
            .as_ref()
            .and_then(|payload| proclaimed::decode(&payload.0));
        let (name, value) = decoded.unwrap_or_default();
        Leader {
            node: report.node,
            name: (!name.is_empty()).then(|| name.to_owned()),
            fence: Fence::new(report.number, 0),
            value: value.map(<[u8]>::to_vec),
        }
    }

    /// Returns the id of the leader's node; see [`Locks::node_id`](crate::Locks::node_id).
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// Returns the name of its node. `None` if [no name was set](crate::Builder::node_name).
    pub fn node_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the fence of its lease, which grows with each leader.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the value that it [proclaimed](Election::proclaim).
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

/// A stream of leaders; made by [`Election::observe`].
///
/// The [`Stream`] ends after [`Error::Closed`]. [`next`](Self::next) needs no extension trait for streams.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let election = locks.election("outbox-relay");
/// let mut observer = election.observe();
/// assert!(observer.next().await?.is_none()); // no process leads
/// let guard = election.campaign().await?;
/// let leader = observer.next().await?.expect("this process leads");
/// assert_eq!(leader.node_id(), locks.node_id());
/// # guard.release().await }
/// ```
#[must_use = "nothing is observed until the next is awaited"]
pub struct Observer {
    election: Election,
    /// The version that was yielded last; `None` before the first one.
    known: Option<Version>,
    /// Whether the last request failed. Then the next one is sent after a pause.
    has_failed: bool,
    is_closed: bool,
    /// The request in flight.
    in_flight: Option<CallFuture<Option<LeaderReport>>>,
}

impl Observer {
    /// Waits until the leader or its value differs from what was returned last, and returns it. The first call returns the
    /// current state. `None` means that no process leads.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is unavailable for longer than a lease, or at the first call. It may be called again, and
    /// then asks after about a third of a lease. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`] and
    /// [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// No change is lost.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        poll_fn(|cx| self.poll_leader(cx)).await
    }

    fn poll_leader(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Leader>, Error>> {
        let report = ready!(self.poll_report(cx));
        self.in_flight = None;
        self.has_failed = report.is_err();
        self.is_closed = matches!(report, Err(Error::Closed { .. }));
        Poll::Ready(report.map(|report| {
            let version = report.as_ref().map_or(Version(0), |report| report.version);
            self.known = Some(version);
            report.map(Leader::new)
        }))
    }

    fn poll_report(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<LeaderReport>, Error>> {
        let in_flight = match &mut self.in_flight {
            Some(call) => call,
            none => none.insert(self.election.leader_call(self.known, self.has_failed)?),
        };
        Pin::new(in_flight).poll(cx)
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_closed {
            return Poll::Ready(None);
        }
        self.poll_leader(cx).map(Some)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("election", &self.election)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}
