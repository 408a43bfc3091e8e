//! What happens to leases when a replica is promoted in place of the master.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use tenure::{Error, Fence, Guard, Lease, Locks, Mutex, Recovery};

use crate::deployment::{Deployment, NAME, info, tell};
use crate::help::{Eyes, addr, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::Proxy;

/// The deployment does what the other tests need: this test has no locks.
#[test]
fn a_replica_is_promoted_and_what_was_written_without_replication_is_lost() {
    let mut deployment = Deployment::start();
    let first = deployment.master();
    let reads = |deployment: &Deployment, at: usize| {
        let mut eyes = Eyes::on(&deployment.servers[at]);
        ["kept", "lost"].map(|key| eyes.text::<Option<String>>(&format!("GET {key}")).is_some())
    };
    tell(&deployment.servers[first], &["SET", "kept", "1"]);
    // A replica has all that its master wrote.
    deployment.wait_for_replicas();
    deployment.cut_replication();
    tell(&deployment.servers[first], &["SET", "lost", "1"]);
    assert_eq!(reads(&deployment, first), [true, true]);
    assert_eq!(deployment.kill_master(), first);
    deployment.heal_replication();
    let second = deployment.promoted(first);
    assert_ne!(first, second);
    assert_eq!(reads(&deployment, second), [true, false]);

    deployment.rejoin(first);
    // It has what it lacked, and lost what no other server has. Its role is not judged: on a busy machine the Sentinels may have
    // replaced the master meanwhile, even by this one.
    assert_eq!(reads(&deployment, first), [true, false]);
    let second = deployment.fail_over();
    let third = deployment.promoted(second);
    assert_eq!(reads(&deployment, third), [true, false]);
}

/// How many leases are taken while replication is cut.
const LEASES: usize = 50;

/// A node whose Sentinels can be kept from it, so that another node is first at a promoted server.
struct Holder {
    locks: Locks,
    sentinels: Vec<Proxy>,
}

/// What became of the leases that a promoted server lacked.
#[derive(Debug, Default)]
struct Outcome {
    /// Leases that two nodes held at one instant.
    pairs: usize,
    /// Leases that the promoted server has again.
    asserted: usize,
    /// Leases that their holders know to be lost.
    told: usize,
    /// From the death of the master to the agreement on another.
    promotion: Duration,
}

/// Everything that a round needs besides the servers.
struct Scene {
    holder: Holder,
    recovery: Recovery,
    lease: Duration,
    /// The largest fence so far.
    highest: u64,
    /// The master that was killed in the last round.
    dead: Option<usize>,
}

pub async fn node(urls: Vec<String>, lease: Duration, recovery: Recovery) -> Locks {
    let like = redis::Client::open("redis://127.0.0.1/").unwrap();
    let builder = crate::help::builder().lease(lease).recovery(recovery).lazy();
    builder.sentinel(NAME, urls, like).await.unwrap()
}

/// Ends the recovery that begins when a server is used for the first time: there are no earlier leases.
pub async fn skip_first_recovery(deployment: &Deployment, locks: &Locks) {
    in_time(async { while locks.ping().await.is_err() {} }).await;
    tell(
        &deployment.servers[deployment.master()],
        &["DEL", "tenure1:recovering"],
    );
}

/// Acquires the lock, however often the servers are away or refuse.
pub async fn at_last(mutex: Mutex) -> Guard {
    loop {
        match mutex.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(matches!(error, Error::Store { .. }), "{error}"),
        }
    }
}

/// Awaits the future for longer than a failover with a second vote and a recovery take.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let timeout = tokio::time::timeout(Duration::from_secs(90), future);
    timeout.await.expect("the future finishes in time")
}

/// Returns whether both leases are held at one instant. The second was granted before the call.
fn are_both_held(first: &Lease, second: &Lease) -> bool {
    // In this order: the second was held when the first was asked.
    first.is_held() && second.is_held()
}

impl Scene {
    async fn new(deployment: &Deployment, lease: Duration, recovery: Recovery) -> Scene {
        let sentinels: Vec<_> = deployment.sentinels.iter().map(addr).map(Proxy::start).collect();
        let urls = sentinels.iter().map(|sentinel| url(sentinel.addr())).collect();
        let locks = node(urls, lease, recovery).await;
        Scene {
            holder: Holder { locks, sentinels },
            recovery,
            lease,
            highest: 0,
            dead: None,
        }
    }

    /// Loses the leases of a node on the server, and lets a new node claim them before that node finds the new master.
    async fn round(&mut self, deployment: &mut Deployment, round: usize) -> Outcome {
        if let Some(dead) = self.dead.take() {
            deployment.rejoin(dead);
        }
        if self.highest == 0 {
            skip_first_recovery(deployment, &self.holder.locks).await;
        }
        // The server grants again, and its replicas have all that was written before the cut.
        let warm = self.holder.locks.mutex(format!("warm:{round}"));
        let warm = in_time(at_last(warm)).await;
        in_time(warm.release()).await.unwrap();
        deployment.wait_for_replicas();
        deployment.cut_replication();
        let mut guards = Vec::new();
        for n in 0..LEASES {
            let mutex = self.holder.locks.mutex(format!("lost:{round}:{n}"));
            guards.push(in_time(mutex.lock()).await.unwrap());
        }
        self.rises(guards.iter().map(|guard| guard.fence()));
        for sentinel in &self.holder.sentinels {
            sentinel.refuse(true);
            sentinel.reset();
        }
        let killed = now();
        let old = deployment.kill_master();
        deployment.heal_replication();
        let new = deployment.promoted(old);
        let mut outcome = Outcome {
            promotion: now() - killed,
            ..Outcome::default()
        };
        let mut eyes = Eyes::on(&deployment.servers[new]);
        for guard in &guards {
            let name = String::from_utf8_lossy(guard.key().as_bytes()).into_owned();
            assert_eq!(eyes.owner(&name), None, "`{name}` was replicated");
        }

        let rival = node(deployment.urls(), self.lease, self.recovery).await;
        let granted = Arc::new(AtomicUsize::new(0));
        let rivals = guards.iter().map(|guard| {
            let (mutex, lease, granted) = (rival.mutex(guard.key().clone()), guard.lease(), granted.clone());
            tokio::spawn(async move {
                let own = at_last(mutex).await;
                let pair = are_both_held(&lease, &own.lease());
                granted.fetch_add(1, Ordering::SeqCst);
                (own, pair)
            })
        });
        let rivals: Vec<_> = rivals.collect();
        let mut claimed = || granted.load(Ordering::SeqCst) + eyes.entries() / 2;
        until("the new node has claimed", || claimed() >= LEASES).await;
        self.holder.sentinels.iter().for_each(Proxy::heal);

        for guard in &guards {
            let name = String::from_utf8_lossy(guard.key().as_bytes()).into_owned();
            let node = self.holder.locks.node_id().to_string();
            let is_asserted = |owner: Option<String>| owner.is_some_and(|owner| owner.starts_with(&node));
            until("the lease is asserted, or lost", || {
                !guard.is_held() || is_asserted(eyes.owner(&name))
            })
            .await;
            if guard.is_held() {
                outcome.asserted += 1;
            } else {
                soon(guard.lost()).await;
                outcome.told += 1;
            }
        }
        if matches!(self.recovery, Recovery::Always { .. }) {
            recovered(&deployment.servers[new]).await;
        }
        // A node without any knowledge asks again, now that grants are possible.
        let stranger = node(deployment.urls(), self.lease, self.recovery).await;
        for guard in &guards {
            let own = soon(stranger.mutex(guard.key().clone()).try_lock()).await;
            if let Ok(Some(own)) = own {
                outcome.pairs += usize::from(are_both_held(&guard.lease(), &own.lease()));
                self.rises([own.fence()]);
            }
        }
        for guard in guards {
            match in_time(guard.release()).await {
                Ok(()) => {}
                Err(error) => assert!(error.is_lost() || matches!(error, Error::Store { .. }), "{error}"),
            }
        }
        let mut owns = Vec::new();
        for rival in rivals {
            let (own, pair) = in_time(rival).await.unwrap();
            outcome.pairs += usize::from(pair);
            owns.push(own);
        }
        self.rises(owns.iter().map(|guard| guard.fence()));
        drop(owns);
        in_time(rival.shutdown()).await;
        self.dead = Some(old);
        outcome
    }

    /// Checks that these fences are above all fences before them, and notes them.
    fn rises(&mut self, fences: impl IntoIterator<Item = Fence>) {
        let fences: Vec<u64> = fences.into_iter().map(Fence::get).collect();
        let (least, most) = (fences.iter().min(), fences.iter().max());
        assert!(least > Some(&self.highest), "{least:?} after {}", self.highest);
        self.highest = *most.expect("fences");
    }
}

/// Waits until the promoted server has recovered.
async fn recovered(server: &RedisServer) {
    let (mut eyes, run_id) = (Eyes::on(server), info(server, "run_id"));
    until("the server has recovered", || {
        // The run was replicated, too. It is that of the old master until a node is here.
        let run: Option<String> = eyes.text("GET tenure1:run");
        let is_known = run.is_some_and(|run| run.starts_with(&run_id));
        is_known && eyes.text::<u8>("EXISTS tenure1:recovering") == 0
    })
    .await;
}

/// The first node at the promoted server knows nothing of the lost leases, and must not get them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_a_promoted_server_lacks_are_asserted_and_never_granted_twice() {
    let lease = ms(8_000);
    let recovery = Recovery::Always {
        longest: lease,
        lag: ms(3_000),
    };
    let mut deployment = Deployment::start();
    let mut scene = Scene::new(&deployment, lease, recovery).await;
    let mut full_rounds = 0;
    for round in 0..8 {
        let outcome = scene.round(&mut deployment, round).await;
        println!("always, round {round}: {outcome:?}");
        assert_eq!(outcome.pairs, 0, "{outcome:?}");
        assert_eq!(outcome.asserted + outcome.told, LEASES, "{outcome:?}");
        // The Sentinels may need a second vote, which begins when the leases are over.
        if outcome.promotion < lease / 2 {
            assert!(outcome.asserted >= 40, "{outcome:?}");
            full_rounds += 1;
        }
        if full_rounds == 3 {
            return;
        }
    }
    panic!("no three failovers within half a lease");
}

/// The control of the test before: the same without a recovery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_evidence_alone_a_new_node_is_granted_what_a_promoted_server_lacks() {
    let mut deployment = Deployment::start();
    // Longer than a failover with a second vote.
    let mut scene = Scene::new(&deployment, ms(30_000), Recovery::OnEvidence).await;
    let outcome = scene.round(&mut deployment, 0).await;
    println!("on evidence: {outcome:?}");
    assert!(outcome.pairs >= 40, "{outcome:?}");
    assert_eq!(outcome.told, LEASES, "{outcome:?}");
}

/// Counts the grants that are pushed to each node, on a subscription of its own.
fn pushes(server: &RedisServer) -> Arc<StdMutex<HashMap<String, usize>>> {
    let counts = Arc::<StdMutex<HashMap<String, usize>>>::default();
    let (mut client, counted) = (server.client(), counts.clone());
    std::thread::spawn(move || {
        let mut pubsub = client.as_pubsub();
        pubsub.psubscribe("tenure1:n:*").unwrap();
        // Ends with the server.
        while let Ok(message) = pubsub.get_message() {
            if message.get_payload_bytes().starts_with(b"1 lock ") {
                let node = message.get_channel_name().rsplit(':').next().unwrap().to_owned();
                *counted.lock().unwrap().entry(node).or_default() += 1;
            }
        }
    });
    counts
}

/// Both masters are well, so nothing is lost. The nodes have to find the new one, and it has to find their inboxes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_costs_no_lease_and_waiters_are_pushed_their_grants_again() {
    let deployment = Deployment::start();
    // The recovery ends before the old master is demoted, which takes 8 s and ends the subscriptions there. Neither node
    // writes to it after the other has left.
    let (lease, lag) = (ms(4_000), Duration::ZERO);
    let always = Recovery::Always { longest: lease, lag };
    let nodes = [
        node(deployment.urls(), lease, always).await,
        node(deployment.urls(), lease, always).await,
    ];
    skip_first_recovery(&deployment, &nodes[0]).await;
    let guard = in_time(at_last(nodes[0].mutex("kept"))).await;
    let waiting = tokio::spawn(at_last(nodes[1].mutex("kept")));
    let mut eyes = Eyes::on(&deployment.servers[deployment.master()]);
    until("it waits", || eyes.queue("kept") == 1).await;
    let old = deployment.fail_over();
    let server = &deployment.servers[deployment.promoted(old)];
    recovered(server).await;
    assert!(guard.is_held());

    let (pushes, mut eyes) = (pushes(server), Eyes::on(server));
    until("the test hears pushes", || eyes.text::<u8>("PUBSUB NUMPAT") == 1).await;
    let (mut guard, mut waiting) = (guard, waiting);
    for turn in 0.. {
        until("it waits at the new master", || eyes.queue("kept") == 1).await;
        // Without a replica for a moment, the server refuses a release. The next turn may have a push.
        if let Err(error) = in_time(guard.release()).await {
            assert!(matches!(error, Error::Store { .. }), "{error}");
        }
        let next = in_time(waiting).await.unwrap();
        assert!(next.is_held());
        guard = next;
        waiting = tokio::spawn(at_last(nodes[turn % 2].mutex("kept")));
        let counts = pushes.lock().unwrap().clone();
        let is_pushed = |node: &Locks| counts.contains_key(&node.node_id().to_string());
        if nodes.iter().all(is_pushed) {
            println!("pushes after the failover: {counts:?}");
            break;
        }
        assert!(turn < 3, "{turn} hand-overs, pushed: {counts:?}");
    }
    waiting.abort();
}
