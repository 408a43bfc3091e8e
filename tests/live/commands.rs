//! How many EVALSHA each operation sends, and how many commands its scripts call. The tests print the table.

use std::collections::BTreeMap;
use std::pin::Pin;

use tenure::{Error, Guard, Locks, Transfer};
use tokio::task::JoinHandle;

use crate::help::{Eyes, held, locks, ms, soon, until};
use crate::server::RedisServer;

/// An operation, its EVALSHA, and the commands that its scripts call.
type Row = (&'static str, u64, u64);

type Acquired = Pin<Box<dyn Future<Output = Result<Guard, Error>>>>;

/// What clients call outside of scripts, for their connections and to look at the server.
const OUTSIDE: &str = "auth client hello info ping role script select subscribe unsubscribe evalsha";

/// Measures one operation after the other. What happens between two of them counts for the later one.
struct Meter {
    eyes: Eyes,
    before: BTreeMap<String, u64>,
    rows: Vec<Row>,
}

impl Meter {
    fn on(server: &RedisServer) -> Meter {
        let mut eyes = Eyes::on(server);
        Meter {
            before: eyes.calls(),
            eyes,
            rows: Vec::new(),
        }
    }

    /// Leaves out what was called so far.
    fn skip(&mut self) {
        self.before = self.eyes.calls();
    }

    /// What was called since the last row, or since it was skipped.
    fn since(&mut self) -> (u64, u64) {
        let after = self.eyes.calls();
        let more = |(name, calls): (&String, &u64)| calls - self.before.get(name).copied().unwrap_or(0);
        let is_outside = |name: &str| {
            let command = name.split('|').next().unwrap_or(name);
            OUTSIDE.split(' ').any(|outside| outside == command)
        };
        let inside = after.iter().filter(|(name, _)| !is_outside(name)).map(more).sum();
        let scripts = after.get_key_value("evalsha").map_or(0, more);
        self.before = after;
        (scripts, inside)
    }

    fn note(&mut self, operation: &'static str) {
        let (scripts, inside) = self.since();
        self.rows.push((operation, scripts, inside));
    }

    /// Some scripts do less if they run in the same millisecond as the one before.
    async fn pause(&mut self) {
        tokio::time::sleep(ms(2)).await;
    }

    /// An operation that ends with an answer.
    async fn answered<T>(&mut self, operation: &'static str, work: impl Future<Output = T>) -> T {
        self.pause().await;
        let answer = soon(work).await;
        self.note(operation);
        answer
    }

    /// An operation that goes on waiting after so many EVALSHA.
    async fn sent<T: Send + 'static>(
        &mut self,
        operation: &'static str,
        scripts: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let enough = self.before.get("evalsha").copied().unwrap_or(0) + scripts;
        self.pause().await;
        let waits = tokio::spawn(work);
        until(operation, || self.eyes.calls().get("evalsha") >= Some(&enough)).await;
        self.note(operation);
        waits
    }
}

#[track_caller]
fn shows(rows: &[Row], expected: &[Row]) {
    println!("{:60} {:>8} {:>9}", "operation", "EVALSHA", "commands");
    for (operation, scripts, inside) in rows {
        println!("{operation:60} {scripts:8} {inside:9}");
    }
    let differ: Vec<_> = rows
        .iter()
        .zip(expected)
        .filter(|(row, known)| row != known)
        .collect();
    assert!(differ.is_empty(), "measured and expected: {differ:#?}");
    assert_eq!(rows.len(), expected.len());
}

/// No lease is renewed while a test runs, and the node hands over to its own callers for as long as that.
async fn node(server: &RedisServer) -> Locks {
    let long = ms(600_000);
    let connected = async {
        loop {
            let builder = crate::help::builder().lease(long).burst(256, long);
            // A busy machine may need longer than an attempt to connect may take.
            if let Ok(locks) = builder.request_timeout(ms(10_000)).connect(&server.url()).await {
                return locks;
            }
        }
    };
    soon(connected).await
}

/// A server and two nodes, which have waited already: their inboxes are open, and the scripts are loaded.
async fn two_nodes() -> (RedisServer, Locks, Locks) {
    let server = RedisServer::start();
    let (one, other) = (node(&server).await, node(&server).await);
    for (holds, waits) in [(&one, &other), (&other, &one)] {
        let guard = held(holds, "warm").await;
        let waiting = tokio::spawn(waits.mutex("warm").lock());
        let mut eyes = Eyes::on(&server);
        until("it waits", || eyes.queue("warm") == 1).await;
        soon(guard.release()).await.unwrap();
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
        soon(waits.idle()).await;
    }
    (server, one, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_sends_as_many_commands_as_before() {
    let (server, one, other) = two_nodes().await;
    let mut meter = Meter::on(&server);
    let guard = meter
        .answered("mutex: lock", one.mutex("a").lock())
        .await
        .unwrap();
    meter.answered("mutex: release", guard.release()).await.unwrap();
    let guard = meter
        .answered("mutex: try_lock", one.mutex("a").try_lock())
        .await
        .unwrap()
        .unwrap();
    let busy = meter
        .answered(
            "mutex: try_lock, held by another node",
            other.mutex("a").try_lock(),
        )
        .await;
    assert!(busy.unwrap().is_none());
    let busy = meter
        .answered("mutex: try_lock, held by this node", one.mutex("a").try_lock())
        .await;
    assert!(busy.unwrap().is_none());
    let waiting = meter
        .sent("mutex: lock, held by another node", 1, other.mutex("a").lock())
        .await;
    let released = async {
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap()
    };
    let guard = meter.answered("mutex: release to another node", released).await;
    let waiting = meter
        .sent("mutex: lock, held by this node", 0, other.mutex("a").lock())
        .await;
    until("it waits", || other.waiter_count() == 1).await;
    let released = async {
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap()
    };
    let guard = meter.answered("mutex: release to this node", released).await;
    meter
        .answered("mutex: release, again", guard.release())
        .await
        .unwrap();
    let guard = meter
        .answered("mutex: lock, fair", one.mutex("a").fair().lock())
        .await
        .unwrap();
    meter
        .answered("mutex: release, fair", guard.release())
        .await
        .unwrap();
    let fixed = one.mutex("a").fixed(ms(600_000));
    let guard = meter.answered("mutex: lock, fixed", fixed.lock()).await.unwrap();
    meter
        .answered("mutex: release, fixed", guard.release())
        .await
        .unwrap();
    let keys = ["a", "b", "c"];
    let guard = meter
        .answered("multi: lock 3 keys", one.multi(keys).lock())
        .await
        .unwrap();
    let busy = other.multi(keys);
    let busy = meter
        .answered("multi: try_lock 3 keys, held by another node", busy.try_lock())
        .await
        .unwrap();
    assert!(busy.is_none());
    meter
        .answered("multi: release 3 keys", guard.release())
        .await
        .unwrap();
    meter.answered("probe", one.ping()).await.unwrap();
    shows(
        &meter.rows,
        &[
            ("mutex: lock", 1, 5),
            ("mutex: release", 1, 4),
            ("mutex: try_lock", 1, 5),
            ("mutex: try_lock, held by another node", 1, 3),
            ("mutex: try_lock, held by this node", 0, 0),
            ("mutex: lock, held by another node", 1, 6),
            ("mutex: release to another node", 1, 9),
            ("mutex: lock, held by this node", 0, 0),
            ("mutex: release to this node", 0, 0),
            ("mutex: release, again", 1, 4),
            ("mutex: lock, fair", 1, 5),
            ("mutex: release, fair", 1, 4),
            ("mutex: lock, fixed", 1, 5),
            ("mutex: release, fixed", 1, 4),
            ("multi: lock 3 keys", 1, 8),
            ("multi: try_lock 3 keys, held by another node", 1, 7),
            ("multi: release 3 keys", 1, 4),
            ("probe", 1, 2),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_permits_send_as_many_commands_as_before() {
    let (server, one, other) = two_nodes().await;
    let mut meter = Meter::on(&server);
    let (here, there) = (one.rw_lock("a"), other.rw_lock("a"));
    let first = meter.answered("rw_lock: read", here.read()).await.unwrap();
    let second = meter
        .answered("rw_lock: read beside a reader of another node", there.read())
        .await
        .unwrap();
    let third = meter
        .answered("rw_lock: read beside a reader of this node", there.read())
        .await
        .unwrap();
    meter
        .answered("rw_lock: release, not the node's last reader", third.release())
        .await
        .unwrap();
    let busy = meter
        .answered("rw_lock: try_write beside readers", here.try_write())
        .await;
    assert!(busy.unwrap().is_none());
    meter
        .answered("rw_lock: release beside a reader", second.release())
        .await
        .unwrap();
    let waiting = meter
        .sent("rw_lock: write, held by a reader", 1, there.write())
        .await;
    let released = async {
        first.release().await.unwrap();
        waiting.await.unwrap().unwrap()
    };
    let writer = meter.answered("rw_lock: release to a writer", released).await;
    let waiting = meter
        .sent("rw_lock: read, held by a writer", 1, here.read())
        .await;
    let downgraded = async {
        let reader = writer.downgrade().await.unwrap();
        (reader, waiting.await.unwrap().unwrap())
    };
    let (reader, other_reader) = meter
        .answered("rw_lock: downgrade, a reader waits", downgraded)
        .await;
    soon(reader.release()).await.unwrap();
    soon(other_reader.release()).await.unwrap();
    meter.skip();
    let writer = meter.answered("rw_lock: write", here.write()).await.unwrap();
    let reader = meter
        .answered("rw_lock: downgrade", writer.downgrade())
        .await
        .unwrap();
    meter
        .answered("rw_lock: release, the last reader", reader.release())
        .await
        .unwrap();
    let (here, there) = (one.semaphore("p", 3), other.semaphore("p", 3));
    let first = meter
        .answered("semaphore: acquire", here.acquire())
        .await
        .unwrap();
    let second = meter
        .answered("semaphore: acquire 2 beside a holder", there.acquire_many(2))
        .await
        .unwrap();
    let left = meter
        .answered("semaphore: available_permits", here.available_permits())
        .await;
    assert_eq!(left.unwrap(), 0);
    let busy = meter
        .answered("semaphore: try_acquire, none left", there.try_acquire())
        .await;
    assert!(busy.unwrap().is_none());
    let waiting = meter
        .sent("semaphore: acquire, none left", 1, there.acquire())
        .await;
    let released = async {
        first.release().await.unwrap();
        waiting.await.unwrap().unwrap()
    };
    let third = meter
        .answered("semaphore: release to another node", released)
        .await;
    meter
        .answered("semaphore: release beside a holder", second.release())
        .await
        .unwrap();
    meter
        .answered("semaphore: release, the last holder", third.release())
        .await
        .unwrap();
    shows(
        &meter.rows,
        &[
            ("rw_lock: read", 1, 7),
            ("rw_lock: read beside a reader of another node", 1, 9),
            ("rw_lock: read beside a reader of this node", 0, 0),
            ("rw_lock: release, not the node's last reader", 0, 0),
            ("rw_lock: try_write beside readers", 0, 0),
            ("rw_lock: release beside a reader", 1, 8),
            ("rw_lock: write, held by a reader", 1, 10),
            ("rw_lock: release to a writer", 1, 13),
            ("rw_lock: read, held by a writer", 1, 6),
            ("rw_lock: downgrade, a reader waits", 1, 16),
            ("rw_lock: write", 1, 5),
            ("rw_lock: downgrade", 1, 8),
            ("rw_lock: release, the last reader", 1, 7),
            ("semaphore: acquire", 1, 7),
            ("semaphore: acquire 2 beside a holder", 1, 12),
            ("semaphore: available_permits", 1, 7),
            ("semaphore: try_acquire, none left", 1, 8),
            ("semaphore: acquire, none left", 1, 11),
            ("semaphore: release to another node", 1, 22),
            ("semaphore: release beside a holder", 1, 8),
            ("semaphore: release, the last holder", 1, 7),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_sends_as_many_commands_as_before() {
    let (server, one, other) = two_nodes().await;
    let mut meter = Meter::on(&server);
    let names = ["a", "b"];
    let mut set = Vec::new();
    for name in names {
        set.push(
            meter
                .answered("latch: try_set_count", one.latch(name).try_set_count(2))
                .await
                .unwrap(),
        );
    }
    assert_eq!(set, [true, true]);
    let again = meter
        .answered(
            "latch: try_set_count, set already",
            one.latch("a").try_set_count(2),
        )
        .await;
    assert!(!again.unwrap());
    // Both latches are older than these nodes, which therefore know that they count in them.
    let (one, other, _early) = (node(&server).await, node(&server).await, [one, other]);
    let queues = "KEYS tenure1:q:*";
    for node in [&one, &other] {
        soon(node.latch("a").count()).await.unwrap();
    }
    meter.skip();
    let latch = one.latch("a");
    assert_eq!(meter.answered("latch: count", latch.count()).await.unwrap(), 2);
    assert_eq!(
        meter
            .answered("latch: count_down", latch.count_down())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        meter
            .answered("latch: count_down_once", latch.count_down_once("x"))
            .await
            .unwrap(),
        0
    );
    meter.answered("latch: wait at zero", latch.wait()).await.unwrap();
    let unset = meter
        .answered("latch: count, not set", one.latch("c").count())
        .await;
    assert!(unset.is_err());
    let watched = other.latch("b");
    let waiting = {
        let watched = watched.clone();
        meter
            .sent("latch: wait", 1, async move { watched.wait().await })
            .await
    };
    until("it is known as a watcher", || {
        !meter.eyes.text::<Vec<Vec<u8>>>(queues).is_empty()
    })
    .await;
    meter.skip();
    let latch = one.latch("b");
    assert_eq!(
        meter
            .answered("latch: count_down before a watcher", latch.count_down())
            .await
            .unwrap(),
        1
    );
    let zero = async {
        assert_eq!(latch.count_down().await.unwrap(), 0);
        waiting.await.unwrap().unwrap();
    };
    meter
        .answered("latch: count_down to zero, and the watcher's look", zero)
        .await;
    shows(
        &meter.rows,
        &[
            ("latch: try_set_count", 1, 7),
            ("latch: try_set_count", 1, 7),
            ("latch: try_set_count, set already", 1, 4),
            ("latch: count", 1, 4),
            ("latch: count_down", 1, 6),
            ("latch: count_down_once", 1, 8),
            ("latch: wait at zero", 1, 4),
            ("latch: count, not set", 1, 5),
            ("latch: wait", 1, 8),
            ("latch: count_down before a watcher", 1, 6),
            ("latch: count_down to zero, and the watcher's look", 2, 13),
        ],
    );
}

/// The name of a node and its value travel with the request that wins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_leader_with_a_value_sends_one_request() {
    let server = RedisServer::start();
    let named = crate::help::builder().node_name("relay-1").presence(false);
    let named = soon(named.lease(ms(600_000)).connect(&server.url()))
        .await
        .unwrap();
    // The connection has the scripts by now.
    drop(soon(named.election("warm").campaign()).await.unwrap());
    soon(named.idle()).await;
    let mut meter = Meter::on(&server);
    let election = named.election("a").value("10.0.0.7:8080");
    let guard = meter.answered("election: campaign, with name and value", election.campaign());
    let guard = guard.await.unwrap();
    let leader = meter.answered("election: leader", election.leader()).await;
    let leader = leader.unwrap().unwrap();
    assert_eq!(leader.node_name(), Some("relay-1"));
    assert_eq!(leader.value(), Some(&b"10.0.0.7:8080"[..]));
    let campaign = ("election: campaign, with name and value", 1, 17);
    shows(&meter.rows, &[campaign, ("election: leader", 1, 4)]);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_sends_as_many_commands_as_before() {
    let (server, one, other) = two_nodes().await;
    let mut meter = Meter::on(&server);
    let (here, there) = (one.election("a"), other.election("a"));
    let none = meter
        .answered("election: leader, none", there.leader())
        .await
        .unwrap();
    assert!(none.is_none());
    let guard = meter
        .answered("election: campaign", here.campaign())
        .await
        .unwrap();
    meter
        .answered("election: proclaim", here.proclaim("1"))
        .await
        .unwrap();
    let leader = meter.answered("election: leader", there.leader()).await.unwrap();
    assert_eq!(leader.unwrap().value(), Some(&b"1"[..]));
    let stands = there.clone();
    let waiting = meter
        .sent("election: campaign, led by another node", 1, async move {
            stands.campaign().await
        })
        .await;
    let resigned = async {
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap()
    };
    let guard = meter.answered("election: resign to another node", resigned).await;
    let mut observer = here.observe();
    let seen = meter
        .answered("election: observe, the first look", observer.next())
        .await
        .unwrap();
    assert!(seen.is_some());
    let proclaimed = async {
        there.proclaim("2").await.unwrap();
        while observer
            .next()
            .await
            .unwrap()
            .is_none_or(|leader| leader.value() != Some(b"2"))
        {}
    };
    meter
        .answered("election: proclaim, and an observer's look", proclaimed)
        .await;
    drop(observer);
    meter.answered("election: resign", guard.release()).await.unwrap();
    shows(
        &meter.rows,
        &[
            ("election: leader, none", 1, 6),
            ("election: campaign", 1, 8),
            ("election: proclaim", 1, 12),
            ("election: leader", 1, 4),
            ("election: campaign, led by another node", 1, 6),
            ("election: resign to another node", 1, 12),
            ("election: observe, the first look", 1, 4),
            ("election: proclaim, and an observer's look", 2, 16),
            ("election: resign", 1, 7),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_and_writes_send_as_many_commands_as_before() {
    let (server, one, other) = two_nodes().await;
    let mut meter = Meter::on(&server);
    let guard = held(&one, "a").await;
    meter.skip();
    let sent = |transfer: Transfer| transfer.to_string().parse::<Transfer>().unwrap();
    let transfer = meter
        .answered("transfer: into_transfer", guard.into_transfer(ms(600_000)))
        .await
        .unwrap();
    let transfer = sent(transfer);
    meter
        .answered("transfer: extend", other.extend_transfer(&transfer, ms(700_000)))
        .await
        .unwrap();
    let guard = meter
        .answered("transfer: adopt", other.adopt(&transfer))
        .await
        .unwrap();
    let gone = meter
        .answered("transfer: adopt again", one.adopt(&transfer))
        .await;
    assert!(gone.is_err());
    meter
        .answered("transfer: release after adopt", guard.release())
        .await
        .unwrap();
    let permits = one.semaphore("p", 2);
    let permit = sent(
        meter
            .answered(
                "transfer: acquire_transfer, a permit",
                permits.acquire_transfer(ms(600_000)),
            )
            .await
            .unwrap(),
    );
    meter
        .answered("transfer: release without adopt", other.release_transfer(&permit))
        .await
        .unwrap();
    let (guard, both) = (
        held(&one, "a").await,
        soon(one.multi(["b", "c"]).lock()).await.unwrap(),
    );
    let set = async |meter: &mut Meter, operation| {
        let set = guard.atomically().command("SET").key("row").arg(1);
        meter.answered(operation, set.query::<(String,)>()).await.unwrap();
    };
    let script = "return redis.call('INCR', KEYS[1])";
    // The server is told the script of a write once.
    set(&mut meter, "").await;
    soon(guard.atomically().script(script).key("count").query::<u64>())
        .await
        .unwrap();
    let sets = || both.atomically().command("SET").key("row").arg(1);
    soon(sets().query::<(String,)>()).await.unwrap();
    meter.rows.pop();
    meter.skip();
    set(&mut meter, "write: SET").await;
    let script = guard.atomically().script(script).key("count");
    assert_eq!(
        meter
            .answered("write: a script with INCR", script.query::<u64>())
            .await
            .unwrap(),
        2
    );
    meter
        .answered("write: SET under 2 leases", sets().query::<(String,)>())
        .await
        .unwrap();
    shows(
        &meter.rows,
        &[
            ("transfer: into_transfer", 1, 5),
            ("transfer: extend", 1, 4),
            ("transfer: adopt", 1, 5),
            ("transfer: adopt again", 1, 3),
            ("transfer: release after adopt", 1, 4),
            ("transfer: acquire_transfer, a permit", 2, 19),
            ("transfer: release without adopt", 1, 7),
            ("write: SET", 1, 2),
            ("write: a script with INCR", 1, 2),
            ("write: SET under 2 leases", 1, 3),
        ],
    );
}

/// Ticks that are fired by hand, and what their runs ask.
#[cfg(feature = "scheduler")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_sends_as_many_commands_as_before() {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use tenure::Tick;
    use tenure::testing::fire_tick;
    use tokio::sync::{Notify, mpsc};

    let (server, one, other) = two_nodes().await;
    // Each node also asks about its job by itself: soon after the job is made, and then once in a lease.
    let (lease, mut meter) = (Duration::from_secs(30 * 24 * 3_600), Meter::on(&server));
    let (begun, mut runs) = mpsc::unbounded_channel::<Tick>();
    let ends = std::sync::Arc::new(Notify::new());
    let mut jobs = Vec::new();
    for node in [&one, &other] {
        let (begun, ends) = (begun.clone(), ends.clone());
        let work = move |tick: Tick| {
            let (begun, ends) = (begun.clone(), ends.clone());
            async move {
                begun.send(tick).unwrap();
                ends.notified().await;
            }
        };
        jobs.push(node.cron("a", "0 0 0 1 1 *").lease(lease).run(work).unwrap());
    }
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    let tick = |back: u64| UNIX_EPOCH + Duration::from_secs((hour - back) * 3_600);
    let asked = meter.before["evalsha"] + 2;
    until("both nodes ask", || meter.eyes.calls()["evalsha"] >= asked).await;
    // The server is told this script once.
    soon(one.jobs().forget("never run")).await.unwrap();
    meter.skip();
    let pursuit = |node: &Locks, back| {
        let (node, tick) = (node.clone(), tick(back));
        tokio::spawn(async move { fire_tick(&node, "a", tick).await })
    };
    let first = pursuit(&one, 3);
    let run = meter.answered("tick: won", runs.recv()).await.unwrap();
    meter
        .answered("tick: last_success, none", run.last_success())
        .await
        .unwrap();
    meter.answered("tick: resume", run.resume()).await.unwrap();
    meter
        .answered("tick: checkpoint", run.checkpoint(b"row 7"))
        .await
        .unwrap();
    meter
        .answered("tick: resume a checkpoint", run.resume())
        .await
        .unwrap();
    meter.answered("tick: verify", run.verify()).await.unwrap();
    let standby = fire_standby(&mut meter, &other, tick(3)).await;
    drop(run);
    let finished = async {
        ends.notify_one();
        first.await.unwrap()
    };
    assert_eq!(
        meter.answered("tick: finished, before a standby", finished).await,
        "done"
    );
    // It asks after a third of its lease only.
    standby.abort();
    soon(other.idle()).await;
    meter.skip();
    let told = meter
        .answered("tick: over, run by another node", fire_tick(&other, "a", tick(3)))
        .await;
    assert_eq!(told, "elsewhere");
    let told = meter
        .answered("tick: over, run by this node", fire_tick(&one, "a", tick(3)))
        .await;
    assert_eq!(told, "elsewhere");
    let next = pursuit(&one, 2);
    let run = meter
        .answered("tick: won, after another", runs.recv())
        .await
        .unwrap();
    meter
        .answered("tick: last_success", run.last_success())
        .await
        .unwrap();
    drop(run);
    let finished = async {
        ends.notify_one();
        next.await.unwrap()
    };
    assert_eq!(meter.answered("tick: finished", finished).await, "done");
    assert!(meter.answered("reset_job", one.jobs().reset("a")).await.is_ok());
    drop(jobs);
    let asked = meter.eyes.calls()["evalsha"] + 2;
    until("both nodes withdraw", || meter.eyes.calls()["evalsha"] >= asked).await;
    meter.skip();
    assert!(
        meter
            .answered("forget_job", one.jobs().forget("a"))
            .await
            .unwrap()
    );
    shows(
        &meter.rows,
        &[
            ("tick: won", 1, 8),
            ("tick: last_success, none", 1, 4),
            ("tick: resume", 1, 4),
            ("tick: checkpoint", 1, 5),
            ("tick: resume a checkpoint", 1, 5),
            ("tick: verify", 1, 4),
            ("tick: being run by another node", 1, 7),
            ("tick: finished, before a standby", 1, 11),
            ("tick: over, run by another node", 1, 5),
            ("tick: over, run by this node", 1, 5),
            ("tick: won, after another", 1, 8),
            ("tick: last_success", 1, 4),
            ("tick: finished", 1, 7),
            ("reset_job", 1, 6),
            ("forget_job", 1, 6),
        ],
    );

    async fn fire_standby(meter: &mut Meter, node: &Locks, tick: SystemTime) -> JoinHandle<&'static str> {
        let node = node.clone();
        meter
            .sent("tick: being run by another node", 1, async move {
                fire_tick(&node, "a", tick).await
            })
            .await
    }
}

/// The driver decides when it sends a renewal, so there may be more than one between two looks at the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_sends_as_many_commands_as_before() {
    let renewal = async |operation: &'static str, hold: &dyn Fn(&Locks) -> Acquired| -> Row {
        let server = RedisServer::start();
        let node = locks(&server.url(), ms(9_000)).await;
        let guard = soon(hold(&node)).await.unwrap();
        let mut meter = Meter::on(&server);
        let granted = meter.before["evalsha"];
        until(operation, || meter.eyes.calls()["evalsha"] > granted).await;
        let (scripts, inside) = meter.since();
        assert_eq!(
            inside % scripts,
            0,
            "{operation}: {inside} commands in {scripts} EVALSHA"
        );
        drop(guard);
        (operation, 1, inside / scripts)
    };
    let (mutex, reader, permit, leader) = tokio::join!(
        renewal("mutex: renewal", &|node| Box::pin(node.mutex("a").lock())),
        renewal("rw_lock: renewal of a reader", &|node| Box::pin(
            node.rw_lock("a").read()
        )),
        renewal("semaphore: renewal", &|node| Box::pin(
            node.semaphore("a", 3).acquire()
        )),
        renewal("election: renewal", &|node| {
            let election = node.election("a").lease(ms(9_000));
            Box::pin(async move { election.campaign().await })
        }),
    );
    let rows = [mutex, reader, permit, leader];
    shows(
        &rows,
        &[
            ("mutex: renewal", 1, 3),
            ("rw_lock: renewal of a reader", 1, 7),
            ("semaphore: renewal", 1, 7),
            ("election: renewal", 1, 5),
        ],
    );
}
