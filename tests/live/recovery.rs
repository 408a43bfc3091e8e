//! A server that restarts without its data: it grants nothing until the earlier leases are over, and learns of them again.

use std::time::Duration;

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::{Error, Guard, Locks, Recovery};

use crate::bad_input::tells;
use crate::help::{Eyes, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;

/// Longer than a busy machine takes to restart the server and to connect again.
const LEASE: Duration = ms(6_000);

async fn node(server: &RedisServer, recovery: Recovery) -> Locks {
    let builder = crate::help::builder().lease(LEASE).recovery(recovery);
    builder
        .request_timeout(ms(10_000))
        .connect(&server.url())
        .await
        .unwrap()
}

/// A lease of each kind.
async fn leases(locks: &Locks) -> Vec<Guard> {
    soon(async {
        vec![
            locks.mutex("mutex").lock().await.unwrap(),
            locks.mutex("fixed").fixed(LEASE).lock().await.unwrap(),
            locks.rw_lock("reader").read().await.unwrap(),
            locks.semaphore("permits", 3).acquire_many(2).await.unwrap(),
            locks.election("leader").lease(LEASE).campaign().await.unwrap(),
        ]
    })
    .await
}

/// Tries to acquire what excludes each of [`leases`]. It is granted, or another node has it, or the server refuses.
async fn tries(locks: &Locks) -> Vec<Result<Option<Guard>, Error>> {
    let election = locks.election("leader").lease(LEASE);
    soon(async {
        vec![
            locks.mutex("mutex").try_lock().await,
            locks.mutex("fixed").try_lock().await,
            locks.rw_lock("reader").try_write().await,
            locks.semaphore("permits", 3).try_acquire_many(2).await,
            election.try_campaign().await,
        ]
    })
    .await
}

#[track_caller]
pub fn is_recovering(error: &Error) {
    let Error::Store { source, .. } = error else {
        panic!("{error:?}");
    };
    let refusal = StoreErrorKind::Refused(StoreRefusal::Recovering);
    assert_eq!(source.kind(), &refusal, "{error}");
    tells(error, &["grants none", "try again later"]);
}

/// Loses all data of the server under a node with a lease of each kind. `is_first` is whether another node asks for these
/// leases before that node has asserted them.
async fn all_are_asserted(recovery: Recovery, is_first: bool) {
    let mut server = RedisServer::start();
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let holder = node(&server, recovery).await;
    let guards = leases(&holder).await;
    let recoveries = watch.count("server_recovering");
    server.restart();
    let mut eyes = Eyes::on(&server);
    let records = |eyes: &mut Eyes| {
        let keys = eyes.left_behind();
        let names = ["mutex", "fixed", "reader", "permits", "leader"];
        // The record of an election has a companion without a lease.
        let is_record = |key: &&String| names.iter().any(|name| key.ends_with(name)) && !key.contains(":v:");
        keys.iter().filter(is_record).count()
    };
    if !is_first {
        until("all are asserted", || records(&mut eyes) == guards.len()).await;
    }
    let rival = node(&server, recovery).await;
    for tried in tries(&rival).await {
        is_recovering(&tried.map(drop).unwrap_err());
    }
    let waits = soon(rival.mutex("mutex").lock_timeout(ms(10))).await;
    is_recovering(&waits.map(drop).unwrap_err());
    until("all are asserted", || records(&mut eyes) == guards.len()).await;
    for guard in &guards {
        assert!(guard.is_held(), "{}", guard.key());
    }
    watch.until("server_recovering").await;

    until("the server grants", || {
        eyes.text::<u8>("EXISTS tenure1:recovering") == 0
    })
    .await;
    for (guard, tried) in guards.iter().zip(tries(&rival).await) {
        // The fixed lease is over, as it was to be.
        let is_over = guard.key().as_bytes() == b"fixed";
        assert_eq!(tried.unwrap().is_some(), is_over, "{}", guard.key());
        assert_eq!(guard.is_held(), !is_over, "{}", guard.key());
    }
    // What does not exclude each other is granted beside the asserted leases.
    let reader = soon(rival.rw_lock("reader").read()).await.unwrap();
    soon(reader.release()).await.unwrap();
    let permit = soon(rival.semaphore("permits", 3).acquire()).await.unwrap();
    soon(permit.release()).await.unwrap();
    let highest = guards.iter().map(|guard| guard.fence()).max();
    for guard in guards.into_iter().filter(|guard| guard.is_held()) {
        soon(guard.release()).await.unwrap();
    }
    for guard in leases(&rival).await {
        assert!(Some(guard.fence()) > highest, "{}", guard.key());
    }
    // A node warns once of a recovery, however many of its claims are refused. The holders' node made no claim, so only a link
    // that compares the runs tells it.
    let links = usize::from(matches!(recovery, Recovery::Always { .. }));
    assert_eq!(watch.count("server_recovering"), recoveries + 1 + links);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_each_kind_are_asserted_after_a_restart_although_another_node_was_first() {
    let (longest, lag) = (LEASE, Duration::ZERO);
    all_are_asserted(Recovery::Always { longest, lag }, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_each_kind_are_asserted_on_evidence_if_their_node_is_first() {
    all_are_asserted(Recovery::OnEvidence, false).await;
}

/// The run of the server is recorded and a recovery begins, although the server refuses commands that need memory.
#[tokio::test]
async fn a_link_opens_at_another_run_without_memory() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let (longest, lag) = (LEASE, Duration::ZERO);
    let always = Recovery::Always { longest, lag };
    let locks = node(&server, always).await;
    let mut eyes = Eyes::on(&server);
    eyes.text::<u8>("DEL tenure1:recovering");
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let run = eyes.text::<String>("GET tenure1:run");
    // A new server, a server with a longer recovery under way, and another run of a server that is known.
    let changes = [
        &["DEL tenure1:run tenure1:longest tenure1:recovering"][..],
        &["SET tenure1:run x", "SET tenure1:recovering 1 PX 600000"],
        &["SET tenure1:run x", "DEL tenure1:recovering"],
    ];
    for change in changes {
        eyes.text::<()>("CONFIG SET maxmemory 0");
        for command in change {
            eyes.text::<redis::Value>(command);
        }
        eyes.text::<()>("CONFIG SET maxmemory 1");
        let rival = node(&server, always).await;
        assert_eq!(eyes.text::<String>("GET tenure1:run"), run, "{change:?}");
        is_recovering(&soon(rival.mutex("a").try_lock()).await.map(drop).unwrap_err());
    }
    let left = eyes.text::<u64>("PTTL tenure1:recovering");
    assert!((1..=7_000).contains(&left), "{left}");
    eyes.text::<u32>("CLIENT KILL TYPE normal SKIPME yes");
    soon(guard.renew()).await.unwrap();
    soon(guard.release()).await.unwrap();
}

/// A process that ended at its start leaves its contract, which ends by itself. Processes with another longest lease are refused
/// until then, and no recovery begins when it has ended.
#[tokio::test]
async fn the_contract_of_a_process_that_ended_ends_too() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let always = |longest| Recovery::Always {
        longest,
        lag: Duration::ZERO,
    };
    let wrong = node(&server, always(2 * LEASE)).await;
    eyes.text::<u8>("DEL tenure1:recovering");
    soon(wrong.shutdown()).await;
    drop(wrong);
    let url = server.url();
    let right = || {
        crate::help::builder()
            .lease(LEASE)
            .recovery(always(LEASE))
            .connect(&url)
    };
    let refused = right().await.unwrap_err().to_string();
    assert!(refused.contains("DEL tenure1:longest"), "{refused}");
    let lives = eyes.text::<i64>("PTTL tenure1:longest");
    assert!((60_000..=74_000).contains(&lives), "{lives}");
    // No process refreshes it.
    eyes.text::<u8>("PEXPIRE tenure1:longest 1");
    until("it has ended", || eyes.text::<u8>("EXISTS tenure1:longest") == 0).await;
    let right = right().await.unwrap();
    soon(right.mutex("a").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(eyes.text::<i64>("PTTL tenure1:longest") > 60_000);
    assert_eq!(eyes.text::<u8>("EXISTS tenure1:recovering"), 0);
}

/// A connected process refreshes its contract. If there is another one, it ends its connection, and is refused.
#[tokio::test]
async fn a_connected_process_keeps_its_contract_alive_and_obeys_another() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (longest, lag) = (LEASE, Duration::ZERO);
    let locks = node(&server, Recovery::Always { longest, lag }).await;
    eyes.text::<u8>("DEL tenure1:recovering tenure1:longest");
    until("the contract is back", || {
        eyes.text::<u8>("EXISTS tenure1:longest") == 1
    })
    .await;
    assert!(eyes.text::<i64>("PTTL tenure1:longest") > 60_000);
    eyes.text::<()>("SET tenure1:longest 1000:2000");
    let is_refused = async || {
        locks
            .ping()
            .await
            .is_err_and(|error| error.to_string().contains("DEL tenure1:longest"))
    };
    soon(async {
        while !is_refused().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// A tick is not asserted: its next run starts from what the server knows of the job, and that is lost, too.
#[cfg(feature = "scheduler")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_run_of_a_tick_is_told_that_its_lease_is_lost_and_runs_again_after_the_recovery() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{SystemTime, UNIX_EPOCH};

    use tenure::Tick;
    use tenure::testing::fire_tick;
    use tokio::sync::mpsc::unbounded_channel;

    let mut server = RedisServer::start();
    let (longest, lag) = (LEASE, Duration::ZERO);
    let node = node(&server, Recovery::Always { longest, lag }).await;
    // Before the first use there was no lease.
    Eyes::on(&server).text::<u8>("DEL tenure1:recovering");
    let (begun, mut begins) = unbounded_channel();
    let watch = Watch::of("=restored ");
    let job = node.cron("restored", "0 0 0 1 1 *").lease(LEASE);
    let runs = AtomicUsize::new(0);
    let job = job.run(move |tick: Tick| {
        begun.send(tick.fence()).unwrap();
        // The number of the attempt is lost with the rest.
        let is_first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                // The run is dropped when its lease is lost.
                std::future::pending::<()>().await;
            }
        }
    });
    let _job = job.unwrap();
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    let tick = UNIX_EPOCH + Duration::from_secs((hour - 1) * 3_600);
    let fired = tokio::spawn(async move { fire_tick(&node, "restored", tick).await });
    let first = soon(begins.recv()).await.unwrap();
    server.restart();
    let lost = watch.until("lost").await;
    assert!(lost.text.contains("no longer has it"), "{lost:?}");
    let mut eyes = Eyes::on(&server);
    let mut recovers = || eyes.text::<u8>("EXISTS tenure1:recovering") == 1;
    let mut second = None;
    until("the tick runs again", || {
        second = begins.try_recv().ok();
        assert!(
            second.is_none() || !recovers(),
            "granted while the server recovers"
        );
        second.is_some()
    })
    .await;
    assert!(second > Some(first), "{second:?} after {first:?}");
    assert_eq!(soon(fired).await.unwrap(), "done");
}
