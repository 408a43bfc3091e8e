//! The checks of a store: what its servers tell, and a trial of its locks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::driver::handle::Handle;
use crate::driver::servers::fresh_key;
use crate::error::{Error, StoreErrorKind, StoreRefusal};
use crate::key::Key;
use crate::options::TRIAL_PATIENCE;
use crate::primitives::election::Election;
use crate::primitives::guard::Guard;
use crate::primitives::inspect::inspection::Inspection;
use crate::primitives::latch::Latch;
use crate::primitives::semaphore::Semaphore;
use crate::primitives::target::Target;
#[cfg(feature = "scheduler")]
use crate::primitives::tick::acquire_tick;
use crate::protocol::finding::{Finding, FindingLevel};
use crate::protocol::message::{Mode, Name};
#[cfg(feature = "scheduler")]
use crate::protocol::message::{TickTime, WhenBehind};
use crate::protocol::session::step::SessionInput;
use crate::protocol::step::InboxState;

const NO_PERMISSION: StoreErrorKind = StoreErrorKind::Refused(StoreRefusal::NoPermission);
/// How long a latch of a trial lives, if the trial is interrupted.
const LATCH_LIFE: Duration = Duration::from_secs(5);

impl Inspection {
    /// Checks each server of the store by plain reads: version, role, eviction, memory, persistence, replicas, recovery, clock
    /// and latency. A server without an answer is a finding (`connection`). In memory there is nothing to check.
    ///
    /// # Errors
    /// [`Error::Connect`] if no server answers. [`Error::Closed`] in a forked child.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let checked = self.inspector.check().await;
        checked.map_err(|source| self.inspector.unavailable(source))
    }

    /// Tries the locks under keys that no process uses: two nodes of this process hand a mutex over by a push, and then take a
    /// reader, a permit, a latch, an election and (feature `scheduler`) a tick of a job. A quorum serves the mutex only. A right that
    /// the user lacks is a finding with the server's words. The trial takes part in no contract, and begins no recovery unless the
    /// server loses its data meanwhile. Nothing is left but the last grant numbers (`tenure1:clock`). Each server of a cluster is
    /// tried. In memory there is nothing to try.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child. [`Error::Options`] if the operating system gives no thread.
    ///
    /// # Cancel safety
    /// Dropping the future gives everything up in the background. What is then left expires within a minute, but for the memory of
    /// the job.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn check_locks(&self) -> Result<Vec<Finding>, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let (Some(one), Some(other)) = (self.inspector.start_trial()?, self.inspector.start_trial()?) else {
            return Ok(Vec::new());
        };
        let mut findings = Vec::new();
        match one.node().ping(true).await {
            Ok(()) => {
                for (server, key) in one.node().servers.fresh_keys() {
                    let trial = Trial {
                        inspection: self,
                        one: &one,
                        other: &other,
                        key,
                    };
                    findings.push(finding(server, trial.run().await));
                }
            }
            Err(error) => {
                // A script that is refused does not name the right.
                let rights = self.inspector.try_rights(fresh_key()).await.err();
                let missing = rights.filter(|error| *error.kind() == NO_PERMISSION);
                let text = missing.unwrap_or(error).to_string();
                findings.push(finding(one.node().servers.text(), Err(text)));
            }
        }
        Ok(findings)
    }
}

fn finding(server: Arc<str>, tried: Result<String, String>) -> Finding {
    let level = tried.as_ref().map_or(FindingLevel::Fail, |_| FindingLevel::Ok);
    let text = tried.unwrap_or_else(|why| why);
    Finding {
        server,
        check: "locks",
        level,
        text,
    }
}

/// A trial of the locks at the server of a key, by two nodes.
struct Trial<'a> {
    inspection: &'a Inspection,
    one: &'a Handle,
    other: &'a Handle,
    key: Key,
}

impl Trial<'_> {
    /// Returns what works, or what does not and why.
    async fn run(&self) -> Result<String, String> {
        let tried = self.take_all().await;
        // A release that is still on its way must not come after the removal.
        let idle = async { tokio::join!(self.one.node().idle(), self.other.node().idle()) };
        let _ = timeout(TRIAL_PATIENCE, idle).await;
        let removed = self.inspection.inspector.remove(self.key.clone()).await;
        let text = tried?;
        removed.map_err(|error| format!("`{}` is left: {error}", self.key))?;
        Ok(text.to_owned())
    }

    async fn take_all(&self) -> Result<&'static str, String> {
        let rights = self.inspection.inspector.try_rights(self.key.clone()).await;
        rights.map_err(|error| error.to_string())?;
        self.hand_over().await?;
        if self.one.node().servers.is_quorum() {
            return Ok("a mutex was handed over");
        }
        self.take_others().await?;
        Ok("a mutex was handed over by a push, and the other locks were taken")
    }

    fn target(&self, node: &Handle, name: fn(Key) -> Name) -> Target {
        Target::new(node.clone(), name(self.key.clone()))
    }

    /// Hands a mutex over from one node to the other.
    async fn hand_over(&self) -> Result<(), String> {
        let node = self.other.node();
        let is_pushed = self.listen().await;
        let [first, second] = [self.one, self.other].map(|node| self.target(node, Name::lock));
        let held = first.enter_timeout(Mode::Exclusive, TRIAL_PATIENCE).await;
        let held = held.map_err(in_step("a mutex"))?;
        let waits = second.enter_timeout(Mode::Exclusive, TRIAL_PATIENCE);
        let releases = async {
            // The waiter's claim goes first on the same connection, so the store has queued it.
            let _ = node.ping(true).await;
            held.release().await
        };
        let (granted, released) = tokio::join!(waits, releases);
        released.map_err(in_step("the release of a mutex"))?;
        match granted {
            Ok(guard) if is_pushed => guard.release().await.map_err(in_step("the release of a mutex")),
            Ok(_) => Err(self.why_not_pushed().await),
            Err(error) if error.is_busy() => Err(self.why_not_pushed().await),
            Err(error) => Err(in_step("a mutex that was handed over")(error)),
        }
    }

    /// Opens the inbox of the second node, and returns whether grants are pushed. On a quorum none are, and none need to be.
    async fn listen(&self) -> bool {
        let node = self.other.node();
        if node.servers.is_quorum() {
            return true;
        }
        let mut inbox = node.inbox();
        node.tell_inbox(SessionInput::InboxWanted);
        let is_decided = |state: &InboxState| *state != InboxState::Unconfirmed;
        let _ = timeout(TRIAL_PATIENCE, inbox.wait_for(is_decided)).await;
        *node.inbox().borrow() == InboxState::Confirmed
    }

    /// A user without a right for pushes has the locks, and its waiters get them late. Only the server says which right.
    async fn why_not_pushed(&self) -> String {
        let pushed = self.inspection.inspector.try_push(self.key.clone()).await;
        let why = pushed.map_or_else(
            |error| error.to_string(),
            |()| "it did not arrive in time".to_owned(),
        );
        format!("a grant was not pushed, so waiters wait for up to a third of a lease longer: {why}")
    }

    /// Takes one of each other primitive.
    async fn take_others(&self) -> Result<(), String> {
        let target = |name| self.target(self.one, name);
        let reader = target(Name::lock).enter_timeout(Mode::Read, TRIAL_PATIENCE).await;
        release(reader).await.map_err(in_step("a reader"))?;
        let permit = Semaphore::new(target(Name::semaphore), 1)
            .acquire_timeout(TRIAL_PATIENCE)
            .await;
        release(permit).await.map_err(in_step("a permit"))?;
        let latch = Latch::new(target(Name::latch)).life(LATCH_LIFE);
        latch.try_set_count(1).await.map_err(in_step("a latch"))?;
        latch.count_down().await.map_err(in_step("a latch"))?;
        latch.wait().await.map_err(in_step("a latch"))?;
        let leader = Election::new(target(Name::election))
            .campaign_timeout(TRIAL_PATIENCE)
            .await;
        release(leader).await.map_err(in_step("an election"))?;
        #[cfg(feature = "scheduler")]
        {
            // The first tick of all is due by every clock.
            let claim = (TickTime(1), WhenBehind::Skip);
            let tick = acquire_tick(self.one, &self.key, self.one.options().lease(), claim).await;
            let tick = tick.map_err(in_step("a job"))?;
            let tick = tick.map_err(|refusal| format!("a job: its first tick is refused ({refusal:?})"))?;
            tick.release().await.map_err(in_step("a job"))?;
        }
        Ok(())
    }
}

async fn release(granted: Result<Guard, Error>) -> Result<(), Error> {
    granted?.release().await
}

/// Returns a function that says in which step an error came.
fn in_step(what: &'static str) -> impl Fn(Error) -> String {
    move |error| match error {
        // The key means nothing to an operator.
        Error::Store { source, .. } | Error::Connect { source, .. } => format!("{what}: {source}"),
        error => format!("{what}: {error}"),
    }
}
