//! What other processes do in the tests: each role is told by the environment, talks on its output and listens for
//! nods on its input.

use std::io::BufRead;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::routing::post;
use tenure::middleware::keys;
use tenure::{Builder, Error, Lease, LockLayer, Locks};
use tokio_cron_scheduler::{Job, JobScheduler};
use tower::ServiceExt;
use tracing::Level;

use crate::help::{locks, ms, now, soon, until};
use crate::support::events::{Told, Watch};
use crate::support::jobs::ByHand;
use crate::{multi, quorums_clocks, writes};

/// Not a test but the door for [`Other`](crate::help::Other).
#[test]
fn plays_a_role() {
    let Ok(role) = std::env::var("TENURE_ROLE") else {
        return;
    };
    let var = |name: &str| std::env::var(name).unwrap();
    let lease = ms(var("TENURE_LEASE_MS").parse().unwrap());
    let (url, key) = (var("TENURE_URL"), var("TENURE_KEY"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        if role == "cannot connect" {
            return cannot_connect(&url).await;
        }
        if role == "counts" {
            let (prefix, seconds) = (var("TENURE_PREFIX"), var("TENURE_SECONDS").parse().unwrap());
            return counts(&url, &key, lease, &prefix, Duration::from_secs_f64(seconds)).await;
        }
        if role == "contends" {
            return contends(&url, &key, lease).await;
        }
        if role == "takes fences" {
            return quorums_clocks::takes_fences(&url, &key, lease).await;
        }
        let locks = locks(&url, lease).await;
        match role.as_str() {
            "watches its guard" => watches_its_guard(locks, &key).await,
            "works step by step" => works_step_by_step(locks, &key, lease).await,
            "holds" => holds(locks, &key).await,
            "holds permits" => {
                let guard = soon(locks.semaphore(&*key, 3).acquire_many(2)).await.unwrap();
                println!("@holds {}", guard.fence());
                nod().await;
            }
            "stands still" => stands_still(locks, &key).await,
            "hands on" => hands_on(locks, &url, &key).await,
            "waits" => waits(locks, &key).await,
            "increments" => writes::increments(locks, &key).await,
            "waits for a latch" => {
                let latch = locks.latch(&*key);
                let waiting = tokio::spawn(async move { latch.wait().await });
                println!("@waits");
                waiting.await.unwrap().unwrap();
            }
            "observes" => {
                let mut observer = locks.election(&*key).observe();
                println!("@observes");
                while observer.next().await.is_ok() {}
            }
            "transfers" => {
                println!("@ready");
                multi::transfers((key == "with locks").then_some(locks), &url, true).await;
            }
            "transfers once" => {
                let locks = (key == "with locks").then_some(locks);
                let pause = async {
                    println!("@read");
                    nod().await;
                };
                println!("@wrote {}", multi::one_transfer(locks, &url, pause).await);
                nod().await;
            }
            other => panic!("no such role: {other}"),
        }
    });
}

/// Tries, and says why it is in vain.
async fn cannot_connect(url: &str) {
    let builder = crate::help::builder().request_timeout(ms(500));
    let error = soon(builder.connect(url)).await.unwrap_err();
    println!("@refused {}", error.is_unreachable());
}

pub async fn nod() {
    let heard = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
    assert_ne!(heard.await.unwrap().unwrap(), 0, "the tests have ended");
}

/// Looks at its guard as often as it can, and says when it last saw it held.
async fn watches_its_guard(locks: Locks, key: &str) {
    let guard = soon(locks.mutex(key).lock()).await.unwrap();
    println!("@holds {}", guard.fence());
    let mut last = Duration::ZERO;
    loop {
        // Read first: whoever is stopped in between counts from before that.
        let at = now();
        if !guard.is_held() {
            break;
        }
        last = at;
    }
    let cause = soon(guard.lost()).await;
    println!("@lost {} {cause:?}", last.as_nanos());
    nod().await;
    let released = guard.release().await;
    println!("@released {}", released.is_err_and(|error| error.is_lost()));
    nod().await;
}

/// Works under `with`, and says how many steps it began after it had stood still for longer than the lease. One it may
/// have been in the middle of: no lock can stop a process between its look and its step.
async fn works_step_by_step(locks: Locks, key: &str, lease: Duration) {
    let mut late = 0;
    let worked = locks
        .mutex(key)
        .with(async |_| {
            println!("@holds");
            let mut last = now();
            loop {
                let at = now();
                late += u32::from(late > 0 || at - last > lease);
                last = at;
                tokio::task::yield_now().await;
            }
        })
        .await;
    let worked: Result<(), Error> = worked;
    println!("@lost {late} {}", worked.is_err_and(|error| error.is_lost()));
    nod().await;
}

/// Holds a lock and runs a job each second. Says what was told of a pause, and what followed from it.
async fn stands_still(locks: Locks, key: &str) {
    let watch = Watch::of("");
    let _guard = soon(locks.mutex(key).lock()).await.unwrap();
    let scheduler = JobScheduler::new().await.unwrap();
    let job = locks.job(format!("job of {key}"), |_| async {}).unwrap();
    let job = Job::new_async("* * * * * *", job).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    let runs = || {
        watch
            .told()
            .iter()
            .filter(|told| told.event == "tick_starts")
            .count()
    };
    until("ticks are run", || runs() >= 2).await;
    let before = watch.told().len();
    println!("@ready");
    let first = watch.until("process_paused").await;
    let lost = watch.until("lost").await;
    let ran = runs();
    // Whatever is wrong with the scheduler is told a second after a tick.
    until("ticks are run again", || runs() >= ran + 3).await;
    let loud = |told: &Told| told.level <= Level::WARN || told.event == "engine_missed";
    let told = watch.told().split_off(before);
    let events: Vec<String> = told.into_iter().filter(loud).map(|told| told.event).collect();
    println!("@told {}", events.join(" "));
    let (_, paused) = first.text.split_once("paused_ms=").unwrap();
    println!("@paused {}", paused.trim());
    let (_, cause) = lost.text.split_once("cause=").unwrap();
    println!("@cause {cause}");
    nod().await;
}

async fn holds(locks: Locks, key: &str) {
    let guard = soon(locks.mutex(key).lock()).await.unwrap();
    println!("@holds {}", guard.fence());
    nod().await;
    guard.release().await.unwrap();
    println!("@released");
    nod().await;
}

/// Takes a lock and tells others of it by a message, for twice its lease.
async fn hands_on(locks: Locks, url: &str, key: &str) {
    let handler = async |lease: Lease| -> Result<String, Error> {
        let transfer = lease.take_guard()?.into_transfer(ms(10_000)).await?;
        Ok(transfer.to_string())
    };
    let layer = LockLayer::new(&locks, keys::fixed(key.to_owned()));
    let app = Router::new().route("/", post(handler)).route_layer(layer);
    let request = Request::post("/").body(Body::empty()).unwrap();
    let answer = soon(app.oneshot(request)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let transfer = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    let push = redis::cmd("LPUSH").arg("messages").arg(&transfer[..]).to_owned();
    push.exec(&mut connection).unwrap();
    println!("@sent");
    nod().await;
}

/// Adds one to `counted`, in two steps under the lock, in two tasks and for so long. Says how often.
async fn counts(urls: &str, key: &str, lease: Duration, prefix: &str, span: Duration) {
    let builder = crate::help::builder().prefix(prefix).lease(lease);
    let locks = on_all(builder.request_timeout(ms(10_000)), urls).await;
    let client = redis::Client::open(urls.split(',').next().unwrap()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let connection = connection.await.unwrap();
    println!("@ready");
    nod().await;
    let end = now() + span;
    let tasks = [(); 2].map(|()| {
        let (mutex, mut connection) = (locks.mutex(key), connection.clone());
        tokio::spawn(async move {
            let mut added = 0;
            while now() < end {
                let guard = soon(mutex.lock()).await.unwrap();
                let get = redis::cmd("GET").arg("counted").to_owned();
                let counted: Option<u64> = get.query_async(&mut connection).await.unwrap();
                tokio::time::sleep(ms(1)).await;
                let mut set = redis::cmd("SET");
                set.arg("counted").arg(counted.unwrap_or(0) + 1);
                set.exec_async(&mut connection).await.unwrap();
                // Says so if the record is not ours any more.
                guard.release().await.unwrap();
                added += 1;
                // Else nobody who only looks now and then would find it free.
                tokio::time::sleep(ms(10)).await;
            }
            added
        })
    });
    let mut added = 0_u64;
    for task in tasks {
        added += task.await.unwrap();
    }
    println!("@counted {added}");
}

/// Acquires a lock for 5 ms again and again, and reports each grant. Nothing is handed on within the process.
async fn contends(urls: &str, key: &str, lease: Duration) {
    let builder = crate::help::builder().lease(lease).burst(1, Duration::ZERO);
    let locks = on_all(builder.request_timeout(ms(10_000)), urls).await;
    println!("@ready");
    nod().await;
    loop {
        let guard = soon(locks.mutex(key).lock()).await.unwrap();
        println!("@granted");
        tokio::time::sleep(ms(5)).await;
        guard.release().await.unwrap();
    }
}

/// Returns locks on one server, or on the masters of a quorum, whose URLs have commas between them.
async fn on_all(builder: Builder, urls: &str) -> Locks {
    let clients = urls.split(',').map(|url| redis::Client::open(url).unwrap());
    let clients: Vec<_> = clients.collect();
    match &clients[..] {
        [client] => builder.client(client.clone()).await,
        // The masters keep the longest lease of `quorums::masters`.
        _ => builder.quorum(clients, ms(10_000)).await,
    }
    .unwrap()
}

async fn waits(locks: Locks, key: &str) {
    println!("@waits");
    let guard = soon(locks.mutex(key).lock()).await.unwrap();
    println!("@holds {}", guard.fence());
    nod().await;
}
