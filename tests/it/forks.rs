//! Every call in a forked child is refused at once, as its parent holds the locks.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use tenure::error::{ClosedCause, LostCause};
use tenure::{Error, Guard, Locks, MultiGuard, Tick, Transfer, block_on};

/// Marks the process for this test. A forked child has one thread, and mutexes that other threads held stay locked in
/// it.
const ALONE: &str = "TENURE_FORKS";
/// The number of forks, at different moments of another thread's work with the same locks.
const CHILDREN: usize = 20;

/// The values of the parent when it forks, several of each: a call may consume one.
struct Parent {
    locks: Locks,
    writers: Vec<Guard>,
    reader: Guard,
    several: MultiGuard,
    leads: Guard,
    transfer: Transfer,
    tick: Tick,
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

#[test]
fn a_forked_child_is_refused_everywhere() {
    if std::env::var_os(ALONE).is_none() {
        let test = "forks::a_forked_child_is_refused_everywhere";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        let output = command.env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("a child is done").count(), CHILDREN, "{said}");
        return;
    }
    let (locks, runtime) = (Locks::memory(), runtime());
    let parent = runtime.block_on(prepared(&locks));
    let (stop, cycles) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let busy = {
        let (locks, lease) = (locks.clone(), parent.writers[0].lease());
        let (stop, cycles) = (stop.clone(), cycles.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let guard = block_on(locks.mutex("busy").lock()).unwrap();
                block_on(guard.release()).unwrap();
                drop((lease.lost_token(), lease.overdue()));
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    for child in 1..=CHILDREN {
        // One-time initialization is over: a child inherits no half of it.
        while cycles.load(Ordering::Relaxed) < 10 * child {
            std::thread::yield_now();
        }
        match fork().unwrap() {
            Fork::Child => run_child(parent),
            Fork::Parent(id) => assert_eq!(waitpid(id).unwrap(), 0, "a child failed or hung"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    // The child's calls did not affect the parent.
    assert!(parent.writers.iter().all(|guard| guard.is_held()) && parent.several.is_held());
    runtime.block_on(async {
        for guard in parent.writers.into_iter().chain([parent.reader, parent.leads]) {
            guard.release().await.unwrap();
        }
        parent.several.release().await.unwrap();
        let adopted = locks.adopt(&parent.transfer).await.unwrap();
        adopted.release().await.unwrap();
        parent.tick.verify().await.unwrap();
    });
}

async fn prepared(locks: &Locks) -> Parent {
    let first = locks.mutex("a").lock().await.unwrap();
    let mut writers: Vec<_> = (0..7).map(|_| first.again().unwrap()).collect();
    writers.push(first);
    let travels = locks.mutex("travels").lock().await.unwrap();
    let (tell, ticks) = std::sync::mpsc::channel();
    let job = locks.cron("job", "0 0 0 * * *").run(move |tick: Tick| {
        tell.send(tick).unwrap();
        std::future::pending::<()>()
    });
    let (job, locks_of_job) = (job.unwrap(), locks.clone());
    // The runtime is on its own thread, which keeps running it.
    std::thread::spawn(move || {
        let midnight = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_627_200);
        runtime().block_on(tenure::testing::fire_tick(&locks_of_job, "job", midnight));
        drop(job);
    });
    Parent {
        locks: locks.clone(),
        writers,
        reader: locks.rw_lock("read").read().await.unwrap(),
        several: locks.multi(["b", "c"]).lock().await.unwrap(),
        leads: locks.election("leader").campaign().await.unwrap(),
        transfer: travels.into_transfer(Duration::from_secs(600)).await.unwrap(),
        tick: ticks.recv_timeout(Duration::from_secs(30)).unwrap(),
    }
}

/// Ends the process: its test harness belongs to the parent.
fn run_child(parent: Parent) -> ! {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(30));
        eprintln!("a child hangs");
        std::process::exit(2);
    });
    let done = catch_unwind(AssertUnwindSafe(|| runtime().block_on(child(parent))));
    eprintln!(
        "{}",
        if done.is_ok() {
            "a child is done"
        } else {
            "a child failed"
        }
    );
    std::process::exit(i32::from(done.is_err()));
}

#[track_caller]
fn closed<T>(what: &str, answer: Result<T, Error>) {
    let is_closed = |error: &Error| matches!(error, Error::Closed { why, .. } if *why == ClosedCause::Forked);
    match answer {
        Err(error) if is_closed(&error) => {}
        Err(error) => panic!("{what}: {error:?}"),
        Ok(_) => panic!("{what}: done in a fork"),
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future)
        .await
        .expect("at once")
}

async fn child(parent: Parent) {
    soon(what_is_to_be_acquired(&parent)).await;
    soon(what_is_held(&parent)).await;
    soon(what_is_given_back(parent)).await;
}

async fn what_is_to_be_acquired(parent: &Parent) {
    let (locks, wait) = (&parent.locks, Duration::from_secs(60));
    let (mutex, read) = (locks.mutex("free"), locks.rw_lock("free"));
    closed("lock", mutex.lock().await);
    closed("try_lock", mutex.try_lock().await);
    closed("lock_timeout", mutex.lock_timeout(wait).await);
    closed("with", mutex.with(async |_| ()).await);
    closed("read", read.read().await);
    closed("write", read.try_write().await);
    let permits = locks.semaphore("permits", 3);
    closed("acquire", permits.acquire().await);
    closed("acquire_transfer", permits.acquire_transfer(wait).await);
    closed("available_permits", permits.available_permits().await);
    closed("multi", locks.multi(["x", "y"]).lock().await);
    closed("multi, at once", locks.multi(["x", "y"]).try_lock().await);
    let latch = locks.latch("latch");
    closed("try_set_count", latch.try_set_count(1).await);
    closed("count_down", latch.count_down().await);
    closed("count_down_once", latch.count_down_once("id").await);
    closed("count", latch.count().await);
    closed("wait", latch.wait().await);
    closed("wait_timeout", latch.wait_timeout(wait).await);
    let election = locks.election("leader");
    assert!(!election.is_leader());
    closed("campaign", election.campaign().await);
    closed("lead", election.lead(async |_| ()).await);
    closed("proclaim", election.proclaim("here").await);
    closed("leader", election.leader().await);
    closed("observe", election.observe().next().await);
    closed("adopt", locks.adopt(&parent.transfer).await);
    closed("extend", locks.extend_transfer(&parent.transfer, wait).await);
    closed(
        "release of a transfer",
        locks.release_transfer(&parent.transfer).await,
    );
    closed("ping", locks.ping().await);
    closed("forget_job", locks.jobs().forget("job").await);
    assert_eq!(locks.key_count(), 0);
    locks.idle().await;
    locks.shutdown().await;
}

async fn what_is_held(parent: &Parent) {
    let (guard, several, tick) = (&parent.writers[0], &parent.several, &parent.tick);
    assert!(!guard.is_held() && !several.is_held() && !tick.is_held());
    assert_eq!(
        (guard.remaining(), several.remaining()),
        (Duration::ZERO, Duration::ZERO)
    );
    assert_eq!(guard.lost().await, LostCause::Forked);
    assert_eq!(several.lost().await, LostCause::Forked);
    assert_eq!(tick.lost().await, LostCause::Forked);
    guard.lease().overdue().await;
    several.lease().overdue().await;
    assert!(guard.lost_token().is_cancelled() && several.lost_token().is_cancelled());
    assert!(tick.lost_token().is_cancelled());
    closed("run", guard.run(async {}).await);
    closed("again", guard.again());
    closed("again of a lease", guard.lease().again());
    closed("run of several", several.run(async {}).await);
    closed("again of several", several.again());
    closed("check", tick.check());
    closed("verify", tick.verify().await);
    closed("checkpoint", tick.checkpoint(b"here").await);
    closed("resume", tick.resume().await);
    closed("last_success", tick.last_success().await);
    #[cfg(feature = "redis")]
    {
        let write = guard.atomically().command("INCR").key("n");
        closed("commands", write.query::<()>().await);
        let write = guard.atomically().script("return 1");
        closed("a script", write.query::<()>().await);
    }
}

async fn what_is_given_back(parent: Parent) {
    let mut writers = parent.writers.into_iter();
    let mut next = || writers.next().expect("the parent has enough");
    let keep = Duration::from_secs(60);
    closed(
        "into_transfer",
        next().into_transfer(keep).await.map_err(Error::from),
    );
    closed("downgrade", next().downgrade().await.map_err(Error::from));
    closed(
        "downgrade of a reader",
        parent.reader.downgrade().await.map_err(Error::from),
    );
    closed("release", next().release().await);
    closed("release of several", parent.several.release().await);
    closed("release of a leader", parent.leads.release().await);
    // All these values may be dropped.
    drop((next(), parent.tick, parent.locks));
    writers.for_each(drop);
}
