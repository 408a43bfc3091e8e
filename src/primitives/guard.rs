//! The guard of a lease, and the view of a lease for other tasks.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

#[cfg(feature = "tower")]
use crate::error::OptionsError;
use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::observe;
use crate::primitives::held::{Held, StealNotice};
use crate::primitives::holdings::{self, Holdings};
#[cfg(feature = "redis")]
use crate::primitives::write::Atomically;
use crate::protocol::message::Fence;
#[cfg(feature = "scheduler")]
use crate::protocol::message::RunEnding;
use crate::protocol::step::Outcome;

/// The guard of a lock. The lock is held while the guard lives and [`is_held`](Lease::is_held). The methods of [`Lease`] are
/// methods of the guard, too.
///
/// Dropping the guard releases the lock in the background, also outside of a runtime, and also after the runtime has ended. A
/// clone is another guard of the same lease: the last one releases the lock.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// # async fn charge(_: tenure::Fence) {}
/// let guard = locks.mutex("account:42").lock().await?;
/// guard.run(charge(guard.fence())).await?;          // drops the work if the lease is lost
/// guard.release().await?;                           // `Err` if the lease was lost before this
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped: `let _ =` drops it at once, so bind it to a name, as `_guard`"]
pub struct Guard {
    lease: Lease,
    state: GuardState,
    /// Whether this guard is a clone, or made by [`Lease::again`]. Then its task may differ from the one that waited for the grant.
    #[cfg(feature = "tower")]
    is_shared: bool,
}

/// Whether a guard still counts in its holding, which ends with the last of its guards.
#[derive(Clone, Copy)]
enum GuardState {
    Held,
    /// This guard was the last one, so it releases the holding. `lost` says why the lease was lost before, if it was.
    Last {
        lost: Option<LostCause>,
    },
    /// Nothing is left to do: other guards keep the holding, or it was released or passed on.
    Ended,
}

/// Several guards that are dropped together, so that their releases share requests.
#[derive(Default)]
pub(crate) struct Guards(pub(crate) Vec<Guard>);

/// A view of the lease of a [`Guard`], for the handler behind a layer and for tasks that work under the guard. Cheap to
/// clone. A view does not keep the lock.
///
/// [`is_held`](Self::is_held), [`remaining`](Self::remaining), [`lost`](Self::lost) and [`lost_token`](Self::lost_token) tell
/// whether the lock is still held. They report a loss before the store can grant the lock to another holder, under the
/// [guarantees](crate::guide::guarantees). The module [`error`](crate::error#loss) says what to do then.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::Locks::memory();
/// use tenure::error::LostCause;
///
/// let guard = locks.mutex("import").lock().await?;
/// let lease = guard.lease();
/// let task = tokio::spawn(async move {
///     // … work, and check `lease.is_held()` between the steps …
///     lease.lost().await
/// });
/// guard.release().await?;
/// assert_eq!(task.await?, LostCause::Released);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lease {
    pub(crate) held: Arc<Held>,
}

impl Lease {
    /// Returns the key of the lock.
    pub fn key(&self) -> &Key {
        &self.held.name.key
    }

    /// Returns the fencing token of this holding. The token is larger than the tokens of all earlier holders of the key. Send
    /// it with each write, and let the resource refuse smaller tokens: no lock can stop a process between its check and its
    /// write.
    ///
    /// Readers, and holders of a semaphore's permits, do not exclude each other, so their tokens are not ordered among
    /// themselves. A reader that shares a lease of its node may have a smaller token than an earlier reader of another node.
    /// The token of a writer is larger than those of all readers before it, and smaller than those of all readers after it.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Returns whether the lock is held at this moment, under the [guarantees](crate::guide::guarantees). Compares the deadline with
    /// the clock, so a process that was suspended for too long gets `false` as soon as it continues.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// Returns how long the lock is still held if no renewal succeeds. Zero if it is no longer held.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Renews the lease now: one more term of the same length, which starts when the request is sent.
    ///
    /// A [fixed](crate::Mutex::fixed) lease is renewed by this call only. A job that knows its progress renews after each part,
    /// and a job that hangs loses the lock. A lease that renews itself is renewed at once, too: `Ok` then means that the store
    /// still had the lease when it served the request. The term of a guard that [`downgrade`](Guard::downgrade) made of a fixed lease is
    /// what was left of that lease.
    ///
    /// Takes one round trip. Calls at the same time share one request.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("import").fixed(Duration::from_secs(60)).lock().await?;
    /// for part in 0..3 {
    ///     // … import this part, in at most 60 s …
    ///     guard.renew().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the store refused the request or did not answer in time: a quarter of the lease, at least 100 ms and at
    /// most [`request_timeout`](crate::Builder::request_timeout). A fixed lease then runs to its old deadline, and the call may be
    /// repeated. [`Error::Lost`] if the lease is over, or if [`max_hold`](crate::Mutex::max_hold) has passed: the lease is then not
    /// renewed any more, and [`is_held`](Self::is_held) returns `true` until its deadline. [`Error::Closed`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future loses the answer. The lease may be renewed nevertheless.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.renew().await
    }

    /// Waits until the lock is no longer held: its lease was lost or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        holdings::lost(self)
    }

    /// Returns a token that is cancelled when the lock is no longer held. Each call returns a token of its own: if a caller
    /// cancels it, the other tokens are not cancelled.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Waits until the lease is no longer renewed: it was held for as long as [`max_hold`](crate::Mutex::max_hold) allows, or
    /// it has ended. In the first case the work must end within [`remaining`](Self::remaining).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.held.overdue_token().cancelled_owned()
    }

    /// Waits until an operator [asks](crate::inspect::Inspection::steal) for the lease; returns at once if that has happened. Finish
    /// or stop the work, and release: after the grace the lease is revoked. `None`: the lease is over, or this is a forked child.
    ///
    /// The next release goes to the store, and not to the next caller of this process.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn asked(&self) -> impl Future<Output = Option<StealNotice>> + Send + Sync + 'static {
        let held = self.held.clone();
        async move { held.asked().await }
    }

    /// Says what holds the lease: a request, a customer, a phase of a job. `tenure show` prints it under the holder, and
    /// [`HolderEntry::notes`](crate::inspect::HolderEntry::notes) has it. The latest text counts.
    ///
    /// *Do not write a secret.* Each operator and each client that may read the store can read it. A text longer than 200 bytes is
    /// cut.
    ///
    /// It costs no round trip. The text is kept in memory until the lease ends. The node's
    /// [presence](crate::Builder::presence) has the notes of the 16 leases that were held for longest, once they are held for 1 s.
    /// It is written at most every 2 s while they change, so an operator sees a text up to about 3 s late. Without presence
    /// the text is kept nowhere. A note of a lease that has ended does nothing.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("import").lock().await?;
    /// for part in 1..=3 {
    ///     guard.note(format!("part {part} of 3"));
    ///     // … import this part …
    /// }
    /// # guard.release().await }
    /// ```
    pub fn note(&self, text: impl AsRef<str>) {
        self.held.note(text.as_ref());
    }

    /// Returns another guard of the same lease, which is then released with its last guard. For work that continues after the
    /// handler has answered: a stream, an upgraded connection or a task.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let first = locks.mutex("account:42").lock().await?;
    /// let second = first.lease().again()?;
    /// first.release().await?;
    /// assert!(second.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended, or its last guard was dropped.
    pub fn again(&self) -> Result<Guard, Error> {
        if !self.is_held() || !self.held.add_guard() {
            return Err(self.held.lost());
        }
        Ok(Guard {
            lease: self.clone(),
            state: GuardState::Held,
            #[cfg(feature = "tower")]
            is_shared: true,
        })
    }

    /// Takes the guard from the [`LockLayer`](crate::LockLayer) that acquired the lease, for work that another task or process
    /// continues. From then on the caller owns it: neither the layer releases it, nor a task that [keeps](crate::LockLayer::run_to_completion) it,
    /// and the layer neither cancels nor replaces the response if the lease is lost.
    ///
    /// So a handler can hand its lease to a worker, and answer 202. If the layer runs handlers to completion, the message is sent
    /// even if the client leaves:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::{Error, Lease};
    ///
    /// async fn ship(lease: Lease) -> Result<String, Error> {
    ///     let transfer = lease.take_guard()?.into_transfer(Duration::from_secs(600)).await?;
    ///     // … send this text to the worker, which adopts the lease …
    ///     Ok(transfer.to_string())
    /// }
    /// ```
    ///
    /// Other guards of the lease stay: those of [`again`](Self::again), and that of a nested layer with the same key. As long as
    /// there are any, [`into_transfer`](Guard::into_transfer) is refused.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended. [`Error::Options`] if no layer has the guard: it was taken before, the layer has
    /// ended the request, or the lease is not that of a layer of one key; the keys of a layer of several are taken together, by
    /// [`MultiLease::take_guard`](crate::MultiLease::take_guard).
    #[cfg(feature = "tower")]
    pub fn take_guard(&self) -> Result<Guard, Error> {
        if !self.is_held() {
            return Err(self.held.lost());
        }
        if !self.held.offer.take() {
            return Err(not_offered(self.key()));
        }
        Ok(Guard::taken(&self.held))
    }

    /// Runs `work` in the scope of this lock. Inside, a `lock` of the same key returns [`Error::WouldDeadlock`] at once
    /// instead of waiting for itself, and a layer passes this lease on. [`run`](Self::run),
    /// [`Mutex::with`](crate::Mutex::with) and layers also run their work in this scope.
    ///
    /// The scope covers the code that is polled inside. Tasks that are spawned inside are not in the scope.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        holdings::scope(self, work)
    }

    /// Begins a write to the Redis server of the lock, which is executed only if this lease is current.
    ///
    /// The server checks the lease and executes the commands, or a script of yours, in one atomic step. So no process can be
    /// stopped between the check and the write. For data in Redis this replaces a resource that refuses smaller
    /// [fences](Self::fence).
    ///
    /// ```no_run
    /// # async fn sells(guard: tenure::Guard) -> Result<(), tenure::Error> {
    /// let (left, _): (i64, i64) = guard
    ///     .atomically()
    ///     .command("DECR").key("stock:42")
    ///     .command("RPUSH").key("orders:42").arg("order 7")
    ///     .query()
    ///     .await?;
    /// # let _ = left; Ok(()) }
    /// ```
    ///
    /// The types [`Commands`](crate::Commands) and [`Script`](crate::Script) have further examples, and their limits.
    ///
    /// A write takes one round trip, and a second one if the server does not know the script yet. It is sent
    /// [once](crate::error#repeated-calls).
    ///
    /// The keys are the full keys in Redis: the prefix of these locks is not added. The user of the connection needs the rights
    /// to them, for the examples `~stock:* ~orders:* +get +decr +decrby +rpush`. On a Redis Cluster the keys must be in the slot
    /// of the lock: give them one hash tag, such as `{order:7}` and `stock:{order:7}`.
    ///
    /// Commands return a list of replies, so read the reply of a single command as `let (n,): (i64,)`. With
    /// `let () = ….query().await?` no reply is read.
    ///
    /// Writes of holders that exclude each other are executed in the order of their fences: no write is executed after the
    /// next holder has the lock. Readers, holders of permits and several guards of one lease ([`again`](Self::again)) may
    /// write, too. Their writes have no order among themselves.
    ///
    /// *Redis does not roll back.* If a command fails, the commands after it are not executed, and the commands before it
    /// keep their effect. While a script runs, the server does nothing else: a slow script delays every lease on that server,
    /// and an endless loop ends them. A large value delays leases, too: some tens of MB are too much beside leases of 1 s.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], [`Error::Store`], [`Error::Unanswered`], [`Error::Failed`], [`Error::Reply`], [`Error::Unsupported`], and
    /// [`Error::Options`] for [too many words](crate::Commands) or a script that begins with `#!`. The guide says of each whether
    /// [the write was done](crate::guide::writes#was-it-done).
    ///
    /// This waits for the answer as long as a renewal does: a quarter of the lease, at least 100 ms and at most
    /// [`request_timeout`](crate::Builder::request_timeout). A lease with an unanswered write is not handed on within this
    /// process but released, so a late write cannot be executed while another holder has the lock. To find out later whether
    /// such a write was executed, let it also write an id of its own.
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        Atomically::new([&self.held])
    }

    /// Runs `work` while the lock is held. The future of the work is dropped when the lease is lost. The work runs in
    /// [`scope`](Self::scope).
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost before the work was done, or if the deadline had passed when the work was done.
    /// Then its last steps were not protected.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        holdings::run(self, work).await
    }
}

impl Holdings for Lease {
    fn all(&self) -> &[Arc<Held>] {
        slice::from_ref(&self.held)
    }

    fn end_token(&self) -> CancellationToken {
        self.held.end_token()
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// Another guard of the same lease, which ends with its last guard. The lease may have ended: see [`Lease::is_held`].
impl Clone for Guard {
    fn clone(&self) -> Self {
        let state = match self.held().add_guard() {
            true => GuardState::Held,
            false => GuardState::Ended,
        };
        Guard {
            lease: self.lease.clone(),
            state,
            #[cfg(feature = "tower")]
            is_shared: true,
        }
    }
}

impl Guard {
    /// Returns the first guard of a holding.
    pub(crate) fn new(held: Held) -> Self {
        Guard {
            lease: Lease { held: Arc::new(held) },
            state: GuardState::Held,
            #[cfg(feature = "tower")]
            is_shared: false,
        }
    }

    /// Returns the guard that a handler took from its layer, or that the layer left to a task. It counts already.
    #[cfg(feature = "tower")]
    pub(crate) fn taken(held: &Arc<Held>) -> Guard {
        Guard {
            lease: Lease { held: held.clone() },
            state: GuardState::Held,
            is_shared: true,
        }
    }

    /// Returns whether this guard is a clone, made by [`Lease::again`], or taken by a handler.
    #[cfg(feature = "tower")]
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Ends this guard without a release: the handler has taken it, or tasks keep it.
    #[cfg(feature = "tower")]
    pub(crate) fn disown(&mut self) {
        self.state = GuardState::Ended;
    }

    /// Returns a view of the lease for other tasks. The view may outlive the guard, and then reports that the lock is not held.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Polls for the end of the lease, without the cost of a token. Wakes the task that waited for the grant. Returns `None` if
    /// this guard is [shared](Self::is_shared), because its task may differ.
    #[cfg(feature = "tower")]
    pub(crate) fn poll_over(&self, cx: &Context<'_>) -> Option<Poll<()>> {
        (!self.is_shared).then(|| self.lease.held.waiter.poll_over(cx))
    }

    /// Records the end of the holding. Called after the store was told, so that a recorder that panics does not keep the lock.
    fn record_end(&self, over: Option<LostCause>) {
        let held = &self.lease.held;
        let now = || held.handle.node().clock.now().as_nanos();
        held.counted.end();
        observe::held(&held.name, held.began, now, || over);
    }

    /// Releases the lock, and reports whether it was held until this call. If there are other guards of the lease,
    /// only this guard ends, and the result says whether the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was not held until this call. [`Error::Store`] if the lock was held, but the store did not
    /// confirm the release: the lock is released in the background as soon as possible, or its lease ends by itself.
    ///
    /// # Cancel safety
    /// The lock counts as released from the first poll. Dropping the future only loses the answer.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<(), Error> {
        release(slice::from_mut(&mut self)).await
    }

    /// Returns the holding of this guard.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.lease.held
    }

    /// Ends this guard if it is the only one of its holding, and returns whether it was. Then the caller must release the
    /// holding or pass it on.
    pub(crate) fn end_if_only(&mut self) -> bool {
        let held = &self.lease.held;
        let is_ended = held.remove_only_guard();
        if is_ended {
            let over = held.waiter.over();
            held.waiter.mark_over();
            self.state = GuardState::Ended;
            self.record_end(over);
        }
        is_ended
    }

    /// Releases the lease of a job after a run, and tells the store how it ended. If there are other guards, the store is told
    /// with the last one.
    #[cfg(feature = "scheduler")]
    pub(crate) async fn finish(self, ending: RunEnding) -> Result<(), Error> {
        self.lease.held.finish(ending);
        self.release().await
    }

    /// Ends this guard. If it was the last one, the holding counts as released, and the caller must tell the key machine.
    ///
    /// # Errors
    /// [`Error::Closed`] in a fork, whose parent holds the lock. [`Error::Lost`] if other guards keep a lease that has ended.
    fn leave_holding(&mut self) -> Result<(), Error> {
        let held = &self.lease.held;
        self.state = GuardState::Ended;
        held.not_forked()?;
        let lost = held.waiter.over();
        if !held.remove_only_guard() {
            // Read before the removal: after it, another guard may become the last one and release the lock.
            let is_held = held.is_held();
            if !held.remove_guard() {
                return if is_held { Ok(()) } else { Err(held.lost()) };
            }
        }
        held.waiter.mark_over();
        self.state = GuardState::Last { lost };
        Ok(())
    }

    /// Waits for the outcome of the release.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    async fn release_outcome(&self) -> Result<(), Error> {
        let held = &self.lease.held;
        let node = held.handle.node();
        let outcome = poll_fn(|cx| held.waiter.poll_outcome(cx)).await;
        let key = || held.name.key.clone();
        // The lease may have ended between the last check and the release.
        let earlier_cause = held.lost_before();
        match outcome {
            Outcome::Held => {
                observe::released(node.events.label(), &held.name);
                Ok(())
            }
            Outcome::Lost(cause) => {
                // This loss is found by the release only. Other losses were reported when they happened.
                if cause == LostCause::Gone {
                    node.events.push_loss(&held.name, cause, None);
                }
                let cause = earlier_cause.unwrap_or(cause);
                Err(Error::Lost { key: key(), cause })
            }
            Outcome::Unconfirmed(source) => {
                observe::release_failed(node.events.label(), &held.name, &source);
                Err(Error::Store { key: key(), source })
            }
        }
    }
}

/// Returns the error of a caller that takes a guard which no layer has.
#[cfg(feature = "tower")]
pub(crate) fn not_offered(key: &Key) -> Error {
    Error::Options(OptionsError(format!(
        "no layer has a guard of the lease on `{key}`: it was taken before, the request has ended, or no LockLayer of this form acquired it"
    )))
}

/// Releases the guards, and each holding whose last guard is among them.
///
/// # Errors
/// As [`Guard::release`], about the first guard that failed. All guards are released.
pub(crate) async fn release(guards: &mut [Guard]) -> Result<(), Error> {
    let mut all = Ok(());
    for guard in &mut *guards {
        all = all.and(guard.leave_holding());
    }
    send_releases(guards, true);
    for (guard, _) in last_guards(guards) {
        all = all.and(guard.release_outcome().await);
    }
    all
}

/// Tells the key machines that the holdings of these guards are released, with one call per node. `is_awaited` says whether the
/// caller waits for the answers.
fn send_releases(guards: &[Guard], is_awaited: bool) {
    for of_node in guards.chunk_by(|one, other| one.held().is_of(other.held().handle.node())) {
        let inputs =
            last_guards(of_node).map(|(guard, _)| (&guard.held().name, guard.held().end(is_awaited)));
        of_node[0].held().handle.node().drive_each(inputs);
    }
    last_guards(guards).for_each(|(guard, lost)| guard.record_end(lost));
}

/// Returns the guards that were the last ones of their holdings, and why each lease was lost before, if it was.
fn last_guards(guards: &[Guard]) -> impl Iterator<Item = (&Guard, Option<LostCause>)> {
    guards.iter().filter_map(|guard| match guard.state {
        GuardState::Last { lost } => Some((guard, lost)),
        GuardState::Held | GuardState::Ended => None,
    })
}

/// Releases guards that are dropped together, unless they were released before.
fn drop_all(guards: &mut [Guard]) {
    if guards.iter().all(|guard| matches!(guard.state, GuardState::Held)) {
        for guard in &mut *guards {
            // No caller gets this error. The views of the lease report its end.
            let _ = guard.leave_holding();
        }
        send_releases(guards, false);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop_all(slice::from_mut(self));
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        drop_all(&mut self.0);
    }
}

impl Lease {
    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("key", self.key())
            .field("fence", &self.fence().get())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Lease", f)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt_as("Guard", f)
    }
}
