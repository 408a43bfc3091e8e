//! Locks on a Redis Cluster.

use std::time::Duration;

use tenure::Locks;

use crate::cluster::Cluster;
use crate::help::{ms, soon};

async fn node(cluster: &Cluster, lease: Duration) -> Locks {
    let like = redis::Client::open(cluster.urls()[0].clone()).unwrap();
    let builder = Locks::builder().lease(lease);
    builder.cluster(&cluster.urls()[..1], like).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holds_at_a_time_and_waiters_are_pushed_their_grants() {
    let cluster = Cluster::start(3, 0);
    let (one, other) = (node(&cluster, ms(10_000)).await, node(&cluster, ms(10_000)).await);
    for n in 0..60 {
        let key = format!("account:{n}");
        let guard = soon(one.mutex(&*key).lock()).await.unwrap();
        assert!(soon(other.mutex(&*key).try_lock()).await.unwrap().is_none());
        let waiter = tokio::spawn(other.mutex(&*key).lock());
        while other.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let fence = guard.fence();
        let before = std::time::Instant::now();
        soon(guard.release()).await.unwrap();
        let next = soon(waiter).await.unwrap().unwrap();
        assert!(next.fence() > fence);
        if n < 3 {
            println!("handed over in {:?}", before.elapsed());
        }
        soon(next.release()).await.unwrap();
    }
    let guards = soon(one.multi((0..20).map(|n| format!("account:{n}"))).lock())
        .await
        .unwrap();
    soon(guards.release()).await.unwrap();
    soon(one.shutdown()).await;
    soon(other.shutdown()).await;
}
