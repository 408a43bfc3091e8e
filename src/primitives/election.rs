//! Which of several processes leads, across every process that uses the store.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;

use crate::error::{Error, LostCause, OptionsError};
use crate::key::Key;
use crate::primitives::acquire::LockFuture;
use crate::primitives::call::CallFuture;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::mutex::Mutex;
use crate::protocol::message::{Call, ClaimId, Fence, LeaderReport, NodeId, Payload, Version};
use crate::protocol::step::{CallAnswer, LockOptions};

/// What a leader proclaims is no longer than this.
const LONGEST_VALUE: usize = 64 * 1024;

/// One of several processes leads, and the others stand by: "one of us relays the outbox". Made by
/// [`Locks::election`](crate::Locks::election); cheap to make and to clone.
///
/// [`lead`](Self::lead) does all of it: it waits until this process leads, works as long as it does, and waits again when that
/// was lost. It ends when the work ends: a service that must go on calls it in a loop. Who stands by waits in the order in
/// which it came, and is told by a push when it is its turn. What the guards of locks promise holds for leaders, too: a leader
/// learns that it does not lead any more before somebody else can, and what it writes can carry its [fence](Lease::fence).
///
/// Anybody may ask who leads ([`leader`](Self::leader)) and follow that ([`observe`](Self::observe)), also a process that never
/// stands. A leader may [proclaim](Self::proclaim) something, as the address by which it is reached.
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
/// The habits are those of etcd's `concurrency.Election` and of Kubernetes' `leaderelection`.
#[derive(Clone)]
#[must_use = "an election does nothing until somebody stands, asks or observes"]
pub struct Election {
    /// Candidates wait in it, each with a place of its own.
    line: Mutex,
    /// The work of a leader that lost goes on to its end.
    told: bool,
}

impl Election {
    pub(crate) fn new(line: Mutex) -> Self {
        Election {
            // Another leader of this process has a fence of its own, which all are told.
            line: line.fair(),
            told: false,
        }
    }

    /// Leads by leases of this length, and looks each third of it, instead of the length that these locks have.
    pub fn lease(self, lease: Duration) -> Self {
        let line = self.line.lease(lease);
        Election { line, ..self }
    }

    /// The work of [`lead`](Self::lead) is not dropped when it leads no more: it is told, by
    /// [`lost`](Lease::lost) of its lease, and comes to an end by itself. Until then somebody else may lead beside it.
    pub fn told_of_loss(mut self) -> Self {
        self.told = true;
        self
    }

    /// What it is called.
    pub fn key(&self) -> &Key {
        self.line.key()
    }

    /// Waits until this process leads. It leads as long as the guard lives and is held; to [release](Guard::release) it is to
    /// resign, and hands over in one trip. Others are told of this node's [name](crate::Builder::node_name) within another trip.
    ///
    /// [`value`](Campaign::value) has something proclaimed in the request that wins:
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let election = locks.election("outbox-relay");
    /// let guard = election.campaign().value("10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("this process leads");
    /// assert_eq!(leader.value(), Some(&b"10.0.0.7:8080"[..]));
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or what was won meanwhile.
    pub fn campaign(&self) -> Campaign {
        Campaign {
            election: self.clone(),
            candidate: Ok(self.candidate(false)),
            has_value: false,
        }
    }

    /// As [`campaign`](Self::campaign), but no longer than `wait`; [`Error::Busy`] when somebody else leads then.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers, unless the answer is there at once.
    pub async fn campaign_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.campaign().timeout(wait).await
    }

    /// Waits until this process leads, and works then. When it leads no more before the work is done, that is dropped, unless it
    /// is [told](Self::told_of_loss), and this begins again, with a pause of about a third of a lease: a leader that loses its
    /// lease again and again leaves others time.
    ///
    /// When the work ends it resigns and returns what the work returned, also when that is an `Err`, and does not stand again.
    /// The work is made again each time that this process leads, so it clones what it needs. A service that must go on has a
    /// loop:
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
    /// It borrows the election. To spawn it without such a function: `tokio::spawn(async move { election.lead(work).await })`.
    ///
    /// A store that is away is no reason to end: it goes on as soon as it is back. The
    /// [events](crate#what-it-tells-you) tell of that.
    ///
    /// # Errors
    /// [`Error::Lost`] when the work was done, and it is not sure that this process led until then. [`Error::Closed`] after
    /// [`Locks::shutdown`](crate::Locks::shutdown). Else as [`Mutex::lock`](crate::Mutex::lock), but for a store that is away.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then resigns, in the background: for "until SIGTERM" use it in a
    /// `tokio::select!`, and then await [`Locks::shutdown`](crate::Locks::shutdown).
    pub async fn lead<T, Fut>(&self, mut work: impl FnMut(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        let mut rests = false;
        loop {
            let guard = match self.stand(rests).await {
                // It never led, or the leader is not known.
                Err(error) if error.is_unreachable() || error.is_lost() => {
                    rests = true;
                    continue;
                }
                answer => answer?,
            };
            let work = work(guard.lease());
            let done = if self.told {
                let done = guard.scope(work).await;
                guard.is_held().then_some(done)
            } else {
                // What is done in the moment in which it is lost is not dropped: it is told as that.
                guard.run(work).await.ok()
            };
            if let Some(done) = done {
                return match guard.release().await {
                    // It led until then. Who cannot be told learns it when the lease ends.
                    Ok(()) | Err(Error::Store { .. }) => Ok(done),
                    Err(error) => Err(error),
                };
            }
            rests = true;
        }
    }

    /// Tells whoever asks or observes this `value`, at most 64 KiB of any bytes, for as long as this node leads: the address by
    /// which it is reached, the version that it runs. The latest of a leader is told, and none of the leader before it. A trip
    /// to the store.
    ///
    /// # Errors
    /// [`Error::Lost`] when this node does not lead. [`Error::Options`] for a longer value. [`Error::Store`] when the store did
    /// not answer: it may have been done. [`Error::Closed`] as of a lock; when [`shutdown`](crate::Locks::shutdown) is called
    /// meanwhile it may have been done. [`Error::Key`] as of a lock.
    ///
    /// # Cancel safety
    /// When the future is dropped, it may be done or not.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let value = self.check_value(value.as_ref())?;
        let lost = || Error::Lost {
            key: self.key().clone(),
            cause: LostCause::Gone,
        };
        self.line.handle.not_forked(self.key())?;
        let of = self.claim().ok_or_else(lost)?;
        if self.proclaims(of, Some(value))?.await? {
            Ok(())
        } else {
            Err(lost())
        }
    }

    /// Who leads, as the store knows: `None` for nobody. Another may lead by the time that the answer arrives. A trip to the
    /// store.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Store`] and [`Error::Closed`] as of a lock.
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let report = self.asks(None, false)?.await?;
        Ok(report.map(Leader::new))
    }

    /// Follows who leads: at first as it is, then each time that it is another, or has proclaimed something else. What is
    /// between two looks of the caller is left out: it is told the latest.
    ///
    /// The store pushes what is new, and this looks by itself each third of a lease, should a push be lost or a leader be gone
    /// without a word. All of a process share one look. Nothing is asked while nobody waits for the [next](Observer::next).
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            known: None,
            failed: false,
            closed: false,
            asking: None,
        }
    }

    /// This node leads at this moment, by this or another handle. No trip to the store, and `false` before anybody else can lead.
    pub fn is_leader(&self) -> bool {
        self.claim().is_some()
    }

    /// Returns the claim by which this node leads.
    fn claim(&self) -> Option<ClaimId> {
        self.line.handle.node().held_alone(&self.line.name)
    }

    async fn stand(&self, rests: bool) -> Result<Guard, Error> {
        self.candidate(rests).await.inspect(|_| self.tell_name(false))
    }

    fn candidate(&self, rests: bool) -> LockFuture {
        let line = &self.line;
        let options = LockOptions {
            rests,
            ..line.options
        };
        LockFuture::new(&line.handle, &line.name, options)
    }

    /// Others are told its name, unless it came with the value. Who cannot be told so learns it from the store's record of the leader's node.
    fn tell_name(&self, has_value: bool) {
        if !has_value
            && let Some(of) = self.claim()
            && self.line.handle.options().node_name.is_some()
            && let Ok(proclaims) = self.proclaims(of, None)
        {
            proclaims.detach();
        }
    }

    fn proclaims(&self, of: ClaimId, value: Option<&[u8]>) -> Result<CallFuture<bool>, Error> {
        /// The order in which they were called for.
        static SEQ: AtomicU64 = AtomicU64::new(1);
        let seq = SEQ.fetch_add(1, Ordering::Relaxed);
        let data = self.said(value);
        let (line, call) = (&self.line, Call::Proclaim { of, seq });
        line.ask(call, |call| call.data = Some(data), CallAnswer::try_as_owned)
    }

    /// Returns what the store is told of this node: its name, and a value.
    fn said(&self, value: Option<&[u8]>) -> Payload {
        let node_name = self.line.handle.options().node_name.as_deref();
        said(node_name.unwrap_or_default(), value)
    }

    /// # Errors
    /// A value that is too long.
    fn check_value<'a>(&self, value: &'a [u8]) -> Result<&'a [u8], Error> {
        if value.len() <= LONGEST_VALUE {
            return Ok(value);
        }
        Err(Error::Options(OptionsError(format!(
            "election `{}` is told a value of at most {LONGEST_VALUE} bytes, not {}",
            self.key(),
            value.len()
        ))))
    }

    fn asks(&self, known: Option<Version>, rests: bool) -> Result<CallFuture<Option<LeaderReport>>, Error> {
        let (line, call) = (&self.line, Call::Leader { known });
        line.ask(call, |call| call.rests = rests, CallAnswer::try_as_leader)
    }
}

/// The future of [`Election::campaign`]: one candidate of this process.
#[must_use = "futures do nothing until they are awaited"]
pub struct Campaign {
    election: Election,
    /// The error of a value that is too long.
    candidate: Result<LockFuture, Option<Error>>,
    has_value: bool,
}

impl Campaign {
    /// Proclaims this value, at most 64 KiB of any bytes, in the step in which this candidate wins. An observer never sees the
    /// leadership without it. [`Election::proclaim`] replaces it later.
    ///
    /// A candidate that waits leaves its value with the store, which forgets it when the candidate gives up or is not heard of for
    /// one lease. A value that is too long is [`Error::Options`] when the future is awaited.
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        match self.election.check_value(value.as_ref()) {
            Ok(value) => {
                if let Ok(candidate) = &mut self.candidate {
                    candidate.set_value(self.election.said(Some(value)));
                }
            }
            Err(error) => self.candidate = Err(Some(error)),
        }
        self.has_value = true;
        self
    }

    /// Waits until this process leads, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`Election::campaign_timeout`].
    ///
    /// # Cancel safety
    /// As [`Election::campaign`].
    ///
    /// # Panics
    /// As [`Election::campaign_timeout`].
    pub async fn timeout(self, wait: Duration) -> Result<Guard, Error> {
        let won = match self.candidate {
            Ok(candidate) => candidate.within(wait).await,
            Err(error) => Err(error.expect("it is told once")),
        };
        won.inspect(|_| self.election.tell_name(self.has_value))
    }
}

impl Future for Campaign {
    type Output = Result<Guard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let won = match &mut self.candidate {
            Ok(candidate) => ready!(Pin::new(candidate).poll(cx)),
            Err(error) => Err(error.take().expect("polled after it was ready")),
        };
        Poll::Ready(won.inspect(|_| self.election.tell_name(self.has_value)))
    }
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign")
            .field("key", self.election.key())
            .finish()
    }
}

/// How it stands in the store: `<length of the name>:<name>`, and then nothing, or `=` and the value.
fn said(name: &str, value: Option<&[u8]>) -> Payload {
    let mut said = format!("{}:{name}", name.len()).into_bytes();
    if let Some(value) = value {
        said.push(b'=');
        said.extend_from_slice(value);
    }
    Payload(said.into())
}

/// The name, and the value. What is none of that says nothing.
fn read(said: &[u8]) -> Option<(&str, Option<&[u8]>)> {
    let colon = said.iter().position(|byte| *byte == b':')?;
    let length: usize = std::str::from_utf8(&said[..colon]).ok()?.parse().ok()?;
    let (name, rest) = said[colon + 1..].split_at_checked(length)?;
    Some((std::str::from_utf8(name).ok()?, rest.strip_prefix(b"=")))
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("key", self.key())
            .field("lease", &self.line.options.lease())
            .field("told_of_loss", &self.told)
            .finish_non_exhaustive()
    }
}

/// Who leads, as the store said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    node: NodeId,
    name: Option<String>,
    fence: Fence,
    value: Option<Vec<u8>>,
}

impl Leader {
    fn new(report: LeaderReport) -> Self {
        let said = report.said.as_ref().and_then(|said| read(&said.0));
        let (name, value) = said.unwrap_or_default();
        Leader {
            node: report.node,
            name: (!name.is_empty()).then(|| name.to_owned()),
            fence: Fence::new(report.number, 0),
            value: value.map(<[u8]>::to_vec),
        }
    }

    /// Of which node it is: see [`Locks::node`](crate::Locks::node).
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What its node is called, if [it was given a name](crate::Builder::node_name) and has told so, which takes it a trip.
    pub fn node_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The fence of its lease. It grows with each leader.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// What it [proclaimed](Election::proclaim), as bytes.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

/// Follows who leads; made by [`Election::observe`]. A [`Stream`], which ends after [`Error::Closed`], and [`next`](Self::next)
/// for whoever needs none of its helpers.
#[must_use = "nothing is observed until the next is awaited"]
pub struct Observer {
    election: Election,
    /// The version that was told last.
    known: Option<Version>,
    failed: bool,
    closed: bool,
    asking: Option<CallFuture<Option<LeaderReport>>>,
}

impl Observer {
    /// Waits until it is another than was told last; the first time it is told as it is. `None`: nobody leads.
    ///
    /// # Errors
    /// [`Error::Store`] when the store is away for longer than a lease, or in the beginning. It may be awaited again, and then
    /// asks after about a third of a lease. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`] and [`Error::Closed`] as of
    /// a lock.
    ///
    /// # Cancel safety
    /// Nothing that is new is missed.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        poll_fn(|cx| self.poll_leader(cx)).await
    }

    fn poll_leader(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Leader>, Error>> {
        let report = ready!(self.poll_report(cx));
        self.asking = None;
        self.failed = report.is_err();
        self.closed = matches!(report, Err(Error::Closed { .. }));
        Poll::Ready(report.map(|report| {
            let version = report.as_ref().map_or(Version(0), |report| report.version);
            self.known = Some(version);
            report.map(Leader::new)
        }))
    }

    fn poll_report(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<LeaderReport>, Error>> {
        let asking = match &mut self.asking {
            Some(asking) => asking,
            none => none.insert(self.election.asks(self.known, self.failed)?),
        };
        Pin::new(asking).poll(cx)
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.closed {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_read_again_and_nothing_else() {
        for (name, value) in [
            ("", None),
            ("web-1", None),
            ("a:=b", Some(&b"10.0.0.7:80"[..])),
            ("Zürich", Some(b"")),
            ("", Some(b"\0\xff=:\n")),
        ] {
            assert_eq!(read(&said(name, value).0), Some((name, value)));
        }
        for bad in [
            &b""[..],
            b"x",
            b":",
            b"9:short",
            b"-1:a",
            b"2:\xff\xff",
            b"99999999999999999999:a",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
