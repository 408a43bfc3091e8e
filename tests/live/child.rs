//! What other processes do in the tests: each role is told by the environment, talks on its output and listens for
//! nods on its input.

use std::io::BufRead;
use std::time::Duration;

use tenure::{Error, Locks};

use crate::help::{locks, ms, now, soon};

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
        let locks = locks(&url, lease).await;
        match role.as_str() {
            "watches its guard" => watches_its_guard(locks, &key).await,
            "works step by step" => works_step_by_step(locks, &key, lease).await,
            "holds" => holds(locks, &key).await,
            "waits" => waits(locks, &key).await,
            other => panic!("no such role: {other}"),
        }
    });
}

/// Tries, and says why it is in vain.
async fn cannot_connect(url: &str) {
    let builder = Locks::builder().request_timeout(ms(500));
    let error = soon(builder.redis(url)).await.unwrap_err();
    println!("@refused {}", tenure::Error::from(error).is_unreachable());
}

async fn nod() {
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

async fn holds(locks: Locks, key: &str) {
    let guard = soon(locks.mutex(key).lock()).await.unwrap();
    println!("@holds {}", guard.fence());
    nod().await;
    guard.release().await.unwrap();
    println!("@released");
    nod().await;
}

async fn waits(locks: Locks, key: &str) {
    println!("@waits");
    let guard = soon(locks.mutex(key).lock()).await.unwrap();
    println!("@holds {}", guard.fence());
    nod().await;
}
