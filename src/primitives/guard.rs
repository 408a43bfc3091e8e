//! What a caller holds, and what its helpers may see of it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::slice;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
#[cfg(feature = "tower")]
use tokio_util::task::TaskTracker;

use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::observe;
use crate::primitives::blocking::block_on;
use crate::primitives::held::Held;
use crate::primitives::holdings::{self, Holdings};
#[cfg(feature = "tower")]
use crate::primitives::scope;
#[cfg(feature = "redis")]
use crate::primitives::write::Atomically;
use crate::protocol::message::Fence;
use crate::protocol::step::Outcome;

/// The lock is held while this lives and [`is_held`](Self::is_held).
///
/// Dropping it releases the lock in the background, also outside of a runtime, and also when the runtime has ended. Where
/// there are several ([`again`](Self::again)) the last of them does.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    lease: Lease,
    state: GuardState,
    /// It is one of several, whose tasks may differ.
    #[cfg(feature = "tower")]
    is_shared: bool,
}

/// A guard's share in its holding, which ends with the last of its guards.
#[derive(Clone, Copy)]
enum GuardState {
    Held,
    /// This guard was the last one: it gives the holding back. `lost` says why the lease was lost before, if it was.
    Last {
        lost: Option<LostCause>,
    },
    /// Nothing is left to do: other guards keep the holding, or it was given back.
    Ended,
}

/// Several guards, which are dropped together.
#[derive(Default)]
pub(crate) struct Guards(pub(crate) Vec<Guard>);

/// Sees a lock that somebody else holds: for the handler behind a layer, and for tasks that work under a guard. Cheap
/// to clone. It does not keep the lock.
#[derive(Clone)]
pub struct Lease {
    pub(crate) held: Arc<Held>,
}

impl Lease {
    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.held.name.key
    }

    /// The fencing token of this holding. It is larger than that of every holding of the key before it. Send it with
    /// each write, and let the resource refuse smaller ones: no lock can stop a process between its check and its
    /// write.
    ///
    /// Holdings that do not exclude each other, those of readers or of a semaphore's permits, are not ordered among
    /// themselves: a reader that its node lets in by a lease which it has already may have a smaller token than an earlier
    /// reader of another node. A writer's is larger than those of all readers before it, and smaller than those of all
    /// after it.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Nobody else holds the lock at this moment, under the [guarantees](crate#guarantees). It compares the deadline
    /// with the clock, so a process that was stopped and woke up is told `false` before anything else.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// How long it would still be held if no renewal came through; zero when it is held no more.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Waits until it is held no more: lost, or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        holdings::lost(self)
    }

    /// The same as a token: cancelled when it is held no more. Each call makes one of its own, so that whoever cancels
    /// theirs tells nobody else.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Waits until it is renewed no more: it was held for as long as [`max_hold`](crate::Mutex::max_hold) allows, or it is
    /// over. In the first case [`remaining`](Self::remaining) is what is left to come to an end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.held.overdue_token().cancelled_owned()
    }

    /// A guard on the same lease, which then ends with the last of its guards: for what goes on when the handler has
    /// answered, a stream, an upgraded connection or a task.
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
    /// [`Error::Lost`] when the lease is over, or its last guard was dropped.
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

    /// Runs `work` with the knowledge that this lock is held: a `lock` of the same key inside of it is
    /// [`Error::WouldDeadlock`] at once, where it would wait for itself, and a layer inside of it passes this lease on.
    /// [`run`](Self::run), [`Mutex::with`](crate::Mutex::with) and layers do so by themselves.
    ///
    /// It holds for what is polled inside. Tasks that are spawned inside know nothing of it.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        holdings::scope(self, work)
    }

    /// Redis commands, or a script of yours, that are done only if this lease is current, in one atomic step on the lock's own
    /// server: no process can be stopped between the check and the write. For data in Redis this does what a resource that
    /// refuses smaller [fences](Self::fence) does for data elsewhere.
    ///
    /// ```no_run
    /// # async fn sells(guard: tenure::Guard) -> Result<(), tenure::Error> {
    /// let (left, _): (i64, i64) = guard
    ///     .atomically()
    ///     .command("DECR").key("stock:42")
    ///     .command("RPUSH").key("orders:42").arg("order 7")
    ///     .query()
    ///     .await?;
    /// let sold: bool = guard
    ///     .atomically()
    ///     .script(
    ///         "local left = tonumber(redis.call('GET', KEYS[1]) or 0)
    ///          if left < tonumber(ARGV[1]) then return 0 end
    ///          redis.call('DECRBY', KEYS[1], ARGV[1])
    ///          return 1",
    ///     )
    ///     .key("stock:42")
    ///     .arg(3)
    ///     .query()
    ///     .await?;
    /// # let _ = (left, sold); Ok(()) }
    /// ```
    ///
    /// It takes one round trip, and one more where the server does not know the script yet. It is sent once. The keys are
    /// yours, as they are called in Redis: our prefix is not put before them. The user of the connection needs the rights to
    /// them.
    ///
    /// Commands give a list of replies, so that of a single command is read as `let (n,): (i64,)`. `let () = ….query().await?`
    /// reads none of them.
    ///
    /// Writes of holders that exclude each other are done in the order of their fences: none is done after the next holder
    /// has the lock. Readers may write, and holders of permits, and several guards of one lease ([`again`](Self::again)): nothing
    /// orders theirs among themselves.
    ///
    /// *Redis does not roll back.* A command that fails ends the rest, and what was written before it stands. And nothing
    /// else is done while a script runs: one that takes long delays every lease on that server, one that loops ends them. A
    /// large value delays them, too: some tens of MB are too much beside leases of 1 s.
    ///
    /// # Errors
    ///
    /// | | |
    /// |---|---|
    /// | [`Error::Lost`] | the lease is not current: nothing was written, and the guard is lost by then |
    /// | [`Error::Failed`] | the server failed it, in its own words, perhaps half-way: what was written before that stands |
    /// | [`Error::Unanswered`] | it was sent, and no answer came: it may have been done, and may be done later, while this lease is current |
    /// | [`Error::Store`] | it was not done: no connection, or the server refused it as a whole |
    /// | [`Error::Reply`] | it was done, and the reply cannot be read as what was asked for |
    /// | [`Error::Options`] | it has [too many words](crate::Commands), or a script begins with `#!`: nothing was sent |
    /// | [`Error::Unsupported`] | the store keeps no data of yours: that in memory |
    ///
    /// An answer is waited for as long as for that to a renewal: a quarter of the lease, at least 100 ms and at most
    /// [`request_timeout`](crate::Builder::request_timeout). A lease with a write that has no answer is not handed on within
    /// this process but given back, so that what is done later is done in nobody else's time. To make it known what became
    /// of such a write, have it write an id of its own.
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        Atomically::new([&self.held])
    }

    /// Runs `work` as long as the lock is held; its future is dropped when the lease is lost. The work is in
    /// [`scope`](Self::scope).
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease was lost before the work was done, or when the deadline had passed when it was:
    /// then its last steps were not protected.
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

impl Guard {
    /// The first guard of a holding.
    pub(crate) fn new(held: Held) -> Self {
        Guard {
            lease: Lease { held: Arc::new(held) },
            state: GuardState::Held,
            #[cfg(feature = "tower")]
            is_shared: false,
        }
    }

    /// See [`Lease::again`].
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease is over.
    pub fn again(&self) -> Result<Guard, Error> {
        self.lease.again()
    }

    /// See [`Lease::scope`].
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.lease.scope(work)
    }

    /// See [`Lease::atomically`].
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        self.lease.atomically()
    }

    /// A view of it, for others. It outlives the guard, and says so.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// See [`Lease::fence`].
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// See [`Lease::is_held`].
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// See [`Lease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// See [`Lease::lost`].
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        self.lease.lost()
    }

    /// See [`Lease::lost_token`].
    pub fn lost_token(&self) -> CancellationToken {
        self.lease.lost_token()
    }

    /// See [`Lease::overdue`].
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.lease.overdue()
    }

    /// See [`Lease::run`].
    ///
    /// # Errors
    /// [`Error::Lost`], as there.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.lease.run(work).await
    }

    /// For what is polled under it; see [`Lease::scope`].
    #[cfg(feature = "tower")]
    pub(crate) fn enter(&self) -> scope::Scope {
        scope::enter([&self.lease.held])
    }

    /// Ready when it is over, for the task that waited for the grant: it is woken where it slept then, and that costs no token.
    /// `None` where this is one of several, whose tasks may differ.
    #[cfg(feature = "tower")]
    pub(crate) fn poll_over(&self, cx: &Context<'_>) -> Option<Poll<()>> {
        (!self.is_shared).then(|| self.lease.held.waiter.poll_over(cx))
    }

    /// Where work goes that outlives its caller.
    #[cfg(feature = "tower")]
    pub(crate) fn tasks(&self) -> &TaskTracker {
        self.lease.held.handle.tasks()
    }

    /// Told after the store: a recorder that panics does not keep the lock.
    fn tell_end(&self, over: Option<LostCause>) {
        let held = &self.lease.held;
        let now = || held.handle.node().clock.now().as_nanos();
        observe::held(&held.name, held.began, now, || over);
    }

    /// Gives the lock back, and says whether exclusivity held to this call. While there are other guards of it
    /// ([`again`](Self::again)) it says so and gives nothing back.
    ///
    /// # Errors
    /// [`Error::Lost`] when it did not. [`Error::Store`] when it did, but the store could not be told: the lock is
    /// released in the background as soon as it can, and ends by itself otherwise.
    ///
    /// # Cancel safety
    /// The lock counts as given back from the first poll; dropping the future only loses the answer.
    pub async fn release(mut self) -> Result<(), Error> {
        release(slice::from_mut(&mut self)).await
    }

    /// What is held, of which this is a guard.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.lease.held
    }

    /// It is no guard any more, if it was the only one: whoever calls this gives back what was held, or goes on with it.
    pub(crate) fn end_if_only(&mut self) -> bool {
        let held = &self.lease.held;
        let is_ended = held.remove_only_guard();
        if is_ended {
            let over = held.waiter.over();
            held.waiter.mark_over();
            self.state = GuardState::Ended;
            self.tell_end(over);
        }
        is_ended
    }

    /// As [`release`](Self::release), for code that is not async: the thread sleeps until the store has answered.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Panics
    /// As [`Mutex::blocking_lock`](crate::Mutex::blocking_lock).
    #[track_caller]
    pub fn blocking_release(self) -> Result<(), Error> {
        block_on(self.release())
    }

    /// Gives a job back whose tick was run to its end, and says whether that went well. While there are other guards of it
    /// the store is not told: it is with the last of them.
    #[cfg(feature = "scheduler")]
    pub(crate) async fn finish(self, well: bool) -> Result<(), Error> {
        self.lease.held.finish(well);
        self.release().await
    }

    /// Ends this guard's share. If it was the last one, the holding counts as given back, and the key machine must be told.
    ///
    /// # Errors
    /// [`Error::Closed`] in a fork, whose parent holds it. [`Error::Lost`] if other guards keep it, and it is over.
    fn leave_holding(&mut self) -> Result<(), Error> {
        let held = &self.lease.held;
        self.state = GuardState::Ended;
        held.not_forked()?;
        let lost = held.waiter.over();
        if !held.remove_only_guard() {
            // Asked before: as soon as this guard is gone another one may be the last, and give it back.
            let is_held = held.is_held();
            if !held.remove_guard() {
                return if is_held { Ok(()) } else { Err(held.lost()) };
            }
        }
        held.waiter.mark_over();
        self.state = GuardState::Last { lost };
        Ok(())
    }

    /// What became of the release.
    async fn release_outcome(&self) -> Result<(), Error> {
        let held = &self.lease.held;
        let node = held.handle.node();
        let outcome = poll_fn(|cx| held.waiter.poll_outcome(cx)).await;
        let key = || held.name.key.clone();
        // It may have ended between the last look and the request to give it back.
        let told = held.lost_before();
        match outcome {
            Outcome::Kept => {
                observe::released(node.events.label(), &held.name);
                Ok(())
            }
            Outcome::Lost(cause) => {
                // Found only now. Any other loss was told when it happened.
                if cause == LostCause::Gone {
                    node.events.push_loss(&held.name, cause, None);
                }
                let cause = told.unwrap_or(cause);
                Err(Error::Lost { key: key(), cause })
            }
            Outcome::Unconfirmed(source) => {
                observe::release_failed(node.events.label(), &held.name, &source);
                Err(Error::Store { key: key(), source })
            }
        }
    }
}

/// Gives holdings back, of each that these guards were the last of, and returns whether all were held until this call.
pub(crate) async fn release(guards: &mut [Guard]) -> Result<(), Error> {
    let mut all = Ok(());
    for guard in &mut *guards {
        all = all.and(guard.leave_holding());
    }
    give_back(guards, true);
    for (guard, _) in last_guards(guards) {
        all = all.and(guard.release_outcome().await);
    }
    all
}

/// Tells the key machines that the holdings of these guards are given back, those of one node together. `is_awaited` if the
/// caller waits for the answers.
fn give_back(guards: &[Guard], is_awaited: bool) {
    for of_node in guards.chunk_by(|one, other| one.held().is_of(other.held().handle.node())) {
        let inputs =
            last_guards(of_node).map(|(guard, _)| (&guard.held().name, guard.held().end(is_awaited)));
        of_node[0].held().handle.node().drive_each(inputs);
    }
    last_guards(guards).for_each(|(guard, lost)| guard.tell_end(lost));
}

/// Returns the guards that were the last ones of their holdings, and why each lease was lost before, if it was.
fn last_guards(guards: &[Guard]) -> impl Iterator<Item = (&Guard, Option<LostCause>)> {
    guards.iter().filter_map(|guard| match guard.state {
        GuardState::Last { lost } => Some((guard, lost)),
        GuardState::Held | GuardState::Ended => None,
    })
}

/// Drops guards together. Guards that were released together are not given back again.
fn drop_all(guards: &mut [Guard]) {
    if guards.iter().all(|guard| matches!(guard.state, GuardState::Held)) {
        for guard in &mut *guards {
            // The lease itself tells that it is over.
            let _ = guard.leave_holding();
        }
        give_back(guards, false);
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
